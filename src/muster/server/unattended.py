"""Who creates what nobody here acts on is told so: a Deployment is stored, and no pods come of it.

Muster's controllers know Kuscia's and Muster's kinds of work. Kubernetes' own are kept for tools that bring them along, and
`kubectl rollout status` would wait for ever without a word; so the answer to a creation carries a Warning.

An admission hook, for servers beside which Muster's controllers run: on the event loop, reads nothing but the request.
"""

from __future__ import annotations

from typing import Final

from muster.server.admission import Hook
from muster.store.embedded.admission import AdmissionRequest

_LASTING: Final = "for services use a KusciaDeployment (kuscia.secretflow/v1alpha1)"
_ENDING: Final = "for work that ends use a Job of muster.dev/v1alpha1 (muster run) or a KusciaJob"
UNATTENDED: Final = {
    ("apps", "Deployment"): _LASTING,
    ("apps", "ReplicaSet"): _LASTING,
    ("apps", "StatefulSet"): _LASTING,
    ("apps", "DaemonSet"): _LASTING,
    ("", "ReplicationController"): _LASTING,
    ("batch", "Job"): _ENDING,
    ("batch", "CronJob"): _ENDING,
    ("autoscaling", "HorizontalPodAutoscaler"): "",
}
"""Kinds of which no controller here makes anything, and what to use instead."""


class Unattended(Hook):
    async def validate(self, request: AdmissionRequest) -> None:
        resource = request.resource
        instead = UNATTENDED.get((resource.group, resource.kind))
        if instead is None or request.operation != "CREATE" or request.subresource or request.actor is None:
            return
        effect = "nothing is scaled by it" if not instead else f"no pods are made of it; {instead}"
        request.warn(f"{resource.kind} {request.name} is stored, but no controller here acts on it: {effect}")
