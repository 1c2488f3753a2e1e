"""What objects count as, and which of them a quota counts."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from muster.objects.resource_quotas import Quota, Scope, counted, counted_json, kind_of
from muster.objects.status import Raw


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("cpu", "pods"),
        ("requests.memory", "pods"),
        ("limits.ephemeral-storage", "pods"),
        ("hugepages-2Mi", "pods"),
        ("requests.hugepages-1Gi", "pods"),
        ("requests.nvidia.com/gpu", "pods"),
        ("nvidia.com/gpu", ""),
        ("requests.kubernetes.io/batch-cpu", ""),
        ("requests.storage", "persistentvolumeclaims"),
        ("gold.storageclass.storage.k8s.io/requests.storage", "persistentvolumeclaims"),
        ("services.loadbalancers", "services"),
        ("configmaps", "configmaps"),
        ("count/widgets.example.com", "widgets.example.com"),
        ("count/pods", "pods"),
        ("count/events", ""),
        ("deployments.apps", ""),
        ("pod", ""),
    ],
)
def test_the_kind_that_counts_for_a_resource(name: str, kind: str) -> None:
    assert kind_of(name) == kind


def container(requests: Raw | None = None, limits: Raw | None = None, **more: Any) -> Raw:
    return {"name": "c", "resources": {"requests": requests or {}, "limits": limits or {}}, **more}


def pod(*containers: Raw, phase: str = "Pending", **spec: Any) -> Raw:
    return {"metadata": {"name": "p"}, "spec": {"containers": list(containers), **spec}, "status": {"phase": phase}}


@pytest.mark.parametrize(
    ("kind", "raw", "amounts"),
    [
        pytest.param("pods", pod({"name": "c"}), {"count/pods": "1", "pods": "1"}, id="a pod that asks for nothing"),
        pytest.param(
            "pods",
            pod(container({"cpu": "500m", "memory": "1Gi"}, {"cpu": "1"}), container({"cpu": "1", "nvidia.com/gpu": 1})),
            {
                **{"count/pods": "1", "pods": "1", "cpu": "1500m", "requests.cpu": "1500m", "limits.cpu": "1"},
                **{"memory": "1Gi", "requests.memory": "1Gi", "requests.nvidia.com/gpu": "1"},
            },
            id="containers together",
        ),
        pytest.param(
            "pods",
            pod(container({"cpu": "1"}), initContainers=[container({"cpu": "3", "memory": "1Mi"}), container({"cpu": "2"})]),
            {"count/pods": "1", "pods": "1", "cpu": "3", "requests.cpu": "3", "memory": "1Mi", "requests.memory": "1Mi"},
            id="the largest init container",
        ),
        pytest.param(
            "pods",
            pod(container({"cpu": "1"}), initContainers=[container({"cpu": "1"}, restartPolicy="Always")]),
            {"count/pods": "1", "pods": "1", "cpu": "2", "requests.cpu": "2"},
            id="init containers that go on running",
        ),
        pytest.param(
            "pods",
            pod(container({"cpu": "1"}, {"ephemeral-storage": "1Gi"}), overhead={"cpu": "100m"}),
            {
                **{"count/pods": "1", "pods": "1", "cpu": "1100m", "requests.cpu": "1100m"},
                **{"limits.cpu": "100m", "limits.ephemeral-storage": "1Gi"},
            },
            id="overhead",
        ),
        pytest.param("pods", pod(container({"cpu": "1"}), phase="Succeeded"), {"count/pods": "1"}, id="a pod that has ended"),
        pytest.param("pods", pod(container({"cpu": "1"}), phase="Failed"), {"count/pods": "1"}, id="a pod that has failed"),
        pytest.param(
            "services",
            {"spec": {"type": "ClusterIP", "ports": [{"port": 1}]}},
            {"count/services": "1", "services": "1", "services.nodeports": "0", "services.loadbalancers": "0"},
            id="a service",
        ),
        pytest.param(
            "services",
            {"spec": {"type": "LoadBalancer", "ports": [{"port": 1}, {"port": 2}]}},
            {"count/services": "1", "services": "1", "services.nodeports": "2", "services.loadbalancers": "1"},
            id="a load balancer has node ports",
        ),
        pytest.param(
            "persistentvolumeclaims",
            {"spec": {"storageClassName": "gold", "resources": {"requests": {"storage": "1500m"}}}},
            {
                "count/persistentvolumeclaims": "1",
                "persistentvolumeclaims": "1",
                "requests.storage": "2",
                "gold.storageclass.storage.k8s.io/persistentvolumeclaims": "1",
                "gold.storageclass.storage.k8s.io/requests.storage": "2",
            },
            id="a claim, in whole bytes",
        ),
        pytest.param(
            "persistentvolumeclaims",
            {"spec": {}},
            {"count/persistentvolumeclaims": "1", "persistentvolumeclaims": "1"},
            id="a claim of nothing",
        ),
        pytest.param("secrets", {}, {"count/secrets": "1", "secrets": "1"}, id="a kind with a short name"),
        pytest.param("jobs.batch", {}, {"count/jobs.batch": "1"}, id="any other kind"),
    ],
)
def test_what_an_object_counts_as(kind: str, raw: Raw, amounts: Raw) -> None:
    found = counted(kind, raw)
    assert {name: str(amount) for name, amount in found.amounts.items()} == amounts
    assert counted_json(kind, msgspec.json.encode(raw)) == found


def test_pods_that_come_to_the_same_share_it() -> None:
    one, other = (counted("pods", pod({**container({"cpu": "1"}), "image": image}, phase=image)) for image in ("a", "b"))
    assert one is other
    assert counted("pods", pod(container({"cpu": "1"}), phase="Failed")) is not one


def test_what_containers_do_not_state() -> None:
    some = pod(container({"cpu": "1"}, {"cpu": "1"}), initContainers=[container({"cpu": "1", "memory": "1"})])
    assert counted("pods", some).unstated == {"memory", "requests.memory", "limits.cpu", "limits.memory"}


REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
LIKED = "preferredDuringSchedulingIgnoredDuringExecution"
ELSEWHERE: Raw = {"topologyKey": "zone", "namespaces": ["other"]}


def near(term: Raw) -> Raw:
    return {"podAffinity": {REQUIRED: [{"topologyKey": "zone"}, {"topologyKey": "zone", **term}]}}


@pytest.mark.parametrize(
    ("scope", "spec", "holds"),
    [
        pytest.param(Scope("Terminating"), {"activeDeadlineSeconds": 5}, True, id="it has a deadline"),
        pytest.param(Scope("Terminating"), {"activeDeadlineSeconds": 0}, True, id="a deadline of nothing is one"),
        pytest.param(Scope("Terminating"), {}, False, id="it has no deadline"),
        pytest.param(Scope("NotTerminating"), {}, True, id="it goes on"),
        pytest.param(Scope("BestEffort"), {}, True, id="it asks for nothing"),
        pytest.param(Scope("BestEffort"), {"initContainers": [container({"cpu": "1"})]}, False, id="it asks for something"),
        pytest.param(Scope("BestEffort"), {"initContainers": [container({"cpu": "0", "x/y": 1})]}, True, id="not for cpu"),
        pytest.param(Scope("NotBestEffort"), {"initContainers": [container({}, {"memory": "1"})]}, True, id="it is limited"),
        pytest.param(Scope("PriorityClass"), {"priorityClassName": "a"}, True, id="it has a class"),
        pytest.param(Scope("PriorityClass"), {}, False, id="it has no class"),
        pytest.param(Scope("PriorityClass", "In", ("a", "b")), {"priorityClassName": "b"}, True, id="in"),
        pytest.param(Scope("PriorityClass", "In", ("a", "b")), {}, False, id="in none"),
        pytest.param(Scope("PriorityClass", "NotIn", ("a",)), {}, True, id="not in"),
        pytest.param(Scope("PriorityClass", "NotIn", ("a",)), {"priorityClassName": "a"}, False, id="not in, but is"),
        pytest.param(Scope("PriorityClass", "DoesNotExist"), {}, True, id="there is none"),
        *(
            pytest.param(Scope("CrossNamespacePodAffinity"), {"affinity": affinity}, holds, id=why)
            for why, affinity, holds in (
                ("near pods of its own namespace", near({}), False),
                ("near pods of a namespace that it names", near({"namespaces": ["other"]}), True),
                ("names no namespace", near({"namespaces": []}), False),
                ("away from pods of all namespaces", {"podAntiAffinity": near({"namespaceSelector": {}})["podAffinity"]}, True),
                (
                    "likes to be near pods elsewhere",
                    {"podAffinity": {LIKED: [{"weight": 1, "podAffinityTerm": ELSEWHERE}]}},
                    True,
                ),
                ("goes by nodes", {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchFields": []}]}}}, False),
            )
        ),
        pytest.param(Scope("CrossNamespacePodAffinity"), {}, False, id="it may run anywhere"),
        pytest.param(Scope("Unheard"), {}, False, id="a scope that nobody knows"),
    ],
)
def test_scopes(scope: Scope, spec: Raw, holds: bool) -> None:
    assert scope.holds(counted("pods", pod({"name": "c"}, **spec))) is holds


def test_a_quota_with_scopes_counts_pods_in_all_of_them_and_nothing_else() -> None:
    quota = Quota.of(
        {
            "metadata": {"name": "q"},
            "spec": {
                "hard": {"pods": "1", "cpu": "1", "services": "1"},
                "scopes": ["Terminating"],
                "scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}]},
            },
        }
    )
    both = pod({"name": "c"}, activeDeadlineSeconds=5, priorityClassName="high")
    assert quota.bounds("pods", counted("pods", both)) == ("cpu", "pods")
    assert quota.bounds("pods", counted("pods", pod({"name": "c"}, activeDeadlineSeconds=5))) == ()
    assert quota.bounds("services", counted("services", {})) == ()
