"""Which plugins take part where: the `plugins` member of a profile, read and worked out against the defaults.

The rules are kube-scheduler's. `multiPoint` starts from the default list: what it disables goes, what it enables comes at the
end, or, when it is a default, gets the new weight where it stands. Each extension point then starts from that list: what the
point enables of it comes first, in the point's order, then the rest of the list without what the point disables, then what only
the point enables. `disabled: [{name: "*"}]` at a point leaves exactly what the point enables.

Pure.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from muster.engine.notes import Notes, shown
from muster.engine.plugin import Plugin
from muster.engine.profile import POINTS
from muster.engine.registry import ENGINE_OWN, NOT_HERE, Registry

MULTI_POINT: Final = "multiPoint"
KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "preEnqueue": (),
    "queueSort": ("next_unit",),
    "preFilter": ("before_prefilter", "prefilter"),
    "filter": ("before_filter", "restore", "filter"),
    "postFilter": ("post_filter",),
    "preScore": ("before_score",),
    "score": ("score",),
    "reserve": ("resize", "reserve"),
    "permit": ("permit",),
    "preBind": ("pre_bind",),
    "bind": ("bind",),
    "postBind": ("post_bind",),
}
"""kube-scheduler's extension points, and ours that each switches."""

WEIGHT_DEFAULT: Final = 1
SCORE_TOTAL_MAX: Final = 2**30
"""Scores of all plugins times their weights stay below this, so that adding them up never overflows."""
LIST_LEN_MAX: Final = 1_000

STRATEGIES: Final[Mapping[str, str]] = {
    "NodeResourcesLeastAllocated": "LeastAllocated",
    "NodeResourcesMostAllocated": "MostAllocated",
    "RequestedToCapacityRatio": "RequestedToCapacityRatio",
}
"""Plugins of kube-scheduler 1.20 that have become scoring strategies of NodeResourcesFit."""
FIT: Final = "NodeResourcesFit"


class Choice(msgspec.Struct, frozen=True):
    name: str
    weight: int = WEIGHT_DEFAULT


class PluginSet(msgspec.Struct, frozen=True):
    """What one extension point of a profile says."""

    enabled: tuple[Choice, ...] = ()
    disabled: frozenset[str] = frozenset()
    disables_all: bool = False
    strategies: tuple[str, ...] = ()
    """Scoring strategies that were enabled by a plugin name of old."""


class Lists(msgspec.Struct, frozen=True):
    """The outcome: plugins in order by our own extension points, the weights of those at `score`, and all of them once."""

    points: Mapping[str, tuple[str, ...]]
    weights: Mapping[str, int]
    plugins: tuple[str, ...]


def read_sets(value: object, path: str, registry: Registry, notes: Notes) -> dict[str, PluginSet]:
    """The `plugins` member of a profile."""
    members = notes.mapping(value, path)
    notes.known(members, path, (MULTI_POINT, *KEYS))
    return {
        key: _read_set(members[key], f"{path}.{key}", key, registry, notes)
        for key in (MULTI_POINT, *KEYS)
        if members.get(key) is not None
    }


def _read_set(value: object, path: str, key: str, registry: Registry, notes: Notes) -> PluginSet:
    members = notes.mapping(value, path)
    notes.known(members, path, ("enabled", "disabled"))
    enabled: list[Choice] = []
    strategies: list[str] = []
    for index, entry in enumerate(notes.sequence(members.get("enabled"), f"{path}.enabled", LIST_LEN_MAX)):
        where = f"{path}.enabled[{index}]"
        entry_members = notes.mapping(entry, where)
        notes.known(entry_members, where, ("name", "weight"))
        name = notes.text(entry_members.get("name"), f"{where}.name") if _may_have_members(entry) else ""
        weight = _weight(entry_members.get("weight"), f"{where}.weight", key, notes)
        if name in STRATEGIES and FIT in registry:
            notes.warn(f"{where}.name", f"{name} is deprecated: use {FIT} with scoringStrategy.type {STRATEGIES[name]}")
            strategies.append(STRATEGIES[name])
            name = FIT
        if not name or not _is_usable(name, f"{where}.name", key, registry, notes):
            continue
        if any(other.name == name for other in enabled):
            notes.error(f"{where}.name", f"{name} is enabled twice here; remove one of the two")
        else:
            enabled.append(Choice(name, weight))
    disabled = _read_disabled(members.get("disabled"), f"{path}.disabled", registry, notes)
    return PluginSet(tuple(enabled), disabled - {"*"}, "*" in disabled, tuple(strategies))


def _read_disabled(value: object, path: str, registry: Registry, notes: Notes) -> frozenset[str]:
    disabled: set[str] = set()
    for index, entry in enumerate(notes.sequence(value, path, LIST_LEN_MAX)):
        where = f"{path}[{index}]"
        if isinstance(entry, str):
            name = notes.text(entry, where)
        else:
            members = notes.mapping(entry, where)
            notes.known(members, where, ("name", "weight"))  # a weight means nothing, and kube-scheduler takes it
            name = notes.text(members.get("name"), f"{where}.name") if _may_have_members(entry) else ""
        if name in STRATEGIES and FIT in registry:
            notes.warn(where, f"{name} is deprecated: disable {FIT} at score")
            name = FIT
        if name in ENGINE_OWN:
            notes.warn(where, f"{name} is part of the engine and stays")
        elif name in NOT_HERE and name not in registry:
            notes.warn(where, f"Muster has no plugin {name}, so there is nothing to disable")
        elif name and name != "*" and name not in registry:
            notes.error(where, _unknown(name, registry))
        elif name:
            disabled.add(name)
    return frozenset(disabled)


def _weight(value: object, path: str, key: str, notes: Notes) -> int:
    if value is None:
        return WEIGHT_DEFAULT
    if not isinstance(value, int) or isinstance(value, bool):
        notes.error(path, f"must be a whole number, not {shown(value)}")
    elif value < 0:
        notes.error(path, f"must not be negative, as {shown(value)} is")
    elif value * 100 >= SCORE_TOTAL_MAX:
        notes.error(path, f"{shown(value)} is too large; up to {(SCORE_TOTAL_MAX - 1) // 100} is possible")
    else:
        if value and key not in (MULTI_POINT, "score"):
            notes.warn(path, "has no effect here; weights belong to score")
        return value or WEIGHT_DEFAULT  # 0 is what kube-scheduler's own tools write for "none given"
    return WEIGHT_DEFAULT


def _may_have_members(entry: object) -> bool:
    """False for what has been called a wrong type already, so that it is not also called incomplete."""
    return entry is None or isinstance(entry, Mapping)


def _is_usable(name: str, path: str, key: str, registry: Registry, notes: Notes) -> bool:
    if name in ENGINE_OWN:
        return False
    if name not in registry:
        notes.error(path, _unknown(name, registry))
        return False
    if key != MULTI_POINT and not registry.is_builtin(name):
        plugin = registry[name]
        if not any(takes_part(plugin, point) for point in KEYS[key]):
            notes.warn(path, f"{name} takes no part in {key}, so this changes nothing")
    return True


def takes_part(plugin: type[Plugin], point: str) -> bool:
    """Whether the class has a method of its own for the extension point."""
    return getattr(plugin, point) is not getattr(Plugin, point)


def _unknown(name: str, registry: Registry) -> str:
    if name in NOT_HERE:
        return f"{name} is a plugin of {NOT_HERE[name]} that Muster does not have; remove it"
    near = difflib.get_close_matches(name[:80], tuple(registry), n=1)
    left_out = [problem for problem in registry.problems if problem.startswith(f"plugin {name!r} ")]
    why = f"; {left_out[0]}" if left_out else f"; did you mean {near[0]}?" if near else "; is its package installed?"
    return f"there is no plugin {shown(name)}{why}"


# -- working out -----------------------------------------------------------------------------------------------------------


def resolve(default: Sequence[Choice], sets: Mapping[str, PluginSet]) -> Lists:
    """What takes part where, from the default list and what the profile says."""
    multi = _merged(default, sets.get(MULTI_POINT, PluginSet()))
    points: dict[str, tuple[str, ...]] = {}
    weights: dict[str, int] = {}
    plugins: dict[str, None] = {}
    for key, ours in KEYS.items():
        chosen = _at_point(multi, sets.get(key, PluginSet()))
        if key == "score":
            weights = {choice.name: choice.weight for choice in chosen}
        names = tuple(choice.name for choice in chosen)
        points |= dict.fromkeys(ours, names)
        plugins |= dict.fromkeys(names if ours else ())
    assert points.keys() == set(POINTS)
    return Lists(points, weights, tuple(plugins))


def _merged(default: Sequence[Choice], said: PluginSet) -> list[Choice]:
    new = {choice.name: choice for choice in said.enabled}
    kept = [] if said.disables_all else [choice for choice in default if choice.name not in said.disabled]
    names = {choice.name for choice in kept}
    return [*(new.get(choice.name, choice) for choice in kept), *(c for c in said.enabled if c.name not in names)]


def _at_point(multi: Sequence[Choice], said: PluginSet) -> list[Choice]:
    if said.disables_all:
        return list(said.enabled)
    there = {choice.name for choice in multi}
    first = [choice for choice in said.enabled if choice.name in there]
    last = [choice for choice in said.enabled if choice.name not in there]
    named = {choice.name for choice in said.enabled}
    rest = [choice for choice in multi if choice.name not in named and choice.name not in said.disabled]
    return [*first, *rest, *last]
