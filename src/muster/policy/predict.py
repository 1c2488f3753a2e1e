"""How long work will run and what it will use, from runs of work like it. Also where it ran well.

Work belongs to kinds, from the widest to the closest: all work, its type, type within the group, type within the user's own,
the user's work of this name, and, where its owner says how long it will run, the user's word against what came of it. Each
kind keeps its last WINDOW runs. The expected run time begins with the median of all and is pulled towards the median of each
closer kind, by n / (n + k) for n runs of it: a coarser kind is the prior of a finer one. How much k is, each level finds out
for itself: of the candidates in PULLS, the one that has been wrong by the least so far.

How wrong such an answer is, is measured too: at each level, and for few and many runs apart, the distance between what ran and
what had been expected of it is kept. The high quantile comes from these, and from the kind's own spread where it has enough
runs. So a kind that was seen once is not taken for certain. All of it in logarithms: run times differ by factors.

Pure, incremental, deterministic; memory and work are bounded (KINDS_MAX kinds, the one that has not run for longest goes).
Single-threaded, as the order that it belongs to.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from muster.engine import events as ev
from muster.engine.facts import RunFacts
from muster.engine.work import Work

WINDOW: Final = 32
"""Runs of one kind that count: the last ones, so that habits may change."""
KINDS_MAX: Final = 10_000
MISSES: Final = 256
"""Distances that are kept for each level and number of runs."""
RUNS_MIN: Final = 3
"""With fewer runs than this in all nothing is said."""
HIGH: Final = 0.9
PULLS: Final = (0.25, 1.0, 4.0, 16.0, 64.0)
OWN_PULL: Final = 16.0
"""So many runs of its own count as much for a kind's spread as what its level has seen."""
SECONDS_MIN: Final = 1.0
SECONDS_MAX: Final = 1e9
_FADES: Final = 0.99
_SPREAD_FIRST: Final = math.log(4.0)
"""Nine in ten within four times what was expected, until anything is known."""
_USES_MAX: Final = 16
_LABELS_MAX: Final = 32
_LABELS_OF_A_RUN_MAX: Final = 8
_TEXT_MAX: Final = 253
LEVELS: Final = ("all", "type", "group and type", "user and type", "user and name", "estimate")
_ESTIMATE: Final = len(LEVELS) - 1
CLEAR_RUNS_MIN: Final = 6
CLEAR_ERRORS: Final = 3.0
CLEAR_GAIN: Final = 0.1
"""An affinity is told when runs there were shorter by a tenth at least, and by three standard errors."""


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """What is expected of work, from a start from nothing."""

    run_s: float
    """The median."""
    high_s: float
    """Nine in ten end sooner."""
    grounds: str
    """What it rests on, in words."""
    use: Mapping[str, float] = msgspec.field(default_factory=dict)
    """By resource, in the engine's units; what was measured of runs like it."""
    affinity: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Node labels under which work like it ran clearly faster."""


class _Kind:
    """Runs of one kind: the last WINDOW logarithms of seconds, by age and by size; what they used; how they did by place."""

    __slots__ = ("by_age", "by_size", "count", "labels", "use")

    def __init__(self) -> None:
        self.count = 0
        self.by_age: list[float] = []
        self.by_size: list[float] = []
        self.use: dict[str, list[float]] = {}
        """By resource: runs, and the mean of used over asked for."""
        self.labels: dict[str, list[float]] = {}
        """By `key=value`: runs there, and the sum and sum of squares of their distances from what was expected."""

    @property
    def known(self) -> int:
        return len(self.by_age)

    @property
    def median(self) -> float:
        return _quantile(self.by_size, 0.5)

    def add(self, value: float) -> None:
        self.count += 1
        if len(self.by_age) >= WINDOW:
            old = self.by_age.pop(0)
            del self.by_size[bisect_left(self.by_size, old)]
        self.by_age.append(value)
        insort(self.by_size, value)

    def add_use(self, run: RunFacts) -> None:
        for name, used in run.used.items():
            asked = run.requests.get(name, 0)
            if asked <= 0 or used < 0 or (name not in self.use and len(self.use) >= _USES_MAX):
                continue
            mean = self.use.setdefault(name, [0.0, 0.0])
            mean[0] = min(mean[0] + 1.0, float(WINDOW))
            mean[1] += (used / asked - mean[1]) / mean[0]

    def add_place(self, labels: Mapping[str, str], miss: float) -> None:
        for key, value in sorted(labels.items())[:_LABELS_OF_A_RUN_MAX]:
            word = f"{key}={value}"
            if len(word) <= 2 * _TEXT_MAX and (word in self.labels or len(self.labels) < _LABELS_MAX):
                sums = self.labels.setdefault(word, [0.0, 0.0, 0.0])
                sums[0] += 1.0
                sums[1] += miss
                sums[2] += miss * miss


class _Level:
    """How well kinds of one level have foretold: which pull did best, and by how much it missed."""

    def __init__(self) -> None:
        self.losses = [0.0] * len(PULLS)
        self.pull = PULLS[2]
        self.misses: dict[int, list[float]] = {}
        """By the doubling of the number of runs it rested on: the last distances."""
        self._spreads: dict[int, tuple[int, float]] = {}
        self._turns: dict[int, int] = {}

    def judge(self, value: float, wide: float | None, kind: _Kind, offset: float) -> None:
        """A run came out as `value`: what would each pull have said?"""
        if wide is None:
            return
        own, known = kind.median + offset, kind.known
        for at, pull in enumerate(PULLS):
            guess = wide + (own - wide) * known / (known + pull)
            self.losses[at] = _FADES * self.losses[at] + abs(value - guess)
        self.pull = PULLS[min(range(len(PULLS)), key=self.losses.__getitem__)]

    def missed(self, known: int, miss: float) -> None:
        bucket = _bucket(known)
        kept = self.misses.setdefault(bucket, [])
        turn = self._turns[bucket] = self._turns.get(bucket, 0) + 1
        if len(kept) < MISSES:
            kept.append(miss)
        else:
            kept[turn % MISSES] = miss

    def spread(self, known: int) -> float | None:
        """How far above what is expected nine in ten stay; None while too little was seen."""
        for bucket in (_bucket(known), _bucket(known) - 1, _bucket(known) + 1):
            kept = self.misses.get(bucket, ())
            if len(kept) >= 2 * CLEAR_RUNS_MIN:
                turn = self._turns.get(bucket, 0)
                made, found = self._spreads.get(bucket, (-1, 0.0))
                # Sorting is the dear part: it is done again when an eighth has changed.
                if made < 0 or turn - made >= max(len(kept) // 8, 1):
                    found = _quantile(sorted(kept), HIGH)
                    self._spreads[bucket] = (turn, found)
                return found
        return None

    def checkpoint(self) -> dict[str, Any]:
        misses = {str(bucket): list(kept) for bucket, kept in self.misses.items()}
        turns = {str(bucket): turn for bucket, turn in self._turns.items()}
        return {"losses": list(self.losses), "pull": self.pull, "misses": misses, "turns": turns}

    def restore(self, kept: Mapping[str, Any]) -> None:
        self.losses, self.pull = [float(one) for one in kept["losses"]], float(kept["pull"])
        self.misses = {int(bucket): [float(one) for one in misses] for bucket, misses in kept["misses"].items()}
        self._turns = {int(bucket): int(turn) for bucket, turn in kept["turns"].items()}
        self._spreads = {}


Key = tuple[int, str, str]
"""Level, and the names that make the kind."""


class Predictor:
    """See the module. `learn` and `ended` take runs in, `predict` answers."""

    def __init__(self) -> None:
        self._kinds: dict[Key, _Kind] = {}
        """By when each ran last."""
        self._levels = [_Level() for _ in LEVELS]
        self.runs = 0
        """That were learned from."""

    # -- learning --------------------------------------------------------------------------------------------------------------

    def learn(self, runs: ev.RunsSeen) -> None:
        for run in runs.runs:
            self.ended(run)

    def ended(self, run: RunFacts, estimate_s: float | None = None) -> None:
        """A run ended well."""
        if not (math.isfinite(run.seconds) and run.seconds > 0):
            return
        value = _log(run.seconds)
        self.runs += 1
        wide: float | None = None
        for key, offset in _keys(run, estimate_s):
            level, kind = self._levels[key[0]], self._kinds.pop(key, None)
            if kind is None:
                kind = _Kind()
            else:
                level.judge(value, wide, kind, offset)
                wide = self._pulled(wide, key[0], kind, offset)
                level.missed(kind.known, round(value - wide, 4))
                kind.add_place(run.labels, round(value - wide, 4))
            self._kinds[key] = kind
            kind.add(round(value - offset, 4))
            kind.add_use(run)
        while len(self._kinds) > KINDS_MAX:
            del self._kinds[next(iter(self._kinds))]

    # -- answering -------------------------------------------------------------------------------------------------------------

    def predict(self, work: Work, request: Mapping[str, int], now: float) -> Prediction | None:
        """What is expected of work; None while there is nothing to go by. `now` is for predictors that look at it."""
        del now
        if self.runs < RUNS_MIN:
            return None
        found = [(key, offset, kind) for key, offset in _keys(work, work.estimate_s) if (kind := self._kinds.get(key))]
        if not found:
            return None
        expected: float | None = None
        for key, offset, kind in found:
            expected = self._pulled(expected, key[0], kind, offset)
        assert expected is not None
        kinds = [kind for _, _, kind in found]
        return Prediction(
            run_s=_seconds(expected),
            high_s=_seconds(expected + self._spread(found)),
            grounds=_grounds(found),
            use=_use(kinds, request),
            affinity=_affinity(kinds[-2:]),
        )

    def _pulled(self, wide: float | None, level: int, kind: _Kind, offset: float) -> float:
        own, known = kind.median + offset, kind.known
        return own if wide is None else wide + (own - wide) * known / (known + self._levels[level].pull)

    def _spread(self, found: Sequence[tuple[Key, float, _Kind]]) -> float:
        """From the closest level that has measured itself; the kind's own where it has runs enough."""
        _, _, kind = found[-1]
        wide = next(
            (spread for key, _, one in reversed(found) if (spread := self._levels[key[0]].spread(one.known)) is not None),
            _SPREAD_FIRST,
        )
        own = _quantile(kind.by_size, HIGH) - kind.median
        return max(wide + (own - wide) * kind.known / (kind.known + OWN_PULL), 0.0)

    # -- checkpoints -----------------------------------------------------------------------------------------------------------

    def checkpoint(self) -> dict[str, Any]:
        """Everything, as plain JSON values; the kind that ran last is last."""
        kinds = [[*key, kind.count, list(kind.by_age), kind.use, kind.labels] for key, kind in self._kinds.items()]
        return {"runs": self.runs, "kinds": kinds, "levels": [level.checkpoint() for level in self._levels]}

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Be as what `checkpoint` gave. What is not of that shape raises, and changes nothing."""
        kinds: dict[Key, _Kind] = {}
        for level, first, second, count, values, use, labels in kept["kinds"][-KINDS_MAX:]:
            kind = kinds[int(level), str(first), str(second)] = _Kind()
            for value in values[-WINDOW:]:
                kind.add(float(value))
            kind.count = int(count)
            kind.use = {str(name): [float(one) for one in mean] for name, mean in use.items()}
            kind.labels = {str(name): [float(one) for one in sums] for name, sums in labels.items()}
        levels = [_Level() for _ in LEVELS]
        for one, was in zip(levels, kept["levels"], strict=True):
            one.restore(was)
        self._kinds, self._levels, self.runs = kinds, levels, int(kept["runs"])


# -- kinds ---------------------------------------------------------------------------------------------------------------------


def _keys(of: Work | RunFacts, estimate_s: float | None) -> list[tuple[Key, float]]:
    """The kinds that work belongs to, the widest first, each with what is to be added to its values."""
    user, group, name, sort = of.user[:_TEXT_MAX], of.group[:_TEXT_MAX], of.name[:_TEXT_MAX], of.type[:_TEXT_MAX]
    keys: list[tuple[Key, float]] = [((0, "", ""), 0.0)]
    if sort:
        keys.append(((1, "", sort), 0.0))
        if group:
            keys.append(((2, group, sort), 0.0))
    if user:
        keys.append(((3, user, sort), 0.0))
        if name:
            keys.append(((4, user, name), 0.0))
    if estimate_s is not None and math.isfinite(estimate_s) and estimate_s > 0:
        keys.append(((_ESTIMATE, user, ""), _log(estimate_s)))
    return keys


def _grounds(found: Sequence[tuple[Key, float, _Kind]]) -> str:
    """The closest kind in words; with few runs of it, also the next one."""
    words = [_words(key, kind.count) for key, _, kind in found]
    _, _, kind = found[-1]
    if kind.known < CLEAR_RUNS_MIN and len(words) > 1:
        return f"{words[-1]}; {words[-2]}"
    return words[-1]


def _words(key: Key, count: int) -> str:
    level, first, second = key
    runs = f"{count} run{'' if count == 1 else 's'}"
    of_type = f", type {second}" if second else ""
    match level:
        case 0:
            return f"{runs} of all work"
        case 1:
            return f"{runs} of type {second}"
        case 2:
            return f"{runs} of group {first}{of_type}"
        case 3:
            return f"{runs} of user {first}{of_type}"
        case 4:
            return f"{runs} of user {first}, name {second}"
        case _:
            return f"the owner's estimate and {runs} {f'of user {first} ' if first else ''}that had one"


def _use(kinds: Sequence[_Kind], request: Mapping[str, int]) -> dict[str, float]:
    """What it will use of what it asks for: the mean, pulled towards closer kinds."""
    found: dict[str, float] = {}
    for name, asked in sorted(request.items()):
        part: float | None = None
        for kind in kinds:
            runs, mean = kind.use.get(name, (0.0, 0.0))
            if runs:
                part = mean if part is None else part + (mean - part) * runs / (runs + PULLS[2])
        if part is not None and asked > 0:
            found[name] = part * asked
    return found


def _affinity(kinds: Sequence[_Kind]) -> dict[str, str]:
    """Labels under which the closest kinds ran clearly faster than elsewhere: the best value of each key."""
    best: dict[str, tuple[float, str]] = {}
    for kind in kinds:
        keys: dict[str, list[tuple[str, list[float]]]] = {}
        for word, sums in kind.labels.items():
            label, _, value = word.partition("=")
            keys.setdefault(label, []).append((value, sums))
        for label, values in keys.items():
            for value, here in values:
                others = [sum(sums[at] for other, sums in values if other != value) for at in range(3)]
                gain = _gain(here, others)
                if gain is not None and gain > best.get(label, (0.0, ""))[0]:
                    best[label] = (gain, value)
    return {label: value for label, (_, value) in sorted(best.items())}


def _gain(here: Sequence[float], others: Sequence[float]) -> float | None:
    """By how much of a logarithm runs here were shorter than the others; None where that is not clear."""
    if here[0] < CLEAR_RUNS_MIN or others[0] < CLEAR_RUNS_MIN:
        return None
    gain = others[1] / others[0] - here[1] / here[0]
    error = math.sqrt(sum(max(two / n - (one / n) ** 2, 1e-6) / n for n, one, two in (here, others)))
    return gain if gain > max(CLEAR_GAIN, CLEAR_ERRORS * error) else None


def _bucket(known: int) -> int:
    return max(known, 1).bit_length()


def _quantile(ordered: Sequence[float], level: float) -> float:
    """Between the two nearest."""
    at = level * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def _log(seconds: float) -> float:
    # Rounded as a checkpoint has it, so that what goes on and what is restored are equal.
    return round(math.log(min(max(seconds, SECONDS_MIN), SECONDS_MAX)), 4)


def _seconds(value: float) -> float:
    return round(math.exp(min(value, math.log(SECONDS_MAX))), 3)
