"""Which nodes were touched, batch by batch, for rows that are mended later, when somebody asks for them.

Each row remembers up to which batch it was mended (`end` at that time). Pure, single-threaded. Bounded: of what lies further
back than `batches_max` batches it is only known that something was touched, and a row so far behind is worked out whole.
"""

from __future__ import annotations

import numpy as np

from muster.engine.columns import Array


class Touches:
    def __init__(self, batches_max: int = 64) -> None:
        self.end = 0
        """How many batches there ever were."""
        self._batches: list[Array] = []
        self._batches_max = batches_max

    def __len__(self) -> int:
        return len(self._batches)

    def add(self, slots: Array) -> None:
        self.end += 1
        self._batches.append(slots)
        if len(self._batches) > self._batches_max:
            del self._batches[: self._batches_max // 2]

    def since(self, end: int) -> Array | None:
        """The slots touched since, in order and each once; None when that is too long ago to tell."""
        behind = self.end - end
        if behind > len(self._batches):
            return None
        batches = self._batches[len(self._batches) - behind :]
        return batches[0] if len(batches) == 1 else np.unique(np.concatenate(batches))

    def forget(self) -> None:
        """Slots moved: whoever is behind can't be told any more by how much."""
        self._batches.clear()
