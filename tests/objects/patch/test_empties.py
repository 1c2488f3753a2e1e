"""Which parts of a new object nobody owns because they are always there."""

from __future__ import annotations

import pytest

from muster.objects.catalog import CATALOG
from muster.objects.patch.empties import _EMPTY, empty_object
from muster.objects.patch.managed import track_update
from muster.objects.schema import schema_of
from muster.objects.status import Raw


@pytest.mark.parametrize(("group", "kind"), sorted(_EMPTY))
def test_the_table_names_kinds_that_there_are_and_their_fields(group: str, kind: str) -> None:
    resource = CATALOG.by_kind(group, kind)
    assert not resource.is_custom
    assert resource.view is not None
    _check(empty_object(group, kind), schema_of(resource.view))


def _check(part: Raw, schema: Raw) -> None:
    for name, inner in part.items():
        assert name in schema["properties"], name
        if isinstance(inner, dict) and inner:
            _check(inner, schema["properties"][name])


def test_parts_that_are_always_there_are_not_owned() -> None:
    view = CATALOG.by_kind("apps", "Deployment").view
    assert view is not None
    raw = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "d", "labels": {"a": "b"}},
        "spec": {
            "strategy": {"rollingUpdate": {"maxSurge": 1}},
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}},
        },
    }
    made = track_update(None, raw, "me", schema_of(view), 0.0)
    fields = made["metadata"]["managedFields"][0]["fieldsV1"]
    assert fields == {
        "f:metadata": {"f:labels": {".": {}, "f:a": {}}},
        "f:spec": {
            "f:strategy": {"f:rollingUpdate": {".": {}, "f:maxSurge": {}}},
            "f:template": {
                "f:metadata": {"f:labels": {".": {}, "f:a": {}}},
                "f:spec": {"f:containers": {'k:{"name":"c"}': {".": {}, "f:image": {}, "f:name": {}}}},
            },
        },
    }


def test_custom_kinds_have_no_such_parts() -> None:
    raw = {"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "t"}, "spec": {"a": 1}}
    made = track_update(None, raw, "me", None, 0.0)
    assert made["metadata"]["managedFields"][0]["fieldsV1"] == {"f:spec": {".": {}, "f:a": {}}}
