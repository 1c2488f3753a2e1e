"""What several of Muster's own kinds share. Pure.

Unlike the kinds of other projects these keep no unknown field: a misspelled one is refused or reported, not ignored.
"""

from __future__ import annotations

import functools
from typing import Annotated, Literal

import msgspec
from msgspec import field

from muster.objects.kinds.shapes import Amount, Amounts, Percent, custom_resource
from muster.objects.time import Timestamp
from muster.objects.view import View

GROUP = "muster.dev"

Level = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
"""Standing of a user or group; what it counts for is the policy's formula's business."""
Name = Annotated[str, msgspec.Meta(extra_json_schema={"pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63})]
"""A name within the object: a DNS label."""
MONEY_MAX = 1e12
"""Of a budget or a price: sums of such are still numbers that can be shown."""
Period = Literal["Day", "Week", "Month", "Year", "Ever"]


class ConsumptionLimit(View, kw_only=True):
    """A ceiling on use added up over time: core-hours of `cpu`, GPU-hours, GiB-hours of `memory`, bytes of `bandwidth`."""

    resource: str
    amount: Amount
    period: Period = "Month"


class Limits(View):
    """Ceilings for a user, group or queue. A resource that is not named has none."""

    concurrent: Annotated[Amounts, "In use at once; more waits."] = field(default_factory=dict)
    submitted: Annotated[Amounts, "Running and waiting together; more is refused."] = field(default_factory=dict)
    per_job: Annotated[Amounts, "For one job; a larger one is refused."] = field(default_factory=dict)
    jobs_running: Annotated[int, msgspec.Meta(ge=0)] | None = None
    jobs_submitted: Annotated[int, msgspec.Meta(ge=0)] | None = None
    consumption: Annotated[
        list[ConsumptionLimit],
        msgspec.Meta(
            extra_json_schema={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["resource", "period"]},
        ),
    ] = field(default_factory=list)


class Budget(View, kw_only=True):
    """What may be spent in a period, at the group's prices."""

    amount: Annotated[float, msgspec.Meta(ge=0, le=MONEY_MAX)]
    period: Period = "Month"
    warn_at_percent: Annotated[list[Percent], "Shares of the budget at which to warn."] = field(default_factory=list)
    when_spent: Annotated[Literal["Hold", "Limit", "Warn"], "Start nothing new, keep to `limits`, or only warn."] = "Hold"
    limits: Annotated[Limits | None, "In force besides `spec.limits` once the budget is spent, with `whenSpent: Limit`."] = None


class Price(View, kw_only=True):
    """Of one unit for one hour: a core, a GiB, a GPU; of bandwidth, of one GB moved."""

    resource: str
    amount: Annotated[float, msgspec.Meta(ge=0, le=MONEY_MAX)]


class Consumption(View, kw_only=True):
    """What was used in the current period."""

    resource: str
    amount: Amount
    period: Period
    since: Timestamp = ""


class Usage(View):
    """What is in use now, and what was used so far."""

    jobs_running: int = 0
    jobs_waiting: int = 0
    concurrent: Amounts = field(default_factory=dict)
    submitted: Amounts = field(default_factory=dict)
    consumed: list[Consumption] = field(default_factory=list)
    spent: float = 0


class FadedUse(View, kw_only=True):
    """Use that counts less the longer ago it was."""

    half_life_seconds: Annotated[int, "What was used so long ago counts half: `spec.fairShare` of a SchedulingPolicy."]
    used: Annotated[dict[str, float], "In resource-seconds."] = field(default_factory=dict)
    at: Annotated[float, "The moment that it stands for, in seconds since 1970."] = 0


class Exhausted(View, kw_only=True):
    """A consumption limit that is reached."""

    resource: Annotated[str, "What asks for it does not start."]
    message: Annotated[str, "Which limit, how much was used of it, and until when."] = ""


class Standing(View):
    """What the ledger has found: the scheduler goes by it."""

    faded: Annotated[list[FadedUse], "One for each half-life that a SchedulingPolicy with fair share has."] = field(
        default_factory=list
    )
    exhausted: Annotated[list[Exhausted], "Consumption limits that are reached."] = field(default_factory=list)
    stopped: Annotated[str, "Why nothing new may start: a budget is spent."] = ""
    limits: Annotated[Limits | None, "In force besides those in the spec, because a budget is spent."] = None
    warned_percent: Annotated[int, "The largest share of the budget of which a warning was given in this period."] = 0
    warned_since: Annotated[Timestamp, "When that period began."] = ""


muster_resource = functools.partial(custom_resource, group=GROUP, categories=("muster",), namespaced=False)
"""A kind of Muster's group, named after its view; every one has a status."""
