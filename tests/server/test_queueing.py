"""`/muster/v1/queues` and `/muster/v1/jobs/.../place` on a real server, from a real engine and order: answers and access."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from muster.engine import events as ev
from muster.engine.machine import Engine
from muster.engine.plugins.fit import Fit
from muster.engine.profile import Profile
from muster.engine.work import Work, encode_work
from muster.policy.order import PolicyOrder
from muster.server.forecasting import PATH as ETA_PATH
from muster.server.forecasting import Forecasting
from muster.server.queueing import JOBS_PATH, QUEUES_PATH, Queueing
from muster.server.run import Server
from tests.engine.building import PROFILE, node, pod
from tests.policy.building import policy_facts, queue_facts
from tests.server.running import RunningServer, running

FACTORS = [{"name": "level", "source": "JobLevel", "weight": 10}, {"name": "age", "source": "AgeSeconds"}]
ENGINES: list[Engine | None] = []


def work(name: str, namespace: str, **more: Any) -> ev.PodSeen:
    said = Work(job=f"Job/{namespace}/{name}", queue="q", **more)
    return ev.PodSeen(pod(f"{name}-w-0", namespace=namespace, cpu="2", annotations={"muster.dev/work": encode_work(said)}))


@pytest.fixture(scope="module")
def queueing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    engine = Engine([Profile(PROFILE, [Fit()])], order=PolicyOrder())
    engine.step(
        [
            ev.NodeSeen(node("n1", cpu="8")),
            ev.PolicySeen(policy_facts("p", factors=FACTORS)),
            ev.QueueSeen(queue_facts("top", policy="p", limits={"concurrent": {"cpu": "2"}})),
            ev.QueueSeen(queue_facts("q", policy="p", parent="top")),
            work("runs", "default", submitted=1.0, user="bob"),
        ],
        10.0,
    )
    engine.step([work("mine", "default", submitted=5.0, user="ann"), work("theirs", "secret", submitted=4.0, level=3)], 20.0)
    ENGINES[:] = [engine]

    def prepare(server: Server) -> None:
        server.extra_routes += Queueing(lambda: ENGINES[0]).routes()
        server.extra_routes += Forecasting(lambda: ENGINES[0], people=lambda: server.memory.people).routes()

    with running(tmp_path_factory.mktemp("queueing"), prepare=prepare) as made:
        path = "/apis/rbac.authorization.k8s.io/v1"
        group = "rbac.authorization.k8s.io"
        jobs = {"apiGroups": ["muster.dev"], "resources": ["jobs"], "verbs": ["get"]}
        queues = {"apiGroups": ["muster.dev"], "resources": ["queues"], "verbs": ["get"], "resourceNames": ["q"]}
        for kind, where, rule in (("Role", f"{path}/namespaces/default/", jobs), ("ClusterRole", f"{path}/", queues)):
            made.create(f"{where}{kind.lower()}s", {"metadata": {"name": "asks"}, "rules": [rule]})
            ref = {"apiGroup": group, "kind": kind, "name": "asks"}
            subjects = [{"apiGroup": group, "kind": "User", "name": "ann"}]
            made.create(f"{where}{kind.lower()}bindings", {"metadata": {"name": "asks"}, "roleRef": ref, "subjects": subjects})
        yield made


def test_all_queues(queueing: RunningServer) -> None:
    found = {one["queue"]: one for one in queueing.request("GET", QUEUES_PATH).json["items"]}
    assert (found["q"]["waiting"], found["q"]["running"], found["q"]["head"]) == (2, 1, "Job/secret/theirs")
    assert found["q"]["runningRequest"]["cpu"] == "2"
    assert (found["top"]["waiting"], found["top"]["head"]) == (0, "")


def test_the_line_of_one(queueing: RunningServer) -> None:
    first, second = queueing.request("GET", f"{QUEUES_PATH}/q").json["places"]
    assert (first["position"], first["of"], first["job"], first["policy"]) == (1, 2, "Job/secret/theirs", "p")
    assert {one["name"]: one["contribution"] for one in first["factors"]} == {"level": 30.0, "age": 16.0}
    assert first["score"] == 46.0
    assert second["job"] == "Job/default/mine"
    assert len(queueing.request("GET", f"{QUEUES_PATH}/q?first=1").json["places"]) == 1


def test_where_a_job_stands_why_and_who_uses_what_it_lacks(queueing: RunningServer) -> None:
    answer = queueing.request("GET", f"{JOBS_PATH}/default/mine/place").json
    assert (answer["state"], answer["place"]["position"], answer["ahead"]["job"]) == ("waiting", 2, "Job/secret/theirs")
    refused = answer["place"]["refused"]
    assert (refused["reason"], refused["subject"]) == ("QueueLimitReached", "Queue top")
    assert refused["shortfalls"][0]["holders"] == [{"kind": "Job", "name": "default/runs", "amount": 2000}]
    running = queueing.request("GET", f"{JOBS_PATH}/default/runs/place").json
    assert (running["state"], running["place"]["position"], running["ahead"]) == ("running", 0, None)


def test_what_others_do_is_told_without_their_names(queueing: RunningServer) -> None:
    token = queueing.user("ann")
    first, second = queueing.request("GET", f"{QUEUES_PATH}/q", token=token).json["places"]
    assert first == {"queue": "q", "position": 1, "of": 2, "score": 46.0, "hidden": True}
    assert second["user"] == "ann"
    assert queueing.request("GET", f"{QUEUES_PATH}/q", token=token).json["head"] == ""
    answer = queueing.request("GET", f"{JOBS_PATH}/default/mine/place", token=token).json
    assert answer["ahead"]["hidden"]
    assert "theirs" not in str(answer)


@pytest.mark.parametrize(
    ("path", "code"),
    [
        pytest.param(QUEUES_PATH, 403, id="all queues"),
        pytest.param(f"{QUEUES_PATH}/top", 403, id="another queue"),
        pytest.param(f"{JOBS_PATH}/secret/theirs/place", 403, id="a job elsewhere"),
        pytest.param(f"{JOBS_PATH}/default/nothing/place", 404, id="no such job"),
        pytest.param(f"{JOBS_PATH}/default/mine/place?kind=Pod", 400, id="a kind that does not queue"),
        pytest.param(f"{QUEUES_PATH}/q?first=many", 400, id="no number"),
        pytest.param(f"{QUEUES_PATH}/q?first=1001", 400, id="too many"),
    ],
)
def test_refused(queueing: RunningServer, path: str, code: int) -> None:
    assert queueing.request("GET", path, token=queueing.user("ann")).code == code


def test_an_unknown_queue(queueing: RunningServer) -> None:
    refused = queueing.request("GET", f"{QUEUES_PATH}/nowhere")
    assert refused.code == 404
    assert "'nowhere'" in refused.message


def test_without_a_scheduler_or_without_queues_it_says_so(queueing: RunningServer) -> None:
    live = ENGINES[0]
    try:
        for one in (None, Engine([Profile(PROFILE, [Fit()])])):
            ENGINES[0] = one
            assert queueing.request("GET", QUEUES_PATH).code == 503
    finally:
        ENGINES[0] = live


@pytest.mark.parametrize(
    ("method", "path", "body", "resource"),
    [
        pytest.param("GET", QUEUES_PATH, None, "queues", id="queues"),
        pytest.param("GET", f"{JOBS_PATH}/default/mine/place", None, "jobs", id="place"),
        pytest.param("GET", f"{JOBS_PATH}/default/mine/eta", None, "jobs", id="when"),
        pytest.param("POST", ETA_PATH, {"manifest": {"kind": "Pod"}}, "jobs", id="when, if it were sent now"),
    ],
)
def test_everybody_may_knock_and_is_told_what_it_takes(
    queueing: RunningServer, method: str, path: str, body: dict[str, Any] | None, resource: str
) -> None:
    """The path itself is closed to nobody who is known: what is missing is a right on the work."""
    refused = queueing.request(method, path, body, token=queueing.user("nobody-yet"))
    assert refused.code == 403
    assert f'resource "{resource}" in API group "muster.dev"' in refused.message


def test_what_is_foretold_of_others_is_for_those_who_may_read_them(queueing: RunningServer) -> None:
    """Last: from here on there are Users."""
    path = "/apis/muster.dev/v1alpha1"
    queueing.create(f"{path}/usergroups", {"metadata": {"name": "lab"}, "spec": {}})
    for name in ("cy", "bob"):
        queueing.create(f"{path}/users", {"metadata": {"name": name}, "spec": {"group": "lab"}})
    rbac, group = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings", "rbac.authorization.k8s.io"
    ref = {"apiGroup": group, "kind": "ClusterRole", "name": "muster:submitter"}
    subjects = [{"apiGroup": group, "kind": "User", "name": "cy"}]
    queueing.create(rbac, {"metadata": {"name": "submits"}, "roleRef": ref, "subjects": subjects})
    token = queueing.user("cy")
    for user, code in (("", 200), ("cy", 200), ("bob", 403)):
        pod_ = {
            "metadata": {"name": "p", "labels": {"muster.dev/user": user} if user else {}},
            "kind": "Pod",
            "apiVersion": "v1",
        }
        manifest = {**pod_, "spec": {"containers": [{"name": "c"}]}}
        reply = queueing.request("POST", ETA_PATH, {"manifest": manifest}, token=token)
        assert reply.code == code, (user, reply.body)
