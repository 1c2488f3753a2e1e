"""Simulations that do not depend on each other, side by side: each in a process of its own, as many at once as there are cores.

`side_by_side` is called from the command line's only thread, and blocks until all are done. The processes are forked, so what
was read is there already and nothing but outcomes is sent back. Whatever goes wrong in one is raised here, and ends the others;
none outlives the call. Outcomes are the same as one after the other: a simulation reads nothing but its own state.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Final, TypeVar

from muster.cli.errors import CliError, ExitCode

T = TypeVar("T")
Say = Callable[[int, int], None]
"""So many are done, of so many."""
Work = Callable[[Say], T]

AT_ONCE_MAX: Final = 8
"""Each has a copy of the engine and all its jobs."""
SENDS_EVERY_S: Final = 0.5
"""A process says how far it is no more often than this."""


def at_once(count: int) -> int:
    """How many of so many simulations can run at the same time: 1 where there is one core, or where processes can't be forked
    safely."""
    if sys.platform != "linux" or threading.active_count() > 1:
        return 1
    return min(count, len(os.sched_getaffinity(0)), AT_ONCE_MAX)


def side_by_side(works: Sequence[tuple[str, Work[T]]], count: int, say: Callable[[str, int, int], None]) -> list[T]:
    """What each of the works gives, `count` of them at a time. `say` hears their names and how far they are."""
    left = deque(enumerate(works))
    found: dict[int, T] = {}
    active: dict[Connection, tuple[int, str, BaseProcess]] = {}
    try:
        while left or active:
            while left and len(active) < count:
                place, (name, work) = left.popleft()
                pipe, process = _start(work)
                active[pipe] = (place, name, process)
            for ready in wait(list(active)):
                assert isinstance(ready, Connection)
                place, name, process = active[ready]
                match _next(ready, name, process):
                    case ("done", outcome):
                        found[place] = outcome
                        del active[ready]
                        process.join()
                    case ("far", done, total):
                        say(name, done, total)
                    case ("failed", message, code):
                        raise CliError(message, ExitCode(code))
                    case ("raised", error):
                        raise error
    finally:
        for _, _, process in active.values():
            process.kill()
            process.join()
    return [found[place] for place in range(len(works))]


def _next(pipe: Connection, name: str, process: BaseProcess) -> tuple[Any, ...]:
    try:
        message: tuple[Any, ...] = pipe.recv()
    except EOFError as error:
        process.join()
        raise CliError(
            f"{name}: its process ended by itself (status {process.exitcode}) before the simulation was over; if memory ran "
            "out, run one policy at a time"
        ) from error
    return message


def _start(work: Work[T]) -> tuple[Connection, BaseProcess]:
    forking = multiprocessing.get_context("fork")
    mine, theirs = forking.Pipe(duplex=False)
    process = forking.Process(target=_run, args=(work, theirs), daemon=True)
    process.start()
    theirs.close()
    return mine, process


def _run(work: Work[T], pipe: Connection) -> None:
    """In the process of its own."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started it ends it
    last = time.monotonic()

    def say(done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last >= SENDS_EVERY_S:
            last = time.monotonic()
            pipe.send(("far", done, total))

    try:
        message: tuple[Any, ...] = ("done", work(say))
    except CliError as error:
        message = ("failed", error.message, int(error.code))
    except BrokenPipeError:
        return  # nobody waits for it any more
    except Exception as error:  # noqa: BLE001 - raised again where it is waited for
        message = ("raised", error)
    pipe.send(message)
