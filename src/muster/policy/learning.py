"""What the order learns while it runs: runs that end well teach its predictor, and what waits is foretold by it.

Fed by `PolicyOrder`: pods that are seen to have succeeded, units that stop. A unit's run counts once all its pods are gone from
their nodes, none was seen to fail, and one at least was seen to succeed: from its start to that instant, and what earlier
attempts had kept. Work that was stopped says nothing about how long it would have run. Pods that failed, and were not being
stopped, count against the node that they ran on. What nodes report of pods that run teaches what work really uses of what it
asks for: the most that was measured of each, over the pods that were.

It is also what the engine's PastRuns asks (`of_pod`): where work of the pod's kind ran better and worse.

What was foretold when a unit joined stays with it, except that after 8, 16, 32 ... runs all units are foretold anew: in the
beginning nothing is known, and much is learned quickly.

Pure, single-threaded.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec
import numpy as np

from muster.engine import events as ev
from muster.engine.facts import NodeMetricFacts, PodFacts, RunFacts
from muster.engine.plugins.past_runs import ADVICE, NODE, Leaning
from muster.engine.work import Work
from muster.objects.amounts import amount_of
from muster.objects.labels import KoordinatorNode
from muster.policy.book import Book
from muster.policy.predict import Prediction

ANEW_FIRST: Final = 8
PLACE_LABELS: Final = (KoordinatorNode.GPU_MODEL, "node.kubernetes.io/instance-type", "kubernetes.io/arch")
"""What tells nodes apart by their kind: where work may run faster. Beside these, each node is a place of its own."""
FAILED_MAX: Final = 16
"""Pods of a unit whose failure counts."""
MEASURED_MAX: Final = 64
"""Pods of a unit whose use is followed."""


class Foretells(Protocol):
    """What the order asks of a predictor; `predict.Predictor` is the real one."""

    runs: int

    @property
    def has_leanings(self) -> bool: ...

    def learn(self, runs: ev.RunsSeen) -> None: ...

    def ended(self, run: RunFacts, estimate_s: float | None = None) -> None: ...

    def failed(self, run: RunFacts) -> None: ...

    def predict(self, work: Work, request: Mapping[str, int], now: float) -> Prediction | None: ...

    def leanings(self, work: Work) -> Sequence[Leaning]: ...

    def checkpoint(self) -> dict[str, Any]: ...

    def restore(self, kept: Mapping[str, Any]) -> None: ...


class Learning:
    def __init__(self, book: Book, predictor: Foretells | None) -> None:
        self._book, self.predictor = book, predictor
        self._well: dict[str, bool] = {}
        """Units of which a pod has finished: whether all that did succeeded."""
        self._where: dict[str, dict[str, str]] = {}
        """Of these: labels of the nodes that they ran on, where those agree."""
        self._failed: dict[str, dict[str, dict[str, str]]] = {}
        """By unit and pod: labels of the node that it failed on."""
        self._measured: dict[str, dict[str, dict[str, list[int]]]] = {}
        """By unit, pod and resource: the most that was measured of it, and what it asks for."""
        self._anew_at = ANEW_FIRST
        if predictor is not None:
            book.state.extras[ADVICE] = self

    def seen(self, pod: PodFacts) -> None:
        """A pod as it was seen."""
        if self.predictor is not None and pod.is_finished and (unit := self._book.unit_of_placed(pod.metadata.uid)):
            self._well[unit] = self._well.get(unit, True) and pod.status.phase == "Succeeded"
            labels = self._labels(pod.spec.node_name)
            failed = self._failed.get(unit, {})
            if pod.status.phase == "Failed" and not pod.metadata.deletion_timestamp and len(failed) < FAILED_MAX:
                self._failed.setdefault(unit, failed)[pod.metadata.uid] = labels
            before = self._where.get(unit, labels)
            self._where[unit] = {key: value for key, value in labels.items() if before.get(key) == value}

    def measured(self, metric: NodeMetricFacts) -> None:
        """What a node reports of the pods that run there; of what they do not ask for nothing is kept."""
        here = self._book.state.on_node.get(metric.metadata.name)
        if self.predictor is None or not here or not metric.status.pods_metric:
            return
        rows, by_name = self._book.state.table.rows, {(pod.namespace, pod.name): pod for pod in here.values()}
        for one in metric.status.pods_metric:
            pod = by_name.get((one.namespace, one.name))
            unit = self._book.unit_of_placed(pod.uid) if pod is not None else ""
            if pod is None or not unit:
                continue
            of_unit = self._measured.setdefault(unit, {})
            if pod.uid not in of_unit and len(of_unit) >= MEASURED_MAX:
                continue
            most = of_unit.setdefault(pod.uid, {})
            for name, value in one.pod_usage.resources.items():
                row = rows.get(name, len(pod.request))
                asked = int(pod.request[row]) if row < len(pod.request) else 0
                if asked > 0:
                    with contextlib.suppress(ValueError):
                        amount = amount_of(name, value)
                        most[name] = [max(amount, most[name][0] if name in most else 0), asked]

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

    def of_pod(self, uid: str) -> Sequence[Leaning]:
        """Where work like the pod's ran better and worse, the strongest last."""
        if self.predictor is None or not self.predictor.has_leanings:
            return ()
        pod = self._book.state.pods.get(uid)
        row = self._book.table.row_of.get(pod.unit) if pod is not None else None
        return self.predictor.leanings(self._book.table.works[row]) if row is not None else ()

    def stopping(self, unit_id: str, row: int) -> None:
        """Nothing of the unit runs any more; its row still says what ran."""
        labels, failed = self._where.pop(unit_id, {}), self._failed.pop(unit_id, {})
        has_ended_well = self._well.pop(unit_id, False)
        used, asked = _sums(self._measured.pop(unit_id, {}))
        if self.predictor is None:
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
            requests=asked,
            used=used,
            attributes=dict(work.attributes),
            labels=labels,
        )
        for where in failed.values():
            self.predictor.failed(msgspec.structs.replace(run, labels=where, failed=True))
        if has_ended_well:
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
        book.others_than_before()

    def _work(self, row: int) -> Work:
        work = self._book.table.works[row]
        group = self._book.table.group_name(row)
        if group and not work.group:
            return msgspec.structs.replace(work, group=group)
        return work

    def _request(self, row: int) -> dict[str, int]:
        table, names = self._book.table, self._book.state.table.names
        return {names[at]: int(table.request[at, row]) for at in np.flatnonzero(table.request[:, row]).tolist()}

    def _labels(self, node: str) -> dict[str, str]:
        nodes = self._book.state.nodes
        slot = nodes.slots.get(node)
        if slot is None:
            return {}
        labels = nodes.facts[slot].metadata.labels
        return {NODE: node, **{key: labels[key] for key in PLACE_LABELS if labels.get(key)}}

    # -- checkpoints -----------------------------------------------------------------------------------------------------------

    def checkpoint(self) -> dict[str, Any]:
        if self.predictor is None:
            return {}
        where = {unit: dict(labels) for unit, labels in self._where.items()}
        return {
            "predictor": self.predictor.checkpoint(),
            "well": dict(self._well),
            "where": where,
            "failed": {unit: {uid: dict(labels) for uid, labels in pods.items()} for unit, pods in self._failed.items()},
            "measured": {unit: {uid: dict(most) for uid, most in pods.items()} for unit, pods in self._measured.items()},
            "anew": self._anew_at,
        }

    def restore(self, kept: Mapping[str, Any]) -> None:
        if self.predictor is None or "predictor" not in kept:
            return
        self.predictor.restore(kept["predictor"])
        self._well = {str(unit): bool(well) for unit, well in kept["well"].items()}
        self._where = {str(unit): dict(labels) for unit, labels in kept["where"].items()}
        failed = kept.get("failed", {})
        self._failed = {str(unit): {str(uid): dict(labels) for uid, labels in pods.items()} for unit, pods in failed.items()}
        self._measured = {
            str(unit): {
                str(uid): {str(name): [int(one) for one in pair] for name, pair in most.items()} for uid, most in pods.items()
            }
            for unit, pods in kept.get("measured", {}).items()
        }
        self._anew_at = max(int(kept["anew"]), ANEW_FIRST)
        self.foretell_all()


def _sums(measured: Mapping[str, Mapping[str, Sequence[int]]]) -> tuple[dict[str, int], dict[str, int]]:
    """Over the pods that were measured: by resource, the most that each used, and what they asked for."""
    used: dict[str, int] = {}
    asked: dict[str, int] = {}
    for most in measured.values():
        for name, (amount, request) in most.items():
            used[name] = used.get(name, 0) + amount
            asked[name] = asked.get(name, 0) + request
    return used, asked
