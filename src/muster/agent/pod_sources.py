"""ConfigMaps and Secrets of this node's pods, by `get` alone: a node may not list or watch them.

What was read is kept for a while (`FRESH_S`), and used beyond that while the store does not answer. Bounded by number and size;
what was used least recently goes first.

Concurrency: one event loop. Two that want the same object at a time ask twice, which harms nobody.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

import msgspec

from muster.agent.contracts import AgentError
from muster.agent.environment import SourceKey, Sources
from muster.objects.status import ApiError, Forbidden, NotFound, Raw
from muster.objects.time import Clock
from muster.store.contract import Store

FRESH_S = 30.0
KEPT_MAX = 1024
KEPT_BYTES_MAX = 64 << 20


class _Kept(msgspec.Struct):
    raw: Raw | None
    at: float
    bytes: int


class PodSources:
    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._kept: OrderedDict[tuple[str, str, str], _Kept] = OrderedDict()
        self._bytes = 0

    async def fetch(self, namespace: str, keys: Iterable[SourceKey]) -> Sources:
        """None for what is not there. AgentError `CreateContainerConfigError` when the store can't say."""
        found: dict[SourceKey, Raw | None] = {}
        size = 0
        for kind, name in dict.fromkeys(keys):
            found[kind, name] = await self._one(namespace, (kind, name))
            kept = self._kept.get((kind, namespace, name))
            size += kept.bytes if kept is not None else 0
            if size > KEPT_BYTES_MAX:
                message = f"{kind} {namespace}/{name}: with it the pod names objects of {size} bytes; at most {KEPT_BYTES_MAX}"
                raise AgentError("CreateContainerConfigError", f"{message} are possible; split the pod")
        return found

    def forget(self, namespace: str, keys: Iterable[SourceKey]) -> None:
        """Ask the store next time."""
        for kind, name in keys:
            if (kept := self._kept.get((kind, namespace, name))) is not None:
                kept.at = float("-inf")

    async def _one(self, namespace: str, key: SourceKey) -> Raw | None:
        kind, name = key
        where = (kind, namespace, name)
        kept = self._kept.get(where)
        now = self._clock()
        if kept is not None and now - kept.at < FRESH_S:
            self._kept.move_to_end(where)
            return kept.raw
        try:
            raw: Raw | None = await self._store.get(await self._store.resource("", kind), name, namespace)
        except NotFound:
            raw = None
        except Forbidden as e:
            raise AgentError("CreateContainerConfigError", f"{kind} {namespace}/{name} may not be read: {e.message}") from e
        except ApiError as e:
            if kept is not None:
                return kept.raw
            raise AgentError("CreateContainerConfigError", f"{kind} {namespace}/{name} can't be read now: {e.message}") from e
        self._drop(where)
        if raw is not None:
            # Absence is not remembered: whoever waits for an object wants it as soon as it is there.
            self._kept[where] = _Kept(raw, now, len(msgspec.json.encode(raw)))
            self._bytes += self._kept[where].bytes
            while len(self._kept) > KEPT_MAX or (self._bytes > KEPT_BYTES_MAX and len(self._kept) > 1):
                self._drop(next(iter(self._kept)))
        return raw

    def _drop(self, where: tuple[str, str, str]) -> None:
        if (kept := self._kept.pop(where, None)) is not None:
            self._bytes -= kept.bytes
