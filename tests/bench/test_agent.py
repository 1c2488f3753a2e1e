"""The benchmark of a node: it measures what it says, and leaves nothing behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from muster.bench.agent import What, measure

CGROUPS = Path("/sys/fs/cgroup")


def left() -> list[Path]:
    return [
        *CGROUPS.glob("*/muster-*"),
        *CGROUPS.glob("muster-*"),
        *CGROUPS.glob("*/bench-*"),
        *CGROUPS.glob("bench-*"),
        *Path("/var/tmp").glob("muster-bench-*"),
    ]


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: namespaces, cgroups, other users")
@pytest.mark.parametrize("what", ["process+network", "pods"])
def test_a_small_run(what: What) -> None:
    before = set(left())
    line = measure(what, scale=0.05, say=lambda _text: None)
    assert line.what == what
    assert line.tasks_per_s > 0
    assert line.ours_ms > (line.bare_ms or 0)
    assert (line.cpu_ms is None) == (line.bare_cpu_ms is None)
    mine = {path for path in set(left()) - before if "bench-" in path.name}
    assert not mine
