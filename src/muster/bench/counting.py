"""Counts pods as they are bound, by one watch on a real API server, at the least cost to it.

The watch asks for measured pods with a node only, so that each pod shows once, as ADDED, when its binding is stored. It takes
the encoding that the scheduler under measure itself watches with: the server then encodes an event once for both. Nothing is
decoded here. One task on the caller's event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from bisect import bisect_left
from collections.abc import AsyncIterator, Callable

import aiohttp
import msgspec

from muster.bench.kubernetes import ControlPlane
from muster.bench.workload import MEASURED, NAMESPACE, ROLE

JSON = "application/json"
PROTOBUF = "application/vnd.kubernetes.protobuf"
_ADDED_JSON = b'{"type":"ADDED"'
_ADDED_PROTOBUF = b"\x0a\x05ADDED"
FRAME_BYTES_MAX = 64 * 1024 * 1024


class JsonEvents:
    """Counts ADDED events in a stream of JSON lines, however it is cut into chunks."""

    def __init__(self) -> None:
        self._tail = b""

    def feed(self, chunk: bytes) -> int:
        data = self._tail + chunk
        self._tail = data[-(len(_ADDED_JSON) - 1) :]
        return data.count(_ADDED_JSON)


class ProtobufEvents:
    """The same in a stream of frames: four bytes of length, then a WatchEvent whose first field is its type."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, chunk: bytes) -> int:
        self._data += chunk
        found = position = 0
        while len(self._data) - position >= 4:
            length = int.from_bytes(self._data[position : position + 4], "big")
            if length > FRAME_BYTES_MAX:
                raise RuntimeError(f"a watch event of {length} bytes; up to {FRAME_BYTES_MAX} are read")
            if len(self._data) - position - 4 < length:
                break
            found += self._data.startswith(_ADDED_PROTOBUF, position + 4)
            position += 4 + length
        del self._data[:position]
        return found


class Bound(msgspec.Struct):
    """How many pods were bound by when: `counts[i]` at `times_s[i]` (monotonic), both growing."""

    times_s: list[float] = []
    counts: list[int] = []
    begun_s: float = 0.0
    """When counting began."""

    @property
    def total(self) -> int:
        return self.counts[-1] if self.counts else 0

    def add(self, count: int, now_s: float) -> None:
        self.counts.append(self.total + count)
        self.times_s.append(now_s)

    def when_s(self, count: int) -> float:
        """The moment at which `count` pods were bound."""
        return self.times_s[bisect_left(self.counts, count)]

    def steady_window(self) -> tuple[float, float, int]:
        """From a tenth to 95 % of the pods: begin, end, and how many were bound between. So few that they were seen at one
        moment have no such window; theirs is everything since counting began."""
        first, last = max(1, self.total // 10), max(1, self.total * 95 // 100)
        begin, end = self.when_s(first), self.when_s(last)
        if end <= begin:
            return self.begun_s, self.times_s[-1], self.total
        return begin, end, self.counts[bisect_left(self.counts, last)] - self.counts[bisect_left(self.counts, first)]

    def steady_per_s(self) -> float:
        """The rate in the steady window."""
        begin, end, count = self.steady_window()
        return count / (end - begin) if end > begin else float("nan")


class Counter:
    """`bound` fills while the task of `counting` runs. `on_count` hears each new total."""

    def __init__(self, plane: ControlPlane, accept: str) -> None:
        self.bound = Bound()
        self.on_count: Callable[[int], None] = lambda _total: None
        self._plane = plane
        self._accept = accept
        self._changed = asyncio.Event()
        self._reader: asyncio.Task[None] | None = None

    @contextlib.asynccontextmanager
    async def counting(self) -> AsyncIterator[Counter]:
        self.bound.begun_s = time.monotonic()
        tls = ssl.create_default_context(cafile=str(self._plane.ca_path))
        headers = {"Authorization": f"Bearer {self._plane.admin_token}"}
        timeout = aiohttp.ClientTimeout(total=None)
        connector = aiohttp.TCPConnector(ssl=tls)
        async with aiohttp.ClientSession(
            self._plane.url, connector=connector, headers=headers, timeout=timeout, read_bufsize=1 << 20
        ) as session:
            self._reader = asyncio.create_task(self._read(session, await self._version(session)), name="bound pods")
            try:
                yield self
            finally:
                self._reader.cancel()
                await asyncio.gather(self._reader, return_exceptions=True)

    async def wait(self, total: int, *, stall_s: float) -> bool:
        """Until `total` pods are bound; False when nothing happened for `stall_s`."""
        assert self._reader is not None
        while self.bound.total < total:
            self._changed.clear()
            changed = asyncio.ensure_future(self._changed.wait())
            done, _ = await asyncio.wait({changed, self._reader}, timeout=stall_s, return_when=asyncio.FIRST_COMPLETED)
            changed.cancel()
            if self._reader in done:
                self._reader.result()
                raise RuntimeError(f"the watch for bound pods ended after {self.bound.total} of {total}")
            if not done:
                return False
        return True

    async def _version(self, session: aiohttp.ClientSession) -> str:
        async with session.get(_PODS, params={"limit": "1"}) as answer:
            answer.raise_for_status()
            return str(msgspec.json.decode(await answer.read())["metadata"]["resourceVersion"])

    async def _read(self, session: aiohttp.ClientSession, version: str) -> None:
        params = {
            "watch": "1",
            "resourceVersion": version,
            "labelSelector": f"{ROLE}={MEASURED}",
            "fieldSelector": "spec.nodeName!=",
            "timeoutSeconds": "86400",
        }
        accept = JSON if self._accept == JSON else f"{PROTOBUF};stream=watch"
        events = JsonEvents() if self._accept == JSON else ProtobufEvents()
        async with session.get(_PODS, params=params, headers={"Accept": accept}) as stream:
            stream.raise_for_status()
            while chunk := await stream.content.readany():
                if count := events.feed(chunk):
                    self.bound.add(count, time.monotonic())
                    self._changed.set()
                    self.on_count(self.bound.total)


_PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
