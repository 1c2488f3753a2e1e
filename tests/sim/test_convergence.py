"""Real controllers and simulated agents through storms: safe at every write, and right in the end.

`MUSTER_SOAK=1` runs all seeds; otherwise a sample.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest
from tests.controllers.helpers import Replicas, replica_set

from muster.controllers import embedded_controllers
from muster.controllers.runtime import Runnable
from muster.objects.meta import metadata_of, name_of, namespace_of, uid_of
from muster.objects.status import ApiError, NotFound, Raw
from muster.objects.time import format_time
from muster.sim.agent import is_ready
from muster.sim.faults import CALM, STORMY, Faults, Moment
from muster.sim.machine import PodScript
from muster.sim.world import Chaos, World, simulate

IS_SOAK = bool(os.environ.get("MUSTER_SOAK"))
SEEDS = range(300 if IS_SOAK else 6)
CHAOS = Chaos(kill_every_s=40, partition_every_s=50, partition_s=(1, 40), lease_loss_every_s=120, restart_s=(0.1, 8))
FOREVER = PodScript(run_s=None)


def controllers() -> list[Runnable]:
    return [*embedded_controllers(ca_pem="PEM"), Replicas()]


def budget(name: str, spec: Raw) -> Raw:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"selector": {"matchLabels": {"app": name}}, **spec},
    }


def old_event(name: str, now: float, age_s: float) -> Raw:
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": "default"},
        "involvedObject": {"kind": "Pod", "name": "x", "namespace": "default"},
        "reason": "Old",
        "message": "m",
        "type": "Normal",
        "lastTimestamp": format_time(now - age_s),
    }


# -- what must hold at every write ---------------------------------------------------------------------------------------


def started_once_and_in_one_place(world: World) -> None:
    now_s = world.loop.time()
    places: dict[str, str] = {}
    starts: dict[str, int] = {}
    for machine in world.machines.values():
        for uid in machine.running(now_s):
            assert uid not in places, f"pod {uid} runs on {places[uid]} and {machine.name}"
            places[uid] = machine.name
        for uid, count in machine.starts.items():
            starts[uid] = starts.get(uid, 0) + count
    twice = {uid: count for uid, count in starts.items() if count > 1}
    assert not twice, f"started more than once: {twice}"


async def bound_for_good(world: World) -> None:
    """A pod that was bound stays bound to the same node for as long as it exists."""
    bound: dict[str, str] = world.memory.setdefault("bound", {})
    for pod in await world.objects("", "Pod"):
        node = (pod.get("spec") or {}).get("nodeName") or ""
        before = bound.setdefault(uid_of(pod), node) or node
        assert node == before, f"pod {name_of(pod)} moved from {before} to {node}"
        bound[uid_of(pod)] = node


def one_leader(world: World) -> None:
    leaders = [name for name, manager in world.managers.items() if manager.is_leading and world.is_alive(name)]
    assert len(leaders) <= 1, f"{leaders} lead"


# -- what must hold in the end -------------------------------------------------------------------------------------------


async def all_is_well(world: World, wanted: dict[str, int]) -> bool:
    """Every set has its pods, every budget its numbers, every namespace its account and certificate, old events are gone."""
    pods = [p for p in await world.objects("", "Pod", "default") if not metadata_of(p).get("deletionTimestamp")]
    names = {name_of(p): p for p in pods}
    expected = {f"{name}-{n}" for name, count in wanted.items() for n in range(count)}
    if set(names) != expected or len(await world.objects("", "Pod", "default")) != len(expected):
        return False
    if not all(is_ready(p) for p in pods):
        return False
    for found in await world.objects("apps", "ReplicaSet", "default"):
        if (found.get("status") or {}).get("readyReplicas") != wanted[name_of(found)]:
            return False
    for found in await world.objects("policy", "PodDisruptionBudget", "default"):
        if not budget_is_right(found, wanted[name_of(found)]):
            return False
    events = await world.objects("", "Event", "default")
    return await namespaces_are_right(world) and not any(e["reason"] == "Old" for e in events)


def budget_is_right(found: Raw, count: int) -> bool:
    """Worked out here once more, for the few shapes that these scenarios use."""
    spec, status = found["spec"], found.get("status") or {}
    desired = spec["minAvailable"] if "minAvailable" in spec else max(0, count - spec["maxUnavailable"])
    allowed = max(0, count - desired) if count else 0
    numbers = {"expectedPods": count, "currentHealthy": count, "desiredHealthy": desired, "disruptionsAllowed": allowed}
    return {key: status.get(key) for key in numbers} == numbers


async def namespaces_are_right(world: World) -> bool:
    accounts = {namespace_of(o) for o in await world.objects("", "ServiceAccount") if name_of(o) == "default"}
    certificates = {
        namespace_of(o)
        for o in await world.objects("", "ConfigMap")
        if name_of(o) == "kube-root-ca.crt" and o.get("data") == {"ca.crt": "PEM"}
    }
    spaces = {name_of(o) for o in await world.objects("", "Namespace")}
    return accounts == certificates == spaces


# -- scenarios -----------------------------------------------------------------------------------------------------------


async def user_does_something(world: World, chance: Any, wanted: dict[str, int]) -> None:
    """What users do while the storm goes on. Theirs are the only writes without faults."""
    store, what = world.store, chance.randrange(6)
    sets = await store.resource("apps", "ReplicaSet")
    name = f"set{chance.randrange(3)}"
    if what == 0:
        wanted[name] = chance.randrange(5)
        await store.patch(sets, name, {"spec": {"replicas": wanted[name]}}, "default")
    elif what == 1:
        pods = await world.objects("", "Pod", "default")
        if pods:
            victim = chance.choice(pods)
            await store.delete(await store.resource("", "Pod"), name_of(victim), "default", grace_period_s=5)
    elif what == 2:
        spaces = await store.resource("", "Namespace")
        try:
            await store.delete(spaces, "temporary")
        except NotFound:
            await world.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "temporary"}})
    elif what == 3:
        maps = await store.resource("", "ConfigMap")
        await store.patch(maps, "kube-root-ca.crt", {"data": {"ca.crt": "FORGED"}}, "default")
    elif what == 4:
        await world.create(old_event(f"old.{world.loop.time():.0f}", world.clock(), chance.uniform(3000, 5000)))
    else:
        machine = chance.choice(list(world.machines.values()))
        if machine.is_on:
            world.switch_off(machine)
        else:
            world.switch_on(machine)
    world.note("user", f"did {what} {name}")


async def storm(world: World) -> None:
    chance = world.loop.entropy.stream("user")
    wanted = {f"set{n}": 2 for n in range(3)}
    for name, count in wanted.items():
        await world.create(replica_set(name, count))
    await world.create(budget("set0", {"minAvailable": 1}))
    await world.create(budget("set1", {"maxUnavailable": 1}))
    world.add_manager("controllers", controllers, replicas=2)
    world.add_machines(3, script_for=lambda _pod: FOREVER)
    world.invariant("one leader", one_leader)
    world.invariant("started once", started_once_and_in_one_place)
    world.invariant("bound for good", bound_for_good)
    for _ in range(25):
        await world.run_for(chance.uniform(1, 20))
        try:
            await user_does_something(world, chance, wanted)
        except ApiError as error:
            world.note("user", f"was refused: {error.reason}")
    world.calm_down()
    for machine in world.machines.values():
        if not machine.is_on:
            world.switch_on(machine)
    # What looks well at first may be the last word of a machine that was switched off: give the news time to spread.
    await world.run_for(60)
    await world.run_until(lambda: all_is_well(world, wanted), timeout_s=3_700, every_s=5, what="everything in order")
    await world.run_for(60)
    lines = len(world.trace)
    await world.run_for(120)
    assert await all_is_well(world, wanted), "and it stays in order"
    busy = [line for line in world.trace[lines:] if "leases" not in line and "nodes" not in line and "watch" not in line]
    assert not busy, f"it does not come to rest: {busy[:5]}"


@pytest.mark.soak
@pytest.mark.parametrize("seed", SEEDS)
def test_a_storm_ends_in_order(seed: int) -> None:
    simulate(storm, seed=seed, faults=STORMY, chaos=CHAOS)


async def small(world: World) -> Raw:
    """A short life without chance, to be cut at every write: its final state, without what differs from run to run."""
    await world.create(replica_set("web", 2))
    await world.create(budget("web", {"minAvailable": 1}))
    await world.create(old_event("old", world.clock(), 5_000))
    component = world.add_manager("controllers", controllers)[0]
    world.add_component("user", _nothing)
    world.add_machines(1, script_for=lambda _pod: FOREVER)
    world.invariant("started once", started_once_and_in_one_place)
    world.invariant("bound for good", bound_for_good)
    await world.run_until(lambda: all_is_well(world, {"web": 2}), timeout_s=600, what="two pods")
    sets = await world.store.resource("apps", "ReplicaSet")
    await world.store.patch(sets, "web", {"spec": {"replicas": 1}}, "default")
    await world.run_until(lambda: all_is_well(world, {"web": 1}), timeout_s=600, what="one pod")
    await world.run_for(30)
    assert component.store is not None
    writes = {name: c.store.writes for name, c in world.components.items() if c.store is not None and c.runs == 1}
    return {"writes": writes, "state": await state_of(world)}


async def _nothing(_store: Any, _run_name: str) -> None:
    await asyncio.sleep(1e9)


async def state_of(world: World) -> Raw:
    kinds = (("", "Pod"), ("apps", "ReplicaSet"), ("policy", "PodDisruptionBudget"), ("", "ServiceAccount"), ("", "ConfigMap"))
    return {
        kind: {f"{namespace_of(o)}/{name_of(o)}": _settled(o) for o in await world.objects(group, kind)}
        for group, kind in kinds
    }


def _settled(obj: Raw) -> Raw:
    metadata = {k: v for k, v in metadata_of(obj).items() if k in ("name", "namespace", "labels", "generation")}
    status = dict(obj.get("status") or {})
    for condition in status.get("conditions") or ():
        condition.pop("lastTransitionTime", None)
    status.pop("startTime", None)
    return {**obj, "metadata": metadata, "status": status}


@pytest.mark.soak
def test_a_crash_at_any_write_changes_nothing_in_the_end() -> None:
    """Every write of every component, cut before and after: the same final state as without."""
    calm, _ = simulate(small, faults=CALM)
    assert sum(calm["writes"].values()) > 15
    for moment in ("before", "after"):
        for number in range(1, max(calm["writes"].values()) + 1, 1 if IS_SOAK else 5):
            cut, trace = simulate(small, faults=_cut(number, moment))
            assert cut["state"] == calm["state"], f"cut {moment} write {number}\n" + "\n".join(trace)


def _cut(number: int, moment: Moment) -> Faults:
    """All components crash at their own write of that number."""
    return Faults(latency_s=CALM.latency_s, crash_at=(number, moment))
