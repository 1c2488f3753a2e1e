"""Batches: everything in order, nothing before it is on disk, and a failure takes all that waited with it."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from muster.store.embedded import committer as committing
from muster.store.embedded.committer import GATHER_MAX_S, InlineCommitter, ThreadCommitter
from muster.store.embedded.database import CommitFailed, Database, Row


class OneRow:
    def __init__(self, rv: int) -> None:
        self.rows = [Row(rv, "pods", "default", f"p{rv}", 1, None, b"{}")]

    @property
    def rv(self) -> int:
        return self.rows[0].rv


class Heard:
    """What a committer reports."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.failed: list[int] = []
        self.changed = asyncio.Event()

    @property
    def done(self) -> list[int]:
        return [rv for batch in self.batches for rv in batch]

    def on_done(self, units: Sequence[OneRow]) -> None:
        self.batches.append([unit.rv for unit in units])
        self.changed.set()

    def on_failed(self, units: Sequence[OneRow], failure: CommitFailed) -> None:
        self.failed += [unit.rv for unit in units]
        self.changed.set()

    async def until(self, count: int) -> None:
        while len(self.done) + len(self.failed) < count:
            self.changed.clear()
            await self.changed.wait()


class GatedDatabase(Database):
    """Its commits wait until the test lets them go on, and fail when it says so."""

    gate: threading.Event
    fails = False

    def commit(self, rows: Sequence[Row]) -> None:
        self.gate.wait(30)
        if self.fails:
            raise CommitFailed("no room left", full=True)
        super().commit(rows)


def gated(path: Path) -> GatedDatabase:
    database = GatedDatabase.open(path, identity=b"0123456789abcdef")
    assert isinstance(database, GatedDatabase)
    database.gate = threading.Event()
    return database


def threaded(
    database: Database, heard: Heard, batch_len_max: int = 100, gather_s: float = GATHER_MAX_S
) -> ThreadCommitter[OneRow]:
    return ThreadCommitter(
        database,
        heard.on_done,
        heard.on_failed,
        batch_len_max=batch_len_max,
        compact_len_max=100,
        gather_s=lambda: gather_s,
    )


async def test_what_gathers_during_a_commit_goes_together(tmp_path: Path) -> None:
    database, heard = gated(tmp_path), Heard()
    committer = threaded(database, heard)
    committer.submit(OneRow(2))
    await asyncio.sleep(0)  # the first is with the thread now
    for rv in range(3, 13):
        committer.submit(OneRow(rv))
    assert heard.batches == []
    database.gate.set()
    await heard.until(11)
    assert heard.batches == [[2], list(range(3, 13))]
    await committer.close()


async def test_who_writes_alone_never_waits_for_company(tmp_path: Path) -> None:
    database, heard = gated(tmp_path), Heard()
    database.gate.set()
    committer = threaded(database, heard, gather_s=3600.0)
    for rv in range(2, 6):
        committer.submit(OneRow(rv))
        await heard.until(rv - 1)
    assert heard.batches == [[2], [3], [4], [5]]
    await committer.close()


async def test_while_several_write_a_batch_gathers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database, heard = gated(tmp_path), Heard()
    database.gate.set()
    committer = threaded(database, heard, gather_s=0.5)
    timers: list[tuple[float, Callable[[], None]]] = []
    monkeypatch.setattr(committer._loop, "call_at", lambda when, callback: timers.append((when, callback)))
    committer.submit(OneRow(2))
    committer.submit(OneRow(3))
    await heard.until(2)
    [(when, begin)] = timers
    assert when == committer._started + 0.5
    for rv in range(4, 8):  # each in a turn of its own, any of which would do for a batch
        committer.submit(OneRow(rv))
        await asyncio.sleep(0)
    closing = asyncio.create_task(committer.close())  # which waits for those that gather
    await asyncio.sleep(0)
    begin()  # it is time
    await heard.until(6)
    assert heard.batches == [[2, 3], [4, 5, 6, 7]]
    assert not closing.done()
    timers[-1][1]()
    await closing


@pytest.mark.parametrize(
    ("flush_s", "gather_s", "together", "is_done"),
    [
        pytest.param(0.0, GATHER_MAX_S, 2, True, id="several on a quick disk"),
        pytest.param(0.0, GATHER_MAX_S, 1, False, id="one alone"),
        pytest.param(GATHER_MAX_S, GATHER_MAX_S, 2, False, id="on a slow disk there is no pause"),
        pytest.param(0.0, 0.0, 2, True, id="several while the loop has time to spare"),
    ],
)
async def test_housekeeping_is_done_in_the_pause_before_the_next_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flush_s: float, gather_s: float, together: int, is_done: bool
) -> None:
    instants_s = itertools.count(0.0, flush_s)  # looked at before a flush and after it
    monkeypatch.setattr(committing, "time", SimpleNamespace(monotonic=lambda: next(instants_s)))
    monkeypatch.setattr(committing, "TIDY_AFTER_S", 3600.0)
    monkeypatch.setattr(committing, "PIECE_LEN", 3)
    database, heard = gated(tmp_path), Heard()
    database.gate.set()
    committer = threaded(database, heard, gather_s=gather_s)
    committer.submit(OneRow(2))
    await heard.until(1)
    committer.doom([100, 101, 102], 2)
    for rv in range(3, 3 + together):
        committer.submit(OneRow(rv))
    await heard.until(1 + together)
    committer.submit(OneRow(9))  # which goes to the thread when that is done with the pause
    await heard.until(2 + together)
    assert database.compactions == is_done
    await committer.close()


async def test_batches_are_bounded(tmp_path: Path) -> None:
    database, heard = gated(tmp_path), Heard()
    database.gate.set()
    committer = threaded(database, heard, batch_len_max=4)
    for rv in range(2, 12):
        committer.submit(OneRow(rv))
    await heard.until(10)
    assert heard.done == list(range(2, 12))
    assert max(map(len, heard.batches)) == 4
    await committer.close()


async def test_a_failure_takes_what_waited_with_it_and_the_next_starts_anew(tmp_path: Path) -> None:
    database, heard = gated(tmp_path), Heard()
    committer = threaded(database, heard)
    database.fails = True
    committer.submit(OneRow(2))
    await asyncio.sleep(0)
    committer.submit(OneRow(3))
    database.gate.set()
    await heard.until(2)
    assert heard.failed == [2, 3]
    database.fails = False
    committer.submit(OneRow(4))
    await heard.until(3)
    assert heard.done == [4]
    await committer.close()


async def test_closing_finishes_what_was_submitted(tmp_path: Path) -> None:
    database, heard = gated(tmp_path), Heard()
    committer = threaded(database, heard)
    for rv in range(2, 30):
        committer.submit(OneRow(rv))
    database.gate.set()
    await committer.close()
    assert heard.done == list(range(2, 30))
    again = Database.open(tmp_path, identity=b"")
    assert [row.rv for row in again.load()] == list(range(2, 30))
    again.close()


async def test_an_error_nobody_thought_of_is_reported_too(tmp_path: Path) -> None:
    database, heard = gated(tmp_path), Heard()
    database.gate.set()
    committer = threaded(database, heard)
    broken = OneRow(2)
    broken.rows = [Row(2, "pods", "default", object(), 1, None, b"{}")]  # type: ignore[arg-type]
    committer.submit(broken)
    await heard.until(1)
    assert heard.failed == [2]
    await committer.close()


@pytest.mark.parametrize("on_disk", [True, False])
async def test_inline_is_done_when_it_returns(tmp_path: Path, on_disk: bool) -> None:
    database = Database.open(tmp_path, identity=b"") if on_disk else None
    heard = Heard()
    committer: InlineCommitter[OneRow] = InlineCommitter(database, heard.on_done, heard.on_failed, compact_len_max=10)
    for rv in (2, 3, 4):
        committer.submit(OneRow(rv))
        assert heard.done[-1] == rv
    committer.doom([2, 3], 3)
    committer.submit(OneRow(5))
    await committer.close()
    if on_disk:
        again = Database.open(tmp_path, identity=b"")
        assert [row.rv for row in again.load()] == [4, 5]
        assert again.horizon == 3
        again.close()
