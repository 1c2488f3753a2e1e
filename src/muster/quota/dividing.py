"""Dividing what a group has among its users and groups, so that the parts never come to more than the whole. Pure.

What a node has been given of a resource is its own limit; where it has none, what the nodes under it have been given together.
The children of a node with a limit may have been given that much in all, and no more. A child without a limit is given nothing
of its own: it lives on what is left, and the limit above holds for all of them together, whatever was divided.

The same for amounts in use at once, amounts submitted, numbers of jobs, consumption per period, and budgets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from muster.objects.amounts import unit_of
from muster.objects.reasons import format_amount
from muster.quota.limits import Ceilings, NodeKey
from muster.quota.nodes import NodeSpec
from muster.quota.tree import QuotaTree
from muster.quota.units import shown, unit_name

DEPTH_MAX: Final = 16
"""Groups or queues above each other."""
ADMIN_FIELDS: Final = frozenset({"limits", "budget", "weight", "level", "suspended", "displayName"})
"""Of the spec of a user or group below, what an administrator of the group may change, besides moving it within the group."""
_MONEY_PARTS: Final = 1_000_000

Share = tuple[str, str]
"""Field under spec.limits, and resource."""


def shares_of(limits: Ceilings) -> dict[Share, int]:
    """Everything in these limits that can be divided."""
    found: dict[Share, int] = {}
    for field, amounts in (
        ("concurrent", limits.concurrent),
        ("submitted", limits.submitted),
        ("consumption", limits.consumption),
        ("budget", limits.budget),
    ):
        found.update({(field, name): amount for name, amount in amounts.items()})
    for field, count in (("jobsRunning", limits.jobs_running), ("jobsSubmitted", limits.jobs_submitted)):
        if count is not None:
            found[field, ""] = count
    return found


def given_to(tree: QuotaTree, spec: NodeSpec, instead: Mapping[NodeKey, NodeSpec] | None = None) -> dict[Share, int]:
    """What the node has been given: its own limits, and where it has none, those below it together."""
    return {**divided(tree, spec, instead), **shares_of(spec.own)}


def divided(tree: QuotaTree, spec: NodeSpec, instead: Mapping[NodeKey, NodeSpec] | None = None) -> dict[Share, int]:
    """What the node's children have been given, together. `instead`: specs that count in place of those in the tree."""
    swapped = instead or {}
    children = {child.key: child for child in tree.children(*spec.key)}
    for key, other in swapped.items():
        if other.parent_key == spec.key:
            children[key] = other
        else:
            children.pop(key, None)
    found: dict[Share, int] = {}
    for child in children.values():
        for share, amount in given_to(tree, child, swapped).items():
            found[share] = found.get(share, 0) + amount
    return found


def problems_of(tree: QuotaTree, spec: NodeSpec) -> list[str]:
    """Why this node must not be put into the tree as it is: a circle, too deep a chain, or parts that exceed a whole. Each
    names the field, the figures and the way out. What was wrong before and is not made worse is not in it."""
    field = "spec.group" if spec.kind == "User" else "spec.parent"
    circle = tree.would_cycle(spec)
    if circle:
        names = " under ".join(name for _, name in [*circle, spec.key])
        return [f"{field}: {spec.kind} {spec.name} would stand above itself ({names}); name another"]
    above = _above(tree, spec)
    if len(above) >= DEPTH_MAX:
        return [f"{field}: {spec.kind} {spec.name} would stand under {len(above)} others; the limit is {DEPTH_MAX}"]
    before = tree.find(*spec.key)
    found = []
    instead = {spec.key: spec}
    for node in [spec, *above]:
        shares = shares_of(node.own)
        if not shares:
            continue
        old = tree.find(*node.key)
        parts, parts_before = divided(tree, node, instead), divided(tree, old) if old is not None else {}
        shares_before = shares_of(old.own) if old is not None else {}
        for share, whole in sorted(shares.items()):
            part = parts.get(share, 0)
            is_worse = part > parts_before.get(share, 0) or whole < shares_before.get(share, whole + 1) or before is None
            if part > whole and is_worse:
                found.append(_exceeded(node, share, whole, part))
    return found


def _above(tree: QuotaTree, spec: NodeSpec) -> list[NodeSpec]:
    wanted = spec.parent_key
    return tree.ancestors(*wanted) if wanted is not None else []


def _exceeded(node: NodeSpec, share: Share, whole: int, part: int) -> str:
    field, resource = share
    path = "spec.budget.amount" if field == "budget" else f"spec.limits.{field}" + (f"[{resource}]" if resource else "")
    has, given = shown_share(share, whole), shown_share(share, part)
    what = "queues" if node.kind == "Queue" else "users and groups"
    return (
        f"{path} of {node.kind} {node.name} is {has}, and the {what} under it would be given {given} in all; "
        f"give less to some of them, or have the limit of {node.kind} {node.name} raised"
    )


def shown_share(share: Share, amount: int) -> str:
    field, resource = share
    if field == "budget":
        return f"{amount / _MONEY_PARTS:.2f} per {resource}"
    if field == "consumption":
        name = resource.partition(" per ")[0]
        return f"{shown(name, amount)} {unit_name(name)}"
    return format_amount(amount, unit_of(resource) if resource else "count")


def administered(tree: QuotaTree, admins: Mapping[str, frozenset[str]], user: str) -> frozenset[NodeKey]:
    """All users and groups that stand under a group that this user administers; `admins` are the administrators by group."""
    found: set[NodeKey] = set()
    waiting: list[NodeKey] = [("UserGroup", group) for group, users in admins.items() if user in users]
    tops = set(waiting)
    seen: set[NodeKey] = set()
    while waiting:
        at = waiting.pop()
        if at in seen:
            continue
        seen.add(at)
        for child in tree.children(*at):
            found.add(child.key)
            waiting.append(child.key)
    # A group that one administers is not under oneself, unless it also stands under another such group.
    return frozenset(found) | frozenset(key for key in tops if key in found)


def beyond_division(old: Mapping[str, object], new: Mapping[str, object], parent_field: str) -> list[str]:
    """Fields of a spec that changed and that an administrator of the group above may not change."""
    fields = sorted({*old, *new})
    return [f"spec.{name}" for name in fields if old.get(name) != new.get(name) and name not in {*ADMIN_FIELDS, parent_field}]
