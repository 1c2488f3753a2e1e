"""The policies guide: its policies are right, its tables are complete, and its figures are what the code works out."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from muster.engine.work import Work
from muster.objects import yaml_text
from muster.objects.formula import DEPTH_MAX, FUNCTIONS, STEPS_MAX, TEXT_LEN_MAX
from muster.objects.kinds.muster_queues import SCHEDULING_POLICY, FactorSource, SchedulingPolicySpec
from muster.objects.status import Raw
from muster.objects.validation import validate_object
from muster.objects.view import view_of
from muster.policy.builtin import NAMES, builtin_spec
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
