"""A real kube-apiserver takes the definitions and the manifests, keeps every field, and refuses what our schemas refuse."""

from __future__ import annotations

import json
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.objects.kinds.samples import ALL, BY_KIND, changed, manifest
from tests.objects.kinds.test_bad_manifests import BAD, Bad

from muster.bench.kubernetes import ControlPlane
from muster.objects.crd import crd_for
from muster.objects.meta import name_of, namespace_of
from muster.objects.resources import Resource
from muster.objects.status import Raw

pytestmark = pytest.mark.kubernetes

KUBECTL = Path(sys.executable).parent / "kubectl"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


class Api:
    """As little of an HTTP client as will do, so that this test stands on nothing of ours but the schemas."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        self.tls = ssl.create_default_context(cafile=str(plane.ca_path))

    def call(self, method: str, path: str, body: Raw | None = None, content_type: str = "application/json") -> tuple[int, Raw]:
        request = urllib.request.Request(
            self.plane.url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self.plane.admin_token}", "Content-Type": content_type},
        )
        try:
            with urllib.request.urlopen(request, context=self.tls, timeout=30) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as refused:
            return refused.code, json.load(refused)

    def must(self, method: str, path: str, body: Raw | None = None, content_type: str = "application/json") -> Raw:
        code, answer = self.call(method, path, body, content_type)
        assert code in {200, 201}, answer
        return answer


@pytest.fixture(scope="module")
def api(kubernetes: ControlPlane) -> Api:
    api = Api(kubernetes)
    for resource in ALL:
        # Applied, not created: other tests of the same run may have put some of them there.
        path = f"{CRDS}/{resource.qualified}?fieldManager=test-kinds&force=true"
        api.must("PATCH", path, crd_for(resource), "application/apply-patch+yaml")
    wait = [str(KUBECTL), f"--kubeconfig={kubernetes.kubeconfig_path}", "wait", "--for=condition=Established", "--timeout=60s"]
    subprocess.run([*wait, *(f"crd/{resource.qualified}" for resource in ALL)], check=True, capture_output=True)
    for namespace in sorted({namespace_of(manifest(r.kind)) for r in ALL if r.namespaced}):
        code, answer = api.call("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
        assert code in {201, 409}, answer
    return api


@pytest.mark.parametrize("resource", ALL, ids=lambda r: r.kind)
def test_definition_is_structural(api: Api, resource: Resource) -> None:
    conditions = api.must("GET", f"{CRDS}/{resource.qualified}")["status"]["conditions"]
    state = {condition["type"]: condition["status"] for condition in conditions}
    assert state.get("NonStructuralSchema", "False") == "False", conditions
    assert (state["NamesAccepted"], state["Established"]) == ("True", "True")


@pytest.fixture
def stored(api: Api, resource: Resource) -> Iterator[Raw]:
    """The manifest as the server has it, status written the way the kind wants it; gone afterwards."""
    raw = manifest(resource.kind)
    namespace = namespace_of(raw) or None
    answer = api.must("POST", resource.path(namespace), raw)
    try:
        if resource.has_status and "status" in raw:
            path = resource.path(namespace, name_of(raw), "status")
            answer = api.must("PUT", path, answer | {"status": raw["status"]})
        yield answer
    finally:
        api.must("DELETE", resource.path(namespace, name_of(raw)))


@pytest.mark.parametrize("resource", ALL, ids=lambda r: r.kind)
def test_manifest_is_kept_whole(stored: Raw, resource: Resource) -> None:
    raw = manifest(resource.kind)
    for part in {"spec", "status"} & raw.keys():
        assert kept(stored[part], raw[part]) == raw[part]


def kept(answer: Any, raw: Any) -> Any:
    """`answer` without what the server filled in by default."""
    if isinstance(answer, dict) and isinstance(raw, dict):
        return {key: kept(value, raw[key]) for key, value in answer.items() if key in raw}
    if isinstance(answer, list) and isinstance(raw, list) and len(answer) == len(raw):
        return [kept(*pair) for pair in zip(answer, raw, strict=True)]
    return answer


@pytest.mark.parametrize("bad", BAD, ids=lambda b: f"{b.kind} {b.path} {b.value!r:.20}")
def test_server_refuses_what_our_schema_refuses(api: Api, bad: Bad) -> None:
    resource = BY_KIND[bad.kind]
    raw = changed(manifest(bad.kind), bad.path, bad.value)
    namespace = namespace_of(raw) or None
    if bad.path.startswith("status") and resource.has_status:
        # A create drops the status, so it is tried on the status subresource of the good object.
        good = api.must("POST", resource.path(namespace), manifest(bad.kind))
        try:
            path = resource.path(namespace, name_of(raw), "status")
            code, answer = api.call("PUT", path, good | {"status": raw["status"]})
        finally:
            api.must("DELETE", resource.path(namespace, name_of(raw)))
    else:
        code, answer = api.call("POST", f"{resource.path(namespace)}?dryRun=All", raw)
    assert (code, answer["reason"]) == (422, "Invalid"), answer
