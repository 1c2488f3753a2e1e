"""A backup in one file: how it is written, piece by piece, and how it is read, with nothing taken on trust.

A tar archive (ustar, so that `tar tf` shows what is in it) with these members, in this order:

    muster-backup.json          the number of this format, before anything that depends on it
    objects/000000.jsonl.gz     every object on a line, in order of version; as many parts as it takes
    keys/NAME                   the data directory's keys, when they were asked for
    manifest.json               versions, time, counts, and the SHA-256 of every member before it
    manifest.sha256             the SHA-256 of the manifest, as `sha256sum` writes it

The manifest comes last because a backup is sent while it is made; so one that was cut short has none, and is refused. There is
no bit in an archive that is not checked.

`read` is what verifies and what restores: a member is never written to a path that the archive names. Names are compared with
the few that there are, sizes with their bounds before anything is read, compressed parts are not inflated beyond theirs.

Pure but for the file that is read. Any thread.
"""

from __future__ import annotations

import base64
import binascii
import gzip
import hashlib
import re
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO, Final

import msgspec

from muster import __version__
from muster.objects.time import format_time
from muster.store.embedded.database import Row
from muster.store.embedded.migrations import FORMAT as STORE_FORMAT
from muster.store.embedded.snapshot import Snapshot

FORMAT: Final = 1
HEAD: Final = "muster-backup.json"
MANIFEST: Final = "manifest.json"
SEAL: Final = "manifest.sha256"
KEYS: Final = (
    "pki/ca.crt",
    "pki/ca.key",
    "pki/sa.key",
    "pki/server.crt",
    "pki/server.key",
    "pki/admin.crt",
    "pki/admin.key",
    "pki/apiserver-client.crt",
    "pki/apiserver-client.key",
    "kubeconfig",
    "pod-range",
)
"""What `--with-keys` adds, by its place in the data directory, and the keys of tokens that were retired (`is_key`): the only
places that a restore writes besides the store."""

PART_BYTES: Final = 1 << 20
"""A part is closed when it has this many bytes before compression."""
OBJECT_BYTES_MAX: Final = 16 << 20
"""Far beyond what a store takes, whatever its limit was when the object came in."""
PART_BYTES_MAX: Final = PART_BYTES + OBJECT_BYTES_MAX
SMALL_BYTES_MAX: Final = 64 << 10
"""Of the head and of a key."""
MANIFEST_BYTES_MAX: Final = 64 << 20
PARTS_MAX: Final = 1_000_000
_BLOCK: Final = 512
_GZIP_LEVEL: Final = 1
_PART: Final = re.compile(r"objects/(\d{6})\.jsonl\.gz")
_RETIRED_KEY: Final = re.compile(r"pki/sa-retired-[0-9]{1,12}\.pub", re.ASCII)


def is_key(name: str) -> bool:
    """Whether a backup with keys has the file of this name in the data directory."""
    return name in KEYS or _RETIRED_KEY.fullmatch(name) is not None


class ArchiveError(Exception):
    """This is no backup that can be used; the message says why, and what to do."""


class Head(msgspec.Struct, frozen=True, rename="camel"):
    muster_backup: int
    muster_version: str = ""


_TIME_S_MAX = 2**36
"""More than two thousand years from 1970 on."""
_VERSION_MAX = 2**62


class Manifest(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    muster_backup: int
    muster_version: str
    store_format: int
    taken_at: str
    """RFC 3339."""
    taken_at_s: float
    """The same, to reckon with."""
    resource_version: int
    objects: int
    identity: str
    """Of the store, base64: with it, continue tokens from before are recognised, and answered 410."""
    keys: bool
    sha256: Mapping[str, str]
    """Of every member but this one, by name."""


class Line(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """One object as `objects/*.jsonl.gz` has it."""

    rv: int
    resource: str
    namespace: str
    name: str
    object: msgspec.Raw


class _Meta(msgspec.Struct, rename="camel"):
    """What a store takes for granted of every object that it loads."""

    name: str = ""
    namespace: str = ""
    resource_version: str = ""
    uid: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[dict[str, Any]] | None = None
    finalizers: list[str] | None = None
    deletion_timestamp: str | None = None


class _Identity(msgspec.Struct):
    metadata: _Meta


_lines: Final = msgspec.json.Decoder(Line)
_objects: Final = msgspec.json.Decoder(_Identity)
_whole: Final = msgspec.json.Decoder()


# --- writing -----------------------------------------------------------------------------------------------------


def write(
    snapshot: Snapshot,
    now: float,
    keys: Mapping[str, bytes] | None = None,
    *,
    store_format: int = STORE_FORMAT,
    muster_version: str = __version__,
) -> Iterator[bytes]:
    """The archive, a bounded piece at a time. `now` is when the snapshot was taken; `keys` are named as in `KEYS`. The format
    is that of the rows, which may come from a server of another release."""
    sha256: dict[str, str] = {}

    def member(name: str, content: bytes) -> bytes:
        sha256[name] = hashlib.sha256(content).hexdigest()
        return _framed(name, content, now)

    yield member(HEAD, msgspec.json.encode(Head(FORMAT, muster_version)) + b"\n")
    for number, part in enumerate(_parts(snapshot.rows())):
        yield member(f"objects/{number:06}.jsonl.gz", gzip.compress(part, _GZIP_LEVEL, mtime=0))
    for name, content in (keys or {}).items():
        if not is_key(name):
            raise ValueError(f"{name!r} is no key file that a backup has a place for")
        yield member(f"keys/{name}", content)
    manifest = Manifest(
        muster_backup=FORMAT,
        muster_version=muster_version,
        store_format=store_format,
        taken_at=format_time(now),
        taken_at_s=now,
        resource_version=snapshot.resource_version,
        objects=len(snapshot),
        identity=base64.b64encode(snapshot.identity).decode(),
        keys=bool(keys),
        sha256=sha256,
    )
    text = msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"
    yield _framed(MANIFEST, text, now) + _framed(SEAL, seal(text), now) + bytes(2 * _BLOCK)


def seal(manifest: bytes) -> bytes:
    return f"{hashlib.sha256(manifest).hexdigest()}  {MANIFEST}\n".encode()


def _parts(rows: Iterator[Row]) -> Iterator[bytes]:
    lines: list[bytes] = []
    size = 0
    for row in rows:
        line = msgspec.json.encode(Line(row.rv, row.resource, row.namespace, row.name, msgspec.Raw(row.value))) + b"\n"
        lines.append(line)
        size += len(line)
        if size >= PART_BYTES:
            yield b"".join(lines)
            lines, size = [], 0
    if lines:
        yield b"".join(lines)


def _framed(name: str, content: bytes, now: float) -> bytes:
    return _header_for(name, len(content), int(now)) + content + bytes(-len(content) % _BLOCK)


def _header_for(name: str, size: int, time_s: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = size, 0o600, time_s
    return info.tobuf(tarfile.USTAR_FORMAT)


# --- reading -----------------------------------------------------------------------------------------------------


class Contents(msgspec.Struct, frozen=True):
    """Of an archive that was read to its end and found whole."""

    manifest: Manifest
    keys: Mapping[str, bytes]
    """By place in the data directory."""

    @property
    def identity(self) -> bytes:
        return base64.b64decode(self.manifest.identity)


def read(file: BinaryIO, take: Callable[[list[Row]], None] = lambda rows: None) -> Contents:
    """Read from the start, check everything, and hand the objects over, some at a time and in order.

    Raises ArchiveError. Objects are handed over before the archive is known to be whole: keep nothing of them until this
    returns. OSError and what `take` raises pass.
    """
    return _Reader(file, take).read()


class _Reader:
    def __init__(self, file: BinaryIO, take: Callable[[list[Row]], None]) -> None:
        self._file = file
        self._take = take
        self._sha256: dict[str, str] = {}
        self._keys: dict[str, bytes] = {}
        self._last_rv = 0
        self._count = 0
        self._places: set[tuple[str, str, str]] = set()

    def read(self) -> Contents:
        self._head()
        parts = 0
        while True:
            name, size = self._header()
            if name == MANIFEST:
                return self._end(self._content(name, size, MANIFEST_BYTES_MAX))
            if _PART.fullmatch(name) and not self._keys:
                if name != f"objects/{parts:06}.jsonl.gz" or parts >= PARTS_MAX:
                    raise _damaged(f"its member {name} is not the one that comes next")
                parts += 1
                self._take(self._rows(name, self._inflated(name, self._noted(name, size, PART_BYTES_MAX))))
            elif name.startswith("keys/") and is_key(name[5:]) and name[5:] not in self._keys:
                self._keys[name[5:]] = self._noted(name, size, SMALL_BYTES_MAX)
            else:
                raise _damaged(f"it has a member {name[:100]!r} that has no place there")

    def _head(self) -> None:
        """What tells a backup from anything else, and a format that we know from one that we do not."""
        block = self._file.read(_BLOCK)
        if not block:
            raise ArchiveError("it is empty, so it is no backup; name a file that 'muster backup' has made")
        try:
            name, size = _header_of(block)
        except ArchiveError:
            name, size = "", 0
        if name != HEAD:
            raise ArchiveError("it is no backup of Muster; name a file that 'muster backup' has made")
        content = self._noted(name, size, SMALL_BYTES_MAX)
        try:
            head = msgspec.json.decode(content, type=Head)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise _damaged(f"{HEAD}: {error}") from error
        if head.muster_backup > FORMAT:
            raise ArchiveError(
                f"it is a backup of format {head.muster_backup}, made by Muster {head.muster_version[:40]}, and this is Muster "
                f"{__version__}, which reads formats up to {FORMAT}; restore it with that release or a later one"
            )
        if head.muster_backup < 1:
            raise _damaged(f"{HEAD}: there is no format {head.muster_backup}")

    def _header(self) -> tuple[str, int]:
        return _header_of(self._exactly(_BLOCK))

    def _exactly(self, size: int) -> bytes:
        content = self._file.read(size)
        if len(content) < size:
            raise ArchiveError("it ends before its manifest: it was cut short, so it can't be used; take another backup")
        return content

    def _content(self, name: str, size: int, size_max: int) -> bytes:
        if size > size_max:
            raise _damaged(f"its member {name} has {size} bytes, and {size_max} is the most")
        content = self._exactly(size)
        if any(self._exactly(-size % _BLOCK)):
            raise _damaged(f"there is something behind its member {name}")
        return content

    def _noted(self, name: str, size: int, size_max: int) -> bytes:
        content = self._content(name, size, size_max)
        self._sha256[name] = hashlib.sha256(content).hexdigest()
        return content

    def _inflated(self, name: str, content: bytes) -> bytes:
        inflater = zlib.decompressobj(wbits=31)
        try:
            text = inflater.decompress(content, PART_BYTES_MAX)
        except zlib.error as error:
            raise _damaged(f"{name}: {error}") from error
        if not inflater.eof or inflater.unused_data:
            raise _damaged(f"{name}: it is not one whole compressed part of at most {PART_BYTES_MAX} bytes")
        return text

    def _rows(self, name: str, text: bytes) -> list[Row]:
        if not text.endswith(b"\n"):
            raise _damaged(f"{name}: its last line has no end")
        return [self._row(name, line) for line in text[:-1].split(b"\n")]

    def _row(self, name: str, text: bytes) -> Row:
        try:
            line = _lines.decode(text)
            value = bytes(line.object)
            meta = _objects.decode(value).metadata
            _whole.decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise _damaged(f"{name}: a line can't be read: {error}") from error
        place = (line.resource, line.namespace, line.name)
        where = f"{name}: {line.resource[:100]} {line.namespace[:100]}/{line.name[:100]}"
        if line.rv <= self._last_rv:
            raise _damaged(f"{where}: version {line.rv} does not follow {self._last_rv}")
        if not line.resource or (meta.name, meta.namespace, meta.resource_version) != (line.name, line.namespace, str(line.rv)):
            raise _damaged(f"{where}: the object says that it is another")
        if place in self._places:
            raise _damaged(f"{where}: it is there twice")
        self._places.add(place)
        self._last_rv = line.rv
        self._count += 1
        return Row(line.rv, *place, 1, None, value)

    def _end(self, content: bytes) -> Contents:
        try:
            manifest = msgspec.json.decode(content, type=Manifest)
            base64.b64decode(manifest.identity, validate=True)
            if not (0 <= manifest.taken_at_s < _TIME_S_MAX and 0 <= manifest.resource_version < _VERSION_MAX):
                raise ValueError("takenAtS or resourceVersion can't be")
        except (msgspec.DecodeError, UnicodeDecodeError, binascii.Error, ValueError) as error:
            raise _damaged(f"{MANIFEST}: {error}") from error
        name, size = self._header()
        if name != SEAL or self._content(name, size, SMALL_BYTES_MAX) != seal(content):
            raise _damaged(f"{MANIFEST} does not match the SHA-256 in {SEAL}")
        if any(self._exactly(2 * _BLOCK)) or self._file.read(1):
            raise _damaged("there is something behind its manifest")
        if manifest.muster_backup != FORMAT:
            raise _damaged(f"its manifest is of format {manifest.muster_backup}, and its head is of {FORMAT}")
        for name in {*manifest.sha256, *self._sha256}:
            if manifest.sha256.get(name) != self._sha256.get(name):
                raise _damaged(f"its member {name[:100]} does not match the SHA-256 in its manifest")
        if manifest.objects != self._count:
            raise _damaged(f"it has {self._count} objects, and its manifest says {manifest.objects}")
        if manifest.keys != bool(self._keys):
            raise _damaged("its keys are not what its manifest says")
        if not self._last_rv <= manifest.resource_version < 1 << 62:
            raise _damaged(f"its manifest says version {manifest.resource_version}, and it holds version {self._last_rv}")
        return Contents(manifest, self._keys)


def _header_of(block: bytes) -> tuple[str, int]:
    """Name and size of a member. Every bit of its header is as it is written here, or the header is refused."""
    try:
        info = tarfile.TarInfo.frombuf(block, "ascii", "strict")
        is_ours = block == _header_for(info.name, info.size, int(info.mtime))
    except (tarfile.TarError, ValueError, IndexError) as error:
        raise _damaged(f"a header in it can't be read ({error})") from error
    if info.type != tarfile.REGTYPE or info.size < 0:
        raise _damaged(f"its member {info.name[:100]!r} is no ordinary file")
    if not is_ours:
        raise _damaged(f"the header of its member {info.name[:100]!r} is not as 'muster backup' writes it")
    return info.name, info.size


def _damaged(what: str) -> ArchiveError:
    return ArchiveError(f"it is damaged: {what}; take another backup, or fetch this one again from where it was copied")
