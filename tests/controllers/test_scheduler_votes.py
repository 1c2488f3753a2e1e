"""Promises to other control planes: written before they are given, kept over restarts, taken back only when asked for."""

from __future__ import annotations

import asyncio

import pytest
from tests.controllers.scheduling import create, node, objects, places, pod, scheduling
from tests.controllers.tasks import group, party, pods_of
from tests.store.stores import memory_store

from muster.controllers.scheduler_plans import Resumed, placement_of
from muster.controllers.scheduler_votes import Fate, Found, Votes, found_of, recovered
from muster.controllers.task_reservation_parts import advance, new_resource
from muster.engine.decisions import PlacedPod
from muster.objects.kinds.kuscia_tasks import TaskResourceGroup, TaskResourcePhase
from muster.objects.kinds.muster import Placement
from muster.objects.labels import Muster
from muster.objects.meta import annotations_of
from muster.objects.status import Raw
from muster.objects.view import view_of
from muster.sim.clock import current_loop, virtual
from muster.store.embedded import EmbeddedStore

KUSCIA = "kuscia.secretflow"


# -- pure ----------------------------------------------------------------------------------------------------------------------


def resource(phase: TaskResourcePhase, *, task: str = "t", domain: str = "alice") -> Found:
    made = group(task, [party(domain, task)], [party("bob", task)])
    made["metadata"] |= {"uid": "g1", "resourceVersion": "1"}
    raw = new_resource(made, view_of(TaskResourceGroup, made).spec.parties[0], now=1e9)
    raw["status"]["phase"] = phase
    return found_of(raw)


def plan(name: str = "p", *, open_: int = 1, lost: int = 0, bound: int = 0, held: bool = True) -> tuple[Resumed, Placement]:
    pods = tuple(PlacedPod(f"u{n}", "alice", f"t-{n}", "n") for n in range(max(open_ + lost + bound, 1)))
    raw = placement_of("Task/t", pods, epoch=1, now=1e9, held_until=1e9 if held else None)
    raw["metadata"]["name"] = name
    missing = tuple(f"alice/t-{n}" for n in range(lost))
    return Resumed(name, "Task/t", pods[:open_], missing, bound, 1e9 if held else None), view_of(Placement, raw)


@pytest.mark.parametrize(
    ("phases", "open_", "lost", "bound", "fate"),
    [
        pytest.param(["Reserving"], 1, 0, 0, "hold", id="the vote may be under way"),
        pytest.param(["Reserved"], 1, 0, 0, "hold", id="voted"),
        pytest.param(["Reserved", "Reserving"], 2, 0, 0, "hold", id="voted for one of two parties"),
        pytest.param(["Pending"], 1, 0, 0, "hold", id="before the initiator began"),
        pytest.param(["Schedulable"], 1, 0, 0, "finish", id="permitted"),
        pytest.param(["Reserved", "Schedulable"], 2, 0, 0, "finish", id="permitted, and only one has heard of it"),
        pytest.param(["Schedulable"], 1, 0, 1, "finish", id="half bound"),
        pytest.param(["Failed"], 1, 0, 0, "drop", id="denied"),
        pytest.param(["Failed", "Reserved"], 2, 0, 0, "drop", id="denied, and only one has heard of it"),
        pytest.param([], 1, 0, 0, "drop", id="the task is gone"),
        pytest.param(["Reserved"], 0, 1, 0, "withdraw", id="a pod is gone"),
        pytest.param(["Reserving"], 0, 1, 0, "withdraw", id="a pod is gone, and the vote may be under way"),
        pytest.param(["Schedulable"], 0, 1, 0, "finish", id="permitted, and a pod is gone: nothing left to do"),
    ],
)
def test_what_becomes_of_a_promise_after_a_restart(
    phases: list[TaskResourcePhase], open_: int, lost: int, bound: int, fate: Fate
) -> None:
    found, placement = plan(open_=open_, lost=lost, bound=bound)
    plain, [promise] = recovered([found], [placement], [resource(phase) for phase in phases])
    assert not plain
    assert promise.fate == fate
    assert promise.group == "t"


def test_other_plans_and_other_tasks_do_not_matter() -> None:
    found, placement = plan(held=False)
    assert recovered([found], [placement], [resource("Failed")]) == ([found], [])
    found, placement = plan()
    _, [promise] = recovered([found], [placement], [resource("Reserved"), resource("Failed", task="other")])
    assert promise.fate == "hold"


def test_of_two_promises_for_a_unit_the_later_stands() -> None:
    """A Placement that arrived after the crash of who wrote it."""
    (kept, one), (stale, other) = plan("new"), plan("old", open_=0)
    _, promises = recovered([stale, kept], [one, other], [resource("Reserved")])
    assert [promise.fate for promise in promises] == ["drop", "hold"]


# -- on a store ----------------------------------------------------------------------------------------------------------------


async def reserve(
    store: EmbeddedStore, name: str = "t", *, pods: int = 2, cpu: str = "1", created: str = "2026-01-01T00:00:00Z"
) -> Raw:
    """A task with a partner, as far as the group and the task controller bring it."""
    [made] = await create(store, group(name, [party("alice", name, pods=pods)], [party("bob", name)], created=created))
    groups = await store.resource(KUSCIA, "TaskResourceGroup")
    made = await store.patch(groups, name, {"status": {"phase": "Reserving"}}, subresource="status")
    raw = new_resource(made, view_of(TaskResourceGroup, made).spec.parties[0], now=current_loop().clock())
    await create(store, raw)
    await say(store, name, "Reserving")
    await create(store, *pods_of(made, cpu))
    return made


async def resource_of(store: EmbeddedStore, name: str) -> Raw:
    [found] = [
        one
        for one in await objects(store, "TaskResource", KUSCIA)
        if annotations_of(one)["kuscia.secretflow/task-resource-group"] == name
    ]
    return found


async def say(store: EmbeddedStore, name: str, phase: TaskResourcePhase, tried: int = 0) -> None:
    """As the initiator's controller does, once it has decided."""
    raw = await resource_of(store, name)
    patch = advance(raw, phase, tried, now=current_loop().clock(), reason="Test")
    assert patch is not None
    resource_kind = await store.resource(KUSCIA, "TaskResource")
    await store.patch(resource_kind, raw["metadata"]["name"], patch.patch, raw["metadata"]["namespace"])


async def end_try(store: EmbeddedStore, name: str) -> None:
    """The initiator gives a try up: its group, then the TaskResource."""
    groups = await store.resource(KUSCIA, "TaskResourceGroup")
    await store.patch(groups, name, {"status": {"phase": "ReserveFailed"}}, subresource="status")
    await say(store, name, "Failed")


async def phase(store: EmbeddedStore, name: str) -> str:
    return str((await resource_of(store, name))["status"]["phase"])


async def placements(store: EmbeddedStore) -> list[Raw]:
    return await objects(store, "Placement", "muster.dev")


@virtual
async def test_what_is_promised_is_written_down_voted_for_and_not_started() -> None:
    async with memory_store("alice") as store, scheduling(store) as runner:
        await create(store, node("n", "4"))
        await reserve(store)
        await asyncio.sleep(5)
        [placement] = await placements(store)
        assert placement["spec"]["heldUntil"]
        assert len(placement["spec"]["pods"]) == 2
        assert await phase(store, "t") == "Reserved"
        await asyncio.sleep(10)
        assert set((await places(store)).values()) == {""}
        assert runner.is_idle
        await say(store, "t", "Schedulable")
        await asyncio.sleep(5)
        assert set((await places(store)).values()) == {"n"}
        assert not await placements(store)


@virtual
async def test_a_promise_stands_whatever_goes_wrong_while_it_is_kept() -> None:
    """Others may have begun on the strength of it: a fault here is no reason to give it back alone."""
    async with memory_store("alice") as store, scheduling(store):
        await create(store, node("n", "4"))
        await reserve(store)
        await asyncio.sleep(5)
        assert await phase(store, "t") == "Reserved"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Votes, "_found", lambda _self, _vote: 1 // 0)
            await say(store, "t", "Schedulable")
            await asyncio.sleep(30)
            assert await placements(store), "what is promised is still written down"
        await asyncio.sleep(120)
        assert set((await places(store)).values()) == {"n"}


@virtual
async def test_what_is_denied_is_given_back_and_tried_again_when_the_group_is() -> None:
    async with memory_store("alice") as store, scheduling(store):
        await create(store, node("n", "2"))
        await reserve(store)
        await asyncio.sleep(5)
        await end_try(store, "t")
        await asyncio.sleep(5)
        assert not await placements(store)
        await create(store, pod("other", "2"))
        await asyncio.sleep(5)
        assert (await places(store))["other"] == "n", "its room is free"
        pods = await store.resource("", "Pod")
        await store.delete(pods, "other", "default", grace_period_s=0)
        groups = await store.resource(KUSCIA, "TaskResourceGroup")
        await store.patch(groups, "t", {"status": {"phase": "Reserving", "retryCount": 1}}, subresource="status")
        await say(store, "t", "Reserving", 1)
        await asyncio.sleep(5)
        assert await phase(store, "t") == "Reserved"
        assert len(await placements(store)) == 1


@virtual
async def test_an_older_task_asks_to_have_it_back_and_does_not_take_it() -> None:
    async with memory_store("alice") as store, scheduling(store):
        await create(store, node("n", "2"))
        await reserve(store, "young", created="2026-01-01T00:00:09Z")
        await asyncio.sleep(5)
        assert await phase(store, "young") == "Reserved"
        await reserve(store, "old", created="2026-01-01T00:00:01Z")
        await asyncio.sleep(5)
        assert Muster.WITHDRAW in annotations_of(await resource_of(store, "young"))
        assert await phase(store, "old") == "Reserving", "what is promised to others is not taken"
        assert len(await placements(store)) == 1
        await end_try(store, "young")
        await asyncio.sleep(5)
        assert await phase(store, "old") == "Reserved"
        [kept] = await placements(store)
        assert kept["spec"]["unit"] == "Task/old"


@virtual
async def test_too_late_to_have_it_back() -> None:
    async with memory_store("alice") as store, scheduling(store):
        await create(store, node("n", "2"))
        await reserve(store, "young", created="2026-01-01T00:00:09Z")
        await asyncio.sleep(5)
        await reserve(store, "old", created="2026-01-01T00:00:01Z")
        await asyncio.sleep(5)
        await say(store, "young", "Schedulable")
        await asyncio.sleep(5)
        where = await places(store)
        assert [where["young-0"], where["young-1"], where["old-0"]] == ["n", "n", ""]


@virtual
async def test_a_promise_that_can_not_be_kept_is_asked_back_before_it_is_forgotten() -> None:
    async with memory_store("alice") as store, scheduling(store):
        await create(store, node("n", "2"))
        await reserve(store)
        await asyncio.sleep(5)
        await store.delete(await store.resource("", "Node"), "n")
        await asyncio.sleep(5)
        assert Muster.WITHDRAW in annotations_of(await resource_of(store, "t"))
        assert not await placements(store)


@virtual
async def test_a_task_that_goes_takes_its_promise_along() -> None:
    async with memory_store("alice") as store, scheduling(store):
        await create(store, node("n", "2"))
        await reserve(store)
        await asyncio.sleep(5)
        await store.delete(await store.resource(KUSCIA, "TaskResourceGroup"), "t")
        await asyncio.sleep(5)
        assert not await placements(store)
        await create(store, pod("other", "2"))
        await asyncio.sleep(5)
        assert (await places(store)) == {"other": "n"}


@pytest.mark.parametrize("decided", ["Reserved", "Schedulable", "Failed", "gone"])
@virtual
async def test_a_promise_outlives_a_restart(decided: str) -> None:
    async with memory_store("alice") as store:
        async with scheduling(store):
            await create(store, node("n", "2"))
            await reserve(store)
            await asyncio.sleep(5)
            [before] = await placements(store)
        if decided == "Schedulable":
            await say(store, "t", "Schedulable")
        elif decided == "Failed":
            await end_try(store, "t")
        elif decided == "gone":
            await store.delete(await store.resource(KUSCIA, "TaskResourceGroup"), "t")
        await create(store, pod("greedy", "2", priority=1000))
        async with scheduling(store):
            await asyncio.sleep(5)
            where = await places(store)
            left = [one["metadata"]["name"] for one in await placements(store)]
            if decided == "Reserved":
                assert (where["greedy"], where["t-0"], left) == ("", "", [before["metadata"]["name"]])
            elif decided == "Schedulable":
                assert (where["greedy"], where["t-0"], where["t-1"], left) == ("", "n", "n", [])
            else:
                assert (where["greedy"], left) == ("n", [])
