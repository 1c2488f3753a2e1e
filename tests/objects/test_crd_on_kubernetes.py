"""A real kube-apiserver takes the definitions that we generate, keeps them whole, and serves the kinds."""

from __future__ import annotations

import json
import ssl
import time
import urllib.error
import urllib.request
from typing import Any

import pytest

from muster.bench.kubernetes import ControlPlane
from muster.objects.catalog import CATALOG
from muster.objects.conditions import is_true
from muster.objects.crd import crds_for
from muster.objects.status import Raw

pytestmark = [pytest.mark.kubernetes, pytest.mark.slow]

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
ESTABLISHED_WITHIN_S = 60.0


def call(plane: ControlPlane, method: str, path: str, body: Raw | None = None) -> tuple[int, Any]:
    request = urllib.request.Request(
        plane.url + path,
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={
            "Authorization": f"Bearer {plane.admin_token}",
            "Content-Type": "application/json",
            "Accept": "application/json",
        },
    )
    try:
        with urllib.request.urlopen(request, context=ssl.create_default_context(cafile=str(plane.ca_path))) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


@pytest.fixture(scope="module")
def served(kubernetes: ControlPlane) -> dict[str, Raw]:
    """All our definitions on a real server, as it has them once it serves them."""
    definitions = crds_for(CATALOG.custom)
    refused = {}
    for definition in definitions:
        code, answer = call(kubernetes, "POST", CRDS, definition)
        if code not in {201, 409}:
            refused[definition["metadata"]["name"]] = answer.get("message", answer)
    assert refused == {}
    deadline = time.monotonic() + ESTABLISHED_WITHIN_S
    waiting = {d["metadata"]["name"] for d in definitions}
    found: dict[str, Raw] = {}
    while waiting and time.monotonic() < deadline:
        _, listed = call(kubernetes, "GET", CRDS)
        for item in listed["items"]:
            name = item["metadata"]["name"]
            if name in waiting and is_true(item.get("status", {}).get("conditions"), "Established"):
                found[name] = item
                waiting.discard(name)
        time.sleep(0.2)
    assert waiting == set(), "not established"
    return found


@pytest.mark.parametrize("definition", crds_for(CATALOG.custom), ids=lambda d: d["metadata"]["name"])
def test_definition_is_kept_whole(served: dict[str, Raw], definition: Raw) -> None:
    stored = served[definition["metadata"]["name"]]
    assert is_true(stored["status"]["conditions"], "NamesAccepted")
    assert not is_true(stored["status"]["conditions"], "NonStructuralSchema")
    assert stored["spec"]["names"] == definition["spec"]["names"]
    for ours, theirs in zip(definition["spec"]["versions"], stored["spec"]["versions"], strict=True):
        assert {key: theirs.get(key) for key in ours} == ours


def test_kinds_are_served(kubernetes: ControlPlane, served: dict[str, Raw]) -> None:
    for resource in CATALOG.custom:
        code, answer = call(kubernetes, "GET", resource.path())
        assert (code, answer.get("kind")) == (200, resource.list_kind or f"{resource.kind}List"), resource.qualified
