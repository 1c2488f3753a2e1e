"""Which limit of one node of the quota tree a request breaks. Pure functions; `quota.tree` asks them from the bottom up."""

from __future__ import annotations

from collections.abc import Mapping

from muster.objects.amounts import EGRESS, INGRESS
from muster.quota.limits import Breach, Field
from muster.quota.nodes import NodeSpec


def over(
    spec: NodeSpec,
    field: Field,
    limits: Mapping[str, int],
    used: Mapping[str, int],
    request: Mapping[str, int],
    *,
    never: bool = False,
) -> Breach | None:
    """The limit that is broken by most, in proportion; by name where several are."""
    worst: tuple[float, str] | None = None
    for name, limit in limits.items():
        asked = request.get(name, 0)
        if asked > 0 and used.get(name, 0) + asked > limit:
            rank = (-(used.get(name, 0) + asked - limit) / asked, name)
            worst = rank if worst is None else min(worst, rank)
    if worst is None:
        return None
    name = worst[1]
    return Breach(
        kind=spec.kind,
        name=spec.name,
        field=field,
        resource=name,
        limit=limits[name],
        used=used.get(name, 0),
        asked=request[name],
        never=never,
        is_of_budget=(field, name) in spec.limits.of_budget,
    )


def exhausted(spec: NodeSpec, request: Mapping[str, int]) -> Breach | None:
    """The first consumption limit, by name, that is reached and that the work would go on using. All work can move bytes."""
    for name, note in sorted(spec.limits.exhausted.items()):
        asked = request.get(name, 0)
        if asked > 0 or name in (EGRESS, INGRESS):
            return Breach(kind=spec.kind, name=spec.name, field="consumption", resource=name, asked=asked, note=note)
    return None


def too_many_jobs(spec: NodeSpec, field: Field, limit: int, used: int, asked: int, *, never: bool = False) -> Breach:
    return Breach(
        kind=spec.kind,
        name=spec.name,
        field=field,
        limit=limit,
        used=used,
        asked=asked,
        never=never,
        is_of_budget=(field, "") in spec.limits.of_budget,
    )
