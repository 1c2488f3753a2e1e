"""Nodes of the quota tree from the objects that describe them. Pure; never raises for what an object holds."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import Final

import msgspec

from muster.objects.amounts import resources_named
from muster.objects.kinds.muster import User, UserGroup
from muster.objects.kinds.muster_base import Budget, Limits, Standing
from muster.objects.kinds.muster_queues import Queue
from muster.objects.reasons import Reason
from muster.quota.limits import Ceilings, NodeKey, NodeKind, ceilings, with_spent_budget
from muster.quota.nodes import NodeSpec
from muster.quota.units import threshold

KINDS: Final[tuple[NodeKind, ...]] = ("User", "UserGroup", "Queue")
_PARTS: Final = 1_000_000


def ceilings_of(limits: Limits, budget: Budget | None = None) -> Ceilings:
    """Everything that a spec says about ceilings."""
    read = ceilings(
        concurrent=limits.concurrent,
        submitted=limits.submitted,
        per_job=limits.per_job,
        jobs_running=limits.jobs_running,
        jobs_submitted=limits.jobs_submitted,
    )
    problems = list(read.problems)
    consumption: dict[str, int] = {}
    for index, limit in enumerate(limits.consumption):
        try:
            amount = threshold(limit.resource, limit.amount)
        except ValueError as error:
            problems.append(f"limits.consumption[{index}].amount: {error}")
            amount = 0
        consumption[f"{limit.resource} per {limit.period}"] = amount
    money = {budget.period: int(Fraction(str(budget.amount)) * _PARTS)} if budget is not None else {}
    return msgspec.structs.replace(read, consumption=consumption, budget=money, problems=tuple(problems))


def exhausted_of(found: Iterable[tuple[str, str]]) -> dict[str, str]:
    """`Ceilings.exhausted` from names as limits have them, each with which limit is reached; the first of several is told."""
    notes: dict[str, str] = {}
    for resource, message in found:
        for name in resources_named(resource):
            notes.setdefault(name, message or f"the consumption limit of {resource} is reached")
    return notes


def node_of(view: User | UserGroup | Queue, name: str) -> NodeSpec:
    """The node that an object stands for, as it was written and as the ledger has judged it: limits in force once a budget is
    spent, and why nothing may start."""
    judged = view.status.standing or Standing()
    exhausted = exhausted_of((one.resource, one.message) for one in judged.exhausted)
    if isinstance(view, Queue):
        stopped = f"{Reason.QUEUE_STOPPED.value}: spec.state of Queue {name} is Stopped" if view.spec.state == "Stopped" else ""
        limits = msgspec.structs.replace(ceilings_of(view.spec.limits), exhausted=exhausted)
        return NodeSpec(kind="Queue", name=name, parent=view.spec.parent, limits=limits, stopped=stopped)
    stopped = judged.stopped
    written = msgspec.structs.replace(ceilings_of(view.spec.limits, view.spec.budget), exhausted=exhausted)
    is_spent = judged.limits is not None
    limits = with_spent_budget(written, ceilings_of(judged.limits)) if judged.limits is not None else written
    kind: NodeKind = "UserGroup" if isinstance(view, UserGroup) else "User"
    parent = view.spec.parent if isinstance(view, UserGroup) else view.spec.group
    return NodeSpec(kind=kind, name=name, parent=parent, limits=limits, written=written if is_spent else None, stopped=stopped)


def key_of(kind: str, name: str) -> NodeKey | None:
    return next(((one, name) for one in KINDS if one == kind), None)
