"""Pods that misbehave hurt only themselves."""

from __future__ import annotations

from typing import Any

import pytest

from tests.agent.carrier.conftest import World, status, terminated

NEIGHBOUR = "echo well; while [ ! -e /tmp/never ]; do sleep 0.2; done"


async def with_neighbour(world: World) -> None:
    await world.create(NEIGHBOUR, name="neighbour", terminationGracePeriodSeconds=0)
    await world.printed("well", "neighbour")


async def neighbour_is_well(world: World) -> None:
    assert status(await world.get("neighbour"))["phase"] == "Running"
    await world.create("echo fine", name="after")
    assert status(await world.ended("after"))["phase"] == "Succeeded"


@pytest.mark.needs("limits")
async def test_one_that_eats_memory_is_killed_and_it_is_said_why(world: World) -> None:
    await with_neighbour(world)
    limits = {"limits": {"memory": "32Mi"}}
    await world.create(containers=[world.container("x=a; while true; do x=$x$x; done", resources=limits)])
    pod = await world.ended()
    assert (terminated(pod)["reason"], terminated(pod)["exitCode"]) == ("OOMKilled", 137)
    await neighbour_is_well(world)


@pytest.mark.slow
@pytest.mark.needs("limits")
async def test_one_that_forks_without_end(world: World) -> None:
    await with_neighbour(world)
    bomb = "b() { b | b & }; b; sleep 1000"
    limits = {"limits": {"cpu": "200m", "memory": "256Mi"}}
    await world.create(containers=[world.container(bomb, resources=limits)], terminationGracePeriodSeconds=1)
    await world.when(lambda pod: status(pod).get("phase") in ("Running", "Failed", "Succeeded"))
    await neighbour_is_well(world)
    await world.delete()
    await world.gone()


@pytest.mark.needs("disk")
async def test_one_that_fills_its_disk_is_evicted(world: World) -> None:
    await with_neighbour(world)
    script = "dd if=/dev/zero of=/v/big bs=1024 count=20480 2>/dev/null; sleep 1000"
    limits = {"limits": {"ephemeral-storage": "5Mi"}}
    container = world.container(script, resources=limits, volumeMounts=[{"name": "v", "mountPath": "/v"}])
    await world.create(containers=[container], volumes=[{"name": "v", "emptyDir": {}}])
    pod = await world.ended()
    assert (status(pod)["phase"], status(pod)["reason"]) == ("Failed", "Evicted")
    assert "ephemeral-storage" in status(pod)["message"]
    await neighbour_is_well(world)


@pytest.mark.needs("disk")
async def test_one_that_fills_a_volume_beyond_its_limit(world: World) -> None:
    script = "dd if=/dev/zero of=/v/big bs=1024 count=4096 2>/dev/null; sleep 1000"
    container = world.container(script, volumeMounts=[{"name": "v", "mountPath": "/v"}])
    await world.create(containers=[container], volumes=[{"name": "v", "emptyDir": {"sizeLimit": "1Mi"}}])
    pod = await world.ended()
    assert status(pod)["reason"] == "Evicted"
    assert "'v'" in status(pod)["message"]


@pytest.mark.slow
async def test_one_that_prints_without_end(world: World) -> None:
    await with_neighbour(world)
    await world.create("yes | head -c 100000000; echo; echo last", name="p")
    await world.ended()
    assert (await world.logs(tail_lines=1)) == "last\n"
    await neighbour_is_well(world)


@pytest.mark.needs("reports")
async def test_one_that_spoils_its_report(world: World) -> None:
    script = (
        "rm -f $MUSTER_REPORT; ln -s /etc/shadow $MUSTER_REPORT; sleep 1; rm -f $MUSTER_REPORT; mkfifo $MUSTER_REPORT; sleep 1;"
        """rm -f $MUSTER_REPORT; head -c 2000000 /dev/zero > $MUSTER_REPORT; echo >> $MUSTER_REPORT;"""
        """echo '{"progress": 7}' >> $MUSTER_REPORT"""
    )
    await world.create(script)
    pod = await world.ended()
    assert status(pod)["phase"] == "Succeeded"
    pod = await world.when(lambda pod: (pod["metadata"].get("annotations") or {}).get("muster.dev/progress"))
    assert pod["metadata"]["annotations"]["muster.dev/progress"] == "1"


@pytest.mark.parametrize(
    ("spec", "word"),
    [
        ({"hostPID": True}, "hostPID"),
        ({"hostIPC": True}, "hostIPC"),
        ({"runtimeClassName": "strange"}, "runtimeClassName"),
    ],
    ids=["hostPID", "hostIPC", "runtimeClass"],
)
@pytest.mark.needs("records")
async def test_what_is_refused(world: World, spec: dict[str, Any], word: str) -> None:
    await world.create("true", **spec)
    pod = await world.ended()
    assert (status(pod)["phase"], status(pod)["reason"]) == ("Failed", "PodNotSupported")
    assert word in status(pod)["message"]


@pytest.mark.needs("records")
async def test_privileged_is_refused(world: World) -> None:
    await world.create(containers=[world.container("true", securityContext={"privileged": True})])
    pod = await world.ended()
    assert status(pod)["reason"] == "PodNotSupported"
    assert "privileged" in status(pod)["message"]


@pytest.mark.needs("records")
async def test_a_pod_for_another_runtime(world: World) -> None:
    await world.create("true", annotations={"muster.dev/runtime": "kubernetes"})
    pod = await world.ended()
    assert status(pod)["reason"] == "RuntimeMismatch"
