"""YAML as Kubernetes' own tools read it, and as every tool can read it back.

Reading gives JSON values and takes plain scalars as kubectl does: timestamps stay text, `y` and `on` are true, `0644` is octal,
`1e3` is 1000, keys become text. A key given twice is an error with its line. Depth and number of values are bounded before
anything is built, with aliases counted as the copies that JSON would make of them. Writing quotes every text that some reader,
of YAML 1.1 or 1.2, would take for something else.

Pure: text in, values out, `YamlError` for whatever can't be read.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import yaml

try:
    from yaml import CSafeDumper as _BaseDumper
    from yaml import CSafeLoader as _BaseLoader
except ImportError:  # PyYAML built without libyaml
    from yaml import SafeDumper as _BaseDumper  # type: ignore[assignment]
    from yaml import SafeLoader as _BaseLoader  # type: ignore[assignment]

DEPTH_MAX = 128
NODES_MAX = 2_000_000

_LOOKS_TYPED = re.compile(
    r"^[-+]?(?:\.[0-9]|[0-9])[0-9a-fA-FxXoO_.,:eE+-]*$|^(?:y|n|yes|no|on|off|true|false|null|~|\.nan|[-+]?\.inf)$|^\d{4}-\d{1,2}-\d{1,2}.*$",
    re.IGNORECASE,
)
_TRUE = frozenset(("y", "yes", "on", "true"))
_BOOL = frozenset(("n", "no", "off", "false")) | _TRUE


class YamlError(ValueError):
    """A document cannot be read. `line` counts from 1 within the whole stream; 0 when it is not known."""

    def __init__(self, message: str, line: int = 0) -> None:
        super().__init__(message)
        self.line = line


def load_all(
    text: str | bytes, *, depth_max: int = DEPTH_MAX, nodes_max: int = NODES_MAX, unique_keys: bool = True
) -> Iterator[tuple[int, Any]]:
    """Each document with the line that it starts on; empty documents are skipped. Both limits are for one document."""
    text = _without_pairs(text)
    _check_events(text, depth_max, nodes_max)
    try:
        loader = _Loader(text)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise _translated(error) from error
    loader.unique_keys = unique_keys
    try:
        while True:
            try:
                if not loader.check_node():
                    return
                node = loader.get_node()
                assert node is not None
                _Measure(depth_max, nodes_max).check(node)
                value = loader.construct_document(node)
            except YamlError:
                raise
            except RecursionError as error:
                raise YamlError(f"nested deeper than {depth_max} levels; flatten it") from error
            except (yaml.YAMLError, ValueError, OverflowError) as error:
                raise _translated(error) from error
            if value is not None:
                yield _line(node), value
    finally:
        loader.dispose()


def load(text: str | bytes, *, depth_max: int = DEPTH_MAX, nodes_max: int = NODES_MAX, unique_keys: bool = True) -> Any:
    """The one document in `text`; None when it is empty."""
    found: Any = None
    for line, value in load_all(text, depth_max=depth_max, nodes_max=nodes_max, unique_keys=unique_keys):
        if found is not None:
            raise YamlError("a second document begins; there may be one only", line)
        found = value
    return found


def dump(value: Any) -> str:
    """`value` as one YAML document, keys in their own order."""
    return str(yaml.dump(value, Dumper=_Dumper, sort_keys=False, default_flow_style=False, allow_unicode=True, width=1_000_000))


# --- JSON

_PAIR = re.compile(r"(?<!\\)((?:\\\\)*)\\u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})")


def _without_pairs(text: str | bytes) -> str | bytes:
    """JSON may write one character as two escapes, a surrogate pair, which YAML does not know; YAML has one escape for it."""
    try:
        found = text.decode() if isinstance(text, bytes) else text
        if not found.lstrip().startswith(("{", "[")) or not _PAIR.search(found):
            return text
        json.loads(found)
    except (ValueError, RecursionError):
        return text  # no JSON: what looks like an escape may be none
    return _PAIR.sub(_joined, found)


def _joined(pair: re.Match[str]) -> str:
    high, low = int(pair[2], 16), int(pair[3], 16)
    return f"{pair[1]}\\U{0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00):08x}"


# --- limits


def _check_events(text: str | bytes, depth_max: int, nodes_max: int) -> None:
    """libyaml's parser is a loop, but its composer recurses in C and takes the process down with it; so look first."""
    depth = nodes = 0
    try:
        for event in yaml.parse(text, Loader=_BaseLoader):
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
                if depth > depth_max:
                    raise YamlError(f"nested deeper than {depth_max} levels; flatten it", _line(event))
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
            nodes = 0 if isinstance(event, yaml.DocumentStartEvent) else nodes + isinstance(event, yaml.NodeEvent)
            if nodes > nodes_max:
                raise YamlError(f"has more than {nodes_max} YAML nodes; divide it", _line(event))
    except (yaml.YAMLError, UnicodeDecodeError):
        return  # the reader proper meets the same fault and knows which document it is in


class _Measure:
    """Depth and number of the values of one document once its aliases are followed, found without following them."""

    def __init__(self, depth_max: int, nodes_max: int) -> None:
        self._depth_max = depth_max
        self._nodes_max = nodes_max
        self._known: dict[int, tuple[int, int]] = {}
        self._open: set[int] = set()

    def check(self, root: yaml.Node) -> None:
        self._measure(root)

    def _measure(self, node: yaml.Node) -> tuple[int, int]:
        """(values, depth). An alias follows its anchor, so what it stands for is known already: the way down is the text's."""
        if isinstance(node, yaml.ScalarNode):
            return 1, 0
        key = id(node)
        if key in self._known:
            return self._known[key]
        if key in self._open:
            raise YamlError("an alias refers to what contains it", _line(node))
        self._open.add(key)
        values, depth = 1, 0
        for child in _children(node):
            child_values, child_depth = self._measure(child)
            values += child_values
            depth = max(depth, child_depth)
        depth += 1
        if depth > self._depth_max:
            raise YamlError(f"nested deeper than {self._depth_max} levels once its aliases are followed", _line(node))
        if values > self._nodes_max:
            raise YamlError(f"has more than {self._nodes_max} YAML nodes once its aliases are followed", _line(node))
        self._open.discard(key)
        self._known[key] = values, depth
        return values, depth


def _children(node: yaml.Node) -> Iterator[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield key
            yield value
    elif isinstance(node, yaml.SequenceNode):
        yield from node.value


def _line(thing: yaml.Node | yaml.Event) -> int:
    mark = thing.start_mark
    return mark.line + 1 if mark is not None else 0


def _translated(error: Exception) -> YamlError:
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark if error.problem_mark is not None else error.context_mark
        line = mark.line + 1 if mark is not None else 0
        return YamlError(error.problem or error.context or "cannot be read", line)
    return YamlError(str(error))


# --- reading


def _tag(name: str) -> str:
    return f"tag:yaml.org,2002:{name}"


class _Loader(_BaseLoader):
    """JSON types only: no timestamps, binaries or sets, no base-60 numbers, string keys."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - filled below, and meant to be the class's own
    unique_keys = True


def _construct_mapping(loader: Any, node: yaml.MappingNode) -> dict[str, Any]:
    if loader.unique_keys:
        seen: set[str] = set()
        for key_node, _ in node.value:
            if key_node.tag == _tag("merge"):
                continue
            key = _key(loader, key_node)
            if key in seen:
                raise YamlError(f"key {key!r} is given twice", _line(key_node))
            seen.add(key)
    loader.flatten_mapping(node)  # what `<<` brings in comes first, so that explicit keys win
    return {_key(loader, key_node): loader.construct_object(value, deep=True) for key_node, value in node.value}


def _key(loader: Any, node: yaml.Node) -> str:
    key = loader.construct_object(node, deep=True) if isinstance(node, yaml.ScalarNode) else None
    if isinstance(key, bool):
        return "true" if key else "false"
    if isinstance(key, int | float):
        return str(key)
    if not isinstance(key, str):
        raise YamlError("a key must be a plain string", _line(node))
    return key


def _construct_sequence(loader: Any, node: yaml.SequenceNode) -> list[Any]:
    return [loader.construct_object(item, deep=True) for item in node.value]


def _construct_bool(loader: Any, node: yaml.ScalarNode) -> bool:
    text = str(loader.construct_scalar(node)).lower()
    if text not in _BOOL:
        raise YamlError(f"{text[:80]!r} is neither true nor false", _line(node))
    return text in _TRUE


def _construct_int(loader: Any, node: yaml.ScalarNode) -> int | float:
    text = str(loader.construct_scalar(node)).replace("_", "").lower()
    digits = text.lstrip("-+")
    is_old_octal = len(digits) > 1 and digits.isdigit() and digits.startswith("0")
    number = int(digits, 8 if is_old_octal else 0)
    number = -number if text.startswith("-") else number
    # JSON has one kind of number, and tools that read it keep 64 bits of an integer.
    return number if -(2**63) <= number < 2**64 else float(number)


def _construct_float(loader: Any, node: yaml.ScalarNode) -> float | int:
    text = str(loader.construct_scalar(node)).replace("_", "").lower()
    number = float(text.replace(".inf", "inf").replace(".nan", "nan"))
    if not math.isfinite(number):
        raise YamlError(f"{text[:80]} has no form in JSON", _line(node))
    # `1e3` in an integer field means 1000 to Kubernetes, whose JSON has one kind of number.
    return int(number) if number.is_integer() and abs(number) < 2**53 else number


def _refuse(_loader: Any, node: yaml.Node) -> Any:
    raise YamlError(f"the tag {node.tag} has no meaning in JSON", _line(node))


_DIGITS = "-+0123456789"
for _name, _pattern, _first in (
    ("bool", r"^(?:[yYnN]|yes|Yes|YES|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF)$", "yYnNtTfFoO"),
    ("int", r"^[-+]?(?:0b[01_]+|0o?[0-7_]+|0|[1-9][0-9_]*|0x[0-9a-fA-F_]+)$", _DIGITS),
    ("float", r"^[-+]?(?:[0-9][0-9_]*(?:\.[0-9_]*)?|\.[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)?$", _DIGITS + "."),
    ("float", r"^[-+]?\.(?:inf|Inf|INF)$|^\.(?:nan|NaN|NAN)$", "-+."),
    ("merge", r"^<<$", "<"),
):
    _Loader.add_implicit_resolver(_tag(_name), re.compile(_pattern), list(_first))
_Loader.add_implicit_resolver(_tag("null"), re.compile(r"^(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""])
_CONSTRUCTORS: dict[str, Callable[[Any, Any], Any]] = {
    "map": _construct_mapping,
    "seq": _construct_sequence,
    "bool": _construct_bool,
    "int": _construct_int,
    "float": _construct_float,
    **dict.fromkeys(("timestamp", "binary", "set", "omap", "pairs"), _refuse),
}
for _name, _constructor in _CONSTRUCTORS.items():
    _Loader.add_constructor(_tag(_name), _constructor)


# --- writing


class _Dumper(_BaseDumper):
    def ignore_aliases(self, data: Any) -> bool:
        """An object that appears twice is written twice: anchors surprise people and some readers."""
        return True


def _represent_str(dumper: Any, text: str) -> yaml.ScalarNode:
    style = None
    if "\n" in text and not any(line != line.rstrip() for line in text.split("\n")) and text.isascii():
        style = "|"
    elif _LOOKS_TYPED.match(text):
        style = '"'
    node: yaml.ScalarNode = dumper.represent_scalar(_tag("str"), text, style=style)
    return node


_Dumper.add_representer(str, _represent_str)
