"""Which objects a list or watch is about: a namespace, label and field selectors, and the version they are wanted in.

Pure, on records. With a selector, a change can carry an object into the selection or out of it; `select` says so the way
Kubernetes does: ADDED when it starts to match, DELETED (with the object as it last matched) when it stops.
`query_of` reads the selectors that stand in objects.
"""

from __future__ import annotations

import msgspec

from muster.objects.resources import Resource
from muster.objects.selectors import (
    FieldQuery,
    FieldTerm,
    LabelQuery,
    LabelSelector,
    from_label_selector,
    from_labels,
    parse_field_selector,
    parse_label_selector,
)
from muster.objects.status import BadRequest, Raw
from muster.objects.view import view_of
from muster.store.contract import EventType
from muster.store.embedded.records import Event, Record, encode


class Selection:
    __slots__ = ("_fields", "_labels", "api_version", "is_everything", "name", "namespace", "resource", "topic")

    def __init__(self, resource: Resource, namespace: str | None, label_selector: str, field_selector: str) -> None:
        self.namespace = namespace if resource.namespaced else None
        self.resource = resource
        self.api_version = resource.api_version
        self._labels = _parse_labels(label_selector)
        self._fields = _parse_fields(resource, field_selector)
        self.is_everything = self._labels.is_everything and self._fields.is_everything
        self.name = self._fields.exact("metadata.name")
        """The one name that can match, if the selector gives it."""
        self.topic = self._fields.first_exact()
        """A field and the value that anything selected has in it, if the selector gives one: what a change must have, before
        or after it, to be of any concern here."""

    def matches(self, record: Record) -> bool:
        """Selectors only; whoever calls this has taken care of the namespace."""
        return self._labels.matches(record.labels) and (self._fields.is_everything or self._fields.matches(record.field))

    def select(self, event: Event) -> Event | None:
        """What a watcher with this selection is to see of `event`."""
        record = event.record
        if self.namespace is not None and record.key[0] != self.namespace:
            return None
        if not self.is_everything:
            previous = event.previous
            before = previous is not None and self.matches(previous)
            now = event.type is not EventType.DELETED and self.matches(record)
            if not before and not now:
                return None
            if before and not now and event.type is not EventType.DELETED:
                assert previous is not None
                event = Event(EventType.DELETED, _at_version(previous, event.rv), None)
            elif now and not before and event.type is EventType.MODIFIED:
                event = Event(EventType.ADDED, record, None)
        if event.record.api_version != self.api_version:
            event = Event(event.type, in_version(event.record, self.resource), None)
        return event


def in_version(record: Record, resource: Resource) -> Record:
    """The object as another served version of its kind. Without a conversion only apiVersion differs, as with Kubernetes'
    strategy None for custom kinds."""
    if record.api_version == resource.api_version:
        return record
    raw = record.raw()
    if resource.conversion is not None:
        raw = resource.conversion.from_stored(raw)
    raw["apiVersion"] = resource.api_version
    return msgspec.structs.replace(record, api_version=resource.api_version, value=encode(raw))


def _at_version(record: Record, rv: int) -> Record:
    raw = record.raw()
    raw["metadata"]["resourceVersion"] = str(rv)
    return msgspec.structs.replace(record, rv=rv, value=encode(raw))


def _parse_labels(text: str) -> LabelQuery:
    try:
        return parse_label_selector(text)
    except ValueError as error:
        raise BadRequest(f"unable to parse the label selector {text[:200]!r}: {error}") from None


def _parse_fields(resource: Resource, text: str) -> FieldQuery:
    try:
        query = parse_field_selector(text)
    except ValueError as error:
        raise BadRequest(f"unable to parse the field selector {text[:200]!r}: {error}") from None
    known = ("metadata.name", "metadata.namespace", *resource.selectable_fields)
    for field in query.fields:
        if field not in known:
            raise BadRequest(
                f"field label not supported: {field}; {resource.qualified} can be selected by {', '.join(known)}",
                kind=resource.plural,
                group=resource.group,
            )
    conversion = resource.conversion
    if conversion is None:
        return query
    terms = (FieldTerm(conversion.stored_field(term.field), term.value, term.negated) for term in query.terms)
    return FieldQuery(tuple(terms))


def query_of(selector: Raw) -> LabelQuery:
    """What a selector in an object selects: a LabelSelector, or the plain labels of a ReplicationController."""
    try:
        if "matchLabels" in selector or "matchExpressions" in selector or not selector:
            return from_label_selector(view_of(LabelSelector, selector))
        return from_labels({str(k): str(v) for k, v in selector.items()})
    except ValueError as error:
        raise BadRequest(f"selector {selector} is not valid: {error}") from None
