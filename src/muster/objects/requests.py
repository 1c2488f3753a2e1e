"""The values that requests and answers are made of: patch types, write options, pages, watch events.

Pure. The client and the Store contract share them, so that code moves between a client and a store without change.
"""

from __future__ import annotations

import enum
from typing import Any, Generic, Literal, TypeVar

import msgspec

from muster.objects.status import Raw
from muster.objects.view import View

Propagation = Literal["Background", "Foreground", "Orphan"]
V = TypeVar("V", bound=View)


class PatchType(enum.Enum):
    """The value is the media type that goes with it over HTTP."""

    JSON = "application/json-patch+json"
    MERGE = "application/merge-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"
    APPLY = "application/apply-patch+yaml"


class EventType(enum.StrEnum):
    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"


class WatchEvent(msgspec.Struct, frozen=True):
    """A change. For BOOKMARK only `object.metadata.resourceVersion` means anything."""

    type: EventType
    object: Raw

    @property
    def resource_version(self) -> str:
        return str(self.object["metadata"]["resourceVersion"])


class ViewEvent(msgspec.Struct, Generic[V], frozen=True):
    """A change, decoded straight into a typed view. A BOOKMARK has no view."""

    type: EventType
    resource_version: str
    view: V | None = None


class Page(msgspec.Struct, frozen=True):
    """One chunk of a list, a consistent snapshot at `resource_version` across all its chunks."""

    items: list[Raw]
    resource_version: str
    continue_token: str = ""
    remaining: int | None = None


class ViewPage(msgspec.Struct, Generic[V], frozen=True):
    """A page whose items were decoded straight into typed views."""

    items: list[V]
    resource_version: str
    continue_token: str = ""
    remaining: int | None = None


class Preconditions(msgspec.Struct, frozen=True):
    """What must hold of the object for a delete to happen; Conflict otherwise."""

    uid: str | None = None
    resource_version: str | None = None

    def to_raw(self) -> dict[str, Any]:
        raw: dict[str, Any] = {}
        if self.uid is not None:
            raw["uid"] = self.uid
        if self.resource_version is not None:
            raw["resourceVersion"] = self.resource_version
        return raw


class WriteOptions(msgspec.Struct, frozen=True):
    """Common to all writes. `field_manager` owns what the write sets; `force` takes fields over from others (apply only)."""

    dry_run: bool = False
    field_manager: str = "muster"
    force: bool = False
    field_validation: Literal["Ignore", "Warn", "Strict"] = "Ignore"


DEFAULT_WRITE = WriteOptions()
