"""Runs the scheduler, term after term: waits for kinds and caches, reads the configuration, begins a `Term`, follows changes.

Concurrency: one event loop; `run` is called by the manager, once at a time. The configuration outlives a term: one that was
accepted stays in force when the next term begins.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sized
from typing import Any

from muster.controllers.actions import Executor
from muster.controllers.scheduler import Past, Scheduler
from muster.controllers.scheduler_config import NAME, NAMESPACE, ConfigSource
from muster.controllers.scheduler_feed import KINDS, NODES, PODS, Kind, catch_up, insist, open_informers
from muster.controllers.scheduler_term import Term
from muster.engine import events as ev
from muster.engine.configuration import read
from muster.engine.machine import Engine
from muster.engine.registry import discover
from muster.objects.status import ApiError
from muster.objects.time import Clock
from muster.policy.order import PolicyOrder
from muster.store.cache import ObjectKey
from muster.store.contract import Store
from muster.store.events import EventRecorder
from muster.store.hub import InformerHub
from muster.store.informer import Change, ChangeType, Informer
from muster.store.leases import Fence

log = logging.getLogger(__name__)

_CONFIG_KEY = ObjectKey(NAMESPACE, NAME)


class SchedulerRunner:
    def __init__(self, scheduler: Scheduler, hub: InformerHub, *, clock: Clock, recorder: EventRecorder | None) -> None:
        self.name = scheduler.name
        self.state = "not started"
        self.term: Term | None = None
        self.source: ConfigSource | None = None
        if scheduler.engine is None:
            self.source = ConfigSource(discover(), scheduler.file_text, is_sole=scheduler.is_sole)
        self._scheduler = scheduler
        self._hub = hub
        self._clock = clock
        self._recorder = recorder
        self._has_run = False

    @property
    def failing(self) -> Mapping[ObjectKey, str]:
        return self.term.failing if self.term is not None else {}

    @property
    def queue(self) -> Sized | None:
        return self.term.feed if self.term is not None else None

    @property
    def is_idle(self) -> bool:
        return self.state == "running" and self.term is not None and self.term.is_idle

    @property
    def live_engine(self) -> Engine | None:
        """The engine that decides now, for questions; None before it is filled from the caches, and where another leads."""
        return self.term.engine if self.term is not None and self.state == "running" else None

    async def prepare(self) -> tuple[dict[Kind, Informer], list[Kind], Informer | None]:
        """The informers of all kinds that are served, the kinds that are not, and the one of the configuration."""
        informers, missing = await open_informers(self._hub, KINDS, self._waits)
        config: Informer | None = None
        if self.source is not None:
            config = await insist(
                lambda: self._hub.informer("", "ConfigMap", namespace=NAMESPACE, field_selector=f"metadata.name={NAME}"),
                "ConfigMap",
                self._waits,
            )
        return informers, missing, config

    def _waits(self, why: str) -> None:
        self.state = why

    async def run(self, store: Store, fence: Fence | None = None) -> None:
        informers, missing, config = await self.prepare()
        if missing:
            log.warning("the scheduler does without kinds that the store does not serve: %s", ", ".join(map(str, missing)))
        self.state = "syncing"
        for informer in (*informers.values(), *([config] if config is not None else [])):
            await informer.wait_synced()
        if fence is not None or self._has_run:
            self.state = "catching up"
            await catch_up(store, [informers[PODS], informers[NODES]])
        self._has_run = True
        following = _Configuration(self, store, config) if config is not None else None
        if following is not None:
            following.observe()
        term = self.term = Term(
            self._scheduler,
            self._engine(),
            store,
            informers,
            clock=self._clock,
            recorder=self._recorder,
            fence=fence,
            renew=self._engine,
        )
        self.state = "recovering"
        try:
            await term.recover()
            self.state = "running"
            besides = [following.run(term)] if following is not None else []
            if self._scheduler.past is not None:
                besides.append(self._recall(term, self._scheduler.past))
            await term.run(self._hub, missing, *besides)
        finally:
            self.state = "stopped"
            await term.close()

    async def _recall(self, term: Term, past: Past) -> None:
        """Tell the engine of runs from before this term; work does not wait for it."""
        runs = await past(self._clock())
        if runs:
            log.info("predictions begin with %d runs of the past", len(runs))
            term.feed.put(ev.RunsSeen(tuple(runs)))

    def _engine(self, document: Mapping[str, Any] | None = None) -> Engine:
        """An empty engine with the profiles of the configuration `document`; of the one in force without it."""
        if self.source is None:
            assert self._scheduler.engine is not None
            engine = self._scheduler.engine()
            if document is not None:
                engine.take_in(ev.Configured(document), [])
            return engine
        registry, raw = self.source.registry, self.source.current.raw if document is None else document
        engine = Engine(
            read(raw, registry).build(registry),
            configure=lambda later: read(later, registry).build(registry),
            order=PolicyOrder(),
        )
        engine.configuration = raw
        return engine


class _Configuration:
    """Follows the ConfigMap for the length of a term, and writes on it what became of it."""

    def __init__(self, runner: SchedulerRunner, store: Store, informer: Informer) -> None:
        assert runner.source is not None
        self._source = runner.source
        self._executor = Executor(store, runner.name, runner._recorder)
        self._informer = informer
        self._has_changed = asyncio.Event()
        self._has_changed.set()

    def observe(self) -> None:
        """Take the ConfigMap as it is now, before there is an engine to tell."""
        cached = self._informer.cache.get(_CONFIG_KEY)
        self._source.observe(cached.raw if cached is not None else None)

    async def run(self, term: Term) -> None:
        leave = self._informer.add_handler(self._note)
        try:
            while True:
                await self._has_changed.wait()
                self._has_changed.clear()
                await self._take(term)
        finally:
            leave()

    def _note(self, change: Change) -> None:
        if change.type is not ChangeType.RESYNCED:
            self._has_changed.set()

    async def _take(self, term: Term) -> None:
        cached = self._informer.cache.get(_CONFIG_KEY)
        observed = self._source.observe(cached.raw if cached is not None else None)
        if observed.outcome.is_changed:
            log.info("the scheduler goes over to the configuration from %s", observed.outcome.origin)
            term.feed.put(ev.Configured(observed.outcome.configuration.raw))
        try:
            await self._executor.apply(observed.actions)
        except ApiError as error:
            # It is tried again with the next change; what is in force does not depend on it.
            log.warning("the outcome could not be written on ConfigMap %s: %s", _CONFIG_KEY, error)
