"""Amounts of resources as vectors, a row for each resource: what placing calculates with. Pure.

Apart from `resources`, which whoever only reads what pods ask for can have without NumPy.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from muster.engine.resources import ResourceTable
from muster.objects.amounts import AMOUNT_MAX

Vector = np.ndarray[tuple[int], np.dtype[np.int64]]


def vector_of(amounts: Mapping[str, int], table: ResourceTable) -> Vector:
    """`amounts`, of a pod, in rows; new resources get theirs."""
    rows = [(table.row_asked(name), amount) for name, amount in amounts.items() if amount or name in table.rows]
    vector: Vector = np.zeros(len(table), np.int64)
    for row, amount in rows:
        vector[row] = min(vector[row] + amount, AMOUNT_MAX)
    return vector


def widened(vector: Vector, rows: int) -> Vector:
    """`vector` as long as the columns are high: resources that appeared after it was made are 0 in it."""
    missing = rows - len(vector)
    return np.concatenate([vector, np.zeros(missing, np.int64)]) if missing > 0 else vector
