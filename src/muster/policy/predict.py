"""How long work will run and what it will use, from runs of work like it. Where it ran well is kept beside (`where`).

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
from muster.engine.plugins.past_runs import Leaning
from muster.engine.work import Work
from muster.policy.quantiles import HIGH, quantile
from muster.policy.where import CLEAR_RUNS_MIN, Where, preferred, told

WINDOW: Final = 32
"""Runs of one kind that count: the last ones, so that habits may change."""
KINDS_MAX: Final = 10_000
MISSES: Final = 256
"""Distances that are kept for each level and number of runs."""
RUNS_MIN: Final = 3
"""With fewer runs than this in all nothing is said."""
PULLS: Final = (0.25, 1.0, 4.0, 16.0, 64.0)
OWN_PULL: Final = 16.0
"""So many runs of its own count as much for a kind's spread as what its level has seen."""
SECONDS_MIN: Final = 1.0
SECONDS_MAX: Final = 1e9
_FADES: Final = 0.99
_SPREAD_FIRST: Final = math.log(4.0)
"""Nine in ten within four times what was expected, until anything is known."""
_USES_MAX: Final = 16
_TEXT_MAX: Final = 253
LEVELS: Final = ("all", "type", "group and type", "user and type", "user and name", "estimate")
_ESTIMATE: Final = len(LEVELS) - 1
_BY_PLACE: Final = (1, 3, 4)
_ATTRIBUTE: Final = len(LEVELS)
"""The level of kinds by attribute; of these only places are counted."""
_ATTRIBUTES_MAX: Final = 4
"""Levels whose kinds are told apart by where they ran."""


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
    """Node labels under which work like it ran clearly better."""
    affinity_grounds: str = ""
    """Where it ran better and where worse, in words; empty where nothing is clear."""


class _Kind:
    """Runs of one kind: the last WINDOW logarithms of seconds, by age and by size; what they used."""

    __slots__ = ("by_age", "by_size", "count", "use")

    def __init__(self) -> None:
        self.count = 0
        self.by_age: list[float] = []
        self.by_size: list[float] = []
        self.use: dict[str, list[float]] = {}
        """By resource: runs, and the mean of used over asked for."""

    @property
    def known(self) -> int:
        return len(self.by_age)

    @property
    def median(self) -> float:
        return quantile(self.by_size, 0.5)

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
                    found = quantile(sorted(kept), HIGH)
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
        self.where = Where()
        self.runs = 0
        """That were learned from."""

    # -- learning --------------------------------------------------------------------------------------------------------------

    def learn(self, runs: ev.RunsSeen) -> None:
        for run in runs.runs:
            if run.failed:
                self.failed(run)
            else:
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
            self._kinds[key] = kind
            kind.add(round(value - offset, 4))
            kind.add_use(run)
        if wide is not None and run.labels:
            self.where.ended(_places_kinds(run), run.labels, round(value - wide, 4))
        while len(self._kinds) > KINDS_MAX:
            del self._kinds[next(iter(self._kinds))]

    def failed(self, run: RunFacts) -> None:
        """A run failed, where its labels say. How long it ran says nothing."""
        self.where.ended(_places_kinds(run), run.labels, None)

    # -- answering -------------------------------------------------------------------------------------------------------------

    @property
    def has_leanings(self) -> bool:
        """Whether anything is clear of any kind."""
        return self.where.knows

    def leanings(self, work: Work) -> Sequence[Leaning]:
        """Where work like this ran better and worse than elsewhere, as far as that is clear; the strongest last."""
        return self.where.of(_places_kinds(work)) if self.where.knows else ()

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
        leanings = self.leanings(work)
        return Prediction(
            run_s=_seconds(expected),
            high_s=_seconds(expected + self._spread(found)),
            grounds=_grounds(found),
            use=_use([kind for _, _, kind in found], request),
            affinity=preferred(leanings),
            affinity_grounds=told(leanings),
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
        own = quantile(kind.by_size, HIGH) - kind.median
        return max(wide + (own - wide) * kind.known / (kind.known + OWN_PULL), 0.0)

    # -- checkpoints -----------------------------------------------------------------------------------------------------------

    def checkpoint(self) -> dict[str, Any]:
        """Everything, as plain JSON values; the kind that ran last is last."""
        kinds = [[*key, kind.count, list(kind.by_age), kind.use] for key, kind in self._kinds.items()]
        levels = [level.checkpoint() for level in self._levels]
        return {"runs": self.runs, "kinds": kinds, "levels": levels, "where": self.where.checkpoint()}

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Be as what `checkpoint` gave. What is not of that shape raises, and changes nothing."""
        kinds: dict[Key, _Kind] = {}
        for level, first, second, count, values, use, *_ in kept["kinds"][-KINDS_MAX:]:
            kind = kinds[int(level), str(first), str(second)] = _Kind()
            for value in values[-WINDOW:]:
                kind.add(float(value))
            kind.count = int(count)
            kind.use = {str(name): [float(one) for one in mean] for name, mean in use.items()}
        levels = [_Level() for _ in LEVELS]
        for one, was in zip(levels, kept["levels"], strict=True):
            one.restore(was)
        where = Where()
        where.restore(kept.get("where", ()))
        self._kinds, self._levels, self.where, self.runs = kinds, levels, where, int(kept["runs"])


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


def _places_kinds(of: Work | RunFacts) -> list[Key]:
    """The kinds of which places are counted, the widest first: its type, each of its attributes, then its owner's own."""
    keys = [key for key, _ in _keys(of, None) if key[0] in _BY_PLACE]
    if not of.attributes:
        return keys
    words = [(_ATTRIBUTE, name, word) for name, word in sorted(of.attributes.items()) if _is_word(name, word)]
    wide = sum(key[0] == 1 for key in keys)
    return [*keys[:wide], *words[:_ATTRIBUTES_MAX], *keys[wide:]]


def _is_word(name: str, value: str) -> bool:
    """Whether an attribute tells kinds of work apart: `cv` does, a number of parameters or a seed does not."""
    if not value or len(name) > _TEXT_MAX or len(value) > _TEXT_MAX:
        return False
    try:
        float(value)
    except ValueError:
        return True
    return False


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


def _bucket(known: int) -> int:
    return max(known, 1).bit_length()


def _log(seconds: float) -> float:
    # Rounded as a checkpoint has it, so that what goes on and what is restored are equal.
    return round(math.log(min(max(seconds, SECONDS_MIN), SECONDS_MAX)), 4)


def _seconds(value: float) -> float:
    return round(math.exp(min(value, math.log(SECONDS_MAX))), 3)
