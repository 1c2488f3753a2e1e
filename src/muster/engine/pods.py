"""Pods as the engine keeps them: a record each, and, for those that are placed, columns for choosing victims.

Pure, single-threaded; only `State` changes these.
"""

from __future__ import annotations

import enum

import numpy as np

from muster.engine.columns import Array
from muster.engine.facts import PodFacts
from muster.engine.shapes import Shape
from muster.engine.vectors import Vector
from muster.engine.work import decode_work
from muster.objects.labels import Muster

_BEYOND_ALL = 2**40
"""Above every priority that a pod can have; small enough to be summed."""


class Phase(enum.Enum):
    WAITING = "waiting"
    ASSUMED = "assumed"
    """Decided here; the binding is under way."""
    BOUND = "bound"


class PodRecord:
    __slots__ = (
        "facts",
        "index",
        "is_ending",
        "is_held",
        "is_ours",
        "is_victim",
        "node",
        "nominated",
        "phase",
        "priority",
        "request",
        "scoring_cpu",
        "scoring_memory",
        "seen",
        "shape",
        "uid",
        "unit",
    )

    def __init__(self, facts: PodFacts, shape: Shape) -> None:
        self.uid = facts.metadata.uid
        self.seen = facts
        """The pod as it is stored."""
        self.facts = facts
        """The pod as it is scheduled: a transformer may have put another in its place."""
        self.shape = shape
        self.node = ""
        self.phase = Phase.WAITING
        self.priority = facts.spec.priority or 0
        self.unit = ""
        self.nominated = facts.status.nominated_node_name
        self.is_ending = bool(facts.metadata.deletion_timestamp)
        self.is_victim = False
        """Chosen to make way, whether the API shows it as ending yet or not."""
        self.is_held = False
        """Reserved and not to be bound yet: an older unit may get it, nobody gets it by priority."""
        self.is_ours = False
        """Whether one of our profiles places it."""
        self.request: Vector = shape.request
        """What is counted for it on its node; `resize` may have made it another amount than the shape's."""
        self.scoring_cpu: int = shape.requests.scoring_cpu
        self.scoring_memory: int = shape.requests.scoring_memory
        self.index = -1
        """Its place in `PodColumns`; -1 while it is not on a known node."""

    @property
    def namespace(self) -> str:
        return self.facts.metadata.namespace

    @property
    def name(self) -> str:
        return self.facts.metadata.name

    @property
    def key(self) -> str:
        return f"{self.facts.metadata.namespace}/{self.facts.metadata.name}"

    @property
    def labels(self) -> dict[str, str]:
        return self.facts.metadata.labels

    def __repr__(self) -> str:
        return f"<Pod {self.key} {self.phase.value} {self.node}>"


class PodColumns:
    """Placed pods side by side: which node, how important, how much. Places of pods that went are used again.

    Pods come and go far more often than anybody looks at all of them, so changes are noted and written down at the next look.
    """

    def __init__(self, rows: int) -> None:
        self.records: list[PodRecord | None] = [None] * 64
        self._slots: list[int] = [-1] * 64
        self._free: list[int] = list(range(63, -1, -1))
        self._changed: dict[int, None] = {}
        self._node: Array = np.full(64, -1, np.int32)
        self._priority: Array = np.zeros(64, np.int64)
        self._ending: Array = np.zeros(64, np.bool_)
        self._staying: Array = np.zeros(64, np.bool_)
        self._request: Array = np.zeros((rows, 64), np.int64)

    def __len__(self) -> int:
        return len(self.records) - len(self._free)

    @property
    def node(self) -> Array:
        """Slot of its node; -1 where there is no pod."""
        if self._changed:
            self._write_down()
        return self._node

    @property
    def priority(self) -> Array:
        """Beyond all others while it is held: nobody is evicted who has not begun."""
        if self._changed:
            self._write_down()
        return self._priority

    @property
    def ending(self) -> Array:
        """Whether it is on its way out: never a victim, its room will be free."""
        if self._changed:
            self._write_down()
        return self._ending

    @property
    def staying(self) -> Array:
        """Whether it is of a job that is not marked preemptible."""
        if self._changed:
            self._write_down()
        return self._staying

    @property
    def request(self) -> Array:
        if self._changed:
            self._write_down()
        return self._request

    def add(self, pod: PodRecord, slot: int) -> None:
        if not self._free:
            self._double()
        index = pod.index = self._free.pop()
        self.records[index] = pod
        self._slots[index] = slot
        self._changed[index] = None

    def remove(self, pod: PodRecord) -> None:
        index, pod.index = pod.index, -1
        self.records[index] = None
        self._slots[index] = -1
        self._free.append(index)
        self._changed[index] = None

    def note(self, pod: PodRecord) -> None:
        """The pod's priority, amounts or ending changed."""
        if pod.index >= 0:
            self._changed[pod.index] = None

    def move(self, target: Array, source: Array, count: int) -> None:
        """Nodes got other slots; pods of nodes that went have been taken out before."""
        del count
        if self._changed:
            self._write_down()
        if not len(source):
            return
        table = np.full(int(source.max()) + 1, -1, np.int32)
        table[source] = target
        placed = self._node >= 0
        self._node[placed] = table[self._node[placed]]
        self._slots = self._node.tolist()

    def _write_down(self) -> None:
        indexes = list(self._changed)
        self._changed = {}
        self._node[indexes] = [self._slots[index] for index in indexes]
        pods = [(index, pod) for index in indexes if (pod := self.records[index]) is not None]
        if not pods:
            return
        kept = [index for index, _ in pods]
        self._priority[kept] = [_BEYOND_ALL if pod.is_held else pod.priority for _, pod in pods]
        self._ending[kept] = [pod.is_ending or pod.is_victim for _, pod in pods]
        self._staying[kept] = [_stays(pod.seen) for _, pod in pods]
        rows = max(len(pod.request) for _, pod in pods)
        if rows > len(self._request):
            missing = rows - len(self._request)
            self._request = np.concatenate([self._request, np.zeros((missing, self._request.shape[1]), np.int64)])
        self._request[:, kept] = 0
        for index, pod in pods:
            self._request[: len(pod.request), index] = pod.request

    def _double(self) -> None:
        size = len(self.records)
        self._node = np.concatenate([self._node, np.full(size, -1, np.int32)])
        self._priority = np.concatenate([self._priority, np.zeros(size, np.int64)])
        self._ending = np.concatenate([self._ending, np.zeros(size, np.bool_)])
        self._staying = np.concatenate([self._staying, np.zeros(size, np.bool_)])
        self._request = np.concatenate([self._request, np.zeros((len(self._request), size), np.int64)], axis=1)
        self.records += [None] * size
        self._slots += [-1] * size
        self._free = list(range(2 * size - 1, size - 1, -1))


def _stays(pod: PodFacts) -> bool:
    """As its job's controller says; other pods are nobody's job."""
    text = pod.metadata.annotations.get(Muster.WORK, "")
    if not text:
        return False
    work = decode_work(text)
    return bool(work.job) and not work.preemptible
