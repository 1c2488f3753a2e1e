"""Objects, events and plugins that make no sense: each costs whoever brought it, and nobody else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest

from muster.engine import events as ev
from muster.engine.answer_values import Question
from muster.engine.answers import answers
from muster.engine.configuration import default_configuration, read
from muster.engine.decisions import AnyDecision, Hold, Place
from muster.engine.facts import PodFacts, PodGroupFacts
from muster.engine.machine import Engine
from muster.engine.plugin import Permit, Plugin, Scope
from muster.engine.plugins.fit import Fit
from muster.engine.profile import Profile
from muster.engine.registry import discover
from muster.engine.resources import ASKED_MAX, OTHER, RESOURCES_MAX
from muster.objects.labels import KoordinatorPod, Sigs
from muster.objects.reasons import Reason
from tests.engine.building import node, pod, state_of

PROFILE = "muster-scheduler"
UNIT = "PodGroup/default/g"
GANG_NAME, GANG_MIN = KoordinatorPod.GANG_NAME, KoordinatorPod.GANG_MIN_AVAILABLE
IN_GANG = {Sigs.POD_GROUP: "g"}
HUGE = 10**30


@pytest.fixture(scope="module")
def profiles() -> Callable[[], Sequence[Profile]]:
    registry = discover()
    configuration = default_configuration(registry)
    return lambda: configuration.build(registry)


def group(least: int) -> ev.PodGroupSeen:
    raw = {"metadata": {"name": "g", "namespace": "default"}, "spec": {"minMember": least}}
    return ev.PodGroupSeen(msgspec.convert(raw, PodGroupFacts))


def placed(decisions: Sequence[AnyDecision]) -> set[str]:
    return {one.name for decision in decisions if isinstance(decision, Place) for one in decision.pods}


def nodes(count: int = 3) -> list[ev.AnyEvent]:
    return [ev.NodeSeen(node(f"n{n}")) for n in range(count)]


# -- objects -------------------------------------------------------------------------------------------------------------------


def _preferring(weight: int) -> dict[str, Any]:
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"a": "b"}}}
    weighted = [{"weight": weight, "podAffinityTerm": term}]
    return {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": weighted}}


def _spread(**more: Any) -> list[dict[str, Any]]:
    selector = {"matchLabels": {"a": "b"}}
    common = {"topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector}
    return [{"maxSkew": 1, **common, **more}]


POISON = [
    pytest.param(pod("x", resources={f"example.com/r{n}": 1 for n in range(2 * RESOURCES_MAX)}), id="resources without end"),
    pytest.param(
        pod("x", annotations={GANG_NAME: "g", GANG_MIN: "9" * 5_000}),
        id="a minimum of 5000 digits",
    ),
    pytest.param(
        pod("x", annotations={GANG_NAME: "g/../h", GANG_MIN: "-1"}),
        id="a minimum below nothing",
    ),
    pytest.param(pod("x", priority=HUGE), id="a priority beyond all numbers"),
    pytest.param(pod("x", priority=-HUGE, node="n0"), id="a bound pod of such a priority"),
    pytest.param(pod("x", affinity=_preferring(HUGE), node="n0", labels={"a": "b"}), id="a preference beyond all numbers"),
    pytest.param(pod("x", ports=[{"hostPort": HUGE}], node="n0"), id="a port beyond all numbers"),
    pytest.param(pod("x", topologySpreadConstraints=_spread(maxSkew=HUGE)), id="a skew beyond all numbers"),
    pytest.param(pod("x", topologySpreadConstraints=_spread(maxSkew=-HUGE, minDomains=HUGE)), id="a skew below nothing"),
    pytest.param(pod("x", cpu="1e35", memory="1e35"), id="more than there is in the world"),
    pytest.param(pod("x", cpu="abc", overhead={"cpu": "zz"}), id="amounts that are none"),
    pytest.param(pod("x", annotations={"kubernetes.io/egress-bandwidth": "9" * 5_000}), id="a bandwidth of 5000 digits"),
]


@pytest.mark.parametrize("poison", POISON)
def test_a_pod_that_makes_no_sense_stops_nobody(profiles: Callable[[], Sequence[Profile]], poison: PodFacts) -> None:
    engine = Engine(profiles())
    engine.step([*nodes(), ev.PodSeen(pod("y", node="n0", cpu="1", labels={"a": "b"}))], 1.0)
    engine.step([ev.PodSeen(poison)], 2.0)
    assert placed(engine.step([ev.PodSeen(pod("sane", cpu="1", labels={"a": "b"}))], 3.0)) == {"sane"}
    engine.step([ev.PodSeen(pod("vip", cpu="9", priority=1_000))], 4.0)
    engine.step([ev.PodGone(poison.metadata.uid)], 5.0)
    assert poison.metadata.uid not in engine.state.pods
    assert not engine.has_work


def test_a_pod_with_more_resources_than_there_are_rows_waits_and_says_so() -> None:
    engine = Engine([Profile(PROFILE, [Fit()])])
    greedy = pod("greedy", resources={f"example.com/r{n}": 1 for n in range(2 * RESOURCES_MAX)})
    assert not placed(engine.step([*nodes(), ev.PodSeen(greedy)], 1.0))
    counts = engine.verdicts["Pod/default/greedy"].nodes_by_reason
    assert counts == {Reason.EXTENDED_RESOURCE_INSUFFICIENT: 3}
    assert len(engine.state.table) <= ASKED_MAX + 1
    assert OTHER in engine.state.table.rows


def test_pods_that_ask_for_anything_leave_rows_for_what_nodes_have() -> None:
    engine = Engine([Profile(PROFILE, [Fit()])])
    engine.step([ev.PodSeen(pod("greedy", resources={f"example.com/r{n}": 1 for n in range(2 * RESOURCES_MAX)}))], 1.0)
    engine.step([ev.NodeSeen(node("n0", resources={"nvidia.com/gpu": "1"}))], 2.0)
    assert placed(engine.step([ev.PodSeen(pod("train", resources={"nvidia.com/gpu": 1}))], 3.0)) == {"train"}
    assert not placed(engine.step([ev.PodSeen(pod("more", resources={"nvidia.com/gpu": 1}))], 4.0))


def test_labels_that_no_node_has_are_not_remembered() -> None:
    """Anybody may name a label in a selector."""
    state = state_of([node("a", labels={"disk": "ssd"}), node("b")])
    for number in range(5_000):
        assert not state.nodes.label_ids(f"example.com/{number}").any()
        assert not state.nodes.label_values(f"example.com/{number}")
    assert len(state.nodes._labels) + len(state.nodes._keys) < 10
    assert state.nodes.label_ids("disk").tolist() == [1, 0]
    state.apply_node(ev.NodeSeen(node("b", labels={"example.com/4999": "x"})))
    state.flush_nodes()
    assert state.nodes.label_ids("example.com/4999").tolist() == [0, 1]


def test_taints_that_no_node_has_any_more_are_forgotten() -> None:
    def tainted(name: str, key: str) -> ev.NodeSeen:
        return ev.NodeSeen(node(name, taints=[{"key": key, "effect": "NoSchedule"}]))

    state = state_of([node("clean"), node("fixed"), node("restless")])
    state.apply_node(tainted("fixed", "fixed"))
    for number in range(1_000):
        state.apply_node(tainted("restless", f"since-{number}"))
        state.flush_nodes()
    assert len(state.nodes.taint_sets) < 100
    keys = [[taint.key for taint in state.nodes.taint_sets[number]] for number in state.nodes.taint_set.tolist()]
    assert keys == [[], ["fixed"], ["since-999"]]


def test_a_node_that_can_not_be_understood_offers_nothing_and_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine([Profile(PROFILE, [Fit()])])
    engine.step([ev.NodeSeen(node("bad")), ev.PodSeen(pod("there", cpu="1", node="bad"))], 1.0)
    describe = engine.state.nodes._describe

    def fail(slot: int, facts: Any) -> None:
        if facts.metadata.name == "bad":
            raise OverflowError("too large")
        describe(slot, facts)

    monkeypatch.setattr(engine.state.nodes, "_describe", fail)
    engine.step([ev.NodeSeen(node("bad")), ev.NodeSeen(node("good"))], 2.0)
    assert engine.state.nodes.free[0].tolist() == [-1_000, 8_000]
    assert "OverflowError" in engine.state.nodes.problems["bad"][0]
    decisions = engine.step([ev.PodSeen(pod("p", cpu="1"))], 3.0)
    assert [one.node for d in decisions if isinstance(d, Place) for one in d.pods] == ["good"]


# -- events --------------------------------------------------------------------------------------------------------------------


def test_events_about_nobody_change_nothing() -> None:
    engine = Engine([Profile(PROFILE, [Fit()])], configure=lambda document: [])
    engine.step([*nodes(1), ev.PodSeen(pod("a", cpu="1"))], 5.0)
    before = engine.state.nodes.free.copy()
    strays: list[ev.AnyEvent] = [
        ev.PodGone("no"),
        ev.Bound("no"),
        ev.BindFailed("no"),
        ev.EvictFailed("no"),
        ev.Planned("no", (("no", "n0"), ("uid-default-a", "nowhere"))),
        ev.Permitted("no"),
        ev.Denied("no"),
        ev.Ranked(["no", "no", ""]),
        ev.Retry(["no"]),
        ev.NodeGone("no"),
        ev.PodGroupGone("no/no", "no"),
    ]
    assert engine.step(strays * 2, 1.0) == []
    assert np.array_equal(engine.state.nodes.free, before)
    assert not engine.state.faults
    assert not engine.has_work


def test_answers_that_come_late_and_twice_free_nothing_twice() -> None:
    engine = Engine([Profile(PROFILE, [Fit()])])
    full = pod("p", cpu="8")
    uid = full.metadata.uid
    assert placed(engine.step([*nodes(1), ev.PodSeen(full)], 1.0)) == {"p"}
    again: list[ev.AnyEvent] = [ev.PodGone(uid), ev.PodSeen(full), ev.Bound(uid), ev.BindFailed(uid), ev.BindFailed(uid)]
    assert placed(engine.step(again, 2.0)) == {"p"}
    engine.step([ev.BindFailed(uid), ev.BindFailed(uid)], 3.0)
    assert engine.state.nodes.free[0].tolist() == [0]
    engine.step([ev.PodGone(uid), ev.PodGone(uid), ev.BindFailed(uid), ev.Bound(uid)], 4.0)
    assert engine.state.nodes.free[0].tolist() == [8_000]


@pytest.mark.parametrize("cpu", ["100", "99"])
def test_a_pod_of_the_same_name_is_not_forgotten_with_the_one_before(cpu: str) -> None:
    """It was made anew, and seen before the old one was seen to go."""
    engine = Engine([Profile(PROFILE, [Fit()])])
    engine.step([*nodes(1), ev.PodSeen(pod("p", cpu="100", uid="old"))], 1.0)
    engine.step([ev.PodSeen(pod("p", cpu=cpu, uid="new"))], 2.0)
    engine.step([ev.PodGone("old")], 3.0)
    assert placed(engine.step([ev.NodeSeen(node("large", cpu="200"))], 4.0)) == {"p"}


def test_a_gang_is_tried_when_its_pods_ask_for_fewer() -> None:
    def member(name: str, least: int) -> ev.PodSeen:
        return ev.PodSeen(pod(name, cpu="1", annotations={GANG_NAME: "g", GANG_MIN: str(least)}))

    engine = Engine([Profile(PROFILE, [Fit()])])
    assert not placed(engine.step([*nodes(1), member("a", 5), member("b", 5)], 1.0))
    assert placed(engine.step([member("a", 2), member("b", 2)], 2.0)) == {"a", "b"}


def test_an_event_that_can_not_be_applied_is_left_out_and_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine([Profile(PROFILE, [Fit()])])
    shape_of_seen = engine.state.shapes.shape_of_seen

    def fail(facts: PodFacts) -> Any:
        if facts.metadata.name == "x":
            raise RuntimeError("nobody foresaw this")
        return shape_of_seen(facts)

    monkeypatch.setattr(engine.state.shapes, "shape_of_seen", fail)
    assert placed(engine.step([*nodes(1), ev.PodSeen(pod("x")), ev.PodSeen(pod("sane"))], 1.0)) == {"sane"}
    assert engine.state.faults == {"default/x": "PodSeen: RuntimeError: nobody foresaw this"}


def test_what_failed_is_noted_up_to_a_bound() -> None:
    state = state_of()
    for number in range(1_000):
        state.note_fault(f"pod {number}", "x" * 10_000)
    assert len(state.faults) <= 100
    assert max(map(len, state.faults.values())) <= 500


def test_a_unit_that_can_not_be_tried_waits_and_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine([Profile(PROFILE, [Fit()])])
    engine.step(nodes(1), 1.0)
    cycle = engine._cycles[PROFILE]
    place = cycle.place

    def fail(unit: Any, found: Any) -> Any:
        raise RuntimeError("nobody foresaw this")

    monkeypatch.setattr(cycle, "place", fail)
    engine.step([ev.PodSeen(pod("p", cpu="1"))], 2.0)
    assert engine.verdicts["Pod/default/p"].reason is Reason.PLUGIN_ERROR
    assert engine.state.nodes.free[0].tolist() == [8_000]
    assert not engine.has_work, "giving back what it took wakes nobody, itself least of all"
    monkeypatch.setattr(cycle, "place", place)
    assert engine.next_deadline is not None
    assert placed(engine.step([ev.Tick()], engine.next_deadline)) == {"p"}


# -- configuration -------------------------------------------------------------------------------------------------------------


def test_a_configuration_that_is_wrong_after_all_changes_nothing(profiles: Callable[[], Sequence[Profile]]) -> None:
    registry = discover()
    engine = Engine(profiles(), configure=lambda document: read(document, registry).build(registry))
    before = list(engine.profiles)
    assert not engine.step([*nodes(1), ev.Configured({"profiles": 5})], 1.0)
    assert list(engine.profiles) == before
    assert engine.state.faults
    assert placed(engine.step([ev.PodSeen(pod("p"))], 2.0)) == {"p"}


class Waits(Plugin):
    name = "Waits"

    def permit(self, unit: Any, now: float) -> Permit:
        return Permit(wait_s=100.0, waiting_for=("partner",))


def without_profile() -> Engine:
    """An engine whose only profile goes with the next configuration, and a gang of two that it knows."""
    engine = Engine([Profile(PROFILE, [Fit(), Waits()])], configure=lambda document: [Profile("other", [Fit()])])
    members: list[ev.AnyEvent] = [ev.PodSeen(pod(name, cpu="1", labels=IN_GANG)) for name in "ab"]
    decisions = engine.step([*nodes(1), group(2), *members], 1.0)
    assert [type(decision) for decision in decisions] == [Hold]
    return engine


LAST_WORDS: list[ev.AnyEvent] = [ev.Permitted(UNIT), ev.Denied(UNIT), ev.Tick(), group(1), ev.PodGone("uid-default-a")]


@pytest.mark.parametrize("after", LAST_WORDS, ids=lambda event: type(event).__name__)
def test_what_was_held_under_a_profile_that_goes_is_given_back(after: ev.AnyEvent) -> None:
    engine = without_profile()
    engine.step([ev.Configured({})], 2.0)
    engine.step([after], 200.0)
    assert engine.state.nodes.free[0].tolist() == [8_000]
    assert not engine.holds
    assert not engine.has_work
    assert not engine.state.faults


def test_a_gang_whose_profile_went_is_left_alone_and_taken_up_again() -> None:
    served = [PROFILE]
    engine = Engine([Profile(PROFILE, [Fit()])], configure=lambda document: [Profile(served[0], [Fit()])])
    members: list[ev.AnyEvent] = [ev.PodSeen(pod(name, cpu="100", labels=IN_GANG)) for name in "ab"]
    engine.step([*nodes(1), group(2), *members], 1.0)
    served[0] = "other"
    engine.step([ev.Configured({})], 2.0)
    assert not engine.step([group(1)], 3.0)
    assert not engine.verdicts
    served[0] = PROFILE
    engine.step([ev.Configured({"again": True})], 4.0)
    assert placed(engine.step([ev.NodeSeen(node("large", cpu="200"))], 5.0)) == {"a", "b"}
    assert not engine.state.faults


# -- plugins -------------------------------------------------------------------------------------------------------------------


def raising(point: str, scope: Scope) -> Plugin:
    def fail(self: Plugin, *arguments: Any) -> Any:
        raise RuntimeError("out of order")

    members: dict[str, Any] = {"name": "Broken", "scope": scope, point: fail}
    if point == "normalise":
        members["score"] = lambda self, pods, nodes: np.arange(len(nodes))
    elif point == "follows":
        members["pod_added"] = lambda self, pod, slot: None
    elif point == "features":
        members |= {"features_len": 1, "filter": lambda self, pods, nodes: np.ones(len(nodes), np.bool_)}
    elif point in ("explain", "reasons", "concerns"):
        members["filter"] = lambda self, pods, nodes: np.zeros(len(nodes), np.bool_)
    found: Plugin = type("Broken", (Plugin,), members)()
    return found


ASKED = [(point, scope) for point in ("filter", "score", "normalise", "concerns", "features", "explain") for scope in Scope]
TOLD = "attach node_seen follows pod_added pod_removed event next_look"
OTHERS = "next_unit before_prefilter before_filter before_score restore prefilter post_filter reasons"
TAKING = "resize reserve unreserve permit pre_bind bind post_bind"
POINTS = [*ASKED, *((point, Scope.WIDE) for point in f"{TOLD} {OTHERS} {TAKING}".split())]


@pytest.mark.parametrize(("point", "scope"), POINTS)
def test_a_plugin_that_raises_costs_other_profiles_nothing(point: str, scope: Scope) -> None:
    engine = Engine([Profile(PROFILE, [Fit(), raising(point, scope)]), Profile("sane", [Fit()])])
    gang: list[ev.AnyEvent] = [ev.PodSeen(pod(f"m{n}", cpu="1", labels=IN_GANG)) for n in range(2)]
    mine: list[ev.AnyEvent] = [
        ev.PodSeen(pod("p", cpu="1")),
        ev.PodSeen(pod("large", cpu="100")),
        ev.PodSeen(pod("there", cpu="1", node="n0")),
    ]
    sane = pod("s", cpu="1", scheduler="sane")
    assert "s" in placed(engine.step([*nodes(1), group(2), *mine, *gang, ev.PodSeen(sane)], 1.0))
    gone: list[ev.AnyEvent] = [ev.PodGone(one.metadata.uid) for one in (pod("there"), sane)]
    engine.step([ev.Bound(sane.metadata.uid), ev.Bound("uid-default-p"), *gone], 2.0)
    assert engine.next_deadline is None or engine.next_deadline > 2.0
    assert "t" in placed(engine.step([*nodes(2), ev.PodSeen(pod("t", cpu="1", scheduler="sane"))], 100.0))
    assert not engine.has_work
    counted = sum(int(record.request[0]) for record in engine.state.pods.values() if record.node)
    assert int(engine.state.nodes.used[0].sum()) == counted
    if point in TOLD.split():
        assert "out of order" in engine.state.faults["plugin Broken"]


ODD = [float("nan"), 1.5, 2**62, None, -5]


@pytest.mark.parametrize("point", ["score", "normalise"])
@pytest.mark.parametrize("scope", list(Scope))
@pytest.mark.parametrize("value", ODD)
def test_a_plugin_whose_scores_are_none_fails_its_units_only(point: str, scope: Scope, value: Any) -> None:
    def answer(self: Plugin, first: Any, second: Any) -> Any:
        return np.array([value] * (len(first) if point == "normalise" else len(second)))

    members: dict[str, Any] = {"name": "Odd", "scope": scope, point: answer}
    if point == "normalise":
        members["score"] = lambda self, pods, nodes: np.arange(len(nodes))
    odd: Plugin = type("Odd", (Plugin,), members)()
    engine = Engine([Profile(PROFILE, [Fit(), odd]), Profile("sane", [Fit()])])
    seen = [ev.PodSeen(pod("p", cpu="1")), ev.PodSeen(pod("s", cpu="1", scheduler="sane"))]
    assert placed(engine.step([*nodes(), *seen], 1.0)) == {"s"}
    verdict = engine.verdicts["Pod/default/p"]
    assert (verdict.reason, verdict.plugin) == (Reason.PLUGIN_ERROR, "Odd")


class Patchy(Plugin):
    """Fails until it is told otherwise."""

    name = "Patchy"
    scope = Scope.LOCAL
    is_broken = True

    def filter(self, pods: Any, nodes: Any) -> Any:
        if self.is_broken:
            raise RuntimeError("not now")
        return np.bool_(True) | (nodes.free[0] >= pods.request[0])


def test_a_shape_that_broke_a_plugin_once_is_tried_again() -> None:
    patchy = Patchy()
    engine = Engine([Profile(PROFILE, [Fit(), patchy])])
    engine.step([*nodes(), ev.PodSeen(pod("p", cpu="1"))], 1.0)
    assert engine.verdicts["Pod/default/p"].plugin == "Patchy"
    patchy.is_broken = False
    assert engine.next_deadline is not None
    assert placed(engine.step([ev.Tick()], engine.next_deadline)) == {"p"}


def test_room_that_a_broken_permit_took_is_there_for_others() -> None:
    engine = Engine([Profile(PROFILE, [Fit(), raising("pre_bind", Scope.WIDE)]), Profile("sane", [Fit()])])
    engine.step([*nodes(1), ev.PodSeen(pod("p", cpu="8"))], 1.0)
    assert placed(engine.step([ev.PodSeen(pod("s", cpu="8", scheduler="sane"))], 2.0)) == {"s"}


# -- questions -----------------------------------------------------------------------------------------------------------------


def role(name: str, **spec: Any) -> dict[str, Any]:
    container = {"name": "c", "resources": {"requests": {"cpu": "1"}}}
    return {"name": name, "replicas": 2, "template": {"spec": {"containers": [container], **spec}}}


def asking(*roles: dict[str, Any]) -> Question:
    manifest = {"apiVersion": "muster.dev/v1alpha1", "kind": "Job", "metadata": {"name": "x"}, "spec": {"roles": list(roles)}}
    return Question(manifest=manifest, namespace="default")


@pytest.mark.parametrize("question", [asking(role("r"), role("r")), asking(role("r", priority=HUGE))], ids=["twins", "huge"])
def test_a_question_leaves_no_trace_in_what_is_counted(question: Question) -> None:
    """Whoever may ask could otherwise fill the cluster with pods that do not exist."""
    engine = Engine([Profile(PROFILE, [Fit()])])
    engine.step([*nodes(), ev.PodSeen(pod("p", cpu="1", node="n0"))], 1.0)
    before = engine.state.nodes.free.copy()
    assert len(answers(engine, question)) == 1
    assert np.array_equal(engine.state.nodes.free, before)
    assert len(engine.state.placed) == len(engine.state.pods) == 1
    assert not engine.state.touched


def test_pods_of_roles_of_the_same_name_are_all_asked_about() -> None:
    engine = Engine([Profile(PROFILE, [Fit()])])
    engine.step([ev.NodeSeen(node("n0", cpu="3"))], 1.0)
    assert not answers(engine, asking(role("r"), role("r")))[0].schedulable
    assert answers(engine, asking(role("r")))[0].schedulable


def test_a_question_that_breaks_something_leaves_work_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine([Profile(PROFILE, [Fit()])])
    members: list[ev.AnyEvent] = [ev.PodSeen(pod(name, cpu="5", labels=IN_GANG)) for name in "ab"]
    engine.step([*nodes(1), group(2), *members], 1.0)

    def fail(*arguments: Any) -> Any:
        raise RuntimeError("nobody foresaw this")

    with monkeypatch.context() as broken:
        broken.setattr("muster.engine.answers.explain_pod", fail)
        answer = answers(engine, Question(key="PodGroup/default/g"))[0]
    assert answer.verdict is not None
    assert "nobody foresaw this" in answer.verdict.message
    assert engine.state.nodes.free[0].tolist() == [8_000]
    assert placed(engine.step([ev.NodeSeen(node("n1"))], 2.0)) == {"a", "b"}
