"""The Node object of an agent, as values: what it says of itself, and what changes an existing one needs. Pure.

The agent owns the labels that it wrote and no others. Which those are stands in an annotation of the Node, so that what it no
longer wants is taken away, and what an admin added stays. Taints it only adds: who may take one away is the admin's business.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from muster import __version__
from muster.agent.config import AgentConfig
from muster.agent.contracts import Missing
from muster.agent.measuring import Identity, Pressure
from muster.agent.offering import Offer, pressures
from muster.objects.bandwidth import bps_to_mbps, node_bandwidth
from muster.objects.conditions import set_condition
from muster.objects.labels import AGENT_ROLE, KoordinatorNode, Kubernetes, Kuscia, KusciaLabel, Muster
from muster.objects.meta import annotations_of, labels_of
from muster.objects.quantity import as_kept
from muster.objects.status import Raw
from muster.objects.time import format_time
from muster.objects.words import counted

AGENT_ID: Final = "muster.dev/agent-id"
"""On a node: which agent keeps it, as machine id and the id of its data directory."""
MISSING: Final = "muster.dev/agent-missing"
"""On a node: what its machine does not allow, in a few words each."""
OWNED: Final = "muster.dev/agent-labels"
"""On a node: the keys of the labels that its agent wrote."""
RUNTIMES: Final = {"process": "runp", "runc": "runc", "kubernetes": "runk"}
"""As Kuscia calls them."""

NAME_LEN_MAX: Final = 52
"""What a certificate has room for beside `system:node:`."""
_MISSING_LEN_MAX: Final = 1024
_HEARTBEAT: Final = "lastHeartbeatTime"


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the Node says, at one moment."""

    name: str
    config: AgentConfig
    identity: Identity
    agent_id: str
    offer: Offer
    pressure: Pressure = Pressure()
    addresses: tuple[str, ...] = ()
    port: int = 0
    missing: tuple[Missing, ...] = ()
    not_ready: str = ""
    """Why the node can take no work; empty when it can."""
    network_problem: str = ""


def node_name(config: AgentConfig, hostname: str) -> str:
    """The configured one, or the host's with the party's before it."""
    if config.name:
        return config.name
    host = "".join(c if c.isalnum() or c in "-." else "-" for c in hostname.lower()).strip("-.") or "node"
    return f"{config.domain}-{host}"[:NAME_LEN_MAX].rstrip("-.") if config.domain else host[:NAME_LEN_MAX].rstrip("-.")


def labels(facts: Facts) -> dict[str, str]:
    config = facts.config
    # What the agent says of the machine and of the party is not to be changed by the `labels` of the file.
    wanted = dict(config.labels)
    wanted |= {
        Kubernetes.HOSTNAME: facts.identity.hostname[:63],
        Kubernetes.OS: "linux",
        Kubernetes.ARCH: facts.identity.arch,
        Kubernetes.ROLE: AGENT_ROLE,
        KusciaLabel.NODE_RUNTIME: RUNTIMES[config.runtime],
        Muster.AGENT: __version__.replace("+", "_")[:63],
    }
    if config.domain:
        wanted |= {KusciaLabel.NODE_DOMAIN: config.domain, KusciaLabel.NODE_NAMESPACE: config.domain}
    if facts.offer.gpu_model:
        text = "".join(c if c.isalnum() or c in "-_." else "-" for c in facts.offer.gpu_model)
        wanted[KoordinatorNode.GPU_MODEL] = text[:63].strip("-_.")
    return wanted


def taints(config: AgentConfig) -> list[Raw]:
    """Only what is meant for the party comes to its nodes, as with Kuscia's agents."""
    own: list[Raw] = [dict(taint) for taint in config.taints]
    if config.domain:
        own.append({"key": Kuscia.TAINT_AGENT, "value": "v1", "effect": "NoSchedule"})
    return own


def notes(facts: Facts) -> dict[str, str]:
    own = {
        AGENT_ID: facts.agent_id,
        Muster.AGENT_BANDWIDTH: f"{facts.offer.bandwidth_mbps}Mbps",
        Muster.AGENT_BANDWIDTH_RESERVED: f"{facts.offer.bandwidth_reserved_mbps}Mbps",
        OWNED: ",".join(sorted(labels(facts))),
    }
    if facts.config.timing.fence_seconds:
        own[Muster.FENCE_SECONDS] = str(facts.config.timing.fence_seconds)
    if facts.missing:
        own[MISSING] = short(facts.missing)
    return own


def short(missing: Sequence[Missing]) -> str:
    text = "; ".join(dict.fromkeys(f"{one.feature} ({one.why})" for one in missing))
    return text if len(text) <= _MISSING_LEN_MAX else text[: _MISSING_LEN_MAX - 3] + "..."


def new_node(facts: Facts) -> Raw:
    spec: Raw = {"taints": own} if (own := taints(facts.config)) else {}
    if facts.config.network.pod_cidr:
        spec |= {"podCIDR": facts.config.network.pod_cidr, "podCIDRs": [facts.config.network.pod_cidr]}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": facts.name, "labels": labels(facts), "annotations": notes(facts)},
        "spec": spec,
    }


def metadata_patch(live: Mapping[str, Any], facts: Facts) -> Raw | None:
    """A merge patch that makes labels, annotations and taints what the agent wants, and gives the node the configured pod
    addresses if it has none; None when all is so. What others wrote stays."""
    owned = set(filter(None, annotations_of(live).get(OWNED, "").split(",")))
    wanted_labels, has_labels = labels(facts), labels_of(live)
    label_changes: Raw = {key: value for key, value in wanted_labels.items() if has_labels.get(key) != value}
    label_changes |= {key: None for key in has_labels if key in owned and key not in wanted_labels}
    wanted_notes, has_notes = notes(facts), annotations_of(live)
    note_changes: Raw = {key: value for key, value in wanted_notes.items() if has_notes.get(key) != value}
    optional = (Muster.FENCE_SECONDS, MISSING)
    note_changes |= {key: None for key in optional if key in has_notes and key not in wanted_notes}
    metadata: Raw = {}
    if label_changes:
        metadata["labels"] = label_changes
    if note_changes:
        metadata["annotations"] = note_changes
    patch: Raw = {"metadata": metadata} if metadata else {}
    spec = live.get("spec") or {}
    has_taints = [taint for taint in spec.get("taints") or () if isinstance(taint, dict)]
    present = {_taint_id(taint) for taint in has_taints}
    if lacking := [taint for taint in taints(facts.config) if _taint_id(taint) not in present]:
        # A list is replaced whole, so nobody else may have changed it meanwhile.
        patch.setdefault("metadata", {})["resourceVersion"] = (live.get("metadata") or {}).get("resourceVersion")
        patch["spec"] = {"taints": [*has_taints, *lacking]}
    if (cidr := facts.config.network.pod_cidr) and not (spec.get("podCIDR") or spec.get("podCIDRs")):
        patch["spec"] = {**patch.get("spec", {}), "podCIDR": cidr, "podCIDRs": [cidr]}
    return patch or None


def _taint_id(taint: Mapping[str, Any]) -> str:
    return f"{taint.get('key', '')}:{taint.get('effect', '')}"


def status(live: Mapping[str, Any], facts: Facts, now: float) -> Raw:
    """The whole of what the agent reports in `status`; fields of others are not in it, and a merge patch leaves them."""
    before = live.get("status") if isinstance(live.get("status"), Mapping) else {}
    assert isinstance(before, Mapping)
    total, usable = _bandwidth(live, facts)
    address = [{"type": "InternalIP", "address": one} for one in facts.addresses]
    return {
        "capacity": _with_gone(before.get("capacity"), facts.offer.capacity | total),
        "allocatable": _with_gone(before.get("allocatable"), facts.offer.allocatable | usable),
        "conditions": conditions(before.get("conditions"), facts, now),
        "addresses": [*address, {"type": "Hostname", "address": facts.identity.hostname}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": facts.port}},
        "nodeInfo": {
            "machineID": facts.identity.machine_id,
            "systemUUID": facts.identity.machine_id,
            "bootID": facts.identity.boot_id,
            "kernelVersion": facts.identity.kernel,
            "osImage": facts.identity.os_image,
            "operatingSystem": "linux",
            "architecture": facts.identity.arch,
            "containerRuntimeVersion": f"muster-{facts.config.runtime}://{__version__}",
            "kubeletVersion": f"muster-{__version__}",
            "kubeProxyVersion": "",
        },
    }


def _bandwidth(live: Mapping[str, Any], facts: Facts) -> tuple[dict[str, str], dict[str, str]]:
    """The extended resource, where an admin has said something about the node's bandwidth: that wins over what was measured."""
    found = node_bandwidth(annotations_of(live) | notes(facts), None)
    if found.source != "annotation" or found.total is None or found.usable is None:
        return {}, {}
    name = Kuscia.RESOURCE_BANDWIDTH
    return {name: str(bps_to_mbps(found.total.smaller_bps()))}, {name: str(bps_to_mbps(found.usable.smaller_bps()))}


def _with_gone(old: object, new: Mapping[str, str]) -> Raw:
    """A resource that is no longer there is taken away by a merge patch only where it says so. Amounts are spelt as the server
    keeps them (1000 is 1k): in any other spelling each look would find them changed."""
    gone: Raw = {key: None for key in old if key not in new and not _is_others(key)} if isinstance(old, Mapping) else {}
    return gone | {name: as_kept(amount, is_listed=True) for name, amount in new.items()}


def _is_others(resource: str) -> bool:
    """Amounts that controllers put onto nodes (colocation's batch and mid resources)."""
    return resource.startswith(("kubernetes.io/batch-", "kubernetes.io/mid-", "koordinator.sh/"))


def conditions(old: Sequence[Raw] | None, facts: Facts, now: float) -> list[Raw]:
    found = [one for one in old if isinstance(one, dict)] if isinstance(old, list) else []
    beat = {_HEARTBEAT: format_time(now)}
    for type_, problem in (
        *pressures(facts.pressure).items(),
        ("NetworkUnavailable", facts.network_problem),
    ):
        fine = {
            "MemoryPressure": "HasSufficientMemory",
            "DiskPressure": "HasNoDiskPressure",
            "PIDPressure": "HasSufficientPIDs",
        }
        found = set_condition(
            found,
            type_=type_,
            status="True" if problem else "False",
            now=now,
            reason=type_ if problem else fine.get(type_, "NetworkReady"),
            message=problem or "",
            fields=beat,
        )
    return set_condition(
        found,
        type_="Ready",
        status="False" if facts.not_ready else "True",
        now=now,
        reason="AgentNotReady" if facts.not_ready else "AgentReady",
        message=facts.not_ready or "the agent takes work",
        fields=beat,
    )


def stopped(old: Sequence[Raw] | None, tasks: int, now: float) -> list[Raw]:
    """The agent stops; what runs goes on."""
    going_on = f"; {counted(tasks, 'pod')} still here, taken back when it starts again" if tasks else ""
    return set_condition(
        old,
        type_="Ready",
        status="False",
        now=now,
        reason="AgentStopped",
        message=f"the agent was stopped{going_on}",
        fields={_HEARTBEAT: format_time(now)},
    )


def differs(live: Mapping[str, Any] | None, wanted: Raw) -> bool:
    """Whether a report would tell anything but a later heartbeat."""
    before = live if isinstance(live, Mapping) else {}
    for key, value in wanted.items():
        if key == "conditions":
            if _told(before.get(key)) != _told(value):
                return True
        elif isinstance(value, dict):
            has = before.get(key)
            if not isinstance(has, Mapping) or any(has.get(name) != one for name, one in value.items()):
                return True
        elif before.get(key) != value:
            return True
    return False


def _told(found: object) -> list[tuple[object, ...]]:
    """Without what only says when, and how much exactly."""
    if not isinstance(found, list):
        return []
    return [(one.get("type"), one.get("status"), one.get("reason")) for one in found if isinstance(one, dict)]
