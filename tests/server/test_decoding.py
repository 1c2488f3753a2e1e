"""Bodies: every byte string is a value within limits or a BadRequest."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.objects.status import BadRequest
from muster.server.decoding import decode_json, decode_yaml, duplicate_keys
from muster.server.negotiation import Form, encode
from tests.counts import examples

_DEPTH = 20
_NODES = 1000


def _yaml(text: bytes) -> Any:
    return decode_yaml(text, depth_max=_DEPTH, nodes_max=_NODES)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        pytest.param(b"a: b", {"a": "b"}, id="plain"),
        pytest.param(b'{"a": [1, 2.5, true, null]}', {"a": [1, 2.5, True, None]}, id="JSON"),
        pytest.param(b"{a: b}", {"a": "b"}, id="flow"),
        pytest.param(b"a: 2020-01-01", {"a": "2020-01-01"}, id="dates stay text"),
        pytest.param(b"a: 2020-01-01T00:00:00Z", {"a": "2020-01-01T00:00:00Z"}, id="times stay text"),
        pytest.param(b"a: 1:30", {"a": "1:30"}, id="no base 60"),
        pytest.param(b"a: yes\nb: off\nc: y", {"a": True, "b": False, "c": True}, id="YAML 1.1 booleans"),
        pytest.param(b"1: x\ntrue: z", {"1": "x", "true": "z"}, id="keys become text"),
        pytest.param(b"a: &x [1]\nb: *x", {"a": [1], "b": [1]}, id="aliases"),
        pytest.param(b"x: &a {k: 1, l: 2}\nz: {<<: *a, l: 3}", {"x": {"k": 1, "l": 2}, "z": {"k": 1, "l": 3}}, id="merge keys"),
        pytest.param(b"a: 0777\nb: 0x1f\nc: 1e3\nd: .5", {"a": 511, "b": 31, "c": 1000.0, "d": 0.5}, id="numbers"),
        pytest.param(b"a: ~\nb:\nc: ''", {"a": None, "b": None, "c": ""}, id="nothing"),
        pytest.param(b"", None, id="empty"),
        pytest.param("a: héllo 世界".encode(), {"a": "héllo 世界"}, id="unicode"),
    ],
)
def test_yaml(text: bytes, value: Any) -> None:
    assert _yaml(text) == value


_BOMB = b"a: &a [x,x,x,x,x,x,x,x,x]\n" + b"".join(
    b"%c: &%c [%s]\n" % (c, c, b",".join([b"*%c" % (c - 1)] * 9)) for c in range(ord("b"), ord("i"))
)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(b"a: b\na: c", id="key twice"),
        pytest.param(b"a: b\n---\nc: d", id="two documents"),
        pytest.param(b"a: &x [*x]", id="an alias inside itself"),
        pytest.param(_BOMB, id="billion laughs"),
        pytest.param(b"[" * 100_000, id="deep flow"),
        pytest.param(b"- " * 100_000, id="deep block"),
        pytest.param(b"a: !!python/object/apply:os.system [id]", id="python tag"),
        pytest.param(b"a: !!timestamp 2020-01-01", id="timestamp tag"),
        pytest.param(b"a: !!binary aGk=", id="binary tag"),
        pytest.param(b"a: !!bool perhaps", id="no boolean"),
        pytest.param(b"? [a]\n: b", id="list as key"),
        pytest.param(b"a: \x00", id="NUL"),
        pytest.param(b"\xff\xfe", id="not UTF-8"),
        pytest.param(b"a: [", id="broken"),
        pytest.param(b"a: " + b"[1]," * 2000, id="broken and long"),
        pytest.param(b"- x\n" * 2000, id="too many nodes"),
    ],
)
def test_yaml_refused(text: bytes) -> None:
    with pytest.raises(BadRequest):
        _yaml(text)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[" * 100_000,
        b'{"a":' * 5000,
        b"NaN",
        b'{"a": 1e999}',
        b'"\xff"',
        b'{"a":"\\ud800"}',
        b"{}{}",
        b"\x00",
        b"'a'",
    ],
    ids=["empty", "open", "deep list", "deep object", "NaN", "infinite", "not UTF-8", "lone surrogate", "two", "NUL", "quotes"],
)
def test_json_refused(text: bytes) -> None:
    with pytest.raises(BadRequest):
        decode_json(text, depth_max=_DEPTH)


def test_json_depth_is_exact() -> None:
    def nested(levels: int) -> bytes:
        return b"[" * levels + b"]" * levels

    assert decode_json(nested(_DEPTH), depth_max=_DEPTH) is not None
    assert decode_json(b'{"a":[' + b",".join([b"{}"] * 100) + b"]}", depth_max=_DEPTH) is not None
    with pytest.raises(BadRequest, match="nested deeper than 20"):
        decode_json(nested(_DEPTH + 2), depth_max=_DEPTH)


def test_duplicate_keys() -> None:
    assert _duplicates(b'{"a":1,"b":{"c":1,"c":2},"a":2}') == ["a", "b.c"]
    assert _duplicates(b'{"a":[{},{"x":1,"x":2,"x":3},{"y":{"z":0,"z":0}}]}') == ["a[1].x", "a[2].y.z"]
    assert _duplicates(b'{"a":{"x":1},"b":{"x":1}}') == []
    assert _duplicates(b'{"a":"say \\"hi\\"","b":"\\u0022"}') == []
    assert _duplicates(b'{"a":1,"b":"\\u0022\\u0022","a":2}') == ["a"], "quotation marks by number make up for the lost ones"


@given(
    st.lists(st.tuples(st.sampled_from(["a", "b", 'c"', "\\u0022"]), st.sampled_from(['"', "x", 1, None, ["a"]])), max_size=5)
)
def test_duplicate_keys_are_never_missed(pairs: list[tuple[str, Any]]) -> None:
    body = "{" + ", ".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in pairs) + "}"
    assert bool(_duplicates(body.encode())) == (len({key for key, _ in pairs}) < len(pairs))


def _duplicates(body: bytes) -> list[str]:
    return duplicate_keys(body, decode_json(body, depth_max=_DEPTH))


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(_JSON)
def test_json_round_trip(value: Any) -> None:
    assert decode_json(json.dumps(value).encode(), depth_max=100) == value


@given(st.dictionaries(st.text(alphabet="abcxyz", min_size=1), _JSON, max_size=4))
def test_yaml_round_trip(value: Any) -> None:
    assert decode_yaml(encode(value, Form("yaml")), depth_max=100, nodes_max=10_000) == value


@given(st.binary(max_size=200))
@settings(max_examples=examples(100))
def test_any_bytes(body: bytes) -> None:
    with contextlib.suppress(BadRequest):
        decode_json(body, depth_max=10)
    with contextlib.suppress(BadRequest):
        decode_yaml(body, depth_max=10, nodes_max=100)
