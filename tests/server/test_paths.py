"""From URLs to what is asked."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.objects.status import BadRequest
from muster.server.paths import RequestInfo, request_info


def _info(method: str, path: str, **more: object) -> RequestInfo:
    return request_info(method, path.encode(), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("method", "path", "verb", "group", "resource", "namespace", "name", "sub"),
    [
        pytest.param("GET", "/api/v1/pods", "list", "", "pods", "", "", "", id="list everywhere"),
        pytest.param("GET", "/api/v1/namespaces/a/pods", "list", "", "pods", "a", "", "", id="list in a namespace"),
        pytest.param("GET", "/api/v1/namespaces/a/pods/", "list", "", "pods", "a", "", "", id="trailing slash"),
        pytest.param("GET", "/api/v1/namespaces/a/pods/p", "get", "", "pods", "a", "p", "", id="get"),
        pytest.param("HEAD", "/api/v1/namespaces/a/pods/p", "get", "", "pods", "a", "p", "", id="head is get"),
        pytest.param("GET", "/api/v1/namespaces/a/pods/p/log", "get", "", "pods", "a", "p", "log", id="subresource"),
        pytest.param("POST", "/api/v1/namespaces/a/pods", "create", "", "pods", "a", "", "", id="create"),
        pytest.param(
            "PUT", "/apis/apps/v1/namespaces/a/deployments/d", "update", "apps", "deployments", "a", "d", "", id="update"
        ),
        pytest.param(
            "PATCH", "/apis/apps/v1/namespaces/a/deployments/d", "patch", "apps", "deployments", "a", "d", "", id="patch"
        ),
        pytest.param("DELETE", "/api/v1/nodes/n", "delete", "", "nodes", "", "n", "", id="delete"),
        pytest.param("DELETE", "/api/v1/nodes", "deletecollection", "", "nodes", "", "", "", id="deletecollection"),
        pytest.param("GET", "/api/v1/namespaces", "list", "", "namespaces", "", "", "", id="namespaces"),
        pytest.param("GET", "/api/v1/namespaces/a", "get", "", "namespaces", "a", "a", "", id="a namespace is in itself"),
        pytest.param("PUT", "/api/v1/namespaces/a/finalize", "update", "", "namespaces", "a", "a", "finalize", id="finalize"),
        pytest.param("GET", "/api/v1/watch/pods", "watch", "", "pods", "", "", "", id="the old watch form"),
        pytest.param("GET", "/api/v1/watch/namespaces/a/pods/p", "watch", "", "pods", "a", "p", "", id="the old watch of one"),
        pytest.param("BREW", "/api/v1/pods", "brew", "", "pods", "", "", "", id="an unknown method is its own verb"),
        pytest.param(
            *("GET", "/apis/rbac.authorization.k8s.io/v1/clusterroles/system%3Anode", "get"),
            *("rbac.authorization.k8s.io", "clusterroles", "", "system:node", ""),
            id="percent-encoded",
        ),
    ],
)
def test_resources(method: str, path: str, verb: str, group: str, resource: str, namespace: str, name: str, sub: str) -> None:
    info = _info(method, path)
    assert info.is_resource
    found = (info.verb, info.group, info.resource, info.namespace, info.name, info.subresource)
    assert found == (verb, group, resource, namespace, name, sub)


@pytest.mark.parametrize(
    "path", ["/", "/api", "/api/v1", "/apis", "/apis/apps", "/apis/apps/v1", "/healthz", "/api//pods", "/apis//v1/x"]
)
def test_other_paths(path: str) -> None:
    info = _info("GET", path)
    assert not info.is_resource
    assert info.verb == "get"
    assert info.path == path


def test_watch_and_single_names() -> None:
    assert _info("GET", "/api/v1/pods", is_watch=True).verb == "watch"
    assert _info("POST", "/api/v1/namespaces/a/pods", is_watch=True).verb == "create"
    assert _info("GET", "/api/v1/namespaces/a/pods", only_name="p").name == "p"
    assert _info("GET", "/api/v1/namespaces/a/pods", only_name="p/q").name == ""


@pytest.mark.parametrize(
    "path",
    [
        pytest.param("/api/v1/namespaces/../pods", id="dot dot"),
        pytest.param("/api/v1/namespaces/%2e%2e/pods", id="escaped dot dot"),
        pytest.param("/api/v1/namespaces/a/pods/x%2Fy", id="escaped slash"),
        pytest.param("/api/v1/namespaces/a/pods/x%00y", id="NUL"),
        pytest.param("/api/v1/namespaces/a/pods/x%0Ay", id="newline"),
        pytest.param("/api/v1/namespaces/a/pods/x%25y", id="percent"),
        pytest.param("/api/v1/namespaces/a/pods/%ff", id="not UTF-8"),
        pytest.param("/api/v1/namespaces/a/pods/" + "x" * 600, id="too long"),
        pytest.param("*", id="asterisk form"),
        pytest.param("http://elsewhere/api", id="absolute form"),
    ],
)
def test_refused(path: str) -> None:
    with pytest.raises(BadRequest):
        _info("GET", path)


@given(st.binary(max_size=80))
def test_names_are_never_dangerous(raw: bytes) -> None:
    try:
        info = request_info("GET", b"/api/v1/namespaces/a/pods/" + raw.replace(b"?", b""))
    except BadRequest:
        return
    for part in (info.name, info.subresource, info.namespace, info.resource):
        assert part not in (".", "..")
        assert "/" not in part
        assert "%" not in part
        assert part.isprintable()
