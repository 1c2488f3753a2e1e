"""The scheduler on the embedded store: pods are bound, those that can't be say why, and nothing is done twice."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from prometheus_client import REGISTRY
from tests.controllers.scheduling import (
    PROFILE,
    condition,
    create,
    engine_of,
    events,
    node,
    objects,
    places,
    pod,
    pod_group,
    scheduling,
)
from tests.store.stores import memory_store

from muster.controllers.scheduler import Scheduler
from muster.controllers.scheduler_plans import placement_of
from muster.engine.decisions import PlacedPod
from muster.engine.plugin import Patch, Plugin, Scope
from muster.engine.pods import PodRecord
from muster.objects import yaml_text
from muster.objects.status import Forbidden, ServiceUnavailable, Timeout
from muster.sim.clock import virtual
from muster.store.contract import Binding, PatchType
from muster.store.embedded import EmbeddedStore
from muster.store.guarded import GuardedStore

DECIDED = ("muster_scheduler_decisions_total", {"decision": "Place", "profile": PROFILE})


async def settle(seconds: float = 5.0) -> None:
    await asyncio.sleep(seconds)


@virtual
async def test_pods_are_bound_within_capacity() -> None:
    async with memory_store() as store, scheduling(store) as runner:
        await create(store, node("n1", "2"), node("n2", "2"), *(pod(f"p{n}") for n in range(5)))
        await settle()
        where = await places(store)
        assert sorted(where.values()) == ["", "n1", "n1", "n2", "n2"]
        assert runner.is_idle
        scheduled = await events(store, "Scheduled")
        assert sorted(e["involvedObject"]["name"] for e in scheduled) == sorted(name for name, at in where.items() if at)


@virtual
async def test_a_claim_that_waits_for_its_first_consumer_is_told_the_node() -> None:
    """Before the pod is bound, so that its volume is made where the pod goes."""
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data", "namespace": "default"},
        "spec": {
            "storageClassName": "late",
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }
    late = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": "late"},
        "provisioner": "example.com/disks",
        "volumeBindingMode": "WaitForFirstConsumer",
    }
    wants = pod("p")
    wants["spec"]["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    async with memory_store() as store, scheduling(store):
        await create(store, node("n1", "2"), late, claim, wants)
        await settle()
        assert (await places(store))["p"] == "n1"
        claims = await store.resource("", "PersistentVolumeClaim")
        stored = await store.get(claims, "data", "default")
        assert stored["metadata"]["annotations"]["volume.kubernetes.io/selected-node"] == "n1"


@virtual
async def test_what_waits_says_why_and_takes_it_back() -> None:
    async with memory_store() as store, scheduling(store):
        await create(store, node("n1", "2"), pod("big", "3"))
        await settle()
        scheduled, waiting = await condition(store, "big", "PodScheduled"), await condition(store, "big", "muster.dev/Waiting")
        assert (scheduled["status"], scheduled["reason"]) == ("False", "Unschedulable")
        assert waiting["status"] == "True"
        assert scheduled["message"].startswith(f"{waiting['reason']}: ")
        assert len(await events(store, "FailedScheduling")) == 1

        await create(store, node("n2", "4"))
        await settle()
        assert (await places(store))["big"] == "n2"
        assert (await condition(store, "big", "PodScheduled"))["status"] == "True"
        waiting = await condition(store, "big", "muster.dev/Waiting")
        assert (waiting["status"], waiting["reason"]) == ("False", "Scheduled")


@virtual
async def test_the_same_reason_is_written_once() -> None:
    async with memory_store() as store, scheduling(store):
        await create(store, node("n1", "2"), pod("big", "3"))
        await settle()
        pods = await store.resource("", "Pod")
        before = (await store.get(pods, "big", "default"))["metadata"]["resourceVersion"]
        for n in range(3):
            await create(store, node(f"small{n}", "2"))
            await settle()
        after = await store.get(pods, "big", "default")
        told = {e["message"] for e in await events(store, "FailedScheduling")}
        assert len(told) <= 4
        if len(told) == 1:
            assert after["metadata"]["resourceVersion"] == before


@virtual
async def test_others_pods_only_count() -> None:
    async with memory_store() as store, scheduling(store):
        await create(store, node("n1", "2"), pod("theirs", "2", scheduler="default-scheduler"))
        await create(store, pod("bound", "1", scheduler="default-scheduler", nodeName="n1"), pod("a"), pod("b"))
        await settle()
        where = await places(store)
        assert where["theirs"] == ""
        assert sorted((where["a"], where["b"])) == ["", "n1"]
        assert not await condition(store, "theirs", "PodScheduled")


@virtual
async def test_alone_it_takes_pods_that_name_no_scheduler() -> None:
    unnamed = pod("plain")
    del unnamed["spec"]["schedulerName"]
    async with memory_store() as store, scheduling(store, Scheduler(is_sole=True)):
        before = REGISTRY.get_sample_value(*DECIDED) or 0
        await create(store, node("n1", "2"), unnamed, pod("ours"))
        await settle()
        assert await places(store) == {"plain": "n1", "ours": "n1"}
        assert REGISTRY.get_sample_value(*DECIDED) == before + 2, "by the profile, whatever the pod calls it"


@virtual
async def test_beside_others_it_leaves_pods_that_name_no_scheduler() -> None:
    unnamed = pod("plain")
    del unnamed["spec"]["schedulerName"]
    async with memory_store() as store, scheduling(store, Scheduler()):
        await create(store, node("n1", "2"), unnamed, pod("ours"), pod("odd", scheduler="nobody"))
        await settle()
        assert await places(store) == {"plain": "", "ours": "n1", "odd": ""}
        assert not await condition(store, "plain", "PodScheduled")
        assert not await condition(store, "odd", "PodScheduled")
        assert not await events(store, "FailedScheduling")


@virtual
async def test_alone_it_says_that_nobody_serves_a_name() -> None:
    async with memory_store() as store, scheduling(store, Scheduler(is_sole=True)):
        await create(store, node("n1", "2"), pod("odd", scheduler="nobody"))
        await settle()
        waiting = await condition(store, "odd", "muster.dev/Waiting")
        assert (waiting["status"], waiting["reason"]) == ("True", "NoProfile")
        assert "spec.schedulerName is 'nobody'" in waiting["message"]
        assert (await condition(store, "odd", "PodScheduled"))["reason"] == "Unschedulable"
        pods = await store.resource("", "Pod")
        version = (await store.get(pods, "odd", "default"))["metadata"]["resourceVersion"]
        await store.patch(pods, "odd", {"metadata": {"labels": {"touched": "yes"}}}, "default")
        await settle()
        told = await events(store, "FailedScheduling")
        assert [(event["involvedObject"]["name"], event.get("count", 1)) for event in told] == [("odd", 1)]
        after = (await store.get(pods, "odd", "default"))["metadata"]["resourceVersion"]
        assert int(after) > int(version)

        config = {
            "apiVersion": "muster.dev/v1alpha1",
            "kind": "KubeSchedulerConfiguration",
            "profiles": [{"schedulerName": "nobody"}],
        }
        await create(
            store,
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kube-system"}},
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": "muster-scheduler", "namespace": "kube-system"},
                "data": {"config.yaml": yaml_text.dump(config)},
            },
        )
        await settle()
        assert (await places(store))["odd"] == "n1", "once a profile has the name"
        assert (await condition(store, "odd", "muster.dev/Waiting"))["status"] == "False"


@virtual
async def test_a_freed_place_is_given_away_at_once() -> None:
    async with memory_store() as store, scheduling(store):
        await create(store, node("n1", "1"), pod("a"))
        await settle()
        await create(store, pod("b"))
        await settle()
        assert await places(store) == {"a": "n1", "b": ""}
        await store.delete(await store.resource("", "Pod"), "a", "default", grace_period_s=0)
        await settle(0.5)
        assert await places(store) == {"b": "n1"}


@virtual
async def test_a_gang_starts_whole_or_not_at_all() -> None:
    async with memory_store() as store, scheduling(store) as runner:
        await create(store, node("n1", "2"), pod_group("g", 3), *(pod(f"g{n}", gang="g") for n in range(3)))
        await settle()
        assert set((await places(store)).values()) == {""}
        assert (await condition(store, "g1", "muster.dev/Waiting"))["status"] == "True"
        await create(store, node("n2", "2"))
        await settle()
        assert "" not in (await places(store)).values()
        assert await objects(store, "Placement", "muster.dev") == []
        assert runner.is_idle


class Recording(GuardedStore):
    """Notes writes, and fails those that it is told to, before or after they happen."""

    def __init__(self, inner: EmbeddedStore) -> None:
        super().__init__(inner)
        self.writes: list[str] = []
        self.failures: list[tuple[str, Exception, bool]] = []

    async def write(self, verb: str, what: str, operation: Any) -> Any:
        for index, (match, error, is_late) in enumerate(self.failures):
            if f"{verb} {what}".startswith(match):
                del self.failures[index]
                if is_late:
                    await operation()
                raise error
        self.writes.append(f"{verb} {what}")
        return await operation()


@virtual
async def test_a_plan_is_stored_before_the_first_binding() -> None:
    async with memory_store() as inner:
        store = Recording(inner)
        async with scheduling(store):
            await create(inner, node("n1", "4"), pod_group("g", 2), pod("g0", gang="g"), pod("g1", gang="g"))
            await settle()
        steps = [write.split(" ")[0] for write in store.writes if "placements" in write or write.startswith("bind")]
        assert steps == ["create", "bind", "bind", "delete"]


@pytest.mark.parametrize(
    ("error", "is_late"),
    [
        pytest.param(Timeout("no answer"), True, id="the answer was lost"),
        pytest.param(Timeout("no answer"), False, id="the request was lost"),
        pytest.param(ServiceUnavailable("busy"), False, id="refused for now"),
    ],
)
def test_a_binding_is_tried_until_its_outcome_is_certain(error: Exception, is_late: bool) -> None:
    @virtual
    async def scenario() -> None:
        async with memory_store() as inner:
            store = Recording(inner)
            store.failures = [("bind", error, is_late)]
            async with scheduling(store) as runner:
                await create(inner, node("n1", "1"), pod("a"))
                await settle()
                assert await places(inner) == {"a": "n1"}
                await create(inner, pod("b"))
                await settle()
                assert await places(inner) == {"a": "n1", "b": ""}
                assert runner.failing == {}

    scenario()


@virtual
async def test_a_refused_binding_gives_back_and_is_reported() -> None:
    async with memory_store() as inner:
        store = Recording(inner)
        store.failures = [("bind pods default/a", Forbidden("not here"), False)] * 1
        async with scheduling(store):
            await create(inner, node("n1", "1"), pod("a"))
            await settle()
            released = await events(inner, "Released")
            assert [e["involvedObject"]["name"] for e in released] == ["a"]
            assert "not here" in released[0]["message"]
            assert await places(inner) == {"a": "n1"}


@virtual
async def test_a_pod_that_vanishes_while_it_is_bound_gives_back() -> None:
    class Vanishing(Recording):
        async def bind_many(self, bindings: Any) -> Any:
            await self._vanish()
            return await super().bind_many(bindings)

        async def bind(self, *args: Any, **options: Any) -> None:
            await self._vanish()
            await super().bind(*args, **options)

        async def _vanish(self) -> None:
            if not self.writes:
                self.writes.append("vanished")
                await self.inner.delete(await self.inner.resource("", "Pod"), "a", "default", grace_period_s=0)

    async with memory_store() as inner:
        store = Vanishing(inner)
        async with scheduling(store):
            await create(inner, node("n1", "1"), pod("a"))
            await settle()
            assert await places(inner) == {}
            await create(inner, pod("b"))
            await settle()
            assert await places(inner) == {"b": "n1"}


@virtual
async def test_a_node_that_vanishes_before_the_binding_gives_back() -> None:
    class Slow(Recording):
        async def bind(self, *args: Any, **options: Any) -> None:
            if not self.writes:
                self.writes.append("node gone")
                await self.inner.delete(await self.inner.resource("", "Node"), args[2])
                await asyncio.sleep(1)
                raise ServiceUnavailable("busy")
            await super().bind(*args, **options)

    async with memory_store() as inner:
        store = Slow(inner)
        async with scheduling(store):
            await create(inner, node("n1", "1"), pod("a"))
            await settle()
            assert await places(inner) == {"a": ""}
            await create(inner, node("n2", "1"))
            await settle(70)
            assert await places(inner) == {"a": "n2"}


@virtual
async def test_shadow_mode_binds_nothing() -> None:
    async with memory_store() as store:
        scheduler = Scheduler(engine=lambda: engine_of(is_shadow=True))
        async with scheduling(store, scheduler):
            await create(store, node("n1", "1"), node("n2", "1"), pod("a"), pod("b"), pod("c"))
            await settle()
            assert set((await places(store)).values()) == {""}
            told = {e["involvedObject"]["name"]: e["message"] for e in await events(store, "ShadowScheduled")}
            assert len(told) == 2
            # The real scheduler chose another node: that is what counts from then on.
            await store.bind("c", "default", "n1")
            await settle()
            assert (await places(store))["c"] == "n1"


@virtual
async def test_room_is_made_for_the_more_important() -> None:
    async with memory_store() as store, scheduling(store):
        await create(store, node("n1", "1"), pod("low", priority=0))
        await settle()
        await create(store, pod("high", priority=1000))
        await settle(1)
        assert [e["involvedObject"]["name"] for e in await events(store, "Preempted")] == ["low"]
        pods = await store.resource("", "Pod")
        low, high = await store.get(pods, "low", "default"), await store.get(pods, "high", "default")
        assert low["metadata"]["deletionTimestamp"]
        assert (await condition(store, "low", "DisruptionTarget"))["reason"] == "PreemptionByScheduler"
        assert high["status"]["nominatedNodeName"] == "n1"
        await store.delete(pods, "low", "default", grace_period_s=0)
        await settle()
        assert await places(store) == {"high": "n1"}


class Marking(Plugin):
    name = "Marking"
    scope = Scope.NODE

    def pre_bind(self, pod: PodRecord, node: str) -> Patch | None:
        return Patch(annotations={"example.com/node": node}, labels={"example.com/placed": "yes"})


@virtual
async def test_what_plugins_add_is_written_with_the_binding() -> None:
    async with memory_store() as store:
        async with scheduling(store, Scheduler(engine=lambda: engine_of(Marking()))):
            await create(store, node("n1"), pod("a"))
            await settle()
        live = await store.get(await store.resource("", "Pod"), "a", "default")
        assert live["spec"]["nodeName"] == "n1"
        assert live["metadata"]["annotations"]["example.com/node"] == "n1"
        assert live["metadata"]["labels"]["example.com/placed"] == "yes"


# -- plans that were left ------------------------------------------------------------------------------------------------------


async def left_plan(store: EmbeddedStore, nodes: dict[str, str], unit: str = "PodGroup/default/g") -> None:
    pods = await store.resource("", "Pod")
    placed = []
    for name, at in nodes.items():
        live = await store.get(pods, name, "default")
        placed.append(PlacedPod(live["metadata"]["uid"], "default", name, at))
    await create(store, placement_of(unit, placed, epoch=1, now=1e9))


@virtual
async def test_a_half_bound_plan_is_finished() -> None:
    async with memory_store() as store:
        await create(store, node("n1", "1"), node("n2", "1"), node("n3", "1"), pod_group("g", 2))
        await create(store, pod("g0", gang="g"), pod("g1", gang="g"), pod("other"))
        await left_plan(store, {"g0": "n3", "g1": "n2"})
        await store.bind("g0", "default", "n3")
        async with scheduling(store):
            await settle()
            assert await places(store) == {"g0": "n3", "g1": "n2", "other": "n1"}
            assert await objects(store, "Placement", "muster.dev") == []


@virtual
async def test_a_plan_of_which_nothing_is_bound_is_undone_when_it_can_not_be_finished() -> None:
    async with memory_store() as store:
        await create(store, node("n1", "1"), pod_group("g", 2), pod("g0", gang="g"), pod("g1", gang="g"), pod("other"))
        await left_plan(store, {"g0": "n1", "g1": "gone"})
        async with scheduling(store):
            await settle()
            assert await places(store) == {"g0": "", "g1": "", "other": "n1"}
            assert await objects(store, "Placement", "muster.dev") == []


@virtual
async def test_a_plan_of_pods_that_are_gone_goes() -> None:
    async with memory_store() as store:
        await create(store, node("n1", "1"), pod("g0", gang="g"))
        await left_plan(store, {"g0": "n1"})
        await store.delete(await store.resource("", "Pod"), "g0", "default", grace_period_s=0)
        async with scheduling(store):
            await settle()
            assert await objects(store, "Placement", "muster.dev") == []


@virtual
async def test_a_restart_keeps_what_is_bound() -> None:
    async with memory_store() as store:
        await create(store, node("n1", "2"), pod("a"), pod("b"))
        async with scheduling(store):
            await settle()
        await create(store, pod("c"))
        async with scheduling(store):
            await settle()
        assert await places(store) == {"a": "n1", "b": "n1", "c": ""}


# -- the configuration ---------------------------------------------------------------------------------------------------------


@virtual
async def test_bindings_of_many_equal_single_ones() -> None:
    """What `bind_many` leaves behind is what `bind` leaves behind."""
    async with memory_store() as store:
        pods = await store.resource("", "Pod")
        await create(store, pod("a"), pod("b"))
        for name in ("a", "b"):
            status = {"conditions": [{"type": "Odd", "status": "True"}]}
            await store.patch(pods, name, {"status": status}, "default", patch_type=PatchType.STRATEGIC, subresource="status")
        await store.bind("a", "default", "n1", annotations={"x": "1"})
        assert await store.bind_many([Binding("b", "default", "n1", annotations={"x": "1"})]) == [None]
        one, other = await store.get(pods, "a", "default"), await store.get(pods, "b", "default")
        for raw in (one, other):
            for word in ("name", "uid", "resourceVersion"):
                raw["metadata"].pop(word)
        assert one == other


@virtual
async def test_profiles_come_from_the_config_map() -> None:
    text = "apiVersion: muster.dev/v1alpha1\nkind: KubeSchedulerConfiguration\nprofiles:\n- schedulerName: mine\n"
    async with memory_store("kube-system") as store, scheduling(store, Scheduler()) as runner:
        await create(store, node("n1"), pod("a"), pod("b", scheduler="mine"))
        await settle()
        assert await places(store) == {"a": "n1", "b": ""}
        config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": PROFILE, "namespace": "kube-system"}}
        await create(store, {**config, "data": {"config.yaml": text}})
        await settle()
        assert await places(store) == {"a": "n1", "b": "n1"}
        assert runner.source is not None
        maps = await store.resource("", "ConfigMap")
        await store.patch(maps, PROFILE, {"data": {"config.yaml": "profiles: 7"}}, "kube-system")
        await settle()
        live = await store.get(maps, PROFILE, "kube-system")
        assert "Refused" in live["metadata"]["annotations"]["muster.dev/config-status"]
        assert live["metadata"]["annotations"]["muster.dev/config-accepted"] == text
        assert runner.state == "running"
        await create(store, pod("c", scheduler="mine"))
        await settle()
        assert (await places(store))["c"] == "n1"
