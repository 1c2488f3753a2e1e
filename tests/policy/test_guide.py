"""The policies guide: its policies are right, its tables are complete, and its figures are what the code works out."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
import pytest

from muster.engine.work import Work
from muster.objects import yaml_text
from muster.objects.formula import DEPTH_MAX, FUNCTIONS, STEPS_MAX, TEXT_LEN_MAX, FormulaError
from muster.objects.kinds.muster_queues import SCHEDULING_POLICY, FactorSource, SchedulingPolicySpec
from muster.objects.status import Raw
from muster.objects.validation import validate_object
from muster.objects.view import view_of
from muster.policy.builtin import NAMES, builtin_spec
from muster.policy.formula import compile_formula
from muster.policy.policies import make_policy
from muster.policy.table import Row, Table
from tests.policy.test_factors import NOW, view

PAGE = (Path(__file__).parents[2] / "docs" / "policies.md").read_text()
POLICIES: list[Raw] = [yaml_text.load(body) for body in re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)]


@pytest.mark.parametrize("raw", POLICIES, ids=lambda raw: str(raw["metadata"]["name"]))
def test_policies_are_right(raw: Raw) -> None:
    assert validate_object(SCHEDULING_POLICY, raw) == []
    make_policy(view_of(SchedulingPolicySpec, raw["spec"]))


def test_tables_are_complete() -> None:
    first = set(re.findall(r"^\| `([\w-]+)`", PAGE, re.MULTILINE))
    assert set(get_args(FactorSource)) <= first
    assert set(NAMES) <= first
    assert {name for name in FUNCTIONS if f"`{name}(" not in PAGE} == set()


def test_limits_are_as_the_page_says() -> None:
    assert f"{TEXT_LEN_MAX:,} characters, {STEPS_MAX} operations and\n{DEPTH_MAX} levels" in PAGE


def test_the_worked_sum() -> None:
    hour = 3_600.0
    made, total = Table(6), np.array([10**9, 1 << 50, 10**15, 10**15, 96, 0])
    made.use_total(total)
    made.users.take("ann")
    work = Work(submitted=NOW - 42 * hour, level=50, attributes={"nice": "100"})
    made.put("job", work, Row(request=np.array([0, 0, 0, 0, 24, 0]), user="ann", group_level=40))
    seen = view(total=total, free=total, shares={"user": np.array([1.5])}, queue_level=np.zeros(1))
    scored = make_policy(builtin_spec("multifactor")).scores(made, np.array([made.row_of["job"]]), NOW, seen)
    rows = re.findall(r"^\| (\w+) \| ?([-\d.]*) \| ?([-\d.]*) \| ([-\d.]+) \|$", PAGE, re.MULTILINE)
    *factors, (name, _, _, score) = rows
    assert (name, math.isclose(float(score), scored.total[0], abs_tol=0.005)) == ("score", True)
    assert tuple(row[0] for row in factors) == scored.policy.names
    for index, (_, value, weight, contribution) in enumerate(factors):
        assert float(value) == pytest.approx(scored.values[index, 0], abs=5e-5)
        assert float(weight) == scored.policy.weights[index]
        assert float(contribution) == pytest.approx(scored.contributions[index, 0], abs=0.005)


def score(name: str, **values: float) -> float:
    raw = next(raw for raw in POLICIES if raw["metadata"]["name"] == name)
    policy = make_policy(view_of(SchedulingPolicySpec, raw["spec"]))
    columns = [np.array([values.get(factor, 0.0)]) for factor in policy.names]
    return float(policy.total(columns, 1)[0])


def test_what_the_page_says_of_its_formulas() -> None:
    hour, day = 3_600.0, 86_400.0
    assert score("response-ratio", waited=hour, remaining=hour) == score("response-ratio", waited=day, remaining=day) == 2
    assert score("classes", production=1) > score("classes", share=1, days=5)
    assert score("pressing", left=day, run=hour) == 0
    assert score("pressing", left=hour, run=hour) == 100
    assert score("urgent-and-small", hours=1, gpus=1) == 0
    assert score("gentle", hours=5, full=0.5, strife=1) == 5
    assert score("weights-and-more", hours=2, gpus=0, level=1) == 1009


HOUR, DAY = 3_600.0, 86_400.0
START = 1_000_000.0
USERS = ("ann", "bob", "cyd")
"""Of the test's view: ann has used nothing, bob exactly his share, cyd twice hers."""


class Job(NamedTuple):
    """Waiting work, as the guide's policies see it."""

    work: Work
    gpus: int = 0
    gbps: int = 0
    labels: Mapping[str, str] = {}
    group: str = ""
    user_level: float = 0.0
    predicted_s: float = 0.0


def job(waited_h: float = 0.0, *, to_deadline: float | None = None, user: str = "", **given: Any) -> Job:
    beside = {name: given.pop(name) for name in list(given) if name in Job._fields}
    deadline = None if to_deadline is None else START + to_deadline
    return Job(Work(submitted=START - waited_h * HOUR, deadline=deadline, user=user, **given), **beside)


def ranked(name: str, jobs: Mapping[str, Job], free_gbps: int = 10) -> list[str]:
    """Names in the order of the guide's policy: compiled, scored over the real factors, the oldest first among equals."""
    raw = next(raw for raw in POLICIES if raw["metadata"]["name"] == name)
    made, total = Table(6), np.array([100_000, 1 << 40, 10**10, 10**10, 16, 0])
    made.use_total(total)
    for user in USERS:
        made.users.take(user)
    for group in ("lab", "busy"):
        made.groups.take(group)
    for key, one in jobs.items():
        request = np.array([1_000, 0, one.gbps * 10**9, 0, one.gpus, 0])
        row = Row(request=request, user=one.work.user, group=one.group, labels=one.labels, user_level=one.user_level)
        made.put(key, one.work, row)
        if one.predicted_s:
            made.predict(made.row_of[key], one.predicted_s, 2 * one.predicted_s, {})
    free = np.array([100_000, 1 << 40, free_gbps * 10**9, 10**10, 16, 0])
    shares = {"user": np.array([0.0, 1.0, 2.0]), "group": np.array([0.5, 3.0]), "queue": np.array([0.0])}
    rows = np.array([made.row_of[key] for key in jobs])
    seen = view(total=total, free=free, shares=shares, queue_level=np.zeros(1))
    score = make_policy(view_of(SchedulingPolicySpec, raw["spec"])).scores(made, rows, START, seen).total
    assert np.isfinite(score).all()
    names = list(jobs)
    return [names[place] for place in np.lexsort((made.submitted[rows], -score))]


RANKINGS = [
    pytest.param(
        "urgent-and-small",
        {"small": job(gpus=1), "big": job(gpus=8), "waited": job(9, gpus=8), "urgent": job(level=1, gpus=8)},
        ["urgent", "waited", "small", "big"],
        id="urgent and small",
    ),
    pytest.param(
        "response-ratio",
        {"hour": job(1, estimate_s=HOUR), "day": job(23, estimate_s=DAY), "unknown": job(1), "new": job(estimate_s=60)},
        ["hour", "day", "unknown", "new"],
        id="response ratio",
    ),
    pytest.param(
        "classes",
        {
            "idle": job(user="ann"),
            "heavy": job(120, user="cyd"),
            "prod": job(user="cyd", labels={"example.com/production": "1"}),
        },
        ["prod", "idle", "heavy"],
        id="classes never mix",
    ),
    pytest.param(
        "pressing",
        {
            "none": job(50),
            "later": job(20, to_deadline=20 * HOUR, estimate_s=HOUR),
            "now": job(to_deadline=HOUR, estimate_s=HOUR),
            "soon": job(to_deadline=7 * HOUR, estimate_s=HOUR),
        },
        ["now", "soon", "none", "later"],
        id="deadlines press",
    ),
    pytest.param(
        "weights-and-more",
        {"old": job(10), "gpus": job(20, gpus=4), "ranked": job(0.5, user_level=3), "new": job(0.1)},
        ["old", "gpus", "ranked", "new"],
        id="weights and an exception",
    ),
    pytest.param(
        "group-then-user",
        {
            "busy ann": job(9, user="ann", group="busy"),
            "cyd": job(5, user="cyd", group="lab"),
            "bob": job(1, user="bob", group="lab"),
        },
        ["bob", "cyd", "busy ann"],
        id="group, then user",
    ),
    pytest.param(
        "smallest-area",
        {
            "wide": job(gpus=8, estimate_s=HOUR),
            "narrow": job(gpus=1, estimate_s=HOUR),
            "unknown": job(gpus=1),
            "waited": job(16, gpus=8, estimate_s=HOUR),
        },
        ["waited", "narrow", "wide", "unknown"],
        id="smallest area",
    ),
    pytest.param(
        "interactive",
        {
            "batch": job(3, gpus=8),
            "shell": job(0.1, gpus=1, estimate_s=600),
            "wide": job(1, gpus=2, estimate_s=600),
            "stale": job(5, gpus=1, estimate_s=600),
        },
        ["shell", "stale", "batch", "wide"],
        id="interactive",
    ),
    pytest.param(
        "by-experience",
        {
            "unknown": job(1),
            "boasts": job(estimate_s=60, predicted_s=5 * HOUR),
            "says": job(estimate_s=2 * HOUR),
            "seen": job(predicted_s=HOUR),
        },
        ["seen", "says", "boasts", "unknown"],
        id="by experience",
    ),
    pytest.param(
        "make-amends",
        {"old": job(20), "stopped": job(1, preemptions=4), "often": job(2, preemptions=50), "level": job(level=20)},
        ["level", "often", "stopped", "old"],
        id="make amends",
    ),
    pytest.param(
        "least-slack",
        {
            "lost": job(9, to_deadline=600, estimate_s=HOUR),
            "tight": job(to_deadline=2 * HOUR, estimate_s=HOUR),
            "loose": job(to_deadline=DAY, estimate_s=HOUR),
            "none": job(20),
        },
        ["tight", "loose", "none", "lost"],
        id="least slack",
    ),
    pytest.param(
        "bids",
        {
            "low": job(attributes={"bid": "2"}),
            "mad": job(attributes={"bid": "1e9"}),
            "waited": job(48, attributes={"bid": "2"}),
            "nothing": job(attributes={"bid": "a lot"}),
            "wide": job(attributes={"bid": "6"}, gpus=16),
        },
        ["mad", "waited", "low", "wide", "nothing"],
        id="bids",
    ),
    pytest.param(
        "quick-not-late",  # the bounds of the view: 9,000 s for the last; 2,000 s for 99 %, and who takes 5,000 s is spared
        {
            "spared": job(0.3, estimate_s=5_000.0),
            "quick": job(estimate_s=600.0),
            "last": job(2, estimate_s=HOUR),
            "nearly last": job(0.5, estimate_s=1_200.0),
        },
        ["nearly last", "last", "quick", "spared"],
        id="quick, but nobody too late",
    ),
]


@pytest.mark.parametrize(("policy", "jobs", "order"), RANKINGS)
def test_the_guides_formulas_rank(policy: str, jobs: dict[str, Job], order: list[str]) -> None:
    assert ranked(policy, jobs) == order


BY_CLUSTER = [
    pytest.param("thin-first", 10, ["fat", "thin"], id="idle network: by age"),
    pytest.param("thin-first", 2, ["thin", "fat"], id="short of network: thin first"),
    pytest.param("gentle", 10, ["fat", "thin"], id="gentle while there is room"),
    pytest.param("gentle", 1, ["thin", "fat"], id="gentle when it is full"),
]


@pytest.mark.parametrize(("policy", "free_gbps", "order"), BY_CLUSTER)
def test_formulas_that_look_at_the_cluster(policy: str, free_gbps: int, order: list[str]) -> None:
    assert ranked(policy, {"fat": job(5, gbps=8), "thin": job(1, gbps=1)}, free_gbps) == order


def test_every_policy_of_the_guide_is_ranked_with() -> None:
    assert {raw["metadata"]["name"] for raw in POLICIES} == {case.values[0] for case in (*RANKINGS, *BY_CLUSTER)}


def test_messages_are_as_the_page_says() -> None:
    """The table of mistakes, as the compiler answers them."""
    rows = re.findall(r"^\| (`[^|]*`) \| ([^|]+) \|$", PAGE, re.MULTILINE)
    tried = 0
    for wrong, told in rows:
        for text in re.findall(r"`([^`]+)`", wrong):
            if "prio" not in text:
                continue
            with pytest.raises(FormulaError) as caught:
                compile_formula(text, ("prio", "age"))
            assert told in str(caught.value), text
            tried += 1
    assert tried == 8


SLURM_PAGE = (Path(__file__).parents[2] / "docs" / "migrating-from-slurm-and-kueue.md").read_text()
FACTOR_OF = {
    "Age": "age",
    "Fairshare": "fairshare",
    "JobSize": "jobsize",
    "Partition": "partition",
    "QOS": "qos",
    "Assoc": "assoc",
    "cpu": "cpus",
    "gres/gpu": "gpus",
}


def test_the_policy_from_slurm_has_the_weights_beside_it() -> None:
    """The file and the page are one; each PriorityWeight is a weight, and times are in seconds."""
    raw = yaml_text.load((Path(__file__).parents[2] / "examples" / "queues" / "from-slurm.yaml").read_text())
    (shown,) = re.findall(r"^```yaml\n(.*?)^```", SLURM_PAGE, re.MULTILINE | re.DOTALL)
    assert raw == yaml_text.load(shown)
    assert validate_object(SCHEDULING_POLICY, raw) == []
    policy = make_policy(view_of(SchedulingPolicySpec, raw["spec"]))
    weights = dict(zip(policy.names, policy.weights, strict=True))
    (tres,) = re.findall(r"PriorityWeightTRES(=\S+)", SLURM_PAGE)
    said = dict(re.findall(r"PriorityWeight(\w+)=(\d+)", SLURM_PAGE)) | dict(re.findall(r"[=,](cpu|gres/gpu)=(\d+)", tres))
    assert {FACTOR_OF[name]: float(figure) for name, figure in said.items()} == {
        name: weight for name, weight in weights.items() if name != "nice"
    }
    days = dict(re.findall(r"Priority(MaxAge|DecayHalfLife)=(\d+)-0", SLURM_PAGE))
    assert raw["spec"]["factors"][0]["scale"] == int(days["MaxAge"]) * DAY
    assert raw["spec"]["fairShare"]["halfLifeSeconds"] == int(days["DecayHalfLife"]) * DAY
    full = {"age": 1.0, "fairshare": 0.5, "qos": 0.2, "nice": 100.0}
    columns = [np.array([full.get(name, 0.0)]) for name in policy.names]
    assert policy.total(columns, 1)[0] == 1_000 + 5_000 + 1_000 - 100
