"""Kubernetes' `coordination.k8s.io/v1`: leases. Pure."""

from __future__ import annotations

from typing import Annotated

from muster.objects.kinds.base import AGE, Native, NativeObject, between, one_of
from muster.objects.resources import Column, Resource
from muster.objects.time import MicroTimestamp


class LeaseSpec(Native):
    """Who holds the lease, and until when."""

    holder_identity: Annotated[str | None, "Who holds it."] = None
    lease_duration_seconds: Annotated[int | None, between(1), "How long after `renewTime` others must wait."] = None
    acquire_time: Annotated[MicroTimestamp, "When the holder got it."] = ""
    renew_time: Annotated[MicroTimestamp, "When the holder last confirmed it."] = ""
    lease_transitions: Annotated[int | None, between(0), "How often it has changed hands."] = None
    strategy: Annotated[str | None, one_of("OldestEmulationVersion"), "How the next holder is chosen."] = None
    preferred_holder: Annotated[str | None, "Who shall get it next."] = None


class Lease(NativeObject):
    """A right that one at a time holds: leadership, or being alive."""

    spec: Annotated[LeaseSpec | None, "Who holds it."] = None


RESOURCES: tuple[Resource, ...] = (
    Resource(
        group="coordination.k8s.io",
        version="v1",
        kind="Lease",
        plural="leases",
        generation_tracked=False,
        view=Lease,
        columns=(Column(name="Holder", path=".spec.holderIdentity"), AGE),
    ),
)
