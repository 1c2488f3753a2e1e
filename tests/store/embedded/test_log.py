"""What compaction drops from the log of all kinds, and what that makes superfluous on disk."""

from __future__ import annotations

import pytest

from muster.store.embedded.collection import Collection
from muster.store.embedded.limits import Limits
from muster.store.embedded.log import Dropped, Log
from tests.store.embedded.support import change, record


def filled() -> tuple[Log, list[Collection]]:
    """Versions 2 to 5, one a second, of two kinds in turn; 4 replaces 2, and 5 deletes 3."""
    log, kinds = Log(), [Collection("configmaps"), Collection("pods")]
    events = [
        change("ADDED", record("a", 2)),
        change("ADDED", record("b", 3)),
        change("MODIFIED", record("a", 4), record("a", 2)),
        change("DELETED", record("b", 5), record("b", 3)),
    ]
    for number, event in enumerate(events):
        collection = kinds[number % 2]
        collection.history.append(event)
        log.append(event, collection, float(number))
    return log, kinds


@pytest.mark.parametrize(
    ("limits", "now", "expected"),
    [
        pytest.param(Limits(), 4.0, Dropped(0, 0, ()), id="within all bounds"),
        pytest.param(Limits(history_len_max=3), 4.0, Dropped(1, 2, []), id="too many"),
        pytest.param(Limits(history_age_s=2.0), 4.0, Dropped(2, 3, []), id="too old"),
        pytest.param(Limits(history_bytes_max=0), 4.0, Dropped(4, 5, [2, 3, 5]), id="too large"),
        pytest.param(Limits(history_len_max=0, compact_len_max=3), 4.0, Dropped(3, 4, [2]), id="not all in one go"),
    ],
)
def test_what_is_beyond_the_bounds_goes(limits: Limits, now: float, expected: Dropped) -> None:
    log, kinds = filled()
    assert log.drop_beyond(limits, now) == expected
    assert len(log) == 4 - expected.number == sum(len(kind.history) for kind in kinds)


@pytest.mark.parametrize(
    ("rv", "expected"),
    [
        pytest.param(1, Dropped(0, 0, ()), id="before the first"),
        pytest.param(4, Dropped(3, 4, [2]), id="in the middle"),
        pytest.param(9, Dropped(4, 5, [2, 3, 5]), id="all"),
    ],
)
def test_what_an_operator_drops(rv: int, expected: Dropped) -> None:
    log, kinds = filled()
    assert log.drop_to(rv) == expected
    assert len(log) == 4 - expected.number == sum(len(kind.history) for kind in kinds)
    assert (log.size_bytes == 0) is (len(log) == 0)
