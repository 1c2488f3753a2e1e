"""Virtual time for asyncio: an hour of sleeping passes at once, and the same seed gives the same run.

`VirtualLoop` is an event loop without I/O. When nothing is ready it jumps to the next timer. When there is no timer either,
nothing can ever happen again: it raises `Deadlock` and names the tasks that wait. Work that would wait for the real world
(sockets, subprocesses, threads) is refused with `RealWorldRefused`, because its timing would differ from run to run.

Concurrency: one loop, one thread. Blocking calls that return at once (SQLite in memory) are fine: they take no virtual time.

Invariants:
- `loop.time()` never goes back, and moves only between callbacks;
- what runs depends on the program and the seed, never on the machine: tasks left over at the end are cancelled in the order
  in which they were made, not in the order of their addresses;
- an exception that no one handled fails the run.
"""

from __future__ import annotations

import asyncio
import functools
import math
import threading
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar, NoReturn, ParamSpec, TypeVar

from muster.objects.time import parse_time
from muster.sim.entropy import Entropy

T = TypeVar("T")
P = ParamSpec("P")

START_S = parse_time("2026-01-05T08:00:00Z")
"""When simulations begin unless told otherwise: a Monday morning."""

SPINS_MAX = 200_000
"""Passes of the loop in a row without time moving before it is taken for a livelock."""


class SimulationError(Exception):
    """The simulation itself can't go on; the program under test is at fault unless the message says otherwise."""


class Deadlock(SimulationError):
    """Every task waits and no timer is set: nothing would ever happen again."""


class Livelock(SimulationError):
    """Tasks keep waking each other and time stands still."""


class RealWorldRefused(SimulationError):
    """The program asked the loop for real I/O, a thread or a process."""


class UnhandledErrors(SimulationError):
    """Background work failed and nobody looked."""


class VirtualClock:
    """A `Clock`: wall-clock time of the simulation."""

    def __init__(self, loop: asyncio.AbstractEventLoop, epoch_s: float) -> None:
        self._loop = loop
        self.epoch_s = epoch_s

    def __call__(self) -> float:
        return self.epoch_s + self._loop.time()


class _Jump:
    """Stands where a loop keeps its selector: instead of waiting for I/O it moves time."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._spins = 0

    def select(self, timeout: float | None) -> list[object]:
        if timeout is None:
            raise Deadlock("nothing is ready and no timer is set, so nothing will ever happen;" + self._loop.waiting_tasks())
        if timeout > 0:
            self._spins = 0
            self._loop.advance(timeout)
        else:
            self._spins += 1
            if self._spins > self._loop.spins_max:
                self._spins = 0
                raise Livelock(
                    f"{self._loop.spins_max} passes at t={self._loop.time():.6f} s without time moving;"
                    + self._loop.waiting_tasks()
                )
        return []

    def close(self) -> None:
        pass


class VirtualLoop(asyncio.BaseEventLoop):
    """See the module. `clock` is the wall clock, `entropy` the root of all chance."""

    _REFUSED: ClassVar[tuple[str, ...]] = (
        "add_reader", "add_writer", "remove_reader", "remove_writer", "add_signal_handler", "remove_signal_handler",
        "connect_read_pipe", "connect_write_pipe", "create_connection", "create_datagram_endpoint", "create_server",
        "create_unix_connection", "create_unix_server", "getaddrinfo", "getnameinfo", "run_in_executor", "sendfile",
        "sock_accept", "sock_connect", "sock_recv", "sock_recv_into", "sock_recvfrom", "sock_recvfrom_into", "sock_sendall",
        "sock_sendfile", "sock_sendto", "start_tls", "subprocess_exec", "subprocess_shell",
    )  # fmt: skip

    def __init__(self, *, seed: int = 0, start_s: float = START_S, spins_max: int = SPINS_MAX) -> None:
        self._now_s = 0.0
        super().__init__()
        self._selector = _Jump(self)
        self._made = 0
        self._tasks: weakref.WeakValueDictionary[int, asyncio.Task[Any]] = weakref.WeakValueDictionary()
        self.spins_max = spins_max
        self.seed = seed
        self.clock = VirtualClock(self, start_s)
        self.entropy = Entropy(seed)
        self.unhandled: list[dict[str, Any]] = []
        self.tolerated: tuple[type[BaseException], ...] = ()
        """Errors that may end background work without anyone looking."""
        self.set_task_factory(self._make_task)
        self.set_exception_handler(self._note_unhandled)

    def time(self) -> float:
        return self._now_s

    @property
    def _clock_resolution(self) -> float:
        """Timers this close are due. After months, neighbouring floats are further apart than a nanosecond."""
        return max(1e-9, 2 * math.ulp(self._now_s))

    @_clock_resolution.setter
    def _clock_resolution(self, _value: float) -> None:
        """The base class sets that of the real clock, which does not matter here."""

    def advance(self, seconds: float) -> None:
        self._now_s += seconds

    def waiting_tasks(self, count_max: int = 20) -> str:
        """Where unfinished tasks stand, for error messages."""
        lines = []
        for task in self.tasks():
            frames = task.get_stack(limit=1)
            where = f"{frames[-1].f_code.co_filename}:{frames[-1].f_lineno}" if frames else "not started"
            lines.append(f"\n  {task.get_name()} at {where}")
        more = f"\n  and {len(lines) - count_max} more" if len(lines) > count_max else ""
        return f" {len(lines)} tasks wait:" + "".join(lines[:count_max]) + more

    def tasks(self) -> list[asyncio.Task[Any]]:
        """Unfinished tasks in the order in which they were made."""
        return [task for _, task in sorted(self._tasks.items()) if not task.done()]

    def _make_task(self, loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=loop, **options)
        self._made += 1
        self._tasks[self._made] = task
        return task

    def _note_unhandled(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not isinstance(context.get("exception"), self.tolerated):
            self.unhandled.append(context)

    def _process_events(self, event_list: list[object]) -> None:
        assert not event_list

    def _write_to_self(self) -> None:
        """Called by `call_soon_threadsafe`; from the loop's own thread there is nobody to wake up."""
        if getattr(self, "_thread_id", None) not in (None, threading.get_ident()):
            self._refuse("call_soon_threadsafe from another thread")

    def _refuse(self, what: str) -> NoReturn:
        raise RealWorldRefused(
            f"{what} was asked of a virtual event loop: it would wait for the real world, whose timing no seed repeats; "
            "hand in a simulated counterpart (EmbeddedStore with writer='inline', a simulated agent)"
        )


def _refusal(name: str) -> Callable[..., NoReturn]:
    def refuse(self: VirtualLoop, *_args: object, **_options: object) -> NoReturn:
        self._refuse(name)

    return refuse


for _name in VirtualLoop._REFUSED:
    setattr(VirtualLoop, _name, _refusal(_name))


def current_loop() -> VirtualLoop:
    """The virtual loop that runs the caller. RuntimeError outside of `run`."""
    loop = asyncio.get_running_loop()
    if not isinstance(loop, VirtualLoop):
        raise RuntimeError("this needs virtual time: call it from a coroutine started with muster.sim.clock.run")
    return loop


def run(coro: Coroutine[Any, Any, T], *, seed: int = 0, start_s: float = START_S, spins_max: int = SPINS_MAX) -> T:
    """Run `coro` to its end in virtual time and return its result. Left-over tasks are cancelled; see the module for errors."""
    loop = VirtualLoop(seed=seed, start_s=start_s, spins_max=spins_max)
    try:
        asyncio.set_event_loop(loop)
        result = loop.run_until_complete(coro)
        _wind_down(loop)
        if loop.unhandled:
            raise _unhandled_error(loop.unhandled)
        return result
    except BaseException as error:
        error.add_note(f"simulation seed {seed}, virtual time {loop.time():.6f} s")
        raise
    finally:
        try:
            _wind_down(loop)
        finally:
            asyncio.set_event_loop(None)
            loop.close()


def virtual(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Decorator: the async function becomes an ordinary one that runs itself in virtual time. Made for tests."""

    @functools.wraps(function)
    def in_virtual_time(*args: P.args, **kwargs: P.kwargs) -> T:
        return run(function(*args, **kwargs))

    return in_virtual_time


def _wind_down(loop: VirtualLoop) -> None:
    """Cancel what is left, oldest first, until nothing is: a task may start another while it cleans up."""
    for _ in range(10):
        tasks = loop.tasks()
        if not tasks:
            loop.run_until_complete(loop.shutdown_asyncgens())
            return
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    raise SimulationError("cancelled tasks keep starting new ones;" + loop.waiting_tasks())


def _unhandled_error(contexts: list[dict[str, Any]]) -> UnhandledErrors:
    first = contexts[0]
    cause = first.get("exception")
    what = cause or first.get("task") or first.get("future") or first.get("asyncgen")
    error = UnhandledErrors(f"{len(contexts)} errors in background work; the first: {first.get('message')}: {what!r}")
    error.__cause__ = cause if isinstance(cause, BaseException) else None
    return error
