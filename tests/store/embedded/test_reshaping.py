"""Objects that are older than the schema of their kind: how they are read, and what that costs the others."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from muster.objects.resources import Resource
from muster.objects.status import Raw
from muster.store.contract import WriteOptions
from muster.store.embedded import EmbeddedStore
from tests.store.embedded.support import CRDS, open_store
from tests.store.embedded.test_custom import GROUP, definition, gadget, version

SIZED: Raw = {"shape": {"type": "string"}}
COLOURED: Raw = {"colour": {"type": "string", "default": "blue"}, "weight": {"type": "integer", "default": 1}}
SHOWN: Raw = {"size": 1, "colour": "blue", "weight": 1}
"""What `COLOURED` makes of a gadget that was stored without a colour, with a shape."""
NAME = f"gadgets.{GROUP}"


def schema(**fields: Any) -> Raw:
    made = version("v1", storage=True, **fields)
    if "shape" in fields:
        del made["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["colour"]["default"]
    return made


async def older_gadgets(path: Path | None = None, count: int = 1) -> tuple[EmbeddedStore, Resource]:
    """Gadgets `g0`, `g1`, ..., stored before their definition says otherwise."""
    store = await open_store(path)
    await store.create(CRDS, definition(schema(**SIZED)))
    gadgets = await store.resource(GROUP, "Gadget")
    for n in range(count):
        await store.create(gadgets, gadget(f"g{n}", size=1, shape="round"), "default")
    await redefine(store, COLOURED)
    return store, gadgets


async def redefine(store: EmbeddedStore, fields: Raw) -> None:
    await store.patch(CRDS, NAME, {"spec": {"versions": [schema(**fields)]}})


async def test_they_are_read_as_the_schema_has_them() -> None:
    store, gadgets = await older_gadgets(count=120)
    assert (await store.get(gadgets, "g0", "default"))["spec"] == SHOWN
    assert [item["spec"] for item in (await store.list(gadgets)).items] == [SHOWN] * 120
    assert [item["spec"] for item in (await store.list(gadgets, limit=3)).items] == [SHOWN] * 3
    await store.close()


async def test_they_are_selected_by_what_the_schema_fills_in() -> None:
    store, gadgets = await older_gadgets()
    assert [item["spec"] for item in (await store.list(gadgets, field_selector="spec.colour=blue")).items] == [SHOWN]
    named = await store.list(gadgets, "default", field_selector="metadata.name=g0,spec.colour=blue")
    assert [item["spec"] for item in named.items] == [SHOWN]
    watcher = store.watch_records(gadgets, field_selector="spec.colour=blue")
    (event,) = await anext(watcher)
    assert event.record.raw()["spec"] == SHOWN
    watcher.close()
    await store.close()


@pytest.mark.parametrize("selector", ["", "x!=y"], ids=["all", "by label"])
async def test_a_watch_from_before_shows_them_too(selector: str) -> None:
    store, gadgets = await older_gadgets()
    start = str(int((await store.get(gadgets, "g0", "default"))["metadata"]["resourceVersion"]) - 1)
    await store.patch(gadgets, "g0", {"spec": {"size": 2}}, "default")
    await store.delete(gadgets, "g0", "default")
    watcher = store.watch_records(gadgets, label_selector=selector, resource_version=start)
    events = await anext(watcher)
    assert [event.record.raw()["spec"] for event in events] == [SHOWN, {**SHOWN, "size": 2}, {**SHOWN, "size": 2}]
    watcher.close()
    await store.close()


async def test_pages_of_a_list_from_before_show_them_too() -> None:
    store, gadgets = await older_gadgets(count=3)
    first = await store.list(gadgets, limit=1)
    await redefine(store, {"made": {"type": "string", "default": "here"}})
    await store.delete(gadgets, "g1", "default")
    rest = await store.list(gadgets, limit=5, continue_token=first.continue_token)
    assert [item["spec"] for item in rest.items] == [{"size": 1, "colour": "red", "made": "here"}] * 2
    await store.close()


async def test_they_are_so_after_a_restart(tmp_path: Path) -> None:
    store, gadgets = await older_gadgets(tmp_path)
    newer = await store.create(gadgets, gadget("newer", size=2), "default")
    await store.close()
    store = await open_store(tmp_path)
    assert (await store.get(gadgets, "g0", "default"))["spec"] == SHOWN
    assert await store.get(gadgets, "newer", "default") == newer
    await redefine(store, SIZED)
    assert (await store.get(gadgets, "g0", "default"))["spec"] == {"size": 1, "shape": "round"}, "what is stored is kept"
    await store.close()


async def test_what_is_found_is_kept_until_the_object_is_written() -> None:
    store, gadgets = await older_gadgets()
    first = store.get_record(gadgets, "g0", "default")
    assert store.get_record(gadgets, "g0", "default") is first
    await store.patch(gadgets, "g0", {"metadata": {"labels": {"a": "b"}}}, "default")
    second = store.get_record(gadgets, "g0", "default")
    assert (second.raw()["spec"], second.raw()["metadata"]["generation"]) == (SHOWN, 1)
    await store.close()


async def test_a_try_writes_nothing() -> None:
    store, gadgets = await older_gadgets()
    tried = await store.patch(gadgets, "g0", {"spec": {"size": 3}}, "default", WriteOptions(dry_run=True))
    assert tried["spec"] == {**SHOWN, "size": 3}
    await redefine(store, SIZED)
    assert (await store.get(gadgets, "g0", "default"))["spec"] == {"size": 1, "shape": "round"}
    await store.close()


async def test_kinds_whose_schema_is_the_same_are_read_as_they_are_stored(tmp_path: Path) -> None:
    store, gadgets = await older_gadgets(tmp_path)
    newer = await store.create(gadgets, gadget("newer", size=1), "default")
    await store.patch(CRDS, NAME, {"metadata": {"labels": {"a": "b"}}})
    collection = store._registry.find(gadgets).collection
    assert collection.reshaping.until < int(newer["metadata"]["resourceVersion"]), "a label is no other schema"
    assert store.get_record(gadgets, "newer", "default") is collection.records["default", "newer"]
    await store.delete(gadgets, "g0", "default")
    await store.create(CRDS, definition(kind="Other", plural="others"))
    others = await store.resource(GROUP, "Other")
    await store.create(others, {**gadget("o", size=1), "kind": "Other"}, "default")
    await store.close()
    store = await open_store(tmp_path)
    assert store._registry.find(others).collection.reshaping.until == 0, "all are newer than their definition"
    await store.close()


async def test_what_is_written_while_the_definition_is_on_its_way_has_the_new_shape(tmp_path: Path) -> None:
    store, gadgets = await older_gadgets(tmp_path)

    async def write(n: int) -> Raw:
        return await store.create(gadgets, gadget(f"n{n}", size=1), "default")

    defined = asyncio.ensure_future(redefine(store, {"made": {"type": "string", "default": "here"}}))
    await asyncio.gather(defined, *(write(n) for n in range(20)))
    for item in (await store.list(gadgets)).items:
        assert item["spec"]["made"] == "here"
    await store.close()
    store = await open_store(tmp_path)
    for item in (await store.list(gadgets)).items:
        assert item["spec"]["made"] == "here"
    await store.close()
