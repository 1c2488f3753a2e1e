"""One set of objects under several names: Events are read and written in `v1` and in `events.k8s.io/v1`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from muster.objects.status import BadRequest, Invalid, NotFound, Raw
from muster.store.contract import PatchType, Store, WriteOptions
from tests.store.conformance.support import brief, some_event, watching

NEW_NAMES = {
    "involvedObject": "regarding",
    "message": "note",
    "source": "deprecatedSource",
    "firstTimestamp": "deprecatedFirstTimestamp",
    "lastTimestamp": "deprecatedLastTimestamp",
    "count": "deprecatedCount",
    "reportingComponent": "reportingController",
}


def old_style(name: str, namespace: str) -> Raw:
    when = "2026-05-04T10:00:00Z"
    times = {"firstTimestamp": when, "lastTimestamp": when, "count": 3, "source": {"component": "test", "host": "n1"}}
    return {**some_event(name, namespace), **times}


def new_style(name: str, namespace: str, **more: Any) -> Raw:
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": name},
        "eventTime": "2026-05-04T10:00:00.123456Z",
        "regarding": {"kind": "Pod", "namespace": namespace, "name": "some-pod"},
        "reason": "Testing",
        "note": "an event of the new kind",
        "type": "Normal",
        "action": "Test",
        "reportingController": "example.com/test",
        "reportingInstance": "test-1",
        **more,
    }


def renamed(raw: Raw) -> Raw:
    return {NEW_NAMES.get(name, name): value for name, value in raw.items()}


def said(raw: Raw) -> Raw:
    """Without what says nothing: Kubernetes spells out some of the fields that are not set."""
    return {name: value for name, value in raw.items() if value}


async def test_what_is_written_in_one_group_is_read_in_the_other(store: Store, namespace: str) -> None:
    old, new = await store.resource("", "Event"), await store.resource("events.k8s.io", "Event")
    first = await store.create(old, old_style("a", namespace), namespace)
    second = await store.create(new, new_style("b", namespace), namespace)
    assert said(await store.get(new, "a", namespace)) == said({**renamed(first), "apiVersion": "events.k8s.io/v1"})
    seen = await store.get(old, "b", namespace)
    assert said(renamed(seen)) == said({**second, "apiVersion": "v1"})
    assert (seen["message"], seen["involvedObject"]["name"]) == ("an event of the new kind", "some-pod")
    assert seen["reportingComponent"] == "example.com/test"
    for resource, version in ((old, "v1"), (new, "events.k8s.io/v1")):
        page = await store.list(resource, namespace)
        assert [item["metadata"]["name"] for item in page.items] == ["a", "b"]
        items = [{"apiVersion": version, "kind": "Event", **item} for item in page.items]
        assert items == [await store.get(resource, name, namespace) for name in ("a", "b")]


async def test_a_change_in_one_group_is_seen_by_watchers_of_both(store: Store, namespace: str) -> None:
    old, new = await store.resource("", "Event"), await store.resource("events.k8s.io", "Event")
    start = (await store.list(new, namespace)).resource_version
    await store.create(old, old_style("a", namespace), namespace)
    await store.create(new, new_style("b", namespace), namespace)
    await store.patch(old, "a", {"message": "again", "count": 4}, namespace)
    await store.delete(new, "a", namespace)
    for resource, word in ((old, "message"), (new, "note")):
        async with watching(store, resource, namespace, resource_version=start) as watch:
            events = await watch.take(4)
            assert brief(events) == [("ADDED", "a"), ("ADDED", "b"), ("MODIFIED", "a"), ("DELETED", "a")]
            assert [event.object[word] for event in events[1:3]] == ["an event of the new kind", "again"]
            assert {event.object["apiVersion"] for event in events} == {resource.api_version}
    with pytest.raises(NotFound):
        await store.get(old, "a", namespace)


async def test_selectors_name_the_fields_of_the_group_asked(store: Store, namespace: str) -> None:
    old, new = await store.resource("", "Event"), await store.resource("events.k8s.io", "Event")
    await store.create(old, old_style("a", namespace), namespace)
    await store.create(new, new_style("b", namespace, type="Warning"), namespace)
    for resource in (old, new):
        page = await store.list(resource, namespace, field_selector="type=Warning,reason=Testing")
        assert [item["metadata"]["name"] for item in page.items] == ["b"]
    by_old = await store.list(old, namespace, field_selector="involvedObject.name=some-pod")
    assert len(by_old.items) == 2
    with pytest.raises(BadRequest):
        await store.list(new, namespace, field_selector="involvedObject.name=some-pod")


async def test_who_wrote_in_the_other_group_is_forgotten_at_the_next_write(store: Store, namespace: str) -> None:
    old, new = await store.resource("", "Event"), await store.resource("events.k8s.io", "Event")
    await store.create(old, old_style("a", namespace), namespace, WriteOptions(field_manager="first"))
    seen = await store.get(new, "a", namespace)
    (entry,) = seen["metadata"]["managedFields"]
    assert (entry["manager"], entry["apiVersion"]) == ("first", "v1")
    assert {"f:message", "f:involvedObject"} <= entry["fieldsV1"].keys()
    options = WriteOptions(field_manager="second")
    changed = await store.patch(new, "a", {"metadata": {"labels": {"seen": "yes"}}}, namespace, options)
    (entry,) = changed["metadata"]["managedFields"]
    assert (entry["manager"], entry["apiVersion"]) == ("second", "events.k8s.io/v1")
    assert entry["fieldsV1"] == {"f:metadata": {"f:labels": {".": {}, "f:seen": {}}}}


async def test_an_event_that_was_applied_in_one_group_can_be_applied_in_the_other(store: Store, namespace: str) -> None:
    old, new = await store.resource("", "Event"), await store.resource("events.k8s.io", "Event")
    first, second = WriteOptions(field_manager="first"), WriteOptions(field_manager="second")
    await store.patch(old, "a", old_style("a", namespace), namespace, first, patch_type=PatchType.APPLY)
    wanted = {"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "a", "labels": {"seen": "yes"}}}
    applied = await store.patch(new, "a", wanted, namespace, second, patch_type=PatchType.APPLY)
    assert (applied["note"], applied["metadata"]["labels"]) == ("an event to be forgotten", {"seen": "yes"})
    assert [entry["manager"] for entry in applied["metadata"]["managedFields"]] == ["second"]
    assert (await store.get(old, "a", namespace))["metadata"]["labels"] == {"seen": "yes"}


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"eventTime": None}, id="no time"),
        pytest.param({"reportingController": ""}, id="nobody reports it"),
        pytest.param({"reportingController": "no name at all"}, id="reported by what is no name"),
        pytest.param({"reportingInstance": ""}, id="no instance"),
        pytest.param({"reportingInstance": "x" * 129}, id="long instance"),
        pytest.param({"action": ""}, id="no action"),
        pytest.param({"reason": ""}, id="no reason"),
        pytest.param({"reason": "x" * 129}, id="long reason"),
        pytest.param({"note": "x" * 1025}, id="long note"),
        pytest.param({"type": "Other"}, id="unknown type"),
        pytest.param({"deprecatedCount": 2}, id="a count"),
        pytest.param({"deprecatedFirstTimestamp": "2026-05-04T10:00:00Z"}, id="first seen"),
        pytest.param({"deprecatedLastTimestamp": "2026-05-04T10:00:00Z"}, id="last seen"),
        pytest.param({"deprecatedSource": {"component": "c"}}, id="a source"),
        pytest.param({"series": {"count": 1, "lastObservedTime": "2026-05-04T10:00:00.000000Z"}}, id="a series of one"),
        pytest.param({"regarding": {"kind": "Node", "name": "n"}}, id="no namespace"),
    ],
)
async def test_the_new_group_is_stricter(store: Store, namespace: str, change: Raw) -> None:
    old, new = await store.resource("", "Event"), await store.resource("events.k8s.io", "Event")
    with pytest.raises(Invalid):
        await store.create(new, new_style("a", namespace, **change), namespace)
    # Whoever writes an event of the new kind in the old group hears the same of what it must say.
    old_names = {new_name: old_name for old_name, new_name in NEW_NAMES.items()}
    raw = new_style("a", namespace, **change)
    spelled = {old_names.get(name, name): value for name, value in raw.items()} | {"apiVersion": "v1"}
    both = {"reportingController", "reportingInstance", "action", "reason", "note", "regarding"}
    if change.keys() <= both:
        with pytest.raises(Invalid):
            await store.create(old, spelled, namespace)
    else:
        await store.create(old, spelled, namespace)


async def test_only_the_series_changes_in_the_new_group(store: Store, namespace: str) -> None:
    old, new = await store.resource("", "Event"), await store.resource("events.k8s.io", "Event")
    await store.create(new, new_style("a", namespace), namespace)
    series = {"series": {"count": 2, "lastObservedTime": "2026-05-04T10:00:05.000000Z"}}
    changed = await store.patch(new, "a", series, namespace)
    assert changed["series"]["count"] == 2
    # 1.20 means to refuse these and does not.
    changes = ({"note": "other"}, {"reason": "Other"}, {"regarding": {"name": "other"}}, {"type": "Warning"})
    for change in changes if await store.minor_version() > 20 else ():
        with pytest.raises(Invalid):
            await store.patch(new, "a", change, namespace)
    changed = await store.patch(old, "a", {"message": "other"}, namespace)
    assert (await store.get(new, "a", namespace))["note"] == changed["message"] == "other"


async def test_one_namespace_is_emptied_of_both(store: Store, namespace: str) -> None:
    old, new = await store.resource("", "Event"), await store.resource("events.k8s.io", "Event")
    await store.create(old, old_style("a", namespace), namespace)
    await store.create(new, new_style("b", namespace), namespace)
    await store.delete_collection(new, namespace)
    async with asyncio.timeout(60):
        while (await store.list(old, namespace)).items:
            await asyncio.sleep(0.05)
