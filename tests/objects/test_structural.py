from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.counts import examples

from muster.objects.schema import NULL_IS_ABSENT, PRESERVE
from muster.objects.status import Cause, Raw, RequestEntityTooLarge
from muster.objects.structural import CAUSES_MAX, Structural
from muster.objects.structural_definition import DEPTH_MAX

INT_OR_STRING = {"x-kubernetes-int-or-string": True}


def of(**properties: Raw) -> Structural:
    return Structural({"type": "object", "properties": {"spec": {"type": "object", "properties": properties}}})


def causes(schema: Raw, value: Any) -> list[tuple[str, str]]:
    return [(c.field, c.reason) for c in of(f=schema).validate({"spec": {"f": value}})]


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        pytest.param({"type": "string"}, ["", "a"], [1, None, True, [], {}], id="string"),
        pytest.param({"type": "boolean"}, [True, False], [0, "true", None], id="boolean"),
        pytest.param({"type": "integer"}, [0, -1, 2.0], [1.5, "1", True, float("inf")], id="integer"),
        pytest.param({"type": "number"}, [0, 1.5], ["1", True, float("nan")], id="number"),
        pytest.param({"type": "object"}, [{}], [[], "", 0], id="object"),
        pytest.param({"type": "array", "items": {"type": "string"}}, [[], ["a"]], [{}, "a"], id="array"),
        pytest.param(INT_OR_STRING, [1, "a", 2.0], [1.5, True, None, {}], id="int or string"),
        pytest.param({"type": "string", "nullable": True}, ["a", None], [1], id="nullable"),
    ],
)
def test_types(schema: Raw, good: list[Any], bad: list[Any]) -> None:
    assert [causes(schema, value) for value in good] == [[]] * len(good)
    assert [causes(schema, value) for value in bad] == [[("spec.f", "FieldValueTypeInvalid")]] * len(bad)


@pytest.mark.parametrize(
    ("schema", "good", "bad", "reason"),
    [
        pytest.param({"type": "integer", "minimum": 1}, [1, 2], [0], "FieldValueInvalid", id="minimum"),
        pytest.param({"type": "integer", "minimum": 1, "exclusiveMinimum": True}, [2], [1], "FieldValueInvalid", id="above"),
        pytest.param({"type": "number", "maximum": 1.5}, [1.5], [1.6], "FieldValueInvalid", id="maximum"),
        pytest.param({"type": "number", "maximum": 1, "exclusiveMaximum": True}, [0.9], [1], "FieldValueInvalid", id="below"),
        pytest.param({"type": "number", "multipleOf": 0.1}, [0.3, 1, 1e300], [0.35], "FieldValueInvalid", id="multiple"),
        pytest.param({"type": "number", "multipleOf": 5e-324}, [1e308], [], "FieldValueInvalid", id="of the least"),
        pytest.param({"type": "number", "multipleOf": 1e308}, [1e308], [5e-324], "FieldValueInvalid", id="of the most"),
        pytest.param({"type": "integer", "format": "int32"}, [2**31 - 1, -(2**31)], [2**31], "FieldValueInvalid", id="int32"),
        pytest.param({"type": "integer", "format": "int64"}, [2**63 - 1], [2**63], "FieldValueInvalid", id="int64"),
        pytest.param({"type": "string", "minLength": 2}, ["ab"], ["a"], "FieldValueInvalid", id="short"),
        pytest.param({"type": "string", "maxLength": 2}, ["ab"], ["abc"], "FieldValueTooLong", id="long"),
        pytest.param({"type": "string", "pattern": "^a+$"}, ["aa"], ["ab", ""], "FieldValueInvalid", id="pattern"),
        pytest.param({"type": "string", "enum": ["x", "y"]}, ["x"], ["z", ""], "FieldValueNotSupported", id="enum"),
        pytest.param({"type": "integer", "enum": [1, 2]}, [1], [3], "FieldValueNotSupported", id="enum of numbers"),
        pytest.param({"type": "number", "enum": [1, 2.5, 3.0]}, [1.0, 2.5, 3], [2], "FieldValueNotSupported", id="fractions"),
        pytest.param(
            {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2},
            [[1], [1, 2]],
            [[]],
            "FieldValueInvalid",
            id="items",
        ),
        pytest.param(
            {"type": "array", "items": {"type": "integer"}, "maxItems": 1}, [[1]], [[1, 2]], "FieldValueTooMany", id="many"
        ),
        pytest.param({"type": "object", "minProperties": 1}, [{"a": 1}], [{}], "FieldValueInvalid", id="few members"),
        pytest.param(
            {"type": "object", "maxProperties": 1, "additionalProperties": {"type": "integer"}},
            [{"a": 1}],
            [{"a": 1, "b": 2}],
            "FieldValueTooMany",
            id="many members",
        ),
        pytest.param(
            {"type": "string", "format": "date-time"},
            ["2024-02-29T00:00:00.5+01:00"],
            ["2023-02-29T00:00:00Z", "x", ""],
            "FieldValueInvalid",
            id="date-time",
        ),
        pytest.param({"type": "string", "format": "date"}, ["2024-02-29"], ["2023-02-29"], "FieldValueInvalid", id="date"),
        pytest.param({"type": "string", "format": "byte"}, ["YQ==", ""], ["YQ", "%"], "FieldValueInvalid", id="byte"),
        pytest.param({"type": "string", "format": "ipv4"}, ["10.0.0.1"], ["10.0.0"], "FieldValueInvalid", id="ipv4"),
        pytest.param({"type": "string", "format": "ipv6"}, ["::1"], ["10.0.0.1"], "FieldValueInvalid", id="ipv6"),
        pytest.param(
            {"type": "string", "format": "cidr"}, ["10.0.0.0/8"], ["10.0.0.0", "10/8/8"], "FieldValueInvalid", id="cidr"
        ),
        pytest.param(
            {"type": "string", "format": "hostname"}, ["a.b-c"], ["-a", "a..b", "a" * 64], "FieldValueInvalid", id="hostname"
        ),
        pytest.param(
            {"type": "string", "format": "uri"}, ["https://a/b", "/x"], ["x y", "http://[x"], "FieldValueInvalid", id="uri"
        ),
        pytest.param({"type": "string", "format": "email"}, ["a@b"], ["a"], "FieldValueInvalid", id="email"),
        pytest.param({"type": "string", "format": "mac"}, ["02:00:00:00:00:01"], ["02:00"], "FieldValueInvalid", id="mac"),
        pytest.param(
            {"type": "string", "format": "uuid4"},
            ["7d444840-9dc0-41d1-b245-5ffdce74fad2"],
            ["7d444840-9dc0-11d1-b245-5ffdce74fad2", "x"],
            "FieldValueInvalid",
            id="uuid4",
        ),
        pytest.param(
            {"type": "string", "format": "duration"}, ["1h30m", "0", "2 days"], ["1x", ""], "FieldValueInvalid", id="duration"
        ),
        pytest.param({"type": "string", "format": "who-knows"}, ["x"], [], "", id="unknown format"),
        pytest.param(
            {**INT_OR_STRING, "pattern": "^[0-9]+%$"}, [1, "5%"], ["5"], "FieldValueInvalid", id="int or string pattern"
        ),
        pytest.param(
            {"type": "integer", "allOf": [{"minimum": 1}, {"maximum": 3}]}, [1, 3], [0, 4], "FieldValueInvalid", id="allOf"
        ),
        pytest.param(
            {"type": "integer", "anyOf": [{"maximum": 1}, {"minimum": 5}]}, [1, 5], [3], "FieldValueInvalid", id="anyOf"
        ),
        pytest.param(
            {"type": "integer", "oneOf": [{"maximum": 3}, {"minimum": 2}]}, [1, 4], [2], "FieldValueInvalid", id="oneOf"
        ),
        pytest.param({"type": "string", "not": {"enum": ["root"]}}, ["me"], ["root"], "FieldValueInvalid", id="not"),
    ],
)
def test_constraints(schema: Raw, good: list[Any], bad: list[Any], reason: str) -> None:
    assert [causes(schema, value) for value in good] == [[]] * len(good)
    assert [causes(schema, value) for value in bad] == [[("spec.f", reason)]] * len(bad)


@pytest.mark.parametrize(
    ("schema", "value", "expected"),
    [
        pytest.param(
            {"type": "object", "required": ["a", "b"], "properties": {"a": {"type": "string"}, "b": {"type": "string"}}},
            {"a": 1},
            [("spec.f.a", "FieldValueTypeInvalid"), ("spec.f.b", "FieldValueRequired")],
            id="all at once",
        ),
        pytest.param(
            {"type": "array", "items": {"type": "object", "properties": {"n": {"type": "integer"}}}},
            [{"n": 1}, {"n": "x"}, 3],
            [("spec.f[1].n", "FieldValueTypeInvalid"), ("spec.f[2]", "FieldValueTypeInvalid")],
            id="elements",
        ),
        pytest.param(
            {"type": "object", "additionalProperties": {"type": "string"}},
            {"plain": 1, "a.b/c": 2},
            [("spec.f.plain", "FieldValueTypeInvalid"), ("spec.f[a.b/c]", "FieldValueTypeInvalid")],
            id="map keys",
        ),
        pytest.param(
            {
                "type": "array",
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["p", "q"],
                "items": {"type": "object", "properties": {"p": {"type": "integer"}, "q": {"type": "string", "default": "T"}}},
            },
            [{"p": 1}, {"p": 1, "q": "U"}, {"p": 1, "q": "T"}],
            [("spec.f[2]", "FieldValueDuplicate")],
            id="map list keys, with default",
        ),
        pytest.param(
            {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
            ["a", "b", "a"],
            [("spec.f[2]", "FieldValueDuplicate")],
            id="set",
        ),
        pytest.param(
            {"type": "object", "x-kubernetes-embedded-resource": True, PRESERVE: True},
            {"apiVersion": 1, "kind": "K", "metadata": {"labels": {"a": 1}}},
            [("spec.f.apiVersion", "FieldValueTypeInvalid"), ("spec.f.metadata.labels.a", "FieldValueTypeInvalid")],
            id="embedded resource",
        ),
        pytest.param(
            {"type": "array", "items": {"type": "object", "x-kubernetes-embedded-resource": True, PRESERVE: True}},
            [{"kind": "", "metadata": {"labels": {"a b": "c"}, "name": "a/b"}}, {"apiVersion": "v1", "kind": "K"}],
            [
                ("spec.f[0].apiVersion", "FieldValueRequired"),
                ("spec.f[0].kind", "FieldValueInvalid"),
                ("spec.f[0].metadata.name", "FieldValueInvalid"),
                ("spec.f[0].metadata.labels", "FieldValueInvalid"),
            ],
            id="embedded resources of which the types are right",
        ),
        pytest.param(
            {
                "type": "object",
                "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
                "oneOf": [{"required": ["a"]}, {"required": ["b"]}],
            },
            {},
            [("spec.f", "FieldValueInvalid")],
            id="alternatives",
        ),
    ],
)
def test_every_fault_is_named(schema: Raw, value: Any, expected: list[tuple[str, str]]) -> None:
    assert causes(schema, value) == expected


def test_messages_name_the_value_and_what_is_allowed() -> None:
    schema = of(mode={"type": "string", "enum": ["Always", "Never"]}, size={"type": "integer", "maximum": 3})
    assert schema.validate({"spec": {"mode": "Often", "size": 4}}) == [
        Cause(
            field="spec.mode",
            message='Unsupported value: "Often": supported values: "Always", "Never"',
            reason="FieldValueNotSupported",
        ),
        Cause(field="spec.size", message="Invalid value: 4: must be less than or equal to 3", reason="FieldValueInvalid"),
    ]


def test_long_values_are_cut_and_causes_are_bounded() -> None:
    found = of(f={"type": "array", "items": {"type": "integer"}}).validate({"spec": {"f": ["x" * 1000] * 1000}})
    assert len(found) == CAUSES_MAX
    assert len(found[0].message) < 200


def test_text_too_long_for_a_pattern_is_refused() -> None:
    assert causes({"type": "string", "pattern": "a"}, "a" * 20_000) == [("spec.f", "FieldValueTooLong")]


DEFAULTED: Raw = {
    "type": "object",
    "properties": {
        "spec": {
            "type": "object",
            "default": {"mode": "x"},
            "properties": {
                "mode": {"type": "string", "default": "m"},
                "count": {"type": "integer", "default": 0},
                "inner": {"type": "object", "properties": {"deep": {"type": "string", "default": "d"}}},
                "list": {"type": "array", "items": {"type": "object", "properties": {"p": {"type": "string", "default": "T"}}}},
                "map": {
                    "type": "object",
                    "additionalProperties": {"type": "object", "properties": {"v": {"type": "integer", "default": 1}}},
                },
                "maybe": {"type": "string", "nullable": True, "default": "y"},
                "plain": {"type": "string"},
            },
        }
    },
}


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        pytest.param({}, {"spec": {"mode": "x", "count": 0, "maybe": "y"}}, id="from the top, and inside what was filled in"),
        pytest.param(
            {"spec": {"mode": "z", "count": 3, "maybe": None}}, {"spec": {"mode": "z", "count": 3, "maybe": None}}, id="set"
        ),
        pytest.param({"spec": {"mode": None}}, {"spec": {"mode": "m", "count": 0, "maybe": "y"}}, id="null is not a value"),
        pytest.param(
            {"spec": {"inner": {}, "list": [{}, {"p": "U"}], "map": {"a": {}}}},
            {
                "spec": {
                    "inner": {"deep": "d"},
                    "list": [{"p": "T"}, {"p": "U"}],
                    "map": {"a": {"v": 1}},
                    "mode": "m",
                    "count": 0,
                    "maybe": "y",
                }
            },
            id="inside containers",
        ),
        pytest.param({"spec": "wrong"}, {"spec": "wrong"}, id="wrong types are left for validation"),
    ],
)
def test_defaults(raw: Raw, expected: Raw) -> None:
    kept = msgspec.json.encode(raw)
    structural = Structural(DEFAULTED)
    assert structural.default(raw) == expected
    assert msgspec.json.encode(raw) == kept
    assert structural.default(expected) == expected, "defaulting twice changes nothing"


def test_a_filled_in_default_is_nobody_elses() -> None:
    structural = Structural(DEFAULTED)
    structural.default({})["spec"]["mode"] = "changed"
    assert structural.default({})["spec"]["mode"] == "x"


@pytest.mark.parametrize(
    "default", ["x" * 1000, "", 0, [], {"a": ["b"] * 100}], ids=["text", "empty", "number", "empty list", "nested"]
)
def test_what_defaults_add_is_bounded(default: Any) -> None:
    fields = {f"d{number}": {"default": default} for number in range(1000)}
    structural = of(l={"type": "array", "items": {"type": "object", "properties": fields}})
    with pytest.raises(RequestEntityTooLarge, match=r"more than 4194304 bytes .* at spec\.l\[\*\]\.d[0-9]+: send fewer"):
        structural.default({"spec": {"l": [{}] * 50_000}})
    assert structural.default({"spec": {"l": [{}]}})["spec"]["l"][0]["d999"] == default, "each object has its own budget"


def test_defaults_inside_of_defaults_count_too() -> None:
    inner = {"type": "object", "default": {}, "properties": {"f": {"type": "string", "default": "x" * 1000}}}
    structural = of(m={"type": "object", "additionalProperties": {"type": "object", "properties": {"i": inner}}})
    with pytest.raises(RequestEntityTooLarge, match=r"at spec\.m\[\*\]\.i\.f: "):
        structural.default({"spec": {"m": {str(number): {} for number in range(5000)}}})


@pytest.mark.parametrize(
    ("schema", "value", "filled"),
    [
        pytest.param({"type": "string", "default": "x"}, [None, "a"], ["x", "a"], id="default"),
        pytest.param({"type": "string", "default": "x", "nullable": True}, [None], [None], id="null is a value"),
        pytest.param(
            {"type": "object", "default": {}, "properties": {"v": {"type": "integer", "default": 1}}},
            [None, {}],
            [{"v": 1}, {"v": 1}],
            id="a default that is filled, too",
        ),
    ],
)
def test_null_in_lists_and_maps_becomes_the_default(schema: Raw, value: list[Any], filled: list[Any]) -> None:
    many = of(
        many={"type": "array", "items": schema},
        named={"type": "object", "additionalProperties": schema},
    )
    raw = {"spec": {"many": value, "named": {str(index): item for index, item in enumerate(value)}}}
    named = {str(index): item for index, item in enumerate(filled)}
    assert many.default(raw)["spec"] == {"many": filled, "named": named}


def test_nulls_are_absent_where_the_schema_says_so() -> None:
    schema = {
        "type": "object",
        "properties": {"spec": {"type": "object", "required": ["a"], "properties": {"a": {"type": "string"}}}},
    }
    strict, lenient = Structural(schema), Structural({**schema, NULL_IS_ABSENT: True})
    raw: Raw = {"metadata": {"creationTimestamp": None}, "spec": {"a": None}}
    assert [c.reason for c in strict.validate(raw)] == ["FieldValueTypeInvalid"]
    assert [c.reason for c in lenient.validate(raw)] == ["FieldValueRequired"]
    assert lenient.default(raw) == {"metadata": {}, "spec": {}}
    assert strict.default(raw) == {"metadata": {}, "spec": {}}, "null is no text, so it says nothing"


@pytest.mark.parametrize(
    ("schema", "value", "expected", "unknown"),
    [
        pytest.param(
            {"type": "object", "properties": {"a": {"type": "string"}}},
            {"a": "1", "b": 2},
            {"a": "1"},
            ["spec.f.b"],
            id="object",
        ),
        pytest.param({"type": "object"}, {"b": 2}, {}, ["spec.f.b"], id="object without properties"),
        pytest.param({"type": "object", PRESERVE: True}, {"b": {"c": 1}}, {"b": {"c": 1}}, [], id="kept"),
        pytest.param(
            {"type": "object", PRESERVE: True, "properties": {"a": {"type": "object", "properties": {}}}},
            {"a": {"x": 1}, "b": 1},
            {"a": {}, "b": 1},
            ["spec.f.a.x"],
            id="kept here, pruned below",
        ),
        pytest.param(
            {"type": "array", "items": {"type": "object", "properties": {"a": {"type": "string"}}}},
            [{"a": "1"}, {"b": 1}],
            [{"a": "1"}, {}],
            ["spec.f[1].b"],
            id="elements",
        ),
        pytest.param(
            {"type": "object", "additionalProperties": {"type": "object", "properties": {"a": {"type": "string"}}}},
            {"x.y": {"b": 1}},
            {"x.y": {}},
            ["spec.f[x.y].b"],
            id="map values",
        ),
        pytest.param(
            {
                "type": "object",
                "x-kubernetes-embedded-resource": True,
                "properties": {"spec": {"type": "object", PRESERVE: True}},
            },
            {"apiVersion": "v1", "kind": "K", "metadata": {"name": "n", "odd": 1}, "spec": {"x": 1}, "odd": 1},
            {"apiVersion": "v1", "kind": "K", "metadata": {"name": "n"}, "spec": {"x": 1}},
            ["spec.f.metadata.odd", "spec.f.odd"],
            id="embedded resource",
        ),
    ],
)
def test_pruning(schema: Raw, value: Any, expected: Any, unknown: list[str]) -> None:
    raw = {"apiVersion": "v1", "kind": "K", "metadata": {"name": "n"}, "spec": {"f": value}}
    kept = msgspec.json.encode(raw)
    assert of(f=schema).prune(raw) == ({**raw, "spec": {"f": expected}}, unknown)
    assert msgspec.json.encode(raw) == kept


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text("ab", max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "b", "spec", "mode", "list", "p"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(raw=st.dictionaries(st.sampled_from(["spec", "metadata", "other"]), json_values, max_size=3))
@settings(max_examples=examples(100))
def test_any_json_is_handled(raw: Raw) -> None:
    structural = Structural(DEFAULTED)
    kept = msgspec.json.encode(raw)
    pruned, unknown = structural.prune(structural.default(raw))
    structural.validate(pruned)
    assert structural.prune(pruned) == (pruned, []), "pruning twice changes nothing"
    assert msgspec.json.encode(raw) == kept
    assert all(isinstance(path, str) for path in unknown)


SCALAR: Raw = {"type": "string"}


@pytest.mark.parametrize(
    ("schema", "field"),
    [
        pytest.param("x", "", id="no object"),
        pytest.param({"type": "string"}, ".type", id="root is no object"),
        pytest.param({"type": "object", "properties": {"a": {}}}, ".properties[a].type", id="no type"),
        pytest.param({"type": "object", "properties": {"a": {"type": "text"}}}, ".properties[a].type", id="unknown type"),
        pytest.param({"type": "object", "properties": {"a": {"$ref": "#/x"}}}, ".properties[a].$ref", id="ref"),
        pytest.param({"type": "object", "properties": {"a": {"type": "array"}}}, ".properties[a].items", id="no items"),
        pytest.param(
            {"type": "object", "properties": {"a": {"type": "array", "items": [SCALAR]}}},
            ".properties[a].items",
            id="item list",
        ),
        pytest.param({"type": "object", "properties": {}, "additionalProperties": SCALAR}, ".additionalProperties", id="both"),
        pytest.param({"type": "object", "additionalProperties": False}, ".additionalProperties", id="closed"),
        pytest.param({"type": "object", "additionalProperties": SCALAR}, ".additionalProperties", id="map of all"),
        pytest.param(
            {"type": "object", "properties": {"a": {**INT_OR_STRING, "type": "string"}}},
            ".properties[a].type",
            id="typed int or string",
        ),
        pytest.param({"type": "object", PRESERVE: False}, f".{PRESERVE}", id="preserve false"),
        pytest.param(
            {"type": "object", "properties": {"a": {"type": "array", "items": SCALAR, "uniqueItems": True}}},
            ".properties[a].uniqueItems",
            id="unique items",
        ),
        pytest.param(
            {"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}}, ".properties[a].pattern", id="pattern"
        ),
        pytest.param(
            {"type": "object", "properties": {"a": {"type": "integer", "minimum": "1"}}},
            ".properties[a].minimum",
            id="word type",
        ),
        pytest.param(
            {"type": "object", "properties": {"a": {"type": "integer", "minimum": 2, "maximum": 1}}},
            ".properties[a].maximum",
            id="no value fits",
        ),
        pytest.param(
            {"type": "object", "properties": {"a": {"type": "integer", "multipleOf": 0}}},
            ".properties[a].multipleOf",
            id="step",
        ),
        pytest.param(
            {"type": "object", "properties": {"a": {"type": "integer", "default": "x"}}}, ".properties[a].default", id="default"
        ),
        pytest.param(
            {"type": "object", "properties": {"a": {"type": "integer", "default": None}}},
            ".properties[a].default",
            id="null default",
        ),
        pytest.param(
            {"type": "object", "properties": {"a": {"type": "object", "properties": {}, "default": {"b": 1}}}},
            ".properties[a].default.b",
            id="default that would be pruned",
        ),
        pytest.param(
            {"type": "object", "properties": {"a": SCALAR}, "anyOf": [{"properties": {"a": {"type": "string"}}}]},
            ".anyOf[0].properties[a].type",
            id="type in a value check",
        ),
        pytest.param(
            {"type": "object", "allOf": [{"properties": {"a": {"minLength": 1}}}]},
            ".allOf[0].properties[a]",
            id="new field in a value check",
        ),
        pytest.param({"type": "object", "not": {"items": {}}}, ".not.items", id="new items in a value check"),
        pytest.param(
            {"type": "object", "properties": {"metadata": {"type": "object", "properties": {"labels": SCALAR}}}},
            ".properties[metadata].properties[labels]",
            id="metadata",
        ),
        pytest.param(
            {"type": "object", "properties": {"a": {"type": "object", "x-kubernetes-embedded-resource": True}}},
            ".properties[a].properties",
            id="embedded without properties",
        ),
        pytest.param(
            {"type": "object", "properties": {"a": {"type": "array", "items": SCALAR, "x-kubernetes-list-type": "bag"}}},
            ".properties[a].x-kubernetes-list-type",
            id="list type",
        ),
        pytest.param(
            {
                "type": "object",
                "properties": {
                    "a": {
                        "type": "array",
                        "x-kubernetes-list-type": "map",
                        "x-kubernetes-list-map-keys": ["k"],
                        "items": {"type": "object", "properties": {"k": SCALAR}},
                    }
                },
            },
            ".properties[a].items.properties[k].default",
            id="map key optional",
        ),
        pytest.param(
            {
                "type": "object",
                "properties": {"a": {"type": "array", "x-kubernetes-list-type": "map", "items": {"type": "object"}}},
            },
            ".properties[a].x-kubernetes-list-map-keys",
            id="map without keys",
        ),
        pytest.param(
            {
                "type": "object",
                "properties": {
                    "a": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "object", "properties": {}}}
                },
            },
            ".properties[a].items.type",
            id="set of objects",
        ),
    ],
)
def test_what_is_not_structural_is_named(schema: Any, field: str) -> None:
    assert f"openAPIV3Schema{field}" in [c.field for c in Structural.validate_definition(schema)]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"type": "object", PRESERVE: True},
        {"type": "object", "properties": {"a": {**INT_OR_STRING, "anyOf": [{"type": "integer"}, {"type": "string"}]}}},
        {
            "type": "object",
            "properties": {
                "a": {**INT_OR_STRING, "allOf": [{"anyOf": [{"type": "integer"}, {"type": "string"}]}, {"minimum": 1}]}
            },
        },
        {
            "type": "object",
            "properties": {"metadata": {"type": "object", "properties": {"name": {"type": "string", "maxLength": 9}}}},
        },
        {"type": "object", "properties": {"a": SCALAR, "b": SCALAR}, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
        {"type": "object", "properties": {"a": {"type": "string", "nullable": True, "default": None}}},
    ],
)
def test_what_is_structural_passes(schema: Raw) -> None:
    assert Structural.validate_definition(schema) == []


def test_depth_is_bounded() -> None:
    schema: Raw = {"type": "string"}
    for _ in range(DEPTH_MAX + 5):
        schema = {"type": "object", "properties": {"a": schema}}
    assert "deep" in Structural.validate_definition(schema)[0].message


def test_cel_rules_are_warned_about() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "x-kubernetes-validations": [{"rule": "true"}]}}}
    assert Structural.validate_definition(schema) == []
    (warning,) = Structural.definition_warnings(schema, "spec.versions[0].schema.openAPIV3Schema")
    assert warning.startswith("spec.versions[0].schema.openAPIV3Schema.properties[a].x-kubernetes-validations")
    assert Structural.definition_warnings({"type": "object"}) == []


@given(json_values)
@settings(max_examples=examples(100))
def test_any_json_is_a_definition_or_has_causes(schema: Any) -> None:
    Structural.validate_definition(schema)
    Structural.definition_warnings(schema)


words = st.sampled_from(
    [
        "type",
        "properties",
        "items",
        "additionalProperties",
        "required",
        "enum",
        "anyOf",
        "not",
        "default",
        "pattern",
        "minimum",
        "maximum",
        "multipleOf",
        "uniqueItems",
        "nullable",
        "allOf",
        "oneOf",
        "metadata",
        "x-kubernetes-list-type",
        "x-kubernetes-list-map-keys",
        "x-kubernetes-embedded-resource",
        "x-kubernetes-int-or-string",
        PRESERVE,
    ]
)
odd_schemas: st.SearchStrategy[Any] = st.recursive(
    st.sampled_from(["object", "array", "string", "integer", "map", "set", 1, None, True, "("]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(words | st.sampled_from(["a", "b"]), inner, max_size=4),
    max_leaves=12,
)


@given(
    schema=odd_schemas.map(lambda s: {"type": "object", "properties": {"a": s}}),
    raw=st.dictionaries(st.sampled_from(["a", "b"]), json_values, max_size=2),
)
@settings(max_examples=examples(100))
def test_a_definition_that_passes_can_be_used(schema: Any, raw: Raw) -> None:
    if Structural.validate_definition(schema):
        return
    structural = Structural(schema)
    structural.validate(structural.prune(structural.default(raw))[0])
