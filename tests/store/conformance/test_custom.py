"""Kinds that a CustomResourceDefinition adds while the store runs."""

from __future__ import annotations

import pytest

from muster.objects.status import ApiError, Conflict, Invalid, NotFound
from muster.store.contract import Store
from tests.store.conformance.support import (
    brief,
    custom_kind,
    definition,
    gone,
    is_established,
    served,
    unique,
    until,
    watching,
    widget,
)


async def test_a_definition_makes_a_kind(store: Store, namespace: str) -> None:
    async with custom_kind(store) as widgets:
        assert (widgets.plural, widgets.kind, widgets.version, widgets.namespaced) == ("widgets", "Widget", "v1", True)
        created = await store.create(widgets, widget(widgets.group, "a", size=3), namespace)
        assert created["spec"] == {"size": 3, "colour": "red"}, "the schema's default is filled in"
        assert created["metadata"]["generation"] == 1
        assert [item["metadata"]["name"] for item in (await store.list(widgets, namespace)).items] == ["a"]
        async with watching(store, widgets, namespace) as watch:
            assert brief(await watch.take(1)) == [("ADDED", "a")]
            await store.patch(widgets, "a", {"spec": {"colour": "green"}}, namespace)
            await store.delete(widgets, "a", namespace)
            assert brief(await watch.take(2)) == [("MODIFIED", "a"), ("DELETED", "a")]


async def test_unknown_fields_are_dropped(store: Store, namespace: str) -> None:
    async with custom_kind(store) as widgets:
        sent = {**widget(widgets.group, "a", nonsense=True), "more": {"nonsense": 1}}
        created = await store.create(widgets, sent, namespace)
        assert created["spec"] == {"size": 1, "colour": "red"}
        assert "more" not in created


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        pytest.param({"size": 11}, "spec.size", id="too large"),
        pytest.param({"size": 0}, "spec.size", id="too small"),
        pytest.param({"size": "3"}, "spec.size", id="a string for a number"),
        pytest.param({"size": 1.5}, "spec.size", id="a fraction"),
        pytest.param({"size": 1, "colour": "blue"}, "spec.colour", id="not in the enumeration"),
        pytest.param({"size": None}, "spec.size", id="null for a required field"),
        pytest.param({"size": 1, "parts": [{"weight": 1}]}, "spec.parts", id="an item without its key"),
        pytest.param({"size": 1, "parts": "none"}, "spec.parts", id="a string for a list"),
    ],
)
async def test_the_schema_holds(store: Store, namespace: str, spec: dict[str, object], field: str) -> None:
    async with custom_kind(store) as widgets:
        with pytest.raises(Invalid) as refused:
            await store.create(widgets, {**widget(widgets.group, "a"), "spec": spec}, namespace)
        assert any(cause.field.startswith(field) for cause in refused.value.causes), refused.value.causes
        await store.create(widgets, widget(widgets.group, "b"), namespace)
        with pytest.raises(Invalid):
            await store.patch(widgets, "b", {"spec": {"parts": None, "colour": None, **spec}}, namespace)
        assert (await store.get(widgets, "b", namespace))["spec"] == {"size": 1, "colour": "red"}


async def test_custom_kinds_may_have_finalizers_without_a_domain(store: Store, namespace: str) -> None:
    async with custom_kind(store) as widgets:
        held = widget(widgets.group, "a")
        held["metadata"]["finalizers"] = ["plain.example.com"]
        await store.create(widgets, held, namespace)
        assert (await store.delete(widgets, "a", namespace))["metadata"]["deletionTimestamp"]
        await store.patch(widgets, "a", {"metadata": {"finalizers": None}}, namespace)


async def test_a_stale_version_is_a_conflict(store: Store, namespace: str) -> None:
    async with custom_kind(store) as widgets:
        created = await store.create(widgets, widget(widgets.group, "a"), namespace)
        await store.patch(widgets, "a", {"spec": {"size": 2}}, namespace)
        with pytest.raises(Conflict):
            await store.update(widgets, {**created, "spec": {"size": 3}}, namespace)


async def test_deleting_the_definition_deletes_its_objects(store: Store, namespace: str) -> None:
    group = f"{unique('g')}.example.com"
    definitions = await store.resource("apiextensions.k8s.io", "CustomResourceDefinition")
    async with custom_kind(store) as other:
        await store.create(other, widget(other.group, "stays"), namespace)
        crd = await store.create(definitions, definition(group))
        name = crd["metadata"]["name"]
        await until(store, definitions, name, None, is_established)
        widgets = await served(store, group, "Widget")
        for n in range(10):
            await store.create(widgets, widget(group, f"w{n}"), namespace)
        deleting = await store.delete(definitions, name)
        assert deleting["metadata"]["deletionTimestamp"]
        await gone(store, definitions, name, None)
        with pytest.raises(NotFound):
            await store.get(widgets, "w0", namespace)
        assert await store.get(other, "stays", namespace)
        # The same definition again finds nothing of the old objects.
        await store.create(definitions, definition(group))
        await until(store, definitions, name, None, is_established)
        assert (await store.list(await served(store, group, "Widget"), namespace)).items == []
        await store.delete(definitions, name)


async def test_a_definition_follows_its_spec(store: Store, namespace: str) -> None:
    async with custom_kind(store) as widgets:
        definitions = await store.resource("apiextensions.k8s.io", "CustomResourceDefinition")
        crd = await store.get(definitions, f"widgets.{widgets.group}")
        assert crd["status"]["storedVersions"] == ["v1"]
        assert crd["status"]["acceptedNames"]["kind"] == "Widget"
        assert {c["type"]: c["status"] for c in crd["status"]["conditions"]} == {"NamesAccepted": "True", "Established": "True"}


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"group": "other.example.com"}, id="name and group differ"),
        pytest.param({"scope": "Everywhere"}, id="scope"),
        pytest.param({"versions": []}, id="no versions"),
        pytest.param({"names": {"plural": "widgets"}}, id="no kind"),
        pytest.param(
            {"versions": [{"name": "v1", "served": True, "storage": False, "schema": {"openAPIV3Schema": {"type": "object"}}}]},
            id="none is stored",
        ),
        pytest.param({"versions": [{"name": "v1", "served": True, "storage": True}]}, id="no schema"),
        pytest.param(
            {
                "versions": [
                    {
                        "name": "v1",
                        "served": True,
                        "storage": True,
                        "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": {"minimum": 1}}}},
                    }
                ]
            },
            id="a schema that is not structural",
        ),
    ],
)
async def test_bad_definitions_are_refused(store: Store, change: dict[str, object]) -> None:
    definitions = await store.resource("apiextensions.k8s.io", "CustomResourceDefinition")
    group = f"{unique('g')}.example.com"
    crd = definition(group)
    crd["spec"].update(change)
    with pytest.raises(ApiError) as refused:
        await store.create(definitions, crd)
    assert refused.value.code == 422
    with pytest.raises(NotFound):
        await store.get(definitions, f"widgets.{group}")
