"""Holds, pins and moves: who may, and the record of who did; on a real server, and through the webhook."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from muster.objects.acts import ACTS_MAX, acts_of, acts_text
from muster.objects.labels import Muster
from muster.objects.meta import annotations_of
from muster.objects.status import Raw
from muster.server.queue_acts import QueueActs
from muster.server.webhook import Webhook
from muster.store.embedded.admission import Actor
from tests.server.running import Reply, RunningServer, running

JOBS = "/apis/muster.dev/v1alpha1/namespaces/default/jobs"
NOW = 1_800_000_000.0


def job(notes: dict[str, str] | None = None, **spec: Any) -> Raw:
    return {
        "apiVersion": "muster.dev/v1alpha1",
        "kind": "Job",
        "metadata": {"name": "j", "annotations": notes or {}},
        "spec": {"roles": [{"name": "w", "command": ["x"]}], **spec},
    }


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running(tmp_path_factory.mktemp("acts")) as made:
        yield made


@pytest.fixture
def server(own: RunningServer) -> Iterator[RunningServer]:
    own.create(JOBS, job(queue="research"))
    yield own
    assert own.request("DELETE", f"{JOBS}/j").code == 200


def act(server: RunningServer, patch: Raw, token: str | None = None) -> Reply:
    headers = {"content-type": "application/merge-patch+json"}
    return server.request("PATCH", f"{JOBS}/j", patch, headers=headers, token=token)


def noted(**notes: str | None) -> Raw:
    return {"metadata": {"annotations": {f"muster.dev/{key}": value for key, value in notes.items()}}}


def test_who_did_what_is_written_on_the_job(server: RunningServer) -> None:
    for patch in (noted(hold="maintenance"), noted(pin="1"), noted(hold=None), {"spec": {"queue": "other"}}):
        assert act(server, patch).code == 200
    found = acts_of(annotations_of(server.request("GET", f"{JOBS}/j").json))
    assert [(one.act, one.detail) for one in found] == [
        ("Held", "maintenance"),
        ("Pinned", "place 1"),
        ("Released", ""),
        ("Moved", "from research to other"),
    ]
    assert {one.by for one in found} == {"admin"}
    assert all(one.at for one in found)


def test_the_record_cannot_be_forged_or_taken_away(server: RunningServer) -> None:
    assert act(server, noted(hold="x")).code == 200
    before = annotations_of(server.request("GET", f"{JOBS}/j").json)[Muster.ACTS]
    for text in ('[{"act":"Released","by":"ann"}]', None):
        assert act(server, noted(acts=text)).code == 200
        assert annotations_of(server.request("GET", f"{JOBS}/j").json)[Muster.ACTS] == before


RBAC = "/apis/rbac.authorization.k8s.io/v1/namespaces/default"


def allowed(server: RunningServer, user: str) -> str:
    """A token of somebody who may do everything with jobs, and nothing with queues."""
    rule = {"apiGroups": ["muster.dev"], "resources": ["jobs"], "verbs": ["*"]}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": user}
    server.create(f"{RBAC}/roles", {"metadata": {"name": user}, "rules": [rule]})
    binding = {"metadata": {"name": user}, "roleRef": role, "subjects": [{"kind": "User", "name": user}]}
    server.create(f"{RBAC}/rolebindings", binding)
    return server.user(user)


def test_who_may_change_the_job_may_move_it_but_not_hold_or_pin_it(server: RunningServer) -> None:
    token = allowed(server, "ann")
    assert act(server, {"spec": {"queue": "mine"}}, token).code == 200
    for patch in (noted(pin="1"), noted(hold="x")):
        refused = act(server, patch, token)
        assert refused.code == 403
        assert "queue 'mine'" in refused.message
        assert "update on queues.muster.dev" in refused.message
    assert act(server, noted(hold="by admin")).code == 200
    assert act(server, noted(hold=None), token).code == 403
    assert [one.by for one in acts_of(annotations_of(server.request("GET", f"{JOBS}/j").json))] == ["ann", "admin"]


def test_a_pin_that_is_no_number_is_refused(server: RunningServer) -> None:
    refused = act(server, noted(pin="first"))
    assert refused.code == 403
    assert "'first' is not a whole number" in refused.message


# -- what pods and tasks say -------------------------------------------------------------------------------------------------

PODS = "/api/v1/namespaces/default/pods"
TASKS = "/apis/kuscia.secretflow/v1alpha1/namespaces/default/kusciatasks"


def editor(server: RunningServer, user: str) -> str:
    """A token of somebody with the role `edit` in the namespace."""
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"}
    binding = {"metadata": {"name": f"edit-{user}"}, "roleRef": role, "subjects": [{"kind": "User", "name": user}]}
    server.create(f"{RBAC}/rolebindings", binding)
    return server.user(user)


def test_what_pods_say_of_their_work_is_not_for_users_to_write(own: RunningServer) -> None:
    token = editor(own, "eve")
    spec = {"containers": [{"name": "c", "image": "x"}]}
    said = {"metadata": {"name": "forged", "annotations": {Muster.WORK: '{"pin":-5,"submitted":1}'}}, "spec": spec}
    refused = own.request("POST", PODS, said, token=token)
    assert refused.code == 403
    assert "metadata.annotations[muster.dev/work]" in refused.message
    assert "muster.dev/queue" in refused.message, "the way out"
    own.create(PODS, said)
    headers = {"content-type": "application/merge-patch+json"}
    rule = {"apiGroups": [""], "resources": ["pods/status", "pods/binding"], "verbs": ["*"]}
    own.create(f"{RBAC}/roles", {"metadata": {"name": "reporter"}, "rules": [rule]})
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reporter"}
    who = [{"kind": "User", "name": "eve"}]
    own.create(f"{RBAC}/rolebindings", {"metadata": {"name": "reporter"}, "roleRef": role, "subjects": who})
    for path in (f"{PODS}/forged", f"{PODS}/forged/status"):
        for patch in (noted(work='{"user":"ann"}'), noted(work=None)):
            assert own.request("PATCH", path, patch, headers=headers, token=token).code == 403
        assert own.request("PATCH", path, noted(other=path[-6:]), headers=headers, token=token).code == 200
    binding = {"metadata": noted(work='{"user":"ann"}')["metadata"], "target": {"kind": "Node", "name": "n1"}}
    assert own.request("POST", f"{PODS}/forged/binding", binding, token=token).code == 403


def test_a_task_is_held_and_pinned_by_who_may_hold_its_job(own: RunningServer) -> None:
    token = editor(own, "mallory")
    spec = {"initiator": "alice", "taskInputConfig": "{}", "parties": [{"domainID": "alice", "appImageRef": "x"}]}
    for key in (Muster.PIN, Muster.HOLD):
        task = {"metadata": {"name": "t", "annotations": {key: "-1"}}, "spec": spec}
        refused = own.request("POST", TASKS, task, token=token)
        assert refused.code == 403
        assert "update on queues.muster.dev" in refused.message


def test_a_task_is_not_made_older_than_it_is(own: RunningServer) -> None:
    token = editor(own, "trudy")
    spec = {"initiator": "alice", "taskInputConfig": "{}", "parties": [{"domainID": "alice", "appImageRef": "x"}]}
    old = {"metadata": {"name": "old", "annotations": {Muster.ORIGIN_CREATED: "1970-01-01T00:00:00Z"}}, "spec": spec}
    refused = own.request("POST", TASKS, old, token=token)
    assert refused.code == 403
    assert "metadata.annotations[muster.dev/origin-created]: 'trudy' may not write it" in refused.message
    own.create(TASKS, old)
    headers = {"content-type": "application/merge-patch+json"}
    for patch, code in (({"origin-uid": "0"}, 403), ({"origin-created": None}, 403), ({"other": "x"}, 200)):
        assert own.request("PATCH", f"{TASKS}/old", noted(**patch), headers=headers, token=token).code == code


# -- through the webhook ------------------------------------------------------------------------------------------------------


async def reviewed(path: str, new: Raw, old: Raw | None, *, may: bool, seen: list[tuple[str, str]] | None = None) -> Raw:
    async def ask(actor: Actor, queue: str) -> bool:
        if seen is not None:
            seen.append((actor.user, queue))
        return may

    request = {
        "uid": "u",
        "resource": {"group": "muster.dev", "version": "v1alpha1", "resource": "jobs"},
        "operation": "CREATE" if old is None else "UPDATE",
        "name": "j",
        "namespace": "default",
        "object": new,
        "oldObject": old,
        "userInfo": {"username": "ann", "groups": ["devs"]},
    }
    body = msgspec.json.encode({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request})
    answer: Raw = (await Webhook(hooks=[QueueActs(ask, lambda: NOW)]).review(path, body))["response"]
    return answer


async def test_the_webhook_writes_the_record() -> None:
    answer = await reviewed("/mutate", job({Muster.HOLD: "why"}), job(), may=True)
    [change] = [one for one in msgspec.json.decode(base64.b64decode(answer["patch"])) if one["path"].endswith("acts")]
    [found] = acts_of({Muster.ACTS: change["value"]})
    assert str(found) == "Held by ann at 2027-01-15T08:00:00Z: why"


async def test_the_webhook_asks_who_may() -> None:
    seen: list[tuple[str, str]] = []
    answer = await reviewed("/validate", job({Muster.PIN: "0"}, queue="q"), job(queue="q"), may=False, seen=seen)
    assert not answer["allowed"]
    assert seen == [("ann", "q")]
    assert (await reviewed("/validate", job({Muster.PIN: "0"}), job(), may=True))["allowed"]


async def test_a_new_job_that_names_a_queue_was_not_moved() -> None:
    assert "patch" not in await reviewed("/mutate", job(queue="q"), None, may=False)
    assert (await reviewed("/validate", job(queue="q"), None, may=False))["allowed"]
    assert not (await reviewed("/validate", job({Muster.PIN: "1"}), None, may=False))["allowed"]


def test_the_record_is_bounded() -> None:
    acts = acts_of({Muster.ACTS: acts_text(acts_of({Muster.ACTS: '[{"act":"Held"}]'}) * (ACTS_MAX + 5))})
    assert len(acts) == ACTS_MAX
    assert acts_of({Muster.ACTS: "{not json"}) == []
