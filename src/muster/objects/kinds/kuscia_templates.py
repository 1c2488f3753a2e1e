"""The pod template that AppImage, KusciaTask and KusciaDeployment share: Kuscia's own, smaller than Kubernetes'. Pure.

A task's or deployment's template is laid over the AppImage's: a field that is absent means "as the AppImage says". So nothing
here may have a default but ports, as in Kuscia's own schema.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import field

from muster.objects.kinds.affinity import Affinity
from muster.objects.kinds.base import between, one_of
from muster.objects.kinds.containers import EnvFromSource, EnvVar, ExecAction, HTTPGetAction, SecurityContext, TCPSocketAction
from muster.objects.kinds.shapes import Count, Foreign, Kept, Resources
from muster.objects.view import IntOrString, keyed

PortScope = Literal["Cluster", "Domain", "Local"]


class ConfigVolumeMount(Foreign):
    """A rendered configuration template in the container's file system."""

    mount_path: str
    sub_path: Annotated[str, "Name of the template in the AppImage."]


class TemplatePort(Foreign):
    """A port that is allocated when the task starts, unless it has a number here."""

    name: str
    port: Annotated[int, between(0, 65535, "int64")] = 0
    protocol: Annotated[Literal["HTTP", "GRPC", "TCP"], "TCP: whatever goes past the gateways, straight to the pod."] = "HTTP"
    scope: Annotated[PortScope, "Who may reach it: other parties, the own party, or the pod alone."] = "Local"


class MetricProbe(Foreign):
    """Where the application shows its metrics."""

    path: str = ""
    port: Annotated[IntOrString, "Name or number of a port."] = ""


class TemplateProbe(Foreign):
    """A check of the running container, as in a pod; Kubernetes' defaults apply when the pod is made."""

    exec: ExecAction | None = None
    http_get: HTTPGetAction | None = None
    tcp_socket: TCPSocketAction | None = None
    grpc: Annotated[Kept | None, "`port` and `service`."] = None
    initial_delay_seconds: Count = 0
    timeout_seconds: Count = 0
    period_seconds: Count = 0
    success_threshold: Count = 0
    failure_threshold: Count = 0
    termination_grace_period_seconds: Count | None = None


class TemplateContainer(Foreign):
    """A container of the template; its image is the AppImage's."""

    name: str
    command: list[str] = field(default_factory=list)
    args: list[str] = field(default_factory=list)
    working_dir: str = ""
    config_volume_mounts: list[ConfigVolumeMount] = field(default_factory=list)
    ports: Annotated[list[TemplatePort], keyed("name")] = field(default_factory=list)
    env_from: list[EnvFromSource] = field(default_factory=list)
    env: list[EnvVar] = field(default_factory=list)
    resources: Resources = field(default_factory=Resources)
    liveness_probe: TemplateProbe | None = None
    readiness_probe: TemplateProbe | None = None
    startup_probe: TemplateProbe | None = None
    metric_probe: MetricProbe | None = None
    image_pull_policy: Annotated[str, one_of("", "Always", "Never", "IfNotPresent")] = ""
    security_context: Annotated[SecurityContext | None, "Of this, Kuscia reads `privileged` alone."] = None


class PodTemplate(Foreign):
    """How to run the containers of one role."""

    restart_policy: Annotated[str, one_of("", "Always", "OnFailure", "Never"), "Never when left out."] = ""
    containers: Annotated[list[TemplateContainer], keyed("name")] = field(default_factory=list)
    affinity: Affinity | None = None
