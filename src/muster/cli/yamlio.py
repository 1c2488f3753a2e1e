"""YAML as Kubernetes reads and writes it, not as PyYAML does by default.

Reading: timestamps stay strings, `1e3` is a number, a key given twice is an error with its line, keys are strings, and an
alias cannot blow a small file up into a large object. Writing: every string that some YAML reader would take for something
else is quoted. Pure: text in, values out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

import yaml

try:
    from yaml import CSafeDumper as _BaseDumper
    from yaml import CSafeLoader as _BaseLoader
except ImportError:  # PyYAML built without libyaml
    from yaml import SafeDumper as _BaseDumper  # type: ignore[assignment]
    from yaml import SafeLoader as _BaseLoader  # type: ignore[assignment]

NODES_MAX = 2_000_000
"""Values in one document after aliases are followed."""
DEPTH_MAX = 200

_FLOAT = re.compile(r"^[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$|^[-+]?\.(?:inf|Inf|INF)$|^\.(?:nan|NaN|NAN)$")
_INT = re.compile(r"^[-+]?(?:0|[1-9][0-9]*)$|^0x[0-9a-fA-F]+$|^0o?[0-7]+$|^0b[01]+$")
_LOOKS_TYPED = re.compile(
    r"^[-+]?(?:\.[0-9]|[0-9])[0-9a-fA-FxXoO_.,:eE+-]*$|^(?:y|n|yes|no|on|off|true|false|null|~|\.nan|[-+]?\.inf)$|^\d{4}-\d{1,2}-\d{1,2}.*$",
    re.IGNORECASE,
)


class YamlError(ValueError):
    """A document cannot be read. `line` counts from 1 within the whole stream; 0 when it is not known."""

    def __init__(self, message: str, line: int = 0) -> None:
        super().__init__(message)
        self.line = line


class _Loader(_BaseLoader):
    """Plain data only, with Kubernetes' idea of scalars."""


class _Dumper(_BaseDumper):
    def ignore_aliases(self, data: Any) -> bool:
        """An object that appears twice is written twice: anchors surprise people and some readers."""
        return True


def _tag(name: str) -> str:
    return f"tag:yaml.org,2002:{name}"


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in (_tag("timestamp"), _tag("int"), _tag("float"))]
    for first, resolvers in _BaseLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_tag("int"), _INT, list("-+0123456789"))
_Loader.add_implicit_resolver(_tag("float"), _FLOAT, list("-+0123456789."))


def _construct_mapping(loader: Any, node: yaml.MappingNode) -> Iterator[dict[str, Any]]:
    result: dict[str, Any] = {}
    yield result
    # A merge key (<<) spreads first, so that an explicit key beside it wins without counting as given twice.
    own = [n.value for n, _ in node.value if n.tag != _tag("merge")]
    loader.flatten_mapping(node)
    seen: set[str] = set()
    merged_len = len(node.value) - len(own)
    for index, (key_node, value_node) in enumerate(node.value):
        if not isinstance(key_node, yaml.ScalarNode):
            raise YamlError("a key must be a plain string", key_node.start_mark.line + 1)
        key = str(key_node.value)
        if index >= merged_len:
            if key in seen:
                raise YamlError(f"key {key!r} is given twice", key_node.start_mark.line + 1)
            seen.add(key)
        result[key] = loader.construct_object(value_node, deep=True)


def _construct_int(loader: Any, node: yaml.ScalarNode) -> int:
    text = str(loader.construct_scalar(node))
    if re.match(r"^0[0-7]+$", text):
        return int(text, 8)
    return int(text, 0) if text.lstrip("-+")[:2] in ("0x", "0o", "0b") else int(text)


def _construct_float(loader: Any, node: yaml.ScalarNode) -> float | int:
    text = str(loader.construct_scalar(node)).lower()
    number = float(text.replace(".inf", "inf").replace(".nan", "nan"))
    if not math.isfinite(number):
        raise YamlError(f"{text} has no form in JSON", node.start_mark.line + 1)
    # `1e3` in an integer field means 1000 to Kubernetes, whose JSON has one kind of number.
    return int(number) if number.is_integer() and abs(number) < 2**53 else number


_Loader.add_constructor(_tag("map"), _construct_mapping)
_Loader.add_constructor(_tag("int"), _construct_int)
_Loader.add_constructor(_tag("float"), _construct_float)


def load_all(text: str | bytes) -> Iterator[tuple[int, Any]]:
    """Each document with the line that it starts on; empty documents are skipped. Raises YamlError."""
    _check_depth(text)
    try:
        loader = _Loader(text)
    except (yaml.YAMLError, UnicodeDecodeError) as e:
        raise _translated(e) from e
    try:
        while True:
            try:
                if not loader.check_node():
                    return
                node = loader.get_node()
                assert node is not None
                value = loader.construct_document(node)
            except YamlError:
                raise
            except RecursionError as e:
                raise YamlError(f"nested deeper than {DEPTH_MAX} levels") from e
            except (yaml.YAMLError, ValueError) as e:
                raise _translated(e) from e
            if value is None:
                continue
            line = node.start_mark.line + 1
            _check_size(value, line)
            yield line, value
    finally:
        loader.dispose()


def _check_depth(text: str | bytes) -> None:
    """libyaml's parser is a loop, but its composer recurses in C and takes the process down with it; so look first."""
    depth = 0
    try:
        for event in yaml.parse(text, Loader=_BaseLoader):
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
                if depth > DEPTH_MAX:
                    mark = event.start_mark
                    raise YamlError(f"nested deeper than {DEPTH_MAX} levels", mark.line + 1 if mark is not None else 0)
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
    except (yaml.YAMLError, UnicodeDecodeError):
        return  # the reader proper meets the same fault and knows which document it is in


def _translated(error: Exception) -> YamlError:
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark if error.problem_mark is not None else error.context_mark
        line = mark.line + 1 if mark is not None else 0
        return YamlError(error.problem or error.context or "cannot be read", line)
    return YamlError(str(error))


def _check_size(value: Any, line: int) -> None:
    """Bound the document as JSON would write it, where every alias is a copy; the walk itself is bounded too."""
    sizes: dict[int, int] = {}

    def size(item: Any, depth: int) -> int:
        if depth > DEPTH_MAX:
            raise YamlError(f"nested deeper than {DEPTH_MAX} levels", line)
        if not isinstance(item, dict | list):
            return 1
        known = sizes.get(id(item))
        if known is None:
            children = item.values() if isinstance(item, dict) else item
            known = sizes[id(item)] = 1 + sum(size(child, depth + 1) for child in children)
        return known

    if size(value, 0) > NODES_MAX:
        raise YamlError(f"more than {NODES_MAX} values once its aliases are followed", line)


def _represent_str(dumper: Any, text: str) -> yaml.ScalarNode:
    style = None
    if "\n" in text and not any(line != line.rstrip() for line in text.split("\n")) and text.isascii():
        style = "|"
    elif _LOOKS_TYPED.match(text):
        style = '"'
    node: yaml.ScalarNode = dumper.represent_scalar(_tag("str"), text, style=style)
    return node


_Dumper.add_representer(str, _represent_str)


def dump(value: Any) -> str:
    """`value` as one YAML document, keys in their own order."""
    return str(yaml.dump(value, Dumper=_Dumper, sort_keys=False, default_flow_style=False, allow_unicode=True, width=1_000_000))
