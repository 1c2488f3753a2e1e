"""Who must go: tables for the order of preference, and a plain walk over every node and pod as the measure for the vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.engine import victims
from muster.engine.blocks import one_shape
from muster.engine.budgets import Budgets
from muster.engine.facts import BudgetFacts
from muster.engine.pods import PodRecord
from muster.engine.reprieve import COST_SHIFT, NOT_STARTED, started
from muster.engine.state import State
from muster.engine.victims import Ask, Room, candidates_for, select
from tests.engine.building import node, pod, state_of

HIGH = 1000


def started_pod(name: str, on: str, cpu: str, priority: int = 0, start: str = "", **more: Any) -> Any:
    facts = pod(name, cpu=cpu, node=on, priority=priority, phase="Running", **more)
    return msgspec.structs.replace(facts, status=msgspec.structs.replace(facts.status, start_time=start))


def ending(facts: Any) -> Any:
    return msgspec.structs.replace(
        facts, metadata=msgspec.structs.replace(facts.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
    )


def budget(name: str, allowed: int, labels: Mapping[str, str], disrupted: Sequence[str] = ()) -> BudgetFacts:
    raw = {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"selector": {"matchLabels": dict(labels)}},
        "status": {"disruptionsAllowed": allowed, "disruptedPods": dict.fromkeys(disrupted, "2026-01-01T00:00:00Z")},
    }
    return msgspec.convert(raw, BudgetFacts)


def choose(state: State, cpu: str = "2", *, budgets: Sequence[BudgetFacts] = (), **ask: Any) -> Room | None:
    wants = state.see_pod(pod("wants", cpu=cpu, priority=HIGH))
    book = Budgets({(b.metadata.namespace, b.metadata.name): b for b in budgets}) if budgets else None
    ask.setdefault("eligible", state.placed.priority < HIGH)
    ask.setdefault("cost", state.placed.priority)
    return select(state, one_shape(wants.shape), Ask(budgets=book, **ask))


def names(room: Room | None) -> tuple[str, list[str]] | None:
    return None if room is None else (room.node, [victim.name for victim in room.victims])


TWO = [node("a", cpu="2"), node("b", cpu="2")]
EARLY, LATE = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        pytest.param(
            [started_pod("low", "b", "2", 1), started_pod("mid", "a", "2", 5)], ("b", ["low"]), id="lowest priority goes"
        ),
        pytest.param(
            [started_pod("x", "a", "1", 5), started_pod("y", "a", "1", 0), started_pod("z", "b", "2", 5)],
            ("b", ["z"]),
            id="equal highest: smaller sum, so fewer",
        ),
        pytest.param(
            [started_pod("x", "a", "2", 5, EARLY), started_pod("z", "b", "2", 5, LATE)],
            ("b", ["z"]),
            id="equal sums: the one that started later",
        ),
        pytest.param(
            [started_pod("x", "a", "2", 5, EARLY), started_pod("z", "b", "2", 5, EARLY)],
            ("a", ["x"]),
            id="first name of equals",
        ),
        pytest.param([started_pod("x", "a", "2", HIGH), started_pod("z", "b", "2", HIGH)], None, id="nobody is less important"),
        pytest.param(
            [started_pod("x", "a", "1", 9), started_pod("y", "a", "1", 1), started_pod("z", "b", "2", HIGH)],
            ("a", ["x", "y"]),
            id="most important victim is named first",
        ),
        pytest.param(
            [ending(started_pod("x", "a", "2", 5)), started_pod("z", "b", "2", 0)], ("a", []), id="who is ending makes room"
        ),
        pytest.param(
            [ending(started_pod("x", "a", "1", 5)), started_pod("y", "a", "1", 0), started_pod("z", "b", "2", 1)],
            ("a", ["y"]),
            id="beside one that is ending, only the rest goes",
        ),
    ],
)
def test_order(pods: list[Any], expected: tuple[str, list[str]] | None) -> None:
    assert names(choose(state_of(TWO, pods))) == expected


def test_a_victim_of_another_makes_room_until_it_could_not_be_evicted() -> None:
    state = state_of(TWO, [started_pod("x", "a", "2", 5), started_pod("z", "b", "2", 0)])
    x = state.pods["uid-default-x"]
    state.mark_victim(x)
    state.see_pod(started_pod("x", "a", "2", 5, EARLY))
    assert names(choose(state)) == ("a", []), "seen again, not yet ending, and a victim all the same"
    state.mark_victim(x, False)
    assert names(choose(state)) == ("b", ["z"])


def test_keeps_the_more_important_where_one_is_enough() -> None:
    pods = [started_pod("keep", "a", "2", 7), started_pod("go", "a", "2", 3)]
    assert names(choose(state_of([node("a", cpu="4")], pods))) == ("a", ["go"])


def test_of_equals_on_a_node_the_later_one_goes() -> None:
    pods = [started_pod("old", "a", "2", 3, EARLY), started_pod("new", "a", "2", 3, LATE)]
    assert names(choose(state_of([node("a", cpu="4")], pods))) == ("a", ["new"])


def test_too_large_for_any_node() -> None:
    assert choose(state_of(TWO, [started_pod("x", "a", "2")]), "3") is None


def test_no_nodes() -> None:
    assert choose(state_of()) is None


def test_a_resource_that_no_node_has() -> None:
    state = state_of(TWO, [started_pod("x", "a", "2")])
    wants = state.see_pod(pod("gpu", cpu="1", resources={"example.com/new": 1}, priority=HIGH))
    ask = Ask(eligible=state.placed.priority < HIGH, cost=state.placed.priority)
    assert select(state, one_shape(wants.shape), ask) is None


def test_only_where_it_could_be() -> None:
    state = state_of(TWO, [started_pod("x", "a", "2", 0), started_pod("z", "b", "2", 9)])
    assert names(choose(state, nodes=np.array([False, True]))) == ("b", ["z"])


def test_cost_decides_not_priority() -> None:
    state = state_of(TWO, [started_pod("x", "a", "2", 0), started_pod("z", "b", "2", 9)])
    room = choose(state, cost=-state.placed.priority)
    assert names(room) == ("b", ["z"])


# -- disruption budgets ------------------------------------------------------------------------------------------------------


def test_a_budget_weighs_more_than_priority() -> None:
    state = state_of(TWO, [started_pod("x", "a", "2", 0, labels={"app": "db"}), started_pod("z", "b", "2", 9)])
    assert names(choose(state, budgets=[budget("db", 0, {"app": "db"})])) == ("b", ["z"])
    assert names(choose(state, budgets=[budget("db", 1, {"app": "db"})])) == ("a", ["x"])
    assert names(choose(state, budgets=[budget("db", 0, {"app": "db"}, ["x"])])) == ("a", ["x"])


def test_a_budget_is_broken_when_nothing_else_helps() -> None:
    pods = [started_pod("x", "a", "2", 0, labels={"app": "db"}), started_pod("z", "b", "2", HIGH)]
    room = choose(state_of(TWO, pods), budgets=[budget("db", 0, {"app": "db"})])
    assert room is not None
    assert [p.name for p in room.violating] == ["x"]


def test_budget_breakers_are_spared_first() -> None:
    """The protected one is the least important, and stays all the same."""
    pods = [started_pod("protected", "a", "2", 0, labels={"app": "db"}), started_pod("other", "a", "2", 9)]
    room = choose(state_of([node("a", cpu="4")], pods), budgets=[budget("db", 0, {"app": "db"})])
    assert names(room) == ("a", ["other"])
    assert room is not None
    assert room.violating == ()


def test_a_node_past_the_bound_is_found_when_all_before_break_a_budget() -> None:
    nodes = [node(f"n{i:02d}", cpu="2") for i in range(12)]
    pods = [started_pod(f"p{i:02d}", f"n{i:02d}", "2", 0 if i < 11 else 9, labels={"app": str(i < 11)}) for i in range(12)]
    room = choose(state_of(nodes, pods), budgets=[budget("x", 0, {"app": "True"})], candidates_max=2)
    assert names(room) == ("n11", ["p11"])


# -- rules between pods --------------------------------------------------------------------------------------------------------


def test_whom_a_rule_wants_gone_goes() -> None:
    """Resources alone would not need anybody to go from `a`; the rule wants `rival` gone, and only that one."""
    pods = [started_pod("rival", "a", "1", 3), started_pod("friend", "a", "1", 1), started_pod("z", "b", "2", 5)]
    state = state_of([node("a", cpu="8"), node("b", cpu="2")], pods)

    def feasible(slot: int, gone: Sequence[PodRecord]) -> bool:
        return slot == 1 or "rival" in {pod.name for pod in gone}

    assert names(choose(state, feasible=feasible)) == ("a", ["rival"])


def test_a_rule_that_nothing_satisfies() -> None:
    state = state_of(TWO, [started_pod("x", "a", "2"), started_pod("z", "b", "2")])
    assert choose(state, feasible=lambda slot, gone: False) is None
    assert names(choose(state, feasible=lambda slot, gone: slot == 1)) == ("b", ["z"])


def test_rules_are_asked_a_bounded_number_of_times() -> None:
    nodes = [node(f"n{i:03d}", cpu="2") for i in range(60)]
    state = state_of(nodes, [started_pod(f"p{i}-{j}", f"n{i:03d}", "1") for i in range(60) for j in range(2)])
    asked: list[int] = []

    def never(slot: int, gone: Sequence[PodRecord]) -> bool:
        asked.append(slot)
        return False

    assert choose(state, feasible=never, candidates_max=5) is None
    assert 0 < len(asked) <= 20


def test_rules_know_that_the_ending_have_gone() -> None:
    pods = [ending(started_pod("x", "a", "1", 5)), started_pod("y", "a", "1", 0)]
    seen: list[set[str]] = []

    def feasible(slot: int, gone: Sequence[PodRecord]) -> bool:
        seen.append({p.name for p in gone})
        return True

    room = choose(state_of([node("a", cpu="2")], pods), feasible=feasible)
    assert seen == [{"x", "y"}]
    assert room is not None
    assert [p.name for p in room.ending] == ["x"]


# -- units of several pods -----------------------------------------------------------------------------------------------------


def gang(state: State, unit: str, *pods: str) -> None:
    for name in pods:
        state.pods[f"uid-default-{name}"].unit = f"PodGroup/default/{unit}"


def test_a_unit_goes_whole() -> None:
    state = state_of(TWO, [started_pod("g1", "a", "2", 1), started_pod("g2", "b", "1", 1), started_pod("s", "b", "1", 1)])
    gang(state, "g", "g1", "g2")
    room = choose(state, whole_units=True)
    assert names(room) == ("a", ["g1", "g2"])
    assert names(choose(state)) == ("a", ["g1"])


def test_a_unit_costs_what_all_its_members_cost() -> None:
    state = state_of(TWO, [started_pod("g1", "a", "2", 0), started_pod("s", "b", "2", 3)])
    state.apply_node(_seen("c"))
    state.flush_nodes()
    state.see_pod(started_pod("g2", "c", "1", 9))
    gang(state, "g", "g1", "g2")
    assert names(choose(state, whole_units=True, nodes=np.array([True, True, False]))) == ("b", ["s"])


def test_a_unit_with_a_member_that_must_stay_stays_whole() -> None:
    state = state_of(TWO, [started_pod("g1", "a", "2", 0), started_pod("g2", "b", "2", HIGH)])
    gang(state, "g", "g1", "g2")
    assert choose(state, whole_units=True) is None


def test_members_on_one_node_go_and_stay_together() -> None:
    pods = [started_pod("g1", "a", "1", 0), started_pod("g2", "a", "1", 0), started_pod("s", "a", "2", 5)]
    state = state_of([node("a", cpu="4")], pods)
    gang(state, "g", "g1", "g2")
    assert names(choose(state, whole_units=True)) == ("a", ["g1", "g2"])


def _seen(name: str) -> Any:
    from muster.engine.events import NodeSeen

    return NodeSeen(node(name, cpu="2"))


# -- against a plain walk --------------------------------------------------------------------------------------------------


def by_hand(state: State, wants: PodRecord, eligible: set[str], budgets: Budgets | None) -> tuple[str, set[str]] | None:
    """Every node, every pod, one after the other, as kube-scheduler has it."""
    best: tuple[Any, str, set[str]] | None = None
    for slot, name in enumerate(state.nodes.names):
        on = list(state.on_node.get(name, {}).values())
        free = state.nodes.free[:, slot] + sum((p.request for p in on if p.is_ending), np.zeros_like(wants.request))
        out = [p for p in on if p.uid in eligible and not p.is_ending]
        out.sort(key=lambda p: (-p.priority, started(p), p.uid))
        free = free + sum((p.request for p in out), np.zeros_like(wants.request))
        if not (free >= wants.shape.need).all():
            continue
        breaking = budgets.violating(out) if budgets else []
        chosen = []
        for candidate in [*breaking, *(p for p in out if p not in breaking)]:
            if (free - candidate.request >= wants.shape.need).all():
                free = free - candidate.request
            else:
                chosen.append(candidate)
        broken = len(budgets.violating(chosen)) if budgets else 0
        top = max((p.priority for p in chosen), default=0)
        key = (
            broken,
            top if chosen else -(2**62),
            sum(p.priority + COST_SHIFT for p in chosen),
            len(chosen),
            -min((started(p) for p in chosen if p.priority == top), default=NOT_STARTED),
            name,
        )
        if best is None or key < best[0]:
            best = (key, name, {p.name for p in chosen})
    return None if best is None else best[1:]


amounts = st.integers(1, 4)
placed_pods = st.lists(
    st.tuples(
        st.integers(0, 3), amounts, st.integers(0, 3), st.sampled_from(["", EARLY, LATE]), st.booleans(), st.sampled_from("xyz")
    ),
    max_size=12,
)


@given(
    placed=placed_pods,
    sizes=st.lists(st.integers(1, 8), min_size=1, max_size=4),
    wants=st.integers(1, 6),
    allowed=st.lists(st.integers(0, 2), max_size=2),
)
def test_same_as_by_hand(placed: list[Any], sizes: list[int], wants: int, allowed: list[int]) -> None:
    state = state_of(node(f"n{i}", cpu=str(size)) for i, size in enumerate(sizes))
    for number, (on, cpu, priority, start, is_ending, label) in enumerate(placed):
        facts = started_pod(f"p{number}", f"n{on % len(sizes)}", str(cpu), priority, start, labels={"app": label})
        state.see_pod(ending(facts) if is_ending and number % 3 == 0 else facts)
    record = state.see_pod(pod("wants", cpu=str(wants), priority=3))
    facts_by_key = {("default", f"b{i}"): budget(f"b{i}", n, {"app": "xy"[i]}) for i, n in enumerate(allowed)}
    budgets = Budgets(facts_by_key) if facts_by_key else None
    room = select(
        state,
        one_shape(record.shape),
        Ask(eligible=state.placed.priority < 3, cost=state.placed.priority, budgets=budgets),
    )
    eligible = {uid for uid, p in state.pods.items() if p.priority < 3}
    expected = by_hand(state, record, eligible, budgets)
    assert (None if room is None else (room.node, {v.name for v in room.victims})) == expected
    if room is not None:
        check_minimal(state, record, room)
        assert all(v.priority < 3 and not v.is_ending for v in room.victims)


def check_minimal(state: State, wants: PodRecord, room: Room) -> None:
    """With all victims gone it fits; with any one of them back it does not."""
    free = state.nodes.free[:, room.slot] + sum((p.request for p in room.ending), np.zeros_like(wants.request))
    everyone = free + sum((p.request for p in room.victims), np.zeros_like(wants.request))
    assert (everyone >= wants.shape.need).all()
    for victim in room.victims:
        assert not (everyone - victim.request >= wants.shape.need).all()


@pytest.mark.parametrize(("portion", "steps"), [(1, 16), (2, 1), (1, 2)])
@given(placed=placed_pods, wants=st.integers(1, 6), allowed=st.none() | st.integers(0, 1))
def test_portions_and_spans_lose_nothing(portion: int, steps: int, placed: list[Any], wants: int, allowed: int | None) -> None:
    """However few nodes are looked at together, and however coarse the bound is, none is found that costs more."""
    state = state_of(node(f"n{i}", cpu="6") for i in range(4))
    for number, (on, cpu, priority, start, is_ending, label) in enumerate(placed):
        facts = started_pod(f"p{number}", f"n{on}", str(cpu), priority, start, labels={"app": label})
        state.see_pod(ending(facts) if is_ending and number % 4 == 0 else facts)
    budgets = [] if allowed is None else [budget("b", allowed, {"app": "x"})]
    whole = choose(state, str(wants), budgets=budgets)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(victims, "PORTION", portion)
        patch.setattr(victims, "STEPS_MAX", steps)
        found = choose(state, str(wants), budgets=budgets)
    assert (None if found is None else found.key[:4]) == (None if whole is None else whole.key[:4])


@given(
    placed=placed_pods,
    wants=st.integers(1, 6),
    rival=st.sampled_from("xyz"),
)
def test_rules_leave_nobody_gone_for_nothing(placed: list[Any], wants: int, rival: str) -> None:
    """A rule that keeps the pod apart from all with a label: they go, whoever is needed beside them goes, nobody else."""
    state = state_of(node(f"n{i}", cpu="8") for i in range(3))
    for number, (on, cpu, priority, start, _, label) in enumerate(placed):
        state.see_pod(started_pod(f"p{number}", f"n{on % 3}", str(cpu), priority, start, labels={"app": label}))

    def feasible(slot: int, gone: Sequence[PodRecord]) -> bool:
        left = state.on_node.get(state.nodes.names[slot], {}).keys() - {p.uid for p in gone}
        free = state.nodes.free[0, slot] + sum(int(p.request[0]) for p in gone)
        return free >= wants * 1000 and not any(state.pods[uid].labels["app"] == rival for uid in left)

    room = choose(state, str(wants), feasible=feasible)
    if room is None:
        assert not any(feasible(slot, list(state.on_node.get(n, {}).values())) for slot, n in enumerate(state.nodes.names))
        return
    assert feasible(room.slot, room.victims)
    for victim in room.victims:
        assert not feasible(room.slot, [other for other in room.victims if other is not victim])


@given(placed=placed_pods, wants=st.integers(1, 6), gangs=st.lists(st.integers(0, 2), min_size=12, max_size=12))
def test_whole_units_are_never_torn(placed: list[Any], wants: int, gangs: list[int]) -> None:
    state = state_of(node(f"n{i}", cpu="5") for i in range(3))
    for number, (on, cpu, priority, start, _, _) in enumerate(placed):
        record = state.see_pod(started_pod(f"p{number}", f"n{on % 3}", str(cpu), HIGH if priority == 3 else priority, start))
        record.unit = f"PodGroup/default/g{gangs[number]}" if gangs[number] else f"Pod/default/p{number}"
    room = choose(state, str(wants), whole_units=True)
    gone = {v.uid for v in room.victims} if room is not None else set()
    units: dict[str, set[str]] = {}
    for record in state.pods.values():
        if record.node:
            units.setdefault(record.unit, set()).add(record.uid)
    evictable = {u for members in units.values() if all(state.pods[m].priority < HIGH for m in members) for u in members}
    assert gone <= evictable
    for members in units.values():
        assert members <= gone or not members & gone
    wanted = wants * 1000
    room_there = {
        n: int(state.nodes.free[0, s]) + sum(int(p.request[0]) for p in state.on_node.get(n, {}).values() if p.uid in evictable)
        for s, n in enumerate(state.nodes.names)
    }
    assert (room is None) == all(amount < wanted for amount in room_there.values())
    if room is not None:
        freed = sum(int(v.request[0]) for v in room.victims if v.node == room.node)
        assert int(state.nodes.free[0, room.slot]) + freed >= wanted


@given(placed=placed_pods, wants=st.integers(1, 6))
def test_the_order_in_which_pods_were_seen_does_not_matter(placed: list[Any], wants: int) -> None:
    pods = [started_pod(f"p{i}", f"n{p[0]}", str(p[1]), p[2], p[3]) for i, p in enumerate(placed)]
    nodes = [node(f"n{i}", cpu="6") for i in range(4)]
    found = [names(choose(state_of(nodes, order), str(wants))) for order in (pods, pods[::-1])]
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("nodes", "percent", "least", "expected"),
    [
        pytest.param(5000, 10, 100, 500, id="a tenth"),
        pytest.param(200, 10, 100, 100, id="at least"),
        pytest.param(20, 10, 100, 20, id="not more than there are"),
        pytest.param(0, 10, 100, 1, id="no nodes"),
    ],
)
def test_candidates(nodes: int, percent: int, least: int, expected: int) -> None:
    assert candidates_for(nodes, percent, least) == expected
