"""Events: what happened to an object, for people to read. Two groups, one set of stored objects. Pure.

They are kept as `v1` has them. `events.k8s.io/v1` has other names for some of the fields, and that is all the difference: what
is written in one group is read in the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

from muster.objects.kinds.base import Native, NativeObject
from muster.objects.kinds.references import ObjectReference
from muster.objects.resources import Column, Conversion, Resource
from muster.objects.status import Raw
from muster.objects.time import MicroTimestamp, Timestamp
from muster.objects.view import Int32


class EventSource(Native):
    """Who reported it."""

    component: Annotated[str, "Program."] = ""
    host: Annotated[str, "Node that it ran on."] = ""


class EventSeries(Native):
    """The same thing again and again."""

    count: Annotated[Int32, "How often so far."] = 0
    last_observed_time: Annotated[MicroTimestamp, "When last."] = ""


class Event(NativeObject, kw_only=True):
    """Something that happened to an object. Events are kept for a while only."""

    involved_object: Annotated[ObjectReference, "The object."]
    reason: Annotated[str, "Why it happened, one word in CamelCase."] = ""
    message: Annotated[str, "The same for people."] = ""
    source: Annotated[EventSource | None, "Who reported it."] = None
    first_timestamp: Annotated[Timestamp, "When it was first seen."] = ""
    last_timestamp: Annotated[Timestamp, "When it was last seen."] = ""
    count: Annotated[Int32, "How often it was seen."] = 0
    type: Annotated[str, "Normal or Warning."] = ""
    event_time: Annotated[MicroTimestamp, "When it happened, to the microsecond."] = ""
    series: Annotated[EventSeries | None, "Set when it goes on."] = None
    action: Annotated[str, "What was done about it."] = ""
    related: Annotated[ObjectReference | None, "A second object."] = None
    reporting_component: Annotated[str, "Controller that reported it."] = ""
    reporting_instance: Annotated[str, "Which instance of it."] = ""


class EventsEvent(NativeObject, kw_only=True):
    """Something that happened to an object, in the newer group's spelling."""

    event_time: Annotated[MicroTimestamp, "When it happened, to the microsecond."] = ""
    series: Annotated[EventSeries | None, "Set when it goes on."] = None
    reporting_controller: Annotated[str, "Controller that reported it."] = ""
    reporting_instance: Annotated[str, "Which instance of it."] = ""
    action: Annotated[str, "What was done about it."] = ""
    reason: Annotated[str, "Why it happened, one word in CamelCase."] = ""
    regarding: Annotated[ObjectReference | None, "The object."] = None
    related: Annotated[ObjectReference | None, "A second object."] = None
    note: Annotated[str, "For people."] = ""
    type: Annotated[str, "Normal or Warning."] = ""
    deprecated_source: Annotated[EventSource | None, "Who reported it, in the core group's spelling."] = None
    deprecated_first_timestamp: Annotated[Timestamp, "When it was first seen, in the core group's spelling."] = ""
    deprecated_last_timestamp: Annotated[Timestamp, "When it was last seen, in the core group's spelling."] = ""
    deprecated_count: Annotated[Int32, "How often it was seen, in the core group's spelling."] = 0


_PAIRS: Final = (
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("reportingComponent", "reportingController"),
)
_OTHER_NAMES: Final[Mapping[str, str]] = {**dict(_PAIRS), **{new: old for old, new in _PAIRS}}
"""Each name of a pair becomes the other, whichever way it goes: so nothing is lost of an object that has both."""


def renamed(raw: Raw) -> Raw:
    """The Event in the other group's spelling."""
    return {_OTHER_NAMES.get(name, name): value for name, value in raw.items()}


def _stored_field(path: str) -> str:
    name, dot, rest = path.partition(".")
    return _OTHER_NAMES.get(name, name) + dot + rest


RESOURCES: tuple[Resource, ...] = (
    Resource(
        group="events.k8s.io",
        version="v1",
        kind="Event",
        plural="events",
        short_names=("ev",),
        generation_tracked=False,
        view=EventsEvent,
        columns=(
            Column(name="Last Seen", path=".deprecatedLastTimestamp", type="date"),
            Column(name="Type", path=".type"),
            Column(name="Reason", path=".reason"),
            Column(name="Object", path=".regarding.name"),
            Column(name="Subobject", path=".regarding.fieldPath", priority=1),
            Column(name="Source", path=".reportingController", priority=1),
            Column(name="Message", path=".note"),
            Column(name="First Seen", path=".deprecatedFirstTimestamp", type="date", priority=1),
            Column(name="Count", path=".deprecatedCount", priority=1),
        ),
        selectable_fields=(
            "regarding.kind",
            "regarding.namespace",
            "regarding.name",
            "regarding.uid",
            "regarding.apiVersion",
            "regarding.resourceVersion",
            "regarding.fieldPath",
            "reason",
            "reportingController",
            "type",
        ),
        conversion=Conversion(stored_group="", from_stored=renamed, to_stored=renamed, stored_field=_stored_field),
    ),
)
