"""A real server for tests: TLS, SQLite in a temporary directory, its own event loop in a thread; and ways to talk to it.

Nothing of the server is replaced. `RunningServer.call` runs a coroutine on the server's loop, for looking into its store.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from muster.objects.status import Raw
from muster.server.config import ServerConfig
from muster.server.run import Server
from muster.server.tokens import new_token, token_hash, token_secret

T = TypeVar("T")
KUBECTL = str(Path(sys.executable).parent / "kubectl")


class Reply:
    """An HTTP answer. `json` is the decoded body; `reason` that of a Status."""

    def __init__(self, code: int, headers: http.client.HTTPMessage, body: bytes) -> None:
        self.code = code
        self.headers = headers
        self.body = body

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def reason(self) -> str:
        return str(self.json.get("reason", ""))

    @property
    def message(self) -> str:
        return str(self.json.get("message", ""))


class Watch:
    """Events, one by one."""

    def __init__(self, answer: http.client.HTTPResponse) -> None:
        self._answer = answer

    def next(self) -> Any:
        """The next event; None at the end of the stream."""
        line = self._answer.readline()
        return json.loads(line) if line else None

    def rest(self) -> list[Any]:
        return [json.loads(line) for line in self._answer.read().splitlines()]


class RunningServer:
    def __init__(self, config: ServerConfig, prepare: Callable[[Server], None] | None = None) -> None:
        self._ready: Future[None] = Future()
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        self.server: Server
        self._thread = threading.Thread(target=lambda: uvloop.run(self._main(config, prepare)), daemon=True)
        self._thread.start()
        self._ready.result(timeout=60)
        self.token = _token_of(self.server.kubeconfig_path)
        self.tls = ssl.create_default_context(cafile=str(self.server.ca_path))

    async def _main(self, config: ServerConfig, prepare: Callable[[Server], None] | None) -> None:
        try:
            self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
            self.server = Server(config)
            if prepare is not None:
                prepare(self.server)
            await self.server.start()
        except BaseException as error:
            self._ready.set_exception(error)
            return
        self._ready.set_result(None)
        await self._stop.wait()
        await self.server.stop()

    def stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(timeout=60)
        assert not self._thread.is_alive()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(timeout=60)

    # --- HTTP

    def connect(self, tls: ssl.SSLContext | None = None) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection("127.0.0.1", self.server.port, context=tls or self.tls, timeout=30)

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        token: str | None = None,
        headers: Mapping[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> Reply:
        """`body` is sent as it is when bytes, as JSON otherwise. `token` "" sends none; None the administrator's."""
        sent = {"content-type": "application/json"} if body is not None else {}
        chosen = self.token if token is None else token
        if chosen:
            sent["authorization"] = f"Bearer {chosen}"
        sent.update(headers or {})
        payload = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        with contextlib.closing(self.connect(tls)) as connection:
            connection.request(method, path, payload, sent)
            answer = connection.getresponse()
            return Reply(answer.status, answer.headers, answer.read())

    @contextlib.contextmanager
    def watch(self, path: str, *, token: str | None = None, headers: Mapping[str, str] | None = None) -> Iterator[Watch]:
        """An open watch on `path`, whose query may say more."""
        with contextlib.closing(self.connect()) as connection:
            query = "&" if "?" in path else "?"
            sent = {"authorization": f"Bearer {token or self.token}", **(headers or {})}
            connection.request("GET", f"{path}{query}watch=true", headers=sent)
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            yield Watch(answer)

    def raw_socket(self) -> ssl.SSLSocket:
        """A TLS connection to write any bytes to."""
        plain = socket.create_connection(("127.0.0.1", self.server.port), timeout=30)
        return self.tls.wrap_socket(plain, server_hostname="localhost")

    def exchange_raw(self, data: bytes) -> bytes:
        """Send bytes, read until the server closes the connection."""
        with self.raw_socket() as connection:
            connection.sendall(data)
            return read_all(connection)

    # --- kubectl

    def kubectl(self, *args: str, stdin: str | None = None, code: int | None = 0, env: Mapping[str, str] | None = None) -> str:
        """Run the real kubectl; its output (both streams). `code` None accepts any exit code."""
        home = self.server.config.data_dir / "home"
        home.mkdir(exist_ok=True)
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "KUBECONFIG": str(self.server.kubeconfig_path),
            **(env or {}),
        }
        done = subprocess.run(
            [KUBECTL, *args],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=120,
            env=environment,
            check=False,
        )
        output = done.stdout + done.stderr
        assert code is None or done.returncode == code, f"kubectl {' '.join(args)} ended with {done.returncode}:\n{output}"
        return output

    # --- people

    def user(self, name: str, groups: tuple[str, ...] = ()) -> str:
        """A token for a user who may do nothing yet."""
        token = new_token(os.urandom(32))
        secret = token_secret(f"token-{token_hash(token)[:12]}", token_hash(token), name, groups, "for a test")
        reply = self.request("POST", "/api/v1/namespaces/kube-system/secrets", secret)
        assert reply.code == 201, reply.body
        return token

    def create(self, path: str, body: Raw) -> Raw:
        reply = self.request("POST", path, body)
        assert reply.code == 201, reply.body
        found: Raw = reply.json
        return found

    def namespace(self, name: str) -> str:
        self.create("/api/v1/namespaces", {"metadata": {"name": name}})
        return name


def read_all(connection: ssl.SSLSocket) -> bytes:
    data = bytearray()
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        while chunk := connection.recv(65536):
            data += chunk
    return bytes(data)


def _token_of(kubeconfig: Path) -> str:
    for line in kubeconfig.read_text().splitlines():
        key, _, value = line.strip().partition(":")
        if key == "token":
            return value.strip().strip("'\"")
    raise AssertionError("no token in the kubeconfig")


@contextlib.contextmanager
def running(data_dir: Path, *, prepare: Callable[[Server], None] | None = None, **settings: Any) -> Iterator[RunningServer]:
    server = RunningServer(ServerConfig(data_dir=data_dir, port=0, **settings), prepare)
    try:
        yield server
    finally:
        server.stop()
