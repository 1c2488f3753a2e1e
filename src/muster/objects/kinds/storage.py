"""Kubernetes' `storage.k8s.io/v1`: storage classes. Pure."""

# ruff: noqa: RUF012 - msgspec gives each object an empty container of its own
from __future__ import annotations

from typing import Annotated

from muster.objects.kinds.base import AGE, ATOMIC_MAP, Native, NativeObject, Strings, Texts, one_of
from muster.objects.resources import Column, Resource
from muster.objects.view import ATOMIC


class TopologySelectorLabelRequirement(Native):
    """A node label and its values."""

    key: Annotated[str, "The label."]
    values: Annotated[Strings, "Any of these."]


class TopologySelectorTerm(Native):
    """Places where volumes can be made; all conditions must hold."""

    __schema_extra__ = ATOMIC_MAP

    match_label_expressions: Annotated[list[TopologySelectorLabelRequirement], ATOMIC, "Conditions."] = []


class StorageClass(NativeObject, kw_only=True):
    """A kind of storage that claims can name."""

    provisioner: Annotated[str, "Who makes its volumes. Can't be changed."]
    parameters: Annotated[Texts, "Settings for the provisioner. Can't be changed."] = {}
    reclaim_policy: Annotated[str | None, one_of("Delete", "Retain", "Recycle"), "What becomes of volumes without claims."] = (
        "Delete"
    )
    mount_options: Annotated[Strings, "Options for mounting."] = []
    allow_volume_expansion: Annotated[bool | None, "Whether volumes can grow."] = None
    volume_binding_mode: Annotated[
        str | None, one_of("Immediate", "WaitForFirstConsumer"), "Whether a volume is made before a pod needs it."
    ] = "Immediate"
    allowed_topologies: Annotated[list[TopologySelectorTerm], ATOMIC, "Where volumes can be made."] = []


RESOURCES: tuple[Resource, ...] = (
    Resource(
        group="storage.k8s.io",
        version="v1",
        kind="StorageClass",
        plural="storageclasses",
        namespaced=False,
        short_names=("sc",),
        generation_tracked=False,
        view=StorageClass,
        columns=(
            Column(name="Provisioner", path=".provisioner"),
            Column(name="ReclaimPolicy", path=".reclaimPolicy"),
            Column(name="VolumeBindingMode", path=".volumeBindingMode"),
            Column(name="AllowVolumeExpansion", path=".allowVolumeExpansion", type="boolean"),
            AGE,
        ),
    ),
)
