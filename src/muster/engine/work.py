"""What is known about the work that a pod belongs to: whose it is, in which queue, how long it will probably run.

It travels on the pods themselves, so that every kind of job, and any operator's pods, say it in one way:

- annotation `muster.dev/work`: a JSON object with the fields of `Work`, written by the job controllers;
- beside it, for pods that people write: labels (or annotations) `muster.dev/queue`, `muster.dev/user`, `muster.dev/group`,
  label `muster.dev/preemptible`, annotation `muster.dev/estimate-seconds`; the level is the pod's priority. Each is used where
  `muster.dev/work` is silent.

A pod whose annotation names a job was described by that job's controller, and then its labels add nothing: whoever may change
a label of a pod can't make it somebody else's, or preemptible.

Pure. A text that can't be read counts as not there, and a number beyond all reason is brought to the nearest reasonable one:
bad input never stops the engine (admission refuses it earlier).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping

import msgspec

from muster.engine.facts import Meta, PodFacts
from muster.objects.labels import Muster

TEXT_MAX = 16_384
"""A longer annotation is not read."""
KEPT_MAX, KEPT_LEN_MAX = 4_096, 1_024
"""So many values of the annotation are not read a second time, if they are no longer than this."""
PIN_MAX = 1_000_000_000
_SECONDS_MAX = 1e10
_INSTANT_MAX = 253_402_300_799.0
"""The end of the year 9999."""
_AMOUNT_MAX = 1e18
_BOUNDS: tuple[tuple[str, float, float], ...] = (
    ("level", -1e10, 1e10),
    ("estimate_s", 0.0, _SECONDS_MAX),
    ("deadline", 0.0, _INSTANT_MAX),
    ("checkpoint_s", 0.0, _SECONDS_MAX),
    ("submitted", 0.0, _INSTANT_MAX),
    ("attained_s", 0.0, _SECONDS_MAX),
    ("preemptions", 0, 1_000_000),
    ("pin", -PIN_MAX, PIN_MAX),
)
_POSITIVE = ("estimate_s", "checkpoint_s")
"""Of these, nothing at all is as good as not said."""


class Work(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", kw_only=True):
    """Times are seconds since 1970; 0 or None where nothing is known."""

    job: str = ""
    """Kind and key of the job, `Job/namespace/name`; empty for a pod or gang on its own."""
    queue: str = ""
    user: str = ""
    group: str = ""
    """Of the user; filled in where the user is known."""
    type: str = ""
    name: str = ""
    """What runs of the same work have in common: the job's name without a generated tail."""
    level: float = 0
    """Of the job; larger is sooner, if the policy says so."""
    attributes: Mapping[str, str] = msgspec.field(default_factory=dict)
    estimate_s: float | None = None
    """How long its owner expects it to run, from a start from nothing."""
    estimate_use: Mapping[str, float] = msgspec.field(default_factory=dict)
    """What its owner expects it to really use, by resource, in the engine's units; only where that was said."""
    deadline: float | None = None
    preemptible: bool = False
    """May be stopped by policy, and starts again later."""
    checkpoint_s: float | None = None
    """How often it saves its state; None: a stop loses everything since the start."""
    submitted: float = 0
    """When it began to wait for the first time; attempts keep it."""
    attained_s: float = 0
    """How long earlier attempts ran that are not lost: what was saved when they were stopped."""
    preemptions: int = 0
    """How often it was stopped by policy."""
    hold: str = ""
    """An administrator keeps it from starting, and says why."""
    pin: int | None = None
    """An administrator puts it before all others of its queue: the smallest first."""


NOTHING = Work()
_decoder = msgspec.json.Decoder(Work)
_encoder = msgspec.json.Encoder(order="deterministic")


def encode_work(work: Work) -> str:
    """The value of the annotation."""
    return _encoder.encode(work).decode()


def decode_work(text: str) -> Work:
    """What the value of the annotation says; nothing when it can't be read."""
    if not text or len(text) > TEXT_MAX:
        return NOTHING
    return _decoded_again(text) if len(text) <= KEPT_LEN_MAX else _decoded(text)


def _decoded(text: str) -> Work:
    try:
        return _reasonable(_decoder.decode(text))
    except msgspec.DecodeError:  # ValidationError is one
        return NOTHING


# Several parts read the same pod, one soon after the other.
_decoded_again = functools.lru_cache(KEPT_MAX)(_decoded)


def _reasonable(work: Work) -> Work:
    """The same with every number in its bounds, so that arithmetic with it overflows nowhere."""
    if _is_reasonable(work):
        return work
    changed: dict[str, object] = {}
    for field, low, high in _BOUNDS:
        value = getattr(work, field)
        if value is None or low < value <= high:
            continue
        if field in _POSITIVE and value <= low:
            changed[field] = None
        elif not low <= value <= high:
            changed[field] = type(value)(low if value < low else high)
    if any(not 0 <= amount <= _AMOUNT_MAX for amount in work.estimate_use.values()):
        changed["estimate_use"] = {name: min(max(amount, 0.0), _AMOUNT_MAX) for name, amount in work.estimate_use.items()}
    return msgspec.structs.replace(work, **changed) if changed else work


def _is_reasonable(work: Work) -> bool:
    """Quick, as every pod that is seen is asked: says no to some that are."""
    estimate, every, deadline, pin = work.estimate_s, work.checkpoint_s, work.deadline, work.pin
    return (
        -1e9 <= work.level <= 1e9
        and 0.0 <= work.submitted <= _INSTANT_MAX
        and 0.0 <= work.attained_s <= _SECONDS_MAX
        and 0 <= work.preemptions <= 1_000
        and (estimate is None or 0.0 < estimate <= _SECONDS_MAX)
        and (every is None or 0.0 < every <= _SECONDS_MAX)
        and (deadline is None or 0.0 <= deadline <= _INSTANT_MAX)
        and (pin is None or -PIN_MAX <= pin <= PIN_MAX)
        and not work.estimate_use
    )


def work_of(pod: PodFacts) -> Work:
    """What the pod says about its work. `submitted` is the pod's own creation when nothing else is said."""
    meta = pod.metadata
    work = decode_work(meta.annotations.get(Muster.WORK, "")) if meta.annotations else NOTHING
    more: dict[str, object] = {} if work.job else _said_beside(work, meta)
    if not work.level and pod.spec.priority:
        more["level"] = float(pod.spec.priority)
    return msgspec.structs.replace(work, **more) if more else work


def _said_beside(work: Work, meta: Meta) -> dict[str, object]:
    """What labels and annotations of its own say where the work is silent."""
    more: dict[str, object] = {
        field: value
        for field, key in (("queue", Muster.QUEUE), ("user", Muster.USER), ("group", Muster.GROUP))
        if not getattr(work, field) and (value := _noted(meta, key))
    }
    if not work.preemptible and meta.labels.get(Muster.PREEMPTIBLE) == "true":
        more["preemptible"] = True
    if (
        work.estimate_s is None
        and (estimate := estimated_seconds(meta.annotations.get(Muster.ESTIMATE_SECONDS, ""))) is not None
    ):
        more["estimate_s"] = estimate
    return more


def _noted(meta: Meta, key: str) -> str:
    """Names that a label can't hold are annotations."""
    return meta.labels.get(key) or meta.annotations.get(key) or ""


def estimated_seconds(text: str) -> float | None:
    """The value of the annotation; None when it is no length of time."""
    try:
        seconds = float(text)
    except ValueError:
        return None
    return min(seconds, _SECONDS_MAX) if math.isfinite(seconds) and seconds > 0 else None
