"""The corpus: the same cluster for the same seed, valid manifests, every filter exercised."""

from __future__ import annotations

from collections import Counter

import pytest

from muster.bench.corpus import make_case
from muster.bench.corpus_pods import EXERCISES
from muster.bench.workload import encoded
from tests.bench.admitted import objections


@pytest.mark.parametrize("seed", range(8))
def test_manifests_are_valid(seed: int) -> None:
    case = make_case(seed)
    assert 10 <= len(case.nodes) <= 20
    for raw in (*case.namespaces, *case.furniture, *case.nodes, *case.volumes, *case.claims, *case.running, *case.pods):
        assert objections(raw) == [], raw


def test_the_same_seed_gives_the_same_cluster() -> None:
    one, other = make_case(3), make_case(3)
    assert encoded([*one.nodes, *one.running, *one.pods]) == encoded([*other.nodes, *other.running, *other.pods])
    assert encoded(make_case(4).nodes) != encoded(one.nodes)


def test_every_filter_is_exercised() -> None:
    pods = make_case(1, pods=60).pods
    counts = Counter(name for pod in pods for name in pod["metadata"]["labels"]["exercise"].split("."))
    assert set(counts) == set(EXERCISES)
    assert min(counts.values()) > 3
