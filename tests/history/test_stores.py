"""Stores: a directory and, where fsspec is installed, an object store hold the same log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.engine import events as ev
from muster.history.reader import Log
from muster.history.recorder import Recorder
from muster.history.recording import Recorded
from muster.history.records import SegmentName
from muster.history.replaying import replay
from muster.history.stores import DirectoryStore, SegmentStore, StoreUnusable, open_store
from tests.engine.building import node, pod
from tests.history.recording import Ticking, make_engine, maker

NAME = SegmentName("20261116T090331Z", 3, "0123456789abcdef", 1)


@pytest.fixture(params=["directory", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SegmentStore]:
    if request.param == "directory":
        yield DirectoryStore(tmp_path / "log")
        return
    fsspec = pytest.importorskip("fsspec", reason="object stores need fsspec, which is not installed here")
    fsspec.filesystem("memory").store.clear()
    yield open_store("memory://bucket/log")
    fsspec.filesystem("memory").store.clear()


def test_what_was_written_is_read_and_removed(store: SegmentStore) -> None:
    assert store.segments() == []
    sink = store.create(NAME)
    sink.write(b"one ")
    sink.sync()
    sink.write(b"two ")
    sink.write(b"three")
    sink.close()
    assert [(one.name, one.size_bytes) for one in store.segments()] == [(NAME, 13)]
    with store.open(NAME) as file:
        assert (file.read(5), file.read(), file.read()) == (b"one t", b"wo three", b"")
    store.remove(NAME)
    assert store.segments() == []


def test_nobody_writes_into_what_is_there(store: SegmentStore) -> None:
    sink = store.create(NAME)
    sink.write(b"mine")
    sink.close()
    with pytest.raises(FileExistsError):
        store.create(NAME)


def test_a_log_replays_from_it(store: SegmentStore) -> None:
    recorder = Recorder(store, clock=Ticking())
    recorded = Recorded(make_engine(), recorder, make_engine)
    recorded.step([ev.NodeSeen(node("n1"))], 1.0)
    recorded.step([ev.PodSeen(pod("a", cpu="1"))], 2.0)
    recorder.close()
    outcome = replay(Log(store), maker())
    assert outcome.is_equal
    assert outcome.decisions == 1


def test_a_missing_part_is_an_error() -> None:
    fsspec = pytest.importorskip("fsspec", reason="object stores need fsspec, which is not installed here")
    store = open_store("memory://bucket/parts")
    sink = store.create(NAME)
    for part in (b"a", b"b", b"c"):
        sink.write(part)
        sink.sync()
    fsspec.filesystem("memory").rm(f"/bucket/parts/{NAME}/000001")
    with store.open(NAME) as file, pytest.raises(OSError, match="part 1 of the segment is missing"):
        file.read()


def test_a_url_that_nobody_knows_is_refused() -> None:
    with pytest.raises(StoreUnusable, match="history at nowhere://x"):
        open_store("nowhere://x")


@pytest.mark.parametrize("name", ["nothing", "file.txt"])
def test_a_place_without_a_log(name: str, tmp_path: Path) -> None:
    (tmp_path / "file.txt").write_text("x")
    with pytest.raises(FileNotFoundError, match="give the directory of a log"):
        Log.at(tmp_path / name)
