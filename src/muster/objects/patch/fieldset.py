"""Sets of field paths, in the form in which Kubernetes writes them (`fieldsV1`).

A set is a tree of path elements: `f:name` a member of an object, `k:{"name":"x"}` an item of a list by its keys, `v:"a"` an
item by its value, `i:0` an item by its place. A node that is empty, or that holds `.`, is itself in the set; others only lead
there. Sets are worked on in this very form: taking a few paths out of a large set touches a few nodes, and a set that did not
change is the same object as before.

Pure. Every function treats its arguments as immutable and may return parts of them. No set has a node that leads nowhere.
The elements of each node are in order, so that equal sets give equal text, wherever they were made: functions that take such
sets return such sets.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from muster.objects.patch.common import DEPTH_MAX
from muster.objects.patch.shape import canonical_element

Fields = dict[str, Any]
"""A set of paths. The empty dict is the empty set (at the root; further down it is a member)."""

Path = tuple[str, ...]

NO_FIELDS: Final[Fields] = {}
SELF: Final = "."


_KNOWN_MAX: Final = 512
_KNOWN_TEXT_MAX: Final = 8192
"""How many texts of sets are remembered, and up to which length."""
_UID: Final = re.compile(rb'"k:\{\\"uid\\":\\"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\\"\}"')
_ANY_UID: Final = rb'"k:{\\"uid\\":\\"00000000-0000-4000-8000-000000000000\\"}"'


def parse_fields(raw: Any) -> Fields:
    """A set that came from outside, checked, in canonical form and in order: `raw` itself if it is all that already.

    ValueError says what is wrong.
    """
    if not isinstance(raw, dict):
        raise ValueError(f"fieldsV1 must be an object, not {type(raw).__name__}")
    try:
        text = msgspec.json.encode(raw)
        if len(text) <= _KNOWN_TEXT_MAX and _is_canonical(alike(text)):
            return raw
    except (TypeError, ValueError, OverflowError, RecursionError):
        pass
    return _parse(raw, DEPTH_MAX + 5)


def alike(text: bytes) -> bytes:
    """The same for sets that differ only in the uid of an owner, as those of all pods do. One uid alone has no neighbour that
    it could be out of order with, so it does not matter which it is."""
    plain, count = _UID.subn(_ANY_UID, text, count=2)
    return plain if count == 1 else text


@functools.lru_cache(maxsize=_KNOWN_MAX)
def _is_canonical(text: bytes) -> bool:
    """Whether the set with this text is in canonical form and in order. ValueError when it is none.

    The same sets come again and again: every write reads those of its object, and objects that were made alike have equal ones.
    """
    fields = msgspec.json.decode(text)
    return _parse(fields, DEPTH_MAX + 5) is fields


def _parse(raw: Fields, depth_left: int) -> Fields:
    if depth_left == 0:
        raise ValueError(f"fieldsV1 is nested more than {DEPTH_MAX} levels deep")
    out: Fields = {}
    is_same, last = True, ""
    for element, inner in raw.items():
        if type(inner) is not dict:
            raise ValueError(f"fieldsV1 holds {type(inner).__name__} at {element[:80]!r}; it may hold objects only")
        if element == SELF:
            canonical, below = SELF, {} if inner else inner
        else:
            canonical = canonical_element(element)
            below = _parse(inner, depth_left - 1) if inner else inner
        out[canonical] = below
        if below is not inner or canonical != element or element <= last:
            is_same = False
        last = element
    return raw if is_same else in_order(out)


def is_member(node: Fields | None) -> bool:
    """Whether the path that leads to `node` is in the set."""
    return node is not None and (not node or SELF in node)


def union(left: Fields, right: Fields) -> Fields:
    if not right or left is right:
        return left
    if not left:
        return right
    out = dict(left)
    for element, inner in right.items():
        mine = out.get(element)
        out[element] = inner if mine is None else _joined(mine, inner)
    return out if len(out) == len(left) else in_order(out)


def union_all(sets: Sequence[Fields]) -> Fields:
    """All of them together, joined in pairs: one after the other, the sum would be copied for each."""
    left = list(sets)
    while len(left) > 1:
        left = [union(*left[at : at + 2]) if at + 1 < len(left) else left[at] for at in range(0, len(left), 2)]
    return left[0] if left else {}


def _joined(left: Fields, right: Fields) -> Fields:
    """Two nodes of the same path."""
    if not left or not right:
        node = left or right
        return node if not node or SELF in node else {SELF: {}, **node}
    return union(left, right)


def intersection(left: Fields, right: Fields) -> Fields:
    out: Fields = {}
    small, large = (left, right) if len(left) <= len(right) else (right, left)
    for element, inner in small.items():
        other = large.get(element)
        if other is None or element == SELF:
            continue
        node = node_of(intersection(inner, other), is_member(inner) and is_member(other))
        if node is not None:
            out[element] = node
    return out


def difference(left: Fields, right: Fields) -> Fields:
    """The paths of `left` that are not in `right`. Taking away a path leaves what is below it."""
    out = left
    for element in left if len(left) < len(right) else right:
        inner, other = left.get(element), right.get(element)
        if inner is None or other is None or element == SELF:
            continue
        rest = _reduced(inner, other)
        if rest is inner:
            continue
        if out is left:
            out = dict(left)
        if rest is None:
            del out[element]
        else:
            out[element] = rest
    return out


def _reduced(node: Fields, other: Fields) -> Fields | None:
    """What is left of a node without the paths of `other`, the node of the same path; `node` itself if that is all of it."""
    if not node:
        return None if is_member(other) else node
    rest = difference(node, other)
    if SELF in rest:
        if is_member(other):
            rest = {element: inner for element, inner in rest.items() if element != SELF}
        elif len(rest) == 1:
            return {}
    return rest or None


def in_order(fields: Fields) -> Fields:
    """The set with its own elements in order; those of the nodes below are already."""
    return {element: fields[element] for element in sorted(fields)}


def paths(fields: Fields) -> Iterator[Path]:
    """All paths in the set, each parent before what is below it."""
    for element in sorted(fields):
        inner = fields[element]
        if element == SELF:
            continue
        if is_member(inner):
            yield (element,)
        for path in paths(inner):
            yield (element, *path)


def path_text(path: Path) -> str:
    """`.spec.containers[name="x"].image`: how messages write a path."""
    return "".join(_element_text(element) for element in path)


def _element_text(element: str) -> str:
    prefix, body = element[:2], element[2:]
    if prefix == "f:":
        return f".{body}"
    if prefix == "k:":
        pairs = json.loads(body)
        return "[" + ",".join(f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in pairs.items()) + "]"
    return f"[={body}]" if prefix == "v:" else f"[{body}]"


def node_of(below: Fields, member: bool) -> Fields | None:
    """The node for a path with `below` under it; None when there is nothing left of it."""
    if not below:
        return {} if member else None
    return {SELF: {}, **below} if member else below
