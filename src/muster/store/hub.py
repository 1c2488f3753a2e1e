"""The informers of one store, shared between all who read the same kind.

Concurrency: used on the store's event loop; each informer is a task of its own (see `muster.store.informer`).
Invariant: one watch per (kind, namespace, selectors), however many controllers ask. Those that keep a view only have one per
view, unless the store is in this process: keeping its own bytes costs nothing there, and each further cache would.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from muster.objects.view import View
from muster.store.cache import IndexFunction, Keep
from muster.store.contract import Store
from muster.store.encoded import EncodedReads
from muster.store.informer import Informer, InformerLimits


class InformerHub:
    """Controllers that ask for the same kind, namespace and selectors get the same informer."""

    def __init__(self, store: Store, *, resync_s: float = 0.0, limits: InformerLimits | None = None) -> None:
        self._store = store
        self._resync_s = resync_s
        self._limits = limits
        self._informers: dict[tuple[str, str, str | None, str, str, bool, type[View] | None], Informer] = {}
        self._is_started = False

    @property
    def informers(self) -> list[Informer]:
        return list(self._informers.values())

    async def informer(
        self,
        group: str,
        kind: str,
        *,
        namespace: str | None = None,
        label_selector: str = "",
        field_selector: str = "",
        view: type[View] | None = None,
        keep: Keep = "bytes",
        indexes: Mapping[str, IndexFunction] | None = None,
    ) -> Informer:
        """NotFound when the store does not serve the kind. Ask for all views and indexes before `start` where you can."""
        if keep == "nothing" and isinstance(self._store, EncodedReads):
            keep = "bytes"
        own = view if keep == "nothing" else None
        identity = (group, kind, namespace, label_selector, field_selector, keep == "nothing", own)
        informer = self._informers.get(identity)
        if informer is None:
            resource = await self._store.resource(group, kind)
            # While this one waited for the resource, another may have made the informer.
            informer = self._informers.get(identity)
        if informer is None:
            informer = Informer(
                self._store,
                resource,
                namespace=namespace,
                label_selector=label_selector,
                field_selector=field_selector,
                keep=keep,
                resync_s=self._resync_s,
                limits=self._limits,
            )
            self._informers[identity] = informer
        if view is not None:
            informer.add_view(view)
        for name, function in (indexes or {}).items():
            informer.cache.add_index(name, function)
        if self._is_started:
            informer.start()
        return informer

    def start(self) -> None:
        self._is_started = True
        for informer in self._informers.values():
            informer.start()

    async def stop(self) -> None:
        self._is_started = False
        await asyncio.gather(*(informer.stop() for informer in self._informers.values()))

    async def wait_synced(self) -> None:
        for informer in self.informers:
            await informer.wait_synced()
