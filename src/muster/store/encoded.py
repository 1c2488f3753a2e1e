"""Objects as a store in this process holds them: encoded, with the few facts beside that nearly every reader asks for.

Such a store offers them as they are, besides the `Store` contract and with the same meaning: paging, selectors, Expired. A
reader that needs a part of each object decodes that part alone, and one that keeps the object keeps the store's own bytes.

Protocols only. Values are immutable and shared by all readers. On the store's event loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from muster.objects.resources import Resource
from muster.store.contract import EventType


class EncodedOwner(Protocol):
    @property
    def uid(self) -> str: ...

    @property
    def is_controller(self) -> bool: ...


class Encoded(Protocol):
    """One version of one object; `value` is its JSON."""

    @property
    def key(self) -> tuple[str, str]:
        """(namespace, name); namespace is "" for what is not namespaced."""
        ...

    @property
    def rv(self) -> int: ...

    @property
    def uid(self) -> str: ...

    @property
    def labels(self) -> Mapping[str, str]: ...

    @property
    def owners(self) -> Sequence[EncodedOwner]: ...

    @property
    def deleting(self) -> bool: ...

    @property
    def value(self) -> bytes: ...


class EncodedEvent(Protocol):
    """As `contract.WatchEvent`. Of a BOOKMARK's record only `rv` means anything."""

    @property
    def type(self) -> EventType: ...

    @property
    def record(self) -> Encoded: ...


class EncodedPage(Protocol):
    """As `contract.Page`."""

    @property
    def records(self) -> Sequence[Encoded]: ...

    @property
    def resource_version(self) -> str: ...

    @property
    def continue_token(self) -> str: ...


class EncodedWatch(Protocol):
    """An async iterator over batches, none of them empty. Whoever opened it closes it."""

    def __aiter__(self) -> EncodedWatch: ...

    async def __anext__(self) -> Sequence[EncodedEvent]: ...

    def close(self) -> None: ...


@runtime_checkable
class EncodedReads(Protocol):
    """What a store offers that can be read so. A wrapper that changes what `list` and `watch` give does not offer it."""

    def list_records(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
        limit: int = 0,
        continue_token: str = "",
    ) -> EncodedPage: ...

    def watch_records(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
        resource_version: str = "",
        bookmarks: bool = True,
        timeout_s: float | None = None,
    ) -> EncodedWatch: ...
