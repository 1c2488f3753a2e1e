"""Watch requests: a stream of events, as bytes that the store encoded once for all watchers.

Plain watches pass the store's lines through. Tables and partial metadata are made per watcher. The first error after the stream
began (the history was compacted under a slow reader) is sent as an ERROR event, as Kubernetes does, and the stream ends. So is
the news that the version to begin from is compacted: many clients look for it among the events only.

Concurrency: one task per watch reads `events`; `Stream.close` may be called from any other on the same loop and ends it.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import msgspec

from muster.objects.resources import Resource
from muster.objects.status import ApiError, Raw
from muster.objects.time import Clock
from muster.server.config import ServerLimits
from muster.server.exchange import Request, Stream, Turn
from muster.server.metrics import Metrics
from muster.server.negotiation import Form
from muster.server.options import ListOptions
from muster.server.tables import partial_metadata, table
from muster.store.contract import EventType
from muster.store.embedded.loop_load import LoopLoad
from muster.store.embedded.records import Event
from muster.store.embedded.watchers import Watcher

GATHER_LEAST_S = 0.01
GATHER_MOST_S = 0.04
"""Of a stream: events that follow another within this go out together, the more of them the less time the loop has to spare.
Whatever is sent costs a turn, a TLS record and a system call for each stream, so a store that commits hundreds of times a
second would do little else."""
_encode = msgspec.json.Encoder().encode
Transform = Callable[[Raw, EventType], Raw]


def watch_timeout_s(request: Request, options: ListOptions, limits: ServerLimits) -> float:
    """How long this watch may last. Without a wish it is spread over a range, by the request's id: no clock, no chance."""
    if options.timeout_s is not None:
        return min(options.timeout_s, limits.watch_timeout_max_s)
    share = int.from_bytes(hashlib.sha256(request.request_id.encode()).digest()[:4], "big") / 2**32
    return limits.watch_timeout_min_s * (1 + share)


def watch_stream(
    watcher: Watcher,
    resource: Resource,
    form: Form,
    *,
    include: str,
    clock: Clock,
    metrics: Metrics,
    pace: Turn,
    load: LoopLoad,
) -> Stream:
    """`pace` is awaited before each batch: the events of one user's thousand watches go out between others' requests."""
    watcher.pace, watcher.gather_s = pace, partial(load.stretched, GATHER_LEAST_S, GATHER_MOST_S)
    count = metrics.watch_events.labels(resource.group, resource.plural).inc
    if form.transform:
        chunks = _transformed(watcher, _transform(resource, form, include, clock), count)
    else:
        chunks = _plain(watcher, count)
    return Stream(chunks=chunks, close=watcher.close, content_type=form.content_type)


def expired_stream(error: ApiError, form: Form) -> Stream:
    """A watch that has nothing to say but that its version is gone."""

    async def chunks() -> AsyncIterator[bytes]:
        yield error_line(error)

    return Stream(chunks=chunks(), close=lambda: None, content_type=form.content_type)


async def _plain(watcher: Watcher, count: Callable[[float], None]) -> AsyncIterator[bytes]:
    try:
        async for batch in watcher:
            count(len(batch))
            yield batch[0].line if len(batch) == 1 else b"".join([event.line for event in batch])
    except ApiError as error:
        yield error_line(error)
    finally:
        watcher.close()


async def _transformed(watcher: Watcher, transform: Transform, count: Callable[[float], None]) -> AsyncIterator[bytes]:
    try:
        async for batch in watcher:
            count(len(batch))
            yield b"".join([_line(event, transform) for event in batch])
    except ApiError as error:
        yield error_line(error)
    finally:
        watcher.close()


def _line(event: Event, transform: Transform) -> bytes:
    return _encode({"type": event.type, "object": transform(event.record.raw(), event.type)}) + b"\n"


def _transform(resource: Resource, form: Form, include: str, clock: Clock) -> Transform:
    if form.transform != "Table":
        return lambda raw, type_: partial_metadata(raw, f"meta.k8s.io/{form.version}")
    is_first = True

    def as_table(raw: Raw, type_: EventType) -> Raw:
        nonlocal is_first
        with_columns, is_first = is_first, False
        meta: dict[str, Any] = {"resourceVersion": raw["metadata"].get("resourceVersion", "")}
        return table(
            resource,
            [raw],
            clock(),
            version=form.version,
            include=include if type_ is not EventType.BOOKMARK else "Object",
            list_meta=meta,
            with_columns=with_columns,
        )

    return as_table


def error_line(error: ApiError) -> bytes:
    return _encode({"type": "ERROR", "object": error.to_status()}) + b"\n"
