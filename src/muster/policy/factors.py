"""Factors: numbers about waiting and running work, one column each, read from the order's table.

Pure. `SOURCES` has one function for each `FactorSource` of a SchedulingPolicy; what each means, and in which unit, is said
there and in docs/policies.md. A source gives NaN where it knows nothing; `column_of` puts the factor's `default` there, then
divides by `scale`, then keeps to `min` and `max`. So a factor's column is never NaN: a formula's NaN is of its own making.

Work that runs is scored by the same factors: that is how preemption compares it with what waits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from muster.engine.columns import Array
from muster.objects.amounts import resources_named
from muster.objects.kinds.muster_queues import Factor
from muster.objects.labels import Koordinator
from muster.policy.expecting import OVERRUN_S_MIN

if TYPE_CHECKING:
    from muster.policy.table import Table, View

Indices = np.ndarray[Any, np.dtype[np.int64]]

SHAPE_MIN, SHAPE_MAX, SERVED_MAX = 0.25, 50.0, 1e5
"""Spreads of run times from one in which the 90 % quantile is thousands of medians to one that is all but a point; and how many
medians a run may have taken: beyond, the powers would overflow."""
GPU: Final = "gpu"
"""As a key: every GPU resource together, in whole devices."""
SHARE_KEYS: Final = ("user", "group", "queue")


class Asked:
    """What sources read: `rows` of `table` at the time `now`. What several of them need is worked out once."""

    def __init__(self, table: Table, rows: Indices, now: float, view: View) -> None:
        self.table, self.rows, self.now, self.view = table, rows, now, view
        self._kept: dict[str, Array] = {}

    def column(self, name: str) -> Array:
        """A column of the table, for the rows. For reading."""
        found = self._kept.get(name)
        if found is None:
            found = self._kept[name] = getattr(self.table, name)[self.rows]
        return found

    @property
    def remaining(self) -> Array:
        found = self._kept.get("remaining")
        if found is None:
            served = _served_s(self.column("attained_s"), self.column("started"), self.now)
            found = self._kept["remaining"] = _remaining_s(self.table, self.rows, served)
        return found

    @property
    def age(self) -> Array:
        """Seconds since it was submitted, whatever it did in them."""
        found = self._kept.get("age")
        if found is None:
            found = self._kept["age"] = np.maximum(self.now - self.column("submitted"), 0.0)
        return found

    @property
    def takes_s(self) -> Array:
        """Seconds from its submission to its end, if it runs from now on."""
        return self.age + _known_or(self.remaining, 0.0)


def takes_s(table: Table, rows: Indices, now: float) -> Array:
    """As `Asked.takes_s`."""
    return np.maximum(now - table.submitted[rows], 0.0) + _known_or(remaining_s(table, rows, now), 0.0)


def served_s(table: Table, rows: Indices, now: float) -> Array:
    """How long it has run, as far as that is not lost: kept from earlier attempts, and in this one."""
    return _served_s(table.attained_s[rows], table.started[rows], now)


def _served_s(attained: Array, started: Array, now: float) -> Array:
    # Of what has not started, which is no number, `fmax` leaves the 0.
    found: Array = attained + np.fmax(now - started, 0.0)
    return found


def remaining_s(table: Table, rows: Indices, now: float) -> Array:
    """How long it has still to run; NaN where nobody knows. What is over the time that its owner said doubles, as estimates do
    that were wrong; of what history foretells, what has run long has, as a rule, long to run still."""
    return _remaining_s(table, rows, served_s(table, rows, now))


def _remaining_s(table: Table, rows: Indices, served: Array) -> Array:
    estimate = table.estimate_s[rows]
    is_unsaid = np.isnan(estimate)
    is_any_unsaid = np.count_nonzero(is_unsaid) > 0
    left = (np.where(is_unsaid, table.predicted_s[rows], estimate) if is_any_unsaid else estimate) - served
    is_left = left > 0
    if np.count_nonzero(is_left) < len(left):
        left = np.where(is_left, left, np.maximum(-left, OVERRUN_S_MIN))
    by_history = is_unsaid & (served > 0) if is_any_unsaid else is_unsaid
    if not is_any_unsaid or not np.count_nonzero(by_history):
        return left
    further = _further_s(table.predicted_s[rows], table.predicted_high_s[rows], served)
    return np.where(by_history & ~np.isnan(further), np.maximum(further, OVERRUN_S_MIN), left)


def _further_s(median: Array, high: Array, served: Array) -> Array:
    """What a run that has taken `served` takes further, in the median, if run times spread log-logistically with this median
    and this 90 % quantile. Whoever took the median for the end would hold every run that nears it for as good as done."""
    with np.errstate(all="ignore"):
        shape = np.clip(np.log(9.0) / np.log(np.maximum(high / median, 1.0 + 1e-6)), SHAPE_MIN, SHAPE_MAX)
        # Of those that last so long, half last until the end at which half as many are left.
        end = median * (1.0 + 2.0 * np.minimum(served / median, SERVED_MAX) ** shape) ** (1.0 / shape)
    found: Array = np.where(np.isfinite(end) & (end > served), end - served, np.nan)
    return found


def size(asked: Asked, key: str = "") -> Array:
    """Amount of the resource `key`, all pods together: cores, bytes, bits per second, devices. Without a key: the largest share
    of the cluster that it asks for, as `ShareOfCluster`."""
    if not key:
        return asked.table.dominant[asked.rows]
    if key == "pods":
        return _floats(asked.table.pods[asked.rows])
    request = asked.table.request
    found = [request[row][asked.rows] / unit for row, unit in _resource_rows(asked.view, key) if row < len(request)]
    if not found:
        return np.zeros(len(asked.rows))
    joined = np.add if key == GPU else np.maximum
    return _floats(joined.reduce(found))


def share_of_cluster(asked: Asked, key: str = "") -> Array:
    """The part of the cluster's `key` that it asks for; without a key, the largest such part over all resources."""
    if not key:
        return asked.table.dominant[asked.rows]
    total = _floats(asked.view.total)
    whole = sum(total[row] / unit for row, unit in _resource_rows(asked.view, key) if row < len(total))
    return size(asked, key) / whole if whole > 0 else np.zeros(len(asked.rows))


def _resource_rows(view: View, key: str) -> list[tuple[int, float]]:
    """Rows that the key stands for, each with what makes one of the unit that users count in."""
    return [(view.resources[name], _unit(name, key)) for name in _resource_names(view, key)]


def _resource_names(view: View, key: str) -> list[str]:
    """The resources that the key stands for, as far as anybody has any."""
    if key == GPU:
        return sorted(name for name in view.resources if name == GPU or name.endswith("/gpu"))
    return [name for name in resources_named(key) if name in view.resources]


def _unit(name: str, key: str) -> float:
    return 1_000.0 if name == "cpu" else 100.0 if key == GPU and name == Koordinator.RESOURCE_GPU else 1.0


def waiting(asked: Asked, key: str = "") -> Array:
    """Seconds since it was submitted in which it did not run; of running work, until it was started."""
    started = asked.column("started")
    until = np.where(np.isnan(started), asked.now, started)
    waited: Array = np.maximum(until - asked.column("submitted") - asked.column("attained_s"), 0.0)
    return waited


def tail(asked: Asked, key: str = "") -> Array:
    """How late it is: what it takes in all, over what the last of all would have taken with first come, first served. With a
    percentage as key: over what so many of a hundred would have taken at most; and 1 at most for as many as may be later."""
    bounds = asked.view.lateness.get(key)
    return bounds.of(asked.takes_s) if bounds is not None else np.full(len(asked.rows), np.nan)


def tail_percent(key: str) -> float:
    """The percentage that the key of a `Tail` says; all, without one; NaN for what is none."""
    try:
        found = float(key or 100)
    except ValueError:
        return math.nan
    return found if 0 < found <= 100 else math.nan


def estimated_use(asked: Asked, key: str = "") -> Array:
    """What its owner says it really uses of `key`, in the units of Size; what it asks for, where nothing is said."""
    return _known_use(asked, key, "EstimatedUse", size(asked, key))


def predicted_use(asked: Asked, key: str = "") -> Array:
    """What work like it used of `key`, in the units of Size; as `estimated_use` where there is no history."""
    return _known_use(asked, key, "PredictedUse", estimated_use(asked, key))


def _known_use(asked: Asked, key: str, source: str, otherwise: Array) -> Array:
    """What the column says of all resources that the key stands for; `otherwise` where it says nothing of any."""
    known: Array = np.full(len(asked.rows), np.nan)
    for name in _resource_names(asked.view, key) if key else ():
        one = asked.table.number(source, name)[asked.rows] / _unit(name, key)
        more = np.where(np.isnan(known), one, known + one)
        known = np.where(np.isnan(one), known, more) if key == GPU else np.fmax(known, one)
    return np.where(np.isnan(known), otherwise, known)


def attained_service(asked: Asked, key: str = "") -> Array:
    """Seconds that it has run times its Size in `key`: GPU-seconds, core-seconds."""
    return served_s(asked.table, asked.rows, asked.now) * size(asked, key)


def fair_share(asked: Asked, key: str = "") -> Array:
    """2 ** -(use / share): 1 for who used nothing, 0.5 for who used exactly its share, towards 0 for who used more."""
    key = key or "user"
    if key not in SHARE_KEYS:
        return np.full(len(asked.rows), np.nan)
    index = {"user": asked.table.user, "group": asked.table.group, "queue": asked.table.queue}[key][asked.rows]
    return _floats(np.exp2(-_by_index(asked.view.shares.get(key, ()), index)))


def queue_level(asked: Asked, key: str = "") -> Array:
    return _by_index(asked.view.queue_level, asked.table.queue[asked.rows])


def _by_index(values: Any, index: Any) -> Array:
    """`values[index]`, and 0 for nobody."""
    if not len(values):
        return np.zeros(len(index))
    is_known = (index >= 0) & (index < len(values))
    return np.where(is_known, np.asarray(values, np.float64)[np.where(is_known, index, 0)], 0.0)


def pressure(asked: Asked, key: str = "") -> Array:
    """How much of the cluster's `key` is given away, from 0 to 1; without a key, of the resource that is scarcest."""
    given = given_away(asked.view)
    if key:
        given = given[[row for row, _ in _resource_rows(asked.view, key) if row < len(given)]]
    return np.full(len(asked.rows), given.max(initial=0.0))


def interference(asked: Asked, key: str = "") -> Array:
    """How much it will compete with what runs: its share of the cluster's total times how much of that is given away already,
    added up over all resources, or of `key` alone. 0 on an empty cluster; bandwidth counts like any other resource."""
    given, total = given_away(asked.view), _floats(asked.view.total)
    rows = [row for row, _ in _resource_rows(asked.view, key)] if key else range(len(total))
    found = np.zeros(len(asked.rows))
    for row in rows:
        if row < min(len(asked.table.request), len(total)) and total[row] > 0 and given[row] > 0:
            found += asked.table.request[row][asked.rows] * (given[row] / total[row])
    return found


def given_away(view: View) -> Array:
    """Of each resource, the share of the cluster's total that is not free; 0 where there is none of it."""
    total, free = _floats(view.total), _floats(view.free)[: len(view.total)]
    return np.where(total > 0, np.clip(1.0 - free / np.where(total > 0, total, 1.0), 0.0, 1.0), 0.0)


def _known_or(values: Array, otherwise: float) -> Array:
    """`values`, and `otherwise` where there is no number."""
    unknown = np.isnan(values)
    return np.where(unknown, otherwise, values) if np.count_nonzero(unknown) else values


def _floats(values: Any) -> Array:
    return np.asarray(values, np.float64)


SOURCES: Final[Mapping[str, Callable[[Asked, str], Array]]] = {
    "UserLevel": lambda a, key: _floats(a.table.user_level[a.rows]),
    "GroupLevel": lambda a, key: _floats(a.table.group_level[a.rows]),
    "JobLevel": lambda a, key: _floats(a.table.level[a.rows]),
    "QueueLevel": queue_level,
    "Size": size,
    "ShareOfCluster": share_of_cluster,
    "WaitingSeconds": waiting,
    "AgeSeconds": lambda a, key: a.age,
    "Tail": tail,
    "EstimatedRunSeconds": lambda a, key: a.table.estimate_s[a.rows],
    "PredictedRunSeconds": lambda a, key: a.table.predicted_s[a.rows],
    "EstimatedUse": estimated_use,
    "PredictedUse": predicted_use,
    "RemainingSeconds": lambda a, key: a.remaining,
    "ServedSeconds": lambda a, key: served_s(a.table, a.rows, a.now),
    "AttainedService": attained_service,
    "Restarts": lambda a, key: _floats(a.table.preemptions[a.rows]),
    "FairShare": fair_share,
    "SecondsToDeadline": lambda a, key: a.table.deadline[a.rows] - a.now,
    "Attribute": lambda a, key: a.table.number("Attribute", key)[a.rows],
    "Label": lambda a, key: a.table.number("Label", key)[a.rows],
    "Pressure": pressure,
    "Interference": interference,
}
"""Each gives a float64 column over the rows, NaN where it knows nothing. `Constant` needs no source: it is in the factor."""

_UNSURE: Final = frozenset(
    {
        "Tail",
        "EstimatedRunSeconds",
        "PredictedRunSeconds",
        "RemainingSeconds",
        "FairShare",
        "SecondsToDeadline",
        "Attribute",
        "Label",
    }
)
"""Sources that may know nothing of some work."""
OF_FREE: Final = frozenset({"Pressure", "Interference"})
"""Sources that read what is free (`View.free`)."""
OF_USE: Final = OF_FREE | {"FairShare"}
"""Sources that read what is in use (`free` and `shares` of the view): a line ranked by one of them is ranked anew whenever
pods are placed or go."""


def column_of(factor: Factor, asked: Asked) -> Array:
    """The factor's values: `default` for what is not known, divided by `scale`, within `min` and `max`."""
    if factor.source == "Constant":
        return np.full(len(asked.rows), bounded(factor, factor.constant))
    values = SOURCES[factor.source](asked, factor.key)
    if factor.source in _UNSURE:
        values = _known_or(values, factor.default)
    if factor.scale != 1:
        values = values / factor.scale
    if factor.min is not None:
        values = np.maximum(values, factor.min)
    if factor.max is not None:
        values = np.minimum(values, factor.max)
    # Of 0 and -0 processors take the one or the other, and a formula may divide by it: here it is 0.
    return values if factor.min is None and factor.max is None else values + 0.0


def bounded(factor: Factor, value: float) -> float:
    """One value of the factor, as `column_of` would give it."""
    value /= factor.scale
    if factor.min is not None:
        value = max(value, factor.min)
    return (value if factor.max is None else min(value, factor.max)) + 0.0
