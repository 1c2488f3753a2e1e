"""Objects with what means "unset" in the Go types of Kubernetes' own kinds: its server puts the default in its place."""

from __future__ import annotations

from tests.objects.native.case import CLAIM, LABELS, PV, RBAC, TEMPLATE, spec

_EMPTY_CONTAINER = {
    "name": "c",
    "image": "x:1",
    "imagePullPolicy": "",
    "terminationMessagePath": "",
    "terminationMessagePolicy": "",
    "ports": [{"containerPort": 80, "protocol": ""}],
    "livenessProbe": {"httpGet": {"port": 80, "path": "", "scheme": ""}},
    "env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name", "apiVersion": ""}}}],
}
_EMPTY_POD = {"restartPolicy": "", "dnsPolicy": "", "schedulerName": "", "containers": [_EMPTY_CONTAINER]}
_EMPTY_TEMPLATE = {"metadata": TEMPLATE["metadata"], "spec": _EMPTY_POD}

EMPTY = [
    ("", "Pod", {"spec": _EMPTY_POD}),
    ("", "Service", spec(type="", sessionAffinity="", ports=[{"port": 80, "protocol": ""}])),
    ("", "Service", spec(type="NodePort", externalTrafficPolicy="", ports=[{"port": 80}])),
    ("", "Secret", {"type": "", "stringData": {"a": "b"}}),
    ("", "PersistentVolume", {"spec": {**PV, "persistentVolumeReclaimPolicy": ""}}),
    ("apps", "Deployment", spec(selector=LABELS, template=_EMPTY_TEMPLATE, strategy={"type": ""})),
    ("apps", "DaemonSet", spec(selector=LABELS, template=TEMPLATE, updateStrategy={"type": ""})),
    (
        "apps",
        "StatefulSet",
        spec(selector=LABELS, template=TEMPLATE, serviceName="s", updateStrategy={"type": ""}, podManagementPolicy=""),
    ),
    (
        RBAC,
        "RoleBinding",
        {
            "roleRef": {"kind": "Role", "name": "r", "apiGroup": ""},
            "subjects": [{"kind": "User", "name": "u", "apiGroup": ""}],
        },
    ),
]

POINTERS = [
    ("", "PersistentVolumeClaim", {"spec": {**CLAIM, "volumeMode": ""}}),
    ("", "PersistentVolume", {"spec": {**PV, "volumeMode": ""}}),
    ("scheduling.k8s.io", "PriorityClass", {"value": 3, "preemptionPolicy": ""}),
    ("storage.k8s.io", "StorageClass", {"provisioner": "a.b/c", "volumeBindingMode": ""}),
]
"""Of these fields "" is a value, and no valid one: they are pointers in Go, and only an absent one gets the default."""
