"""What must go on holding as the engine changes: nobody is forgotten, nothing stays set aside, no plugin stops a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import msgspec
import numpy as np
import pytest

from muster.engine import events as ev
from muster.engine.blocks import NodeBlock, PodBlock
from muster.engine.columns import Mask
from muster.engine.decisions import AnyDecision, Evict, Hold, Park, Place, Release
from muster.engine.facts import PodFacts
from muster.engine.machine import Engine
from muster.engine.plugin import Patch, Permit, Plugin, Scope, Wake
from muster.engine.plugins.default_preemption import DefaultPreemption
from muster.engine.plugins.fit import Fit
from muster.engine.pods import PodRecord
from muster.engine.profile import Profile
from muster.engine.shapes import Shape
from muster.engine.units import Unit
from muster.objects.reasons import Reason, Verdict
from tests.engine.building import PROFILE, node, pod

OTHER = "other-scheduler"


def engine(*plugins: Plugin, nodes: int = 1, cpu: str = "4") -> Engine:
    made = Engine([Profile(PROFILE, [Fit(), *plugins])])
    made.step([ev.NodeSeen(node(f"n{i}", cpu=cpu)) for i in range(nodes)], 0.0)
    return made


def placed(decisions: Sequence[AnyDecision]) -> dict[str, str]:
    return {p.name: p.node for d in decisions if isinstance(d, Place) for p in d.pods}


def parked(decisions: Sequence[AnyDecision]) -> dict[str, Reason]:
    return {d.unit: d.verdict.reason for d in decisions if isinstance(d, Park)}


def member(gang: str, name: str, *, minimum: int, cpu: str = "1", **more: Any) -> PodFacts:
    notes = {"gang.scheduling.koordinator.sh/name": gang, "gang.scheduling.koordinator.sh/min-available": str(minimum)}
    return pod(name, cpu=cpu, annotations=notes, **more)


def gone(name: str) -> ev.PodGone:
    return ev.PodGone(f"uid-default-{name}")


def is_free(made: Engine) -> bool:
    return bool((made.state.nodes.free == made.state.nodes.capacity).all())


# -- nobody is forgotten -------------------------------------------------------------------------------------------------------


def test_the_rest_of_a_gang_that_runs_waits_and_starts_when_there_is_room() -> None:
    made = engine(cpu="3")
    made.step([ev.PodSeen(pod("there", cpu="1", node="n0"))], 1.0)
    first = made.step([ev.PodSeen(member("g", f"g-{i}", minimum=2)) for i in range(3)], 2.0)
    assert placed(first) == {"g-0": "n0", "g-1": "n0"}
    made.step([ev.PodSeen(member("g", f"g-{i}", minimum=2, node="n0")) for i in range(2)], 3.0)
    assert made.verdicts["PodGroup/default/g"].reason is Reason.CPU_INSUFFICIENT
    assert all(d.pods for d in first if isinstance(d, Place))
    assert placed(made.step([gone("there")], 4.0)) == {"g-2": "n0"}


def test_a_gang_is_tried_when_the_gate_of_a_member_opens() -> None:
    made = engine()
    gated = member("g", "g-1", minimum=2, schedulingGates=[{"name": "wait"}])
    assert not placed(made.step([ev.PodSeen(member("g", "g-0", minimum=2)), ev.PodSeen(gated)], 1.0))
    opened = member("g", "g-1", minimum=2)
    assert placed(made.step([ev.PodSeen(opened)], 2.0)) == {"g-0": "n0", "g-1": "n0"}


class Waits(Plugin):
    """Holds every unit until a permit comes."""

    name = "Waits"

    def permit(self, unit: Unit, now: float) -> Permit | None:
        return Permit(wait_s=100.0, waiting_for=("partner",))


def test_a_held_pod_that_is_seen_again_keeps_what_it_holds() -> None:
    made = engine(Waits())
    held = pod("p", cpu="1")
    assert [type(d) for d in made.step([ev.PodSeen(held)], 1.0)] == [Hold]
    again = msgspec.structs.replace(held, status=msgspec.structs.replace(held.status, nominated_node_name="n0"))
    assert made.step([ev.PodSeen(again)], 2.0) == []
    assert placed(made.step([ev.Permitted("Pod/default/p")], 3.0)) == {"p": "n0"}


def test_a_hold_whose_pod_is_going_is_released_aloud() -> None:
    made = engine(Waits())
    held = pod("p", cpu="1")
    made.step([ev.PodSeen(held)], 1.0)
    ending = msgspec.structs.replace(
        held, metadata=msgspec.structs.replace(held.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
    )
    assert [type(d) for d in made.step([ev.PodSeen(ending)], 2.0)] == [Release]
    assert is_free(made)


def test_a_gang_that_loses_a_member_while_it_is_held_is_released_aloud() -> None:
    made = engine(Waits())
    made.step([ev.PodSeen(member("g", f"g-{i}", minimum=2)) for i in range(2)], 1.0)
    decisions = made.step([gone("g-1")], 2.0)
    assert [d.unit for d in decisions if isinstance(d, Release)] == ["PodGroup/default/g"]
    assert is_free(made)


def test_a_member_that_came_while_the_gang_was_held_is_tried_with_it_after_the_hold_expires() -> None:
    made = engine(Waits())
    made.step([ev.PodSeen(member("g", f"g-{i}", minimum=2)) for i in range(2)], 1.0)
    made.step([ev.PodSeen(member("g", "g-2", minimum=2))], 2.0)
    (hold,) = [d for d in made.step([], 200.0) if isinstance(d, Hold)]
    assert [p.name for p in hold.pods] == ["g-0", "g-1", "g-2"]


def test_the_next_in_line_gets_the_place_of_one_that_was_woken_and_went() -> None:
    made = engine(cpu="1")
    made.step([ev.PodSeen(pod("there", cpu="1", node="n0"))], 1.0)
    made.step([ev.PodSeen(pod(name, cpu="1")) for name in ("a", "b")], 2.0)
    made.step([gone("there")], 3.0, units_max=0)
    assert placed(made.step([gone("a")], 4.0)) == {"b": "n0"}


class Picky(Plugin):
    """Refuses pods named `a` before any node is looked at, once told so."""

    name = "Picky"
    wakes_on = frozenset({Wake.VOLUME})
    refuses = False

    def prefilter(self, unit: Unit, pods: PodBlock, now: float) -> Verdict | None:
        if self.refuses and pods.pod is not None and pods.pod.metadata.name == "a":
            return Verdict(reason=Reason.QUOTA_EXCEEDED)
        return None


def test_the_next_in_line_gets_the_place_of_one_that_was_woken_and_refused() -> None:
    picky = Picky()
    made = engine(picky, cpu="1")
    made.step([ev.PodSeen(pod("there", cpu="1", node="n0"))], 1.0)
    made.step([ev.PodSeen(pod(name, cpu="1")) for name in ("a", "b")], 2.0)
    picky.refuses = True
    assert placed(made.step([gone("there")], 3.0)) == {"b": "n0"}


def test_a_pod_of_the_same_name_is_not_forgotten_with_the_one_before_it() -> None:
    made = engine(cpu="1")
    made.step([ev.PodSeen(pod("there", cpu="1", node="n0")), ev.PodSeen(pod("p", cpu="1", uid="old"))], 1.0)
    made.step([ev.PodSeen(pod("p", cpu="1", uid="new")), ev.PodGone("old")], 2.0)
    (place,) = [d for d in made.step([gone("there")], 3.0) if isinstance(d, Place)]
    assert [p.uid for p in place.pods] == ["new"]


def test_preemption_is_tried_again_when_a_pod_went_that_stood_in_its_way() -> None:
    """Not enough is free yet, but what is free and what may be evicted are enough together."""
    made = engine(DefaultPreemption())
    made.step(
        [
            ev.PodSeen(pod("equal", cpu="2", node="n0", priority=10)),
            ev.PodSeen(pod("low", cpu="2", node="n0", priority=1)),
        ],
        1.0,
    )
    made.step([ev.PodSeen(pod("high", cpu="4", priority=10))], 2.0)
    decisions = made.step([gone("equal")], 3.0)
    assert [v.name for d in decisions if isinstance(d, Evict) for v in d.victims] == ["low"]


def test_preemption_is_tried_again_when_others_took_the_room_that_it_made() -> None:
    made = engine(DefaultPreemption(), nodes=2, cpu="2")
    made.step([ev.PodSeen(pod(f"low{i}", cpu="2", node=f"n{i}", priority=1)) for i in range(2)], 1.0)
    made.step([ev.PodSeen(pod("high", cpu="2", priority=10))], 2.0)
    taken = pod("foreign", cpu="1", node="n0", priority=100, scheduler="somebody-else")
    decisions = made.step([ev.PodSeen(taken), gone("low0")], 3.0)
    assert [v.name for d in decisions if isinstance(d, Evict) for v in d.victims] == ["low1"]


def test_room_that_was_kept_for_a_pod_is_free_for_others_when_it_goes() -> None:
    made = engine(DefaultPreemption(), cpu="2")
    made.step([ev.PodSeen(pod("low", cpu="2", node="n0", priority=1))], 1.0)
    made.step([ev.PodSeen(pod("high", cpu="2", priority=10))], 2.0)
    made.step([ev.PodSeen(pod("small", cpu="1", priority=1)), ev.Ranked(["Pod/default/small"])], 3.0)
    made.step([gone("low")], 4.0, units_max=1)
    assert placed(made.step([gone("high")], 5.0)) == {"small": "n0"}


def test_room_that_was_made_is_kept_from_the_pods_of_other_profiles() -> None:
    made = Engine([Profile(PROFILE, [Fit(), DefaultPreemption()]), Profile(OTHER, [Fit()])])
    made.step([ev.NodeSeen(node("n0", cpu="2")), ev.PodSeen(pod("low", cpu="2", node="n0", priority=1))], 1.0)
    made.step([ev.PodSeen(pod("high", cpu="2", priority=10))], 2.0)
    made.step([ev.PodSeen(pod("other", cpu="2", scheduler=OTHER)), ev.Ranked(["Pod/default/other"])], 3.0)
    assert placed(made.step([gone("low")], 4.0)) == {"high": "n0"}


def test_a_profile_in_shadow_promises_nobody_anything() -> None:
    shadow = Profile(OTHER, [Fit(), DefaultPreemption()], is_shadow=True)
    made = Engine([Profile(PROFILE, [Fit()]), shadow])
    made.step([ev.NodeSeen(node("n0", cpu="2")), ev.PodSeen(pod("low", cpu="1", node="n0", priority=1))], 1.0)
    decisions = made.step([ev.PodSeen(pod("high", cpu="2", priority=10, scheduler=OTHER))], 2.0)
    assert [type(d) for d in decisions] == [Evict, Park]
    assert not made.state.pods["uid-default-low"].is_victim
    assert placed(made.step([ev.PodSeen(pod("small", cpu="1"))], 3.0)) == {"small": "n0"}


def test_a_profile_that_goes_takes_along_the_room_it_made() -> None:
    made = Engine(
        [Profile(PROFILE, [Fit()]), Profile(OTHER, [Fit(), DefaultPreemption()])],
        configure=lambda _: [Profile(PROFILE, [Fit()])],
    )
    made.step([ev.NodeSeen(node("n0", cpu="2")), ev.PodSeen(pod("low", cpu="2", node="n0", priority=1))], 1.0)
    made.step([ev.PodSeen(pod("high", cpu="2", priority=10, scheduler=OTHER)), ev.PodSeen(pod("small", cpu="1"))], 2.0)
    made.step([gone("low")], 3.0, units_max=0)
    assert placed(made.step([ev.Configured({})], 4.0)) == {"small": "n0"}


def test_work_is_left_when_a_step_ends_before_those_it_could_help_were_woken() -> None:
    made = engine(cpu="1")
    made.step([ev.PodSeen(pod("p", cpu="2"))], 1.0)
    made.state.freed[0] = None
    assert made.has_work


# -- nothing stays set aside ---------------------------------------------------------------------------------------------------


class Breaks(Plugin):
    """Raises for pods that ask for 2 CPUs, as long as it is broken."""

    name = "Breaks"
    scope = Scope.NODE
    is_broken = True

    def filter(self, pods: PodBlock, nodes: NodeBlock) -> Mask:
        if self.is_broken and pods.shape.request[0] == 2000:
            raise RuntimeError("out of order")
        return np.ones(len(nodes), np.bool_)


def test_a_plugin_that_fails_on_one_shape_of_a_gang_leaves_nothing_of_it_behind() -> None:
    made = engine(Breaks())
    pods = [member("g", "g-0", minimum=2, cpu="1"), member("g", "g-1", minimum=2, cpu="2")]
    assert parked(made.step([ev.PodSeen(p) for p in pods], 1.0)) == {"PodGroup/default/g": Reason.PLUGIN_ERROR}
    assert is_free(made)


def test_a_plugin_that_works_again_is_believed_again() -> None:
    breaks = Breaks()
    made = engine(breaks)
    assert parked(made.step([ev.PodSeen(pod("p", cpu="2"))], 1.0)) == {"Pod/default/p": Reason.PLUGIN_ERROR}
    breaks.is_broken = False
    assert placed(made.step([], 100.0)) == {"p": "n0"}


def test_a_hold_of_a_profile_that_is_no_more_is_given_back() -> None:
    waiting = Profile(OTHER, [Fit(), Waits()])
    made = Engine([waiting], configure=lambda _: [Profile(PROFILE, [Fit()])])
    made.step([ev.NodeSeen(node("n0"))], 0.0)
    made.step([ev.PodSeen(pod("p", cpu="1", scheduler=OTHER))], 1.0)
    assert [type(d) for d in made.step([ev.Configured({})], 2.0)] == [Release]
    assert is_free(made)
    assert made.step([ev.Permitted("Pod/default/p")], 3.0) == []


def test_a_gang_does_not_take_along_members_that_are_not_ours_any_more() -> None:
    both = [Profile(PROFILE, [Fit()]), Profile(OTHER, [Fit()])]
    made = Engine(both, configure=lambda _: [Profile(PROFILE, [Fit()])])
    made.step([ev.PodSeen(member("g", "g-0", minimum=1)), ev.PodSeen(member("g", "g-1", minimum=1, scheduler=OTHER))], 1.0)
    made.step([ev.Configured({})], 2.0)
    assert placed(made.step([ev.NodeSeen(node("n0"))], 3.0)) == {"g-0": "n0"}


class Resizes(Plugin):
    """Sets twice the CPU aside."""

    name = "Resizes"

    def resize(self, pod: PodRecord, node: str) -> Mapping[str, int] | None:
        return {"cpu": 2 * int(pod.shape.request[0]), "pods": 1}


class Ledger(Plugin):
    name = "Ledger"

    def __init__(self) -> None:
        super().__init__()
        self.entries: list[str] = []

    def reserve(self, pod: PodRecord, node: str) -> Verdict | None:
        self.entries.append(pod.name)
        return None

    def unreserve(self, pod: PodRecord, node: str) -> None:
        if pod.name in self.entries:
            self.entries.remove(pod.name)


def test_a_hold_that_was_asked_for_in_vain_is_as_it_was() -> None:
    made = engine(Waits(), Resizes())
    made.step([ev.PodSeen(pod("young", cpu="1", created="2026-01-02T00:00:00Z"))], 1.0)
    before = made.state.nodes.free.copy()
    made.step([ev.PodSeen(pod("old", cpu="9", created="2026-01-01T00:00:00Z"))], 2.0)
    assert np.array_equal(made.state.nodes.free, before)


def test_a_hold_is_taken_back_from_the_plugins_of_its_own_profile() -> None:
    ledger = Ledger()
    made = Engine([Profile(PROFILE, [Fit()]), Profile(OTHER, [Fit(), Waits(), ledger])])
    made.step([ev.NodeSeen(node("n0", cpu="1"))], 0.0)
    made.step([ev.PodSeen(pod("young", cpu="1", created="2026-01-02T00:00:00Z", scheduler=OTHER))], 1.0)
    assert ledger.entries == ["young"]
    assert placed(made.step([ev.PodSeen(pod("old", cpu="1"))], 2.0)) == {"old": "n0"}
    assert ledger.entries == []


def test_a_hold_on_a_node_that_went_is_released() -> None:
    made = engine(Waits())
    made.step([ev.PodSeen(pod("p", cpu="1"))], 1.0)
    assert [type(d) for d in made.step([ev.NodeGone("n0")], 2.0)] == [Release, Park]


# -- plans from before a restart -----------------------------------------------------------------------------------------------


def test_a_plan_that_does_not_fit_any_more_is_released() -> None:
    made = engine(cpu="1")
    made.step([ev.PodSeen(pod(name, cpu="1")) for name in ("a", "b")], 1.0, units_max=0)
    plan = ev.Planned("PodGroup/default/g", tuple((f"uid-default-{name}", "n0") for name in ("a", "b")))
    decisions = made.step([plan], 2.0, units_max=0)
    assert [(d.unit, d.pods) for d in decisions if isinstance(d, Release)] == [("PodGroup/default/g", ("uid-default-b",))]
    assert (made.state.nodes.free >= 0).all()


# -- no plugin stops a step ----------------------------------------------------------------------------------------------------


class PatchBreaks(Plugin):
    name = "PatchBreaks"

    def pre_bind(self, pod: PodRecord, node: str) -> Patch | None:
        raise RuntimeError("out of order")


class ConcernsBreaks(Plugin):
    name = "ConcernsBreaks"
    wakes_on: ClassVar[frozenset[Wake]] = frozenset({Wake.POD})

    def concerns(self, pods: PodBlock) -> bool:
        raise RuntimeError("out of order")

    def filter(self, pods: PodBlock, nodes: NodeBlock) -> Mask:
        return np.ones(len(nodes), np.bool_)


class FeaturesBreak(Plugin):
    name = "FeaturesBreak"
    scope = Scope.LOCAL
    features_len = 1

    def features(self, shape: Shape) -> Sequence[int]:
        raise RuntimeError("out of order")

    def filter(self, pods: PodBlock, nodes: NodeBlock) -> Mask:
        return np.ones(len(nodes), np.bool_)


class ExplainBreaks(Plugin):
    """Refuses every node, and can't say why."""

    name = "ExplainBreaks"

    def filter(self, pods: PodBlock, nodes: NodeBlock) -> Mask:
        return np.zeros(len(nodes), np.bool_)

    def reasons(self, pods: PodBlock, nodes: NodeBlock) -> Sequence[tuple[Reason, Mask]]:
        raise RuntimeError("out of order")


@pytest.mark.parametrize(
    "plugins", [(PatchBreaks,), (ConcernsBreaks,), (FeaturesBreak,), (ExplainBreaks,), (Waits, PatchBreaks)]
)
def test_whatever_a_plugin_breaks_costs_its_unit_the_attempt_and_nobody_anything_else(plugins: Sequence[type[Plugin]]) -> None:
    made = engine(*(plugin() for plugin in plugins))
    assert parked(made.step([ev.PodSeen(pod("p", cpu="1"))], 1.0)) == {"Pod/default/p": Reason.PLUGIN_ERROR}
    assert plugins[-1].name in made.verdicts["Pod/default/p"].message
    assert is_free(made)


# -- what is kept stays small and right ----------------------------------------------------------------------------------------


def test_a_resource_that_only_another_profile_asks_for_disturbs_nobody() -> None:
    made = Engine([Profile(PROFILE, [Fit()]), Profile(OTHER, [Fit()])])
    made.step([ev.NodeSeen(node("n0", cpu="8"))], 0.0)
    made.step([ev.PodSeen(member("g", f"g-{i}", minimum=2)) for i in range(2)], 1.0)
    made.step([ev.PodSeen(pod("p", cpu="1", resources={"example.com/new": "1"}, scheduler=OTHER))], 2.0)
    second = made.step([ev.PodSeen(member("h", f"h-{i}", minimum=2)) for i in range(2)], 3.0)
    assert sorted(placed(second)) == ["h-0", "h-1"]


def test_rows_of_shapes_that_nobody_asks_for_cost_the_same_however_much_is_placed() -> None:
    made = engine(nodes=8, cpu="8")
    made.step([ev.PodSeen(pod("lone", cpu="3"))], 1.0)
    for turn in range(200):
        names = [f"g{turn}-{i}" for i in range(8)]
        made.step([ev.PodSeen(member(f"g{turn}", name, minimum=8)) for name in names], 2.0)
        made.step([gone(name) for name in names], 2.0)
    evaluator = made.evaluator(PROFILE)
    assert len(evaluator._touches) <= 64
    evaluator.check_invariants()


def test_what_is_kept_for_shapes_shrinks_when_nodes_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muster.engine.evaluate._CACHE_BYTES_MAX", 64 * 9 * 16)
    made = engine(nodes=1)
    made.step([ev.PodSeen(pod(f"p{i}", cpu=f"{i + 1}m")) for i in range(64)], 1.0)
    evaluator = made.evaluator(PROFILE)
    made.step([ev.NodeSeen(node(f"m{i}")) for i in range(63)], 2.0)
    assert evaluator._total.nbytes + evaluator._static.nbytes <= 2 * 64 * 9 * 16
    assert placed(made.step([ev.PodSeen(pod("last", cpu="1"))], 3.0))
    evaluator.check_invariants()


def test_a_question_about_a_cluster_without_some_pods_leaves_no_trace() -> None:
    made = engine()
    made.step([ev.PodSeen(pod(name, cpu="1", node="n0")) for name in ("a", "b", "c")], 1.0)
    state = made.state
    before = state.nodes.free.copy()
    with state.without([state.pods["uid-default-a"], state.pods["uid-default-b"]]):
        assert (state.nodes.free != before).any()
    assert np.array_equal(state.nodes.free, before)
    assert [p.name for p in state.on_node["n0"].values()] == ["a", "b", "c"]
    assert not state.freed
    assert not state.touched


class Enlarges(Plugin):
    """Has every pod ask for more than any node has."""

    name = "Enlarges"

    def before_prefilter(self, pod: PodFacts, now: float) -> PodFacts | None:
        huge = [msgspec.convert({"resources": {"requests": {"cpu": "99"}}}, type(c)) for c in pod.spec.containers]
        return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, containers=huge))


def test_a_transformer_that_is_configured_away_leaves_pods_as_they_are() -> None:
    made = Engine([Profile(PROFILE, [Fit(), Enlarges()])], configure=lambda _: [Profile(PROFILE, [Fit()])])
    made.step([ev.NodeSeen(node("n0"))], 0.0)
    assert not placed(made.step([ev.PodSeen(pod("p", cpu="1"))], 1.0))
    assert placed(made.step([ev.Configured({})], 2.0)) == {"p": "n0"}
