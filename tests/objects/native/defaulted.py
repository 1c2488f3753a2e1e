"""Objects that leave out whatever has a default."""

from __future__ import annotations

from tests.objects.native.case import CLAIM, HOOK, LABELS, NEVER, PV, RBAC, TEMPLATE, pod, spec

DEFAULTED = [
    ("", "Pod", pod()),
    (
        "",
        "Pod",
        {
            "spec": {
                "hostNetwork": True,
                "serviceAccountName": "sa",
                "containers": [
                    {
                        "name": "c",
                        "image": "x",
                        "ports": [{"containerPort": 80}],
                        "livenessProbe": {"httpGet": {"port": 80}},
                        "readinessProbe": {"tcpSocket": {"port": 1}},
                        "resources": {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m"}},
                        "env": [
                            {"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                            {"name": "B", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
                        ],
                    }
                ],
                "volumes": [
                    {"name": "a"},
                    {"name": "b", "secret": {"secretName": "s"}},
                    {"name": "c", "configMap": {"name": "s"}},
                    {"name": "d", "hostPath": {"path": "/x"}},
                    {"name": "e", "projected": {"sources": [{"serviceAccountToken": {"path": "p"}}]}},
                    {"name": "f", "downwardAPI": {"items": [{"path": "l", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
                    {"name": "g", "iscsi": {"targetPortal": "1.2.3.4", "iqn": "iqn.2001-04.com.example:a", "lun": 0}},
                    {"name": "h", "rbd": {"monitors": ["a"], "image": "i"}},
                    {"name": "i", "azureDisk": {"diskName": "a", "diskURI": "https://x/y"}},
                    {"name": "j", "scaleIO": {"gateway": "g", "system": "s", "secretRef": {"name": "x"}, "volumeName": "v"}},
                ],
            }
        },
    ),
    ("", "Service", spec(selector={"a": "b"}, ports=[{"port": 80}])),
    (
        "",
        "Service",
        spec(
            type="NodePort",
            sessionAffinity="ClientIP",
            ports=[{"port": 80, "name": "a"}, {"port": 81, "name": "b", "targetPort": "x"}],
        ),
    ),
    ("", "Service", spec(clusterIP="None", ports=[{"port": 80}])),
    ("", "Service", spec(type="ExternalName", externalName="a.b")),
    ("", "Secret", {"stringData": {"a": "b"}, "data": {"a": "eA==", "c": "eA=="}}),
    ("", "Namespace", {"metadata": {"name": "some-namespace"}}),
    ("", "PersistentVolumeClaim", {"spec": CLAIM}),
    ("", "PersistentVolume", {"spec": PV}),
    (
        "",
        "LimitRange",
        spec(limits=[{"type": "Container", "max": {"cpu": "2"}, "min": {"cpu": "1"}, "default": {"memory": "1Gi"}}]),
    ),
    ("", "Endpoints", {"subsets": [{"addresses": [{"ip": "10.1.1.1"}], "ports": [{"port": 80}]}]}),
    ("", "PodTemplate", {"template": TEMPLATE}),
    ("", "ReplicationController", spec(template=TEMPLATE)),
    ("apps", "Deployment", spec(selector=LABELS, template=TEMPLATE)),
    ("apps", "ReplicaSet", spec(selector=LABELS, template=TEMPLATE)),
    (
        "apps",
        "StatefulSet",
        spec(
            selector=LABELS,
            template=TEMPLATE,
            serviceName="s",
            volumeClaimTemplates=[{"metadata": {"name": "d"}, "spec": CLAIM}],
        ),
    ),
    ("apps", "DaemonSet", spec(selector=LABELS, template=TEMPLATE)),
    ("batch", "Job", spec(template=NEVER)),
    ("scheduling.k8s.io", "PriorityClass", {"value": 3}),
    (RBAC, "RoleBinding", {"roleRef": {"kind": "Role", "name": "r"}, "subjects": [{"kind": "User", "name": "u"}]}),
    ("storage.k8s.io", "StorageClass", {"provisioner": "a.b/c"}),
    (
        "networking.k8s.io",
        "NetworkPolicy",
        spec(podSelector={}, egress=[{"to": [{"podSelector": {}}], "ports": [{"port": 1}]}]),
    ),
    ("networking.k8s.io", "IngressClass", spec(controller="a.b/c", parameters={"kind": "K", "name": "n", "apiGroup": "x.y"})),
    ("node.k8s.io", "RuntimeClass", {"handler": "runc"}),
    ("admissionregistration.k8s.io", "MutatingWebhookConfiguration", {"webhooks": [HOOK]}),
    (
        "apiextensions.k8s.io",
        "CustomResourceDefinition",
        {
            "metadata": {"name": "somes.example.com"},
            "spec": {
                "group": "example.com",
                "scope": "Cluster",
                "names": {"plural": "somes", "kind": "Some"},
                "versions": [
                    {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {"type": "object"}}}
                ],
            },
        },
    ),
]
