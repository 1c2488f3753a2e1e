"""What a node may do: every verb on every kind, its own and others'; and what an attacker with a real certificate gets."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from muster.objects.catalog import CATALOG
from muster.server.node_access import NodeAccess, selects_own
from muster.server.node_index import named_by
from muster.server.rbac import Attributes
from muster.server.run import Server
from tests.server.joining_nodes import MANY, MERGE, Machine, bound_pod, party
from tests.server.running import Reply, RunningServer, running

VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection", "bind", "impersonate", "*")
READ = {"get", "list", "watch"}
LEASE, METRIC, SLO = "coordination.k8s.io", "slo.koordinator.sh", "scheduling.koordinator.sh"
ALLOWED: dict[tuple[str, str, str], tuple[set[str], set[str]]] = {
    # kind, subresource: verbs on its own, verbs on those of others
    ("", "nodes", ""): ({*READ, "create", "patch", "update", "delete"}, READ),
    ("", "nodes", "status"): ({"get", "patch", "update"}, set()),
    ("", "pods", ""): ({"get", "patch", "delete"}, set()),
    ("", "pods", "status"): ({"get", "patch", "update"}, set()),
    ("", "secrets", ""): ({"get"}, set()),
    ("", "configmaps", ""): ({"get"}, set()),
    ("", "serviceaccounts", "token"): ({"create"}, set()),
    ("", "services", ""): (READ, READ),
    ("", "endpoints", ""): (READ, READ),
    ("discovery.k8s.io", "endpointslices", ""): (READ, READ),
    ("", "events", ""): ({"create", "patch", "update"}, {"create", "patch", "update"}),
    ("events.k8s.io", "events", ""): ({"create", "patch", "update"}, {"create", "patch", "update"}),
    (LEASE, "leases", ""): ({"get", "create", "patch", "update", "delete"}, set()),
    (METRIC, "nodemetrics", ""): ({*READ, "create", "patch", "update"}, set()),
    (METRIC, "nodemetrics", "status"): ({*READ, "create", "patch", "update"}, set()),
    (METRIC, "nodeslos", ""): (READ, set()),
    (METRIC, "nodeslos", "status"): (READ, set()),
    (SLO, "devices", ""): ({*READ, "create", "patch", "update"}, set()),
    (SLO, "devices", "status"): ({*READ, "create", "patch", "update"}, set()),
    ("authentication.k8s.io", "tokenreviews", ""): ({"create"}, {"create"}),
    ("authorization.k8s.io", "subjectaccessreviews", ""): ({"create"}, {"create"}),
}
BY_NAME_OF_THE_NODE = {"nodes", "leases", "nodemetrics", "nodeslos", "devices"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running(tmp_path_factory.mktemp("nodes"), limits=MANY) as made:
        yield made


@pytest.fixture(scope="module")
def machine(server: RunningServer) -> Machine:
    """Node `mine` of alice with one pod in `work`, that names Secret and ConfigMap `named`; node `other` has the rest."""
    party(server, "alice")
    party(server, "bob")
    mine = Machine(server, "mine", "alice").join()
    Machine(server, "other", "bob").join()
    server.namespace("work")
    for name in ("named", "unnamed", "of-finished", "of-other"):
        for kind in ("secrets", "configmaps"):
            server.create(f"/api/v1/namespaces/work/{kind}", {"metadata": {"name": name}})
    server.namespace("elsewhere")
    for kind in ("secrets", "configmaps"):
        server.create(f"/api/v1/namespaces/elsewhere/{kind}", {"metadata": {"name": "named"}})
    bound_pod(server, "work", "own", "mine", container={"envFrom": [_from("named")]}, volumes=_volumes("named"))
    bound_pod(server, "work", "foreign", "other", volumes=_volumes("of-other"))
    bound_pod(server, "work", "finished", "mine", volumes=_volumes("of-finished"))
    path = "/api/v1/namespaces/work/pods/finished/status"
    assert server.request("PATCH", path, {"status": {"phase": "Succeeded"}}, headers=MERGE).code == 200
    server.create("/api/v1/namespaces/work/pods", {"metadata": {"name": "unbound"}, "spec": {"containers": [_container()]}})
    return mine


def _from(name: str) -> dict[str, Any]:
    return {"secretRef": {"name": name}}


def _volumes(name: str) -> list[dict[str, Any]]:
    return [{"name": "a", "secret": {"secretName": name}}, {"name": "b", "configMap": {"name": name}}]


def _container() -> dict[str, Any]:
    return {"name": "main", "image": "none"}


def _owner() -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "name": "named", "uid": "u"}


# -- the table ----------------------------------------------------------------------------------------------------------------


def _places(group: str, plural: str) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """(namespace, name) of what is the node's own, and of what is not."""
    if plural in BY_NAME_OF_THE_NODE:
        own = [("kube-node-lease", "mine")] if plural == "leases" else [("", "mine")]
        others = [("kube-node-lease", "other"), ("kube-system", "mine")] if plural == "leases" else [("", "other")]
        return own, others
    if (group, plural) == ("", "pods"):
        return [("work", "own"), ("work", "finished")], [("work", "foreign"), ("work", "unbound"), ("work", "nobody"), ("", "")]
    if (group, plural) in (("", "secrets"), ("", "configmaps")):
        others = [("work", name) for name in ("unnamed", "of-finished", "of-other", "")]
        return [("work", "named")], [*others, ("elsewhere", "named"), ("", "")]
    if (group, plural) == ("", "serviceaccounts"):
        return [("work", "default")], [("work", "x"), ("elsewhere", "default"), ("", "")]
    return [("work", "x"), ("", "mine")], [("elsewhere", "y"), ("", "other"), ("", "")]


def test_every_verb_on_every_kind(server: RunningServer, machine: Machine) -> None:
    access = NodeAccess(server.server.memory.nodes)
    groups = ("system:nodes", "muster:party:alice", "system:authenticated")
    asked_len = 0
    wrong = []
    for resource in CATALOG.all:
        subresources = ["", "status", *resource.subresources, "log", "exec", "binding", "eviction", "token", "proxy", "scale"]
        own, others = _places(resource.group, resource.plural)
        allowed = {sub: ALLOWED.get((resource.group, resource.plural, sub), (set(), set())) for sub in subresources}
        for verb, sub, is_own in itertools.product(VERBS, dict.fromkeys(subresources), (True, False)):
            for namespace, name in own if is_own else others:
                question = Attributes(
                    verb=verb, group=resource.group, resource=resource.plural, subresource=sub, namespace=namespace, name=name
                )
                decision = access("system:node:mine", groups, question)
                asked_len += 1
                if (decision is not None and decision.allowed) is not (verb in allowed[sub][0 if is_own else 1]):
                    wrong.append(f"{verb} {resource.qualified}/{sub} {namespace}/{name} (own: {is_own})")
    assert not wrong
    assert asked_len > 10_000
    everything = Attributes(verb="*", group="*", resource="*")
    assert access("system:node:mine", groups, everything) is None
    assert access("system:node:mine", ("system:authenticated",), Attributes(verb="get", resource="nodes", name="mine")) is None
    assert access("alice", ("system:nodes",), Attributes(verb="get", resource="nodes", name="mine")) is None
    assert access("system:node:", groups, Attributes(verb="get", resource="nodes", name="")) is None


@pytest.mark.parametrize(
    ("selector", "is_own"),
    [
        ("spec.nodeName=mine", True),
        ("spec.nodeName==mine", True),
        ("status.phase=Running,spec.nodeName=mine", True),
        ("", False),
        ("spec.nodeName=other", False),
        ("spec.nodeName!=mine", False),
        ("spec.nodeName!=other", False),
        ("spec.nodeName=", False),
        ("spec.nodeName=mine2", False),
        ("metadata.name=spec.nodeName\\=mine", False),
        ("spec.nodename=mine", False),
        ("spec.nodeName=mine,=", False),
        ("spec.nodeName=mine,spec.nodeName=other", True),
    ],
)
def test_selectors(selector: str, is_own: bool) -> None:
    """The last one selects nothing at all, which is allowed."""
    assert selects_own(selector, "mine") is is_own


def test_what_a_pod_names() -> None:
    env = [
        {"name": "A", "valueFrom": {"secretKeyRef": {"name": "s1", "key": "k"}}},
        {"name": "B", "valueFrom": {"configMapKeyRef": {"name": "c1", "key": "k"}}},
        {"name": "C", "value": "s9"},
    ]
    spec = {
        "containers": [{"env": env, "envFrom": [{"secretRef": {"name": "s2"}}, {"configMapRef": {"name": "c2"}}]}],
        "initContainers": [{"envFrom": [{"secretRef": {"name": "s3"}}]}],
        "imagePullSecrets": [{"name": "s4"}],
        "volumes": [
            {"secret": {"secretName": "s5"}},
            {"configMap": {"name": "c3"}},
            {"projected": {"sources": [{"secret": {"name": "s6"}}, {"configMap": {"name": "c4"}}]}},
            {"emptyDir": {}},
        ],
    }
    expected = {("secrets", f"s{n}") for n in range(1, 7)} | {("configmaps", f"c{n}") for n in range(1, 5)}
    assert named_by({"spec": spec}) == expected
    for broken in ({}, {"spec": None}, {"spec": {"volumes": "x", "containers": [None, {"env": 7, "envFrom": [3]}]}}):
        assert named_by(broken) == frozenset()


# -- an attacker with a real certificate --------------------------------------------------------------------------------------

POD = "/api/v1/namespaces/work/pods"
NODE = "/api/v1/nodes"
FORBIDDEN: list[tuple[str, str, Any]] = [
    ("GET", "/api/v1/secrets", None),
    ("GET", "/api/v1/namespaces/work/secrets", None),
    ("GET", "/api/v1/namespaces/work/secrets?fieldSelector=metadata.name=named", None),
    ("GET", "/api/v1/namespaces/work/secrets/named?watch=true", None),
    ("GET", "/api/v1/namespaces/work/secrets?watch=true", None),
    ("GET", "/api/v1/namespaces/work/secrets/unnamed", None),
    ("GET", "/api/v1/namespaces/work/secrets/of-other", None),
    ("GET", "/api/v1/namespaces/work/secrets/of-finished", None),
    ("GET", "/api/v1/namespaces/elsewhere/secrets/named", None),
    ("GET", "/api/v1/namespaces/kube-system/secrets/admin-token", None),
    ("GET", "/api/v1/namespaces/work/configmaps/unnamed", None),
    ("DELETE", "/api/v1/namespaces/work/secrets/named", None),
    ("GET", "/api/v1/pods", None),
    ("GET", "/api/v1/pods?watch=true", None),
    ("GET", f"{POD}?watch=true", None),
    ("GET", "/api/v1/watch/pods", None),
    ("GET", "/api/v1/pods?fieldSelector=spec.nodeName=other&watch=true", None),
    ("GET", "/api/v1/pods?fieldSelector=spec.nodeName!=nobody", None),
    ("GET", f"{POD}/foreign", None),
    ("GET", f"{POD}/own/log", None),
    ("POST", POD, {"metadata": {"name": "new"}, "spec": {"nodeName": "mine", "containers": [_container()]}}),
    ("POST", f"{POD}/unbound/binding", {"metadata": {"name": "unbound"}, "target": {"kind": "Node", "name": "mine"}}),
    ("POST", "/api/v1/namespaces/work/bindings", {"metadata": {"name": "unbound"}, "target": {"name": "mine"}}),
    ("POST", f"{POD}/own/eviction", {"metadata": {"name": "own"}}),
    ("POST", f"{POD}/foreign/eviction", {"metadata": {"name": "foreign"}}),
    ("PATCH", f"{POD}/foreign/status", {"status": {"phase": "Failed"}}),
    ("PATCH", f"{POD}/foreign", {"metadata": {"annotations": {"muster.dev/progress": "1"}}}),
    ("PATCH", f"{POD}/unbound", {"spec": {"nodeName": "mine"}}),
    ("PATCH", f"{POD}/new", {"metadata": {"name": "new"}}),
    ("DELETE", f"{POD}/foreign", None),
    ("DELETE", POD, None),
    ("DELETE", f"{POD}?fieldSelector=spec.nodeName=mine", None),
    ("PATCH", f"{POD}/own", {"metadata": {"labels": {"job": "x"}}}),
    ("PATCH", f"{POD}/own", {"metadata": {"annotations": {"muster.dev/bandwidth": "9Gbps"}}}),
    ("PATCH", f"{POD}/own", {"metadata": {"ownerReferences": []}, "spec": {"activeDeadlineSeconds": 1}}),
    ("PATCH", f"{POD}/own", {"metadata": {"finalizers": ["a.b/c"]}}),
    ("PUT", f"{POD}/own", {"metadata": {"name": "own"}, "spec": {"containers": [_container()]}}),
    ("PATCH", f"{NODE}/other", {"metadata": {"labels": {"a": "b"}}}),
    ("PATCH", f"{NODE}/other/status", {"status": {"capacity": {"cpu": "0"}}}),
    ("DELETE", f"{NODE}/other", None),
    ("DELETE", f"{NODE}/mine", None),
    ("DELETE", NODE, None),
    ("POST", NODE, {"metadata": {"name": "new"}}),
    ("POST", NODE, {"metadata": {"generateName": "mine"}}),
    ("PATCH", f"{NODE}/mine", {"metadata": {"labels": {"domain": "bob"}}}),
    ("PATCH", f"{NODE}/mine", {"metadata": {"labels": {"domain": None}}}),
    ("PATCH", f"{NODE}/mine", {"metadata": {"labels": {"kuscia.secretflow/namespace": "bob"}}}),
    ("PATCH", f"{NODE}/mine", {"metadata": {"labels": {"muster.dev/pool": "best"}}}),
    ("PATCH", f"{NODE}/mine", {"metadata": {"labels": {"muster.dev/simulated": "true"}}}),
    ("PATCH", f"{NODE}/mine", {"metadata": {"labels": {"node-restriction.kubernetes.io/zone": "x"}}}),
    ("PATCH", f"{NODE}/mine", {"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}}),
    ("PATCH", f"{NODE}/mine", {"metadata": {"labels": {"example.com.node-restriction.kubernetes.io/fips": "true"}}}),
    ("PATCH", f"{NODE}/mine", {"metadata": {"labels": {"of.muster.dev/pool": "best"}}}),
    ("PATCH", f"{NODE}/mine", {"metadata": {"labels": {"kubernetes.io/role": "master"}}}),
    ("PATCH", f"{NODE}/mine", {"metadata": {"labels": {"trusted.k8s.io/enclave": "true"}}}),
    ("PATCH", f"{NODE}/mine", {"metadata": {"annotations": {"muster.dev/joined": None}}}),
    ("PATCH", f"{NODE}/mine", {"metadata": {"annotations": {"muster.dev/bandwidth": "9Tbps"}}}),
    ("PATCH", f"{NODE}/mine", {"metadata": {"finalizers": ["a.b/c"]}}),
    ("PATCH", f"{NODE}/mine", {"spec": {"taints": None}}),
    ("PATCH", f"{NODE}/mine", {"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}}),
    ("PATCH", f"{NODE}/mine", {"spec": {"podCIDR": "10.0.0.0/8"}}),
    ("POST", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases", {"metadata": {"name": "other"}, "spec": {}}),
    ("POST", "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases", {"metadata": {"name": "mine"}, "spec": {}}),
    ("PATCH", "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/muster-controller", {"spec": {}}),
    ("POST", "/apis/slo.koordinator.sh/v1alpha1/nodemetrics", {"metadata": {"name": "other"}, "spec": {}}),
    ("GET", "/apis/slo.koordinator.sh/v1alpha1/nodemetrics", None),
    ("POST", "/api/v1/namespaces/work/serviceaccounts/default/token", {"spec": {}}),
    ("GET", "/apis/kuscia.secretflow/v1alpha1/domains/alice", None),
    ("GET", "/apis/kuscia.secretflow/v1alpha1/kusciajobs", None),
    ("GET", "/api/v1/namespaces", None),
    ("GET", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", None),
    (
        "POST",
        "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
        {
            "metadata": {"name": "me"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"kind": "User", "name": "system:node:mine"}],
        },
    ),
    ("GET", "/metrics", None),
    ("GET", "/muster/status", None),
]
FORBIDDEN += [
    # What it may not write on its Node and its pods, it may not write with their status either.
    (method, f"{path}/status", body)
    for method, path, body in FORBIDDEN
    if path in (f"{POD}/own", f"{NODE}/mine") and method == "PATCH" and body.keys() == {"metadata"}
]
FORBIDDEN += [
    ("PATCH", f"{POD}/own/status", {"metadata": {"labels": {"domain": "bob"}}, "status": {"phase": "Failed"}}),
    ("PATCH", f"{NODE}/mine/status", {"metadata": {"ownerReferences": [_owner()]}}),
    ("PUT", f"{POD}/own/status", {"metadata": {"name": "own", "annotations": {"a": "b"}}}),
    ("PUT", f"{NODE}/mine/status", {"metadata": {"name": "mine"}}),
]


def _attack(machine: Machine, method: str, path: str, body: Any, **more: Any) -> Reply:
    headers = dict(MERGE) if method == "PATCH" else {}
    return machine.request(method, path, body, headers={**headers, **more})


@pytest.mark.parametrize(("method", "path", "body"), FORBIDDEN, ids=[f"{m} {p} {b!s:.60}" for m, p, b in FORBIDDEN])
def test_an_attacker_gets_nothing(server: RunningServer, machine: Machine, method: str, path: str, body: Any) -> None:
    before = _state(server)
    reply = _attack(machine, method, path, body)
    assert reply.code == 403, (reply.code, reply.body[:500])
    assert reply.json["kind"] == "Status"
    assert _state(server) == before


def _state(server: RunningServer) -> Any:
    paths = (POD, NODE, "/api/v1/secrets", "/apis/coordination.k8s.io/v1/leases", "/api/v1/namespaces/work/events")
    return [server.request("GET", path).json["items"] for path in paths]


@pytest.mark.parametrize(
    "headers",
    [
        {"Impersonate-User": "admin", "Impersonate-Group": "system:masters"},
        {"Impersonate-User": "system:node:other", "Impersonate-Group": "system:nodes"},
        {"Impersonate-User": "system:serviceaccount:work:default"},
    ],
    ids=["admin", "another node", "an account"],
)
def test_an_attacker_is_nobody_else(machine: Machine, headers: dict[str, str]) -> None:
    assert machine.request("GET", "/api/v1/secrets", headers=headers).code == 403


@pytest.mark.parametrize("about", ["foreign", "unbound", "nobody"])
def test_an_attacker_records_nothing_about_others(server: RunningServer, machine: Machine, about: str) -> None:
    event = _event(about)
    assert machine.request("POST", "/api/v1/namespaces/work/events", event).code == 403
    made = server.create("/api/v1/namespaces/work/events", event)
    path = f"/api/v1/namespaces/work/events/{made['metadata']['name']}"
    assert _attack(machine, "PATCH", path, {"message": "lie"}).code == 403
    stolen = {"involvedObject": {"kind": "Pod", "namespace": "work", "name": "own"}}
    assert _attack(machine, "PATCH", path, stolen).code == 403


def test_an_attacker_fills_no_namespace_of_others(machine: Machine) -> None:
    """Events about itself are in `default`, those about a pod in the pod's namespace."""
    itself = {"apiVersion": "v1", "kind": "Node", "namespace": "work", "name": "mine"}
    event = {**_event("x"), "metadata": {"name": "n2"}, "involvedObject": itself}
    assert machine.request("POST", "/api/v1/namespaces/work/events", event).code == 403
    assert machine.request("POST", "/api/v1/namespaces/default/events", _event("own")).code in (403, 422)


def _event(pod: str) -> dict[str, Any]:
    about = {"apiVersion": "v1", "kind": "Pod", "namespace": "work", "name": pod}
    return {"metadata": {"name": f"e-{pod}"}, "involvedObject": about, "reason": "Test", "message": "m", "type": "Normal"}


def test_every_attack_is_one_an_administrator_may_do(server: RunningServer, machine: Machine) -> None:
    """Otherwise a mistake in a path would pass for a refusal."""
    for method, path, body in FORBIDDEN:
        if "watch" in path or method == "DELETE" or path == "/muster/status":
            continue
        dry = "" if method == "GET" else ("&" if "?" in path else "?") + "dryRun=All"
        headers = dict(MERGE) if method == "PATCH" else {}
        reply = server.request(method, path + dry, copy.deepcopy(body), headers=headers)
        assert reply.code != 403, (method, path, reply.body)


def test_what_an_agent_needs(server: RunningServer, machine: Machine) -> None:
    """The same machine does its work: everything here is what an agent asks for."""

    def ok(method: str, path: str, body: Any = None) -> Any:
        reply = _attack(machine, method, path, body)
        assert reply.code in (200, 201), (method, path, reply.body)
        return reply.json

    ok("GET", "/api")
    ok("GET", "/apis")
    listed = ok("GET", "/api/v1/pods?fieldSelector=spec.nodeName=mine")
    assert {pod["metadata"]["name"] for pod in listed["items"]} == {"own", "finished"}
    watched = "/api/v1/pods?fieldSelector=spec.nodeName%3Dmine&watch=true&timeoutSeconds=1"
    assert machine.request("GET", watched).body.count(b'"ADDED"') == 2
    ok("GET", f"{POD}/own")
    for kind in ("secrets", "configmaps"):
        ok("GET", f"/api/v1/namespaces/work/{kind}/named")
    ok("PATCH", f"{POD}/own/status", {"status": {"phase": "Running"}})
    ok("PATCH", f"{POD}/own", {"metadata": {"annotations": {"muster.dev/progress": "0.5", "muster.dev/traffic": "{}"}}})
    for path in ("/api/v1/services", "/api/v1/endpoints", NODE, f"{NODE}/other"):
        ok("GET", path)
    labels = {"kubernetes.io/os": "linux", "kuscia.secretflow/runtime": "runp", "muster.dev/agent": "1", "site": "a"}
    labels["kubernetes.io/role"] = "agent"
    labels |= {"topology.kubernetes.io/zone": "z1", "node.kubernetes.io/instance-type": "large", "example.com/disk": "ssd"}
    notes = {"muster.dev/agent-bandwidth": "1Gbps", "muster.dev/fence-seconds": "120"}
    node = ok("PATCH", f"{NODE}/mine", {"metadata": {"labels": labels, "annotations": notes}})
    taints = [*node["spec"]["taints"], {"key": "own", "effect": "NoSchedule"}]
    ok("PATCH", f"{NODE}/mine", {"spec": {"taints": taints}})
    ok("PATCH", f"{NODE}/mine/status", {"status": {"capacity": {"cpu": "2"}}})
    ok("PATCH", f"{NODE}/mine", {"spec": {"unschedulable": True}})
    assert _attack(machine, "PATCH", f"{NODE}/mine", {"spec": {"unschedulable": False}}).code == 403
    leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
    ok("POST", leases, {"metadata": {"name": "mine"}, "spec": {"holderIdentity": "mine"}})
    ok("PATCH", f"{leases}/mine", {"spec": {"leaseDurationSeconds": 40}})
    ok("GET", f"{leases}/mine")
    metrics = "/apis/slo.koordinator.sh/v1alpha1/nodemetrics"
    ok("POST", metrics, {"metadata": {"name": "mine"}, "spec": {}})
    ok("PATCH", f"{metrics}/mine/status", {"status": {}})
    ok("POST", "/api/v1/namespaces/work/events", _event("own"))
    ok("PATCH", "/api/v1/namespaces/work/events/e-own", {"count": 2})
    about = {"apiVersion": "v1", "kind": "Node", "name": "mine"}
    ok("POST", "/api/v1/namespaces/default/events", {**_event("x"), "metadata": {"name": "n"}, "involvedObject": about})
    ok("POST", "/apis/authentication.k8s.io/v1/tokenreviews", {"spec": {"token": server.token}})
    attributes = {"verb": "get", "resource": "nodes", "subresource": "proxy", "name": "mine"}
    ok("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", {"spec": {"user": "x", "resourceAttributes": attributes}})
    ok("DELETE", f"{POD}/own?gracePeriodSeconds=0")
    assert _attack(machine, "GET", "/api/v1/namespaces/work/secrets/named", None).code == 403, "its pod is gone"
    ok("DELETE", f"{NODE}/mine")
    assert machine.request("GET", NODE).code == 401


# -- addresses for pods -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ranged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningServer, Machine]]:
    """A server that has 10.7.0.0/16 for pods; node `other` has 10.7.1.0/24, `mine` nothing yet."""

    def prepare(server: Server) -> None:
        server.pod_range = "10.7.0.0/16"

    with running(tmp_path_factory.mktemp("ranges"), limits=MANY, prepare=prepare) as made:
        party(made, "alice")
        mine, other = Machine(made, "mine", "alice").join(), Machine(made, "other", "alice").join()
        taken = {"podCIDR": "10.7.1.0/24", "podCIDRs": ["10.7.1.0/24"]}
        assert other.request("PATCH", f"{NODE}/other", {"spec": taken}, headers=MERGE).code == 200
        yield made, mine


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        pytest.param({"podCIDR": "192.168.7.0/24"}, "not a part of 10.7.0.0/16", id="addresses of somebody's network"),
        pytest.param({"podCIDR": "10.0.0.0/8"}, "not a part of 10.7.0.0/16", id="more than there is"),
        pytest.param({"podCIDR": "10.7.0.0/16"}, "not a part of 10.7.0.0/16", id="all of it"),
        pytest.param({"podCIDR": "10.7.0.0/23"}, "node other has addresses in it", id="another node's"),
        pytest.param({"podCIDR": "fd00::/64"}, "not a part of 10.7.0.0/16", id="another family"),
        pytest.param({"podCIDR": "10.7.2.0/24", "podCIDRs": ["10.7.2.0/24", "10.7.3.0/24"]}, "one network", id="two"),
        pytest.param({"podCIDRs": ["10.7.2.0/24"]}, "one network", id="only in the list"),
    ],
)
def test_pod_addresses_that_a_node_may_not_take(ranged: tuple[RunningServer, Machine], spec: dict[str, Any], why: str) -> None:
    server, mine = ranged
    reply = mine.request("PATCH", f"{NODE}/mine", {"spec": spec}, headers=MERGE)
    assert (reply.code, why in reply.json["message"]) == (403, True), reply.body[:500]
    assert "podCIDR" not in server.request("GET", f"{NODE}/mine").json["spec"]


def test_a_node_takes_free_pod_addresses_once(ranged: tuple[RunningServer, Machine]) -> None:
    server, _ = ranged
    third = Machine(server, "third", "alice").join()
    for wanted, code in (("10.7.9.0/24", 200), ("10.7.10.0/24", 422)):
        spec = {"podCIDR": wanted, "podCIDRs": [wanted]}
        assert third.request("PATCH", f"{NODE}/third", {"spec": spec}, headers=MERGE).code == code
    assert server.request("GET", f"{NODE}/third").json["spec"]["podCIDR"] == "10.7.9.0/24"
    server.request("DELETE", f"{NODE}/third")
    fourth = Machine(server, "fourth", "alice").join()
    spec = {"podCIDR": "10.7.9.0/24"}
    assert fourth.request("PATCH", f"{NODE}/fourth", {"spec": spec}, headers=MERGE).code == 200, "they are free again"
