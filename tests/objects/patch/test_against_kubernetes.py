"""The same requests to a real kube-apiserver and to the functions here must leave the same objects and the same owners."""

from __future__ import annotations

import copy
import json
import ssl
import urllib.error
import urllib.request
from typing import Any

import pytest
from tests.objects.patch.strategies import SCHEMA

from muster.bench.kubernetes import ControlPlane
from muster.objects.kinds.apps import Deployment
from muster.objects.patch import apply_json_patch, apply_merge_patch, apply_server_side, apply_strategic, track_update
from muster.objects.patch.fieldset import path_text, paths
from muster.objects.schema import schema_of
from muster.objects.status import Conflict, Raw, from_status

pytestmark = [pytest.mark.kubernetes]

GROUP = "patches.muster.test"
PATH = f"/apis/{GROUP}/v1/namespaces/default/things"
JSON_PATCH, MERGE_PATCH = "application/json-patch+json", "application/merge-patch+json"
STRATEGIC, APPLY = "application/strategic-merge-patch+json", "application/apply-patch+yaml"


class Api:
    """Plain requests, so that nothing of ours stands between the test and the server."""

    def __init__(self, plane: ControlPlane) -> None:
        self._url = plane.url
        self._token = plane.admin_token
        self._context = ssl.create_default_context(cafile=str(plane.ca_path))

    def send(self, method: str, path: str, body: Any = None, content_type: str = "application/json") -> tuple[int, Raw]:
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": content_type}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data=data, headers=headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30, context=self._context) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)


@pytest.fixture(scope="module")
def api(kubernetes: ControlPlane) -> Api:
    api = Api(kubernetes)
    crd = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"things.{GROUP}", "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"}},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {"plural": "things", "kind": "Thing"},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": _for_crd(SCHEMA)}}],
        },
    }
    code, answer = api.send("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd)
    assert code in (201, 409), answer
    # Established is not enough: the server takes the schema into apply only when its OpenAPI document is rebuilt.
    for _ in range(600):
        code, answer = api.send("GET", "/openapi/v2")
        if any(GROUP in path for path in answer.get("paths", {})):
            return api
    pytest.fail("the new kind never appeared in the server's OpenAPI document")


def _for_crd(schema: Raw) -> Raw:
    """The schema without what only built-in kinds may say, and with the required keys that a CRD must declare."""
    out = {key: value for key, value in schema.items() if not key.startswith("x-kubernetes-patch")}
    for key, inner in list(out.items()):
        if isinstance(inner, dict):
            out[key] = _for_crd(inner)
    keys = out.get("x-kubernetes-list-map-keys")
    if keys:
        required = [key for key in keys if "default" not in out["items"]["properties"][key]]
        out["items"] = {**out["items"], "required": required}
    return out


def thing(name: str, spec: Raw | None, **metadata: Any) -> Raw:
    raw: Raw = {"apiVersion": f"{GROUP}/v1", "kind": "Thing", "metadata": {"name": name, **metadata}}
    if spec is not None:
        raw["spec"] = spec
    return raw


def owners(raw: Raw) -> dict[str, set[str]]:
    return {
        f"{entry['manager']}/{entry['operation']}": {path_text(path) for path in paths(entry["fieldsV1"])}
        for entry in raw["metadata"].get("managedFields", [])
    }


Step = tuple[str, str, Any]
SEQUENCES: dict[str, list[Step]] = {
    "one applier changes its mind": [
        ("apply", "one", {"n": 1, "s": "x", "map": {"k": "x"}, "items": [{"name": "A", "v": 1}, {"name": "B"}], "set": ["x"]}),
        ("apply", "one", {"n": 2, "map": {"k": "y", "l": "z"}, "items": [{"name": "B", "w": 1}], "set": ["x", "y"]}),
        ("apply", "one", {"n": 2, "map": {"k": "y", "l": "z"}, "items": [{"name": "B", "w": 1}], "set": ["x", "y"]}),
    ],
    "two appliers share": [
        ("apply", "one", {"n": 1, "items": [{"name": "A", "v": 1}], "map": {"k": "x"}, "set": ["x"]}),
        ("apply", "two", {"n": 1, "items": [{"name": "A", "w": 1}, {"name": "B"}], "map": {"l": "x"}, "set": ["x", "y"]}),
        ("apply", "one", {"n": 1, "items": [{"name": "C"}], "map": {"k": "y"}}),
        # Never the last of a list or map: 1.20 leaves null there, and then refuses its own result. Here it goes.
        ("apply", "two", {"n": 1, "map": {"l": "x"}, "set": ["y"]}),
    ],
    "conflicts and force": [
        ("apply", "one", {"n": 1, "s": "x", "list": ["x"], "whole": {"k": "x"}, "items": [{"name": "A", "v": 1}]}),
        ("apply", "two", {"n": 2, "s": "x", "list": ["y"], "whole": {"k": "x", "l": "y"}, "items": [{"name": "A", "v": 2}]}),
        ("force", "two", {"n": 2, "s": "x", "list": ["y"], "whole": {"k": "x", "l": "y"}, "items": [{"name": "A", "v": 2}]}),
        ("apply", "one", {"n": 1, "s": "x"}),
        ("apply", "one", {"s": "x"}),
    ],
    "edits between applies": [
        ("apply", "one", {"n": 1, "s": "x", "items": [{"name": "A", "v": 1}], "ports": [{"port": 80, "protocol": "TCP"}]}),
        ("merge", "editor", {"spec": {"n": 5, "map": {"k": "x"}, "items": [{"name": "A", "v": 1, "w": 2}, {"name": "B"}]}}),
        ("apply", "one", {"n": 1, "s": "x", "items": [{"name": "A", "v": 1}]}),
        ("json", "patcher", [{"op": "replace", "path": "/spec/s", "value": "z"}]),
        ("json", "patcher", [{"op": "add", "path": "/spec/list", "value": ["x"]}]),
        ("merge", "editor", {"spec": {"map": {"k": None, "l": "y"}, "list": None}}),
        ("put", "writer", {"n": 5, "items": [{"name": "B", "v": 1}]}),
        ("force", "one", {"n": 1, "s": "x"}),
    ],
    "created, then applied": [
        ("post", "creator", {"n": 1, "s": "x", "map": {"k": "x"}, "items": [{"name": "A"}]}),
        ("apply", "one", {"n": 1, "map": {"l": "y"}, "items": [{"name": "B"}]}),
        ("apply", "one", {"n": 2}),
        ("apply", "one", {"map": {"l": "y"}}),
        ("put", "creator", {"map": {"l": "z"}}),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", SEQUENCES)
def test_apply_and_updates(api: Api, name: str) -> None:
    key = name.replace(" ", "-").replace(",", "")
    ours: Raw | None = None
    theirs: Raw | None = None
    for number, (verb, manager, payload) in enumerate(SEQUENCES[name]):
        code, answer = _send(api, key, verb, manager, payload, theirs)
        conflicts: set[str] | None = None
        try:
            ours = _do(ours, key, verb, manager, payload)
        except Conflict as conflict:
            conflicts = {cause.field for cause in conflict.causes}
        where = f"step {number}: {verb} by {manager}"
        if conflicts is not None:
            assert code == 409, where
            # The server repeats some paths in place of others when there are several; every one that it names must be ours too.
            assert {cause.field for cause in from_status(answer).causes} <= conflicts, where
            continue
        assert code in (200, 201), f"{where}: {answer}"
        theirs = answer
        assert ours is not None
        assert ours.get("spec") == theirs.get("spec"), where
        assert owners(ours) == owners(theirs), where
    api.send("DELETE", f"{PATH}/{key}")


def _send(api: Api, key: str, verb: str, manager: str, payload: Any, live: Raw | None) -> tuple[int, Raw]:
    target, by = f"{PATH}/{key}", f"fieldManager={manager}"
    match verb:
        case "apply" | "force":
            force = "&force=true" if verb == "force" else ""
            return api.send("PATCH", f"{target}?{by}{force}", thing(key, payload), APPLY)
        case "merge":
            return api.send("PATCH", f"{target}?{by}", payload, MERGE_PATCH)
        case "json":
            return api.send("PATCH", f"{target}?{by}", payload, JSON_PATCH)
        case "post":
            return api.send("POST", f"{PATH}?{by}", thing(key, payload))
    assert live is not None
    return api.send("PUT", f"{target}?{by}", {**live, "spec": payload})


def _do(live: Raw | None, key: str, verb: str, manager: str, payload: Any) -> Raw:
    if verb in ("apply", "force"):
        return apply_server_side(live, thing(key, payload), manager, SCHEMA, 1e9, verb == "force")
    if live is None:
        return track_update(None, thing(key, payload), manager, SCHEMA, 1e9)
    match verb:
        case "merge":
            new = apply_merge_patch(live, payload)
        case "json":
            new = apply_json_patch(live, payload)
        case _:
            new = {**live, "spec": payload}
    return track_update(live, new, manager, SCHEMA, 1e9)


TEMPLATE: Raw = {
    "metadata": {"labels": {"app": "web"}},
    "spec": {
        "containers": [
            {"name": "a", "image": "i:1", "env": [{"name": "X", "value": "1"}, {"name": "Y", "value": "2"}]},
            {"name": "b", "image": "i:1", "ports": [{"containerPort": 80, "name": "http"}]},
        ],
        "volumes": [{"name": "v", "emptyDir": {}}, {"name": "w", "hostPath": {"path": "/tmp"}}],
        "tolerations": [{"key": "k", "operator": "Exists"}],
        "imagePullSecrets": [{"name": "s"}],
        "nodeSelector": {"d": "e"},
    },
}
PATCHES: dict[str, Raw] = {
    "an image": {"spec": {"containers": [{"name": "b", "image": "i:2"}]}},
    "a new container": {"spec": {"containers": [{"name": "c", "image": "i:1"}]}},
    "a container deleted": {"spec": {"containers": [{"name": "a", "$patch": "delete"}]}},
    "containers replaced": {"spec": {"containers": [{"name": "z", "image": "i:1"}, {"$patch": "replace"}]}},
    "containers reordered": {"spec": {"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}]}},
    "env changed, added, deleted": {
        "spec": {"containers": [{"name": "a", "env": [
            {"name": "Y", "value": "3"}, {"name": "Z", "value": "4"}, {"name": "X", "$patch": "delete"}]}]}
    },
    "a volume's kind changed": {"spec": {"volumes": [{"name": "w", "$retainKeys": ["name", "emptyDir"], "emptyDir": {}}]}},
    "tolerations are replaced": {"spec": {"tolerations": [{"key": "l", "operator": "Exists"}]}},
    "a map merged": {"spec": {"nodeSelector": {"d": None, "f": "g"}}, "metadata": {"labels": {"tier": "front"}}},
    "a map replaced": {"spec": {"nodeSelector": {"$patch": "replace", "f": "g"}}},
    "pull secrets": {"spec": {"imagePullSecrets": [{"name": "t"}, {"name": "s", "$patch": "delete"}]}},
    "a field removed": {"spec": {"nodeSelector": None}},
}  # fmt: skip


@pytest.mark.parametrize("name", PATCHES)
def test_strategic_merge(api: Api, name: str) -> None:
    """A PodTemplate holds any pod spec and nobody acts on it. The server fills in defaults, so it may have more than we do."""
    schema = schema_of(Deployment)["properties"]["spec"]
    target = "/api/v1/namespaces/default/podtemplates"
    key = "strategic-" + name.replace(" ", "-").replace(",", "").replace("'", "")
    code, live = api.send(
        "POST", target, {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": key}, "template": TEMPLATE}
    )
    assert code == 201, live
    code, theirs = api.send("PATCH", f"{target}/{key}", {"template": PATCHES[name]}, STRATEGIC)
    assert code == 200, theirs
    before = copy.deepcopy(live)
    ours = apply_strategic(live, {"template": PATCHES[name]}, schema)
    assert live == before
    assert _missing(ours["template"], theirs["template"]) == []
    api.send("DELETE", f"{target}/{key}")


def _missing(ours: Any, theirs: Any, path: str = "") -> list[str]:
    """Where `ours` has something that `theirs` lacks or has otherwise; and lists of another length."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return [problem for key, value in ours.items() for problem in _missing(value, theirs.get(key), f"{path}.{key}")]
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        pairs = enumerate(zip(ours, theirs, strict=True))
        return [problem for index, (a, b) in pairs for problem in _missing(a, b, f"{path}[{index}]")]
    return [] if ours == theirs else [f"{path}: {ours!r} but {theirs!r}"]
