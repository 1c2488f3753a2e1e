"""Kubernetes' `discovery.k8s.io/v1`: the addresses behind a service, in slices. Pure."""

# ruff: noqa: RUF012 - msgspec gives each object an empty container of its own
from __future__ import annotations

from typing import Annotated

from muster.objects.kinds.base import AGE, ATOMIC_MAP, Native, NativeObject, Protocol, Texts, between, default, one_of
from muster.objects.kinds.references import ObjectReference
from muster.objects.resources import Column, Resource
from muster.objects.view import ATOMIC, SET


class EndpointConditions(Native):
    """Whether traffic may go there."""

    ready: Annotated[bool | None, "New connections may go there; absent means yes."] = None
    serving: Annotated[bool | None, "It answers, though it may be on its way out."] = None
    terminating: Annotated[bool | None, "It is on its way out."] = None


class ForZone(Native):
    """A zone whose traffic should come here."""

    name: Annotated[str, "The zone."]


class ForNode(Native):
    """A node whose traffic should come here."""

    name: Annotated[str, "The node."]


class EndpointHints(Native):
    """Who should use this endpoint."""

    for_zones: Annotated[list[ForZone], ATOMIC, "These zones."] = []
    for_nodes: Annotated[list[ForNode], ATOMIC, "These nodes."] = []


class Endpoint(Native):
    """One place behind the service."""

    addresses: Annotated[list[str], SET, "Its addresses, all leading to the same place."]
    conditions: Annotated[EndpointConditions | None, "Whether traffic may go there."] = None
    hostname: Annotated[str | None, "Its host name."] = None
    target_ref: Annotated[ObjectReference | None, "The pod it belongs to."] = None
    deprecated_topology: Annotated[Texts, "Carried over from an older version."] = {}
    node_name: Annotated[str | None, "The node it is on."] = None
    zone: Annotated[str | None, "The zone it is in."] = None
    hints: Annotated[EndpointHints | None, "Who should use it."] = None


class EndpointPort(Native):
    """A port that all endpoints of the slice have."""

    __schema_extra__ = ATOMIC_MAP

    name: Annotated[str | None, default(""), "The service port's name."] = None
    protocol: Annotated[Protocol | None, "TCP, UDP or SCTP."] = "TCP"
    port: Annotated[int | None, between(0, 65535), "Its number; absent means all."] = None
    app_protocol: Annotated[str | None, "What is spoken over it."] = None


class EndpointSlice(NativeObject, kw_only=True):
    """Some of the addresses behind a service, named by the label `kubernetes.io/service-name`."""

    address_type: Annotated[str, one_of("IPv4", "IPv6", "FQDN"), "What the addresses are. Can't be changed."]
    endpoints: Annotated[list[Endpoint], ATOMIC, "The places; at most 1000."] = []
    ports: Annotated[list[EndpointPort], ATOMIC, "The ports that they have."] = []


RESOURCES: tuple[Resource, ...] = (
    Resource(
        group="discovery.k8s.io",
        version="v1",
        kind="EndpointSlice",
        plural="endpointslices",
        view=EndpointSlice,
        columns=(
            Column(name="AddressType", path=".addressType"),
            Column(name="Ports", path=".ports[*].port"),
            Column(name="Endpoints", path=".endpoints[*].addresses[*]"),
            AGE,
        ),
    ),
)
