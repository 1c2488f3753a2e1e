"""Kinds of units: those of one kind find room at the same places, and count against the same limits.

What one of a kind finds out holds for the others, so thousands that are alike cost one question. Pure, single-threaded.
"""

from __future__ import annotations

from collections.abc import Sequence

from muster.engine.pods import PodRecord
from muster.policy.backfill import Pieces
from muster.policy.table import Names


class Kinds:
    def __init__(self) -> None:
        self._names = Names()
        self.pieces: dict[int, Pieces] = {}
        """By kind: what must fit before a unit of it can start."""

    def take(self, unit_id: str, queue: str, user: str, group: str, pieces: Pieces) -> int:
        """The number of the unit's kind, with one more that has it."""
        # Rules between pods could tell units apart: then each is a kind of its own.
        alike = "" if _is_plain(pieces) else unit_id
        kind = self._names.take("\0".join((queue, user, group, alike, *(f"{shape.number}*{count}" for shape, count in pieces))))
        self.pieces[kind] = pieces
        return kind

    def give(self, kind: int) -> None:
        """One less has it."""
        name = self._names.names[kind]
        self._names.give(kind)
        if self._names.find(name) < 0:
            self.pieces.pop(kind, None)


def pieces_of(pods: Sequence[PodRecord]) -> Pieces:
    """The pods by shape: equal ones are counted."""
    counts: dict[int, int] = {}
    shapes = {}
    for pod in pods:
        counts[pod.shape.number] = counts.get(pod.shape.number, 0) + 1
        shapes[pod.shape.number] = pod.shape
    return tuple((shapes[number], count) for number, count in sorted(counts.items()))


def _is_plain(pieces: Pieces) -> bool:
    """Whether nothing but amounts and the nodes themselves decides where the pods may be."""
    return not any(
        shape.spec.affinity is not None or shape.spec.topology_spread_constraints or shape.spec.volumes for shape, _ in pieces
    )
