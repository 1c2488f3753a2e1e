"""Virtual time: it jumps, it never goes back, it refuses the real world, and it repeats itself."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.objects.time import format_time
from muster.sim.clock import (
    START_S,
    Deadlock,
    Livelock,
    RealWorldRefused,
    SimulationError,
    UnhandledErrors,
    VirtualLoop,
    current_loop,
    run,
    virtual,
)


@virtual
async def test_sleep_takes_exactly_its_time() -> None:
    loop = current_loop()
    await asyncio.sleep(86_400 * 365)
    assert loop.time() == 86_400 * 365
    assert loop.clock() == START_S + 86_400 * 365


def test_start_and_seed_are_handed_in() -> None:
    async def main() -> tuple[str, int, bytes]:
        loop = current_loop()
        await asyncio.sleep(1.5)
        return format_time(loop.clock()), loop.seed, loop.entropy.bytes(4)

    when, seed, entropy = run(main(), seed=42, start_s=1_000_000_000.0)
    assert (when, seed) == ("2001-09-09T01:46:41Z", 42)
    assert run(main(), seed=42)[2] == entropy
    assert run(main(), seed=43)[2] != entropy


@given(delays=st.lists(st.floats(min_value=0, max_value=1e6), min_size=1, max_size=20))
@settings(max_examples=50)
def test_timers_fire_in_order_of_their_time(delays: list[float]) -> None:
    async def main() -> list[tuple[float, float]]:
        fired: list[tuple[float, float]] = []

        async def sleeper(delay_s: float) -> None:
            await asyncio.sleep(delay_s)
            fired.append((delay_s, asyncio.get_running_loop().time()))

        await asyncio.gather(*(sleeper(delay_s) for delay_s in delays))
        return fired

    fired = run(main())
    assert [delay_s for delay_s, _ in fired] == sorted(delays)
    assert [at_s for _, at_s in fired] == pytest.approx(sorted(delays), abs=1e-6)


@virtual
async def test_timeouts_work() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(5):
            await asyncio.sleep(6)
    assert current_loop().time() == 5


def test_deadlock_is_an_error_that_names_who_waits() -> None:
    async def waits_for_nothing() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        await asyncio.create_task(waits_for_nothing(), name="the one that waits")

    with pytest.raises(Deadlock, match="the one that waits"):
        run(main())


def test_livelock_is_an_error() -> None:
    async def main() -> None:
        while True:
            await asyncio.sleep(0)

    with pytest.raises(Livelock, match="1000 passes"):
        run(main(), spins_max=1000)


async def _thread() -> None:
    await asyncio.to_thread(print)


async def _connect() -> None:
    await asyncio.open_connection("127.0.0.1", 1)


async def _process() -> None:
    await asyncio.create_subprocess_exec("true")


async def _reader() -> None:
    left, right = socket.socketpair()
    with left, right:
        asyncio.get_running_loop().add_reader(left, print)


async def _resolve() -> None:
    await asyncio.get_running_loop().getaddrinfo("localhost", 80)


@pytest.mark.parametrize("ask", [_thread, _connect, _process, _reader, _resolve], ids=lambda f: f.__name__.strip("_"))
def test_the_real_world_is_refused(ask: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await ask()

    with pytest.raises(RealWorldRefused, match="virtual event loop"):
        run(main())


def test_another_thread_is_refused() -> None:
    refused: list[BaseException] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()

        def intrude() -> None:
            try:
                loop.call_soon_threadsafe(print)
            except RealWorldRefused as error:
                refused.append(error)

        thread = threading.Thread(target=intrude)
        thread.start()
        thread.join()
        loop.call_soon_threadsafe(lambda: None)

    run(main())
    assert len(refused) == 1


def test_an_error_that_nobody_looks_at_fails_the_run() -> None:
    async def main() -> None:
        asyncio.get_running_loop().call_soon(lambda: 1 / 0)
        await asyncio.sleep(1)

    with pytest.raises(UnhandledErrors, match="ZeroDivisionError"):
        run(main())


def test_an_error_carries_the_seed() -> None:
    async def main() -> None:
        await asyncio.sleep(2)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no") as caught:
        run(main(), seed=77)
    assert "simulation seed 77, virtual time 2.000000 s" in caught.value.__notes__


def test_left_over_tasks_are_cancelled_in_the_order_they_were_made() -> None:
    ended: list[int] = []

    async def lasting(number: int) -> None:
        try:
            await asyncio.sleep(1e9)
        finally:
            ended.append(number)

    async def main() -> None:
        keep = [asyncio.create_task(lasting(n)) for n in range(50)]
        await asyncio.sleep(1)
        assert len(keep) == 50

    run(main())
    assert ended == list(range(50))


def test_tasks_that_keep_starting_others_when_cancelled_are_an_error() -> None:
    lives = 15

    async def stubborn() -> None:
        nonlocal lives
        try:
            await asyncio.sleep(1e9)
        finally:
            lives -= 1
            if lives > 0:
                asyncio.get_running_loop().create_task(stubborn())

    async def main() -> None:
        asyncio.get_running_loop().create_task(stubborn())
        await asyncio.sleep(1)

    with pytest.raises(SimulationError, match="keep starting new ones"):
        run(main())
    assert lives == 0, "the second attempt at cleaning up saw the end of it"


async def test_current_loop_needs_virtual_time() -> None:
    with pytest.raises(RuntimeError, match="virtual time"):
        current_loop()


def test_loops_do_not_share_anything() -> None:
    first, second = VirtualLoop(seed=1), VirtualLoop(seed=1)
    try:
        first.advance(5)
        assert (first.time(), second.time()) == (5, 0)
    finally:
        first.close()
        second.close()
