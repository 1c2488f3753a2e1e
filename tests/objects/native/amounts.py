"""Objects with quantities that are not written the way that Kubernetes writes them."""

from __future__ import annotations

from tests.objects.native.case import CLAIM, PV, spec

from muster.objects.status import Raw

_CONTAINER: Raw = {
    "name": "c",
    "image": "x",
    "resources": {
        "requests": {"cpu": 0.5, "memory": "1024Mi", "ephemeral-storage": 2000000000},
        "limits": {"cpu": 2, "memory": "1.5Gi", "ephemeral-storage": "1.9000001Gi", "example.com/gpu": "1000m"},
    },
    "env": [
        {"name": "A", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1024Ki"}}},
        {"name": "B", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "0.001"}}},
    ],
}

WRITTEN_OTHERWISE = [
    (
        "",
        "Pod",
        {
            "spec": {
                "containers": [_CONTAINER],
                "initContainers": [{"name": "i", "image": "x", "resources": {"requests": {"cpu": "0.0001", "memory": "1e9"}}}],
                "volumes": [
                    {"name": "a", "emptyDir": {"sizeLimit": "2048Mi"}},
                    {"name": "b", "emptyDir": {"sizeLimit": 1000}},
                    {"name": "c", "emptyDir": {"sizeLimit": "0.0001"}},
                ],
            }
        },
    ),
    ("", "Pod", spec(containers=[{"name": "c", "image": "x", "resources": {"requests": {"cpu": "-0", "memory": "12e5"}}}])),
    ("", "Pod", spec(containers=[{"name": "c", "image": "x", "resources": {"requests": {"cpu": "0.00001", "memory": "1.5"}}}])),
    ("", "Pod", spec(containers=[{"name": "c", "image": "x", "resources": {"limits": {"cpu": "1000u", "memory": "1e3"}}}])),
    ("", "Pod", spec(containers=[{"name": "c", "image": "x", "resources": {"limits": {"cpu": ".5", "memory": "0.5Ki"}}}])),
    ("", "ResourceQuota", spec(hard={"pods": 5, "requests.cpu": "1000m", "requests.memory": "1048576Ki", "configmaps": "1e3"})),
    (
        "",
        "LimitRange",
        spec(
            limits=[
                {
                    "type": "Container",
                    "max": {"cpu": 2.0, "memory": "2048Mi"},
                    "min": {"cpu": 0.1},
                    "default": {"cpu": "1000m"},
                    "defaultRequest": {"cpu": "0.2"},
                    "maxLimitRequestRatio": {"cpu": 10.5},
                }
            ]
        ),
    ),
    ("", "PersistentVolumeClaim", {"spec": {**CLAIM, "resources": {"requests": {"storage": "1024Mi"}}}}),
    ("", "PersistentVolume", {"spec": {**PV, "capacity": {"storage": "5120Mi"}}}),
]
