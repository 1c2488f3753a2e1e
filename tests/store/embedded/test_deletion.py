"""What a delete does: pure, by table."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import pytest

from muster.objects.resources import Resource
from muster.objects.status import Raw
from muster.objects.time import format_time
from muster.store.contract import Propagation
from muster.store.embedded.deletion import may_go, plan_delete
from tests.store.embedded.support import CONFIG_MAPS, NAMESPACES, PODS

NOW = 1_800_000_000.0


def thing(meta: Raw | None = None, **parts: Any) -> Raw:
    return {"metadata": {"name": "a", "generation": 1, **(meta or {})}, **parts}


def bound(meta: Raw | None = None, phase: str = "Running", **spec: Any) -> Raw:
    return thing(meta, spec={"nodeName": "n1", **spec}, status={"phase": phase})


GOING = {"deletionTimestamp": format_time(NOW), "deletionGracePeriodSeconds": 0}
WAITING = {"deletionTimestamp": format_time(NOW + 30), "deletionGracePeriodSeconds": 30}


class After(NamedTuple):
    """An object that stays for now."""

    left_s: int = 0
    finalizers: list[str] = []  # noqa: RUF012 - never changed
    is_changed: bool = True


GONE = None
HELD = {"finalizers": ["x/y"]}
ORPHANING = {"finalizers": ["orphan"]}
FULL = thing(spec={"finalizers": ["kubernetes"]})


@pytest.mark.parametrize(
    ("resource", "raw", "grace_s", "propagation", "after"),
    [
        pytest.param(CONFIG_MAPS, thing(), None, "Background", GONE, id="nothing holds it"),
        pytest.param(CONFIG_MAPS, thing(), 30, "Background", GONE, id="grace means nothing to most kinds"),
        pytest.param(CONFIG_MAPS, thing(HELD), None, "Background", After(0, ["x/y"]), id="a finalizer"),
        pytest.param(CONFIG_MAPS, thing({**HELD, **GOING}), None, "Background", After(0, ["x/y"], False), id="again"),
        pytest.param(CONFIG_MAPS, thing(), None, "Foreground", After(0, ["foregroundDeletion"]), id="foreground"),
        pytest.param(CONFIG_MAPS, thing(), None, "Orphan", After(0, ["orphan"]), id="orphan"),
        pytest.param(CONFIG_MAPS, thing(ORPHANING), None, None, After(0, ["orphan"]), id="its own wish"),
        pytest.param(CONFIG_MAPS, thing(ORPHANING), None, "Background", GONE, id="the request's wish wins"),
        pytest.param(
            CONFIG_MAPS, thing({**ORPHANING, **GOING}), None, "Foreground", After(0, ["foregroundDeletion"]), id="later, too"
        ),
        pytest.param(PODS, thing(spec={}), None, "Background", GONE, id="a pod without a node"),
        pytest.param(PODS, bound(), None, "Background", After(30), id="a pod on a node"),
        pytest.param(PODS, bound(terminationGracePeriodSeconds=5), None, "Background", After(5), id="its own grace"),
        pytest.param(
            PODS, bound(terminationGracePeriodSeconds=-1), None, "Background", After(1), id="negative means one second"
        ),
        pytest.param(PODS, bound(terminationGracePeriodSeconds=0), None, "Background", GONE, id="no grace of its own"),
        pytest.param(
            PODS, bound(terminationGracePeriodSeconds=2**63 - 1), None, "Background", After(315_360_000), id="never by itself"
        ),
        pytest.param(PODS, bound(), 2**63 - 1, "Background", After(315_360_000), id="never, says the request"),
        pytest.param(PODS, bound(), 7, "Background", After(7), id="the request's grace"),
        pytest.param(PODS, bound(), 0, "Background", GONE, id="the request wants no grace"),
        pytest.param(PODS, bound(phase="Succeeded"), None, "Background", GONE, id="a pod that succeeded"),
        pytest.param(PODS, bound(phase="Failed"), None, "Background", GONE, id="a pod that failed"),
        pytest.param(PODS, bound(WAITING), None, "Background", After(30, [], False), id="a waiting pod, again"),
        pytest.param(PODS, bound(WAITING), 60, "Background", After(30, [], False), id="a waiting pod can't be given more"),
        pytest.param(PODS, bound(WAITING), 10, "Background", After(10), id="but less"),
        pytest.param(PODS, bound(WAITING), 0, "Background", GONE, id="or none"),
        pytest.param(PODS, bound({**HELD, **WAITING}), 0, "Background", After(0, ["x/y"]), id="unless a finalizer holds it"),
        pytest.param(NAMESPACES, FULL, None, "Background", After(0), id="a namespace with content"),
        pytest.param(NAMESPACES, thing(spec={"finalizers": []}), None, "Background", GONE, id="an empty namespace"),
    ],
)
def test_plan(resource: Resource, raw: Raw, grace_s: int | None, propagation: Propagation | None, after: After | None) -> None:
    raw = copy.deepcopy(raw)
    was_going = bool(raw["metadata"].get("deletionTimestamp"))
    plan = plan_delete(resource, raw, now=NOW, grace_period_s=grace_s, propagation=propagation)
    assert plan.is_gone is (after is GONE)
    if after is GONE:
        assert plan.is_changed
        return
    meta = plan.raw["metadata"]
    assert plan.is_changed is after.is_changed
    assert meta.get("finalizers", []) == after.finalizers
    assert meta["deletionGracePeriodSeconds"] == after.left_s
    assert meta["deletionTimestamp"] == format_time(NOW + after.left_s)
    assert meta["generation"] == (1 if was_going else 2), "Kubernetes counts the beginning of an end as a change"
    assert not may_go(resource, plan.raw)


def test_a_namespace_says_that_it_goes() -> None:
    raw = thing(spec={"finalizers": ["kubernetes"]}, status={"phase": "Active", "kept": 1})
    plan = plan_delete(NAMESPACES, raw, now=NOW, grace_period_s=None, propagation="Background")
    assert plan.raw["status"] == {"phase": "Terminating", "kept": 1}
    plan.raw["spec"]["finalizers"] = []
    assert may_go(NAMESPACES, plan.raw)


def test_a_negative_grace_is_a_second() -> None:
    plan = plan_delete(PODS, bound(), now=NOW, grace_period_s=-1, propagation=None)
    assert plan.raw["metadata"]["deletionGracePeriodSeconds"] == 1
    sooner = plan_delete(PODS, bound(deletionGracePeriodSeconds=30), now=NOW, grace_period_s=-7, propagation=None)
    assert sooner.raw["metadata"]["deletionGracePeriodSeconds"] == 1
