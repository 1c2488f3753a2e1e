"""Random requests: never a 5xx, and what is refused changes nothing. `MUSTER_SOAK=1` runs many more."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.server.running import RunningServer, running

_EXAMPLES = 5000 if os.environ.get("MUSTER_SOAK") else 250
_QUIET = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]

_WORDS = [
    *(
        "api",
        "apis",
        "v1",
        "apps",
        "namespaces",
        "default",
        "kube-system",
        "pods",
        "nodes",
        "configmaps",
        "secrets",
        "deployments",
    ),
    *(
        "rbac.authorization.k8s.io",
        "clusterroles",
        "apiextensions.k8s.io",
        "customresourcedefinitions",
        "status",
        "scale",
        "binding",
    ),
    *(
        "eviction",
        "token",
        "serviceaccounts",
        "log",
        "watch",
        "openapi",
        "v3",
        "x",
        "",
        ".",
        "..",
        "\x00",
        "名",
        "a/b",
        "%",
        "*",
        "kusciajobs",
    ),
]
_PATHS = st.lists(st.sampled_from(_WORDS) | st.text(max_size=6), max_size=8).map(
    lambda parts: "/" + "/".join(quote(part, safe="") for part in parts)
)
_REAL = st.sampled_from(
    [
        "/api/v1/namespaces/default/configmaps",
        "/api/v1/namespaces/default/configmaps/x",
        "/api/v1/namespaces/default/pods",
        "/api/v1/namespaces/default/pods/x",
        "/api/v1/namespaces/default/pods/x/status",
        "/api/v1/namespaces/default/pods/x/binding",
        "/api/v1/namespaces/default/pods/x/eviction",
        "/api/v1/namespaces/default/secrets",
        "/api/v1/namespaces/default/services",
        "/api/v1/namespaces/default/serviceaccounts/default/token",
        "/api/v1/namespaces",
        "/api/v1/nodes",
        "/apis/apps/v1/namespaces/default/deployments",
        "/apis/apps/v1/namespaces/default/deployments/x/scale",
        "/apis/rbac.authorization.k8s.io/v1/clusterroles",
        "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings",
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
        "/apis/batch/v1/namespaces/default/jobs",
        "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
        "/apis/authentication.k8s.io/v1/tokenreviews",
        "/apis/policy/v1/namespaces/default/poddisruptionbudgets",
        "/apis/coordination.k8s.io/v1/namespaces/default/leases",
        "/apis/scheduling.k8s.io/v1/priorityclasses",
    ]
)
_KEYS = st.sampled_from(
    [
        *(
            "apiVersion",
            "kind",
            "metadata",
            "name",
            "namespace",
            "labels",
            "annotations",
            "finalizers",
            "ownerReferences",
            "spec",
            "status",
        ),
        *(
            "containers",
            "replicas",
            "rules",
            "subjects",
            "roleRef",
            "data",
            "type",
            "template",
            "selector",
            "matchLabels",
            "versions",
            "names",
        ),
        *(
            "schema",
            "openAPIV3Schema",
            "group",
            "scope",
            "target",
            "resourceVersion",
            "uid",
            "managedFields",
            "generateName",
            "value",
            "ports",
        ),
        *(
            "conditions",
            "resources",
            "limits",
            "cpu",
            "tolerations",
            "affinity",
            "volumes",
            "env",
            "minAvailable",
            "expirationSeconds",
            "token",
        ),
    ]
)
_LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(
        [
            "x",
            "v1",
            "Pod",
            "ConfigMap",
            "default",
            "apps/v1",
            "1",
            "100m",
            "",
            "a" * 300,
            "\x00",
            "名",
            "../x",
            "2020-01-01T00:00:00Z",
        ]
    )
)
_VALUES = st.recursive(
    _LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=5), max_leaves=25
)
_NAMED = st.dictionaries(_KEYS, _VALUES, max_size=5).map(lambda more: {**more, "metadata": {"name": "x"}})
_BODIES = st.none() | st.binary(max_size=60) | _VALUES | _NAMED
_MEDIA = st.sampled_from(
    [
        *("application/json", "application/yaml", "application/merge-patch+json", "application/json-patch+json"),
        *(
            "application/strategic-merge-patch+json",
            "application/apply-patch+yaml",
            "application/vnd.kubernetes.protobuf",
            "text/plain",
        ),
    ]
)
_QUERIES = st.dictionaries(
    st.sampled_from(
        [
            *("limit", "continue", "labelSelector", "fieldSelector", "resourceVersion", "resourceVersionMatch", "fieldManager"),
            *("fieldValidation", "force", "propagationPolicy", "gracePeriodSeconds", "pretty", "timeoutSeconds", "x"),
        ]
    ),
    st.sampled_from(
        [
            "",
            "1",
            "-1",
            "true",
            "x",
            "a=b",
            "metadata.name=x",
            "Exact",
            "Strict",
            "Orphan",
            "99999999999999999999",
            "\x00",
            "a in (",
        ]
    ),
    max_size=3,
)


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server of its own: requests that are by chance well-formed may delete every role there is."""
    with running(tmp_path_factory.mktemp("victim")) as made:
        yield made


def _content(server: RunningServer) -> dict[str, tuple[tuple[str, str], int]]:
    """Every object by kind and key, with its version, once nothing moves any more."""
    server.call(server.server.settled())
    core = server.server.store._core
    return {
        f"{id_}/{key}": (key, record.rv)
        for id_, collection in core.collections.items()
        for key, record in collection.records.items()
    }


@pytest.mark.slow
@given(
    method=st.sampled_from(["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"]),
    path=_PATHS | _REAL,
    query=_QUERIES,
    body=_BODIES,
    media=_MEDIA,
    is_dry=st.booleans(),
)
@settings(max_examples=_EXAMPLES, suppress_health_check=_QUIET)
def test_requests(
    victim: RunningServer, method: str, path: str, query: dict[str, str], body: Any, media: str, is_dry: bool
) -> None:
    if method in ("DELETE", "PUT", "PATCH", "POST") and is_dry:
        query = {**query, "dryRun": "All"}
    if query:
        path += "?" + "&".join(f"{quote(key)}={quote(value)}" for key, value in query.items())
    payload = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    before = _content(victim)
    reply = victim.request(method, path, payload, headers={"content-type": media})
    assert reply.code < 500 or (reply.code == 504 and reply.reason == "Timeout"), (method, path, payload, reply.body)
    if reply.code >= 400 or is_dry or method in ("GET", "HEAD", "OPTIONS"):
        assert _content(victim) == before, (method, path, payload, reply.body)
    if reply.code >= 400 and method != "HEAD":
        status = reply.json if b"kind: Status" not in reply.body else {"kind": "Status", "message": "yaml"}
        assert status["kind"] == "Status"
        assert status["message"]
        assert "Traceback" not in status["message"]


@pytest.mark.slow
@given(st.binary(min_size=1, max_size=200))
@settings(max_examples=_EXAMPLES // 5, suppress_health_check=_QUIET)
def test_raw_bytes(victim: RunningServer, data: bytes) -> None:
    """Anything at all on the wire: the server answers 4xx or hangs up, and serves the next."""
    with victim.raw_socket() as connection:
        connection.sendall(data + b"\r\n\r\n")
        connection.settimeout(0.02)
        try:
            answer = connection.recv(200)
        except (OSError, TimeoutError):
            answer = b""
    assert not answer.startswith(b"HTTP/1.1 5")
    assert victim.request("GET", "/livez").body == b"ok"
