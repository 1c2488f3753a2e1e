"""Strategic merge patch: a merge patch that knows which lists have keys.

Which lists those are says the schema (`x-kubernetes-patch-strategy`, `x-kubernetes-patch-merge-key`); what shall happen beyond
merging says the patch itself:

- `$patch: replace` or `delete` in an object or in an item of a list, `merge` being what happens anyway;
- `$deleteFromPrimitiveList/<field>`: values to take out of a list of plain values;
- `$setElementOrder/<field>`: the order of the items, those that the patch does not know keeping their place between the others;
- `$retainKeys`: of an object's members only these stay.

Pure; no argument is changed, and the result shares nothing with them. A patch that contradicts itself or the schema is a
BadRequest with its path, and nothing is applied.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from muster.objects.patch.common import check_depth, clone, identity
from muster.objects.patch.shape import Schema, Shape, root_shape
from muster.objects.status import BadRequest, Cause, Raw, shown

_PATCH: Final = "$patch"
_RETAIN: Final = "$retainKeys"
_DELETE_PREFIX: Final = "$deleteFromPrimitiveList/"
_ORDER_PREFIX: Final = "$setElementOrder/"


def apply_strategic(doc: Mapping[str, Any], patch: Any, schema: Schema) -> Raw:
    """`doc` with `patch` merged in as `schema` says; without a schema every list is replaced."""
    if not isinstance(patch, dict):
        raise BadRequest(f"a strategic merge patch must be an object, not {shown(patch)}")
    check_depth(patch, "the strategic merge patch")
    return _merge_map(clone(dict(doc)), clone(patch), root_shape(schema), "")


def _merge_map(original: Raw, patch: Raw, shape: Shape, path: str) -> Raw:
    """Both arguments are private copies; `original` is changed and returned, unless the patch replaces it."""
    match patch.pop(_PATCH, "merge"):
        case "merge":
            pass
        case "replace":
            original = {}
        case "delete":
            return {}
        case other:
            raise _bad(path, f"{_PATCH} is {shown(other)}; it must be merge, replace or delete")
    _retain_keys(original, patch, path)
    orders = {key[len(_ORDER_PREFIX) :]: patch[key] for key in patch if key.startswith(_ORDER_PREFIX)}
    deletions = {key[len(_DELETE_PREFIX) :]: patch[key] for key in patch if key.startswith(_DELETE_PREFIX)}
    before = {key: original[key] for key in orders if isinstance(original.get(key), list)}
    patched = {key: list(patch[key]) for key in orders if isinstance(patch.get(key), list)}
    for key, value in patch.items():
        if key.startswith((_ORDER_PREFIX, _DELETE_PREFIX)):
            continue
        where = f"{path}.{key}"
        if value is None:
            original.pop(key, None)
        elif isinstance(value, dict):
            original[key] = _merge_member_map(original.get(key), value, shape.member(key), where)
        elif isinstance(value, list):
            original[key] = _merge_member_list(original.get(key), value, shape.member(key), where)
        else:
            original[key] = value
    for key, values in deletions.items():
        _delete_values(original, key, values, f"{path}.{_DELETE_PREFIX}{key}")
    for key, order in orders.items():
        lists = _Lists(before.get(key, []), patched.get(key, []), original.get(key))
        _set_order(original, key, order, lists, shape.member(key), path=f"{path}.{_ORDER_PREFIX}{key}")
    return original


def _retain_keys(original: Raw, patch: Raw, path: str) -> None:
    if _RETAIN not in patch:
        return
    retained = patch.pop(_RETAIN)
    if not isinstance(retained, list) or not all(isinstance(key, str) for key in retained):
        raise _bad(path, f"{_RETAIN} is {shown(retained)}; it must be a list of member names")
    kept = set(retained)
    for key, value in patch.items():
        if value is not None and not key.startswith((_ORDER_PREFIX, _DELETE_PREFIX)) and key not in kept:
            raise _bad(path, f"sets {key!r}, which its {_RETAIN} list does not contain")
    for key in [key for key in original if key not in kept]:
        del original[key]


def _merge_member_map(original: Any, patch: Raw, shape: Shape, path: str) -> Raw:
    if "replace" in shape.patch_strategies or not isinstance(original, dict):
        original = {}
    return _merge_map(original, patch, shape, path)


def _merge_member_list(original: Any, patch: list[Any], shape: Shape, path: str) -> list[Any]:
    if "merge" not in shape.patch_strategies:
        return [item for item in patch if not (isinstance(item, dict) and set(item) == {_PATCH})]
    live = original if isinstance(original, list) else []
    objects = sum(isinstance(item, dict) for item in patch)
    if objects not in (0, len(patch)) or any(isinstance(item, list) for item in patch):
        raise _bad(path, "the items must be all objects or all plain values, because the list is merged item by item")
    if objects:
        return _merge_objects(live, patch, shape, path)
    merged = {identity(item): item for item in [*live, *patch]}
    return _ordered(list(merged.values()), _positions(patch, ""), _positions(live, ""), "")


def _merge_objects(live: list[Any], patch: list[Any], shape: Shape, path: str) -> list[Any]:
    key = shape.merge_key
    if not key:
        raise _bad(
            path, "the items are objects, but the schema names no key to merge them by; send the whole list as JSON patch"
        )
    order = _positions(live, key)
    ordinary: list[Raw] = []
    gone: set[str] = set()
    for index, item in enumerate(patch):
        directive = item.get(_PATCH, "merge")
        if directive == "replace":
            order, live = {}, []
            item.pop(_PATCH)
            # `{"$patch": "replace"}` alone says: the other items are the whole list. With a key it is an item as well.
            if key in item:
                ordinary.append(item)
            continue
        if key not in item:
            raise _bad(f"{path}[{index}]", f"{shown(item)} has no {key!r}, by which the items of this list are told apart")
        if directive == "delete":
            gone.add(identity(item[key]))
        elif directive == "merge":
            ordinary.append(item)
        else:
            raise _bad(f"{path}[{index}]", f"{_PATCH} is {shown(directive)}; it must be merge, replace or delete")
    merged = [item for item in live if _key_of(item, key) not in gone]
    place = _positions(merged, key)
    for item in ordinary:
        own = identity(item[key])
        target = merged[place[own]] if own in place else {}
        result = _merge_map(target, item, shape.items, f"{path}[{key}={shown(item[key])}]")
        if own in place:
            merged[place[own]] = result
        else:
            place[own] = len(merged)
            merged.append(result)
    return _ordered(merged, _positions(ordinary, key), order, key)


def _delete_values(original: Raw, key: str, values: Any, path: str) -> None:
    if not isinstance(values, list):
        raise _bad(path, f"{shown(values)} must be a list of the values to take out")
    live = original.get(key)
    if isinstance(live, list):
        gone = {identity(value) for value in values}
        original[key] = [item for item in live if identity(item) not in gone]


class _Lists(NamedTuple):
    """One list field: as it was, as the patch has it, and merged (None when it is no list)."""

    before: list[Any]
    patch: list[Any]
    merged: Any


def _set_order(original: Raw, key: str, order: Any, lists: _Lists, shape: Shape, *, path: str) -> None:
    if not isinstance(order, list):
        raise _bad(path, f"{shown(order)} must be a list: the items in their order")
    if not isinstance(lists.merged, list):
        return
    by = shape.merge_key
    for item in order:
        if by and (not isinstance(item, dict) or by not in item):
            raise _bad(path, f"{shown(item)} must be an object with {by!r}, by which the items of this list are told apart")
    positions = _positions(order, by)
    last = -1
    for item in lists.patch:
        if isinstance(item, dict) and item.get(_PATCH) in ("delete", "replace"):
            continue
        at = positions.get(_key_of(item, by) or "")
        if at is None or at < last:
            raise _bad(path, f"{shown(item)} stands in the patch but not in this list in the same order")
        last = at
    original[key] = _ordered(lists.merged, positions, _positions(lists.before, by), by)


def _ordered(merged: list[Any], wanted: dict[str, int], live: dict[str, int], key: str) -> list[Any]:
    """`merged` with the `wanted` items in that order, and the others put where they stood in the live list."""
    first = [item for item in merged if (_key_of(item, key) or "") in wanted]
    first.sort(key=lambda item: wanted[_key_of(item, key) or ""])
    others = [item for item in merged if (_key_of(item, key) or "") not in wanted]
    others.sort(key=lambda item: live.get(_key_of(item, key) or "", len(live)))
    result: list[Any] = []
    at = 0
    for item in first:
        place = live.get(_key_of(item, key) or "")
        # Live-only items go before the first wanted one that stood behind them.
        while place is not None and at < len(others) and live.get(_key_of(others[at], key) or "", len(live)) < place:
            result.append(others[at])
            at += 1
        result.append(item)
    return result + others[at:]


def _positions(values: list[Any], key: str) -> dict[str, int]:
    """Where each item first stands, by its key."""
    found: dict[str, int] = {}
    for index, value in enumerate(values):
        own = _key_of(value, key)
        if own is not None:
            found.setdefault(own, index)
    return found


def _key_of(item: Any, key: str) -> str | None:
    """What tells an item from others: its member `key`, or without a key the item itself. None when it lacks the key."""
    if not key:
        return identity(item)
    return identity(item[key]) if isinstance(item, dict) and key in item else None


def _bad(path: str, problem: str) -> BadRequest:
    where = path.lstrip(".") or "the patch"
    return BadRequest(f"strategic merge patch at {where}: {problem}", causes=[Cause(field=where, message=problem)])
