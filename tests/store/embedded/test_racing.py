"""Writes that wait, for hooks or for their turn, while others change what they rest on."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from muster.objects.conditions import find_condition
from muster.objects.status import NotFound
from muster.store.contract import PatchType, WriteOptions
from muster.store.embedded import Limits
from tests.store.conformance.support import definition
from tests.store.embedded.support import CONFIG_MAPS, CRDS, config_map, open_store


class Slow:
    """Admission that lets others run."""

    async def mutate(self, request: Any) -> None:
        await asyncio.sleep(0.001)

    async def validate(self, request: Any) -> None:
        return


@pytest.mark.parametrize("has_hook", [True, False])
async def test_two_who_apply_what_is_not_there_are_merged(has_hook: bool) -> None:
    store = await open_store(admission=Slow() if has_hook else None)
    wanted = [config_map("a", {name: "y" * 100_000}) for name in ("first", "second")]
    await asyncio.gather(
        *(
            store.patch(CONFIG_MAPS, "a", one, "default", WriteOptions(field_manager=f"m{n}"), patch_type=PatchType.APPLY)
            for n, one in enumerate(wanted)
        )
    )
    found = await store.get(CONFIG_MAPS, "a", "default")
    assert sorted(found["data"]) == ["first", "second"]
    assert [entry["manager"] for entry in found["metadata"]["managedFields"]] == ["m0", "m1"]
    await store.close()


async def test_nothing_is_stored_in_a_kind_that_went_meanwhile() -> None:
    store = await open_store()
    crd = definition("g.example.com")
    await store.create(CRDS, crd)
    kind = await store.resource("g.example.com", "Widget")
    is_here, may_go_on = asyncio.Event(), asyncio.Event()

    async def turn() -> None:
        is_here.set()
        await may_go_on.wait()

    large = {"metadata": {"name": "large", "annotations": {"x": "y" * 100_000}}, "spec": {"size": 1}}
    creating = asyncio.create_task(store.create_record(kind, large, "default", turn=turn))
    await is_here.wait()
    await store.delete(CRDS, crd["metadata"]["name"])
    await store.settled()
    assert not store.list_records(CRDS).records
    may_go_on.set()
    with pytest.raises(NotFound, match="could not find the requested resource"):
        await creating
    await store.create(CRDS, crd)
    assert not store.list_records(await store.resource("g.example.com", "Widget")).records
    await store.close()


async def test_a_collection_is_deleted_however_little_history_is_kept() -> None:
    store = await open_store(limits=Limits(history_len_max=10))
    await asyncio.gather(*(store.create(CONFIG_MAPS, config_map(f"m{n:03}"), "default") for n in range(300)))
    await store.delete_collection(CONFIG_MAPS, "default")
    assert not store.list_records(CONFIG_MAPS).records
    await store.close()


@pytest.mark.parametrize("is_large", [False, True], ids=["small", "large"])
async def test_of_two_definitions_that_come_together_one_has_the_names(tmp_path: Path, is_large: bool) -> None:
    store = await open_store(tmp_path)
    crds = [definition("g.example.com"), definition("g.example.com")]
    crds[1]["metadata"]["name"] = "gadgets.g.example.com"
    crds[1]["spec"]["names"] |= {"plural": "gadgets", "singular": "gadget", "shortNames": []}
    for crd in crds:
        crd["metadata"]["annotations"] = {"weight": "x" * 100_000 * is_large}
    made = await asyncio.gather(*(store.create(CRDS, crd) for crd in crds))
    accepted = [find_condition(crd["status"]["conditions"], "NamesAccepted") or {} for crd in made]
    assert sorted(condition["status"] for condition in accepted) == ["False", "True"]
    await store.close()
