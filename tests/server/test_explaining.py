"""`/muster/v1/explain` on a real server: answers, access, and what it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from muster.engine import events as ev
from muster.engine.machine import Engine
from muster.engine.plugins.fit import Fit
from muster.engine.profile import Profile
from muster.server.asking import BODY_BYTES_MAX
from muster.server.explaining import PATH, Explaining
from muster.server.run import Server
from tests.engine.building import PROFILE, node, pod
from tests.server.running import RunningServer, running

GRANTS = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "Role",
    "metadata": {"name": "asks", "namespace": "default"},
    "rules": [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"], "resourceNames": ["waits"]},
        {"apiGroups": ["scheduling.koordinator.sh"], "resources": ["scheduleexplanations"], "verbs": ["create"]},
        {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["get"]},
    ],
}
BINDING = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "RoleBinding",
    "metadata": {"name": "asks", "namespace": "default"},
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "asks"},
    "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "ann"}],
}
MANIFEST: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "h"},
    "spec": {"schedulerName": PROFILE, "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]},
}
WIDE: dict[str, Any] = {
    **MANIFEST,
    "spec": {"schedulerName": PROFILE, "containers": [{"name": "c", "resources": {"requests": {"cpu": "2"}}}]},
}
ENGINES: list[Engine] = []


@pytest.fixture(scope="module")
def explaining(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    engine = Engine([Profile(PROFILE, [Fit()])])
    engine.step(
        [ev.NodeSeen(node("n1", cpu="2")), ev.PodSeen(pod("runs", cpu="1", node="n1")), ev.PodSeen(pod("waits", cpu="2"))], 1.0
    )
    ENGINES[:] = [engine]

    def prepare(server: Server) -> None:
        server.extra_routes += Explaining(lambda: ENGINES[0] if ENGINES else None, lambda: server.store).routes()

    with running(tmp_path_factory.mktemp("explaining"), prepare=prepare) as made:
        path = "/apis/rbac.authorization.k8s.io/v1/namespaces/default"
        assert made.request("POST", f"{path}/roles", GRANTS).code == 201
        assert made.request("POST", f"{path}/rolebindings", BINDING).code == 201
        yield made


def test_by_name_and_by_key(explaining: RunningServer) -> None:
    got = explaining.request("GET", f"{PATH}/Pod/default/waits?nodes=1")
    assert got.code == 200
    (item,) = got.json["items"]
    assert (item["state"], item["verdict"]["reason"]) == ("waiting", "CPUInsufficient")
    assert item["verdict"]["nodesByReason"] == {"CPUInsufficient": 1}
    assert len(item["evaluations"][0]["nodes"]) == 1
    assert explaining.request("POST", PATH, {"key": "Pod/default/waits"}).json["items"][0]["verdict"] == item["verdict"]
    assert explaining.request("GET", f"{PATH}/pods/default/waits").code == 200


def test_a_manifest_bare_or_with_a_namespace(explaining: RunningServer) -> None:
    for body in (MANIFEST, {"manifest": MANIFEST, "namespace": "default"}):
        (item,) = explaining.request("POST", PATH, body).json["items"]
        assert item["pods"] == [{"pod": "default/h", "node": "n1", "score": item["pods"][0]["score"]}]


@pytest.mark.parametrize(
    ("method", "path", "body", "user", "code"),
    [
        pytest.param("GET", f"{PATH}/Pod/default/waits", None, "ann", 200, id="what may be got"),
        pytest.param("GET", f"{PATH}/Pod/default/runs", None, "ann", 403, id="another pod"),
        pytest.param("POST", PATH, {"key": "default/runs"}, "ann", 403, id="another pod by key"),
        pytest.param("POST", PATH, MANIFEST, "ann", 200, id="a manifest"),
        pytest.param("POST", PATH, {"manifest": MANIFEST, "namespace": "other"}, "ann", 403, id="a manifest elsewhere"),
        pytest.param("POST", PATH, MANIFEST, "bob", 403, id="a manifest without the right"),
        pytest.param("GET", f"{PATH}/Pod/default/nobody", None, "", 404, id="nobody"),
        pytest.param("GET", f"{PATH}/Node/default/n1", None, "", 404, id="no work"),
        pytest.param("GET", f"{PATH}/Pod/default/waits?nodes=x", None, "", 400, id="no number"),
        pytest.param("GET", f"{PATH}/Pod/default/waits?nodes=99999", None, "", 400, id="too many nodes"),
        pytest.param("GET", f"{PATH}/Pod/default/waits?nodes=00000000099999", None, "", 400, id="too many behind zeros"),
        pytest.param("POST", PATH, b"{", "", 400, id="no JSON"),
        pytest.param("POST", PATH, b"[" * 100_000, "", 400, id="too deep"),
        pytest.param("POST", PATH, b'{"key": "\xff"}', "", 400, id="no text"),
        pytest.param("POST", PATH, [], "", 400, id="no object"),
        pytest.param("POST", PATH, {"key": "x"}, "", 400, id="no key"),
        pytest.param("POST", PATH, {"manifest": 3}, "", 400, id="no manifest"),
        pytest.param("POST", PATH, {"kind": "Service"}, "", 422, id="no pods"),
        pytest.param("POST", PATH, b" " * (BODY_BYTES_MAX + 1), "", 413, id="too large"),
        pytest.param("DELETE", PATH, None, "", 405, id="another method"),
    ],
)
def test_access_and_refusals(explaining: RunningServer, method: str, path: str, body: Any, user: str, code: int) -> None:
    reply = explaining.request(method, path, body, headers={"Impersonate-User": user} if user else None)
    assert reply.code == code, reply.body
    if code != 200:
        assert reply.json["kind"] == "Status"


def test_work_of_others_is_counted_and_not_named(explaining: RunningServer) -> None:
    """ann may get the pod that waits, and not the one that has what it lacks."""
    for method, path, body in (
        ("GET", f"{PATH}/Pod/default/waits", None),
        ("POST", PATH, {"key": "default/waits"}),
        ("POST", PATH, WIDE),
    ):
        told = explaining.request(method, path, body, headers={"Impersonate-User": "ann"})
        (short, *_) = told.json["items"][0]["verdict"]["shortfalls"]
        assert short["holders"] == [{"kind": "Pod", "name": "(not yours to see)", "amount": 1000, "node": "n1"}]
        assert "default/runs" not in told.body.decode()
        assert "n1 has room when these end: 1 pod of other work" in told.json["items"][0]["verdict"]["helps"]
        everything = explaining.request(method, path, body)
        assert everything.json["items"][0]["verdict"]["shortfalls"][0]["holders"][0]["name"] == "default/runs"
        assert "n1 has room when these end: Pod/default/runs" in everything.json["items"][0]["verdict"]["helps"]


def test_strangers_do_not_get_in(explaining: RunningServer) -> None:
    assert explaining.request("GET", f"{PATH}/Pod/default/waits", token="").code == 401


def test_while_no_scheduler_runs(explaining: RunningServer) -> None:
    kept, ENGINES[:] = list(ENGINES), []
    try:
        assert explaining.request("GET", f"{PATH}/Pod/default/waits").code == 503
    finally:
        ENGINES[:] = kept


def test_a_kind_of_the_same_name_in_another_group_is_no_way_around(explaining: RunningServer) -> None:
    """The scheduler knows pods by the kind and name of what made them: of two kinds `Job`, one may be read."""
    asked, ann = f"{PATH}/jobs.batch/default/train", {"Impersonate-User": "ann"}
    assert explaining.request("GET", asked, headers=ann).code == 404, "hers to ask, and there is none"
    spec = {"roles": [{"name": "w", "command": ["x"]}]}
    explaining.create("/apis/muster.dev/v1alpha1/namespaces/default/jobs", {"metadata": {"name": "train"}, "spec": spec})
    refused = explaining.request("GET", asked, headers=ann)
    assert refused.code == 403
    assert 'jobs.muster.dev "train" is forbidden' in refused.message
    assert explaining.request("GET", asked).code == 404, "of an administrator: the scheduler knows no pod of it"
