"""Kuscia's network between parties: ClusterDomainRoute, DomainRoute, Gateway. Pure."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import field

from muster.objects.conditions import ConditionStatus
from muster.objects.kinds.base import Object, one_of
from muster.objects.kinds.kuscia_base import InterConnProtocol, kuscia_resource
from muster.objects.kinds.shapes import Count, Foreign, Port, Seconds
from muster.objects.resources import Column, Resource
from muster.objects.time import Timestamp
from muster.objects.view import keyed


class RoutePort(Foreign, kw_only=True):
    name: str
    protocol: Literal["HTTP", "GRPC"]
    path_prefix: str = ""
    is_tls: bool = field(default=False, name="isTLS")
    port: Port


class RouteEndpoint(Foreign):
    """Where the source reaches the destination."""

    host: str = ""
    ports: Annotated[list[RoutePort], keyed("name")] = field(default_factory=list)


class DomainTransit(Foreign):
    domain_id: str = field(name="domainID")


class Transit(Foreign):
    """The way round, where the source can't reach the destination by itself."""

    transit_method: Annotated[
        Literal["", "THIRD-DOMAIN", "REVERSE-TUNNEL"], "Through a third party (the default), or back through a kept connection."
    ] = ""
    domain: Annotated[DomainTransit | None, "The third party."] = None


class TokenConfig(Foreign, kw_only=True):
    """How the two agree on a token."""

    source_public_key: Annotated[str, "Base64 of PEM."] = ""
    destination_public_key: Annotated[str, "Base64 of PEM."] = ""
    rolling_update_period: Annotated[Seconds, "Seconds until the token is renewed; 0 is never, 300 or more is advised."] = 0
    token_gen_method: Literal["RSA-GEN", "UID-RSA-GEN"]


class BodyEncryption(Foreign):
    algorithm: Literal["AES", "SM4"]


class MTLSConfig(Foreign):
    """Certificates of the route, each base64 of PEM."""

    tls_ca: Annotated[str, "Checks the destination's certificate."] = field(default="", name="tlsCA")
    source_client_private_key: str = ""
    source_client_cert: str = ""


class DomainRouteSpec(Foreign, kw_only=True):
    """A directed route from one party to another."""

    source: str
    destination: str
    inter_conn_protocol: InterConnProtocol = ""
    endpoint: RouteEndpoint = field(default_factory=RouteEndpoint)
    transit: Transit | None = None
    authentication_type: Annotated[str, one_of("Token", "MTLS", "None")]
    token_config: TokenConfig | None = None
    body_encryption: BodyEncryption | None = None
    mtls_config: MTLSConfig | None = field(default=None, name="mTLSConfig")
    source_white_ip_list: Annotated[list[str], "Addresses and CIDR blocks that the source may come from; empty is any."] = (
        field(default_factory=list, name="sourceWhiteIPList")
    )
    request_headers_to_add: Annotated[dict[str, str], "The destination adds these to what comes in."] = field(
        default_factory=dict
    )


class RouteToken(Foreign):
    is_ready: bool = False
    token: str = ""
    revision: int = 0
    revision_time: Timestamp = ""
    expiration_time: Timestamp = ""
    heart_beat_time: Timestamp = ""
    effective_instances: list[str] = field(default_factory=list)


class DomainRouteTokenStatus(Foreign):
    revision_initializer: Annotated[str, "The gateway instance that agrees on the next token."] = ""
    revision_token: RouteToken | None = None
    tokens: Annotated[list[RouteToken], "The newest two."] = field(default_factory=list)


class DomainRouteStatus(Foreign):
    """One side's view of the route."""

    is_destination_authorized: bool = False
    is_destination_unreachable: bool = False
    token_status: DomainRouteTokenStatus | None = None


class DomainRoute(Object, kw_only=True):
    """A route as one of its two parties has it, in that party's namespace."""

    spec: DomainRouteSpec
    status: DomainRouteStatus = field(default_factory=DomainRouteStatus)


class ClusterDomainRouteTokenStatus(Foreign):
    revision: int = 0
    revision_time: Timestamp = ""
    source_tokens: list[RouteToken] = field(default_factory=list)
    destination_tokens: list[RouteToken] = field(default_factory=list)


class RouteCondition(Foreign):
    type: Annotated[str, "`Ready`, `Running`, `Pending` or `Failure`."]
    status: ConditionStatus
    last_update_time: Timestamp = ""
    last_transition_time: Timestamp = ""
    reason: str = ""
    message: str = ""


class RouteEndpointStatus(Foreign):
    endpoint_healthy: bool = False


class ClusterDomainRouteStatus(Foreign):
    """The route as the control plane sees it."""

    token_status: ClusterDomainRouteTokenStatus | None = None
    conditions: Annotated[list[RouteCondition], keyed("type")] = field(default_factory=list)
    endpoint_statuses: Annotated[dict[str, RouteEndpointStatus], "By `gateway-port`."] = field(default_factory=dict)


class ClusterDomainRoute(Object, kw_only=True):
    """A directed route between two parties; becomes a DomainRoute on each own side."""

    spec: DomainRouteSpec
    status: ClusterDomainRouteStatus = field(default_factory=ClusterDomainRouteStatus)


class GatewayEndpointStatus(Foreign):
    name: str
    type: str = ""
    total_endpoints_count: Count = 0
    healthy_endpoints_count: Count = 0


class GatewayStatus(Foreign):
    """What a gateway instance reports about itself."""

    address: str = ""
    uptime: Timestamp = ""
    heartbeat_time: Timestamp = ""
    public_key: Annotated[str, "Base64 of PEM."] = ""
    version: str = ""
    network_status: list[GatewayEndpointStatus] = field(default_factory=list)


class Gateway(Object):
    """An instance of a party's gateway; its name is the host's."""

    status: GatewayStatus = field(default_factory=GatewayStatus)


_ROUTE_COLUMNS = (
    Column(name="Source", path=".spec.source"),
    Column(name="Destination", path=".spec.destination"),
    Column(name="Host", path=".spec.endpoint.host"),
    Column(name="Authentication", path=".spec.authenticationType"),
)

RESOURCES: tuple[Resource, ...] = (
    kuscia_resource(
        ClusterDomainRoute,
        "clusterdomainroutes",
        short_names=("cdr",),
        has_status=True,
        namespaced=False,
        columns=(*_ROUTE_COLUMNS, Column(name="Ready", path='.status.conditions[?(@.type=="Ready")].status')),
    ),
    kuscia_resource(DomainRoute, "domainroutes", short_names=("dr",), has_status=True, columns=_ROUTE_COLUMNS),
    kuscia_resource(
        Gateway,
        "gateways",
        short_names=("gw",),
        has_status=True,
        columns=(
            Column(name="CreationTime", path=".metadata.creationTimestamp"),
            Column(name="UpTime", path=".status.uptime"),
            Column(name="HeartbeatTime", path=".status.heartbeatTime"),
            Column(name="Address", path=".status.address"),
            Column(name="Version", path=".status.version"),
        ),
    ),
)
