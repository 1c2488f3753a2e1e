"""How pods come to their end: asked, waited for, killed, and gone from the store only then."""

from __future__ import annotations

from muster.objects.status import Raw
from tests.agent.carrier.conftest import World, container_status, restarts, status, terminated
from tests.waiting import until

VOLUME = {"name": "v", "emptyDir": {}}
MOUNT = {"name": "v", "mountPath": "/v"}
STUBBORN = "trap 'echo asked' TERM; echo up; while true; do sleep 0.1; done"
WILLING = "trap 'echo bye; exit 4' TERM; echo up; while true; do sleep 0.1; done"


def probe(script: str) -> Raw:
    """Often, and one failure counts, but being slow is none: a busy machine takes its time to start a shell."""
    return {"exec": {"command": ["sh", "-c", script]}, "periodSeconds": 1, "failureThreshold": 1, "timeoutSeconds": 60}


async def delete_and_watch(world: World, name: str = "p") -> list[Raw]:
    """Every version of the pod from then on until it is gone."""
    pods = await world.store.resource("", "Pod")
    version = (await world.get(name))["metadata"]["resourceVersion"]
    await world.delete(name)
    seen = []
    async for event in world.store.watch(
        pods, world.namespace, field_selector=f"metadata.name={name}", resource_version=version, timeout_s=60
    ):
        seen.append(event.object)
        if event.type.value == "DELETED":
            return seen
    raise AssertionError(f"it did not go: {seen[-1:]}")


async def test_a_deleted_pod_is_asked_to_end_and_its_end_is_seen(world: World) -> None:
    await world.create(WILLING, terminationGracePeriodSeconds=30)
    await world.printed("up")
    seen = await delete_and_watch(world)
    assert any(terminated(pod).get("exitCode") == 4 for pod in seen), seen[-1]


async def test_one_that_does_not_listen_is_killed(world: World) -> None:
    await world.create(STUBBORN, terminationGracePeriodSeconds=1)
    await world.printed("up")
    seen = await delete_and_watch(world)
    assert any(terminated(pod).get("exitCode") == 137 for pod in seen), seen[-1]


async def test_deleting_by_force_ends_it_too(world: World) -> None:
    """That nothing is left is what the fixture checks."""
    await world.create(STUBBORN, terminationGracePeriodSeconds=1000)
    await world.printed("up")
    await world.delete(grace_s=0)
    await world.gone()


async def test_a_pod_is_deleted_before_it_ever_ran(world: World) -> None:
    container = world.container("true", volumeMounts=[{"name": "v", "mountPath": "/v"}])
    await world.create(containers=[container], volumes=[{"name": "v", "configMap": {"name": "never"}}])
    await world.when(lambda pod: status(pod).get("startTime"))
    await world.delete()
    await world.gone()


async def test_a_name_can_be_used_again_at_once(world: World) -> None:
    await world.create(STUBBORN, terminationGracePeriodSeconds=1000)
    await world.printed("up")
    await world.delete(grace_s=0)
    await world.gone()
    await world.create("echo second")
    await world.phase("Succeeded")
    assert await world.logs() == "second\n"


async def test_a_finished_pod_keeps_its_log_until_it_is_deleted(world: World) -> None:
    await world.create("echo done")
    await world.phase("Succeeded")
    assert await world.logs() == "done\n"
    await world.delete()
    await world.gone()


async def test_the_deadline_of_a_pod(world: World) -> None:
    await world.create("sleep 1000", activeDeadlineSeconds=1, restartPolicy="Always", terminationGracePeriodSeconds=1)
    pod = await world.ended()
    assert (status(pod)["phase"], status(pod)["reason"]) == ("Failed", "DeadlineExceeded")
    assert terminated(pod)["exitCode"] in (137, 143)


async def test_children_that_left_their_parent_end_with_the_container(world: World) -> None:
    await world.create("(setsid sleep 1000 &) ; (setsid sleep 1000 &) ; echo up; exit 0")
    await world.phase("Succeeded")
    await world.delete()
    await world.gone()


async def test_liveness_restarts_and_readiness_does_not(world: World) -> None:
    look = "[ ! -e /v/sick ] || { rm /v/sick; false; }"  # sick once, whenever it is looked at
    sick = world.container(
        "if [ ! -e /v/again ]; then touch /v/again /v/sick; fi; sleep 1000", livenessProbe=probe(look), volumeMounts=[MOUNT]
    )
    await world.create(containers=[sick], volumes=[VOLUME], restartPolicy="Always", terminationGracePeriodSeconds=0)
    pod = await world.when(lambda pod: restarts(pod) == 1 and container_status(pod).get("ready"))
    assert container_status(pod)["lastState"]["terminated"]["exitCode"] == 137
    if world.has("events"):

        async def is_told() -> bool:
            return any("liveness" in event["message"] for event in await world.events("Unhealthy"))

        await until(is_told)


async def test_readiness_follows_what_the_probe_says(world: World) -> None:
    # The start of the second container is what the first one waits for: before that nobody is ready.
    go = world.container("touch /v/go; sleep 1000", "go", volumeMounts=[MOUNT])
    script = "while [ ! -e /v/go ]; do sleep 0.1; done; touch /v/ready; sleep 1000"
    container = world.container(script, readinessProbe=probe("cat /v/ready"), volumeMounts=[MOUNT])
    await world.create(containers=[container, go], volumes=[VOLUME], terminationGracePeriodSeconds=0)
    await world.when(lambda pod: container_status(pod).get("ready") is True)
    (folder,) = world.carrier.volumes("v")
    (folder / "ready").unlink()
    pod = await world.when(lambda pod: container_status(pod).get("ready") is False)
    assert restarts(pod) == 0
    assert "running" in container_status(pod)["state"]


async def test_other_probes_wait_for_the_startup_probe(world: World) -> None:
    container = world.container(
        "sleep 1000",
        startupProbe={**probe("echo asked >> /v/startup; cat /v/up"), "failureThreshold": 1000},
        livenessProbe=probe("echo asked >> /v/liveness; cat /v/up"),
        volumeMounts=[MOUNT],
    )
    await world.create(containers=[container], volumes=[VOLUME], terminationGracePeriodSeconds=0)
    pod = await world.when(lambda pod: "running" in container_status(pod).get("state", {}))
    assert (container_status(pod)["started"], container_status(pod)["ready"]) == (False, False)
    (folder,) = world.carrier.volumes("v")

    def asked(kind: str) -> int:
        file = folder / kind
        return len(file.read_text().splitlines()) if file.exists() else 0

    async def is_asked_often() -> bool:  # so long that any other, as often, would have been asked too
        return asked("startup") >= 3

    async def is_asked_if_alive() -> bool:
        return asked("liveness") > 0

    await until(is_asked_often)
    assert asked("liveness") == 0
    (folder / "up").touch()
    await world.when(lambda pod: container_status(pod).get("started"))
    await until(is_asked_if_alive)
    assert restarts(await world.get()) == 0
