"""The work queue: once at a time, nothing forgotten, delays and back-off, lanes, bounds."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Hashable
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from muster.sim.clock import VirtualLoop, current_loop, run, virtual
from muster.store.backoff import Backoff
from muster.store.workqueue import DEPTH, REFUSED, QueueClosed, QueueLimits, TokenBucket, WorkQueue

T = TypeVar("T")

EVEN = Backoff(base_s=1.0, max_s=8.0, spread_ratio=0.0)


async def take_all(queue: WorkQueue[str]) -> list[str]:
    """Everything that can be taken without waiting."""
    taken = []
    while len(queue):
        key = await queue.get()
        taken.append(key)
        queue.done(key)
    return taken


@virtual
async def test_a_key_added_twice_is_one_entry() -> None:
    queue: WorkQueue[str] = WorkQueue("t")
    for key in ("a", "b", "a", "a", "c"):
        assert queue.add(key)
    assert await take_all(queue) == ["a", "b", "c"]


@virtual
async def test_a_key_added_while_worked_on_comes_again_after_done() -> None:
    queue: WorkQueue[str] = WorkQueue("t")
    queue.add("a")
    assert await queue.get() == "a"
    queue.add("a")
    queue.add("a")
    assert len(queue) == 0, "it must not be given to a second worker"
    queue.done("a")
    assert await take_all(queue) == ["a"]
    queue.check_invariants()


@virtual
async def test_done_without_get_is_a_mistake() -> None:
    queue: WorkQueue[str] = WorkQueue("t")
    with pytest.raises(ValueError, match="not being worked on"):
        queue.done("a")


@virtual
async def test_get_waits_and_each_key_wakes_one_worker() -> None:
    queue: WorkQueue[str] = WorkQueue("t")
    got: list[tuple[int, str]] = []

    async def worker(number: int) -> None:
        while True:
            key = await queue.get()
            got.append((number, key))
            await asyncio.sleep(1)
            queue.done(key)

    workers = [asyncio.create_task(worker(n)) for n in range(3)]
    await asyncio.sleep(1)
    for key in "abcd":
        queue.add(key)
    await asyncio.sleep(0.5)
    assert [key for _, key in got] == ["a", "b", "c"]
    await asyncio.sleep(5)
    assert [key for _, key in got] == ["a", "b", "c", "d"]
    for task in workers:
        task.cancel()
    await asyncio.gather(*workers, return_exceptions=True)


@virtual
async def test_a_worker_cancelled_just_when_it_was_woken_passes_the_key_on() -> None:
    queue: WorkQueue[str] = WorkQueue("t")
    first, second = (asyncio.create_task(queue.get()) for _ in range(2))
    await asyncio.sleep(0)
    queue.add("a")
    first.cancel()
    assert await second == "a"
    with pytest.raises(asyncio.CancelledError):
        await first


@virtual
async def test_add_after_waits_and_the_earlier_time_wins() -> None:
    queue: WorkQueue[str] = WorkQueue("t")
    queue.add_after("a", 10)
    queue.add_after("a", 5)
    queue.add_after("a", 20)
    queue.add_after("b", 1)
    times = []
    for _ in range(2):
        key = await queue.get()
        times.append((key, current_loop().time()))
        queue.done(key)
    assert times == [("b", 1.0), ("a", 5.0)]
    await asyncio.sleep(100)
    assert len(queue) == 0, "the later times of the same key are void"
    queue.add_after("c", 0)
    assert await take_all(queue) == ["c"]


@virtual
async def test_many_earlier_times_do_not_pile_up() -> None:
    queue: WorkQueue[str] = WorkQueue("t")
    for delay_s in range(10_000, 0, -1):
        queue.add_after("a", float(delay_s))
    assert len(queue._heap) < 100


@virtual
async def test_failures_back_off_and_forget_resets() -> None:
    queue: WorkQueue[str] = WorkQueue("t", limits=QueueLimits(backoff=EVEN))
    waits = []
    for _ in range(6):
        started_s = current_loop().time()
        queue.add_rate_limited("a")
        queue.done(await queue.get())
        waits.append(current_loop().time() - started_s)
    assert waits == [1, 2, 4, 8, 8, 8]
    assert queue.failures("a") == 6
    queue.forget("a")
    assert queue.failures("a") == 0
    started_s = current_loop().time()
    queue.add_rate_limited("a")
    queue.done(await queue.get())
    assert current_loop().time() - started_s == 1


@virtual
async def test_the_bucket_slows_a_crowd_of_failures() -> None:
    limits = QueueLimits(backoff=Backoff(base_s=0.001, max_s=1, spread_ratio=0), retries_per_s=10, retries_burst=5)
    queue: WorkQueue[str] = WorkQueue("t", limits=limits)
    for n in range(25):
        queue.add_rate_limited(f"k{n}")
    await asyncio.sleep(0.002)
    assert len(queue) == 5
    await asyncio.sleep(1.0)
    assert len(queue) == 15
    await asyncio.sleep(1.0)
    assert len(queue) == 25


@virtual
async def test_waits_are_spread_by_key_and_repeat() -> None:
    async def times() -> list[float]:
        queue: WorkQueue[str] = WorkQueue("t", limits=QueueLimits(backoff=Backoff(base_s=1, max_s=8)))
        start_s = current_loop().time()
        for n in range(20):
            queue.add_rate_limited(f"k{n}")
        found = []
        for _ in range(20):
            queue.done(await queue.get())
            found.append(round(current_loop().time() - start_s, 9))
        return found

    first, second = await times(), await times()
    assert first == second
    assert len(set(first)) == 20


@virtual
async def test_lanes_take_turns() -> None:
    def lane(key: str) -> Hashable:
        return key[0]

    queue: WorkQueue[str] = WorkQueue("t", lane=lane)
    for key in ("a1", "a2", "a3", "a4", "b1", "c1", "c2"):
        queue.add(key)
    assert await take_all(queue) == ["a1", "b1", "c1", "a2", "c2", "a3", "a4"]


@virtual
async def test_a_busy_key_does_not_starve_others() -> None:
    queue: WorkQueue[str] = WorkQueue("t")
    queue.add("busy")
    queue.add("quiet")
    order = []
    for _ in range(4):
        key = await queue.get()
        order.append(key)
        queue.add("busy")
        queue.done(key)
    assert order == ["busy", "quiet", "busy", "busy"]


@virtual
async def test_a_full_queue_refuses_counts_and_calls_for_more_when_there_is_room() -> None:
    calls: list[int] = []
    queue: WorkQueue[str] = WorkQueue("full", limits=QueueLimits(capacity=4), on_room=lambda: calls.append(1))
    before = REFUSED.labels("full")._value.get()
    assert [queue.add(key) for key in "abcd"] == [True] * 4
    assert not queue.add("e")
    assert not queue.add_after("f", 1)
    assert queue.add("a"), "a key that is known needs no room"
    assert REFUSED.labels("full")._value.get() - before == 2
    assert DEPTH.labels("full")._value.get() == 4
    for _ in range(2):
        queue.done(await queue.get())
    assert calls == [1]
    queue.check_invariants()
    await take_all(queue)
    assert calls == [1], "once per overflow"


@virtual
async def test_a_delayed_key_can_always_come_at_once() -> None:
    queue: WorkQueue[str] = WorkQueue("t", limits=QueueLimits(capacity=2))
    queue.add_after("a", 100)
    queue.add_after("b", 100)
    assert queue.add("a")
    assert await take_all(queue) == ["a"]


@virtual
async def test_close_drops_delays_finishes_what_waits_and_releases_workers() -> None:
    queue: WorkQueue[str] = WorkQueue("t")
    queue.add("a")
    queue.add_after("b", 1)
    queue.close()
    assert not queue.add("c")
    assert not queue.add_after("c", 1)
    assert await take_all(queue) == ["a"]
    with pytest.raises(QueueClosed):
        await queue.get()

    other: WorkQueue[str] = WorkQueue("t")
    waiting = asyncio.create_task(other.get())
    await asyncio.sleep(0)
    other.close()
    with pytest.raises(QueueClosed):
        await waiting


@virtual
async def test_wait_idle() -> None:
    queue: WorkQueue[str] = WorkQueue("t")
    await queue.wait_idle()
    queue.add("a")
    idle = asyncio.create_task(queue.wait_idle())
    key = await queue.get()
    await asyncio.sleep(1)
    assert not idle.done()
    queue.done(key)
    await idle


def test_bucket_arithmetic() -> None:
    now_s = 0.0
    bucket = TokenBucket(2.0, 3, lambda: now_s)
    assert [bucket.reserve_s() for _ in range(5)] == [0, 0, 0, 0.5, 1.0]
    now_s = 100.0
    assert [bucket.try_take() for _ in range(4)] == [True, True, True, False]
    with pytest.raises(ValueError, match="positive rate"):
        TokenBucket(0, 1, lambda: 0.0)


@given(
    script=st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 3), st.sampled_from(["add", "after", "fail"])), max_size=40),
    workers=st.integers(1, 4),
    work_s=st.floats(0, 2),
)
@settings(max_examples=60)
def test_every_add_is_followed_by_a_whole_round_of_work(
    script: list[tuple[str, float, str]], workers: int, work_s: float
) -> None:
    """Whatever the timing: no key twice at once, and after the last add of a key its work begins anew."""

    async def main() -> None:
        loop = current_loop()
        queue: WorkQueue[str] = WorkQueue("p", limits=QueueLimits(backoff=EVEN))
        active: set[str] = set()
        last_add: dict[str, float] = {}
        last_begin: dict[str, float] = {}

        async def worker() -> None:
            while True:
                key = await queue.get()
                assert key not in active, "twice at once"
                active.add(key)
                last_begin[key] = loop.time()
                await asyncio.sleep(work_s)
                active.discard(key)
                queue.done(key)
                queue.check_invariants()

        tasks = [asyncio.create_task(worker()) for _ in range(workers)]
        for key, wait_s, how in script:
            await asyncio.sleep(wait_s)
            last_add[key] = loop.time()
            if how == "add":
                queue.add(key)
            elif how == "after":
                queue.add_after(key, wait_s)
            else:
                queue.add_rate_limited(key)
            queue.check_invariants()
        await asyncio.sleep(200)
        assert queue.is_idle
        for key, added_s in last_add.items():
            assert last_begin[key] >= added_s
        for task in tasks:
            assert not task.done()
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    run(main())


class QueueMachine(RuleBasedStateMachine):
    """The queue against a model: a set of dirty keys and a set of keys being worked on."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = VirtualLoop()
        self.dirty: set[str] = set()
        self.processing: list[str] = []
        self.queue: WorkQueue[str] = self.call(self._make())

    async def _make(self) -> WorkQueue[str]:
        return WorkQueue("m", lane=lambda key: key[0])

    def call(self, coro: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(coro)

    @rule(key=st.sampled_from(["a1", "a2", "b1", "c1"]))
    def add(self, key: str) -> None:
        assert self.queue.add(key)
        self.dirty.add(key)

    @precondition(lambda self: self.dirty - set(self.processing))
    @rule()
    def get(self) -> None:
        key = self.call(self.queue.get())
        assert key in self.dirty
        assert key not in self.processing
        self.dirty.discard(key)
        self.processing.append(key)

    @precondition(lambda self: self.processing)
    @rule(data=st.data())
    def done(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(self.processing))
        self.processing.remove(key)
        self.queue.done(key)

    @invariant()
    def counts_match(self) -> None:
        self.queue.check_invariants()
        assert len(self.queue) == len(self.dirty - set(self.processing))
        assert self.queue.is_idle == (not self.dirty and not self.processing)

    def teardown(self) -> None:
        self.loop.close()


QueueMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=30)
TestQueueMachine = QueueMachine.TestCase
