"""Logs of pods on simulated nodes: what happened to the pretended process, one line for each second of it.

Serves `pods/NAME/log` for pods of this server's simulated nodes and leaves all others to the handler that was there before. The
lines follow from when the process started and ended, so any number of readers see the same.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Iterator
from typing import Any

from muster.cli.simulated import Pretending
from muster.objects.status import BadRequest, Raw
from muster.objects.time import Clock, format_micro_time
from muster.server.exchange import Answer, Handler, Request, Stream
from muster.sim.machine import Process
from muster.store.embedded import EmbeddedStore

LINES_MAX = 10_000
POLL_S = 0.25

Line = tuple[float, str]
"""When, on the wall clock, and what."""


class SimulatedLogs:
    """Stateless, on the server's event loop. `otherwise` answers for pods of other nodes."""

    def __init__(self, pretending: Pretending, store: EmbeddedStore, clock: Clock, otherwise: Handler) -> None:
        self._pretending = pretending
        self._store = store
        self._clock = clock
        self._otherwise = otherwise

    async def __call__(self, request: Request) -> Answer:
        info = request.info
        pods = await self._store.resource("", "Pod")
        record = self._store.get_record(pods, info.name, info.namespace)
        pod = record.raw()
        if self._pretending.find(pod) is None:
            return await self._otherwise(request)
        container = _container(pod, request.query.text("container"), info.name)
        process = self._pretending.runs.get(str(pod["metadata"]["uid"]))
        tail = request.query.integer("tailLines")
        since_s = request.query.integer("sinceSeconds")
        has_times = request.query.flag("timestamps")
        is_followed = request.query.flag("follow")
        lines = self._lines(container, process, request.query.flag("previous"))
        if since_s is not None:
            lines = [line for line in lines if line[0] >= self._clock() - since_s]
        shown = lines if tail is None else lines[len(lines) - min(tail, len(lines)) :]
        ended = asyncio.Event()

        async def chunks() -> AsyncIterator[bytes]:
            for line in shown:
                yield _text(line, has_times)
            seen = len(self._lines(container, process, False)) if process else 0
            while is_followed and process is not None and not ended.is_set():
                is_over = not process.is_running(asyncio.get_running_loop().time())
                now = self._lines(container, process, False)
                for line in now[seen:]:
                    yield _text(line, has_times)
                seen = len(now)
                if is_over:
                    return
                await asyncio.sleep(POLL_S)

        return Stream(chunks=chunks(), close=ended.set, content_type="text/plain")

    def _lines(self, container: Raw, process: Process | None, is_previous: bool) -> list[Line]:
        if is_previous:
            raise BadRequest(f"container {container.get('name')!r}: simulated nodes keep no log of earlier runs")
        if process is None:
            return [(self._clock(), "simulated: not started yet, or its log was lost with an earlier process of the server")]
        now_s = asyncio.get_running_loop().time()
        offset_s = self._clock() - now_s
        return [(at_s + offset_s, text) for at_s, text in history(container, process, now_s)]


def history(container: Raw, process: Process, now_s: float) -> Iterator[Line]:
    """Instants are on the loop's clock. Pure."""
    command = " ".join(str(word) for word in [*(container.get("command") or ()), *(container.get("args") or ())])
    yield process.started_s, f"simulated: would run {command or container.get('image') or 'its image'}"
    until_s = now_s if process.ends_s is None else min(now_s, process.ends_s)
    count = max(0, math.ceil(until_s - process.started_s) - 1)
    for second in range(max(1, count - LINES_MAX), count + 1):
        yield process.started_s + second, f"simulated: second {second}"
    if not process.is_running(now_s):
        assert process.ends_s is not None
        yield process.ends_s, f"simulated: ended with exit code {process.exit_code}"


def _text(line: Line, has_times: bool) -> bytes:
    return f"{format_micro_time(line[0])} {line[1]}\n".encode() if has_times else f"{line[1]}\n".encode()


def _container(pod: Raw, name: str, pod_name: str) -> Raw:
    containers: list[dict[str, Any]] = (pod.get("spec") or {}).get("containers") or []
    for one in containers:
        if not name or one.get("name") == name:
            return one
    known = ", ".join(str(one.get("name")) for one in containers)
    raise BadRequest(f'container "{name[:80]}" is not in pod "{pod_name}"; it has: {known}')
