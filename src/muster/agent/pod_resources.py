"""Limits of pods and containers, and what they want of the network, from their manifests. Pure.

AgentError `CreateContainerConfigError` names the field and the value that can't be used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from muster.agent.contracts import AgentError, Limits, NetworkWant, Security
from muster.objects.bandwidth import raw_pod_bandwidth
from muster.objects.kinds.containers import Container
from muster.objects.kinds.pods import PodSpec
from muster.objects.quantity import Quantity
from muster.objects.status import Raw

PIDS_MAX: Final = 4096
"""Of one pod: a fork bomb ends there."""


def container_limits(container: Container, devices: Sequence[str] = ()) -> Limits:
    resources = container.resources
    limits: Mapping[str, Any] = resources.limits if resources is not None else {}
    requests: Mapping[str, Any] = resources.requests if resources is not None else {}
    where = f"container {container.name}: resources"
    return Limits(
        cpu_request_milli=_amount(f"{where}.requests", requests or limits, "cpu", milli=True) or 0,
        cpu_limit_milli=_amount(f"{where}.limits", limits, "cpu", milli=True),
        memory_request_bytes=_amount(f"{where}.requests", requests or limits, "memory") or 0,
        memory_limit_bytes=_amount(f"{where}.limits", limits, "memory"),
        disk_limit_bytes=_amount(f"{where}.limits", limits, "ephemeral-storage"),
        devices=tuple(devices),
    )


def pod_limits(spec: PodSpec, devices: Sequence[str] = ()) -> Limits:
    """Sums of its containers, or its largest init container if that is more; no limit when one of them has none."""
    mains = [container_limits(container) for container in spec.containers]
    inits = [container_limits(container) for container in spec.init_containers]

    def request(field: str) -> int:
        return int(max([sum(getattr(one, field) for one in mains), *(getattr(one, field) for one in inits)]))

    def limit(field: str) -> int | None:
        every = [getattr(one, field) for one in mains]
        first = [getattr(one, field) for one in inits]
        if not every or any(one is None for one in (*every, *first)):
            return None
        return int(max([sum(every), *first]))

    return Limits(
        cpu_request_milli=request("cpu_request_milli"),
        cpu_limit_milli=limit("cpu_limit_milli"),
        memory_request_bytes=request("memory_request_bytes"),
        memory_limit_bytes=limit("memory_limit_bytes"),
        pids_max=PIDS_MAX,
        disk_limit_bytes=limit("disk_limit_bytes"),
        devices=tuple(devices),
    )


def device_counts(spec: PodSpec, offered: Mapping[str, Any]) -> dict[str, int]:
    """How many units of each offered device the pod's containers ask for."""
    found: dict[str, int] = {}
    for container in spec.containers:
        resources = container.resources
        amounts = {**resources.limits, **resources.requests} if resources is not None else {}
        for name in offered:
            if wanted := _amount(f"container {container.name}: resources", amounts, name):
                found[name] = found.get(name, 0) + wanted
    return found


def network_want(uid: str, pod: Raw) -> NetworkWant:
    """AgentError names every figure that can't be used."""
    wanted = raw_pod_bandwidth(pod)
    if wanted.problems:
        raise AgentError("NetworkNotReady", "; ".join(str(problem) for problem in wanted.problems))
    limit = wanted.limit
    return NetworkWant(
        uid=uid,
        egress_limit_bps=limit.egress_bps if limit is not None else None,
        ingress_limit_bps=limit.ingress_bps if limit is not None else None,
        egress_request_bps=wanted.request.egress_bps,
        ingress_request_bps=wanted.request.ingress_bps,
    )


def security_of(spec: PodSpec, container: Container) -> Security:
    """The container's own words win over the pod's."""
    whole, own = spec.security_context, container.security_context
    user = own.run_as_user if own is not None and own.run_as_user is not None else whole.run_as_user if whole else None
    group = own.run_as_group if own is not None and own.run_as_group is not None else whole.run_as_group if whole else None
    groups = [*(whole.supplemental_groups if whole else ())]
    if whole is not None and whole.fs_group is not None:
        groups.append(whole.fs_group)
    capabilities = own.capabilities if own is not None else None
    return Security(
        user=user,
        group=group,
        groups=tuple(dict.fromkeys(groups)),
        read_only_root=bool(own is not None and own.read_only_root_filesystem),
        may_gain_privileges=bool(own is not None and own.allow_privilege_escalation),
        add_capabilities=tuple(capabilities.add) if capabilities is not None else (),
        drop_capabilities=tuple(capabilities.drop) if capabilities is not None else (),
    )


def must_not_be_root(spec: PodSpec, container: Container) -> bool:
    whole, own = spec.security_context, container.security_context
    if own is not None and own.run_as_non_root is not None:
        return own.run_as_non_root
    return bool(whole is not None and whole.run_as_non_root)


def _amount(where: str, amounts: Mapping[str, Any], name: str, *, milli: bool = False) -> int | None:
    value = amounts.get(name)
    if value is None:
        return None
    try:
        quantity = Quantity.parse(value)
        amount = quantity.milli() if milli else quantity.value()
        if amount < 0:
            raise ValueError("an amount is not negative")
    except ValueError as e:
        raise AgentError("CreateContainerConfigError", f"{where}.{name}: {value!r}: {e}") from e
    return amount
