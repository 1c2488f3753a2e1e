"""Reads the tar of an image layer, one entry after the other, and trusts nothing in it.

Its own reader, since the library's takes headers of any length into memory and knows kinds that no layer needs. Reads ustar,
pax and GNU long names. Every length is bounded, sparse files and unknown kinds are refused, names are checked for climbing.
Blocking; used in a thread. The stream is read forward only and never beyond what the limits allow.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from typing import Final, Literal, Protocol

import msgspec

Kind = Literal["file", "directory", "symlink", "hardlink", "char", "block", "fifo"]
BLOCK: Final = 512
CHUNK_BYTES: Final = 1024 * 1024
HEADER_BYTES_MAX: Final = 256 * 1024
"""Of one extension header. Longest names are 4 KiB; pax attributes are the rest."""
ID_MAX: Final = 2**32 - 2
_KINDS: Final[dict[bytes, Kind]] = {
    b"0": "file",
    b"\0": "file",
    b"7": "file",
    b"1": "hardlink",
    b"2": "symlink",
    b"3": "char",
    b"4": "block",
    b"5": "directory",
    b"6": "fifo",
}


class LayerError(Exception):
    """The layer can't be used; the message says what is wrong with which entry."""


class Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Of one image, all layers together. What is over is refused, never cut off."""

    bytes_max: int = 20 * 2**30
    entries_max: int = 1_000_000
    name_bytes_max: int = 4096
    depth_max: int = 200


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    parts: tuple[str, ...]
    """Its path, checked: no `..`, nothing empty. Empty: the root itself."""
    kind: Kind
    mode: int
    uid: int
    gid: int
    size: int = 0
    mtime: int = 0
    target: str = ""
    """Of a symlink as it stands; of a hard link a path in the archive."""
    device: tuple[int, int] = (0, 0)


def checked_parts(name: str, limits: Limits, what: str = "name") -> tuple[str, ...]:
    """The parts of a path inside the archive. LayerError for one that is absolute, climbs, or is too long."""
    shown = name[:120]
    if "\0" in name or len(name.encode(errors="surrogateescape")) > limits.name_bytes_max:
        raise LayerError(f"{what} {shown!r}: longer than {limits.name_bytes_max} bytes, or with a NUL")
    if name.startswith("/"):
        raise LayerError(f"{what} {shown!r}: absolute; every path in a layer is relative")
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    if ".." in parts:
        raise LayerError(f"{what} {shown!r}: climbs with `..`")
    if len(parts) > limits.depth_max or any(len(p.encode(errors="surrogateescape")) > 255 for p in parts):
        raise LayerError(f"{what} {shown!r}: deeper than {limits.depth_max}, or a part is longer than 255 bytes")
    return parts


class LayerReader:
    """Iterate over entries; after each one of kind `file`, `chunks()` gives its bytes (what is not taken is skipped)."""

    def __init__(self, stream: Readable, limits: Limits) -> None:
        self._stream = stream
        self._limits = limits
        self._left = 0
        self._padding = 0
        self.offset = 0
        """Of the next byte to be read, from the beginning of the stream."""

    def __iter__(self) -> Iterator[Entry]:
        while (entry := self._next()) is not None:
            yield entry

    def chunks(self) -> Iterator[bytes]:
        while self._left:
            data = self._exactly(min(self._left, CHUNK_BYTES))
            self._left -= len(data)
            yield data

    def drain(self) -> None:
        """To the end of the stream, so that a digest over all of it is complete. Trailing bytes are bounded too."""
        left = self._limits.bytes_max
        while data := self._stream.read(CHUNK_BYTES):
            left -= len(data)
            if left < 0:
                raise LayerError(f"more than {self._limits.bytes_max} bytes follow the end of the archive")

    def _exactly(self, size: int) -> bytes:
        data = self._stream.read(size)
        while len(data) < size:
            more = self._stream.read(size - len(data))
            if not more:
                raise LayerError(f"the archive ends at byte {self.offset + len(data)}, in the middle of an entry")
            data += more
        self.offset += size
        return data

    def _header(self) -> tarfile.TarInfo | None:
        for _ in self.chunks():
            pass
        if self._padding:
            self._exactly(self._padding)
            self._padding = 0
        block = self._stream.read(BLOCK)
        if not block:
            return None
        while len(block) < BLOCK and (more := self._stream.read(BLOCK - len(block))):
            block += more
        self.offset += len(block)
        if not block.strip(b"\0"):
            return None
        try:
            info = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except (tarfile.HeaderError, ValueError, OverflowError) as e:
            raise LayerError(f"no tar header at byte {self.offset - len(block)}: {e}") from e
        if info.size < 0:
            raise LayerError(f"{info.name[:120]!r}: a size of {info.size} bytes")
        return info

    def _extension(self, info: tarfile.TarInfo) -> bytes:
        if info.size > HEADER_BYTES_MAX:
            raise LayerError(f"a header of {info.size} bytes at byte {self.offset}; at most {HEADER_BYTES_MAX} are read")
        data = self._exactly(info.size)
        self._exactly(-info.size % BLOCK)
        return data

    def _next(self) -> Entry | None:
        over: dict[str, str] = {}
        for _ in range(8):
            info = self._header()
            if info is None:
                return None
            if info.type == b"x":
                over.update(_pax(self._extension(info)))
            elif info.type == b"g":
                self._extension(info)  # defaults for all that follow: comments in practice
            elif info.type in (b"L", b"K"):
                text = self._extension(info).split(b"\0", 1)[0].decode("utf-8", "surrogateescape")
                over["path" if info.type == b"L" else "linkpath"] = text
            else:
                return self._entry(info, over)
        raise LayerError(f"too many extension headers before byte {self.offset}")

    def _entry(self, info: tarfile.TarInfo, over: dict[str, str]) -> Entry:
        name = over.get("path", info.name)
        shown = name[:120]
        kind = _KINDS.get(info.type)
        if kind is None or any(key.startswith("GNU.sparse.") for key in over):
            raise LayerError(f"{shown!r}: entries of kind {info.type!r} are not taken (or it is sparse)")
        size = _number(over.get("size"), info.size, shown, "size", 2**62) if kind == "file" else 0
        if size > self._limits.bytes_max:
            raise LayerError(f"{shown!r}: {size} bytes; at most {self._limits.bytes_max} are unpacked")
        entry = Entry(
            parts=checked_parts(name, self._limits),
            kind=kind,
            mode=info.mode & 0o7777,
            uid=_number(over.get("uid"), info.uid, shown, "uid", ID_MAX),
            gid=_number(over.get("gid"), info.gid, shown, "gid", ID_MAX),
            size=size,
            mtime=min(max(int(info.mtime), 0), 2**33),
            target=over.get("linkpath", info.linkname),
            device=(info.devmajor, info.devminor),
        )
        self._left, self._padding = size, -size % BLOCK
        return entry


def _number(text: str | None, default: int, name: str, field: str, most: int) -> int:
    if text is not None and not (text.isascii() and text.isdigit() and len(text) < 20):
        raise LayerError(f"{name!r}: {field} {text[:40]!r} is not a number")
    value = default if text is None else int(text)
    if not 0 <= value <= most:
        raise LayerError(f"{name!r}: {field} {value} is not between 0 and {most}")
    return value


def _pax(data: bytes) -> dict[str, str]:
    """Records are `<length> <key>=<value>\\n`. Extended attributes are left out: nothing here needs one."""
    found: dict[str, str] = {}
    while data:
        digits, blank, _ = data.partition(b" ")
        if not blank or not digits.isdigit() or len(digits) > 7 or not len(digits) + 3 <= int(digits) <= len(data):
            raise LayerError(f"a pax header that can't be read: {data[:40]!r}")
        record, data = data[len(digits) + 1 : int(digits)], data[int(digits) :]
        key, equals, value = record.partition(b"=")
        if not equals or not value.endswith(b"\n"):
            raise LayerError(f"a pax record that can't be read: {record[:40]!r}")
        if not key.startswith((b"SCHILY.", b"LIBARCHIVE.")):
            found[key.decode("utf-8", "surrogateescape")] = value[:-1].decode("utf-8", "surrogateescape")
    return found
