"""A NodeMetric's status from what was sampled, in Koordinator's shape; and host applications from a NodeSLO. Pure.

Resources: `cpu` in thousandths, `memory` in bytes, and `bandwidth-egress` and `bandwidth-ingress` in bits per second, as the
scheduler reads them. What is not known is left out, never reported as 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from muster.agent.metrics_policy import PRIORITY_CLASSES, QOS_CLASSES, Policy, format_duration
from muster.agent.metrics_rings import CPU, EGRESS, INGRESS, MEMORY, MEMORY_WITH_CACHE, Values, aggregate, average
from muster.agent.metrics_sampling import APPLICATIONS_MAX, Application, PodTracked, Sampler, Tracked
from muster.objects.status import Raw
from muster.objects.time import format_time

BANDWIDTH_EGRESS, BANDWIDTH_INGRESS = "bandwidth-egress", "bandwidth-ingress"
_BASES: Final = {
    "": "",
    "CgroupRoot": "",
    "Kubepods": "kubepods",
    "KubepodsBurstable": "kubepods/burstable",
    "KubepodsBesteffort": "kubepods/besteffort",
}


def status(sampler: Sampler, policy: Policy, ticks: float, wall: float) -> Raw | None:
    """None while nothing was measured yet."""
    node = _usage(sampler.node, policy, ticks)
    if node is None:
        return None
    pods = [_pod(one, policy, ticks) for one in sampler.pods.values()]
    found: Raw = {
        "updateTime": format_time(wall),
        "nodeMetric": {
            "nodeUsage": node,
            "aggregatedNodeUsages": _windows(sampler.node, policy, ticks),
            "systemUsage": _usage(sampler.system, policy, ticks) or {"resources": {}},
            "aggregatedSystemUsages": _windows(sampler.system, policy, ticks),
        },
        "podsMetric": sorted((pod for pod in pods if pod is not None), key=lambda pod: (pod["namespace"], pod["name"])),
        "hostApplicationMetric": [
            {"name": one.name, "usage": usage, "priority": one.priority, "qos": one.qos}
            for one, tracked in sampler.applications.items()
            if (usage := _usage(tracked, policy, ticks)) is not None
        ],
    }
    return found


def resources(values: Values, *, is_with_cache: bool) -> dict[str, str]:
    found: dict[str, str] = {}
    memory = values[MEMORY_WITH_CACHE if is_with_cache else MEMORY]
    for name, value, unit in (
        ("cpu", values[CPU], "m"),
        ("memory", memory, ""),
        (BANDWIDTH_EGRESS, values[EGRESS], ""),
        (BANDWIDTH_INGRESS, values[INGRESS], ""),
    ):
        if not math.isnan(value):
            found[name] = f"{max(round(value), 0)}{unit}"
    return found


def _usage(tracked: Tracked, policy: Policy, ticks: float) -> Raw | None:
    """The average over the aggregate duration, of as many samples as there are."""
    at, values = tracked.ring.window(ticks, policy.aggregate_s)
    if not len(at):
        return None
    return {"resources": resources(average(values), is_with_cache=policy.is_with_cache)}


def _windows(tracked: Tracked, policy: Policy, ticks: float) -> list[Raw]:
    found: list[Raw] = []
    for seconds in policy.windows_s:
        kinds = aggregate(tracked.ring, ticks, seconds, policy.sample_s)
        if kinds is not None:
            usage = {
                kind: {"resources": resources(values, is_with_cache=policy.is_with_cache)} for kind, values in kinds.items()
            }
            found.append({"usage": usage, "duration": format_duration(seconds)})
    return found


def _pod(pod: PodTracked, policy: Policy, ticks: float) -> Raw | None:
    usage = _usage(pod, policy, ticks)
    if usage is None:
        return None
    found: Raw = {
        "namespace": pod.namespace,
        "name": pod.name,
        "podUsage": usage,
        "priority": pod.priority,
        "qos": pod.qos,
    }
    extensions: Raw = {"pressure": dict(pod.pressure)} if pod.pressure else {}
    if pod.counted is not None:
        for name, value in (("cpi", pod.counted.cpi), ("cacheMissRatio", pod.counted.cache_miss_ratio)):
            if value is not None:
                extensions[name] = round(value, 4)
    if extensions:
        found["extensions"] = extensions
    return found


def applications(spec: object) -> tuple[list[Application], list[str]]:
    """`spec` of a NodeSLO as it is in the store: the applications, and what is wrong with others."""
    listed = spec.get("hostApplications") if isinstance(spec, Mapping) else None
    found: dict[str, Application] = {}
    problems: list[str] = []
    if not isinstance(listed, Sequence) or isinstance(listed, str):
        return [], problems
    if len(listed) > APPLICATIONS_MAX:
        problems.append(f"spec.hostApplications: {len(listed)} of them; only the first {APPLICATIONS_MAX} are measured")
    for index, entry in enumerate(listed[:APPLICATIONS_MAX]):
        where = f"spec.hostApplications[{index}]"
        name = entry.get("name") if isinstance(entry, Mapping) else None
        if not isinstance(name, str) or not name or "/" in name or name in (".", ".."):
            problems.append(f"{where}.name: {name!r:.80}: a name of one part")
            continue
        group = _group(entry, name)
        if any(part in (".", "..") for part in group.split("/")) or "\0" in group or not group:
            problems.append(f"{where}.cgroupPath: {group!r:.80}: a path below the root of the cgroups")
            continue
        priority, qos = entry.get("priority"), entry.get("qos")
        found[name] = Application(
            name=name,
            group=group,
            priority=priority if priority in PRIORITY_CLASSES else "",
            qos=qos if qos in QOS_CLASSES else "",
        )
    return list(found.values()), problems


def _group(entry: Mapping[str, Any], name: str) -> str:
    """Where none is given: one of two parents, by the QoS class."""
    path = entry.get("cgroupPath")
    if not isinstance(path, Mapping):
        return f"{'host-best-effort' if entry.get('qos') == 'BE' else 'host-latency-sensitive'}/{name}"
    parts = (_BASES.get(str(path.get("base") or ""), ""), str(path.get("parentDir") or ""), str(path.get("relativePath") or ""))
    return "/".join(part for text in parts for part in text.split("/") if part)
