"""What is submitted, for whom and into which queue; who divides limits; who sees whose work: over HTTP on a real server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.controllers.work_sizes import Work, submitted_work
from muster.objects.kinds.muster_queues import QueueAdmission
from muster.objects.selectors import LabelSelector
from muster.objects.status import ApiError, Raw
from muster.server.limits_admission import SubmissionLimits, not_taken
from muster.server.memory import Memory
from muster.server.people import People
from muster.server.rbac import Attributes
from muster.server.webhook import Webhook
from muster.server.whose_work import FillsInUser
from muster.store.embedded import Actor, EmbeddedStore
from tests.server.running import Reply, RunningServer, running

MUSTER = "/apis/muster.dev/v1alpha1"
JOBS = f"{MUSTER}/namespaces/default/jobs"
RBAC = "/apis/rbac.authorization.k8s.io/v1"


def named(kind: str, name: str, **spec: Any) -> Raw:
    return {"apiVersion": "muster.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def job(name: str, cpu: int = 1, replicas: int = 1, **spec: Any) -> Raw:
    role = {"name": "w", "replicas": replicas, "command": ["x"], "resources": {"requests": {"cpu": cpu}}}
    raw = named("Job", name, roles=[role], **spec)
    raw["metadata"]["namespace"] = "default"
    return raw


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running(tmp_path_factory.mktemp("limits")) as made:
        with made.watch("/api/v1/namespaces/default/serviceaccounts") as watch:
            assert watch.next()["type"] == "ADDED"
        made.create(
            f"{RBAC}/clusterrolebindings",
            {
                "metadata": {"name": "submitters"},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "muster:submitter"},
                "subjects": [{"kind": "Group", "name": "people", "apiGroup": "rbac.authorization.k8s.io"}],
            },
        )
        yield made


@pytest.fixture
def server(own: RunningServer) -> Iterator[RunningServer]:
    own.create(f"{MUSTER}/usergroups", named("UserGroup", "lab", admins=["gil"], limits={"concurrent": {"cpu": 20}}))
    own.create(f"{MUSTER}/usergroups", named("UserGroup", "team", parent="lab"))
    own.create(f"{MUSTER}/users", named("User", "gil", group="lab"))
    ann = {"limits": {"perJob": {"cpu": 4}, "submitted": {"cpu": 6}, "jobsSubmitted": 3}, "usernames": ["ann@example.org"]}
    own.create(f"{MUSTER}/users", named("User", "ann", group="team", **ann))
    own.create(f"{MUSTER}/users", named("User", "bob", group="team", suspended=True))
    own.create(f"{MUSTER}/queues", named("Queue", "open"))
    yield own
    for path in (JOBS, "/api/v1/namespaces/default/pods?gracePeriodSeconds=0", f"{MUSTER}/users", f"{MUSTER}/queues"):
        assert own.request("DELETE", path).code == 200
    for group in ("other", "team", "lab"):
        own.request("DELETE", f"{MUSTER}/usergroups/{group}")
    assert own.request("GET", f"{MUSTER}/usergroups").json["items"] == []


def as_user(server: RunningServer, login: str, method: str, path: str, body: Raw | None = None, **headers: str) -> Reply:
    sent = {"Impersonate-User": login, "Impersonate-Group": "people", **headers}
    return server.request(method, path, body, headers=sent)


def submit(server: RunningServer, login: str, body: Raw) -> Reply:
    return as_user(server, login, "POST", JOBS, body)


ANN = "ann@example.org"
MERGE = {"content-type": "application/merge-patch+json"}


def test_whose_it_is_is_filled_in(server: RunningServer) -> None:
    reply = submit(server, ANN, job("mine"))
    assert reply.code == 201
    assert (reply.json["spec"]["user"], reply.json["metadata"]["labels"]["muster.dev/user"]) == ("ann", "ann")


@pytest.mark.parametrize(
    ("login", "body", "said"),
    [
        pytest.param(
            ANN, job("j", 5), "JobExceedsLimit: spec.limits.perJob[cpu] of User ann: limit 4, requested 5", id="perJob"
        ),
        pytest.param(
            "gil",
            job("j", 7, 3),
            "JobExceedsLimit: spec.limits.concurrent[cpu] of UserGroup lab: limit 20, waiting and running 0, requested 21",
            id="larger than the group may ever run",
        ),
        pytest.param(ANN, job("j", user="bob"), "UserSuspended: User bob may submit nothing", id="suspended"),
        pytest.param(ANN, job("j", user="gil"), "UserNotYours: spec.user: 'ann@example.org' does not act for User", id="for"),
        pytest.param(ANN, job("j", user="eve"), "UserNotFound: spec.user: there is no User 'eve'", id="nobody"),
        pytest.param(ANN, job("j", queue="no"), "QueueNotFound: spec.queue: there is no Queue 'no'; there are", id="queue"),
    ],
)
def test_refusals_say_what_is_wrong(server: RunningServer, login: str, body: Raw, said: str) -> None:
    reply = submit(server, login, body)
    assert reply.code == 403, reply.body
    assert said in reply.message
    assert server.request("GET", JOBS).json["items"] == []


def test_what_waits_and_runs_together(server: RunningServer) -> None:
    assert submit(server, ANN, job("one", 4)).code == 201
    reply = submit(server, ANN, job("two", 3))
    assert (
        "SubmitLimitReached: spec.limits.submitted[cpu] of User ann: limit 6, waiting and running 4, requested 3"
        in reply.message
    )
    assert submit(server, ANN, job("three", 1)).code == 201
    assert submit(server, ANN, job("four", 1)).code == 201
    assert (
        "spec.limits.jobsSubmitted of User ann: limit 3, waiting and running 3" in submit(server, ANN, job("five", 0)).message
    )
    assert as_user(server, ANN, "DELETE", f"{JOBS}/one").code == 200
    assert submit(server, ANN, job("five", 3)).code == 201


def test_a_job_that_ended_makes_room_and_one_that_starts_again_is_judged_again(server: RunningServer) -> None:
    assert submit(server, ANN, job("one", 4)).code == 201
    stop = {"spec": {"state": "Stopped"}}
    assert as_user(server, ANN, "PATCH", f"{JOBS}/one", stop, **MERGE).code == 200
    assert submit(server, ANN, job("two", 4)).code == 201
    again = as_user(server, ANN, "PATCH", f"{JOBS}/one", {"spec": {"state": "Running"}}, **MERGE)
    assert "SubmitLimitReached" in again.message


def test_a_failed_write_holds_nothing_for_long_and_a_dry_run_nothing_at_all(server: RunningServer) -> None:
    for _ in range(5):
        assert as_user(server, ANN, "POST", f"{JOBS}?dryRun=All", job("dry", 4)).code == 201
    assert submit(server, ANN, job("real", 4)).code == 201


def test_submissions_that_come_together_do_not_slip_past(server: RunningServer) -> None:
    server.create(f"{MUSTER}/users", named("User", "cho", group="team", limits={"jobsSubmitted": 5}))
    with ThreadPoolExecutor(24) as threads:
        codes = list(threads.map(lambda n: submit(server, "cho", job(f"burst-{n}")).code, range(24)))
    assert sorted(codes) == [201] * 5 + [403] * 19


@pytest.mark.parametrize(
    ("spec", "body", "said"),
    [
        pytest.param({"state": "Closed"}, job("j"), "QueueClosed: spec.queue: Queue q takes no new job", id="closed"),
        pytest.param({"state": "Stopped"}, job("j"), "spec.state is Stopped", id="stopped"),
        pytest.param({"admission": {"users": ["gil"]}}, job("j"), "spec.admission.users has no ann: gil", id="users"),
        pytest.param({"parent": "up"}, job("j"), "Queue up does not take this work: spec.admission.types", id="a queue above"),
    ],
)
def test_what_a_queue_takes(server: RunningServer, spec: Raw, body: Raw, said: str) -> None:
    server.create(f"{MUSTER}/queues", named("Queue", "up", admission={"types": ["etl"]}))
    server.create(f"{MUSTER}/queues", named("Queue", "q", **spec))
    body["spec"]["queue"] = "q"
    reply = submit(server, ANN, body)
    assert reply.code == 403
    assert said in reply.message
    server.request("DELETE", f"{MUSTER}/queues/q")


def test_an_estimate_is_judged_when_it_changes(server: RunningServer) -> None:
    server.create(f"{MUSTER}/queues", named("Queue", "short", admission={"requireEstimate": True, "runSecondsMax": 60}))
    assert submit(server, ANN, job("j", queue="short", estimate={"runSeconds": 30})).code == 201
    for estimate, code in (({"runSeconds": 60}, 200), ({"runSeconds": 61}, 403), (None, 403)):
        reply = as_user(server, ANN, "PATCH", f"{JOBS}/j", {"spec": {"estimate": estimate}}, **MERGE)
        assert reply.code == code, reply.body
    assert as_user(server, ANN, "PATCH", f"{JOBS}/j", {"spec": {"state": "Stopped"}}, **MERGE).code == 200


@pytest.mark.parametrize("text", ["nan", "inf", "-5", "0", "soon", "1e999"])
def test_what_is_no_length_of_time_is_no_estimate(text: str) -> None:
    raw = {"metadata": {"name": "j", "annotations": {"muster.dev/estimate-seconds": text}}, "spec": {"tasks": []}}
    work = submitted_work("KusciaJob", raw)
    assert work is not None
    assert "requireEstimate" in not_taken(QueueAdmission(require_estimate=True, run_seconds_max=60), work, [])


@pytest.mark.parametrize(
    ("rules", "more", "why"),
    [
        pytest.param(QueueAdmission(groups=["team"]), {}, "", id="a group above counts"),
        pytest.param(QueueAdmission(groups=["x"]), {}, "spec.admission.groups", id="group"),
        pytest.param(QueueAdmission(types=["etl"]), {"type": "etl"}, "", id="type"),
        pytest.param(QueueAdmission(types=["etl"]), {}, "the type is not given", id="no type"),
        pytest.param(QueueAdmission(require_estimate=True), {}, "requireEstimate", id="no estimate"),
        pytest.param(QueueAdmission(run_seconds_max=60), {"estimate_s": 61.0}, "the estimate is 61 seconds", id="too long"),
        pytest.param(QueueAdmission(per_job_max={"cpu": 1}), {"request": {"cpu": 1500}}, "it asks for 1500m", id="too large"),
        pytest.param(QueueAdmission(selector=LabelSelector(match_labels={"a": "b"})), {}, "selector", id="labels"),
        pytest.param(QueueAdmission(selector=LabelSelector(match_labels={"a": "b"})), {"labels": {"a": "b"}}, "", id="match"),
    ],
)
def test_rules_of_a_queue(rules: QueueAdmission, more: dict[str, Any], why: str) -> None:
    found = not_taken(rules, Work(key="Job/d/j", user="ann", **more), ["team", "lab"])
    assert (why in found) if why else not found, found


def test_pods_of_their_own_are_judged_and_those_of_jobs_are_not(server: RunningServer) -> None:
    def pod(name: str, cpu: str, **meta: Any) -> Raw:
        container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}
        return {"metadata": {"name": name, "labels": {"muster.dev/user": "ann"}, **meta}, "spec": {"containers": [container]}}

    owner = {"apiVersion": "muster.dev/v1alpha1", "kind": "Job", "name": "x", "uid": "u", "controller": True}
    path = "/api/v1/namespaces/default/pods"
    assert "JobExceedsLimit" in server.request("POST", path, pod("large", "5")).message
    assert server.request("POST", path, pod("part", "5", ownerReferences=[owner])).code == 201
    assert server.request("POST", path, pod("small", "4")).code == 201
    assert "SubmitLimitReached" in server.request("POST", path, pod("more", "3")).message
    made = server.create("/api/v1/namespaces/default/configmaps", {"metadata": {"name": "operator"}})
    theirs = {**owner, "apiVersion": "v1", "kind": "ConfigMap", "name": "operator", "uid": made["metadata"]["uid"]}
    assert server.request("POST", path, pod("theirs", "2", ownerReferences=[theirs])).code == 201, "by an administrator"
    assert "waiting and running 6" in server.request("POST", path, pod("more", "1")).message, "which counts by itself"
    assert server.request("DELETE", "/api/v1/namespaces/default/configmaps/operator").code == 200


# -- whose -------------------------------------------------------------------------------------------------------------------

EDITORS = {"kind": "ClusterRole", "apiGroup": "rbac.authorization.k8s.io", "name": "edit"}
PODS = "/api/v1/namespaces/default/pods"


@pytest.fixture
def editors(server: RunningServer) -> Iterator[RunningServer]:
    """Everybody may change everything in the namespace, by RBAC."""
    subjects = [{"kind": "Group", "name": "people", "apiGroup": "rbac.authorization.k8s.io"}]
    where = f"{RBAC}/namespaces/default/rolebindings"
    server.create(where, {"metadata": {"name": "editors"}, "roleRef": EDITORS, "subjects": subjects})
    server.create(f"{MUSTER}/users", named("User", "eve", group="lab"))
    yield server
    assert server.request("DELETE", f"{where}/editors").code == 200


def bare(name: str, labels: dict[str, str], **meta: Any) -> Raw:
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}
    return {"metadata": {"name": name, "labels": labels, **meta}, "spec": {"containers": [container]}}


def made_by(version: str, kind: str) -> dict[str, Any]:
    return {"ownerReferences": [{"apiVersion": version, "kind": kind, "name": "x", "uid": "u", "controller": True}]}


@pytest.mark.parametrize(
    ("login", "pod", "said"),
    [
        pytest.param("eve", bare("p", {"muster.dev/user": "ann"}), "UserNotYours: label muster.dev/user: 'eve'", id="for ann"),
        pytest.param(
            "eve",
            bare("p", {"muster.dev/user": "ann"}, **made_by("v1", "ConfigMap")),
            "UserNotYours: label muster.dev/user: 'eve'",
            id="for ann, with a controller that says nothing",
        ),
        pytest.param(
            "eve",
            bare("p", {"muster.dev/user": "ann"}, **made_by("muster.dev/v1alpha1", "Job")),
            "metadata.ownerReferences: 'eve' may not name Job x as its controller",
            id="for ann, as if her job had made it",
        ),
        pytest.param("eve", bare("p", {"muster.dev/group": "team"}), "User eve is not in UserGroup team", id="group of others"),
        pytest.param(
            "stranger", bare("p", {"muster.dev/group": "team"}), "'stranger' does not act for UserGroup team", id="no user"
        ),
        pytest.param("eve", bare("p", {"muster.dev/group": "gone"}), "there is no UserGroup 'gone'", id="no such group"),
    ],
)
def test_pods_that_say_what_is_not_theirs_to_say(editors: RunningServer, login: str, pod: Raw, said: str) -> None:
    reply = as_user(editors, login, "POST", PODS, pod)
    assert reply.code == 403, reply.body
    assert said in reply.message


def test_a_pod_does_not_run_past_the_scheduler(editors: RunningServer) -> None:
    placed = bare("p", {})
    placed["spec"]["nodeName"] = "n1"
    reply = as_user(editors, ANN, "POST", PODS, placed)
    assert (reply.code, "spec.nodeName: 'ann@example.org' may not choose the node" in reply.message) == (403, True)
    assert as_user(editors, "stranger", "POST", PODS, placed).code == 201, "work of nobody has no limits to keep"
    placed["metadata"] = {"name": "q", "labels": {"muster.dev/queue": "open"}}
    assert as_user(editors, "stranger", "POST", PODS, placed).code == 403
    assert editors.request("POST", PODS, placed).code == 201, "who may bind pods may do this"


def test_an_owner_does_not_become_a_job(editors: RunningServer) -> None:
    uid = editors.create("/api/v1/namespaces/default/configmaps", {"metadata": {"name": "x"}})["metadata"]["uid"]
    owner = {"name": "x", "uid": uid, "controller": True}
    made = bare("p", {}, ownerReferences=[{"apiVersion": "v1", "kind": "ConfigMap", **owner}])
    assert as_user(editors, ANN, "POST", PODS, made).code == 201
    named_job = {"metadata": {"ownerReferences": [{"apiVersion": "muster.dev/v1alpha1", "kind": "Job", **owner}]}}
    turned = as_user(editors, ANN, "PATCH", f"{PODS}/p", named_job, **MERGE)
    assert "may not name Job x as its controller" in turned.message
    assert editors.request("DELETE", "/api/v1/namespaces/default/configmaps/x").code == 200


def test_a_task_without_a_job_is_whose_who_makes_it(editors: RunningServer) -> None:
    where = "/apis/kuscia.secretflow/v1alpha1/namespaces/default/kusciatasks"
    parties = [{"domainID": "alice", "appImageRef": "i"}]
    task = {"metadata": {"name": "t"}, "spec": {"initiator": "alice", "parties": parties, "taskInputConfig": "{}"}}
    reply = as_user(editors, ANN, "POST", f"{where}?dryRun=All", task)
    assert reply.code == 201, reply.body
    assert reply.json["metadata"]["labels"] == {"muster.dev/user": "ann"}


def test_whose_a_pod_is_stays_so(editors: RunningServer) -> None:
    assert as_user(editors, ANN, "POST", PODS, bare("hers", {})).json["metadata"]["labels"] == {"muster.dev/user": "ann"}
    taken = as_user(editors, ANN, "PATCH", f"{PODS}/hers", {"metadata": {"labels": {"muster.dev/user": None}}}, **MERGE)
    assert "UserNotYours: label muster.dev/user: it is of User ann and stays so" in taken.message
    claimed = as_user(editors, ANN, "PATCH", f"{PODS}/hers", {"metadata": made_by("muster.dev/v1alpha1", "Job")}, **MERGE)
    assert "may not name Job x as its controller" in claimed.message
    assert as_user(editors, ANN, "PATCH", f"{PODS}/hers", {"metadata": {"labels": {"a": "b"}}}, **MERGE).code == 200
    assert as_user(editors, "gil", "POST", PODS, bare("hers-too", {"muster.dev/user": "ann"})).code == 201


@pytest.fixture
def reporters(editors: RunningServer) -> Iterator[RunningServer]:
    """Everybody may bind pods too, and write their status."""
    rule = {"apiGroups": [""], "resources": ["pods/status", "pods/binding"], "verbs": ["*"]}
    editors.create(f"{RBAC}/namespaces/default/roles", {"metadata": {"name": "reporters"}, "rules": [rule]})
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reporters"}
    subjects = [{"kind": "Group", "name": "people", "apiGroup": "rbac.authorization.k8s.io"}]
    where = f"{RBAC}/namespaces/default/rolebindings"
    editors.create(where, {"metadata": {"name": "reporters"}, "roleRef": role, "subjects": subjects})
    yield editors
    for path in (f"{where}/reporters", f"{RBAC}/namespaces/default/roles/reporters"):
        assert editors.request("DELETE", path).code == 200


OVER: Raw = {"phase": "Succeeded"}


@pytest.mark.parametrize(
    ("login", "meta", "said"),
    [
        pytest.param("eve", {"labels": {"muster.dev/user": "ann"}}, "UserNotYours: label muster.dev/user: 'eve'", id="to ann"),
        pytest.param("eve", {"labels": {"muster.dev/user": None}}, "it is of User eve and stays so", id="to nobody"),
        pytest.param("eve", {"labels": {"muster.dev/group": "team"}}, "User eve is not in UserGroup team", id="group"),
        pytest.param("eve", {"labels": {"muster.dev/queue": "no"}}, "QueueNotFound: label muster.dev/queue", id="queue"),
        pytest.param(ANN, {"labels": {"a": "b"}}, "UserNotYours: it is of User eve", id="anything, by somebody else"),
    ],
)
@pytest.mark.parametrize(
    ("before", "status"), [({}, {}), ({}, OVER), (OVER, {"phase": "Running"})], ids=["same", "ends", "begins"]
)
def test_a_status_is_no_way_to_say_whose_a_pod_is(
    reporters: RunningServer, login: str, meta: Raw, said: str, before: Raw, status: Raw
) -> None:
    assert as_user(reporters, "eve", "POST", PODS, bare("p", {})).code == 201
    assert reporters.request("PATCH", f"{PODS}/p/status", {"status": before}, headers=MERGE).code == 200
    kept = reporters.request("GET", f"{PODS}/p").json
    reply = as_user(reporters, login, "PATCH", f"{PODS}/p/status", {"metadata": meta, "status": status}, **MERGE)
    assert (reply.code, said in reply.message) == (403, True), reply.body
    assert reporters.request("GET", f"{PODS}/p").json == kept
    assert as_user(reporters, login, "PATCH", f"{PODS}/p/status", {"status": status}, **MERGE).code == 200, "the status alone"


def test_owners_do_not_come_with_a_status(reporters: RunningServer) -> None:
    assert as_user(reporters, "eve", "POST", PODS, bare("p", {})).code == 201
    sent = {"metadata": made_by("muster.dev/v1alpha1", "Job"), "status": {"phase": "Running"}}
    reply = as_user(reporters, "eve", "PATCH", f"{PODS}/p/status", sent, **MERGE)
    assert reply.code == 200
    assert "ownerReferences" not in reply.json["metadata"]


def test_a_binding_is_no_way_to_say_whose_a_pod_is(reporters: RunningServer) -> None:
    reporters.create(PODS, bare("p", {}))
    meta = {"name": "p", "annotations": {"muster.dev/user": "ann"}}
    binding = {"metadata": meta, "target": {"kind": "Node", "name": "n1"}}
    reply = as_user(reporters, "eve", "POST", f"{PODS}/p/binding", binding)
    assert (reply.code, "UserNotYours: label muster.dev/user: 'eve'" in reply.message) == (403, True), reply.body
    binding["metadata"] = {"name": "p", "annotations": {"example.com/a": "b"}}
    assert as_user(reporters, "eve", "POST", f"{PODS}/p/binding", binding).code == 201


def test_limits_hold_for_work_that_a_status_puts_under_them(reporters: RunningServer) -> None:
    large = bare("p", {})
    large["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "5"
    reporters.create(PODS, large)
    sent = {"metadata": {"labels": {"muster.dev/user": "ann"}}}
    reply = reporters.request("PATCH", f"{PODS}/p/status", sent, headers=MERGE)
    assert "JobExceedsLimit: spec.limits.perJob[cpu] of User ann" in reply.message


def test_a_role_in_the_namespace_is_no_leave_to_stop_others(editors: RunningServer) -> None:
    assert submit(editors, ANN, job("hers", queue="open")).code == 201
    for method, body in (("DELETE", None), ("PATCH", {"spec": {"state": "Stopped"}})):
        reply = as_user(editors, "eve", method, f"{JOBS}/hers", body, **MERGE)
        assert reply.code == 403
        assert "UserNotYours: it is of User ann, for whom 'eve' does not act; ask ann, an administrator of" in reply.message
    role = {"metadata": {"name": "open-admin"}, "rules": [QUEUE_RULE]}
    editors.create(f"{RBAC}/clusterroles", role)
    binding = {"metadata": {"name": "open-admin"}, "roleRef": {**EDITORS, "name": "open-admin"}}
    editors.create(f"{RBAC}/clusterrolebindings", {**binding, "subjects": [{"kind": "User", "name": "eve"}]})
    try:
        stopped = as_user(editors, "eve", "PATCH", f"{JOBS}/hers", {"spec": {"state": "Stopped"}}, **MERGE)
        assert stopped.code == 200, "an administrator of the queue may"
    finally:
        for kind in ("clusterrolebindings", "clusterroles"):
            assert editors.request("DELETE", f"{RBAC}/{kind}/open-admin").code == 200
    assert as_user(editors, ANN, "DELETE", f"{JOBS}/hers").code == 200


QUEUE_RULE = {"apiGroups": ["muster.dev"], "resources": ["queues"], "resourceNames": ["open"], "verbs": ["update"]}


def test_who_may_impersonate_a_user_submits_for_it(editors: RunningServer) -> None:
    rule = {"apiGroups": [""], "resources": ["users"], "resourceNames": [ANN], "verbs": ["impersonate"]}
    editors.create(f"{RBAC}/clusterroles", {"metadata": {"name": "operator"}, "rules": [rule]})
    binding = {"metadata": {"name": "operator"}, "roleRef": {**EDITORS, "name": "operator"}}
    editors.create(f"{RBAC}/clusterrolebindings", {**binding, "subjects": [{"kind": "User", "name": "trainer"}]})
    try:
        assert as_user(editors, "trainer", "POST", PODS, bare("p", {"muster.dev/user": "ann"})).code == 201
        assert "UserNotYours" in as_user(editors, "trainer", "POST", PODS, bare("q", {"muster.dev/user": "eve"})).message
    finally:
        for kind in ("clusterrolebindings", "clusterroles"):
            assert editors.request("DELETE", f"{RBAC}/{kind}/operator").code == 200


# -- dividing ------------------------------------------------------------------------------------------------------------------


def patch(server: RunningServer, login: str, path: str, spec: Raw) -> Reply:
    return as_user(server, login, "PATCH", f"{MUSTER}/{path}", {"spec": spec}, **MERGE)


def test_an_administrator_divides_what_the_group_has_and_no_more(server: RunningServer) -> None:
    assert patch(server, "gil", "users/ann", {"limits": {"concurrent": {"cpu": 12}}}).code == 200
    assert patch(server, "gil", "users/bob", {"limits": {"concurrent": {"cpu": 8}}, "suspended": False}).code == 200
    over = patch(server, "gil", "users/bob", {"limits": {"concurrent": {"cpu": 9}}})
    assert over.code == 403
    assert "DivisionExceeded: spec.limits.concurrent[cpu] of UserGroup lab is 20" in over.message
    assert "would be given 21 in all" in over.message
    assert patch(server, "gil", "users/ann", {"limits": {"concurrent": {"cpu": 10}}}).code == 200
    assert patch(server, "gil", "users/bob", {"limits": {"concurrent": {"cpu": 10}}}).code == 200


@pytest.mark.parametrize(
    ("login", "path", "spec", "said"),
    [
        pytest.param("gil", "users/ann", {"usernames": ["eve"]}, "spec.usernames: an administrator", id="not a login"),
        pytest.param("gil", "usergroups/lab", {"weight": 2}, "cannot patch", id="not the own group"),
        pytest.param("gil", "users/ann", {"group": "other"}, "does not administer UserGroup 'other'", id="not elsewhere"),
        pytest.param(ANN, "users/ann", {"weight": 9}, "cannot patch", id="not oneself"),
        pytest.param(ANN, "users/bob", {"weight": 9}, "cannot patch", id="not one's neighbour"),
    ],
)
def test_what_others_may_not_change(server: RunningServer, login: str, path: str, spec: Raw, said: str) -> None:
    server.create(f"{MUSTER}/usergroups", named("UserGroup", "other"))
    reply = patch(server, login, path, spec)
    assert reply.code == 403
    assert said in reply.message


@pytest.mark.parametrize(
    ("field", "value"),
    [
        pytest.param("finalizers", ["example.com/stays"], id="keep it from being deleted"),
        pytest.param(
            "ownerReferences",
            [{"apiVersion": "v1", "kind": "Namespace", "name": "gone", "uid": "7"}],
            id="have it deleted with an owner that is not there",
        ),
    ],
)
def test_an_administrator_has_no_say_in_what_is_deleted(server: RunningServer, field: str, value: list[Any]) -> None:
    reply = as_user(server, "gil", "PATCH", f"{MUSTER}/users/ann", {"metadata": {field: value}}, **MERGE)
    assert reply.code == 403
    assert f"metadata.{field}: an administrator of the group above may not change this" in reply.message


def test_circles_and_groups_with_users(server: RunningServer) -> None:
    circle = patch(server, "admin", "usergroups/lab", {"parent": "team"})
    assert circle.code == 403
    masters = server.request("PATCH", f"{MUSTER}/usergroups/lab", {"spec": {"parent": "team"}}, headers=MERGE)
    assert "ParentCycle: spec.parent: UserGroup lab would stand above itself (lab under team under lab)" in masters.message
    gone = server.request("DELETE", f"{MUSTER}/usergroups/team")
    assert "2 stand under it and would be free of its limits (User ann, User bob)" in gone.message
    twice = server.request("POST", f"{MUSTER}/users", named("User", "eve", group="lab", usernames=[ANN]))
    assert "'ann@example.org' is User ann already" in twice.message


def test_divisions_that_come_together_do_not_slip_past(server: RunningServer) -> None:
    with ThreadPoolExecutor(12) as threads:

        def make(n: int) -> int:
            return server.request(
                "POST", f"{MUSTER}/users", named("User", f"u{n}", group="team", limits={"concurrent": {"cpu": 4}})
            ).code

        codes = list(threads.map(make, range(12)))
    assert sorted(codes) == [201] * 5 + [403] * 7


# -- seeing and stopping -------------------------------------------------------------------------------------------------------


def test_who_sees_and_stops_whose_work(server: RunningServer) -> None:
    assert submit(server, ANN, job("hers")).code == 201
    server.create(f"{MUSTER}/users", named("User", "eve", group="lab"))
    for login, code in ((ANN, 200), ("gil", 200), ("eve", 403), ("stranger", 403)):
        assert as_user(server, login, "GET", f"{JOBS}/hers").code == code, login
        narrowed = as_user(server, login, "GET", f"{JOBS}?labelSelector=muster.dev%2Fuser%3Dann")
        assert narrowed.code == code, login
        if code == 200:
            assert [one["metadata"]["name"] for one in narrowed.json["items"]] == ["hers"]
        assert as_user(server, login, "GET", JOBS).code == 403, "a list must say whose"
        several = as_user(server, login, "GET", f"{JOBS}?labelSelector=muster.dev%2Fuser%20in%20(ann,eve)")
        assert several.code == (200 if login == "gil" else 403)
    assert as_user(server, "eve", "DELETE", f"{JOBS}/hers").code == 403
    assert patch(server, ANN, "namespaces/default/jobs/hers", {"user": "gil"}).code == 422, "it stays hers"
    assert submit(server, "gil", job("for-her", user="ann")).code == 201
    assert as_user(server, "gil", "DELETE", f"{JOBS}/hers").code == 200
    assert as_user(server, ANN, "GET", f"{MUSTER}/users/ann").code == 200
    assert as_user(server, ANN, "GET", f"{MUSTER}/usergroups/lab").code == 200
    assert as_user(server, ANN, "GET", f"{MUSTER}/queues").code == 200
    assert as_user(server, ANN, "GET", f"{MUSTER}/users/bob").code == 403


def test_a_name_shows_nothing_of_others_who_had_it(server: RunningServer) -> None:
    """Before and after it is one's own: by an old version, and in a watch that goes on."""
    server.create(f"{MUSTER}/users", named("User", "eve", group="lab"))
    old = submit(server, ANN, job("x")).json["metadata"]["resourceVersion"]
    assert as_user(server, ANN, "DELETE", f"{JOBS}/x").code == 200
    assert submit(server, "eve", job("x")).code == 201
    one = f"{JOBS}?fieldSelector=metadata.name%3Dx"
    past = as_user(server, "eve", "GET", f"{one}&resourceVersion={old}&resourceVersionMatch=Exact")
    assert (past.code, past.json["items"]) == (200, [])
    assert len(as_user(server, "eve", "GET", one).json["items"]) == 1
    headers = {"Impersonate-User": "eve", "Impersonate-Group": "people"}
    with server.watch(f"{one}&resourceVersion={old}", headers=headers) as watch:
        seen = [watch.next()]
        for login in ("eve", ANN):
            assert as_user(server, login, "DELETE", f"{JOBS}/x").code == 200
            assert submit(server, ANN if login == "eve" else "eve", job("x")).code == 201
        seen += [watch.next(), watch.next()]
    assert [(event["type"], event["object"]["spec"]["user"]) for event in seen] == [
        ("ADDED", "eve"),
        ("DELETED", "eve"),
        ("ADDED", "eve"),
    ]


def test_everybody_who_submits_sees_what_there_is_and_by_what_it_is_given(server: RunningServer) -> None:
    for plural in ("nodepools", "schedulingpolicies"):
        assert as_user(server, ANN, "GET", f"{MUSTER}/{plural}").code == 200
        assert as_user(server, "stranger", "GET", f"{MUSTER}/{plural}").code == 403
    assert as_user(server, ANN, "POST", f"{MUSTER}/nodepools", named("NodePool", "mine")).code == 403


def test_tasks_of_ones_own_jobs_are_read_and_not_written(server: RunningServer) -> None:
    tasks = "/apis/kuscia.secretflow/v1alpha1/namespaces/cross-domain/kusciatasks"
    parties = [{"domainID": "alice", "appImageRef": "i"}]
    task = {
        "apiVersion": "kuscia.secretflow/v1alpha1",
        "kind": "KusciaTask",
        "metadata": {"name": "t", "labels": {"muster.dev/user": "ann"}},
        "spec": {"initiator": "alice", "taskInputConfig": "{}", "parties": parties},
    }
    server.create(tasks, task)
    for login, code in ((ANN, 200), ("gil", 200), ("stranger", 403)):
        assert as_user(server, login, "GET", f"{tasks}/t").code == code, login
        assert as_user(server, login, "GET", f"{tasks}?labelSelector=muster.dev%2Fuser%3Dann").code == code, login
        assert as_user(server, login, "GET", tasks).code == 403
        assert as_user(server, login, "DELETE", f"{tasks}/t").code == 403


# -- whatever the order --------------------------------------------------------------------------------------------------------

STEPS = st.lists(
    st.lists(
        st.one_of(
            st.tuples(st.just("submit"), st.sampled_from("abcdef"), st.integers(1, 4), st.sampled_from(["ann", "bob"])),
            st.tuples(st.just("end"), st.sampled_from("abcdef"), st.just(0), st.just("")),
            st.tuples(st.just("delete"), st.sampled_from("abcdef"), st.just(0), st.just("")),
        ),
        min_size=1,
        max_size=6,
    ),
    max_size=8,
)


@settings(max_examples=40, deadline=None)
@given(STEPS, st.sets(st.integers(0, 7)))
def test_no_interleaving_of_submissions_ends_and_crashes_lets_anyone_over_a_limit(
    rounds: list[list[tuple[str, str, int, str]]], crashes: set[int]
) -> None:
    """Each round's requests run at once. A crash forgets everything but the store."""

    async def main() -> None:
        now = [1_000_000.0]
        store = await EmbeddedStore.open(None, clock=lambda: now[0], writer="inline")
        jobs = store.catalog.by_kind("muster.dev", "Job")

        async def nobody(_actor: Actor, _asked: Attributes) -> bool:
            return False

        def begin() -> Memory:
            store._core.listeners.clear()
            memory = Memory(store, lambda: now[0])
            memory.start()
            store.admission = SubmissionLimits(memory.people, nobody)
            return memory

        await store.create(store.catalog.by_kind("", "Namespace"), {"metadata": {"name": "default"}})
        memory = begin()
        limits = {"submitted": {"cpu": 6}, "jobsSubmitted": 3}
        group = named("UserGroup", "g", limits={"submitted": {"cpu": 8}})
        await store.create(store.catalog.by_kind("muster.dev", "UserGroup"), group)
        for name in ("ann", "bob"):
            user = named("User", name, group="g", limits=limits if name == "ann" else {})
            await store.create(store.catalog.by_kind("muster.dev", "User"), user)

        async def act(what: str, name: str, cpu: int, user: str) -> None:
            try:
                if what == "submit":
                    await store.create(jobs, job(name, cpu, user=user), "default")
                elif what == "end":
                    await store.patch(jobs, name, {"status": {"phase": "Succeeded"}}, "default", subresource="status")
                else:
                    await store.delete(jobs, name, "default")
            except ApiError:
                pass

        async def used(user: str) -> tuple[int, int]:
            found = [
                one
                for one in (await store.list(jobs, "default")).items
                if (one.get("status") or {}).get("phase") != "Succeeded" and user in ("", one["spec"]["user"])
            ]
            return len(found), sum(int(one["spec"]["roles"][0]["resources"]["requests"]["cpu"]) for one in found)

        for number, steps in enumerate(rounds):
            if number in crashes:
                memory = begin()
            await asyncio.gather(*(act(*step) for step in steps))
            count, cpus = await used("ann")
            assert count <= 3
            assert cpus <= 6
            both = await used("")
            assert both[1] <= 8
            assert memory.people.tree.submitted("UserGroup", "g").amounts.get("cpu", 0) >= 1000 * both[1]
            now[0] += 60
            memory.people.expire()
            assert memory.people.tree.submitted("UserGroup", "g").amounts.get("cpu", 0) == 1000 * both[1], (
                "nothing is held in vain"
            )
        await store.close()

    asyncio.run(main())


async def test_the_webhook_judges_the_same() -> None:
    people = People(lambda: 0.0)
    people.apply("UserGroup", named("UserGroup", "g"))
    people.apply("User", named("User", "ann", group="g", limits={"perJob": {"cpu": 1}}))

    async def nobody(_actor: Actor, _asked: Attributes) -> bool:
        return False

    webhook = Webhook(hooks=[FillsInUser(people), SubmissionLimits(people, nobody)])

    async def review(path: str, raw: Raw, login: str) -> Raw:
        request = {
            "uid": "1",
            "operation": "CREATE",
            "resource": {"group": "muster.dev", "version": "v1alpha1", "resource": "jobs"},
            "namespace": "default",
            "name": raw["metadata"]["name"],
            "object": raw,
            "userInfo": {"username": login},
        }
        body = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
        answer: Raw = (await webhook.review(path, msgspec.json.encode(body)))["response"]
        return answer

    assert "patch" in await review("/mutate", job("j"), "ann")
    large = await review("/validate", job("j", 2, user="ann"), "ann")
    assert "JobExceedsLimit" in large["status"]["message"]
    assert (await review("/validate", job("j", 1, user="ann"), "ann"))["allowed"]
    assert "UserNotYours" in (await review("/validate", job("k", 1, user="ann"), "eve"))["status"]["message"]


@pytest.mark.parametrize("path", ["users/ann", "queues/open"])
def test_who_has_work_is_not_deleted(server: RunningServer, path: str) -> None:
    """What runs would leave the limits of the group or queue above."""
    assert submit(server, "ann@example.org", job("a", queue="open")).code == 201
    refusal = server.request("DELETE", f"{MUSTER}/{path}")
    assert refusal.code == 403
    assert "1 of its jobs wait or run" in refusal.message
    assert server.request("DELETE", f"{JOBS}/a").code == 200
    assert server.request("DELETE", f"{MUSTER}/{path}").code == 200
