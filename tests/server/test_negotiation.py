"""Accept and Content-Type."""

from __future__ import annotations

import pytest

from muster.objects.status import NotAcceptable, UnsupportedMediaType
from muster.server.negotiation import Form, body_media, negotiate, patch_type
from muster.store.contract import PatchType

_TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json"


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        pytest.param("", Form(), id="nothing said"),
        pytest.param("*/*", Form(), id="anything"),
        pytest.param("application/json", Form(), id="JSON"),
        pytest.param("application/yaml", Form("yaml"), id="YAML"),
        pytest.param(_TABLE, Form("json", "Table", "v1"), id="kubectl get"),
        pytest.param("application/json;as=Table;v=v1beta1;g=meta.k8s.io", Form("json", "Table", "v1beta1"), id="older table"),
        pytest.param("application/vnd.kubernetes.protobuf,application/json", Form(), id="protobuf or JSON"),
        pytest.param("application/cbor,application/json;q=0.5,application/yaml;q=0.9", Form("yaml"), id="by quality"),
        pytest.param("application/json;as=Unknown;v=v1;g=meta.k8s.io,application/json", Form(), id="unknown transform"),
        pytest.param(
            "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
            Form("json", "PartialObjectMetadataList"),
            id="metadata only",
        ),
    ],
)
def test_accept(accept: str, form: Form) -> None:
    assert negotiate(accept) == form


@pytest.mark.parametrize(
    "accept",
    [
        "application/vnd.kubernetes.protobuf",
        "text/html",
        "application/json;q=0",
        "application/json;as=Table;v=v9;g=meta.k8s.io",
    ],
)
def test_not_acceptable(accept: str) -> None:
    with pytest.raises(NotAcceptable, match="application/json, application/yaml"):
        negotiate(accept)


def test_watches_are_json() -> None:
    assert negotiate("application/json;stream=watch", streaming=True) == Form()
    with pytest.raises(NotAcceptable):
        negotiate("application/yaml", streaming=True)


def test_bodies() -> None:
    assert [body_media(t) for t in ("", "application/json", "application/json; charset=utf-8", "application/yaml")] == [
        *("json", "json", "json", "yaml")
    ]
    assert body_media("application/vnd.kubernetes.protobuf") == "protobuf"
    for refused in ("application/cbor", "text/plain", "application/x-www-form-urlencoded", "garbage"):
        with pytest.raises(UnsupportedMediaType, match="accepted media types include: application/json"):
            body_media(refused)
    assert patch_type("application/merge-patch+json; charset=utf-8") is PatchType.MERGE
    with pytest.raises(UnsupportedMediaType, match="apply-patch"):
        patch_type("application/json")
