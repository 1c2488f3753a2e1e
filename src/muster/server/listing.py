"""The answer to a list: whole when it is short, in pieces when it is long.

A piece is about a millisecond's work, so that others are served between two of them (`Request.turn`), and the whole answer is
never in memory. Plain JSON hands out the bytes that the store keeps, and its length is known beforehand; what has to be decoded
and printed is not, and goes out in chunks.

Concurrency: on the event loop, in the task of the request. YAML takes so long to write that it is written beside the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import msgspec

from muster.objects.resources import Resource
from muster.objects.status import Raw
from muster.server.exchange import Response, Turn
from muster.server.negotiation import Form, encode
from muster.server.priority import PIECE_COST, PLAIN_PIECE_COST
from muster.server.tables import partial_metadata, table
from muster.store.embedded.record_reads import RecordPage
from muster.store.embedded.records import Record

WHOLE_BYTES_MAX: Final = 64 * 1024
"""Up to this, the answer is made at once."""
WHOLE_LEN_MAX: Final = 40
_GROUP_BYTES: Final = 128 * 1024
_PRINTED_LEN: Final = 20
"""Objects in a piece that are decoded and shown in another form."""
_YAML_BYTES: Final = 16 * 1024
_ADDED_LEN: Final = 5000


async def list_answer(resource: Resource, page: RecordPage, form: Form, *, include: str, now: float, turn: Turn) -> Response:
    """Pieces are made after this returns, of objects as they are in `page`."""
    meta: Raw = {"resourceVersion": page.resource_version}
    if page.continue_token:
        meta["continue"] = page.continue_token
        if page.remaining is not None:
            meta["remainingItemCount"] = page.remaining
    size = await _size(page.records, turn)
    is_plain = form.media == "json" and not form.transform
    if form.transform == "Table":
        envelope, key = table(resource, (), now, version=form.version, include=include, list_meta=meta), "rows"

        def show(records: Sequence[Record]) -> list[Any]:
            raws = (record.raw() for record in records)
            shown = table(resource, raws, now, version=form.version, include=include, with_columns=False)
            rows: list[Any] = shown["rows"]
            return rows
    elif form.transform:
        version = f"meta.k8s.io/{form.version}"
        envelope = {"kind": "PartialObjectMetadataList", "apiVersion": version, "metadata": meta, "items": []}
        key = "items"

        def show(records: Sequence[Record]) -> list[Any]:
            return [partial_metadata(record.raw(), version) for record in records]
    else:
        kind = resource.list_kind or f"{resource.kind}List"
        envelope, key = {"kind": kind, "apiVersion": resource.api_version, "metadata": meta, "items": []}, "items"

        def show(records: Sequence[Record]) -> list[Any]:
            return [record.raw() for record in records]

    if form.media == "yaml":
        is_whole = size <= _YAML_BYTES
        pieces = _yaml(envelope, key, page.records, show, form)
    else:
        is_whole = size <= WHOLE_BYTES_MAX and (is_plain or len(page.records) <= WHOLE_LEN_MAX)
        pieces = _json(envelope, page.records, None if is_plain else show)
    if is_whole:
        return Response(body=b"".join(pieces), content_type=form.content_type)
    if is_plain:
        size += len(msgspec.json.encode(envelope)) + max(0, len(page.records) - 1)
    return Response(
        pieces=pieces,
        size_bytes=size,
        is_exact=is_plain,
        piece_cost=PLAIN_PIECE_COST if is_plain else PIECE_COST,
        is_slow=form.media == "yaml",
        content_type=form.content_type,
    )


Show = Callable[[Sequence[Record]], list[Any]]


def _json(envelope: Raw, records: Sequence[Record], show: Show | None) -> Iterator[bytes]:
    """`envelope` ends with an empty list, into which the objects go."""
    whole = msgspec.json.encode(envelope)
    before = whole[:-2]
    for group in _groups(records, len(records) if show is None else _PRINTED_LEN, _GROUP_BYTES):
        text = b",".join([record.value for record in group]) if show is None else msgspec.json.encode(show(group))[1:-1]
        yield before + text
        before = b","
    yield whole[-2:] if records else whole


def _yaml(envelope: Raw, key: str, records: Sequence[Record], show: Show, form: Form) -> Iterator[bytes]:
    if not records:
        yield encode(envelope, form)
        return
    yield encode({name: value for name, value in envelope.items() if name != key}, form) + f"{key}:\n".encode()
    for group in _groups(records, _PRINTED_LEN, _YAML_BYTES):
        yield encode(show(group), form)


def _groups(records: Sequence[Record], len_max: int, bytes_max: int) -> Iterator[Sequence[Record]]:
    first, size = 0, 0
    for index, record in enumerate(records):
        if index > first and (index - first >= len_max or size + len(record.value) > bytes_max):
            yield records[first:index]
            first, size = index, 0
        size += len(record.value)
    if first < len(records):
        yield records[first:]


async def _size(records: Sequence[Record], turn: Turn) -> int:
    size = 0
    for first in range(0, len(records), _ADDED_LEN):
        if first:
            await turn()
        size += sum([len(record.value) for record in records[first : first + _ADDED_LEN]])
    return size
