"""The keeper of a Node, on the embedded store: registering, beating, names that are taken, fencing, stopping, leaving."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from muster.agent import node as module
from muster.agent.config import AgentConfig, Capacity, Timing
from muster.agent.contact import Contact
from muster.agent.node import Forgotten, NodeKeeper
from muster.agent.node_object import AGENT_ID, Facts
from muster.objects.conditions import find_condition
from muster.objects.status import Cause, NotFound, Raw, ServiceUnavailable, Unauthorized
from muster.objects.time import format_micro_time, wall_clock
from muster.store.contract import Store
from muster.store.embedded import EmbeddedStore
from tests.agent.node_facts import IDENTITY, facts
from tests.store.stores import pod
from tests.waiting import until

FAST = Timing(heartbeat_seconds=1, lease_seconds=40)


class Flaky:
    """The store, and a control plane that is away when told."""

    def __init__(self, inner: Store) -> None:
        self._inner = inner
        self.error: Exception | None = None

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name not in ("get", "patch", "create", "list", "delete"):
            return found

        async def call(*args: Any, **kwargs: Any) -> Any:
            if self.error is not None:
                raise self.error
            return await found(*args, **kwargs)

        return call


class Rig:
    def __init__(self, store: EmbeddedStore, directory: Path) -> None:
        self.store = store
        self.link = Flaky(store)
        self.facts: Facts = facts(AgentConfig(timing=FAST))
        self.said: list[str] = []
        self.now_s = 1000.0
        self.contact = Contact(directory, IDENTITY.boot_id, lambda: self.now_s)
        self.fenced = 0
        self._task: asyncio.Task[None] | None = None
        self.keeper = self.another()

    def another(self, **more: Any) -> NodeKeeper:
        async def fence() -> int:
            self.fenced += 1
            return 3

        return NodeKeeper(
            self.link,
            "n1",
            lambda: self.facts if not more else facts(AgentConfig(timing=FAST), **more),
            clock=wall_clock,
            contact=self.contact,
            fence=fence,
            pods_len=lambda: 2,
            say=self.said.append,
        )

    async def node(self) -> Raw:
        return await self.store.get(await self.store.resource("", "Node"), "n1")

    async def ready(self) -> Raw:
        return find_condition((await self.node())["status"]["conditions"], "Ready") or {}

    async def patch_node(self, patch: Raw, subresource: str = "") -> None:
        await self.store.patch(await self.store.resource("", "Node"), "n1", patch, subresource=subresource)

    async def patch_lease(self, spec: Raw) -> None:
        leases = await self.store.resource("coordination.k8s.io", "Lease")
        await self.store.patch(leases, "n1", {"spec": spec}, "kube-node-lease")

    async def start(self) -> None:
        await self.keeper.register()
        self._task = asyncio.create_task(self.keeper.run())

    async def until(self, check: Callable[[], Awaitable[bool]]) -> None:
        async def poke() -> bool:
            self.keeper.poke()
            return await check()

        await until(poke)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    store = await EmbeddedStore.open(None, clock=wall_clock)
    kind = await store.resource("", "Namespace")
    for name in ("default", "kube-node-lease"):
        await store.create(kind, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    made = Rig(store, tmp_path)
    try:
        yield made
    finally:
        await made.close()
        await store.close()


async def test_registering_makes_node_and_lease(rig: Rig) -> None:
    await rig.keeper.register()
    node = await rig.node()
    assert node["metadata"]["annotations"][AGENT_ID] == "m-1/d-1"
    assert (await rig.ready())["status"] == "True"
    leases = await rig.store.resource("coordination.k8s.io", "Lease")
    lease = await rig.store.get(leases, "n1", "kube-node-lease")
    assert lease["spec"]["leaseDurationSeconds"] == 40
    assert rig.said == []


async def test_a_node_that_joining_has_made_is_taken_over(rig: Rig) -> None:
    nodes = await rig.store.resource("", "Node")
    bare = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "labels": {"admin": "yes"}}}
    await rig.store.create(nodes, bare)
    await rig.keeper.register()
    labels = (await rig.node())["metadata"]["labels"]
    assert (labels["admin"], labels["kubernetes.io/role"]) == ("yes", "agent")


async def test_what_an_admin_writes_stays_and_changes_are_reported(rig: Rig) -> None:
    await rig.start()
    await rig.patch_node({"metadata": {"labels": {"admin": "yes", "kubernetes.io/role": "other"}}})

    async def is_mended() -> bool:
        return bool((await rig.node())["metadata"]["labels"]["kubernetes.io/role"] == "agent")

    await rig.until(is_mended)
    assert (await rig.node())["metadata"]["labels"]["admin"] == "yes"
    rig.facts = facts(AgentConfig(timing=FAST, capacity=Capacity(share=0.5)), not_ready="pods failed")

    async def is_told() -> bool:
        return bool((await rig.ready())["message"] == "pods failed")

    await rig.until(is_told)
    assert (await rig.node())["status"]["capacity"]["cpu"] == "2"


async def test_a_deleted_node_is_registered_again(rig: Rig) -> None:
    await rig.start()
    await rig.store.delete(await rig.store.resource("", "Node"), "n1")

    async def is_back() -> bool:
        with contextlib.suppress(NotFound):
            return bool((await rig.ready()).get("status") == "True")
        return False

    await rig.until(is_back)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        pytest.param({"agent_id": "m-2/d-1", "identity": IDENTITY}, "alive", id="another machine that is alive"),
        pytest.param(
            {"agent_id": "m-1/d-2", "identity": IDENTITY}, "another data directory of this machine", id="same machine"
        ),
    ],
)
async def test_a_name_that_is_taken_is_waited_for(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, other: dict[str, Any], words: str
) -> None:
    monkeypatch.setattr(module, "TAKEN_RETRY_S", 0.01)
    await rig.keeper.register()
    second = rig.another(**other)
    registering = asyncio.create_task(second.register())
    await until(_has_said(rig, "n1 is kept by"))
    assert words in rig.said[-1]
    assert "kubectl delete node n1" in rig.said[-1]
    assert (await rig.node())["metadata"]["annotations"][AGENT_ID] == "m-1/d-1"
    await rig.store.delete(await rig.store.resource("", "Node"), "n1")
    await rig.patch_lease({"renewTime": format_micro_time(wall_clock() - 3600)})
    await registering
    assert (await rig.node())["metadata"]["annotations"][AGENT_ID] == other["agent_id"]


async def test_a_dead_agents_name_is_taken_only_when_nothing_is_left_of_it(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TAKEN_RETRY_S", 0.01)
    await rig.keeper.register()
    await rig.patch_lease({"renewTime": format_micro_time(wall_clock() - 3600)})
    pods = await rig.store.resource("", "Pod")
    bound = pod("p1")
    bound["spec"]["nodeName"] = "n1"
    await rig.store.create(pods, bound, "default")
    second = rig.another(agent_id="m-2/d-1")
    registering = asyncio.create_task(second.register())
    await until(_has_said(rig, "1 unfinished pods are bound to it"))
    await rig.store.patch(pods, "p1", {"status": {"phase": "Succeeded"}}, "default", subresource="status")
    await registering
    assert (await rig.node())["metadata"]["annotations"][AGENT_ID] == "m-2/d-1"


async def test_a_kubelets_node_is_never_taken(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TAKEN_RETRY_S", 0.01)
    nodes = await rig.store.resource("", "Node")
    kubelets = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}
    await rig.store.create(nodes, kubelets)
    await rig.patch_node({"status": {"nodeInfo": {"machineID": "m-1", "kubeletVersion": "v1.30"}}}, "status")
    registering = asyncio.create_task(rig.keeper.register())
    await until(_has_said(rig, "not kept by an agent of Muster's"))
    registering.cancel()
    await asyncio.gather(registering, return_exceptions=True)
    assert AGENT_ID not in (await rig.node())["metadata"].get("annotations", {})


async def test_an_agent_whose_name_was_taken_starts_nothing_more(rig: Rig) -> None:
    await rig.start()
    assert rig.keeper.may_start
    await rig.patch_node({"metadata": {"annotations": {AGENT_ID: "m-9/d-9"}}})

    async def has_noticed() -> bool:
        return not rig.keeper.may_start

    await rig.until(has_noticed)
    assert "kept by another agent now (m-9/d-9)" in rig.said[-1]
    await rig.keeper.stop()
    assert (await rig.ready())["status"] == "True", "it is the other one's to say"
    await rig.patch_node({"metadata": {"annotations": {AGENT_ID: None}}})

    async def has_it_back() -> bool:
        return rig.keeper.may_start

    await rig.until(has_it_back)


async def test_a_control_plane_that_is_away_is_said_once_and_waited_for(rig: Rig) -> None:
    await rig.start()
    rig.link.error = ServiceUnavailable("gone fishing")
    await rig.until(_has_said(rig, "gone fishing"))
    before = len(rig.said)
    for _ in range(5):
        rig.keeper.poke()
        await asyncio.sleep(0.01)
    assert len(rig.said) == before
    rig.link.error = None
    await rig.until(_has_said(rig, "answers again"))


async def test_a_node_whose_certificate_was_revoked_says_so(rig: Rig) -> None:
    await rig.start()
    rig.link.error = Unauthorized("no", causes=[Cause("", "deleted", "NodeForgotten")])
    rig.keeper.poke()
    async with asyncio.timeout(30):
        await rig.keeper.forgotten.wait()
    with pytest.raises(Forgotten, match="join again"):
        await rig.another().register()


async def test_work_is_fenced_once_when_the_control_plane_is_away_too_long(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FENCE_RETRY_S", 0.01)
    rig.facts = facts(AgentConfig(timing=Timing(heartbeat_seconds=1, lease_seconds=40, fence_seconds=60)))
    await rig.start()
    rig.link.error = ServiceUnavailable("away")
    rig.now_s += 59
    await asyncio.sleep(0.05)
    assert (rig.fenced, rig.keeper.may_start) == (0, True)
    rig.now_s += 1
    await until(_has_said(rig, "3 pods on this node were killed"))
    await asyncio.sleep(0.05)
    assert (rig.fenced, rig.keeper.may_start) == (1, False)
    rig.link.error = None

    async def may_again() -> bool:
        return rig.keeper.may_start

    await rig.until(may_again)
    assert rig.fenced == 1


async def test_fencing_that_fails_is_tried_again(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FENCE_RETRY_S", 0.01)
    tries = []

    async def fence() -> int:
        tries.append(1)
        if len(tries) < 3:
            raise OSError("busy")
        return 1

    rig.facts = facts(AgentConfig(timing=Timing(heartbeat_seconds=1, lease_seconds=40, fence_seconds=60)))
    rig.keeper._fence = fence
    await rig.start()
    rig.link.error = ServiceUnavailable("away")
    rig.now_s += 61
    await until(_has_said(rig, "were killed"))
    assert len(tries) == 3


async def test_stopping_is_said_at_once(rig: Rig) -> None:
    await rig.start()
    await rig.keeper.stop()
    ready = await rig.ready()
    assert (ready["status"], ready["reason"]) == ("False", "AgentStopped")
    assert "2 pods still here" in ready["message"]


async def test_stopping_without_a_control_plane_ends(rig: Rig) -> None:
    await rig.start()
    rig.link.error = ServiceUnavailable("away")
    await rig.keeper.stop()


@pytest.mark.parametrize("drain", [False, True])
async def test_leaving(rig: Rig, monkeypatch: pytest.MonkeyPatch, drain: bool) -> None:
    monkeypatch.setattr(module, "LEAVE_POLL_S", 0.01)
    await rig.start()
    pods = await rig.store.resource("", "Pod")
    bound = pod("p1")
    bound["spec"]["nodeName"] = "n1"
    await rig.store.create(pods, bound, "default")
    leaving = asyncio.create_task(rig.keeper.leave(drain=lambda: drain, say=rig.said.append))
    await until(_has_said(rig, "it waits for the end of 1 pod: default/p1"))
    assert (await rig.node())["spec"]["unschedulable"] is True
    if drain:

        async def is_ended() -> bool:
            return "deletionTimestamp" in (await rig.store.get(pods, "p1", "default"))["metadata"]

        await until(is_ended)
        await rig.store.delete(pods, "p1", "default", grace_period_s=0)
    else:
        assert "deletionTimestamp" not in (await rig.store.get(pods, "p1", "default"))["metadata"]
        await rig.store.patch(pods, "p1", {"status": {"phase": "Failed"}}, "default", subresource="status")
    await leaving
    with pytest.raises(NotFound):
        await rig.node()


async def test_leaving_may_be_hastened_and_outlasts_the_control_plane(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEAVE_POLL_S", 0.01)
    await rig.start()
    pods = await rig.store.resource("", "Pod")
    bound = pod("p1")
    bound["spec"]["nodeName"] = "n1"
    await rig.store.create(pods, bound, "default")
    is_hurried = False
    leaving = asyncio.create_task(rig.keeper.leave(drain=lambda: is_hurried, say=rig.said.append))
    await until(_has_said(rig, "it waits for the end of 1 pod"))
    rig.link.error = ServiceUnavailable("away")
    await until(_has_said(rig, "leaves when the control plane answers again: away"))
    rig.link.error = None
    is_hurried = True

    async def is_ended() -> bool:
        return "deletionTimestamp" in (await rig.store.get(pods, "p1", "default"))["metadata"]

    await until(is_ended)
    await rig.store.delete(pods, "p1", "default", grace_period_s=0)
    await leaving
    with pytest.raises(NotFound):
        await rig.node()


async def test_the_control_planes_addresses_for_pods(rig: Rig) -> None:
    await rig.keeper.register()
    assert await rig.keeper.wait_pod_cidr(0.05) == ""
    waiting = asyncio.create_task(rig.keeper.wait_pod_cidr(30))
    await rig.patch_node({"spec": {"podCIDR": "10.9.0.0/24"}})
    assert await waiting == "10.9.0.0/24"


def _has_said(rig: Rig, words: str) -> Callable[[], Awaitable[bool]]:
    async def check() -> bool:
        return any(words in line for line in rig.said)

    return check
