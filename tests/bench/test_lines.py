"""Lines of the report, and which of them a run has."""

from __future__ import annotations

import msgspec
import pytest
from click.testing import CliRunner

from muster.bench.command import bench
from muster.bench.lines import HEADER, SchedulingLine, percentile, row
from muster.bench.scenario import scenario_names
from muster.bench.suite import all_tasks, tasks_of


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        pytest.param([], 0.5, None, id="of nothing"),
        pytest.param([7.0], 0.99, 7.0, id="of one"),
        pytest.param([4.0, 1.0, 3.0, 2.0], 0.5, 2.0, id="median of four"),
        pytest.param([float(i) for i in range(1, 101)], 0.99, 99.0, id="99 of 100"),
    ],
)
def test_percentile(values: list[float], share: float, expected: float | None) -> None:
    assert percentile(values, share) == expected


def test_a_line_has_the_promised_fields_and_a_row() -> None:
    line = SchedulingLine(
        scenario="basic",
        on="kubernetes",
        nodes=10,
        pods=20,
        pods_per_s=600.0,
        decision_p50_us=12.5,
        decision_p99_us=99.0,
        rss_mb=80.0,
        peer_pods_per_s=200.0,
        ratio=3.0,
        unbound=2,
    )
    fields = msgspec.json.decode(msgspec.json.encode(line))
    promised = {"scenario", "on", "nodes", "pods", "pods_per_s", "decision_p50_us", "decision_p99_us", "rss_mb"}
    assert promised | {"peer_pods_per_s", "ratio"} <= set(fields)
    shown = row(line)
    assert len(shown) >= len(HEADER) - len("bound by")
    assert "3.00" in shown
    assert "2 unbound" in shown


def test_all_runs_every_scenario_in_every_place() -> None:
    tasks = list(all_tasks(("engine", "embedded", "kubernetes")))
    assert {(task.scenario, task.on) for task in tasks} == {
        (name, on) for name in scenario_names() for on in ("engine", "embedded", "kubernetes")
    }
    assert {task.nodes for task in tasks if (task.scenario, task.on) == ("basic", "engine")} == {500, 1000, 5000, 20000}
    assert {task.nodes for task in all_tasks(("engine",), nodes=7)} == {7}
    assert [task.pairs for task in tasks_of("basic", ("kubernetes",), pairs=5)] == [5]


def test_list_names_every_scenario_with_its_meaning() -> None:
    shown = CliRunner().invoke(bench, ["list"])
    assert shown.exit_code == 0
    names = [line.split("\t")[0] for line in shown.output.splitlines()]
    assert names == ["api", "jobs", "agent", "history", "queues", "fairness", *scenario_names()]
    assert all(line.split("\t")[1] for line in shown.output.splitlines())


@pytest.mark.parametrize(
    "arguments",
    [["run", "no-such"], ["run", "basic", "--on", "moon"], ["run", "basic", "--nodes", "0"], ["run", "basic", "--pairs", "0"]],
)
def test_bad_arguments_are_refused(arguments: list[str]) -> None:
    assert CliRunner().invoke(bench, arguments).exit_code == 2
