from __future__ import annotations

from typing import Annotated, Any

import msgspec
import pytest

from muster.objects.catalog import CATALOG
from muster.objects.crd import (
    crd_for,
    crd_warnings,
    crds_for,
    resource_from_crd,
    schema_from_crd,
    storage_version,
    validate_crd,
    version_order,
)
from muster.objects.kinds.base import Object
from muster.objects.resources import Column, Resource
from muster.objects.status import Raw
from muster.objects.structural import Structural
from muster.objects.view import QuantityValue, View, copy_json, keyed, merged


class Item(View):
    name: str = ""
    protocol: str = "TCP"
    amount: QuantityValue = 0


class WidgetSpec(View):
    items: Annotated[list[Item], keyed("name", "protocol"), merged("name")] = msgspec.field(default_factory=list)
    replicas: Annotated[int, msgspec.Meta(ge=0)] = 1


class Widget(Object):
    """A widget."""

    spec: WidgetSpec = msgspec.field(default_factory=WidgetSpec)


WIDGET = Resource(
    group="example.com",
    version="v1",
    kind="Widget",
    plural="widgets",
    short_names=("wd",),
    categories=("all",),
    subresources=frozenset({"status", "scale"}),
    scale_paths=(".spec.replicas", ".status.replicas", ""),
    columns=(Column(name="Replicas", path=".spec.replicas", type="integer", priority=1),),
    selectable_fields=("spec.colour",),
    view=Widget,
    is_custom=True,
)


def schema_at(crd: Raw, *path: str) -> Any:
    found: Any = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for part in path:
        found = found[part]
    return found


def test_a_definition_says_all_that_the_resource_says() -> None:
    crd = crd_for(WIDGET)
    version = crd["spec"]["versions"][0]
    assert crd["metadata"]["name"] == "widgets.example.com"
    assert crd["spec"]["names"] == {
        "plural": "widgets",
        "singular": "widget",
        "kind": "Widget",
        "listKind": "WidgetList",
        "shortNames": ["wd"],
        "categories": ["all"],
    }
    assert version["subresources"] == {
        "status": {},
        "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"},
    }
    assert version["additionalPrinterColumns"] == [
        {"name": "Replicas", "type": "integer", "jsonPath": ".spec.replicas", "priority": 1}
    ]
    assert "selectableFields" not in version
    assert crd_for(WIDGET, selectable_fields=True)["spec"]["versions"][0]["selectableFields"] == [{"jsonPath": ".spec.colour"}]


def test_a_definition_has_only_what_clusters_take() -> None:
    crd = crd_for(WIDGET)
    items = schema_at(crd, "properties", "spec", "properties", "items")
    assert schema_at(crd, "properties", "metadata") == {"type": "object"}
    assert items["items"]["required"] == ["name"], "a key without a default"
    assert items["items"]["properties"]["protocol"]["default"] == "TCP"
    assert "format" not in items["items"]["properties"]["amount"]
    assert "x-kubernetes-patch-merge-key" not in items
    assert not any(key.startswith("x-muster-") for key in schema_at(crd))
    assert validate_crd(crd) == []


def test_there_and_back_again() -> None:
    (resource,) = resource_from_crd(crd_for(WIDGET, selectable_fields=True))
    expected = msgspec.structs.replace(WIDGET, view=None, singular="widget", list_kind="WidgetList")
    assert resource == expected


def test_versions_of_one_kind_share_a_definition() -> None:
    older = msgspec.structs.replace(WIDGET, version="v1beta1")
    (crd,) = crds_for([WIDGET, older])
    assert [(v["name"], v["storage"]) for v in crd["spec"]["versions"]] == [("v1", True), ("v1beta1", False)]
    assert storage_version(crd) == "v1"
    assert [r.version for r in resource_from_crd(crd)] == ["v1", "v1beta1"]
    assert validate_crd(crd) == []


def test_versions_that_are_not_served_are_left_out() -> None:
    crd = crd_for(WIDGET)
    crd["spec"]["versions"][0]["served"] = False
    assert resource_from_crd(crd) == []


def test_schema_from_crd_is_a_copy() -> None:
    crd = crd_for(WIDGET)
    schema = schema_from_crd(crd, "v1")
    assert schema == schema_at(crd)
    assert schema is not schema_at(crd)
    assert schema_from_crd(crd, "v9") is None


def test_versions_are_ordered_as_kubernetes_prefers_them() -> None:
    names = ["foo", "v1alpha1", "v1", "v10", "v2beta1", "v11alpha2", "v1beta2", "bar", "v2"]
    assert sorted(names, key=version_order) == ["v10", "v2", "v1", "v2beta1", "v1beta2", "v11alpha2", "v1alpha1", "bar", "foo"]


@pytest.mark.parametrize("crd", crds_for(CATALOG.custom), ids=lambda c: c["metadata"]["name"])
def test_our_own_definitions_are_valid(crd: Raw) -> None:
    assert validate_crd(crd) == []
    assert crd_warnings(crd) == []
    for resource in resource_from_crd(crd):
        schema = schema_from_crd(crd, resource.version)
        assert schema is not None
        structural = Structural(schema)
        assert structural.validate(structural.default({"metadata": {"name": "x", "creationTimestamp": None}})) is not None
        ours = CATALOG.by_plural(resource.group, resource.version, resource.plural)
        assert ours is not None
        assert (resource.short_names, resource.columns, resource.scale_paths) == (
            ours.short_names,
            ours.columns,
            ours.scale_paths,
        )


USER: Raw = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "widgets.example.com"},
    "spec": {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {"plural": "widgets", "kind": "Widget"},
        "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {"type": "object"}}}],
    },
}


def changed(path: str, value: Any) -> Raw:
    crd: Raw = copy_json(USER)
    target: Any = crd
    *parents, last = path.split(".")
    for part in parents:
        target = target[int(part) if part.isdigit() else part]
    target[last] = value
    return crd


VERSION = USER["spec"]["versions"][0]


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        pytest.param("metadata.name", "widget.example.com", "metadata.name", id="name"),
        pytest.param("spec.group", "Example.com", "spec.group", id="group"),
        pytest.param("spec.group", "example", "spec.group", id="group without a dot"),
        pytest.param("spec.scope", "Everywhere", "spec.scope", id="scope"),
        pytest.param("spec.names.plural", "Widgets", "spec.names.plural", id="plural"),
        pytest.param("spec.names.kind", "1Widget", "spec.names.kind", id="kind"),
        pytest.param("spec.names.listKind", "Widget", "spec.names.listKind", id="list kind"),
        pytest.param("spec.names.shortNames", ["a_b"], "spec.names.shortNames[0]", id="short name"),
        pytest.param("spec.preserveUnknownFields", True, "spec.preserveUnknownFields", id="preserve"),
        pytest.param("spec.conversion", {"strategy": "Webhook"}, "spec.conversion.strategy", id="conversion"),
        pytest.param("spec.versions", [], "spec.versions", id="no versions"),
        pytest.param("spec.versions", [VERSION, VERSION], "spec.versions", id="two stored"),
        pytest.param(
            "spec.versions", [VERSION, {**VERSION, "storage": False}], "spec.versions[1].name", id="same version twice"
        ),
        pytest.param("spec.versions.0.name", "1", "spec.versions[0].name", id="version name"),
        pytest.param("spec.versions.0.storage", False, "spec.versions", id="none stored"),
        pytest.param("spec.versions.0.schema", None, "spec.versions[0].schema.openAPIV3Schema", id="no schema"),
        pytest.param(
            "spec.versions.0.schema.openAPIV3Schema",
            {"type": "object", "properties": {"a": {}}},
            "spec.versions[0].schema.openAPIV3Schema.properties[a].type",
            id="not structural",
        ),
        pytest.param(
            "spec.versions.0.additionalPrinterColumns",
            [{"name": "A", "type": "text", "jsonPath": ".a"}],
            "spec.versions[0].additionalPrinterColumns[0].type",
            id="column type",
        ),
        pytest.param(
            "spec.versions.0.additionalPrinterColumns",
            [{"name": "A", "type": "string", "jsonPath": "a["}],
            "spec.versions[0].additionalPrinterColumns[0].jsonPath",
            id="column path",
        ),
        pytest.param(
            "spec.versions.0.subresources",
            {"scale": {"specReplicasPath": ".status.x", "statusReplicasPath": ".status.x"}},
            "spec.versions[0].subresources.scale.specReplicasPath",
            id="scale path",
        ),
        pytest.param(
            "spec.versions.0.selectableFields",
            [{"jsonPath": "a"}],
            "spec.versions[0].selectableFields[0].jsonPath",
            id="selectable",
        ),
    ],
)
def test_what_users_get_wrong_is_named(path: str, value: Any, field: str) -> None:
    assert validate_crd(USER) == []
    assert field in [cause.field for cause in validate_crd(changed(path, value))]


def test_protected_groups_need_an_approval() -> None:
    crd = changed("spec.group", "example.k8s.io")
    crd["metadata"]["name"] = "widgets.example.k8s.io"
    assert [c.reason for c in validate_crd(crd)] == ["FieldValueRequired"]
    crd["metadata"]["annotations"] = {"api-approved.kubernetes.io": "unapproved, a test"}
    assert validate_crd(crd) == []


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        ("spec.scope", "Cluster", "spec.scope"),
        ("spec.names.kind", "Other", "spec.names.kind"),
        ("spec.versions.0.name", "v2", "status.storedVersions[0]"),
    ],
)
def test_what_may_not_change(path: str, value: Any, field: str) -> None:
    old = {**copy_json(USER), "status": {"storedVersions": ["v1"]}}
    assert field in [cause.field for cause in validate_crd(changed(path, value), old)]
    assert validate_crd(USER, old) == []


@pytest.mark.parametrize(
    "odd", [{}, {"spec": None}, {"spec": {"names": [], "versions": {}}}, {"spec": {"versions": [None, 1]}}]
)
def test_any_shape_has_causes_and_no_crash(odd: Raw) -> None:
    assert validate_crd(odd) != []


def test_cel_rules_are_warned_about() -> None:
    crd = changed("spec.versions.0.schema.openAPIV3Schema", {"type": "object", "x-kubernetes-validations": [{"rule": "true"}]})
    assert validate_crd(crd) == []
    assert len(crd_warnings(crd)) == 1
