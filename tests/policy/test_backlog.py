"""Backlogs: what was there before a unit came, kept over its attempts and over checkpoints."""

from __future__ import annotations

import math

import numpy as np
import pytest

from muster.engine.work import Work
from muster.policy import backlog as module
from muster.policy.backlog import Backlog
from muster.policy.table import Row, Table


def table() -> Table:
    made = Table(1)
    made.use_total(np.array([100]))
    return made


def join(made: Table, backlog: Backlog, name: str, now: float, *, run_s: float | None, size: int = 10, job: str = "") -> float:
    """The backlog of a unit that asks for `size` of 100. All are submitted at 0."""
    row = made.put(name, Work(submitted=0.0, estimate_s=run_s, job=job), Row(request=np.array([size])))
    made.is_waiting[row] = True
    backlog.joined(row, now)
    return float(made.backlog_s[row])


def start(made: Table, name: str, now: float) -> None:
    row = made.row_of[name]
    made.is_waiting[row], made.is_running[row], made.started[row] = False, True, now


def test_it_is_what_was_there_before() -> None:
    made = table()
    backlog = Backlog(made)
    assert join(made, backlog, "a", 0.0, run_s=100.0) == 0
    assert join(made, backlog, "b", 0.0, run_s=50.0, size=40) == 10  # at the same instant
    start(made, "a", 0.0)
    assert join(made, backlog, "c", 60.0, run_s=None) == pytest.approx(0.1 * 40 + 0.4 * 50)
    assert join(made, backlog, "d", 60.0, run_s=None) == pytest.approx(0.1 * 40 + 0.4 * 50)  # c says nothing


def test_it_stays_what_it_was() -> None:
    made = table()
    backlog = Backlog(made)
    join(made, backlog, "a", 0.0, run_s=100.0)
    first = join(made, backlog, "b", 0.0, run_s=100.0, job="Job/ns/b")
    join(made, backlog, "c", 0.0, run_s=1e6)
    made.drop("b")
    assert join(made, backlog, "b again", 50.0, run_s=100.0, job="Job/ns/b") == first


def test_a_namesake_that_comes_later_has_its_own() -> None:
    made = table()
    backlog = Backlog(made)
    join(made, backlog, "a", 0.0, run_s=100.0)
    assert join(made, backlog, "b", 0.0, run_s=100.0, job="Job/ns/b") == 10
    made.drop("b")
    backlog.settle()
    row = made.put("b", Work(submitted=9.0, estimate_s=1.0, job="Job/ns/b"), Row(request=np.array([10])))
    made.drop("a")
    made.is_waiting[row] = True
    backlog.joined(row, 9.0)
    assert made.backlog_s[row] == 0


def test_who_went_does_not_count_once_settled() -> None:
    made = table()
    backlog = Backlog(made)
    join(made, backlog, "a", 0.0, run_s=100.0)
    join(made, backlog, "b", 0.0, run_s=100.0)
    made.drop("a")
    backlog.settle()
    assert join(made, backlog, "c", 0.0, run_s=1.0) == 10


def test_the_longest() -> None:
    made = table()
    backlog = Backlog(made)
    assert math.isnan(backlog.longest_s())
    join(made, backlog, "unknown", 0.0, run_s=None)
    assert math.isnan(backlog.longest_s())
    join(made, backlog, "a", 0.0, run_s=1_000.0)
    join(made, backlog, "b", 0.0, run_s=950.0)
    assert backlog.longest_s() == 100 + 950
    made.drop("b")
    assert backlog.longest_s() == 1_000


def test_a_checkpoint_carries_it() -> None:
    made = table()
    backlog = Backlog(made)
    join(made, backlog, "a", 0.0, run_s=1_000.0)
    join(made, backlog, "b", 0.0, run_s=500.0)
    kept = backlog.kept()
    other = table()
    restored = Backlog(other)
    for name in ("b", "a", "new"):  # in whatever order the objects come
        join(other, restored, name, 700.0, run_s=1_000.0)
    restored.restore(kept)
    assert {name: float(other.backlog_s[other.row_of[name]]) for name in ("a", "b")} == {"a": 0.0, "b": 100.0}
    assert list(kept.values()) == [0.0, 100.0]
    assert other.backlog_s[other.row_of["new"]] == 200


def test_it_forgets_the_first_of_very_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "JOBS_MAX", 3)
    made = table()
    backlog = Backlog(made)
    for name in "abcde":
        join(made, backlog, name, 0.0, run_s=100.0)
    assert [key[0] for key in backlog.kept()] == ["c", "d", "e"]
