"""Images that nothing uses go when the disk fills up; what is tried again, and what is said once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from muster.agent.config import AgentConfig, Runc, check
from muster.agent.images import ImageStore
from muster.agent.images_collecting import KEPT_S, Disk, keep_collecting, read_disk, room_wanted
from muster.agent.images_pulling import Images
from muster.sim.clock import virtual
from tests.agent.images_building import LayerTar, oci_files, write_directory

NOW = 2_000_000_000.0


@pytest.mark.parametrize(
    ("used", "room"),
    [
        pytest.param(0, 0, id="empty"),
        pytest.param(849, 0, id="below the high mark"),
        pytest.param(850, 50, id="at the high mark, down to the low one"),
        pytest.param(1000, 200, id="full"),
    ],
)
def test_room_wanted(used: int, room: int) -> None:
    assert room_wanted(Disk(1000, 1000 - used), 85, 80) == room


def test_a_disk_without_a_size_wants_nothing() -> None:
    assert room_wanted(Disk(0, 0), 85, 80) == 0


def test_the_disk_is_read(tmp_path: Path) -> None:
    disk = read_disk(tmp_path)
    assert 0 <= disk.free_bytes <= disk.bytes


def images(tmp_path: Path, used_percent: int, **config: Any) -> Images:
    store = ImageStore(tmp_path / "images", tmp_path / "pods", is_durable=False)
    for n in range(2):
        data = LayerTar().file("f", bytes([n]) * 1000).bytes()
        source = write_directory(oci_files([data]), tmp_path / str(n))
        store.unpack(store._local(f"oci:{source}"), [f"i{n}:1"], "pulled")
    return Images(store, Runc(**config), clock=lambda: NOW, disk=lambda _path: Disk(100_000, 100_000 - used_percent * 1000))


async def test_a_full_disk_takes_unused_images_away(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = images(tmp_path, 90)
    with caplog.at_level(logging.WARNING):
        assert len(await made.collect()) == 2
        assert await made.collect() == []
    assert [r.message for r in caplog.records if "no image is left" in r.message] == [caplog.messages[0]], "said once"
    assert "is more than 85 % full" in caplog.messages[0]


async def test_there_is_room(tmp_path: Path) -> None:
    assert await images(tmp_path, 50).collect() == []


async def test_by_age(tmp_path: Path) -> None:
    assert len(await images(tmp_path, 50, images_unused_seconds=60).collect()) == 2


async def test_no_images_yet(tmp_path: Path) -> None:
    store = ImageStore(tmp_path / "images")
    assert await Images(store, Runc()).collect() == ()


async def test_what_was_fetched_a_moment_ago_stays(tmp_path: Path) -> None:
    made = images(tmp_path, 90)
    newest = max(path.stat().st_mtime for path in (tmp_path / "images" / "roots").glob("*/image.json"))
    made._clock = lambda: newest + KEPT_S - 1
    assert await made.collect() == []


@virtual
async def test_it_goes_on_after_a_failure() -> None:
    asked = 0

    async def collect() -> Sequence[str]:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise PermissionError(1, "no", "/images")
        return ["sha256:1"]

    task = asyncio.create_task(keep_collecting(collect, look_s=10.0))
    await asyncio.sleep(25)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert asked == 3


@pytest.mark.parametrize(
    ("config", "word"),
    [
        pytest.param(Runc(images_low_percent=0), "runc.imagesLowPercent", id="nothing left"),
        pytest.param(Runc(images_low_percent=90), "runc.imagesLowPercent", id="above the high mark"),
        pytest.param(Runc(images_high_percent=101), "imagesHighPercent", id="more than all"),
        pytest.param(Runc(images_unused_seconds=-1), "runc.imagesUnusedSeconds", id="negative age"),
    ],
)
def test_what_makes_no_sense_is_refused(config: Runc, word: str) -> None:
    [problem] = check(AgentConfig(runc=config))
    assert word in problem
