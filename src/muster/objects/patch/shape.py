"""What a schema says about merging: which fields it names, which lists have keys, what is replaced as a whole.

A schema is OpenAPI v3 without references, as in CustomResourceDefinitions, or None where nothing is known: then objects merge
field by field and lists are replaced whole. Every write walks through its object and its schema together, so a schema is
turned into a tree of `Shape`s, which hold the answers ready. That happens once per schema, and only as far as objects go into
it: `root_shape` keeps the trees of the last schemas by their identity. So a schema that was used here must not change.

Pure as seen from outside. Any thread may call: what is kept is only ever added to, and adding it twice does no harm.
Schemas come from users too, so anything of the wrong type in them counts as absent.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from typing import Any, Final

from muster.objects.patch.common import identity, is_scalar
from muster.objects.status import Cause, Invalid, shown

Schema = Mapping[str, Any] | None

FLAT_LEN_MAX: Final = 8
"""Members of an object for which a ready node is kept, as long as they are all text."""
_FLAT_NODES_MAX: Final = 64
_KEY_LEN_MAX: Final = 256
_INSIDE: Final = ("properties", "additionalProperties")
_OWNER_REFERENCE: Final = {"type": "object", "x-kubernetes-map-type": "atomic"}
METADATA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "generateName": {"type": "string"},
        "namespace": {"type": "string"},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        "annotations": {"type": "object", "additionalProperties": {"type": "string"}},
        "ownerReferences": {
            "type": "array",
            "items": _OWNER_REFERENCE,
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["uid"],
            "x-kubernetes-patch-merge-key": "uid",
            "x-kubernetes-patch-strategy": "merge",
        },
        "finalizers": {
            "type": "array",
            "items": {"type": "string"},
            "x-kubernetes-list-type": "set",
            "x-kubernetes-patch-strategy": "merge",
        },
        "managedFields": {"type": "array", "x-kubernetes-list-type": "atomic"},
    },
}
"""Every kind's metadata merges alike, whatever its own schema says: custom resources' schemas leave it out."""


class Members(dict[str, tuple[str, "Shape"]]):
    """By the name of an object's member: its path element (`f:name`), and its shape.

    A dict that fills itself, so that what was looked up before costs no call: walks do this for every value.
    """

    __slots__ = ("_properties", "_rest", "_rest_schema")

    def __init__(self, properties: Any, rest: Any) -> None:
        super().__init__()
        self._properties: Mapping[str, Any] = properties if isinstance(properties, dict) else {}
        self._rest_schema = rest
        self._rest: Shape | None = None

    def __missing__(self, name: str) -> tuple[str, Shape]:
        """Called by `members[name]` for a name that was not asked for before."""
        found = self._properties.get(name)
        member = (f"f:{name}", self.rest if found is None else _shape(found))
        if name in self._properties:
            # Names that the schema does not know are entries of a map: without end, so they are not kept.
            self[name] = member
        return member

    @property
    def rest(self) -> Shape:
        """The shape of members that the schema does not name."""
        if self._rest is None:
            self._rest = _shape(self._rest_schema)
        return self._rest

    def is_named(self, name: str) -> bool:
        """Whether `name` is a field of its own, not an entry of a map."""
        return name in self._properties


class Below(dict[str, "Shape"]):
    """By a path element: the shape of what it leads to. Fills itself too, for the walks over sets of paths."""

    __slots__ = ("_shape",)

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self._shape = shape

    def __missing__(self, element: str) -> Shape:
        if not element.startswith("f:"):
            return self._shape.items
        name = element[2:]
        inner = self._shape.member(name)
        if self._shape.members.is_named(name):
            self[element] = inner
        return inner


class Shape:
    """What a schema says about one value."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._schema = schema
        self.members = Members(schema.get("properties"), schema.get("additionalProperties"))
        self.below = Below(self)
        self.is_atomic_map = schema.get("x-kubernetes-map-type") == "atomic"
        """Whether an object is replaced as a whole."""
        self.is_nullable = schema.get("nullable") is True
        self.default = schema.get("default")
        strategy, merge_key = schema.get("x-kubernetes-patch-strategy"), schema.get("x-kubernetes-patch-merge-key")
        self.patch_strategies = tuple(part.strip() for part in strategy.split(",")) if isinstance(strategy, str) else ()
        """Of `merge`, `replace`, `retainKeys`."""
        self.merge_key = merge_key if isinstance(merge_key, str) else ""
        self.list_keys, self.is_set = self._list_type()
        """How a list merges: by the members that name its items, or by the values themselves; neither means as a whole."""
        self.is_atomic_list = not self.list_keys and not self.is_set
        self.is_whole = self.is_atomic_list and (self.is_atomic_map or schema.keys().isdisjoint(_INSIDE))
        """Whether a path that ends here is all there is to say: nothing is known of what is inside, or it is one piece."""
        self._key_prefix = f"k:{{{identity(self.list_keys[0])}:" if len(self.list_keys) == 1 else ""
        self._flat_nodes: dict[tuple[str, ...], dict[str, Any]] = {}
        self._flat_fields: dict[tuple[str, ...], dict[str, Any]] = {}

    def _list_type(self) -> tuple[tuple[str, ...], bool]:
        """`x-kubernetes-list-type` decides; where it is missing, the patch strategy does."""
        kind = self._schema.get("x-kubernetes-list-type")
        if kind == "map":
            keys = self._schema.get("x-kubernetes-list-map-keys")
            return tuple(key for key in keys if isinstance(key, str)) if isinstance(keys, list | tuple) else (), False
        if kind is None and "merge" in self.patch_strategies:
            return ((self.merge_key,), False) if self.merge_key else ((), True)
        return (), kind == "set"

    @functools.cached_property
    def items(self) -> Shape:
        """The shape of a list's items."""
        return _shape(self._schema.get("items"))

    def member(self, name: str) -> Shape:
        return self.members[name][1]

    def flat_node(self, names: tuple[str, ...]) -> dict[str, Any]:
        """The node of a set of paths for an object with these members, which are all text. Shared: sets are never changed."""
        node = self._flat_nodes.get(names)
        if node is None:
            node = {".": {}, **{f"f:{name}": {} for name in sorted(names)}} if names else {}
            if len(self._flat_nodes) >= _FLAT_NODES_MAX:
                self._flat_nodes.clear()
            self._flat_nodes[names] = node
        return node

    def flat_fields(self, names: tuple[str, ...]) -> dict[str, Any]:
        """The same without the object itself."""
        fields = self._flat_fields.get(names)
        if fields is None:
            fields = {f"f:{name}": {} for name in sorted(names)}
            if len(self._flat_fields) >= _FLAT_NODES_MAX:
                self._flat_fields.clear()
            self._flat_fields[names] = fields
        return fields

    def parts(self, value: Any) -> dict[str, Any] | None:
        """The parts of a value that stand for themselves, by path element; None for what is one piece."""
        if isinstance(value, dict):
            return None if self.is_atomic_map else {f"f:{name}": member for name, member in value.items()}
        return self.keyed(value) if isinstance(value, list) else None

    def keyed(self, values: list[Any]) -> dict[str, Any] | None:
        """The items of a list by their path elements (`k:{"name":"x"}`, `v:"a"`), in order; None when it goes as a whole.

        So does a list in which an item has no key or two have the same, since an object that is already stored must not make
        every later write fail.
        """
        if self.is_atomic_list:
            return None
        found: dict[str, Any] = {}
        for value in values:
            element = self._element(value)
            if element is None or element in found:
                return None
            found[element] = value
        return found

    def keyed_strictly(self, values: list[Any], path: str) -> dict[str, Any]:
        """The same for a list that someone applies and that does not go as a whole: Invalid names the item."""
        found: dict[str, Any] = {}
        for index, value in enumerate(values):
            element = self._element(value)
            if element is None or element in found:
                raise self._bad_item(value, element, f"{path}[{index}]")
            found[element] = value
        return found

    def _bad_item(self, value: Any, element: str | None, where: str) -> Invalid:
        if element is None:
            wanted = f"an object with {' and '.join(self.list_keys)}" if self.list_keys else "a text, number or boolean"
            problem = f"{shown(value)} must be {wanted}, because the list is merged item by item"
            return Invalid(f"{where}: {problem}", causes=[Cause(field=where, message=problem)])
        problem = f"{element[2:]} stands there twice; items of this list must differ"
        return Invalid(f"{where}: {problem}", causes=[Cause(field=where, message=problem, reason="FieldValueDuplicate")])

    def _element(self, item: Any) -> str | None:
        if self.is_set:
            return None if item is None or not is_scalar(item) else "v:" + identity(item)
        if not isinstance(item, dict):
            return None
        if self._key_prefix:
            # The common case, without building a dict: one key, and it is text.
            text = item.get(self.list_keys[0])
            if type(text) is str:
                return _keyed_by(self._key_prefix, text) if len(text) <= _KEY_LEN_MAX else self._keyed_anew(text)
        key_values: dict[str, Any] = {}
        for key in self.list_keys:
            key_value = item.get(key)
            if key_value is None:
                key_value = self.items.member(key).default
            if key_value is None or not is_scalar(key_value):
                return None
            key_values[key] = key_value
        return "k:" + identity(key_values)

    def _keyed_anew(self, text: str) -> str:
        return f"{self._key_prefix}{identity(text)}}}"


@functools.lru_cache(maxsize=4096)
def _keyed_by(prefix: str, text: str) -> str:
    """The path element of an item: names of containers, variables and volumes come again with every pod."""
    return f"{prefix}{identity(text)}}}"


ANY: Final = Shape({})
"""Where nothing is known."""


def _shape(schema: Any) -> Shape:
    return Shape(schema) if isinstance(schema, dict) else ANY


_ROOTS_MAX: Final = 512
_roots: Final[dict[int, tuple[Schema, Shape]]] = {}
"""By `id` of the schema. The schema is kept with its shape, so that no other can get the same id."""


def root_shape(schema: Schema) -> Shape:
    """The shape of a whole object: what `schema` says, with every kind's metadata in its place."""
    known = _roots.get(id(schema))
    if known is not None:
        return known[1]
    properties = schema.get("properties") if schema is not None else None
    named = properties if isinstance(properties, dict) else {}
    shape = Shape({**(schema or {}), "properties": {**named, "metadata": METADATA}})
    while len(_roots) >= _ROOTS_MAX:
        _roots.pop(next(iter(_roots)), None)
    _roots[id(schema)] = (schema, shape)
    return shape


_PLAIN_ELEMENT: Final = re.compile(r'v:"[ !#-\[\]-~]*"|k:\{"[ !#-\[\]-~]*":"[ !#-\[\]-~]*"\}')
"""An item by one plain text: most are, and there may be very many."""


def canonical_element(element: str) -> str:
    """A path element of a fieldsV1 set as this module writes it. ValueError when it is none."""
    prefix, body = element[:2], element[2:]
    if prefix == "f:" or _PLAIN_ELEMENT.fullmatch(element):
        return element
    try:
        if prefix == "i:":
            return f"i:{int(body)}"
        if prefix in ("k:", "v:"):
            value = json.loads(body)
            if prefix == "v:" or (isinstance(value, dict) and all(is_scalar(v) for v in value.values())):
                return prefix + identity(value)
    except (ValueError, RecursionError):
        pass
    raise ValueError(f"{element[:80]!r} is not a path element; it must begin with f:, k:, v: or i:")
