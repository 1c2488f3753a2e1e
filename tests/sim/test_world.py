"""Worlds: pods on simulated machines, agents that come and go, invariants, and runs that repeat themselves."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import pytest
from tests.store.stores import pod

from muster.controllers import embedded_controllers
from muster.objects.meta import metadata_of
from muster.objects.status import Raw
from muster.objects.time import parse_time
from muster.sim.agent import is_ready
from muster.sim.faults import STORMY
from muster.sim.machine import PodScript, ScriptFor
from muster.sim.world import Chaos, InvariantBroken, NotConverged, World, simulate
from muster.store.contract import Store


async def bound(world: World, name: str, node: str = "node-1", **spec: str) -> Raw:
    """A pod, bound as the scheduler would."""
    raw = pod(name)
    raw["spec"].update(spec)
    made = await world.create(raw)
    await world.store.bind(name, "default", node)
    return made


async def live(world: World, name: str) -> Raw | None:
    return next((p for p in await world.objects("", "Pod", "default") if metadata_of(p)["name"] == name), None)


async def phase(world: World, name: str) -> str:
    found = await live(world, name)
    return "gone" if found is None else str((found.get("status") or {}).get("phase"))


async def until(world: World, name: str, wanted: str) -> None:
    async def reached() -> bool:
        return await phase(world, name) == wanted

    await world.run_until(reached, timeout_s=300, what=f"pod {name} {wanted}")


def scripted(**scripts: PodScript) -> ScriptFor:
    return lambda pod: scripts.get(metadata_of(pod)["name"], PodScript())


def test_nodes_register_and_send_heartbeats() -> None:
    async def scenario(world: World) -> None:
        world.add_machines(3, labels={"pool": "gpu"}, capacity={"cpu": "4"})
        await world.run_for(100)
        nodes = await world.objects("", "Node")
        assert [metadata_of(n)["name"] for n in nodes] == ["node-1", "node-2", "node-3"]
        assert all(is_ready(n) and n["status"]["capacity"] == {"cpu": "4"} for n in nodes)
        assert all(metadata_of(n)["labels"]["pool"] == "gpu" for n in nodes)
        leases = await world.objects("coordination.k8s.io", "Lease", "kube-node-lease")
        assert [lease["spec"]["holderIdentity"] for lease in leases] == ["node-1", "node-2", "node-3"]
        assert all(lease["spec"]["renewTime"] > "2026-01-05T08:01:2" for lease in leases)

    simulate(scenario)


def test_pods_go_through_their_phases_by_script() -> None:
    scripts = {
        "good": PodScript(run_s=20),
        "bad": PodScript(run_s=5, exit_code=3),
        "oom": PodScript(run_s=5, exit_code=137, reason="OOMKilled"),
        "stuck": PodScript(stuck="pull"),
        "slow": PodScript(pull_s=60, run_s=1),
    }

    async def scenario(world: World) -> None:
        world.add_machines(1, script_for=scripted(**scripts))
        for name in scripts:
            await bound(world, name)
        await world.run_for(10)
        assert [await phase(world, name) for name in scripts] == ["Running", "Failed", "Failed", "Pending", "Pending"]
        await world.run_for(100)
        assert [await phase(world, name) for name in scripts] == ["Succeeded", "Failed", "Failed", "Pending", "Succeeded"]
        stuck, oom = await live(world, "stuck"), await live(world, "oom")
        assert stuck is not None
        assert oom is not None
        assert stuck["status"]["containerStatuses"][0]["state"] == {"waiting": {"reason": "ImagePullBackOff"}}
        ended = oom["status"]["containerStatuses"][0]["state"]["terminated"]
        assert (ended["exitCode"], ended["reason"]) == (137, "OOMKilled")
        assert parse_time(ended["finishedAt"]) == parse_time(oom["status"]["startTime"]) + 5

    simulate(scenario)


def test_a_crashing_pod_is_restarted_in_place_and_slower_each_time() -> None:
    async def scenario(world: World) -> None:
        (machine,) = world.add_machines(1, script_for=scripted(loop=PodScript(run_s=1, exit_code=1)))
        made = await bound(world, "loop", restartPolicy="Always")
        await world.run_for(100)
        found = await live(world, "loop")
        assert found is not None
        starts = machine.starts[metadata_of(made)["uid"]]
        assert starts == 4
        assert found["status"]["containerStatuses"][0]["restartCount"] == starts - 1

    simulate(scenario)


def test_graceful_deletion_lets_the_process_end_first() -> None:
    async def scenario(world: World) -> None:
        scripts = {"polite": PodScript(run_s=None, stop_s=5), "stuck": PodScript(run_s=None, stuck="stop")}
        (machine,) = world.add_machines(1, script_for=scripted(**scripts))
        uids = {name: metadata_of(await bound(world, name))["uid"] for name in scripts}
        await world.run_for(5)
        pods = await world.store.resource("", "Pod")
        for name in scripts:
            await world.store.delete(pods, name, "default", grace_period_s=30)
        deleted_s = world.loop.time()
        ends: dict[str, float] = {}

        def no_pod_without_its_process_is_gone(world: World) -> None:
            for name, uid in uids.items():
                if uid not in machine.running(world.loop.time()):
                    ends.setdefault(name, world.loop.time() - deleted_s)

        world.invariant("ends", no_pod_without_its_process_is_gone)
        for name in scripts:
            await until(world, name, "gone")
        assert 4 < ends["polite"] < 7
        assert 28 < ends["stuck"] < 33
        assert machine.processes == {}

    simulate(scenario)


def test_an_agent_that_crashes_finds_its_processes_again() -> None:
    async def scenario(world: World) -> None:
        (machine,) = world.add_machines(1)
        made = await bound(world, "job")
        await until(world, "job", "Running")
        world.components["agent-node-1"].kill()
        await world.run_for(3)
        await until(world, "job", "Succeeded")
        assert machine.starts == {metadata_of(made)["uid"]: 1}
        assert world.components["agent-node-1"].runs == 2

    simulate(scenario)


def test_a_machine_that_dies_silently_says_nothing_and_starts_nothing_twice() -> None:
    async def scenario(world: World) -> None:
        (machine,) = world.add_machines(1)
        made = await bound(world, "job")
        await until(world, "job", "Running")
        await world.run_for(15)
        before = await world.objects("coordination.k8s.io", "Lease", "kube-node-lease")
        world.switch_off(machine)
        await world.run_for(120)
        assert await phase(world, "job") == "Running", "nobody has said otherwise"
        assert await world.objects("coordination.k8s.io", "Lease", "kube-node-lease") == before
        world.switch_on(machine)
        await until(world, "job", "Failed")
        found = await live(world, "job")
        assert found is not None
        assert found["status"]["reason"] == "NodeRestarted"
        assert machine.starts == {metadata_of(made)["uid"]: 1}

    simulate(scenario)


def test_a_pod_deleted_by_force_is_killed_even_while_no_agent_looked() -> None:
    async def scenario(world: World) -> None:
        (machine,) = world.add_machines(1, script_for=lambda _pod: PodScript(run_s=None))
        await bound(world, "one")
        await bound(world, "two")
        await world.run_for(5)
        assert len(machine.running(world.loop.time())) == 2
        pods = await world.store.resource("", "Pod")
        await world.store.delete(pods, "one", "default", grace_period_s=0)
        await world.run_for(2)
        assert len(machine.running(world.loop.time())) == 1
        world.components["agent-node-1"].kill()
        await world.store.delete(pods, "two", "default", grace_period_s=0)
        await world.run_for(20)
        assert machine.running(world.loop.time()) == []

    simulate(scenario)


def test_a_slow_machine_is_slow() -> None:
    async def scenario(world: World) -> None:
        world.add_machines(1, slowness=10.0)
        await bound(world, "job")
        await world.run_for(100)
        assert await phase(world, "job") == "Running"
        await world.run_for(300)
        assert await phase(world, "job") == "Succeeded"

    simulate(scenario)


def test_a_broken_invariant_ends_the_scenario_with_seed_and_trace() -> None:
    async def scenario(world: World) -> None:
        async def at_most_two_nodes(world: World) -> None:
            nodes = await world.objects("", "Node")
            assert len(nodes) <= 2, f"{len(nodes)} nodes"

        world.invariant("at most two nodes", at_most_two_nodes)
        world.add_machines(3)
        await world.run_for(1000)

    with pytest.raises(InvariantBroken, match="at most two nodes: 3 nodes") as caught:
        simulate(scenario, seed=99)
    note = "\n".join(caught.value.__notes__)
    assert "world seed 99" in note
    assert "create nodes node-3" in note


def test_what_never_comes_is_an_error() -> None:
    async def scenario(world: World) -> None:
        await world.run_until(lambda: False, timeout_s=60, what="a miracle")

    with pytest.raises(NotConverged, match="a miracle did not come within 60 s"):
        simulate(scenario)


def test_a_component_that_fails_as_a_whole_fails_the_scenario() -> None:
    async def scenario(world: World) -> None:
        async def main(_store: Store, _run_name: str) -> None:
            await asyncio.sleep(5)
            raise ValueError("a bug in main")

        world.add_component("buggy", main)
        await world.run_for(1000)

    with pytest.raises(ValueError, match="a bug in main"):
        simulate(scenario)


def test_stop_lets_a_component_put_things_in_order() -> None:
    async def scenario(world: World) -> list[str]:
        said: list[str] = []

        async def main(store: Store, _run_name: str) -> None:
            try:
                await asyncio.sleep(1e9)
            finally:
                await store.resource("", "Pod")
                said.append("in order")

        component = world.add_component("tidy", main)
        await world.run_for(5)
        await component.stop()
        await world.run_for(60)
        assert component.runs == 1
        return said

    assert simulate(scenario)[0] == ["in order"]


async def busy(world: World) -> None:
    """Something of everything, for the tests of repetition."""
    world.add_manager("controllers", lambda: embedded_controllers(ca_pem="PEM"), replicas=2)
    world.add_machines(3)
    await world.run_for(20)
    for n in range(6):
        try:
            await bound(world, f"job-{n}", f"node-{n % 3 + 1}")
        except Exception as error:
            world.note("scenario", repr(error))
        await world.run_for(5)
    await world.run_for(120)


CHAOS = Chaos(kill_every_s=30, partition_every_s=30, lease_loss_every_s=60)


def test_the_same_seed_gives_the_same_trace_and_another_gives_another() -> None:
    traces = [simulate(busy, seed=seed, faults=STORMY, chaos=CHAOS)[1] for seed in (4, 4, 5)]
    assert len(traces[0]) > 100
    assert traces[0] == traces[1]
    assert traces[0] != traces[2]


@pytest.mark.slow
def test_the_trace_is_the_same_in_every_process_whatever_its_hash_seed() -> None:
    program = (
        "from tests.sim.test_world import CHAOS, STORMY, busy, simulate\n"
        "print('\\n'.join(simulate(busy, seed=4, faults=STORMY, chaos=CHAOS)[1]))"
    )
    outputs = []
    for hash_seed in ("0", "1", "12345"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
        outputs.append(done.stdout)
    assert outputs[0] == outputs[1] == outputs[2]
    assert len(outputs[0].splitlines()) > 100
