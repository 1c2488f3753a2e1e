"""Pieces that the kinds of Kuscia, Koordinator and Muster share. Pure.

Views of other projects' kinds derive from `Foreign`: what a newer version of theirs adds is kept, though no view names it.
For the same reason bounds stand in the schema alone, and so do enumerations that those projects do not enforce themselves:
our server checks them, yet an object from another server still decodes.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import field

from muster.objects.conditions import ConditionStatus
from muster.objects.kinds.base import Object, between
from muster.objects.resources import Column, Resource
from muster.objects.time import Timestamp
from muster.objects.view import KEEP_UNKNOWN, View


class Foreign(View):
    """Base of the parts of kinds that other projects define."""

    __schema_extra__ = KEEP_UNKNOWN


Kept = dict[str, Any]
"""An object that is carried as it is: a pod template, a third party's extension."""

AMOUNT_PATTERN = r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+|[kKmMgGtT]?bps)?$"
Amount = Annotated[
    str | int | float, msgspec.Meta(extra_json_schema={"x-kubernetes-int-or-string": True, "pattern": AMOUNT_PATTERN})
]
"""A quantity, or a bandwidth in its own units: `"500m"`, `2`, `"200Mbps"`, `"10Gbps"`."""
Amounts = dict[str, Amount]
"""Resource name to amount: `{"cpu": 2, "memory": "4Gi", "bandwidth": "200Mbps"}`."""

DURATION_PATTERN = r"^(0|(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|ms|s|m|h))+)$"
Duration = Annotated[str, msgspec.Meta(extra_json_schema={"pattern": DURATION_PATTERN})]
"""Time as Go writes it: `90s`, `1h30m`, `24h`, `0`."""

Percent = Annotated[int, between(0, 100, "int64")]
Port = Annotated[int, between(1, 65535, "int64")]
Count = Annotated[int, between(0, number_format="int64")]
Seconds = Annotated[int, between(0, number_format="int64")]


class Resources(Foreign):
    """What is asked for, and the ceiling. `bandwidth` (or `kuscia.io/bandwidth` in whole Mbps) is a resource like any other."""

    requests: Amounts = field(default_factory=dict)
    limits: Amounts = field(default_factory=dict)
    claims: list[Kept] = field(default_factory=list)


class Retry(View):
    """What becomes of work that failed: it is tried again, after a pause that doubles each time."""

    limit: Annotated[int, "How often to try again.", msgspec.Meta(ge=0, le=1000)] = 0
    backoff_seconds: Annotated[int, "Before the first retry; doubled for each further one.", msgspec.Meta(ge=0)] = 10
    backoff_seconds_max: Annotated[int, msgspec.Meta(ge=0)] = 3600


class PlainCondition(Foreign):
    """A fact about an object, as Kuscia writes it."""

    type: str
    status: ConditionStatus
    reason: str = ""
    message: str = ""
    last_transition_time: Timestamp = ""


class ReasonedCondition(Foreign):
    """A fact about a task resource (group); Kuscia has no message there."""

    type: str
    status: ConditionStatus
    reason: str = ""
    last_transition_time: Timestamp = ""


PHASE = Column(name="Phase", path=".status.phase")
START_TIME = Column(name="StartTime", path=".status.startTime", type="date")
COMPLETION_TIME = Column(name="CompletionTime", path=".status.completionTime", type="date")
LAST_RECONCILE_TIME = Column(name="LastReconcileTime", path=".status.lastReconcileTime", type="date")
LAST_TRANSITION_TIME = Column(name="LastTransitionTime", path=".status.lastTransitionTime", type="date")


def custom_resource(
    view: type[Object],
    plural: str,
    *,
    group: str,
    categories: tuple[str, ...] = (),
    short_names: tuple[str, ...] = (),
    has_status: bool = True,
    namespaced: bool = True,
    columns: tuple[Column, ...] = (),
) -> Resource:
    """A kind that is shipped as a CRD, `v1alpha1` of its group, named after its view."""
    kind = view.__name__
    return Resource(
        group=group,
        version="v1alpha1",
        kind=kind,
        plural=plural,
        singular=kind.lower(),
        list_kind=f"{kind}List",
        namespaced=namespaced,
        short_names=short_names,
        categories=categories,
        subresources=frozenset({"status"} if has_status else ()),
        columns=columns,
        view=view,
        is_custom=True,
    )
