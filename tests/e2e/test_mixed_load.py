"""An hour at 70 % of what the server can do: no error, flat memory, and a 99th percentile of the whole hour within three times
the median of its first five minutes.

`make soak` runs the hour, with nothing beside it, and prints a line for every five minutes; otherwise seconds are run, and only
errors count: a tail or a trend can't be seen in them. Others use the machine then, and may leave the server a fraction of what
it had when its capacity was measured: so few acts are begun that not even all of them together are too many in flight.
What runs is the API server alone, as in `muster bench run api`.

The load is kept off the core of the server's loop, where there are two: the kernel likes to put two processes that talk to each
other on one core, for minutes at a time, and what waits then waits for the load.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import os
import statistics
import time
from array import array
from collections.abc import Sequence
from pathlib import Path

import pytest
import uvloop

from muster.bench import processes
from muster.controllers.long_runs import tune_for_long_runs
from muster.server.config import ServerLimits
from tests.counts import SOAK
from tests.e2e.mixed_load import IN_FLIGHT_MAX, MAPS, PODS, Load
from tests.e2e.server_process import ServerProcess

CAPACITY_S = 60.0 if SOAK else 2.0
LOAD_S = 3600.0 if SOAK else 6.0
EVERY_S = 300.0 if SOAK else 2.0
CLIENTS = 32
"""Connections, which are kept: a client that opened another for each request that is late would measure TLS handshakes."""
WATCHERS = 20
SHARE = 0.7
PER_S_MAX = math.inf if SOAK else 0.9 * IN_FLIGHT_MAX / LOAD_S
TAIL_TO_MEDIAN_MAX = 3.0
YARDSTICK_STEPS = 20_000
YARDSTICK_EVERY_S = 0.5
MEMORY_GROWTH_MAX = 1.1
"""From a sixth of the run on, when history is as long as it gets, to the end."""


@pytest.mark.soak
@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_a_long_mixed_load(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # A quick loop: the load's own share of what is measured is to be small.
    uvloop.run(_long_mixed_load(tmp_path, capsys))


async def _long_mixed_load(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = ServerProcess(tmp_path / "data")
    server.data_dir.mkdir()
    await server.start("--without", "controllers,agent")
    cores = sorted(os.sched_getaffinity(0))
    if SOAK and len(cores) > 1:
        os.sched_setaffinity(server.pid, cores[:1])  # the loop's thread; those beside it go where there is room
        os.sched_setaffinity(0, cores[1:])
        tune_for_long_runs()  # a load that looks for cycles in its own memory is late
    try:
        with contextlib.closing(Load(server.url, server.tls(), server.token, connections=CLIENTS)) as load:
            await load.prepare()
            started = [asyncio.Event() for _ in range(WATCHERS)]
            paths = itertools.cycle((PODS, MAPS))
            watches = [asyncio.create_task(load.watch(path, event)) for path, event in zip(paths, started, strict=False)]
            await asyncio.gather(*(event.wait() for event in started))
            machine = _Machine(server.pid)
            yardstick = asyncio.create_task(machine.measure())
            capacity = await load.as_fast_as_possible(CAPACITY_S, CLIENTS)
            machine.look()
            per_s = min(SHARE * capacity, PER_S_MAX)
            parts: list[array[float]] = []
            """Latencies of each part of the run."""
            resident: list[int] = []
            with capsys.disabled():
                # Whose capacity it is: a server that waits for its clients could do more.
                print(f"\ncapacity {capacity:.0f} acts/s, {machine}; {per_s:.0f}/s for {LOAD_S:.0f} s")

                def look() -> None:
                    taken, load.latencies_s = load.latencies_s, array("d")
                    if resident:
                        parts.append(array("d", sorted(taken)))
                    resident.append(server.resident_bytes())
                    machine.look()
                    print(f"{len(parts) * EVERY_S:6.0f} s  {_said(parts)}  {resident[-1] >> 20} MiB  {machine}", flush=True)

                await load.at(per_s, LOAD_S, EVERY_S, look)
            yardstick.cancel()
            for watch in watches:
                watch.cancel()
            seen = await asyncio.gather(*watches)
            assert not load.wrong, "\n".join(load.wrong[:5])
            assert min(seen) > 0
            # Each lasts at least half an hour; watches that came back again and again would be another load.
            assert load.watches <= WATCHERS * (1 + math.ceil(LOAD_S / ServerLimits().watch_timeout_min_s)), load.watches
            if SOAK:
                tail, median = _at(sorted(itertools.chain(*parts)), 0.99), _at(parts[0], 0.5)
                assert tail <= TAIL_TO_MEDIAN_MAX * median, f"99 % {tail * 1e3:.1f} ms, median at first {median * 1e3:.1f} ms"
                early = resident[len(resident) // 6]
                assert resident[-1] <= MEMORY_GROWTH_MAX * early, [size >> 20 for size in resident]
    finally:
        os.sched_setaffinity(0, cores)
        assert await server.stop() == 0


class _Machine:
    """What the server took of a core between two looks, and how fast the machine was, compared with before the first."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._yardsticks_s: list[float] = []
        self._first_s = 0.0
        self._at_s, self._cpu_s = time.monotonic(), processes.cpu_s([pid])
        self._busy = self._speed = 0.0

    async def measure(self) -> None:
        """Until it is cancelled."""
        while True:
            began_s = time.thread_time()
            for _ in range(YARDSTICK_STEPS):
                pass
            self._yardsticks_s.append(time.thread_time() - began_s)
            await asyncio.sleep(YARDSTICK_EVERY_S)

    def look(self) -> None:
        at_s, cpu_s = time.monotonic(), processes.cpu_s([self._pid])
        taken_s, self._yardsticks_s = self._yardsticks_s, []
        if taken_s:
            yardstick_s = statistics.fmean(taken_s)
            self._first_s = self._first_s or yardstick_s
            self._speed = self._first_s / yardstick_s
            self._busy = (cpu_s - self._cpu_s) / (at_s - self._at_s)
            self._at_s, self._cpu_s = at_s, cpu_s

    def __str__(self) -> str:
        return f"the server busy {self._busy:.2f} of a core, the machine's speed {self._speed:.2f}"


def _said(parts: Sequence[Sequence[float]]) -> str:
    if not parts:
        return "begins"
    last = parts[-1]
    if not last:
        return "nothing was answered"
    return f"{len(last)} requests, median {_at(last, 0.5) * 1e3:.1f} ms, 99 % {_at(last, 0.99) * 1e3:.1f} ms"


def _at(ordered: Sequence[float], part: float) -> float:
    return ordered[min(int(part * len(ordered)), len(ordered) - 1)]
