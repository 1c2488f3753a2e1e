"""Random histories of a cluster, for properties: nodes and pods that come and go, gangs of every kind, tasks with and without a
party of another control plane, permits and refusals, failing bindings, and time."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from hypothesis import strategies as st

from muster.engine import decisions as de
from muster.engine import events as ev
from muster.engine.configuration import default_configuration
from muster.engine.facts import NodeFacts, PodFacts
from muster.engine.holding import HoldKind
from muster.engine.machine import Engine
from muster.engine.pods import Phase
from muster.engine.registry import Registry
from muster.objects.labels import KoordinatorPod, KusciaAnnotation
from tests.engine.building import node, pod
from tests.engine.tasks_building import party, task_group

GPU = "nvidia.com/gpu"
GANG_MIN = 3
TASKS = ("t0", "t1")
"""Of each, two roles with two pods; the second has a partner too."""

names = st.sampled_from([f"n{i}" for i in range(6)])
sizes = st.sampled_from(["100m", "500m", "1", "2", "3"])
zones = st.sampled_from(["a", "b", "c"])


@st.composite
def nodes(draw: st.DrawFn) -> NodeFacts:
    taints = draw(st.sampled_from([[], [], [], [{"key": "k", "value": "v", "effect": "NoSchedule"}]]))
    resources = {GPU: draw(st.integers(0, 4)), "kuscia.io/bandwidth": draw(st.sampled_from([0, 100, 1000]))}
    return node(
        draw(names),
        cpu=draw(st.sampled_from(["1", "2", "4", "8"])),
        memory=draw(st.sampled_from(["1Gi", "4Gi", "8Gi"])),
        pods=draw(st.sampled_from([2, 5, 110])),
        labels={"zone": draw(zones)},
        taints=taints,
        unschedulable=draw(st.sampled_from([False, False, False, True])),
        resources=resources,
    )


@st.composite
def pods(draw: st.DrawFn) -> PodFacts:
    number = draw(st.integers(0, 30))
    notes: dict[str, str] = draw(st.sampled_from([{}, _gang_notes(number)]))
    if 20 <= number < 28:
        notes = {KusciaAnnotation.TASK_RESOURCE_GROUP: TASKS[(number - 20) // 4]}
    spec: dict[str, Any] = draw(
        st.sampled_from([{}, {}, {}, {"nodeSelector": {"zone": "a"}}, {"tolerations": [{"operator": "Exists"}]}, SPREAD, ANTI])
    )
    resources: dict[str, Any] = draw(st.sampled_from([{}, {}, {GPU: 1}, {"kuscia.io/bandwidth": 60}]))
    return pod(
        f"p{number}",
        cpu=draw(sizes),
        memory=draw(st.sampled_from(["64Mi", "512Mi", "1Gi"])),
        labels={"app": draw(st.sampled_from(["x", "y"]))},
        annotations=notes,
        resources=resources,
        priority=draw(st.sampled_from([0, 0, 0, 5])),
        preemptionPolicy="Never",
        **spec,
    )


def _gang_notes(number: int) -> dict[str, str]:
    """Gang 0 is Strict, 1 is NonStrict, 2 and 3 start together, 4 and 5 too, and are NonStrict."""
    gang = number % 6
    notes = {KoordinatorPod.GANG_NAME: f"g{gang}", KoordinatorPod.GANG_MIN_AVAILABLE: str(GANG_MIN if gang < 2 else 2)}
    if gang in (1, 4, 5):
        notes |= {KoordinatorPod.GANG_MODE: "NonStrict", KoordinatorPod.GANG_WAITING_TIME: "20s"}
    if gang >= 2:
        first = gang - gang % 2
        notes[KoordinatorPod.GANG_GROUPS] = json.dumps([f"default/g{first}", f"default/g{first + 1}"])
    return notes


@st.composite
def task_groups(draw: st.DrawFn) -> ev.TaskGroupSeen:
    number = draw(st.integers(0, 1))
    names = [f"p{20 + 4 * number + i}" for i in range(4)]
    return task_group(
        TASKS[number],
        party("default", *names[:2], role="x"),
        party("default", *names[2:], role="y"),
        others=["bob"] if number else (),
        phase=draw(st.sampled_from(["Reserving"] * 4 + ["ReserveFailed", "Pending"])),
        retries=draw(st.integers(0, 2)),
    )


SPREAD = {
    "topologySpreadConstraints": [
        {
            "maxSkew": 1,
            "topologyKey": "zone",
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"app": "x"}},
        }
    ]
}
ANTI = {
    "affinity": {
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "y"}}}
            ]
        }
    }
}

Move = tuple[str, Any]
moves = st.one_of(
    st.tuples(st.just("node"), nodes()),
    st.tuples(st.just("node gone"), names),
    st.tuples(st.just("pod"), pods()),
    st.tuples(st.just("pod"), pods()),
    st.tuples(st.just("pod"), pods()),
    st.tuples(st.just("pod gone"), st.integers(0, 100)),
    st.tuples(st.just("finished"), st.integers(0, 100)),
    st.tuples(st.just("bound"), st.integers(0, 100)),
    st.tuples(st.just("bind failed"), st.integers(0, 100)),
    st.tuples(st.just("task"), task_groups()),
    st.tuples(st.just("task"), task_groups()),
    st.tuples(st.just("task gone"), st.sampled_from(TASKS)),
    st.tuples(st.just("permitted"), st.integers(0, 100)),
    st.tuples(st.just("denied"), st.integers(0, 100)),
    st.tuples(st.just("wait"), st.sampled_from([5.0, 25.0, 100.0])),
    st.tuples(st.just("step"), st.none()),
    st.tuples(st.just("step"), st.none()),
)
histories = st.lists(moves, min_size=5, max_size=80)


def fresh() -> Engine:
    return Engine(default_configuration().build(Registry()))


class Run:
    """One history, fed to an engine; `after` looks at every step."""

    def __init__(self, engine: Engine, after: Callable[[Run, list[de.AnyDecision]], None] | None = None) -> None:
        self.engine = engine
        self.after = after
        self.alive: dict[str, PodFacts] = {}
        self.log: list[bytes] = []
        self.now = 0.0
        self.born = 0
        self.batch: Sequence[ev.AnyEvent] = ()
        """What the last step was given."""
        self.started: set[str] = set()
        """Names of gangs and tasks of which a pod was seen bound or ended."""

    def play(self, history: list[Move]) -> Run:
        batch: list[ev.AnyEvent] = []
        for what, value in history:
            event = self._event(what, value)
            if event is not None:
                batch.append(event)
            if what == "wait":
                self.now += value
            if what in ("step", "wait"):
                self._step(batch)
                batch = []
        self._step(batch)
        return self

    def _step(self, batch: list[ev.AnyEvent]) -> None:
        self.now += 1.0
        self.batch = batch
        made = self.engine.step(batch, self.now)
        self.log += [de.encode(decision) for decision in made]
        if self.after is not None:
            self.after(self, made)

    def _event(self, what: str, value: Any) -> ev.AnyEvent | None:
        match what:
            case "node":
                return ev.NodeSeen(value)
            case "node gone":
                return ev.NodeGone(value)
            case "pod":
                if any(facts.key == value.key for facts in self.alive.values()):
                    return None
                self.born += 1
                meta = msgspec.structs.replace(value.metadata, uid=f"uid-{self.born:03}")
                facts = self.alive[meta.uid] = msgspec.structs.replace(value, metadata=meta)
                return ev.PodSeen(facts)
            case "task":
                group: ev.TaskGroupSeen = value
                return group
            case "task gone":
                return ev.TaskGroupGone(value)
            case "permitted" | "denied":
                holds = sorted(u for u, held in self.engine.holds.items() if held.kind is not HoldKind.PART)
                unit = holds[value % len(holds)] if holds else ""
                return ev.Permitted(unit) if what == "permitted" else ev.Denied(unit)
        uids = sorted(self.alive)
        if not uids or what in ("step", "wait"):
            return None
        uid = uids[value % len(uids)]
        record = self.engine.state.pods.get(uid)
        match what:
            case "pod gone":
                del self.alive[uid]
                return ev.PodGone(uid)
            case "finished":
                self._start(self.alive[uid])
                return ev.PodSeen(with_node(self.alive.pop(uid), record.node if record else "", "Succeeded"))
            case "bound":
                if record is None or record.phase is not Phase.ASSUMED:
                    return None
                if self._is_held(uid):
                    return None
                self._start(self.alive[uid])
                return ev.PodSeen(with_node(self.alive[uid], record.node))
            case _:
                return None if self._is_held(uid) else ev.BindFailed(uid, "made to fail")

    def _is_held(self, uid: str) -> bool:
        return any(one.pod.uid == uid for held in self.engine.holds.values() for one in held.placed)

    def _start(self, facts: PodFacts) -> None:
        notes = facts.metadata.annotations
        task = notes.get(KusciaAnnotation.TASK_RESOURCE_GROUP, "")
        joined = json.loads(notes.get(KoordinatorPod.GANG_GROUPS, "[]"))
        groups = joined or [f"default/{notes.get(KoordinatorPod.GANG_NAME, '')}"]
        self.started |= {task, *groups}


def with_node(facts: PodFacts, node: str, phase: str = "") -> PodFacts:
    spec = msgspec.structs.replace(facts.spec, node_name=node)
    return msgspec.structs.replace(facts, spec=spec, status=msgspec.structs.replace(facts.status, phase=phase))


def play(history: list[Move], after: Callable[[Run, list[de.AnyDecision]], None] | None = None) -> Run:
    return Run(fresh(), after).play(history)
