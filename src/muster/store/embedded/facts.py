"""What a record keeps beside its bytes, read from JSON without decoding the rest of the object.

A store that opens reads every version of every object once, and needs a dozen values of each: who it is, its labels and owners,
the fields that it can be selected by. Decoding those alone takes a quarter of the time of decoding all. The rest is passed
over, but still has to be JSON.

Pure; the decoders are made once per set of fields and shared.
"""

from __future__ import annotations

import functools
from typing import Any, TypedDict

import msgspec

from muster.objects.status import Raw
from muster.store.embedded.records import FieldPaths, decode

_METADATA = ("uid", "labels", "ownerReferences", "finalizers", "deletionTimestamp")
"""What `record_of` reads besides the selectable fields."""
_make_typed_dict: Any = TypedDict
Wanted = dict[str, "Wanted"]
"""Members of an object: those without members of their own are decoded whole."""


def facts_of(value: bytes, field_paths: FieldPaths) -> Raw:
    """As much of the object as `record_of` reads. Raises msgspec.DecodeError for what is no JSON."""
    try:
        found: Raw = _decoder(tuple(field_paths)).decode(value)
    except msgspec.ValidationError:
        # Somewhere on the way to a field there is no object: whoever decodes all of it sees the same, and decides.
        found = decode.decode(value)
    return found


@functools.lru_cache(maxsize=1024)
def _decoder(field_paths: FieldPaths) -> msgspec.json.Decoder[Any]:
    if not all(path.isascii() for path, _ in field_paths):
        return decode  # msgspec does not find such names in the members of a type
    wanted: Wanted = {"apiVersion": {}, "metadata": {name: {} for name in _METADATA}}
    for _, parts in sorted(field_paths, key=lambda path: len(path[1])):
        _want(wanted, parts)
    return msgspec.json.Decoder(_type_of(wanted))


def _want(wanted: Wanted, parts: tuple[str, ...]) -> None:
    for number, part in enumerate(parts):
        if part in wanted and not wanted[part]:
            return  # it is decoded whole already
        wanted = wanted.setdefault(part, {})
        if number == len(parts) - 1:
            wanted.clear()


def _type_of(wanted: Wanted) -> Any:
    members = {name: _type_of(below) | None if below else Any for name, below in wanted.items()}
    return _make_typed_dict("Facts", members, total=False)
