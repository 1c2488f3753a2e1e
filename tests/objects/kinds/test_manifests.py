"""Kinds of Kuscia, Koordinator, sigs and Muster: their views know every field, their schemas accept what users write."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from tests.objects.kinds.samples import ALL, BY_KIND, FOREIGN, MUSTER, changed, manifest, manifest_kinds

from muster.objects.resources import Resource
from muster.objects.schema import PRESERVE, schema_of
from muster.objects.status import Raw
from muster.objects.structural import Structural
from muster.objects.view import View, to_raw, view_of

OWN_MODULES = ("kuscia", "koordinator", "sigs", "muster", "shapes")
each_kind = pytest.mark.parametrize("resource", ALL, ids=lambda r: r.kind)


def view(resource: Resource, raw: Raw) -> View:
    assert resource.view is not None
    return view_of(resource.view, raw)


def structural(resource: Resource) -> Structural:
    assert resource.view is not None
    return Structural(schema_of(resource.view))


def test_every_kind_has_a_manifest() -> None:
    assert manifest_kinds() == set(BY_KIND)


@each_kind
def test_view_keeps_every_field_of_the_manifest(resource: Resource) -> None:
    raw = manifest(resource.kind)
    assert (raw["apiVersion"], raw["kind"]) == (resource.api_version, resource.kind)
    assert without_empty_views(to_raw(view(resource, raw)), raw) == raw


def without_empty_views(got: Any, raw: Any) -> Any:
    """`got` without the empty objects that a view shows where the manifest has nothing."""
    if isinstance(got, dict) and isinstance(raw, dict):
        shown = {key: without_empty_views(value, raw.get(key, {})) for key, value in got.items()}
        return {key: value for key, value in shown.items() if value != {} or key in raw}
    if isinstance(got, list) and isinstance(raw, list):
        return [without_empty_views(*pair) for pair in zip(got, raw, strict=True)]
    return got


@each_kind
def test_schema_accepts_the_manifest_and_knows_all_of_it(resource: Resource) -> None:
    raw = manifest(resource.kind)
    schema = structural(resource)
    assert schema.validate(raw) == []
    assert schema.prune(raw) == (raw, [])
    assert schema.validate(schema.default(raw)) == []


def structs_in(value: Any) -> Iterator[msgspec.Struct]:
    if isinstance(value, msgspec.Struct):
        yield value
        for name in value.__struct_fields__:
            yield from structs_in(getattr(value, name))
    elif isinstance(value, dict):
        for inner in value.values():
            yield from structs_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from structs_in(inner)


def test_manifests_together_use_every_field() -> None:
    """Fields that a view inherits count for the view that names them. Kubernetes' own views are not this test's business."""
    used: dict[type, set[str]] = defaultdict(set)
    for resource in ALL:
        for struct in structs_in(view(resource, manifest(resource.kind))):
            for owner in type(struct).__mro__:
                if issubclass(owner, View) and owner.__module__.split(".")[-1].startswith(OWN_MODULES):
                    used[owner] |= msgspec.to_builtins(struct).keys()
    unused = {
        f"{cls.__name__}.{info.encode_name}"
        for cls, names in used.items()
        for info in msgspec.structs.fields(cls)
        if info.name in cls.__annotations__ and info.encode_name not in names
    }
    assert unused == set()


def places_in(schema: Raw, path: str = "") -> Iterator[tuple[str, Raw]]:
    """Every schema below `schema` with the path it stands at."""
    yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from places_in(inner, f"{path}.{name}" if path else name)
    for word, mark in (("items", "[]"), ("additionalProperties", "{}")):
        if isinstance(schema.get(word), dict):
            yield from places_in(schema[word], f"{path}{mark}")


def fields_in(value: Any, schema: Raw, path: str = "") -> Iterator[tuple[Raw, str, str, bool]]:
    """Every named field in `value`: the object it is in, its name, its path, and whether the schema requires it."""
    if isinstance(value, list):
        for index, inner in enumerate(value):
            yield from fields_in(inner, schema.get("items", {}), f"{path}[{index}]")
    elif isinstance(value, dict):
        named = schema.get("properties", {})
        for name, inner in list(value.items()):
            below = f"{path}.{name}" if path else name
            if name in named:
                yield value, name, below, name in schema.get("required", [])
            yield from fields_in(inner, named.get(name) or schema.get("additionalProperties") or {}, below)


@each_kind
def test_required_fields_are_missed_and_optional_ones_are_not(resource: Resource) -> None:
    """By the schema and by the view alike: each field of the manifest is taken away in turn."""
    assert resource.view is not None
    raw, schema = manifest(resource.kind), structural(resource)
    seen = 0
    for holder, name, path, is_required in fields_in(raw, schema_of(resource.view)):
        if path.startswith("metadata"):
            continue
        before = dict(holder)
        del holder[name]
        causes = [cause.field for cause in schema.validate(raw)]
        try:
            view(resource, raw)
            is_missed = False
        except msgspec.ValidationError:
            is_missed = True
        assert (bool(causes), is_missed) == (is_required, is_required), f"{resource.kind} {path}: {causes}"
        holder.clear()
        holder.update(before)
        seen += 1
    assert raw == manifest(resource.kind)
    assert seen > 2


@each_kind
def test_keys_of_keyed_lists_are_required(resource: Resource) -> None:
    assert resource.view is not None
    for path, schema in places_in(schema_of(resource.view)):
        for key in schema.get("x-kubernetes-list-map-keys", []):
            item = schema["items"]
            is_sure = key in item.get("required", []) or "default" in item["properties"][key]
            assert is_sure, f"{resource.kind} {path}: {key}"


@each_kind
def test_defaults_say_something_and_keep_to_their_schema(resource: Resource) -> None:
    assert resource.view is not None
    for path, schema in places_in(schema_of(resource.view)):
        if "default" in schema:
            assert schema["default"] not in ("", {}, []), f"{resource.kind} {path}"
            holder = {"type": "object", "properties": {"it": schema}}
            assert Structural(holder).validate({"it": schema["default"]}) == [], f"{resource.kind} {path}"


@pytest.mark.parametrize("resource", FOREIGN, ids=lambda r: r.kind)
def test_foreign_kinds_keep_unknown_fields_everywhere(resource: Resource) -> None:
    raw = manifest(resource.kind)
    strangers = add_strangers({part: raw[part] for part in ("spec", "status") if part in raw}, resource)
    raw |= strangers
    assert structural(resource).prune(raw) == (raw, [])
    assert structural(resource).validate(raw) == []


def add_strangers(parts: Raw, resource: Resource) -> Raw:
    """`parts` with a field that nobody knows in every object that has named fields."""
    assert resource.view is not None
    return {part: with_stranger(value, schema_of(resource.view)["properties"][part]) for part, value in parts.items()}


def with_stranger(value: Any, schema: Raw) -> Any:
    if isinstance(value, list):
        return [with_stranger(inner, schema.get("items", {})) for inner in value]
    if not isinstance(value, dict):
        return value
    if "additionalProperties" in schema:
        return {key: with_stranger(inner, schema["additionalProperties"]) for key, inner in value.items()}
    known = schema.get("properties", {})
    return {"fromTheFuture": {"a": [1]}} | {key: with_stranger(inner, known.get(key, {})) for key, inner in value.items()}


@pytest.mark.parametrize("resource", MUSTER, ids=lambda r: r.kind)
def test_own_kinds_report_unknown_fields(resource: Resource) -> None:
    assert resource.view is not None
    raw = changed(manifest(resource.kind), "spec.replcas", 3)
    assert structural(resource).prune(raw)[1] == ["spec.replcas"]
    open_places = {
        path for path, schema in places_in(schema_of(resource.view)) if schema.get(PRESERVE) and not path.startswith("metadata")
    }
    assert open_places <= {"spec.roles[].template"}


def test_values_of_a_newer_koordinator_still_decode() -> None:
    raw = changed(manifest("NodeMetric"), "status.podsMetric.0.qos", "NEWCLASS")
    assert to_raw(view(BY_KIND["NodeMetric"], raw))["status"]["podsMetric"][0]["qos"] == "NEWCLASS"
    assert [cause.field for cause in structural(BY_KIND["NodeMetric"]).validate(raw)] == ["status.podsMetric[0].qos"]


def test_objects_as_go_clients_write_them_are_accepted() -> None:
    """Go writes structs that are never set as empty objects with empty strings and nulls."""
    raw = {
        "apiVersion": "kuscia.secretflow/v1alpha1",
        "kind": "TaskResource",
        "metadata": {"name": "t", "namespace": "alice", "creationTimestamp": None},
        "spec": {"minReservedPods": 1, "pods": [{"name": "p", "resources": {}}]},
        "status": {"phase": ""},
    }
    route = {
        "metadata": {"name": "a-b", "creationTimestamp": None},
        "spec": {"source": "a", "destination": "b", "endpoint": {}, "authenticationType": "Token"},
        "status": {"tokenStatus": {"revisionTime": None, "sourceTokens": None}},
    }
    assert structural(BY_KIND["TaskResource"]).validate(raw) == []
    assert structural(BY_KIND["ClusterDomainRoute"]).validate(route) == []
    assert isinstance(view(BY_KIND["ClusterDomainRoute"], route), View)
