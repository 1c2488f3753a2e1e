"""`muster up` with real agents: jobs of parties, logs, and crashes of agent and server in the middle of a task."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from muster.agent.measuring import identify
from muster.sim.workloads import app_image, domain, job_task, kuscia_job
from tests.e2e.agent_world import KUBECTL, AgentWorld, pod

pytestmark = pytest.mark.slow

HOST = identify().hostname.lower()
COUNT = "echo begin $$; i=0; while [ $i -lt {n} ]; do echo line $i; i=$((i+1)); sleep 0.1; done; echo end $$"


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[AgentWorld]:
    made = AgentWorld(tmp_path)
    try:
        yield made
    finally:
        await made.close()


async def test_a_job_of_two_parties_runs_on_their_own_nodes(world: AgentWorld) -> None:
    """Parties that come after the start get agents of their own, and the machine is shared out anew."""
    await world.start()
    await world.until_ready(HOST)
    whole = (await world.get("node", HOST))["status"]["capacity"]["cpu"]
    image = app_image()
    container = image["spec"]["deployTemplates"][0]["spec"]["containers"][0]
    container["command"] = ["sh", "-c", "echo I am $(hostname); cat /etc/app.conf; id -u"]
    await world.apply(domain("alice"), domain("bob"), image)
    await world.until_ready(f"alice-{HOST}", f"bob-{HOST}")

    async def is_shared() -> bool:
        return bool((await world.get("node", HOST))["status"]["capacity"]["cpu"] != whole)

    await world.until(is_shared, "a smaller share for the node of no party")
    await world.apply(kuscia_job("psi", [job_task("one", ["alice", "bob"], cpu="100m")]))

    async def is_over() -> bool:
        job = await world.get("kusciajob", "psi", "-n", "cross-domain")
        return job.get("status", {}).get("phase") in ("Succeeded", "Failed")

    await world.until(is_over, "the job over")
    job = await world.get("kusciajob", "psi", "-n", "cross-domain")
    assert job["status"]["phase"] == "Succeeded", job["status"]
    users = set()
    for party in ("alice", "bob"):
        (one,) = (await world.get("pods", "-n", party))["items"]
        assert one["spec"]["nodeName"] == f"{party}-{HOST}"
        said = await world.kubectl("logs", one["metadata"]["name"], "-n", party)
        assert f"I am {one['metadata']['name']}" in said
        assert '"cluster"' in said, "its configuration was rendered and mounted"
        users.add(said.splitlines()[-1])
    assert len(users) == 2, "each task has a user of its own"


async def test_muster_run_shows_what_the_command_says(world: AgentWorld) -> None:
    await world.start("default")
    code, out, err = await world.muster("run", "--", "sh", "-c", "echo hello; exit 3")
    assert (code, out) == (3, "hello\n"), err
    code, out, _ = await world.muster("run", "--", "echo", "again")
    assert (code, out) == (0, "again\n")


async def test_logs_as_kubectl_asks_for_them(world: AgentWorld) -> None:
    await world.start("default")
    await world.apply(pod("count", COUNT.format(n=40)))
    await world.until_phase("count", "Running", "Succeeded")
    follower = await world.follow("logs", "-f", "count")
    assert follower.stdout is not None
    async with asyncio.timeout(120):
        followed = (await follower.stdout.read()).decode().splitlines()
    assert followed[1:-1] == [f"line {n}" for n in range(40)]
    await world.until_phase("count", "Succeeded")
    assert await world.kubectl("logs", "count", "--tail", "2") == f"line 39\n{followed[-1]}\n"
    assert await world.kubectl("logs", "count", "--limit-bytes", "5") == "begin"
    stamped = (await world.kubectl("logs", "count", "--timestamps")).splitlines()
    assert [line.partition(" ")[2] for line in stamped] == followed
    second = stamped[20][:19]  # kubectl sends whole seconds
    since = [line.partition(" ")[2] for line in stamped if line[:19] >= second]
    assert (await world.kubectl("logs", "count", f"--since-time={second}Z")).splitlines() == since
    assert (await world.kubectl("logs", "count", "--since", "1h")).splitlines() == followed
    flaky = "if [ -e /keep/ran ]; then echo second; sleep 1000; else touch /keep/ran; echo first; exit 1; fi"
    twice = pod("twice", flaky, restartPolicy="Always", volumes=[{"name": "keep", "emptyDir": {}}])
    twice["spec"]["containers"][0]["volumeMounts"] = [{"name": "keep", "mountPath": "/keep"}]
    await world.apply(twice)

    async def is_second() -> bool:
        (status,) = (await world.pod("twice"))["status"].get("containerStatuses") or [{}]
        return status.get("restartCount") == 1 and "running" in status["state"]

    await world.until(is_second, "the second run")
    assert await world.kubectl("logs", "twice") == "second\n"
    assert await world.kubectl("logs", "twice", "--previous") == "first\n"
    await world.kubectl("delete", "pod", "twice")


async def test_a_task_outlives_agent_and_server(world: AgentWorld) -> None:
    """kill -9 of both, one after the other, in the middle of a task: it goes on, once, and its log has no hole."""
    await world.start("default")
    await world.apply(pod("long", COUNT.format(n=250)))
    await world.until_phase("long", "Running")
    started = (await world.pod("long"))["status"]["containerStatuses"][0]["state"]["running"]["startedAt"]
    first = world.agent_pid("default")
    assert first is not None
    os.kill(first, signal.SIGKILL)

    async def is_replaced() -> bool:
        return world.agent_pid("default") not in (None, first)

    await world.until(is_replaced, "a new agent")
    second = world.agent_pid("default")
    await world.until_ready(HOST)
    await world.server.kill()
    assert world.agent_pid("default") == second, "an agent outlives the server"
    await world.start("default")

    async def is_replaced_again() -> bool:
        return world.agent_pid("default") not in (None, second)

    await world.until(is_replaced_again, "an agent of the new server's")
    over = await world.until_phase("long", "Succeeded", "Failed")
    (status,) = over["status"]["containerStatuses"]
    assert (over["status"]["phase"], status["restartCount"]) == ("Succeeded", 0)
    assert status["state"]["terminated"]["startedAt"] == started

    async def is_readable() -> bool:
        return (await world._run(str(KUBECTL), "logs", "long"))[0] == 0

    await world.until(is_readable, "its log")
    lines = (await world.kubectl("logs", "long")).splitlines()
    assert lines[0].replace("begin", "end") == lines[-1], "the same process from beginning to end"
    assert lines[1:-1] == [f"line {n}" for n in range(250)]


async def test_stopping_leaves_tasks_and_the_node_says_so(world: AgentWorld) -> None:
    await world.start("default")
    await world.apply(pod("long", "sleep 1000"))
    await world.until_phase("long", "Running")
    assert await world.server.stop() == 0
    assert world.agent_pid("default") is None
    log = (world.data_dir.parent / "muster-up.log").read_text()
    assert "the tasks of 1 pod go on" in log
    await world.server.start("--without", "agent")
    node = await world.get("node", HOST)
    (ready,) = [c for c in node["status"]["conditions"] if c["type"] == "Ready"]
    assert (ready["status"], ready["reason"]) == ("False", "AgentStopped")
    assert (await world.pod("long"))["status"]["phase"] == "Running"
    code, out, err = await world.muster("down", "--tasks", "--data-dir", str(world.data_dir))
    assert (code, "ended the tasks of 1 pod" in out) == (0, True), err
    await world.start("default")
    await world.until_phase("long", "Failed")


async def test_a_deleted_node_joins_again(world: AgentWorld) -> None:
    await world.start("default")
    await world.until_ready(HOST)
    uid = (await world.get("node", HOST))["metadata"]["uid"]
    await world.kubectl("delete", "node", HOST)

    async def is_back() -> bool:
        found = [node for node in (await world.get("nodes"))["items"] if node["metadata"]["name"] == HOST]
        return bool(found and found[0]["metadata"]["uid"] != uid)

    await world.until(is_back, "a new node")
    await world.until_ready(HOST)


async def test_a_pod_finds_its_token_where_kubernetes_puts_it(world: AgentWorld) -> None:
    await world.start()
    await world.until_ready(HOST)
    where = "/var/run/secrets/kubernetes.io/serviceaccount"
    script = f"cd {where}; cat namespace; echo; head -1 ca.crt; cat token"
    await world.apply(pod("asker", script, automountServiceAccountToken=True))
    assert (await world.until_phase("asker", "Succeeded", "Failed"))["status"]["phase"] == "Succeeded"
    namespace, certificate, token = (await world.kubectl("logs", "asker")).split("\n")
    assert (namespace, certificate) == ("default", "-----BEGIN CERTIFICATE-----")
    server = json.loads((world.data_dir / "server.json").read_text())["url"]
    ca = str(world.data_dir / "pki" / "ca.crt")
    asked = ("auth", "whoami", "-o", "json", "--kubeconfig", "/dev/null", "--server", server, "--certificate-authority", ca)
    info = json.loads(await world.kubectl(*asked, "--token", token))["status"]["userInfo"]
    assert info["username"] == "system:serviceaccount:default:default"
    assert info["extra"]["authentication.kubernetes.io/pod-name"] == ["asker"]
    assert info["extra"]["authentication.kubernetes.io/node-name"] == [HOST]
