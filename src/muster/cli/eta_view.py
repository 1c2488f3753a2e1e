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
    for other in items[1:]:
        instead = f" instead of {first['gpus']}" if first.get("gpus") else ""
        yield f"  At {other['gpus']} GPUs{instead}: {_start_text(other.get('start'), now, zone)}"
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
