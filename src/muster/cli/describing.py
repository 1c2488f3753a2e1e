"""An object in words: who it is, what was asked, how it stands, what happened. Pure: object and events in, text out.

Works for every kind, known or not. Field names are shown as they are written in manifests, so that what a user reads is
what a user can search for and write.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from muster.cli.output import cell_text, simple_table
from muster.objects import yaml_text
from muster.objects.ages import since
from muster.objects.resources import Resource
from muster.objects.status import Raw

HIDDEN_ANNOTATIONS = ("kubectl.kubernetes.io/last-applied-configuration",)
TOP_FIELDS = ("apiVersion", "kind", "metadata", "spec", "status")
EVENTS_MAX = 50


def describe(obj: Raw, resource: Resource, events: Sequence[Raw], now: float) -> str:
    """The whole description, ending in a newline."""
    metadata = _mapping(obj.get("metadata"))
    parts = [_heading(obj, resource, metadata, now)]
    for field in sorted(set(obj) - set(TOP_FIELDS)):
        is_secret = resource.kind == "Secret" and not resource.group and field in ("data", "stringData")
        shown = _sizes(obj[field]) if is_secret else obj[field]
        parts.append(_section(field, shown))
    parts.append(_section("spec", obj.get("spec")))
    status = obj.get("status")
    conditions: Any = _mapping(status).get("conditions")
    if isinstance(status, dict):
        parts.append(_section("status", {k: v for k, v in status.items() if k != "conditions" or not _is_conditions(v)}))
    elif status is not None:
        parts.append(_section("status", status))
    if _is_conditions(conditions):
        parts.append(_conditions(conditions, now))
    parts.append(_events(events, now))
    return "".join(part for part in parts if part)


def _heading(obj: Raw, resource: Resource, metadata: Mapping[str, Any], now: float) -> str:
    rows: list[tuple[str, Iterable[str]]] = [("Name", [cell_text(metadata.get("name"))])]
    if metadata.get("namespace"):
        rows.append(("Namespace", [cell_text(metadata["namespace"])]))
    rows.append(("Kind", [f"{obj.get('kind') or resource.kind} ({obj.get('apiVersion') or resource.api_version})"]))
    rows.append(("Created", [_instant(metadata.get("creationTimestamp"), now)]))
    if metadata.get("deletionTimestamp"):
        rows.append(("Deleting", [f"since {_instant(metadata['deletionTimestamp'], now)}"]))
    rows.append(("Labels", _pairs(metadata.get("labels"), "=")))
    rows.append(("Annotations", _pairs(metadata.get("annotations"), ": ", hidden=HIDDEN_ANNOTATIONS)))
    owners = [o for o in metadata.get("ownerReferences") or [] if isinstance(o, dict)]
    if owners:
        rows.append(("Owners", [_owner(o) for o in owners]))
    if metadata.get("finalizers"):
        rows.append(("Finalizers", [cell_text(f) for f in metadata["finalizers"]]))
    if metadata.get("generation"):
        observed = _mapping(obj.get("status")).get("observedGeneration")
        seen = "" if observed is None else f" (controller has seen {observed})"
        rows.append(("Generation", [f"{metadata['generation']}{seen}"]))
    width = max(len(title) for title, _ in rows) + 3
    lines = []
    for title, values in rows:
        for i, value in enumerate(values):
            lines.append(f"{title + ':' if i == 0 else '':<{width}}{value}".rstrip())
    return "\n".join(lines) + "\n"


def _pairs(value: Any, joint: str, hidden: Sequence[str] = ()) -> list[str]:
    pairs = [f"{k}{joint}{cell_text(v)}" for k, v in sorted(_mapping(value).items()) if k not in hidden]
    return pairs or ["<none>"]


def _owner(owner: Mapping[str, Any]) -> str:
    controller = " (controller)" if owner.get("controller") else ""
    return f"{owner.get('kind')}/{owner.get('name')}{controller}"


def _section(field: str, value: Any) -> str:
    if value in (None, {}, [], ""):
        return ""
    title = field[:1].upper() + field[1:]
    if not isinstance(value, dict | list):
        return f"{title}: {cell_text(value)}\n"
    body = yaml_text.dump(value).splitlines()
    return f"{title}:\n" + "".join(f"  {line}\n" if line else "\n" for line in body)


def _sizes(value: Any) -> Any:
    """Secrets are described by their length alone."""
    return {k: f"{len(str(v))} characters, encoded" for k, v in value.items()} if isinstance(value, dict) else "hidden"


def _is_conditions(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(c, dict) and "type" in c and "status" in c for c in value)


def _conditions(conditions: Sequence[Mapping[str, Any]], now: float) -> str:
    rows = [
        (c["type"], c["status"], since(c.get("lastTransitionTime"), now), c.get("reason"), c.get("message")) for c in conditions
    ]
    return "Conditions:\n" + _indented(simple_table(["TYPE", "STATUS", "SINCE", "REASON", "MESSAGE"], rows))


def _events(events: Sequence[Raw], now: float) -> str:
    if not events:
        return "Events: <none>\n"
    ordered = sorted(events, key=event_time)
    shown = ordered[-EVENTS_MAX:]
    rows = [(_eventsince(e, now), e.get("type"), e.get("reason"), _source(e), e.get("message") or e.get("note")) for e in shown]
    more = f"  ... {len(ordered) - len(shown)} older events\n" if len(ordered) > len(shown) else ""
    return "Events:\n" + more + _indented(simple_table(["LAST SEEN", "TYPE", "REASON", "FROM", "MESSAGE"], rows))


def event_time(event: Raw) -> str:
    """When an event last happened, in whichever of the fields its writer used. RFC 3339 in UTC sorts as text."""
    series = _mapping(event.get("series")).get("lastObservedTime")
    created = _mapping(event.get("metadata")).get("creationTimestamp")
    return str(series or event.get("lastTimestamp") or event.get("eventTime") or event.get("firstTimestamp") or created or "")


def _eventsince(event: Raw, now: float) -> str:
    age = since(event_time(event), now)
    count = event.get("count") or _mapping(event.get("series")).get("count") or 1
    return f"{age} (x{count})" if isinstance(count, int) and count > 1 else age


def _source(event: Raw) -> str:
    return str(event.get("reportingComponent") or _mapping(event.get("source")).get("component") or "")


def _instant(stamp: Any, now: float) -> str:
    return f"{stamp} ({since(stamp, now)} ago)" if stamp else "<unknown>"


def _indented(text: str) -> str:
    return "".join(f"  {line}\n" for line in text.splitlines())


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
