"""The REST verbs over HTTP: codes, bodies, versions, options, forms."""

from __future__ import annotations

import gzip
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from muster.objects.status import Raw
from tests.server.running import Reply, RunningServer

_MERGE = {"content-type": "application/merge-patch+json"}


def _config_map(name: str, **more: Any) -> Raw:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, **more}


@pytest.fixture
def maps(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/configmaps"


def test_create_get_update_patch_delete(server: RunningServer, maps: str) -> None:
    made = server.request("POST", maps, _config_map("c", data={"a": "1"}))
    assert made.code == 201
    assert made.json["metadata"]["uid"]
    assert server.request("POST", maps, _config_map("c")).reason == "AlreadyExists"
    got = server.request("GET", f"{maps}/c")
    assert got.code == 200
    assert got.json == made.json
    changed = {**got.json, "data": {"a": "2"}}
    assert server.request("PUT", f"{maps}/c", changed).code == 200
    stale = server.request("PUT", f"{maps}/c", changed)
    assert (stale.code, stale.reason) == (409, "Conflict")
    patched = server.request("PATCH", f"{maps}/c", {"data": {"b": "3"}}, headers=_MERGE)
    assert patched.json["data"] == {"a": "2", "b": "3"}
    gone = server.request("DELETE", f"{maps}/c")
    assert gone.json["status"] == "Success"
    assert gone.json["details"] == {"name": "c", "kind": "configmaps", "uid": made.json["metadata"]["uid"]}
    missing = server.request("GET", f"{maps}/c")
    assert (missing.code, missing.reason, missing.message) == (404, "NotFound", 'configmaps "c" not found')
    assert server.request("DELETE", f"{maps}/c").code == 404


def test_head_has_no_body(server: RunningServer, maps: str) -> None:
    server.create(maps, _config_map("c"))
    reply = server.request("HEAD", f"{maps}/c")
    assert reply.code == 200
    assert reply.body == b""
    assert int(reply.headers["content-length"]) > 100


def test_yaml_in_and_out(server: RunningServer, maps: str) -> None:
    text = b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: notes}\ndata:\n  when: '2020-01-01'\n"
    headers = {"content-type": "application/yaml", "accept": "application/yaml"}
    reply = server.request("POST", maps, text, headers=headers)
    assert reply.code == 201
    assert reply.headers["content-type"] == "application/yaml"
    assert b'\ndata:\n  when: "2020-01-01"\n' in b"\n" + reply.body
    assert b"items:\n" in server.request("GET", maps, headers={"accept": "application/yaml"}).body
    missing = server.request("GET", f"{maps}/nobody", headers={"accept": "application/yaml"})
    assert b"reason: NotFound\n" in missing.body


def test_generate_name(server: RunningServer, maps: str) -> None:
    made = server.create(maps, {"metadata": {"generateName": "job-"}})
    assert made["metadata"]["name"].startswith("job-")
    assert len(made["metadata"]["name"]) == len("job-") + 5


def test_list_pages_are_one_snapshot(server: RunningServer, maps: str) -> None:
    for name in ("a", "b", "c"):
        server.create(maps, _config_map(name, data={"v": "1"}))
    mine = f"{maps}?fieldSelector=metadata.name!=kube-root-ca.crt"
    first = server.request("GET", f"{mine}&limit=2").json
    assert [item["metadata"]["name"] for item in first["items"]] == ["a", "b"]
    assert (first["kind"], first["apiVersion"]) == ("ConfigMapList", "v1")
    server.request("DELETE", f"{maps}/c")
    second = server.request("GET", f"{mine}&limit=2&continue={first['metadata']['continue']}").json
    assert [item["metadata"]["name"] for item in second["items"]] == ["c"]
    assert second["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    assert "continue" not in second["metadata"]
    assert server.request("GET", f"{maps}?limit=2&continue={first['metadata']['continue']}").code == 400


def test_list_at_a_version(server: RunningServer, maps: str) -> None:
    server.create(maps, _config_map("a"))
    version = server.request("GET", maps).json["metadata"]["resourceVersion"]
    server.create(maps, _config_map("b"))
    exact = server.request("GET", f"{maps}?resourceVersion={version}&resourceVersionMatch=Exact").json
    assert "b" not in [item["metadata"]["name"] for item in exact["items"]]
    newer = server.request("GET", f"{maps}?resourceVersion={version}&resourceVersionMatch=NotOlderThan").json
    assert "b" in [item["metadata"]["name"] for item in newer["items"]]
    for path in (f"{maps}?resourceVersion=999999999", f"{maps}/a?resourceVersion=999999999"):
        future = server.request("GET", path)
        assert (future.code, future.reason) == (504, "Timeout")
        assert future.headers["retry-after"] == "1"


def test_delete_options(server: RunningServer, maps: str) -> None:
    uid = server.create(maps, _config_map("c"))["metadata"]["uid"]
    wrong = server.request("DELETE", f"{maps}/c", {"preconditions": {"uid": "another"}})
    assert (wrong.code, wrong.reason) == (409, "Conflict")
    assert server.request("DELETE", f"{maps}/c", {"dryRun": ["All"]}).code == 200
    assert server.request("DELETE", f"{maps}/c?dryRun=All").code == 200
    assert server.request("GET", f"{maps}/c").code == 200
    options = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": uid}, "propagationPolicy": "Background"}
    assert server.request("DELETE", f"{maps}/c", options).code == 200
    assert server.request("GET", f"{maps}/c").code == 404


def test_delete_collection(server: RunningServer, maps: str) -> None:
    for name in ("a", "b", "c"):
        server.create(maps, {"metadata": {"name": name, "labels": {"keep": str(name == "c").lower()}}})
    assert server.request("DELETE", f"{maps}?labelSelector=keep%3Dfalse&dryRun=All").code == 200
    assert len(server.request("GET", f"{maps}?labelSelector=keep").json["items"]) == 3
    deleted = server.request("DELETE", f"{maps}?labelSelector=keep%3Dfalse").json
    assert (deleted["kind"], [item["metadata"]["name"] for item in deleted["items"]]) == ("ConfigMapList", ["a", "b"])
    left = server.request("GET", f"{maps}?labelSelector=keep").json["items"]
    assert [item["metadata"]["name"] for item in left] == ["c"]


@pytest.mark.parametrize("path", ["/api/v1/configmaps", "/apis/apps/v1/deployments?labelSelector=a"])
def test_all_namespaces_together_are_no_collection(server: RunningServer, maps: str, path: str) -> None:
    """Who left out the namespace by mistake would have deleted everybody's."""
    server.create(maps, _config_map("kept"))
    refused = server.request("DELETE", path)
    assert (refused.code, refused.reason) == (405, "MethodNotAllowed")
    assert server.request("GET", f"{maps}/kept").code == 200


def test_a_collection_is_deleted_as_its_objects_say(server: RunningServer, namespace: str, maps: str) -> None:
    """Without a policy of the request: one that keeps its dependents, and one that keeps nothing."""
    for finalizers in (["orphan"], []):
        name = "keeps" if finalizers else "takes"
        made = server.create(maps, {"metadata": {"name": name, "finalizers": finalizers, "labels": {"owner": "yes"}}})
        owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": made["metadata"]["uid"]}
        server.create(maps, {"metadata": {"name": f"of-{name}", "ownerReferences": [owner]}})
    jobs = f"/apis/batch/v1/namespaces/{namespace}/jobs"
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}
    job = server.create(jobs, {"metadata": {"name": "j"}, "spec": {"template": template}})
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": job["metadata"]["uid"]}
    server.create(maps, {"metadata": {"name": "of-job", "ownerReferences": [owner]}})
    assert server.request("DELETE", f"{maps}?labelSelector=owner%3Dyes").code == 200
    answer = server.request("DELETE", jobs)
    assert "without a propagationPolicy" in str(answer.headers)
    server.call(server.server.settled())
    left = [
        item["metadata"] for item in server.request("GET", maps).json["items"] if item["metadata"]["name"].startswith("of-")
    ]
    assert [(one["name"], "ownerReferences" in one) for one in left] == [("of-job", False), ("of-keeps", False)]


def test_a_long_collection_is_deleted_and_told_in_turns(server: RunningServer, maps: str) -> None:
    """More than goes out whole, or is deleted at once; a client that reads nothing of it changes nothing."""
    names = [f"m{n:03}" for n in range(200)]
    for name in names:
        server.create(maps, {**_config_map(name), "data": {"x": "y" * 1000}})
    listed = server.request("GET", f"{maps}?fieldSelector=metadata.name!=kube-root-ca.crt").json
    deleted = server.request("DELETE", f"{maps}?fieldSelector=metadata.name!=kube-root-ca.crt").json
    assert [item["metadata"]["name"] for item in deleted["items"]] == names
    assert deleted == listed, "as they were before"
    assert server.request("GET", f"{maps}?fieldSelector=metadata.name!=kube-root-ca.crt").json["items"] == []


def test_a_scale_is_patched_while_others_write_the_object(server: RunningServer, namespace: str) -> None:
    """A patch that names no version is for whatever is there, as any other patch is."""
    deployments = f"/apis/apps/v1/namespaces/{namespace}/deployments"
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    made = server.create(
        deployments,
        {"metadata": {"name": "busy"}, "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template, "replicas": 0}},
    )
    path = f"{deployments}/busy"

    def write(number: int) -> Reply:
        if number % 3:
            body = {"status": {"observedGeneration": number}}
            return server.request("PATCH", f"{path}/status", body, headers=_MERGE)
        return server.request("PATCH", f"{path}/scale", {"spec": {"replicas": number}}, headers=_MERGE)

    with ThreadPoolExecutor(3) as pool:
        assert {reply.code for reply in pool.map(write, range(1, 121))} == {200}
    first = {"metadata": {"resourceVersion": made["metadata"]["resourceVersion"]}, "spec": {"replicas": 1}}
    assert server.request("PATCH", f"{path}/scale", first, headers=_MERGE).code == 409, "this one is for another version"


def test_a_scale_is_applied(server: RunningServer, namespace: str) -> None:
    deployments = f"/apis/apps/v1/namespaces/{namespace}/deployments"
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    spec = {"selector": {"matchLabels": {"a": "b"}}, "template": template}
    last = {"kubectl.kubernetes.io/last-applied-configuration": '{"apiVersion":"apps/v1","spec":{"replicas":1}}'}
    server.create(deployments, {"metadata": {"name": "d", "annotations": last}, "spec": {**spec, "replicas": 1}})

    def applied(replicas: int | None, query: str = "") -> Reply:
        scale = {"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"labels": {"x": "y"}}, "spec": {}}
        body = {**scale, "spec": {"replicas": replicas}}
        headers = {"content-type": "application/apply-patch+yaml"}
        return server.request("PATCH", f"{deployments}/d/scale?fieldManager=kubectl{query}", body, headers=headers)

    assert ".spec.replicas" in applied(2).message, "what kubectl keeps in an annotation is the object's, not the Scale's"
    assert applied(2, "&force=true&dryRun=All").json["spec"] == {"replicas": 2}
    assert server.request("GET", f"{deployments}/d").json["spec"]["replicas"] == 1
    assert applied(2, "&force=true").code == 200
    assert applied(3).json["spec"] == {"replicas": 3}
    found = server.request("GET", f"{deployments}/d").json
    assert (found["spec"]["replicas"], found["metadata"].get("labels")) == (3, None)
    assert found["metadata"]["annotations"] == last
    (entry,) = [entry for entry in found["metadata"]["managedFields"] if entry.get("subresource") == "scale"]
    assert (entry["manager"], entry["operation"], entry["apiVersion"]) == ("kubectl", "Apply", "apps/v1")
    assert entry["fieldsV1"] == {"f:spec": {"f:replicas": {}}}
    for wrong in (None, -1, "3"):
        assert (applied(wrong).code, "spec.replicas" in applied(wrong).message) == (422, True)  # type: ignore[arg-type]
    assert server.request("GET", f"{deployments}/d").json == found


def test_status_is_apart(server: RunningServer, namespace: str) -> None:
    pods = f"/api/v1/namespaces/{namespace}/pods"
    pod = server.create(
        pods, {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}, "status": {"phase": "X"}}
    )
    assert pod.get("status", {}).get("phase") != "X"
    done = server.request(
        "PATCH", f"{pods}/p/status", {"status": {"phase": "Running"}, "metadata": {"labels": {"a": "b"}}}, headers=_MERGE
    )
    assert done.json["status"]["phase"] == "Running"
    spec = server.request(
        "PATCH", f"{pods}/p", {"status": {"phase": "Failed"}, "metadata": {"labels": {"c": "d"}}}, headers=_MERGE
    ).json
    assert spec["status"]["phase"] == "Running"
    assert spec["metadata"]["labels"]["c"] == "d"
    assert server.request("GET", f"{pods}/p/status").json["status"]["phase"] == "Running"


def test_binding_and_eviction(server: RunningServer, namespace: str) -> None:
    pods = f"/api/v1/namespaces/{namespace}/pods"
    server.create(pods, {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}})
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n1"}}
    dry = server.request("POST", f"{pods}/p/binding?dryRun=All", binding)
    assert dry.code == 201
    assert "nodeName" not in server.request("GET", f"{pods}/p").json["spec"]
    bound = server.request("POST", f"{pods}/p/binding", binding)
    assert (bound.code, bound.json["kind"], bound.json["status"]) == (201, "Status", "Success")
    assert server.request("GET", f"{pods}/p").json["spec"]["nodeName"] == "n1"
    again = server.request("POST", f"{pods}/p/binding", binding)
    assert (again.code, again.reason) == (409, "Conflict")
    assert server.request("POST", f"{pods}/p/binding", {**binding, "target": {"kind": "Pod", "name": "x"}}).code == 422
    assert server.request("POST", f"{pods}/p/binding", {**binding, "metadata": {"name": "q"}}).code == 400
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": "p"},
        "deleteOptions": {"gracePeriodSeconds": 0},
    }
    assert server.request("POST", f"{pods}/p/eviction", eviction).code == 201
    assert server.request("GET", f"{pods}/p").code == 404


def test_a_budget_forbids_eviction(server: RunningServer, namespace: str) -> None:
    pods = f"/api/v1/namespaces/{namespace}/pods"
    spec = {"containers": [{"name": "c", "image": "i"}], "nodeName": "n1"}
    server.create(pods, {"metadata": {"name": "p", "labels": {"a": "b"}}, "spec": spec})
    server.request("PATCH", f"{pods}/p/status", {"status": {"phase": "Running"}}, headers=_MERGE)
    budget = {"metadata": {"name": "b"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"a": "b"}}}}
    server.create(f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets", budget)
    refused = server.request("POST", f"{pods}/p/eviction", {"metadata": {"name": "p"}})
    assert (refused.code, refused.reason) == (429, "TooManyRequests")
    # As in Kubernetes. With Retry-After clients would try again by themselves, and `kubectl drain` would not say why it waits.
    assert "retry-after" not in refused.headers
    assert [cause["reason"] for cause in refused.json["details"]["causes"]] == ["DisruptionBudget"]


def test_tables_and_partial_metadata(server: RunningServer, maps: str) -> None:
    server.create(maps, _config_map("c", data={"a": "1"}))
    table = server.request("GET", maps, headers={"accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}).json
    assert (table["kind"], table["apiVersion"]) == ("Table", "meta.k8s.io/v1")
    assert [column["name"] for column in table["columnDefinitions"]] == ["Name", "Data", "Age"]
    assert table["rows"][0]["cells"][:2] == ["c", 1]
    assert table["rows"][0]["object"]["kind"] == "PartialObjectMetadata"
    whole = server.request(
        "GET", f"{maps}/c?includeObject=Object", headers={"accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
    )
    assert whole.json["rows"][0]["object"]["data"] == {"a": "1"}
    partial = {"accept": "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"}
    listed = server.request("GET", maps, headers=partial).json
    assert listed["kind"] == "PartialObjectMetadataList"
    assert "data" not in listed["items"][0]


@pytest.mark.parametrize("name", [pytest.param("", id="a list"), pytest.param("/big-1", id="one object")])
def test_big_answers_are_compressed(server: RunningServer, maps: str, name: str) -> None:
    for n in range(3):
        server.create(maps, _config_map(f"big-{n}", data={"text": "x" * 200_000}))
    reply = server.request("GET", maps + name, headers={"accept-encoding": "gzip"})
    assert reply.headers["content-encoding"] == "gzip"
    assert len(reply.body) < 50_000
    head = server.request("HEAD", maps + name, headers={"accept-encoding": "gzip"})
    assert (head.code, head.headers["content-encoding"], head.body) == (200, "gzip", b"")
    plain = server.request("GET", maps + name)
    assert "content-encoding" not in plain.headers
    assert gzip.decompress(reply.body) == plain.body


def test_warnings(server: RunningServer, namespace: str) -> None:
    pods = f"/api/v1/namespaces/{namespace}/pods"
    pod = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}], "contaimers": []}}
    warned = server.request("POST", f"{pods}?dryRun=All", pod)
    assert warned.headers.get_all("warning") == ['299 - "unknown field \\"spec.contaimers\\""']
    ignored = server.request("POST", f"{pods}?dryRun=All&fieldValidation=Ignore", pod)
    assert ignored.headers.get_all("warning") is None
    strict = server.request("POST", f"{pods}?dryRun=All&fieldValidation=Strict", pod)
    assert (strict.code, strict.reason) == (400, "BadRequest")
    assert 'unknown field "spec.contaimers"' in strict.message
    twice = b'{"metadata":{"name":"p","name":"q"},"data":{}}'
    maps = f"/api/v1/namespaces/{namespace}/configmaps?dryRun=All"
    assert server.request("POST", maps, twice).headers["warning"] == '299 - "duplicate field \\"metadata.name\\""'
    assert server.request("POST", f"{maps}&fieldValidation=Strict", twice).code == 400


def test_apply_creates_with_201(server: RunningServer, maps: str) -> None:
    headers = {"content-type": "application/apply-patch+yaml"}
    body = b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: {a: b}\n"
    assert server.request("PATCH", f"{maps}/c", body, headers=headers).code == 422  # no field manager
    assert server.request("PATCH", f"{maps}/c?fieldManager=me", body, headers=headers).code == 201
    assert server.request("PATCH", f"{maps}/c?fieldManager=me", body, headers=headers).code == 200
    conflict = server.request("PATCH", f"{maps}/c?fieldManager=you", body.replace(b"a: b", b"a: c"), headers=headers)
    assert (conflict.code, conflict.reason) == (409, "Conflict")
    assert conflict.json["details"]["causes"][0]["reason"] == "FieldManagerConflict"


def test_field_manager_comes_from_the_user_agent(server: RunningServer, maps: str) -> None:
    made = server.request("POST", maps, _config_map("c", data={"a": "1"}), headers={"user-agent": "my-tool/1.2 (linux)"}).json
    assert [entry["manager"] for entry in made["metadata"]["managedFields"]] == ["my-tool"]


def test_scale(server: RunningServer, namespace: str) -> None:
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments"
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    spec = {"replicas": 1, "selector": {"matchLabels": {"a": "b"}}, "template": template}
    server.create(path, {"metadata": {"name": "d"}, "spec": spec})
    scale = server.request("GET", f"{path}/d/scale").json
    assert (scale["kind"], scale["apiVersion"], scale["spec"]) == ("Scale", "autoscaling/v1", {"replicas": 1})
    assert server.request("PUT", f"{path}/d/scale", {**scale, "spec": {"replicas": 4}}).json["spec"] == {"replicas": 4}
    patched = server.request("PATCH", f"{path}/d/scale", {"spec": {"replicas": 6}}, headers=_MERGE)
    assert patched.json["spec"] == {"replicas": 6}
    assert server.request("GET", f"{path}/d").json["spec"]["replicas"] == 6
    assert server.request("PUT", f"{path}/d/scale", {**scale, "spec": {"replicas": 4}}).code == 409
    assert server.request("PUT", f"{path}/d/scale", {"spec": {"replicas": -1}}).code == 422
    for body in (
        {"metadata": [None]},
        {"spec": [6]},
        {"spec": "6"},
        {"metadata": {"resourceVersion": 7}},
        {"kind": "Deployment"},
    ):
        for method in ("PUT", "PATCH"):
            reply = server.request(method, f"{path}/d/scale", body, headers=_MERGE if method == "PATCH" else {})
            assert (reply.code, reply.reason) == (400, "BadRequest"), (method, body, reply.body)
    assert server.request("GET", f"{path}/d/scale").json["spec"] == {"replicas": 6}


def test_every_answer_has_an_audit_id(server: RunningServer) -> None:
    for path in ("/api/v1/pods", "/healthz", "/nowhere", "/api/v1/namespaces/default/pods/nobody"):
        assert server.request("GET", path).headers["audit-id"]


def test_priority_and_account_admission(server: RunningServer, namespace: str) -> None:
    pods = f"/api/v1/namespaces/{namespace}/pods"
    spec = {"containers": [{"name": "c", "image": "i"}]}
    server.create("/apis/scheduling.k8s.io/v1/priorityclasses", {"metadata": {"name": f"high-{namespace}"}, "value": 7})
    made = server.create(pods, {"metadata": {"name": "p"}, "spec": {**spec, "priorityClassName": f"high-{namespace}"}})
    assert (made["spec"]["priority"], made["spec"]["preemptionPolicy"]) == (7, "PreemptLowerPriority")
    assert made["spec"]["serviceAccountName"] == "default"
    unknown = server.request("POST", pods, {"metadata": {"name": "q"}, "spec": {**spec, "priorityClassName": "nope"}})
    assert (unknown.code, unknown.message) == (403, 'pods "q" is forbidden: no PriorityClass with name nope was found')
    forged = server.request("POST", pods, {"metadata": {"name": "q"}, "spec": {**spec, "priority": 99}})
    assert forged.code == 403
    account = server.request("POST", pods, {"metadata": {"name": "q"}, "spec": {**spec, "serviceAccountName": "nobody"}})
    assert 'serviceaccount "nobody" not found' in account.message
    huge = {"metadata": {"name": "huge"}, "value": 2_000_000_000}
    assert server.request("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", huge).code == 422


def test_namespaces_are_furnished(server: RunningServer, namespace: str) -> None:
    for kind, name in (("serviceaccounts", "default"), ("configmaps", "kube-root-ca.crt")):
        with server.watch(f"/api/v1/namespaces/{namespace}/{kind}?fieldSelector=metadata.name%3D{name}") as watch:
            assert watch.next()["object"]["metadata"]["name"] == name
    ca = server.request("GET", f"/api/v1/namespaces/{namespace}/configmaps/kube-root-ca.crt").json["data"]["ca.crt"]
    assert ca == server.server.ca_path.read_text()
