"""Layers of every shape, and of no shape at all: what comes out is inside, or nothing does."""

from __future__ import annotations

import io
import os
import tarfile
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.agent.images_tar import HEADER_BYTES_MAX, LayerError, Limits
from muster.agent.images_unpack import Unpacker, read_inside
from tests.agent.images_building import LayerTar

LIMITS = Limits(bytes_max=1_000_000, entries_max=200)


def unpack(root: Path, *layers: bytes, limits: Limits = LIMITS) -> Unpacker:
    root.mkdir(exist_ok=True)
    with Unpacker(root, limits) as unpacker:
        for layer in layers:
            unpacker.apply(io.BytesIO(layer))
    return unpacker


def tree(root: Path) -> dict[str, str]:
    found = {}
    for path in sorted(root.rglob("*")):
        kind = f"-> {os.readlink(path)}" if path.is_symlink() else "dir" if path.is_dir() else path.read_text()
        found[str(path.relative_to(root))] = kind
    return found


def test_files_links_and_directories(tmp_path: Path) -> None:
    layer = LayerTar().directory("./").directory("a", mode=0o750).file("a/f", b"one").link("l", "a/f").link("abs", "/a")
    layer.hard_link("h", "a/f").file("deep/er/x", b"two", mode=0o4755, mtime=12)
    unpack(tmp_path / "r", layer.bytes())
    root = tmp_path / "r"
    assert tree(root) == {
        "a": "dir",
        "a/f": "one",
        "abs": "-> /a",
        "deep": "dir",
        "deep/er": "dir",
        "deep/er/x": "two",
        "h": "one",
        "l": "-> a/f",
    }
    assert (root / "a").stat().st_mode & 0o7777 == 0o750
    assert (root / "deep/er/x").stat().st_mode & 0o7777 == 0o4755
    assert (root / "deep/er/x").stat().st_mtime == 12
    assert (root / "h").stat().st_ino == (root / "a/f").stat().st_ino


def test_layers_cover_each_other(tmp_path: Path) -> None:
    below = (
        LayerTar().directory("d").file("d/gone", b"").file("d/stays", b"s").directory("o").file("o/old", b"").file("f", b"1")
    )
    above = (
        LayerTar()
        .file("d/.wh.gone")
        .file("o/new", b"n")
        .file("o/.wh..wh..opq")
        .file("f", b"2")
        .link("d2", "d")
        .file("d2/x", b"x")
    )
    unpack(tmp_path / "r", below.bytes(), above.bytes())
    found = {"d": "dir", "d/stays": "s", "d/x": "x", "d2": "-> d", "f": "2", "o": "dir", "o/new": "n"}
    assert tree(tmp_path / "r") == found


def test_a_directory_replaces_a_file_and_the_other_way_round(tmp_path: Path) -> None:
    below = LayerTar().file("a", b"1").directory("b").file("b/c", b"2").link("l", "b")
    above = LayerTar().directory("a").file("a/x", b"3").file("b", b"4").directory("l")
    unpack(tmp_path / "r", below.bytes(), above.bytes())
    assert tree(tmp_path / "r") == {"a": "dir", "a/x": "3", "b": "4", "l": "dir"}


def test_a_whiteout_touches_only_layers_below(tmp_path: Path) -> None:
    unpack(tmp_path / "r", LayerTar().file("a", b"1").file(".wh.a").file(".wh.never").file("no/where/.wh.x").bytes())
    assert tree(tmp_path / "r") == {"a": "1"}


def test_links_lead_nowhere_outside(tmp_path: Path) -> None:
    """An absolute link is from the image's own root, also while unpacking."""
    outside = tmp_path / "outside"
    outside.mkdir()
    layer = LayerTar().link("out", str(outside)).file("out/f", b"inside").link("up", "/../../..").file("up/g", b"too")
    unpack(tmp_path / "r", layer.bytes())
    assert list(outside.iterdir()) == []
    root = tmp_path / "r"
    assert (root / str(outside).lstrip("/") / "f").read_text() == "inside"
    assert (root / "g").read_text() == "too"


def raw(kind: bytes, name: str = "x", **more: Any) -> bytes:
    info = tarfile.TarInfo(name)
    info.type = kind
    for key, value in more.items():
        setattr(info, key, value)
    return info.tobuf(tarfile.GNU_FORMAT) + bytes(1024)


@pytest.mark.parametrize(
    ("layer", "says"),
    [
        pytest.param(LayerTar().file("../x").bytes(), "climbs", id="climbing name"),
        pytest.param(LayerTar().file("a/../../x").bytes(), "climbs", id="climbing in the middle"),
        pytest.param(raw(tarfile.REGTYPE, "/etc/x"), "absolute", id="absolute name"),
        pytest.param(LayerTar().link("a", "../x").bytes(), "climbs out", id="climbing link"),
        pytest.param(LayerTar().link("d/a", "../../x").bytes(), "climbs out", id="climbing link from below"),
        pytest.param(LayerTar().link("a", "").bytes(), "a link to", id="empty link"),
        pytest.param(LayerTar().hard_link("a", "/etc/passwd").bytes(), "absolute", id="absolute hard link"),
        pytest.param(LayerTar().hard_link("a", "../x").bytes(), "climbs", id="climbing hard link"),
        pytest.param(LayerTar().hard_link("a", "none").bytes(), "no file", id="hard link to nothing"),
        pytest.param(LayerTar().directory("d").hard_link("a", "d").bytes(), "no file", id="hard link to a directory"),
        pytest.param(LayerTar().link("l", "/etc").hard_link("a", "l/passwd").bytes(), "no file", id="hard link through a link"),
        pytest.param(LayerTar().entry("a", tarfile.CHRTYPE, devmajor=1, devminor=3).bytes(), "device", id="character device"),
        pytest.param(LayerTar().entry("a", tarfile.BLKTYPE, devmajor=8).bytes(), "device", id="block device"),
        pytest.param(raw(b"S"), "not taken", id="sparse"),
        pytest.param(raw(b"Z"), "not taken", id="unknown kind"),
        pytest.param(LayerTar().file("x" * 300).bytes(), "255", id="long part"),
        pytest.param(LayerTar().file("a/" * 300 + "x").bytes(), "deeper", id="too deep"),
        pytest.param(LayerTar().file("a").file("a/b").bytes(), "no directory", id="a file as a directory"),
        pytest.param(LayerTar().link("a", "b").link("b", "a").file("a/x").bytes(), "too many links", id="links in a circle"),
        pytest.param(LayerTar().file(".wh...").bytes(), "whiteout", id="whiteout of .."),
        pytest.param(LayerTar().file("a", b"x" * 2_000_000).bytes(), "bytes", id="too large"),
        pytest.param(LayerTar().file("a", b"x" * 600_000).file("b", b"x" * 600_000).bytes(), "bytes", id="too large together"),
        pytest.param(raw(tarfile.REGTYPE, size=2**70), "size", id="a size beyond everything"),
        pytest.param(raw(tarfile.REGTYPE, size=-1), "size", id="negative size"),
        pytest.param(raw(tarfile.REGTYPE, uid=2**40), "uid", id="user beyond everything"),
        pytest.param(raw(b"x", size=HEADER_BYTES_MAX + 1), "header of", id="a header without end"),
        pytest.param(raw(b"L", size=2**50), "header of", id="a name without end"),
        pytest.param(LayerTar().file("a", b"x" * 100).bytes()[:530], "ends at", id="cut off"),
        pytest.param(b"no tar at all".ljust(512, b"!"), "no tar header", id="not a tar"),
        pytest.param(LayerTar().entry("", tarfile.SYMTYPE, link="x").bytes(), "root is a", id="the root as a link"),
    ],
)
def test_refused(tmp_path: Path, layer: bytes, says: str) -> None:
    with pytest.raises(LayerError, match=says):
        unpack(tmp_path / "r", layer)
    assert [p.name for p in tmp_path.iterdir()] == ["r"]


def test_too_many_entries(tmp_path: Path) -> None:
    layer = LayerTar()
    for n in range(201):
        layer.file(f"f{n}")
    with pytest.raises(LayerError, match="more than 200 entries"):
        unpack(tmp_path / "r", layer.bytes())


names = st.lists(st.sampled_from(["a", "b", "..", ".", "", "l", ".wh.a", ".wh..wh..opq", "etc", "\udc80"]), max_size=5).map(
    "/".join
)
targets = st.one_of(names, names.map("/".__add__), names.map("../".__add__))
entries = st.tuples(names, st.sampled_from([b"0", b"1", b"2", b"5", b"6", b"3", b"L", b"K", b"x", b"g", b"S"]), targets)


@given(st.lists(st.lists(entries, max_size=8), min_size=1, max_size=3))
def test_nothing_is_ever_written_outside(layers: list[list[tuple[str, bytes, str]]]) -> None:
    """Any entries in any order: either all of it is below the root, or it is refused."""
    with tempfile.TemporaryDirectory() as directory:
        top = Path(directory)
        (top / "etc").mkdir()
        (top / "a").write_text("mine")
        for layer in layers:
            built = LayerTar()
            for name, kind, target in layer:
                data = target.encode(errors="surrogateescape") if kind in (b"0", b"L", b"K", b"x", b"g") else b""
                built.entry(name, kind, data=data, link=target)
            try:
                unpack(top / "r", built.bytes())
            except LayerError:
                break
        assert sorted(p.name for p in top.iterdir()) == ["a", "etc", "r"]
        assert (top / "a").read_text() == "mine"
        assert list((top / "etc").iterdir()) == []


@given(st.binary(max_size=2048), st.integers(0, 2000), st.integers(1, 255))
def test_broken_bytes_are_refused_not_crashed_on(noise: bytes, at: int, change: int) -> None:
    whole = bytearray(LayerTar().file("a/b", b"data").link("c", "a").hard_link("d", "a/b").file("x" * 120, b"y").bytes())
    whole[at] ^= change
    with tempfile.TemporaryDirectory() as directory:
        for data in (noise, bytes(whole), bytes(whole[:at])):
            with suppress(LayerError):
                unpack(Path(directory) / "r", data)
        assert [p.name for p in Path(directory).iterdir()] == ["r"]


@pytest.mark.parametrize(
    ("link", "reads"),
    [
        ("f", b"inside"),
        ("/f", b"inside"),
        ("../../f", b"inside"),
        ("loop", b""),
        ("d", b""),
        ("nothing", b""),
        ("/etc/passwd", b""),
    ],
)
def test_files_of_an_image_are_read_inside_it(tmp_path: Path, link: str, reads: bytes) -> None:
    (tmp_path / "f").write_bytes(b"inside")
    (tmp_path / "d").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/here").symlink_to(link if link.startswith(("/", "..")) else f"/{link}")
    assert read_inside(tmp_path, "/etc/here", 100) == reads
    assert read_inside(tmp_path, "/etc/here", 3) == reads[:3]
