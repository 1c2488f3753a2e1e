from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.controllers.task_ports import (
    PORT_MAX,
    PORT_MIN,
    PORTS_COUNT,
    PartyPorts,
    PortLedger,
    PortsExhausted,
    PortWish,
    allocate,
    deployment_annotation,
    deployment_ports,
    fits,
    port_keys,
)
from muster.objects.kinds.kuscia_tasks import PartyAllocatedPorts


def nobody(_domain: str, _number: int) -> bool:
    return False


def party(domain: str, *wishes: int, role: str = "", pod: str = "t-0") -> PartyPorts:
    return PartyPorts(domain, role, tuple(PortWish(pod, f"p{i}", number) for i, number in enumerate(wishes)))


def numbers(allocated: list[PartyAllocatedPorts]) -> list[int]:
    return [number for one in allocated for number in one.named_port.values()]


def test_numbers_are_in_the_range_and_the_same_each_time() -> None:
    first = allocate([party("alice", 0, 0, 0)], "uid", nobody)
    assert first == allocate([party("alice", 0, 0, 0)], "uid", nobody)
    assert len(set(numbers(first))) == 3
    assert all(PORT_MIN <= number <= PORT_MAX for number in numbers(first))
    assert list(first[0].named_port) == ["t-0/p0", "t-0/p1", "t-0/p2"]


def test_tasks_begin_at_different_places() -> None:
    starts = Counter(numbers(allocate([party("alice", 0)], f"uid-{n}", nobody))[0] for n in range(50))
    assert len(starts) > 45


def test_two_roles_of_one_party_share_its_numbers() -> None:
    made = allocate([party("alice", 0, 0, role="a"), party("alice", 0, 0, role="b"), party("bob", 0)], "uid", nobody)
    assert len(set(numbers(made[:2]))) == 4
    assert [(one.domain_id, one.role) for one in made] == [("alice", "a"), ("alice", "b"), ("bob", "")]


@pytest.mark.parametrize(
    ("taken", "wish", "expected"),
    [
        pytest.param(set(), 54_509, 54_509, id="a free wish is granted, outside the range too"),
        pytest.param({54_509}, 54_509, None, id="a taken one gets a number from the range"),
    ],
)
def test_a_number_in_the_template_is_a_wish(taken: set[int], wish: int, expected: int | None) -> None:
    [made] = numbers(allocate([party("alice", wish)], "uid", lambda _d, n: n in taken))
    assert made == expected if expected is not None else PORT_MIN <= made <= PORT_MAX


def test_only_one_replica_gets_the_wish() -> None:
    wishes = (PortWish("t-0", "p", 8080), PortWish("t-1", "p", 8080))
    first, second = numbers(allocate([PartyPorts("alice", "", wishes)], "uid", nobody))
    assert first == 8080
    assert PORT_MIN <= second <= PORT_MAX


def test_too_many_in_use_may_change_too_many_wanted_never() -> None:
    with pytest.raises(PortsExhausted, match=r"party alice has no free port .* for t-0/p0") as caught:
        allocate([party("alice", 0)], "uid", lambda _d, _n: True)
    assert not caught.value.is_final
    with pytest.raises(PortsExhausted, match="use fewer replicas") as caught:
        allocate([party("alice", *([0] * (PORTS_COUNT + 1)))], "uid", nobody)
    assert caught.value.is_final


def test_the_last_free_number_is_found() -> None:
    [found] = numbers(allocate([party("alice", 0)], "uid", lambda _d, n: n != 25_000))
    assert found == 25_000


@pytest.mark.parametrize(
    ("wanted", "is_right"),
    [
        pytest.param([party("alice", 0, 0)], True, id="the same"),
        pytest.param([party("alice", 0)], False, id="one port less"),
        pytest.param([party("alice", 0, 0), party("bob", 0)], False, id="one party more"),
        pytest.param([party("alice", 0, 0), party("bob")], True, id="a party without ports"),
        pytest.param([party("alice", 0, 0, role="host")], False, id="another role"),
    ],
)
def test_fits(wanted: list[PartyPorts], is_right: bool) -> None:
    assert fits(allocate([party("alice", 0, 0)], "uid", nobody), wanted) is is_right


def test_ports_of_a_deployment_are_read_back() -> None:
    made = allocate([party("alice", 0, role="host")], "uid", nobody)
    raw = {"metadata": {"annotations": {"kuscia.secretflow/allocated-ports": deployment_annotation(made)}}}
    assert deployment_ports(raw) == made


@pytest.mark.parametrize("text", ["", "{", "[1]", '[{"domainID": 5}]', "null", "[" * 9_000])
def test_an_annotation_that_is_wrong_has_no_ports(text: str) -> None:
    assert deployment_ports({"metadata": {"annotations": {"kuscia.secretflow/allocated-ports": text}}}) == []


def test_the_ledger_keeps_what_the_cache_does_not_show() -> None:
    ledger = PortLedger()
    made = allocate([party("alice", 8080)], "a", nobody)
    ledger.give("a", made)
    assert ledger.is_taken("alice", 8080, "b")
    assert not ledger.is_taken("alice", 8080, "a")
    assert not ledger.is_taken("bob", 8080, "b")
    ledger.drop("a")
    assert not ledger.is_taken("alice", 8080, "b")
    assert len(ledger) == 0


OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["start", "start", "seen", "end"]), st.integers(0, 9), st.sampled_from(["alice", "bob"])),
    max_size=60,
)


@given(OPERATIONS, st.integers(1, 4))
def test_tasks_never_share_a_number(operations: list[tuple[str, int, str]], size: int) -> None:
    """Tasks that start while the cache lags behind, in any order: what the cache shows and the ledger are enough."""
    ledger = PortLedger()
    live: dict[str, list[PartyAllocatedPorts]] = {}
    cache: dict[str, list[PartyAllocatedPorts]] = {}
    for what, index, domain in operations:
        uid = f"task-{index}"
        if what == "start" and uid not in live:

            def is_taken(where: str, number: int, uid: str = uid) -> bool:
                known = {key for other, made in cache.items() if other != uid for key in port_keys(made)}
                return f"{where}/{number}" in known or ledger.is_taken(where, number, uid)

            # All begin at one place, so that they would meet if anything were forgotten.
            live[uid] = allocate([party(domain, *([0] * size))], "same", is_taken)
            ledger.give(uid, live[uid])
        elif what == "seen" and uid in live:
            cache[uid] = live[uid]
            ledger.drop(uid)
        elif what == "end" and uid in live and uid in cache:
            del live[uid], cache[uid]
        taken = Counter(key for made in live.values() for key in port_keys(made))
        assert not [key for key, count in taken.items() if count > 1]
