"""What the classes of pods and claims do to them, here and on a real kube-apiserver: one table for both."""

from __future__ import annotations

import json
from typing import Any, Protocol

import pytest

from muster.bench.kubernetes import ControlPlane
from muster.objects.status import Raw
from muster.server.class_admission import merged_tolerations
from tests.objects.test_crd_on_kubernetes import call
from tests.server.running import RunningServer

PODS = "/api/v1/namespaces/default/pods"
CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"
BEARS_ALL = {"key": "t", "operator": "Exists"}
BEARS_ONE = {"key": "u", "operator": "Equal", "value": "1", "effect": "NoSchedule"}
RUNTIMES: dict[str, Raw] = {
    "plain": {},
    "heavy": {"overhead": {"podFixed": {"cpu": "100m", "memory": "0.5Gi"}}},
    "placed": {"scheduling": {"nodeSelector": {"k": "v"}, "tolerations": [BEARS_ALL, BEARS_ONE]}},
}


class Api(Protocol):
    def __call__(self, method: str, path: str, body: Any = None) -> tuple[int, Any]: ...


@pytest.fixture(scope="module", params=["ours", pytest.param("kubernetes", marks=pytest.mark.kubernetes)])
def api(request: pytest.FixtureRequest) -> Api:
    made = (
        _ours(request.getfixturevalue("server")) if request.param == "ours" else _theirs(request.getfixturevalue("kubernetes"))
    )
    for name, rest in RUNTIMES.items():
        made("POST", "/apis/node.k8s.io/v1/runtimeclasses", {"metadata": {"name": name}, "handler": "runc", **rest})
    for name, can_grow in (("growing", True), ("fixed", False)):
        body = {"metadata": {"name": name}, "provisioner": "a.b/c", "allowVolumeExpansion": can_grow}
        made("POST", "/apis/storage.k8s.io/v1/storageclasses", body)
    return made


def _ours(server: RunningServer) -> Api:
    def send(method: str, path: str, body: Any = None) -> tuple[int, Any]:
        reply = server.request(method, path, body)
        return reply.code, reply.json

    return send


def _theirs(plane: ControlPlane) -> Api:
    return lambda method, path, body=None: call(plane, method, path, body)


@pytest.mark.parametrize(
    ("spec", "filled"),
    [
        pytest.param({"runtimeClassName": "plain"}, {}, id="nothing to fill in"),
        pytest.param({"runtimeClassName": "heavy"}, {"overhead": {"cpu": "100m", "memory": "512Mi"}}, id="overhead"),
        pytest.param(
            {"runtimeClassName": "heavy", "overhead": {"cpu": "0.1", "memory": "512Mi"}},
            {"overhead": {"cpu": "100m", "memory": "512Mi"}},
            id="the same overhead",
        ),
        pytest.param(
            {"runtimeClassName": "placed"},
            {"nodeSelector": {"k": "v"}, "tolerations": [BEARS_ALL, BEARS_ONE]},
            id="nodes and taints",
        ),
        pytest.param(
            {"runtimeClassName": "placed", "nodeSelector": {"a": "b", "k": "v"}, "tolerations": [{**BEARS_ALL, "key": "z"}]},
            {"nodeSelector": {"a": "b", "k": "v"}, "tolerations": [{**BEARS_ALL, "key": "z"}, BEARS_ALL, BEARS_ONE]},
            id="besides its own",
        ),
        pytest.param(
            {"runtimeClassName": "placed", "tolerations": [{**BEARS_ALL, "effect": "NoSchedule"}, BEARS_ONE]},
            {"nodeSelector": {"k": "v"}, "tolerations": [BEARS_ONE, BEARS_ALL]},
            id="tolerations that others cover",
        ),
    ],
)
def test_a_pod_gets_what_its_runtime_class_says(api: Api, spec: Raw, filled: Raw) -> None:
    code, made = api("POST", f"{PODS}?dryRun=All", _pod(spec))
    assert code == 201, made
    found = {key: made["spec"][key] for key in ("overhead", "nodeSelector") if made["spec"].get(key)}
    own = [one for one in made["spec"].get("tolerations", ()) if not one["key"].startswith("node.kubernetes.io/")]
    assert ({**found, "tolerations": own} if own else found) == filled


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        pytest.param({"runtimeClassName": "none"}, 'pod rejected: RuntimeClass "none" not found', id="not there"),
        pytest.param({"overhead": {"cpu": "1"}}, "set without corresponding RuntimeClass", id="overhead without a class"),
        pytest.param({"runtimeClassName": "plain", "overhead": {}}, "set without corresponding", id="class without overhead"),
        pytest.param({"runtimeClassName": "heavy", "overhead": {"cpu": "1"}}, "doesn't match RuntimeClass's", id="another"),
        pytest.param(
            {"runtimeClassName": "placed", "nodeSelector": {"k": "w"}},
            "conflict: runtimeClass.scheduling.nodeSelector[k] = v; pod.spec.nodeSelector[k] = w",
            id="other nodes",
        ),
    ],
)
def test_a_pod_against_its_runtime_class_is_refused(api: Api, spec: Raw, why: str) -> None:
    code, answer = api("POST", f"{PODS}?dryRun=All", _pod(spec))
    assert (code, answer["reason"]) == (403, "Forbidden"), answer
    assert answer["message"].startswith('pods "case" is forbidden: ')
    assert why in answer["message"]


def _pod(spec: Raw) -> Raw:
    return {"metadata": {"name": "case"}, "spec": {"containers": [{"name": "main", "image": "busybox:1.36"}], **spec}}


@pytest.mark.parametrize(("name", "code"), [("growing", 200), ("fixed", 403), ("", 403)])
def test_a_bound_claim_grows_where_its_class_allows_it(api: Api, name: str, code: int) -> None:
    own = f"of-{name or 'none'}"
    claim = {
        "metadata": {"name": own},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
            "storageClassName": name,
        },
    }
    path = f"{CLAIMS}/{own}"
    made_code, made = api("POST", CLAIMS, claim)
    assert made_code == 201, made
    bound_code, bound = api("PUT", f"{path}/status", {**made, "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}}})
    assert bound_code == 200, bound
    larger = json.loads(json.dumps(bound).replace('"storage": "1Gi"', '"storage": "2Gi"'))
    grown_code, grown = api("PUT", f"{path}?dryRun=All", larger)
    assert grown_code == code, grown
    api("PUT", path, {**bound, "metadata": {**bound["metadata"], "finalizers": []}})
    api("DELETE", path)


def test_merging_tolerations() -> None:
    minute = {"key": "t", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60}
    hour = {**minute, "tolerationSeconds": 3600}
    anything = {"operator": "Exists"}
    bare = {"key": "u", "value": "1", "effect": "NoSchedule"}
    assert merged_tolerations([minute, hour]) == [hour]
    assert merged_tolerations([hour, {**hour}]) == [hour]
    assert merged_tolerations([minute, BEARS_ONE, anything]) == [anything]
    assert merged_tolerations([bare, BEARS_ONE]) == [bare]
    assert merged_tolerations([BEARS_ONE, {**BEARS_ONE, "value": "2"}]) == [BEARS_ONE, {**BEARS_ONE, "value": "2"}]
    assert merged_tolerations([BEARS_ALL, {**BEARS_ONE, "operator": "Exists"}]) == [
        BEARS_ALL,
        {**BEARS_ONE, "operator": "Exists"},
    ]
