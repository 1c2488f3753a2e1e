"""What all kinds of patches share: limits, copies, and equality as JSON means it.

Patches and the objects they make come from the network, so nesting is bounded before anything recurses: what is deeper than
`DEPTH_MAX` is refused as a bad request.

Pure.
"""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec

from muster.objects.nesting import is_nested_within
from muster.objects.status import BadRequest

DEPTH_MAX: Final = 100
"""Levels of objects and lists inside each other that an object or a patch may have."""

STORED_DEPTH_MAX: Final = DEPTH_MAX + 20
"""`metadata.managedFields` mirrors the object a few levels further down, so a valid object's own record is a bit deeper."""

_encode: Final = msgspec.json.Encoder(order="deterministic").encode
"""JSON with the keys of objects in order: equal values give equal text, but for numbers written in several ways."""


_encode_plain: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder().decode


class Absent:
    """The type of `ABSENT`, which stands for a field that is not there, where None is a value."""


ABSENT: Final = Absent()


def clone(value: Any, what: str = "the object") -> Any:
    """A copy that shares nothing that can change with `value`. BadRequest when it is nested too deeply."""
    if not _is_container(value):
        return value
    # By way of JSON it takes a fraction of the time.
    text = _flat_text(value, STORED_DEPTH_MAX)
    # A null may stand for a number that JSON does not have.
    return _clone(value, STORED_DEPTH_MAX, what) if text is None or b"null" in text else _decode(text)


def clone_bounded(value: Any) -> Any:
    """`clone` of something that can't be nested too deeply, and has no null in it."""
    try:
        return _decode(_encode_plain(value))
    except (TypeError, ValueError, OverflowError, RecursionError):
        return clone(value)


def _clone(value: Any, depth_left: int, what: str) -> Any:
    # Every patch copies whole objects, so this is written for speed: exact types, no call for a scalar.
    if depth_left == 0:
        raise too_deep(what)
    depth_left -= 1
    if not value:
        return {} if isinstance(value, dict) else []
    if isinstance(value, dict):
        return {k: _clone(v, depth_left, what) if type(v) is dict or type(v) is list else v for k, v in value.items()}
    return [_clone(v, depth_left, what) if type(v) is dict or type(v) is list else v for v in value]


def _is_container(value: Any) -> bool:
    return isinstance(value, (dict, list))


def check_depth(value: Any, what: str, depth_max: int = DEPTH_MAX) -> None:
    """BadRequest when `value` is nested more than `depth_max` levels deep. Walks level by level, so depth costs no stack."""
    if _flat_text(value, depth_max) is not None:
        return
    level: list[Any] = [value] if _is_container(value) else []
    for _ in range(depth_max + 1):
        if not level:
            return
        level = _containers_in(level)
    raise too_deep(what, depth_max)


def _flat_text(value: Any, depth_max: int) -> bytes | None:
    """`value` as JSON, if it is known to be nested at most so many levels deep."""
    try:
        text = _encode_plain(value)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return None
    return text if is_nested_within(text, depth_max) else None


def holds_null(value: Any) -> bool:
    """Whether there is a null anywhere in `value`, of which the depth is bounded."""
    try:
        if b"null" not in _encode_plain(value):
            return False
    except (TypeError, ValueError, OverflowError, RecursionError):
        pass
    level: list[Any] = [value] if _is_container(value) else []
    while level:
        if any(None in (node.values() if type(node) is dict else node) for node in level):
            return True
        level = _containers_in(level)
    return False


def _containers_in(nodes: list[Any]) -> list[Any]:
    # Runs on every write. Most values are text, and many of the others empty: both are passed over at once.
    return [
        part
        for node in nodes
        if node
        for part in (node.values() if type(node) is dict else node)
        if type(part) is not str and (type(part) is dict or type(part) is list)
    ]


def too_deep(what: str, depth_max: int = DEPTH_MAX) -> BadRequest:
    return BadRequest(f"{what} is nested more than {depth_max} levels deep; flatten it")


def json_equal(left: Any, right: Any) -> bool:
    """Equality of JSON values: numbers by value (1 is 1.0), true is not 1, objects regardless of the order of their keys."""
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(json_equal(value, right[key]) for key, value in left.items())
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(json_equal(a, b) for a, b in zip(left, right, strict=True))
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    return bool(left == right)


def is_same_json(left: Any, right: Any) -> bool:
    """`json_equal`, quick when the answer is yes or plainly no. `==` alone would take true for 1."""
    try:
        if left != right:
            return False
        if type(left) is type(right) and _encode(left) == _encode(right):
            return True
    except (TypeError, ValueError, OverflowError, RecursionError):
        pass
    return json_equal(left, right)


def is_scalar(value: Any) -> bool:
    return not isinstance(value, (dict, list))


def identity(value: Any) -> str:
    """A key for `value` in a dict: equal JSON values have equal keys, others differ."""
    plain = value if type(value) is str else _numbers_alike(value)
    try:
        return _encode(plain).decode()
    except (TypeError, ValueError, OverflowError):
        # Lone surrogates and numbers of more than 64 bits: rare, but JSON.
        return json.dumps(plain, sort_keys=True, separators=(",", ":"))


def _numbers_alike(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: inner if type(inner) is str else _numbers_alike(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_numbers_alike(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
