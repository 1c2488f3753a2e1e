"""A party's total divided over its pods and their containers. Pure; the job and the task controller use the same figures.

Each amount is divided twice, over the pods and then over the containers of a pod, so that pods differ by one unit at most and
the shares add up to the total exactly. The unit is what Kubernetes takes: thousandths of a CPU, bytes, bits per second, and
whole numbers for everything else. `kuscia.io/bandwidth` counts whole Mbps; where those do not divide evenly the shares are
written as `bandwidth` in bits per second, because a fraction of an extended resource is refused.

A KusciaTask's template is one for all pods of a party and holds the first pod's share, which is the largest; the totals stand
beside it in the annotation `muster.dev/party-resources`, from which `pod_shares` gives each pod its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from muster.objects.bandwidth import MBPS, format_bandwidth, is_bandwidth_resource, mbps_to_bps, parse_bandwidth
from muster.objects.labels import Kuscia, Muster
from muster.objects.quantity import Family, Quantity
from muster.objects.status import Raw

_CPU: Final = "cpu"
_BYTES: Final = ("memory", "ephemeral-storage", "hugepages-")


class PartyTotal(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """What one party may use in a task, in all."""

    domain_id: str = msgspec.field(name="domainID")
    role: str = ""
    resources: dict[str, Any] = msgspec.field(default_factory=dict)


def pod_shares(resources: Mapping[str, Any], *, replicas: int, containers: int, pod: int) -> list[Raw]:
    """The `resources` of each container of the pod at index `pod`. ValueError when there is no such pod."""
    if replicas < 1 or containers < 1 or not 0 <= pod < replicas:
        raise ValueError(f"there is no pod {pod} of {replicas} with {containers} containers to give a share to")
    shares: list[Raw] = [{} for _ in range(containers)]
    is_whole_mbps = _has_whole_mbps(resources, replicas * containers)
    for word in ("requests", "limits"):
        amounts = resources.get(word)
        if not isinstance(amounts, Mapping):
            continue
        for name, value in amounts.items():
            total, family = _amount(name, value)
            own = _part(total, replicas, pod)
            for index, share in enumerate(shares):
                key, amount = _written(name, _part(own, containers, index), family, is_whole_mbps)
                share.setdefault(word, {})[key] = amount
    claims = resources.get("claims")
    if claims:
        for share in shares:
            share["claims"] = claims
    return shares


def total_of(annotations: Mapping[str, str], domain_id: str, role: str) -> Raw | None:
    """The party's total from the annotations of a KusciaTask; None when there is none, or it can't be read."""
    try:
        totals = _decoder.decode(annotations.get(Muster.PARTY_RESOURCES, "[]"))
    except (msgspec.ValidationError, msgspec.DecodeError):
        return None
    return next((total.resources for total in totals if (total.domain_id, total.role) == (domain_id, role)), None)


def totals_text(totals: Sequence[PartyTotal]) -> str:
    """The annotation's value."""
    return msgspec.json.encode(totals).decode()


_decoder = msgspec.json.Decoder(list[PartyTotal])


def _has_whole_mbps(resources: Mapping[str, Any], parts: int) -> bool:
    """Whether `kuscia.io/bandwidth` can be written in whole Mbps: it divides evenly and no other name for bandwidth is used."""
    for word in ("requests", "limits"):
        amounts = resources.get(word)
        for name, value in amounts.items() if isinstance(amounts, Mapping) else ():
            if not is_bandwidth_resource(name):
                continue
            if name != Kuscia.RESOURCE_BANDWIDTH or _amount(name, value)[0] % (parts * MBPS):
                return False
    return True


def _written(name: str, part: int, family: Family, is_whole_mbps: bool) -> tuple[str, str]:
    """Name and amount of one share."""
    if name == Kuscia.RESOURCE_BANDWIDTH and is_whole_mbps:
        return name, str(part // MBPS)
    if is_bandwidth_resource(name):
        return Muster.RESOURCE_BANDWIDTH if name == Kuscia.RESOURCE_BANDWIDTH else name, format_bandwidth(part)
    return name, str(Quantity.of_milli(part) if name == _CPU else Quantity.of(part, family))


def _amount(name: str, value: Any) -> tuple[int, Family]:
    """In the unit of the resource, rounded up. What can't be read counts as nothing: the rules for jobs refused it."""
    try:
        if name == Kuscia.RESOURCE_BANDWIDTH:
            return mbps_to_bps(value), Family.DECIMAL
        if is_bandwidth_resource(name):
            return parse_bandwidth(value), Family.DECIMAL
        quantity = Quantity.parse(value)
    except ValueError:
        return 0, Family.DECIMAL
    if name == _CPU:
        return max(quantity.milli(), 0), Family.DECIMAL
    family = quantity.family if name.startswith(_BYTES) else Family.DECIMAL
    return max(quantity.value(), 0), family


def _part(total: int, parts: int, index: int) -> int:
    whole, rest = divmod(total, parts)
    return whole + (index < rest)
