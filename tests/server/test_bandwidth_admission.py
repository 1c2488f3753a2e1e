"""Work that no node could ever hold is refused when it is submitted: over HTTP on a real server, and through the webhook."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.objects.bandwidth import Directions, both
from muster.objects.labels import KusciaLabel, Muster
from muster.objects.status import Raw
from muster.server.bandwidth_admission import BandwidthFits, Capacities
from muster.server.webhook import Webhook
from tests.server.running import Reply, RunningServer, running

G = 10**9
KUSCIA = "/apis/kuscia.secretflow/v1alpha1"


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server of this file's own: nodes are cluster-wide, and here they decide what is taken."""
    with running(tmp_path_factory.mktemp("bandwidth")) as made:
        for account in ("cross-domain", "default"):
            with made.watch(f"/api/v1/namespaces/{account}/serviceaccounts") as watch:
                assert watch.next()["type"] == "ADDED"
        yield made


@pytest.fixture
def server(own: RunningServer) -> Iterator[RunningServer]:
    yield own
    for path in ("/api/v1/nodes", f"{KUSCIA}/appimages", f"{KUSCIA}/domains"):
        assert own.request("DELETE", path).code == 200
    for kind in ("api/v1/namespaces/default/pods", "apis/muster.dev/v1alpha1/namespaces/default/jobs"):
        assert own.request("DELETE", f"/{kind}?gracePeriodSeconds=0").code == 200
    assert own.request("DELETE", f"{KUSCIA}/namespaces/cross-domain/kusciajobs").code == 200


def add_node(server: RunningServer, name: str, amount: str = "", domain: str = "", **directions: str) -> None:
    notes = {Muster.BANDWIDTH: amount} if amount else {}
    notes |= {f"{Muster.BANDWIDTH}-{word}": value for word, value in directions.items()}
    labels = {KusciaLabel.NODE_NAMESPACE: domain} if domain else {}
    server.create("/api/v1/nodes", {"metadata": {"name": name, "annotations": notes, "labels": labels}})


def kuscia_job(name: str, **amounts: str) -> Raw:
    """One task in which each party asks for as much."""
    parties = [{"domainID": d, "role": "r", "resources": {"requests": {"bandwidth": a}}} for d, a in amounts.items()]
    tasks = [{"alias": "t", "appImage": "app", "taskInputConfig": "", "parties": parties}]
    return {
        "apiVersion": "kuscia.secretflow/v1alpha1",
        "kind": "KusciaJob",
        "metadata": {"name": name},
        "spec": {"initiator": "alice", "tasks": tasks},
    }


def submit(server: RunningServer, **amounts: str) -> Reply:
    return server.request("POST", f"{KUSCIA}/namespaces/cross-domain/kusciajobs", kuscia_job("j", **amounts))


def pod(amount: str, **extra: Any) -> Raw:
    metadata = {"name": "p", "annotations": {Muster.BANDWIDTH: amount}, **extra}
    return {"metadata": metadata, "spec": {"containers": [{"name": "c", "image": "i"}]}}


def test_while_no_node_is_known_everything_passes(server: RunningServer) -> None:
    reply = submit(server, alice="90Tbps")
    assert (reply.code, reply.headers.get("warning")) == (201, None)


def test_nodes_that_say_nothing_lead_to_a_warning(server: RunningServer) -> None:
    add_node(server, "n1")
    reply = submit(server, alice="1Gbps")
    assert reply.code == 201
    assert "muster node set-bandwidth" in reply.headers["warning"]


def test_more_than_the_largest_node_is_refused_by_name(server: RunningServer) -> None:
    add_node(server, "small", "1Gbps")
    add_node(server, "large", "10Gbps")
    assert submit(server, alice="10Gbps").code == 201
    assert server.request("DELETE", f"{KUSCIA}/namespaces/cross-domain/kusciajobs/j").code == 200
    reply = submit(server, alice="10Gbps", bob="10.001Gbps")
    assert (reply.code, reply.reason) == (403, "Forbidden")
    assert reply.message == (
        'kusciajobs.kuscia.secretflow "j" is forbidden: Impossible: spec.tasks[0].parties[1].resources: a pod of party bob '
        "asks for 10.001Gbps, but the largest node is large with 10Gbps; ask for less, use more pods, or raise a "
        "node's capacity"
    )


def test_a_party_is_held_against_its_own_nodes(server: RunningServer) -> None:
    add_node(server, "a1", "1Gbps", domain="alice")
    add_node(server, "b1", "10Gbps", domain="bob")
    assert submit(server, alice="1Gbps", bob="10Gbps", carol="10Gbps").code == 201
    reply = submit(server, alice="2Gbps")
    assert "the largest node of party alice is a1 with 1Gbps" in reply.message


def test_a_partners_nodes_are_not_ours_to_judge(server: RunningServer) -> None:
    add_node(server, "a1", "1Gbps")
    server.create(f"{KUSCIA}/domains", {"metadata": {"name": "bob"}, "spec": {"role": "partner"}})
    assert submit(server, alice="1Gbps", bob="50Gbps").code == 201


def test_a_total_is_divided_over_the_partys_pods(server: RunningServer) -> None:
    add_node(server, "n1", "1Gbps")
    assert submit(server, alice="3Gbps").code == 403, "one pod, as far as is known"
    template = {"name": "t", "role": "r", "replicas": 3, "spec": {"containers": [{"name": "c"}]}}
    image = {"metadata": {"name": "app"}, "spec": {"image": {"name": "i", "tag": "1"}, "deployTemplates": [template]}}
    server.create(f"{KUSCIA}/appimages", image)
    assert submit(server, alice="3Gbps").code == 201
    server.request("DELETE", f"{KUSCIA}/namespaces/cross-domain/kusciajobs/j")
    reply = submit(server, alice="3000000001bps")
    assert reply.code == 403
    assert "1000000.001Kbps (its share of 3000000.001Kbps over 3 pods)" in reply.message


def test_a_capacity_that_changes_counts_at_once(server: RunningServer) -> None:
    add_node(server, "n1", "1Gbps")
    patch = {"metadata": {"annotations": {Muster.BANDWIDTH: "5Gbps"}}}
    headers = {"content-type": "application/merge-patch+json"}
    assert submit(server, alice="5Gbps").code == 403
    assert server.request("PATCH", "/api/v1/nodes/n1", patch, headers=headers).code == 200
    assert submit(server, alice="5Gbps").code == 201
    patch["metadata"]["annotations"][Muster.BANDWIDTH] = "1Gbps"
    assert server.request("PATCH", "/api/v1/nodes/n1", patch, headers=headers).code == 200
    path = f"{KUSCIA}/namespaces/cross-domain/kusciajobs/j"
    relabel = {"metadata": {"labels": {"a": "b"}}, "spec": {"maxParallelism": 2}}
    assert server.request("PATCH", path, relabel, headers=headers).code == 200, "what was accepted can be worked on"
    job = server.request("GET", path).json
    job["spec"]["tasks"][0]["parties"][0]["resources"]["requests"]["bandwidth"] = "2Gbps"
    assert server.request("PUT", path, job).code == 403, "what is asked for anew is judged anew"
    assert server.request("DELETE", "/api/v1/nodes/n1").code == 200
    assert server.request("PUT", path, job).code == 200


def test_pods_and_those_that_a_controller_makes(server: RunningServer) -> None:
    add_node(server, "n1", "1Gbps")
    path = "/api/v1/namespaces/default/pods"
    assert server.request("POST", path, pod("2Gbps")).code == 403
    assert server.request("POST", path, pod("1Gbps")).code == 201
    merge = {"content-type": "application/merge-patch+json"}
    for subresource in ("", "/status"):
        more = server.request("PATCH", f"{path}/p{subresource}", {"metadata": pod("2Gbps")["metadata"]}, headers=merge)
        assert (more.code, "Impossible" in more.message) == (403, True)
        wrong = server.request("PATCH", f"{path}/p{subresource}", {"metadata": pod("2 bananas")["metadata"]}, headers=merge)
        assert (wrong.code, Muster.BANDWIDTH in wrong.message) == (422, True)
    owner = {"apiVersion": "muster.dev/v1alpha1", "kind": "Job", "name": "j", "uid": "u", "controller": True}
    assert server.request("POST", path, pod("2Gbps", name="owned", ownerReferences=[owner])).code == 201
    owned = kuscia_job("j", alice="2Gbps")
    owned["metadata"]["ownerReferences"] = [owner]
    assert server.request("POST", f"{KUSCIA}/namespaces/cross-domain/kusciajobs", owned).code == 201


def test_jobs(server: RunningServer) -> None:
    add_node(server, "n1", egress="1Gbps", ingress="10Gbps")
    add_node(server, "n2", egress="10Gbps", ingress="1Gbps")
    role = {"name": "r", "image": "i", "replicas": 50, "resources": {"requests": {"bandwidth-egress": "10Gbps"}}}
    job = {"metadata": {"name": "j"}, "spec": {"roles": [role]}}
    path = "/apis/muster.dev/v1alpha1/namespaces/default/jobs"
    assert server.request("POST", path, job).code == 201
    role["resources"] = {"requests": {"bandwidth": "2Gbps"}}
    reply = server.request("POST", path, job)
    assert reply.code == 403
    assert "n2 with egress 10Gbps or n1 with ingress 10Gbps, and none has both" in reply.message


def test_wrong_units_name_field_and_value(server: RunningServer) -> None:
    reply = submit(server, alice="500m")
    assert (reply.code, reply.reason) == (422, "Invalid")
    [cause] = reply.json["details"]["causes"]
    assert cause["field"] == "spec.tasks[0].parties[0].resources.requests[bandwidth]"
    assert "UnitInvalid: '500m' is not a bandwidth" in cause["message"]


# -- without a server -------------------------------------------------------------------------------------------------------


def node(name: str, amount: Directions | None) -> Raw:
    notes = (
        {}
        if amount is None
        else {
            Muster.BANDWIDTH_EGRESS: str(amount.egress_bps),
            Muster.BANDWIDTH_INGRESS: str(amount.ingress_bps),
        }
    )
    return {"metadata": {"name": name, "annotations": notes}}


async def test_the_webhook_refuses_the_same() -> None:
    capacities = Capacities()
    app = Webhook(hooks=[BandwidthFits(capacities)])

    async def ask() -> Raw:
        request = {
            "uid": "u",
            "resource": {"group": "kuscia.secretflow", "version": "v1alpha1", "resource": "kusciajobs"},
            "operation": "CREATE",
            "name": "j",
            "namespace": "cross-domain",
            "object": kuscia_job("j", alice="2Gbps"),
        }
        review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
        answer: Raw = (await app.review("/validate", msgspec.json.encode(review)))["response"]
        return answer

    assert (await ask())["allowed"]
    capacities.apply("Node", node("n1", both(G)))
    refused = await ask()
    assert not refused["allowed"]
    assert "Impossible" in refused["status"]["message"]
    capacities.apply("Node", node("n1", both(G)), deleted=True)
    capacities.apply("Node", node("n1", both(G)), deleted=True)
    assert (await ask())["allowed"]


SIZES = st.builds(Directions, st.integers(0, 5), st.integers(0, 5))


@given(st.lists(st.one_of(st.none(), SIZES), max_size=8), SIZES)
def test_what_decides_is_whether_any_node_holds_it(sizes: list[Directions | None], wanted: Directions) -> None:
    capacities = Capacities()
    for index, size in enumerate(sizes):
        capacities.apply("Node", node(f"n{index}", size))
    _, best = capacities.best("")
    assert any(b.usable.holds(wanted) for b in best) == any(s is not None and s.holds(wanted) for s in sizes)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["", "x", "y"]), st.one_of(st.none(), SIZES)), max_size=12))
def test_what_is_remembered_is_the_last_that_was_said(changes: list[tuple[str, str, Directions | None]]) -> None:
    """Fed change by change, deletions included, it knows what it would know if it had seen the end alone."""
    followed, fresh = Capacities(), Capacities()
    last: dict[str, Raw] = {}
    for name, domain, size in changes:
        raw = node(name, size)
        raw["metadata"]["labels"] = {KusciaLabel.NODE_DOMAIN: domain}
        is_deleted = size == Directions(0, 0)
        followed.apply("Node", raw, deleted=is_deleted)
        followed.best(domain)
        last.pop(name, None)
        if not is_deleted:
            last[name] = raw
    for raw in last.values():
        fresh.apply("Node", raw)
    assert followed.has_nodes == fresh.has_nodes
    for domain in ("", "x", "y"):
        assert followed.best(domain) == fresh.best(domain)
