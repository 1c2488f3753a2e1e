"""Request bodies in Kubernetes' protobuf form, as kubectl's and client-go's typed clients send them; answers are always JSON.

A body is `k8s\\0`, then an envelope with apiVersion and kind, then the message. The shapes of the messages (field numbers and
JSON names, facts of Kubernetes' API) are in `protobuf_types.txt`. What comes out is the JSON that the client would have sent.

Pure. A field that the table does not know is never dropped silently, unless it is empty: the body is refused with 415 and the
advice to send JSON. Malformed bytes give BadRequest; nesting is bounded.
"""

from __future__ import annotations

import base64
import functools
import importlib.resources
import struct
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from muster.objects.status import BadRequest, Raw, UnsupportedMediaType
from muster.objects.time import FIRST_S, LAST_S, format_micro_time, format_time

MEDIA_TYPE = "application/vnd.kubernetes.protobuf"
MAGIC = b"k8s\x00"
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_ZERO_TIME_S = -62135596800  # year 1: what Go writes for a time that is not set
_SCALARS = frozenset({"string", "bool", "int", "double"})


class _Field(msgspec.Struct, frozen=True):
    name: str
    """JSON name; "" for a message whose fields lie flat in its parent."""
    type: str
    is_list: bool = False
    is_map: bool = False
    keeps_zero: bool = False


Message = Mapping[int, _Field]


@functools.cache
def _types() -> Mapping[str, Message]:
    text = importlib.resources.files("muster.server").joinpath("protobuf_types.txt").read_text()
    types: dict[str, Message] = {}
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        name, *fields = line.split(" ")
        package = name.rpartition(".")[0]
        types[name] = dict(_field(field, package) for field in fields if field)
    return types


def _field(text: str, package: str) -> tuple[int, _Field]:
    number, name, code = text.split(":", 2)
    bare = code.lstrip("[{*!")
    return int(number), _Field(
        name="" if name == "+" else name,
        type=package + bare if bare.startswith(".") else bare,
        is_list="[" in code,
        is_map="{" in code,
        keeps_zero=code.startswith(("*", "!")),
    )


def decode_protobuf(body: bytes, *, depth_max: int, api_version: str = "", kind: str = "") -> Raw:
    """The object in `body`. `api_version` and `kind` are what the request expects, for envelopes that do not say."""
    if not body.startswith(MAGIC):
        raise BadRequest(f"the body is not {MEDIA_TYPE}: it does not begin with the bytes 6b 38 73 00")
    try:
        envelope = dict(_read(memoryview(body)[len(MAGIC) :]))
        about = {number: bytes(value).decode() for number, value in _read(envelope.get(1, b""))}
        raw_body = envelope.get(2, b"")
        api_version, kind = about.get(1) or api_version, about.get(2) or kind
        message = _find(api_version, kind)
        decoded = _message(memoryview(raw_body), message, depth_max)
    except (ValueError, TypeError, IndexError, struct.error, OverflowError) as error:
        raise BadRequest(f"the body is not a valid {MEDIA_TYPE} message: {error!s:.150}") from None
    return {"apiVersion": api_version, "kind": kind, **decoded}


def _find(api_version: str, kind: str) -> str:
    if kind == "DeleteOptions":
        return "meta/v1.DeleteOptions"
    group, _, version = api_version.rpartition("/")
    name = f"{group.partition('.')[0] or 'core'}/{version}.{kind}"
    if name not in _types():
        raise UnsupportedMediaType(
            f"{kind[:80]} in {api_version[:80]} can't be read as {MEDIA_TYPE} - accepted media types include: application/json"
        )
    return name


def _read(data: Any) -> Iterator[tuple[int, Any]]:
    """(field number, value) of a message: integers for varints, memoryviews for the rest."""
    view = memoryview(data)
    position, end = 0, len(view)
    while position < end:
        key, position = _varint(view, position)
        number, wire = key >> 3, key & 7
        if wire == _VARINT:
            value, position = _varint(view, position)
            yield number, value
            continue
        if wire == _BYTES:
            length, position = _varint(view, position)
        elif wire in (_FIXED64, _FIXED32):
            length = 8 if wire == _FIXED64 else 4
        else:
            raise ValueError(f"wire type {wire} at byte {position}")
        if position + length > end:
            raise ValueError(f"a field of {length} bytes at byte {position} goes beyond its message")
        yield number, view[position : position + length]
        position += length


def _varint(view: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = view[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 63:
            raise ValueError(f"a number at byte {position} has too many digits")


def _message(data: memoryview, name: str, depth: int) -> Raw:
    if depth <= 0:
        raise ValueError("it is nested too deeply")
    fields = _types()[name]
    result: Raw = {}
    for number, value in _read(data):
        field = fields.get(number)
        if field is None:
            if value if isinstance(value, int) else len(value):
                raise UnsupportedMediaType(
                    f"field {number} of {name} is not known here in protobuf form - send application/json instead"
                )
            continue
        _set(result, field, value, depth)
    return result


def _set(result: Raw, field: _Field, value: Any, depth: int) -> None:
    if field.is_map:
        # Either half of an entry may be absent, which means its zero.
        entry = dict(_read(value))
        key = bytes(entry.get(1, b"")).decode()
        result.setdefault(field.name, {})[key] = _value(field.type, entry.get(2, b""), depth)
    elif field.is_list:
        items = result.setdefault(field.name, [])
        if field.type == "int" and not isinstance(value, int):
            items += _packed(value)
        else:
            items.append(_value(field.type, value, depth))
    elif not field.name:
        result.update(_message(memoryview(value), field.type, depth - 1))
    else:
        decoded = _value(field.type, value, depth)
        is_zero = decoded in (0, "", False, None) and field.type in (*_SCALARS, "time", "microtime", "intstr", "json")
        if not is_zero or (field.keeps_zero and decoded is not None):
            result[field.name] = decoded


def _packed(value: memoryview) -> list[int]:
    numbers = []
    position = 0
    while position < len(value):
        number, position = _varint(value, position)
        numbers.append(_signed(number))
    return numbers


def _signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number


def _value(type_: str, value: Any, depth: int) -> Any:
    match type_:
        case "string":
            return bytes(value).decode()
        case "bool":
            return bool(_number(value))
        case "int":
            return _signed(_number(value))
        case "double":
            return struct.unpack("<d", value)[0]
        case "bytes":
            return base64.b64encode(value).decode()
        case "time" | "microtime":
            return _time(value, format_time if type_ == "time" else format_micro_time)
        case "duration":
            return f"{_signed(dict(_read(value)).get(1, 0)) / 1e9:g}s"
        case "quantity":
            return bytes(dict(_read(value)).get(1, b"")).decode() or "0"
        case "intstr":
            parts = dict(_read(value))
            return bytes(parts.get(3, b"")).decode() if parts.get(1, 0) == 1 else _signed(parts.get(2, 0))
        case "json":
            raw = bytes(dict(_read(value)).get(1, b""))
            return msgspec.json.decode(raw) if raw else None
        case "items":
            return [bytes(item).decode() for number, item in _read(value) if number == 1]
    return _message(memoryview(value), type_, depth - 1)


def _number(value: Any) -> int:
    if not isinstance(value, int):
        raise TypeError("text where a number belongs")
    return value


def _time(value: Any, form: Any) -> str | None:
    parts = dict(_read(value))
    seconds = _signed(parts.get(1, 0))
    if not parts or seconds == _ZERO_TIME_S:
        return None
    if not FIRST_S <= seconds <= LAST_S:
        raise ValueError(f"a time of {seconds} s is beyond the years 1 to 9999")
    text: str = form(seconds + _signed(parts.get(2, 0)) / 1e9)
    return text
