"""Leader election: who leads, until when, and that never two believe it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from muster.objects.status import Conflict, NotFound, Raw, Timeout
from muster.objects.time import Clock
from muster.sim.clock import current_loop, virtual
from muster.sim.faults import Faults
from muster.sim.world import Chaos, World, simulate
from muster.store.contract import Store
from muster.store.fenced import FencedStore
from muster.store.leases import Elector, Fence, LeaseTiming, NotLeading
from tests.store.stores import BreakableStore, config_map, memory_store

TIMING = LeaseTiming(lease_s=15, renew_deadline_s=10, retry_s=2)
SEEDS = range(500 if os.environ.get("MUSTER_SOAK") else 12)


def elector(store: Store, identity: str, clock: Clock | None = None, timing: LeaseTiming = TIMING) -> Elector:
    return Elector(
        store, name="boss", namespace="default", identity=identity, clock=clock or current_loop().clock, timing=timing
    )


async def make_empty_lease(store: Store) -> None:
    """What `muster install` does, so that the first leader need not wait."""
    kind = await store.resource("coordination.k8s.io", "Lease")
    lease = {"apiVersion": kind.api_version, "kind": "Lease", "metadata": {"name": "boss", "namespace": "default"}, "spec": {}}
    await store.create(kind, lease, "default")


async def lease_of(store: Store) -> dict[str, Any]:
    kind = await store.resource("coordination.k8s.io", "Lease")
    spec: dict[str, Any] = (await store.get(kind, "boss", "default"))["spec"]
    return spec


class Term:
    """Notes when its candidate leads."""

    def __init__(self) -> None:
        self.began: list[tuple[float, int]] = []
        self.ended: list[float] = []
        self.fence: Fence | None = None

    async def __call__(self, fence: Fence) -> None:
        self.fence = fence
        self.began.append((current_loop().time(), fence.epoch))
        try:
            await asyncio.sleep(1e9)
        finally:
            self.ended.append(current_loop().time())


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param({"retry_s": 0.0}, id="no pause"),
        pytest.param({"retry_s": 10.0}, id="retry as long as the deadline"),
        pytest.param({"renew_deadline_s": 15.0}, id="deadline as long as the lease"),
        pytest.param({"lease_s": 100_000}, id="too long"),
    ],
)
def test_timing_that_is_not_safe_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="leader election needs"):
        LeaseTiming(**bad)


@virtual
async def test_an_empty_lease_is_taken_at_once_and_renewed() -> None:
    async with memory_store() as store:
        await make_empty_lease(store)
        term, candidate = Term(), elector(store, "a")
        task = asyncio.create_task(candidate.run(term))
        await asyncio.sleep(0.1)
        assert term.began == [(0.0, 1)]
        first = await lease_of(store)
        assert (first["holderIdentity"], first["leaseTransitions"], first["leaseDurationSeconds"]) == ("a", 1, 15)
        await asyncio.sleep(100)
        later = await lease_of(store)
        assert later["renewTime"] > first["renewTime"]
        assert later["acquireTime"] == first["acquireTime"]
        assert candidate.is_leading
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@virtual
async def test_one_renewal_that_is_never_answered_does_not_end_the_term() -> None:
    """A connection may die without a word; there is time for another."""

    class Hanging(BreakableStore):
        hangs = False

        async def update(self, *args: Any, **options: Any) -> Raw:
            if self.hangs:
                self.hangs = False
                await asyncio.sleep(1e9)
            return await super().update(*args, **options)

    async with memory_store() as embedded:
        await make_empty_lease(embedded)
        store, term = Hanging(embedded), Term()
        task = asyncio.create_task(elector(store, "a").run(term))
        await asyncio.sleep(30)
        store.hangs = True
        await asyncio.sleep(60)
        assert not store.hangs
        assert (len(term.began), term.ended) == (1, [])
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@virtual
async def test_whoever_creates_the_lease_waits_one_lease_before_it_leads() -> None:
    async with memory_store() as store:
        term, candidate = Term(), elector(store, "a")
        task = asyncio.create_task(candidate.run(term))
        await asyncio.sleep(14.9)
        assert (await lease_of(store))["holderIdentity"] == "a"
        assert not term.began
        assert not candidate.is_leading
        await asyncio.sleep(1)
        assert term.began == [(15.0, 1)]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@virtual
async def test_it_also_waits_when_the_answer_to_the_create_was_lost() -> None:
    async with memory_store() as inner:
        store = BreakableStore(inner)
        real = store.create

        async def lossy(*args: Any, **options: Any) -> Raw:
            await real(*args, **options)
            raise Timeout("the answer was lost")

        store.create = lossy  # type: ignore[method-assign]
        term = Term()
        task = asyncio.create_task(elector(store, "a").run(term))
        await asyncio.sleep(14)
        assert not term.began
        await asyncio.sleep(10)
        assert len(term.began) == 1
        assert term.began[0][0] >= 15
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@virtual
async def test_a_lease_that_had_not_had_its_time_is_not_handed_on() -> None:
    async with memory_store() as store:
        first, second = Term(), Term()
        one = asyncio.create_task(elector(store, "a").run(first))
        await asyncio.sleep(3)
        one.cancel()
        await asyncio.gather(one, return_exceptions=True)
        assert (await lease_of(store))["holderIdentity"] == "a"
        two = asyncio.create_task(elector(store, "b").run(second))
        await asyncio.sleep(40)
        assert not first.began
        assert second.began[0][0] >= 15
        two.cancel()
        await asyncio.gather(two, return_exceptions=True)


@virtual
async def test_a_dead_leader_is_followed_after_its_lease_and_not_before() -> None:
    async with memory_store() as inner:
        await make_empty_lease(inner)
        store = BreakableStore(inner)
        first, second = Term(), Term()
        one = asyncio.create_task(elector(store, "a").run(first))
        await asyncio.sleep(5)
        two = asyncio.create_task(elector(inner, "b").run(second))
        await asyncio.sleep(20)
        assert not second.began
        died_s = current_loop().time()
        assert first.fence is not None
        until_s = first.fence.until_s
        one.get_loop().call_soon(_sever, store)
        await asyncio.sleep(60)
        ((began_s, epoch),) = second.began
        assert epoch == 2
        assert began_s > until_s, "the old leader's right had ended before"
        assert died_s + 10 < began_s < died_s + 15 + 3 * TIMING.retry_s
        assert len(first.ended) == 1
        assert first.ended[0] <= until_s
        for task in (one, two):
            task.cancel()
        await asyncio.gather(one, two, return_exceptions=True)


def _sever(store: BreakableStore) -> None:
    """From now on nothing gets through, in either direction."""

    async def hang(*_args: Any, **_options: Any) -> Any:
        await asyncio.sleep(1e9)

    store.get = hang  # type: ignore[method-assign]
    store.update = hang  # type: ignore[method-assign]


@virtual
async def test_a_leader_that_stops_hands_over_at_once() -> None:
    async with memory_store() as store:
        await make_empty_lease(store)
        first, second = Term(), Term()
        one = asyncio.create_task(elector(store, "a").run(first))
        await asyncio.sleep(1)
        two = asyncio.create_task(elector(store, "b").run(second))
        await asyncio.sleep(20)
        stopped_s = current_loop().time()
        one.cancel()
        await asyncio.gather(one, return_exceptions=True)
        spec = await lease_of(store)
        assert (spec["holderIdentity"], spec["leaseDurationSeconds"]) == ("", 1)
        await asyncio.sleep(5)
        ((began_s, epoch),) = second.began
        assert stopped_s <= began_s <= stopped_s + 1.25 * TIMING.retry_s
        assert epoch == 2
        two.cancel()
        await asyncio.gather(two, return_exceptions=True)


@virtual
async def test_clocks_that_differ_by_hours_do_not_matter() -> None:
    async with memory_store() as store:
        await make_empty_lease(store)
        now = current_loop().clock
        terms = [Term() for _ in range(3)]
        clocks: list[Clock] = [lambda: now() - 40_000, now, lambda: now() + 40_000]
        tasks = [
            asyncio.create_task(elector(store, name, clock).run(term))
            for name, clock, term in zip("abc", clocks, terms, strict=True)
        ]
        await asyncio.sleep(500)
        assert sum(len(term.began) for term in terms) == 1
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@virtual
async def test_a_lease_taken_by_hand_ends_the_term_at_the_next_renewal() -> None:
    async with memory_store() as store:
        await make_empty_lease(store)
        kind = await store.resource("coordination.k8s.io", "Lease")
        term, candidate = Term(), elector(store, "a")
        task = asyncio.create_task(candidate.run(term))
        await asyncio.sleep(5)
        await store.patch(kind, "boss", {"spec": {"holderIdentity": "usurper", "leaseDurationSeconds": 30}}, "default")
        stolen_s = current_loop().time()
        await asyncio.sleep(5)
        assert len(term.ended) == 1
        assert term.ended[0] <= stolen_s + 2 * TIMING.retry_s
        await asyncio.sleep(20)
        assert len(term.began) == 1, "the usurper promised 30 seconds"
        await asyncio.sleep(20)
        assert [epoch for _, epoch in term.began] == [1, 2]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@virtual
async def test_the_end_of_lead_ends_run_and_gives_the_lease_up() -> None:
    async with memory_store() as store:
        await make_empty_lease(store)

        async def brief(_fence: Fence) -> None:
            await asyncio.sleep(3)

        await elector(store, "a").run(brief)
        assert (await lease_of(store))["holderIdentity"] == ""

        async def broken(_fence: Fence) -> None:
            raise RuntimeError("no")

        with pytest.raises(RuntimeError, match="no"):
            await elector(store, "a").run(broken)
        assert (await lease_of(store))["holderIdentity"] == ""
        assert (await lease_of(store))["leaseTransitions"] == 2


@virtual
async def test_a_foreign_record_with_odd_values_is_read_with_care() -> None:
    async with memory_store() as store:
        kind = await store.resource("coordination.k8s.io", "Lease")
        spec = {"holderIdentity": "other"}
        lease = {"apiVersion": kind.api_version, "kind": "Lease", "metadata": {"name": "boss", "namespace": "default"}}
        await store.create(kind, {**lease, "spec": spec}, "default")
        term = Term()
        task = asyncio.create_task(elector(store, "a").run(term))
        await asyncio.sleep(14)
        assert not term.began
        await asyncio.sleep(10)
        assert [epoch for _, epoch in term.began] == [1]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@virtual
async def test_a_fence_guards_writes() -> None:
    async with memory_store() as store:
        loop = current_loop()
        kind = await store.resource("", "ConfigMap")
        fence = Fence("default/boss", "a", 7, now_s=loop.time, not_before_s=5.0)
        fence.extend(10.0)
        fenced = FencedStore(store, fence)
        with pytest.raises(NotLeading, match="create configmaps default/early"):
            await fenced.create(kind, config_map("early"), "default")
        await asyncio.sleep(5)
        await fenced.create(kind, config_map("good"), "default")
        assert (await fenced.get(kind, "good", "default"))["metadata"]["name"] == "good"
        with pytest.raises(Conflict, match="inside"):
            async with fence.guard():
                raise Conflict("inside")
        with pytest.raises(Timeout, match="ran out"):
            async with fence.guard("do something slow"):
                await asyncio.sleep(60)
        assert loop.time() == 10
        writes: list[Callable[[], Awaitable[Any]]] = [
            lambda: fenced.create(kind, config_map("late"), "default"),
            lambda: fenced.update(kind, config_map("good"), "default"),
            lambda: fenced.patch(kind, "good", {}, "default"),
            lambda: fenced.delete(kind, "good", "default"),
            lambda: fenced.delete_collection(kind, "default"),
            lambda: fenced.bind("p", "default", "n"),
            lambda: fenced.evict("p", "default"),
            lambda: fenced.transaction([]),
        ]
        for write in writes:
            with pytest.raises(NotLeading):
                await write()
        with pytest.raises(NotFound):
            await fenced.get(kind, "late", "default")
        revoked = Fence("default/boss", "a", 8, now_s=loop.time, not_before_s=0.0)
        revoked.extend(100.0)
        assert revoked.is_valid
        revoked.revoke()
        assert not revoked.is_valid


STORM = Faults(
    crash_rate=0.02,
    refused_rate=0.1,
    answer_lost_rate=0.1,
    late_rate=0.5,
    late_s=3.0,
    read_error_rate=0.1,
    latency_s=(0.0, 3.0),
)
CHAOS = Chaos(kill_every_s=60, partition_every_s=40, partition_s=(1, 40), lease_loss_every_s=90, restart_s=(0.1, 30))


@pytest.mark.soak
@pytest.mark.parametrize("seed", SEEDS)
def test_never_two_leaders_and_always_one_in_the_end(seed: int) -> None:
    """Four candidates for a quarter of an hour of crashes, cuts, lost answers, late writes and deleted leases."""

    async def scenario(world: World) -> int:
        electors: dict[str, Elector] = {}
        terms: list[tuple[int, int]] = []
        """Of each term its epoch, and how long the trace was when it began."""

        async def main(store: Store, run_name: str) -> None:
            async def lead(fence: Fence) -> None:
                world.note(run_name, f"leads, epoch {fence.epoch}")
                check_epoch(fence.epoch)
                await asyncio.sleep(1e9)

            electors[run_name] = elector(store, run_name)
            try:
                await electors[run_name].run(lead)
            finally:
                del electors[run_name]

        def check_epoch(epoch: int) -> None:
            last, seen = terms[-1] if terms else (0, 0)
            # Numbers start anew with the Lease; it may have been deleted just after the last term was won.
            if epoch <= last and not any("deleted lease" in line for line in world.trace[max(0, seen - 50) :]):
                world.fail(AssertionError(f"epoch {epoch} after {last}"), "an epoch came twice")
            terms.append((epoch, len(world.trace)))

        def at_most_one(_world: World) -> None:
            leaders = [name for name, candidate in electors.items() if candidate.is_leading and world.is_alive(name)]
            assert len(leaders) <= 1, f"{leaders} all believe to lead"

        def leaders() -> int:
            return sum(1 for name, candidate in electors.items() if candidate.is_leading and world.is_alive(name))

        world.invariant("at most one leader", at_most_one)
        world.elect("boss", "default")
        for n in range(4):
            world.add_component(f"candidate-{n}", main)
        await world.run_for(900, every_s=0.2)
        world.calm_down()
        await world.run_until(lambda: leaders() == 1, timeout_s=120, what="a leader")
        return len(terms)

    terms, trace = simulate(scenario, seed=seed, faults=STORM, chaos=CHAOS)
    assert terms >= 2, "the storm was too weak to show anything"
    assert any("crashed" in line or "killed" in line for line in trace)
