"""Lending reserved bandwidth that is steadily unused: when a reservation counts as idle, and how much of it may be lent. Pure.

A reservation is *quiet* from the first report in which its pod uses at most `idleRatio` of it. After `afterSeconds` of reports
that all say so, what lies above its highest use since then may be lent, but for the part `keepRatio`, always kept. It is
lent until one report shows more than `releaseRatio`: from that moment nothing is lent any more, and the waiting begins anew.
Between the two ratios nothing changes, so that lending does not flutter. What was placed on lent bandwidth stays.

Reports are the only clock: their `updateTime`. Two that lie further apart than `expireSeconds` prove nothing about the time
between them, so the waiting begins anew as well.
"""

from __future__ import annotations

import math
from typing import Annotated, Final

import msgspec

from muster.engine.facts import NodeMetricFacts
from muster.objects.bandwidth import Directions, parse_bandwidth
from muster.objects.time import parse_time
from muster.objects.view import Quantities

RESOURCES: Final = ("bandwidth-egress", "bandwidth-ingress")
"""In `resources` of a NodeMetric's `nodeUsage` and `podUsage`: measured use in bits per second."""

Ratio = Annotated[float, msgspec.Meta(ge=0, le=1)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=30 * 86400)]
PodKey = tuple[str, str]


class ReclaimArgs(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    enabled: bool = False
    idle_ratio: Ratio = 0.5
    after_seconds: Seconds = 600.0
    keep_ratio: Ratio = 0.25
    release_ratio: Ratio = 0.75
    expire_seconds: Annotated[float, msgspec.Meta(gt=0, le=86400)] = 180.0
    """A report that is older lends nothing."""

    def __post_init__(self) -> None:
        if self.release_ratio < self.idle_ratio:
            raise ValueError(
                f"reclaim.releaseRatio: {self.release_ratio} is less than idleRatio {self.idle_ratio}; "
                "it must be as much or more, or lending would flutter"
            )


class Quiet(msgspec.Struct, frozen=True):
    """A reservation that is not used up: since when, the most that was used since, and the last report."""

    since: float
    last: float
    peak_bps: int
    is_lending: bool


def watch(before: Quiet | None, use_bps: int, reserved_bps: int, at: float, args: ReclaimArgs) -> Quiet | None:
    """After a report at `at`; None while the reservation is in use."""
    if before is not None and at - before.last > args.expire_seconds:
        before = None
    if before is None:
        if use_bps > args.idle_ratio * reserved_bps:
            return None
        return Quiet(at, at, use_bps, args.after_seconds <= 0)
    if at <= before.last:
        return before
    if use_bps > (args.release_ratio if before.is_lending else args.idle_ratio) * reserved_bps:
        return None
    return Quiet(
        before.since,
        at,
        max(before.peak_bps, use_bps),
        before.is_lending or at - before.since >= args.after_seconds,
    )


def lent_bps(quiet: Quiet | None, reserved_bps: int, args: ReclaimArgs) -> int:
    """How much of the reservation may be lent."""
    if quiet is None or not quiet.is_lending:
        return 0
    return max(reserved_bps - max(quiet.peak_bps, math.ceil(args.keep_ratio * reserved_bps)), 0)


class Measured(msgspec.Struct, frozen=True):
    """What a NodeMetric says about bandwidth."""

    at: float
    node: Directions
    pods: dict[PodKey, Directions]


def measured(metric: NodeMetricFacts) -> Measured | None:
    """None when it says nothing that can be relied on: no time, or no figure for a direction, or one that can't be read."""
    status = metric.status
    if status.node_metric is None:
        return None
    try:
        at = parse_time(status.update_time)
    except ValueError:
        return None
    node = _directions(status.node_metric.node_usage.resources)
    if node is None:
        return None
    pods = {}
    for pod in status.pods_metric:
        use = _directions(pod.pod_usage.resources)
        if use is not None:
            pods[pod.namespace, pod.name] = use
    return Measured(at, node, pods)


def _directions(resources: Quantities) -> Directions | None:
    try:
        egress, ingress = (parse_bandwidth(resources[name]) for name in RESOURCES)
    except (KeyError, ValueError):
        return None
    return Directions(egress, ingress)
