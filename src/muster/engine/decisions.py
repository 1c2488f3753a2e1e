"""What comes out of the engine, and nothing else does. Plain values; `encode` gives the same bytes for equal decisions."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from muster.objects.reasons import Reason, Verdict


class Decision(msgspec.Struct, frozen=True, tag=True, omit_defaults=True, rename="camel"):
    """Base of all decisions. `unit` is the id of the unit that it is about."""

    unit: str


class PlacedPod(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """One pod's place. `annotations` and `labels` are written as it is bound: what the plugins' `pre_bind` returned, merged."""

    uid: str
    namespace: str
    name: str
    node: str
    annotations: Mapping[str, str] = msgspec.field(default_factory=dict)
    labels: Mapping[str, str] = msgspec.field(default_factory=dict)
    binder: str = ""
    """The plugin whose own way of binding is used; empty for the `binding` subresource."""


class Place(Decision, frozen=True):
    """Bind these pods. More than one: all of them or, if that turns out impossible, none (see the shell)."""

    pods: tuple[PlacedPod, ...]
    score: int = 0


class Hold(Decision, frozen=True):
    """Reserved here, waiting for parties that are not controlled from here, or for a plugin's permit, until `until`."""

    pods: tuple[PlacedPod, ...]
    until: float
    waiting_for: tuple[str, ...] = ()
    is_promised: bool = False
    """Other control planes are told that it is reserved, and may start on the strength of it. So the engine does not take it
    back alone: not for an older unit, not at `until`; it asks (`Release.is_asked`) and waits for `Permitted` or `Denied`."""


class Release(Decision, frozen=True):
    """What was held, or placed and not yet bound, was given back."""

    reason: Reason
    message: str = ""
    pods: tuple[str, ...] = ()
    """Their uids."""
    is_asked: bool = False
    """Nothing was given back yet: what is promised to others (`Hold.is_promised`) is to be withdrawn if they have not begun.
    The answer is `Denied` (given back, and a `Release` without this says so) or `Permitted` (too late: placed)."""


class Victim(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    uid: str
    namespace: str
    name: str
    node: str
    violates_budget: bool = False
    has_budget: bool = True
    """Whether a disruption budget may select it, so that its end must be asked for."""


class Evict(Decision, frozen=True):
    """End these pods, so that `unit` can be placed on `node` (the nominated node of `pod`)."""

    victims: tuple[Victim, ...]
    node: str = ""
    pod: str = ""
    """The uid of the pod that is nominated."""
    reason: Reason = Reason.PREEMPTED


class Park(Decision, frozen=True):
    """Does not fit now. Repeated only when `verdict` says something else than the last one."""

    verdict: Verdict
    pods: tuple[str, ...] = ()
    """uids of the members that the condition and the event go to."""


AnyDecision = Place | Hold | Release | Evict | Park

_encoder = msgspec.json.Encoder(order="deterministic")
_decoder = msgspec.json.Decoder(AnyDecision)


def encode(decision: AnyDecision) -> bytes:
    return _encoder.encode(decision)


def decode(line: bytes) -> AnyDecision:
    decoded: AnyDecision = _decoder.decode(line)
    return decoded
