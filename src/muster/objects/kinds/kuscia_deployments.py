"""Kuscia's long-running services: KusciaDeployment and its summary for partners. Pure."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import field

from muster.objects.conditions import ConditionStatus
from muster.objects.kinds.base import AGE, Object, one_of
from muster.objects.kinds.kuscia_base import kuscia_resource
from muster.objects.kinds.kuscia_templates import PodTemplate
from muster.objects.kinds.shapes import PHASE, Count, Foreign
from muster.objects.resources import Column, Resource
from muster.objects.time import Timestamp
from muster.objects.view import Int32, IntOrString, keyed

DeploymentPhase = Literal["", "Progressing", "PartialAvailable", "Available", "Failed"]


class RollingUpdate(Foreign):
    max_unavailable: IntOrString | None = None
    max_surge: IntOrString | None = None


class DeploymentStrategy(Foreign):
    """How new pods take over from old ones, as in Kubernetes' Deployment."""

    type: Annotated[str, one_of("", "Recreate", "RollingUpdate")] = ""
    rolling_update: RollingUpdate | None = None


class DeploymentPartyTemplate(Foreign):
    """What replaces the AppImage's deploy template for this party, field by field."""

    replicas: Int32 | None = None
    strategy: DeploymentStrategy | None = None
    spec: PodTemplate | None = None


class DeploymentParty(Foreign):
    domain_id: str = field(name="domainID")
    app_image_ref: str
    role: str = ""
    service_name_prefix: Annotated[str, "What the names of its services start with."] = ""
    template: DeploymentPartyTemplate = field(default_factory=DeploymentPartyTemplate)


class KusciaDeploymentSpec(Foreign):
    """A service that several parties run together."""

    initiator: str
    input_config: Annotated[str, "Handed to the application as it is."]
    parties: list[DeploymentParty]


class DeploymentCondition(Foreign):
    type: str
    status: ConditionStatus
    last_update_time: Timestamp = ""
    last_transition_time: Timestamp = ""
    reason: str = ""
    message: str = ""


class PartyDeploymentStatus(Foreign):
    phase: DeploymentPhase = ""
    role: str = ""
    replicas: Int32 = 0
    updated_replicas: Int32 = 0
    available_replicas: Int32 = 0
    unavailable_replicas: Int32 = 0
    conditions: Annotated[list[DeploymentCondition], keyed("type")] = field(default_factory=list)
    creation_timestamp: Timestamp = ""


class KusciaDeploymentStatus(Foreign):
    """How much of the service is up."""

    phase: DeploymentPhase = ""
    reason: str = ""
    message: str = ""
    total_parties: Count = 0
    available_parties: Count = 0
    party_deployment_statuses: Annotated[dict[str, dict[str, PartyDeploymentStatus]], "By party, then by deployment."] = field(
        default_factory=dict
    )
    last_reconcile_time: Timestamp = ""


class KusciaDeployment(Object, kw_only=True):
    """A long-running service of several parties."""

    spec: KusciaDeploymentSpec
    status: KusciaDeploymentStatus = field(default_factory=KusciaDeploymentStatus)


class KusciaDeploymentSummarySpec(Foreign):
    """Which deployment this is about; newer versions of Kuscia leave it out."""

    kuscia_deployment_id: str = field(default="", name="KusciaDeploymentID")


class KusciaDeploymentSummary(Object):
    """The status of a deployment as two control planes exchange it."""

    spec: KusciaDeploymentSummarySpec = field(default_factory=KusciaDeploymentSummarySpec)
    status: KusciaDeploymentStatus = field(default_factory=KusciaDeploymentStatus)


DEPLOYMENT_RESOURCES: tuple[Resource, ...] = (
    kuscia_resource(
        KusciaDeployment,
        "kusciadeployments",
        short_names=("kd",),
        has_status=True,
        columns=(
            Column(name="TotalParties", path=".status.totalParties", type="integer"),
            Column(name="AvailableParties", path=".status.availableParties", type="integer"),
            PHASE,
            AGE,
        ),
    ),
    kuscia_resource(KusciaDeploymentSummary, "kusciadeploymentsummaries", short_names=("kds",), columns=(AGE,)),
)
