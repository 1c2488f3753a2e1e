"""Gangs in the machine: who counts, who waits, who keeps what, and what becomes of late, dying and deleted members."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

import pytest

from muster.engine import events as ev
from muster.engine.decisions import AnyDecision, Park, Place, Release
from muster.engine.facts import PodFacts
from muster.engine.machine import Engine
from muster.engine.releasing import back_off_s
from muster.objects.labels import KoordinatorPod, Sigs
from muster.objects.reasons import Reason
from tests.engine.building import node, pod
from tests.engine.tasks_building import engine, gone, held, is_free, member, parked, placed, pod_group, released, seen, verdict

GANG = "PodGroup/default/g"
LABEL = {Sigs.POD_GROUP: "g"}


def members(count: int, minimum: int | None = None, start: int = 0, **more: Any) -> list[ev.AnyEvent]:
    least = count if minimum is None else minimum
    return seen(*(member("g", f"w{i}", least, **more) for i in range(start, start + count)))


def bound(name: str, minimum: int = 2, **more: Any) -> ev.PodSeen:
    return ev.PodSeen(member("g", name, minimum, node="n0", **more))


def labelled(name: str, **more: Any) -> PodFacts:
    return pod(name, cpu="1", labels=LABEL, **more)


# -- where the settings come from ----------------------------------------------------------------------------------------------


def test_a_pod_group_wins_over_annotations_and_is_read_again_when_it_changes() -> None:
    made = engine()
    events = [pod_group("g", 3), *members(2, 2)]
    assert parked(made.step(events, 1.0)) == {GANG: Reason.GANG_INCOMPLETE}
    assert len(placed(made.step([pod_group("g", 2)], 2.0))) == 2


def test_the_deprecated_pair_of_labels() -> None:
    pair = {Sigs.POD_GROUP_NAME: "g", Sigs.POD_GROUP_MIN_AVAILABLE: "2"}
    made = engine()
    assert parked(made.step(seen(pod("a", cpu="1", labels=pair)), 1.0)) == {GANG: Reason.GANG_INCOMPLETE}
    assert len(placed(made.step(seen(pod("b", cpu="1", labels=pair)), 2.0))) == 2


def test_the_oldest_pod_with_a_valid_minimum_decides_whoever_is_seen_first() -> None:
    pods = [
        member("g", "a", "no number", created="2026-01-01T00:00:00Z"),
        member("g", "b", 2, created="2026-01-02T00:00:00Z"),
        member("g", "c", 4, created="2026-01-03T00:00:00Z"),
    ]
    for order in itertools.permutations(pods):
        assert len(placed(engine().step(seen(*order), 1.0))) == 3


def test_when_that_pod_goes_the_next_decides() -> None:
    made = engine(cpu="1")
    made.step(seen(member("g", "a", 2, created="2026-01-01T00:00:00Z"), member("g", "b", 3)), 1.0)
    decisions = made.step([gone("a"), *seen(member("g", "c", 9))], 2.0)
    assert verdict(decisions).message.startswith("2 of the 3 pods")


@pytest.mark.parametrize(
    ("pods", "text"),
    [
        pytest.param([labelled("a")], "PodGroup default/g does not exist", id="no PodGroup"),
        pytest.param([member("g", "a", "many")], "no pod of gang default/g says how many", id="no minimum"),
    ],
)
def test_a_gang_whose_minimum_nobody_knows_waits(pods: list[PodFacts], text: str) -> None:
    made = engine()
    decisions = made.step(seen(*pods), 1.0)
    assert parked(decisions) == {GANG: Reason.GANG_INCOMPLETE}
    assert text in verdict(decisions).message
    assert placed(made.step([pod_group("g", 1)], 2.0)) == {"a": "n0"}


def test_total_number_decides_nothing() -> None:
    assert len(placed(engine().step(members(2, 2, settings={"total-number": "5"}), 1.0))) == 2


def test_min_resources_must_be_free_in_all() -> None:
    made = engine(nodes=2, cpu="2")
    made.step([ev.PodSeen(pod("there", cpu="2", node="n0"))], 0.5)
    group = pod_group("g", 2, minResources={"cpu": "3", "example.com/x": "1"})
    decisions = made.step([group, *seen(labelled("a"), labelled("b"))], 1.0)
    assert parked(decisions) == {GANG: Reason.GANG_INSUFFICIENT}
    assert "spec.minResources" in verdict(decisions).message
    assert [one.resource for one in verdict(decisions).shortfalls] == ["cpu", "example.com/x"]
    again = made.step([pod_group("g", 2, minResources={"cpu": "3"})], 2.0)
    assert not placed(again)
    # Room that no pod of the gang could use counts all the same.
    assert len(placed(made.step([ev.NodeSeen(node("n9", cpu="1", pods=0))], 3.0))) == 2


# -- who counts ----------------------------------------------------------------------------------------------------------------


def started(match: str = "", minimum: int = 2) -> Engine:
    """A gang of two that runs on a node with room for two more."""
    made = engine()
    settings = {"match-policy": match} if match else {}
    assert len(placed(made.step(members(2, minimum, settings=settings), 1.0))) == 2
    made.step([bound("w0", minimum, settings=settings), bound("w1", minimum, settings=settings)], 2.0)
    return made


@pytest.mark.parametrize(
    ("match", "late", "expected"),
    [
        pytest.param("", 1, {"w2": "n0"}, id="once satisfied"),
        pytest.param("waiting-and-running", 1, {"w2": "n0"}, id="waiting and running"),
        pytest.param("only-waiting", 1, {}, id="only waiting, too few"),
        pytest.param("only-waiting", 2, {"w2": "n0", "w3": "n0"}, id="only waiting, enough"),
    ],
)
def test_late_members(match: str, late: int, expected: dict[str, str]) -> None:
    settings = {"match-policy": match} if match else {}
    assert placed(started(match).step(members(late, 2, start=2, settings=settings), 3.0)) == expected


@pytest.mark.parametrize(
    ("match", "expected"),
    [
        pytest.param("", {"w9": "n0"}, id="once satisfied"),
        pytest.param("waiting-and-running", {}, id="waiting and running"),
        pytest.param("only-waiting", {}, id="only waiting"),
    ],
)
def test_all_died_and_one_came_back(match: str, expected: dict[str, str]) -> None:
    made = started(match)
    settings = {"match-policy": match} if match else {}
    again = ev.PodSeen(member("g", "w9", 2, settings=settings))
    assert placed(made.step([again, gone("w0"), gone("w1")], 3.0)) == expected


def test_with_its_last_pod_a_gang_of_annotations_is_forgotten() -> None:
    made = started()
    made.step([gone("w0"), gone("w1")], 3.0)
    assert not made.members.gangs
    assert parked(made.step([ev.PodSeen(member("g", "w9", 2))], 4.0)) == {GANG: Reason.GANG_INCOMPLETE}


def test_that_a_gang_has_started_is_known_for_as_long_as_its_pod_group() -> None:
    made = engine()
    made.step([pod_group("g", 2), *seen(labelled("a"), labelled("b"))], 1.0)
    made.step(seen(labelled("a", node="n0"), labelled("b", node="n0")), 2.0)
    made.step([gone("a"), gone("b")], 3.0)
    assert placed(made.step(seen(labelled("c")), 4.0)) == {"c": "n0"}
    made.step([gone("c"), ev.PodGroupGone("default", "g")], 5.0)
    assert not made.members.gangs


@pytest.mark.parametrize("match", ["", "waiting-and-running"], ids=["once satisfied", "waiting and running"])
def test_those_that_succeeded_count(match: str) -> None:
    made = engine(cpu="1")
    settings = {"match-policy": match} if match else {}
    made.step([bound("w0", phase="Succeeded", settings=settings)], 1.0)
    assert placed(made.step([ev.PodSeen(member("g", "w1", 2, settings=settings))], 2.0)) == {"w1": "n0"}


def test_those_that_failed_do_not_count() -> None:
    made = engine()
    made.step([bound("w0", phase="Failed")], 1.0)
    assert parked(made.step([ev.PodSeen(member("g", "w1", 2))], 2.0)) == {GANG: Reason.GANG_INCOMPLETE}


def test_a_member_that_is_deleted_while_the_gang_waits() -> None:
    made = engine(cpu="2")
    assert parked(made.step(members(3), 1.0)) == {GANG: Reason.GANG_INSUFFICIENT}
    assert parked(made.step([gone("w2")], 2.0)) == {GANG: Reason.GANG_INCOMPLETE}
    assert not placed(made.step([ev.NodeSeen(node("n1"))], 3.0))
    assert len(placed(made.step(members(1, 3, start=2), 4.0))) == 3


# -- what goes with the pods ---------------------------------------------------------------------------------------------------


def test_what_is_written_at_the_binding() -> None:
    (place,) = [d for d in engine().step(members(3), 1.0) if isinstance(d, Place)]
    expected = {KoordinatorPod.BIND_GANG_GROUP_ID: "default/g", KoordinatorPod.BIND_GANG_MEMBER_COUNT: "3"}
    assert all(p.annotations == expected for p in place.pods)


def test_one_that_is_bound_alone_says_nothing() -> None:
    (place,) = [d for d in started().step(members(1, 2, start=2), 3.0) if isinstance(d, Place)]
    assert place.pods[0].annotations == {}


def test_every_member_that_waits_is_told() -> None:
    (park,) = [d for d in engine(cpu="2").step(members(3), 1.0) if isinstance(d, Park)]
    assert len(park.pods) == 3
    (park,) = [d for d in engine(cpu="2").step(members(2, 3), 1.0) if isinstance(d, Park)]
    assert len(park.pods) == 2


# -- groups of gangs -----------------------------------------------------------------------------------------------------------

TOGETHER = {"groups": json.dumps(["default/a", "other/b"])}
BOTH = "PodGroup/default/a,other/b"
AB = (("a", "default"), ("b", "other"))


def of_a(count: int = 2, **more: Any) -> list[ev.AnyEvent]:
    return seen(*(member("a", f"a{i}", 2, settings=TOGETHER, **more) for i in range(count)))


def of_b(count: int = 2, **more: Any) -> list[ev.AnyEvent]:
    return seen(*(member("b", f"b{i}", 2, namespace="other", settings=TOGETHER, **more) for i in range(count)))


def test_gangs_of_one_group_start_together_or_not_at_all() -> None:
    made = engine(cpu="3")
    assert parked(made.step([*of_a(), *of_b()], 1.0)) == {BOTH: Reason.GANG_INSUFFICIENT}
    assert is_free(made)
    decisions = made.step([ev.NodeSeen(node("n1", cpu="1"))], 2.0)
    assert set(placed(decisions)) == {"a0", "a1", "b0", "b1"}
    (place,) = [d for d in decisions if isinstance(d, Place)]
    assert place.pods[0].annotations[KoordinatorPod.BIND_GANG_GROUP_ID] == "default/a,other/b"
    assert not made.waiting.units


@pytest.mark.parametrize(
    ("events", "text"),
    [
        pytest.param(of_a(), "gang other/b, which starts together with this, has no pods yet", id="not there"),
        pytest.param([*of_a(), *of_b(1)], "1 of the 2 pods of other/b", id="not complete"),
        pytest.param(
            [*of_a(), *seen(*(member("b", f"b{i}", 2, namespace="other") for i in range(2)))],
            "does not name the same gangs",
            id="it does not agree",
        ),
    ],
)
def test_a_group_waits_until_all_its_gangs_are_there(events: list[ev.AnyEvent], text: str) -> None:
    made = engine()
    made.step(events, 1.0)
    assert text in made.verdicts[BOTH].message


def test_nobody_is_drawn_into_a_group() -> None:
    made = engine()
    decisions = made.step([*of_a(), *seen(*(member("b", f"b{i}", 2, namespace="other") for i in range(2)))], 1.0)
    assert set(placed(decisions)) == {"b0", "b1"}


def test_pods_move_when_a_pod_group_joins_their_gang_with_another() -> None:
    made = engine(cpu="1")
    pods = [pod(f"{gang}{i}", cpu="1", namespace=ns, labels={Sigs.POD_GROUP: gang}) for gang, ns in AB for i in range(2)]
    made.step([pod_group("a", 2), pod_group("b", 2, namespace="other"), *seen(*pods)], 1.0)
    assert set(made.waiting.units) == set(made.verdicts) == {"PodGroup/default/a", "PodGroup/other/b"}
    made.step([pod_group("a", 2, settings=TOGETHER)], 2.0)
    assert set(made.waiting.units) == {BOTH, "PodGroup/other/b"}
    made.step([pod_group("b", 2, namespace="other", settings=TOGETHER)], 3.0)
    assert set(made.waiting.units) == set(made.verdicts) == {BOTH}
    assert len(made.waiting.units[BOTH].pods) == 4
    assert len(placed(made.step([ev.NodeSeen(node("n1"))], 4.0))) == 4


def test_pods_move_back_when_the_group_is_taken_apart() -> None:
    made = engine(cpu="3")
    made.step([*of_a(), *of_b()], 1.0)
    apart = [ev.PodSeen(member("a", f"a{i}", 2)) for i in range(2)]
    decisions = made.step(apart, 2.0)
    assert set(placed(decisions)) == {"a0", "a1"}
    assert set(made.waiting.units) == set(made.verdicts) == {BOTH}
    assert "has no pods yet" not in made.verdicts[BOTH].message


def test_a_pod_that_names_another_gang_moves_there() -> None:
    made = engine()
    made.step(members(1, 2), 1.0)
    decisions = made.step(seen(member("h", "w0", 1)), 2.0)
    assert placed(decisions) == {"w0": "n0"}
    assert not made.waiting.units
    assert set(made.members.gangs) == {"default/h"}


def test_a_single_pod_that_joins_a_gang() -> None:
    made = engine(cpu="2")
    made.step(seen(pod("w0", cpu="9")), 1.0)
    made.step(seen(pod("w0", cpu="9"), member("g", "w1", 2)), 2.0)
    made.step(seen(member("g", "w0", 2)), 3.0)
    assert set(made.state.pods) == {"uid-default-w0", "uid-default-w1"}
    assert not [unit for unit in made.waiting.units if unit.startswith("Pod/")]


def test_the_age_of_a_group_is_that_of_its_oldest_gang() -> None:
    made = engine(cpu="1")
    made.step([*of_a(created="2026-01-05T00:00:00Z"), *of_b(created="2026-01-04T00:00:00Z")], 1.0)
    assert made.waiting.units[BOTH].age == ("2026-01-04T00:00:00Z", "uid-other-b0")


def test_of_a_pod_group_the_uid_counts() -> None:
    made = engine(cpu="1")
    made.step([pod_group("g", 2), *seen(labelled("a"), labelled("b"))], 1.0)
    assert made.waiting.units[GANG].age == ("2026-01-01T00:00:00Z", "pg-g")


# -- NonStrict -----------------------------------------------------------------------------------------------------------------

LOOSE = {"mode": "NonStrict", "waiting-time": "100s"}


def loose(count: int, minimum: int | None = None, gang: str = "g", start: int = 0, **more: Any) -> list[ev.AnyEvent]:
    least = count if minimum is None else minimum
    return seen(*(member(gang, f"{gang}{i}", least, settings=LOOSE, **more) for i in range(start, start + count)))


def told(decisions: Sequence[AnyDecision]) -> list[int]:
    return [len(d.pods) for d in decisions if isinstance(d, Park)]


def test_members_that_found_a_place_keep_it_while_the_others_wait() -> None:
    made = engine(cpu="2")
    decisions = made.step(loose(4), 1.0)
    assert held(decisions) == {GANG: ["g0", "g1"]}
    assert parked(decisions) == {GANG: Reason.GANG_INSUFFICIENT}
    assert told(decisions) == [4]
    assert made.next_deadline == 101.0
    assert not made.has_work
    more = made.step([ev.NodeSeen(node("n1", cpu="1"))], 2.0)
    assert held(more) == {GANG: ["g0", "g1", "g2"]}
    assert made.next_deadline == 101.0, "its time began with the first place"
    assert set(placed(made.step([ev.NodeSeen(node("n2", cpu="1"))], 3.0))) == {"g0", "g1", "g2", "g3"}
    assert not made.holds
    assert not made.waiting.units


def test_at_the_end_of_its_time_all_is_given_back_and_tried_again_later() -> None:
    made = engine(cpu="2")
    made.step(loose(3), 1.0)
    age = made.holds[GANG].unit.age
    decisions = made.step([], 101.0)
    assert released(decisions) == [(GANG, Reason.RESERVATION_EXPIRED)]
    assert parked(decisions) == {GANG: Reason.BACKING_OFF}
    assert is_free(made)
    assert made.step([ev.NodeSeen(node("n1"))], 102.0) == []
    assert made.step(loose(1, 3, start=3), 103.0) == [], "a member that comes does not end the back-off"
    assert made.next_deadline == 101.0 + back_off_s(age)
    assert len(placed(made.step([], 101.0 + back_off_s(age)))) == 4


def test_while_one_backs_off_another_has_its_turn() -> None:
    made = engine(cpu="3")
    made.step(loose(4, gang="g"), 1.0)
    made.step(loose(3, gang="h", created="2026-02-01T00:00:00Z"), 2.0)
    assert set(placed(made.step([], 101.0))) == {"h0", "h1", "h2"}


def test_two_do_not_block_each_other_the_younger_yields() -> None:
    made = engine(cpu="4")
    made.step(loose(3, 3, gang="g", cpu="1500m", created="2026-01-01T00:00:00Z"), 1.0)
    made.step(loose(4, gang="h", created="2026-02-01T00:00:00Z"), 2.0)
    assert set(made.holds) == {GANG, "PodGroup/default/h"}
    made.step([ev.NodeSeen(node("n1", cpu="1"))], 3.0)
    decisions = made.step([ev.NodeSeen(node("n1", cpu="1500m"))], 4.0)
    assert ("PodGroup/default/h", Reason.YIELDED_TO_OLDER) in released(decisions)
    assert set(placed(decisions)) == {"g0", "g1", "g2"}


def test_older_work_takes_what_is_kept() -> None:
    made = engine(cpu="2")
    made.step(loose(3, created="2026-02-01T00:00:00Z"), 1.0)
    decisions = made.step(seen(pod("old", cpu="1", created="2026-01-01T00:00:00Z")), 2.0)
    assert released(decisions) == [(GANG, Reason.YIELDED_TO_OLDER)]
    assert placed(decisions) == {"old": "n0"}
    assert held(decisions) == {GANG: ["g0"]}


def test_a_member_that_goes_gives_back_its_own_place_only() -> None:
    made = engine(cpu="2")
    made.step(loose(4, 3), 1.0)
    decisions = made.step([gone("g0")], 2.0)
    assert [d.pods for d in decisions if isinstance(d, Release)] == [("uid-default-g0",)]
    assert held(decisions) == {GANG: ["g1", "g2"]}
    assert made.next_deadline == 101.0


def test_a_node_that_goes_takes_its_places_only() -> None:
    made = engine(nodes=2, cpu="1")
    made.step(loose(3), 1.0)
    decisions = made.step([ev.NodeGone("n1")], 2.0)
    assert released(decisions) == [(GANG, Reason.RESERVATION_EXPIRED)]
    assert [one.pod.name for one in made.holds[GANG].placed] in (["g0"], ["g1"])


def test_what_is_kept_is_let_go_when_the_mode_changes() -> None:
    made = engine(cpu="1")
    group = pod_group("g", 2, settings=LOOSE)
    made.step([group, *seen(labelled("a"), labelled("b"))], 1.0)
    assert list(made.holds) == [GANG]
    made.step([pod_group("g", 2)], 2.0)
    assert not made.holds
    assert is_free(made)


def test_a_lower_minimum_starts_what_is_kept() -> None:
    made = engine(cpu="2")
    made.step([pod_group("g", 3, settings=LOOSE), *seen(*(labelled(name) for name in "abc"))], 1.0)
    assert len(placed(made.step([pod_group("g", 2, settings=LOOSE)], 2.0))) == 2


def test_a_group_of_which_one_gang_is_strict_is_strict() -> None:
    made = engine(cpu="3")
    settings = {**TOGETHER, "mode": "NonStrict"}
    made.step([*of_b(), *seen(*(member("a", f"a{i}", 2, settings=settings) for i in range(2)))], 1.0)
    assert not made.holds
    assert is_free(made)


def test_gangs_of_a_group_that_is_not_strict_keep_what_they_found() -> None:
    made = engine(cpu="3")
    settings = {**TOGETHER, **LOOSE}
    pods = [member(gang, f"{gang}{i}", 2, settings=settings, namespace=ns) for gang, ns in AB for i in range(2)]
    decisions = made.step(seen(*pods), 1.0)
    assert {unit: sorted(names) for unit, names in held(decisions).items()} == {BOTH: ["a0", "a1", "b0"]}
    assert len(placed(made.step([ev.NodeSeen(node("n1"))], 2.0))) == 4
