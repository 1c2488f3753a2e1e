"""Discovery and OpenAPI, as clients read them."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from muster.objects.catalog import CATALOG
from muster.objects.resources import Resource
from muster.server.discovery import Discovery
from muster.server.openapi import OpenApi, definition_name
from muster.server.openapi_v2 import document, protobuf
from tests.server.manifests import widget_crd
from tests.server.running import RunningServer

_AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"


def test_old_form(server: RunningServer) -> None:
    assert server.request("GET", "/api").json["versions"] == ["v1"]
    groups = server.request("GET", "/apis").json["groups"]
    apps = next(group for group in groups if group["name"] == "apps")
    assert apps["preferredVersion"] == {"groupVersion": "apps/v1", "version": "v1"}
    assert server.request("GET", "/apis/apps").json["name"] == "apps"
    core = {entry["name"]: entry for entry in server.request("GET", "/api/v1").json["resources"]}
    assert core["pods"]["shortNames"] == ["po"]
    assert core["pods"]["namespaced"] is True
    assert core["nodes"]["namespaced"] is False
    assert core["pods/status"]["verbs"] == ["get", "patch", "update"]
    assert (core["pods/eviction"]["group"], core["pods/eviction"]["kind"]) == ("policy", "Eviction")
    assert server.request("GET", "/apis/nothing").code == 404
    assert server.request("GET", "/apis/apps/v9").code == 404


@pytest.mark.parametrize("path", ["/version", "/api", "/apis", "/api/v1", "/apis/apps", "/apis/apps/v1"])
def test_a_slash_at_the_end_means_nothing(server: RunningServer, path: str) -> None:
    """Clients that are generated from Kubernetes' OpenAPI ask like that."""
    plain, slash = server.request("GET", path), server.request("GET", f"{path}/")
    assert (slash.code, slash.body) == (200, plain.body)
    assert server.request("GET", f"{path}/", token="").code == (200 if path == "/version" else 401)
    assert server.request("GET", f"{path}//").code == 404


def test_aggregated_form_with_etag(server: RunningServer) -> None:
    reply = server.request("GET", "/apis", headers={"accept": f"{_AGGREGATED},application/json"})
    assert reply.json["kind"] == "APIGroupDiscoveryList"
    assert reply.headers["content-type"] == _AGGREGATED
    tag = reply.headers["etag"]
    again = server.request("GET", "/apis", headers={"accept": _AGGREGATED, "if-none-match": tag})
    assert (again.code, again.body) == (304, b"")
    beta = server.request("GET", "/api", headers={"accept": _AGGREGATED.replace("v=v2", "v=v2beta1")}).json
    assert beta["apiVersion"] == "apidiscovery.k8s.io/v2beta1"
    plain = server.request("GET", "/apis", headers={"accept": f"application/json,{_AGGREGATED}"}).json
    assert plain["kind"] == "APIGroupList", "the client's first choice"


def test_both_forms_say_the_same() -> None:
    discovery = Discovery(CATALOG.all)
    old = {
        (group, version, entry["name"])
        for group, versions in discovery.groups.items()
        for version in versions
        for entry in (discovery.resource_list(group, version) or {})["resources"]
    }
    new = set()
    for is_core in (True, False):
        for item in json.loads(discovery.aggregated("v2", is_core=is_core)[0])["items"]:
            for version in item["versions"]:
                for entry in version["resources"]:
                    new.add((item["metadata"]["name"], version["version"], entry["resource"]))
                    for sub in entry.get("subresources", []):
                        new.add((item["metadata"]["name"], version["version"], f"{entry['resource']}/{sub['subresource']}"))
    assert old == new
    assert len(new) > 80


def test_definitions_come_and_go(server: RunningServer) -> None:
    group = "discovery.example.org"
    before = server.request("GET", "/apis", headers={"accept": _AGGREGATED}).headers["etag"]
    headers = {"content-type": "application/yaml"}
    made = server.request(
        "POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", widget_crd(group).encode(), headers=headers
    )
    assert made.code == 201, made.body
    assert server.request("GET", "/apis", headers={"accept": _AGGREGATED}).headers["etag"] != before
    names = [entry["name"] for entry in server.request("GET", f"/apis/{group}/v1").json["resources"]]
    assert names == ["widgets", "widgets/scale", "widgets/status"]
    index = server.request("GET", "/openapi/v3").json["paths"]
    document_url = index[f"apis/{group}/v1"]["serverRelativeURL"]
    schemas = server.request("GET", document_url).json["components"]["schemas"]
    assert schemas["org.example.discovery.v1.Widget"]["properties"]["spec"]["properties"]["size"]["maximum"] == 10
    assert f"{group}" in server.request("GET", "/openapi/v2").body.decode()
    crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    with server.watch(f"{crds}?fieldSelector=metadata.name%3Dwidgets.{group}") as watch:
        assert watch.next()["type"] == "ADDED"
        server.request("DELETE", f"{crds}/widgets.{group}")
        while watch.next()["type"] != "DELETED":
            pass
    assert server.request("GET", f"/apis/{group}/v1").code == 404


def test_openapi_v3_documents(server: RunningServer) -> None:
    index = server.request("GET", "/openapi/v3").json["paths"]
    assert {"api/v1", "apis/apps/v1"} <= index.keys()
    url = index["apis/apps/v1"]["serverRelativeURL"]
    reply = server.request("GET", url)
    assert reply.headers["cache-control"] == "public, immutable"
    assert server.request("GET", url, headers={"if-none-match": reply.headers["etag"]}).code == 304
    doc = reply.json
    patch = doc["paths"]["/apis/apps/v1/namespaces/{namespace}/deployments/{name}"]["patch"]
    assert patch["x-kubernetes-group-version-kind"] == {"group": "apps", "kind": "Deployment", "version": "v1"}
    assert {"dryRun", "fieldValidation"} <= {parameter["name"] for parameter in patch["parameters"]}
    assert server.request("GET", url, headers={"accept": "application/vnd.kubernetes.protobuf"}).code == 406


def _references(value: Any) -> set[str]:
    if isinstance(value, dict):
        found = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return found.union(*(_references(inner) for inner in value.values()))
    if isinstance(value, list):
        return set().union(*(_references(inner) for inner in value))
    return set()


def _schema(resource: Resource) -> Any:
    from muster.objects.schema import schema_of

    return schema_of(resource.view) if resource.view else None


def test_every_reference_leads_somewhere() -> None:
    openapi = OpenApi(CATALOG.all, _schema)
    for path in openapi.index()["paths"]:
        doc = json.loads(openapi.document(path)[0])
        known = {f"#/components/schemas/{name}" for name in doc["components"]["schemas"]}
        assert _references(doc) <= known
    v2 = document(CATALOG.all, _schema)
    assert _references(v2) <= {f"#/definitions/{name}" for name in v2["definitions"]}


def test_names_are_unique() -> None:
    names = [definition_name(resource) for resource in CATALOG.all]
    assert len(names) == len(set(names))


# --- protobuf of OpenAPI v2, read back with a reader of its own


def _fields(data: bytes) -> list[tuple[int, bytes]]:
    found, position = [], 0

    def varint() -> int:
        nonlocal position
        value = shift = 0
        while True:
            byte = data[position]
            position += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while position < len(data):
        key = varint()
        assert key & 7 == 2
        length = varint()
        found.append((key >> 3, data[position : position + length]))
        position += length
    assert position == len(data)
    return found


def test_v2_protobuf_holds_the_definitions() -> None:
    doc = document(CATALOG.all, _schema)
    top = dict(_fields(protobuf(doc)))
    assert top[1] == b"2.0"
    definitions = {dict(_fields(entry))[1].decode(): dict(_fields(entry))[2] for _, entry in _fields(top[9])}
    assert definitions.keys() == doc["definitions"].keys()
    pod = dict(_fields(definitions["io.k8s.api.core.v1.Pod"]))
    properties = {dict(_fields(entry))[1].decode() for _, entry in _fields(pod[25])}
    assert {"apiVersion", "kind", "metadata", "spec", "status"} <= properties


@pytest.mark.parametrize("accept", ["application/json", "application/com.github.proto-openapi.spec.v2@v1.0+protobuf", "*/*"])
def test_v2_is_served(server: RunningServer, accept: str) -> None:
    reply = server.request("GET", "/openapi/v2", headers={"accept": accept})
    assert reply.code == 200
    assert "@" not in reply.headers["content-type"], "Go refuses such a media type"


def test_the_preferred_version_does_not_depend_on_what_came_first() -> None:
    like = CATALOG.by_kind("apps", "Deployment")
    versions = ["v1beta1", "v2alpha1", "v1", "v1beta2", "other", "v2"]
    mixed = [msgspec.structs.replace(like, group="example.com", version=version) for version in versions]
    group = Discovery(mixed).group("example.com")
    assert group is not None
    assert [one["version"] for one in group["versions"]] == ["v2", "v1", "v1beta2", "v1beta1", "v2alpha1", "other"]
    assert group["preferredVersion"]["version"] == "v2"
