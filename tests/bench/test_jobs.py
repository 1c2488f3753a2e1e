"""The benchmark of jobs: what it runs succeeds, and the work that it counts for a task does not grow with other jobs."""

from __future__ import annotations

import pytest

from muster.bench.jobs import manifests, measure


@pytest.mark.slow
def test_work_for_a_task_does_not_grow_with_other_jobs() -> None:
    """Keys and writes are counted, not seconds: they are the same on every machine."""
    few, many = (measure("many", jobs, 2, seed=1, say=lambda _text: None) for jobs in (3, 30))
    assert (few.succeeded, many.succeeded) == (3, 30)
    assert many.writes_per_task <= few.writes_per_task * 1.1
    for name in ("kuscia-job", "kuscia-task", "task-reservation"):
        assert many.reconciles_per_task[name] <= few.reconciles_per_task[name] * 1.2, name


def test_a_graph_is_in_layers() -> None:
    [job] = manifests("graph", 1, 250)
    tasks = job["spec"]["tasks"]
    assert len(tasks) == 250
    assert [tasks[n].get("dependencies") for n in (0, 99, 100, 249)] == [None, None, ["t0"], ["t100"]]
