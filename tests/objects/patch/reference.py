"""Field ownership in the plainest way: sets of whole paths, every schema read on the spot, nothing skipped, nothing kept.

It says what the functions of `muster.objects.patch` mean. They do the same with trees, compiled schemas and shortcuts; the
tests compare the two. Slow, and without limits: for small objects whose entries are valid.
"""

from __future__ import annotations

from typing import Any, Final

from muster.objects.patch.common import ABSENT, identity, is_scalar, json_equal
from muster.objects.patch.shape import METADATA
from muster.objects.status import Raw
from muster.objects.time import format_time

Path = tuple[str, ...]
Paths = frozenset[Path]
Parts = dict[str, tuple[Any, Any]]
"""By path element: a part of a value, and its schema."""

NONE: Final[Paths] = frozenset()
_SET_BY_THE_STORE: Final = (
    "name", "namespace", "clusterName", "managedFields", "uid", "resourceVersion", "creationTimestamp", "generation",
    "selfLink", "deletionTimestamp", "deletionGracePeriodSeconds",
)  # fmt: skip
UNOWNED: Final[Paths] = frozenset(
    [("f:apiVersion",), ("f:kind",), ("f:metadata",), *(("f:metadata", f"f:{name}") for name in _SET_BY_THE_STORE)]
)


# --- schemas --------------------------------------------------------------------------------------------------------------


def rooted(schema: Raw | None) -> Raw:
    return {**(schema or {}), "properties": {**(schema or {}).get("properties", {}), "metadata": METADATA}}


def child(schema: Any, name: str) -> Any:
    if not isinstance(schema, dict):
        return None
    return schema.get("properties", {}).get(name, schema.get("additionalProperties"))


def list_keys(schema: Any) -> list[str] | None:
    """The keys of a list's items; none when it is a set; None when it goes as a whole."""
    said = schema if isinstance(schema, dict) else {}
    kind = said.get("x-kubernetes-list-type")
    if kind is None and "merge" in said.get("x-kubernetes-patch-strategy", "").split(","):
        return [said["x-kubernetes-patch-merge-key"]] if "x-kubernetes-patch-merge-key" in said else []
    return said["x-kubernetes-list-map-keys"] if kind == "map" else [] if kind == "set" else None


def parts(value: Any, schema: Any) -> Parts | None:
    """What of a value merges on its own; None when it is one piece."""
    said = schema if isinstance(schema, dict) else {}
    if isinstance(value, dict):
        if said.get("x-kubernetes-map-type") == "atomic":
            return None
        return {f"f:{name}": (member, child(schema, name)) for name, member in value.items()}
    keys = list_keys(schema)
    if not isinstance(value, list) or keys is None:
        return None
    found: Parts = {}
    for item in value:
        if not keys:
            element = "v:" + identity(item) if is_scalar(item) and item is not None else None
        elif isinstance(item, dict):
            defaults = {key: (child(said.get("items"), key) or {}).get("default") for key in keys}
            named = {key: defaults[key] if item.get(key) is None else item[key] for key in keys}
            element = "k:" + identity(named) if all(v is not None and is_scalar(v) for v in named.values()) else None
        else:
            element = None
        if element is None or element in found:
            return None
        found[element] = (item, said.get("items"))
    return found


# --- what a write changes -------------------------------------------------------------------------------------------------


def everything(value: Any, schema: Any, path: Path) -> Paths:
    """A value's own path and those of all that is in it."""
    below = [everything(part, inner, (*path, element)) for element, (part, inner) in (parts(value, schema) or {}).items()
             if part is not None]  # fmt: skip
    return frozenset([path]).union(*below)


def ends(value: Any, schema: Any, path: Path = ()) -> Paths:
    """The paths that end in `value`: those of what has no parts, be it null."""
    found = parts(value, schema)
    return NONE.union(*(ends(v, s, (*path, e)) for e, (v, s) in found.items())) if found else frozenset([path])


def changes(old: Any, new: Any, schema: Any, path: Path = ()) -> tuple[Paths, Paths]:
    """What was written and what was removed."""
    if old is ABSENT:
        return NONE if new is None else everything(new, schema, path), NONE
    if new is ABSENT:
        return NONE, everything(old, schema, path)
    if json_equal(old, new):
        return NONE, NONE
    before, after = parts(old, schema), parts(new, schema)
    written, removed = NONE, NONE
    if type(old) is not type(new) or before is None or after is None or not (before or after):
        written |= {path}
    nothing = (ABSENT, None)
    for element in {**(before or {}), **(after or {})}:
        was, now = (before or {}).get(element, nothing), (after or {}).get(element, nothing)
        came, went = changes(was[0], now[0], now[1] if was is nothing else was[1], (*path, element))
        written, removed = written | came, removed | went
    return written - {()}, removed - {()}


# --- entries --------------------------------------------------------------------------------------------------------------


def to_paths(fields: Raw, path: Path = ()) -> Paths:
    own = {path} if path and (not fields or "." in fields) else set()
    return frozenset(own).union(*(to_paths(inner, (*path, element)) for element, inner in fields.items() if element != "."))


def to_fields(paths: Paths) -> Raw:
    """The set as `fieldsV1`, in order."""
    fields: Raw = {}
    for path in sorted(paths):
        node = fields
        for element in path:
            node = node.setdefault(element, {})
        node["."] = {}
    return _tidied(fields)


def _tidied(node: Raw) -> Raw:
    return (
        {} if node.keys() == {"."} else {element: _tidied(node[element]) if element != "." else {} for element in sorted(node)}
    )


def track_update(old: Raw | None, new: Raw, manager: str, schema: Raw | None, now: float, subresource: str = "") -> Raw:
    """For objects with at most ten managers, no two entries of the same, and a client that does not set entries itself."""
    plain = {**new, "metadata": {name: value for name, value in new["metadata"].items() if name != "managedFields"}}
    before = {**(old or {}), "metadata": {**(old or {}).get("metadata", {})}} if old is not None else {}
    entries: list[Raw] = before["metadata"].pop("managedFields", []) if old is not None else []
    if old is not None and not entries and ends(before, rooted(schema)) - UNOWNED:
        return plain
    written, removed = changes(before, plain, rooted(schema))
    kept: list[Raw] = []
    mine: Raw | None = None
    for entry in entries:
        is_mine = (entry["manager"], entry["operation"], entry["apiVersion"], entry.get("subresource", "")) == (
            manager, "Update", new["apiVersion"], subresource)  # fmt: skip
        paths = to_paths(entry["fieldsV1"])
        left = paths - written - removed | (written - UNOWNED if is_mine else NONE)
        mine = entry if is_mine else mine
        if left == paths:
            kept.append(entry)
        elif left:
            kept.append({**entry, "fieldsV1": to_fields(left), **({"time": format_time(now)} if is_mine else {})})
    if mine is None and written - UNOWNED:
        entry = {"manager": manager, "operation": "Update", "apiVersion": new["apiVersion"], "time": format_time(now),
                 "fieldsType": "FieldsV1", "fieldsV1": to_fields(written - UNOWNED)}  # fmt: skip
        kept.append(entry | ({"subresource": subresource} if subresource else {}))
    kept.sort(key=lambda e: (e["operation"], e["time"], e["manager"], e["apiVersion"], e.get("subresource", "")))
    return {**plain, "metadata": plain["metadata"] | ({"managedFields": kept} if kept else {})}


# --- what an apply removes ------------------------------------------------------------------------------------------------


def prune(value: Any, dropped: Paths, owned: Paths, schema: Any, path: Path = ()) -> Any:
    """`value` without what is in `dropped` and nobody owns."""

    def leads_into(paths: Paths, place: Path) -> bool:
        return any(each[: len(place)] == place for each in paths)

    found = parts(value, schema)
    if found is None:
        return value
    kept: dict[str, Any] = {}
    for element, (part, inner) in found.items():
        place = (*path, element)
        is_core = place in (("f:metadata",), ("f:apiVersion",), ("f:kind",))
        if not leads_into(dropped, place):
            kept[element] = part
        elif is_core or (place in owned if isinstance(value, list) else leads_into(owned, place)):
            is_inside = any(len(each) > len(place) and each[: len(place)] == place for each in dropped)
            rest = prune(part, dropped, owned, inner, place) if is_inside else part
            if rest or not part or is_core or place in owned:
                kept[element] = rest
    return list(kept.values()) if isinstance(value, list) else {element[2:]: part for element, part in kept.items()}
