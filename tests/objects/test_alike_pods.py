"""Shortcuts of validation, and of ownership, for pods that are alike: what differs is judged all the same."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest

from muster.objects.catalog import CATALOG
from muster.objects.kinds.defaults import apply_defaults
from muster.objects.patch.managed import track_update
from muster.objects.schema import schema_of
from muster.objects.status import Raw
from muster.objects.structural import Structural
from muster.objects.validation import validate_object

_POD = CATALOG.by_kind("", "Pod")
assert _POD.view is not None
_SCHEMA = Structural(schema_of(_POD.view))


def _pod(**spec: Any) -> Raw:
    container = {
        "name": "main",
        "image": "registry.example/a:1",
        "env": [{"name": "RANK", "value": "0"}],
        "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "2", "memory": "1Gi"}},
        "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
    }
    given = {"containers": [container], "volumes": [{"name": "scratch"}], "hostname": "a", **spec}
    raw: Raw = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "namespace": "default"}, "spec": given}
    return raw


def _changed(path: tuple[str | int, ...], value: Any) -> Raw:
    raw = _pod()
    place: Any = raw
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return raw


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        pytest.param(("spec", "hostname"), "A!", "spec.hostname", id="hostname"),
        pytest.param(("spec", "containers", 0, "env", 0, "name"), "1 2", "spec.containers[0].env[0].name", id="variable"),
        pytest.param(
            ("spec", "containers", 0, "env", 0, "valueFrom"), {}, "spec.containers[0].env[0].valueFrom", id="variable's source"
        ),
        pytest.param(("spec", "containers", 0, "name"), "A", "spec.containers[0].name", id="container"),
        pytest.param(
            ("spec", "containers", 0, "resources", "requests", "cpu"), "3", "spec.containers[0].resources.requests", id="amount"
        ),
        pytest.param(("spec", "volumes", 0, "name"), "other", "spec.containers[0].volumeMounts[0].name", id="volume"),
    ],
)
def test_what_differs_from_a_good_pod_is_found_every_time(path: tuple[str | int, ...], value: Any, field: str) -> None:
    for _ in range(2):
        assert validate_object(_POD, apply_defaults(_POD, _pod())) == []
        causes = validate_object(_POD, apply_defaults(_POD, _changed(path, value)))
        assert field in [cause.field for cause in causes]


def test_defaults_leave_what_they_were_given_alone() -> None:
    raw = _pod(hostNetwork=True, volumes=[{"name": "scratch"}, {"name": "data", "image": {"reference": "registry.example/b"}}])
    raw["spec"]["containers"][0]["ports"] = [{"containerPort": 80}]
    raw["status"] = {"message": "here"}
    before = copy.deepcopy(raw)
    full = apply_defaults(_POD, raw)
    assert raw == before
    assert full["spec"]["volumes"] == [
        {"name": "scratch", "emptyDir": {}},
        {"name": "data", "image": {"reference": "registry.example/b", "pullPolicy": "Always"}},
    ]
    assert full["spec"]["containers"][0]["ports"] == [{"containerPort": 80, "hostPort": 80}]
    assert full["spec"]["containers"][0]["resources"]["requests"] == {"cpu": "1", "memory": "1Gi"}
    assert full["status"]["phase"] == "Pending"


def test_parts_that_are_settled_are_passed_over_and_others_are_not() -> None:
    settled = _SCHEMA.default(_pod())
    hooked = {**settled, "spec": {**settled["spec"], "initContainers": [{"name": "first", "image": "a"}]}}
    filled = _SCHEMA.default(hooked, settled)
    assert filled == _SCHEMA.default(hooked)
    assert filled["spec"]["containers"] is settled["spec"]["containers"]


def test_members_that_are_known_to_fit_are_passed_over_and_others_are_not() -> None:
    known = _SCHEMA.default(_pod())
    assert _SCHEMA.validate({**known, "status": {"phase": 1}}, known) != []
    assert _SCHEMA.validate({**known, "spec": {**known["spec"], "containers": "none"}}, known) != []
    assert _SCHEMA.validate(dict(known), known) == []


def test_alike_pods_own_equal_fields_and_one_does_not_change_the_other() -> None:
    first = track_update(None, _pod(), "m", _SCHEMA.schema, 1.0)
    text = msgspec.json.encode(first)
    second = track_update(None, _pod(hostname="b"), "m", _SCHEMA.schema, 1.0)
    assert second["metadata"]["managedFields"] == first["metadata"]["managedFields"]
    changed = _changed(("spec", "containers", 0, "env", 0, "value"), "7")
    track_update(second, changed, "n", _SCHEMA.schema, 2.0)
    assert msgspec.json.encode(first) == text
