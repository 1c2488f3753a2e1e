"""`muster bench run queues` at a small scale: everything is admitted, and the line can be read."""

from __future__ import annotations

import pytest

from muster.bench import queues, queues_process


@pytest.mark.parametrize("policy", ["balanced", "priority"])
def test_everything_is_admitted(policy: str) -> None:
    line = queues_process.run(7, 20, 2, policy)
    assert (line.queues, line.workloads, line.nodes, line.policy) == (7, 140, 2, policy)
    # There is room for a few at once only, so the rest waits until others end.
    assert line.steps > 2
    assert line.per_s == line.workloads / line.cpu_s


def test_a_line() -> None:
    said: list[str] = []
    line = queues.measure(3, 10, nodes=1, say=said.append)
    assert (line.queues, line.workloads, line.nodes) == (3, 30, 1)
    assert said
