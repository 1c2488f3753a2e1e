"""Directories that tasks have made on purpose so that nobody can take them away or count them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.agent import trees
from muster.agent.removing import remove_tree
from muster.agent.trees import Uncountable, held_bytes


def deep(top: Path, depth: int, name: str = "d") -> None:
    top.mkdir(exist_ok=True)
    fd = os.open(top, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=fd)
        inside = os.open(name, os.O_RDONLY, dir_fd=fd)
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
        os.close(fd)
        fd = inside
    os.close(fd)


def test_deeper_than_the_stack_and_than_any_path(tmp_path: Path) -> None:
    deep(tmp_path / "top", 3000, "d" * 20)
    trees.remove(tmp_path / "top")
    assert not (tmp_path / "top").exists()


async def test_the_quick_way_gives_up_in_time(tmp_path: Path) -> None:
    deep(tmp_path / "top", 2000)
    await remove_tree(tmp_path / "top")
    assert not (tmp_path / "top").exists()


def test_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").touch()
    deep(tmp_path / "top", 1500)
    (tmp_path / "top" / "link").symlink_to(tmp_path / "kept")
    (tmp_path / "top" / ".removed-1").mkdir()
    trees.remove(tmp_path / "top")
    assert (tmp_path / "kept" / "file").exists()
    (tmp_path / "top").symlink_to(tmp_path / "kept")
    trees.remove(tmp_path / "top")
    assert not os.path.lexists(tmp_path / "top")
    assert (tmp_path / "kept" / "file").exists()


def test_what_is_too_deep_or_too_much_is_not_counted_as_nothing(tmp_path: Path) -> None:
    deep(tmp_path / "deep", 30, "d" * 200)
    with pytest.raises(Uncountable, match="deeply"):
        held_bytes(tmp_path / "deep")
    (tmp_path / "many").mkdir()
    for n in range(20):
        (tmp_path / "many" / str(n)).touch()
    assert held_bytes(tmp_path / "many", entries_max=20) >= 0
    with pytest.raises(Uncountable, match="more than 19"):
        held_bytes(tmp_path / "many", entries_max=19)
    trees.remove(tmp_path / "deep")


NODES = st.recursive(
    st.sampled_from(["file", "link", "fifo"]), lambda inner: st.dictionaries(st.sampled_from("abc"), inner), max_leaves=12
)


def make(at: Path, node: object) -> None:
    if isinstance(node, dict):
        at.mkdir()
        for name, inner in node.items():
            make(at / name, inner)
        at.chmod(0o000)
    elif node == "file":
        at.touch(mode=0o000)
    elif node == "link":
        at.symlink_to("/")
    else:
        os.mkfifo(at)


@settings(max_examples=30, deadline=None)
@given(node=NODES)
def test_whatever_it_is_it_goes(node: object, tmp_path_factory: pytest.TempPathFactory) -> None:
    top = tmp_path_factory.mktemp("tree") / "top"
    make(top, node)
    if top.is_dir() and not top.is_symlink():
        trees._flatten(top)
        assert os.listdir(top) == []
    trees.remove(top)
    assert not os.path.lexists(top)
