"""Bind, evict and scale: what a server or a scheduler asks of the store beside changes of whole objects.

`RecordStore` has these methods (record_store.py); the steps are in `binding.py`, `eviction.py` and `scale.py`. On the loop.
Bindings that come together go to disk together, and each has an outcome of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from muster.objects.resources import Resource
from muster.objects.status import ApiError, Raw, RequestEntityTooLarge
from muster.store.contract import DEFAULT_WRITE, Binding, WriteOptions
from muster.store.embedded.admission import Actor
from muster.store.embedded.binding import Bindings
from muster.store.embedded.context import WriteContext
from muster.store.embedded.eviction import Evictions
from muster.store.embedded.record_reads import RecordReads
from muster.store.embedded.record_writes import RecordWrites
from muster.store.embedded.scale import Scales, scale_of, scale_paths
from muster.store.embedded.shaping import Shaper
from muster.store.embedded.transaction import Result, Transaction

_BOUND_AT_ONCE = 32
"""Bindings that somebody far away is asked about at the same time."""


class RecordSubresources(RecordReads, RecordWrites):
    _shaper: Shaper
    _bindings: Bindings
    _evictions: Evictions
    _scales: Scales

    async def bind(
        self,
        pod: str,
        namespace: str,
        node: str,
        *,
        uid: str = "",
        annotations: Mapping[str, str] | None = None,
        options: WriteOptions = DEFAULT_WRITE,
        actor: Actor | None = None,
        warnings: list[str] | None = None,
    ) -> None:
        context = WriteContext(options, actor, warnings)

        async def build(txn: Transaction) -> Sequence[Result]:
            return [await self._bindings.bind(txn, pod, namespace, node, context, uid=uid, annotations=annotations)]

        await self._run(build, context)

    async def bind_many(
        self, bindings: Sequence[Binding], *, options: WriteOptions = DEFAULT_WRITE, actor: Actor | None = None
    ) -> Sequence[ApiError | None]:
        """One commit for all that can be bound. Those that can't do not hinder the others."""
        limit = self._core.limits.transaction_len_max
        outcomes: list[ApiError | None] = []
        if self._shaper.asks_about("CREATE", self._registry.catalog.by_kind("", "Pod"), "binding"):
            # Somebody far away is asked about each: a late answer shall hold up its own pod, not the others.
            for start in range(0, len(bindings), _BOUND_AT_ONCE):
                some = bindings[start : start + _BOUND_AT_ONCE]
                parts = await asyncio.gather(*(self._bind_together([b], WriteContext(options, actor)) for b in some))
                outcomes += [outcome for part in parts for outcome in part]
            return outcomes
        for start in range(0, len(bindings), limit):
            outcomes += await self._bind_together(bindings[start : start + limit], WriteContext(options, actor))
        return outcomes

    async def _bind_together(self, bindings: Sequence[Binding], context: WriteContext) -> list[ApiError | None]:
        outcomes: list[ApiError | None] = []

        async def build(txn: Transaction) -> Sequence[Result]:
            outcomes.clear()
            results: list[Result] = []
            nodes: dict[tuple[str, str], str] = {}
            for b in bindings:
                try:
                    if (node := nodes.get((b.namespace, b.pod))) is not None:
                        raise self._bindings.already_bound(b.pod, node)
                    results.append(
                        await self._bindings.bind(
                            txn, b.pod, b.namespace, b.node, context, uid=b.uid, annotations=b.annotations
                        )
                    )
                    nodes[b.namespace, b.pod] = b.node
                    outcomes.append(None)
                except ApiError as error:
                    outcomes.append(error)
            return results

        try:
            await self._run(build, context)
        except RequestEntityTooLarge as error:
            # One of them is, and nothing was written.
            if len(bindings) == 1:
                return [error]
            return [outcome for b in bindings for outcome in await self._bind_together([b], context)]
        except ApiError as error:
            return [error] * len(bindings)
        return outcomes

    async def evict(
        self,
        pod: str,
        namespace: str,
        *,
        grace_period_s: int | None = None,
        uid: str = "",
        dry_run: bool = False,
        actor: Actor | None = None,
        warnings: list[str] | None = None,
    ) -> None:
        context = WriteContext(WriteOptions(dry_run=dry_run), actor, warnings)

        async def build(txn: Transaction) -> Sequence[Result]:
            return await self._evictions.evict(txn, pod, namespace, context, grace_period_s=grace_period_s, uid=uid)

        await self._run(build, context)

    async def get_scale(self, resource: Resource, name: str, namespace: str | None = None) -> Raw:
        """The object's `autoscaling/v1 Scale`. NotFound for kinds that have none."""
        scale_paths(resource)
        return scale_of(resource, self.get_record(resource, name, namespace))

    async def update_scale(
        self,
        resource: Resource,
        name: str,
        scale: Raw,
        namespace: str | None = None,
        options: WriteOptions = DEFAULT_WRITE,
        *,
        is_applied: bool = False,
        actor: Actor | None = None,
        warnings: list[str] | None = None,
    ) -> Raw:
        """`is_applied`: by server-side apply, so that the manager owns the number from then on."""
        context = WriteContext(options, actor, warnings)
        record = await self._one(
            resource,
            lambda txn: self._scales.put(txn, resource, scale, context, namespace=namespace, name=name, is_applied=is_applied),
            context,
        )
        return scale_of(resource, record)
