"""Binding without a general update: where it answers, it answers the same."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from muster.objects.status import Raw
from muster.sim.clock import run
from muster.store.contract import PatchType, WriteOptions
from muster.store.embedded.quick_binding import QuickBinder
from muster.store.embedded.records import record_of
from tests.store.stores import memory_store, pod

words = st.sampled_from(["a", "b", "example.com/c"])
conditions = st.lists(st.sampled_from(["Ready", "PodScheduled", "Odd"]), unique=True, max_size=3)


async def bound(*, is_quick: bool, setup: dict[str, Any], annotations: dict[str, str]) -> Raw:
    async with memory_store() as store:
        pods = await store.resource("", "Pod")
        made = pod("p", labels=setup["labels"])
        if setup["annotations"]:
            made["metadata"]["annotations"] = setup["annotations"]
        await store.create(pods, made, "default")
        for type_ in setup["conditions"]:
            status = {"conditions": [{"type": type_, "status": "False", "message": setup["message"]}]}
            await store.patch(pods, "p", {"status": status}, "default", patch_type=PatchType.STRATEGIC, subresource="status")
        if not is_quick:
            store._bindings._quick = _Never()
        await store.bind("p", "default", "n1", annotations=annotations or None)
        record = store.get_record(pods, "p", "default")
        live = record.raw()
        assert record == record_of(live, record.key, record.rv, store._core.collection("pods").field_paths, record.value)
        live["metadata"].pop("uid")
        return live


class _Never(QuickBinder):
    def bound(self, *args: Any, **options: Any) -> Raw | None:
        return None


@settings(max_examples=15, deadline=None)
@given(
    setup=st.fixed_dictionaries(
        {
            "labels": st.dictionaries(words, st.just("x"), max_size=2),
            "annotations": st.dictionaries(words, st.just("x"), max_size=2),
            "conditions": conditions,
            "message": st.sampled_from(["", "said"]),
        }
    ),
    annotations=st.dictionaries(words, st.just("y"), max_size=2),
)
def test_the_quick_way_equals_the_general_one(setup: dict[str, Any], annotations: dict[str, str]) -> None:
    quick = run(bound(is_quick=True, setup=copy.deepcopy(setup), annotations=annotations))
    general = run(bound(is_quick=False, setup=copy.deepcopy(setup), annotations=annotations))
    assert quick == general


def test_an_ordinary_pod_takes_the_quick_way() -> None:
    async def scenario() -> Raw | None:
        async with memory_store() as store:
            pods = await store.resource("", "Pod")
            await store.create(pods, pod("p"), "default")
            live = store.get_record(pods, "p", "default")
            schema = store.schema(pods)
            return QuickBinder().bound(live.value, "n1", {"a": "b"}, manager="muster", schema=schema, now=1e9)

    made = run(scenario())
    assert made is not None
    assert made["spec"]["nodeName"] == "n1"


def test_a_dry_binding_says_nothing_and_changes_nothing() -> None:
    async def scenario() -> None:
        async with memory_store() as store:
            pods = await store.resource("", "Pod")
            before = await store.create(pods, pod("p"), "default")
            await store.bind("p", "default", "n1", options=WriteOptions(dry_run=True))
            assert await store.get(pods, "p", "default") == before

    run(scenario())
