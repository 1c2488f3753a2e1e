"""What there is of an object before anybody has set a field: the parts that Kubernetes' own kinds always have.

Kubernetes computes who owns what on a create by comparing with an object that is empty but typed. A part that such an object
has (`spec`, `spec.template`) is there from the start, so nobody sets it, and a field manager owns only what is in it; a part
that may be absent (`spec.strategy.rollingUpdate`) is set by whoever sends it. Custom kinds have no such parts.

Pure tables. Lists that are merged by key are there too, empty. The values are shared and must not be changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from muster.objects.status import Raw

_POD_SPEC: Final[Raw] = {"containers": []}
_TEMPLATE: Final[Raw] = {"metadata": {}, "spec": _POD_SPEC}
_SPEC_STATUS: Final[Raw] = {"spec": {}, "status": {}}
_BALANCED: Final[Raw] = {"spec": {}, "status": {"loadBalancer": {}}}
_EMPTY: Final[Mapping[tuple[str, str], Raw]] = {
    ("", "Pod"): {"spec": _POD_SPEC, "status": {}},
    ("", "PodTemplate"): {"template": _TEMPLATE},
    ("", "ReplicationController"): _SPEC_STATUS,
    ("", "Service"): _BALANCED,
    ("", "Namespace"): _SPEC_STATUS,
    ("", "Node"): {"spec": {}, "status": {"daemonEndpoints": {"kubeletEndpoint": {}}, "nodeInfo": {}}},
    ("", "PersistentVolume"): _SPEC_STATUS,
    ("", "PersistentVolumeClaim"): {"spec": {"resources": {}}, "status": {}},
    ("", "ResourceQuota"): _SPEC_STATUS,
    ("", "LimitRange"): {"spec": {}},
    ("", "Event"): {"involvedObject": {}, "source": {}},
    ("events.k8s.io", "Event"): {"deprecatedSource": {}, "regarding": {}},
    ("apps", "Deployment"): {"spec": {"strategy": {}, "template": _TEMPLATE}, "status": {}},
    ("apps", "ReplicaSet"): {"spec": {"template": _TEMPLATE}, "status": {}},
    ("apps", "StatefulSet"): {"spec": {"template": _TEMPLATE, "updateStrategy": {}}, "status": {}},
    ("apps", "DaemonSet"): {"spec": {"template": _TEMPLATE, "updateStrategy": {}}, "status": {}},
    ("batch", "Job"): {"spec": {"template": _TEMPLATE}, "status": {}},
    ("batch", "CronJob"): {"spec": {"jobTemplate": {"metadata": {}, "spec": {"template": _TEMPLATE}}}, "status": {}},
    ("policy", "PodDisruptionBudget"): _SPEC_STATUS,
    ("networking.k8s.io", "Ingress"): _BALANCED,
    ("networking.k8s.io", "NetworkPolicy"): {"spec": {"podSelector": {}}},
    ("coordination.k8s.io", "Lease"): {"spec": {}},
    ("apiextensions.k8s.io", "CustomResourceDefinition"): {"spec": {"names": {}}, "status": {}},
}
_NOTHING: Final[Raw] = {}


def empty_object(group: str, kind: Any) -> Raw:
    """What an object of this kind has before its first field is set; nothing for a kind that is not Kubernetes' own."""
    return _EMPTY.get((group, kind), _NOTHING)
