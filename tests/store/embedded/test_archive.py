"""The archive of a backup: what goes in comes out, and nothing else is ever taken for one."""

from __future__ import annotations

import gzip
import hashlib
import io
import random
import tarfile
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.store.embedded.archive import (
    FORMAT,
    HEAD,
    KEYS,
    MANIFEST,
    PART_BYTES,
    SEAL,
    ArchiveError,
    Contents,
    read,
    seal,
    write,
)
from muster.store.embedded.database import Row
from muster.store.embedded.snapshot import snapshot_of_rows

NOW = 1_800_000_000.0
KEY_FILES = {"pki/sa-retired-1799999999.pub": b"retired", "pki/ca.key": b"secret", "kubeconfig": b"apiVersion: v1\n"}

Members = list[tuple[str, bytes]]


def row(rv: int, name: str, namespace: str = "default", text: str = "") -> Row:
    meta = {"name": name, "namespace": namespace, "resourceVersion": str(rv), "uid": f"u-{name}"}
    return Row(rv, "configmaps", namespace, name, 1, None, msgspec.json.encode({"metadata": meta, "data": {"text": text}}))


ROWS = [row(3, "a"), row(7, "b"), row(9, "c", text="\n\u2028\\n")]


def test_an_archive_has_the_format_of_its_rows() -> None:
    """Which are another release's when keys are added to what its server gave: a restore that took them for its own would not
    bring them up to date, and nothing would later."""
    snapshot = snapshot_of_rows(b"0123456789abcdef", 12, ROWS)
    text = b"".join(write(snapshot, NOW, KEY_FILES, store_format=1, muster_version="0.0.9"))
    manifest = read(io.BytesIO(text), lambda _: None).manifest
    assert (manifest.store_format, manifest.muster_version) == (1, "0.0.9")


def archive(rows: list[Row] = ROWS, keys: dict[str, bytes] | None = None, version: int = 12) -> bytes:
    return b"".join(write(snapshot_of_rows(b"0123456789abcdef", version, rows), NOW, keys))


def read_all(content: bytes) -> tuple[Contents, list[Row]]:
    rows: list[Row] = []
    return read(io.BytesIO(content), rows.extend), rows


def members_of(content: bytes) -> Members:
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        return [(info.name, tar.extractfile(info).read()) for info in tar]  # type: ignore[union-attr]


def packed(members: Members, alter: Callable[[tarfile.TarInfo], None] = lambda info: None) -> bytes:
    file = io.BytesIO()
    for name, content in members:
        info = tarfile.TarInfo(name)
        info.size, info.mode = len(content), 0o600
        alter(info)
        file.write(info.tobuf(tarfile.USTAR_FORMAT) + content + bytes(-len(content) % 512))
    return file.getvalue() + bytes(1024)


def resealed(members: Members, **changes: Any) -> bytes:
    """As somebody would who alters an archive and knows how its manifest is made."""
    manifest = msgspec.json.decode(dict(members)[MANIFEST])
    others = [(name, content) for name, content in members if name not in (MANIFEST, SEAL)]
    manifest["sha256"] = {name: hashlib.sha256(content).hexdigest() for name, content in others}
    text = msgspec.json.encode(manifest | changes)
    return packed([*others, (MANIFEST, text), (SEAL, seal(text))])


def with_lines(*lines: bytes, **changes: Any) -> bytes:
    text = gzip.compress(b"".join(line + b"\n" for line in lines))
    members = [(n, text if n.startswith("objects/") else c) for n, c in members_of(archive())]
    return resealed(members, objects=len(lines), **changes)


def test_what_goes_in_comes_out() -> None:
    contents, rows = read_all(archive(list(reversed(ROWS)), KEY_FILES))
    assert rows == ROWS
    assert contents.keys == KEY_FILES
    assert contents.identity == b"0123456789abcdef"
    manifest = contents.manifest
    assert (manifest.resource_version, manifest.objects, manifest.keys) == (12, 3, True)
    assert manifest.taken_at == "2027-01-15T08:00:00Z"


def test_an_empty_store_and_many_parts() -> None:
    assert read_all(archive([]))[1] == []
    noise = random.Random(1)
    large = [row(n, f"n{n}", text=noise.randbytes(20_000).hex()) for n in range(2, 120)]
    content = archive(large, version=200)
    assert len([name for name, _ in members_of(content) if name.startswith("objects/")]) > 3
    assert len(content) > PART_BYTES
    assert read_all(content)[1] == large


@given(st.dictionaries(st.integers(2, 10**12), st.tuples(st.text(), st.text(min_size=1), st.text()), max_size=20))
def test_any_names_and_texts(found: dict[int, tuple[str, str, str]]) -> None:
    unique = {(space, name): row(rv, name, space, text) for rv, (space, name, text) in found.items()}
    rows = sorted(unique.values())
    assert read_all(archive(rows, version=10**12))[1] == rows


def test_the_same_snapshot_gives_the_same_bytes() -> None:
    assert archive() == archive()


LINE = b'{"rv":3,"resource":"configmaps","namespace":"default","name":"a","object":%s}'
OBJECT = b'{"metadata":{"name":"a","namespace":"default","resourceVersion":"3"}}'


def _another(name: str, content: bytes = b"x") -> bytes:
    """A member of any name, properly sealed."""
    members = members_of(archive(keys=KEY_FILES))
    return resealed([*members[:-2], (name, content), *members[-2:]])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(b"", "it is empty", id="an empty file"),
        pytest.param(b"\x1f\x8b" + b"x" * 2000, "no backup of Muster", id="something else"),
        pytest.param(packed([("etc/passwd", b"root")]), "no backup of Muster", id="another tar"),
        pytest.param(packed([(HEAD, b"{")]), "damaged: muster-backup.json", id="a broken head"),
        pytest.param(
            packed([(HEAD, b'{"musterBackup":%d,"musterVersion":"9.9"}' % (FORMAT + 1))]),
            rf"format {FORMAT + 1}, made by Muster 9.9, and this is Muster .* formats up to {FORMAT}; restore it with",
            id="a newer format",
        ),
        pytest.param(packed([(HEAD, b'{"musterBackup":0}')]), "there is no format 0", id="format 0"),
        pytest.param(archive()[:-1024], "cut short", id="without its end"),
        pytest.param(archive() + b"x", "something behind its manifest", id="something behind it"),
        pytest.param(_another("../../etc/cron.d/evil"), "has no place there", id="a climbing name"),
        pytest.param(_another("/etc/passwd"), "has no place there", id="an absolute name"),
        pytest.param(_another("keys/../../evil"), "has no place there", id="a climbing key"),
        pytest.param(_another("keys/pki/evil.key"), "has no place there", id="a key that there is not"),
        pytest.param(_another("keys/kubeconfig"), "has no place there", id="a key twice"),
        pytest.param(_another("objects/000001.jsonl.gz"), "has no place there", id="objects behind keys"),
        pytest.param(_another("objects/..%2f.jsonl.gz"), "has no place there", id="a part of a strange name"),
        pytest.param(
            resealed([m for m in members_of(archive()) if not m[0].startswith("objects/")]),
            "it has 0 objects, and its manifest says 3",
            id="a part is missing",
        ),
        pytest.param(with_lines(b"{}"), "a line can't be read", id="a line without its fields"),
        pytest.param(with_lines(LINE % b"[1]"), "a line can't be read", id="no object"),
        pytest.param(with_lines(LINE % b'{"metadata":{"name":"z"}}'), "says that it is another", id="another object"),
        *(
            pytest.param(with_lines(LINE % (OBJECT[:-2] + b"," + part + b"}}")), "a line can't be read", id=part.decode())
            for part in (b'"labels":5', b'"labels":{"a":1}', b'"ownerReferences":["x"]', b'"finalizers":[1]', b'"uid":5')
        ),
        pytest.param(with_lines(LINE % OBJECT, LINE % OBJECT), "does not follow", id="an object twice"),
        pytest.param(
            with_lines(LINE % OBJECT, (LINE % OBJECT).replace(b'3"', b'4"').replace(b":3", b":4")), "twice", id="a name twice"
        ),
        pytest.param(with_lines(LINE % OBJECT, resourceVersion=2), "says version 2", id="a version before its objects"),
        pytest.param(with_lines(LINE % OBJECT, identity="%"), "manifest.json", id="an identity that is none"),
        pytest.param(with_lines(LINE % OBJECT, keys=True), "keys are not what", id="keys that are not there"),
        pytest.param(with_lines(LINE % (b"[" * 100_000)), "can't be read", id="deep nesting"),
    ],
)
def test_refused(content: bytes, message: str) -> None:
    with pytest.raises(ArchiveError, match=message):
        read_all(content)


@pytest.mark.parametrize(
    "type_", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.CHRTYPE, tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME]
)
def test_only_ordinary_files(type_: bytes) -> None:
    def alter(info: tarfile.TarInfo) -> None:
        if info.name.startswith("keys/"):
            info.type, info.linkname = type_, "/etc/passwd"

    with pytest.raises(ArchiveError, match="no ordinary file"):
        read_all(packed(members_of(archive(keys=KEY_FILES)), alter))


def test_a_part_is_not_inflated_without_bound() -> None:
    bomb = gzip.compress(bytes(40 << 20), 1)
    members = [(n, bomb if n.startswith("objects/") else c) for n, c in members_of(archive())]
    with pytest.raises(ArchiveError, match="not one whole compressed part"):
        read_all(resealed(members))


def test_a_size_is_believed_only_within_its_bound() -> None:
    def alter(info: tarfile.TarInfo) -> None:
        info.size = 1 << 32 if info.name.startswith("objects/") else info.size

    with pytest.raises(ArchiveError, match="is the most"):
        read_all(packed(members_of(archive()), alter))


def test_cut_anywhere() -> None:
    content = archive(keys=KEY_FILES)
    for length in range(0, len(content), 97):
        with pytest.raises(ArchiveError):
            read_all(content[:length])


def is_refused(content: bytes) -> bool:
    """In order: by ArchiveError, and nothing else."""
    try:
        read_all(content)
    except ArchiveError:
        return True
    return False


def test_any_damage_is_found() -> None:
    """There is no bit that does not count."""
    content = bytearray(archive(keys=KEY_FILES))
    for seed in range(800):
        chance = random.Random(seed)
        at, bit = chance.randrange(len(content)), 1 << chance.randrange(8)
        content[at] ^= bit
        assert is_refused(bytes(content)), f"seed {seed}: bit {bit} of byte {at} does not count"
        content[at] ^= bit
    assert read_all(bytes(content))[1] == ROWS


def test_anything_at_all_is_refused_in_order() -> None:
    """Blocks shuffled, repeated, left out, put in: by seed, never anything but ArchiveError."""
    content = archive(keys=KEY_FILES)
    for seed in range(1000):
        chance = random.Random(seed)
        pieces = [content[i : i + 512] for i in range(0, len(content), 512)]
        for _ in range(chance.randrange(1, 6)):
            match chance.randrange(4):
                case 0:
                    chance.shuffle(pieces)
                case 1:
                    pieces.insert(chance.randrange(len(pieces)), chance.randbytes(512))
                case 2:
                    del pieces[chance.randrange(len(pieces))]
                case _:
                    pieces.insert(chance.randrange(len(pieces)), chance.choice(pieces))
        if b"".join(pieces) == content:
            continue
        assert is_refused(b"".join(pieces)), f"seed {seed} was taken for a backup"


def test_only_known_places_are_written() -> None:
    assert all(not name.startswith("/") and ".." not in name for name in KEYS)
    for name in ("../evil", "pki/sa-retired-../1.pub", "pki/sa-retired-1.pub\n", "pki/sa-retired-.pub"):
        with pytest.raises(ValueError, match="has a place for"):
            archive(keys={name: b""})
