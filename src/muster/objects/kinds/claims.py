"""PersistentVolumeClaims: storage that somebody asks for. Pure."""

# ruff: noqa: RUF012 - msgspec gives each object an empty container of its own
from __future__ import annotations

from typing import Annotated

from msgspec import field

from muster.objects.kinds.base import GRANULAR, Native, NativeObject, Selector, Strings, Texts, default, keyed_merge, one_of
from muster.objects.kinds.references import ProbedCondition, TypedLocalObjectReference, TypedObjectReference
from muster.objects.meta import ObjectMeta
from muster.objects.time import Timestamp
from muster.objects.view import Quantities

AccessModes = Annotated[Strings, "ReadWriteOnce, ReadOnlyMany, ReadWriteMany, ReadWriteOncePod."]


class VolumeResourceRequirements(Native):
    """How much storage."""

    limits: Annotated[Quantities, "The most that is taken."] = {}
    requests: Annotated[Quantities, "The least that will do: `storage`."] = {}


class PersistentVolumeClaimSpec(Native):
    """What storage is asked for."""

    access_modes: Annotated[AccessModes, "How it must be mountable."] = []
    selector: Annotated[Selector | None, "Volumes that may be taken, by label."] = None
    resources: Annotated[VolumeResourceRequirements | None, default({}), "How much."] = None
    volume_name: Annotated[str, "The volume that is bound."] = ""
    storage_class_name: Annotated[str | None, "Its class; empty for volumes without one, absent for the default class."] = None
    volume_mode: Annotated[str | None, one_of("Filesystem", "Block"), "File system or bare device."] = "Filesystem"
    data_source: Annotated[TypedLocalObjectReference | None, "Snapshot or claim to copy from."] = None
    data_source_ref: Annotated[TypedObjectReference | None, "The same for any kind of source."] = None
    volume_attributes_class_name: Annotated[str | None, "Class of changeable attributes."] = None


class PersistentVolumeClaimTemplate(Native):
    """A claim to be made."""

    spec: Annotated[PersistentVolumeClaimSpec, "The claim's spec."]
    metadata: Annotated[ObjectMeta, "Labels and annotations to give it."] = field(default_factory=ObjectMeta)


class VolumeHealthCondition(Native):
    """Something about a volume's health."""

    status: Annotated[str, "How it is."]
    reason: Annotated[str, "One word saying why."]
    message: Annotated[str, "The same for people."] = ""


VolumeHealthConditions = Annotated[list[VolumeHealthCondition], keyed_merge("status", "reason")]


class VolumeHealthStatus(Native):
    """A volume's health."""

    health_conditions: Annotated[VolumeHealthConditions, "What is known."] = []
    last_transition_time: Annotated[Timestamp, "When it last changed."] = ""


class ModifyVolumeStatus(Native):
    """A change of attributes under way."""

    status: Annotated[str, "Pending, InProgress or Infeasible."]
    target_volume_attributes_class_name: Annotated[str, "The class that is being applied."] = ""


class PersistentVolumeClaimStatus(Native):
    """What has been found for the claim."""

    phase: Annotated[str, one_of("", "Pending", "Bound", "Lost"), "Pending until a volume is bound."] = ""
    access_modes: Annotated[AccessModes, "How the volume can be mounted."] = []
    capacity: Annotated[Quantities, "How large the volume is."] = {}
    conditions: Annotated[list[ProbedCondition], keyed_merge("type"), "Facts about it, such as Resizing."] = []
    allocated_resources: Annotated[Quantities, "Size that is being made, which may exceed what was asked."] = {}
    allocated_resource_statuses: Annotated[Texts, GRANULAR, "How growing goes, by resource."] = {}
    current_volume_attributes_class_name: Annotated[str | None, "Class of attributes that holds now."] = None
    modify_volume_status: Annotated[ModifyVolumeStatus | None, "A change of attributes under way."] = None
    health_status: Annotated[VolumeHealthStatus | None, "The volume's health."] = None


class PersistentVolumeClaim(NativeObject):
    """Storage that somebody asks for, and the volume that was found for it."""

    spec: Annotated[PersistentVolumeClaimSpec | None, "What is asked for."] = None
    status: Annotated[PersistentVolumeClaimStatus | None, "What was found."] = None
