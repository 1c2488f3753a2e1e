"""Touched nodes, batch by batch."""

from __future__ import annotations

import numpy as np

from muster.engine.touches import Touches


def test_since_is_what_was_touched_after_a_batch() -> None:
    touches = Touches()
    for slots in ([1, 2], [5], [2, 3]):
        touches.add(np.array(slots))
    assert [found.tolist() for end in range(3) if (found := touches.since(end)) is not None] == [
        [1, 2, 3, 5],
        [2, 3, 5],
        [2, 3],
    ]


def test_what_is_kept_is_bounded_and_who_is_too_far_behind_is_told_so() -> None:
    touches = Touches(batches_max=4)
    for slot in range(100):
        touches.add(np.array([slot]))
        assert len(touches) <= 4
    assert touches.since(0) is None
    assert touches.since(99) is not None


def test_moved_slots_leave_whoever_is_behind_behind_and_nobody_else() -> None:
    touches = Touches()
    touches.add(np.array([1]))
    touches.forget()
    assert touches.since(0) is None
    touches.add(np.array([2]))
    found = touches.since(1)
    assert found is not None
    assert found.tolist() == [2]
