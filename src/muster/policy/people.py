"""Users and groups as the order sees them: levels, weights, and how much of the cluster each has had.

Use is counted here from the moment work is placed (see `fading`); what the ledger wrote about the time before the engine began
is taken in once for each name. Pure, single-threaded.

Entitlement: a group's weight among the groups under the same parent, a user's among those of the same group, a queue's among
those beside it; only those count that have used anything or have work here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from muster.engine.columns import Array
from muster.engine.facts import StandingFacts, UserFacts, UserGroupFacts
from muster.objects.kinds.muster_queues import SchedulingPolicySpec
from muster.policy.fading import Fading, ratios
from muster.policy.queues import QueueTree
from muster.policy.table import Table

KINDS: Final = ("user", "group", "queue")
HALF_LIVES_MAX: Final = 16
"""So many half-lives of policies are kept apart; the policies beyond that use the first."""


class People:
    def __init__(self, table: Table, tree: QueueTree) -> None:
        self._table, self._tree = table, tree
        self.users: dict[str, UserFacts] = {}
        self.groups: dict[str, UserGroupFacts] = {}
        self._fadings: dict[float, dict[str, Fading]] = {}
        self._charges: dict[str, tuple[tuple[str, str, str], float]] = {}
        self._seeded: dict[str, None] = {}
        self._before: dict[str, list[tuple[float, float, float]]] = {}
        """By kind and name: use that the ledger told, by half-life, and as of when."""

    def group_of(self, user: str, named: str) -> str:
        """The user's group, as its object says; else the one that the work names."""
        facts = self.users.get(user)
        return (facts.spec.group if facts is not None else "") or named

    def user_level(self, user: str) -> float:
        return self.users[user].spec.level if user in self.users else 0.0

    def group_level(self, group: str) -> float:
        return self.groups[group].spec.level if group in self.groups else 0.0

    # -- use -------------------------------------------------------------------------------------------------------------------

    def charge(self, unit_id: str, names: tuple[str, str, str], share: float, now: float) -> None:
        """From `now` on the unit of this user, group and queue uses so much of the cluster."""
        before = self._charges.pop(unit_id, None)
        if share > 0:
            self._charges[unit_id] = (names, share)
        for fadings in self._fadings.values():
            for kind, fading in fadings.items():
                fading.advance(now)
                if before is not None:
                    fading.change(before[0][KINDS.index(kind)], -before[1])
                if share > 0:
                    fading.change(names[KINDS.index(kind)], share)

    def seed(self, kind: str, name: str, standing: StandingFacts | None, total: Mapping[str, float], now: float) -> None:
        """What the ledger says was used before this engine began. Later words about the same name are its own echo."""
        key = f"{kind}/{name}"
        if standing is None or not standing.faded or key in self._seeded:
            return
        self._seeded[key] = None
        self._before[key] = []
        for told in standing.faded:
            shares = [amount / total[resource] for resource, amount in told.used.items() if total.get(resource, 0) > 0]
            self._before[key].append((told.half_life_seconds, max(shares, default=0.0), told.at))
        for half_life_s, fadings in self._fadings.items():
            fadings[kind].advance(now)
            fadings[kind].add(name, _before(self._before[key], half_life_s, now))

    def shares(self, spec: SchedulingPolicySpec, now: float) -> dict[str, Array]:
        """By kind, then by number in the table: faded use over entitlement."""
        fadings = self.follow(float(spec.fair_share.half_life_seconds), now)
        table = self._table
        for fading in fadings.values():
            fading.advance(now)
        groups, users = table.groups.names, table.users.names
        found = {
            "group": self._among(groups, [self._parent(name) for name in groups], fadings["group"], self._group_weight),
            "user": self._among(users, [self.group_of(name, "") for name in users], fadings["user"], self._user_weight),
        }
        queues = table.queues.names
        chains = [self._tree.chain(name) for name in queues]
        parents = [chain[1] if len(chain) > 1 else "" for chain in chains]
        found["queue"] = self._among(queues, parents, fadings["queue"], self._queue_weight)
        # A user of a group that had more than its share has less to expect.
        above = {name: float(found["group"][number]) for number, name in enumerate(groups) if name}
        factor = np.array([above.get(self.group_of(name, ""), 1.0) or 1.0 for name in users], np.float64)
        found["user"] = found["user"] * factor
        return found

    def _among(self, names: list[str], parents: list[str], fading: Fading, weight_of: Callable[[str], float]) -> Array:
        use = fading.values(names)
        weight = np.array([weight_of(name) if name else 0.0 for name in names], np.float64)
        found: Array = np.zeros(len(names))
        if len(set(parents)) <= 1:
            return ratios(use, weight)
        numbers: dict[str, list[int]] = {}
        for number, parent in enumerate(parents):
            if names[number]:
                numbers.setdefault(parent, []).append(number)
        for beside in numbers.values():
            found[beside] = ratios(use[beside], weight[beside])
        return found

    def _parent(self, group: str) -> str:
        return self.groups[group].spec.parent if group in self.groups else ""

    def _user_weight(self, name: str) -> float:
        return float(self.users[name].spec.weight) if name in self.users else 1.0

    def _group_weight(self, name: str) -> float:
        return float(self.groups[name].spec.weight) if name in self.groups else 1.0

    def _queue_weight(self, name: str) -> float:
        return float(self._tree.queues[name].spec.weight) if name in self._tree.queues else 1.0

    def follow(self, half_life_s: float, now: float) -> dict[str, Fading]:
        """Count use that fades so, from now on; a policy that needs it says so as early as it can."""
        found = self._fadings.get(half_life_s)
        if found is None:
            if len(self._fadings) >= HALF_LIVES_MAX:
                return next(iter(self._fadings.values()))
            found = self._fadings[half_life_s] = {kind: Fading(half_life_s, now) for kind in KINDS}
            for names, share in self._charges.values():
                for kind, name in zip(KINDS, names, strict=True):
                    found[kind].change(name, share)
            for key, told in self._before.items():
                kind, _, name = key.partition("/")
                found[kind].add(name, _before(told, half_life_s, now))
        return found

    # -- checkpoints ---------------------------------------------------------------------------------------------------------

    def checkpoint(self) -> dict[str, object]:
        return {
            "fading": [
                {"halfLife": half_life_s, "kind": kind, "asOf": fading.as_of, "use": fading.kept()}
                for half_life_s, fadings in self._fadings.items()
                for kind, fading in fadings.items()
            ],
            "before": {key: [list(one) for one in told] for key, told in self._before.items()},
        }

    def restore(self, kept: Mapping[str, object]) -> None:
        before = kept.get("before")
        if isinstance(before, Mapping):
            self._before = {
                str(key): [(float(one[0]), float(one[1]), float(one[2])) for one in told] for key, told in before.items()
            }
            self._seeded = dict.fromkeys(self._before)
        fading = kept.get("fading")
        for one in fading if isinstance(fading, list | tuple) else ():
            half_life_s, as_of = float(one["halfLife"]), float(one["asOf"])
            self.follow(half_life_s, as_of)[str(one["kind"])].restore(one["use"], as_of)


def _before(told: list[tuple[float, float, float]], half_life_s: float, now: float) -> float:
    """Use from before, faded to `now`. A half-life that the ledger did not know yet begins with the nearest that it did."""
    if not told:
        return 0.0
    _, use, as_of = min(told, key=lambda one: (abs(one[0] - half_life_s), one[0]))
    return use * math.exp2(-max(now - as_of, 0.0) / half_life_s)
