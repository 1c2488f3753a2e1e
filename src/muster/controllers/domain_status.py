"""What a Domain's status says of its nodes and of its quota. Pure.

Both change far more often than anybody reads them (heartbeats, every pod that starts or ends), and each write goes to everyone
who watches Domains. So figures are brought up to date at most so often, and at once when something else changed too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from muster.engine.facts import PodFacts, QuotaFacts
from muster.engine.plugins.party_quota import caps_of
from muster.engine.resources import requests_of
from muster.objects.amounts import unit_of
from muster.objects.bandwidth_units import format_bandwidth
from muster.objects.status import Raw
from muster.objects.time import format_time, parse_time, time_or
from muster.objects.view import View

HEARTBEAT_STEP_S: Final = 60.0
USAGE_STEP_S: Final = 10.0
NODES_MAX: Final = 1_000
"""Nodes that one status lists; a status must stay small enough to be stored."""


class NodeCondition(View):
    type: str = ""
    status: str = ""
    last_heartbeat_time: str = ""
    last_transition_time: str = ""


class NodeInfo(View):
    kubelet_version: str = ""


class NodeStatus(View):
    conditions: list[NodeCondition] = msgspec.field(default_factory=list)
    node_info: NodeInfo = msgspec.field(default_factory=NodeInfo)


class NodeView(View):
    status: NodeStatus = msgspec.field(default_factory=NodeStatus)


def node_entry(name: str, node: NodeView) -> Raw:
    """The node as Kuscia's tools read it; times that nobody reported are left out."""
    ready = next((condition for condition in node.status.conditions if condition.type == "Ready"), NodeCondition())
    entry = {
        "name": name,
        "version": node.status.node_info.kubelet_version,
        "status": "Ready" if ready.status == "True" else "NotReady",
        "lastHeartbeatTime": ready.last_heartbeat_time,
        "lastTransitionTime": ready.last_transition_time,
    }
    return {key: value for key, value in entry.items() if value}


def node_entries(old: object, nodes: Sequence[Raw]) -> list[Raw] | None:
    """The list to write; None when the one that is there will do: nothing but heartbeats moved, and none of them by much."""
    new = [dict(node) for node in sorted(nodes, key=lambda node: str(node["name"]))[:NODES_MAX]]
    known = [entry for entry in old if isinstance(entry, dict)] if isinstance(old, list) else []
    if [_without_heartbeat(entry) for entry in known] != [_without_heartbeat(entry) for entry in new]:
        return new
    moved_s = max((_moved_s(a, b) for a, b in zip(known, new, strict=True)), default=0.0)
    return new if moved_s >= HEARTBEAT_STEP_S else None


def _without_heartbeat(entry: Raw) -> Raw:
    return {key: value for key, value in entry.items() if key != "lastHeartbeatTime"}


def _moved_s(old: Raw, new: Raw) -> float:
    before, after = old.get("lastHeartbeatTime", ""), new.get("lastHeartbeatTime", "")
    if before == after:
        return 0.0
    try:
        return abs(parse_time(after) - parse_time(before))
    except ValueError:
        return HEARTBEAT_STEP_S


def used_of(caps: Mapping[str, int], pods: Iterable[PodFacts]) -> dict[str, int]:
    """What the pods that have a node and have not ended ask for, of the resources that `caps` names."""
    used = dict.fromkeys(caps, 0)
    for pod in pods:
        if pod.spec.node_name and not pod.is_finished:
            amounts = requests_of(pod).amounts
            for name in used:
                used[name] += amounts.get(name, 0)
    return used


def quota_status(
    old: object, quota: QuotaFacts | None, pods: Callable[[], Iterable[PodFacts]], now: float
) -> tuple[bool, Raw | None, float | None]:
    """Whether to write `status.resourceQuota`, the merge patch of it, and when to look again if it is too early to write.

    `pods` is called only when it is not too early: adding up is work, too.
    """
    known = old if isinstance(old, dict) else None
    caps = caps_of(quota) if quota is not None else None
    if caps is None:
        return known is not None, None, None
    hard = _shown(caps.amounts)
    old_hard, old_used = (_texts((known or {}).get(word)) for word in ("hard", "used"))
    is_same_quota = known is not None and old_hard == hard
    if known is not None and is_same_quota:
        wait_s = time_or(known.get("lastUpdateTime"), now - USAGE_STEP_S) + USAGE_STEP_S - now
        if wait_s > 0:
            return False, None, wait_s
    used = _shown(used_of(caps.amounts, pods()))
    if is_same_quota and old_used == used:
        return False, None, None
    patch = {"hard": _merge(old_hard, hard), "used": _merge(old_used, used), "lastUpdateTime": format_time(now)}
    return True, patch, None


def _shown(amounts: Mapping[str, int]) -> dict[str, str]:
    return {name: shown_amount(name, amount) for name, amount in sorted(amounts.items())}


def shown_amount(name: str, amount: int) -> str:
    """An amount in the engine's unit, as it is written in manifests."""
    unit = unit_of(name)
    if unit == "bps":
        return format_bandwidth(amount)
    if unit == "milli":
        return str(amount // 1000) if amount % 1000 == 0 else f"{amount}m"
    return str(amount)


def _texts(value: object) -> dict[str, str]:
    return {str(key): str(text) for key, text in value.items()} if isinstance(value, dict) else {}


def _merge(old: Mapping[str, str], new: Mapping[str, str]) -> Raw:
    return {**dict.fromkeys(old.keys() - new.keys()), **new}
