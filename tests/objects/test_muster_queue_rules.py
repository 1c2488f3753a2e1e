"""Rules for SchedulingPolicy and Queue: what admission refuses, and with which words."""

from __future__ import annotations

import math
from typing import Any

import pytest

from muster.objects.kinds.muster_queues import QUEUE, SCHEDULING_POLICY
from muster.objects.status import Raw
from muster.objects.validation import validate_object


def policy(*factors: Raw, **spec: Any) -> Raw:
    return {
        "apiVersion": "muster.dev/v1alpha1",
        "kind": "SchedulingPolicy",
        "metadata": {"name": "mine"},
        "spec": {"factors": list(factors), **spec},
    }


def queue(name: str = "team", **spec: Any) -> Raw:
    return {"apiVersion": "muster.dev/v1alpha1", "kind": "Queue", "metadata": {"name": name}, "spec": spec}


WAITED: Raw = {"name": "waited", "source": "WaitingSeconds"}
LEVEL: Raw = {"name": "level", "source": "JobLevel"}


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(policy(), id="nothing"),
        pytest.param(policy(WAITED, LEVEL), id="a sum"),
        pytest.param(policy(WAITED | {"weight": 3}, LEVEL), id="a weighted sum"),
        pytest.param(policy(WAITED, LEVEL, formula="waited + 10 * level"), id="formula"),
        pytest.param(policy(WAITED | {"weight": 3}, formula="weighted_sum + 1"), id="formula with weights"),
        pytest.param(policy(WAITED, formula="  \n"), id="blank formula"),
        pytest.param(policy({"name": "gpus", "source": "Size", "key": "gpu"}), id="GPUs"),
        pytest.param(policy({"name": "x", "source": "Size", "key": "nvidia.com/gpu"}), id="a resource with a prefix"),
        pytest.param(policy({"name": "x", "source": "Size"}), id="key left out"),
        pytest.param(policy({"name": "x", "source": "Label", "key": "site/boost"}), id="label"),
        pytest.param(policy({"name": "x", "source": "Attribute", "key": "batch size"}), id="attribute"),
        pytest.param(policy({"name": "x", "source": "FairShare", "key": "group"}), id="fair share"),
        pytest.param(policy({"name": "x", "source": "Tail", "key": "99.9"}), id="tail of all but one of a thousand"),
        pytest.param(policy({"name": "x", "source": "Constant", "constant": 3}), id="constant"),
    ],
)
def test_right_policies(raw: Raw) -> None:
    assert validate_object(SCHEDULING_POLICY, raw) == []


@pytest.mark.parametrize(
    ("raw", "field", "words"),
    [
        pytest.param(
            policy(WAITED, formula="waitd * 2"),
            "spec.formula",
            "FormulaInvalid: at character 1: no factor is called `waitd`; did you mean waited?",
            id="misspelled",
        ),
        pytest.param(policy(WAITED, formula="waited ^ 2"), "spec.formula", "at character 8: `^` can't stand", id="caret"),
        pytest.param(policy(formula="waited"), "spec.formula", "the policy has no factors", id="no factors"),
        pytest.param(policy(WAITED, WAITED), "spec.factors[1].name", "Duplicate value", id="twice"),
        pytest.param(
            policy({"name": "min", "source": "JobLevel"}), "spec.factors[0].name", "word of the formula", id="reserved"
        ),
        pytest.param(policy(WAITED | {"weight": math.inf}), "spec.factors[0].weight", "finite", id="endless weight"),
        pytest.param(policy(WAITED | {"default": math.nan}), "spec.factors[0].default", "finite", id="default not a number"),
        pytest.param(policy(WAITED | {"min": 2, "max": 1}), "spec.factors[0].min", "max, which is 1", id="bounds"),
        pytest.param(policy(WAITED | {"constant": 2}), "spec.factors[0].constant", "only with source Constant", id="constant"),
        pytest.param(policy(WAITED | {"key": "cpu"}), "spec.factors[0].key", "takes no key", id="key without use"),
        pytest.param(
            policy({"name": "x", "source": "Label"}), "spec.factors[0].key", "needs the name of a label", id="no label"
        ),
        pytest.param(policy({"name": "x", "source": "Attribute"}), "spec.factors[0].key", "an attribute", id="no attribute"),
        pytest.param(
            policy({"name": "x", "source": "Label", "key": "a b"}), "spec.factors[0].key", "a b", id="no label's name"
        ),
        pytest.param(
            policy({"name": "x", "source": "Attribute", "key": "k" * 400}),
            "spec.factors[0].key",
            "317 characters",
            id="long key",
        ),
        pytest.param(
            policy({"name": "x", "source": "Size", "key": "gpus"}), "spec.factors[0].key", "did you mean gpu?", id="gpus"
        ),
        pytest.param(
            policy({"name": "x", "source": "Pressure", "key": "zzz"}), "spec.factors[0].key", "there are cpu", id="no resource"
        ),
        pytest.param(
            policy({"name": "x", "source": "FairShare", "key": "team"}),
            "spec.factors[0].key",
            "Unsupported value",
            id="whose share",
        ),
        pytest.param(
            policy({"name": "x", "source": "Tail", "key": "100"}),
            "spec.factors[0].key",
            "a percentage",
            id="tail of all by a key",
        ),
        pytest.param(
            policy({"name": "x", "source": "Tail", "key": "0"}), "spec.factors[0].key", "a percentage", id="tail of nobody"
        ),
        pytest.param(
            policy({"name": "x", "source": "Tail", "key": "nan"}), "spec.factors[0].key", "a percentage", id="tail of no number"
        ),
        pytest.param(
            policy({"name": "x", "source": "Tail", "key": "p99"}), "spec.factors[0].key", "a percentage", id="tail of a word"
        ),
        pytest.param(
            policy(WAITED | {"weight": 3}, formula="waited"), "spec.factors[0].weight", "has no effect", id="weight without use"
        ),
    ],
)
def test_wrong_policies(raw: Raw, field: str, words: str) -> None:
    causes = validate_object(SCHEDULING_POLICY, raw)
    assert [cause.field for cause in causes] == [field]
    assert words in causes[0].message


def test_every_mistake_is_reported() -> None:
    raw = policy(WAITED | {"key": "x"}, {"name": "if", "source": "Label"}, formula="1 +")
    assert [cause.field for cause in validate_object(SCHEDULING_POLICY, raw)] == [
        "spec.factors[0].key",
        "spec.factors[1].name",
        "spec.factors[1].key",
        "spec.formula",
    ]


def test_an_update_that_makes_the_formula_wrong_is_refused() -> None:
    old = policy(WAITED, formula="waited")
    assert validate_object(SCHEDULING_POLICY, policy(WAITED, formula="waited +"), old)
    assert validate_object(SCHEDULING_POLICY, policy(LEVEL, formula="waited"), old)


@pytest.mark.parametrize("junk", [None, 3, "x", [], {}, {"factors": 3, "formula": 4}, {"factors": [3, {"name": 4}]}])
def test_rules_survive_any_shape(junk: Any) -> None:
    raw = policy()
    raw["spec"] = junk
    validate_object(SCHEDULING_POLICY, raw)
    raw = queue()
    raw["spec"] = junk
    validate_object(QUEUE, raw)


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(queue(), id="nothing"),
        pytest.param(queue(parent="all", policy="fair-share", limits={"concurrent": {"cpu": "10"}}), id="usual"),
        pytest.param(
            queue(admission={"perJobMax": {"memory": "1Gi"}, "selector": {"matchLabels": {"a": "b"}}}), id="admission"
        ),
    ],
)
def test_right_queues(raw: Raw) -> None:
    assert validate_object(QUEUE, raw) == []


@pytest.mark.parametrize(
    ("raw", "field", "words"),
    [
        pytest.param(queue(parent="team"), "spec.parent", "its own parent", id="its own parent"),
        pytest.param(queue(parent="No Name"), "spec.parent", "No Name", id="parent's name"),
        pytest.param(queue(policy="No Name"), "spec.policy", "No Name", id="policy's name"),
        pytest.param(queue(name="q" * 80), "metadata.name", "63", id="a name that no label holds"),
        pytest.param(queue(pools=["ok", ""]), "spec.pools[1]", "must not be empty", id="pool"),
        pytest.param(queue(limits={"concurrent": {"cpu": "many"}}), "spec.limits.concurrent[cpu]", "UnitInvalid", id="limit"),
        pytest.param(queue(admission={"perJobMax": {"cpu": "-1"}}), "spec.admission.perJobMax[cpu]", "greater", id="per job"),
        pytest.param(
            queue(admission={"selector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}),
            "spec.admission.selector.matchExpressions[0].values",
            "operator is In",
            id="selector",
        ),
    ],
)
def test_wrong_queues(raw: Raw, field: str, words: str) -> None:
    causes = validate_object(QUEUE, raw)
    assert [cause.field for cause in causes] == [field]
    assert words in causes[0].message
