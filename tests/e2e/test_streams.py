"""Connections into running pods as users make them: `kubectl exec`, `cp`, `port-forward`, and the official Python client.

Everything is real: `muster up`, an agent, tasks as processes with a network of their own, kubectl under a terminal.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import io
import os
import pty
import re
import struct
import subprocess
import termios
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.e2e.agent_world import KUBECTL, WAIT_S, AgentWorld, pod

pytestmark = pytest.mark.slow

PROCESSES = "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"
MEGABYTES = os.urandom(4 << 20)
CONNECT = 'import socket; socket.create_connection(("127.0.0.1", 8000))'
SERVE = """python3 -c '
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[::-1])
http.server.ThreadingHTTPServer(("127.0.0.1", 8000), Handler).serve_forever()
'"""


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[AgentWorld]:
    made = AgentWorld(tmp_path)
    try:
        await made.start("default")
        yield made
    finally:
        await made.close()


async def run(world: AgentWorld, *args: str, stdin: bytes = b"") -> tuple[int, bytes, str]:
    child = await asyncio.create_subprocess_exec(
        str(KUBECTL), *args, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=world.environ
    )
    async with asyncio.timeout(WAIT_S):
        out, err = await child.communicate(stdin)
    return child.returncode or 0, out, err.decode()


async def test_commands_beside_a_task(world: AgentWorld, tmp_path: Path) -> None:
    await world.apply(pod("busy", "echo started; sleep 1000"))
    await world.until_phase("busy", "Running")

    assert await run(world, "exec", "busy", "--", "sh", "-c", "echo out; echo err >&2") == (0, b"out\n", "err\n")
    code, out, err = await run(world, "exec", "busy", "--", "sh", "-c", "echo half; exit 7")
    assert (code, out) == (7, b"half\n"), err
    assert "exit code 7" in err
    code, out, err = await run(world, "exec", "busy", "--", "/no/such/program")
    assert code != 0
    assert "/no/such/program" in err, err
    code, out, err = await run(world, "exec", "-i", "busy", "--", "sha256sum", stdin=MEGABYTES)
    assert (code, out.split()[0].decode()) == (0, hashlib.sha256(MEGABYTES).hexdigest()), err
    code, out, err = await run(world, "exec", "-i", "busy", "--", "cat", stdin=MEGABYTES)
    assert code == 0, err
    assert out == MEGABYTES
    # It is the task's own place: its processes, its name, its user.
    code, out, err = await run(world, "exec", "busy", "--", "sh", "-c", "hostname; id -u; " + PROCESSES)
    name, user, processes = out.split(b"\n", 2)
    assert name == b"busy", err
    assert user != b"0"
    assert b"sleep 1000" in processes

    # As on Kubernetes, the size comes after the start.
    sized = "until [ \"$(stty size)\" != '0 0' ]; do :; done; stty size"
    assert await on_terminal(world, 40, 100, "exec", "-i", "-t", "busy", "--", "sh", "-c", sized) == b"40 100\r\n"

    here = tmp_path / "here"
    (here / "below").mkdir(parents=True)
    (here / "below" / "data").write_bytes(MEGABYTES)
    (here / "note").write_text("x\n")
    assert (await run(world, "cp", str(here), "busy:/tmp/there"))[0] == 0
    assert (await run(world, "cp", "busy:/tmp/there", str(tmp_path / "back")))[0] == 0
    assert (tmp_path / "back" / "below" / "data").read_bytes() == MEGABYTES
    assert (tmp_path / "back" / "note").read_text() == "x\n"

    code, _, err = await run(world, "exec", "busy", "-c", "nobody", "--", "true")
    assert code != 0
    assert "container nobody" in err, err
    await world.kubectl("delete", "pod", "busy", "--grace-period=1")


async def on_terminal(world: AgentWorld, rows: int, columns: int, *args: str) -> bytes:
    """What a terminal of that size shows while kubectl runs on it."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    child = await asyncio.create_subprocess_exec(
        str(KUBECTL), *args, stdin=slave, stdout=slave, stderr=slave, env=world.environ, start_new_session=True
    )
    os.close(slave)
    shown = bytearray()

    def read() -> None:
        with contextlib.suppress(OSError):  # the other end is closed: EIO
            while data := os.read(master, 65536):
                shown.extend(data)

    try:
        async with asyncio.timeout(WAIT_S):
            reading = asyncio.create_task(asyncio.to_thread(read))
            assert await child.wait() == 0, bytes(shown)
            await reading
    finally:
        os.close(master)
    return bytes(shown)


async def test_who_goes_away_takes_the_command_along(world: AgentWorld) -> None:
    await world.apply(pod("busy", "sleep 1000"))
    await world.until_phase("busy", "Running")
    child = await world.follow("exec", "busy", "--", "sh", "-c", "echo begun; exec sleep 4321")
    assert child.stdout is not None
    async with asyncio.timeout(WAIT_S):
        assert await child.stdout.readline() == b"begun\n"
    child.kill()
    await child.wait()

    async def is_gone() -> bool:
        out = await world.kubectl("exec", "busy", "--", "sh", "-c", PROCESSES)
        return "sleep 1000" in out and "sleep 4321" not in out

    await world.until(is_gone, "the command ends with kubectl")
    await world.kubectl("delete", "pod", "busy", "--grace-period=1")


async def test_ports_of_a_task(world: AgentWorld) -> None:
    await until_serving(world)
    forwarder, ports = await forwarding(world, "8000", "9")
    async with aiohttp.ClientSession() as session:

        async def sent() -> bytes:
            async with session.post(f"http://127.0.0.1:{ports[8000]}/", data=io.BytesIO(MEGABYTES)) as answer:
                return await answer.read()

        assert all(body == MEGABYTES[::-1] for body in await asyncio.gather(*(sent() for _ in range(4))))
        with pytest.raises(aiohttp.ClientError):
            await session.get(f"http://127.0.0.1:{ports[9]}/")
    # Whatever goes wrong with one connection, kubectl ends all of them, and says what it was.
    async with asyncio.timeout(WAIT_S):
        _, said = await forwarder.communicate()
    assert b"port 9" in said, said
    assert b"refused" in said, said
    await world.kubectl("delete", "pod", "web", "--grace-period=1")


async def until_serving(world: AgentWorld) -> None:
    await world.apply(pod("web", SERVE))
    await world.until_phase("web", "Running")
    await world.kubectl("exec", "web", "--", "sh", "-c", "until python3 -c '" + CONNECT + "' 2> /dev/null; do sleep 0.1; done")


async def forwarding(world: AgentWorld, *wanted: str) -> tuple[asyncio.subprocess.Process, dict[int, int]]:
    """kubectl, and its ports by those of the pod."""
    forwarder = await asyncio.create_subprocess_exec(
        *(str(KUBECTL), "port-forward", "--address", "127.0.0.1", "pod/web", *(f":{port}" for port in wanted)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=world.environ,
    )
    world.followers.append(forwarder)
    assert forwarder.stdout is not None
    ports: dict[int, int] = {}
    async with asyncio.timeout(WAIT_S):
        while len(ports) < len(wanted):
            found = re.match(rb"Forwarding from 127\.0\.0\.1:(\d+) -> (\d+)", await forwarder.stdout.readline())
            assert found is not None
            ports[int(found[2])] = int(found[1])
    return forwarder, ports


async def test_the_official_python_client(world: AgentWorld) -> None:
    await until_serving(world)
    await asyncio.to_thread(_python_client, world.environ["KUBECONFIG"])
    await world.kubectl("delete", "pod", "web", "--grace-period=1")


def _python_client(kubeconfig: str) -> None:
    from kubernetes import client, config, stream

    core: Any = client.CoreV1Api(config.new_client_from_config(kubeconfig))
    command = ["sh", "-c", "read line; echo got $line; echo oops >&2; exit 5"]
    talk = stream.stream(
        core.connect_get_namespaced_pod_exec,
        "web",
        "default",
        command=command,
        stdin=True,
        stdout=True,
        stderr=True,
        tty=False,
        _preload_content=False,
    )
    talk.write_stdin("hello\n")
    talk.run_forever(timeout=WAIT_S)
    assert (talk.read_stdout(), talk.read_stderr(), talk.returncode) == ("got hello\n", "oops\n", 5)

    said = stream.stream(core.connect_get_namespaced_pod_exec, "web", "default", command=["echo", "whole"], stdout=True)
    assert said == "whole\n"

    forward = stream.portforward(core.connect_get_namespaced_pod_portforward, "web", "default", ports="8000")
    connection = forward.socket(8000)
    connection.setblocking(True)
    connection.sendall(b"POST / HTTP/1.1\r\nhost: web\r\nconnection: close\r\ncontent-length: 3\r\n\r\nabc")
    answer = b""
    while data := connection.recv(65536):
        answer += data
    assert answer.endswith(b"\r\n\r\ncba"), answer
