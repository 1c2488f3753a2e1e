"""The views of Kubernetes' own kinds: names, decoding, and what they leave alone."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.objects.native.case import whole
from tests.objects.native.tables import CASES, DEFAULTED

from muster.objects.catalog import CATALOG
from muster.objects.kinds.base import json_name
from muster.objects.kinds.nodes import Node
from muster.objects.kinds.pods import Pod
from muster.objects.resources import Resource
from muster.objects.schema import schema_of
from muster.objects.status import Raw
from muster.objects.structural import Structural
from muster.objects.view import to_raw, view_of, write_back


@pytest.mark.parametrize(
    ("python", "json"),
    [
        ("pod_ip", "podIP"),
        ("host_ips", "hostIPs"),
        ("ip", "ip"),
        ("api_version", "apiVersion"),
        ("downward_api", "downwardAPI"),
        ("non_resource_urls", "nonResourceURLs"),
        ("set_hostname_as_fqdn", "setHostnameAsFQDN"),
        ("se_linux_options", "seLinuxOptions"),
        ("from_", "from"),
        ("provider_id", "providerID"),
        ("pod_cidrs", "podCIDRs"),
    ],
)
def test_names_are_spelt_as_kubernetes_spells_them(python: str, json: str) -> None:
    assert json_name(python) == json


ACCEPTED = [(case.group, case.kind, case.body, f"{case.kind}: {case.id}") for case in CASES if not case.refused] + [
    (group, kind, body, f"{kind} {index}") for index, (group, kind, body) in enumerate(DEFAULTED)
]


@pytest.mark.parametrize(("group", "kind", "body", "name"), ACCEPTED, ids=[a[3] for a in ACCEPTED])
def test_what_is_accepted_can_be_read_and_is_known_whole(group: str, kind: str, body: Raw, name: str) -> None:
    view = CATALOG.by_kind(group, kind).view
    assert view is not None
    raw = whole(group, kind, body)
    assert Structural(schema_of(view)).prune(raw) == (raw, []), "strict field validation would refuse it"
    decoded = view_of(view, raw)
    assert view_of(view, to_raw(decoded)) == decoded


def test_a_pod_reads_naturally() -> None:
    pod = view_of(
        Pod,
        {
            "metadata": {"name": "web-0", "creationTimestamp": None},
            "spec": {"nodeName": "n1", "containers": [{"name": "main", "resources": {"limits": {"cpu": 2}}}]},
            "status": {"podIP": "10.0.0.1", "containerStatuses": [{"name": "main", "state": {"running": {}}}]},
        },
    )
    assert pod.spec is not None
    assert pod.status is not None
    resources = pod.spec.containers[0].resources
    assert resources is not None
    assert (pod.metadata.name, pod.spec.node_name, resources.limits["cpu"], pod.status.pod_ip) == ("web-0", "n1", 2, "10.0.0.1")


def test_values_of_a_newer_kubernetes_can_be_read() -> None:
    pod = view_of(Pod, {"spec": {"containers": [], "restartPolicy": "Whenever"}, "status": {"phase": "Hibernating"}})
    assert pod.status is not None
    assert pod.status.phase == "Hibernating"


def test_unknown_members_survive_in_lists_of_a_node() -> None:
    raw: Raw = {
        "metadata": {"name": "n"},
        "spec": {"taints": [{"key": "a", "effect": "NoSchedule", "new": 1}, {"key": "b", "effect": "NoSchedule", "new": 2}]},
        "status": {"conditions": [{"type": "Ready", "status": "True", "new": 3}]},
    }
    before = view_of(Node, raw)
    assert before.spec is not None
    after = msgspec.structs.replace(before, spec=msgspec.structs.replace(before.spec, taints=before.spec.taints[1:]))
    result: Any = write_back(raw, before, after)
    assert result["spec"]["taints"] == [{"key": "b", "effect": "NoSchedule", "new": 2}]
    assert result["status"] == raw["status"]


def lists_of(schema: Raw, path: str) -> list[tuple[str, Raw]]:
    found = [(path, schema)] if schema.get("type") == "array" else []
    for name, inner in schema.get("properties", {}).items():
        found += lists_of(inner, f"{path}.{name}")
    for word in ("items", "additionalProperties"):
        if isinstance(schema.get(word), dict):
            found += lists_of(schema[word], path)
    return found


@pytest.mark.parametrize("resource", [r for r in CATALOG if not r.is_custom], ids=lambda r: f"{r.qualified}.{r.version}")
def test_keys_of_lists_are_members_of_their_elements(resource: Resource) -> None:
    assert resource.view is not None
    for path, schema in lists_of(schema_of(resource.view), resource.kind):
        members = schema["items"].get("properties", {})
        for key in (*schema.get("x-kubernetes-list-map-keys", ()), schema.get("x-kubernetes-patch-merge-key")):
            assert key is None or key in members, path
