"""Kinds that a CustomResourceDefinition adds while the store runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from muster.objects.resources import Resource
from muster.objects.status import ApiError, Conflict, Invalid, NotFound, Raw
from muster.store.contract import Store, WriteOptions
from tests.store.conformance.support import (
    PATIENCE_S,
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


ANY_OBJECT = {"type": "object", "x-kubernetes-embedded-resource": True, "x-kubernetes-preserve-unknown-fields": True}
POD = {"apiVersion": "v1", "kind": "Pod"}


@pytest.mark.parametrize(
    ("spec", "refused"),
    [
        pytest.param({"any": {}}, ["any.apiVersion", "any.kind"], id="neither apiVersion nor kind"),
        pytest.param({"any": {**POD, "apiVersion": ""}}, ["any.apiVersion"], id="an empty apiVersion"),
        pytest.param({"any": {**POD, "apiVersion": "a/b/c"}}, ["any.apiVersion"], id="an apiVersion of three parts"),
        pytest.param({"any": {**POD, "kind": "Po d"}}, ["any.kind"], id="a kind with a space"),
        pytest.param({"any": {**POD, "kind": "P" * 64}}, ["any.kind"], id="a long kind"),
        pytest.param({"any": {**POD, "metadata": {"name": "a/b"}}}, ["any.metadata.name"], id="name"),
        pytest.param({"any": {**POD, "metadata": {"generateName": "a/b"}}}, ["any.metadata.generateName"], id="prefix"),
        pytest.param({"any": {**POD, "metadata": {"namespace": "A B"}}}, ["any.metadata.namespace"], id="namespace"),
        pytest.param({"any": {**POD, "metadata": {"labels": {"a b": "c"}}}}, ["any.metadata.labels"], id="label"),
        pytest.param({"any": {**POD, "metadata": {"annotations": {"a b": ""}}}}, ["any.metadata.annotations"], id="annotation"),
        pytest.param({"any": {**POD, "metadata": {"finalizers": ["a b"]}}}, ["any.metadata.finalizers"], id="finalizer"),
        pytest.param({"any": {**POD, "metadata": {"ownerReferences": [{}]}}}, ["any.metadata.ownerReferences"], id="owner"),
        pytest.param({"any": {**POD, "metadata": {"generation": -1}}}, ["any.metadata.generation"], id="generation"),
        pytest.param({"list": [POD, {"kind": "Pod"}]}, ["list[1].apiVersion"], id="in a list"),
        pytest.param({"map": {"k": {"apiVersion": "v1"}}}, ["map"], id="in a map"),
    ],
)
async def test_what_is_embedded_is_checked(
    store: Store, namespace: str, embedding: Resource, spec: Raw, refused: list[str]
) -> None:
    sent = {"apiVersion": embedding.api_version, "kind": "Widget", "metadata": {"name": "a"}, "spec": spec}
    with pytest.raises(Invalid) as error:
        await store.create(embedding, sent, namespace, WriteOptions(dry_run=True))
    fields = [cause.field for cause in error.value.causes]
    assert all(any(field.startswith(f"spec.{one}") for field in fields) for one in refused), fields


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        pytest.param({}, {}, id="nothing"),
        pytest.param({"metadata": None}, {"metadata": {}}, id="null"),
        pytest.param({"metadata": {"name": "", "labels": {}, "generation": 0}}, {"metadata": {}}, id="empty members"),
        pytest.param({"metadata": {"labels": {"a": None}}}, {"metadata": {"labels": {"a": ""}}}, id="null for a text"),
        pytest.param({"metadata": {"name": "Any Name", "odd": 1}}, {"metadata": {"name": "Any Name"}}, id="unknown members"),
        pytest.param({"odd": {"metadata": 1}}, {"odd": {"metadata": 1}}, id="what is not the object's own"),
    ],
)
async def test_metadata_of_what_is_embedded_are_kept_as_those_of_objects(
    store: Store, namespace: str, embedding: Resource, sent: Raw, kept: Raw
) -> None:
    raw = {"apiVersion": embedding.api_version, "kind": "Widget", "metadata": {"name": "a"}, "spec": {"any": {**POD, **sent}}}
    created = await store.create(embedding, raw, namespace, WriteOptions(dry_run=True))
    assert created["spec"] == {"any": {**POD, **kept}}


@pytest.fixture
async def embedding(store: Store) -> AsyncIterator[Resource]:
    """Widgets that hold objects of any kind."""
    properties = {
        "any": ANY_OBJECT,
        "list": {"type": "array", "items": ANY_OBJECT},
        "map": {"type": "object", "additionalProperties": ANY_OBJECT},
    }
    schema = {"type": "object", "properties": {"spec": {"type": "object", "properties": properties}}}
    async with custom_kind(store, schema) as widgets:
        yield widgets


def schema_with(**properties: Raw) -> Raw:
    status = {"type": "object", "properties": {"phase": {"type": "string"}}}
    return {"type": "object", "properties": {"spec": {"type": "object", "properties": properties}, "status": status}}


async def test_nulls_that_a_schema_does_not_allow_are_no_values(store: Store, namespace: str) -> None:
    """They are dropped, and a default takes their place; a list keeps its length, so there they are refused."""
    text, free = {"type": "string"}, {"x-kubernetes-preserve-unknown-fields": True}
    schema = schema_with(
        plain=text,
        object={"type": "object", "properties": {"inner": text}},
        filled={"type": "string", "default": "d"},
        allowed={"type": "string", "nullable": True},
        free=free,
        map={"type": "object", "additionalProperties": text},
        maps={"type": "object", "additionalProperties": {"type": "object", "properties": {"inner": text}}},
        list={"type": "array", "items": text},
        lists={"type": "array", "items": {"type": "object", "properties": {"inner": text}}},
    )
    async with custom_kind(store, schema) as widgets:
        sent = {"apiVersion": widgets.api_version, "kind": "Widget", "metadata": {"name": "a"}}
        spec: Raw = {
            "plain": None,
            "object": {"inner": None},
            "filled": None,
            "allowed": None,
            "map": {"a": None, "b": "c"},
            "maps": {"a": {"inner": None}},
            "lists": [{"inner": None}],
        }
        created = await store.create(widgets, {**sent, "spec": spec}, namespace)
        assert created["spec"] == {
            "object": {},
            "filled": "d",
            "allowed": None,
            "map": {"b": "c"},
            "maps": {"a": {}},
            "lists": [{}],
        }
        other = await store.create(widgets, {**sent, "metadata": {"name": "b"}, "spec": {"free": None}}, namespace)
        assert other["spec"] == {"filled": "d"}
        with pytest.raises(Invalid):
            await store.create(widgets, {**sent, "metadata": {"name": "c"}, "spec": {"list": [None]}}, namespace)


async def test_objects_are_shown_as_a_changed_definition_has_them(store: Store, namespace: str) -> None:
    """Without a write: unknown fields are gone, new defaults are there, and what is stored stays as it was."""
    text, filled = {"type": "string"}, {"type": "string", "default": "new"}
    definitions = await store.resource("apiextensions.k8s.io", "CustomResourceDefinition")
    async with custom_kind(store, schema_with(kept=text, gone=text)) as widgets:

        async def redefined(properties: Raw, spec: Raw) -> Raw:
            """The object, once a real server goes by the new definition."""
            version = {**(await store.get(definitions, widgets.qualified))["spec"]["versions"][0]}
            version["schema"] = {"openAPIV3Schema": schema_with(**properties)}
            await store.patch(definitions, widgets.qualified, {"spec": {"versions": [version]}})
            async with asyncio.timeout(PATIENCE_S):
                while (found := await store.get(widgets, "a", namespace))["spec"] != spec:
                    await asyncio.sleep(0.2)
            return found

        sent = {**widget(widgets.group, "a"), "spec": {"kept": "1", "gone": "2"}}
        created = await store.create(widgets, sent, namespace)
        shown = {"kept": "1", "added": "new"}
        found = await redefined({"kept": text, "added": filled}, shown)
        assert found["metadata"] == created["metadata"]
        assert [item["spec"] for item in (await store.list(widgets, namespace)).items] == [shown]
        async with watching(store, widgets, namespace) as watch:
            (event,) = await watch.take(1)
        assert event.object["spec"] == shown
        assert await redefined({"kept": text, "gone": text}, created["spec"]) == created, "nothing was written"
        found = await redefined({"kept": text, "added": filled}, shown)
        written = await store.patch(widgets, "a", {"status": {"phase": "x"}}, namespace, subresource="status")
        assert (written["spec"], written["metadata"]["generation"]) == (shown, 1)
        assert (await redefined({"kept": text, "gone": text}, {"kept": "1"}))["spec"] == {"kept": "1"}, "it was written"


async def test_a_write_that_changes_nothing_puts_down_what_a_changed_definition_shows(store: Store, namespace: str) -> None:
    definitions = await store.resource("apiextensions.k8s.io", "CustomResourceDefinition")
    async with custom_kind(store, schema_with(gone={"type": "string"})) as widgets:
        created = await store.create(widgets, {**widget(widgets.group, "a"), "spec": {"gone": "1"}}, namespace)
        version = {**(await store.get(definitions, widgets.qualified))["spec"]["versions"][0]}
        version["schema"] = {"openAPIV3Schema": schema_with()}
        await store.patch(definitions, widgets.qualified, {"spec": {"versions": [version]}})
        async with asyncio.timeout(PATIENCE_S):
            while (found := await store.get(widgets, "a", namespace))["spec"]:
                await asyncio.sleep(0.2)
        updated = await store.update(widgets, found, namespace)
        assert updated["metadata"]["resourceVersion"] != created["metadata"]["resourceVersion"]
        assert updated["metadata"]["generation"] == 1
        again = await store.update(widgets, updated, namespace)
        assert again["metadata"]["resourceVersion"] == updated["metadata"]["resourceVersion"]


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
