"""What the classes that pods and claims name have to say: a RuntimeClass fills in a pod, a StorageClass lets a claim grow.

Admission hooks, in Kubernetes' words. Concurrency: on the event loop; classes are looked up in the store's memory, and only for
objects that name one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from muster.objects.quantity import Quantity
from muster.objects.rules.report import obj, text
from muster.objects.status import Raw
from muster.server.admission import Hook, is_new_pod, refused
from muster.store.embedded.admission import AdmissionRequest

Find = Callable[[str, str, str], Raw | None]
"""The object without a namespace of a group, kind and name, if there is one."""
_CLAIMS = "persistentvolumeclaims"


class PodRuntimeClass(Hook):
    """A pod gets the overhead of its RuntimeClass, and goes where that runs: labels and taints of such nodes join its own."""

    def __init__(self, find: Find) -> None:
        self._find = find

    async def mutate(self, request: AdmissionRequest) -> Raw | None:
        if not is_new_pod(request) or request.object is None or not text(obj(request.object, "spec"), "runtimeClassName"):
            return None
        spec = dict(request.object["spec"])
        found = self._class_of(request, spec)
        if found is not None and isinstance(found.get("overhead"), dict):
            _check_overhead(request, spec, found)
            if fixed := obj(found["overhead"], "podFixed"):
                spec["overhead"] = dict(fixed)
        scheduling = obj(found, "scheduling")
        if selector := obj(scheduling, "nodeSelector"):
            own = obj(spec, "nodeSelector")
            for key, value in selector.items():
                if own.get(key, value) != value:
                    raise refused(
                        request,
                        f"conflict: runtimeClass.scheduling.nodeSelector[{key}] = {value}; "
                        f"pod.spec.nodeSelector[{key}] = {own[key]}",
                    )
            spec["nodeSelector"] = {**own, **selector}
        if tolerations := scheduling.get("tolerations"):
            own_list = spec.get("tolerations")
            spec["tolerations"] = merged_tolerations([*(own_list if isinstance(own_list, list) else ()), *tolerations])
        return {**request.object, "spec": spec}

    async def validate(self, request: AdmissionRequest) -> None:
        if not is_new_pod(request) or request.object is None:
            return
        spec = obj(request.object, "spec")
        if spec.get("overhead") is not None or text(spec, "runtimeClassName"):
            _check_overhead(request, spec, self._class_of(request, spec))

    def _class_of(self, request: AdmissionRequest, spec: Raw) -> Raw | None:
        name = text(spec, "runtimeClassName")
        if not name:
            return None
        found = self._find("node.k8s.io", "RuntimeClass", name)
        if found is None:
            raise refused(request, f'pod rejected: RuntimeClass "{name:.253}" not found')
        return found


def _check_overhead(request: AdmissionRequest, spec: Raw, found: Raw | None) -> None:
    """The overhead is not the user's to choose. Both are spelt as quantities are kept."""
    given = spec.get("overhead")
    if given is None:
        return
    if found is None or not isinstance(found.get("overhead"), dict):
        raise refused(request, "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead")
    if given != obj(found["overhead"], "podFixed"):
        raise refused(request, "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead")


def merged_tolerations(tolerations: Sequence[Raw]) -> list[Raw]:
    """Without those that another covers; of two that say the same, the first stays."""
    kept: list[Raw] = []
    for index, one in enumerate(tolerations):
        is_covered = any(_covers(other, one) for other in kept)
        if not is_covered and not any(_covers(other, one) and not _covers(one, other) for other in tolerations[index + 1 :]):
            kept.append(one)
    return kept


def _covers(wide: Raw, narrow: Raw) -> bool:
    """Whether all that `narrow` tolerates is tolerated by `wide`, for as long."""
    is_any_value = text(wide, "operator") == "Exists"
    if text(wide, "key") != text(narrow, "key") and (text(wide, "key") or not is_any_value):
        return False
    if text(wide, "effect") not in ("", text(narrow, "effect")):
        return False
    most, asked = wide.get("tolerationSeconds"), narrow.get("tolerationSeconds")
    if most is not None and (asked is None or asked > most):
        return False
    return is_any_value or (text(narrow, "operator") != "Exists" and text(wide, "value") == text(narrow, "value"))


class ClaimGrowth(Hook):
    """A bound claim grows where its StorageClass allows it."""

    def __init__(self, find: Find) -> None:
        self._find = find

    async def validate(self, request: AdmissionRequest) -> None:
        resource, raw, old = request.resource, request.object, request.old
        if request.operation != "UPDATE" or request.subresource or (resource.group, resource.plural) != ("", _CLAIMS):
            return
        wanted, had = _size(raw), _size(old)
        if wanted is None or had is None or wanted <= had:
            return
        name = text(obj(old, "spec"), "storageClassName")
        found = self._find("storage.k8s.io", "StorageClass", name) if name else None
        if found is None or found.get("allowVolumeExpansion") is not True:
            raise refused(
                request,
                "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support "
                f"resize; StorageClass {name!r} has no allowVolumeExpansion",
            )


def _size(claim: Raw | None) -> Quantity | None:
    try:
        return Quantity.parse(obj(obj(obj(claim, "spec"), "resources"), "requests").get("storage", 0))
    except (TypeError, ValueError):
        return None
