"""Gangs and quotas: PodGroup and ElasticQuota of kubernetes-sigs/scheduler-plugins, Koordinator's ElasticQuotaProfile. Pure.

Their status is a plain field, not a subresource; Koordinator's own clients write it so, and it stays so here.
"""

from __future__ import annotations

import functools
from typing import Annotated, Literal

from msgspec import field

from muster.objects.kinds.base import AGE, Object
from muster.objects.kinds.shapes import PHASE, Foreign, custom_resource
from muster.objects.resources import Column, Resource
from muster.objects.selectors import LabelSelector
from muster.objects.time import Timestamp
from muster.objects.view import Int32, Quantities


class PodGroupSpec(Foreign):
    """How many pods must start together."""

    min_member: Annotated[Int32, "Pods that must be placed before any starts."] = 0
    min_resources: Annotated[Quantities, "What must be free in all before it is tried."] = field(default_factory=dict)
    schedule_timeout_seconds: Annotated[Int32 | None, "How long members that have a place wait for the others."] = None


class PodGroupStatus(Foreign):
    """How many pods are how far."""

    phase: Literal["", "Pending", "PreScheduling", "Scheduling", "Scheduled", "Running", "Unknown", "Finished", "Failed"] = ""
    occupied_by: Annotated[str, "Owners of its pods, as `namespace/name` with commas between."] = ""
    scheduled: Int32 = 0
    running: Int32 = 0
    succeeded: Int32 = 0
    failed: Int32 = 0
    schedule_start_time: Timestamp = ""


class PodGroup(Object):
    """Pods that start together or not at all; a pod joins with the label `pod-group.scheduling.sigs.k8s.io`."""

    spec: PodGroupSpec = field(default_factory=PodGroupSpec)
    status: PodGroupStatus = field(default_factory=PodGroupStatus)


class ElasticQuotaSpec(Foreign):
    """A guarantee and a ceiling. The tree that quotas form is in their labels."""

    min: Annotated[Quantities, "Guaranteed; what is unused may be lent."] = field(default_factory=dict)
    max: Annotated[Quantities, "Never more than this, borrowed or not."] = field(default_factory=dict)


class ElasticQuotaStatus(Foreign):
    used: Quantities = field(default_factory=dict)


class ElasticQuota(Object):
    """A share of the cluster that can borrow and lend."""

    spec: ElasticQuotaSpec = field(default_factory=ElasticQuotaSpec)
    status: ElasticQuotaStatus = field(default_factory=ElasticQuotaStatus)


class ElasticQuotaProfileSpec(Foreign, kw_only=True):
    """A pool of nodes, and the quota at the root of its own tree that is made from them."""

    quota_name: str
    quota_labels: Annotated[dict[str, str], "Labels of that quota."] = field(default_factory=dict)
    resource_ratio: Annotated[str, "Share of the nodes' resources that the quota gets: a decimal above 0, up to 1."] = ""
    node_selector: Annotated[LabelSelector, "The nodes."]


class ElasticQuotaProfileStatus(Foreign):
    pass


class ElasticQuotaProfile(Object, kw_only=True):
    """Makes the root quota of a tree from the nodes of a pool."""

    spec: ElasticQuotaProfileSpec
    status: ElasticQuotaProfileStatus = field(default_factory=ElasticQuotaProfileStatus)


_resource = functools.partial(custom_resource, group="scheduling.sigs.k8s.io", has_status=False)

RESOURCES: tuple[Resource, ...] = (
    _resource(
        PodGroup,
        "podgroups",
        short_names=("pg", "pgs"),
        columns=(
            PHASE,
            Column(name="MinMember", path=".spec.minMember", type="integer"),
            Column(name="Running", path=".status.running", type="integer"),
            Column(name="Succeeded", path=".status.succeeded", type="integer"),
            Column(name="Failed", path=".status.failed", type="integer"),
            AGE,
        ),
    ),
    _resource(
        ElasticQuota,
        "elasticquotas",
        short_names=("eq", "eqs"),
        columns=(Column(name="Used", path=".status.used"), Column(name="Max", path=".spec.max"), AGE),
    ),
    _resource(
        ElasticQuotaProfile,
        "elasticquotaprofiles",
        group="quota.koordinator.sh",
        short_names=("eqp",),
        categories=("koordinator",),
    ),
)
