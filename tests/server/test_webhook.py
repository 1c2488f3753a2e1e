"""The admission webhook by itself: reviews in, verdicts out. `tests/cli/test_cluster.py` has it behind a kube-apiserver."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.history.actions import action_of
from muster.objects.labels import Muster
from muster.objects.patch.json_patch import apply_json_patch
from muster.objects.status import ApiError, Forbidden
from muster.server import webhook
from muster.server.accounting import AccountedPods
from muster.server.change_notes import ChangeNotes
from muster.server.limits_admission import SubmissionLimits
from muster.server.people import People
from muster.server.rbac import Attributes
from muster.server.webhook import Webhook, json_patch
from muster.server.whose_work import FillsInUser
from muster.store.embedded.admission import Actor, AdmissionRequest

Raw = dict[str, Any]
POD = {"group": "", "version": "v1", "resource": "pods"}
QUEUE = {"group": "muster.dev", "version": "v1alpha1", "resource": "queues"}


def queue(**metadata: Any) -> Raw:
    return {
        "apiVersion": "muster.dev/v1alpha1",
        "kind": "Queue",
        "metadata": {"name": "q", "creationTimestamp": None} | metadata,
        "spec": {},
    }


def review_of(obj: Any, *, operation: str = "CREATE", resource: Raw | None = None, **extra: Any) -> Raw:
    request = {
        "uid": "u-1",
        "resource": resource or QUEUE,
        "operation": operation,
        "name": "q",
        "object": obj,
        "oldObject": None,
        "userInfo": {"username": "ann", "groups": ["devs"], "extra": {"scope": ["a"]}},
    }
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request | extra}


async def ask(app: Webhook, path: str, review: Raw) -> Raw:
    answer = await app.review(path, msgspec.json.encode(review))
    assert (answer["apiVersion"], answer["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    response = answer["response"]
    assert response["uid"] == "u-1"
    assert isinstance(response, dict)
    return response


class Hook:
    """Labels what it sees and refuses what is called bad."""

    def __init__(self) -> None:
        self.seen: list[AdmissionRequest] = []

    async def mutate(self, request: AdmissionRequest) -> Raw | None:
        self.seen.append(request)
        assert request.object is not None
        metadata = request.object["metadata"]
        return {**request.object, "metadata": {**metadata, "labels": {"a/b~c": "seen"}}}

    async def validate(self, request: AdmissionRequest) -> None:
        self.seen.append(request)
        if request.name == "slow":
            await asyncio.sleep(60)
        if request.name == "bad":
            request.warn("about to be refused")
            raise Forbidden("bad is not allowed")


async def test_a_good_object_is_allowed() -> None:
    response = await ask(Webhook(), "/validate", review_of(queue()))
    assert response == {"uid": "u-1", "allowed": True}


@pytest.mark.parametrize(
    ("obj", "field"),
    [
        pytest.param(queue(labels={"bad key!": "x"}), "metadata.labels", id="rules for metadata"),
        pytest.param(queue() | {"spec": "text"}, "spec", id="schema"),
        pytest.param(queue(name="Not_A_Name"), "metadata.name", id="name"),
    ],
)
async def test_a_bad_object_is_refused_with_its_causes(obj: Raw, field: str) -> None:
    response = await ask(Webhook(), "/validate", review_of(obj))
    assert response["allowed"] is False
    assert response["status"]["code"] == 422
    assert field in [cause["field"] for cause in response["status"]["details"]["causes"]]
    assert field in response["status"]["message"]


async def test_nothing_to_mutate_gives_no_patch() -> None:
    assert await ask(Webhook(), "/mutate", review_of(queue())) == {"uid": "u-1", "allowed": True}


async def test_hooks_mutate_and_see_who_asks() -> None:
    hook = Hook()
    response = await ask(Webhook(hooks=[hook]), "/mutate", review_of(queue(), dryRun=True))
    assert response["patchType"] == "JSONPatch"
    patch = msgspec.json.decode(base64.b64decode(response["patch"]))
    assert patch == [{"op": "add", "path": "/metadata/labels", "value": {"a/b~c": "seen"}}]
    [request] = hook.seen
    assert request.actor is not None
    assert (request.actor.user, request.actor.groups, request.dry_run) == ("ann", ("devs",), True)
    assert (request.operation, request.resource.kind, request.name) == ("CREATE", "Queue", "q")


async def test_hooks_refuse_and_warn() -> None:
    response = await ask(Webhook(hooks=[Hook()]), "/validate", review_of(queue(name="bad"), name="bad"))
    assert response["allowed"] is False
    assert response["status"]["message"] == "bad is not allowed"
    assert response["status"]["code"] == 403
    assert response["warnings"] == ["about to be refused"]


async def test_a_hook_that_takes_too_long_is_an_answer_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook, "TIMEOUT_S", 0.01)
    response = await ask(Webhook(hooks=[Hook()]), "/validate", review_of(queue(name="slow"), name="slow"))
    assert response["allowed"] is False
    assert "not checked within" in response["status"]["message"]


@pytest.mark.parametrize(
    ("review", "warned"),
    [
        pytest.param(review_of({}, resource={"group": "", "version": "v1", "resource": "nodes"}), True, id="built-in kind"),
        pytest.param(review_of({}, resource={"group": "x.y", "version": "v1", "resource": "z"}), True, id="unknown kind"),
        pytest.param(review_of({"spec": 1}, subResource="status"), False, id="subresource"),
        pytest.param(review_of(None, operation="DELETE", oldObject=queue()), False, id="delete"),
        pytest.param(review_of(None, operation="CONNECT"), False, id="connect"),
    ],
)
@pytest.mark.parametrize("path", ["/validate", "/mutate"])
async def test_what_is_not_checked_passes(review: Raw, warned: bool, path: str) -> None:
    response = await ask(Webhook(), path, review)
    assert response["allowed"] is True
    assert ("warnings" in response) == warned


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"{", id="broken JSON"),
        pytest.param(b"[]", id="list"),
        pytest.param(b'{"kind": "Pod"}', id="another kind"),
        pytest.param(b'{"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1beta1"}', id="old version"),
        pytest.param(b'{"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1"}', id="no request"),
        pytest.param(msgspec.json.encode(review_of(queue(), operation="DANCE")), id="unknown operation"),
        pytest.param(msgspec.json.encode(review_of(queue(), uid=7)), id="wrong type"),
        pytest.param(msgspec.json.encode(review_of("text")), id="object is text"),
        pytest.param(b"[" * 100_000, id="deep"),
        pytest.param(b"\xff\xfe", id="not UTF-8"),
    ],
)
async def test_bad_requests_are_4xx(body: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        await Webhook().review("/validate", body)
    assert caught.value.code == 400


async def test_an_object_of_another_kind_is_refused() -> None:
    response = await ask(Webhook(), "/validate", review_of(queue() | {"kind": "Pod"}))
    assert response["allowed"] is False
    assert "does not match" in response["status"]["message"]


async def call(app: Webhook, method: str, path: str, chunks: list[bytes]) -> tuple[int, Any]:
    sent: list[dict[str, Any]] = []
    messages = [{"type": "http.request", "body": c, "more_body": i + 1 < len(chunks)} for i, c in enumerate(chunks)]

    async def receive() -> dict[str, Any]:
        return messages.pop(0) if messages else {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await app({"type": "http", "method": method, "path": path}, receive, send)
    return sent[0]["status"], msgspec.json.decode(sent[1]["body"])


async def test_http(monkeypatch: pytest.MonkeyPatch) -> None:
    body = msgspec.json.encode(review_of(queue()))
    code, answer = await call(Webhook(), "POST", "/validate", [body[:10], body[10:]])
    assert (code, answer["response"]["allowed"]) == (200, True)
    assert (await call(Webhook(), "GET", "/validate", [b""]))[0] == 405
    assert (await call(Webhook(), "POST", "/nowhere", [b""]))[0] == 404
    assert (await call(Webhook(), "POST", "/validate", [b"{"]))[0] == 400
    assert (await call(Webhook(), "POST", "/validate", []))[0] == 400
    monkeypatch.setattr(webhook, "BODY_BYTES_MAX", 20)
    assert (await call(Webhook(), "POST", "/validate", [body]))[0] == 413


async def test_half_a_picture_judges_nobody() -> None:
    """A limit that is not known yet would hold nobody."""
    why = ["it has not read all users.muster.dev yet"]
    app = Webhook(hooks=[Hook()], not_ready=lambda: why[0])
    body = msgspec.json.encode(review_of(queue()))
    code, answer = await call(app, "POST", "/validate", [body])
    assert (code, answer["reason"]) == (503, "ServiceUnavailable")
    assert "users.muster.dev" in answer["message"]
    why[0] = ""
    assert (await call(app, "POST", "/validate", [body]))[0] == 200


@pytest.mark.parametrize("path", ["/validate", "/mutate"])
@given(st.none() | st.dictionaries(st.sampled_from(["metadata", "spec", "kind"]), st.recursive(
    st.none() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2)
    | st.dictionaries(st.sampled_from(["labels", "annotations", "ownerReferences", "name", Muster.USER]), inner, max_size=3),
    max_leaves=6,
), max_size=3))  # fmt: skip
def test_whatever_a_pod_looks_like_there_is_an_answer(path: str, odd: Raw | None) -> None:
    people = People(lambda: 0.0)
    people.apply("User", {"metadata": {"name": "ann"}, "spec": {"group": "g"}})

    async def nobody(_actor: Actor, _asked: Attributes) -> bool:
        return False

    hooks = [FillsInUser(people), AccountedPods(), SubmissionLimits(people, nobody)]
    app = Webhook(hooks=hooks, listener=lambda entry: None)
    for old in (None, odd):
        review = review_of(odd, resource=POD, oldObject=old, operation="UPDATE" if old else "CREATE")
        code, answer = asyncio.run(call(app, "POST", path, [msgspec.json.encode(review)]))
        assert code == 200, answer
        assert isinstance(answer["response"]["allowed"], bool)


async def test_a_bug_is_a_500_and_no_more() -> None:
    class Broken(Hook):
        async def validate(self, request: AdmissionRequest) -> None:
            raise ZeroDivisionError("secret detail")

    code, answer = await call(Webhook(hooks=[Broken()]), "POST", "/validate", [msgspec.json.encode(review_of(queue()))])
    assert code == 500
    assert "secret" not in str(answer)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.text(max_size=4), JSON, max_size=4), st.dictionaries(st.text(max_size=4), JSON, max_size=4))
def test_a_patch_leads_from_one_to_the_other(before: Raw, after: Raw) -> None:
    result = apply_json_patch(before, json_patch(before, after))
    assert msgspec.json.encode(result, order="sorted") == msgspec.json.encode(after, order="sorted")


# -- who did what ------------------------------------------------------------------------------------------------------------


def pod(**meta: Any) -> Raw:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"} | meta, "spec": {"containers": []}}


@pytest.mark.parametrize(
    ("path", "review", "told"),
    [
        pytest.param("/validate", review_of(queue()), [("ann", "create", "queues.muster.dev", "q", 0)], id="let pass"),
        pytest.param("/mutate", review_of(queue()), [], id="comes again to be validated"),
        pytest.param("/validate", review_of(queue(), dryRun=True), [], id="a dry run"),
        pytest.param(
            "/validate",
            review_of(queue(name="bad"), name="bad"),
            [("ann", "create", "queues.muster.dev", "bad", 403)],
            id="refused",
        ),
        pytest.param(
            "/validate",
            review_of(None, operation="DELETE", oldObject=queue()),
            [("ann", "delete", "queues.muster.dev", "q", 0)],
            id="deleted",
        ),
        pytest.param(
            "/validate", review_of(pod(labels={"muster.dev/user": "ann"}), resource=POD), [("ann", "create", "pods", "q", 0)],
            id="a pod that says whose it is",
        ),
        pytest.param("/validate", review_of(pod(), resource=POD), [], id="a pod of somebody else's"),
        pytest.param(
            "/validate",
            review_of(queue(), userInfo={"username": "system:serviceaccount:kube-system:namespace-controller"}),
            [],
            id="a controller of the cluster",
        ),
        pytest.param("/validate", review_of(queue(), userInfo={"username": "ourselves"}), [], id="Muster itself"),
    ],
)  # fmt: skip
async def test_a_listener_hears_what_people_did(path: str, review: Raw, told: list[tuple[str, str, str, str, int]]) -> None:
    heard: list[Raw] = []
    own = frozenset({"ourselves"})
    app = Webhook(hooks=[Hook()], listener=heard.append, unheard=own, is_ours=lambda raw: False, clock=lambda: 5.0)
    for _ in range(2):  # an API server asks again when it had an old copy
        await ask(app, path, review)
    acts = [action for entry in heard if (action := action_of(entry)) is not None]
    assert [(act.user, act.verb, act.resource, act.name, act.code) for act in acts] == told
    assert all(act.at == 5.0 for act in acts)


async def test_a_listener_hears_what_was_changed() -> None:
    heard: list[Raw] = []
    app = Webhook(hooks=[ChangeNotes()], listener=heard.append)
    changed = {**queue(), "spec": {**queue()["spec"], "weight": 7}}
    await ask(app, "/validate", review_of(changed, operation="UPDATE", oldObject=queue()))
    [act] = [action for entry in heard if (action := action_of(entry)) is not None]
    assert (act.verb, act.note) == ("update", "spec.weight: nothing -> 7")


async def test_of_pods_only_hooks_judge() -> None:
    """The API server knows their schema; what it takes that ours would not is none of a webhook's business."""
    odd = pod(labels={"muster.dev/queue": "q"}) | {"spec": {"fieldOfTomorrow": 1}}
    assert await ask(Webhook(), "/validate", review_of(odd, resource=POD)) == {"uid": "u-1", "allowed": True}
    assert "patch" not in await ask(Webhook(), "/mutate", review_of(odd, resource=POD))
    judging = Webhook(hooks=[Hook()], is_ours=lambda raw: False)
    assert not (await ask(judging, "/validate", review_of(odd, resource=POD, name="bad")))["allowed"]
    said_once = review_of(pod(), resource=POD, name="bad", operation="UPDATE", oldObject=odd)
    assert not (await ask(judging, "/validate", said_once))["allowed"]
    assert (await ask(judging, "/validate", review_of(pod(), resource=POD, name="bad")))["allowed"], "not Muster's business"
