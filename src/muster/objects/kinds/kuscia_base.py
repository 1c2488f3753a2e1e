"""What several of Kuscia's kinds share. Pure."""

from __future__ import annotations

import functools
from typing import Annotated, Final, Literal

import msgspec
from msgspec import field

from muster.objects.kinds.base import between, one_of
from muster.objects.kinds.shapes import Count, Foreign, Retry, Seconds, custom_resource
from muster.objects.view import keyed

GROUP = "kuscia.secretflow"

API_VERSION: Final = f"{GROUP}/v1alpha1"

TaskPhase = Literal["", "Pending", "Running", "Succeeded", "Failed"]
TASK_ENDED: Final = ("Succeeded", "Failed")
InterConnProtocol = Annotated[str, one_of("", "kuscia", "bfia")]


class BandwidthLimit(Foreign):
    """A ceiling on what the party's task sends to one peer."""

    destination_id: Annotated[str, "The peer: a Domain."] = field(name="destinationID")
    limit_kbps: Annotated[int, "In KiB per second.", between(0, number_format="int64")] = field(name="limitKBps")


BandwidthLimits = Annotated[list[BandwidthLimit], keyed("destinationID")]


class ScheduleConfig(Foreign):
    """How long to try, and with how many parties to start."""

    min_reserved_members: (
        Annotated[int, "Parties that must have reserved; all when left out.", between(1, number_format="int64")] | None
    ) = None
    resource_reserved_seconds: Annotated[Seconds, "How long a party holds what it reserved."] = 0
    lifecycle_seconds: Annotated[Seconds, "Give up when not scheduled by then; wait without end when 0 or left out."] = 0
    retry_interval_seconds: Annotated[Seconds, "Pause before reserving again."] = 0


TaskRetry = Annotated[Retry | None, "What to do when it fails; it is not tried again when left out. Beyond Kuscia."]
RunSeconds = Annotated[Seconds, "Fail when running longer; no limit when 0 or left out. Beyond Kuscia."]
Attempts = Annotated[Count, "How often it was started. Beyond Kuscia."]
Preemptions = Annotated[Count, "How often it had to make room for other work. Beyond Kuscia."]
AttainedSeconds = Annotated[
    float,
    "How long earlier attempts ran, as far as it was saved when they gave way. Beyond Kuscia.",
    msgspec.Meta(ge=0),
]

kuscia_resource = functools.partial(custom_resource, group=GROUP, categories=("kuscia",), has_status=False)
"""A kind of Kuscia's group, named after its view."""
