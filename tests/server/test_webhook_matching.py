"""Which webhooks are asked about which writes, as tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from muster.objects.catalog import CATALOG
from muster.objects.kinds.events import renamed
from muster.objects.resources import Resource
from muster.objects.status import NotFound, Raw
from muster.server.admission_review import KindName
from muster.server.webhook_matching import (
    MUTATING,
    VALIDATING,
    Configurations,
    Rule,
    is_selected,
    match_rules,
    read_configuration,
)
from muster.server.webhook_services import Unresolved, addresses
from muster.server.webhooks import question_of
from muster.store.embedded import AdmissionRequest

PODS = CATALOG.by_kind("", "Pod")
NODES = CATALOG.by_kind("", "Node")
NAMESPACES = CATALOG.by_kind("", "Namespace")
DEPLOYMENTS = CATALOG.by_kind("apps", "Deployment")
V1, V2 = (Resource(group="example.com", version=version, kind="Thing", plural="things") for version in ("v1", "v2"))


def rule(operations: str = "*", groups: str = "*", versions: str = "*", resources: str = "*", scope: str = "*") -> Raw:
    return {
        "operations": operations.split(","),
        "apiGroups": groups.split(","),
        "apiVersions": versions.split(","),
        "resources": resources.split(","),
        "scope": scope,
    }


def webhook(*rules: Raw, **more: Any) -> Raw:
    return {
        "name": "a.example.com",
        "clientConfig": {"url": "https://x"},
        "rules": list(rules),
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        **more,
    }


def configuration(name: str, *webhooks: Raw) -> Raw:
    return {"metadata": {"name": name}, "webhooks": list(webhooks)}


def versions_of(resource: Resource) -> list[Resource]:
    return [V1, V2] if resource.group == V1.group else [resource]


@pytest.mark.parametrize(
    ("said", "operation", "resource", "subresource", "matches"),
    [
        pytest.param(rule(), "CREATE", PODS, "", True, id="everything"),
        pytest.param(rule(), "UPDATE", PODS, "status", False, id="a star is no subresource"),
        pytest.param(rule(resources="*/*"), "UPDATE", PODS, "status", True, id="all subresources"),
        pytest.param(rule(resources="*/*"), "CREATE", PODS, "", True, id="all subresources, and what has none"),
        pytest.param(rule(resources="pods/*"), "CREATE", PODS, "binding", True, id="every subresource of one"),
        pytest.param(rule(resources="pods/*"), "CREATE", PODS, "", True, id="every subresource of one, and itself"),
        pytest.param(rule(resources="pods/*"), "UPDATE", DEPLOYMENTS, "scale", False, id="of another"),
        pytest.param(rule(resources="*/scale"), "UPDATE", DEPLOYMENTS, "scale", True, id="one subresource of all"),
        pytest.param(rule(resources="*/scale"), "UPDATE", DEPLOYMENTS, "status", False, id="another subresource"),
        pytest.param(rule(resources="pods/status"), "UPDATE", PODS, "", False, id="only the subresource"),
        pytest.param(rule(resources="nodes,pods"), "CREATE", PODS, "", True, id="one of two"),
        pytest.param(rule(operations="CREATE,DELETE"), "DELETE", PODS, "", True, id="operation"),
        pytest.param(rule(operations="CREATE,DELETE"), "UPDATE", PODS, "", False, id="another operation"),
        pytest.param(rule(groups=""), "CREATE", PODS, "", True, id="the core group"),
        pytest.param(rule(groups=""), "CREATE", DEPLOYMENTS, "", False, id="not the core group"),
        pytest.param(rule(groups="apps"), "CREATE", DEPLOYMENTS, "", True, id="group"),
        pytest.param(rule(versions="v1"), "CREATE", PODS, "", True, id="version"),
        pytest.param(rule(versions="v2"), "CREATE", PODS, "", False, id="another version"),
        pytest.param(rule(scope="Namespaced"), "CREATE", PODS, "", True, id="namespaced"),
        pytest.param(rule(scope="Namespaced"), "CREATE", NODES, "", False, id="not namespaced"),
        pytest.param(rule(scope="Cluster"), "CREATE", NODES, "", True, id="cluster"),
        pytest.param(rule(scope="Cluster"), "CREATE", NAMESPACES, "", True, id="a namespace is in no namespace"),
        pytest.param(rule(scope="Cluster"), "CREATE", PODS, "", False, id="not cluster"),
    ],
)
def test_rules(said: Raw, operation: str, resource: Resource, subresource: str, matches: bool) -> None:
    (hook,) = read_configuration(VALIDATING, configuration("c", webhook(said)))
    found = match_rules(hook, operation, resource, subresource, versions_of)
    assert (found is not None) == matches
    assert found is None or found.resource == resource


@pytest.mark.parametrize(
    ("policy", "asked", "said", "shown"),
    [
        pytest.param("Exact", V1, "v2", None, id="exact"),
        pytest.param("Equivalent", V1, "v2", V2, id="shown in the version that the rule names"),
        pytest.param("Equivalent", V1, "v1,v2", V1, id="its own version goes first"),
        pytest.param(None, V2, "v1", V1, id="by default"),
        pytest.param("Equivalent", V1, "v3", None, id="a version that is not served"),
    ],
)
def test_match_policy(policy: str | None, asked: Resource, said: str, shown: Resource | None) -> None:
    more = {"matchPolicy": policy} if policy else {}
    (hook,) = read_configuration(VALIDATING, configuration("c", webhook(rule(versions=said), **more)))
    found = match_rules(hook, "CREATE", asked, "", versions_of)
    assert (found.resource if found else None) == shown


def test_an_equivalent_may_be_of_another_group() -> None:
    old, new = CATALOG.by_kind("", "Event"), CATALOG.by_kind("events.k8s.io", "Event")
    said = rule(groups="events.k8s.io", resources="events")
    (hook,) = read_configuration(VALIDATING, configuration("c", webhook(said)))
    found = match_rules(hook, "CREATE", old, "", lambda _: [old, new])
    assert found is not None
    assert found.resource is new
    raw: Raw = {"apiVersion": "v1", "kind": "Event", "metadata": {"name": "x", "namespace": "ns"}, "message": "m"}
    question = question_of(request(old, new=raw, operation="CREATE"), new, "uid")
    assert question.object == {**renamed(raw), "apiVersion": "events.k8s.io/v1"}
    assert question.kind == KindName("events.k8s.io", "v1", "Event")
    assert question.request_kind == KindName("", "v1", "Event")


def test_a_write_that_is_checked_in_another_version_is_told_in_that_of_the_client() -> None:
    newest = CATALOG.by_kind("autoscaling", "HorizontalPodAutoscaler")
    first = CATALOG.by_plural("autoscaling", "v1", "horizontalpodautoscalers")
    assert first is not None
    metric = {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}}
    raw: Raw = {"apiVersion": "autoscaling/v2", "metadata": {"name": "x"}, "spec": {"maxReplicas": 3, "metrics": [metric]}}
    asked = request(newest, new=raw, operation="CREATE")
    asked.asked = first
    question = question_of(asked, first, "uid")
    assert question.object is not None
    assert question.object["spec"] == {"maxReplicas": 3, "targetCPUUtilizationPercentage": 50}
    assert question.kind == question.request_kind == KindName("autoscaling", "v1", "HorizontalPodAutoscaler")


def labelled(**labels: str) -> Raw:
    return {"metadata": {"name": "x", "labels": labels}}


def request(
    resource: Resource = PODS, *, new: Raw | None = None, old: Raw | None = None, operation: Any = "UPDATE"
) -> AdmissionRequest:
    namespace = "ns" if resource.namespaced else ""
    return AdmissionRequest(
        operation=operation, resource=resource, namespace=namespace, name="x", old=old, object=new, warn=lambda _: None
    )


BLUE = {"matchLabels": {"team": "blue"}}
NOT_BLUE = {"matchExpressions": [{"key": "team", "operator": "NotIn", "values": ["blue"]}]}


@pytest.mark.parametrize(
    ("selectors", "asked", "selected"),
    [
        pytest.param({}, request(new=labelled()), True, id="none"),
        pytest.param({"objectSelector": {}, "namespaceSelector": {}}, request(new=labelled()), True, id="empty"),
        pytest.param({"objectSelector": BLUE}, request(new=labelled(team="blue")), True, id="new object"),
        pytest.param({"objectSelector": BLUE}, request(new=labelled(), old=labelled(team="blue")), True, id="old object"),
        pytest.param({"objectSelector": BLUE}, request(new=labelled(), old=labelled()), False, id="neither"),
        pytest.param({"objectSelector": BLUE}, request(old=labelled(team="blue"), operation="DELETE"), True, id="deleted"),
        pytest.param({"objectSelector": NOT_BLUE}, request(new=labelled()), True, id="not in, without a label"),
        pytest.param({"objectSelector": BLUE}, request(new={"metadata": None}), False, id="no metadata"),
        pytest.param({"namespaceSelector": BLUE}, request(new=labelled()), True, id="namespace"),
        pytest.param({"namespaceSelector": NOT_BLUE}, request(new=labelled()), False, id="another namespace"),
        pytest.param({"namespaceSelector": NOT_BLUE}, request(NODES, new=labelled()), True, id="in no namespace: never exempt"),
        pytest.param({"namespaceSelector": BLUE}, request(NAMESPACES, new=labelled(team="blue")), True, id="namespace itself"),
        pytest.param({"namespaceSelector": BLUE}, request(NAMESPACES, new=labelled()), False, id="as it will be, not as it is"),
        pytest.param(
            {"namespaceSelector": BLUE},
            request(NAMESPACES, old=labelled(), operation="DELETE"),
            True,
            id="a namespace that is deleted, as it is",
        ),
    ],
)
def test_selectors(selectors: Raw, asked: AdmissionRequest, selected: bool) -> None:
    (hook,) = read_configuration(VALIDATING, configuration("c", webhook(rule(), **selectors)))
    assert is_selected(hook, asked, lambda name: {"team": "blue"}) == selected


def test_a_namespace_that_is_gone() -> None:
    (hook,) = read_configuration(VALIDATING, configuration("c", webhook(rule(), namespaceSelector=BLUE)))
    with pytest.raises(NotFound, match='namespaces "ns" not found'):
        is_selected(hook, request(new=labelled()), lambda name: None)


def names(found: Any) -> list[tuple[str, int]]:
    return [(match.hook.configuration, match.hook.index) for match in found]


def test_order_is_by_name_then_as_listed() -> None:
    known = Configurations(versions_of)
    for name in ("b", "c", "a"):
        known.apply(MUTATING, configuration(name, webhook(rule()), webhook(rule(operations="DELETE")), webhook(rule())))
    known.apply(VALIDATING, configuration("z", webhook(rule())))
    wanted = [(name, index) for name in ("a", "b", "c") for index in (0, 2)]
    assert names(known.matching(True, "CREATE", PODS, "")) == wanted
    assert names(known.matching(False, "CREATE", PODS, "")) == [("z", 0)]


def test_what_is_remembered_follows_changes() -> None:
    served = [V1]
    known = Configurations(lambda resource: served)
    known.apply(VALIDATING, configuration("a", webhook(rule(versions="v2"))))
    assert names(known.matching(False, "CREATE", V1, "")) == []
    served.append(V2)
    known.forget()
    assert names(known.matching(False, "CREATE", V1, "")) == [("a", 0)]
    known.apply(VALIDATING, configuration("a", webhook(rule(operations="DELETE"))))
    assert names(known.matching(False, "CREATE", V1, "")) == []
    known.apply(VALIDATING, configuration("a", webhook(rule())))
    assert names(known.matching(False, "CREATE", V1, "")) == [("a", 0)]
    known.apply(VALIDATING, configuration("a"), deleted=True)
    assert names(known.matching(False, "CREATE", V1, "")) == []


@pytest.mark.parametrize("kind", [MUTATING, VALIDATING])
def test_configurations_are_never_asked_about(kind: str) -> None:
    known = Configurations(versions_of)
    known.apply(kind, configuration("a", webhook(rule(resources="*/*"))))
    for other in (MUTATING, VALIDATING):
        resource = CATALOG.by_kind("admissionregistration.k8s.io", other)
        assert known.matching(kind == MUTATING, "UPDATE", resource, "") == ()


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        pytest.param({"matchConditions": [{"name": "x", "expression": "true"}]}, "matchConditions", id="conditions"),
        pytest.param({"objectSelector": {"matchLabels": {"!": "x"}}}, "objectSelector", id="selector"),
        pytest.param({"namespaceSelector": {"matchExpressions": 3}}, "namespaceSelector", id="no selector at all"),
        pytest.param({"admissionReviewVersions": ["v7"]}, "AdmissionReview versions", id="versions"),
    ],
)
def test_what_was_stored_by_others_and_makes_no_sense_is_a_failing_webhook(more: Raw, problem: str) -> None:
    (hook,) = read_configuration(VALIDATING, configuration("c", webhook(rule(), **more)))
    assert problem in hook.problem


def test_a_rule_without_resources_matches_nothing() -> None:
    assert not Rule(("*",), ("*",), ("*",), ()).matches("CREATE", PODS, "")


# --- services


def service(**spec: Any) -> Raw:
    return {"metadata": {"name": "s"}, "spec": spec}


ONE_PORT = {"clusterIP": "10.0.0.1", "ports": [{"port": 443, "targetPort": 8443}]}
TWO_PORTS = {"ports": [{"name": "web", "port": 80}, {"name": "hooks", "port": 443}]}
SUBSETS = {
    "subsets": [
        {
            "addresses": [{"ip": "10.1.0.1"}, {"ip": "10.1.0.2"}],
            "notReadyAddresses": [{"ip": "10.1.0.3"}],
            "ports": [{"port": 8443}],
        }
    ]
}
SLICE = {
    "ports": [{"name": "web", "port": 8080}, {"name": "hooks", "port": 8443}],
    "endpoints": [
        {"addresses": ["10.2.0.1"], "conditions": {"ready": True}},
        {"addresses": ["10.2.0.2"], "conditions": {"ready": False}},
        {"addresses": ["fd00::1"]},
    ],
}


@pytest.mark.parametrize(
    ("spec", "endpoints", "slices", "found"),
    [
        pytest.param(ONE_PORT, [SUBSETS], [], [("10.1.0.1", 8443), ("10.1.0.2", 8443)], id="endpoints that are ready"),
        pytest.param(TWO_PORTS, [], [SLICE], [("10.2.0.1", 8443), ("fd00::1", 8443)], id="slices, by the port's name"),
        pytest.param(ONE_PORT, [], [], [("10.0.0.1", 443)], id="the cluster address, where there are no endpoints"),
        pytest.param(
            {"type": "ExternalName", "externalName": "h.example.com"}, [], [], [("h.example.com", 443)], id="external"
        ),
        pytest.param(ONE_PORT, [{"subsets": []}], [], "no endpoints available", id="no endpoints"),
        pytest.param({**ONE_PORT, "clusterIP": "None"}, [], [], "no endpoints available", id="headless"),
        pytest.param({"ports": [{"port": 80}]}, [SUBSETS], [], "no service port 443 found", id="another port"),
    ],
)
def test_addresses(spec: Raw, endpoints: list[Raw], slices: list[Raw], found: Any) -> None:
    find: Callable[[], list[tuple[str, int]]] = lambda: addresses(service(**spec), endpoints, slices, 443)  # noqa: E731
    if isinstance(found, str):
        with pytest.raises(Unresolved, match=f'{found} .*service "s"'):
            find()
    else:
        assert find() == found
