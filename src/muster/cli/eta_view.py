"""When work will start, in words: the answers of `/muster/v1/jobs/.../eta` and `/muster/v1/eta`. Pure.

Times are told in the zone of who reads, as `today 14:10`, `tomorrow 09:00` or a date; every word from a server passes
`cell_text`.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, tzinfo

from muster.cli.output import cell_text
from muster.objects.ages import human_duration
from muster.objects.status import Raw

AT_ONCE_S = 1.0
WORTH_S = 60.0
"""A start that is sooner by this much is worth telling."""


def eta_lines(subject: str, answer: Raw, now: float, zone: tzinfo | None = None) -> Iterator[str]:
    """`zone` None is that of this machine."""
    place = ""
    if answer.get("position"):
        place = f", place {answer['position']} of {answer.get('of')} in queue {cell_text(answer.get('queue'))}"
    state = str(answer.get("state"))
    if state == "running":
        yield f"{cell_text(subject)}: has started, {moment(float(answer.get('started') or now), now, zone)}"
        return
    if state in ("ended", "idle"):
        phase = cell_text(answer.get("phase") or "Pending")
        what = "is in no line" if state == "ended" else "no task of it waits for a place"
        yield f"{cell_text(subject)}: {phase}; {what}"
        return
    yield f"{cell_text(subject)}: {'waits' if state == 'waiting' else 'if it were sent now'}{place}"
    items = answer.get("items") or []
    first: Raw = items[0] if items else {"start": None, "gpus": 0}
    if answer.get("never"):
        yield f"  Start: never as it is: {cell_text(answer['never'])}"
    else:
        yield f"  Start: {_start_text(first.get('start'), now, zone)}"
    if first.get("start") is None and answer.get("refused"):
        yield f"  It is not forecast while it may not be tried: {cell_text(answer['refused'])}"
    elif answer.get("limit"):
        yield f"  At a limit: {cell_text(answer['limit'])}"
    for other in items[1:]:
        if other["gpus"] == first.get("gpus"):
            continue  # it asks for so many already
        instead = f" instead of {first['gpus']}" if first.get("gpus") else ""
        why = f": {cell_text(other['refused'])}" if other.get("refused") else ""
        yield f"  At {other['gpus']} GPUs{instead}: {_start_text(other.get('start'), now, zone)}{why}"
    if answer.get("runS"):
        grounds = f" ({cell_text(answer['grounds'])})" if answer.get("grounds") else ""
        high = f", nine in ten at most {human_duration(float(answer['runHighS']))}" if answer.get("runHighS") else ""
        yield f"  Expected to run: {human_duration(float(answer['runS']))}{high}{grounds}"
    if answer.get("affinityGrounds"):
        yield f"  Where, if there is room: work like it {cell_text(answer['affinityGrounds'])}"
    start = first.get("start")
    if start and start.get("grounds"):
        yield f"  Grounds: {cell_text(start['grounds'])}"
    for note in answer.get("notes") or []:
        yield f"  Note: {cell_text(note)}"


def half_of(answer: Raw) -> int:
    """Half of the GPUs of work that has to wait; 0 where there is nothing to halve, or it would start at once."""
    items = answer.get("items") or []
    gpus = int(items[0].get("gpus") or 0) if items else 0
    start = items[0].get("start") if items else None
    soon = start is not None and float(start["likely"]) <= float(answer.get("now") or 0) + WORTH_S
    return 0 if soon else gpus // 2


def is_sooner(answer: Raw) -> bool:
    """Whether the second size starts clearly sooner than the first."""
    first, second = (item.get("start") for item in (answer.get("items") or [{}, {}])[:2])
    return second is not None and (first is None or float(second["likely"]) + WORTH_S < float(first["likely"]))


def _start_text(start: Raw | None, now: float, zone: tzinfo | None) -> str:
    if not start:
        return "nothing can be said"
    if start.get("earliest") is None or start.get("latest") is None:
        # The scheduler's clock stands still while nothing happens, so "now" would be told as a time that has passed.
        at = "at once" if float(start["likely"]) <= now + AT_ONCE_S else f"about {moment(float(start['likely']), now, zone)}"
        return f"{at}, and how sure that is is not known yet"
    span = span_text(float(start["earliest"]), float(start["latest"]), now, zone)
    return f"{span} ({float(start.get('confidence') or 0):.0%} sure), most likely {moment(float(start['likely']), now, zone)}"


def span_text(earliest: float, latest: float, now: float, zone: tzinfo | None = None) -> str:
    """`today 14:10-15:00`; the day is said once where it is the same."""
    first, last = moment(earliest, now, zone), moment(latest, now, zone)
    day, _, clock = last.rpartition(" ")
    return f"{first}-{clock}" if first.rpartition(" ")[0] == day else f"{first} to {last}"


def moment(instant: float, now: float, zone: tzinfo | None = None) -> str:
    """`today 14:10`, `tomorrow 09:00`, or with the date."""
    at, today = datetime.fromtimestamp(instant, zone), datetime.fromtimestamp(now, zone).date()
    if at.date() == today:
        return f"today {at:%H:%M}"
    if at.date() == today + timedelta(days=1):
        return f"tomorrow {at:%H:%M}"
    return f"{at:%Y-%m-%d %H:%M}"
