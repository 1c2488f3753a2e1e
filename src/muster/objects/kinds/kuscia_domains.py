"""Kuscia's parties and what they run: Domain, InteropConfig, AppImage, DomainAppImage. Pure."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import field

from muster.objects.kinds.base import Object, between, one_of
from muster.objects.kinds.kuscia_base import InterConnProtocol, kuscia_resource
from muster.objects.kinds.kuscia_templates import PodTemplate
from muster.objects.kinds.shapes import Amounts, Count, Foreign, PlainCondition
from muster.objects.resources import Resource
from muster.objects.time import Timestamp
from muster.objects.view import Int32, keyed

AuthenticationType = Literal["Token", "MTLS", "None"]


class AuthCenter(Foreign):
    """How the party's own nodes prove who they are to their control plane."""

    authentication_type: AuthenticationType
    token_gen_method: Literal["", "RSA-GEN", "RAND-GEN", "UID-RSA-GEN"] = ""


class DomainResourceQuota(Foreign):
    """What the party may use here in all."""

    pod_max_count: Annotated[int, between(0, number_format="int64")] | None = None
    hard: Annotated[Amounts, "Ceilings for other resources: cpu, memory, bandwidth, devices. Beyond Kuscia."] = field(
        default_factory=dict
    )


class DomainSpec(Foreign):
    """A party: an organisation with its own nodes and data."""

    role: Annotated[str, one_of("", "partner"), "Empty for an own party."] = ""
    master: Annotated[str, "The party whose control plane it belongs to; itself when left out."] = ""
    inter_conn_protocols: Annotated[list[InterConnProtocol], "The first is used."] = field(default_factory=list)
    cert: Annotated[str, "Its certificate: base64 of PEM."] = ""
    auth_center: AuthCenter | None = None
    resource_quota: DomainResourceQuota | None = None


class DomainNodeStatus(Foreign):
    name: str
    version: str = ""
    status: Annotated[str, one_of("", "Ready", "NotReady")] = ""
    last_heartbeat_time: Timestamp = ""
    last_transition_time: Timestamp = ""


class DeployTokenStatus(Foreign):
    """A token with which nodes join. Its clear text is shown once, when it is made, and kept nowhere."""

    token: Annotated[str, "Masked: the part that names the token, without the part that proves it."]
    state: Annotated[str, one_of("used", "unused", "revoked")]
    last_transition_time: Timestamp = ""
    hash: Annotated[str, "SHA-256 of the whole token, in hex. Beyond Kuscia, as are all below."] = ""
    creation_time: Timestamp = ""
    expiration_time: Timestamp = ""
    uses: Annotated[Count, "How many nodes have joined with it."] = 0
    max_uses: Annotated[Count, "How many may; 0 stands for 1."] = 0


class DomainQuotaStatus(Foreign):
    """The quota in force, and what the party's pods that have a node ask for in all. Beyond Kuscia."""

    hard: Amounts = field(default_factory=dict)
    used: Amounts = field(default_factory=dict)
    last_update_time: Timestamp = ""


class DomainStatus(Foreign):
    """The party's nodes, the tokens with which more may join, and its quota."""

    node_statuses: Annotated[list[DomainNodeStatus], keyed("name")] = field(default_factory=list)
    deploy_token_statuses: list[DeployTokenStatus] = field(default_factory=list)
    conditions: Annotated[list[PlainCondition], keyed("type"), "Ready, and Terminating while it is deleted. Beyond Kuscia."] = (
        field(default_factory=list)
    )
    resource_quota: DomainQuotaStatus | None = None


class Domain(Object, kw_only=True):
    """A party of joint computations. It has a namespace of the same name."""

    spec: DomainSpec
    status: DomainStatus = field(default_factory=DomainStatus)


class InteropConfigSpec(Foreign):
    """Whose jobs the members take part in."""

    host: Annotated[str, "The party that schedules."]
    members: list[str]


class InteropConfig(Object, kw_only=True):
    """Two control planes that run jobs together."""

    spec: InteropConfigSpec


class AppImageInfo(Foreign):
    """Which image to run."""

    name: str
    tag: str
    id: Annotated[str, "When set (`sha256:...`), the node's image must have this id."] = ""
    sign: str = ""


class IngressFrom(Foreign):
    roles: list[str]


class IngressPort(Foreign):
    port: Annotated[str, "Name of a container port."]


class Ingress(Foreign):
    from_: IngressFrom = field(name="from")
    ports: list[IngressPort]


class NetworkPolicy(Foreign):
    """Which roles may reach which ports."""

    ingresses: list[Ingress]


class DeployTemplate(Foreign, kw_only=True):
    """How to run the image in one role, or in several that are named with commas between them."""

    name: str
    role: Annotated[str, "Roles that this template is for, as `a,b`; empty is for any role without its own."] = ""
    replicas: Int32 | None = None
    network_policy: NetworkPolicy | None = None
    spec: PodTemplate


class AppImageSpec(Foreign, kw_only=True):
    """An application: its image, configuration files, and a template for each role."""

    image: AppImageInfo
    config_templates: Annotated[dict[str, str], "File name to text with `{{.VARIABLE}}` in it."] = field(default_factory=dict)
    deploy_templates: list[DeployTemplate]


class AppImage(Object, kw_only=True):
    """An application that parties run in tasks and services."""

    spec: AppImageSpec


class DomainAppImageInfo(Foreign):
    tag: str
    id: str
    sign: str


class DomainAppImageSpec(Foreign):
    """The images that a party has."""

    images: list[DomainAppImageInfo] = field(default_factory=list)


class DomainAppImage(Object, kw_only=True):
    """The images of an application that one party has."""

    spec: DomainAppImageSpec


RESOURCES: tuple[Resource, ...] = (
    kuscia_resource(Domain, "domains", has_status=True, namespaced=False),
    kuscia_resource(InteropConfig, "interopconfigs", short_names=("interop",), namespaced=False),
    kuscia_resource(AppImage, "appimages", short_names=("aimg",), namespaced=False),
    kuscia_resource(DomainAppImage, "domainappimages", short_names=("daimg",)),
)
