"""Endpoints that stand where an agent would listen, with the node's certificate or a stranger's."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ssl
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from cryptography.x509.oid import ExtendedKeyUsageOID

from muster.server.certificates import Authority, cert_pem, key_pem, new_key, self_signed
from tests.server.joining_nodes import MERGE, Machine
from tests.server.running import RunningServer

AGREED = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: yes\r\n\r\n"

Behaviour = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
"""What is done with a connection when the head of a request has come on it."""


def endpoint_tls(server: RunningServer, certificate: bytes, key: bytes, tmp_path: Any) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    pem = tmp_path / "endpoint.pem"
    pem.write_bytes(certificate + key)
    context.load_cert_chain(pem)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cafile=str(server.server.ca_path))
    return context


def announce(server: RunningServer, node: str, port: int, address: str = "127.0.0.1") -> None:
    status = {
        "addresses": [{"type": "Hostname", "address": "nowhere.invalid"}, {"type": "InternalIP", "address": address}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
    }
    assert server.request("PATCH", f"/api/v1/nodes/{node}/status", {"status": status}, headers=MERGE).code == 200


def stranger(kind: str, server: RunningServer, machine: Machine) -> tuple[bytes, bytes]:
    """The certificate and the key of somebody who is not this node, or not any more."""
    key = new_key()
    if kind == "another CA":
        ca_key, now = new_key(), 1_700_000_000.0
        life = datetime.timedelta(days=36500)
        authority = Authority(self_signed("muster-ca", ca_key, now, life), ca_key)
        made = authority.issue(
            key,
            common_name=f"system:node:{machine.name}",
            usage=ExtendedKeyUsageOID.SERVER_AUTH,
            now=now,
            lifetime=life,
            groups=["system:nodes"],
            names=[machine.name],
        )
        return cert_pem(made), key_pem(key)
    if kind == "another node":
        other = Machine(server, f"{machine.name}-other").join()
        server.request("DELETE", f"/api/v1/nodes/{other.name}")
        return other.certificate.encode(), key_pem(other.key)
    if kind == "never joined":
        signed = server.server.pki.sign_node(
            key.public_key(), user=f"system:node:{machine.name}", groups=["system:nodes"], names=[machine.name]
        )
        return cert_pem(signed), key_pem(key)
    assert kind == "revoked"
    before = machine.certificate.encode(), key_pem(machine.key)
    again = Machine(server, machine.name).join()
    assert again.certificate.encode() != before[0]
    return before


STRANGERS = ("another CA", "another node", "never joined", "revoked")


async def refused_to_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Says nothing until the other side has gone."""
    while await reader.read(65536):
        pass


class RawEndpoint:
    """TLS and bytes: keeps the heads of the requests, and then does as `behaviour` says."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self.heads: list[bytes] = []
        self.received_bytes = 0
        self.opened = self.ended = 0
        self.behaviour: Behaviour = self.echo
        self._context = context
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.port = self._on_loop(self._start())

    def _on_loop(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)

    async def _start(self) -> int:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context, ssl_shutdown_timeout=2)
        return int(self._server.sockets[0].getsockname()[1])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.opened += 1
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                self.heads.append(await reader.readuntil(b"\r\n\r\n"))
                await self.behaviour(reader, writer)
        finally:
            self.ended += 1
            writer.close()

    async def echo(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(AGREED)
        while data := await reader.read(65536):
            self.received_bytes += len(data)
            writer.write(data)
            await writer.drain()

    def stop(self) -> None:
        self._on_loop(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()

    async def _close(self) -> None:
        self._server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
