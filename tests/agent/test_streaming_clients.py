"""The clients that people use, on an agent's streams: the real kubectl, and the Python clients."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pty
import re
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import kr8s.asyncio
import kubernetes.client
import kubernetes.stream
import pytest
from kr8s.asyncio.objects import Pod

from tests.agent.api_tunnel import POD, api_of
from tests.agent.streaming_rig import StreamRig, running_rig
from tests.server.running import KUBECTL

ALONE = "127.0.0.77"
"""kr8s looks for a free port and takes it later: here nobody else takes it in between."""


class Cluster:
    def __init__(self, rig: StreamRig, url: str, home: Path) -> None:
        self.rig = rig
        self.url = url
        self.home = home

    async def kubectl(self, *args: str, **how: Any) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        streams = {"stdin": pipe, "stdout": pipe, "stderr": pipe, **how}
        env = {"HOME": str(self.home), "PATH": os.environ["PATH"], "TERM": "xterm"}
        return await asyncio.create_subprocess_exec(KUBECTL, "--server", self.url, "-n", "ns", *args, env=env, **streams)

    async def run(self, *args: str, stdin: bytes = b"") -> tuple[int | None, bytes, bytes]:
        process = await self.kubectl(*args)
        out, err = await process.communicate(stdin)
        return process.returncode, out, err

    async def python(self, use: Callable[[kubernetes.client.CoreV1Api], Any]) -> Any:
        configuration = kubernetes.client.Configuration(host=self.url)
        with kubernetes.client.ApiClient(configuration) as api:
            return await asyncio.to_thread(use, kubernetes.client.CoreV1Api(api))


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_rig(tmp_path, counts_descriptors=False) as rig, api_of(rig.endpoint.port, rig.tls) as api:
        yield Cluster(rig, api.url, tmp_path)


@pytest.fixture
async def echo() -> AsyncIterator[int]:
    """A port whose other end says back what it hears, and its end after the other's."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(2**16):
                writer.write(data)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()


# -- kubectl exec and cp -------------------------------------------------------------------------------------------------------


async def test_kubectl_exec(cluster: Cluster) -> None:
    code, out, err = await cluster.run("exec", "p", "--", "sh", "-c", "echo out; echo err >&2; exit 3")
    assert (code, out) == (3, b"out\n")
    assert err == b"err\ncommand terminated with exit code 3\n"
    await cluster.rig.all_closed(1)


async def test_kubectl_exec_with_input(cluster: Cluster) -> None:
    data = os.urandom(2**20) * 3
    assert await cluster.run("exec", "-i", "p", "--", "cat", stdin=data) == (0, data, b"")


async def test_kubectl_exec_on_a_terminal(cluster: Cluster) -> None:
    ours, theirs = pty.openpty()
    process = await cluster.kubectl("exec", "-it", "p", "--", "sh", stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    try:
        got = await _read_until(ours, b"ready> ")
        os.write(ours, b"test -t 0 && echo on a $((1))terminal\r")
        got = await _read_until(ours, b"on a 1terminal")
        assert got
        os.write(ours, b"exit 4\r")
        assert await process.wait() == 4
    finally:
        os.close(ours)


async def _read_until(fd: int, text: bytes) -> bytes:
    got = b""
    while text not in got:
        got += await asyncio.to_thread(os.read, fd, 1000)
    return got


async def test_kubectl_cp(cluster: Cluster, tmp_path: Path) -> None:
    source, there, back = tmp_path / "source", tmp_path / "there", tmp_path / "back"
    source.write_bytes(os.urandom(300_000))
    assert (await cluster.run("cp", str(source), f"p:{there}"))[0] == 0
    assert there.read_bytes() == source.read_bytes()
    assert (await cluster.run("cp", f"p:{there}", str(back)))[0] == 0
    assert back.read_bytes() == source.read_bytes()


async def test_kubectl_that_is_killed(cluster: Cluster) -> None:
    process = await cluster.kubectl("exec", "p", "--", "sh", "-c", "echo up; exec sleep 1000")
    assert process.stdout is not None
    assert await process.stdout.readline() == b"up\n"
    process.kill()
    await process.wait()
    await cluster.rig.all_closed(1)


# -- kubectl port-forward ------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def forwarded(cluster: Cluster, *ports: int) -> AsyncIterator[tuple[asyncio.subprocess.Process, list[int]]]:
    process = await cluster.kubectl("port-forward", "--address", "127.0.0.1", "p", *(f":{port}" for port in ports))
    assert process.stdout is not None
    local = []
    try:
        for port in ports:
            line = await process.stdout.readline()
            found = re.fullmatch(rb"Forwarding from 127\.0\.0\.1:(\d+) -> %d\n" % port, line)
            assert found, (line, await process.stderr.read() if process.stderr else b"")
            local.append(int(found[1]))
        yield process, local
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGINT)
        await process.communicate()


async def _says(port: int, data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    writer.write_eof()
    answer = await reader.read()
    writer.close()
    return answer


async def test_kubectl_port_forward(cluster: Cluster, echo: int) -> None:
    data = os.urandom(2**20)
    async with forwarded(cluster, echo) as (_, (port,)):
        assert await _says(port, b"one") == b"one"
        answers = await asyncio.gather(*(_says(port, data + b"%d" % n) for n in range(10)))
        assert answers == [data + b"%d" % n for n in range(10)]


async def test_kubectl_port_forward_of_a_closed_port(cluster: Cluster, unused_tcp_port: int) -> None:
    async with forwarded(cluster, unused_tcp_port) as (process, (port,)):
        assert await _says(port, b"anybody?") == b""
        _, err = await process.communicate()
        assert f"nothing listens on port {unused_tcp_port}".encode() in err


# -- Python --------------------------------------------------------------------------------------------------------------------


async def test_the_kubernetes_client_runs_commands(cluster: Cluster) -> None:
    def use(api: kubernetes.client.CoreV1Api) -> tuple[str, str, int]:
        talk = kubernetes.stream.stream(
            api.connect_get_namespaced_pod_exec,
            "p",
            "ns",
            command=["sh", "-c", "cat; echo err >&2; exit 6"],
            stdin=True,
            stdout=True,
            stderr=True,
            _preload_content=False,
        )
        talk.write_stdin("some words")
        talk.close_channel(0)
        talk.run_forever()
        talk.close()
        return talk.read_stdout(), talk.read_stderr(), talk.returncode

    assert await cluster.python(use) == ("some words", "err\n", 6)


async def test_the_kubernetes_client_forwards_ports(cluster: Cluster, echo: int, unused_tcp_port: int) -> None:
    data = os.urandom(2**20) * 2

    def use(api: kubernetes.client.CoreV1Api) -> tuple[bytes, str]:
        ports = f"{echo},{unused_tcp_port}"
        forward = kubernetes.stream.portforward(api.connect_get_namespaced_pod_portforward, "p", "ns", ports=ports)
        talk = forward.socket(echo)
        talk.setblocking(True)
        talk.sendall(data)
        got = b""
        while len(got) < len(data):
            got += talk.recv(2**16)
        refused = forward.socket(unused_tcp_port)
        refused.setblocking(True)
        assert refused.recv(1) == b""
        forward.close()
        return got, forward.error(unused_tcp_port)

    got, error = await cluster.python(use)
    assert got == data
    assert error == f"error forwarding port {unused_tcp_port} to pod ns/p: nothing listens on port {unused_tcp_port}"


async def test_kr8s(cluster: Cluster, echo: int, tmp_path: Path) -> None:
    config = tmp_path / "kubeconfig"
    context = {"name": "x", "context": {"cluster": "x", "user": "x"}}
    clusters = [{"name": "x", "cluster": {"server": cluster.url}}]
    users = [{"name": "x", "user": {}}]
    config.write_text(json.dumps({"current-context": "x", "contexts": [context], "clusters": clusters, "users": users}))
    api = await kr8s.asyncio.api(kubeconfig=str(config))
    pod = Pod(POD, api=api)
    done = await pod.exec(["sh", "-c", "echo out; echo err >&2"])
    assert (done.stdout, done.stderr, done.returncode) == (b"out\n", b"err\n", 0)
    async with pod.portforward(echo, local_port="auto", address=ALONE) as port:
        reader, writer = await asyncio.open_connection(ALONE, port)
        writer.write(b"through kr8s\n")
        assert await reader.readline() == b"through kr8s\n"
        writer.close()
