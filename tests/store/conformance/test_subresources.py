"""Status, binding and eviction."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from muster.objects.status import ApiError, Conflict, Invalid, NotFound, Raw, TooManyRequests
from muster.store.contract import Binding, Store, WriteOptions
from tests.store.conformance.conftest import Backend
from tests.store.conformance.support import custom_kind, network_policy, pod, some_object, unique, until, widget

# --- status ------------------------------------------------------------------------------------------------------


async def test_status_writes_status_only(store: Store, namespace: str) -> None:
    async with custom_kind(store) as widgets:
        created = await store.create(widgets, {**widget(widgets.group, "a"), "status": {"phase": "Sent"}}, namespace)
        assert "status" not in created
        sent = {
            **created,
            "metadata": {**created["metadata"], "labels": {"sneaked": "in"}},
            "spec": {"size": 9},
            "status": {"phase": "Ready"},
        }
        updated = await store.update(widgets, sent, namespace, subresource="status")
        assert updated["status"] == {"phase": "Ready"}
        assert updated["spec"]["size"] == 1
        assert "labels" not in updated["metadata"]
        assert updated["metadata"]["generation"] == created["metadata"]["generation"] == 1
        assert updated["metadata"]["resourceVersion"] != created["metadata"]["resourceVersion"]
        with pytest.raises(Conflict):
            await store.update(widgets, {**sent, "status": {"phase": "Late"}}, namespace, subresource="status")


async def test_status_of_a_pod(store: Store, namespace: str) -> None:
    pods = await store.resource("", "Pod")
    created = await store.create(pods, pod("a"), namespace)
    status = {"status": {"phase": "Running", "podIP": "10.1.2.3"}, "spec": {"hostNetwork": True}}
    patched = await store.patch(pods, "a", status, namespace, subresource="status")
    assert (patched["status"]["phase"], patched["status"]["podIP"]) == ("Running", "10.1.2.3")
    assert patched["spec"] == created["spec"]
    assert await store.get(pods, "a", namespace) == patched


BALANCER = "status.loadBalancer.ingress[0]"


def _balanced(**ingress: str) -> Raw:
    return {"loadBalancer": {"ingress": [ingress]}}


@pytest.mark.parametrize(
    ("group", "kind", "status", "refused"),
    [
        pytest.param("", "Pod", {"podIP": "10.1.2"}, ["status.podIPs[0]"], id="pod at no address"),
        pytest.param("", "Pod", {"podIPs": [{"ip": "10.1.2.3"}, {"ip": "fd00::1"}]}, [], id="pod of two families"),
        pytest.param("", "Pod", {"podIPs": [{"ip": "10.1.2.3"}, {"ip": "10.1.2.4"}]}, ["status.podIPs"], id="pod, one family"),
        pytest.param("batch", "Job", {"active": -1, "failed": -2}, ["status.active", "status.failed"], id="job below 0"),
        pytest.param("batch", "Job", {"active": 1, "succeeded": 2}, [], id="job"),
        pytest.param(
            "apps", "Deployment", {"unavailableReplicas": -1}, ["status.unavailableReplicas"], id="deployment below 0"
        ),
        pytest.param("apps", "Deployment", {"replicas": 2, "readyReplicas": 2, "availableReplicas": 1}, [], id="deployment"),
        pytest.param(
            "apps",
            "Deployment",
            {"replicas": 1, "readyReplicas": 2, "availableReplicas": 1},
            ["status.readyReplicas"],
            id="deployment, more ready than there are",
        ),
        pytest.param(
            "apps",
            "ReplicaSet",
            {"replicas": 2, "readyReplicas": 1, "availableReplicas": 2},
            ["status.availableReplicas"],
            id="replicas, more available than ready",
        ),
        pytest.param("apps", "StatefulSet", {"currentReplicas": -1}, ["status.currentReplicas"], id="stateful set below 0"),
        pytest.param("networking.k8s.io", "Ingress", _balanced(ip="10.1.2"), [f"{BALANCER}.ip"], id="ingress at no address"),
        pytest.param(
            "networking.k8s.io", "Ingress", _balanced(hostname="10.1.2.3"), [f"{BALANCER}.hostname"], id="ingress at no name"
        ),
        pytest.param("networking.k8s.io", "Ingress", _balanced(ip="fd00::1", hostname="a.example"), [], id="ingress"),
        pytest.param("", "Service", _balanced(ip="x"), [f"{BALANCER}.ip"], id="service at no address"),
    ],
)
async def test_what_a_status_may_say(
    store: Store, namespace: str, group: str, kind: str, status: Raw, refused: list[str]
) -> None:
    resource = await store.resource(group, kind)
    made = await store.create(resource, some_object(kind, unique("status")), namespace)
    name = made["metadata"]["name"]
    if not refused:
        patched = await store.patch(resource, name, {"status": status}, namespace, subresource="status")
        assert status.items() <= patched["status"].items()
        return
    with pytest.raises(Invalid) as caught:
        await store.patch(resource, name, {"status": status}, namespace, subresource="status")
    assert {cause.field for cause in caught.value.causes} == {*refused}


OWNERS = [{"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": "00000000-0000-4000-8000-000000000000"}]
SENT: Raw = {
    "labels": {"sent": "1"},
    "annotations": {"sent": "1"},
    "finalizers": ["example.com/sent"],
    "ownerReferences": OWNERS,
}


@pytest.mark.parametrize(
    ("group", "kind", "kept"),
    [
        pytest.param("", "Pod", {"ownerReferences"}, id="Pod"),
        pytest.param("", "Node", set(), id="Node"),
        pytest.param("", "Namespace", set(), id="Namespace"),
        pytest.param("", "Service", set(), id="Service"),
        pytest.param("", "ResourceQuota", set(), id="ResourceQuota"),
        pytest.param("", "PersistentVolume", set(), id="PersistentVolume"),
        pytest.param("", "PersistentVolumeClaim", set(), id="PersistentVolumeClaim"),
        pytest.param("", "ReplicationController", set(), id="ReplicationController"),
        pytest.param("apps", "Deployment", {"labels"}, id="Deployment"),
        pytest.param("apps", "ReplicaSet", set(), id="ReplicaSet"),
        pytest.param("apps", "StatefulSet", set(), id="StatefulSet"),
        pytest.param("apps", "DaemonSet", set(), id="DaemonSet"),
        pytest.param("batch", "Job", set(), id="Job"),
        pytest.param("policy", "PodDisruptionBudget", set(), id="PodDisruptionBudget"),
        pytest.param("networking.k8s.io", "Ingress", set(), id="Ingress"),
    ],
)
async def test_metadata_that_come_with_the_status(store: Store, namespace: str, group: str, kind: str, kept: set[str]) -> None:
    """Kubernetes' own kinds take most of them; nothing of it counts as a change of the spec."""
    resource = await store.resource(group, kind)
    where = namespace if resource.namespaced else None
    name = unique("sent")
    await store.create(resource, some_object(kind, name, labels={"own": "1"}), where)
    try:
        options = WriteOptions(dry_run=True)
        before = await store.get(resource, name, where)
        sent = {"metadata": SENT, "spec": {"sent": 1}}
        after = await store.patch(resource, name, sent, where, options, subresource="status")
    finally:
        await store.delete(resource, name, where)
    # Controllers of a real cluster may write annotations of their own meanwhile, so only what was sent is looked for.
    for field, value in SENT.items():
        found: Any = after["metadata"].get(field)
        if isinstance(value, dict):
            found = {key: text for key, text in (found or {}).items() if key in value}
        taken = found == value
        assert taken == (field not in kept), field
    assert after["metadata"].get("generation") == before["metadata"].get("generation")
    assert after.get("spec") == before.get("spec")


async def test_metadata_of_a_definition_stay_but_for_its_finalizers(store: Store) -> None:
    async with custom_kind(store) as widgets:
        definitions = await store.resource("apiextensions.k8s.io", "CustomResourceDefinition")
        before = await store.get(definitions, widgets.qualified)
        finalizers = [*before["metadata"].get("finalizers", []), "example.com/sent"]
        sent = {"metadata": {**SENT, "finalizers": finalizers}}
        options = WriteOptions(dry_run=True)
        after = await store.patch(definitions, widgets.qualified, sent, None, options, subresource="status")
        assert after["metadata"]["finalizers"] == finalizers
        for field in ("labels", "annotations", "ownerReferences"):
            assert after["metadata"].get(field) == before["metadata"].get(field)


async def test_metadata_that_a_replaced_status_leaves_out_are_gone(store: Store, namespace: str) -> None:
    pods = await store.resource("", "Pod")
    created = await store.create(pods, pod("a", labels={"own": "1"}, annotations={"own": "1"}), namespace)
    bare = {field: created["metadata"][field] for field in ("name", "namespace", "resourceVersion")}
    updated = await store.update(pods, {**created, "metadata": bare}, namespace, subresource="status")
    assert "labels" not in updated["metadata"]
    assert "annotations" not in updated["metadata"]
    for field in ("uid", "creationTimestamp"):
        assert updated["metadata"][field] == created["metadata"][field]


async def test_a_write_to_the_status_can_take_the_last_finalizer_away(store: Store, namespace: str) -> None:
    pods = await store.resource("", "Pod")
    await store.create(pods, pod("a", finalizers=["example.com/hold"]), namespace)
    deleting = await store.delete(pods, "a", namespace)
    assert deleting["metadata"]["deletionTimestamp"]
    await store.patch(pods, "a", {"metadata": {"finalizers": None}}, namespace, subresource="status")
    with pytest.raises(NotFound):
        await store.get(pods, "a", namespace)


async def test_metadata_that_come_with_the_status_are_checked(store: Store, namespace: str) -> None:
    pods = await store.resource("", "Pod")
    created = await store.create(pods, pod("a"), namespace)
    for wrong in ({"labels": {"a b": "1"}}, {"finalizers": ["nowhere"]}):
        with pytest.raises(Invalid):
            await store.patch(pods, "a", {"metadata": wrong}, namespace, subresource="status")
    assert await store.get(pods, "a", namespace) == created


@pytest.mark.parametrize(
    ("status", "address", "listed"),
    [
        pytest.param({"podIP": "10.1.2.3"}, "10.1.2.3", ["10.1.2.3"], id="the one fills the list"),
        pytest.param({"podIPs": [{"ip": "10.1.2.3"}, {"ip": "fd00::1"}]}, "10.1.2.3", ["10.1.2.3", "fd00::1"], id="the first"),
        pytest.param({"podIP": "10.1.2.4", "podIPs": [{"ip": "10.1.2.3"}]}, "10.1.2.4", ["10.1.2.4"], id="they differ"),
    ],
)
async def test_the_addresses_of_a_pod_agree(store: Store, namespace: str, status: Raw, address: str, listed: list[str]) -> None:
    pods = await store.resource("", "Pod")
    await store.create(pods, pod("a"), namespace)
    patched = await store.patch(pods, "a", {"status": status}, namespace, subresource="status")
    assert (patched["status"]["podIP"], [one["ip"] for one in patched["status"]["podIPs"]]) == (address, listed)
    moved = await store.patch(pods, "a", {"status": {"podIP": "10.9.9.9"}}, namespace, subresource="status")
    assert moved["status"]["podIPs"] == [{"ip": "10.9.9.9"}]


def _state(name: str, **state: Raw) -> Raw:
    return {"name": name, "image": "busybox", "imageID": "", "ready": False, "restartCount": 0, "state": state}


RUNNING: Raw = {"startedAt": "2026-11-01T08:00:00Z"}


@pytest.mark.parametrize(
    ("policy", "code", "field", "is_final"),
    [
        pytest.param("Never", 0, "containerStatuses", True, id="never started again"),
        pytest.param("Never", 1, "containerStatuses", True, id="never started again, not even when it failed"),
        pytest.param("Never", 1, "initContainerStatuses", True, id="an init container"),
        pytest.param("OnFailure", 0, "containerStatuses", True, id="it did not fail"),
        pytest.param("OnFailure", 3, "containerStatuses", False, id="it failed"),
        pytest.param("Always", 0, "containerStatuses", False, id="always started again"),
    ],
)
async def test_a_container_that_has_ended_stays_so(
    store: Store, namespace: str, policy: str, code: int, field: str, is_final: bool
) -> None:
    pods = await store.resource("", "Pod")
    made = pod("a")
    name = made["spec"]["containers"][0]["name"]
    inits = [{**made["spec"]["containers"][0], "name": "before"}]
    await store.create(pods, {**made, "spec": {**made["spec"], "initContainers": inits, "restartPolicy": policy}}, namespace)
    one = "before" if field == "initContainerStatuses" else name

    async def report(**state: Raw) -> Raw:
        return await store.patch(pods, "a", {"status": {field: [_state(one, **state)]}}, namespace, subresource="status")

    ended = await report(terminated={"exitCode": code, "finishedAt": "2026-11-01T09:00:00Z"})
    if is_final:
        with pytest.raises(Invalid) as caught:
            await report(running=RUNNING)
        assert [(cause.field, cause.message) for cause in caught.value.causes] == [
            (f"status.{field}[0].state", "Forbidden: may not be transitioned to non-terminated state")
        ]
        assert await store.get(pods, "a", namespace) == ended
    else:
        assert (await report(running=RUNNING))["status"][field][0]["state"] == {"running": RUNNING}


async def test_all_of_a_node_can_be_given_out_unless_it_says_otherwise(store: Store) -> None:
    nodes = await store.resource("", "Node")
    name = unique("node")
    capacity = {"cpu": "4", "memory": "1Gi"}
    made = await store.create(nodes, {"metadata": {"name": name}, "status": {"capacity": capacity}})
    try:
        assert made["status"]["allocatable"] == capacity
        larger = await store.patch(nodes, name, {"status": {"capacity": {"cpu": "8"}}}, subresource="status")
        assert larger["status"]["allocatable"] == capacity, "it is said now"
        renewed = await store.patch(nodes, name, {"status": {"allocatable": None}}, subresource="status")
        assert renewed["status"]["allocatable"] == {"cpu": "8", "memory": "1Gi"}
    finally:
        await store.delete(nodes, name)


async def test_status_is_checked_by_the_schema(store: Store, namespace: str) -> None:
    async with custom_kind(store) as widgets:
        created = await store.create(widgets, widget(widgets.group, "a"), namespace)
        with pytest.raises(ApiError) as refused:
            await store.patch(widgets, "a", {"status": {"phase": 7}}, namespace, subresource="status")
        assert refused.value.code == 422
        assert await store.get(widgets, "a", namespace) == created


async def test_kinds_without_status_have_no_such_subresource(store: Store, namespace: str) -> None:
    policies = await store.resource("networking.k8s.io", "NetworkPolicy")
    await store.create(policies, network_policy("a"), namespace)
    maps = await store.resource("", "ConfigMap")
    await store.create(maps, {"metadata": {"name": "a"}}, namespace)
    with pytest.raises(NotFound):
        await store.patch(maps, "a", {"status": {"phase": "x"}}, namespace, subresource="status")


async def test_status_can_be_tried(store: Store, namespace: str) -> None:
    pods = await store.resource("", "Pod")
    created = await store.create(pods, pod("a"), namespace)
    options = WriteOptions(dry_run=True)
    tried = await store.patch(pods, "a", {"status": {"phase": "Running"}}, namespace, options, subresource="status")
    assert tried["status"]["phase"] == "Running"
    assert await store.get(pods, "a", namespace) == created


# --- binding -----------------------------------------------------------------------------------------------------


async def test_bind(store: Store, namespace: str) -> None:
    pods = await store.resource("", "Pod")
    created = await store.create(pods, pod("a", annotations={"own": "1"}), namespace)
    await store.bind("a", namespace, "n1", annotations={"example.com/devices": "[0]"})
    bound = await store.get(pods, "a", namespace)
    assert bound["spec"]["nodeName"] == "n1"
    assert bound["metadata"]["annotations"] == {"own": "1", "example.com/devices": "[0]"}
    scheduled = next(c for c in bound["status"]["conditions"] if c["type"] == "PodScheduled")
    assert scheduled["status"] == "True"
    assert bound["metadata"]["uid"] == created["metadata"]["uid"]


async def test_a_pod_is_bound_once(store: Store, namespace: str) -> None:
    pods = await store.resource("", "Pod")
    await store.create(pods, pod("a"), namespace)

    async def attempt(node: str) -> str:
        try:
            await store.bind("a", namespace, node)
        except Conflict:
            return ""
        return node

    winners = [node for node in await asyncio.gather(*(attempt(f"n{n}") for n in range(10))) if node]
    assert len(winners) == 1
    assert (await store.get(pods, "a", namespace))["spec"]["nodeName"] == winners[0]
    with pytest.raises(Conflict, match="already assigned to node"):
        await store.bind("a", namespace, winners[0])


async def test_bind_refuses_what_can_not_be_bound(store: Store, namespace: str) -> None:
    pods = await store.resource("", "Pod")
    await store.create(pods, pod("going", finalizers=["example.com/hold"]), namespace)
    await store.delete(pods, "going", namespace)
    with pytest.raises(Conflict, match="being deleted"):
        await store.bind("going", namespace, "n1")
    await store.patch(pods, "going", {"metadata": {"finalizers": None}}, namespace)
    with pytest.raises(NotFound):
        await store.bind("nobody", namespace, "n1")
    await store.create(pods, pod("a"), namespace)
    with pytest.raises(Conflict):
        await store.bind("a", namespace, "n1", uid="00000000-0000-4000-8000-000000000000")
    with pytest.raises((Invalid, ApiError)):
        await store.bind("a", namespace, "")
    assert "nodeName" not in (await store.get(pods, "a", namespace))["spec"]


async def test_many_are_bound_at_once_and_each_has_its_own_answer(store: Store, namespace: str) -> None:
    pods = await store.resource("", "Pod")
    await store.create(pods, pod("a", annotations={"own": "1"}), namespace)
    created = await store.create(pods, pod("b"), namespace)
    await store.create(pods, pod("bound"), namespace)
    await store.bind("bound", namespace, "n1")
    bindings = [
        Binding("a", namespace, "n1", annotations={"example.com/devices": "[0]"}),
        Binding("bound", namespace, "n2"),
        Binding("nobody", namespace, "n1"),
        Binding("b", namespace, "n2", uid=created["metadata"]["uid"]),
    ]
    answers = await store.bind_many(bindings)
    assert [type(answer) for answer in answers] == [type(None), Conflict, NotFound, type(None)]
    for name, node in (("a", "n1"), ("bound", "n1"), ("b", "n2")):
        bound = await store.get(pods, name, namespace)
        assert bound["spec"]["nodeName"] == node
        scheduled = next(c for c in bound["status"]["conditions"] if c["type"] == "PodScheduled")
        assert scheduled["status"] == "True"
    assert (await store.get(pods, "a", namespace))["metadata"]["annotations"] == {"own": "1", "example.com/devices": "[0]"}
    assert await store.bind_many([]) == []


async def test_the_same_pod_is_bound_once_in_one_call(store: Store, namespace: str) -> None:
    pods = await store.resource("", "Pod")
    await store.create(pods, pod("a"), namespace)
    answers = await store.bind_many([Binding("a", namespace, "n1"), Binding("a", namespace, "n2")])
    assert sorted(type(answer).__name__ for answer in answers) == ["Conflict", "NoneType"]
    assert (await store.get(pods, "a", namespace))["spec"]["nodeName"] in ("n1", "n2")


# --- eviction ----------------------------------------------------------------------------------------------------


async def budgeted_pods(backend: Backend, namespace: str, count: int, **spec: object) -> Raw:
    """`count` ready pods under a budget, counted by whoever keeps its status."""
    store = backend.store
    pods, budgets = await store.resource("", "Pod"), await store.resource("policy", "PodDisruptionBudget")
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    for n in range(count):
        await store.create(pods, pod(f"p{n}", node="n1", labels={"app": "web"}), namespace)
        await store.patch(pods, f"p{n}", {"status": ready}, namespace, subresource="status")
    budget = await store.create(
        budgets, {"metadata": {"name": "budget"}, "spec": {"selector": {"matchLabels": {"app": "web"}}, **spec}}, namespace
    )
    if backend.keeps_budgets:
        counted = await until(
            store, budgets, "budget", namespace, lambda raw: (raw.get("status") or {}).get("currentHealthy") == count
        )
        assert counted is not None
        return counted
    return budget


async def test_evict_deletes_gracefully(store: Store, namespace: str) -> None:
    pods = await store.resource("", "Pod")
    await store.create(pods, pod("a", node="n1"), namespace)
    await store.evict("a", namespace, grace_period_s=7)
    deleting = await store.get(pods, "a", namespace)
    assert deleting["metadata"]["deletionGracePeriodSeconds"] == 7
    await store.create(pods, pod("b"), namespace)
    await store.evict("b", namespace)
    with pytest.raises(NotFound):
        await store.get(pods, "b", namespace)
    with pytest.raises(NotFound):
        await store.evict("nobody", namespace)


async def test_a_budget_refuses_one_too_many(backend: Backend, store: Store, namespace: str) -> None:
    pods = await store.resource("", "Pod")
    await budgeted_pods(backend, namespace, 3, minAvailable=2)
    await store.evict("p0", namespace)
    with pytest.raises(TooManyRequests, match="disruption budget"):
        await store.evict("p1", namespace)
    assert not (await store.get(pods, "p1", namespace))["metadata"].get("deletionTimestamp")
    assert (await store.get(pods, "p0", namespace))["metadata"]["deletionTimestamp"]


async def test_a_budget_holds_against_many_at_once(backend: Backend, store: Store, namespace: str) -> None:
    await budgeted_pods(backend, namespace, 5, minAvailable=3)

    async def attempt(n: int) -> bool:
        try:
            await store.evict(f"p{n}", namespace)
        except (TooManyRequests, Conflict):
            return False
        return True

    granted = await asyncio.gather(*(attempt(n) for n in range(5)))
    assert 1 <= sum(granted) <= 2


async def test_a_budget_of_nothing_refuses_all(backend: Backend, store: Store, namespace: str) -> None:
    await budgeted_pods(backend, namespace, 1, minAvailable=1)
    with pytest.raises(TooManyRequests):
        await store.evict("p0", namespace)
    with pytest.raises(TooManyRequests):
        await store.evict("p0", namespace, dry_run=True)


async def test_pending_pods_disrupt_nothing(backend: Backend, store: Store, namespace: str) -> None:
    pods = await store.resource("", "Pod")
    await budgeted_pods(backend, namespace, 1, minAvailable=1)
    await store.create(pods, pod("waiting", labels={"app": "web"}), namespace)
    await store.evict("waiting", namespace)
    with pytest.raises(NotFound):
        await store.get(pods, "waiting", namespace)


async def test_eviction_can_be_tried(backend: Backend, store: Store, namespace: str) -> None:
    pods = await store.resource("", "Pod")
    await budgeted_pods(backend, namespace, 2, minAvailable=1)
    await store.evict("p0", namespace, dry_run=True)
    assert not (await store.get(pods, "p0", namespace))["metadata"].get("deletionTimestamp")
    await store.evict("p1", namespace)
