"""Walking paths that a task has had its hands in. No rights needed: a directory plays the root."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.agent.shim.rooting import Outside, walk


@pytest.fixture
def root(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "outside").mkdir()
    (tmp_path / "root" / "usr" / "bin").mkdir(parents=True)
    (tmp_path / "root" / "etc").mkdir()
    os.symlink("usr/bin", tmp_path / "root" / "bin")
    os.symlink("/etc", tmp_path / "root" / "absolute")
    os.symlink("../../../../../outside", tmp_path / "root" / "usr" / "dots")
    os.symlink(str(tmp_path / "outside"), tmp_path / "root" / "host")
    os.symlink("loop", tmp_path / "root" / "loop")
    fd = os.open(tmp_path / "root", os.O_RDONLY | os.O_DIRECTORY)
    yield fd
    os.close(fd)


def place(fd: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)


@pytest.mark.parametrize(
    ("path", "found"),
    [
        pytest.param("/bin", "root/usr/bin", id="a link inside"),
        pytest.param("absolute", "root/etc", id="an absolute link is absolute in the root"),
        pytest.param("/etc/../../../usr", "root/usr", id="dots end at the root"),
        pytest.param("/", "root", id="the root"),
    ],
)
def test_what_a_path_means_inside(tmp_path: Path, root: int, path: str, found: str) -> None:
    assert place(walk(root, path)) == str(tmp_path / found)


def test_what_is_missing_is_made_inside(tmp_path: Path, root: int) -> None:
    os.close(walk(root, "/usr/dots/new", make="dir"))
    os.close(walk(root, "/host/deep/file", make="file"))

    assert list((tmp_path / "outside").iterdir()) == []
    assert (tmp_path / "root" / "outside" / "new").is_dir()
    assert (tmp_path / "root" / str(tmp_path / "outside")[1:] / "deep" / "file").is_file()


@pytest.mark.parametrize("path", ["usr/dots", "host", "..", "usr/../.."])
def test_confined_means_no_way_out(root: int, path: str) -> None:
    with pytest.raises(Outside):
        walk(root, path, is_confined=True)


def test_a_loop_has_an_end(root: int) -> None:
    with pytest.raises(OSError, match="more than 40 links") as found:
        walk(root, "loop")
    assert found.value.errno == errno.ELOOP


@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.text("abcd./", min_size=1, max_size=12)), max_size=8),
    st.text("abcd./", max_size=20),
    st.booleans(),
)
def test_no_tree_of_links_leads_out(
    tmp_path_factory: pytest.TempPathFactory, links: list[tuple[str, str]], path: str, is_confined: bool
) -> None:
    top = tmp_path_factory.mktemp("walk")
    inside = top / "inside"
    (inside / "d" / "d").mkdir(parents=True)
    for directory in (inside, inside / "d"):
        for name, text in links:
            if not os.path.lexists(directory / name):
                os.symlink(text, directory / name)
    fd = os.open(inside, os.O_RDONLY | os.O_DIRECTORY)
    before = len(os.listdir("/proc/self/fd"))
    try:
        found = place(walk(fd, path, make="dir", is_confined=is_confined))
    except OSError:
        pass
    else:
        assert found == str(inside) or found.startswith(f"{inside}/")
    finally:
        assert len(os.listdir("/proc/self/fd")) == before, "no descriptor is left open"
        os.close(fd)
    assert os.listdir(top) == ["inside"]
