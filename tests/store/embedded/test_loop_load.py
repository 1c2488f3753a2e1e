"""How long work is gathered follows from how busy the loop's thread was, and is looked at no more often than need be."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from muster.store.embedded import loop_load
from muster.store.embedded.committer import GATHER_MAX_S, ThreadCommitter
from muster.store.embedded.loop_load import FULL, LOOK_EVERY_S, SPARE, LoopLoad
from tests.store.embedded.support import open_store


class Clocks:
    """Stands in for `time`: `pass_by` lets time pass, of which the thread worked a part."""

    def __init__(self) -> None:
        self.now_s = self.cpu_s = 100.0

    def pass_by(self, seconds: float, busy: float) -> None:
        self.now_s += seconds
        self.cpu_s += seconds * busy


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    clocks = Clocks()
    told = SimpleNamespace(monotonic=lambda: clocks.now_s, thread_time=lambda: clocks.cpu_s)
    monkeypatch.setattr(loop_load, "time", told)
    return clocks


@pytest.mark.parametrize(
    ("busy", "gather_s"),
    [
        pytest.param(0.0, 2.0, id="idle"),
        pytest.param(SPARE, 2.0, id="time to spare"),
        pytest.param((SPARE + FULL) / 2, 6.0, id="half way"),
        pytest.param(FULL, 10.0, id="busy"),
        pytest.param(1.2, 10.0, id="clocks that disagree"),
    ],
)
def test_the_busier_the_longer(clocks: Clocks, busy: float, gather_s: float) -> None:
    load = LoopLoad()
    clocks.pass_by(2 * LOOK_EVERY_S, busy)
    assert load.stretched(2.0, 10.0) == pytest.approx(gather_s)


async def test_a_store_on_disk_gathers_writes_by_it(clocks: Clocks, tmp_path: Path) -> None:
    store = await open_store(tmp_path / "store")
    committer = store._core.committer
    assert isinstance(committer, ThreadCommitter)
    for busy, gather_s in ((SPARE, 0.0), (FULL, GATHER_MAX_S)):
        clocks.pass_by(2 * LOOK_EVERY_S, busy)
        assert committer._gather_s() == pytest.approx(gather_s)
    await store.close()


def test_a_moment_says_nothing(clocks: Clocks) -> None:
    load = LoopLoad()
    clocks.pass_by(LOOK_EVERY_S / 2, 1.0)
    assert load.busy() == 0.0
    clocks.pass_by(LOOK_EVERY_S, 1.0)
    assert load.busy() == pytest.approx(1.0)
    clocks.pass_by(LOOK_EVERY_S * 4, 0.25)
    assert load.busy() == pytest.approx(0.25)
