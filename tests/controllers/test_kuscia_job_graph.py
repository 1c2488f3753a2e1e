"""The graph of a job: what is ready, what waits, what is skipped, and what follows from a task."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.controllers.kuscia_jobs import task

from muster.controllers.kuscia_job_graph import Graph, split
from muster.objects.kinds.kuscia_jobs import JobTask
from muster.objects.status import Raw
from muster.objects.view import view_of


def graph(*tasks: Raw) -> Graph:
    return Graph.of([view_of(JobTask, raw) for raw in tasks])


DIAMOND = (task("a"), task("b", "a"), task("c", "a"), task("d", "b", "c"))


@pytest.mark.parametrize(
    ("phases", "ready", "blocked", "skipped"),
    [
        pytest.param({}, ["a"], {"b": "a", "c": "a", "d": "b"}, {}, id="the root first"),
        pytest.param({"a": "Running"}, [], {"b": "a", "c": "a", "d": "b"}, {}, id="under way"),
        pytest.param({"a": "Succeeded"}, ["b", "c"], {"d": "b"}, {}, id="both branches"),
        pytest.param({"a": "Succeeded", "b": "Succeeded", "c": "Running"}, [], {"d": "c"}, {}, id="waits for the other branch"),
        pytest.param(
            {"a": "Succeeded", "b": "Failed", "c": "Running"}, [], {}, {"d": "b"}, id="one failed branch is enough to skip"
        ),
        pytest.param({"a": "Failed"}, [], {}, {"b": "a", "c": "a", "d": "a"}, id="all the way down, by the root"),
        pytest.param({"a": "Succeeded", "b": "Skipped"}, ["b", "c"], {"d": "b"}, {}, id="skipped is not for ever"),
    ],
)
def test_split(phases: dict[str, str], ready: list[str], blocked: dict[str, str], skipped: dict[str, str]) -> None:
    parts = split(graph(*DIAMOND), phases)
    assert (parts.ready, parts.blocked, parts.skipped) == (ready, blocked, skipped)


def test_the_most_urgent_are_first_then_as_listed() -> None:
    tasks = [task("a"), task("b", priority=2), task("c", priority=-1), task("d", priority=2)]
    assert split(graph(*tasks), {}).ready == ["b", "d", "a", "c"]


@pytest.mark.parametrize(
    ("roots", "expected"),
    [
        pytest.param([], "", id="none"),
        pytest.param(["d"], "d", id="a leaf"),
        pytest.param(["b"], "bd", id="a branch"),
        pytest.param(["a"], "abcd", id="all"),
        pytest.param(["b", "c"], "bcd", id="two"),
        pytest.param(["x"], "", id="unknown"),
    ],
)
def test_descendants(roots: list[str], expected: str) -> None:
    assert graph(*DIAMOND).descendants(roots) == set(expected)


def test_a_dependency_named_twice_counts_once() -> None:
    assert split(graph(task("a"), task("b", "a", "a")), {"a": "Succeeded"}).ready == ["b"]


@st.composite
def graphs(draw: st.DrawFn, tasks_max: int = 12) -> list[Raw]:
    """In any order in the spec; a task depends on some that come before it in a hidden order."""
    count = draw(st.integers(1, tasks_max))
    tasks = []
    for n in range(count):
        earlier = [f"t{m}" for m in range(n)]
        dependencies = draw(st.lists(st.sampled_from(earlier), max_size=3)) if earlier else []
        tasks.append(task(f"t{n}", *dependencies, priority=draw(st.integers(-2, 2))))
    return draw(st.permutations(tasks))


PHASES = st.sampled_from(["Waiting", "Pending", "Running", "Succeeded", "Failed", "Skipped"])


@given(tasks=graphs(), data=st.data())
def test_every_task_that_is_not_under_way_is_in_one_part_for_a_reason(tasks: list[Raw], data: st.DataObject) -> None:
    made = graph(*tasks)
    dependencies = {raw["alias"]: raw.get("dependencies", []) for raw in tasks}
    phases = {alias: data.draw(PHASES, label=alias) for alias in dependencies}
    parts = split(made, phases)
    open_ = {alias for alias, phase in phases.items() if phase in ("Waiting", "Skipped")}
    assert sorted([*parts.ready, *parts.blocked, *parts.skipped]) == sorted(open_)
    for alias in parts.ready:
        assert all(phases[d] == "Succeeded" for d in dependencies[alias])
    for alias, waits_for in parts.blocked.items():
        assert waits_for in dependencies[alias]
        assert phases[waits_for] != "Succeeded"
        assert not any(d in parts.skipped or phases[d] == "Failed" for d in dependencies[alias])
    for alias, culprit in parts.skipped.items():
        assert phases[culprit] == "Failed"
        assert alias in made.descendants([culprit])
    places = {number: place for place, number in enumerate(made.order)}
    assert len(places) == len(tasks)
    assert all(places[p] < places[n] for n, parents in enumerate(made.parents) for p in parents)


@given(tasks=graphs(), data=st.data())
def test_descendants_are_closed(tasks: list[Raw], data: st.DataObject) -> None:
    made = graph(*tasks)
    root = data.draw(st.sampled_from([raw["alias"] for raw in tasks]))
    found = made.descendants([root])
    assert root in found
    for raw in tasks:
        depends = any(d in found for d in raw.get("dependencies", []))
        assert (raw["alias"] in found) == (depends or raw["alias"] == root)
