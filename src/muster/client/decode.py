"""From the bytes of an answer to objects, pages, events and typed views.

Pure. What does not decode raises `BadResponse` naming the request; it is never passed on half.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import msgspec

from muster.client.errors import BadResponse, expired, snippet
from muster.objects.requests import EventType, Page, V, ViewEvent, ViewPage, WatchEvent
from muster.objects.resources import Resource
from muster.objects.status import Raw, from_status
from muster.objects.view import view_of

T = TypeVar("T")


class _ListMeta(msgspec.Struct):
    resource_version: str = msgspec.field(name="resourceVersion", default="")
    continue_token: str | None = msgspec.field(name="continue", default=None)
    remaining: int | None = msgspec.field(name="remainingItemCount", default=None)


class _List(msgspec.Struct, Generic[T]):
    metadata: _ListMeta
    items: list[T] | None


class _Frame(msgspec.Struct):
    type: str
    object: Raw


class _RawFrame(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Meta(msgspec.Struct):
    resource_version: str = msgspec.field(name="resourceVersion", default="")


class _Versioned(msgspec.Struct):
    metadata: _Meta


_OBJECT = msgspec.json.Decoder(Raw)
_PAGE = msgspec.json.Decoder(_List[Raw])
_FRAME = msgspec.json.Decoder(_Frame)
_RAW_FRAME = msgspec.json.Decoder(_RawFrame)
_VERSIONED = msgspec.json.Decoder(_Versioned)
_RAW_PAGE = msgspec.json.Decoder(_List[msgspec.Raw])


@functools.lru_cache(maxsize=256)
def _page_decoder(view: type[V]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(_List[view])  # type: ignore[valid-type]


def decode_object(body: bytes, request: object) -> Raw:
    try:
        return _OBJECT.decode(body)
    except msgspec.DecodeError as error:
        raise _broken(body, request, error) from error


def decode_page(body: bytes, resource: Resource, request: object) -> Page:
    """Items of built-in kinds come without apiVersion and kind; they get them here, so that each can stand alone."""
    try:
        page = _PAGE.decode(body)
    except msgspec.DecodeError as error:
        raise _broken(body, request, error) from error
    items = page.items or []
    for item in items:
        if "kind" not in item:
            item["apiVersion"] = resource.api_version
            item["kind"] = resource.kind
    metadata = page.metadata
    return Page(items, metadata.resource_version, metadata.continue_token or "", metadata.remaining)


def decode_view_page(body: bytes, view: type[V], request: object) -> ViewPage[V]:
    try:
        page = _page_decoder(view).decode(body)
        items: list[V] = page.items or []
    except msgspec.DecodeError:
        # Nulls where Go had nothing, or one odd item: slower, one by one.
        try:
            page = _RAW_PAGE.decode(body)
            items = [view_of(view, bytes(item)) for item in page.items or []]
        except msgspec.DecodeError as error:
            raise _broken(body, request, error) from error
    metadata = page.metadata
    return ViewPage(items, metadata.resource_version, metadata.continue_token or "", metadata.remaining)


def decode_events(lines: list[bytes], request: object, *, is_versioned: bool = True) -> Iterator[WatchEvent]:
    """The events in `lines`. An ERROR event raises what its Status stands for, Expired among them."""
    for line in lines:
        try:
            frame = _FRAME.decode(line)
            kind = frame.type
            if kind == "ERROR":
                raise expired(from_status(frame.object))
            event = WatchEvent(EventType(kind), frame.object)
            if is_versioned and not event.resource_version:
                raise KeyError("metadata.resourceVersion")
        except (msgspec.DecodeError, KeyError, TypeError, ValueError) as error:
            raise _broken(line, request, error) from error
        yield event


def decode_view_events(lines: list[bytes], view: type[V], request: object) -> Iterator[ViewEvent[V]]:
    for line in lines:
        try:
            frame = _RAW_FRAME.decode(line)
            if frame.type == "ERROR":
                raise expired(from_status(_OBJECT.decode(frame.object)))
            kind = EventType(frame.type)
            version = _VERSIONED.decode(frame.object).metadata.resource_version
            decoded = None if kind is EventType.BOOKMARK else view_of(view, bytes(frame.object))
        except (msgspec.DecodeError, ValueError) as error:
            raise _broken(line, request, error) from error
        yield ViewEvent(kind, version, decoded)


def _broken(body: bytes, request: object, error: Exception) -> BadResponse:
    return BadResponse(f"{request}: the answer cannot be read: {error}; it begins: {snippet(body[:200]) or 'empty'}")
