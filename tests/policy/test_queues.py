"""The tree of queues, and how lines become one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.engine import events as ev
from muster.policy.queues import DEPTH_MAX, QueueTree, common
from muster.policy.table import Names
from tests.policy.building import World, queue_facts


def tree_of(**parents: str) -> QueueTree:
    tree = QueueTree()
    for name, parent in parents.items():
        tree.put(queue_facts(name, parent=parent))
    return tree


@pytest.mark.parametrize(
    ("parents", "chain"),
    [
        pytest.param({"a": ""}, ("a",), id="a top queue"),
        pytest.param({"a": "b", "b": "c", "c": ""}, ("a", "b", "c"), id="a chain"),
        pytest.param({"a": "gone"}, ("a",), id="a parent that is not there"),
        pytest.param({"a": "a"}, ("a",), id="its own parent"),
        pytest.param({"a": "b", "b": "a"}, ("a",), id="on a circle"),
        pytest.param({"a": "b", "b": "c", "c": "b"}, ("a", "b"), id="below a circle"),
    ],
)
def test_chains(parents: dict[str, str], chain: tuple[str, ...]) -> None:
    assert tree_of(**parents).chain("a") == chain


def test_what_is_inherited() -> None:
    tree = tree_of(a="b", b="")
    assert tree.pools("a") == ()
    tree.put(queue_facts("b", state="Stopped", pools=["gpu"]))
    assert tree.stopped_by("a") == "b"
    assert tree.pools("a") == ("gpu",)
    assert tree.key("a") == ("b", ("gpu",))
    assert tree.key("missing") == ("missing", ())
    tree.put(queue_facts("z", isDefault=True))
    tree.put(queue_facts("y", isDefault=True))
    assert tree.default == "y"


def test_common() -> None:
    assert common(("a", "p", "top"), ("b", "q", "top")) == ("p", "q")
    assert common(("a", "top"), ("top",)) == ("a", "")
    assert common(("a",), ("b",)) == ("a", "b")


def merged(tree: QueueTree, queues: list[str], sizes: list[float], running: dict[str, float] | None = None) -> list[str]:
    """The queues of the units in the order of the one line; units of a queue are in order already."""
    names = Names()
    for name in sorted({*queues, *(running or {})}):
        names.take(name)
    layout = tree.layout(names)
    using = np.array([names.find(name) for name in running or {}], np.int64)
    uses = layout.uses(using, np.array(list((running or {}).values())))
    queue = np.array([names.find(name) for name in queues], np.int64)
    line = layout.merge(queue, np.array(sizes), np.arange(len(queues)), uses)
    return [queues[place] for place in line.tolist()]


def test_equal_queues_take_turns() -> None:
    tree = tree_of(a="", b="")
    assert merged(tree, ["a", "a", "a", "b", "b", "b"], [0.1] * 6) == ["a", "b", "a", "b", "a", "b"]


def test_weight_counts() -> None:
    tree = tree_of(b="")
    tree.put(queue_facts("a", weight=2))
    line = merged(tree, ["a"] * 6 + ["b"] * 3, [0.1] * 9)
    assert line.count("a") == 6
    assert [line[:3].count("a"), line[:6].count("a")] == [2, 4]


def test_what_runs_counts() -> None:
    tree = tree_of(a="", b="")
    assert merged(tree, ["a", "b", "b", "b"], [0.1] * 4, {"a": 0.2})[:2] == ["b", "b"]


def test_a_higher_level_goes_first() -> None:
    tree = tree_of(a="")
    tree.put(queue_facts("b", level=1))
    assert merged(tree, ["a", "b", "b"], [0.1] * 3, {"b": 0.9}) == ["b", "b", "a"]


def test_levels_of_the_tree() -> None:
    """Two top queues share evenly, whatever the number of queues below them."""
    tree = tree_of(p="", q="", a="p", b="p", c="q")
    line = merged(tree, ["a", "a", "b", "b", "c", "c", "c", "c"], [0.1] * 8)
    assert [line[:4].count("c"), line.count("c")] == [2, 4]
    assert line[:4].count("a") == 1


def test_work_of_an_inner_queue_counts_as_one_more_below_it() -> None:
    tree = tree_of(p="", a="p")
    assert merged(tree, ["p", "p", "a", "a"], [0.1] * 4) == ["p", "a", "p", "a"]


@given(
    st.lists(st.tuples(st.sampled_from(("a", "b", "c", "d", "lost")), st.floats(0, 1)), max_size=40),
    st.dictionaries(st.sampled_from(("a", "b", "c", "d")), st.sampled_from(("", "a", "b", "c", "d")), min_size=1),
)
@settings(max_examples=150, deadline=None)
def test_everybody_is_in_line_once_and_queues_keep_their_order(units: list[tuple[str, float]], parents: dict[str, str]) -> None:
    tree = tree_of(**parents)
    names = Names()
    for name in ("a", "b", "c", "d", "lost"):
        names.take(name)
    layout = tree.layout(names)
    queue = np.array([names.find(name) for name, _ in units], np.int64)
    uses = layout.uses(np.zeros(0, np.int64), np.zeros(0))
    line = layout.merge(queue, np.array([size for _, size in units]), np.arange(len(units)), uses).tolist()
    assert sorted(line) == list(range(len(units)))
    for number in set(queue.tolist()):
        mine = [place for place in line if queue[place] == number]
        assert mine == sorted(mine)


def test_a_weight_takes_effect_at_once() -> None:
    world = World(1, 1)
    world.step(ev.QueueSeen(queue_facts("r", policy="p")))
    world.submit("busy", 1, seconds=10)
    for number in range(4):
        world.submit(f"q{number}", 1, at=1.0)
        world.submit(f"r{number}", 1, at=1.0, queue="r")
    first = [world.order.book.table.place[world.order.book.table.row_of[f"Pod/default/r{n}"]] for n in range(4)]
    world.step(ev.QueueSeen(queue_facts("r", policy="p", weight=100)))
    after = [world.order.book.table.place[world.order.book.table.row_of[f"Pod/default/r{n}"]] for n in range(4)]
    assert sum(after) < sum(first)


# -- depth -------------------------------------------------------------------------------------------------------------------


def test_a_tree_that_is_too_deep_is_cut_and_stays_in_the_line() -> None:
    """Whatever the depth: chains are bounded, and each queue finds those between it and the cut above it."""
    tree = QueueTree()
    count = 3 * DEPTH_MAX + 5
    for n in range(count):
        tree.put(queue_facts(f"q{n}", parent=f"q{n - 1}" if n else ""))
    lengths = [len(tree.chain(f"q{n}")) for n in range(count)]
    assert lengths == [n % DEPTH_MAX + 1 for n in range(count)]
    names = Names()
    for n in range(count):
        names.take(f"q{n}")
    assert tree.layout(names).depth == DEPTH_MAX
    assert tree.key(f"q{count - 1}")[0] == f"q{3 * DEPTH_MAX}"
    tree.put(queue_facts("q0", state="Stopped", pools=["gpu"]))
    assert tree.stopped_by(f"q{count - 1}") == "q0", "what is stopped above a cut is stopped below it"
    assert tree.pools(f"q{count - 1}") == ("gpu",)


@given(st.lists(st.integers(-1, 9), min_size=1, max_size=10))
def test_any_parents_make_a_forest(parents: list[int]) -> None:
    """Chains agree with each other, and end, whatever the parents are: missing, themselves, in circles."""
    tree = QueueTree()
    for n, parent in enumerate(parents):
        tree.put(queue_facts(f"q{n}", parent=f"q{parent}" if parent >= 0 else ""))
    for n in range(len(parents)):
        chain = tree.chain(f"q{n}")
        assert chain[0] == f"q{n}"
        assert len(set(chain)) == len(chain)
        assert all(tree.chain(each) == chain[at:] for at, each in enumerate(chain))
        assert tree.stopped_by(f"q{n}") == ""


def test_a_line_is_told_as_each_of_its_places_is() -> None:
    """Worked out for all at once, and the same as one by one."""
    factors = [{"name": "level", "source": "JobLevel"}, {"name": "left", "source": "RemainingSeconds", "default": 100.0}]
    world = World(gpus=1, factors=factors, formula="level / max(left, 1)")
    for n in range(12):
        world.submit(f"j{n}", 1, seconds=10.0 * n or None, level=n % 5, at=float(n))
    told = world.order.places("q", world.now, 100)
    alone = [world.order.place_of(place.unit, world.now, with_start=False) for place in told]
    assert [place.position for place in told] == list(range(1, 12))
    assert told == alone
    assert told[0].factors[0].contribution != 0
    assert world.order.places("q", world.now, 0) == []
