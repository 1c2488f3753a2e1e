"""Scores brought to scale."""

from __future__ import annotations

import numpy as np
import pytest

from muster.engine.scaling import scale_to_largest


@pytest.mark.parametrize(
    ("scores", "feasible", "reverse", "expected"),
    [
        pytest.param([0, 0], [1, 1], False, [0, 0], id="nothing stays nothing"),
        pytest.param([0, 0], [1, 1], True, [100, 100], id="no harm is best"),
        pytest.param([1, 2, 3], [1, 1, 1], False, [33, 66, 100], id="rounded down"),
        pytest.param([1, 2, 3], [1, 1, 1], True, [67, 34, 0], id="reversed after rounding"),
        pytest.param([1, 2, 300], [1, 1, 0], False, [50, 100, 100], id="only feasible nodes set the scale"),
        pytest.param([5, 5], [0, 0], False, [0, 0], id="nobody feasible"),
    ],
)
def test_scale_to_largest(scores: list[int], feasible: list[int], reverse: bool, expected: list[int]) -> None:
    found = scale_to_largest(np.array(scores), np.array(feasible, np.bool_), reverse=reverse)
    assert found.tolist() == expected
