"""As much of an API server as clients need to reach into the pod `ns/p`: discovery, the pod, and a tunnel to an agent.

Bytes of an upgraded connection are handed on as they come, and the request is asked of the agent in a kubelet's words.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

_STREAMS = {"stdin": "input", "stdout": "output", "stderr": "error", "tty": "tty"}
POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
    "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "i"}]},
    "status": {
        "phase": "Running",
        "conditions": [{"type": kind, "status": "True"} for kind in ("Ready", "ContainersReady")],
        "containerStatuses": [{"name": "c", "ready": True, "state": {"running": {}}}],
    },
}
_RESOURCES = [
    {"name": "pods", "singularName": "pod", "namespaced": True, "kind": "Pod", "shortNames": ["po"], "verbs": ["get", "list"]},
    {"name": "pods/exec", "singularName": "", "namespaced": True, "kind": "PodExecOptions", "verbs": ["create", "get"]},
    {"name": "pods/portforward", "singularName": "", "namespaced": True, "kind": "PodPortForwardOptions", "verbs": ["get"]},
]
_ANSWERS: dict[str, dict[str, Any]] = {
    "/version": {"major": "1", "minor": "35", "gitVersion": "v1.35.0"},
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": []},
    "/api/v1": {"kind": "APIResourceList", "groupVersion": "v1", "resources": _RESOURCES},
    "/api/v1/namespaces/ns/pods/p": POD,
}


class ApiTunnel:
    def __init__(self, agent_port: int, tls: ssl.SSLContext) -> None:
        self._agent_port = agent_port
        self._tls = tls
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                path, query = _asked(head)
                if path.endswith(("/exec", "/portforward")):
                    await self._tunnel(head, path, query, reader, writer)
                    return
                _answer(writer, _ANSWERS.get(path.rstrip("/")))
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the end of a connection, as of the test
        finally:
            writer.close()

    async def _tunnel(
        self, head: bytes, path: str, query: list[tuple[str, str]], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        method, _, rest = head.partition(b" ")
        asked = b"%b %b %b" % (method, _for_agent(path, query).encode(), rest.partition(b" ")[2])
        away, to_agent = await asyncio.open_connection("127.0.0.1", self._agent_port, ssl=self._tls)
        try:
            to_agent.write(asked)
            tasks = [asyncio.create_task(_copy(reader, to_agent)), asyncio.create_task(_copy(away, writer))]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            to_agent.transport.abort()


@contextlib.asynccontextmanager
async def api_of(agent_port: int, tls: ssl.SSLContext) -> AsyncIterator[ApiTunnel]:
    made = ApiTunnel(agent_port, tls)
    open_now: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        open_now.add(task)
        try:
            await made.serve(reader, writer)
        finally:
            open_now.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield made
    finally:
        server.close()
        for task in list(open_now):
            task.cancel()
        await asyncio.gather(*open_now, return_exceptions=True)


def _asked(head: bytes) -> tuple[str, list[tuple[str, str]]]:
    url = urlsplit(head.split(b" ", 2)[1].decode())
    return url.path, parse_qsl(url.query, keep_blank_values=True)


def _for_agent(path: str, query: list[tuple[str, str]]) -> str:
    if path.endswith("/exec"):
        streams = [(_STREAMS[name], "1") for name, value in query if name in _STREAMS and value == "true"]
        return "/exec/ns/p/c?" + urlencode([*(one for one in query if one[0] == "command"), *streams, ("uid", "u")])
    return "/portForward/ns/p?" + urlencode([*(one for one in query if one[0] == "ports"), ("uid", "u")])


def _answer(writer: asyncio.StreamWriter, answer: dict[str, Any] | None) -> None:
    body = json.dumps(answer or {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "no", "code": 404})
    line = "200 OK" if answer is not None else "404 Not Found"
    writer.write(f"HTTP/1.1 {line}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while data := await source.read(2**16):
        target.write(data)
        await target.drain()
