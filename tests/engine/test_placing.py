"""Placing many pods at once is the same as placing them one after the other."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.engine import events as ev
from muster.engine.decisions import Place
from muster.engine.machine import Engine
from muster.engine.placing import best_slots
from muster.engine.plugins.allocation import BalancedAllocation
from muster.engine.plugins.fit import Fit, FitArgs, ScoringStrategy
from muster.engine.profile import Profile
from tests.engine.building import PROFILE, node, pod

NOTES = {"gang.scheduling.koordinator.sh/name": "g", "gang.scheduling.koordinator.sh/min-available": "1"}


def engine(strategy: str, sizes: list[int]) -> Engine:
    args = FitArgs(scoring_strategy=msgspec.convert({"type": strategy}, ScoringStrategy))
    made = Engine([Profile(PROFILE, [Fit(args), BalancedAllocation()])])
    made.step([ev.NodeSeen(node(f"n{i:03}", cpu=f"{size}", memory=f"{size}Gi")) for i, size in enumerate(sizes)], 0.0)
    return made


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["LeastAllocated", "MostAllocated"]),
    st.lists(st.integers(1, 16), min_size=1, max_size=12),
    st.integers(1, 60),
    st.sampled_from(["250m", "1", "3"]),
)
def test_at_once_equals_one_by_one(strategy: str, sizes: list[int], count: int, cpu: str) -> None:
    pods = [pod(f"w{i:03}", cpu=cpu, memory="300Mi", annotations=NOTES) for i in range(count)]
    together = engine(strategy, sizes)
    at_once = {
        p.name: p.node for d in together.step([ev.PodSeen(p) for p in pods], 1.0) if isinstance(d, Place) for p in d.pods
    }
    alone = engine(strategy, sizes)
    one_by_one: dict[str, str] = {}
    for i in range(count):
        made = alone.step([ev.PodSeen(pod(f"w{i:03}", cpu=cpu, memory="300Mi"))], 1.0)
        one_by_one |= {p.name: p.node for d in made if isinstance(d, Place) for p in d.pods}
    assert at_once == one_by_one
    assert together.state.equals(alone.state)


@pytest.mark.parametrize(
    ("row", "count", "slots"),
    [
        pytest.param([-1, -1], 3, [], id="none will do"),
        pytest.param([5, -1, 7], 3, [0, 2], id="fewer than wanted"),
        pytest.param([5, 9, 5, 5, 9], 3, [0, 1, 4], id="first of equals"),
    ],
)
def test_best_slots(row: list[int], count: int, slots: list[int]) -> None:
    assert best_slots(np.array(row, np.int32), count).tolist() == slots
