"""Muster and the real kube-scheduler find the same nodes feasible, on random clusters and pods that exercise every filter.

Only two details of topology spread may differ (see `engine_sets`), and both sides are held to them to the letter: where the
sets differ, Muster's must be what its own way of counting gives, and kube-scheduler's what 1.20's gives.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.bench.corpus import recorded_cases
from muster.bench.kubernetes import ControlPlane
from tests.bench.engine_sets import engine_sets, spread, without_spread

SEEDS = (11, 20, 25, 31, 100, 101)
"""Some of them known to bring the differences out."""

PODS = 70


@pytest.mark.slow
@pytest.mark.kubernetes
def test_the_same_nodes_are_feasible(kubernetes: ControlPlane, tmp_path: Path) -> None:
    checked = differing = 0
    with ControlPlane(kubernetes.assets, tmp_path / "plane", controllers=False, bare_nodes=True) as plane:
        for recorded in recorded_cases(plane, SEEDS, pods=PODS):
            case = recorded.case
            ours, loose = engine_sets(case), engine_sets(without_spread(case))
            for pod in case.pods:
                key = (pod["metadata"]["namespace"], pod["metadata"]["name"])
                theirs = recorded.expected[key]
                checked += 1
                if ours[key] != theirs:
                    differing += 1
                    assert theirs == loose[key] & spread(case, pod, as_1_20=True), (case.name, pod, sorted(ours[key] ^ theirs))
                    assert ours[key] == loose[key] & spread(case, pod, as_1_20=False), (
                        case.name,
                        pod,
                        sorted(ours[key] ^ theirs),
                    )
    assert checked == len(SEEDS) * PODS
    assert differing < checked // 20, "most sets must be equal without any excuse"
