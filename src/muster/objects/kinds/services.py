"""Services and the addresses behind them. Pure."""

# ruff: noqa: RUF012 - msgspec gives each object an empty container of its own
from __future__ import annotations

from typing import Annotated

from muster.objects.conditions import Conditions
from muster.objects.kinds.base import (
    ATOMIC_MAP,
    AtomicTexts,
    Native,
    NativeObject,
    Port,
    Protocol,
    Strings,
    between,
    keyed_merge,
    one_of,
)
from muster.objects.kinds.references import ObjectReference
from muster.objects.view import ATOMIC, IntOrString


class ServicePort(Native):
    """A port of a service."""

    port: Annotated[Port, "Its number at the service's address."]
    name: Annotated[str, "Its name; needed when there are several."] = ""
    protocol: Annotated[Protocol, "TCP, UDP or SCTP."] = "TCP"
    app_protocol: Annotated[str | None, "What is spoken over it, as a hint."] = None
    target_port: Annotated[IntOrString | None, "Number or name at the pods; the same number when absent."] = None
    node_port: Annotated[int, between(0, 65535), "Its number at every node."] = 0


class ClientIPConfig(Native):
    """Affinity by client address."""

    timeout_seconds: Annotated[int | None, between(1, 86400), "How long it lasts."] = None


class SessionAffinityConfig(Native):
    """Settings of session affinity."""

    client_ip: Annotated[ClientIPConfig | None, "By client address."] = None


class ServiceSpec(Native):
    """Which pods, under which address and ports."""

    ports: Annotated[list[ServicePort], keyed_merge("port", "protocol"), "Its ports."] = []
    selector: Annotated[AtomicTexts, "Labels of the pods behind it; when empty, somebody else keeps its endpoints."] = {}
    cluster_ip: Annotated[str, "Its address; `None` for a headless service. Can't be changed once set."] = ""
    cluster_ips: Annotated[Strings, "The same, one for each IP family."] = []
    type: Annotated[str, one_of("ClusterIP", "NodePort", "LoadBalancer", "ExternalName"), "How far it can be reached."] = (
        "ClusterIP"
    )
    external_ips: Annotated[Strings, "Further addresses that lead here."] = []
    session_affinity: Annotated[str, one_of("None", "ClientIP"), "Whether a client stays with its pod."] = "None"
    session_affinity_config: Annotated[SessionAffinityConfig | None, "Settings for it."] = None
    load_balancer_ip: Annotated[str, "Address that the load balancer shall use."] = ""
    load_balancer_source_ranges: Annotated[Strings, "Networks that may use the load balancer."] = []
    load_balancer_class: Annotated[str | None, "The load balancer to use."] = None
    allocate_load_balancer_node_ports: Annotated[bool | None, "Whether a load balancer gets node ports."] = None
    external_name: Annotated[str, "DNS name that an ExternalName service stands for."] = ""
    external_traffic_policy: Annotated[
        str, one_of("", "Cluster", "Local"), "Whether traffic from outside stays on the node that it reached."
    ] = ""
    internal_traffic_policy: Annotated[
        str | None, one_of("Cluster", "Local"), "Whether traffic from inside stays on its node."
    ] = None
    health_check_node_port: Annotated[int, between(0, 65535), "Port for the load balancer's checks, with Local."] = 0
    publish_not_ready_addresses: Annotated[bool, "Include pods that are not ready."] = False
    ip_families: Annotated[Strings, "IPv4, IPv6, or both."] = []
    ip_family_policy: Annotated[
        str | None, one_of("SingleStack", "PreferDualStack", "RequireDualStack"), "One IP family or two."
    ] = None
    traffic_distribution: Annotated[str | None, "Which endpoints are liked better, such as PreferSameZone."] = None


class PortStatus(Native):
    """A port of a load balancer."""

    port: Annotated[int, between(), "Its number."]
    protocol: Annotated[Protocol, "TCP, UDP or SCTP."]
    error: Annotated[str | None, "What went wrong with it."] = None


class LoadBalancerIngress(Native):
    """An address of a load balancer."""

    ip: Annotated[str, "As a number."] = ""
    hostname: Annotated[str, "As a name."] = ""
    ip_mode: Annotated[str | None, one_of("VIP", "Proxy"), "How packets arrive."] = None
    ports: Annotated[list[PortStatus], ATOMIC, "Its ports."] = []


class LoadBalancerStatus(Native):
    """What a load balancer gave."""

    ingress: Annotated[list[LoadBalancerIngress], ATOMIC, "Addresses that lead here."] = []


class ServiceStatus(Native):
    """What is known about a service."""

    load_balancer: Annotated[LoadBalancerStatus | None, "Its load balancer."] = None
    conditions: Annotated[Conditions, "Facts about it."] = []


class Service(NativeObject):
    """One address and name for a set of pods."""

    spec: Annotated[ServiceSpec | None, "Which pods, under which address."] = None
    status: Annotated[ServiceStatus | None, "What is known about it."] = None


class EndpointAddress(Native):
    """An address behind a service."""

    __schema_extra__ = ATOMIC_MAP

    ip: Annotated[str, "The address."]
    hostname: Annotated[str, "Its host name."] = ""
    node_name: Annotated[str | None, "The node it is on."] = None
    target_ref: Annotated[ObjectReference | None, "The pod it belongs to."] = None


class EndpointPort(Native):
    """A port behind a service."""

    __schema_extra__ = ATOMIC_MAP

    port: Annotated[Port, "Its number."]
    name: Annotated[str, "The service port's name."] = ""
    protocol: Annotated[Protocol, "TCP, UDP or SCTP."] = "TCP"
    app_protocol: Annotated[str | None, "What is spoken over it."] = None


class EndpointSubset(Native):
    """Addresses that have the same ports."""

    addresses: Annotated[list[EndpointAddress], ATOMIC, "Those that are ready."] = []
    not_ready_addresses: Annotated[list[EndpointAddress], ATOMIC, "Those that are not."] = []
    ports: Annotated[list[EndpointPort], ATOMIC, "Their ports."] = []


class Endpoints(NativeObject):
    """The addresses behind the service of the same name. EndpointSlice is the newer form."""

    subsets: Annotated[list[EndpointSubset], ATOMIC, "The addresses, grouped by their ports."] = []
