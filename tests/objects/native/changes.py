"""Updates that a server refuses, and some that it takes."""

from __future__ import annotations

from tests.objects.native.case import CLAIM, LABELS, MAIN, PV, RBAC, ROLE_REF, TEMPLATE, Change, container, pod, spec

CHANGES = [
    Change("pod labels", "", "Pod", pod(), {"metadata": {"labels": {"a": "b"}}, **pod()}),
    Change("pod image", "", "Pod", pod(), container(image="busybox:2")),
    Change("pod command", "", "Pod", pod(), container(command=["x"]), "spec"),
    Change("pod node", "", "Pod", pod(), pod(nodeName="n"), "spec"),
    Change("pod container added", "", "Pod", pod(), spec(containers=[MAIN, {"name": "b", "image": "x"}]), "spec.containers"),
    Change("pod toleration added", "", "Pod", pod(), pod(tolerations=[{"key": "a", "operator": "Exists"}])),
    Change(
        "pod toleration removed", "", "Pod", pod(tolerations=[{"key": "a", "operator": "Exists"}]), pod(), "spec.tolerations"
    ),
    Change("pod deadline set", "", "Pod", pod(), pod(activeDeadlineSeconds=10)),
    Change(
        "pod deadline raised",
        "",
        "Pod",
        pod(activeDeadlineSeconds=10),
        pod(activeDeadlineSeconds=20),
        "spec.activeDeadlineSeconds",
    ),
    Change("pod deadline lowered", "", "Pod", pod(activeDeadlineSeconds=10), pod(activeDeadlineSeconds=5)),
    Change("pod restart policy", "", "Pod", pod(), pod(restartPolicy="Never"), "spec"),
    Change("gate removed", "", "Pod", pod(schedulingGates=[{"name": "a.b/c"}]), pod(), "", "1.26"),
    Change("gate added", "", "Pod", pod(), pod(schedulingGates=[{"name": "a.b/c"}]), "spec.schedulingGates[0]", "1.26"),
    Change(
        "gated pod narrowed",
        "",
        "Pod",
        pod(schedulingGates=[{"name": "a.b/c"}], nodeSelector={"a": "b"}),
        pod(schedulingGates=[{"name": "a.b/c"}], nodeSelector={"a": "b", "c": "d"}),
        "",
        "1.27",
    ),
    Change(
        "gated pod widened",
        "",
        "Pod",
        pod(schedulingGates=[{"name": "a.b/c"}], nodeSelector={"a": "b"}),
        pod(schedulingGates=[{"name": "a.b/c"}]),
        "spec",
        "1.27",
    ),
    Change("config", "", "ConfigMap", {"data": {"a": "1"}}, {"data": {"a": "2"}}),
    Change(
        "frozen config",
        "",
        "ConfigMap",
        {"data": {"a": "1"}, "immutable": True},
        {"data": {"a": "2"}, "immutable": True},
        "data",
    ),
    Change("frozen config thawed", "", "ConfigMap", {"immutable": True}, {}, "immutable"),
    Change(
        "frozen config labels", "", "ConfigMap", {"immutable": True}, {"immutable": True, "metadata": {"labels": {"a": "b"}}}
    ),
    Change("secret type", "", "Secret", {}, {"type": "mine"}, "type"),
    Change(
        "frozen secret",
        "",
        "Secret",
        {"data": {"a": "YQ=="}, "immutable": True},
        {"data": {"a": "Yg=="}, "immutable": True},
        "data",
    ),
    Change("service ports", "", "Service", spec(ports=[{"port": 1}]), spec(ports=[{"port": 2}]), "", "1.22"),
    Change(
        "service address",
        "",
        "Service",
        spec(ports=[{"port": 1}], clusterIP="None"),
        spec(ports=[{"port": 1}], clusterIP="10.0.0.77"),
        "spec.clusterIP",
    ),
    Change("role", RBAC, "RoleBinding", {"roleRef": ROLE_REF}, {"roleRef": {**ROLE_REF, "name": "other"}}, "roleRef"),
    Change("priority", "scheduling.k8s.io", "PriorityClass", {"value": 1}, {"value": 2}, "value"),
    Change("priority text", "scheduling.k8s.io", "PriorityClass", {"value": 1}, {"value": 1, "description": "x"}),
    Change("provisioner", "storage.k8s.io", "StorageClass", {"provisioner": "a.b/c"}, {"provisioner": "a.b/d"}, "provisioner"),
    Change("handler", "node.k8s.io", "RuntimeClass", {"handler": "runc"}, {"handler": "crun"}, "handler"),
    Change(
        "claim mode",
        "",
        "PersistentVolumeClaim",
        {"spec": CLAIM},
        {"spec": {**CLAIM, "accessModes": ["ReadWriteMany"]}},
        "spec",
    ),
    Change(
        "volume source", "", "PersistentVolume", {"spec": PV}, {"spec": {**PV, "hostPath": {"path": "/y"}}}, "spec.hostPath"
    ),
    Change("volume policy", "", "PersistentVolume", {"spec": PV}, {"spec": {**PV, "persistentVolumeReclaimPolicy": "Delete"}}),
    Change(
        "deployment selector",
        "apps",
        "Deployment",
        spec(selector=LABELS, template=TEMPLATE, replicas=0),
        spec(
            selector={"matchLabels": {"b": "c"}},
            template={**TEMPLATE, "metadata": {"labels": {"b": "c"}}},
            replicas=0,
        ),
        "spec.selector",
    ),
    Change(
        "deployment replicas",
        "apps",
        "Deployment",
        spec(selector=LABELS, template=TEMPLATE, replicas=0),
        spec(selector=LABELS, template=TEMPLATE, replicas=0, minReadySeconds=3),
    ),
    Change(
        "stateful set service",
        "apps",
        "StatefulSet",
        spec(selector=LABELS, template=TEMPLATE, serviceName="s", replicas=0),
        spec(selector=LABELS, template=TEMPLATE, serviceName="t", replicas=0),
        "spec.serviceName",
    ),
    Change(
        "quota scopes",
        "",
        "ResourceQuota",
        spec(hard={"pods": 1}),
        spec(hard={"pods": 1}, scopes=["BestEffort"]),
        "spec.scopes",
    ),
    Change("quota", "", "ResourceQuota", spec(hard={"pods": 1}), spec(hard={"pods": 2})),
]
