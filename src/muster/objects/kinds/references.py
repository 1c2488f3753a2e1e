"""How objects point at each other, and the conditions that most statuses carry. Pure."""

from __future__ import annotations

from typing import Annotated

from muster.objects.kinds.base import ATOMIC_MAP, Native, one_of
from muster.objects.time import Timestamp


class ObjectReference(Native):
    """Points at any object, or at a part of one."""

    __schema_extra__ = ATOMIC_MAP

    api_version: Annotated[str, "Group and version of the object that is meant."] = ""
    kind: Annotated[str, "Its kind."] = ""
    namespace: Annotated[str, "Its namespace; empty for cluster-wide kinds."] = ""
    name: Annotated[str, "Its name."] = ""
    uid: Annotated[str, "Its UID, when exactly that one is meant and no later one of the same name."] = ""
    resource_version: Annotated[str, "The version of it that was seen."] = ""
    field_path: Annotated[str, "A part of it, such as `spec.containers{main}`."] = ""


class LocalObjectReference(Native):
    """Points at an object of a known kind in the same namespace."""

    __schema_extra__ = ATOMIC_MAP

    name: Annotated[str, "Its name."] = ""


class SecretReference(Native):
    """Points at a Secret in any namespace."""

    __schema_extra__ = ATOMIC_MAP

    name: Annotated[str, "The Secret's name."] = ""
    namespace: Annotated[str, "The Secret's namespace."] = ""


class TypedLocalObjectReference(Native):
    """Points at an object of any kind in the same namespace."""

    __schema_extra__ = ATOMIC_MAP

    kind: Annotated[str, "Its kind."]
    name: Annotated[str, "Its name."]
    api_group: Annotated[str | None, "Its API group; absent for the core group."] = None


class TypedObjectReference(Native):
    """Points at an object of any kind, in another namespace if that one allows it."""

    kind: Annotated[str, "Its kind."]
    name: Annotated[str, "Its name."]
    api_group: Annotated[str | None, "Its API group; absent for the core group."] = None
    namespace: Annotated[str | None, "Its namespace, when it is not this one."] = None


ConditionState = Annotated[str, one_of("True", "False", "Unknown")]


class StatusCondition(Native):
    """A named fact about the object, and since when it holds."""

    type: Annotated[str, "Name of the fact, in CamelCase."]
    status: Annotated[ConditionState, "Whether it holds."]
    last_transition_time: Annotated[Timestamp, "When `status` last changed."] = ""
    reason: Annotated[str, "One word in CamelCase saying why."] = ""
    message: Annotated[str, "The same for people, with details."] = ""


class ProbedCondition(StatusCondition):
    """A condition that also says when it was last looked at."""

    last_probe_time: Annotated[Timestamp, "When the fact was last checked."] = ""
