"""A checkpoint: all that an engine keeps between two steps, as plain values, and an engine made of it again.

`take(engine)` gives a `Checkpoint`; `restore(checkpoint, engine)` fills a fresh engine, which then knows the same objects,
counts the same pods on the same nodes, and holds, keeps room and has promised the same. So a log can begin anywhere: see
`muster.history`, where the engine that runs is replaced by the one of its own checkpoint, and what decides and what replays
begin alike.

What is not in it is found out again: answers kept for speed, and which waiting units sleep. After `restore` every waiting unit
is active, as after `Retry`; a verdict that was said is said again only if it has changed.

Pure. Taken and restored between two steps, from the engine's own thread. Nobody may change a checkpoint's values.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from muster.engine import events as ev
from muster.engine.decisions import AnyDecision, Release
from muster.engine.facts import PodFacts
from muster.engine.holding import Held, HoldKind
from muster.engine.machine import Engine
from muster.engine.placing import Placed
from muster.engine.pods import Phase, PodRecord
from muster.engine.state import State
from muster.engine.task_units import Round
from muster.engine.units import is_shared, single_unit
from muster.engine.vectors import Vector, vector_of
from muster.objects.reasons import Reason, Verdict


class KeptPod(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is known of a pod beyond what was seen of it."""

    uid: str
    node: str = ""
    """Where it counts, if the pod as it was seen does not say so."""
    is_bound: bool = False
    """Its binding is known to have succeeded; otherwise it is under way."""
    facts: PodFacts | None = None
    """As it is scheduled, where a transformer made it another."""
    request: Mapping[str, int] | None = None
    """What counts for it, where a plugin made it another amount than it asks for."""
    is_victim: bool = False


class KeptHold(msgspec.Struct, frozen=True, omit_defaults=True):
    unit: str
    kind: HoldKind
    until: float
    pods: tuple[tuple[str, int], ...]
    """uid and score."""
    waiting_for: tuple[str, ...] = ()
    is_asked: bool = False
    askers: tuple[str, ...] = ()


class Checkpoint(msgspec.Struct, frozen=True, omit_defaults=True):
    now: float
    configuration: Mapping[str, Any] | None = None
    """The document whose profiles are in force; None where the engine was made without one."""
    events: Sequence[ev.AnyEvent] = ()
    """Nodes, then the small kinds, then pods: each object as it was last seen."""
    pods: Sequence[KeptPod] = ()
    holds: Sequence[KeptHold] = ()
    nominations: Sequence[tuple[str, str]] = ()
    """uid and node."""
    verdicts: Mapping[str, Verdict] = msgspec.field(default_factory=dict)
    not_before: Mapping[str, float] = msgspec.field(default_factory=dict)
    """By unit: when one that gave everything back is tried again."""
    rounds: Mapping[str, Round] = msgspec.field(default_factory=dict)
    started_gangs: Sequence[str] = ()
    ranking: Sequence[str] = ()
    order: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """What the order keeps (`Order.checkpoint`)."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Checkpoint)


def encode(checkpoint: Checkpoint) -> bytes:
    return _encoder.encode(checkpoint)


def decode(data: bytes) -> Checkpoint:
    return _decoder.decode(data)


# -- taking ------------------------------------------------------------------------------------------------------------------


def take(engine: Engine) -> Checkpoint:
    state = engine.state
    return Checkpoint(
        now=state.now,
        configuration=engine.configuration,
        events=[*_objects(state), *(ev.PodSeen(pod.seen) for pod in state.pods.values())],
        pods=[kept for pod in state.pods.values() if (kept := _kept(pod, state)) is not None],
        holds=[
            KeptHold(
                unit_id,
                held.kind,
                held.until,
                tuple((one.pod.uid, one.score) for one in held.placed),
                tuple(sorted(held.waiting_for)),
                held.is_asked,
                tuple(held.askers),
            )
            for unit_id, held in engine.holds.items()
        ],
        nominations=[(uid, node) for uid, (node, _) in state.nominations.items()],
        verdicts=dict(engine.verdicts),
        not_before=dict(engine._holds.not_before),
        rounds=dict(engine.members.rounds),
        started_gangs=[key for key, gang in engine.members.gangs.items() if gang.has_started],
        ranking=engine.waiting.ranking(),
        order=dict(engine.order.checkpoint()) if engine.order is not None else {},
    )


def _objects(state: State) -> Iterator[ev.AnyEvent]:
    yield from (ev.NodeSeen(node) for node in state.nodes.facts)
    yield from (ev.NamespaceSeen(one) for one in state.namespaces.values())
    yield from (ev.VolumeSeen(one) for one in state.volumes.values())
    yield from (ev.ClaimSeen(one) for one in state.claims.values())
    yield from (ev.StorageClassSeen(one) for one in state.storage_classes.values())
    yield from (ev.BudgetSeen(one) for one in state.budgets.values())
    yield from (ev.NodeMetricSeen(one) for one in state.metrics.values())
    yield from (ev.PoolSeen(one) for one in state.pools.values())
    yield from (ev.LinkSeen(one) for one in state.links.values())
    yield from (ev.QuotaSeen(one) for one in state.quotas.values())
    yield from (ev.PodGroupSeen(one) for one in state.groups.values())
    yield from (ev.TaskGroupSeen(one) for one in state.task_groups.values())
    yield from state.order_objects.values()


def _kept(pod: PodRecord, state: State) -> KeptPod | None:
    """None where what was seen of the pod says it all."""
    is_seen_there = pod.node == pod.seen.spec.node_name
    facts = pod.facts if pod.node and pod.facts is not pod.seen else None
    request = None
    if pod.node and not _is_same(pod.request, pod.shape.request):
        names = state.table.names
        request = {names[row]: int(amount) for row, amount in enumerate(pod.request.tolist()) if amount}
    if (not pod.node or is_seen_there) and facts is None and request is None and not pod.is_victim:
        return None
    return KeptPod(pod.uid, pod.node, pod.phase is Phase.BOUND, facts, request, pod.is_victim)


def _is_same(mine: Vector, other: Vector) -> bool:
    if mine is other:
        return True
    length = min(len(mine), len(other))
    return bool((mine[:length] == other[:length]).all()) and not mine[length:].any() and not other[length:].any()


# -- restoring ---------------------------------------------------------------------------------------------------------------


def restore(checkpoint: Checkpoint, engine: Engine) -> Engine:
    """Fill `engine`, which is fresh and was made with the profiles of `checkpoint.configuration`; the same engine. What can't
    be kept any more, if anything, is said by the next step."""
    state, members = engine.state, engine.members
    if state.pods or len(state.nodes):
        raise ValueError("the engine is not fresh: it knows pods or nodes already; make a new one to restore a checkpoint into")
    left: list[AnyDecision] = []
    state.now = checkpoint.now
    engine._take_in(ev.Tick(), left)
    for event in checkpoint.events:
        engine.take_in(event, left)
    state.flush_nodes()
    for kept in checkpoint.pods:
        _put_back(kept, engine)
    for name, last in checkpoint.rounds.items():
        members.rounds[name] = last
    for key in checkpoint.started_gangs:
        members.mark_started(key)
    engine._holds.not_before.update(checkpoint.not_before)
    engine.verdicts.update(checkpoint.verdicts)
    for uid, node in checkpoint.nominations:
        if (pod := state.pods.get(uid)) is not None:
            state.nominations[uid] = (node, pod)
    for hold in checkpoint.holds:
        _hold_again(hold, engine, left)
    engine.waiting.keep_ranking(checkpoint.ranking)
    engine._roster.settle(left)
    engine._spread_touches()
    if engine.order is not None:
        engine.order.restore(checkpoint.order)
    engine.left_over += left
    return engine


def _put_back(kept: KeptPod, engine: Engine) -> None:
    state = engine.state
    pod = state.pods.get(kept.uid)
    if pod is None:
        return
    if kept.is_victim:
        state.mark_victim(pod)
    if kept.facts is not None and not pod.node:
        state.replace_waiting(pod, kept.facts)
    amounts = None if kept.request is None else vector_of(kept.request, state.table)
    if pod.node != kept.node or amounts is not None:
        if pod.node:
            state.forget(pod)
        elif engine._roster.is_waiting(pod):
            engine.waiting.remove(pod.unit)
        state.assume(pod, kept.node, amounts)
        cycle = engine._cycle_of(pod.facts.spec.scheduler_name)
        for plugin in cycle.profile.at["reserve"] if cycle is not None and pod.is_ours else ():
            # It was reserved before: who can't say so again does not undo what was decided.
            with contextlib.suppress(Exception):
                plugin.reserve(pod, kept.node)
    if kept.node and kept.is_bound:
        pod.phase = Phase.BOUND
    if is_shared(pod.unit) and pod.is_ours:
        engine.members.note(pod)


def _hold_again(kept: KeptHold, engine: Engine, left: list[AnyDecision]) -> None:
    state = engine.state
    placed = [
        Placed(pod, state.nodes.slots.get(pod.node, 0), score)
        for uid, score in kept.pods
        if (pod := state.pods.get(uid)) is not None and pod.node
    ]
    uids = {one.pod.uid for one in placed}
    unit = None
    if placed:
        unit = engine.members.build(kept.unit, uids) if is_shared(kept.unit) else single_unit(placed[0].pod)
    cycle = engine._cycle_of(unit.schedule_as) if unit is not None else None
    if unit is None or cycle is None:
        for one in placed:
            state.forget(one.pod)
        left.append(
            Release(kept.unit, Reason.RESERVATION_EXPIRED, "it could not be held on", tuple(uid for uid, _ in kept.pods))
        )
        return
    for one in placed:
        state.mark_held(one.pod, True)
    engine.holds[kept.unit] = Held(
        unit, cycle.profile, placed, kept.until, set(kept.waiting_for), kept.kind, kept.is_asked, dict.fromkeys(kept.askers)
    )
