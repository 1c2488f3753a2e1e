"""Queues and places in words: the tree of queues, the line of one, why a job stands where it does. Pure.

What comes in are Queue objects and the answers of `/muster/v1/queues` and `/muster/v1/jobs/.../place`; every word of theirs
passes `cell_text`, so that nothing from a server can bring its own escape codes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from muster.cli.accounts_view import use_of_limits
from muster.cli.output import cell_text, simple_table
from muster.objects.acts import acts_of
from muster.objects.ages import human_duration
from muster.objects.amounts import amount_text, limit_amounts
from muster.objects.conditions import find_condition
from muster.objects.meta import annotations_of, name_of
from muster.objects.status import Raw
from muster.objects.time import format_time, time_or

DEPTH_MAX = 32
ACTS_SHOWN = 5


# -- all queues ---------------------------------------------------------------------------------------------------------------


def tree_text(queues: Sequence[Raw], lines: Mapping[str, Raw] | None) -> str:
    """Every queue under the one above it. `lines` are the live numbers, None where nobody could be asked: then the status of
    each queue has them."""
    sums = _sums(queues, lines) if lines is not None else None
    rows = [_row(queue, depth, sums) for queue, depth in _ordered(queues)]
    table = simple_table(
        ["QUEUE", "STATE", "POLICY", "WEIGHT", "LEVEL", "WAITING", "RUNNING", "HELD", "USE / LIMIT", "NEXT"], rows
    )
    faults = [f"queue {cell_text(name_of(queue))}: {cell_text(fault)}" for queue in queues if (fault := _fault(queue))]
    return "\n".join([table, *faults])


def _fault(queue: Raw) -> str:
    """Why it can't work as it is written; empty when it can, or nobody has looked yet."""
    ready = find_condition((queue.get("status") or {}).get("conditions"), "Ready") or {}
    return str(ready.get("message") or "not ready") if ready.get("status") == "False" else ""


def _ordered(queues: Sequence[Raw]) -> Iterator[tuple[Raw, int]]:
    """From the top, names in order. Those whose parents are missing, or go in a circle, stand at the top too."""
    by_name = {name_of(queue): queue for queue in queues}
    below: dict[str, list[str]] = {}
    for name, queue in sorted(by_name.items()):
        parent = _parent(queue)
        below.setdefault(parent if parent in by_name else "", []).append(name)
    seen: set[str] = set()

    def walk(name: str, depth: int) -> Iterator[tuple[Raw, int]]:
        if name in seen or depth > DEPTH_MAX:
            return
        seen.add(name)
        yield by_name[name], depth
        for child in below.get(name, ()):
            yield from walk(child, depth + 1)

    for top in below.get("", ()):
        yield from walk(top, 0)
    for name in sorted(by_name):
        yield from walk(name, 0)


def _sums(queues: Sequence[Raw], lines: Mapping[str, Raw]) -> dict[str, Raw]:
    """The numbers of each queue with those of all below it, as its status counts them."""
    parents = {name_of(queue): _parent(queue) for queue in queues}
    found: dict[str, Raw] = {
        name: {"waiting": 0, "running": 0, "held": 0, "head": lines.get(name, {}).get("head", ""), "used": {}}
        for name in parents
    }
    for name, line in lines.items():
        above: list[str] = []
        at = name
        while at in parents and at not in above and len(above) <= DEPTH_MAX:
            above.append(at)
            for word in ("waiting", "running", "held"):
                found[at][word] += line[word]
            used = found[at]["used"]
            for resource, text in (line.get("runningRequest") or {}).items():
                for one, amount in limit_amounts(resource, text).items():
                    used[one] = used.get(one, 0) + amount
            at = parents[at]
    return found


def _parent(queue: Raw) -> str:
    return str((queue.get("spec") or {}).get("parent") or "")


def _row(queue: Raw, depth: int, lines: Mapping[str, Raw] | None) -> list[Any]:
    spec, status = queue.get("spec") or {}, queue.get("status") or {}
    usage = status.get("usage") or {}
    name = name_of(queue)
    own = (lines or {}).get(name) if lines is not None else None
    waiting = own["waiting"] if own is not None else usage.get("jobsWaiting", 0)
    running = own["running"] if own is not None else usage.get("jobsRunning", 0)
    held = own["held"] if own is not None else status.get("held", 0)
    head = own["head"] if own is not None else ""
    if own is not None:
        used = {resource: amount_text(resource, amount) for resource, amount in own["used"].items()}
        usage = {"jobsRunning": running, "concurrent": used}
    return [
        "  " * depth + name + (" (default)" if spec.get("isDefault") else ""),
        str(spec.get("state") or "Open") + (", not ready" if _fault(queue) else ""),
        spec.get("policy") or "balanced",
        spec.get("weight", 1),
        spec.get("level", 0),
        waiting,
        running,
        held,
        use_of_limits(spec, usage),
        str(head).removeprefix("Job/"),
    ]


# -- one queue ----------------------------------------------------------------------------------------------------------------


def line_text(answer: Raw, now: float) -> str:
    """What `/muster/v1/queues/NAME` returns: the counts, and the line with places."""
    return "\n".join(_line_lines(answer, now))


def _line_lines(answer: Raw, now: float) -> Iterator[str]:
    head = f"queue {cell_text(answer.get('queue'))}: {answer.get('waiting', 0)} waiting, {answer.get('running', 0)} running"
    yield head + (f", {answer['held']} held" if answer.get("held") else "")
    for word, key in (("Running", "runningRequest"), ("Waiting", "waitingRequest")):
        if amounts := answer.get(key):
            yield f"  {word}: " + ", ".join(f"{cell_text(name)} {cell_text(value)}" for name, value in amounts.items())
    places = answer.get("places") or []
    if answer.get("namespace"):
        yield f"  Shown are jobs of namespace {cell_text(answer['namespace'])}; those of others are not yours to list."
    if not places:
        return
    rows = [
        [
            place.get("position"),
            "(not yours to see)" if place.get("hidden") else work_name(place),
            place.get("user", ""),
            number(place.get("score")),
            "" if place.get("hidden") else human_duration(now - float(place.get("submitted") or now)),
            _notes(place),
        ]
        for place in places
    ]
    yield simple_table(["PLACE", "WORK", "USER", "SCORE", "WAITED", "NOTE"], rows)
    left = int(answer.get("waiting") or 0) - len(places)
    if left > 0 and answer.get("isWritten"):
        yield f"and {left} more; shown are Jobs that say their place, see 'muster why' for others"
    elif left > 0:
        yield f"and {left} more; --first shows more of them"


def _notes(place: Raw) -> str:
    notes = [f"held: {cell_text(place['hold'])}"] if place.get("hold") else []
    if place.get("pin") is not None:
        notes.append(f"pinned at {cell_text(place['pin'])}")
    if place.get("isStarving"):
        notes.append("waited too long: goes before all that came later")
    if place.get("plannedStart"):
        notes.append(f"room is kept from {format_time(float(place['plannedStart']))}")
    refused = place.get("refused") or {}
    if refused.get("reason") and not place.get("hold"):
        notes.append(cell_text(refused["reason"]))
    return "; ".join(notes)


def work_name(place: Raw) -> str:
    """`namespace/name` of a job; kinds other than Job are named."""
    return str(place.get("job") or place.get("unit") or "").removeprefix("Job/")


def number(value: object) -> str:
    """Four figures are enough to compare; what is no number says so."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return "no number"
    return f"{value:.4g}"


# -- why ----------------------------------------------------------------------------------------------------------------------


def place_lines(answer: Raw, now: float) -> Iterator[str]:
    """What `/muster/v1/jobs/.../place` returns: the place, and the factors beside those of who is ahead."""
    place, ahead = answer.get("place"), answer.get("ahead")
    if not place or not place.get("position"):
        return
    policy = f", policy {cell_text(place['policy'])}" if place.get("policy") else ""
    yield f"  Queue: {cell_text(place.get('queue'))}, place {place['position']} of {place.get('of', 0)}{policy}"
    waited = human_duration(now - float(place.get("submitted") or now))
    yield f"  Waits: {waited}" + (f"; {notes}" if (notes := _notes({**place, "refused": None})) else "")
    yield from _start_lines(place)
    factors = place.get("factors") or []
    if factors:
        yield from _factor_lines(place, ahead, factors)
    if place.get("isNotANumber"):
        yield "  Its score is no number, so it stands behind all that have one: with these values the formula of its policy"
        yield "  divides zero by zero, or takes a root or a logarithm that there is not; tell an administrator of the queue"


def running_lines(job: Raw, place: Raw, now: float) -> Iterator[str]:
    """Of a Job that has a node: where it came from, how far it is, and when it will probably be done."""
    status = job.get("status") or {}
    began = time_or(status.get("startTime"), None)
    if began is None:
        return
    queue = cell_text(place.get("queue") or (job.get("spec") or {}).get("queue") or "the default queue")
    waited = time_or(status.get("queuedTime"), began)
    yield f"  Queue: {queue}; waited {human_duration(max(began - waited, 0.0))}, runs for {human_duration(now - began)}"
    progress = float(status.get("progress") or 0)
    if progress > 0:
        yield f"  Progress: {progress:.0%}"
    if place.get("predictedS"):
        run_s, high_s = float(place["predictedS"]), float(place.get("predictedHighS") or 0)
        end = began + run_s
        told = f"about {format_time(end)}" if end > now else "it runs longer than expected already"
        high = f", nine in ten before {format_time(began + high_s)}" if began + high_s > now else ""
        grounds = f" ({cell_text(place['grounds'])})" if place.get("grounds") else ""
        yield f"  Expected to end: {told}{high}{grounds}"


def _start_lines(place: Raw) -> Iterator[str]:
    if place.get("earliestStart") and place.get("latestStart"):
        span = f"{format_time(float(place['earliestStart']))} to {format_time(float(place['latestStart']))}"
        grounds = f"; {cell_text(place['startGrounds'])}" if place.get("startGrounds") else ""
        yield f"  Start: {span} ({float(place.get('confidence') or 0):.0%} sure{grounds})"
    elif place.get("likelyStart"):
        yield f"  Start: about {format_time(float(place['likelyStart']))}; how sure that is is not known yet"
    if place.get("predictedS"):
        high = f", at most {human_duration(float(place['predictedHighS']))}" if place.get("predictedHighS") else ""
        grounds = f" ({cell_text(place['grounds'])})" if place.get("grounds") else ""
        yield f"  Expected to run: {human_duration(float(place['predictedS']))}{high}{grounds}"
    if place.get("affinityGrounds"):
        yield f"  Where, if there is room: work like it {cell_text(place['affinityGrounds'])}"


def _factor_lines(place: Raw, ahead: Raw | None, factors: Sequence[Raw]) -> Iterator[str]:
    is_compared = ahead is not None and not ahead.get("hidden")
    others = {factor["name"]: factor for factor in (ahead or {}).get("factors") or []}
    headers = ["FACTOR", "VALUE", "WEIGHT", "ADDS"] + (["AHEAD HAS", "AHEAD ADDS", "DIFFERENCE"] if is_compared else [])
    rows: list[list[Any]] = []
    for factor in factors:
        row = [factor.get("name"), *(number(factor.get(key)) for key in ("value", "weight", "contribution"))]
        if is_compared:
            other = others.get(factor.get("name"), {})
            row += [number(other.get("value")), number(other.get("contribution")), _difference(factor, other)]
        rows.append(row)
    score = ["score", "-", "-", number(place.get("score"))]
    if is_compared and ahead is not None:
        score += [
            "-",
            number(ahead.get("score")),
            _difference({"contribution": place.get("score")}, {"contribution": ahead.get("score")}),
        ]
    rows.append(score)
    if ahead is not None:
        who = "somebody whose work is not yours to see" if ahead.get("hidden") else cell_text(work_name(ahead))
        yield f"  Ahead of it, at place {ahead.get('position')}: {who}, score {number(ahead.get('score'))}" + (
            f" ({notes})" if (notes := _notes({**ahead, "refused": None})) else ""
        )
    else:
        yield "  Nobody is ahead of it in its queue."
    yield from (f"    {line}" for line in simple_table(headers, rows).splitlines())


def _difference(mine: Raw, other: Raw) -> str:
    a, b = mine.get("contribution"), other.get("contribution")
    if not isinstance(a, int | float) or not isinstance(b, int | float) or not math.isfinite(a - b):
        return ""
    return f"{a - b:+.4g}"


def deadline_lines(job: Raw, place: Raw, now: float) -> Iterator[str]:
    """Of a job that waits and has to be done by a certain time: whether it will be, as far as that is known."""
    deadline = time_or((job.get("spec") or {}).get("deadline"), None)
    if deadline is None:
        return
    left = f"in {human_duration(deadline - now)}" if deadline > now else f"{human_duration(now - deadline)} ago"
    start, run_s = place.get("likelyStart"), place.get("predictedS")
    told = ""
    if run_s:
        end = max(float(start or now), now) + float(run_s)
        if start:
            told = f"; expected to end about {format_time(end)}, {'too late' if end > deadline else 'in time'}"
        elif end > deadline:
            told = f"; expected to run {human_duration(float(run_s))}: too late even if it started now"
    yield f"  Deadline: {format_time(deadline)}, {left}{told}"


def act_lines(job: Raw) -> Iterator[str]:
    """What administrators did to its place, the latest first."""
    for act in reversed(acts_of(annotations_of(job))[-ACTS_SHOWN:]):
        yield f"  Act: {cell_text(str(act))}"


def status_place(job: Raw) -> Raw:
    """The place as the status of a Job has it, in the shape of the live answer; for servers that have no such endpoint."""
    status = job.get("status") or {}
    place = status.get("place")
    if not isinstance(place, dict):
        return {}
    return {"place": {**place, "queue": place.get("name", ""), "of": "?", "submitted": 0}}
