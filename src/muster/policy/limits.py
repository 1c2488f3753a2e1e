"""Queues, users and groups, as the engine's events have them, as nodes of the quota tree. Pure."""

from __future__ import annotations

from muster.engine.facts import LimitsFacts, QueueFacts, StandingFacts, UserFacts, UserGroupFacts
from muster.objects.reasons import Reason
from muster.quota.limits import Ceilings, ceilings
from muster.quota.tree import NodeSpec


def queue_node(queue: QueueFacts) -> NodeSpec:
    """A queue that is Stopped has no mark here: the gate asks the tree of queues, and says so in its own words."""
    return NodeSpec(kind="Queue", name=queue.metadata.name, parent=queue.spec.parent, limits=_ceilings(queue.spec.limits))


def user_node(user: UserFacts) -> NodeSpec:
    name, standing = user.metadata.name, user.status.standing
    why = f"spec.suspended of User {name} is true; whoever looks after the users sets it to false"
    stopped = f"{Reason.SUSPENDED.value}: {why}" if user.spec.suspended else _stopped(standing)
    return NodeSpec(
        kind="User", name=name, parent=user.spec.group, limits=_in_force(user.spec.limits, standing), stopped=stopped
    )


def group_node(group: UserGroupFacts) -> NodeSpec:
    return NodeSpec(
        kind="UserGroup",
        name=group.metadata.name,
        parent=group.spec.parent,
        limits=_in_force(group.spec.limits, group.status.standing),
        stopped=_stopped(group.status.standing),
    )


def _stopped(standing: StandingFacts | None) -> str:
    return standing.stopped if standing is not None else ""


def _in_force(limits: LimitsFacts, standing: StandingFacts | None) -> Ceilings:
    """When a budget is spent, other limits may hold."""
    return _ceilings(standing.limits if standing is not None and standing.limits is not None else limits)


def _ceilings(limits: LimitsFacts) -> Ceilings:
    return ceilings(concurrent=limits.concurrent, jobs_running=limits.jobs_running)
