"""A new batch Job gets the selector and the labels by which its pods are found, as in Kubernetes.

Unless `spec.manualSelector` is set, a Job selects its pods by its own uid, so that two Jobs never share any. `kubectl logs
job/x` and `kubectl describe job` go by it. A selector that a client writes itself is left alone; the schema's rules judge it.

A Job that has no labels gets those of its pods: `kubectl get jobs -l job-name=x` finds it.

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
        spec, uid = raw.get("spec"), raw["metadata"].get("uid")
        template = spec.get("template") if isinstance(spec, dict) else None
        if not isinstance(spec, dict) or not isinstance(template, dict) or not uid:
            return None
        metadata = template.get("metadata") or {}
        if not isinstance(metadata, dict) or not isinstance(metadata.get("labels") or {}, dict):
            return None  # of the wrong type, which validation will say
        labels = metadata.get("labels") or {}
        filled = raw
        if spec.get("manualSelector") is not True and not spec.get("selector"):
            labels = {**labels, **_own_labels(str(uid), request.name)}
            of_pods = {**template, "metadata": {**metadata, "labels": labels}}
            filled = {**raw, "spec": {**spec, "selector": {"matchLabels": {UID_LABEL: uid}}, "template": of_pods}}
        if labels and not raw["metadata"].get("labels"):
            filled = {**filled, "metadata": {**raw["metadata"], "labels": dict(labels)}}
        return None if filled is raw else filled


def _own_labels(uid: str, name: str) -> Raw:
    labels = {UID_LABEL: uid, _OLD_UID_LABEL: uid}
    if len(name) <= 63:  # longer names are no values of labels
        labels |= {NAME_LABEL: name, _OLD_NAME_LABEL: name}
    return labels
