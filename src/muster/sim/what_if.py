"""What if: the arrivals of a decision log under another policy, on other nodes, or with other plugins.

Both sides of the comparison are simulated, so that what the simulation leaves out (image pulls, slow starts) is left out of
both.
The side that is called `as it was` has the recorded policy, nodes and plugins.

No I/O but the log; otherwise pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from muster.engine import events as ev
from muster.sim.recorded import CORE, Recorded
from muster.sim.trace_cluster import Shaping, TraceCluster
from muster.sim.trace_policy import PolicySet
from muster.sim.trace_run import Outcome, Progress, TraceRun
from muster.sim.trace_simulation import checked, new_engine

AS_IT_WAS = "as it was"
_POLICY_EVENTS = (ev.PolicySeen, ev.PolicyGone, ev.QueueSeen, ev.QueueGone)
_NODE_EVENTS = (ev.NodeSeen, ev.NodeGone, ev.NodeMetricSeen, ev.NodeMetricGone, ev.PodSeen, ev.PodGone)
"""With other nodes, pods that stay where they were have nowhere to be."""


class Change(msgspec.Struct, frozen=True):
    """What is to be otherwise; nothing, as it was."""

    policy: PolicySet | None = None
    cluster: TraceCluster | None = None
    configuration: Mapping[str, Any] | None = None


def what_if(
    recorded: Recorded,
    change: Change,
    *,
    restart_cost_s: float = 300.0,
    look_s: float | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """What would have become of the recorded jobs. SimulationError when the policy or a plugin failed on the way."""
    configuration = change.configuration if change.configuration is not None else recorded.configuration
    engine = new_engine(configuration, "history")
    capacity = recorded.outcome.gpus
    if change.cluster is not None:
        cores = sum(node.cpu_milli for node in change.cluster.nodes) / 1000
        capacity = cores if recorded.outcome.unit == CORE else float(change.cluster.gpus)
    run = TraceRun(
        engine,
        recorded.jobs,
        gpus=capacity,
        restart_cost_s=restart_cost_s,
        look_s=look_s,
        world=_world(recorded, change),
    )
    return checked(msgspec.structs.replace(run.run(progress), unit=recorded.outcome.unit))


def _world(recorded: Recorded, change: Change) -> list[tuple[float, ev.AnyEvent]]:
    world: Sequence[tuple[float, ev.AnyEvent]] = recorded.world
    begin = min([*(at for at, _ in world[:1]), *(job.arrival for job in recorded.jobs)], default=0.0)
    first: list[ev.AnyEvent] = []
    if change.configuration is not None:
        world = [(at, event) for at, event in world if not isinstance(event, ev.Configured)]
    if change.cluster is not None:
        world = [(at, event) for at, event in world if not isinstance(event, _NODE_EVENTS)]
        first += [ev.NodeSeen(node) for node in Shaping(change.cluster, ()).nodes()]
    if change.policy is not None:
        world = [(at, event) for at, event in world if not isinstance(event, _POLICY_EVENTS)]
        first += change.policy.events(sorted({job.work.queue for job in recorded.jobs}))
    return [*((begin, event) for event in first), *world]
