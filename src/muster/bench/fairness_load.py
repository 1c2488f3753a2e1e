"""The two sides of the fairness benchmark, each a process of its own: one who floods, and one who asks one thing at a time.

`python -m muster.bench.fairness_load '<JSON of Side>'`. The quiet side prints one JSON object and ends; a flood prints `ready`
when all its connections are busy and goes on until its standard input is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import sys
import time
from collections.abc import Awaitable, Callable

import aiohttp
import msgspec
import uvloop

from muster.bench.load import PODS, pod

_CONNECT_AT_ONCE = 50


class Side(msgspec.Struct, kw_only=True):
    """`kind` is quiet, gets, watchers, deaf or lists; `count` requests of the quiet side, connections of a flood."""

    url: str
    ca_path: str
    token: str
    kind: str
    count: int
    prefix: str = "quiet"


class Quiet(msgspec.Struct, kw_only=True):
    """Latencies of single requests, in milliseconds."""

    get_p50_ms: float
    get_p99_ms: float
    create_p50_ms: float
    create_p99_ms: float


class _Load:
    def __init__(self, side: Side, session: aiohttp.ClientSession) -> None:
        self._side = side
        self._session = session
        self._opening = asyncio.Semaphore(_CONNECT_AT_ONCE)
        self.ready = asyncio.Semaphore(0)

    async def call(self, method: str, path: str, body: bytes | None = None, *, may_fail: bool = False) -> float:
        started = time.perf_counter()
        headers = {"Content-Type": "application/json"} if body is not None else None
        async with self._session.request(method, self._side.url + path, data=body, headers=headers) as answer:
            content = await answer.read()
            if answer.status >= 300 and not may_fail:
                raise RuntimeError(f"{method} {path}: HTTP {answer.status}: {content[:300]!r}")
        return time.perf_counter() - started

    async def quiet(self) -> Quiet:
        gets, creates = [], []
        await self.call("POST", PODS, pod(f"{self._side.prefix}-first"))
        for number in range(self._side.count):
            creates.append(await self.call("POST", PODS, pod(f"{self._side.prefix}-{number}")))
            gets.append(await self.call("GET", f"{PODS}/{self._side.prefix}-first"))
        return Quiet(
            get_p50_ms=_part(gets, 0.5),
            get_p99_ms=_part(gets, 0.99),
            create_p50_ms=_part(creates, 0.5),
            create_p99_ms=_part(creates, 0.99),
        )

    async def gets(self) -> None:
        await self._again(lambda: self.call("GET", f"{PODS}/stock-0", may_fail=True))

    async def lists(self) -> None:
        await self._again(lambda: self.call("GET", PODS, may_fail=True))

    async def _again(self, one: Callable[[], Awaitable[object]]) -> None:
        async with self._opening:
            await one()
        self.ready.release()
        while True:
            await one()

    async def watchers(self) -> None:
        """Reads all events, and comes back when it is sent away."""
        while True:
            async with contextlib.AsyncExitStack() as stack:
                async with self._opening:
                    stream = await stack.enter_async_context(
                        self._session.get(f"{self._side.url}{PODS}?watch=1&resourceVersion=0")
                    )
                self.ready.release()
                while await stream.content.readany():
                    pass

    async def deaf(self) -> None:
        """Asks for all that exists and all that happens, and reads none of it."""
        while True:
            async with contextlib.AsyncExitStack() as stack:
                async with self._opening:
                    await stack.enter_async_context(self._session.get(f"{self._side.url}{PODS}?watch=1"))
                self.ready.release()
                await asyncio.sleep(10)


def _part(latencies_s: list[float], share: float) -> float:
    ordered = sorted(latencies_s)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1000


async def run(side: Side) -> None:
    tls = ssl.create_default_context(cafile=side.ca_path)
    headers = {"Authorization": f"Bearer {side.token}", "Accept-Encoding": "identity"}
    timeout = aiohttp.ClientTimeout(total=None)
    connector = aiohttp.TCPConnector(limit=0, ssl=tls)
    async with aiohttp.ClientSession(connector=connector, headers=headers, timeout=timeout) as session:
        load = _Load(side, session)
        if side.kind == "quiet":
            print(msgspec.json.encode(await load.quiet()).decode(), flush=True)
            return
        one = {"gets": load.gets, "lists": load.lists, "watchers": load.watchers, "deaf": load.deaf}[side.kind]
        tasks = [asyncio.create_task(one()) for _ in range(side.count)]
        for _ in tasks:
            await load.ready.acquire()
        print("ready", flush=True)
        ended = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        await asyncio.wait([asyncio.ensure_future(ended), *tasks], return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome


if __name__ == "__main__":
    uvloop.run(run(msgspec.json.decode(sys.argv[1], type=Side)))
