"""`muster bench run history` at a small scale: a real run of both sides, and a line that can be read."""

from __future__ import annotations

from muster.bench import history


def test_a_line() -> None:
    said: list[str] = []
    line = history.measure("basic", nodes=20, pods=200, pairs=1, seed=1, say=said.append)
    assert (line.scenario, line.nodes, line.pods) == ("basic", 20, 200)
    assert len(line.pairs) == 1
    assert line.ratio == line.pairs[0][0] / line.pairs[0][1]
    assert line.bytes_per_pod > 0
    assert line.checkpoint_bytes > 0
    assert said
