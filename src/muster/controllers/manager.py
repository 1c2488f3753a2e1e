"""Runs a set of controllers on one store: shared informers, leader election, workers, health, a clean stop.

Concurrency: `run` is one task with children, all on the store's event loop. With an election, informers follow the store from
the start, so that a new leader is warm; controllers run only while this process leads, and write through a `FencedStore`.

Invariants:
- what one controller raises is retried and reported, and disturbs no other controller; only cancellation ends `run`;
- when `run` has ended, nothing of it is left: no task, no watch, no lease held.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import msgspec

from muster.controllers.runtime import Runnable, Running
from muster.objects.names import NAMESPACE_SYSTEM
from muster.objects.time import Clock
from muster.store.backoff import Backoff, is_cancelled
from muster.store.contract import Store
from muster.store.events import EventRecorder
from muster.store.fenced import FencedStore
from muster.store.hub import InformerHub
from muster.store.leases import Elector, Fence, LeaseTiming

log = logging.getLogger(__name__)

_RESTART_BACKOFF = Backoff(base_s=1.0, max_s=60.0)


class Election(msgspec.Struct, frozen=True, kw_only=True):
    """Which lease to stand for. `identity` must be unique to this run of the process."""

    identity: str
    name: str = "muster-controller"
    namespace: str = NAMESPACE_SYSTEM
    timing: LeaseTiming = LeaseTiming()


class ControllerHealth(msgspec.Struct, frozen=True):
    """How one controller is. `failing` holds a few of the keys that fail, with why."""

    name: str
    state: str
    is_healthy: bool
    queued: int = 0
    failing_count: int = 0
    failing: dict[str, str] = msgspec.field(default_factory=dict)


class ManagerHealth(msgspec.Struct, frozen=True):
    """`is_ready`: every informer has its first list. `is_healthy`: besides, nothing is failing or waiting."""

    is_ready: bool
    is_healthy: bool
    is_leading: bool
    leader: str
    controllers: list[ControllerHealth]
    informers: dict[str, str]
    """Those that can't follow the store, with why."""


class Manager:
    """See the module. `await run()`, or `start` and `stop`."""

    def __init__(
        self,
        store: Store,
        controllers: Sequence[Runnable],
        *,
        clock: Clock,
        name: str = "muster",
        election: Election | None = None,
        election_store: Store | None = None,
        resync_s: float = 1_800.0,
        recorder: EventRecorder | None = None,
    ) -> None:
        """`election_store`: where the lease is renewed, if that is not to wait in line behind what controllers write."""
        names = [controller.name for controller in controllers]
        if len(names) != len(set(names)):
            raise ValueError(f"two controllers have the same name: {', '.join(sorted(names))}")
        self.name = name
        self.hub = InformerHub(store, resync_s=resync_s)
        self.recorder = recorder or EventRecorder(
            store, component=name, clock=clock, instance=election.identity if election else name
        )
        self.runners: list[Running] = [c.runner(self.hub, clock=clock, recorder=self.recorder) for c in controllers]
        self._store = store
        self._clock = clock
        self._election = election
        self._election_store = election_store or store
        self._elector: Elector | None = None
        self._is_acting = False
        self._task: asyncio.Task[None] | None = None

    @property
    def is_leading(self) -> bool:
        """Whether controllers may act now. Without an election that is: while running."""
        return self._is_acting if self._elector is None else self._elector.is_leading

    @property
    def fence(self) -> Fence | None:
        return self._elector.fence if self._elector else None

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self.run(), name=f"manager {self.name}")

    async def stop(self) -> None:
        """End `run` and wait until everything of it has ended. What it died of, if it did, is raised."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            try:
                await task
            except asyncio.CancelledError:
                if not task.cancelled():
                    raise

    async def run(self) -> None:
        """Until cancelled."""
        self.recorder.start()
        self.hub.start()
        warming = asyncio.create_task(self._warm_up(), name=f"manager {self.name} informers")
        try:
            if self._election is None:
                await self._act(self._store, None)
            else:
                await self._stand(self._election)
        finally:
            # Each step also when an earlier one is cancelled: whoever stops this may lose patience.
            warming.cancel()
            try:
                await asyncio.gather(warming, return_exceptions=True)
            finally:
                try:
                    await self.hub.stop()
                finally:
                    await self.recorder.stop()

    def health(self) -> ManagerHealth:
        controllers = [_health_of(runner) for runner in self.runners]
        lagging = {
            f"{informer.resource.qualified} {informer.namespace or ''}".strip(): informer.last_error or "not synced yet"
            for informer in self.hub.informers
            if not informer.is_healthy
        }
        is_ready = all(informer.has_synced for informer in self.hub.informers)
        is_acting_well = not self.is_leading or all(c.is_healthy for c in controllers)
        return ManagerHealth(
            is_ready=is_ready,
            is_healthy=is_ready and not lagging and is_acting_well,
            is_leading=self.is_leading,
            leader=self._elector.leader if self._elector else self.name,
            controllers=controllers,
            informers=lagging,
        )

    async def _warm_up(self) -> None:
        """Make all informers early, so that a standby has full caches when it becomes leader."""
        await asyncio.gather(*(runner.prepare() for runner in self.runners))

    async def _stand(self, election: Election) -> None:
        self._elector = Elector(
            self._election_store,
            name=election.name,
            namespace=election.namespace,
            identity=election.identity,
            clock=self._clock,
            timing=election.timing,
        )

        async def lead(fence: Fence) -> None:
            await self._act(FencedStore(self._store, fence), fence)

        await self._elector.run(lead)

    async def _act(self, store: Store, fence: Fence | None) -> None:
        """Run all controllers until cancelled."""
        tasks = [
            asyncio.create_task(self._supervise(runner, store, fence), name=f"controller {runner.name}")
            for runner in self.runners
        ]
        self._is_acting = True
        try:
            # Without any controller there is still a lease to hold.
            await asyncio.gather(*tasks, _forever())
        finally:
            self._is_acting = False
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _supervise(self, runner: Running, store: Store, fence: Fence | None) -> None:
        """A runner that fails as a whole is started again; its keys are found again from the caches."""
        attempt = 0
        while True:
            try:
                await runner.run(store, fence)
            except Exception as error:
                if is_cancelled():
                    raise
                log.exception("controller %s stopped and will be started again", runner.name)
                runner.state = f"restarting: {error}"
            await asyncio.sleep(_RESTART_BACKOFF.delay_s(attempt, runner.name))
            attempt += 1


def _health_of(runner: Running, failing_len_max: int = 10) -> ControllerHealth:
    some = dict(list(runner.failing.items())[:failing_len_max])
    return ControllerHealth(
        name=runner.name,
        state=runner.state,
        is_healthy=runner.state == "running" and not runner.failing,
        queued=len(runner.queue) if runner.queue is not None else 0,
        failing_count=len(runner.failing),
        failing={str(key): why for key, why in some.items()},
    )


async def _forever() -> None:
    await asyncio.get_running_loop().create_future()
