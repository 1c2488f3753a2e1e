"""What the order learns while it runs: runs that end well teach its predictor, and what waits is foretold by it.

Fed by `PolicyOrder`: pods that are seen to have succeeded, units that stop. A unit's run counts once all its pods are gone from
their nodes, none was seen to fail, and one at least was seen to succeed: from its start to that instant, and what earlier
attempts had kept. Work that was stopped says nothing about how long it would have run.

What was foretold when a unit joined stays with it, except that after 8, 16, 32 ... runs all units are foretold anew: in the
beginning nothing is known, and much is learned quickly.

Pure, single-threaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

import numpy as np

from muster.engine import events as ev
from muster.engine.facts import PodFacts, RunFacts
from muster.engine.work import Work
from muster.objects.labels import KoordinatorNode
from muster.policy.book import Book
from muster.policy.predict import Prediction

ANEW_FIRST: Final = 8
PLACE_LABELS: Final = (KoordinatorNode.GPU_MODEL, "node.kubernetes.io/instance-type", "kubernetes.io/arch")
"""What tells nodes apart by their kind: where work may run faster."""


class Foretells(Protocol):
    """What the order asks of a predictor; `predict.Predictor` is the real one."""

    runs: int

    def learn(self, runs: ev.RunsSeen) -> None: ...

    def ended(self, run: RunFacts, estimate_s: float | None = None) -> None: ...

    def predict(self, work: Work, request: Mapping[str, int], now: float) -> Prediction | None: ...

    def checkpoint(self) -> dict[str, Any]: ...

    def restore(self, kept: Mapping[str, Any]) -> None: ...


class Learning:
    def __init__(self, book: Book, predictor: Foretells | None) -> None:
        self._book, self.predictor = book, predictor
        self._well: dict[str, bool] = {}
        """Units of which a pod has finished: whether all that did succeeded."""
        self._where: dict[str, dict[str, str]] = {}
        """Of these: labels of the nodes that they ran on, where those agree."""
        self._anew_at = ANEW_FIRST
        book.stopping = self._stopping

    def seen(self, pod: PodFacts) -> None:
        """A pod as it was seen."""
        if self.predictor is not None and pod.is_finished and (unit := self._book.unit_of_placed(pod.metadata.uid)):
            self._well[unit] = self._well.get(unit, True) and pod.status.phase == "Succeeded"
            labels = self._labels(pod.spec.node_name)
            before = self._where.get(unit, labels)
            self._where[unit] = {key: value for key, value in labels.items() if before.get(key) == value}

    def learn(self, runs: ev.RunsSeen) -> None:
        if self.predictor is not None:
            self.predictor.learn(runs)
            self._look_anew()

    def foretell(self, row: int) -> None:
        found = self.of(row)
        if found is not None:
            self._book.table.predict(row, found.run_s, found.high_s, found.use)

    def of(self, row: int) -> Prediction | None:
        """What is expected of the unit, by all that is known now."""
        if self.predictor is None:
            return None
        return self.predictor.predict(self._work(row), self._request(row), self._book.state.now)

    def _stopping(self, unit_id: str, row: int) -> None:
        """Nothing of the unit runs any more; its row still says what ran."""
        labels = self._where.pop(unit_id, {})
        if self.predictor is None or not self._well.pop(unit_id, False):
            return
        table, state = self._book.table, self._book.state
        work = self._work(row)
        run = RunFacts(
            user=work.user,
            group=work.group,
            name=work.name,
            type=work.type,
            seconds=float(table.attained_s[row]) + max(state.now - float(table.started[row]), 0.0),
            ended=state.now,
            labels=labels,
        )
        self.predictor.ended(run, work.estimate_s)
        self._look_anew()

    def _look_anew(self) -> None:
        assert self.predictor is not None
        if self.predictor.runs < self._anew_at:
            return
        while self._anew_at <= self.predictor.runs:
            self._anew_at *= 2
        self.foretell_all()

    def foretell_all(self) -> None:
        book = self._book
        for row in list(book.table.row_of.values()):
            self.foretell(row)
        book.version += 1
        book.line_version += 1
        book.surprises += 1

    def _work(self, row: int) -> Work:
        work = self._book.table.works[row]
        group = self._book.name_of_group(row)
        if group and not work.group:
            return Work(user=work.user, group=group, name=work.name, type=work.type, estimate_s=work.estimate_s)
        return work

    def _request(self, row: int) -> dict[str, int]:
        table, names = self._book.table, self._book.state.table.names
        return {names[at]: int(table.request[at, row]) for at in np.flatnonzero(table.request[:, row]).tolist()}

    def _labels(self, node: str) -> dict[str, str]:
        nodes = self._book.state.nodes
        slot = nodes.slots.get(node)
        labels = nodes.facts[slot].metadata.labels if slot is not None else {}
        return {key: labels[key] for key in PLACE_LABELS if labels.get(key)}

    # -- checkpoints -----------------------------------------------------------------------------------------------------------

    def checkpoint(self) -> dict[str, Any]:
        if self.predictor is None:
            return {}
        where = {unit: dict(labels) for unit, labels in self._where.items()}
        return {"predictor": self.predictor.checkpoint(), "well": dict(self._well), "where": where, "anew": self._anew_at}

    def restore(self, kept: Mapping[str, Any]) -> None:
        if self.predictor is None or "predictor" not in kept:
            return
        self.predictor.restore(kept["predictor"])
        self._well = {str(unit): bool(well) for unit, well in kept["well"].items()}
        self._where = {str(unit): dict(labels) for unit, labels in kept["where"].items()}
        self._anew_at = max(int(kept["anew"]), ANEW_FIRST)
        self.foretell_all()
