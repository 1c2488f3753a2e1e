"""JSON patch (RFC 6902): a list of operations, done in order, all or none.

Pure; neither argument is changed, and the result shares nothing with them. Errors name the operation by its number and the
path: what is no list of operations is a BadRequest; an operation that is malformed or does not fit the document is Invalid
(422), as Kubernetes answers. Like there, and beyond the RFC, a negative index counts from the end of the list (-1 is its last
item, and where `add` puts something behind it), and a member that is not there is null to `test`.

Bounded: the number of operations, what `copy` may add in all (a few copies of copies would grow without end), what operations
on long lists may move, and nesting. `test` needs no bound of its own: one that passes costs what its value does, which the
client had to send, and one that fails is the last.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from muster.objects.patch.common import check_depth, clone, json_equal
from muster.objects.status import ApiError, BadRequest, Cause, Invalid, Raw, RequestEntityTooLarge, shown

OPERATIONS_MAX: Final = 10_000
_COPIED_MAX: Final = 4 * 1024 * 1024
"""Characters and values that the copy operations of one patch may add together."""
_MOVED_MAX: Final = 50_000_000
"""Items that one patch may shift by inserting before them or removing what is before them."""
_POINTER_TOKENS_MAX: Final = 200
_INDEX: Final = re.compile(r"[+-]?[0-9]{1,9}", re.ASCII)
_NEEDS: Final = {
    "add": ("path", "value"),
    "replace": ("path", "value"),
    "test": ("path", "value"),
    "remove": ("path",),
    "move": ("from", "path"),
    "copy": ("from", "path"),
}


def apply_json_patch(doc: Mapping[str, Any], operations: Sequence[Any]) -> Raw:
    """`doc` after all `operations`. The result must be an object again."""
    result = patch_document(dict(doc), operations)
    if not isinstance(result, dict):
        raise Invalid(f"the JSON patch leaves {shown(result)} where an object must be; it may not remove or replace the whole")
    return result


def patch_document(doc: Any, operations: Sequence[Any]) -> Any:
    """The same for any JSON document."""
    if isinstance(operations, str | bytes) or not isinstance(operations, Sequence):
        raise BadRequest(f"a JSON patch is a list of operations, not {shown(operations)}")
    if len(operations) > OPERATIONS_MAX:
        raise RequestEntityTooLarge(
            f"a JSON patch may have {OPERATIONS_MAX} operations; this one has {len(operations)}: send it in parts"
        )
    work = _Work(clone(doc))
    for number, operation in enumerate(operations):
        work.number = number
        work.do(operation)
    check_depth(work.root, "the patched object", depth_max=120)
    return work.root


class _Work:
    """The document while it is being patched. It is private to one call, so operations change it in place."""

    def __init__(self, root: Any) -> None:
        self.root = root
        self.number = 0
        self._copied = 0
        self._moved = 0

    def do(self, operation: Any) -> None:
        if not isinstance(operation, dict):
            raise BadRequest(f"JSON patch operation {self.number} is {shown(operation)}, not an object with op and path")
        op = operation.get("op")
        if not isinstance(op, str) or op not in _NEEDS:
            raise Invalid(f"JSON patch operation {self.number}: op is {shown(op)}; it must be one of {', '.join(_NEEDS)}")
        for member in _NEEDS[op]:
            if member not in operation:
                raise Invalid(f"JSON patch operation {self.number}: {op} needs the member {member!r}")
        path = self._pointer(operation["path"], "path")
        match op:
            case "add":
                self._add(path, self._value(operation))
            case "remove":
                self._remove(path)
            case "replace":
                self._replace(path, self._value(operation))
            case "move":
                self._move(self._pointer(operation["from"], "from"), path)
            case "copy":
                self._copy(self._pointer(operation["from"], "from"), path)
            case "test":
                self._test(path, operation["value"])

    def _value(self, operation: Raw) -> Any:
        value = operation["value"]
        check_depth(value, f"the value of JSON patch operation {self.number}")
        return clone(value)

    def _pointer(self, text: Any, member: str) -> list[str]:
        """The tokens of a JSON pointer (RFC 6901)."""
        if not isinstance(text, str) or (text and not text.startswith("/")):
            raise Invalid(
                f"JSON patch operation {self.number}: {member} is {shown(text)}; a pointer is empty or begins with '/', "
                "as in /spec/replicas"
            )
        tokens = text.split("/")[1:]
        if len(tokens) > _POINTER_TOKENS_MAX:
            raise Invalid(f"JSON patch operation {self.number}: {member} has more than {_POINTER_TOKENS_MAX} parts")
        if re.search(r"~(?![01])", text):
            raise Invalid(f"JSON patch operation {self.number}: in {member} {shown(text)} '~' must be followed by 0 or 1")
        return [token.replace("~1", "/").replace("~0", "~") for token in tokens]

    def _find(self, path: list[str]) -> Any:
        node = self.root
        for depth, token in enumerate(path):
            node = self._child(node, token, path[: depth + 1])
        return node

    def _child(self, node: Any, token: str, path: list[str]) -> Any:
        return node[self._key(node, token, path)]

    def _key(self, node: Any, token: str, path: list[str]) -> Any:
        """Under what `node` has the member or the item that `token` names."""
        if isinstance(node, dict):
            if token not in node:
                raise self._unfit(path, "there is no such member")
            return token
        if isinstance(node, list):
            return self._index(token, len(node) - 1, path)
        raise self._unfit(path, f"its parent is {shown(node)}, neither an object nor a list")

    def _index(self, token: str, index_max: int, path: list[str]) -> int:
        if not _INDEX.fullmatch(token):
            raise self._unfit(path, f"{token[:40]!r} is not an index of a list")
        index, places = int(token), index_max + 1
        if not -places <= index < places:
            raise self._unfit(path, f"index {index} is out of bounds; the list has {places} places")
        return index if index >= 0 else index + places

    def _add(self, path: list[str], value: Any) -> None:
        if not path:
            self.root = value
            return
        parent, last = self._find(path[:-1]), path[-1]
        if isinstance(parent, dict):
            parent[last] = value
        elif isinstance(parent, list):
            index = len(parent) if last == "-" else self._index(last, len(parent), path)
            self._shift(len(parent) - index, path)
            parent.insert(index, value)
        else:
            raise self._unfit(path, f"its parent is {shown(parent)}, neither an object nor a list")

    def _remove(self, path: list[str]) -> Any:
        if not path:
            removed, self.root = self.root, None
            return removed
        parent = self._find(path[:-1])
        key = self._key(parent, path[-1], path)
        if isinstance(parent, list):
            self._shift(len(parent) - key, path)
        return parent.pop(key)

    def _shift(self, count: int, path: list[str]) -> None:
        self._moved += count
        if self._moved > _MOVED_MAX:
            raise RequestEntityTooLarge(
                f"JSON patch operation {self.number} at {_text(path)[:200]!r}: the operations up to here shift more than "
                f"{_MOVED_MAX} items of lists; replace the list as a whole, or work from its end"
            )

    def _replace(self, path: list[str], value: Any) -> None:
        if not path:
            self.root = value
            return
        parent = self._find(path[:-1])
        parent[self._key(parent, path[-1], path)] = value

    def _move(self, source: list[str], path: list[str]) -> None:
        if len(source) < len(path) and path[: len(source)] == source:
            raise self._unfit(path, f"{_text(source)!r} can't be moved into itself")
        value = self._find(source)
        if source == path:
            return
        self._remove(source)
        self._add(path, value)

    def _copy(self, source: list[str], path: list[str]) -> None:
        value = self._find(source)
        self._copied += _size(value, _COPIED_MAX - self._copied)
        if self._copied > _COPIED_MAX:
            raise RequestEntityTooLarge(
                f"JSON patch operation {self.number}: the copy operations add more than {_COPIED_MAX} characters; copy less"
            )
        # Copies may nest the document into itself; its depth is checked here so that copying can't run out of stack.
        check_depth(value, f"what JSON patch operation {self.number} copies")
        self._add(path, clone(value))

    def _test(self, path: list[str], expected: Any) -> None:
        check_depth(expected, f"the value of JSON patch operation {self.number}")
        if expected is None and path and isinstance(parent := self._find(path[:-1]), dict) and path[-1] not in parent:
            return
        actual = self._find(path)
        check_depth(actual, f"what JSON patch operation {self.number} tests", depth_max=200)
        if not json_equal(actual, expected):
            raise self._unfit(path, f"test failed: it is {shown(actual)}, not {shown(expected)}")

    def _unfit(self, path: list[str], problem: str) -> ApiError:
        pointer = _text(path)
        message = f"JSON patch operation {self.number} at {pointer[:200]!r}: {problem}"
        return Invalid(message, causes=[Cause(field=pointer[:200], message=problem)])


def _text(path: list[str]) -> str:
    return "".join("/" + token.replace("~", "~0").replace("/", "~1") for token in path)


def _size(value: Any, size_max: int) -> int:
    """Roughly how much text `value` is, without recursion; counts no further than just above `size_max`."""
    size, pending = 0, [value]
    while pending and size <= size_max:
        node = pending.pop()
        size += 8 + (len(node) if isinstance(node, str) else 0)
        if isinstance(node, dict):
            size += sum(len(key) for key in node)
            pending += node.values()
        elif isinstance(node, list):
            pending += node
    return size
