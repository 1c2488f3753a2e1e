"""Request bodies: bytes to JSON values, for JSON and YAML, within limits.

Pure. Whatever the bytes are, the outcome is a value of JSON types within the depth limit, or a `BadRequest` that says where the
text breaks; never another exception, never unbounded work.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec

from muster.objects import yaml_text
from muster.objects.json_numbers import EXTREME_MAX, has_many_extremes
from muster.objects.nesting import is_nested_within
from muster.objects.status import BadRequest

_SHOWN_CHARS_MAX = 200


def decode_json(body: bytes, *, depth_max: int) -> Any:
    """A JSON document. Duplicate keys: the last wins, as in Go; see `duplicate_keys`."""
    if has_many_extremes(body):
        raise BadRequest(
            f"the body has more than {EXTREME_MAX} numbers with an exponent of three digits, such as 1e308; "
            "write them as strings"
        )
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"the body is not valid JSON: {_shown(error)}") from None
    except RecursionError:
        raise BadRequest(f"the body is nested deeper than {depth_max} levels; flatten it") from None
    if not is_nested_within(body, depth_max):
        _check_depth(value, depth_max)
    return value


def decode_yaml(body: bytes, *, depth_max: int, nodes_max: int) -> Any:
    """One YAML document (JSON is YAML too, and decoded as such first)."""
    if body.lstrip()[:1] in (b"{", b"["):
        try:
            return decode_json(body, depth_max=depth_max)
        except BadRequest:
            pass  # a YAML flow mapping may look like this and not be JSON
    try:
        return yaml_text.load(body.decode(), depth_max=depth_max, nodes_max=nodes_max)
    except UnicodeDecodeError as error:
        raise BadRequest(f"the body is not valid YAML: {_shown(error)}") from None
    except yaml_text.YamlError as error:
        at = f"line {error.line}: " if error.line else ""
        raise BadRequest(f"the body is not valid YAML: {at}{_shown(error)}") from None


def duplicate_keys(body: bytes, value: Any, limit: int = 10) -> list[str]:
    """Paths of keys that stand twice in one object of a JSON `body` that is known to be valid, and to be `value`."""
    if _has_all_strings(body, value):
        return []
    marked: dict[int, tuple[dict[str, Any], list[tuple[str, Any]]]] = {}
    """The objects that have such keys, by identity, with what was in them; kept here so that no other gets the same."""

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(items)
        if len(result) != len(items):
            marked[id(result)] = (result, items)
        return result

    try:
        root = json.loads(body, object_pairs_hook=pairs)
    except (ValueError, RecursionError):
        return []
    found: list[str] = []
    places: list[Iterator[tuple[str, Any]]] = [iter([("", root)] if marked else [])]
    """What is still to be looked at, the innermost last. Not more of it is made than is looked at: there may be very many."""
    while places and len(found) < limit:
        path, part = next(places[-1], ("", None))
        if part is None:
            places.pop()
        elif isinstance(part, dict):
            if id(part) in marked:
                found += [f"{path}.{key}" if path else key for key in _again(marked[id(part)][1])]
            places.append(_members(path, part))
        else:
            places.append(_items(path, part))
    return found[:limit]


def _again(items: list[tuple[str, Any]]) -> list[str]:
    """The keys that stand there more than once, in the order in which they do so."""
    seen: set[str] = set()
    again: dict[str, None] = {}
    for key, _ in items:
        if key in seen:
            again[key] = None
        seen.add(key)
    return list(again)


def _members(path: str, part: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    return ((f"{path}.{key}" if path else key, inner) for key, inner in part.items() if isinstance(inner, dict | list))


def _items(path: str, part: list[Any]) -> Iterator[tuple[str, Any]]:
    return ((f"{path}[{index}]", inner) for index, inner in enumerate(part) if isinstance(inner, dict | list))


def _has_all_strings(body: bytes, value: Any) -> bool:
    """Whether no string of `body`, and so no key, is missing in `value`. Quick, because nearly all bodies are so: of each key
    that stands twice one is lost in decoding, and with it at least two quotation marks."""
    if b"\\u0022" in body:  # a quotation mark by its number: it comes back as \" and would make up for one that is lost
        return False
    try:
        return body.count(b'"') == msgspec.json.encode(value).count(b'"')
    except (TypeError, ValueError, OverflowError, RecursionError):
        return False


def _check_depth(value: Any, depth_max: int) -> None:
    level: list[Any] = [[value]]
    for _ in range(depth_max + 2):
        # A million of them is a small body, so this is a loop without calls; decoding makes these very types.
        level = [
            inner
            for outer in level
            for inner in (outer.values() if type(outer) is dict else outer)
            if type(inner) is list or type(inner) is dict
        ]
        if not level:
            return
    raise BadRequest(f"the body is nested deeper than {depth_max} levels; flatten it")


def _shown(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= _SHOWN_CHARS_MAX else text[:_SHOWN_CHARS_MAX] + "..."
