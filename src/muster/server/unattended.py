"""Who creates what nobody here acts on is told so: a Deployment is stored, and no pods come of it.

Muster's controllers know Kuscia's and Muster's kinds of work. Kubernetes' own are kept for tools that bring them along, and
`kubectl rollout status` would wait for ever without a word; a NetworkPolicy would be trusted to hold. So the answer to a
creation carries a Warning, and so does the answer to labels of a Namespace that ask for Pod Security.

An admission hook, for servers beside which Muster's controllers run: on the event loop, reads nothing but the request.
"""

from __future__ import annotations

from typing import Final

from muster.objects.meta import labels_of
from muster.server.admission import Hook
from muster.store.embedded.admission import AdmissionRequest

_LASTING: Final = "no pods are made of it; for services use a KusciaDeployment (kuscia.secretflow/v1alpha1)"
_ENDING: Final = "no pods are made of it; for work that ends use a Job of muster.dev/v1alpha1 (muster run) or a KusciaJob"
UNATTENDED: Final = {
    ("apps", "Deployment"): _LASTING,
    ("apps", "ReplicaSet"): _LASTING,
    ("apps", "StatefulSet"): _LASTING,
    ("apps", "DaemonSet"): _LASTING,
    ("", "ReplicationController"): _LASTING,
    ("batch", "Job"): _ENDING,
    ("batch", "CronJob"): _ENDING,
    ("autoscaling", "HorizontalPodAutoscaler"): "nothing is scaled by it",
    ("networking.k8s.io", "NetworkPolicy"): "it keeps no traffic away",
}
"""Kinds on which nothing here acts, what follows from that, and what to use instead where there is something."""
_POD_SECURITY: Final = "pod-security.kubernetes.io/"


class Unattended(Hook):
    async def validate(self, request: AdmissionRequest) -> None:
        if request.subresource or request.actor is None:
            return
        resource = request.resource
        effect = UNATTENDED.get((resource.group, resource.kind))
        if effect is not None and request.operation == "CREATE":
            request.warn(f"{resource.kind} {request.name} is stored, but no controller here acts on it: {effect}")
        elif resource.kind == "Namespace" and not resource.group and request.object is not None:
            before = labels_of(request.old) if request.old is not None else {}
            for key, level in labels_of(request.object).items():
                if key.startswith(_POD_SECURITY) and before.get(key) != level:
                    request.warn(
                        f"Namespace {request.name}: the label {key}={level} is stored, but nothing here checks pods by it"
                    )
