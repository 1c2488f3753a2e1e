"""Muster's own kinds, `muster.dev/v1alpha1`: users, groups, pools, links, placements; jobs and queues from beside. Pure."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import field

from muster.objects.conditions import Conditions
from muster.objects.kinds.base import AGE, Object
from muster.objects.kinds.muster_base import Budget, Level, Limits, Price, Standing, Usage, muster_resource
from muster.objects.kinds.muster_jobs import JOB
from muster.objects.kinds.muster_queues import QUEUE, SCHEDULING_POLICY
from muster.objects.kinds.muster_usage import USAGE_RECORD
from muster.objects.kinds.shapes import PHASE, Amount, Amounts, Count
from muster.objects.resources import Column, Resource
from muster.objects.selectors import LabelSelector
from muster.objects.time import Timestamp
from muster.objects.view import View, keyed


class UserGroupSpec(View):
    """Standing and limits of a group; its users' limits add up to no more than these."""

    display_name: str = ""
    parent: Annotated[str, "The group above; a top group when left out."] = ""
    level: Level = 0
    weight: Annotated[int, "Its share among the groups beside it.", msgspec.Meta(ge=1, le=10_000)] = 1
    admins: Annotated[list[str], "Users who divide the group's limits, and may see and stop its work."] = field(
        default_factory=list
    )
    limits: Limits = field(default_factory=Limits)
    budget: Budget | None = None
    prices: Annotated[list[Price], keyed("resource"), "Those of the group above when left out."] = field(default_factory=list)


class UserGroupStatus(View):
    """What the group uses, its groups below included."""

    users: Count = 0
    usage: Usage | None = None
    standing: Standing | None = None
    divided: Annotated[Amounts, "What of `limits.concurrent` its users and groups below have been given."] = field(
        default_factory=dict
    )
    observed_generation: int = 0
    conditions: Conditions = field(default_factory=list)


class UserGroup(Object, kw_only=True):
    """Users who share limits and a budget."""

    spec: UserGroupSpec
    status: UserGroupStatus = field(default_factory=UserGroupStatus)


class UserSpec(View, kw_only=True):
    """Standing and limits of a user."""

    display_name: str = ""
    group: Annotated[str, "The UserGroup that it belongs to."]
    level: Level = 0
    weight: Annotated[int, "Its share among the users of the group.", msgspec.Meta(ge=1, le=10_000)] = 1
    usernames: Annotated[list[str], "Names under which it logs in; the object's own name when left out."] = field(
        default_factory=list
    )
    limits: Limits = field(default_factory=Limits)
    budget: Budget | None = None
    suspended: Annotated[bool, "May submit nothing."] = False


class UserStatus(View):
    """What the user uses."""

    usage: Usage | None = None
    standing: Standing | None = None
    observed_generation: int = 0
    conditions: Conditions = field(default_factory=list)


class User(Object, kw_only=True):
    """Someone who submits work."""

    spec: UserSpec
    status: UserStatus = field(default_factory=UserStatus)


class NodePoolSpec(View):
    """Which nodes: those that the selector matches, and those that are named."""

    description: str = ""
    selector: Annotated[LabelSelector | None, "Nodes join and leave as their labels change."] = None
    nodes: Annotated[list[str], "Nodes by name."] = field(default_factory=list)
    exclusive: Annotated[bool, "Its nodes take only work that names the pool."] = False
    packing: Annotated[Literal["", "Pack", "Spread"], "How to fill it; the profile's way when left out."] = ""


class DeviceTotal(View, kw_only=True):
    type: str
    model: str = ""
    memory: Annotated[Amount | None, "Of one device."] = None
    total: Count = 0
    used: Count = 0


class NodePoolStatus(View):
    """What the pool has and what of it is used."""

    nodes: list[str] = field(default_factory=list)
    ready: Count = 0
    capacity: Amounts = field(default_factory=dict)
    allocatable: Amounts = field(default_factory=dict)
    requested: Amounts = field(default_factory=dict)
    used: Annotated[Amounts, "As measured."] = field(default_factory=dict)
    devices: list[DeviceTotal] = field(default_factory=list)
    observed_generation: int = 0
    conditions: Conditions = field(default_factory=list)


class NodePool(Object):
    """Nodes that queues and jobs can be bound to."""

    spec: NodePoolSpec = field(default_factory=NodePoolSpec)
    status: NodePoolStatus = field(default_factory=NodePoolStatus)


class LinkEnd(View):
    """A party or a pool; give one of them."""

    domain: str = ""
    pool: str = ""


class LinkSpec(View, kw_only=True):
    """How much can pass between two parties or pools."""

    from_: LinkEnd = field(name="from")
    to: LinkEnd
    capacity: Annotated[Amount, "In the direction from `from` to `to`: `10Gbps`."]
    reverse: Annotated[Amount | None, "The other way; as much when left out."] = None
    reserved: Annotated[Amount | None, "Held back in both directions."] = None


class LinkStatus(View):
    """What is promised and what is used, in bits per second."""

    reserved_bps: int = 0
    reverse_reserved_bps: int = 0
    used_bps: int = 0
    reverse_used_bps: int = 0
    conditions: Conditions = field(default_factory=list)


class Link(Object, kw_only=True):
    """A network link that every job between its two ends counts on."""

    spec: LinkSpec
    status: LinkStatus = field(default_factory=LinkStatus)


class PlacedDevice(View, kw_only=True):
    type: str
    minors: list[int] = field(default_factory=list)
    resources: Amounts = field(default_factory=dict)


class PlacedPod(View, kw_only=True):
    namespace: str
    name: str
    uid: str
    node: str
    devices: list[PlacedDevice] = field(default_factory=list)
    annotations: Annotated[dict[str, str], "Written to the pod as it is bound."] = field(default_factory=dict)
    labels: Annotated[dict[str, str], "Written to the pod before it is bound."] = field(default_factory=dict)


class PlacementSpec(View, kw_only=True):
    """A whole unit's map of pods to nodes and devices, written before the first pod is bound."""

    unit: str
    epoch: Annotated[int, "Of the leader that decided."] = 0
    pods: Annotated[list[PlacedPod], keyed("namespace", "name"), msgspec.Meta(min_length=1)]
    decided: Timestamp = ""
    held_until: Annotated[Timestamp, "Promised to other control planes, and not to be bound before they are ready."] = ""


class PlacementStatus(View):
    """How far the binding is; a restart finishes or undoes what is not done."""

    phase: Literal["", "Binding", "Bound", "Undoing", "Undone"] = ""
    bound: Count = 0
    message: str = ""


class Placement(Object, kw_only=True):
    """A decision of the scheduler that is being carried out."""

    spec: PlacementSpec
    status: PlacementStatus = field(default_factory=PlacementStatus)


RESOURCES: tuple[Resource, ...] = (
    JOB,
    QUEUE,
    SCHEDULING_POLICY,
    muster_resource(
        UserGroup,
        "usergroups",
        short_names=("ug",),
        columns=(
            Column(name="Level", path=".spec.level", type="integer"),
            Column(name="Parent", path=".spec.parent"),
            Column(name="Users", path=".status.users", type="integer"),
            Column(name="Running", path=".status.usage.jobsRunning", type="integer"),
            Column(name="Waiting", path=".status.usage.jobsWaiting", type="integer"),
            AGE,
        ),
    ),
    muster_resource(
        User,
        "users",
        short_names=("mu",),
        columns=(
            Column(name="Group", path=".spec.group"),
            Column(name="Level", path=".spec.level", type="integer"),
            Column(name="Running", path=".status.usage.jobsRunning", type="integer"),
            Column(name="Waiting", path=".status.usage.jobsWaiting", type="integer"),
            AGE,
        ),
    ),
    muster_resource(
        NodePool,
        "nodepools",
        short_names=("np",),
        columns=(
            Column(name="Ready", path=".status.ready", type="integer"),
            Column(name="CPU", path=".status.allocatable.cpu"),
            Column(name="Memory", path=".status.allocatable.memory"),
            Column(name="Bandwidth", path=".status.allocatable.bandwidth-egress"),
            Column(name="Exclusive", path=".spec.exclusive", type="boolean"),
            AGE,
        ),
    ),
    muster_resource(
        Link,
        "links",
        columns=(
            Column(name="Capacity", path=".spec.capacity"),
            Column(name="Reserved", path=".status.reservedBps", type="integer"),
            Column(name="Used", path=".status.usedBps", type="integer"),
            AGE,
        ),
    ),
    USAGE_RECORD,
    muster_resource(Placement, "placements", columns=(PHASE, Column(name="Bound", path=".status.bound", type="integer"), AGE)),
)
