"""What only carriers of this machine have: records, leftovers of a crash, devices, and a node that may start nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.agent.contracts import Limits
from muster.agent.fencing import FENCED
from tests.agent.carrier.carriers import LocalCarrier
from tests.agent.carrier.conftest import World, container_status, status
from tests.waiting import until

pytestmark = pytest.mark.needs("records")


@pytest.fixture
def local(world: World) -> LocalCarrier:
    assert isinstance(world.carrier, LocalCarrier)
    return world.carrier


async def test_what_nobody_wants_is_swept(world: World, local: LocalCarrier) -> None:
    await local.stop()
    local.cgroups.create_pod("11111111-orphan", Limits())
    for uid in ("22222222-orphan", "33333333-orphan"):
        (local.layout.pods / uid / "containers" / "main" / "0").mkdir(parents=True)
    (local.layout.pods / "33333333-orphan" / "pod.json").write_text("{ spoilt")
    await local.start()

    async def is_swept() -> bool:
        return not await local.leftovers()

    await until(is_swept)


async def test_a_pod_whose_record_is_spoilt_is_ended_and_counts_as_lost(world: World, local: LocalCarrier) -> None:
    await world.create("echo up; sleep 1000", restartPolicy="Always")
    await world.printed("up")
    await world.phase("Running")
    await local.kill()
    (record,) = local.layout.pods.glob("*/pod.json")
    record.write_text("{ spoilt")
    await local.start()
    pod = await world.ended()
    assert (status(pod)["phase"], status(pod)["reason"]) == ("Failed", "NodeLost")


async def test_nothing_starts_while_the_node_is_held(world: World, local: LocalCarrier) -> None:
    assert local.pods is not None
    is_free = False
    local.pods.may_start = lambda: is_free
    await world.create("echo late")
    pod = await world.when(lambda pod: container_status(pod).get("state"))
    assert "waiting" in container_status(pod)["state"]
    assert not list(local.layout.pods.glob("*/containers/*/*"))
    is_free = True
    await world.phase("Succeeded")


async def test_a_fenced_pod_is_over_whatever_its_policy(world: World, local: LocalCarrier) -> None:
    await world.create("echo up; sleep 1000", restartPolicy="Always")
    await world.printed("up")
    uid = (await world.get())["metadata"]["uid"]
    (local.layout.run_dir(uid, "main", 0) / FENCED).touch()
    local.cgroups.kill(uid)
    pod = await world.ended()
    assert (status(pod)["phase"], status(pod)["reason"]) == ("Failed", "NodeLost")


async def test_devices_are_given_out_once(world: World, local: LocalCarrier) -> None:
    assert local.pods is not None
    local.pods.devices = {"example.com/dev": (("/dev/full",),)}
    resources = {"limits": {"example.com/dev": "1"}}
    container = world.container("sleep 1000", resources=resources)
    await world.create(name="first", containers=[container], terminationGracePeriodSeconds=0)
    await world.phase("Running", "first")
    await world.create(name="second", containers=[container], terminationGracePeriodSeconds=0)
    await world.create("echo fine", name="other")
    await world.phase("Succeeded", "other")
    assert not status(await world.get("second")).get("startTime")
    await world.delete("first")
    await world.phase("Running", "second")


async def test_secrets_are_not_for_others_on_the_machine(world: World, local: LocalCarrier) -> None:
    await world.make("Secret", "sec", stringData={"pw": "s3cret"})
    mounts = [{"name": "s", "mountPath": "/s"}]
    container = world.container("cat /s/pw; sleep 1000", volumeMounts=mounts)
    volumes = [{"name": "s", "secret": {"secretName": "sec", "defaultMode": 0o400}}]
    await world.create(containers=[container], volumes=volumes, terminationGracePeriodSeconds=0)
    await world.printed("s3cret")
    uid = (await world.get())["metadata"]["uid"]
    (record,) = local.layout.pods.glob("*/pod.json")
    assert record.stat().st_mode & 0o077 == 0
    assert "s3cret" not in record.read_text()
    files: list[Path] = [path for path in local.layout.volume(uid, "s").rglob("pw") if not path.is_symlink()]
    assert [path.stat().st_mode & 0o777 for path in files] == [0o400]
