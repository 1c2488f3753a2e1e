"""Limits on what a namespace and what is in it may take. Pure."""

# ruff: noqa: RUF012 - msgspec gives each object an empty container of its own
from __future__ import annotations

from typing import Annotated

from muster.objects.kinds.base import ATOMIC_MAP, Native, NativeObject, Strings, one_of
from muster.objects.view import ATOMIC, Quantities


class ScopedResourceSelectorRequirement(Native):
    """A scope, and values of it."""

    scope_name: Annotated[str, "Such as PriorityClass, Terminating or BestEffort."]
    operator: Annotated[str, one_of("In", "NotIn", "Exists", "DoesNotExist"), "How the values compare."]
    values: Annotated[Strings, "What to compare with."] = []


class ScopeSelector(Native):
    """Which objects a quota counts; all conditions must hold."""

    __schema_extra__ = ATOMIC_MAP

    match_expressions: Annotated[list[ScopedResourceSelectorRequirement], ATOMIC, "Conditions."] = []


class ResourceQuotaSpec(Native):
    """The limits."""

    hard: Annotated[Quantities, "Limit by resource: `requests.cpu`, `pods`, `count/jobs.batch`."] = {}
    scopes: Annotated[Strings, "Count only objects in all of these scopes."] = []
    scope_selector: Annotated[ScopeSelector | None, "The same, with values."] = None


class ResourceQuotaStatus(Native):
    """Limits in force, and what is used."""

    hard: Annotated[Quantities, "Limits in force."] = {}
    used: Annotated[Quantities, "What is used."] = {}


class ResourceQuota(NativeObject):
    """The most that all objects of a namespace may take together."""

    spec: Annotated[ResourceQuotaSpec | None, "The limits."] = None
    status: Annotated[ResourceQuotaStatus | None, "What is used."] = None


class LimitRangeItem(Native):
    """Limits for one kind of thing."""

    type: Annotated[str, "Pod, Container or PersistentVolumeClaim."]
    max: Annotated[Quantities, "The most of each resource."] = {}
    min: Annotated[Quantities, "The least of each resource."] = {}
    default: Annotated[Quantities, "Limit for those that name none."] = {}
    default_request: Annotated[Quantities, "Request for those that name none."] = {}
    max_limit_request_ratio: Annotated[Quantities, "The most that limit divided by request may be."] = {}


class LimitRangeSpec(Native):
    """The limits."""

    limits: Annotated[list[LimitRangeItem], ATOMIC, "One for each kind of thing."]


class LimitRange(NativeObject):
    """What one pod, container or claim of a namespace may take, and what it gets when it asks for nothing."""

    spec: Annotated[LimitRangeSpec | None, "The limits."] = None
