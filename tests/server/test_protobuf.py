"""Bodies in Kubernetes' protobuf form. (`test_kubectl.py` sends real ones, made by kubectl.)"""

from __future__ import annotations

import contextlib
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.objects.catalog import CATALOG
from muster.objects.status import BadRequest, Raw, UnsupportedMediaType
from muster.server.protobuf import _types, decode_protobuf
from tests.counts import examples


def _varint(value: int) -> bytes:
    value &= 2**64 - 1
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def _f(number: int, value: Any) -> bytes:
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    if isinstance(value, float):
        return _varint(number << 3 | 1) + struct.pack("<d", value)
    data = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _body(api_version: str, kind: str, message: bytes) -> bytes:
    return b"k8s\x00" + _f(1, _f(1, api_version) + _f(2, kind)) + _f(2, message) + _f(3, "") + _f(4, "")


def _decode(api_version: str, kind: str, message: bytes) -> Raw:
    raw = decode_protobuf(_body(api_version, kind, message), depth_max=50)
    assert (raw.pop("apiVersion"), raw.pop("kind")) == (api_version, kind)
    return raw


_META = _f(1, _f(1, "x") + _f(2, "") + _f(3, "ns") + _f(7, 0) + _f(8, b""))


@pytest.mark.parametrize(
    ("api_version", "kind", "message", "expected"),
    [
        pytest.param("v1", "ConfigMap", _META, {"metadata": {"name": "x", "namespace": "ns"}}, id="zeros are left out"),
        pytest.param(
            *(
                "v1",
                "ConfigMap",
                _f(2, _f(1, "a") + _f(2, "b")) + _f(2, _f(1, "c")) + _f(3, _f(1, "d") + _f(2, b"\x00\xff")) + _f(4, 0),
            ),
            {"data": {"a": "b", "c": ""}, "binaryData": {"d": "AP8="}, "immutable": False},
            id="maps, bytes, and a pointer to false",
        ),
        pytest.param(
            *("apps/v1", "Deployment", _f(2, _f(1, 0) + _f(5, 0) + _f(7, 1) + _f(3, _f(2, _f(2, _f(1, "c") + _f(8, b"")))))),
            {"spec": {"replicas": 0, "paused": True, "template": {"spec": {"containers": [{"name": "c", "resources": {}}]}}}},
            id="pointers keep their zero, plain fields do not",
        ),
        pytest.param(
            *("v1", "Pod", _f(2, _f(1, _f(1, "v") + _f(2, _f(2, _f(1, "Memory")))))),
            {"spec": {"volumes": [{"name": "v", "emptyDir": {"medium": "Memory"}}]}},
            id="a message that lies flat",
        ),
        pytest.param(
            *("v1", "Pod", _f(2, _f(2, _f(1, "") + _f(8, _f(1, _f(1, "cpu") + _f(2, _f(1, "100m"))))))),
            {"spec": {"containers": [{"name": "", "resources": {"limits": {"cpu": "100m"}}}]}},
            id="quantities, and a name that is always written",
        ),
        pytest.param(
            *(
                "v1",
                "Service",
                _f(2, _f(1, _f(3, 80) + _f(4, _f(1, 1) + _f(3, "http"))) + _f(1, _f(3, 81) + _f(4, _f(1, 0) + _f(2, 0)))),
            ),
            {"spec": {"ports": [{"port": 80, "targetPort": "http"}, {"port": 81}]}},
            id="number or text",
        ),
        pytest.param(
            *("policy/v1", "PodDisruptionBudget", _f(2, _f(1, _f(1, 0) + _f(2, 0)))),
            {"spec": {"minAvailable": 0}},
            id="a number of zero that was given",
        ),
        pytest.param(
            *("coordination.k8s.io/v1", "Lease", _f(2, _f(3, _f(1, 1_800_000_000) + _f(2, 250_000)))),
            {"spec": {"acquireTime": "2027-01-15T08:00:00.000250Z"}},
            id="micro time",
        ),
        pytest.param(
            *("v1", "Event", _f(6, _f(1, 1_800_000_000)) + _f(7, _f(1, -62135596800))),
            {"firstTimestamp": "2027-01-15T08:00:00Z"},
            id="time, and one that is not set",
        ),
        pytest.param(
            *("v1", "Pod", _f(2, _f(14, _f(2, -5) + _f(4, 1) + _f(4, _varint(2) + _varint(3))))),
            {"spec": {"securityContext": {"runAsUser": -5, "supplementalGroups": [1, 2, 3]}}},
            id="negative, and packed numbers",
        ),
        pytest.param(
            *("v1", "ConfigMap", _f(1, _f(1, "x") + _f(17, _f(1, "m") + _f(7, _f(1, b'{"f:data":{}}'))))),
            {"metadata": {"name": "x", "managedFields": [{"manager": "m", "fieldsV1": {"f:data": {}}}]}},
            id="JSON inside",
        ),
        pytest.param(
            *(
                "authentication.k8s.io/v1",
                "TokenReview",
                _f(3, _f(2, _f(1, "u") + _f(4, _f(1, "k") + _f(2, _f(1, "a") + _f(1, "b"))))),
            ),
            {"status": {"user": {"username": "u", "extra": {"k": ["a", "b"]}}}},
            id="lists as values of a map",
        ),
    ],
)
def test_decode(api_version: str, kind: str, message: bytes, expected: Raw) -> None:
    raw = _decode(api_version, kind, message)
    for status in ("status", "spec", "metadata"):
        if raw.get(status) == {} and status not in expected:
            del raw[status]
    assert raw == expected


def test_unknown_fields_are_never_dropped() -> None:
    assert _decode("v1", "ConfigMap", _f(99, 0) + _f(98, b"")) == {}
    for field in (_f(99, 1), _f(98, b"x")):
        with pytest.raises(UnsupportedMediaType, match="send application/json"):
            _decode("v1", "ConfigMap", field)
    with pytest.raises(UnsupportedMediaType, match="Rocket"):
        _decode("v1", "Rocket", b"")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"k8s\x00",
        b"k8s\x00\xff",
        b"k8s\x00\x0a\xff\xff\xff\xff\x0f",
        _body("v1", "ConfigMap", b"\x0a\x05ab"),
        _body("v1", "ConfigMap", b"\x0b"),
        _body("v1", "ConfigMap", b"\x80" * 20),
        _body("v1", "ConfigMap", _f(2, _f(1, b"\xff"))),
        _body("v1", "ConfigMap", _f(4, b"text for a number")),
        _body("v1", "Event", _f(6, _f(1, 2**62))),
        _body("apiextensions.k8s.io/v1", "CustomResourceDefinition", b""),
    ],
)
def test_malformed(body: bytes) -> None:
    with pytest.raises((BadRequest, UnsupportedMediaType)):
        decode_protobuf(body, depth_max=50)


@given(
    st.binary(max_size=60),
    st.sampled_from([("v1", "Pod"), ("apps/v1", "Deployment"), ("v1", "Event"), ("v1", "DeleteOptions")]),
)
@settings(max_examples=examples(100))
def test_any_bytes(data: bytes, what: tuple[str, str]) -> None:
    with contextlib.suppress(BadRequest, UnsupportedMediaType):
        decode_protobuf(_body(*what, data), depth_max=20)
    with contextlib.suppress(BadRequest, UnsupportedMediaType):
        decode_protobuf(b"k8s\x00" + data, depth_max=20)


def test_the_table_is_whole() -> None:
    types = _types()
    leaves = {
        "string",
        "bool",
        "int",
        "double",
        "bytes",
        "time",
        "microtime",
        "duration",
        "quantity",
        "intstr",
        "json",
        "items",
    }
    for name, fields in types.items():
        for field in fields.values():
            assert field.type in leaves or field.type in types, (name, field)
    missing = [
        resource.qualified
        for resource in CATALOG.all
        if not resource.is_custom
        and f"{resource.group.partition('.')[0] or 'core'}/{resource.version}.{resource.kind}" not in types
        and resource.kind != "CustomResourceDefinition"
    ]
    assert missing == []
