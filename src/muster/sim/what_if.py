"""What if: the arrivals of a decision log under another policy, on other nodes, or with other plugins.

Both sides of the comparison are simulated, so that what the simulation leaves out (image pulls, slow starts) is left out of
both. The side that is called `as it was` has the recorded policy, nodes and plugins.

No I/O but the log; otherwise pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from muster.engine import events as ev
from muster.engine.facts import NodeFacts
from muster.sim.recorded import GPU_NAMES, Recorded, capacity_of
from muster.sim.trace_cluster import PARTS, WHOLE, ClusterNode, Shaping, TraceCluster
from muster.sim.trace_policy import PolicySet
from muster.sim.trace_run import Outcome, Progress, TraceRun
from muster.sim.trace_simulation import checked, new_engine

AS_IT_WAS = "as it was"
_POLICIES = (ev.PolicySeen, ev.PolicyGone)
_POLICY_EVENTS = (*_POLICIES, ev.QueueSeen, ev.QueueGone)
_GPUS = (*GPU_NAMES, PARTS)
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
    capacity, unit = recorded.outcome.gpus, recorded.outcome.unit
    if change.cluster is not None:
        capacity = capacity_of([(0.0, ev.NodeSeen(node)) for node in nodes_like(recorded, change.cluster)], unit)
    run = TraceRun(
        engine,
        recorded.jobs,
        gpus=capacity,
        restart_cost_s=restart_cost_s,
        look_s=look_s,
        world=_world(recorded, change),
    )
    return checked(msgspec.structs.replace(run.run(progress), unit=unit))


def _world(recorded: Recorded, change: Change) -> list[tuple[float, ev.AnyEvent]]:
    world: Sequence[tuple[float, ev.AnyEvent]] = recorded.world
    begin = min([*(at for at, _ in world[:1]), *(job.arrival for job in recorded.jobs)], default=0.0)
    first: list[ev.AnyEvent] = []
    if change.configuration is not None:
        world = [(at, event) for at, event in world if not isinstance(event, ev.Configured)]
    if change.cluster is not None:
        world = [(at, event) for at, event in world if not isinstance(event, _NODE_EVENTS)]
        first += [ev.NodeSeen(node) for node in nodes_like(recorded, change.cluster)]
    if change.policy is not None:
        if change.policy.has_queues or not any(isinstance(event, ev.QueueSeen) for _, event in world):
            world = [(at, event) for at, event in world if not isinstance(event, _POLICY_EVENTS)]
            first += change.policy.events(sorted({job.work.queue for job in recorded.jobs}))
        else:
            world = [(at, _ranked_by(event, change.policy)) for at, event in world if not isinstance(event, _POLICIES)]
            first += [event for event in change.policy.events() if not isinstance(event, ev.QueueSeen)]
    return [*((begin, event) for event in first), *world]


def _ranked_by(event: ev.AnyEvent, policy: PolicySet) -> ev.AnyEvent:
    """A queue as it was, with its levels, weight and limits, but with the policy."""
    if not isinstance(event, ev.QueueSeen):
        return event
    spec = msgspec.structs.replace(event.queue.spec, policy=policy.policies[0].metadata.name)
    return ev.QueueSeen(msgspec.structs.replace(event.queue, spec=spec))


def nodes_like(recorded: Recorded, cluster: TraceCluster) -> list[NodeFacts]:
    """The nodes of the cluster: each has all that the recorded nodes have that there are most of, but for its GPUs, and for
    processors and memory where the cluster says them. So what jobs ask for besides GPUs runs out as it did."""
    made = Shaping(cluster, ()).nodes()
    there = {event.node.metadata.name: event.node for _, event in recorded.world if isinstance(event, ev.NodeSeen)}
    kinds = Counter(tuple(sorted(node.status.allocatable.items())) for node in there.values())
    if not kinds:
        return made
    # Of those with GPUs, if any has; of equally many, the first by what it has.
    usual = min(kinds, key=lambda kind: (not any(name in _GPUS for name, _ in kind), -kinds[kind], str(kind)))
    pattern = next(node for node in there.values() if tuple(sorted(node.status.allocatable.items())) == usual)
    return [_like(node, one, pattern) for node, one in zip(cluster.nodes, made, strict=True)]


def _like(node: ClusterNode, made: NodeFacts, pattern: NodeFacts) -> NodeFacts:
    amounts = {name: amount for name, amount in pattern.status.allocatable.items() if name not in _GPUS}
    said = {"cpu": node.cpu_milli, "memory": node.memory_mib}
    amounts |= {name: made.status.allocatable[name] for name, amount in said.items() if amount}
    resource = next((name for name in _GPUS if name in pattern.status.allocatable), WHOLE)
    amounts[resource] = node.gpus * 100 if resource == PARTS else node.gpus
    labels = {**pattern.metadata.labels, **made.metadata.labels}
    metadata = msgspec.structs.replace(made.metadata, labels=labels, annotations=dict(pattern.metadata.annotations))
    status = msgspec.structs.replace(made.status, allocatable=amounts)
    spec = msgspec.structs.replace(pattern.spec, unschedulable=False)
    return msgspec.structs.replace(made, metadata=metadata, spec=spec, status=status)
