"""The settings of a gang: pods that start together. Read from a PodGroup, or from annotations and labels of the pods.

A gang's id is `namespace/name`. Its settings come from the PodGroup of that name if there is one, whatever the pods say; else
from its oldest pod that gives a valid minimum. Gangs that name each other (`groups`) are one unit; a gang joins such a group
only if it names the very same gangs itself, so nobody can be drawn into one.

Pure. Whatever can't be read has Koordinator's default; nothing in here raises, and long texts are not read.
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Iterable, Mapping

import msgspec

from muster.engine.facts import Meta, PodFacts, PodGroupFacts
from muster.objects.amounts import amount_of
from muster.objects.labels import KoordinatorPod, Sigs

POD_GROUP_LABELS = (Sigs.POD_GROUP, "scheduling.x-k8s.io/pod-group", Sigs.POD_GROUP_NAME)
"""Each names a PodGroup of the pod's namespace; the first that is set counts."""
GANG_LEN_MAX = 100_000
GROUPS_MAX = 64
"""Gangs in one group; more are not joined."""
_GROUPS_LEN_MAX = 64 * 320
_NAME_LEN_MAX = 253
WAITING_S = 600.0
_WAITING_MAX_S = 365 * 86_400.0


class Mode(enum.Enum):
    STRICT = "Strict"
    """Nobody holds anything until all that must start can."""
    NON_STRICT = "NonStrict"
    """Members that found a place keep it while the others wait, for a time."""


class Match(enum.Enum):
    """Which members count towards the minimum."""

    ONCE_SATISFIED = "once-satisfied"
    """Those that wait, until the gang has started; after that everybody is placed as there is room."""
    ONLY_WAITING = "only-waiting"
    WAITING_AND_RUNNING = "waiting-and-running"


class GangSettings(msgspec.Struct, frozen=True):
    min: int = 0
    """How many must start together; 0 when nobody has said so (yet)."""
    total: int = 0
    """How many are expected in all; it decides nothing."""
    mode: Mode = Mode.STRICT
    waiting_s: float = WAITING_S
    """How long members of a NonStrict gang keep their places while others wait."""
    groups: tuple[str, ...] = ()
    """Ids of the gangs that start together, this one included, in order."""
    match: Match = Match.ONCE_SATISFIED
    min_free: Mapping[str, int] = msgspec.field(default_factory=dict)
    """What must be free in all before it is tried, in the units of the engine."""
    created: str = ""
    uid: str = ""
    """Of the PodGroup; empty without one."""


def gang_key_of(meta: Meta) -> str:
    """The id of the gang that the pod names, or ""."""
    labels, annotations = meta.labels, meta.annotations
    if labels:
        for label in POD_GROUP_LABELS:
            name = labels.get(label)
            if name:
                return f"{meta.namespace}/{plain_name(name)}"
    name = annotations.get(KoordinatorPod.GANG_NAME) if annotations else None
    return f"{meta.namespace}/{plain_name(name)}" if name else ""


def plain_name(name: str) -> str:
    """A name that can be part of an id: what no object's name has is written otherwise, so that no two ids are mistaken."""
    if "," in name or "/" in name:
        name = name.replace(",", "%2C").replace("/", "%2F")
    return name[:_NAME_LEN_MAX]


def names_pod_group(pod: PodFacts) -> bool:
    """Whether the pod names a PodGroup, by its label, so that the minimum is to be found there."""
    labels = pod.metadata.labels
    return any(labels.get(label) for label in POD_GROUP_LABELS)


def pod_group_settings(group: PodGroupFacts) -> GangSettings:
    meta, spec = group.metadata, group.spec
    key = f"{meta.namespace}/{meta.name}"
    least = min(max(spec.min_member, 1), GANG_LEN_MAX)
    seconds = spec.schedule_timeout_seconds or 0
    return GangSettings(
        least,
        _total(meta, least),
        _mode(meta),
        min(float(seconds), _WAITING_MAX_S) if seconds > 0 else _waiting_s(meta),
        _groups(meta, key),
        _match(meta),
        _amounts(spec.min_resources),
        meta.creation_timestamp,
        meta.uid,
    )


def pod_settings(pod: PodFacts, key: str) -> GangSettings:
    """The settings that the pod gives for its gang; `min` is 0 when it gives no valid one."""
    meta = pod.metadata
    least = minimum_of(meta)
    return GangSettings(least, _total(meta, least), _mode(meta), _waiting_s(meta), _groups(meta, key), _match(meta))


def minimum_of(meta: Meta) -> int:
    """The valid minimum that a pod gives, or 0."""
    text = meta.annotations.get(KoordinatorPod.GANG_MIN_AVAILABLE) or meta.labels.get(Sigs.POD_GROUP_MIN_AVAILABLE)
    return small_number(text) if text is not None else 0


def said(meta: Meta) -> tuple[str | None, ...]:
    """Everything that a pod says of its gang; another answer may change the gang's settings."""
    return (*(meta.annotations.get(key) for key in _SAID), meta.labels.get(Sigs.POD_GROUP_MIN_AVAILABLE))


_SAID = (
    KoordinatorPod.GANG_MIN_AVAILABLE,
    KoordinatorPod.GANG_TOTAL_NUMBER,
    KoordinatorPod.GANG_MODE,
    KoordinatorPod.GANG_WAITING_TIME,
    KoordinatorPod.GANG_GROUPS,
    KoordinatorPod.GANG_MATCH_POLICY,
    Sigs.POD_GROUP_MATCH_POLICY,
)


def small_number(text: str) -> int:
    """A whole number up to GANG_LEN_MAX; 0 for anything else. Long texts are not read: that alone may fail."""
    number = int(text) if len(text) <= len(str(GANG_LEN_MAX)) and text.isascii() and text.isdecimal() else 0
    return number if number <= GANG_LEN_MAX else 0


def _total(meta: Meta, least: int) -> int:
    return max(small_number(meta.annotations.get(KoordinatorPod.GANG_TOTAL_NUMBER, "")), least)


def _mode(meta: Meta) -> Mode:
    is_loose = meta.annotations.get(KoordinatorPod.GANG_MODE) == Mode.NON_STRICT.value
    return Mode.NON_STRICT if is_loose else Mode.STRICT


def _match(meta: Meta) -> Match:
    alias = Sigs.POD_GROUP_MATCH_POLICY
    text = meta.annotations.get(KoordinatorPod.GANG_MATCH_POLICY) or meta.annotations.get(alias) or meta.labels.get(alias)
    return _MATCHES.get(text or "", Match.ONCE_SATISFIED)


_MATCHES = {match.value: match for match in Match}


def _groups(meta: Meta, key: str) -> tuple[str, ...]:
    """The gangs of the group in order; only itself when the text is no list of ids, is too long, or leaves this one out."""
    text = meta.annotations.get(KoordinatorPod.GANG_GROUPS)
    if not text or len(text) > _GROUPS_LEN_MAX:
        return (key,)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return (key,)
    if not isinstance(found, list) or not all(isinstance(one, str) and _is_gang_key(one) for one in found):
        return (key,)
    keys = sorted(set(found))
    return tuple(keys) if key in keys and len(keys) <= GROUPS_MAX else (key,)


def _is_gang_key(text: str) -> bool:
    namespace, slash, name = text.partition("/")
    is_plain = bool(slash and namespace and name) and not any(char in "/, " or not char.isprintable() for char in name)
    return is_plain and "," not in namespace and len(namespace) <= _NAME_LEN_MAX and len(name) <= _NAME_LEN_MAX


_UNITS_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION_PART = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|ms|s|m|h)")


def _waiting_s(meta: Meta) -> float:
    text = meta.annotations.get(KoordinatorPod.GANG_WAITING_TIME, "").strip().removeprefix("+")
    parts = _DURATION_PART.findall(text) if len(text) <= 40 else []
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return WAITING_S
    seconds = sum(float(number) * _UNITS_S[unit] for number, unit in parts)
    return min(seconds, _WAITING_MAX_S) or WAITING_S


def _amounts(quantities: Mapping[str, str | int | float]) -> dict[str, int]:
    """What can be read of the amounts, by resource."""
    found: dict[str, int] = {}
    for name, value in quantities.items():
        try:
            amount = amount_of(name, value)
        except ValueError:
            continue
        if amount > 0:
            found[name] = amount
    return found


def summed(amounts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for one in amounts:
        for name, amount in one.items():
            total[name] = total.get(name, 0) + amount
    return total
