"""Events that a store of format 1 kept under `events.k8s.io`, apart from those of `v1`, become ones of `v1` as all Events are.

A step of `migrations.py`; also taken over what a backup of such a store held. Each row keeps its version, its place in the
history and its uid. Where `v1` has used the name too, the object that moves gets another one, because there is one set of names
now. A row that is damaged stops it all, and nothing is changed.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any, Final

import apsw
import msgspec

from muster.objects.kinds.events import renamed
from muster.store.embedded.errors import StoreCorrupt
from muster.store.embedded.records import Key, decode, encode

_FROM: Final = "events.events.k8s.io"
_TO: Final = "events"
_SUFFIX: Final = ".events.k8s.io"
_NAME_LEN_MAX: Final = 253


def move_events(connection: apsw.Connection, path: Path) -> None:
    """In the transaction that is open. Raises apsw.Error or StoreCorrupt."""
    execute = connection.execute
    rows: list[Any] = execute(
        "SELECT rv, namespace, name, value, crc FROM log WHERE resource = ? ORDER BY rv", (_FROM,)
    ).fetchall()
    if not rows:
        return
    used: list[Any] = execute("SELECT DISTINCT namespace, name FROM log WHERE resource = ?", (_TO,)).fetchall()
    taken: set[Key] = set(used)
    names: dict[Key, str] = {}
    for rv, namespace, name, value, crc in rows:
        if (namespace, name) not in names:
            chosen = names[namespace, name] = _free_name(namespace, name, taken)
            taken.add((namespace, chosen))
        if zlib.crc32(value) != crc:
            raise StoreCorrupt(path, f"version {rv} of {_FROM} {namespace}/{name} does not match its checksum")
        moved = _moved(value, names[namespace, name])
        if moved is None:
            raise StoreCorrupt(path, f"version {rv} of {_FROM} {namespace}/{name} can't be read: it is no object")
        execute(
            "UPDATE log SET resource = ?, name = ?, value = ?, crc = ? WHERE rv = ?",
            (_TO, names[namespace, name], moved, zlib.crc32(moved), rv),
        )


def _free_name(namespace: str, name: str, taken: set[Key]) -> str:
    chosen, number = name, 0
    while (namespace, chosen) in taken:
        suffix = f"{_SUFFIX}.{number}" if number else _SUFFIX
        chosen, number = name[: _NAME_LEN_MAX - len(suffix)].rstrip("-.") + suffix, number + 1
    return chosen


def _moved(value: bytes, name: str) -> bytes | None:
    try:
        raw = decode.decode(value)
    except msgspec.DecodeError:
        return None
    if not isinstance(raw, dict) or not isinstance(raw.get("metadata"), dict):
        return None
    raw = renamed(raw)
    raw["apiVersion"] = "v1"
    raw["metadata"]["name"] = name
    return encode(raw)
