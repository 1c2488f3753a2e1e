"""Pods as they are made in another cluster, and what comes back: `muster.agent.runtimes.kubernetes_pods` and `_plan`."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.agent.config import Kubernetes as Settings
from muster.agent.runtimes.kubernetes_plan import Step, decide
from muster.agent.runtimes.kubernetes_pods import (
    CARRIER,
    FINALIZER,
    FROM,
    NAME,
    Carrier,
    has_ended,
    merge,
    origin,
    remote_name,
    remote_pod,
    remote_source,
    source_name,
    sources_of,
    status_back,
    was_carried,
)
from muster.objects.names import validate_label_name, validate_subdomain
from muster.objects.status import Raw

NOW = 1_700_000_000.0
CARRIER_OF_N1 = Carrier(node="n1", identity="machine/abc", namespace="institution")


def a_pod(**spec: Any) -> Raw:
    container = {"name": "main", "image": "app:1", "resources": {"requests": {"cpu": "1", "kuscia.io/bandwidth": "5"}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "psi-0", "namespace": "alice", "uid": "11-22", "labels": {"a": "b"}, "annotations": {"c": "d"}},
        "spec": {"containers": [container], "nodeName": "n1", **spec},
    }


def a_copy(pod: Raw, *, phase: str = "Running", carrier: Carrier = CARRIER_OF_N1, **metadata: Any) -> Raw:
    copy = remote_pod(pod, carrier)
    copy["metadata"] |= {"uid": "99", **metadata}
    copy["status"] = {"phase": phase, "containerStatuses": [{"name": "main", "state": {"running": {}}, "ready": True}]}
    return copy


def test_what_is_of_our_cluster_is_left_out() -> None:
    pod = a_pod(
        nodeSelector={"kuscia.secretflow/namespace": "alice"},
        schedulerName="kuscia-scheduler",
        priorityClassName="high",
        priority=7,
        serviceAccountName="ours",
        affinity={"nodeAffinity": {}},
        tolerations=[
            {"key": "kuscia.secretflow/agent", "operator": "Exists"},
            {"key": "node.kubernetes.io/not-ready", "operator": "Exists"},
            {"key": "gpu", "operator": "Exists"},
        ],
        volumes=[{"name": "kube-api-access-x", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}],
        restartPolicy="Never",
    )
    pod["spec"]["containers"][0]["volumeMounts"] = [{"name": "kube-api-access-x", "mountPath": "/var/run"}]
    made = remote_pod(pod, CARRIER_OF_N1)
    assert made["spec"] == {
        "containers": [{"name": "main", "image": "app:1", "resources": {"requests": {"cpu": "1"}}, "volumeMounts": []}],
        "restartPolicy": "Never",
        "hostname": "psi-0",
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
    }
    assert made["metadata"] == {
        "name": remote_name(pod),
        "namespace": "institution",
        "labels": {
            "a": "b",
            CARRIER: CARRIER_OF_N1.label,
            "app.kubernetes.io/managed-by": "muster",
            "kuscia.secretflow/pod-uid": "11-22",
            "kuscia.secretflow/owner_namespace": "alice",
            "kuscia.secretflow/node": "n1",
        },
        "annotations": {"c": "d", FROM: "alice/psi-0", NAME: "psi-0"},
        "finalizers": [FINALIZER],
    }
    assert origin(made) == ("alice", "psi-0", "11-22")
    assert pod["spec"]["nodeName"] == "n1", "the pod itself is not touched"


def test_bandwidth_becomes_the_network_plugins() -> None:
    pod = a_pod()
    pod["metadata"]["annotations"] = {"kubernetes.io/egress-bandwidth": "20M", "muster.dev/progress": "0.5"}
    assert remote_pod(pod, CARRIER_OF_N1)["metadata"]["annotations"] == {
        "kubernetes.io/egress-bandwidth": "20M",
        FROM: "alice/psi-0",
        NAME: "psi-0",
    }
    kept = Carrier(node="n1", identity="i", namespace="x", settings=Settings(strip_bandwidth=False))
    assert remote_pod(pod, kept)["spec"]["containers"][0]["resources"]["requests"]["kuscia.io/bandwidth"] == "5"


def test_files_go_along_under_names_of_their_own() -> None:
    pod = a_pod(
        volumes=[
            {"name": "a", "configMap": {"name": "settings"}},
            {"name": "b", "secret": {"secretName": "key", "optional": True}},
            {"name": "c", "projected": {"sources": [{"configMap": {"name": "more"}}, {"secret": {"name": "key"}}]}},
            {"name": "d", "emptyDir": {}},
        ],
        imagePullSecrets=[{"name": "registry"}],
    )
    container = pod["spec"]["containers"][0]
    container["envFrom"] = [{"configMapRef": {"name": "settings"}}]
    container["env"] = [
        {"name": "X", "valueFrom": {"secretKeyRef": {"name": "key", "key": "x", "optional": True}}},
        {"name": "Y", "valueFrom": {"configMapKeyRef": {"name": "extra", "key": "x", "optional": True}}},
        {"name": "Z", "value": "z"},
    ]
    settings, key = ("ConfigMap", "settings"), ("Secret", "key")
    assert sources_of(pod) == {
        settings: False,
        key: False,
        ("ConfigMap", "more"): False,
        ("ConfigMap", "extra"): True,
        ("Secret", "registry"): False,
    }
    made = remote_pod(pod, CARRIER_OF_N1)["spec"]
    assert made["volumes"][0]["configMap"]["name"] == source_name(pod, settings)
    assert made["volumes"][1]["secret"] == {"secretName": source_name(pod, key), "optional": True}
    assert made["volumes"][2]["projected"]["sources"][1]["secret"]["name"] == source_name(pod, key)
    assert made["containers"][0]["envFrom"][0]["configMapRef"]["name"] == source_name(pod, settings)
    assert made["containers"][0]["env"][0]["valueFrom"]["secretKeyRef"]["name"] == source_name(pod, key)
    assert made["imagePullSecrets"] == [{"name": source_name(pod, ("Secret", "registry"))}]
    names = {source_name(pod, one) for one in sources_of(pod)}
    assert len(names) == 5
    copied = remote_source(pod, CARRIER_OF_N1, key, {"type": "kubernetes.io/service-account-token", "data": {"x": "eA=="}})
    assert (copied["type"], copied["data"], copied["metadata"]["name"]) == ("Opaque", {"x": "eA=="}, source_name(pod, key))


def test_containers_are_told_of_the_pod_here() -> None:
    def field(path: str) -> Raw:
        return {"name": "X", "valueFrom": {"fieldRef": {"fieldPath": path}}}

    pod = a_pod()
    paths = ("metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "status.podIP")
    pod["spec"]["containers"][0]["env"] = [field(path) for path in paths]
    made = remote_pod(pod, CARRIER_OF_N1)["spec"]["containers"][0]["env"]
    assert [one.get("value") for one in made] == ["psi-0", "alice", "11-22", "n1", None]
    assert made[-1] == field("status.podIP")
    items = [{"path": "n", "fieldRef": {"fieldPath": "metadata.name"}}]
    pod["spec"]["volumes"] = [{"name": "v", "projected": {"sources": [{"downwardAPI": {"items": items}}]}}]
    shown = remote_pod(pod, CARRIER_OF_N1)["spec"]["volumes"][0]["projected"]["sources"][0]["downwardAPI"]["items"]
    assert shown == [{"path": "n", "fieldRef": {"fieldPath": f"metadata.annotations['{NAME}']"}}]


def test_a_template_lies_over_it() -> None:
    template = {
        "metadata": {"labels": {"team": "x", CARRIER: "forged"}, "annotations": {"n": 1}, "name": "ignored"},
        "spec": {
            "nodeSelector": {"pool": "batch"},
            "runtimeClassName": "kata",
            "tolerations": [{"key": "batch", "operator": "Exists"}],
            "containers": [
                {"securityContext": {"privileged": False}},
                {"name": "main", "image": None},
                {"name": "other", "x": 1},
            ],
            "restartPolicy": "Never",
        },
    }
    carrier = Carrier(node="n1", identity="i", namespace="x", settings=Settings(template=template))
    made = remote_pod(a_pod(tolerations=[{"key": "gpu"}], restartPolicy="Always"), carrier)
    assert made["metadata"]["labels"]["team"] == "x"
    assert made["metadata"]["labels"][CARRIER] == carrier.label, "what it is found by is not the template's"
    assert made["metadata"]["annotations"]["n"] == "1"
    assert made["metadata"]["name"].startswith("psi-0-")
    spec = made["spec"]
    assert (spec["nodeSelector"], spec["runtimeClassName"], spec["restartPolicy"]) == ({"pool": "batch"}, "kata", "Never")
    assert [t["key"] for t in spec["tolerations"]] == ["gpu", "batch"]
    assert spec["containers"] == [
        {"name": "main", "resources": {"requests": {"cpu": "1"}}, "securityContext": {"privileged": False}}
    ]


@pytest.mark.parametrize(
    ("base", "over", "merged"),
    [
        pytest.param({"a": 1, "b": {"c": 2}}, {"b": {"d": 3}}, {"a": 1, "b": {"c": 2, "d": 3}}, id="objects by member"),
        pytest.param({"a": 1}, {"a": None}, {}, id="null takes away"),
        pytest.param({"dnsPolicy": "x", "args": [1]}, {"args": [2]}, {"dnsPolicy": "x", "args": [2]}, id="lists are replaced"),
        pytest.param({"env": [{"name": "A", "value": "1"}, {"name": "B"}]}, {"env": [{"name": "A", "value": "2"}]},
                     {"env": [{"name": "B"}, {"name": "A", "value": "2"}]}, id="variables by name"),
    ],
)  # fmt: skip
def test_merge(base: Raw, over: Raw, merged: Raw) -> None:
    assert merge(base, over) == merged


@given(st.from_regex(r"[a-z0-9]([a-z0-9.-]{0,250}[a-z0-9])?", fullmatch=True), st.uuids(), st.uuids())
def test_names_are_good_and_tell_pods_apart(name: str, uid: Any, other: Any) -> None:
    if ".." in name or ".-" in name or "-." in name:
        return
    pods = [{"metadata": {"name": name, "namespace": "x", "uid": str(one)}} for one in (uid, other)]
    made = remote_name(pods[0])
    assert validate_subdomain(made) == []
    assert len(made) <= 63
    assert validate_subdomain(source_name(pods[0], ("Secret", name))) == []
    assert (made == remote_name(pods[1])) == (uid == other)


@pytest.mark.parametrize("node", ["n1", "x" * 253, "a." * 60 + "b", "x" * 62 + ".y"])
def test_labels_are_good(node: str) -> None:
    carrier = Carrier(node=node, identity="i", namespace="x")
    labels = remote_pod(a_pod(), carrier)["metadata"]["labels"]
    value = labels["kuscia.secretflow/node"].replace(".", "-")
    assert validate_label_name(value) == []
    assert labels[CARRIER] != Carrier(node=node, identity="j", namespace="x").label, "another agent's are not ours"


# -- back ---------------------------------------------------------------------------------------------------------------------


def test_the_status_comes_back_and_ours_stays() -> None:
    pod = a_pod()
    pod["status"] = {
        "conditions": [{"type": "muster.dev/Waiting", "status": "False"}, {"type": "PodScheduled", "status": "True"}]
    }
    copy = a_copy(pod)
    copy["status"] |= {
        "podIP": "10.0.0.7",
        "hostIP": "192.168.0.1",
        "conditions": [{"type": "Ready", "status": "True"}, {"type": "PodScheduled", "status": "True", "x": "there"}],
    }
    status = status_back(pod, copy, NOW)
    assert (status["phase"], status["podIP"], status["containerStatuses"]) == (
        "Running",
        "10.0.0.7",
        copy["status"]["containerStatuses"],
    )
    types = {c["type"]: c for c in status["conditions"]}
    assert types.keys() == {"muster.dev/Waiting", "PodScheduled", "Ready"}
    assert "x" not in types["PodScheduled"]
    assert was_carried({**pod, "status": status})
    assert status_back({**pod, "status": status}, copy, NOW + 9)["conditions"] == status["conditions"], (
        "nothing new, nothing to say"
    )


def test_a_copy_that_finds_no_place_says_so() -> None:
    copy = a_copy(a_pod(), phase="Pending")
    copy["status"]["conditions"] = [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available"}
    ]
    status = status_back(a_pod(), copy, NOW)
    assert (status["phase"], status["reason"]) == ("Pending", "Unschedulable")
    assert "0/3 nodes are available" in status["message"]
    assert "institution/psi-0-" in status["message"]


def ended(pod: Raw, **metadata: Any) -> Raw:
    copy = a_copy(pod, phase="Succeeded", **metadata)
    copy["status"]["containerStatuses"][0]["state"] = {"terminated": {"exitCode": 0}}
    return copy


def with_status(pod: Raw, phase: str, *, carried: bool = True) -> Raw:
    conditions = [{"type": "PodScheduled", "status": "True", "reason": "Carried" if carried else ""}]
    return {
        **pod,
        "status": {"phase": phase, "conditions": conditions, "containerStatuses": [{"name": "main", "state": {"running": {}}}]},
    }


def leaving(pod: Raw, grace_s: int = 30) -> Raw:
    times = {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": grace_s}
    return {**pod, "metadata": {**pod["metadata"], **times}}


POD = a_pod()
RUNNING = with_status(POD, "Running")
FORCED: dict[str, Any] = {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 0}
ENDING: dict[str, Any] = {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 30}
CASES = [
    pytest.param(None, None, Step(), id="nothing"),
    pytest.param(POD, None, Step(create=True), id="new"),
    pytest.param(RUNNING, a_copy(POD), "status", id="runs"),
    pytest.param(RUNNING, None, "lost", id="seen before and gone: never made again"),
    pytest.param(RUNNING, a_copy(POD, **FORCED), "lost release", id="deleted there by force"),
    pytest.param(RUNNING, a_copy(POD, **ENDING), "status", id="deleted there, still ending"),
    pytest.param(RUNNING, ended(POD, **ENDING), "status release", id="deleted there, has ended"),
    pytest.param(RUNNING, ended(POD), "status", id="ended: its copy stays for the log"),
    pytest.param(with_status(POD, "Succeeded"), ended(POD), Step(), id="ended and reported"),
    pytest.param(with_status(POD, "Succeeded"), None, Step(), id="ended, and its copy is gone"),
    pytest.param(with_status(POD, "Failed"), a_copy(POD), Step(end_after_s=30), id="given up here while it runs there"),
    pytest.param(leaving(POD), None, Step(delete=True, release=True), id="deleted before it was made"),
    pytest.param(leaving(RUNNING, 5), a_copy(POD), "status end 5", id="deleted: the grace is passed on"),
    pytest.param(leaving(RUNNING, 5), a_copy(POD, **ENDING), "status end 5", id="deleted again with less grace"),
    pytest.param(leaving(RUNNING, 30), a_copy(POD, **ENDING), "status", id="deleted: waits for the end"),
    pytest.param(leaving(RUNNING, 0), a_copy(POD), "status end 1", id="deleted without grace: its end is still waited for"),
    pytest.param(leaving(RUNNING), ended(POD, **ENDING), "status delete release", id="deleted and ended"),
    pytest.param(leaving(with_status(POD, "Succeeded")), ended(POD), Step(delete=True, release=True), id="cleaned up"),
    pytest.param(None, a_copy(POD), Step(end_after_s=1), id="gone here: the copy is ended"),
    pytest.param(None, a_copy(POD, **ENDING), Step(end_after_s=1), id="gone here: its copy may not take its time"),
    pytest.param(None, ended(POD), Step(release=True), id="gone here: its copy has ended"),
]


@pytest.mark.parametrize(("pod", "copy", "expected"), CASES)
def test_what_to_do(pod: Raw | None, copy: Raw | None, expected: Step | str) -> None:
    step = decide(pod, copy, NOW)
    if isinstance(expected, Step):
        assert step == expected
        return
    said = ["lost" if step.status["reason"] == "Lost" else "status"] if step.status is not None else []
    said += [f"end {step.end_after_s}"] if step.end_after_s is not None else []
    said += [word for word in ("create", "delete", "release") if getattr(step, word)]
    assert " ".join(said) == expected
    if step.status is not None and "lost" in said:
        [container] = step.status["containerStatuses"]
        assert (step.status["phase"], container["state"]["terminated"]["exitCode"]) == ("Failed", 137)


def test_a_fenced_node_starts_nothing() -> None:
    assert decide(POD, None, NOW, may_start=False) == Step()
    assert decide(RUNNING, a_copy(POD), NOW, may_start=False).status is not None


@given(st.sampled_from([case.values for case in CASES]), st.booleans())
def test_no_step_makes_and_takes_away(case: Any, may_start: bool) -> None:
    pod, copy, _ = case
    step = decide(pod, copy, NOW, may_start=may_start)
    assert not (step.create and (copy is not None or step.delete or step.release)), "a copy is made only where there is none"
    assert not (step.release and copy is not None and not has_ended(copy)), "nothing is let go before it has ended"
    assert not (step.delete and copy is not None and not has_ended(copy)), "a pod goes only when its copy has ended"
