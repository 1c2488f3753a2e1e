"""`muster bench run queues` at a small scale: everything is admitted, in both places, and the line can be read."""

from __future__ import annotations

import msgspec
import pytest
from click.testing import CliRunner

from muster.bench import command, queues, queues_process
from muster.bench.queues_embedded_process import QueuesEmbeddedLine
from muster.bench.queues_workload import CLASSES, class_of, job_manifest, queue_manifests
from tests.bench.admitted import objections


@pytest.mark.parametrize("policy", ["balanced", "priority"])
def test_everything_is_admitted(policy: str) -> None:
    line = queues_process.run(7, 20, 2, policy)
    assert (line.queues, line.workloads, line.nodes, line.policy) == (7, 140, 2, policy)
    # There is room for a few at once only, so the rest waits until others end.
    assert line.steps > 2
    assert line.per_s == line.workloads / line.cpu_s
    assert 0 < line.order_len <= line.workloads
    assert line.order_ms > 0


def test_a_line() -> None:
    said: list[str] = []
    line = queues.measure(3, 10, nodes=1, say=said.append)
    assert (line.queues, line.workloads, line.nodes) == (3, 30, 1)
    assert said


@pytest.mark.slow
def test_from_the_creation_of_jobs_to_their_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written for a job is counted, so that a controller which writes more than it has to is noticed."""
    monkeypatch.setattr(queues, "SIZES", ((4, 20),))
    ran = CliRunner().invoke(command.bench, ["run", "queues", "--on", "embedded", "--nodes", "3", "--json"])
    assert ran.exit_code == 0, ran.output
    line = msgspec.json.decode(ran.stdout.splitlines()[-1], type=QueuesEmbeddedLine)
    assert (line.on, line.queues, line.workloads, line.succeeded, line.evicted) == ("embedded", 4, 80, 80, 0)
    assert set(line.to_admission_s) == {each.name for each in CLASSES}
    assert line.writes["jobs.muster.dev added"] == line.writes["pods added"] == 1
    # Queued, placed, up, ended, and what the first tell about their place.
    assert line.writes["jobs.muster.dev modified"] <= 6
    # Bound, up, ended, accounted, and for those that had to wait: why.
    assert line.writes["pods modified"] <= 6
    assert sum(line.parts.values()) == pytest.approx(1, abs=0.05)


def test_what_is_put_into_queues_is_accepted() -> None:
    made = queue_manifests(7, 2, "balanced")
    names = [raw["metadata"]["name"] for raw in made]
    parents = [raw["spec"].get("parent") for raw in made]
    assert all(parent is None or names.index(parent) < at for at, parent in enumerate(parents)), "parents come first"
    manifests = [*made, *(job_manifest(0, number) for number in range(10))]
    assert [text for raw in manifests for text in objections(raw)] == []


def test_shares_of_the_classes() -> None:
    for made in ([class_of(3, number) for number in range(100)], [class_of(queue, 0) for queue in range(100)]):
        assert [sum(one is each for one in made) for each in CLASSES] == [10 * each.share for each in CLASSES]
