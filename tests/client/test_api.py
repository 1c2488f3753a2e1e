"""`ApiClient` against scripted answers: what is sent, and what comes of odd answers."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from muster.client.api import ApiClient
from muster.client.errors import OutcomeUnknown, PathNotServed
from muster.objects.requests import PatchType, Preconditions, WriteOptions
from muster.objects.resources import Resource
from muster.objects.status import BadRequest, Conflict, ServiceUnavailable, TooManyRequests
from tests.client.scripted import QUICK, Handler, Received, ScriptedServer, scripted, status

PODS = Resource(group="", version="v1", kind="Pod", plural="pods")
DEPLOYMENTS = Resource(group="apps", version="v1", kind="Deployment", plural="deployments")
NODES = Resource(group="", version="v1", kind="Node", plural="nodes", namespaced=False)
BIND = "/api/v1/namespaces/n/pods/p/binding"
SUCCESS = {"kind": "Status", "status": "Success", "code": 201}


async def run(handler: Handler, *calls: Callable[[ApiClient], Coroutine[Any, Any, Any]]) -> tuple[list[Any], ScriptedServer]:
    async with scripted(handler) as server, ApiClient(server.config(), limits=QUICK, entropy=bytes) as client:
        return [await call(client) for call in calls], server


def script(**answers: list[Any]) -> Handler:
    """Answers by method and path, in order, the last one for ever: (code, body), or None to drop the connection."""
    queues = {key: list(value) for key, value in answers.items()}

    async def handler(request: Received) -> None:
        queue = queues[f"{request.method} {request.path}"]
        answer = queue.pop(0) if len(queue) > 1 else queue[0]
        if answer is None:
            request.drop()
        else:
            await request.answer(*answer)

    return handler


def version(minor: str) -> dict[str, list[Any]]:
    return {"GET /version": [(200, {"major": "1", "minor": minor})]}


def pod(node: str = "", uid: str = "u") -> dict[str, Any]:
    return {"metadata": {"name": "p", "uid": uid}, "spec": {"nodeName": node} if node else {}}


GET_POD = "GET /api/v1/namespaces/n/pods/p"


async def test_a_binding_is_answered_with_a_status() -> None:
    _, server = await run(
        script(**version("30+"), **{f"POST {BIND}": [(201, SUCCESS)]}),
        lambda c: c.bind("p", "n", "node-1", uid="u", annotations={"a": "b"}),
    )
    assert server.requests[-1].json == {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "p", "namespace": "n", "uid": "u", "annotations": {"a": "b"}},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "node-1"},
    }


TAKEN = (409, status(409, "Conflict", "already assigned"))


@pytest.mark.parametrize(
    ("posts", "bound_to", "error", "post_count"),
    [
        pytest.param([None, TAKEN], "node-1", None, 2, id="lost answer, was bound"),
        pytest.param([None, (201, SUCCESS)], "node-1", None, 2, id="lost request, bound by the second"),
        pytest.param([None, TAKEN], "node-2", Conflict, 2, id="somebody else bound it meanwhile"),
        pytest.param([TAKEN], "node-1", Conflict, 1, id="bound before we came, even to the same node"),
        pytest.param([(504, status(504, "Timeout")), TAKEN], "node-1", None, 2, id="the server gave up waiting"),
        pytest.param([(503, status(503, "ServiceUnavailable", retryAfterSeconds=0))], "", ServiceUnavailable, 1, id="refused"),
        pytest.param([None], "", OutcomeUnknown, 4, id="never an answer"),
    ],
)
async def test_a_binding_whose_answer_is_lost(
    posts: list[Any], bound_to: str, error: type[Exception] | None, post_count: int
) -> None:
    handler = script(**{f"POST {BIND}": posts, GET_POD: [(200, pod(bound_to))]})
    async with scripted(handler) as server, ApiClient(server.config(), limits=QUICK) as client:
        if error is None:
            await client.bind("p", "n", "node-1")
        else:
            with pytest.raises(error):
                await client.bind("p", "n", "node-1")
    assert [r.method for r in server.requests].count("POST") == post_count


@pytest.mark.parametrize(("minor", "looks_first"), [("20", True), ("23", False), ("25+", True), ("27", False), ("", True)])
async def test_servers_that_ignore_the_uid_of_a_binding(minor: str, looks_first: bool) -> None:
    """The pod was replaced by one of the same name."""
    handler = script(**version(minor), **{GET_POD: [(200, pod(uid="new"))], f"POST {BIND}": [TAKEN]})
    async with scripted(handler) as server, ApiClient(server.config(), limits=QUICK) as client:
        for _ in range(2):
            with pytest.raises(Conflict, match="has uid new, not old" if looks_first else "already assigned"):
                await client.bind("p", "n", "node-1", uid="old")
    methods = [f"{r.method} {r.path}" for r in server.requests]
    assert methods.count("GET /version") == 1
    assert (methods.count(GET_POD), methods.count(f"POST {BIND}")) == ((2, 0) if looks_first else (0, 2))


def core(eviction: str) -> dict[str, list[Any]]:
    entry = {"name": "pods/eviction", "kind": "Eviction", "group": "policy", "version": eviction}
    return {"GET /api": [(200, {"versions": ["v1"]})], "GET /api/v1": [(200, {"resources": [entry]})]}


@pytest.mark.parametrize("eviction", ["v1", "v1beta1"])
async def test_evictions_speak_the_servers_version(eviction: str) -> None:
    path = "POST /api/v1/namespaces/n/pods/p/eviction"
    _, server = await run(
        script(**core(eviction), **{path: [(201, SUCCESS)]}),
        lambda c: c.evict("p", "n", uid="u", grace_period_s=5, dry_run=True),
    )
    sent = server.requests[-1]
    assert sent.params == {"dryRun": "All"}
    assert sent.json == {
        "apiVersion": f"policy/{eviction}",
        "kind": "Eviction",
        "metadata": {"name": "p", "namespace": "n"},
        "deleteOptions": {"gracePeriodSeconds": 5, "preconditions": {"uid": "u"}, "dryRun": ["All"]},
    }


async def test_an_eviction_that_a_budget_forbids_is_not_tried_again() -> None:
    path = "POST /api/v1/namespaces/n/pods/p/eviction"
    refusal = (429, status(429, "TooManyRequests", "budget", retryAfterSeconds=1))
    handler = script(**core("v1"), **{path: [refusal]})
    async with scripted(handler) as server, ApiClient(server.config(), limits=QUICK) as client:
        with pytest.raises(TooManyRequests, match="budget"):
            await client.evict("p", "n")
    assert [r.method for r in server.requests].count("POST") == 1


async def test_what_is_sent() -> None:
    async def handler(request: Received) -> None:
        await request.answer(200, {"metadata": {"resourceVersion": "1"}, "items": []})

    dry = WriteOptions(dry_run=True, field_manager="me", force=True)
    _, server = await run(
        handler,
        lambda c: c.get(NODES, "a"),
        lambda c: c.list(PODS, "n", label_selector="a", field_selector="b", limit=2, continue_token="t", resource_version="9"),
        lambda c: c.create(PODS, {"metadata": {"name": "p", "namespace": "n"}}, None, dry),
        lambda c: c.create(PODS, {"metadata": {}}, "n", name="p", subresource="token"),
        lambda c: c.update(PODS, {"metadata": {"name": "p", "namespace": "n"}}, subresource="status"),
        lambda c: c.patch(PODS, "p", {"a": None}, "n", dry),
        lambda c: c.patch(PODS, "p", [{"op": "test"}], "n", patch_type=PatchType.JSON, subresource="status"),
        lambda c: c.apply(DEPLOYMENTS, {"metadata": {"name": "d", "namespace": "n"}}, None, dry),
        lambda c: c.delete(PODS, "p", "n", dry, grace_period_s=0, preconditions=Preconditions(uid="u")),
        lambda c: c.delete_collection(PODS, "n", label_selector="a=b"),
        lambda c: c.scale(DEPLOYMENTS, "d", 3, "n"),
        lambda c: c.table(PODS, "n", limit=5),
        lambda c: c.table(PODS, "n", name="p"),
    )
    shown = [f"{r.method} {r.target}" for r in server.requests]
    write = "fieldManager=muster&fieldValidation=Ignore"
    mine = "fieldManager=me&fieldValidation=Ignore&dryRun=All"
    assert shown == [
        "GET /api/v1/nodes/a",
        "GET /api/v1/namespaces/n/pods?labelSelector=a&fieldSelector=b&limit=2&continue=t",
        f"POST /api/v1/namespaces/n/pods?{mine}",
        f"POST /api/v1/namespaces/n/pods/p/token?{write}",
        f"PUT /api/v1/namespaces/n/pods/p/status?{write}",
        f"PATCH /api/v1/namespaces/n/pods/p?{mine}",
        f"PATCH /api/v1/namespaces/n/pods/p/status?{write}",
        f"PATCH /apis/apps/v1/namespaces/n/deployments/d?{mine}&force=true",
        "DELETE /api/v1/namespaces/n/pods/p?dryRun=All",
        "DELETE /api/v1/namespaces/n/pods?labelSelector=a%3Db",
        f"PATCH /apis/apps/v1/namespaces/n/deployments/d/scale?{write}",
        "GET /api/v1/namespaces/n/pods?limit=5",
        "GET /api/v1/namespaces/n/pods/p",
    ]
    kinds = [r.headers.get("content-type") for r in server.requests if r.method == "PATCH"]
    assert kinds == [PatchType.MERGE.value, PatchType.JSON.value, PatchType.APPLY.value, PatchType.MERGE.value]
    assert server.requests[7].json == {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "d", "namespace": "n"},
    }
    assert server.requests[11].headers["accept"].startswith("application/json;as=Table;v=v1;g=meta.k8s.io,")


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda c: c.get(PODS, "", "n"), id="get without a name"),
        pytest.param(lambda c: c.delete(PODS, "", "n"), id="delete without a name"),
        pytest.param(lambda c: c.delete(PODS, "p"), id="delete without a namespace"),
        pytest.param(lambda c: c.delete_collection(PODS), id="delete across namespaces"),
        pytest.param(lambda c: c.create(PODS, {"metadata": {"name": "p"}}), id="create without a namespace"),
        pytest.param(lambda c: c.update(PODS, {"metadata": {}}, "n"), id="update without a name"),
        pytest.param(lambda c: c.update(PODS, {}, "n"), id="update without metadata"),
        pytest.param(lambda c: c.scale(DEPLOYMENTS, "d", -1, "n"), id="negative replicas"),
        pytest.param(lambda c: c.apply(PODS, {"kind": "Job", "metadata": {"name": "p"}}, "n"), id="apply of another kind"),
        pytest.param(lambda c: c.apply(PODS, {"apiVersion": "v2", "metadata": {"name": "p"}}, "n"), id="of another version"),
        pytest.param(lambda c: c.request("GET", "version"), id="relative path"),
        pytest.param(lambda c: c.bind("p/../q", "n", "x"), id="slash in a pod's name"),
    ],
)
async def test_bad_input_is_refused_before_anything_is_sent(call: Callable[[ApiClient], Coroutine[Any, Any, Any]]) -> None:
    async def handler(request: Received) -> None:
        raise AssertionError("nothing may be sent")

    async with scripted(handler) as server, ApiClient(server.config(), limits=QUICK) as client:
        with pytest.raises(BadRequest):
            await call(client)
        assert server.requests == []


async def test_items_go_through_all_pages() -> None:
    async def handler(request: Received) -> None:
        number = int(request.params.get("continue", "0"))
        metadata = {"resourceVersion": "5", "continue": str(number + 1) if number < 2 else ""}
        await request.answer(200, {"metadata": metadata, "items": [{"metadata": {"name": f"p{number}"}}]})

    async with scripted(handler) as server, ApiClient(server.config(), limits=QUICK) as client:
        names = [item["metadata"]["name"] async for item in client.items(PODS, page_size=1)]
    assert names == ["p0", "p1", "p2"]
    assert [r.params["limit"] for r in server.requests] == ["1", "1", "1"]


async def test_a_path_that_is_gone_makes_discovery_ask_again() -> None:
    path = "GET /apis/apps/v1/namespaces/n/deployments/d"
    group = {"name": "apps", "versions": [{"version": "v1"}], "preferredVersion": {"version": "v1"}}
    listed = {"resources": [{"name": "deployments", "kind": "Deployment", "namespaced": True, "verbs": ["get"]}]}
    answers: dict[str, list[Any]] = {path: [(404, b"404 page not found")]}
    answers |= {"GET /apis/apps": [(200, group)], "GET /apis/apps/v1": [(200, listed)]}
    handler = script(**answers)
    async with scripted(handler) as server, ApiClient(server.config(), limits=QUICK) as client:
        found = await client.resource("apps", "Deployment")
        with pytest.raises(PathNotServed):
            await client.get(found, "d", "n")
        await client.resource("apps", "Deployment")
    assert [r.path for r in server.requests].count("/apis/apps") == 2


async def test_logs() -> None:
    async def handler(request: Received) -> None:
        await request.begin_chunks()
        await request.chunk(b"one\ntw")
        await request.chunk(b"o\nno newline at the end")
        await request.chunk(b"")

    async with scripted(handler) as server, ApiClient(server.config(), limits=QUICK) as client:
        lines = [line async for line in client.logs("p", "n", container="c", follow=True, tail_lines=5, since_s=9)]
    assert lines == [b"one", b"two", b"no newline at the end"]
    assert server.requests[0].path == "/api/v1/namespaces/n/pods/p/log"
    assert server.requests[0].params == {"follow": "true", "container": "c", "tailLines": "5", "sinceSeconds": "9"}


async def test_is_ready() -> None:
    handler = script(**{"GET /readyz": [(200, b"ok"), (500, b"[-]etcd failed")]})
    results, _ = await run(handler, lambda c: c.is_ready(), lambda c: c.is_ready())
    assert results == [True, False]
