"""Arguments of plugins: the `pluginConfig` member of a profile, read strictly into each plugin's `Args`.

Each member of the arguments is read by itself first, so that all mistakes are named at once; then the whole, for the rules that
the class has between its members. Pure, apart from what a foreign class does in its own `__post_init__`.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, get_args, get_origin

import msgspec

from muster.engine.gates import Gates
from muster.engine.notes import Notes, shown
from muster.engine.plugin_lists import FIT, LIST_LEN_MAX, STRATEGIES
from muster.engine.registry import ENGINE_OWN, NOT_HERE, Registry
from muster.objects.view import without_nulls

_PLACE: Final = re.compile(r" - at `(?:key in )?\$([^`]*)`$")
_STEP: Final = re.compile(r"\.([^.\[\]]+)|\[([^\]]*)\]")
_OF_OBJECT: Final = ("apiVersion", "kind")
PEER_ARGS: Final[Mapping[str, tuple[str, ...]]] = {"VolumeBinding": ("bindTimeoutSeconds", "shape")}
"""Arguments of kube-scheduler's plugins that are taken and change nothing: claims are bound by whoever provides volumes."""


class GivenArgs(msgspec.Struct, frozen=True):
    """Arguments as written, and where."""

    args: Mapping[str, Any]
    path: str


def read_plugin_config(value: object, path: str, registry: Registry, notes: Notes) -> dict[str, GivenArgs]:
    """The list as mappings by plugin name; names of old keep theirs. Members are not looked at yet."""
    given: dict[str, GivenArgs] = {}
    for index, entry in enumerate(notes.sequence(value, path, LIST_LEN_MAX)):
        where = f"{path}[{index}]"
        members = notes.mapping(entry, where)
        notes.known(members, where, ("name", "args"))
        if not isinstance(entry, Mapping):
            continue
        name = notes.text(members.get("name"), f"{where}.name")
        args = dict(notes.mapping(members.get("args"), f"{where}.args"))
        if not name:
            continue
        if name in given:
            notes.error(f"{where}.name", f"{name} is configured twice; remove one of the two")
        elif name in ENGINE_OWN:
            notes.warn(f"{where}.args", f"{name} is part of the engine, and its arguments have no effect")
        elif name in NOT_HERE and name not in registry:
            notes.warn(where, f"Muster has no plugin {name}, so its arguments have no effect")
        elif name not in registry and not (name in STRATEGIES and FIT in registry):
            notes.error(f"{where}.name", f"there is no plugin {shown(name)}; is its package installed?")
        else:
            kind = args.get("kind", f"{name}Args")
            if kind != f"{name}Args":
                notes.error(f"{where}.args.kind", f"must be {name}Args or left out, not {shown(kind)}")
            unused = [key for key in PEER_ARGS.get(name, ()) if key in args]
            for key in unused:
                notes.warn(f"{where}.args.{key}", "has no effect here")
            given[name] = GivenArgs({k: v for k, v in args.items() if k not in (*_OF_OBJECT, *unused)}, f"{where}.args")
    return given


def with_strategy(given: dict[str, GivenArgs], strategies: Iterable[str], path: str, notes: Notes) -> dict[str, GivenArgs]:
    """Turn arguments of the scoring plugins of old into the scoring strategy of NodeResourcesFit."""
    old = {name: given[name] for name in STRATEGIES if name in given}
    rest = {name: args for name, args in given.items() if name not in STRATEGIES}
    wanted = sorted(set(strategies))
    if len(wanted) > 1:
        notes.error(f"{path}.plugins", f"a profile scores by one strategy, and {' and '.join(wanted)} are enabled; choose one")
    if not wanted and "NodeResourcesLeastAllocated" in old:
        wanted = ["LeastAllocated"]  # it was on by default, so giving it arguments was enough
    for name, args in old.items():
        if STRATEGIES[name] not in wanted:
            notes.warn(args.path, f"{name} is not enabled, so its arguments have no effect")
        notes.known(args.args, args.path, ("resources", "shape") if name == "RequestedToCapacityRatio" else ("resources",))
    if not wanted:
        return rest
    fit = rest.get(FIT, GivenArgs({}, f"{path}.pluginConfig"))
    source = next((args for name, args in old.items() if STRATEGIES[name] == wanted[0]), GivenArgs({}, fit.path))
    if "scoringStrategy" in fit.args:
        notes.error(f"{fit.path}.scoringStrategy", f"the deprecated plugin for {wanted[0]} is enabled beside it; remove that")
        return rest
    strategy: dict[str, Any] = {"type": wanted[0]}
    if source.args.get("resources") is not None:
        strategy["resources"] = source.args["resources"]
    if source.args.get("shape") is not None:
        strategy["requestedToCapacityRatio"] = {"shape": source.args["shape"]}
    return {**rest, FIT: GivenArgs({**fit.args, "scoringStrategy": strategy}, fit.path if fit.args else source.path)}


def decode_args(name: str, given: GivenArgs, cls: type[msgspec.Struct], gates: Gates, notes: Notes) -> msgspec.Struct | None:
    """The arguments as the plugin's own `Args`; None when something is wrong with them."""
    args = decode_struct(cls, given.args, given.path, notes)
    if args is None:
        return None
    for field in msgspec.structs.fields(cls):
        gate = gates.missing_for_arg(name, field.encode_name)
        if gate is not None and field.encode_name in given.args and getattr(args, field.name) != field.default:
            where = f"{given.path}.{field.encode_name}"
            notes.error(where, f"needs the feature gate {gate.name}; set featureGates.{gate.name}: true, or remove it")
            args = None
            break
    return args


def decode_struct(cls: type[msgspec.Struct], value: Mapping[str, Any], path: str, notes: Notes) -> msgspec.Struct | None:
    """`value` as `cls`, with every wrong member noted; None when one is."""
    raw = without_nulls(dict(value))
    before = len(notes.errors) + notes.left_out
    fields = msgspec.structs.fields(cls)
    notes.known(raw, path, [field.encode_name for field in fields])
    for field in fields:
        if field.encode_name in raw:
            _convert(raw[field.encode_name], field.type, f"{path}.{field.encode_name}", notes)
    if len(notes.errors) + notes.left_out > before:
        return None
    args = _convert(raw, cls, path, notes)
    return args if isinstance(args, msgspec.Struct) else None


def _convert(value: object, cls: Any, path: str, notes: Notes) -> object:
    try:
        return msgspec.convert(value, cls)
    except msgspec.ValidationError as error:
        message = str(error)
        place = _PLACE.search(message)
        inside = place[1] if place else ""
        said, found = _plain(_PLACE.sub("", message)), _found(value, inside)
        said += _choices(_type_at(cls, inside))
        notes.error(f"{path}{inside}", said if not found or (found[0] == "'" and found in said) else f"{said}; it is {found}")
    except Exception as error:  # noqa: BLE001 - the class may be anybody's
        notes.error(path, f"could not be read: {type(error).__name__}: {error}")
    return None


def _found(value: Any, inside: str) -> str:
    """The value that is meant, where it is one of those that a message can show."""
    for name, index in _STEP.findall(inside):
        if name and isinstance(value, Mapping):
            value = value.get(name)
        elif index.isdecimal() and isinstance(value, list | tuple) and int(index) < len(value):
            value = value[int(index)]
        else:
            return ""  # somewhere in a mapping of any names: msgspec does not say where
    return "" if value is None or isinstance(value, Mapping | list | tuple) else shown(value)


def _type_at(cls: Any, inside: str) -> Any:
    """The type of the member that is meant; None where it is not one of nested structs."""
    for name, _ in _STEP.findall(inside):
        structs = [one for one in (cls, *get_args(cls)) if isinstance(one, type) and issubclass(one, msgspec.Struct)]
        fields = [field for one in structs for field in msgspec.structs.fields(one) if field.encode_name == name]
        cls = fields[0].type if fields else None
    return cls


def _choices(cls: Any) -> str:
    """The values to choose from, where there are only so many."""
    if isinstance(cls, type) and issubclass(cls, enum.Enum):
        values: list[object] = [member.value for member in cls]
    elif get_origin(cls) is Literal:
        values = list(get_args(cls))
    else:
        return ""
    return f"; choose {' or '.join(map(str, values))}"


def _plain(message: str) -> str:
    text = message.replace("`", "'")
    return text[:1].lower() + text[1:] if text[:1].isupper() and text[1:2].islower() else text
