"""A field that nothing reads is reported with the nearest one that is; what is free by design is not."""

from __future__ import annotations

from typing import Any

import pytest

from muster.objects.catalog import CATALOG
from muster.objects.resources import Resource
from muster.objects.unread import unread_fields


def _resource(group: str, kind: str) -> Resource:
    found = CATALOG.by_kind(group, kind)
    assert found is not None
    return found


JOB = _resource("kuscia.secretflow", "KusciaJob")


def _job(**spec: Any) -> dict[str, Any]:
    return {"apiVersion": "kuscia.secretflow/v1alpha1", "kind": "KusciaJob", "metadata": {"name": "j"}, "spec": spec}


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        pytest.param(_job(initiator="alice"), [], id="all known"),
        pytest.param(
            _job(maxParalelism=3),
            ['unknown field "spec.maxParalelism": kept, but nothing here reads it; did you mean "maxParallelism"?'],
            id="a typing error",
        ),
        pytest.param(
            _job(tasks=[{"alias": "a", "appImag": "x"}]),
            ['unknown field "spec.tasks[0].appImag": kept, but nothing here reads it; did you mean "appImage"?'],
            id="inside a list",
        ),
        pytest.param(
            _job(somethingNew={"a": 1}),
            ['unknown field "spec.somethingNew": kept, but nothing here reads it'],
            id="nothing near",
        ),
        pytest.param({**_job(), "metadata": {"name": "j", "labels": {"any": "thing"}}}, [], id="labels are free"),
    ],
)
def test_foreign_kind(raw: dict[str, Any], said: list[str]) -> None:
    assert unread_fields(JOB, raw) == said


def test_native_kinds_are_none_of_its_business() -> None:
    assert unread_fields(_resource("", "ConfigMap"), {"metadata": {"name": "c"}, "dta": {}}) == []
