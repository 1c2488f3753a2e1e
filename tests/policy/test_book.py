"""The books agree with the pods: what rows, limits and faded use say is what the placed pods hold, whatever came before."""

from __future__ import annotations

from collections import Counter

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.engine import events as ev
from muster.engine.columns import Array
from muster.policy.book import Book
from tests.counts import examples
from tests.policy.building import GPU, World, pod_of, queue_facts, user_facts
from tests.policy.test_properties import history, play


def held(book: Book) -> dict[str, Array]:
    """By unit: what its placed pods hold, straight from the engine."""
    found: dict[str, Array] = {}
    for pod in book.state.pods.values():
        if pod.index >= 0 and pod.is_ours:
            total = found.setdefault(pod.unit, np.zeros(len(book.table.used), np.int64))
            total[: len(pod.request)] += pod.request
    return found


@given(st.integers(0, 2**32), st.integers(1, 60))
@settings(max_examples=examples(20), deadline=None)
def test_all_books_are_sums_over_the_placed_pods(seed: int, length: int) -> None:
    mode, acts = history(seed)
    book = play(mode, acts[:length], checked=False)[0].order.book
    book.settle()
    table, holding = book.table, held(book)
    rows = {unit: table.row_of[unit] for unit in holding}
    assert {table.ids[row] for row in np.flatnonzero(table.is_running)} == set(holding)
    for unit, amounts in holding.items():
        assert table.used[:, rows[unit]].tolist() == amounts.tolist()
    gpu = book.state.table.rows[GPU]
    for kind, name_of in (("User", lambda row: table.works[row].user), ("Queue", table.queue_name)):
        gpus: Counter[str] = Counter()
        jobs: Counter[str] = Counter()
        rates: Counter[str] = Counter()
        for unit, row in rows.items():
            gpus[name_of(row)] += int(holding[unit][gpu])
            jobs[name_of(row)] += 1
            rates[name_of(row)] += table.used_dominant[row]
        for name in {"ann", "bob"} if kind == "User" else {"q", "r"}:
            use = book.limits.quota.running("User" if kind == "User" else "Queue", name)
            assert (use.amounts.get(GPU, 0), use.jobs) == (gpus[name], jobs[name])
        fading = book.people.follow(3_600.0, book.state.now)[kind.lower()]
        assert fading.rates() == pytest.approx({name: rate for name, rate in rates.items() if name and rate})


@given(st.integers(0, 2**32), st.integers(1, 60))
@settings(max_examples=examples(20), deadline=None)
def test_a_unit_has_a_row_while_it_waits_or_holds_anything(seed: int, length: int) -> None:
    mode, acts = history(seed)
    world = play(mode, acts[:length], checked=False)[0]
    book, table = world.order.book, world.order.book.table
    book.settle()
    waiting = set(world.engine.waiting.units)
    assert set(table.row_of) == waiting | set(held(book))
    assert {table.ids[row] for row in np.flatnonzero(table.is_waiting)} == waiting
    line = book.line.rows.tolist()
    assert {table.ids[row] for row in line} == waiting, "all of them are in a queue"
    assert line == sorted(line, key=lambda row: (table.submitted[row], table.ids[row]))
    assert set(book.pieces) == {int(table.kind[row]) for row in table.row_of.values()}, "no kind is kept that nobody is of"


def test_units_that_are_alike_are_of_one_kind() -> None:
    world = World(1, 1)
    world.step(ev.QueueSeen(queue_facts("r", policy="p")))
    for name, gpus, queue in (("a", 1, "q"), ("b", 2, "q"), ("c", 2, "q"), ("d", 2, "r"), ("e", 4, "q")):
        world.submit(name, gpus, queue=queue)
    table = world.order.book.table
    kinds = {name: int(table.kind[table.row_of[f"Pod/default/{name}"]]) for name in "abcde"}
    assert kinds["b"] == kinds["c"]
    assert len(set(kinds.values())) == 4


def test_what_is_read_again_leaves_no_kind_behind() -> None:
    world = World(1, 1)
    world.submit("a", 2)
    work = world.works["a"][0]
    world.step(ev.PodSeen(pod_of("a", msgspec.structs.replace(work, level=3), 2)))
    assert len(world.order.book.pieces) == 1
    world.end("a")
    assert world.order.book.pieces == {}


def test_limits_count_only_while_there_are_any() -> None:
    world = World(1, 8)
    told: list[tuple[ev.AnyEvent, bool]] = [
        (ev.UserSeen(user_facts("ann", limits={"concurrent": {GPU: 1}})), True),
        (ev.UserSeen(user_facts("ann")), False),
        (ev.UserSeen(user_facts("ann", suspended=True)), True),
        (ev.UserGone("ann"), False),
    ]
    found = []
    for event, _ in told:
        world.step(event)
        found.append(world.order.book.limits.is_any)
    assert found == [expected for _, expected in told]
