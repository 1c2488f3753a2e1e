"""Whatever is wrong with a request: a clear 4xx, and nothing has changed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.server.running import RunningServer

_DEEP = b'{"metadata":{"name":"x"},"data":' + b'{"a":' * 500 + b"1" + b"}" * 501
_BOMB = b"a: &a [x,x,x,x,x,x,x,x,x]\n" + b"".join(
    b"%c: &%c [%s]\n" % (c, c, b",".join([b"*%c" % (c - 1)] * 9)) for c in range(ord("b"), ord("k"))
)


@pytest.fixture
def before(server: RunningServer) -> Any:
    """The store's version, to compare with afterwards."""
    return server.server.store.resource_version


def _unchanged(server: RunningServer, before: str) -> None:
    assert server.server.store.resource_version == before


def _cm(**more: Any) -> bytes:
    return json.dumps({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}, **more}).encode()


@pytest.mark.parametrize(
    ("body", "code", "says"),
    [
        pytest.param(b"", 400, "no body", id="empty"),
        pytest.param(b"   \n", 400, "no body", id="blank"),
        pytest.param(b"{", 400, "not valid JSON", id="cut off"),
        pytest.param(b'{"metadata": {"name": "x"}} trailing', 400, "not valid JSON", id="trailing text"),
        pytest.param(b"[]", 400, "must be an object, not a list", id="list"),
        pytest.param(b"null", 400, "must be an object, not null", id="null"),
        pytest.param(b'"text"', 400, "must be an object, not a string", id="string"),
        pytest.param(b"12", 400, "must be an object, not a number", id="number"),
        pytest.param(_DEEP, 400, "nested deeper than", id="deep"),
        pytest.param(b"[" * 200_000, 400, "nested deeper than", id="very deep"),
        pytest.param(b'{"metadata":{"name":"\xff"}}', 400, "not valid JSON", id="not UTF-8"),
        pytest.param(b"\x00\x01\x02", 400, "not valid JSON", id="NUL bytes"),
        pytest.param(b'{"metadata":{"name":"x"},"data":{"a":"\\ud800"}}', 400, "not valid JSON", id="lone surrogate"),
        pytest.param(b"{}", 422, "metadata.name", id="no name"),
        pytest.param(_cm(metadata=[]), 400, "metadata", id="metadata is a list"),
        pytest.param(_cm(metadata={"name": 5}), 400, "metadata.name", id="name is a number"),
        pytest.param(_cm(metadata={"name": "UPPER"}), 422, "metadata.name", id="name in capitals"),
        pytest.param(_cm(metadata={"name": "../x"}), 422, "metadata.name", id="name climbs"),
        pytest.param(_cm(metadata={"name": "x" * 300}), 422, "metadata.name", id="name too long"),
        pytest.param(_cm(metadata={"name": "x\u0000y"}), 422, "metadata.name", id="NUL in the name"),
        pytest.param(_cm(metadata={"name": "имя"}), 422, "metadata.name", id="unicode name"),
        pytest.param(_cm(metadata={"name": "x", "namespace": "another"}), 400, "does not match", id="wrong namespace"),
        pytest.param(_cm(metadata={"name": "x", "labels": {"a b": "c"}}), 422, "metadata.labels", id="bad label key"),
        pytest.param(_cm(metadata={"name": "x", "labels": {"a": 1}}), 400, "metadata.labels", id="label is a number"),
        pytest.param(_cm(metadata={"name": "x", "labels": "a=b"}), 400, "metadata.labels", id="labels are text"),
        pytest.param(_cm(metadata={"name": "x", "resourceVersion": "5"}), 400, "resourceVersion", id="version on create"),
        pytest.param(_cm(kind="Secret"), 400, "kind", id="another kind"),
        pytest.param(_cm(kind=7), 400, "kind", id="kind is a number"),
        pytest.param(_cm(apiVersion="v2"), 400, "apiVersion", id="another version"),
        pytest.param(_cm(data=[1]), 400, "data", id="data is a list"),
        pytest.param(_cm(data={"a": 1}), 400, "data", id="data holds a number"),
    ],
)
def test_create_bodies(server: RunningServer, before: str, body: bytes, code: int, says: str) -> None:
    reply = server.request("POST", "/api/v1/namespaces/default/configmaps", body)
    assert reply.code == code, reply.body
    assert reply.json["kind"] == "Status"
    assert says in reply.message
    _unchanged(server, before)


@pytest.mark.parametrize(
    ("media", "body", "code", "says"),
    [
        pytest.param("application/yaml", b"a: [", 400, "not valid YAML", id="broken YAML"),
        pytest.param("application/yaml", _BOMB, 400, "aliases", id="YAML bomb"),
        pytest.param("application/yaml", b"- " * 50_000, 400, "nested deeper", id="deep YAML"),
        pytest.param("application/yaml", b"[" * 100_000, 400, "nested deeper", id="deep flow YAML"),
        pytest.param("application/yaml", b"a: !!python/object/apply:os.system [id]", 400, "YAML", id="python in YAML"),
        pytest.param("application/yaml", b"a: 1\n---\nb: 2", 400, "YAML", id="two documents"),
        pytest.param("application/yaml", b"- x\n" * 300_000, 400, "YAML nodes", id="many nodes"),
        pytest.param("text/plain", b"{}", 415, "application/json", id="text"),
        pytest.param("multipart/form-data", b"{}", 415, "application/json", id="form"),
        pytest.param("application/cbor", b"\xa0", 415, "application/json", id="CBOR"),
        pytest.param("x/y;;;", b"{}", 415, "application/json", id="strange type"),
        pytest.param("application/vnd.kubernetes.protobuf", b"{}", 400, "does not begin", id="JSON called protobuf"),
        pytest.param("application/vnd.kubernetes.protobuf", b"k8s\x00\xff\xff", 400, "not a valid", id="broken protobuf"),
        pytest.param(
            "application/vnd.kubernetes.protobuf",
            b"k8s\x00\x0a\x0c\x0a\x02v9\x12\x06Rocket",
            415,
            "Rocket",
            id="unknown protobuf",
        ),
    ],
)
def test_media_types(server: RunningServer, before: str, media: str, body: bytes, code: int, says: str) -> None:
    reply = server.request("POST", "/api/v1/namespaces/default/configmaps", body, headers={"content-type": media})
    assert reply.code == code, reply.body
    assert says in reply.message
    _unchanged(server, before)


def test_huge_bodies(server: RunningServer, before: str) -> None:
    path = "/api/v1/namespaces/default/configmaps"
    huge = _cm(data={"a": "x" * 4_000_000})
    reply = server.request("POST", path, huge)
    assert (reply.code, reply.reason) == (413, "RequestEntityTooLarge")
    large = _cm(data={"a": "x" * 2_000_000})  # fits into a request, not into an object
    assert server.request("POST", path, large).code in (413, 422)
    # Without a length, in chunks: cut off at the limit as well.
    head = b"POST %s HTTP/1.1\r\nhost: x\r\nauthorization: Bearer %s\r\ntransfer-encoding: chunked\r\n\r\n" % (
        path.encode(),
        server.token.encode(),
    )
    chunk = b"%x\r\n%s\r\n" % (65536, b"x" * 65536)
    with server.raw_socket() as connection:
        connection.sendall(head)
        try:
            for _ in range(64):
                connection.sendall(chunk)
            connection.sendall(b"0\r\n\r\n")
        except OSError:
            pass  # the server may have answered and closed already
        assert connection.recv(16).startswith(b"HTTP/1.1 413 ")
    _unchanged(server, before)


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        pytest.param("GET", "/api/v1/rockets", 404, id="unknown resource"),
        pytest.param("GET", "/api/v7/pods", 404, id="unknown version"),
        pytest.param("GET", "/apis/nowhere.example/v1/pods", 404, id="unknown group"),
        pytest.param("GET", "/apis/apps/v1/pods", 404, id="resource of another group"),
        pytest.param("GET", "/nowhere", 404, id="unknown path"),
        pytest.param("GET", "/api/v1/namespaces/default/nodes", 404, id="nodes in a namespace"),
        pytest.param("GET", "/api/v1/pods/p", 404, id="a pod without its namespace"),
        pytest.param("POST", "/api/v1/pods", 405, id="create without a namespace"),
        pytest.param("POST", "/api/v1/namespaces/default/pods/p", 405, id="create at a name"),
        pytest.param("PUT", "/api/v1/namespaces/default/pods", 405, id="put on a collection"),
        pytest.param("PATCH", "/api/v1/namespaces/default/pods", 405, id="patch on a collection"),
        pytest.param("BREW", "/api/v1/namespaces/default/pods", 400, id="no such method"),
        pytest.param("OPTIONS", "/api/v1/namespaces/default/pods", 405, id="options"),
        pytest.param("TRACE", "/api/v1/namespaces/default/pods", 405, id="trace"),
        pytest.param("POST", "/version", 405, id="post to a document"),
        pytest.param("DELETE", "/api/v1/namespaces", 405, id="all namespaces at once"),
        pytest.param("GET", "/apis/authorization.k8s.io/v1/subjectaccessreviews", 405, id="reviews are not stored"),
        pytest.param("GET", "/api/v1/namespaces/default/pods/p/nothing", 404, id="unknown subresource"),
        pytest.param("GET", "/api/v1/namespaces/default/configmaps/c/status", 404, id="no status"),
        pytest.param("GET", "/api/v1/namespaces/default/pods/p/status/more", 404, id="too long"),
        pytest.param("GET", "/api/v1/namespaces/default/pods/..%2f..%2fsecrets", 400, id="climbing name"),
        pytest.param("GET", "/api/v1/namespaces/../pods", 400, id="dots"),
        pytest.param("GET", "/api/v1/namespaces/default/pods/%00", 400, id="NUL"),
        pytest.param("GET", "/api/v1/namespaces/default/pods/%ff%fe", 400, id="not UTF-8"),
        pytest.param("GET", "/api/v1/namespaces/default/pods/" + "x" * 2000, 400, id="long name"),
        pytest.param("GET", "/api/v1/namespaces/default/pods/%E5%90%8D", 404, id="unicode name"),
        pytest.param("GET", "/openapi/v3/apis/nowhere/v1", 404, id="no such OpenAPI"),
        pytest.param("GET", "/healthz/nothing", 404, id="no such check"),
    ],
)
def test_paths_and_methods(server: RunningServer, before: str, method: str, path: str, code: int) -> None:
    reply = server.request(method, path, b"{}" if method in ("POST", "PUT", "PATCH") else None)
    assert reply.code == code, reply.body
    assert reply.json["kind"] == "Status"
    assert reply.message
    _unchanged(server, before)


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("limit=-1", 200),
        ("limit=many", 400),
        ("limit=", 400),
        ("limit=" + "9" * 30, 400),
        ("watch=perhaps", 400),
        ("labelSelector=a%3D%28", 400),
        ("labelSelector=a%3Db%20c%20d", 400),
        ("fieldSelector=nothing", 400),
        ("fieldSelector=spec.secret%3Dx", 400),
        ("continue=garbage", 400),
        ("resourceVersion=abc", 400),
        ("resourceVersion=-5", 400),
        ("resourceVersionMatch=Exact", 422),
        ("resourceVersion=0&resourceVersionMatch=Exact", 422),
        ("resourceVersion=1&resourceVersionMatch=Sometimes", 422),
        ("sendInitialEvents=true", 422),
        ("watch=true&sendInitialEvents=true", 422),
        ("watch=true&resourceVersion=abc", 400),
        ("timeoutSeconds=soon", 400),
        ("includeObject=Everything", 200),
        ("labelSelector=%ff", 400),
        ("x=" + "y" * 20_000, 400),
        ("&".join("a=b" for _ in range(600)), 400),
    ],
)
def test_list_parameters(server: RunningServer, query: str, code: int) -> None:
    reply = server.request("GET", f"/api/v1/namespaces/default/pods?{query}")
    assert reply.code == code, reply.body
    if code != 200:
        assert reply.json["kind"] == "Status"


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("dryRun=Some", "dryRun: Unsupported value"),
        ("dryRun=All&dryRun=Some", 'dryRun: Unsupported value: ["All","Some"]: supported values: "All"'),
        ("dryRun=", "dryRun: Unsupported value"),
        ("fieldValidation=Maybe", "fieldValidation: Unsupported value"),
        ("fieldManager=" + "m" * 200, "fieldManager: Too long"),
        ("fieldManager=" + "%C3%A4" * 65, "fieldManager: Too long"),
        ("fieldManager=a%00b", "fieldManager: Invalid value: 'a\\x00b'"),
    ],
)
def test_write_parameters(server: RunningServer, before: str, query: str, why: str) -> None:
    path = "/api/v1/namespaces/default/configmaps"
    for method, where, kind in (("POST", path, "Create"), ("PUT", f"{path}/c", "Update"), ("PATCH", f"{path}/c", "Patch")):
        headers = {"content-type": "application/merge-patch+json"} if method == "PATCH" else None
        reply = server.request(method, f"{where}?{query}", _cm(), headers=headers)
        assert (reply.code, reply.reason) == (422, "Invalid"), reply.body
        assert reply.message.startswith(f'{kind}Options.meta.k8s.io "" is invalid: {why}')
    _unchanged(server, before)


def test_force_is_for_apply(server: RunningServer, before: str) -> None:
    headers = {"content-type": "application/merge-patch+json"}
    reply = server.request("PATCH", "/api/v1/namespaces/default/configmaps/c?force=true", _cm(), headers=headers)
    assert reply.code == 422, reply.body
    _unchanged(server, before)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"propagationPolicy": "Sideways"}, 422),
        ({"propagationPolicy": ""}, 422),
        ({"gracePeriodSeconds": "now"}, 400),
        ({"dryRun": ["Some"]}, 422),
        ({"dryRun": ["All", "Some"]}, 422),
        ({"dryRun": "All"}, 400),
        ({"kind": "Pod"}, 400),
        ({"preconditions": {"uid": 5}}, 400),
        ({"propagationPolicy": "Orphan", "orphanDependents": True}, 422),
        ([], 400),
    ],
)
def test_delete_bodies(server: RunningServer, namespace: str, body: Any, code: int) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    server.create(path, {"metadata": {"name": "c"}})
    before = server.server.store.resource_version
    reply = server.request("DELETE", f"{path}/c", body)
    assert reply.code == code, reply.body
    _unchanged(server, before)
    assert server.request("GET", f"{path}/c").code == 200


@pytest.mark.parametrize(
    ("media", "body", "code"),
    [
        ("application/json", {"data": {}}, 415),
        ("application/merge-patch+json", [], 400),
        ("application/merge-patch+json", b"{", 400),
        ("application/merge-patch+json", {"metadata": {"name": "other"}}, 400),
        ("application/merge-patch+json", {"metadata": {"namespace": "other"}}, 400),
        ("application/merge-patch+json", {"metadata": None}, 400),
        ("application/merge-patch+json", {"kind": "Secret"}, 422),
        ("application/merge-patch+json", {"metadata": {"resourceVersion": "1"}}, 409),
        ("application/merge-patch+json", {"data": 5}, 422),
        ("application/json-patch+json", {}, 400),
        ("application/json-patch+json", [1], 400),
        ("application/json-patch+json", [{"op": "explode", "path": "/data"}], 422),
        ("application/json-patch+json", [{"op": "test", "path": "/data/a", "value": "no"}], 422),
        ("application/json-patch+json", [{"op": "remove", "path": "/nothing/there"}], 422),
        ("application/json-patch+json", [{"op": "add", "path": "no slash", "value": 1}], 422),
        ("application/strategic-merge-patch+json", {"data": {"$patch": "explode"}}, 400),
        ("application/apply-patch+yaml", b"a: [", 400),
        ("application/apply-patch+yaml", b"apiVersion: v1\nkind: Secret\nmetadata: {name: c}\n", 400),
    ],
)
def test_patch_bodies(server: RunningServer, namespace: str, media: str, body: Any, code: int) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    server.create(path, {"metadata": {"name": "c"}, "data": {"a": "1"}})
    before = server.server.store.resource_version
    reply = server.request("PATCH", f"{path}/c?fieldManager=me", body, headers={"content-type": media})
    assert reply.code == code, reply.body
    assert reply.json["kind"] == "Status"
    _unchanged(server, before)


def test_update_must_agree_with_the_url(server: RunningServer, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    made = server.create(path, {"metadata": {"name": "c"}})
    before = server.server.store.resource_version
    other_name = {**made, "metadata": {**made["metadata"], "name": "d"}}
    assert "does not match the name on the URL" in server.request("PUT", f"{path}/c", other_name).message
    other_space = {**made, "metadata": {**made["metadata"], "namespace": "default"}}
    assert server.request("PUT", f"{path}/c", other_space).code == 400
    assert server.request("PUT", f"{path}/nobody", {"metadata": {"name": "nobody"}}).code == 404
    assert server.request("PUT", f"{path}/c", {**made, "metadata": "c"}).code == 400
    _unchanged(server, before)


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer wrong"},
        {"authorization": "Bearer "},
        {"authorization": "Basic YWRtaW46YWRtaW4="},
        {"authorization": "nonsense"},
        {"authorization": "Bearer a.b.c"},
        {"authorization": "Bearer " + "x" * 9000},
        {},
    ],
    ids=["wrong", "empty", "basic", "nonsense", "forged JWT", "long", "none"],
)
def test_wrong_credentials(server: RunningServer, headers: dict[str, str]) -> None:
    for path in ("/api/v1/namespaces", "/api", "/metrics", "/openapi/v2", "/nowhere"):
        reply = server.request("GET", path, token="", headers=headers)
        assert (reply.code, reply.reason) == (401, "Unauthorized"), path
        assert reply.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(
    ("accept", "code"),
    [("application/vnd.kubernetes.protobuf", 406), ("text/html", 406), ("x" * 5000, 400), (";;;,,,;q=x", 406), ("*/*", 200)],
)
def test_accept(server: RunningServer, accept: str, code: int) -> None:
    assert server.request("GET", "/api/v1/namespaces", headers={"accept": accept}).code == code


def test_unknown_namespace(server: RunningServer, before: str) -> None:
    reply = server.request("POST", "/api/v1/namespaces/nowhere/configmaps", {"metadata": {"name": "c"}})
    assert (reply.code, reply.message) == (404, 'namespaces "nowhere" not found')
    _unchanged(server, before)
