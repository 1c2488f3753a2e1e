"""What is measured and reported how often: NodeMetric's `spec.metricCollectPolicy` over the agent's own configuration. Pure.

Bad figures of the object are left out, the default stands in for them, and `problems` says so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from muster.objects.labels import KoordinatorPod

AGGREGATE_S: Final = 300.0
AGGREGATE_MIN_S: Final = 60.0
REPORT_S: Final = 60.0
REPORT_MIN_S: Final = 30.0
"""Koordinator's floors: nobody makes a thousand nodes report every second."""
WINDOWS_S: Final = (300.0, 600.0, 1800.0)
WINDOWS_MAX: Final = 8
WINDOW_MAX_S: Final = 24 * 3600.0
WITH_CACHE: Final = "usageWithPageCache"
MEMORY_POLICIES: Final = ("usageWithoutPageCache", "usageWithHotPageCache", WITH_CACHE)

PRIORITY_CLASSES: Final = ("koord-prod", "koord-mid", "koord-batch", "koord-free")
_BANDS: Final = ((9000, "koord-prod"), (7000, "koord-mid"), (5000, "koord-batch"), (3000, "koord-free"))
QOS_CLASSES: Final = ("LSE", "LSR", "LS", "BE", "SYSTEM")
_PART: Final = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)")
_UNITS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    sample_s: float = 15.0
    report_s: float = REPORT_S
    aggregate_s: float = AGGREGATE_S
    """`nodeUsage` and `podUsage` are the average over so long."""
    windows_s: tuple[float, ...] = WINDOWS_S
    is_with_cache: bool = False
    problems: tuple[str, ...] = ()

    @property
    def node_rows(self) -> int:
        return int(max(self.aggregate_s, *self.windows_s) / self.sample_s) + 2

    @property
    def pod_rows(self) -> int:
        return int(self.aggregate_s / self.sample_s) + 2


def policy_of(spec: object, sample_s: float, report_s: float) -> Policy:
    """`spec` of a NodeMetric as it is in the store; what it leaves out is the agent's."""
    wanted: Any = spec.get("metricCollectPolicy") if isinstance(spec, Mapping) else None
    if not isinstance(wanted, Mapping):
        wanted = {}
    problems: list[str] = []
    aggregate = _seconds(wanted, "aggregateDurationSeconds", AGGREGATE_S, AGGREGATE_MIN_S, problems)
    report = _seconds(wanted, "reportIntervalSeconds", report_s, REPORT_MIN_S, problems)
    memory = wanted.get("nodeMemoryCollectPolicy") or MEMORY_POLICIES[0]
    if memory not in MEMORY_POLICIES:
        problems.append(
            f"spec.metricCollectPolicy.nodeMemoryCollectPolicy: {memory!r:.80}: one of {', '.join(MEMORY_POLICIES)}"
        )
    elif memory == MEMORY_POLICIES[1]:
        problems.append(
            f"spec.metricCollectPolicy.nodeMemoryCollectPolicy: {memory}: this kernel does not tell hot pages from cold ones; "
            f"{MEMORY_POLICIES[0]} is reported"
        )
    return Policy(
        sample_s=sample_s,
        report_s=report,
        aggregate_s=aggregate,
        windows_s=_windows(wanted.get("nodeAggregatePolicy"), problems),
        is_with_cache=memory == WITH_CACHE,
        problems=tuple(problems),
    )


def _seconds(wanted: Mapping[str, Any], name: str, default: float, least: float, problems: list[str]) -> float:
    value = wanted.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= WINDOW_MAX_S:
        problems.append(f"spec.metricCollectPolicy.{name}: {value!r:.80}: whole seconds from 1 to {WINDOW_MAX_S:.0f}")
        return default
    return max(float(value), least)


def _windows(policy: object, problems: list[str]) -> tuple[float, ...]:
    durations = policy.get("durations") if isinstance(policy, Mapping) else None
    if durations is None:
        return WINDOWS_S
    where = "spec.metricCollectPolicy.nodeAggregatePolicy.durations"
    if not isinstance(durations, Sequence) or isinstance(durations, str) or len(durations) > WINDOWS_MAX:
        problems.append(f"{where}: a list of at most {WINDOWS_MAX} durations")
        return WINDOWS_S
    found: list[float] = []
    for text in durations:
        seconds = parse_duration(text) if isinstance(text, str) else None
        if seconds is None or not 1 <= seconds <= WINDOW_MAX_S:
            problems.append(f"{where}: {text!r:.80}: a duration from 1s to 24h, like 5m")
        elif seconds not in found:
            found.append(seconds)
    return tuple(found) or WINDOWS_S


def parse_duration(text: str) -> float | None:
    """Seconds of a time as Go writes it; None when it is none."""
    parts = _PART.findall(text) if len(text) <= 40 else []
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    return float(sum(float(number) * _UNITS[unit] for number, unit in parts))


def format_duration(seconds: float) -> str:
    """As Go writes it: `5m0s`, `1h30m0s`."""
    whole = int(seconds)
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    tail = f"{rest + seconds - whole:g}s"
    if hours:
        return f"{hours}h{minutes}m{tail}"
    return f"{minutes}m{tail}" if minutes else tail


def priority_class(pod: Mapping[str, Any]) -> str:
    """By label, else by the band of its priority, else by QoS: best effort is batch, everything else is prod."""
    labels = _labels(pod)
    label = labels.get(KoordinatorPod.PRIORITY_CLASS)
    if label in PRIORITY_CLASSES:
        return str(label)
    spec = pod.get("spec") or {}
    priority = spec.get("priority")
    if isinstance(priority, int):
        for start, name in _BANDS:
            if start <= priority < start + 1000:
                return name
    if qos := labels.get(KoordinatorPod.QOS_CLASS):
        return "koord-batch" if qos == "BE" else "koord-prod"
    return "koord-prod" if _asks(spec) else "koord-batch"


def qos_class(pod: Mapping[str, Any]) -> str:
    """As its label says; empty when it says none."""
    label = _labels(pod).get(KoordinatorPod.QOS_CLASS)
    return str(label) if label in QOS_CLASSES else ""


def _labels(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    labels = (pod.get("metadata") or {}).get("labels")
    return labels if isinstance(labels, Mapping) else {}


def _asks(spec: Mapping[str, Any]) -> bool:
    for container in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ())):
        resources = container.get("resources") or {}
        for side in ("requests", "limits"):
            if {"cpu", "memory"} & set(resources.get(side) or ()):
                return True
    return False
