"""Directories that are over go, small or large, flat or deep; what links in them point to stays."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from muster.agent.removing import SMALL_ENTRIES_MAX, remove_tree


def fill(top: Path, files: int, depth: int) -> None:
    top.mkdir()
    for number in range(files):
        (top / f"file-{number}").write_text("x")
    below = top
    for _ in range(depth):
        below /= "d"
        below.mkdir()


@pytest.mark.parametrize(
    ("files", "depth"),
    [
        pytest.param(0, 0, id="empty"),
        pytest.param(3, 2, id="small"),
        pytest.param(SMALL_ENTRIES_MAX - 1, 0, id="as many as are small"),
        pytest.param(SMALL_ENTRIES_MAX * 3, 0, id="many"),
        pytest.param(1, SMALL_ENTRIES_MAX * 2, id="deep"),
    ],
)
async def test_nothing_is_left(tmp_path: Path, files: int, depth: int) -> None:
    top = tmp_path / "top"
    fill(top, files, depth)
    await remove_tree(top)
    assert not top.exists()


async def test_what_is_not_there_is_no_error(tmp_path: Path) -> None:
    await remove_tree(tmp_path / "none")


async def test_links_are_removed_and_not_followed(tmp_path: Path) -> None:
    fill(tmp_path / "other", 2, 1)
    fill(tmp_path / "top", 1, 0)
    os.symlink(tmp_path / "other", tmp_path / "top" / "link")
    await remove_tree(tmp_path / "top")
    assert not (tmp_path / "top").exists()
    assert sorted(os.listdir(tmp_path / "other")) == ["d", "file-0", "file-1"]
