"""Connections into pods, as the carrier gives them: what it finds, what it refuses, and how it says so."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from muster.agent.contracts import AgentError, ExecWant, StreamTarget
from tests.agent.carrier.carriers import LocalCarrier
from tests.agent.carrier.conftest import World
from tests.agent.carrier.elsewhere import KubernetesCarrier
from tests.agent.talking import finished, read_all
from tests.waiting import until


def target(world: World, container: str = "main", **more: Any) -> StreamTarget:
    return StreamTarget(**{"namespace": world.namespace, "pod": "p", "container": container, **more})


@pytest.fixture
def local(world: World) -> LocalCarrier:
    if isinstance(world.carrier, KubernetesCarrier):
        pytest.skip("has a test of its own")
    assert isinstance(world.carrier, LocalCarrier)
    return world.carrier


async def refused(world: World, where: StreamTarget, *argv: str) -> AgentError:
    with pytest.raises(AgentError) as e:
        await world.carrier.open_exec(where, ExecWant(argv=argv or ("true",)))
    assert "\n" not in e.value.message
    return e.value


async def test_a_command_in_a_pod(world: World, local: LocalCarrier) -> None:
    await world.create("echo up; sleep 1000")
    await world.printed("up")
    uid = (await world.get())["metadata"]["uid"]

    for where in (target(world), target(world, ""), target(world, uid=uid)):
        session = await world.carrier.open_exec(where, ExecWant(argv=("sh", "-c", "cat; exit 3"), has_stdin=True))
        session.close_stdin()
        assert await finished(session) == (3, b"", b"")


async def test_what_is_not_there(world: World, local: LocalCarrier) -> None:
    await world.create("echo up; sleep 1000")
    await world.printed("up")

    for where in (target(world, pod="q"), target(world, namespace="other"), target(world, uid="another")):
        e = await refused(world, where)
        assert (e.reason, e.message) == ("NotFound", f"pod {where.namespace}/{where.pod} has nothing on this node")
    e = await refused(world, target(world, "side"))
    assert (e.reason, "has no container 'side'; it has main" in e.message) == ("BadRequest", True)


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        pytest.param((), "empty", id="none"),
        pytest.param(("",), "empty", id="of no name"),
        pytest.param(("true", "a\0b"), "zero byte", id="zero byte"),
        pytest.param(("true", "\ud800"), "can't be passed", id="no text"),
        pytest.param(("true", *["x"] * 5000), "more than 4096 words", id="many words"),
        pytest.param(("true", "x" * 2**21), "1048576 bytes", id="many bytes"),
    ],
)
async def test_bad_commands(world: World, local: LocalCarrier, argv: tuple[str, ...], text: str) -> None:
    await world.create("echo up; sleep 1000")
    await world.printed("up")

    with pytest.raises(AgentError, match=text) as e:
        await world.carrier.open_exec(target(world), ExecWant(argv=argv))

    assert e.value.reason == "BadRequest"


async def test_a_word_that_the_kernel_finds_too_long(world: World, local: LocalCarrier) -> None:
    await world.create("echo up; sleep 1000")
    await world.printed("up")

    e = await refused(world, target(world), "echo", "x" * 500_000)

    assert (e.reason, "too long" in e.message) == ("ExecFailed", True)


async def test_a_container_that_has_ended_or_waits(world: World, local: LocalCarrier) -> None:
    containers = [world.container("echo up; sleep 1000"), world.container("exit 0", "short")]
    await world.create(containers=containers)
    await world.printed("up")
    waiting = [world.container("sleep 1000", "first")]
    await world.create(name="w", containers=[world.container("true")], initContainers=waiting)

    async def has_ended() -> bool:
        try:
            await finished(await world.carrier.open_exec(target(world, "short"), ExecWant(argv=("true",))))
        except AgentError as e:
            return e.message == f'container "short" in pod "{world.namespace}/p" is not running'
        return False

    async def has_begun() -> bool:
        try:
            await finished(await world.carrier.open_exec(target(world, "first", pod="w"), ExecWant(argv=("true",))))
        except AgentError:
            return False
        return True

    await until(has_ended)
    await until(has_begun)
    e = await refused(world, target(world, "main", pod="w"))
    assert (e.reason, e.message) == ("BadRequest", f'container "main" in pod "{world.namespace}/w" is not running')
    e = await refused(world, target(world, ""))
    assert e.message == f"pod {world.namespace}/p has several containers, name one of main, short"


async def test_a_new_agent_finds_what_runs(world: World, local: LocalCarrier) -> None:
    await world.create("echo up; sleep 1000")
    await world.printed("up")
    await local.stop()
    await local.start()

    async def is_found() -> bool:
        try:
            return (await finished(await world.carrier.open_exec(target(world), ExecWant(argv=("true",)))))[0] == 0
        except AgentError:
            return False

    await until(is_found)


@pytest.mark.parametrize("is_on_host", [True, False], ids=["host network", "none of its own"])
async def test_ports_where_pods_share_the_network_of_the_node(world: World, local: LocalCarrier, is_on_host: bool) -> None:
    """A pod that merely has no network of its own is no door to what listens on the node."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        await world.create("echo up; sleep 1000", hostNetwork=is_on_host)
        await world.printed("up")
        if not is_on_host:
            with pytest.raises(AgentError, match=f"port {port} could be one of the node itself") as e:
                await local.dial(target(world, ""), port)
            assert e.value.reason == "NotSupported"
            return
        with await local.dial(target(world, ""), port) as ours, listener.accept()[0] as theirs:
            assert not ours.getblocking()
            theirs.sendall(b"hello")
            theirs.shutdown(socket.SHUT_WR)
            assert await read_all(ours.fileno()) == b"hello"
    with pytest.raises(AgentError, match=f"port {port} of pod {world.namespace}/p: Connection refused") as e:
        await local.dial(target(world, ""), port)
    assert e.value.reason == "ConnectionRefused"


@pytest.mark.parametrize("port", [0, -1, 65536, 10**9])
async def test_no_ports(world: World, local: LocalCarrier, port: int) -> None:
    await world.create("echo up; sleep 1000", hostNetwork=True)
    await world.printed("up")

    with pytest.raises(AgentError, match="a port is between 1 and 65535") as e:
        await local.dial(target(world, ""), port)
    assert e.value.reason == "BadRequest"


async def test_ports_of_what_is_not_running(world: World, local: LocalCarrier) -> None:
    await world.create("true", hostNetwork=True)
    await world.phase("Succeeded")

    for container in ("", "main"):
        with pytest.raises(AgentError, match="running") as e:
            await local.dial(target(world, container), 80)
        assert e.value.reason == "BadRequest"
    with pytest.raises(AgentError) as e:
        await local.dial(target(world, pod="q"), 80)
    assert e.value.reason == "NotFound"


async def test_pods_of_another_cluster(world: World) -> None:
    if not isinstance(world.carrier, KubernetesCarrier):
        pytest.skip("of the kubernetes runtime only")
    asked = (world.carrier.open_exec(target(world), ExecWant(argv=("true",))), world.carrier.dial(target(world), 80))
    for found in await asyncio.gather(*asked, return_exceptions=True):
        assert isinstance(found, AgentError)
        assert (found.reason, "runs in another cluster" in found.message) == ("NotSupported", True)
