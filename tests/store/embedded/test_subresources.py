"""Disruption budgets: the arithmetic by table, and budgets whose status somebody keeps."""

from __future__ import annotations

from typing import Any

import pytest

from muster.objects.catalog import CATALOG
from muster.objects.status import BadRequest, InternalError, Invalid, Raw, TooManyRequests
from muster.store.embedded import EmbeddedStore
from muster.store.embedded.budgets import disruptions_allowed, has_status, selects
from tests.store.embedded.support import BUDGETS, PODS, START, ManualClock, open_store, pod


def budget(**spec: Any) -> Raw:
    return {"metadata": {"name": "b", "generation": 1}, "spec": {"selector": {"matchLabels": {"app": "web"}}, **spec}}


def pods(*states: str) -> list[Raw]:
    """Of r(eady), w(aiting), f(inished), d(eleting)."""
    made: list[Raw] = []
    for state in states:
        ready = {"type": "Ready", "status": "True" if state in "rd" else "False"}
        meta = {"name": "p", "deletionTimestamp": "2026-01-01T00:00:00Z"} if state == "d" else {"name": "p"}
        phase = "Succeeded" if state == "f" else "Running"
        made.append({"metadata": meta, "status": {"phase": phase, "conditions": [ready]}})
    return made


@pytest.mark.parametrize(
    ("spec", "states", "allowed"),
    [
        pytest.param({"minAvailable": 2}, "rrr", 1, id="one to spare"),
        pytest.param({"minAvailable": 2}, "rr", 0, id="none to spare"),
        pytest.param({"minAvailable": 2}, "rww", -1, id="already short"),
        pytest.param({"minAvailable": 0}, "r", 1, id="none needed"),
        pytest.param({"minAvailable": "50%"}, "rrrr", 2, id="half"),
        pytest.param({"minAvailable": "50%"}, "rrr", 1, id="half, rounded up"),
        pytest.param({"minAvailable": "100%"}, "rrr", 0, id="all"),
        pytest.param({"maxUnavailable": 1}, "rrr", 1, id="one may be away"),
        pytest.param({"maxUnavailable": 1}, "rrw", 0, id="one is away"),
        pytest.param({"maxUnavailable": "34%"}, "rrr", 2, id="a share, rounded up"),
        pytest.param({"maxUnavailable": 0}, "rrr", 0, id="none may be away"),
        pytest.param({"minAvailable": 1}, "rd", 0, id="what is being deleted counts as gone"),
        pytest.param({"maxUnavailable": 1}, "rrd", 0, id="and as expected"),
        pytest.param({"minAvailable": 1}, "rf", 0, id="what has finished does not count"),
        pytest.param({}, "rr", 1, id="neither: one must stay"),
    ],
)
def test_disruptions_allowed(spec: Raw, states: str, allowed: int) -> None:
    assert disruptions_allowed(budget(**spec), pods(*states)) == allowed


@pytest.mark.parametrize(
    ("selector", "labels", "selected"),
    [
        pytest.param({"matchLabels": {"app": "web"}}, {"app": "web", "x": "y"}, True, id="labels"),
        pytest.param({"matchLabels": {"app": "web"}}, {"app": "db"}, False, id="other labels"),
        pytest.param({"matchExpressions": [{"key": "app", "operator": "Exists"}]}, {"app": "db"}, True, id="expression"),
        pytest.param({}, {}, True, id="empty selects all"),
        pytest.param(None, {}, False, id="none selects nothing"),
    ],
)
def test_selects(selector: Raw | None, labels: dict[str, str], selected: bool) -> None:
    assert selects({"spec": {"selector": selector}}, labels) is selected


@pytest.mark.parametrize(
    ("observed", "kept"), [pytest.param(None, False), pytest.param(0, False), pytest.param(1, False), pytest.param(2, True)]
)
def test_has_status(observed: int | None, kept: bool) -> None:
    assert has_status({"metadata": {"generation": 2}, "status": {"observedGeneration": observed}}) is kept


async def with_pods(clock: ManualClock, count: int = 3) -> EmbeddedStore:
    store = await open_store(clock=clock)
    for n in range(count):
        made = pod(f"p{n}", labels={"app": "web"})
        made["spec"]["nodeName"] = "n1"
        await store.create(PODS, made, "default")
        ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        await store.patch(PODS, f"p{n}", {"status": ready}, "default", subresource="status")
    return store


async def test_a_kept_status_is_charged_in_the_same_commit() -> None:
    clock = ManualClock()
    store = await with_pods(clock)
    await store.create(BUDGETS, budget(minAvailable=1), "default")
    status = {
        "observedGeneration": 1,
        "disruptionsAllowed": 1,
        "currentHealthy": 3,
        "desiredHealthy": 1,
        "expectedPods": 3,
        "disruptedPods": {"long-gone": "2020-01-01T00:00:00Z"},
    }
    await store.patch(BUDGETS, "b", {"status": status}, "default", subresource="status")
    commits = store.usage().batches
    await store.evict("p0", "default")
    assert store.usage().batches == commits + 1
    charged = (await store.get(BUDGETS, "b", "default"))["status"]
    assert charged["disruptionsAllowed"] == 0
    assert list(charged["disruptedPods"]) == ["p0"]
    with pytest.raises(TooManyRequests, match="needs 1 healthy pods and has 3 currently") as refused:
        await store.evict("p1", "default")
    assert refused.value.causes[0].reason == "DisruptionBudget"
    assert refused.value.retry_after_s == 0, "as in Kubernetes: whoever evicts decides when to try again"
    await store.close()


@pytest.mark.parametrize("status", [None, {"observedGeneration": 0, "disruptionsAllowed": 3}], ids=["none", "out of date"])
async def test_an_eviction_is_noted_in_a_budget_without_a_status_of_now(status: Raw | None) -> None:
    """Whoever is working one out has seen the pod, and must find that the budget has changed."""
    store = await with_pods(ManualClock(START))
    await store.create(BUDGETS, budget(minAvailable=2), "default")
    if status is not None:
        await store.patch(BUDGETS, "b", {"status": status}, "default", subresource="status")
    before = (await store.get(BUDGETS, "b", "default"))["metadata"]["resourceVersion"]
    await store.evict("p0", "default")
    noted = await store.get(BUDGETS, "b", "default")
    assert noted["metadata"]["resourceVersion"] != before
    assert list(noted["status"]["disruptedPods"]) == ["p0"]
    assert noted["status"].get("disruptionsAllowed") == (status or {}).get("disruptionsAllowed"), "nothing is decided by it"
    with pytest.raises(TooManyRequests):
        await store.evict("p1", "default")
    await store.close()


async def test_two_budgets_for_one_pod_are_a_mistake_that_is_named() -> None:
    store = await with_pods(ManualClock(START), 1)
    for name in ("one", "two"):
        await store.create(BUDGETS, {**budget(minAvailable=0), "metadata": {"name": name}}, "default")
    with pytest.raises(InternalError, match=r"more than one PodDisruptionBudget \(one, two\)"):
        await store.evict("p0", "default")
    await store.close()


@pytest.mark.parametrize("spec", [-1, [1], "x"], ids=["a number", "a list", "a text"])
async def test_a_part_of_what_is_no_object_is_refused(spec: object) -> None:
    store = await open_store()
    namespaces = CATALOG.by_kind("", "Namespace")
    with pytest.raises(Invalid, match="spec"):
        await store.patch(namespaces, "default", {"spec": spec}, subresource="finalize")
    with pytest.raises(BadRequest, match="spec"):
        await store.update(namespaces, {"metadata": {"name": "default"}, "spec": spec}, subresource="finalize")
    await store.close()
