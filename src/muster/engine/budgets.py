"""PodDisruptionBudgets: how many more pods of a kind may be ended, and which victims would be one too many.

A budget covers the pods of its namespace that its selector selects, as policy/v1 has it: an empty selector selects all of them,
a missing one none. `status.disruptionsAllowed` is what may still be ended; a pod in `status.disruptedPods` was counted already.
A selector that can't be read protects its whole namespace: nothing is ended by mistake.

Victims that were chosen a moment ago, and that the API does not show as ending yet, are charged against the budget, so that
many choices in a row do not spend the same allowance again and again.

Pure; a book is brought up to date with `update` before it is asked, and reads each budget once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from muster.engine.columns import Array
from muster.engine.facts import BudgetFacts
from muster.engine.pods import PodRecord
from muster.objects.selectors import EVERYTHING, LabelQuery, from_label_selector

KNOWN_MAX = 16_384
"""So many different sets of labels are remembered; past that, the memory starts anew."""


class _Budget:
    __slots__ = ("allowed", "disrupted", "facts", "query", "spent")

    def __init__(self, facts: BudgetFacts) -> None:
        self.facts = facts
        self.disrupted = facts.status.disrupted_pods
        self.allowed = max(facts.status.disruptions_allowed, 0)
        self.spent = 0
        try:
            self.query: LabelQuery = from_label_selector(facts.spec.selector)
        except ValueError:
            self.query = EVERYTHING


class Budgets:
    def __init__(self, budgets: Mapping[tuple[str, str], BudgetFacts] | None = None, ending: Iterable[PodRecord] = ()) -> None:
        self._budgets: dict[tuple[str, str], _Budget] = {}
        self._by_namespace: dict[str, list[tuple[int, _Budget]]] = {}
        self._known: dict[tuple[object, ...], tuple[tuple[int, _Budget], ...]] = {}
        """By namespace and labels: the budgets that select such a pod."""
        self.update(budgets or {}, ending)

    def __len__(self) -> int:
        return len(self._budgets)

    def update(self, budgets: Mapping[tuple[str, str], BudgetFacts], ending: Iterable[PodRecord] = ()) -> None:
        """Take in the budgets as they are now. `ending`: pods on their way out."""
        known = self._budgets
        if known.keys() != budgets.keys() or any(known[key].facts is not facts for key, facts in budgets.items()):
            self._known.clear()
        self._budgets = {}
        self._by_namespace = {}
        for number, (key, facts) in enumerate(sorted(budgets.items(), key=lambda item: item[0])):
            budget = known.get(key)
            if budget is None or budget.facts is not facts:
                budget = _Budget(facts)
            budget.spent = 0
            self._budgets[key] = budget
            self._by_namespace.setdefault(key[0], []).append((number, budget))
        if self._by_namespace:
            for pod in ending:
                if pod.is_victim and not pod.is_ending:
                    for _, budget in self._covering(pod):
                        budget.spent += 1

    @property
    def allowed(self) -> Array:
        """How many more each budget lets go, in the order of their keys."""
        return np.array([max(b.allowed - b.spent, 0) for b in self._budgets.values()], np.int64)

    def charges(self, pods: Sequence[PodRecord]) -> Array:
        """1 where ending the pod is charged to the budget: (budgets, pods)."""
        found: Array = np.zeros((len(self._budgets), len(pods)), np.int64)
        for place, pod in enumerate(pods):
            for number, _ in self._covering(pod):
                found[number, place] = 1
        return found

    def covered(self, pods: Iterable[PodRecord]) -> list[PodRecord]:
        """Those of the pods that any budget selects, whether or not their end was counted already."""
        return [pod for pod in pods if self._selecting(pod)]

    def violating(self, pods: Iterable[PodRecord]) -> list[PodRecord]:
        """Those of the pods that would be one too many if all were ended in this order: the first ones use up the allowance."""
        left = self.allowed
        found: list[PodRecord] = []
        for pod in pods:
            numbers = [number for number, _ in self._covering(pod)]
            left[numbers] -= 1
            if numbers and left[numbers].min() < 0:
                found.append(pod)
        return found

    def _covering(self, pod: PodRecord) -> list[tuple[int, _Budget]]:
        """The budgets that ending the pod would be charged to, with their numbers."""
        name = pod.facts.metadata.name
        return [entry for entry in self._selecting(pod) if name not in entry[1].disrupted]

    def _selecting(self, pod: PodRecord) -> tuple[tuple[int, _Budget], ...]:
        meta = pod.facts.metadata
        candidates = self._by_namespace.get(meta.namespace)
        if not candidates:
            return ()
        key = (meta.namespace, *meta.labels.items())
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            found = self._known[key] = tuple(entry for entry in candidates if entry[1].query.matches(meta.labels))
        return found


def excess(charges: Array, allowed: Array, first: Array) -> Array:
    """How many pods of each item are one too many, when the items of a node are ended one after the other.

    `charges` (budgets, items) says how many of an item's pods each budget counts; `first` is, for each item, where its node's
    items begin. With one pod per item this is what `Budgets.violating` says of each node by itself.
    """
    if not len(charges):
        return np.zeros(charges.shape[1], np.int64)
    up_to = np.cumsum(charges, axis=1)
    before_node = (up_to - charges)[:, first]
    over = np.clip(up_to - before_node - allowed[:, None], 0, charges)
    most: Array = over.max(axis=0)
    return most
