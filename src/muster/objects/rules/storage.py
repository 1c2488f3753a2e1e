"""Rules for volumes, claims and storage classes. Pure."""

from __future__ import annotations

from typing import Final

from muster.objects.kinds.volumes_persistent import PersistentVolumeSpec
from muster.objects.names import validate_label_name, validate_qualified_name, validate_subdomain
from muster.objects.quantity import Quantity
from muster.objects.rules.placement import check_node_selector
from muster.objects.rules.report import Report, check_immutable, check_quantities, check_selector, obj, objs, text, texts
from muster.objects.schema import schema_of
from muster.objects.status import Raw
from muster.objects.view import copy_json

_MODES: Final = ("ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod")
_ABOUT_ANY_VOLUME: Final = frozenset(
    {
        "accessModes",
        "capacity",
        "claimRef",
        "mountOptions",
        "nodeAffinity",
        "persistentVolumeReclaimPolicy",
        "storageClassName",
        "volumeAttributesClassName",
        "volumeMode",
    }
)


def _check_modes(report: Report, spec: Raw, path: str) -> None:
    modes = texts(spec, "accessModes")
    if not modes:
        report.required(f"{path}.accessModes", "at least 1 access mode is required")
    for mode in modes:
        if mode not in _MODES:
            report.unsupported(f"{path}.accessModes", mode, _MODES)
    if "ReadWriteOncePod" in modes and len(modes) > 1:
        report.forbidden(f"{path}.accessModes", "may not use ReadWriteOncePod with other access modes")


def check_claim_spec(report: Report, spec: Raw, path: str) -> None:
    _check_modes(report, spec, path)
    check_selector(report, obj(spec, "selector"), f"{path}.selector")
    amounts = check_quantities(report, obj(obj(spec, "resources"), "requests"), f"{path}.resources.requests")
    if "storage" not in obj(obj(spec, "resources"), "requests"):
        report.required(f"{path}.resources.requests[storage]")
    elif amounts.get("storage") == Quantity.of(0):
        report.invalid(f"{path}.resources.requests[storage]", "0", "must be greater than zero")
    name = text(spec, "storageClassName")
    if name:
        report.names(f"{path}.storageClassName", name, validate_subdomain(name))


def check_claim(report: Report, raw: Raw, old: Raw | None) -> None:
    spec = obj(raw, "spec")
    check_claim_spec(report, spec, "spec")
    if old is None:
        return
    before = obj(old, "spec")
    is_bound = text(obj(old, "status"), "phase") == "Bound"
    fixed, was = (_fixed_claim(owner, before, is_bound=is_bound) for owner in (spec, before))
    if fixed != was:
        report.forbidden(
            "spec", "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims"
        )
    size, old_size = (_size(owner) for owner in (spec, before))
    if size is not None and old_size is not None and size < old_size:
        report.forbidden("spec.resources.requests.storage", "field can not be less than previous value")


def _fixed_claim(spec: Raw, before: Raw, *, is_bound: bool) -> Raw:
    """What of `spec` may not change. Only a claim that has its volume can ask for it to grow."""
    fixed: Raw = copy_json(spec)
    if is_bound:
        fixed.pop("volumeAttributesClassName", None)
        obj(obj(fixed, "resources"), "requests").pop("storage", None)
    if not before.get("volumeName"):
        fixed.pop("volumeName", None)  # set once, by whoever binds it
    if before.get("storageClassName") is None:
        fixed.pop("storageClassName", None)  # set once, when a default class comes about
    return {key: value for key, value in fixed.items() if value not in (None, {}, [])}


def _size(spec: Raw) -> Quantity | None:
    try:
        return Quantity.parse(obj(obj(spec, "resources"), "requests")["storage"])
    except (KeyError, TypeError, ValueError):
        return None


def check_volume(report: Report, raw: Raw, old: Raw | None) -> None:
    spec = obj(raw, "spec")
    _check_modes(report, spec, "spec")
    amounts = check_quantities(report, obj(spec, "capacity"), "spec.capacity")
    if amounts.get("storage") == Quantity.of(0):
        report.invalid("spec.capacity[storage]", "0", "must be greater than zero")
    if name := text(spec, "storageClassName"):
        report.names("spec.storageClassName", name, validate_subdomain(name))
    if set(obj(spec, "capacity")) != {"storage"}:
        report.required("spec.capacity[storage]", "capacity must be `storage` and nothing else")
    known = schema_of(PersistentVolumeSpec)["properties"].keys() - _ABOUT_ANY_VOLUME
    sources = sorted(key for key in known if spec.get(key) is not None)
    if not sources:
        report.required("spec", "must specify a volume type")
    for source in sources[1:]:
        report.forbidden(f"spec.{source}", "may not specify more than 1 volume type")
    if "hostPath" in sources:
        _check_host_path(report, spec)
    if "nfs" in sources and not text(obj(spec, "nfs"), "path").startswith("/"):
        report.invalid("spec.nfs.path", text(obj(spec, "nfs"), "path"), "must be an absolute path")
    required = obj(spec, "nodeAffinity").get("required")
    if isinstance(required, dict):
        check_node_selector(report, required, "spec.nodeAffinity.required")
    elif "local" in sources:
        report.required("spec.nodeAffinity", "local volumes need the node that they are on")
    if old is not None:
        before = obj(old, "spec")
        for source in sorted({*sources, *(key for key in known if before.get(key) is not None)}):
            if spec.get(source) != before.get(source):
                report.forbidden(f"spec.{source}", "the volume's source is immutable after creation")
        check_immutable(report, spec.get("volumeMode"), before.get("volumeMode"), "spec.volumeMode")


def _check_host_path(report: Report, spec: Raw) -> None:
    path = text(obj(spec, "hostPath"), "path")
    if not path:
        report.required("spec.hostPath.path")
    elif ".." in path.split("/"):
        report.invalid("spec.hostPath.path", path, "must not contain '..'")
    elif path == "/" and text(spec, "persistentVolumeReclaimPolicy") == "Recycle":
        report.forbidden("spec.persistentVolumeReclaimPolicy", "may not be 'Recycle' for a hostPath of '/'")


def check_storage_class(report: Report, raw: Raw, old: Raw | None) -> None:
    if not text(raw, "provisioner"):
        report.required("provisioner")
    else:
        report.names("provisioner", text(raw, "provisioner"), validate_qualified_name(text(raw, "provisioner").lower()))
    if text(raw, "reclaimPolicy") == "Recycle":
        report.unsupported("reclaimPolicy", "Recycle", ["Delete", "Retain"])
    if "" in obj(raw, "parameters"):
        report.invalid("parameters", "", "a parameter needs a name")
    for where, topology in objs(raw, "allowedTopologies", ""):
        for path, expression in objs(topology, "matchLabelExpressions", where):
            values = texts(expression, "values")
            if not values:
                report.required(f"{path}.values")
            seen: set[str] = set()
            for index, value in enumerate(values):
                if value in seen:
                    report.duplicate(f"{path}.values[{index}]", value)
                seen.add(value)
    if old is not None:
        for word in ("provisioner", "parameters", "reclaimPolicy", "volumeBindingMode"):
            if (raw.get(word) or None) != (old.get(word) or None):
                report.forbidden(word, "updates to it are forbidden")


def check_runtime_class(report: Report, raw: Raw, old: Raw | None) -> None:
    report.names("handler", text(raw, "handler"), validate_label_name(text(raw, "handler")))
    check_quantities(report, obj(obj(raw, "overhead"), "podFixed"), "overhead.podFixed")
    if old is not None:
        check_immutable(report, raw.get("handler"), old.get("handler"), "handler")
