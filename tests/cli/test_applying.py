from __future__ import annotations

from typing import Any

import pytest

from muster.cli.applying import in_order, outcome_of, where_is
from muster.cli.files import Document


def document(kind: str, api_version: str = "v1", name: str = "x", number: int = 1) -> Document:
    return Document("f.yaml", number, number * 10, {"apiVersion": api_version, "kind": kind, "metadata": {"name": name}})


def test_what_others_need_goes_first_and_the_rest_keeps_its_order() -> None:
    documents = [
        document("Pod", number=1),
        document("Thing", "x.y/v1", number=2),
        document("Namespace", number=3),
        document("ServiceAccount", number=4),
        document("CustomResourceDefinition", "apiextensions.k8s.io/v1", number=5),
        document("Namespace", "x.y/v1", number=6),
    ]
    assert [d.number for d in in_order(documents)] == [3, 5, 4, 1, 2, 6]


def obj(uid: str = "1", **fields: Any) -> dict[str, Any]:
    metadata = {"name": "a", "uid": uid, "resourceVersion": "7", "generation": 1, "managedFields": [{"time": "x"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, **fields}


@pytest.mark.parametrize(
    ("before", "after", "outcome"),
    [
        pytest.param(None, obj(), "created", id="new"),
        pytest.param(obj(), obj("2"), "created", id="deleted and made again meanwhile"),
        pytest.param(obj(), obj(), "unchanged", id="same"),
        pytest.param(obj(), obj(spec={"a": 1}), "configured", id="changed"),
        pytest.param(
            obj(),
            {**obj(), "metadata": obj()["metadata"] | {"resourceVersion": "8", "managedFields": []}},
            "unchanged",
            id="only bookkeeping",
        ),
        pytest.param(obj(), {**obj(), "metadata": obj()["metadata"] | {"labels": {"a": "b"}}}, "configured", id="label"),
    ],
)
def test_outcome(before: dict[str, Any] | None, after: dict[str, Any], outcome: str) -> None:
    assert outcome_of(before, after) == outcome


def test_a_status_that_a_controller_writes_meanwhile_is_no_change() -> None:
    before, after = obj(status={"ready": 0}), obj(status={"ready": 1})
    assert outcome_of(before, after) == "unchanged"
    assert outcome_of(before, after, has_status=True) == "configured"


def test_errors_name_file_document_and_object() -> None:
    assert where_is(document("Pod", name="web", number=2)) == "f.yaml, document 2 (line 20): Pod web"
