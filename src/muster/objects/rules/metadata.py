"""What holds for metadata wherever they stand: of an object, or of one inside another (embedded in it). Pure."""

from __future__ import annotations

from typing import Any, Final

from muster.objects.names import (
    annotation_problems,
    label_problems,
    validate_dns1035_label,
    validate_generate_name,
    validate_label_name,
    validate_path_segment,
    validate_qualified_name,
)
from muster.objects.rules.report import Report, obj, objs, text, texts
from muster.objects.status import Raw

_FINALIZERS_WITHOUT_DOMAIN: Final = frozenset({"orphan", "foregroundDeletion", "kubernetes"})
_EMPTY_IS_ABSENT: Final = frozenset(
    {
        "name",
        "generateName",
        "namespace",
        "selfLink",
        "uid",
        "resourceVersion",
        "generation",
        "labels",
        "annotations",
        "finalizers",
        "ownerReferences",
        "managedFields",
    }
)
_OPERATIONS: Final = ("Apply", "Update")


def check_labels_and_holds(report: Report, metadata: Raw, path: str, *, is_native: bool) -> None:
    """Labels, annotations, finalizers and owners. Of `is_native` kinds finalizers have a domain: operators in the wild name
    those of their own kinds as they like."""
    for key, problem in label_problems(obj(metadata, "labels")):
        report.invalid(f"{path}.labels", key, problem)
    for key, problem in annotation_problems(obj(metadata, "annotations")):
        if key:
            report.invalid(f"{path}.annotations", key, problem)
        else:
            report.too_long(f"{path}.annotations", problem)
    finalizers = texts(metadata, "finalizers")
    for index, finalizer in enumerate(finalizers):
        problems = validate_qualified_name(finalizer)
        report.names(f"{path}.finalizers[{index}]", finalizer, problems)
        if is_native and not problems and "/" not in finalizer and finalizer not in _FINALIZERS_WITHOUT_DOMAIN:
            report.invalid(
                f"{path}.finalizers[{index}]",
                finalizer,
                "name is neither a standard finalizer name nor is it fully qualified",
            )
    if {"orphan", "foregroundDeletion"} <= set(finalizers):
        report.invalid(f"{path}.finalizers", finalizers, "finalizer orphan and foregroundDeletion cannot be both set")
    controllers = 0
    for where, owner in objs(metadata, "ownerReferences", path):
        for word in ("apiVersion", "kind", "name", "uid"):
            if not text(owner, word):
                report.invalid(f"{where}.{word}", text(owner, word), "must not be empty")
        controllers += owner.get("controller") is True
    if controllers > 1:
        report.invalid(f"{path}.ownerReferences", controllers, "only one reference can have Controller set to true")


def check_embedded(report: Report, value: Raw) -> None:
    """Of an object inside another: its type has a name, and its metadata could be those of an object.

    What has the wrong type is for the schema to say. It need not have a name, and nobody knows what its kind wants names to be.
    """
    for word in ("apiVersion", "kind"):
        if word not in value:
            report.required(word, "must not be empty")
        elif value[word] == "":
            report.invalid(word, "", "must not be empty")
    version, kind = text(value, "apiVersion"), text(value, "kind")
    if version.count("/") > 1:
        report.invalid("apiVersion", version, "must be a version such as v1, or a group and a version such as apps/v1")
    if kind:
        problems = validate_dns1035_label(kind.lower())
        report.names("kind", kind, [f"may have mixed case, but should otherwise match: {problem}" for problem in problems])
    metadata = obj(value, "metadata")
    name, prefix, namespace = (text(metadata, word) for word in ("name", "generateName", "namespace"))
    if name:
        report.names("metadata.name", name, validate_path_segment(name))
    if prefix:
        report.names("metadata.generateName", prefix, validate_generate_name(prefix, validate_path_segment))
    if namespace:
        report.names("metadata.namespace", namespace, validate_label_name(namespace))
    generation = metadata.get("generation")
    if isinstance(generation, int) and generation < 0:
        report.invalid("metadata.generation", generation, "must be greater than or equal to 0")
    for where, entry in objs(metadata, "managedFields", "metadata"):
        if text(entry, "operation") not in _OPERATIONS:
            report.invalid(f"{where}.operation", entry.get("operation"), "must be `Apply` or `Update`")
    check_labels_and_holds(report, metadata, "metadata", is_native=False)


def embedded_metadata(metadata: Any) -> Any:
    """Metadata of an object inside another as Kubernetes keeps them: what says nothing is left out."""
    if metadata is None:
        return {}
    if not isinstance(metadata, dict):
        return metadata
    kept = {key: value for key, value in metadata.items() if value or key not in _EMPTY_IS_ABSENT}
    for word in ("labels", "annotations"):
        named = kept.get(word)
        if isinstance(named, dict) and None in named.values():
            kept[word] = {key: "" if value is None else value for key, value in named.items()}
    return metadata if kept == metadata else kept
