"""Factors: what each source says of waiting and running work, and how default, scale and bounds shape it."""

from __future__ import annotations

import math
from typing import Any, get_args

import numpy as np
import pytest

from muster.engine.work import Work
from muster.objects.kinds.muster_queues import Factor, FactorSource
from muster.policy.factors import OF_USE, SOURCES, Asked, column_of, remaining_s
from muster.policy.table import Lateness, Row, Table, View

NOW = 10_000.0
RESOURCES = {"cpu": 0, "memory": 1, "bandwidth-egress": 2, "bandwidth-ingress": 3, "nvidia.com/gpu": 4, "koordinator.sh/gpu": 5}
TOTAL = np.array([100_000, 1 << 40, 10**10, 10**10, 16, 0])
FREE = np.array([25_000, 1 << 39, 10**10, 10**10, 0, 0])


def view(**changes: Any) -> View:
    given: dict[str, Any] = {
        "resources": RESOURCES,
        "total": TOTAL,
        "free": FREE,
        "shares": {"user": np.array([0.0, 1.0, 2.0]), "group": np.array([1.0]), "queue": np.array([3.0])},
        "queue_level": np.array([7.0]),
        "lateness": {"": Lateness(9_000.0), "99": Lateness(2_000.0, 5_000.0)},
    }
    return View(**{**given, **changes})


def table() -> Table:
    """Three units: `new` has said nothing, `told` has said everything, `runs` has been running for 1,000 s."""
    made = Table(len(RESOURCES))
    made.use_total(TOTAL)
    for name in ("ann", "bob", "cyd"):  # numbers 0, 1, 2
        made.users.take(name)
    made.put("new", Work(submitted=9_000.0), Row(request=np.array([500, 0, 0, 0, 0, 0])))
    made.put(
        "told",
        Work(
            submitted=4_000.0,
            level=5,
            estimate_s=3_600.0,
            deadline=13_000.0,
            attained_s=600.0,
            preemptions=2,
            attributes={"nice": "2.5", "net": "resnet"},
            estimate_use={"memory": 512.0, "nvidia.com/gpu": 3.0, "koordinator.sh/gpu": 100.0, "bandwidth-egress": 7.0},
        ),
        Row(
            request=np.array([8_000, 1 << 30, 10**9, 2 * 10**9, 4, 200]),
            pods=3,
            queue="q",
            user="bob",
            group="g",
            user_level=10,
            group_level=20,
            labels={"site/boost": "1e2"},
        ),
    )
    made.put("runs", Work(submitted=8_000.0, estimate_s=800.0), Row(request=np.array([1_000, 0, 0, 0, 1, 0]), user="cyd"))
    row = made.row_of["runs"]
    made.started[row], made.is_running[row] = 9_000.0, True
    made.predict(made.row_of["new"], 50.0, 100.0, {"cpu": 250.0})
    return made


NAN = math.nan


@pytest.mark.parametrize(
    ("source", "key", "expected"),
    [
        pytest.param("UserLevel", "", [0, 10, 0], id="UserLevel"),
        pytest.param("GroupLevel", "", [0, 20, 0], id="GroupLevel"),
        pytest.param("JobLevel", "", [0, 5, 0], id="JobLevel"),
        pytest.param("QueueLevel", "", [0, 7, 0], id="QueueLevel"),
        pytest.param("Size", "cpu", [0.5, 8, 1], id="Size in cores"),
        pytest.param("Size", "memory", [0, 1 << 30, 0], id="Size in bytes"),
        pytest.param("Size", "bandwidth", [0, 2e9, 0], id="Size in bits per second, the larger direction"),
        pytest.param("Size", "bandwidth-egress", [0, 1e9, 0], id="Size of one direction"),
        pytest.param("Size", "gpu", [0, 6, 1], id="Size in GPUs of all makes"),
        pytest.param("Size", "nvidia.com/gpu", [0, 4, 1], id="Size in GPUs of one make"),
        pytest.param("Size", "pods", [1, 3, 1], id="Size in pods"),
        pytest.param("Size", "other.com/thing", [0, 0, 0], id="Size in what nobody has"),
        pytest.param("Size", "", [0.005, 0.25, 0.0625], id="Size as dominant share"),
        pytest.param("ShareOfCluster", "", [0.005, 0.25, 0.0625], id="ShareOfCluster"),
        pytest.param("ShareOfCluster", "cpu", [0.005, 0.08, 0.01], id="ShareOfCluster in one resource"),
        pytest.param("ShareOfCluster", "other.com/thing", [0, 0, 0], id="ShareOfCluster in what nobody has"),
        pytest.param("WaitingSeconds", "", [1_000, 5_400, 1_000], id="WaitingSeconds"),
        pytest.param("AgeSeconds", "", [1_000, 6_000, 2_000], id="AgeSeconds"),
        pytest.param("Tail", "", [1_050 / 9_000, 9_000 / 9_000, 2_200 / 9_000], id="Tail"),
        pytest.param("Tail", "99", [1_050 / 2_000, 1, 2_200 / 2_000], id="Tail of all but one of a hundred"),
        pytest.param("Tail", "some", [NAN, NAN, NAN], id="Tail of nobody"),
        pytest.param("EstimatedRunSeconds", "", [NAN, 3_600, 800], id="EstimatedRunSeconds"),
        pytest.param("PredictedRunSeconds", "", [50, NAN, NAN], id="PredictedRunSeconds"),
        pytest.param("EstimatedUse", "cpu", [0.5, 8, 1], id="EstimatedUse is the request, where nothing is said"),
        pytest.param("EstimatedUse", "memory", [0, 512, 0], id="EstimatedUse"),
        pytest.param("EstimatedUse", "gpu", [0, 4, 1], id="EstimatedUse of GPUs of all makes"),
        pytest.param("EstimatedUse", "bandwidth", [0, 7, 0], id="EstimatedUse of bandwidth"),
        pytest.param("PredictedUse", "memory", [0, 512, 0], id="PredictedUse is the estimate, where there is no history"),
        pytest.param("PredictedUse", "cpu", [0.25, 8, 1], id="PredictedUse"),
        pytest.param("RemainingSeconds", "", [50, 3_000, 200], id="RemainingSeconds"),
        pytest.param("ServedSeconds", "", [0, 600, 1_000], id="ServedSeconds"),
        pytest.param("AttainedService", "gpu", [0, 3_600, 1_000], id="AttainedService in GPU-seconds"),
        pytest.param("AttainedService", "", [0, 150, 62.5], id="AttainedService in seconds of the cluster"),
        pytest.param("Restarts", "", [0, 2, 0], id="Restarts"),
        pytest.param("FairShare", "", [1, 0.5, 0.25], id="FairShare of users"),
        pytest.param("FairShare", "group", [1, 0.5, 1], id="FairShare of groups"),
        pytest.param("FairShare", "queue", [1, 0.125, 1], id="FairShare of queues"),
        pytest.param("SecondsToDeadline", "", [NAN, 3_000, NAN], id="SecondsToDeadline"),
        pytest.param("Attribute", "nice", [NAN, 2.5, NAN], id="Attribute"),
        pytest.param("Attribute", "net", [NAN, NAN, NAN], id="Attribute that is no number"),
        pytest.param("Label", "site/boost", [NAN, 100, NAN], id="Label"),
        pytest.param("Pressure", "", [1, 1, 1], id="Pressure of the scarcest"),
        pytest.param("Pressure", "cpu", [0.75, 0.75, 0.75], id="Pressure of one resource"),
        pytest.param("Interference", "cpu", [0.75 * 0.005, 0.75 * 0.08, 0.75 * 0.01], id="Interference in one resource"),
        pytest.param(
            "Interference", "", [0.75 * 0.005, 0.75 * 0.08 + 0.5 / 1024 + 0.25, 0.75 * 0.01 + 0.0625], id="Interference in all"
        ),
    ],
)
def test_sources(source: str, key: str, expected: list[float]) -> None:
    made = table()
    rows = np.array([made.row_of[name] for name in ("new", "told", "runs")])
    found = SOURCES[source](Asked(made, rows, NOW, view()), key)
    assert found.dtype == np.float64
    assert found.tolist() == pytest.approx(expected, nan_ok=True)


def test_every_source_of_the_kind_is_there() -> None:
    assert {*SOURCES, "Constant"} == set(get_args(FactorSource))


@pytest.mark.parametrize("source", sorted(SOURCES))
def test_which_sources_depend_on_what_is_in_use(source: str) -> None:
    """The line is ranked anew when pods are placed or go for these alone."""
    made, rows = table(), np.array([0, 1, 2])
    other = view(free=TOTAL // 2, shares={name: share + 1.0 for name, share in view().shares.items()})
    here, there = (SOURCES[source](Asked(made, rows, NOW, seen), "") for seen in (view(), other))
    assert np.array_equal(here, there, equal_nan=True) != (source in OF_USE)


@pytest.mark.parametrize("source", sorted({*SOURCES, "Constant"}))
@pytest.mark.parametrize("key", ["", "cpu", "user", "oops"])
def test_no_factor_is_ever_not_a_number(source: Any, key: str) -> None:
    """With an odd key, on an empty cluster that knows nobody, and without rows."""
    made, bare = table(), View(resources={}, total=np.zeros(0), free=np.zeros(0))
    factor = Factor(name="f", source=source, key=key, default=3.0)
    for seen, rows in ((view(), [0, 1, 2]), (bare, [0, 1, 2]), (view(), [])):
        found = column_of(factor, Asked(made, np.array(rows, np.int64), NOW, seen))
        assert found.shape == (len(rows),)
        assert not np.isnan(found).any()


@pytest.mark.parametrize(
    ("factor", "expected"),
    [
        pytest.param(Factor(name="f", source="SecondsToDeadline"), [0, 3_000], id="as it is"),
        pytest.param(Factor(name="f", source="SecondsToDeadline", default=1e9), [1e9, 3_000], id="default"),
        pytest.param(Factor(name="f", source="SecondsToDeadline", default=500, scale=1_000), [0.5, 3], id="scaled default"),
        pytest.param(Factor(name="f", source="SecondsToDeadline", min=10, max=2_000), [10, 2_000], id="bounds"),
        pytest.param(Factor(name="f", source="SecondsToDeadline", scale=1_000, max=1), [0, 1], id="bounds after the scale"),
        pytest.param(Factor(name="f", source="Constant", constant=8, scale=2, max=3), [3, 3], id="constant"),
    ],
)
def test_shaping(factor: Factor, expected: list[float]) -> None:
    made = table()
    rows = np.array([made.row_of["new"], made.row_of["told"]])
    assert column_of(factor, Asked(made, rows, NOW, view())).tolist() == expected


@pytest.mark.parametrize(
    ("ran_s", "left_s"),
    [
        pytest.param(100, 700, id="in time"),
        pytest.param(800, 60, id="due"),
        pytest.param(830, 60, id="just over"),
        pytest.param(1_000, 200, id="over by a quarter"),
        pytest.param(2_400, 1_600, id="over by twice its time"),
    ],
)
def test_what_overruns_is_expected_to_overrun_as_much_again(ran_s: float, left_s: float) -> None:
    made = table()
    row = made.row_of["runs"]
    assert remaining_s(made, np.array([row]), made.started[row] + ran_s).tolist() == [left_s]


def test_an_index_that_nobody_has_used_nothing() -> None:
    made = table()
    rows = np.array([made.row_of["told"], made.row_of["runs"]])
    few = view(shares={"user": np.array([0.0, 1.0])})
    assert SOURCES["FairShare"](Asked(made, rows, NOW, few), "").tolist() == [0.5, 1.0]


@pytest.mark.parametrize(
    ("high_s", "served_s", "left_s"),
    [
        pytest.param(100.0 + 1e-9, 20.0, 80.0, id="all alike: what is missing to the median"),
        pytest.param(900.0, 100.0, 200.0, id="at the median of a wide spread: as much again, twice"),
        pytest.param(900.0, 900.0, 1_000.0, id="at the 90 % quantile: longer still"),
    ],
)
def test_what_history_foretells_has_longer_to_run_the_longer_it_has_run(high_s: float, served_s: float, left_s: float) -> None:
    """With a 90 % quantile of nine medians the spread is log-logistic of shape 1: median * (1 + 2 served / median) - served."""
    made = Table(6)
    row = made.put("Pod/x/a", Work(submitted=0.0), Row(request=np.ones(1, np.int64)))
    made.predict(row, 100.0, high_s)
    made.started[row] = 1_000.0
    assert remaining_s(made, np.array([row]), 1_000.0 + served_s)[0] == pytest.approx(left_s, rel=0.02)


def test_what_the_owner_says_is_not_spread() -> None:
    made = Table(6)
    row = made.put("Pod/x/a", Work(submitted=0.0, estimate_s=100.0), Row(request=np.ones(1, np.int64)))
    made.predict(row, 100.0, 900.0)
    made.started[row] = 0.0
    assert remaining_s(made, np.array([row]), 90.0)[0] == pytest.approx(10.0)
