"""Kubernetes' `networking.k8s.io/v1`: network policies and ingresses. Pure."""

# ruff: noqa: RUF012 - msgspec gives each object an empty container of its own
from __future__ import annotations

from typing import Annotated

from msgspec import field

from muster.objects.kinds.base import AGE, ATOMIC_MAP, Native, NativeObject, Protocol, Selector, Strings, between, one_of
from muster.objects.kinds.references import TypedLocalObjectReference
from muster.objects.resources import Column, Resource
from muster.objects.selectors import LabelSelector
from muster.objects.view import ATOMIC, Int32, IntOrString


class NetworkPolicyPort(Native):
    """A port, or a range of them."""

    protocol: Annotated[Protocol | None, "TCP, UDP or SCTP."] = "TCP"
    port: Annotated[IntOrString | None, "Number, or name of a container port; absent for all."] = None
    end_port: Annotated[int | None, between(1, 65535), "Last port of a range that begins at `port`."] = None


class IPBlock(Native):
    """A network, less some parts."""

    cidr: Annotated[str, "The network, such as 10.0.0.0/8."]
    except_: Annotated[Strings, "Parts of it that are left out."] = []


class NetworkPolicyPeer(Native):
    """Who is allowed."""

    pod_selector: Annotated[Selector | None, "These pods, in this namespace or those of `namespaceSelector`."] = None
    namespace_selector: Annotated[Selector | None, "Pods in these namespaces."] = None
    ip_block: Annotated[IPBlock | None, "These addresses; then neither of the others may be set."] = None


class NetworkPolicyIngressRule(Native):
    """Traffic that is let in."""

    ports: Annotated[list[NetworkPolicyPort], ATOMIC, "To these ports; empty means all."] = []
    from_: Annotated[list[NetworkPolicyPeer], ATOMIC, "From these; empty means all."] = []


class NetworkPolicyEgressRule(Native):
    """Traffic that is let out."""

    ports: Annotated[list[NetworkPolicyPort], ATOMIC, "To these ports; empty means all."] = []
    to: Annotated[list[NetworkPolicyPeer], ATOMIC, "To these; empty means all."] = []


class NetworkPolicySpec(Native):
    """Which pods, and what traffic they may have."""

    pod_selector: Annotated[Selector, "The pods; empty means all of the namespace."] = field(default_factory=LabelSelector)
    ingress: Annotated[list[NetworkPolicyIngressRule], ATOMIC, "What is let in."] = []
    egress: Annotated[list[NetworkPolicyEgressRule], ATOMIC, "What is let out."] = []
    policy_types: Annotated[Strings, "Ingress, Egress or both: the directions that this speaks of."] = []


class NetworkPolicy(NativeObject):
    """What traffic pods of a namespace may have. Whatever no policy speaks of is allowed."""

    spec: Annotated[NetworkPolicySpec | None, "Which pods, what traffic."] = None


class ServiceBackendPort(Native):
    """A port of a service; one of the two is set."""

    __schema_extra__ = ATOMIC_MAP

    name: Annotated[str, "By name."] = ""
    number: Annotated[Int32, "By number."] = 0


class IngressServiceBackend(Native):
    """A service to send requests to."""

    name: Annotated[str, "The service, in the same namespace."]
    port: Annotated[ServiceBackendPort | None, "Its port."] = None


class IngressBackend(Native):
    """Where requests go; one of the two is set."""

    service: Annotated[IngressServiceBackend | None, "A service."] = None
    resource: Annotated[TypedLocalObjectReference | None, "Another object in the same namespace."] = None


class HTTPIngressPath(Native):
    """A path and where its requests go."""

    path_type: Annotated[str, one_of("Exact", "Prefix", "ImplementationSpecific"), "How `path` compares."]
    backend: Annotated[IngressBackend, "Where its requests go."]
    path: Annotated[str, "The path."] = ""


class HTTPIngressRuleValue(Native):
    """Paths of a host."""

    paths: Annotated[list[HTTPIngressPath], ATOMIC, "The paths."]


class IngressRule(Native):
    """What happens to requests for one host."""

    host: Annotated[str, "The host, perhaps `*.example.com`; empty means all."] = ""
    http: Annotated[HTTPIngressRuleValue | None, "Its paths."] = None


class IngressTLS(Native):
    """A certificate for some hosts."""

    hosts: Annotated[Strings, "The hosts."] = []
    secret_name: Annotated[str, "Secret with certificate and key."] = ""


class IngressSpec(Native):
    """What requests go where."""

    ingress_class_name: Annotated[str | None, "Class that says which controller takes care of it."] = None
    default_backend: Annotated[IngressBackend | None, "Where requests go that no rule names."] = None
    rules: Annotated[list[IngressRule], ATOMIC, "Rules by host."] = []
    tls: Annotated[list[IngressTLS], ATOMIC, "Certificates."] = []


class IngressPortStatus(Native):
    """A port that is served."""

    port: Annotated[Int32, "Its number."]
    protocol: Annotated[Protocol, "TCP, UDP or SCTP."]
    error: Annotated[str | None, "What went wrong with it."] = None


class IngressLoadBalancerIngress(Native):
    """An address that leads here."""

    ip: Annotated[str, "As a number."] = ""
    hostname: Annotated[str, "As a name."] = ""
    ports: Annotated[list[IngressPortStatus], ATOMIC, "Its ports."] = []


class IngressLoadBalancerStatus(Native):
    """What the load balancer gave."""

    ingress: Annotated[list[IngressLoadBalancerIngress], ATOMIC, "Addresses that lead here."] = []


class IngressStatus(Native):
    """What is known about an ingress."""

    load_balancer: Annotated[IngressLoadBalancerStatus | None, "Its load balancer."] = None


class Ingress(NativeObject):
    """Sends HTTP requests from outside to services, by host and path."""

    spec: Annotated[IngressSpec | None, "What requests go where."] = None
    status: Annotated[IngressStatus | None, "What is known about it."] = None


class IngressClassParametersReference(Native):
    """An object with settings for the controller."""

    kind: Annotated[str, "Its kind."]
    name: Annotated[str, "Its name."]
    api_group: Annotated[str | None, "Its API group."] = None
    scope: Annotated[str | None, one_of("Cluster", "Namespace"), "Whether it is in a namespace."] = None
    namespace: Annotated[str | None, "Its namespace."] = None


class IngressClassSpec(Native):
    """Who takes care of ingresses of this class."""

    controller: Annotated[str, "The controller's name, such as example.com/ingress. Can't be changed."] = ""
    parameters: Annotated[IngressClassParametersReference | None, "Settings for it."] = None


class IngressClass(NativeObject):
    """A kind of ingress that Ingress objects can name."""

    spec: Annotated[IngressClassSpec | None, "Who takes care of it."] = None


RESOURCES: tuple[Resource, ...] = (
    Resource(
        group="networking.k8s.io",
        version="v1",
        kind="NetworkPolicy",
        plural="networkpolicies",
        short_names=("netpol",),
        view=NetworkPolicy,
        columns=(Column(name="Pod-Selector", path=".spec.podSelector.matchLabels"), AGE),
    ),
    Resource(
        group="networking.k8s.io",
        version="v1",
        kind="Ingress",
        plural="ingresses",
        short_names=("ing",),
        subresources=frozenset({"status"}),
        view=Ingress,
        columns=(
            Column(name="Class", path=".spec.ingressClassName"),
            Column(name="Hosts", path=".spec.rules[*].host"),
            Column(name="Address", path=".status.loadBalancer.ingress[*].ip"),
            AGE,
        ),
    ),
    Resource(
        group="networking.k8s.io",
        version="v1",
        kind="IngressClass",
        plural="ingressclasses",
        namespaced=False,
        view=IngressClass,
        columns=(
            Column(name="Controller", path=".spec.controller"),
            Column(name="Parameters", path=".spec.parameters.name"),
            AGE,
        ),
    ),
)
