"""Built-in policies and the default queue are there, what people changed is theirs, and policies say how they are."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.controllers.kinds import serve_kinds, with_permissions_of
from tests.policy.building import World, policy_facts, queue_facts
from tests.store.stores import memory_store

from muster.controllers.actions import Create, Patch
from muster.controllers.manager import Manager
from muster.controllers.policies import Policies, QueueSpecView, default_queue, installed, status_of
from muster.engine import events as ev
from muster.objects.labels import Muster
from muster.objects.patch.merge import apply_merge_patch
from muster.objects.status import AlreadyExists, Raw
from muster.objects.time import wall_clock
from muster.policy.builtin import NAMES, builtin_policies, builtin_spec, digest
from muster.sim.clock import current_loop, virtual
from muster.store.contract import Store

NOW = 1_800_000_000.0
GROUP = "muster.dev"


def stored(name: str, **spec: Any) -> Raw:
    """As it was installed, then changed by whoever gives `spec`."""
    [action] = installed(name, None)
    assert isinstance(action, Create)
    made = action.object
    made["metadata"] |= {"uid": "u", "resourceVersion": "7", "generation": 1}
    made["spec"] |= spec
    return made


@pytest.mark.parametrize("name", NAMES)
def test_what_is_missing_is_made_with_a_mark(name: str) -> None:
    made = stored(name)
    assert made["spec"] == builtin_policies()[name]["spec"]
    assert made["metadata"]["annotations"] == {Muster.BUILTIN: digest(builtin_spec(name))}
    assert installed(name, made) == []


def test_defaults_that_a_server_fills_in_change_nothing() -> None:
    assert installed("fifo", stored("fifo", starvationBoundSeconds=604_800, fairShare={"halfLifeSeconds": 604_800})) == []


def test_what_somebody_changed_is_left_alone() -> None:
    assert installed("fifo", stored("fifo", formula="-age")) == []
    own = stored("fifo", formula="-age")
    del own["metadata"]["annotations"]
    assert installed("fifo", own) == []
    assert installed("fifo", {**stored("fifo"), "spec": {"factors": "junk"}}) == []


def test_an_older_version_that_nobody_changed_is_replaced() -> None:
    old = {"factors": [{"name": "a", "source": "JobLevel"}], "formula": "a", "reevaluateSeconds": 9, "backfill": {"depth": 5}}
    raw = stored("fifo")
    raw["spec"] = old
    # Its mark is that of the old spec.
    raw["metadata"]["annotations"] = {Muster.BUILTIN: digest(_spec(old)), "mine": "kept"}
    [action] = installed("fifo", raw)
    assert isinstance(action, Patch)
    assert action.target.resource_version == "7"
    after = apply_merge_patch(raw, action.patch)
    assert digest(_spec(after["spec"])) == digest(builtin_spec("fifo")) == after["metadata"]["annotations"][Muster.BUILTIN]
    assert after["metadata"]["annotations"]["mine"] == "kept"
    assert installed("fifo", after) == []


def _spec(raw: Raw) -> Any:
    from muster.objects.kinds.muster_queues import SchedulingPolicySpec
    from muster.objects.view import view_of

    return view_of(SchedulingPolicySpec, raw)


@pytest.mark.parametrize(
    ("queues", "is_default"),
    [
        pytest.param({}, True, id="none"),
        pytest.param({"other": QueueSpecView()}, True, id="others"),
        pytest.param({"other": QueueSpecView(is_default=True)}, False, id="another is the default"),
        pytest.param({"default": QueueSpecView()}, None, id="there"),
    ],
)
def test_the_default_queue(queues: dict[str, QueueSpecView], is_default: bool | None) -> None:
    made = [action.object["spec"] for action in default_queue(queues) if isinstance(action, Create)]
    assert made == ([] if is_default is None else [{"policy": "balanced", "isDefault": is_default}])


@pytest.mark.parametrize(
    ("spec", "not_a_number", "status", "reason", "words"),
    [
        pytest.param({}, 0, "True", "Ready", "built in", id="right"),
        pytest.param({"formula": "-age"}, 0, "True", "Ready", "delete it to get the original back", id="changed"),
        pytest.param({}, 3, "True", "NotANumber", "no number for 3 waiting jobs", id="no numbers"),
        pytest.param({"formula": "agee"}, 0, "False", "FormulaInvalid", "did you mean age?", id="formula"),
        pytest.param({"factors": "junk"}, 0, "False", "ManifestInvalid", "factors", id="junk"),
        pytest.param(
            {"factors": [{"name": "age", "source": "Label"}]}, 0, "False", "ManifestInvalid", "needs the name", id="no key"
        ),
    ],
)
def test_status(spec: Raw, not_a_number: int, status: str, reason: str, words: str) -> None:
    found = status_of(stored("fifo", **spec), ["b", "a"], not_a_number, NOW)
    [ready] = found.conditions
    assert (ready.type, ready.status, ready.reason) == ("Ready", status, reason)
    assert words in ready.message
    assert (found.queues, found.observed_generation, found.not_a_number) == (["a", "b"], 1, not_a_number)
    if reason == "FormulaInvalid":
        assert found.formula_error is not None
        assert (found.formula_error.position, found.formula_error.hint) == (1, "did you mean age?")
    else:
        assert found.formula_error is None


# -- on stores --------------------------------------------------------------------------------------------------------------


async def get(store: Store, kind: str, name: str) -> Raw:
    return await store.get(await store.resource(GROUP, kind), name)


async def names(store: Store, kind: str) -> set[str]:
    listed = await store.list(await store.resource(GROUP, kind))
    return {item["metadata"]["name"] for item in listed.items}


@asynccontextmanager
async def running(store: Store, controller: Policies) -> AsyncIterator[None]:
    manager = Manager(store, [controller], clock=current_loop().clock)
    manager.start()
    try:
        yield
    finally:
        await manager.stop()


@virtual
async def test_a_life() -> None:
    world = World(gpus=1)
    world.step(ev.PolicySeen(policy_facts("fifo", formula="0 / 0")), ev.QueueSeen(queue_facts("default", policy="fifo")))
    for name in ("a", "b"):
        world.submit(name, gpus=9, queue="default")
    async with memory_store() as store:
        policies, queues = await store.resource(GROUP, "SchedulingPolicy"), await store.resource(GROUP, "Queue")
        async with running(store, Policies(lambda: world.engine)):
            await asyncio.sleep(5)
            assert await names(store, "SchedulingPolicy") == set(NAMES)
            made = (await get(store, "Queue", "default"))["spec"]
            assert (made["policy"], made["isDefault"]) == ("balanced", True)
            balanced = await get(store, "SchedulingPolicy", "balanced")
            assert balanced["status"]["queues"] == ["default"]
            assert balanced["status"]["conditions"][0]["status"] == "True"

            # What is deleted comes back; what is changed stays changed.
            await store.delete(policies, "fifo")
            await store.patch(policies, "priority", {"spec": {"description": "ours"}})
            await store.patch(queues, "default", {"spec": {"policy": "fifo", "isDefault": False}})
            await asyncio.sleep(5)
            fifo = await get(store, "SchedulingPolicy", "fifo")
            assert (fifo["status"]["queues"], fifo["status"]["notANumber"]) == (["default"], 2)
            assert (await get(store, "SchedulingPolicy", "priority"))["spec"]["description"] == "ours"
            assert "queues" not in (await get(store, "SchedulingPolicy", "balanced"))["status"]
            assert (await get(store, "Queue", "default"))["spec"]["isDefault"] is False

            # The count is looked up again by and by.
            world.step(ev.PolicySeen(policy_facts("fifo", formula="1")))
            world.submit("c", gpus=9, queue="default")
            await asyncio.sleep(40)
            assert "notANumber" not in (await get(store, "SchedulingPolicy", "fifo"))["status"]
        async with running(store, Policies()):
            await asyncio.sleep(5)
            assert (await get(store, "SchedulingPolicy", "priority"))["spec"]["description"] == "ours"


@virtual
async def test_nothing_is_written_twice() -> None:
    async with memory_store() as store:
        async with running(store, Policies()):
            await asyncio.sleep(5)
            before = await store.list(await store.resource(GROUP, "SchedulingPolicy"))
            await asyncio.sleep(4_000)
            after = await store.list(await store.resource(GROUP, "SchedulingPolicy"))
        assert after.items == before.items


async def test_on_both_stores(real_store: Store) -> None:
    """With the permissions that `muster install` gives, past the schemas of a real API server."""
    await serve_kinds(real_store, "SchedulingPolicy", "Queue")
    with contextlib.suppress(AlreadyExists):  # the server makes it, on either
        default = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}}
        await real_store.create(await real_store.resource("", "Namespace"), default)
    policies, queues = await real_store.resource(GROUP, "SchedulingPolicy"), await real_store.resource(GROUP, "Queue")
    try:
        async with with_permissions_of(real_store, "policies") as store:
            manager = Manager(store, [Policies()], clock=wall_clock)
            manager.start()
            try:
                async with asyncio.timeout(60):
                    while not await _all_ready(real_store):
                        await asyncio.sleep(0.1)
            finally:
                await manager.stop()
        for item in (await real_store.list(policies)).items:
            name = item["metadata"]["name"]
            assert installed(name, item) == [], "what the server made of it still counts as ours"
    finally:
        for name in await names(real_store, "SchedulingPolicy"):
            await real_store.delete(policies, name)
        for name in await names(real_store, "Queue"):
            await real_store.delete(queues, name)


async def _all_ready(store: Store) -> bool:
    found = (await store.list(await store.resource(GROUP, "SchedulingPolicy"))).items
    ready = {item["metadata"]["name"] for item in found if item.get("status", {}).get("conditions")}
    return ready >= set(NAMES) and "default" in await names(store, "Queue")
