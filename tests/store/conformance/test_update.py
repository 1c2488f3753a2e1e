"""Update: optimistic concurrency, what a client can't change, what counts as a change."""

from __future__ import annotations

import asyncio

import pytest

from muster.objects.status import BadRequest, Conflict, Invalid, NotFound, Raw
from muster.store.contract import Store, WriteOptions
from tests.store.conformance.support import brief, config_map, network_policy, pod, some_object, watching


async def test_replaces(store: Store, namespace: str) -> None:
    maps = await store.resource("", "ConfigMap")
    created = await store.create(maps, config_map("a", {"x": "1", "y": "2"}, labels={"l": "1"}), namespace)
    created["data"] = {"x": "3"}
    created["metadata"]["labels"] = {"m": "2"}
    updated = await store.update(maps, created, namespace)
    assert updated["data"] == {"x": "3"}
    assert updated["metadata"]["labels"] == {"m": "2"}
    assert updated["metadata"]["uid"] == created["metadata"]["uid"]
    assert updated["metadata"]["resourceVersion"] != created["metadata"]["resourceVersion"]
    assert await store.get(maps, "a", namespace) == updated


async def test_a_stale_version_is_a_conflict(store: Store, namespace: str) -> None:
    maps = await store.resource("", "ConfigMap")
    created = await store.create(maps, config_map("a"), namespace)
    await store.patch(maps, "a", {"data": {"key": "theirs"}}, namespace)
    created["data"] = {"key": "mine"}
    with pytest.raises(Conflict, match='cannot be fulfilled on configmaps "a": the object has been modified'):
        await store.update(maps, created, namespace)
    assert (await store.get(maps, "a", namespace))["data"] == {"key": "theirs"}


async def test_of_many_with_one_version_one_wins(store: Store, namespace: str) -> None:
    maps = await store.resource("", "ConfigMap")
    created = await store.create(maps, config_map("a"), namespace)

    async def attempt(n: int) -> str:
        try:
            await store.update(maps, {**created, "data": {"key": str(n)}}, namespace)
        except Conflict:
            return ""
        return str(n)

    winners = [name for name in await asyncio.gather(*(attempt(n) for n in range(20))) if name]
    assert len(winners) == 1
    assert (await store.get(maps, "a", namespace))["data"] == {"key": winners[0]}


async def test_without_a_version_it_is_unconditional(store: Store, namespace: str) -> None:
    maps = await store.resource("", "ConfigMap")
    await store.create(maps, config_map("a"), namespace)
    await store.patch(maps, "a", {"data": {"key": "theirs"}}, namespace)
    updated = await store.update(maps, config_map("a", {"key": "mine"}), namespace)
    assert updated["data"] == {"key": "mine"}


async def test_leases_too(store: Store, namespace: str) -> None:
    leases = await store.resource("coordination.k8s.io", "Lease")
    lease: Raw = {"metadata": {"name": "a"}, "spec": {"holderIdentity": "one", "leaseDurationSeconds": 15}}
    await store.create(leases, lease, namespace)
    updated = await store.update(leases, {**lease, "spec": {"holderIdentity": "two"}}, namespace)
    assert updated["spec"]["holderIdentity"] == "two"


async def test_what_is_not_there_is_not_found(store: Store, namespace: str) -> None:
    maps = await store.resource("", "ConfigMap")
    with pytest.raises(NotFound):
        await store.update(maps, config_map("nobody"), namespace)


async def test_nothing_changed_is_no_change(store: Store, namespace: str) -> None:
    maps = await store.resource("", "ConfigMap")
    created = await store.create(maps, config_map("a"), namespace)
    async with watching(
        store, maps, namespace, resource_version=created["metadata"]["resourceVersion"], label_selector="!other"
    ) as watch:
        same = await store.update(maps, created, namespace)
        assert same["metadata"]["resourceVersion"] == created["metadata"]["resourceVersion"]
        patched = await store.patch(maps, "a", {"data": {"key": "value"}}, namespace)
        assert patched["metadata"]["resourceVersion"] == created["metadata"]["resourceVersion"]
        await store.create(maps, config_map("b"), namespace)
        assert brief(await watch.take(1)) == [("ADDED", "b")]


async def test_another_uid_is_a_conflict(store: Store, namespace: str) -> None:
    maps = await store.resource("", "ConfigMap")
    await store.create(maps, config_map("a"), namespace)
    with pytest.raises(Conflict):
        await store.update(maps, config_map("a", {"x": "1"}, uid="00000000-0000-4000-8000-000000000000"), namespace)


async def test_times_and_generation_are_the_servers(store: Store, namespace: str) -> None:
    policies = await store.resource("networking.k8s.io", "NetworkPolicy")
    created = await store.create(policies, network_policy("a"), namespace)
    sent = {**created, "metadata": {**created["metadata"], "generation": 99, "creationTimestamp": None, "labels": {"x": "y"}}}
    updated = await store.update(policies, sent, namespace)
    assert updated["metadata"]["generation"] == 1
    assert updated["metadata"]["creationTimestamp"] == created["metadata"]["creationTimestamp"]
    assert updated["metadata"]["labels"] == {"x": "y"}


@pytest.mark.parametrize(
    ("group", "kind", "grows"),
    [
        pytest.param("", "ReplicationController", 0, id="ReplicationController"),
        pytest.param("apps", "Deployment", 1, id="Deployment"),
        pytest.param("apps", "ReplicaSet", 0, id="ReplicaSet"),
        pytest.param("apps", "StatefulSet", 0, id="StatefulSet"),
        pytest.param("apps", "DaemonSet", 0, id="DaemonSet"),
        pytest.param("policy", "PodDisruptionBudget", 0, id="PodDisruptionBudget"),
        pytest.param("networking.k8s.io", "Ingress", 0, id="Ingress"),
    ],
)
async def test_generation_moves_with_annotations_of_deployments_only(
    store: Store, namespace: str, group: str, kind: str, grows: int
) -> None:
    resource = await store.resource(group, kind)
    await store.create(resource, some_object(kind, "a"), namespace)
    options = WriteOptions(dry_run=True)
    generation = (await store.get(resource, "a", namespace))["metadata"]["generation"]
    for field, counts in (("labels", 0), ("annotations", grows), ("finalizers", 0)):
        value = ["example.com/a"] if field == "finalizers" else {"example.com/a": "1"}
        changed = await store.patch(resource, "a", {"metadata": {field: value}}, namespace, options)
        assert changed["metadata"]["generation"] == generation + counts, field


async def test_generation_moves_with_spec_only(store: Store, namespace: str) -> None:
    policies = await store.resource("networking.k8s.io", "NetworkPolicy")
    created = await store.create(policies, network_policy("a"), namespace)
    assert created["metadata"]["generation"] == 1
    annotated = await store.patch(policies, "a", {"metadata": {"annotations": {"note": "x"}}}, namespace)
    assert annotated["metadata"]["generation"] == 1
    changed = await store.patch(policies, "a", {"spec": {"podSelector": {"matchLabels": {"app": "b"}}}}, namespace)
    assert changed["metadata"]["generation"] == 2
    same = await store.patch(policies, "a", {"spec": {"podSelector": {"matchLabels": {"app": "b"}}}}, namespace)
    assert same["metadata"]["generation"] == 2


async def test_status_is_not_touched_by_a_replacement(store: Store, namespace: str) -> None:
    pods = await store.resource("", "Pod")
    await store.create(pods, pod("a"), namespace)
    running = await store.patch(pods, "a", {"status": {"phase": "Running"}}, namespace, subresource="status")
    running["metadata"]["labels"] = {"l": "1"}
    running["status"] = {"phase": "Failed"}
    updated = await store.update(pods, running, namespace)
    assert updated["status"]["phase"] == "Running"
    assert updated["metadata"]["labels"] == {"l": "1"}


async def test_dry_run(store: Store, namespace: str) -> None:
    maps = await store.resource("", "ConfigMap")
    created = await store.create(maps, config_map("a"), namespace)
    tried = await store.update(maps, {**created, "data": {"key": "tried"}}, namespace, WriteOptions(dry_run=True))
    assert tried["data"] == {"key": "tried"}
    assert await store.get(maps, "a", namespace) == created
    await store.patch(maps, "a", {"data": {"x": "1"}}, namespace)
    with pytest.raises(Conflict):
        await store.update(maps, created, namespace, WriteOptions(dry_run=True))


async def test_refused_and_unchanged(store: Store, namespace: str) -> None:
    maps = await store.resource("", "ConfigMap")
    created = await store.create(maps, config_map("a"), namespace)
    for wrong in (
        {**created, "data": {"bad key": "x"}},
        {**created, "metadata": {**created["metadata"], "labels": {"bad key!": "x"}}},
        {**created, "metadata": {**created["metadata"], "finalizers": ["bad finalizer"]}},
    ):
        with pytest.raises(Invalid):
            await store.update(maps, wrong, namespace)
    with pytest.raises(BadRequest):
        await store.update(maps, {**created, "metadata": {**created["metadata"], "namespace": "default"}}, namespace)
    assert await store.get(maps, "a", namespace) == created


async def test_a_pods_spec_is_mostly_fixed(store: Store, namespace: str) -> None:
    pods = await store.resource("", "Pod")
    await store.create(pods, pod("a"), namespace)
    image = {"spec": {"containers": [{"name": "main", "image": "example.com/app:2"}]}}
    updated = await store.patch(pods, "a", image, namespace)
    assert updated["spec"]["containers"][0]["image"] == "example.com/app:2"
    with pytest.raises(Invalid):
        await store.update(pods, {**updated, "spec": {**updated["spec"], "hostNetwork": True}}, namespace)


async def test_immutable_data_stays(store: Store, namespace: str) -> None:
    maps = await store.resource("", "ConfigMap")
    created = await store.create(maps, {**config_map("a"), "immutable": True}, namespace)
    with pytest.raises(Invalid):
        await store.update(maps, {**created, "data": {"key": "other"}}, namespace)


async def test_wrong_types_are_a_bad_request_where_a_patch_with_them_is_invalid(store: Store, namespace: str) -> None:
    maps = await store.resource("", "ConfigMap")
    created = await store.create(maps, config_map("a"), namespace)
    with pytest.raises(BadRequest, match="cannot be handled as a ConfigMap"):
        await store.update(maps, {**created, "data": {"key": 1}}, namespace)
    with pytest.raises(Invalid):
        await store.patch(maps, "a", {"data": {"key": 1}}, namespace)
    assert await store.get(maps, "a", namespace) == created


async def test_what_belongs_to_a_type_of_service_goes_with_it(store: Store, namespace: str) -> None:
    services = await store.resource("", "Service")
    spec = {"type": "NodePort", "externalTrafficPolicy": "Local", "ports": [{"port": 80, "nodePort": 30996}]}
    made = await store.create(services, {"metadata": {"name": "a"}, "spec": spec}, namespace)
    assert made["spec"]["ports"][0]["nodePort"] == 30996
    inside = await store.patch(services, "a", {"spec": {"type": "ClusterIP"}}, namespace)
    assert "nodePort" not in inside["spec"]["ports"][0]
    assert "externalTrafficPolicy" not in inside["spec"]
    with pytest.raises(Invalid):
        await store.patch(services, "a", {"spec": {"ports": [{"port": 80, "nodePort": 30996}]}}, namespace)
