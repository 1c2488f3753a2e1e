"""The carrier goes and comes back, the store goes and comes back: work goes on, nothing is lost, nothing runs twice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.agent.carrier.carriers import LocalCarrier
from tests.agent.carrier.conftest import World, container_status, restarts, status, terminated
from tests.waiting import until

MARKED = "echo started; while [ ! -e /v/go ]; do sleep 0.1; done; echo ended; touch /v/over; exit 3"
MOUNT = {"name": "v", "mountPath": "/v"}
VOLUME = {"name": "v", "emptyDir": {}}


async def marked_pod(world: World) -> Path:
    """A pod that ends when there is a file `go` in its volume, which is what is returned; its last act is a file `over`."""
    await world.create(containers=[world.container(MARKED, volumeMounts=[MOUNT])], volumes=[VOLUME])
    await world.printed("started")
    (folder,) = world.carrier.volumes("v")
    return folder


@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_a_new_carrier_takes_back_what_runs(world: World, how: str) -> None:
    folder = await marked_pod(world)
    await (world.carrier.stop() if how == "stop" else world.carrier.kill())
    await world.carrier.start()
    (folder / "go").touch()
    pod = await world.ended()
    assert terminated(pod)["exitCode"] == 3
    assert (await world.logs()).split() == ["started", "ended"]
    assert restarts(pod) == 0


@pytest.mark.needs("records")
async def test_what_ended_meanwhile_is_reported_afterwards(world: World) -> None:
    folder = await marked_pod(world)
    await world.carrier.kill()
    (folder / "go").touch()

    async def is_over() -> bool:
        return (folder / "over").exists()

    await until(is_over)
    await world.carrier.start()
    pod = await world.ended()
    assert terminated(pod)["exitCode"] == 3
    assert (await world.logs()).split() == ["started", "ended"]


async def test_a_pod_deleted_by_force_meanwhile_is_ended(world: World) -> None:
    await world.create("echo up; sleep 1000")
    await world.printed("up")
    await world.carrier.kill()
    await world.delete(grace_s=0)
    await world.carrier.start()
    await world.gone()  # and the fixture finds nothing left


@pytest.mark.needs("records")
async def test_a_restarted_container_goes_on_counting(world: World) -> None:
    await world.create("echo once; exit 1", restartPolicy="Always")
    await world.when(lambda pod: restarts(pod) == 1)
    await world.carrier.stop()
    await world.carrier.start()
    pod = await world.when(lambda pod: restarts(pod) >= 1 and "waiting" in container_status(pod).get("state", {}))
    assert container_status(pod)["lastState"]["terminated"]["exitCode"] == 1


@pytest.mark.needs("records", "hostpath")
async def test_a_new_carrier_starts_the_next_run_with_all_volumes(world: World) -> None:
    assert isinstance(world.carrier, LocalCarrier)
    world.carrier.allowed.chmod(0o777)
    await world.make("ConfigMap", "cm", data={"k": "v"})
    volumes = [{"name": "h", "hostPath": {"path": str(world.carrier.allowed)}}, {"name": "c", "configMap": {"name": "cm"}}]
    mounts = [{"name": "h", "mountPath": "/h"}, {"name": "c", "mountPath": "/c"}]
    script = "cat /c/k; [ -e /h/seen ] && exit 0; touch /h/seen; echo first; sleep 2; exit 1"
    container = world.container(script, volumeMounts=mounts)
    await world.create(containers=[container], volumes=volumes, restartPolicy="OnFailure")
    await world.printed("first")
    await world.carrier.kill()
    await world.carrier.start()
    pod = await world.ended()
    assert (status(pod)["phase"], restarts(pod)) == ("Succeeded", 1)


@pytest.mark.needs("records")
async def test_a_pod_without_a_trace_is_not_started_again(world: World) -> None:
    """The store says that it was started here; the machine knows nothing of it."""
    await world.carrier.stop()
    await world.create("echo never")
    pods = await world.store.resource("", "Pod")
    running = {"name": "main", "image": "x", "imageID": "", "ready": True, "restartCount": 0, "state": {"running": {}}}
    body = {"status": {"phase": "Running", "startTime": "2026-01-01T00:00:00Z", "containerStatuses": [running]}}
    await world.store.patch(pods, "p", body, world.namespace, subresource="status")
    await world.carrier.start()
    pod = await world.ended()
    assert (status(pod)["phase"], status(pod)["reason"]) == ("Failed", "NodeLost")
    assert terminated(pod)["reason"] == "ContainerStatusUnknown"


@pytest.mark.needs("records")
async def test_work_goes_on_while_the_store_is_away(world: World) -> None:
    script = "n=$(cat /v/n 2>/dev/null || echo 0); echo $((n + 1)) > /v/n; echo run $n; [ $n = 1 ] || { sleep 1; exit 1; }"
    container = world.container(script, volumeMounts=[{"name": "v", "mountPath": "/v"}])
    await world.create(containers=[container], volumes=[{"name": "v", "emptyDir": {}}], restartPolicy="OnFailure")
    await world.printed("run 0")
    world.outage.go()
    await world.printed("run 1")

    async def is_refused() -> bool:
        return world.outage.refused > 3

    await until(is_refused)
    world.outage.come_back()
    pod = await world.ended()
    assert (status(pod)["phase"], restarts(pod)) == ("Succeeded", 1)


@pytest.mark.needs("records")
async def test_a_new_carrier_goes_on_while_the_store_is_away(world: World) -> None:
    script = "if [ -e /v/seen ]; then echo second; exit 0; fi; touch /v/seen; echo first; sleep 2; exit 5"
    container = world.container(script, volumeMounts=[{"name": "v", "mountPath": "/v"}])
    await world.create(containers=[container], volumes=[{"name": "v", "emptyDir": {}}], restartPolicy="OnFailure")
    await world.printed("first")
    world.outage.go()
    await world.carrier.kill()
    await world.carrier.start()
    await world.printed("second")
    world.outage.come_back()
    pod = await world.ended()
    assert (status(pod)["phase"], restarts(pod)) == ("Succeeded", 1)
    assert container_status(pod)["lastState"]["terminated"]["exitCode"] == 5


@pytest.mark.needs("reports")
async def test_progress_and_records(world: World) -> None:
    script = (
        """echo '{"progress": 0.25}' >> $MUSTER_REPORT; echo nonsense >> $MUSTER_REPORT; """
        """while [ ! -e /v/go ]; do sleep 0.1; done; echo '{"records": {"rows": 12}}' >> $MUSTER_REPORT; """
        """echo '{"progress": 1, "records": {"hits": 3}}' >> $MUSTER_REPORT"""
    )
    await world.create(containers=[world.container(script, volumeMounts=[MOUNT])], volumes=[VOLUME])

    def annotation(pod: dict[str, object], key: str) -> str:
        metadata = pod["metadata"]
        assert isinstance(metadata, dict)
        return str((metadata.get("annotations") or {}).get(key, ""))

    await world.when(lambda pod: annotation(pod, "muster.dev/progress") == "0.25")
    (folder,) = world.carrier.volumes("v")
    (folder / "go").touch()
    pod = await world.when(lambda pod: annotation(pod, "muster.dev/progress") == "1")
    pod = await world.ended()
    assert json.loads(annotation(pod, "muster.dev/records")) == {"rows": 12, "hits": 3}
