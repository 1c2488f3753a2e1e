from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from muster.objects import yaml_text


def load(text: str) -> list[Any]:
    return [value for _, value in yaml_text.load_all(text)]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        pytest.param("1e3", 1000, id="exponent is a number"),
        pytest.param("1.5", 1.5, id="float"),
        pytest.param("1.0", 1, id="whole float is an integer, as in Kubernetes"),
        pytest.param("0x1F", 31, id="hex"),
        pytest.param("0o17", 15, id="octal"),
        pytest.param("0644", 420, id="old octal, as in defaultMode"),
        pytest.param("-7", -7, id="negative"),
        pytest.param("2026-11-15", "2026-11-15", id="a date stays text"),
        pytest.param("2026-11-15T20:05:41Z", "2026-11-15T20:05:41Z", id="a time stays text"),
        pytest.param("12:30:45", "12:30:45", id="no base 60"),
        pytest.param("yes", True, id="yes is true"),
        pytest.param("'yes'", "yes", id="quoted is text"),
        pytest.param("~", None, id="null"),
        pytest.param("100m", "100m", id="quantity"),
        pytest.param("1_000", 1000, id="underscores in numbers"),
        pytest.param("-0x1F", -31, id="negative hex"),
        pytest.param("08", 8, id="no octal, so decimal"),
        pytest.param("18446744073709551616", 2.0**64, id="more than 64 bits"),
        pytest.param("y", True, id="y is true"),
        pytest.param("=", "=", id="equals sign"),
        pytest.param("!!str 5", "5", id="tagged as text"),
    ],
)
def test_scalars(text: str, value: Any) -> None:
    assert load(f"k: {text}") == [{"k": value}]


def test_documents_have_their_lines_and_empty_ones_are_skipped() -> None:
    text = "---\na: 1\n---\n# nothing\n---\n\nb: 2\n"
    assert list(yaml_text.load_all(text)) == [(2, {"a": 1}), (7, {"b": 2})]


def test_keys_are_strings_and_merge_keys_spread() -> None:
    assert load("base: &b {x: 1, z: 2}\n1: one\non: switch\n0x10: hex\n1.50: half\nuse:\n  <<: *b\n  z: 3\n") == [
        {"base": {"x": 1, "z": 2}, "1": "one", "true": "switch", "16": "hex", "1.5": "half", "use": {"x": 1, "z": 3}}
    ]


@pytest.mark.parametrize(
    ("text", "message", "line"),
    [
        pytest.param("a: 1\nb: 2\na: 3\n", "key 'a' is given twice", 3, id="duplicate key"),
        pytest.param("x:\n  a: 1\n  a: 2\n", "key 'a' is given twice", 3, id="duplicate key below"),
        pytest.param("a: [1", "did not find expected", 2, id="unclosed"),
        pytest.param("a: 1\n\tb: 2", "tab character", 2, id="tab"),
        pytest.param("a: .inf", "no form in JSON", 1, id="infinity"),
        pytest.param("a: !!python/object/apply:os.system [id]", "could not determine a constructor", 1, id="code"),
        pytest.param("? [a]\n: 1", "a key must be a plain string", 1, id="key that is a list"),
        pytest.param("~: 1", "a key must be a plain string", 1, id="key that is null"),
        pytest.param("yes: 1\ntrue: 2", "key 'true' is given twice", 2, id="the same key in two spellings"),
        pytest.param("a: &x [*x]", "contains it", 1, id="alias of itself"),
        pytest.param("a: !!timestamp 2026-01-01", "no meaning in JSON", 1, id="timestamp tag"),
        pytest.param("a: !!bool perhaps", "neither true nor false", 1, id="no boolean"),
        pytest.param("a: !!int ''", "invalid literal", 0, id="no number"),
        pytest.param("a: *x", "undefined alias", 1, id="unknown alias"),
        pytest.param("a: \x00", "control characters", 0, id="control character"),
        pytest.param("[" * 900 + "]" * 900, "nested deeper", 1, id="deep"),
        pytest.param("[" * 1_000_000, "nested deeper", 1, id="very deep"),
    ],
)
def test_errors(text: str, message: str, line: int) -> None:
    with pytest.raises(yaml_text.YamlError) as caught:
        load(text)
    assert message in str(caught.value)
    assert line in (0, caught.value.line)


@pytest.mark.parametrize(
    "value",
    [
        pytest.param({"a": "\U0001f600", "b": ["\U0010ffff\u4efb"]}, id="beyond the first plane"),
        pytest.param({"a": "\\ud83d\\ude00"}, id="text that looks like escapes"),
        pytest.param({"a": "\\\U0001f600\\"}, id="backslashes around"),
    ],
)
def test_json_with_escapes_reads_as_json(value: Any) -> None:
    text = json.dumps(value)
    assert load(text) == [value]
    assert [found for _, found in yaml_text.load_all(text.encode())] == [value]


def test_broken_encoding_is_an_error() -> None:
    with pytest.raises(yaml_text.YamlError):
        list(yaml_text.load_all(b"a: \xff\xfe\n"))


def test_aliases_cannot_blow_up() -> None:
    lines = ["l0: &l0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 10)}]" for i in range(1, 9)]
    with pytest.raises(yaml_text.YamlError, match="aliases"):
        load("\n".join(lines))


def test_aliases_cannot_go_deep() -> None:
    lines = ["l0: &l0 [x]", *(f"l{i}: &l{i} [*l{i - 1}]" for i in range(1, 200))]
    with pytest.raises(yaml_text.YamlError, match="nested deeper"):
        load("\n".join(lines))


def test_one_document() -> None:
    assert yaml_text.load("a: 1\na: 2\n", unique_keys=False) == {"a": 2}
    assert yaml_text.load("# nothing") is None
    with pytest.raises(yaml_text.YamlError, match="second document"):
        yaml_text.load("a: 1\n---\nb: 2\n")
    with pytest.raises(yaml_text.YamlError, match="more than 5 YAML nodes"):
        yaml_text.load("[1, 2, 3, 4, 5, 6]", nodes_max=5)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
LOOKALIKES = st.sampled_from(
    [
        "1e3",
        "0x10",
        "0o7",
        "010",
        "yes",
        "No",
        "on",
        "~",
        "null",
        "",
        "1:30",
        "2026-01-01",
        "12e4567",
        "-",
        "=",
        "<<",
        "#",
        "y",
        ".5",
        "1_0",
    ]
)


def typed(value: Any) -> Any:
    """`value` so that True differs from 1, while 1 and 1.0 are the same number, as in JSON."""
    if isinstance(value, dict):
        return {k: typed(v) for k, v in value.items()}
    if isinstance(value, list):
        return [typed(v) for v in value]
    return ("number", float(value)) if isinstance(value, int | float) and not isinstance(value, bool) else (type(value), value)


@given(st.dictionaries(st.text(min_size=1) | LOOKALIKES, JSON | LOOKALIKES, min_size=1, max_size=5))
def test_what_is_written_is_read_back(value: dict[str, Any]) -> None:
    [back] = load(yaml_text.dump(value))
    assert typed(back) == typed(value)


@given(st.dictionaries(st.text(min_size=1, alphabet="abcn"), LOOKALIKES, min_size=1))
def test_an_ordinary_yaml_reader_agrees_on_strings(value: dict[str, str]) -> None:
    assert yaml.safe_load(yaml_text.dump(value)) == value


def test_shared_values_are_written_out() -> None:
    shared = {"x": 1}
    assert "&" not in yaml_text.dump({"a": shared, "b": shared})
