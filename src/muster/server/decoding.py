"""Request bodies: bytes to JSON values, for JSON and YAML, within limits.

Pure. Whatever the bytes are, the outcome is a value of JSON types within the depth limit, or a `BadRequest` that says where the
text breaks; never another exception, never unbounded work.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from muster.objects import yaml_text
from muster.objects.status import BadRequest

_SHOWN_CHARS_MAX = 200


def decode_json(body: bytes, *, depth_max: int) -> Any:
    """A JSON document. Duplicate keys: the last wins, as in Go; see `duplicate_keys`."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"the body is not valid JSON: {_shown(error)}") from None
    except RecursionError:
        raise BadRequest(f"the body is nested deeper than {depth_max} levels; flatten it") from None
    # A cheap upper bound first: most bodies have fewer brackets in all than the depth that is allowed.
    if body.count(b"{") + body.count(b"[") > depth_max:
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
    marked: dict[int, tuple[dict[str, Any], list[str]]] = {}
    """The objects that have such keys, by identity; they are kept here so that no other gets the same."""

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(items)
        if len(result) != len(items):
            seen: set[str] = set()
            again = [key for key, _ in items if key in seen or seen.add(key)]  # type: ignore[func-returns-value]
            marked[id(result)] = (result, list(dict.fromkeys(again)))
        return result

    try:
        root = json.loads(body, object_pairs_hook=pairs)
    except (ValueError, RecursionError):
        return []
    found: list[str] = []
    places: list[tuple[str, Any]] = [("", root)] if marked else []
    while places and len(found) < limit:
        path, part = places.pop()
        if isinstance(part, dict):
            start = f"{path}." if path else ""
            found += [start + key for key in marked.get(id(part), (part, []))[1]]
            places += [(start + key, inner) for key, inner in reversed(part.items()) if isinstance(inner, dict | list)]
        elif isinstance(part, list):
            places += [(f"{path}[{index}]", inner) for index, inner in reversed(list(enumerate(part)))]
    return found[:limit]


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
