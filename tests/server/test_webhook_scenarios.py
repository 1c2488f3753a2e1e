"""Webhooks over real TLS, the same scenarios on our server and on a real kube-apiserver: codes and words must be the same."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Any

import pytest

from muster.objects.status import Raw
from tests.server.running import RunningServer
from tests.server.webhook_support import (
    MERGE,
    Api,
    Behaviour,
    HookServer,
    Kubernetes,
    Sent,
    add_label,
    allow,
    answer,
    configured,
    deny,
    new_namespace,
    patch,
    written,
)

_numbers = itertools.count()


@pytest.fixture(scope="module")
def hooks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HookServer]:
    made = HookServer(tmp_path_factory.mktemp("hooks"))
    yield made
    made.stop()


@pytest.fixture(params=["muster", pytest.param("kubernetes", marks=[pytest.mark.kubernetes, pytest.mark.slow])])
def api(request: pytest.FixtureRequest) -> Api:
    if request.param == "muster":
        server: RunningServer = request.getfixturevalue("server")
        return server
    return Kubernetes(request.getfixturevalue("kubernetes"))


@pytest.fixture
def space(api: Api) -> str:
    return new_namespace(api, f"hooked-{next(_numbers)}")


def config_map(name: str, **labels: str) -> Raw:
    return {"metadata": {"name": name, **({"labels": labels} if labels else {})}, "data": {"a": "1"}}


def maps(space: str, name: str = "", query: str = "") -> str:
    return f"/api/v1/namespaces/{space}/configmaps{'/' if name else ''}{name}{query}"


def pod(name: str) -> Raw:
    return {"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "busybox:1"}]}}


BODY = b"<html>no</html>"

REFUSALS = [
    pytest.param(
        deny(), {}, 400, r'admission webhook "h\.hooks\.example\.com" denied the request without explanation$', id="bare"
    ),
    pytest.param(
        deny(message="not on a Friday", code=403, reason="Forbidden"),
        {},
        403,
        r'admission webhook "h\.hooks\.example\.com" denied the request: not on a Friday$',
        id="message, code and reason",
    ),
    pytest.param(deny(reason="Because"), {}, 400, r"denied the request: Because$", id="reason alone"),
    pytest.param(deny(message="m", code=200), {}, 400, r"denied the request: m$", id="a code that is no refusal"),
    pytest.param(
        lambda r: {**answer(r, allowed=True), "response": None}, {}, 500, r"failed calling webhook .*absent$", id="no response"
    ),
    pytest.param(
        lambda r: answer(r, allowed=True, uid="another"),
        {},
        500,
        r'^Internal error occurred: failed calling webhook "h\..*": .*expected response\.uid="[-0-9a-f]{36}", got "another"$',
        id="another uid",
    ),
    pytest.param(
        lambda r: {**answer(r, allowed=True), "apiVersion": "admission.k8s.io/v1beta1"},
        {},
        500,
        r"failed calling webhook .*(expected webhook response of admission\.k8s\.io/v1, Kind=Admission|unknown conversion)",
        id="another version",
    ),
    pytest.param(lambda _: BODY, {}, 500, r"failed calling webhook .*(json|invalid character)", id="no JSON"),
    pytest.param(lambda _: b"", {}, 500, r"failed calling webhook", id="nothing"),
    pytest.param(lambda _: b"[1,2]", {}, 500, r"failed calling webhook .*couldn't get version/kind", id="a list"),
    pytest.param(
        lambda _: Sent(404), {}, 500, r"failed calling webhook .*the server could not find the requested resource", id="404"
    ),
    pytest.param(
        lambda _: Sent(500, b"oops"), {}, 500, r"failed calling webhook .*an error on the server \(\"oops\"\)", id="500"
    ),
    pytest.param(lambda _: Sent(0), {}, 500, r"failed calling webhook .*EOF", id="closed"),
    pytest.param(
        lambda r: answer(r, allowed=True, patchType="JSONPatch", patch="W10="),
        {},
        500,
        r"failed calling webhook .*validating webhook may not return response\.patch",
        id="a patch of one that may not",
    ),
    pytest.param(
        allow,
        {"clientConfig": {"url": "https://127.0.0.1:1/h"}},
        500,
        r"failed calling webhook .*127\.0\.0\.1:1/h\?timeout=\d+s\": dial tcp 127\.0\.0\.1:1: connect: connection refused$",
        id="nobody there",
    ),
    pytest.param(
        allow,
        {"clientConfig": {"service": {"name": "nowhere", "namespace": "default"}}},
        500,
        r"failed calling webhook .*https://nowhere\.default\.svc:443/\?timeout=\d+s\": service \"nowhere\" not found$",
        id="a service that is not there",
    ),
]


@pytest.mark.parametrize(("behave", "more", "code", "message"), REFUSALS)
def test_a_write_is_refused(
    api: Api, hooks: HookServer, space: str, behave: Behaviour, more: Raw, code: int, message: str
) -> None:
    hooks.behaviours["/h"] = behave
    webhook = hooks.webhook("/h", space, objectSelector={"matchLabels": {"judged": "yes"}}, **more)
    with configured(api, hooks, space, webhook):
        reply = api.request("POST", maps(space), config_map("a", judged="yes"))
        assert reply.code == code, reply.body
        assert re.search(message, reply.message), reply.message
        assert api.request("GET", maps(space, "a")).code == 404
        # Others are not asked about, and what fails open is let pass.
        assert api.request("POST", maps(space), config_map("b")).code == 201


@pytest.mark.parametrize("behave", [lambda _: BODY, lambda _: Sent(503), lambda r: answer(r, allowed=True, uid="x")])
def test_what_fails_open_is_let_pass(api: Api, hooks: HookServer, space: str, behave: Behaviour) -> None:
    hooks.behaviours["/h"] = behave
    with configured(api, hooks, space, hooks.webhook("/h", space, failurePolicy="Ignore")):
        assert api.request("POST", maps(space), config_map("a")).code == 201
    assert hooks.questions("/h")


def test_a_refusal_is_no_failure(api: Api, hooks: HookServer, space: str) -> None:
    hooks.behaviours["/h"] = deny(message="no")
    webhook = hooks.webhook("/h", space, failurePolicy="Ignore", objectSelector={"matchLabels": {"judged": "yes"}})
    with configured(api, hooks, space, webhook):
        assert api.request("POST", maps(space), config_map("a", judged="yes")).code == 400


@pytest.mark.parametrize(("policy", "code"), [("Fail", 500), ("Ignore", 201)])
def test_a_webhook_that_takes_too_long(api: Api, hooks: HookServer, space: str, policy: str, code: int) -> None:
    hooks.held.clear()
    hooks.behaviours["/h"] = hooks.hold
    more: Raw = {"timeoutSeconds": 1, "failurePolicy": policy, "objectSelector": {"matchLabels": {"judged": "yes"}}}
    with configured(api, hooks, space, hooks.webhook("/h", space, **more)):
        reply = api.request("POST", maps(space), config_map("a", judged="yes"))
    hooks.held.set()
    assert reply.code == code, reply.body
    if policy == "Fail":
        assert re.search(r'failed calling webhook "h\..*/h\?timeout=1s": context deadline exceeded', reply.message), (
            reply.message
        )


def test_what_is_asked(api: Api, hooks: HookServer, space: str) -> None:
    hooks.behaviours["/h"] = allow
    with configured(api, hooks, space, hooks.webhook("/h", space, resources=("configmaps",))):
        written(api, "POST", maps(space), config_map("a"))
        written(api, "PATCH", maps(space, "a"), {"data": {"a": "2"}})
        assert api.request("DELETE", maps(space, "a")).code == 200
    created, updated, deleted = [q for q in hooks.questions("/h") if q.get("name") == "a"]
    for question in (created, updated, deleted):
        assert question["kind"] == question["requestKind"] == {"group": "", "version": "v1", "kind": "ConfigMap"}
        assert question["resource"] == question["requestResource"] == {"group": "", "version": "v1", "resource": "configmaps"}
        assert (question["namespace"], question["name"], question["dryRun"]) == (space, "a", False)
        assert question["userInfo"]["username"]
        assert "system:authenticated" in question["userInfo"]["groups"]
    assert [q["operation"] for q in (created, updated, deleted)] == ["CREATE", "UPDATE", "DELETE"]
    assert created["oldObject"] is None
    assert (created["object"]["apiVersion"], created["object"]["kind"]) == ("v1", "ConfigMap")
    assert created["object"]["data"] == updated["oldObject"]["data"] == {"a": "1"}
    assert updated["object"]["data"] == deleted["oldObject"]["data"] == {"a": "2"}
    assert deleted["object"] is None


def test_a_deletion_is_refused(api: Api, hooks: HookServer, space: str) -> None:
    hooks.behaviours["/h"] = lambda r: answer(r, allowed=r["request"]["operation"] != "DELETE", status={"message": "keep it"})
    for kind in ("Validating", "Mutating"):
        with configured(api, hooks, space, hooks.webhook("/h", space), kind=kind):
            api.request("POST", maps(space), config_map("a"))
            reply = api.request("DELETE", maps(space, "a"))
            assert (reply.code, reply.message) == (400, 'admission webhook "h.hooks.example.com" denied the request: keep it')
    assert api.request("DELETE", maps(space, "a")).code == 200


def test_warnings(api: Api, hooks: HookServer, space: str) -> None:
    hooks.behaviours["/h"] = lambda r: answer(r, allowed=True, warnings=["mind the gap", 'say "so"'])
    with configured(api, hooks, space, hooks.webhook("/h", space)):
        reply = api.request("POST", maps(space), config_map("a"))
    assert reply.headers.get_all("warning") == ['299 - "mind the gap"', '299 - "say \\"so\\""']


# --- mutating


def test_webhooks_change_the_object_in_order(api: Api, hooks: HookServer, space: str) -> None:
    hooks.behaviours["/one"] = add_label("one", "1")
    hooks.behaviours["/two"] = add_label("two", "2")
    hooks.behaviours["/seen"] = allow
    with (
        configured(api, hooks, space, hooks.webhook("/two", space), kind="Mutating", name=f"{space}-b"),
        configured(api, hooks, space, hooks.webhook("/one", space), kind="Mutating", name=f"{space}-a"),
        configured(api, hooks, space, hooks.webhook("/seen", space)),
    ):
        made = api.request("POST", maps(space), config_map("a", own="0")).json
    assert made["metadata"]["labels"] == {"own": "0", "one": "1", "two": "2"}
    second = next(q for q in hooks.questions("/two") if q.get("name") == "a")
    assert second["object"]["metadata"]["labels"] == {"own": "0", "one": "1"}
    last = next(q for q in hooks.questions("/seen") if q.get("name") == "a")
    assert last["object"]["metadata"]["labels"] == made["metadata"]["labels"]


@pytest.mark.parametrize(("policy", "count"), [("Never", 1), ("IfNeeded", 2)])
def test_reinvocation(api: Api, hooks: HookServer, space: str, policy: str, count: int) -> None:
    """The first is asked again when the second changes something, and only once although it then changes the object too."""
    hooks.behaviours["/one"] = lambda r: add_label(f"seen-{len(r['request']['object']['metadata'].get('labels', {}))}", "x")(r)
    hooks.behaviours["/two"] = add_label("two", "2")
    first, second = (
        hooks.webhook("/one", space, reinvocationPolicy=policy),
        hooks.webhook("/two", space, reinvocationPolicy=policy),
    )
    with configured(api, hooks, space, first, second, kind="Mutating"):
        made = api.request("POST", maps(space), config_map("a", own="0")).json
    assert len([q for q in hooks.questions("/one") if q.get("name") == "a"]) == count
    wanted = {"own": "0", "seen-1": "x", "two": "2"} | ({"seen-3": "x"} if count == 2 else {})
    assert made["metadata"]["labels"] == wanted


def test_nothing_is_asked_again_when_nothing_changed(api: Api, hooks: HookServer, space: str) -> None:
    hooks.behaviours["/one"] = hooks.behaviours["/two"] = allow
    both = [hooks.webhook(path, space, reinvocationPolicy="IfNeeded") for path in ("/one", "/two")]
    with configured(api, hooks, space, *both, kind="Mutating"):
        assert api.request("POST", maps(space), config_map("a")).code == 201
    assert [path for path, review in hooks.asked if review["request"].get("name") == "a"] == ["/one", "/two"]


def test_what_a_webhook_adds_gets_defaults_and_is_validated(api: Api, hooks: HookServer, space: str) -> None:
    side = {"name": "side", "image": "side"}
    hooks.behaviours["/h"] = patch({"op": "add", "path": "/spec/containers/-", "value": side})
    with configured(api, hooks, space, hooks.webhook("/h", space, resources=("pods",)), kind="Mutating"):
        made = api.request("POST", f"/api/v1/namespaces/{space}/pods", pod("a")).json
        added = made["spec"]["containers"][1]
        assert (added["imagePullPolicy"], added["terminationMessagePolicy"]) == ("Always", "File")
        hooks.behaviours["/h"] = patch({"op": "add", "path": "/spec/containers/-", "value": {"name": "Bad Name", "image": "x"}})
        reply = api.request("POST", f"/api/v1/namespaces/{space}/pods", pod("b"))
        assert (reply.code, reply.reason) == (422, "Invalid")
        assert "spec.containers[1].name" in reply.message


def test_a_webhook_can_not_write_the_status_by_the_way(api: Api, hooks: HookServer, space: str) -> None:
    hooks.behaviours["/h"] = patch(
        {"op": "add", "path": "/status/message", "value": "x"}, {"op": "add", "path": "/metadata/labels", "value": {"a": "b"}}
    )
    with configured(api, hooks, space, hooks.webhook("/h", space, resources=("pods", "pods/status")), kind="Mutating"):
        made = api.request("POST", f"/api/v1/namespaces/{space}/pods", pod("a")).json
        assert "message" not in made["status"]
        assert made["metadata"]["labels"] == {"a": "b"}
        hooks.behaviours["/h"] = patch(
            {"op": "add", "path": "/status/message", "value": "x"},
            {"op": "replace", "path": "/spec/containers/0/image", "value": "other"},
        )
        path = f"/api/v1/namespaces/{space}/pods/a/status"
        after = api.request("PATCH", path, {"status": {"reason": "y"}}, headers=MERGE).json
    assert (after["status"]["message"], after["status"]["reason"]) == ("x", "y")
    assert after["spec"]["containers"][0]["image"] == "busybox:1"


@pytest.mark.parametrize(
    ("behave", "message"),
    [
        pytest.param(patch({"op": "remove", "path": "/data/none"}), r"^Internal error occurred", id="does not fit"),
        pytest.param(
            lambda r: answer(r, allowed=True, patchType="JSONPatch", patch="bm90IGpzb24="),
            r"^Internal error occurred",
            id="no JSON",
        ),
        pytest.param(
            lambda r: answer(r, allowed=True, patchType="MergePatch", patch="e30="),
            r"^Internal error occurred",
            id="another type of patch",
        ),
        pytest.param(
            lambda r: answer(r, allowed=True, patch="W10="),
            r"failed calling webhook .*webhook returned response\.patch but not response\.patchType$",
            id="no type",
        ),
        pytest.param(
            lambda r: answer(r, allowed=True, patchType="JSONPatch"),
            r"failed calling webhook .*webhook returned response\.patchType but not response\.patch$",
            id="a type and no patch",
        ),
    ],
)
def test_a_patch_that_is_none(api: Api, hooks: HookServer, space: str, behave: Behaviour, message: str) -> None:
    hooks.behaviours["/h"] = behave
    webhook = hooks.webhook("/h", space, objectSelector={"matchLabels": {"judged": "yes"}})
    with configured(api, hooks, space, webhook, kind="Mutating"):
        reply = api.request("POST", maps(space), config_map("a", judged="yes"))
    assert reply.code == 500, reply.body
    assert re.search(message, reply.message), reply.message


# --- whom it concerns


def test_dry_runs_are_asked_about_and_say_so(api: Api, hooks: HookServer, space: str) -> None:
    hooks.behaviours["/h"] = add_label("a", "b")
    with configured(api, hooks, space, hooks.webhook("/h", space, sideEffects="NoneOnDryRun"), kind="Mutating"):
        made = api.request("POST", maps(space, query="?dryRun=All"), config_map("a")).json
    assert made["metadata"]["labels"] == {"a": "b"}
    asked = [q for q in hooks.questions("/h") if q.get("name") == "a"]
    assert [q["dryRun"] for q in asked] == [True]
    assert asked[0]["options"]["dryRun"] == ["All"]
    assert api.request("GET", maps(space, "a")).code == 404


def test_the_object_selector_looks_at_both_objects(api: Api, hooks: HookServer, space: str) -> None:
    hooks.behaviours["/h"] = allow
    with configured(api, hooks, space, hooks.webhook("/h", space, objectSelector={"matchLabels": {"team": "blue"}})):
        written(api, "POST", maps(space), config_map("a"))
        for changed in (
            {"metadata": {"labels": {"team": "blue"}}},
            {"metadata": {"labels": {"team": None}}},
            {"data": {"x": "y"}},
        ):
            written(api, "PATCH", maps(space, "a"), changed)
        api.request("DELETE", maps(space, "a"))
    teams = [
        tuple((q[which] or {}).get("metadata", {}).get("labels", {}).get("team", "") for which in ("oldObject", "object"))
        for q in hooks.questions("/h")
        if q.get("name") == "a"
    ]
    assert teams == [("", "blue"), ("blue", "")]


def test_a_namespace_is_in_itself(api: Api, hooks: HookServer, space: str) -> None:
    hooks.behaviours["/h"] = allow
    with configured(api, hooks, space, hooks.webhook("/h", space, resources=("namespaces",))):
        api.request("PATCH", f"/api/v1/namespaces/{space}", {"metadata": {"labels": {"more": "x"}}}, headers=MERGE)
    (asked,) = [q for q in hooks.questions("/h") if q["operation"] == "UPDATE"]
    assert (asked["namespace"], asked["name"]) == (space, space)


def test_subresources(api: Api, hooks: HookServer, space: str) -> None:
    """Status, scale, binding, eviction: each with the object that the client sends."""
    hooks.behaviours["/h"] = allow
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "x"}]}}
    deployment = {
        "metadata": {"name": "d"},
        "spec": {"replicas": 0, "selector": {"matchLabels": {"a": "b"}}, "template": template},
    }
    pods, deployments = f"/api/v1/namespaces/{space}/pods", f"/apis/apps/v1/namespaces/{space}/deployments"
    assert api.request("POST", deployments, deployment).code == 201
    assert api.request("POST", pods, pod("p")).code == 201
    some = ("pods/status", "deployments/scale", "pods/binding", "pods/eviction")
    eviction = {"apiVersion": "policy/v1beta1", "kind": "Eviction", "metadata": {"name": "p"}}
    with configured(api, hooks, space, hooks.webhook("/h", space, resources=some)):
        assert api.request("PATCH", f"{pods}/p/status", {"status": {"reason": "x"}}, headers=MERGE).code == 200
        assert api.request("PATCH", f"{deployments}/d/scale", {"spec": {"replicas": 3}}, headers=MERGE).code == 200
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}}
        assert api.request("POST", f"{pods}/p/binding", binding).code == 201
        assert api.request("POST", f"{pods}/p/eviction", eviction).code == 201
    by_sub = {q["subResource"]: q for q in hooks.questions("/h") if "system:masters" in q["userInfo"]["groups"]}
    assert {sub: (q["operation"], q["name"]) for sub, q in by_sub.items()} == {
        "status": ("UPDATE", "p"),
        "scale": ("UPDATE", "d"),
        "binding": ("CREATE", "p"),
        "eviction": ("CREATE", "p"),
    }
    assert by_sub["status"]["object"]["kind"] == "Pod"
    scale = by_sub["scale"]
    assert scale["kind"] == {"group": "autoscaling", "version": "v1", "kind": "Scale"}
    assert scale["resource"] == {"group": "apps", "version": "v1", "resource": "deployments"}
    assert (scale["oldObject"]["spec"].get("replicas", 0), scale["object"]["spec"]["replicas"]) == (0, 3)
    assert by_sub["binding"]["kind"]["kind"] == by_sub["binding"]["object"]["kind"] == "Binding"
    assert by_sub["binding"]["object"]["target"]["name"] == "n"
    assert by_sub["eviction"]["object"]["kind"] == "Eviction"


@pytest.mark.parametrize("sub", ["scale", "binding", "eviction"])
def test_a_subresource_is_refused(api: Api, hooks: HookServer, space: str, sub: str) -> None:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "x"}]}}
    deployment = {
        "metadata": {"name": "d"},
        "spec": {"replicas": 0, "selector": {"matchLabels": {"a": "b"}}, "template": template},
    }
    pods, deployments = f"/api/v1/namespaces/{space}/pods", f"/apis/apps/v1/namespaces/{space}/deployments"
    api.request("POST", deployments, deployment)
    api.request("POST", pods, pod("p"))
    hooks.behaviours["/h"] = deny(message="no")
    asked: dict[str, tuple[str, str, Raw]] = {
        "scale": ("PUT", f"{deployments}/d/scale", {"metadata": {"name": "d", "namespace": space}, "spec": {"replicas": 3}}),
        "binding": ("POST", f"{pods}/p/binding", {"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}}),
        "eviction": (
            "POST",
            f"{pods}/p/eviction",
            {"apiVersion": "policy/v1beta1", "kind": "Eviction", "metadata": {"name": "p"}},
        ),
    }
    method, path, body = asked[sub]
    with configured(api, hooks, space, hooks.webhook("/h", space, resources=(f"*/{sub}",))):
        reply = api.request(method, path, body)
    assert (reply.code, reply.message) == (400, 'admission webhook "h.hooks.example.com" denied the request: no')
    after: Any = api.request("GET", f"{pods}/p").json
    assert "nodeName" not in after["spec"]
    assert "deletionTimestamp" not in after["metadata"]
    assert api.request("GET", f"{deployments}/d").json["spec"]["replicas"] == 0


def test_an_old_review(api: Api, hooks: HookServer, space: str) -> None:
    """Of several versions the first that the server knows is spoken."""
    hooks.behaviours["/h"] = lambda r: answer(r, allowed=False, uid="any", status={"message": r["apiVersion"]})
    webhook = hooks.webhook("/h", space, admissionReviewVersions=["v9", "v1beta1", "v1"])
    webhook["objectSelector"] = {"matchLabels": {"judged": "yes"}}
    with configured(api, hooks, space, webhook):
        reply = api.request("POST", maps(space), config_map("a", judged="yes"))
    assert reply.message.endswith("denied the request: admission.k8s.io/v1beta1")
