"""A server that is sent nonsense all day: no 500, no hang, and no more memory in the end than in the middle.

`make soak` sends 400,000 requests; otherwise a sample is sent. The server is a real `muster up` in a process of its own.
"""

from __future__ import annotations

import asyncio
import io
import itertools
import json
import ssl
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from yarl import URL

from tests.counts import SOAK
from tests.e2e.server_process import ServerProcess
from tests.server.hostile_requests import NAMESPACES, HostileRequests, Request, targets_of
from tests.server.manifests import DEPLOYMENT, POD, widget_crd

REQUESTS = 400_000 if SOAK else 1_200
AT_ONCE = 16
RAW_EVERY = 50
"""Every so many requests, bytes that are no TLS, or no whole one, go to the port as well."""
ANSWER_TIMEOUT_S = 120.0
EVENT_BYTES = 1 << 10
"""An event of the history beside its object's JSON: labels, fields, and where it stands."""
GROWTH_BYTES_MAX = 16 << 20
"""From the middle to the end, beside history. 6 MiB were seen; it was 21 to 31 with a quarter of the requests while each left a
cycle of objects for later, and with it holes in the memory around."""
EXAMPLES = Path(__file__).parents[2] / "examples"


def _is_meant(request: Request, code: int, body: bytes) -> bool:
    """A list from a version that is still to come; logs of a pod, and connections into one, on a node that somebody made up."""
    is_of_node = any(part in request.path for part in ("/log", "/exec", "/portforward"))
    is_nowhere = code == 503 and is_of_node and (request.method == "HEAD" or b"on node" in body)
    return is_nowhere or (code == 504 and b'"Timeout"' in body)


def good_manifests() -> list[dict[str, Any]]:
    texts = [POD, DEPLOYMENT, widget_crd("hostile.example"), *(path.read_text() for path in sorted(EXAMPLES.glob("*/*.yaml")))]
    found = [document for text in texts for document in yaml.safe_load_all(text)]
    return [document for document in found if isinstance(document, dict) and {"apiVersion", "kind"} <= document.keys()]


def client_hello() -> bytes:
    """The first bytes of a real handshake."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
    return outgoing.read()


class Sender:
    def __init__(self, server: ServerProcess, session: aiohttp.ClientSession) -> None:
        self._server, self._session = server, session
        self.codes: Counter[int] = Counter()
        self.wrong: list[str] = []
        self._hello = client_hello()

    async def send(self, request: Request) -> None:
        url = URL(self._server.url + request.path, encoded=True)
        # As a file: aiohttp warns of large bodies otherwise, and a warning is an error here.
        data = io.BytesIO(request.body) if request.body is not None else None
        try:
            async with (
                asyncio.timeout(ANSWER_TIMEOUT_S),
                self._session.request(request.method, url, headers=request.headers, data=data) as answer,
            ):
                body = await answer.read()
        except TimeoutError:
            self.wrong.append(f"no answer: {request}")
            return
        except (aiohttp.ClientError, ConnectionError) as error:
            self.wrong.append(f"cut off: {request}: {error!r}")
            return
        self.codes[answer.status] += 1
        if answer.status >= 500 and not _is_meant(request, answer.status, body):
            self.wrong.append(f"{answer.status}: {request}: {body[:500]!r}")
        elif answer.status >= 400 and request.method != "HEAD" and b"Traceback" in body:
            self.wrong.append(f"a trace: {request}: {body[:500]!r}")

    async def send_raw(self, number: int) -> None:
        """A handshake that is cut off, damaged, or none at all."""
        hello = bytearray(self._hello)
        match number % 4:
            case 0:
                hello = hello[: number * 7 % len(hello)]
            case 1:
                hello[number * 13 % len(hello)] ^= 0xFF
            case 2:
                hello = bytearray(b"GET / HTTP/1.1\r\n\r\n")
            case _:
                hello = bytearray(number.to_bytes(8, "little") * 64)
        reader, writer = await asyncio.open_connection("127.0.0.1", URL(self._server.url).port)
        writer.write(bytes(hello))
        writer.write_eof()
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                await reader.read()
        except TimeoutError:
            self.wrong.append(f"the server kept a connection open that sent {bytes(hello)!r}")
        except ConnectionError:
            pass
        finally:
            writer.close()


async def _discovered(server: ServerProcess, session: aiohttp.ClientSession) -> dict[str, Any]:
    async def get(path: str) -> Any:
        async with session.get(server.url + path) as answer:
            return json.loads(await answer.read())

    groups = (await get("/apis"))["groups"]
    paths = ["/api/v1", *(f"/apis/{group['preferredVersion']['groupVersion']}" for group in groups)]
    return {path: await get(path) for path in paths}


async def _history_bytes(server: ServerProcess, session: aiohttp.ClientSession) -> int:
    async with session.get(f"{server.url}/metrics") as answer:
        page = await answer.text()
    found = {name: float(value) for name, _, value in (line.rpartition(" ") for line in page.splitlines() if line[:1] != "#")}
    return int(found["muster_store_history_bytes"] + EVENT_BYTES * found["muster_store_history_events"])


def _in_mib(sizes: Sequence[int]) -> list[int]:
    return [size >> 20 for size in sizes]


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.timeout(3600)
async def test_nonsense_is_answered_and_costs_no_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = ServerProcess(tmp_path / "data")
    server.data_dir.mkdir()
    await server.start()
    try:
        async with server.session() as session:
            for name in NAMESPACES:
                async with session.post(f"{server.url}/api/v1/namespaces", json={"metadata": {"name": name}}) as answer:
                    assert answer.status == 201
            sender = Sender(server, session)
            hostile = HostileRequests(11, targets_of(await _discovered(server, session)), good_manifests())
            numbers = itertools.count(1)
            resident: list[int] = []
            history: list[int] = []
            """What the store keeps for watches that resume, which is bounded and takes minutes to fill."""

            async def work() -> None:
                while (number := next(numbers)) <= REQUESTS and len(sender.wrong) < 20:
                    if number % (REQUESTS // 10) == 0:
                        resident.append(server.resident_bytes())
                        history.append(await _history_bytes(server, session))
                    await sender.send(hostile.next())
                    if number % RAW_EVERY == 0:
                        await sender.send_raw(number)

            await asyncio.gather(*(work() for _ in range(AT_ONCE)))
            assert not sender.wrong, "\n".join(sender.wrong[:5])
            assert {200, 201, 400, 404, 422} <= sender.codes.keys(), sender.codes
            others = [size - kept for size, kept in zip(resident, history, strict=True)]
            said = f"{_in_mib(resident)} MiB after each tenth of {REQUESTS} requests; without history {_in_mib(others)}"
            with capsys.disabled():
                print(f"\n{said}")
            assert others[-1] - others[len(others) // 2] < GROWTH_BYTES_MAX, said
            async with session.get(f"{server.url}/readyz") as answer:
                assert answer.status == 200
    finally:
        assert await server.stop() == 0
