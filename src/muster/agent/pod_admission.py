"""What this node does not run, and why. Pure.

A refused pod fails at once with its reason, instead of waiting for what will never come. The reasons are `Refused`'s; messages
name the field, the value and the way out, all of them at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from muster.agent import probes, volumes
from muster.agent.contracts import AgentError
from muster.agent.layout import safe_part
from muster.agent.lifecycle_facts import Fate
from muster.agent.pod_resources import network_want, pod_limits
from muster.objects.kinds.containers import Container
from muster.objects.kinds.pods import Pod, PodSpec
from muster.objects.labels import Muster
from muster.objects.meta import annotations_of, uid_of
from muster.objects.status import Raw
from muster.objects.view import view_of

CONTAINERS_MAX = 64


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """What this node allows."""

    runtime: str
    has_networks: bool
    """Pods have networks of their own; without, all of them share the host's."""
    allowed_host_paths: Sequence[str] = ()


def read_pod(raw: Raw) -> PodSpec:
    """The typed manifest. AgentError `InvalidPod` when it can't be read, or names what can't be a directory."""
    try:
        spec = view_of(Pod, raw).spec
        if spec is None or not spec.containers:
            raise ValueError("spec.containers is empty")
        safe_part(uid_of(raw))
        names = [container.name for container in (*spec.init_containers, *spec.containers)]
        for name in (*names, *(volume.name for volume in spec.volumes)):
            safe_part(name)
        if len(names) != len(set(names)) or len(names) > CONTAINERS_MAX:
            raise ValueError(f"its {len(names)} containers have names of their own, and are at most {CONTAINERS_MAX}")
    except (msgspec.ValidationError, ValueError) as e:
        raise AgentError("InvalidPod", f"the pod can't be read: {e}") from e
    return spec


def refusal(raw: Raw, spec: PodSpec, offer: Offer) -> Fate | None:
    """Why the pod is not run here; None when it is."""
    wanted = annotations_of(raw).get(Muster.RUNTIME, "")
    if wanted and wanted != offer.runtime:
        message = f"annotation {Muster.RUNTIME}: {wanted!r}: this node runs pods with {offer.runtime!r}; place it elsewhere"
        return Fate("RuntimeMismatch", message)
    if problems := list(volumes.refusals(spec, offer.allowed_host_paths)):
        return Fate("FailedMount", "; ".join(problems))
    problems = [*_of_pod(spec, offer), *(p for c in (*spec.init_containers, *spec.containers) for p in _of_container(c))]
    try:
        network_want(uid_of(raw), raw)
        pod_limits(spec)
    except AgentError as e:
        problems.append(e.message)
    return Fate("PodNotSupported", "; ".join(problems)) if problems else None


def _of_pod(spec: PodSpec, offer: Offer) -> Iterator[str]:
    if spec.host_network and offer.has_networks:
        yield "spec.hostNetwork: true: pods of this node have networks of their own; leave it out"
    if spec.host_pid:
        yield "spec.hostPID: true: pods never see the node's processes; leave it out"
    if spec.host_ipc:
        yield "spec.hostIPC: true: pods never share the node's IPC; leave it out"
    if spec.share_process_namespace:
        yield "spec.shareProcessNamespace: true: not offered by this node; leave it out"
    if spec.runtime_class_name:
        yield f"spec.runtimeClassName: {spec.runtime_class_name!r}: this node has {offer.runtime}; see {Muster.RUNTIME}"
    if spec.os is not None and spec.os.name != "linux":
        yield f"spec.os.name: {spec.os.name!r}: this node runs linux"
    if spec.resource_claims:
        yield "spec.resourceClaims: this node offers no device claims; ask for devices under resources.limits"


def _of_container(container: Container) -> Iterator[str]:
    where = f"container {container.name}"
    context = container.security_context
    if context is not None and context.privileged:
        yield f"{where}: securityContext.privileged: true: not allowed on this node"
    if context is not None and context.proc_mount not in (None, "Default"):
        yield f"{where}: securityContext.procMount: {context.proc_mount!r}: only Default is offered"
    if context is not None and context.seccomp_profile is not None and context.seccomp_profile.type == "Localhost":
        yield f"{where}: securityContext.seccompProfile.type: Localhost: this node has RuntimeDefault"
    for port in container.ports:
        if port.host_port and port.host_port != port.container_port:
            yield f"{where}: hostPort {port.host_port}: ports are not forwarded; reach the pod by its own address"
    if not container.command and not container.image:
        yield f"{where}: it has neither a command nor an image"
    yield from probes.refusals(container)
