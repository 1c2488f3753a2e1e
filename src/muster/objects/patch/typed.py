"""The four walks over objects that server-side apply is made of: own, compare, merge, prune.

Each goes through values and their shape together. Objects go member by member unless the schema calls them atomic; lists go as
a whole unless the schema gives their items keys, or calls them a set. Null counts as "not there" in comparisons.

Pure; arguments are not changed, and results may share parts with them. Callers check the depth of values
(`common.DEPTH_MAX`), so recursion is bounded. Sets of paths come out in order (see fieldset.py).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import msgspec

from muster.objects.patch.common import ABSENT, is_same_json, json_equal, too_deep
from muster.objects.patch.fieldset import NO_FIELDS, SELF, Fields, Path, alike, in_order, is_member, node_of
from muster.objects.patch.shape import FLAT_LEN_MAX, Shape

_KNOWN_MAX: Final = 512
_KNOWN_TEXT_MAX: Final = 8192
_LOOKED_UP_MAX: Final = 4
"""Paths of a set that are looked for one by one, each from the root; of more, all are looked for in one walk."""
"""Of how many sets it is remembered how they fit their schema, and up to which length of their text."""
_encode: Final = msgspec.json.Encoder().encode

_ROOT_KEPT = ("f:metadata", "f:apiVersion", "f:kind")
"""What makes an object one is never pruned, even when nobody owns a field inside."""


class Changes(NamedTuple):
    """What a write did, as sets of paths: what it set, be it new or changed, and what it removed."""

    written: Fields
    removed: Fields


def field_set(value: Any, shape: Shape, *, strict: bool = False) -> Fields:
    """The paths that `value`, an object or list, specifies. With `strict`, Invalid when a keyed list has bad items."""
    return _specified(value, shape, "" if strict else None)


def _specified(value: Any, shape: Shape, where: str | None) -> Fields:
    """`where` is the path of `value`, for messages; None when bad items are to be passed over."""
    out: Fields = {}
    if isinstance(value, dict):
        if _is_flat(value):
            return shape.flat_fields(tuple(value))
        members = shape.members
        for key, member in value.items():
            element, inner = members[key]
            below: Fields = {}
            is_whole = inner.is_atomic_list if isinstance(member, list) else inner.is_atomic_map
            if isinstance(member, (dict, list)) and not is_whole:
                below = _specified(member, inner, None if where is None else f"{where}.{key}")
            # An entry of a map is owned as such; a named field only through what is in it.
            out[element] = {SELF: {}, **below} if below and not members.is_named(key) else below
        return in_order(out)
    elements = (shape.keyed(value) or {}) if where is None else shape.keyed_strictly(value, where)
    for element, item in elements.items():
        below = {}
        if isinstance(item, dict) and not shape.items.is_atomic_map:
            below = _specified(item, shape.items, None if where is None else f"{where}[{element[2:]}]")
        out[element] = {SELF: {}, **below} if below else below
    return in_order(out)


def compare(old: Any, new: Any, shape: Shape) -> Changes:
    """What changed from `old` to `new`, both objects."""
    try:
        written, removed = _compare(old, new, shape)
    except RecursionError:
        raise too_deep("the object") from None
    return Changes(written or {}, removed or {})


Nodes = tuple[Fields | None, Fields | None]
"""What was written and what was removed at one place and below; None for nothing."""

_NOTHING: Nodes = (None, None)


def _compare(old: Any, new: Any, shape: Shape) -> Nodes:
    if old is new:
        return _NOTHING
    if old is ABSENT:
        return (None if new is None else _all_below(new, shape)), None
    if new is ABSENT:
        return None, _all_below(old, shape)
    # Most of an object stays as it was. Whole parts of it are passed over at the speed of `==`, and only the rest is walked.
    if isinstance(old, (dict, list)) and is_same_json(old, new):
        return _NOTHING
    if type(old) is dict and type(new) is dict and not shape.is_atomic_map:
        return _compare_each(old, new, shape.members.__getitem__)
    old_parts, new_parts = shape.parts(old), shape.parts(new)
    if not old_parts and not new_parts:
        return _compare_leaves(old, new)
    written, removed = _compare_each(old_parts or {}, new_parts or {}, lambda element: (element, shape.below[element]))
    # What is of another type now, or is no longer merged part by part, was written itself.
    is_written = type(old) is not type(new) or old_parts is None or new_parts is None
    return node_of(written or {}, is_written), removed


def _compare_each(old: dict[str, Any], new: dict[str, Any], place: Callable[[str], tuple[str, Shape]]) -> Nodes:
    """The members of two objects, or the items of two lists by path element. `place` gives the path element and the shape."""
    written: Fields = {}
    removed: Fields = {}
    for key in sorted(old.keys() | new.keys()):
        before, after = old.get(key, ABSENT), new.get(key, ABSENT)
        if before is after or (type(before) is str and before == after):
            continue
        element, inner = place(key)
        if before is ABSENT and type(after) is not dict and type(after) is not list:
            if after is not None:
                written[element] = {}
            continue
        came, went = _compare(before, after, inner)
        if came is not None:
            written[element] = came
        if went is not None:
            removed[element] = went
    return written or None, removed or None


def _compare_leaves(old: Any, new: Any) -> Nodes:
    if old is None:
        return _NOTHING if new is None else ({}, None)
    return _NOTHING if json_equal(old, new) else ({}, None)


def _all_below(value: Any, shape: Shape) -> Fields:
    """The node for a value that came or went as a whole: itself and all that is in it. Most of the work of a create."""
    node: Fields = {SELF: {}}
    if isinstance(value, dict):
        if shape.is_atomic_map:
            return {}
        if _is_flat(value):
            return shape.flat_node(tuple(value))
        members = shape.members
        for key in sorted(value):
            part = value[key]
            if part is not None:
                element, inner = members[key]
                node[element] = _all_below(part, inner) if type(part) is dict or type(part) is list else {}
    elif isinstance(value, list):
        elements, inner = shape.keyed(value) or {}, shape.items
        for element in sorted(elements):
            node[element] = _all_below(elements[element], inner)
    return node if len(node) > 1 else {}


def _is_flat(value: dict[str, Any]) -> bool:
    """Whether its members are texts, few of them: as variables, mounts and tolerations are."""
    if len(value) > FLAT_LEN_MAX:
        return False
    for part in value.values():  # noqa: SIM110 - all() would cost a generator for each object of each write
        if type(part) is not str:
            return False
    return True


def merge(live: Any, config: Any, shape: Shape) -> Any:
    """`live` with what `config` specifies. Nothing is removed. Lists keep `config`'s order, and live items their places."""
    if isinstance(live, dict) and isinstance(config, dict) and not shape.is_atomic_map:
        if _is_flat(config):
            return {**live, **config}
        merged = dict(live)
        for key, value in config.items():
            if key in live and type(value) is not str:
                merged[key] = merge(live[key], value, shape.member(key))
            else:
                merged[key] = value
        return merged
    if isinstance(live, list) and isinstance(config, list):
        before, wanted = shape.keyed(live), shape.keyed(config)
        if before is not None and wanted is not None:
            return _merge_lists(before, wanted, shape.items)
    return config


def _merge_lists(live: dict[str, Any], config: dict[str, Any], shape: Shape) -> list[Any]:
    result: list[Any] = []
    pending = iter(config)

    def take_shared() -> None:
        """The next items of `config` up to one that is live: it takes the place of the live one."""
        for element in pending:
            if element in live:
                result.append(merge(live[element], config[element], shape))
                return
            result.append(config[element])

    for element, item in live.items():
        if element in config:
            take_shared()
        else:
            result.append(item)
    result += [config[element] for element in pending]
    return result


def without_nulls(value: Any, config: Any, shape: Shape) -> Any:
    """`value` without the members that `config` sets to null, except where the schema allows null."""
    if isinstance(value, dict) and isinstance(config, dict) and not shape.is_atomic_map:
        out = dict(value)
        for key, wanted in config.items():
            if type(wanted) is str:
                continue
            inner = shape.member(key)
            if wanted is None and not inner.is_nullable:
                out.pop(key, None)
            elif key in out:
                out[key] = without_nulls(out[key], wanted, inner)
        return out
    if isinstance(value, list) and isinstance(config, list):
        wanted_items, present = shape.keyed(config), shape.keyed(value)
        if wanted_items is not None and present is not None:
            return [without_nulls(item, wanted_items.get(element), shape.items) for element, item in present.items()]
    return value


def prune(value: Any, dropped_from: Fields, owned: Fields, shape: Shape, *, is_root: bool = True) -> Any:
    """`value` without what one manager specified before (`dropped_from`) and now nobody owns (`owned`).

    A member goes with all that is in it; it stays when anybody owns it or anything inside, and then the same holds further in.
    An item of a list goes unless somebody owns the item as such: what is left of it without its key would be no item.
    """
    if isinstance(value, list):
        return _prune_items(value, dropped_from, owned, shape)
    if not isinstance(value, dict) or shape.is_atomic_map:
        return value
    kept = value
    for element, mine in dropped_from.items():
        name = element[2:]
        if not element.startswith("f:") or name not in value:
            continue
        part, theirs = value[name], owned.get(element)
        is_wanted = is_member(theirs) or (is_root and element in _ROOT_KEPT)
        rest: Any = ABSENT
        if is_wanted or theirs is not None:
            rest = prune(part, mine, theirs or {}, shape.member(name), is_root=False) if mine else part
            if rest is part:
                continue
        if kept is value:
            kept = dict(value)
        # What held only what is gone now goes too, unless somebody wants it even when empty.
        if rest is ABSENT or not (rest or is_wanted):
            del kept[name]
        else:
            kept[name] = rest
    return kept


def _prune_items(value: list[Any], dropped_from: Fields, owned: Fields, shape: Shape) -> list[Any]:
    kept: list[Any] = []
    is_same = True
    for element, item in (shape.keyed(value) or {}).items():
        mine, theirs = dropped_from.get(element), owned.get(element)
        if mine is None or is_member(theirs):
            rest = prune(item, mine, theirs or {}, shape.items, is_root=False) if mine else item
            is_same = is_same and rest is item
            kept.append(rest)
        else:
            is_same = False
    return value if is_same else kept


def collapse_atomic(fields: Fields, shape: Shape) -> Fields:
    """A set that was written when the schema was finer: paths inside what is atomic now become the path of the whole."""
    out = fields
    for element, inner in fields.items():
        if not inner or element == SELF:
            continue
        below = shape.below[element]
        # Sets are in order, and so the items of a list come last.
        last = next(reversed(inner))
        is_whole = below.is_atomic_map if last.startswith("f:") or last == SELF else below.is_atomic_list
        narrowed = {} if is_whole else collapse_atomic(inner, below)
        if narrowed is not inner:
            out = dict(fields) if out is fields else out
            out[element] = narrowed
    return out


def in_terms_of(fields: Fields, shape: Shape, value: Any, stated: Fields = NO_FIELDS) -> Fields:
    """A set that may have been written under another schema, as `shape` would write it for `value`.

    A path that ends early in `stated` too, what its manager states now under `shape`, is an empty object or list that is still
    stated: it means no more than that, whatever others have put into it.
    """
    try:
        text = _encode(fields)
        if len(text) <= _KNOWN_TEXT_MAX:
            coarse = _coarse_paths(alike(text), shape)
            if coarse is not None:
                coarse = tuple(path for path in coarse if not _ends_in(stated, path))
                if len(coarse) <= _LOOKED_UP_MAX and not any(_goes_on(value, path, shape) for path in coarse):
                    return fields
    except (TypeError, ValueError, OverflowError, RecursionError):
        pass
    return expand_atomic(collapse_atomic(fields, shape), shape, value, stated)


@functools.lru_cache(maxsize=_KNOWN_MAX)
def _coarse_paths(text: bytes, shape: Shape) -> tuple[Path, ...] | None:
    """Of the set with this text: its paths that end where the schema goes on; None when others end inside what is atomic, and
    when one leads through an item by its uid, which `alike` has made another one.

    The same sets come again and again, since objects that were made alike have equal ones.
    """
    fields = msgspec.json.decode(text)
    if collapse_atomic(fields, shape) is not fields:
        return None
    found = tuple(_ends_early(fields, shape))
    return None if any(element.startswith('k:{"uid":') for path in found for element in path) else found


def _ends_early(fields: Fields, shape: Shape) -> Iterator[Path]:
    for element, inner in fields.items():
        if element == SELF:
            continue
        below = shape.below[element]
        if inner:
            yield from ((element, *path) for path in _ends_early(inner, below))
        elif not below.is_whole:
            yield (element,)


def _ends_in(fields: Fields, path: Path) -> bool:
    """Whether `path` is in the set, and nothing below it."""
    found: Fields | None = fields
    for element in path:
        found = found.get(element) if found else None
        if found is None:
            return False
    return not found


def _goes_on(value: Any, path: Path, shape: Shape) -> bool:
    """Whether `value` has parts at `path`."""
    for element in path:
        if element.startswith("f:"):
            value = value.get(element[2:]) if isinstance(value, dict) else None
        else:
            value = (shape.keyed(value) or {}).get(element) if isinstance(value, list) else None
        if value is None:
            return False
        shape = shape.below[element]
    return bool(shape.parts(value))


def expand_atomic(fields: Fields, shape: Shape, value: Any, stated: Fields = NO_FIELDS) -> Fields:
    """A set that was written when the schema was coarser: the path of a whole gets the paths of what is in it now. Not one that
    ends there in `stated` too: that is no whole."""
    if not _is_coarse(fields, shape):
        return fields
    out = fields
    parts = shape.parts(value) or {}
    for element, inner in fields.items():
        if element == SELF or element not in parts:
            continue
        below, again = shape.below[element], stated.get(element)
        if inner:
            finer = expand_atomic(inner, below, parts[element], again or NO_FIELDS)
        elif again is not None and not again:
            finer = inner
        else:
            finer = {SELF: {}, **field_set(parts[element], below)} if below.parts(parts[element]) else inner
        if finer is not inner:
            out = dict(fields) if out is fields else out
            out[element] = finer
    return out


def _is_coarse(fields: Fields, shape: Shape) -> bool:
    """Whether a path in the set ends where the schema goes on."""
    for element, inner in fields.items():
        if element != SELF:
            below = shape.below[element]
            if _is_coarse(inner, below) if inner else not below.is_whole:
                return True
    return False
