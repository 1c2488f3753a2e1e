from __future__ import annotations

import enum
from typing import Annotated, Any, Literal

import msgspec
import pytest

from muster.objects.catalog import CATALOG
from muster.objects.schema import EMPTY_IS_ABSENT, NULL_IS_ABSENT, PRESERVE, publishable, schema_of
from muster.objects.status import Raw
from muster.objects.structural import Structural
from muster.objects.view import ATOMIC, KEEP_UNKNOWN, Int32, IntOrString, QuantityValue, View, keyed, merged


class Colour(enum.StrEnum):
    RED = "red"
    BLUE = "blue"


class Part(View):
    """One part.

    Not in the schema.
    """

    name: str
    size: Annotated[int, msgspec.Meta(ge=1, le=9, description="How large.")] = 3


class Foreign(View):
    __schema_extra__ = KEEP_UNKNOWN

    part: Part | None = None


class Tree(View):
    """Contains itself."""

    label: str = ""
    left: Tree | None = None
    more: list[Tree] = msgspec.field(default_factory=list)


class Everything(View):
    text: Annotated[str, "Some text."]
    number: int = 0
    small: Int32 = 0
    ratio: float = 0.5
    flag: bool = True
    colour: Colour = Colour.RED
    mode: Literal["a", "b"] = "a"
    port: IntOrString | None = None
    plain_port: int | str = 0
    amount: QuantityValue = "1"
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    parts: Annotated[list[Part], keyed("name"), merged("name")] = msgspec.field(default_factory=list)
    words: Annotated[list[str], ATOMIC, msgspec.Meta(min_length=1, max_length=5)] = msgspec.field(default_factory=lambda: ["x"])
    short: Annotated[str, msgspec.Meta(min_length=1, max_length=3, pattern="^a")] = ""
    above: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.1
    anything: Any = None
    raw: dict[str, Any] | None = None
    part: Part = msgspec.field(default_factory=lambda: Part(name=""))
    zero: Annotated[int, msgspec.Meta(extra_json_schema={"default": 0})] = 0


PART = {
    "type": "object",
    "description": "One part.",
    "properties": {
        "name": {"type": "string"},
        "size": {"type": "integer", "format": "int64", "minimum": 1, "maximum": 9, "description": "How large.", "default": 3},
    },
    "required": ["name"],
}


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ("text", {"type": "string", "description": "Some text."}),
        ("number", {"type": "integer", "format": "int64"}),
        ("small", {"type": "integer", "format": "int32"}),
        ("ratio", {"type": "number", "format": "double", "default": 0.5}),
        ("flag", {"type": "boolean", "default": True}),
        ("colour", {"type": "string", "enum": ["red", "blue"], "default": "red", EMPTY_IS_ABSENT: True}),
        ("mode", {"type": "string", "enum": ["a", "b"], "default": "a", EMPTY_IS_ABSENT: True}),
        ("port", {"x-kubernetes-int-or-string": True}),
        ("plainPort", {"x-kubernetes-int-or-string": True}),
        ("labels", {"type": "object", "additionalProperties": {"type": "string"}}),
        (
            "parts",
            {
                "type": "array",
                "items": PART,
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["name"],
                "x-kubernetes-patch-strategy": "merge",
                "x-kubernetes-patch-merge-key": "name",
            },
        ),
        (
            "words",
            {
                "type": "array",
                "items": {"type": "string"},
                "x-kubernetes-list-type": "atomic",
                "minItems": 1,
                "maxItems": 5,
                "default": ["x"],
            },
        ),
        ("short", {"type": "string", "minLength": 1, "maxLength": 3, "pattern": "^a"}),
        (
            "above",
            {
                "type": "number",
                "format": "double",
                "minimum": 0,
                "exclusiveMinimum": True,
                "maximum": 1,
                "exclusiveMaximum": True,
                "default": 0.1,
            },
        ),
        ("anything", {PRESERVE: True}),
        ("raw", {"type": "object", PRESERVE: True}),
        ("zero", {"type": "integer", "format": "int64", "default": 0}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_a_field_becomes(field: str, expected: Raw) -> None:
    assert schema_of(Everything)["properties"][field] == expected


def test_only_fields_without_a_default_are_required() -> None:
    assert schema_of(Everything)["required"] == ["text"]


def test_quantities_take_text_and_numbers() -> None:
    structural = Structural({"type": "object", "properties": {"q": schema_of(Everything)["properties"]["amount"]}})
    assert [bool(structural.validate({"q": q})) for q in ("500m", 2, 0.5, "1e3", ".5", "1Gi", "Gi", "", True, "1 Gi")] == [
        *[False] * 6,
        *[True] * 4,
    ]


def test_keeping_unknown_fields_reaches_down() -> None:
    schema = schema_of(Foreign)
    assert schema[PRESERVE] is True
    assert schema["properties"]["part"][PRESERVE] is True
    assert PRESERVE not in schema_of(Everything)["properties"]["part"]


def test_a_view_inside_itself_is_cut() -> None:
    schema = schema_of(Tree)
    cut = {"type": "object", "description": "Contains itself.", PRESERVE: True}
    assert schema["properties"]["left"] == cut
    assert schema["properties"]["more"]["items"] == cut
    assert schema_of(Tree) is schema


def test_what_has_no_schema_is_refused_with_its_type() -> None:
    class Odd(View):
        what: set[int] = msgspec.field(default_factory=set)

    with pytest.raises(TypeError, match="set"):
        schema_of(Odd)


def test_publishable_drops_our_own_words_and_keeps_data() -> None:
    schema = {
        NULL_IS_ABSENT: True,
        "properties": {
            "x-muster-name": {"type": "string", "x-kubernetes-patch-strategy": "merge", "default": {"x-muster-a": 1}}
        },
    }
    assert publishable(schema, drop_prefixes=("x-kubernetes-patch-",)) == {
        "properties": {"x-muster-name": {"type": "string", "default": {"x-muster-a": 1}}}
    }


def members(schema: Any, path: str) -> list[tuple[str, Raw]]:
    if not isinstance(schema, dict):
        return []
    found = [(path, schema)]
    for name, inner in schema.get("properties", {}).items():
        found += members(inner, f"{path}.{name}")
    return found + members(schema.get("items"), f"{path}[]") + members(schema.get("additionalProperties"), f"{path}{{}}")


@pytest.mark.parametrize("resource", [r for r in CATALOG if r.view], ids=lambda r: f"{r.qualified}.{r.version}")
def test_every_kind_has_a_whole_schema(resource: Any) -> None:
    schema = schema_of(resource.view)
    assert {"apiVersion", "kind", "metadata"} <= schema["properties"].keys()
    assert schema.get("description"), "kubectl explain needs a word about the kind"
    for path, part in members(schema, resource.kind):
        assert "$ref" not in part, path
        assert part.get("type") or part.get(PRESERVE) or part.get("x-kubernetes-int-or-string"), path
    assert msgspec.json.encode(schema)
