"""Where work of a kind ran well: on which nodes, and on nodes with which labels, it took less or more until it ended well.

Runs are counted by kind (type, attribute, user and type, user and name) and place. Of those that ended well the distance
between how long they ran and what had been predicted of them is summed, so that a place is not taken for slow because long
work runs there; of those that failed, that they did. A place stands against all other places of its label key. It is told
(`Leaning`) when the difference is clear: in length a tenth at least and CLEAR_ERRORS standard errors of at least
CLEAR_RUNS_MIN runs on both sides, in failures FAILED_ERRORS and FAILED_MIN at least. There are many places and many looks:
with these, one kind in a hundred is told of a difference that is none. Work that fails everywhere says nothing about places.

Old runs fade: after every FADE_RUNS of a kind all its sums are halved. So a node that was avoided, and has no new runs, is
tried again. Halves are exact, and sums are of rounded figures: what goes on and what is restored from a checkpoint are equal.

Pure, incremental, deterministic. Bounded: KINDS_MAX kinds, PLACES_MAX places of each; the least telling ones go.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from muster.engine.plugins.past_runs import COST_MAX, COST_MIN, NODE, Leaning

KINDS_MAX: Final = 10_000
PLACES_MAX: Final = 24
KEYS_MAX: Final = 8
"""Label keys of one run that count."""
FADE_RUNS: Final = 64
CLEAR_RUNS_MIN: Final = 6
CLEAR_ERRORS: Final = 3.5
CLEAR_GAIN: Final = 0.1
FAILED_MIN: Final = 2
FAILED_ERRORS: Final = 3.0
LEANINGS_MAX: Final = 8
TOLD_MAX: Final = 3
_TEXT_MAX: Final = 253

Kind = tuple[int, str, str]
Place = tuple[str, str]
"""Label key and value."""


class _Sums:
    """Runs that ended well, the sum and the sum of squares of their distances, and runs that failed."""

    __slots__ = ("failed", "one", "two", "well")

    def __init__(self, well: float = 0.0, one: float = 0.0, two: float = 0.0, failed: float = 0.0) -> None:
        self.well, self.one, self.two, self.failed = well, one, two, failed

    @property
    def runs(self) -> float:
        return self.well + self.failed

    def add(self, miss: float | None) -> None:
        """`miss` is None for a run that failed."""
        if miss is None:
            self.failed += 1.0
        else:
            self.well += 1.0
            self.one += miss
            self.two += miss * miss

    def halve(self) -> None:
        self.well, self.one, self.two, self.failed = self.well / 2, self.one / 2, self.two / 2, self.failed / 2

    def without(self, other: _Sums) -> _Sums:
        return _Sums(self.well - other.well, self.one - other.one, self.two - other.two, self.failed - other.failed)

    def kept(self) -> list[float]:
        return [self.well, self.one, self.two, self.failed]


class _Runs:
    """Of one kind."""

    __slots__ = ("count", "looked_at", "places", "totals")

    def __init__(self) -> None:
        self.count = 0
        """Since sums were halved last."""
        self.looked_at = 0
        self.places: dict[Place, _Sums] = {}
        self.totals: dict[str, _Sums] = {}
        """By label key: all its places, also those that are not kept any more."""

    def add(self, labels: Iterable[Place], miss: float | None) -> None:
        self.count += 1
        if self.count >= FADE_RUNS:
            self._fade()
        for place in labels:
            sums = self.places.get(place)
            if sums is None:
                if len(self.places) >= PLACES_MAX:
                    # Rather a node than a label, and rather one where nothing failed.
                    least = min(self.places, key=lambda one: (self.places[one].failed, one[0] != NODE, self.places[one].runs))
                    del self.places[least]
                sums = self.places[place] = _Sums()
            sums.add(miss)
            self.totals.setdefault(place[0], _Sums()).add(miss)

    def _fade(self) -> None:
        self.count, self.looked_at = self.count // 2, 0
        for sums in (*self.places.values(), *self.totals.values()):
            sums.halve()
        self.places = {place: sums for place, sums in self.places.items() if sums.runs >= 0.5}
        self.totals = {key: sums for key, sums in self.totals.items() if sums.runs >= 0.5}

    def is_due(self, *, has_failed: bool) -> bool:
        """Whether it is worth judging again: after a failure, and when an eighth is new."""
        return has_failed or self.count - self.looked_at >= max(self.count // 8, 1)

    def leanings(self) -> tuple[Leaning, ...]:
        """What is clear, the strongest last."""
        self.looked_at = self.count
        found = [
            leaning
            for (key, value), here in self.places.items()
            if (leaning := _judged(key, value, here, self.totals[key].without(here))) is not None
        ]
        found.sort(key=lambda one: (one.strength, one.key, one.value))
        return tuple(found[-LEANINGS_MAX:])


class Where:
    def __init__(self) -> None:
        self._runs: dict[Kind, _Runs] = {}
        """By when each ran last."""
        self._clear: dict[Kind, tuple[Leaning, ...]] = {}
        """Kinds of which anything is clear."""

    def ended(self, kinds: Sequence[Kind], labels: Mapping[str, str], miss: float | None) -> None:
        """A run of these kinds came to an end there; `miss` is by how much of a logarithm it ran longer than had been expected,
        None where it failed."""
        places = [(key, value) for key, value in sorted(labels.items())[:KEYS_MAX] if value and len(value) <= _TEXT_MAX]
        if not places:
            return
        for kind in kinds:
            runs = self._runs.pop(kind, None) or _Runs()
            self._runs[kind] = runs
            runs.add(places, miss)
            if runs.is_due(has_failed=miss is None):
                self._judge(kind, runs)
        while len(self._runs) > KINDS_MAX:
            gone = next(iter(self._runs))
            del self._runs[gone]
            self._clear.pop(gone, None)

    def _judge(self, kind: Kind, runs: _Runs) -> None:
        found = runs.leanings()
        if found:
            self._clear[kind] = found
        else:
            self._clear.pop(kind, None)

    @property
    def knows(self) -> bool:
        return bool(self._clear)

    def of(self, kinds: Sequence[Kind]) -> tuple[Leaning, ...]:
        """Of work of these kinds, the widest first: what the closest one says of a place counts. The strongest last."""
        clear = [found for kind in kinds if (found := self._clear.get(kind))] if self._clear else []
        if len(clear) < 2:
            return clear[0] if clear else ()
        joined = {(one.key, one.value): one for found in clear for one in found}
        return tuple(sorted(joined.values(), key=lambda one: (one.strength, one.key, one.value)))

    # -- checkpoints -----------------------------------------------------------------------------------------------------------

    def checkpoint(self) -> list[list[Any]]:
        return [
            [
                *kind,
                runs.count,
                runs.looked_at,
                [[*place, *sums.kept()] for place, sums in runs.places.items()],
                [[key, *sums.kept()] for key, sums in runs.totals.items()],
                [[one.key, one.value, one.cost, one.grounds] for one in self._clear.get(kind, ())],
            ]
            for kind, runs in self._runs.items()
        ]

    def restore(self, kept: Sequence[Sequence[Any]]) -> None:
        """Be as what `checkpoint` gave. What is not of that shape raises, and changes nothing."""
        found: dict[Kind, _Runs] = {}
        clear: dict[Kind, tuple[Leaning, ...]] = {}
        for level, first, second, count, looked_at, places, totals, leanings in kept[-KINDS_MAX:]:
            kind = int(level), str(first), str(second)
            runs = found[kind] = _Runs()
            runs.count, runs.looked_at = int(count), int(looked_at)
            runs.places = {(str(key), str(value)): _Sums(*map(float, sums)) for key, value, *sums in places[:PLACES_MAX]}
            runs.totals = {str(key): _Sums(*map(float, sums)) for key, *sums in totals}
            if leanings:
                clear[kind] = tuple(Leaning(str(k), str(v), float(cost), str(why)) for k, v, cost, why in leanings)
        self._runs, self._clear = found, clear


def told(leanings: Sequence[Leaning]) -> str:
    """The strongest in words."""
    return "; ".join(one.grounds for one in reversed(leanings[-TOLD_MAX:]))


def preferred(leanings: Sequence[Leaning]) -> dict[str, str]:
    """Of each label key, the value under which it runs best, where any does better than elsewhere."""
    best: dict[str, Leaning] = {}
    for one in leanings:
        if one.cost < 1.0 and (one.key not in best or one.cost < best[one.key].cost):
            best[one.key] = one
    return {key: one.value for key, one in sorted(best.items())}


# -- judging -------------------------------------------------------------------------------------------------------------------


def _judged(key: str, value: str, here: _Sums, others: _Sums) -> Leaning | None:
    gain, more = _gain(here, others), _failing(here, others)
    if gain is None and more is None:
        return None
    name = f"node {value}" if key == NODE else f"{key}={value}"
    cost, words = 1.0, []
    if more is not None:
        cost *= more
        words.append(f"failed {_whole(here.failed)} of {_whole(here.runs)} on {name}, {_whole(others.failed)} of "
                     f"{_whole(others.runs)} elsewhere")  # fmt: skip
    if gain is not None:
        cost *= math.exp(-gain)
        part = abs(1.0 - math.exp(-gain))
        words.append(
            f"ran {part:.0%} {'shorter' if gain > 0 else 'longer'} on {name} than elsewhere "
            f"({_whole(here.well)} runs, {_whole(others.well)} elsewhere)"
        )
    cost = round(min(max(cost, COST_MIN), COST_MAX), 2)
    return Leaning(key, value, cost, "; ".join(words)) if cost != 1.0 else None


def _gain(here: _Sums, others: _Sums) -> float | None:
    """By how much of a logarithm runs here were shorter than the others; None where that is not clear."""
    if here.well < CLEAR_RUNS_MIN or others.well < CLEAR_RUNS_MIN:
        return None
    gain = others.one / others.well - here.one / here.well
    error = math.sqrt(sum(max(s.two / s.well - (s.one / s.well) ** 2, 1e-6) / s.well for s in (here, others)))
    return gain if abs(gain) > max(CLEAR_GAIN, CLEAR_ERRORS * error) else None


def _failing(here: _Sums, others: _Sums) -> float | None:
    """How many runs it takes here until one ends well, against elsewhere; None where no more clearly fail."""
    if here.failed < FAILED_MIN or others.runs < CLEAR_RUNS_MIN:
        return None
    # Half a run of each kind is added, so that few are not taken for all.
    bad, other = (here.failed + 0.5) / (here.runs + 1.0), (others.failed + 0.5) / (others.runs + 1.0)
    both = (here.failed + others.failed) / (here.runs + others.runs)
    error = math.sqrt(max(both * (1.0 - both), 1e-6) * (1.0 / here.runs + 1.0 / others.runs))
    return (1.0 - other) / (1.0 - bad) if bad - other > FAILED_ERRORS * error else None


def _whole(number: float) -> str:
    return str(round(number))
