"""What every carrier does with a pod from its start to its end: codes, environment, order, policies."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from tests.agent.carrier.conftest import World, condition, container_status, restarts, status, terminated
from tests.waiting import until


@pytest.mark.parametrize(("code", "phase", "reason"), [(0, "Succeeded", "Completed"), (3, "Failed", "Error")])
async def test_a_pod_ends_as_its_command_does(world: World, code: int, phase: str, reason: str) -> None:
    await world.create(f"echo out; echo err >&2; exit {code}")
    pod = await world.ended()
    assert status(pod)["phase"] == phase
    found = terminated(pod)
    assert (found["exitCode"], found["reason"]) == (code, reason)
    assert found["startedAt"] <= found["finishedAt"]
    assert container_status(pod)["ready"] is False
    assert condition(pod, "Ready") == "False"
    assert condition(pod, "PodScheduled") == "True"
    lines = (await world.logs()).splitlines()
    assert sorted(lines) == ["err", "out"]


@pytest.mark.parametrize(("command", "has_started"), [("/bin/sh", True), ("/no/such/program", False)])
@pytest.mark.needs("events")
async def test_only_what_did_start_is_said_to_have_started(world: World, command: str, has_started: bool) -> None:
    container = world.container(command=[command, "-c", "exit 7"])
    await world.create(containers=[container])
    found = terminated(await world.ended())
    assert found["reason"] == ("Error" if has_started else "StartError")

    async def is_said() -> bool:
        return bool(await world.events("Started" if has_started else "Failed"))

    await until(is_said)
    assert len(await world.events("Started")) == has_started
    messages = [event["message"] for event in await world.events("Failed")]
    assert has_started or "/no/such/program" in messages[0]


async def test_a_running_pod_shows_what_a_kubelet_shows(world: World) -> None:
    await world.create("sleep 1000", terminationGracePeriodSeconds=0)
    pod = await world.phase("Running")
    found = container_status(pod)
    assert found["state"]["running"]["startedAt"]
    assert (found["ready"], found["started"], found["restartCount"]) == (True, True, 0)
    assert "://" in found["containerID"]
    assert status(pod)["startTime"]
    assert status(pod)["podIP"]
    assert status(pod)["hostIP"]
    assert status(pod)["qosClass"] == "BestEffort"
    assert {c["type"]: c["status"] for c in status(pod)["conditions"]} == {
        "PodScheduled": "True",
        "Initialized": "True",
        "ContainersReady": "True",
        "Ready": "True",
    }


async def test_the_environment_comes_from_everywhere(world: World) -> None:
    await world.make("ConfigMap", "cm", data={"one": "1", "two": "2"})
    secret = base64.b64encode(b"s3cret").decode()
    await world.make("Secret", "sec", data={"pw": secret})
    env = [
        {"name": "PLAIN", "value": "plain"},
        {"name": "MADE", "value": "<$(PLAIN)> $$(PLAIN) $(NOBODY)"},
        {"name": "ONE", "valueFrom": {"configMapKeyRef": {"name": "cm", "key": "one"}}},
        {"name": "PW", "valueFrom": {"secretKeyRef": {"name": "sec", "key": "pw"}}},
        {"name": "NONE", "valueFrom": {"secretKeyRef": {"name": "nothing", "key": "pw", "optional": True}}},
        {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": "APP", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['app']"}}},
        {"name": "MEM", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}}},
    ]
    container = world.container(
        env=env,
        envFrom=[{"prefix": "CM_", "configMapRef": {"name": "cm"}}],
        command=["sh", "-c"],
        args=["echo arg=$(PLAIN); env"],
        resources={"limits": {"memory": "64Mi"}},
    )
    await world.create(containers=[container])
    pod = await world.ended()
    assert status(pod)["phase"] == "Succeeded", pod
    text = await world.logs()
    found = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    expected = {
        "arg": "plain",
        "PLAIN": "plain",
        "MADE": "<plain> $(PLAIN) $(NOBODY)",
        "ONE": "1",
        "PW": "s3cret",
        "POD": "p",
        "NODE": world.carrier.node,
        "APP": "a",
        "MEM": "64",
        "CM_one": "1",
        "CM_two": "2",
    }
    assert {key: found.get(key) for key in expected} == expected
    assert "NONE" not in found


async def test_a_pod_waits_for_the_config_map_that_it_names(world: World) -> None:
    env = [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "later", "key": "a"}}}]
    await world.create(containers=[world.container("echo $A", env=env)])
    pod = await world.when(lambda pod: container_status(pod).get("state", {}).get("waiting", {}).get("message"))
    waiting = container_status(pod)["state"]["waiting"]
    assert waiting["reason"] == "CreateContainerConfigError"
    assert "later" in waiting["message"]
    assert status(pod)["phase"] == "Pending"


async def test_init_containers_run_in_order_before_the_rest(world: World) -> None:
    volume = {"name": "v", "emptyDir": {}}
    mount: dict[str, Any] = {"volumeMounts": [{"name": "v", "mountPath": "/shared"}]}
    inits = [
        world.container("echo one >> /shared/f", "first", **mount),
        world.container("echo two >> /shared/f", "second", **mount),
    ]
    mains = [
        world.container("cat /shared/f; echo three", "main", **mount),
        world.container("cat /shared/f", "other", **mount),
    ]
    await world.create(initContainers=inits, containers=mains, volumes=[volume])
    pod = await world.ended()
    assert status(pod)["phase"] == "Succeeded"
    assert (await world.logs()).split() == ["one", "two", "three"]
    assert (await world.logs(container="other")).split() == ["one", "two"]
    assert [one["state"]["terminated"]["exitCode"] for one in status(pod)["initContainerStatuses"]] == [0, 0]
    assert condition(pod, "Initialized") == "True"


async def test_a_failed_init_container_fails_the_pod(world: World) -> None:
    await world.create(initContainers=[world.container("exit 7", "first")], containers=[world.container("echo no")])
    pod = await world.ended()
    assert status(pod)["phase"] == "Failed"
    assert terminated(pod, "first")["exitCode"] == 7
    assert container_status(pod)["state"]["waiting"]["reason"] == "PodInitializing"
    assert condition(pod, "Initialized") == "False"


async def test_on_failure_runs_again_until_it_succeeds(world: World) -> None:
    volume = {"name": "v", "emptyDir": {}}
    script = "if [ -e /v/seen ]; then echo second; exit 0; fi; touch /v/seen; echo first; exit 5"
    container = world.container(script, volumeMounts=[{"name": "v", "mountPath": "/v"}])
    await world.create(containers=[container], volumes=[volume], restartPolicy="OnFailure")
    pod = await world.ended()
    assert status(pod)["phase"] == "Succeeded"
    assert restarts(pod) == 1
    assert container_status(pod)["lastState"]["terminated"]["exitCode"] == 5
    assert await world.logs() == "second\n"
    assert await world.logs(previous=True) == "first\n"


async def test_always_backs_off_from_what_keeps_failing(world: World) -> None:
    await world.create("exit 1", restartPolicy="Always")

    def is_backing_off(pod: object) -> bool:
        assert isinstance(pod, dict)
        return bool(container_status(pod).get("state", {}).get("waiting", {}).get("reason") == "CrashLoopBackOff")

    pod = await world.when(is_backing_off)
    assert status(pod)["phase"] == "Running"
    assert restarts(pod) >= 1
    assert container_status(pod)["lastState"]["terminated"]["exitCode"] == 1


async def test_a_command_that_is_not_there(world: World) -> None:
    await world.create(containers=[world.container(command=["/no/such/program"])])
    pod = await world.ended()
    assert status(pod)["phase"] == "Failed"
    found = terminated(pod)
    assert found["exitCode"] in (126, 127, 128)
    assert found["message"]


async def test_several_containers_fail_if_one_does(world: World) -> None:
    await world.create(containers=[world.container("exit 0", "good"), world.container("exit 2", "bad")])
    pod = await world.ended()
    assert status(pod)["phase"] == "Failed"
    assert (terminated(pod, "good")["exitCode"], terminated(pod, "bad")["exitCode"]) == (0, 2)


async def test_last_words(world: World) -> None:
    told = world.container("echo bye > /last/words; exit 1", "told", terminationMessagePath="/last/words")
    quiet = world.container("echo in the log; exit 1", "quiet", terminationMessagePolicy="FallbackToLogsOnError")
    await world.create(containers=[told, quiet])
    pod = await world.ended()
    assert terminated(pod, "told")["message"].strip() == "bye"
    assert terminated(pod, "quiet")["message"].strip() == "in the log"


async def test_hooks_around_start_and_end(world: World) -> None:
    volume = {"name": "v", "emptyDir": {}}
    lifecycle = {
        "postStart": {"exec": {"command": ["sh", "-c", "echo begun > /v/begun"]}},
        "preStop": {"exec": {"command": ["sh", "-c", "echo asked > /v/asked"]}},
    }
    script = "trap 'cat /v/begun /v/asked; exit 0' TERM; while true; do sleep 0.1; done"
    container = world.container(script, lifecycle=lifecycle, volumeMounts=[{"name": "v", "mountPath": "/v"}])
    await world.create(containers=[container], volumes=[volume], activeDeadlineSeconds=2)
    pod = await world.ended()
    assert status(pod)["reason"] == "DeadlineExceeded"
    assert (await world.logs()).split() == ["begun", "asked"]


async def test_logs_by_tail_time_and_limit(world: World) -> None:
    await world.create("for i in 1 2 3 4 5; do echo line $i; done")
    await world.ended()
    assert await world.logs(tail_lines=2) == "line 4\nline 5\n"
    assert await world.logs(limit_bytes=6) == "line 1"
    stamped = (await world.logs(timestamps=True)).splitlines()
    assert all(line.split(" ", 1)[1].startswith("line ") for line in stamped)
    assert await world.logs(follow=True) == await world.logs()
