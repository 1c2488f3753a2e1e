"""What our server alone promises about admission webhooks: its bounds, what it never asks about, what it notes and counts."""

from __future__ import annotations

import base64
import itertools
import json
import queue
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from muster.objects.status import ApiError, NotFound, Raw
from muster.server.admission_review import Answer, BadAnswer, denial, read_answer
from muster.server.config import ServerLimits
from muster.store.contract import Binding
from muster.store.embedded import Actor
from tests.server.running import RunningServer, running
from tests.server.webhook_support import (
    CONFIGURATIONS,
    MERGE,
    HookServer,
    Sent,
    add_label,
    allow,
    answer,
    configured,
    deny,
    new_namespace,
    patch,
)
from tests.waiting import blocked_until

_numbers = itertools.count()


@pytest.fixture(scope="module")
def hooks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HookServer]:
    made = HookServer(tmp_path_factory.mktemp("hooks"))
    yield made
    made.stop()


@pytest.fixture
def space(server: RunningServer) -> str:
    return new_namespace(server, f"asked-{next(_numbers)}")


def config_map(name: str, **labels: str) -> Raw:
    return {"metadata": {"name": name, "labels": {"judged": "yes", **labels}}, "data": {"a": "1"}}


def maps(space: str, name: str = "") -> str:
    return f"/api/v1/namespaces/{space}/configmaps{'/' if name else ''}{name}"


JUDGED: Raw = {"objectSelector": {"matchLabels": {"judged": "yes"}}}
POD: Raw = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "x:1"}]}}
HELD_S = 10.0
"""So long a connection is there after the call was given up: it has not been dropped."""


# --- hostile answers


@pytest.mark.parametrize(
    ("behave", "says"),
    [
        pytest.param(lambda _: b"{" + b" " * (3 << 20) + b"}", "larger than 3145728 bytes", id="huge"),
        pytest.param(lambda _: Sent(302, headers={"location": "/elsewhere"}), "redirect", id="redirect"),
        pytest.param(lambda _: Sent(307, headers={"location": "/elsewhere"}), "redirect", id="redirect of a POST"),
        pytest.param(lambda _: b"[" * 100_000, "json parse error", id="deep"),
        pytest.param(lambda r: answer(r, allowed="yes"), "response.allowed", id="allowed is a text"),
        pytest.param(lambda _: Sent(200, b"\x1f\x8b\x08", {"content-encoding": "gzip"}), "json parse error", id="compressed"),
        pytest.param(lambda _: Sent(204), "json parse error", id="no content"),
    ],
)
def test_hostile_answers(server: RunningServer, hooks: HookServer, space: str, behave: Any, says: str) -> None:
    hooks.behaviours["/h"] = behave
    with configured(server, hooks, space, hooks.webhook("/h", space, **JUDGED)):
        reply = server.request("POST", maps(space), config_map("a"))
    assert reply.code == 500
    assert reply.message.startswith('Internal error occurred: failed calling webhook "h.hooks.example.com": ')
    assert says in reply.message
    assert not hooks.questions("/elsewhere")


def test_a_certificate_of_somebody_else(server: RunningServer, hooks: HookServer, space: str) -> None:
    client = {"url": hooks.url("/h")}
    with configured(server, hooks, space, hooks.webhook("/h", space, clientConfig=client, **JUDGED)):
        reply = server.request("POST", maps(space), config_map("a"))
    assert "tls: failed to verify certificate: x509" in reply.message
    client = {"url": hooks.url("/h"), "caBundle": base64.b64encode(b"no PEM").decode()}
    with configured(server, hooks, space, hooks.webhook("/h", space, clientConfig=client, **JUDGED)):
        reply = server.request("POST", maps(space), config_map("b"))
    assert "could not get REST client: unable to load root certificates" in reply.message
    assert not hooks.questions("/h")


@pytest.mark.parametrize(
    "bundle",
    [
        pytest.param(lambda ca, own: own, id="the webhook's own certificate, which another has signed"),
        pytest.param(lambda ca, own: "# Autorité\n".encode() + ca, id="words that are not ASCII"),
        pytest.param(
            lambda ca, own: b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n" + ca, id="one that can't be read"
        ),
    ],
)
def test_what_a_bundle_may_hold(server: RunningServer, hooks: HookServer, space: str, bundle: Any) -> None:
    hooks.behaviours["/h"] = allow
    found = bundle(base64.b64decode(hooks.ca_bundle), hooks.certificate)
    client = {"url": hooks.url("/h"), "caBundle": base64.b64encode(found).decode()}
    with configured(server, hooks, space, hooks.webhook("/h", space, clientConfig=client, **JUDGED)):
        reply = server.request("POST", maps(space), config_map("a"))
    assert reply.code == 201, reply.message
    assert hooks.questions("/h")


@pytest.mark.parametrize(
    ("code", "headers", "body"),
    [
        pytest.param(200, {"content-length": "1000"}, b"{", id="in the middle of the answer"),
        pytest.param(100, {}, b"", id="before its head"),
        pytest.param(200, {"content-length": str(4 << 20)}, b" " * (4 << 20), id="too large"),
    ],
)
def test_who_is_given_up_is_hung_up_on(
    server: RunningServer, hooks: HookServer, space: str, code: int, headers: dict[str, str], body: bytes
) -> None:
    """Not asked to agree to it: whoever does not would hold a connection of the server for long after the call."""
    ends: queue.Queue[str] = queue.Queue()

    def watch(connection: socket.socket) -> None:
        try:
            if connection.recv(1) != b"":
                ends.put("more was sent")
                return
            # TLS's word of the end. Who waits for an answer to it keeps the connection for half a minute.
            with socket.socket(fileno=connection.detach()) as plain:
                plain.settimeout(HELD_S)
                plain.recv(1)
        except TimeoutError:
            ends.put("held")
            return
        except OSError:
            pass
        ends.put("dropped")

    hooks.behaviours["/h"] = lambda _: Sent(code, body, headers, then=watch)
    webhook = hooks.webhook("/h", space, **JUDGED, timeoutSeconds=1)
    with configured(server, hooks, space, webhook):
        assert server.request("POST", maps(space), config_map("a")).code == 500
        assert ends.get(timeout=60) == "dropped"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64) | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
FIELDS = ("uid", "allowed", "status", "patch", "patchType", "warnings", "auditAnnotations")
RESPONSES = st.fixed_dictionaries({}, optional=dict.fromkeys(FIELDS, JSON))


@given(response=RESPONSES | JSON, version=st.sampled_from(["v1", "v1beta1"]), is_mutating=st.booleans(), about=JSON)
@example(response={"uid": "u", "allowed": True, "patch": "****"}, version="v1", is_mutating=True, about=None)
def test_any_answer_is_read_or_refused(response: Any, version: str, is_mutating: bool, about: Any) -> None:
    document = {"apiVersion": f"admission.k8s.io/{version}", "kind": "AdmissionReview", "response": response}
    for said in (document, about, {**document, "response": {**response, "uid": "u"}} if isinstance(response, dict) else about):
        try:
            found = read_answer(said, uid="u", version=version, is_mutating=is_mutating)
        except BadAnswer:
            continue
        assert isinstance(found, Answer)
        assert is_mutating or not found.patch


@given(status=st.dictionaries(st.sampled_from(["message", "reason", "code", "details", "status"]), JSON))
@example(status={"code": 429, "details": {"retryAfterSeconds": True}})
def test_any_refusal_can_be_told(status: Raw) -> None:
    error = denial("w.example.com", status)
    said = error.to_status()
    assert 400 <= error.code <= 599
    assert said["status"] == "Failure"
    assert type(error.retry_after_s) is int
    assert said["message"].startswith('admission webhook "w.example.com" denied the request')
    json.dumps(said)


def test_fuzzed_answers_obey_the_failure_policy(server: RunningServer, hooks: HookServer, space: str) -> None:
    """Through the real client and server: bytes of any kind, HTTP codes of any kind; never anything but these outcomes."""
    names = itertools.count()

    @given(
        code=st.integers(200, 599), body=st.binary(max_size=200) | RESPONSES.map(lambda r: json.dumps({"response": r}).encode())
    )
    @settings(max_examples=25)
    def attempt(code: int, body: bytes) -> None:
        hooks.behaviours["/h"] = hooks.behaviours["/m"] = lambda _: Sent(code, body if code not in (204, 304) else b"")
        reply = server.request("POST", maps(space), config_map(f"a{next(names)}", policy="Fail"))
        assert (reply.code, "failed calling webhook" in reply.message) == (500, True)
        assert server.request("POST", maps(space), config_map(f"a{next(names)}", policy="Ignore")).code == 201

    def both(path: str) -> list[Raw]:
        return [
            hooks.webhook(
                path,
                space,
                name=f"{policy.lower()}.{path[1:]}.example.com",
                failurePolicy=policy,
                objectSelector={"matchLabels": {"judged": "yes", "policy": policy}},
            )
            for policy in ("Fail", "Ignore")
        ]

    with (
        configured(server, hooks, space, *both("/h")),
        configured(server, hooks, space, *both("/m"), kind="Mutating"),
    ):
        attempt()


# --- whom it concerns, and whom never


def test_a_service_is_reached_at_its_endpoints(server: RunningServer, hooks: HookServer, space: str) -> None:
    if server.request("GET", "/api/v1/namespaces/services").code == 404:
        server.namespace("services")
    ports = [{"name": "hooks", "port": 8000}]
    server.create("/api/v1/namespaces/services/services", {"metadata": {"name": "hooks"}, "spec": {"ports": ports}})
    hooks.behaviours["/v1/check"] = deny(message="asked by service")
    service = {"name": "hooks", "namespace": "services", "path": "/v1/check", "port": 8000}
    client = {"service": service, "caBundle": hooks.ca_bundle}
    with configured(server, hooks, space, hooks.webhook("/x", space, clientConfig=client, **JUDGED)):
        message = server.request("POST", maps(space), config_map("a")).message
        assert 'no endpoints available for service "hooks"' in message
        # One of two addresses takes no connections.
        addresses = [{"ip": "127.0.0.2"}, {"ip": "127.0.0.1"}]
        subset = {"addresses": addresses, "ports": [{"name": "hooks", "port": hooks.port}]}
        server.create("/api/v1/namespaces/services/endpoints", {"metadata": {"name": "hooks"}, "subsets": [subset]})
        for _ in range(2):
            assert server.request("POST", maps(space), config_map("a")).message.endswith("denied the request: asked by service")
        # The name in the certificate is that of the service, whatever its address.
        client["service"] = {**service, "name": "other"}
        server.create("/api/v1/namespaces/services/services", {"metadata": {"name": "other"}, "spec": {"ports": ports}})
        server.create("/api/v1/namespaces/services/endpoints", {"metadata": {"name": "other"}, "subsets": [subset]})
    with configured(server, hooks, space, hooks.webhook("/x", space, clientConfig=client, **JUDGED)):
        reply = server.request("POST", maps(space), config_map("b"))
        assert "https://other.services.svc:8000/v1/check" in reply.message
        assert "tls: failed to verify certificate" in reply.message


def test_muster_itself_is_asked_about_but_for_leases_and_events(server: RunningServer, hooks: HookServer, space: str) -> None:
    store = server.server.store
    hooks.behaviours["/h"] = deny(message="no")
    everything = hooks.webhook("/h", space, resources=("*/*",))
    kinds = {kind: store.catalog.by_kind(group, kind) for group, kind in (("", "ConfigMap"), ("coordination.k8s.io", "Lease"))}
    event = {
        "metadata": {"name": "e"},
        "involvedObject": {"kind": "Pod", "name": "p", "namespace": space},
        "reason": "r",
        "message": "m",
    }
    node = Actor("system:node:n1", groups=("system:nodes", "system:authenticated"))
    nodes = "/api/v1/namespaces/kube-node-lease"
    assert server.request("PATCH", nodes, {"metadata": {"labels": {"hooks": space}}}, headers=MERGE).code == 200
    with configured(server, hooks, space, everything):
        with pytest.raises(ApiError, match="denied the request: no"):
            server.call(store.create(kinds["ConfigMap"], {"metadata": {"name": "a"}}, space))
        assert hooks.questions("/h")[-1]["userInfo"] == {"username": "system:muster", "groups": ["system:authenticated"]}
        count = len(hooks.questions("/h"))
        server.call(store.create(kinds["Lease"], {"metadata": {"name": "a"}}, space))
        server.call(store.create(store.catalog.by_kind("", "Event"), event, space))
        server.call(store.create(kinds["Lease"], {"metadata": {"name": "n1"}}, "kube-node-lease", actor=node))
        assert len(hooks.questions("/h")) == count
        # Those of others are asked about.
        path = f"/apis/coordination.k8s.io/v1/namespaces/{space}/leases"
        assert server.request("POST", path, {"metadata": {"name": "b"}}).code == 400
        # Nor can a webhook keep anybody from removing it.
        name = f"{space}-validating"
        path = f"{CONFIGURATIONS}/validatingwebhookconfigurations/{name}"
        assert server.request("PATCH", path, {"metadata": {"labels": {"a": "b"}}}, headers=MERGE).code == 200


def test_a_server_starts_in_spite_of_webhooks_that_fail(tmp_path: Path, hooks: HookServer) -> None:
    body = {
        "metadata": {"name": "all"},
        "webhooks": [
            {
                "name": "all.hooks.example.com",
                "clientConfig": {"url": "https://127.0.0.1:1/"},
                "rules": [{"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"]}],
                "sideEffects": "None",
                "admissionReviewVersions": ["v1"],
            }
        ],
    }
    with running(tmp_path) as first:
        first.create(f"{CONFIGURATIONS}/validatingwebhookconfigurations", body)
    with running(tmp_path) as again:
        reply = again.request("POST", "/api/v1/namespaces", {"metadata": {"name": "x"}})
        assert (reply.code, "connection refused" in reply.message) == (500, True)
        assert again.request("DELETE", f"{CONFIGURATIONS}/validatingwebhookconfigurations/all").code == 200
        assert again.request("POST", "/api/v1/namespaces", {"metadata": {"name": "x"}}).code == 201


def test_match_conditions_are_refused(server: RunningServer, hooks: HookServer) -> None:
    webhook = hooks.webhook("/h", "x", matchConditions=[{"name": "c", "expression": "true"}])
    reply = server.request(
        "POST", f"{CONFIGURATIONS}/validatingwebhookconfigurations", {"metadata": {"name": "cel"}, "webhooks": [webhook]}
    )
    assert (reply.code, reply.reason) == (422, "Invalid")
    assert "webhooks[0].matchConditions: Forbidden: this server does not evaluate CEL" in reply.message


# --- what webhooks may do to an object


def test_hooks_of_the_server_go_over_what_a_webhook_changed(server: RunningServer, hooks: HookServer, space: str) -> None:
    """A pod's priority follows from its class, whoever names the class, and a webhook can't make one up."""
    priority = {"metadata": {"name": f"of-{space}"}, "value": 7}
    server.create("/apis/scheduling.k8s.io/v1/priorityclasses", priority)
    hooks.behaviours["/h"] = patch(
        {"op": "add", "path": "/spec/priorityClassName", "value": f"of-{space}"},
        {"op": "remove", "path": "/spec/priority"},
    )
    with configured(server, hooks, space, hooks.webhook("/h", space, resources=("pods",)), kind="Mutating"):
        made = server.create(f"/api/v1/namespaces/{space}/pods", POD)
        assert made["spec"]["priority"] == 7
        hooks.behaviours["/h"] = patch({"op": "replace", "path": "/spec/priority", "value": 1_000_000})
        reply = server.request("POST", f"/api/v1/namespaces/{space}/pods", {**POD, "metadata": {"name": "q"}})
    assert reply.code == 403
    assert "the integer value of priority (1000000) must not be provided" in reply.message


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "replace", "path": "/metadata/name", "value": "other"},
        {"op": "replace", "path": "/metadata/uid", "value": "x"},
        {"op": "replace", "path": "/metadata/namespace", "value": "default"},
        {"op": "replace", "path": "/kind", "value": "Secret"},
        {"op": "replace", "path": "", "value": {}},
        {"op": "replace", "path": "/metadata", "value": 3},
    ],
    ids=lambda operation: operation["path"] or "all of it",
)
def test_a_webhook_makes_no_other_object(server: RunningServer, hooks: HookServer, space: str, operation: Raw) -> None:
    hooks.behaviours["/h"] = patch(operation)
    with configured(server, hooks, space, hooks.webhook("/h", space, **JUDGED), kind="Mutating"):
        reply = server.request("POST", maps(space), config_map("a"))
    assert reply.code == 500
    assert 'admission webhook "h.hooks.example.com": the patch it answered with can\'t be used' in reply.message


def test_system_fields_stay(server: RunningServer, hooks: HookServer, space: str) -> None:
    hooks.behaviours["/h"] = patch(
        {"op": "add", "path": "/metadata/creationTimestamp", "value": "2001-01-01T00:00:00Z"},
        {"op": "add", "path": "/metadata/deletionTimestamp", "value": "2001-01-01T00:00:00Z"},
        {"op": "add", "path": "/metadata/labels/new", "value": "x"},
    )
    with configured(server, hooks, space, hooks.webhook("/h", space, **JUDGED), kind="Mutating"):
        made = server.create(maps(space), config_map("a"))
    assert not made["metadata"]["creationTimestamp"].startswith("2001")
    assert "deletionTimestamp" not in made["metadata"]
    assert made["metadata"]["labels"]["new"] == "x"


def test_bindings_and_scales_are_changed(server: RunningServer, hooks: HookServer, space: str) -> None:
    pods = f"/api/v1/namespaces/{space}/pods"
    server.create(pods, POD)
    hooks.behaviours["/b"] = patch(
        {"op": "replace", "path": "/target/name", "value": "n2"},
        {"op": "add", "path": "/metadata/annotations", "value": {"example.com/zone": "z"}},
    )
    hooks.behaviours["/s"] = patch({"op": "replace", "path": "/spec/replicas", "value": 2})
    template = {"metadata": {"labels": {"a": "b"}}, "spec": POD["spec"]}
    spec = {"replicas": 0, "selector": {"matchLabels": {"a": "b"}}, "template": template}
    deployments = f"/apis/apps/v1/namespaces/{space}/deployments"
    server.create(deployments, {"metadata": {"name": "d"}, "spec": spec})
    binding = hooks.webhook("/b", space, resources=("pods/binding",))
    scale = hooks.webhook("/s", space, resources=("deployments/scale", "deployments"))
    with configured(server, hooks, space, binding, scale, kind="Mutating"):
        server.create(f"{pods}/p/binding", {"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n1"}})
        found = server.request("PATCH", f"{deployments}/d/scale", {"spec": {"replicas": 9}}, headers=MERGE).json
    bound = server.request("GET", f"{pods}/p").json
    assert (bound["spec"]["nodeName"], bound["metadata"]["annotations"]) == ("n2", {"example.com/zone": "z"})
    assert found["spec"]["replicas"] == 2
    # The write that follows from a scale is not asked about once more.
    assert [(q["subResource"], q["kind"]["kind"]) for q in hooks.questions("/s")] == [("scale", "Scale")]


def test_many_bindings_at_once(server: RunningServer, hooks: HookServer, space: str) -> None:
    """As the scheduler binds: each is asked about, and a refusal concerns its own pod."""
    store, names = server.server.store, [f"p{n}" for n in range(5)]
    for name in names:
        server.create(f"/api/v1/namespaces/{space}/pods", {**POD, "metadata": {"name": name}})
    hooks.behaviours["/h"] = lambda r: answer(r, allowed=r["request"]["name"] != "p3", status={"message": "not this"})
    with configured(server, hooks, space, hooks.webhook("/h", space, resources=("pods/binding",))):
        outcomes = server.call(store.bind_many([Binding(pod=name, namespace=space, node="n") for name in names]))
    assert [outcome is None for outcome in outcomes] == [True, True, True, False, True]
    assert "denied the request: not this" in str(outcomes[3])
    bound = {
        p["metadata"]["name"]: p["spec"].get("nodeName")
        for p in server.request("GET", f"/api/v1/namespaces/{space}/pods").json["items"]
    }
    assert bound == {name: None if name == "p3" else "n" for name in names}


def test_an_eviction_is_asked_about_once(server: RunningServer, hooks: HookServer, space: str) -> None:
    server.create(f"/api/v1/namespaces/{space}/pods", POD)
    hooks.behaviours["/h"] = allow
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}}
    with configured(server, hooks, space, hooks.webhook("/h", space, resources=("pods", "pods/eviction"))):
        server.create(f"/api/v1/namespaces/{space}/pods/p/eviction", eviction)
    assert [(q["operation"], q.get("subResource")) for q in hooks.questions("/h")] == [("CREATE", "eviction")]


def test_kinds_of_users_in_another_version(server: RunningServer, hooks: HookServer, space: str) -> None:
    """The webhook asks for v1, the client writes v2; what the schema does not know is cut off what a webhook adds, too."""
    kind = f"thing{next(_numbers)}"
    schema = {
        "type": "object",
        "properties": {
            "spec": {
                "type": "object",
                "properties": {"size": {"type": "integer"}, "unit": {"type": "string", "default": "m"}},
            }
        },
    }
    versions = [
        {"name": name, "served": True, "storage": name == "v1", "schema": {"openAPIV3Schema": schema}} for name in ("v1", "v2")
    ]
    names = {"plural": f"{kind}s", "singular": kind, "kind": kind.title(), "listKind": f"{kind.title()}List"}
    group = "hooks.example.com"
    server.create(
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
        {
            "metadata": {"name": f"{kind}s.{group}"},
            "spec": {"group": group, "scope": "Namespaced", "names": names, "versions": versions},
        },
    )
    path = f"/apis/{group}/v2/namespaces/{space}/{kind}s"
    blocked_until(lambda: server.request("GET", path).code == 200)
    hooks.behaviours["/h"] = patch(
        {"op": "replace", "path": "/spec", "value": {"size": 4, "unknown": True}},
    )
    rules = [{"operations": ["*"], "apiGroups": [group], "apiVersions": ["v1"], "resources": [f"{kind}s"]}]
    with configured(server, hooks, space, hooks.webhook("/h", space, rules=rules), kind="Mutating"):
        made = server.create(path, {"apiVersion": f"{group}/v2", "kind": kind.title(), "metadata": {"name": "a"}, "spec": {}})
    assert (made["apiVersion"], made["spec"]) == (f"{group}/v2", {"size": 4, "unit": "m"})
    (asked,) = hooks.questions("/h")
    assert (asked["kind"]["version"], asked["object"]["apiVersion"], asked["resource"]["version"]) == (
        "v1",
        f"{group}/v1",
        "v1",
    )
    assert (asked["requestKind"]["version"], asked["requestResource"]["version"]) == ("v2", "v2")


# --- concurrency and bounds


def test_what_a_webhook_judged_is_what_is_replaced(server: RunningServer, hooks: HookServer, space: str) -> None:
    """While the webhook thinks, somebody else writes: it is asked again, about what is there now."""
    server.create(maps(space), config_map("a"))
    first, gate = threading.Event(), threading.Event()

    def think(review: Raw) -> Raw:
        if not first.is_set() and review["request"]["userInfo"]["username"] != "system:muster":
            first.set()
            gate.wait(60)
        return allow(review)

    hooks.behaviours["/h"] = think
    store = server.server.store
    with configured(server, hooks, space, hooks.webhook("/h", space, **JUDGED)), ThreadPoolExecutor(1) as pool:
        late = pool.submit(server.request, "PATCH", maps(space, "a"), {"data": {"b": "2"}}, headers=MERGE)
        assert first.wait(60)
        server.call(store.patch(store.catalog.by_kind("", "ConfigMap"), "a", {"data": {"c": "3"}}, space))
        gate.set()
        assert late.result(60).code == 200
    last = hooks.questions("/h")[-1]
    assert last["oldObject"]["data"] == {"a": "1", "c": "3"}
    assert last["object"]["data"] == {"a": "1", "b": "2", "c": "3"}
    assert server.request("GET", maps(space, "a")).json["data"] == {"a": "1", "b": "2", "c": "3"}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    limits = ServerLimits(webhook_calls_at_once_max=1, webhook_calls_per_hook_max=2, webhook_writes_max=3)
    with running(tmp_path_factory.mktemp("small"), limits=limits) as made:
        yield made


def calls(server: RunningServer) -> int:
    """Under way or waiting, as the server itself counts them."""
    webhooks: Any = server.server.store.body_admission
    caller = webhooks._caller._made
    return sum(lane.calls for lane in list(caller._lanes.values())) if caller is not None else 0


def test_a_webhook_that_hangs_holds_up_nobody_else(small: RunningServer, hooks: HookServer) -> None:
    space = new_namespace(small, "hangs")
    hooks.held.clear()
    hooks.behaviours["/h"] = hooks.hold
    webhook = hooks.webhook("/h", space, timeoutSeconds=30, failurePolicy="Ignore", **JUDGED)
    with configured(small, hooks, space, webhook), ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(small.request, "POST", maps(space), config_map(f"a{n}")) for n in range(2)]
        blocked_until(lambda: calls(small) == 2 and hooks.questions("/h"))
        # One is being asked about, one waits for it. The third is told to come back, though the webhook fails open: that it
        # is busy is no failure of it.
        reply = small.request("POST", maps(space), config_map("a3"))
        assert (reply.reason, reply.headers["retry-after"]) == ("TooManyRequests", "1")
        assert "webhook_calls_per_hook_max" in reply.message
        assert small.request("POST", maps(space), {"metadata": {"name": "free"}}).code == 201
        assert len(hooks.questions("/h")) == 1
        hooks.held.set()
        assert [one.result(60).code for one in waiting] == [201, 201]
    assert len(hooks.questions("/h")) == 2


def test_a_webhook_has_its_time_when_its_turn_has_come(small: RunningServer, hooks: HookServer) -> None:
    """That others are asked first is no failure of it: a flood would open what fails open."""
    space = new_namespace(small, "turns")
    takes_its_time = threading.Event()

    def judge(review: Raw) -> Raw:
        if len(hooks.questions("/h")) == 1:
            return hooks.hold(review)
        takes_its_time.wait(0.5)  # less than it has, and more than what is left a second after the write came
        return answer(review, allowed=False)

    hooks.held.clear()
    hooks.behaviours["/h"] = judge
    webhook = hooks.webhook("/h", space, timeoutSeconds=1, failurePolicy="Ignore", **JUDGED)
    with configured(small, hooks, space, webhook), ThreadPoolExecutor(2) as pool:
        first = pool.submit(small.request, "POST", maps(space), config_map("a1"))
        blocked_until(lambda: hooks.questions("/h"))
        second = pool.submit(small.request, "POST", maps(space), config_map("a2"))
        assert first.result(60).code == 201, "it hangs for a second, and fails open"
        assert second.result(60).code == 400, "it says no"
        hooks.held.set()


def test_writes_that_wait_for_webhooks_have_a_bound(small: RunningServer, hooks: HookServer) -> None:
    """However many webhooks hang: there is room for writes that concern none of them."""
    space = new_namespace(small, "hang")
    hooks.held.clear()
    hooks.behaviours["/h"] = hooks.hold
    both = [
        hooks.webhook("/h", space, name=f"{n}.hooks.example.com", timeoutSeconds=30, objectSelector={"matchLabels": {"of": n}})
        for n in ("one", "two")
    ]
    with configured(small, hooks, space, *both), ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(small.request, "POST", maps(space), config_map(f"a{n}", of=n)) for n in ("one", "two")]
        waiting.append(pool.submit(small.request, "POST", maps(space), config_map("b", of="one")))
        blocked_until(lambda: calls(small) == 3 and len(hooks.questions("/h")) == 2)
        reply = small.request("POST", maps(space), config_map("c", of="two"))
        assert "webhook_writes_max" in reply.message
        assert small.request("POST", maps(space), {"metadata": {"name": "free"}}).code == 201
        hooks.held.set()
        assert [one.result(60).code for one in waiting] == [201] * 3


def test_more_webhooks_than_are_asked_at_once(server: RunningServer, hooks: HookServer, space: str) -> None:
    hooks.behaviours["/h"] = allow
    many = [hooks.webhook("/h", space, name=f"n{n}.hooks.example.com", **JUDGED) for n in range(40)]
    hooks.behaviours["/last"] = deny(message="the last word")
    with configured(server, hooks, space, *many, hooks.webhook("/last", space, **JUDGED)):
        reply = server.request("POST", maps(space), config_map("a"))
    assert reply.message.endswith("denied the request: the last word")
    assert len(hooks.questions("/h")) == 40


def test_dry_runs_of_webhooks_with_effects_are_refused(server: RunningServer, hooks: HookServer, space: str) -> None:
    """Nobody can write such a configuration any more; an old one may be there."""
    hooks.behaviours["/h"] = allow
    old = {"metadata": {"name": "old"}, "webhooks": [hooks.webhook("/h", space, sideEffects="Some")]}
    known = server.server.memory.webhooks
    hooks.asked.clear()

    async def apply(*, deleted: bool) -> None:
        known.apply("ValidatingWebhookConfiguration", old, deleted=deleted)

    server.call(apply(deleted=False))
    try:
        reply = server.request("POST", f"{maps(space)}?dryRun=All", config_map("a"))
        assert (reply.code, reply.message) == (400, 'admission webhook "h.hooks.example.com" does not support dry run')
        assert not hooks.questions("/h")
        assert server.request("POST", maps(space), config_map("a")).code == 201
        assert len(hooks.questions("/h")) == 1
    finally:
        server.call(apply(deleted=True))


def test_all_webhooks_of_a_write_together_have_a_bound(tmp_path: Path, hooks: HookServer) -> None:
    with running(tmp_path, limits=ServerLimits(webhook_phase_timeout_s=0.2)) as server:
        space = new_namespace(server, "slow")
        hooks.held.clear()
        hooks.behaviours["/h"] = hooks.hold
        hooks.behaviours["/later"] = allow
        slow = hooks.webhook("/h", space, timeoutSeconds=30, failurePolicy="Ignore", **JUDGED)
        with configured(server, hooks, space, slow, hooks.webhook("/later", space, **JUDGED), kind="Mutating"):
            reply = server.request("POST", maps(space), config_map("a"))
        hooks.held.set()
        assert (reply.code, reply.reason) == (504, "Timeout")
        assert "request did not complete within requested timeout" in reply.message
        assert not hooks.questions("/later")


def test_a_webhook_that_has_no_time_left_is_not_passed_over(tmp_path: Path, hooks: HookServer) -> None:
    with running(tmp_path, limits=ServerLimits(webhook_phase_timeout_s=2.2)) as server:
        space = new_namespace(server, "late")
        hooks.held.clear()
        hooks.behaviours["/h"] = hooks.behaviours["/later"] = hooks.hold
        hangs = hooks.webhook("/h", space, timeoutSeconds=2, failurePolicy="Ignore", **JUDGED)
        later = hooks.webhook("/later", space, timeoutSeconds=10, failurePolicy="Ignore", **JUDGED)
        with configured(server, hooks, space, hangs, later, kind="Mutating"):
            reply = server.request("POST", maps(space), config_map("a"))
        hooks.held.set()
        assert (reply.code, reply.reason) == (504, "Timeout")
        assert 'webhooks up to "later.hooks.example.com" took 2.2 s' in reply.message
        assert len(hooks.questions("/later")) == 1
        assert server.request("GET", maps(space, "a")).code == 404


# --- what is noted and counted


def test_audit_annotations(server: RunningServer, hooks: HookServer, space: str) -> None:
    labelled = add_label("a", "b")
    hooks.behaviours["/m"] = lambda r: {
        **(said := labelled(r)),
        "response": {**said["response"], "auditAnnotations": {"k": "v"}},
    }
    hooks.behaviours["/v"] = lambda r: answer(r, allowed=False, auditAnnotations={"why": "tired", "bad": 3})
    hooks.behaviours["/o"] = lambda _: Sent(500)
    open_ = hooks.webhook("/o", space, failurePolicy="Ignore", **JUDGED)
    with (
        configured(server, hooks, space, hooks.webhook("/m", space, **JUDGED), open_, kind="Mutating"),
        configured(server, hooks, space, hooks.webhook("/v", space, **JUDGED)),
    ):
        assert server.request("POST", maps(space), config_map("noted")).code == 400
    path = server.server.config.audit_path

    def lines() -> list[Raw]:
        entries = [json.loads(line) for line in path.read_text().splitlines()]
        refused = [entry for entry in entries if entry.get("responseStatus", {}).get("code") == 400]
        return [entry for entry in refused if entry.get("objectRef", {}).get("namespace") == space]

    blocked_until(lines)
    (entry,) = lines()
    name = f"{space}-mutating"
    about = {key: value for key, value in entry["annotations"].items() if not key.startswith("authorization.k8s.io/")}
    assert about == {
        "m.hooks.example.com/k": "v",
        "mutation.webhook.admission.k8s.io/round_0_index_0": json.dumps(
            {"configuration": name, "webhook": "m.hooks.example.com", "mutated": True}, separators=(",", ":")
        ),
        "failed-open.mutation.webhook.admission.k8s.io/round_0_index_1": json.dumps(
            {"configuration": name, "webhook": "o.hooks.example.com"}, separators=(",", ":")
        ),
        "v.hooks.example.com/why": "tired",
    }


def test_metrics(small: RunningServer, hooks: HookServer) -> None:
    server, space = small, new_namespace(small, "counted")
    hooks.behaviours["/h"] = deny(message="no", code=403)
    hooks.behaviours["/o"] = lambda _: Sent(500)
    refuses = hooks.webhook("/h", space, name=f"refuses.{space}.example.com", **JUDGED)
    fails = hooks.webhook("/o", space, name=f"fails.{space}.example.com", failurePolicy="Ignore", **JUDGED)
    with configured(server, hooks, space, refuses, fails):
        server.request("POST", maps(space), config_map("a"))
    text = server.request("GET", "/metrics").body.decode()
    for line in (
        f'apiserver_admission_webhook_request_total{{code="403",name="refuses.{space}.example.com",operation="CREATE",'
        'rejected="true",type="validating"} 1.0',
        f'muster_admission_webhook_rejections_total{{error_type="no_error",name="refuses.{space}.example.com",'
        'operation="CREATE",type="validating"} 1.0',
        f'muster_admission_webhook_fail_open_total{{name="fails.{space}.example.com",type="validating"}} 1.0',
        f'apiserver_admission_webhook_admission_duration_seconds_count{{name="fails.{space}.example.com",operation="CREATE",'
        'rejected="false",type="validating"} 1.0',
    ):
        assert line in text


def test_names_in_metrics_are_bounded() -> None:
    from prometheus_client import CollectorRegistry, generate_latest

    from muster.server.webhook_metrics import NAMES_MAX, WebhookMetrics

    registry = CollectorRegistry()
    metrics = WebhookMetrics(registry)
    for number in range(NAMES_MAX + 50):
        metrics.failed_open(f"w{number}.example.com", "admit")
    lines = [line for line in generate_latest(registry).decode().splitlines() if "fail_open_total{" in line]
    assert len(lines) == NAMES_MAX + 1
    assert 'muster_admission_webhook_fail_open_total{name="other",type="admit"} 50.0' in lines


def test_a_write_that_no_rule_names_asks_nobody(server: RunningServer, hooks: HookServer, space: str) -> None:
    """Not even the loop: from the first step to the last, such a hook never waits."""
    store = server.server.store
    hooks.behaviours["/h"] = allow
    with configured(server, hooks, space, hooks.webhook("/h", space, resources=("pods",))):
        webhooks: Any = store.body_admission
        from muster.store.embedded import AdmissionRequest

        request = AdmissionRequest(
            operation="CREATE",
            resource=store.catalog.by_kind("", "Secret"),
            namespace=space,
            name="a",
            old=None,
            object={"metadata": {}},
            warn=lambda _: None,
        )
        for step in (webhooks.mutate(request), webhooks.validate(request)):
            with pytest.raises(StopIteration):
                step.send(None)
        with pytest.raises(NotFound):
            server.call(store.bind("none", space, "n"))
    assert not hooks.questions("/h")
