"""Simulations side by side: outcomes in order, failures as they are, and no process that is left behind."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import threading
from pathlib import Path

import pytest

from muster.cli import side_by_side as module
from muster.cli import simulating
from muster.cli.errors import CliError, ExitCode
from muster.cli.main import run
from muster.cli.side_by_side import Say, at_once, side_by_side
from tests.sim.trace_building import CLUSTER, small_trace, write_trace


def _nothing(name: str, done: int, total: int) -> None: ...


def _forever(say: Say) -> int:
    threading.Event().wait()
    return 0


def test_each_has_a_process_and_outcomes_come_in_order() -> None:
    found = side_by_side([(str(n), lambda say, n=n: (n, os.getpid())) for n in range(5)], 2, _nothing)  # type: ignore[misc]
    assert [n for n, _ in found] == [0, 1, 2, 3, 4]
    assert len({pid for _, pid in found} | {os.getpid()}) == 6


def test_how_far_they_are_is_said_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SENDS_EVERY_S", 0.0)
    said: list[tuple[str, int, int]] = []

    def work(say: Say) -> int:
        say(1, 2)
        say(2, 2)
        return 0

    side_by_side([("a", work), ("b", work)], 2, lambda *far: said.append(far))
    assert [far for far in said if far[0] == "a"] == [("a", 1, 2), ("a", 2, 2)]
    assert [far for far in said if far[0] == "b"] == [("b", 1, 2), ("b", 2, 2)]


def _refuses(say: Say) -> int:
    raise CliError("the trace is empty", ExitCode.NOT_FOUND)


def _breaks(say: Say) -> int:
    raise ZeroDivisionError("nobody foresaw it")


def _dies(say: Say) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


@pytest.mark.parametrize(
    ("fails", "error", "says"),
    [
        pytest.param(_refuses, CliError, "the trace is empty", id="an error that is fit for the user"),
        pytest.param(_breaks, ZeroDivisionError, "nobody foresaw it", id="one that is not"),
        pytest.param(_dies, CliError, "second: its process ended by itself", id="a process that is killed"),
    ],
)
def test_what_goes_wrong_in_one_ends_all(fails: module.Work[int], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says) as caught:
        side_by_side([("first", _forever), ("second", fails)], 2, _nothing)
    if fails is _refuses:
        assert isinstance(caught.value, CliError)
        assert caught.value.code is ExitCode.NOT_FOUND
    assert not multiprocessing.active_children()


def test_one_core_or_a_second_thread_makes_it_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    assert (at_once(1), at_once(3), at_once(100)) == (1, 3, module.AT_ONCE_MAX)
    monkeypatch.setattr(threading, "active_count", lambda: 2)
    assert at_once(3) == 1
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    assert at_once(3) == 1


def test_figures_are_the_same_side_by_side(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = write_trace(tmp_path / "trace.csv", small_trace(15))
    command = ["simulate", "--trace", str(trace), "--cluster", CLUSTER, "--json"]
    command += [word for policy in ("fifo", "sjf", "balanced") for word in ("--policy", policy)]
    monkeypatch.setattr(simulating, "LINE_EVERY_S", 0.0)

    def figures(count: int) -> list[dict[str, object]]:
        monkeypatch.setattr(module, "at_once", lambda _: count)
        assert run(command) == 0
        lines = [json.loads(text) for text in capfd.readouterr().out.splitlines()]
        assert all(line.pop("wall_s") > 0 for line in lines)
        return lines

    alone, beside = figures(1), figures(2)
    assert [line["policy"] for line in beside] == ["fifo", "sjf", "balanced"]
    assert alone == beside
