"""How pods come to their end: asked, waited for, killed, and gone from the store only then."""

from __future__ import annotations

from typing import Any

from muster.objects.status import Raw
from tests.agent.carrier.conftest import World, container_status, restarts, status, terminated

STUBBORN = "trap 'echo asked' TERM; echo up; while true; do sleep 0.1; done"
WILLING = "trap 'echo bye; exit 4' TERM; echo up; while true; do sleep 0.1; done"


async def watch_end(world: World, name: str = "p") -> list[Raw]:
    """Every version of the pod until it is gone."""
    pods = await world.store.resource("", "Pod")
    seen = []
    async for event in world.store.watch(pods, world.namespace, field_selector=f"metadata.name={name}", timeout_s=60):
        seen.append(event.object)
        if event.type.value == "DELETED":
            return seen
    raise AssertionError(f"it did not go: {seen[-1:]}")


async def test_a_deleted_pod_is_asked_to_end_and_its_end_is_seen(world: World) -> None:
    await world.create(WILLING, terminationGracePeriodSeconds=30)
    await world.printed("up")
    await world.delete()
    seen = await watch_end(world)
    assert any(terminated(pod).get("exitCode") == 4 for pod in seen), seen[-1]


async def test_one_that_does_not_listen_is_killed(world: World) -> None:
    await world.create(STUBBORN, terminationGracePeriodSeconds=1)
    await world.printed("up")
    await world.delete()
    seen = await watch_end(world)
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
    volume = {"name": "v", "emptyDir": {}}
    mount: dict[str, Any] = {"volumeMounts": [{"name": "v", "mountPath": "/v"}]}
    fast = {"periodSeconds": 1, "failureThreshold": 1}
    sick = world.container(
        "touch /v/alive; if [ ! -e /v/again ]; then touch /v/again; sleep 1; rm /v/alive; fi; sleep 1000",
        livenessProbe={"exec": {"command": ["cat", "/v/alive"]}, "initialDelaySeconds": 1, **fast},
        **mount,
    )
    await world.create(containers=[sick], volumes=[volume], restartPolicy="Always", terminationGracePeriodSeconds=0)
    pod = await world.when(lambda pod: restarts(pod) == 1 and container_status(pod).get("ready"))
    assert container_status(pod)["lastState"]["terminated"]["exitCode"] == 137
    if world.has("events"):
        assert any("liveness" in event["message"] for event in await world.events("Unhealthy"))


async def test_readiness_follows_what_the_probe_says(world: World) -> None:
    volume = {"name": "v", "emptyDir": {}}
    look = "cat /v/ready && touch /v/seen"
    probe = {"exec": {"command": ["sh", "-c", look]}, "periodSeconds": 1, "failureThreshold": 1}
    until_seen = "until [ -e /v/seen ]; do sleep 0.1; done; sleep 1"  # and has been reported
    script = f"while [ ! -e /v/go ]; do sleep 0.1; done; touch /v/ready; {until_seen}; rm /v/ready; sleep 1000"
    mount: dict[str, Any] = {"volumeMounts": [{"name": "v", "mountPath": "/v"}]}
    # The start of the second container is what the first one waits for: before that nobody is ready.
    go = world.container("touch /v/go; sleep 1000", "go", **mount)
    container = world.container(script, readinessProbe=probe, **mount)
    await world.create(containers=[container, go], volumes=[volume], terminationGracePeriodSeconds=0)
    await world.when(lambda pod: container_status(pod).get("ready") is True)
    pod = await world.when(lambda pod: container_status(pod).get("ready") is False)
    assert restarts(pod) == 0
    assert "running" in container_status(pod)["state"]


async def test_other_probes_wait_for_the_startup_probe(world: World) -> None:
    volume = {"name": "v", "emptyDir": {}}
    startup = {"exec": {"command": ["cat", "/v/up"]}, "periodSeconds": 1, "failureThreshold": 60}
    liveness = {"exec": {"command": ["cat", "/v/up"]}, "periodSeconds": 1, "failureThreshold": 1}
    container = world.container(
        "sleep 2; touch /v/up; sleep 1000",
        startupProbe=startup,
        livenessProbe=liveness,
        volumeMounts=[{"name": "v", "mountPath": "/v"}],
    )
    await world.create(containers=[container], volumes=[volume], terminationGracePeriodSeconds=0)
    pod = await world.when(lambda pod: "running" in container_status(pod).get("state", {}))
    assert (container_status(pod)["started"], container_status(pod)["ready"]) == (False, False)
    pod = await world.when(lambda pod: container_status(pod).get("started"))
    assert restarts(pod) == 0
