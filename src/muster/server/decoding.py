"""Request bodies: bytes to JSON values, for JSON and YAML, within limits.

Pure. Whatever the bytes are, the outcome is a value of JSON types within the depth limit, or a `BadRequest` that says where the
text breaks; never another exception, never unbounded work. YAML follows what Kubernetes' tools make of it: timestamps stay
text, keys become strings, aliases are expanded only within `nodes_max`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from typing import Any

import msgspec
import yaml

from muster.objects.status import BadRequest

_SHOWN_CHARS_MAX = 200


def decode_json(body: bytes, *, depth_max: int) -> Any:
    """A JSON document. Duplicate keys: the last wins, as in Go; see `duplicate_keys`."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"the body is not valid JSON: {_shown(error)}") from None
    except RecursionError:
        raise BadRequest(f"the body is nested deeper than {depth_max} levels; flatten it") from None
    # A cheap upper bound first: most bodies have fewer brackets in all than the depth that is allowed.
    if body.count(b"{") + body.count(b"[") > depth_max:
        _check_depth(value, depth_max)
    return value


def decode_yaml(body: bytes, *, depth_max: int, nodes_max: int) -> Any:
    """One YAML document (JSON is YAML too, and decoded as such first)."""
    if body.lstrip()[:1] in (b"{", b"["):
        try:
            return decode_json(body, depth_max=depth_max)
        except BadRequest:
            pass  # a YAML flow mapping may look like this and not be JSON
    try:
        text = body.decode()
        _check_shape(text, depth_max=depth_max, nodes_max=nodes_max)
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            _check_expanded(node, nodes_max)
            value = None if node is None else loader.construct_document(node)
        finally:
            loader.dispose()
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, OverflowError) as error:
        raise BadRequest(f"the body is not valid YAML: {_shown(error)}") from None
    except RecursionError:
        raise BadRequest(f"the body is nested deeper than {depth_max} levels; flatten it") from None
    _check_depth(value, depth_max)  # aliases may have made it deeper than its text
    return value


def duplicate_keys(body: bytes, limit: int = 10) -> list[str]:
    """Paths of keys that stand twice in one object of a JSON `body` that is known to be valid."""
    found: list[str] = []

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(items)
        if len(result) != len(items):
            seen: set[str] = set()
            for key, _ in items:
                if key in seen and len(found) < limit:
                    found.append(key)
                seen.add(key)
        return result

    try:
        json.loads(body, object_pairs_hook=pairs)
    except (ValueError, RecursionError):
        return []
    return found


def _check_depth(value: Any, depth_max: int) -> None:
    level: list[Any] = [value]
    for _ in range(depth_max + 1):
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                below.extend(v for v in item.values() if isinstance(v, dict | list))
            elif isinstance(item, list):
                below.extend(v for v in item if isinstance(v, dict | list))
        if not below:
            return
        level = below
    raise BadRequest(f"the body is nested deeper than {depth_max} levels; flatten it")


def _shown(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= _SHOWN_CHARS_MAX else text[:_SHOWN_CHARS_MAX] + "..."


class _Loader(yaml.CSafeLoader):
    """YAML to JSON types: no timestamps, no binary, no sets, no base-60 numbers, string keys."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - filled below, and meant to be the class's own

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        explicit: set[str] = set()
        for key_node, _ in node.value:
            if isinstance(key_node, yaml.ScalarNode) and key_node.tag != "tag:yaml.org,2002:merge":
                if key_node.value in explicit:
                    message = f"the key {key_node.value!r} stands twice"
                    raise yaml.constructor.ConstructorError(None, None, message, key_node.start_mark)
                explicit.add(key_node.value)
        self.flatten_mapping(node)  # what `<<` brings in comes first, so that explicit keys win
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, bool):
                key = "true" if key else "false"
            elif isinstance(key, int | float):
                key = str(key)
            if not isinstance(key, str):
                raise yaml.constructor.ConstructorError(None, None, "a key must be text", key_node.start_mark)
            result[key] = self.construct_object(value_node, deep=True)
        return result


def _construct_float(loader: _Loader, node: yaml.ScalarNode) -> float:
    value = float(str(node.value).replace("_", ""))
    if not math.isfinite(value):
        raise yaml.constructor.ConstructorError(None, None, f"{node.value} is no JSON number", node.start_mark)
    return value


def _construct_map(loader: _Loader, node: yaml.MappingNode) -> dict[str, Any]:
    return loader.construct_mapping(node, deep=True)


def _refuse(loader: _Loader, node: yaml.Node) -> Any:
    raise yaml.constructor.ConstructorError(None, None, f"the tag {node.tag} has no meaning in JSON", node.start_mark)


def _resolve(tag: str, pattern: str, first: Iterable[str | None]) -> None:
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(pattern), list(first))


_resolve("bool", r"^(?:yes|Yes|YES|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF)$", "yYnNtTfFoO")
_resolve("int", r"^(?:[-+]?0b[0-1_]+|[-+]?0[0-7_]+|[-+]?(?:0|[1-9][0-9_]*)|[-+]?0x[0-9a-fA-F_]+)$", "-+0123456789")
_resolve(
    "float",
    r"^(?:[-+]?(?:[0-9][0-9_]*)(?:\.[0-9_]*)?(?:[eE][-+]?[0-9]+)?|[-+]?\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?)$",
    "-+.0123456789",
)
_resolve("merge", r"^(?:<<)$", "<")
_resolve("null", r"^(?:~|null|Null|NULL|)$", ["~", "n", "N", ""])
_Loader.add_constructor("tag:yaml.org,2002:float", _construct_float)
_Loader.add_constructor("tag:yaml.org,2002:map", _construct_map)
for _tag in ("timestamp", "binary", "set", "omap", "pairs"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_tag}", _refuse)


def _check_shape(text: str, *, depth_max: int, nodes_max: int) -> None:
    """Depth and number of nodes, from the parser's events alone: the composer recurses in C and would overflow its stack."""
    depth = 0
    for nodes, event in enumerate(yaml.parse(text, Loader=yaml.CSafeLoader)):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > depth_max:
                raise BadRequest(f"the body is nested deeper than {depth_max} levels; flatten it")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if nodes > nodes_max:
            raise BadRequest(f"the body has more than {nodes_max} YAML nodes; send less at once, or send JSON")


def _check_expanded(root: yaml.Node | None, nodes_max: int) -> None:
    """Count the nodes that `root` has after alias expansion, without expanding; refuse loops."""
    if root is None:
        return
    sizes: dict[int, int] = {}
    open_nodes: set[int] = set()

    def size(node: yaml.Node) -> int:
        key = id(node)
        if key in sizes:
            return sizes[key]
        if key in open_nodes:
            raise BadRequest("the body is not valid YAML: an alias contains itself")
        open_nodes.add(key)
        total = 1
        if isinstance(node, yaml.MappingNode):
            total += sum(size(k) + size(v) for k, v in node.value)
        elif isinstance(node, yaml.SequenceNode):
            total += sum(size(item) for item in node.value)
        open_nodes.discard(key)
        sizes[key] = total
        return total

    if size(root) > nodes_max:
        raise BadRequest(f"the body has more than {nodes_max} YAML nodes after its aliases are expanded; send less, or JSON")
