"""Actions: each can be repeated, finds its work done, and is refused where it must be."""

from __future__ import annotations

import pytest
from tests.store.stores import config_map, memory_store, pod

from muster.controllers.actions import (
    Action,
    Apply,
    Create,
    Delete,
    Emit,
    Executor,
    Expect,
    Patch,
    PatchStatus,
    Target,
    Together,
    target_of,
)
from muster.objects.meta import owner_reference
from muster.objects.status import Conflict, NotFound, Raw
from muster.sim.clock import current_loop, run, virtual
from muster.store.embedded import EmbeddedStore
from muster.store.events import NORMAL, EventRecorder


async def get(store: EmbeddedStore, kind: str, name: str) -> Raw | None:
    try:
        return await store.get(await store.resource("", kind), name, "default")
    except NotFound:
        return None


async def make(store: EmbeddedStore, obj: Raw) -> Raw:
    return await store.create(await store.resource("", obj["kind"]), obj, "default")


def without_noise(obj: Raw | None) -> Raw | None:
    if obj is None:
        return None
    metadata = {k: v for k, v in obj["metadata"].items() if k not in ("managedFields",)}
    return {**obj, "metadata": metadata}


@virtual
async def test_everything_twice_is_everything_once() -> None:
    async with memory_store() as store:
        executor = Executor(store, "test")
        old = await make(store, config_map("old"))
        target = Target("", "ConfigMap", "b", "default")
        actions: list[Action] = [
            Create(config_map("a", x="1")),
            Create(config_map("b")),
            Patch(target, {"data": {"y": "2"}}),
            Apply(config_map("c", z="3")),
            Create(pod("p")),
            PatchStatus(Target("", "Pod", "p", "default"), {"phase": "Running"}),
            Delete(target_of(old)),
        ]
        await executor.apply(actions)
        first = [without_noise(await get(store, "ConfigMap", name)) for name in ("a", "b", "c", "old")]
        version = store.resource_version
        await executor.apply(actions)
        assert [without_noise(await get(store, "ConfigMap", name)) for name in ("a", "b", "c", "old")] == first
        assert store.resource_version == version, "the second time nothing was written"
        a, b, c, gone = first
        assert a is not None
        assert b is not None
        assert c is not None
        assert (a["data"], b["data"], c["data"], gone) == ({"x": "1"}, {"y": "2"}, {"z": "3"}, None)
        made = await get(store, "Pod", "p")
        assert made is not None
        assert made["status"]["phase"] == "Running"


@virtual
async def test_create_finds_its_own_work_and_refuses_a_stranger_s() -> None:
    async with memory_store() as store:
        executor = Executor(store, "test")
        owner, stranger = await make(store, config_map("owner")), await make(store, config_map("stranger"))
        mine = config_map("child")
        mine["metadata"]["ownerReferences"] = [owner_reference(owner)]
        theirs = config_map("child")
        theirs["metadata"]["ownerReferences"] = [owner_reference(stranger)]
        await executor.apply([Create(theirs)])
        with pytest.raises(Conflict, match="belongs to ConfigMap stranger"):
            await executor.apply([Create(mine)])
        with pytest.raises(Conflict, match="belongs to ConfigMap stranger"):
            await executor.apply([Create(config_map("child"))])
        await executor.apply([Create(theirs)])


@pytest.mark.parametrize("kind", ["patch", "status", "delete"])
def test_a_namesake_is_not_touched(kind: str) -> None:
    async def main() -> None:
        async with memory_store() as store:
            executor = Executor(store, "test")
            old = await make(store, pod("p"))
            pods = await store.resource("", "Pod")
            await store.delete(pods, "p", "default", grace_period_s=0)
            new = await make(store, pod("p"))
            target = target_of(old)
            choices: dict[str, Action] = {
                "patch": Patch(target, {"metadata": {"labels": {"a": "b"}}}),
                "status": PatchStatus(target, {"phase": "Failed"}),
                "delete": Delete(target),
            }
            await executor.apply([choices[kind]])
            assert await get(store, "Pod", "p") == new

    run(main())


@pytest.mark.parametrize("kind", ["patch", "status", "delete"])
def test_a_version_that_has_moved_is_a_conflict(kind: str) -> None:
    async def main() -> None:
        async with memory_store() as store:
            executor = Executor(store, "test")
            old = await make(store, pod("p"))
            await executor.apply([Patch(target_of(old), {"metadata": {"labels": {"a": "b"}}})])
            before = await get(store, "Pod", "p")
            target = target_of(old, at_version=True)
            choices: dict[str, Action] = {
                "patch": Patch(target, {"metadata": {"labels": {"a": "c"}}}),
                "status": PatchStatus(target, {"phase": "Failed"}),
                "delete": Delete(target),
            }
            with pytest.raises(Conflict):
                await executor.apply([choices[kind]])
            assert await get(store, "Pod", "p") == before

    run(main())


@virtual
async def test_what_is_gone_needs_nothing() -> None:
    async with memory_store() as store:
        executor = Executor(store, "test")
        target = Target("", "Pod", "nobody", "default", "u1")
        await executor.apply([Patch(target, {"metadata": {}}), PatchStatus(target, {"phase": "Failed"}), Delete(target)])
        assert await get(store, "Pod", "nobody") is None


@virtual
async def test_the_first_failure_ends_the_list() -> None:
    async with memory_store() as store:
        executor = Executor(store, "test")
        with pytest.raises(NotFound):
            await executor.apply(
                [Create(config_map("a")), Create(config_map("b", namespace="nowhere")), Create(config_map("c"))]
            )
        assert await get(store, "ConfigMap", "a") is not None
        assert await get(store, "ConfigMap", "c") is None


@virtual
async def test_what_is_expected_is_read_and_not_written() -> None:
    async with memory_store() as store:
        seen = await make(store, pod("p"))
        executor = Executor(store, "test")
        follow = Create(config_map("made"))
        version = store.resource_version
        await executor.apply([Expect(target_of(seen, at_version=True))])
        assert store.resource_version == version
        await store.patch(await store.resource("", "Pod"), "p", {"metadata": {"labels": {"a": "b"}}}, "default")
        with pytest.raises(Conflict, match="Pod default/p was seen at version"):
            await executor.apply([Expect(target_of(seen, at_version=True)), follow])
        await store.delete(await store.resource("", "Pod"), "p", "default", grace_period_s=0)
        with pytest.raises(Conflict, match="is gone"):
            await executor.apply([Expect(target_of(seen, at_version=True)), follow])
        assert await get(store, "ConfigMap", "made") is None


@virtual
async def test_together_tries_all_and_raises_the_first_failure() -> None:
    async with memory_store() as store:
        executor = Executor(store, "test")
        creates = tuple(Create(config_map(f"c{n}", namespace="nowhere" if n == 5 else "default")) for n in range(50))
        with pytest.raises(NotFound):
            await executor.apply([Together(creates), Create(config_map("after"))])
        found = (await store.list(await store.resource("", "ConfigMap"), "default")).items
        assert len(found) == 49
        await executor.apply([Together(creates[:5])])


@virtual
async def test_apply_owns_its_fields() -> None:
    async with memory_store() as store:
        one, other = Executor(store, "one"), Executor(store, "other")
        await one.apply([Apply(config_map("a", x="1"))])
        with pytest.raises(Conflict):
            await other.apply([Apply(config_map("a", x="2"))])
        await other.apply([Apply(config_map("a", x="2"), force=True)])
        found = await get(store, "ConfigMap", "a")
        assert found is not None
        assert found["data"] == {"x": "2"}


@virtual
async def test_emit_goes_to_the_recorder() -> None:
    async with memory_store() as store:
        recorder = EventRecorder(store, component="test", clock=current_loop().clock)
        recorder.start()
        made = await make(store, config_map("a"))
        await Executor(store, "test", recorder).apply([Emit(made, NORMAL, "Made", "it is there")])
        await Executor(store, "test").apply([Emit(made, NORMAL, "Made", "nobody listens")])
        await recorder.stop()
        (event,) = (await store.list(await store.resource("", "Event"), "default")).items
        assert (event["reason"], event["involvedObject"]["name"]) == ("Made", "a")
