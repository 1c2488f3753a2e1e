"""A new batch Job gets the selector and the labels by which its pods are found, as in Kubernetes.

Unless `spec.manualSelector` is set, a Job selects its pods by its own uid, so that two Jobs never share any. `kubectl logs
job/x` and `kubectl describe job` go by it. A selector that a client writes itself is left alone; the schema's rules judge it.

An admission hook: on the event loop, reads nothing but the request.
"""

from __future__ import annotations

from typing import Final

from muster.objects.status import Raw
from muster.server.admission import Hook
from muster.store.embedded.admission import AdmissionRequest

UID_LABEL: Final = "batch.kubernetes.io/controller-uid"
NAME_LABEL: Final = "batch.kubernetes.io/job-name"
_OLD_UID_LABEL: Final = "controller-uid"
_OLD_NAME_LABEL: Final = "job-name"


class JobSelector(Hook):
    async def mutate(self, request: AdmissionRequest) -> Raw | None:
        resource, raw = request.resource, request.object
        if request.operation != "CREATE" or (resource.group, resource.kind) != ("batch", "Job") or raw is None:
            return None
        spec = raw.get("spec")
        uid = raw["metadata"].get("uid")
        if not isinstance(spec, dict) or not uid or spec.get("manualSelector") is True or spec.get("selector"):
            return None
        template = spec.get("template")
        if not isinstance(template, dict):
            return None
        metadata = template.get("metadata") or {}
        if not isinstance(metadata, dict) or not isinstance(metadata.get("labels") or {}, dict):
            return None  # of the wrong type, which validation will say
        name = request.name
        own = {UID_LABEL: uid, _OLD_UID_LABEL: uid}
        if len(name) <= 63:  # longer names are no values of labels
            own |= {NAME_LABEL: name, _OLD_NAME_LABEL: name}
        labels = {**(metadata.get("labels") or {}), **own}
        filled = {
            **spec,
            "selector": {"matchLabels": {UID_LABEL: uid}},
            "template": {**template, "metadata": {**metadata, "labels": labels}},
        }
        return {**raw, "spec": filled}
