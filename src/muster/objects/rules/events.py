"""Rules for Events, in either group's spelling. Pure.

An Event with an `eventTime` is one of the new kind and has to say who reports it and what was done, in whichever group it is
written. `events.k8s.io/v1` takes no others when they are new, and lets nothing but the series of one change.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from muster.objects.names import validate_qualified_name
from muster.objects.rules.core import CONFIG_BYTES_MAX
from muster.objects.rules.report import Report, number, obj, text
from muster.objects.status import Raw

_WORD_LEN_MAX: Final = 128
_NOTE_LEN_MAX: Final = 1024
_DEPRECATED: Final = ("deprecatedFirstTimestamp", "deprecatedLastTimestamp", "deprecatedCount", "deprecatedSource")
_IMMUTABLE: Final = (
    *("regarding", "reason", "note", *_DEPRECATED, "type", "eventTime", "action", "related"),
    *("reportingController", "reportingInstance"),
)


def check_event(report: Report, raw: Raw, old: Raw | None) -> None:
    """Of `v1`."""
    _check(report, raw, "involvedObject", "message", "reportingComponent")


def check_new_event(report: Report, raw: Raw, old: Raw | None) -> None:
    """Of `events.k8s.io/v1`."""
    _check(report, raw, "regarding", "note", "reportingController")
    series = raw.get("series")
    if isinstance(series, dict) and not (old is not None and series == old.get("series")):
        if number(series, "count") < 2:
            report.invalid("series.count", series.get("count"), "should be at least 2")
        if not text(series, "lastObservedTime"):
            report.required("series.lastObservedTime")
    if old is not None:
        for word in _IMMUTABLE:
            if _meant(raw.get(word)) != _meant(old.get(word)):
                report.immutable(word, raw.get(word))
        return
    if not raw.get("eventTime"):
        report.required("eventTime")
    if text(raw, "type") not in ("Normal", "Warning"):
        report.invalid("type", text(raw, "type"), "has invalid value; it must be Normal or Warning")
    for word in _DEPRECATED:
        if _meant(raw.get(word)) is not None:
            report.invalid(word, raw[word], "needs to be unset; it is for events of v1")


def _meant(value: Any) -> Any:
    """None for what says nothing."""
    if isinstance(value, dict):
        value = {name: meant for name, member in value.items() if (meant := _meant(member)) is not None}
    return value or None


def _check(report: Report, raw: Raw, about: str, note: str, controller: str) -> None:
    namespace, subject = text(obj(raw, "metadata"), "namespace"), text(obj(raw, about), "namespace")
    if raw.get("eventTime"):
        _check_reporter(report, raw, note, controller)
        if not subject and namespace not in ("", "default", "kube-system"):
            report.invalid(
                f"{about}.namespace",
                subject,
                "events about cluster-wide objects belong into the namespace default or kube-system",
            )
    elif subject and namespace != subject:
        report.invalid(f"{about}.namespace", subject, f"does not match event.namespace ({namespace})")
    elif not subject and namespace not in ("", "default"):
        report.invalid(f"{about}.namespace", subject, "events about cluster-wide objects belong into the namespace default")
    if len(msgspec.json.encode(raw.get(note) or "")) > CONFIG_BYTES_MAX:
        report.too_long(note, f"may not be more than {CONFIG_BYTES_MAX} bytes")


def _check_reporter(report: Report, raw: Raw, note: str, controller: str) -> None:
    reporter = text(raw, controller)
    if not reporter:
        report.required(controller)
    report.names(controller, reporter, validate_qualified_name(reporter) if reporter else ())
    for word in ("reportingInstance", "action", "reason"):
        if not text(raw, word):
            report.required(word)
        elif len(text(raw, word).encode()) > _WORD_LEN_MAX:
            report.invalid(word, text(raw, word)[:_WORD_LEN_MAX], f"can have at most {_WORD_LEN_MAX} characters")
    if len(text(raw, note).encode()) > _NOTE_LEN_MAX:
        report.invalid(note, text(raw, note)[:_WORD_LEN_MAX], f"can have at most {_NOTE_LEN_MAX} characters")
