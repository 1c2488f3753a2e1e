"""The volume through which a pod's containers find a token, the CA and their namespace, where Kubernetes puts them.

Kubernetes adds it to every pod unless told not to. Here a pod has it where it, or else its service account, says
`automountServiceAccountToken: true`: most work never calls the API, and a token that is not there can't be stolen.

An admission hook on the event loop; reads the account from the store's memory. Pure otherwise: the same pod always gets the
same volume.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, Final

from muster.objects.status import Raw
from muster.server.admission import DEFAULT_ACCOUNT, Hook, is_new_pod
from muster.server.bootstrap import CA_CONFIG_MAP
from muster.store.embedded.admission import AdmissionRequest

MOUNT_PATH: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
PREFIX: Final = "api-access-"
"""Not Kubernetes' `kube-api-access-`: agents leave out what they can't have of those, and this one was asked for."""
LIFETIME_S: Final = 3607
"""An hour, and a little that tells it from what a user asked for; as in Kubernetes."""

Automount = Callable[[str, str], bool | None]
"""(namespace, account): what the account says."""


class ApiAccess(Hook):
    def __init__(self, automount: Automount) -> None:
        self._automount = automount

    async def mutate(self, request: AdmissionRequest) -> Raw | None:
        pod = request.object
        if not is_new_pod(request) or pod is None or not isinstance(pod.get("spec"), dict):
            return None
        spec = pod["spec"]
        told = spec.get("automountServiceAccountToken")
        if told is None:
            told = self._automount(request.namespace, str(spec.get("serviceAccountName") or DEFAULT_ACCOUNT))
        return {**pod, "spec": with_access(spec, _suffix(request, pod))} if told is True else None


def with_access(spec: Raw, suffix: str) -> Raw:
    """The spec with the volume, mounted by every container that has nothing at its place; unchanged when none needs it."""
    name = f"{PREFIX}{suffix}"
    made: Raw = dict(spec)
    is_needed = False
    for word in ("initContainers", "containers"):
        containers = spec.get(word)
        if not isinstance(containers, list):
            continue
        made[word] = []
        for container in containers:
            mounts = container.get("volumeMounts") or [] if isinstance(container, dict) else None
            if not isinstance(mounts, list) or any(_target(mount) == MOUNT_PATH for mount in mounts):
                made[word].append(container)
                continue
            is_needed = True
            mount = {"name": name, "mountPath": MOUNT_PATH, "readOnly": True}
            made[word].append({**container, "volumeMounts": [*mounts, mount]})
    volumes = spec.get("volumes") or []
    if not is_needed or not isinstance(volumes, list):
        return spec
    return {**made, "volumes": [*volumes, {"name": name, "projected": {"defaultMode": 0o644, "sources": _sources()}}]}


def _sources() -> list[Raw]:
    field = {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}
    return [
        {"serviceAccountToken": {"expirationSeconds": LIFETIME_S, "path": "token"}},
        {"configMap": {"name": CA_CONFIG_MAP, "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [field]}},
    ]


def _target(mount: Any) -> str:
    return str(mount.get("mountPath", "")).rstrip("/") if isinstance(mount, dict) else ""


def _suffix(request: AdmissionRequest, pod: Raw) -> str:
    meta = pod.get("metadata")
    name = request.name or (str(meta.get("generateName", "")) if isinstance(meta, dict) else "")
    return hashlib.sha256(f"{request.namespace}/{name}".encode()).hexdigest()[:5]
