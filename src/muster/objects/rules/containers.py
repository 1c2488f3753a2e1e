"""Rules for the containers of a pod. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from muster.objects.names import validate_env_name, validate_label_name, validate_port_name, validate_qualified_name
from muster.objects.quantity import Quantity
from muster.objects.rules.report import (
    Report,
    check_quantity,
    number,
    obj,
    objs,
    text,
    texts,
    unique,
)
from muster.objects.status import Raw

_STANDARD: Final = frozenset({"cpu", "memory", "ephemeral-storage"})
_FIELD_PATHS: Final = (
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "metadata.annotations",
    "metadata.labels",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
)
CONTAINERS_CHECKED: Final = ("containers", "initContainers")
_ENV_SOURCES: Final = ("fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "fileKeyRef")
_HANDLERS: Final = ("exec", "httpGet", "tcpSocket", "grpc")
_HOOKS: Final = ("exec", "httpGet", "tcpSocket", "sleep")
_PROBES: Final = ("livenessProbe", "readinessProbe", "startupProbe")


def check_containers(report: Report, spec: Raw, path: str) -> None:
    """All containers of a pod, and what must hold between them."""
    containers = list(objs(spec, "containers", path))
    inits = list(objs(spec, "initContainers", path))
    if not containers:
        report.required(f"{path}.containers", "a pod needs at least one container")
    volumes = {text(volume, "name"): volume for _, volume in objs(spec, "volumes", path)}
    unique(report, [*containers, *inits, *objs(spec, "ephemeralContainers", path)])
    for where, container in containers:
        _check_container(report, container, where, spec, volumes)
    _check_host_ports(report, containers)
    for where, container in inits:
        _check_host_ports(report, [(where, container)])  # they run one after the other
        _check_container(report, container, where, spec, volumes)
        if text(container, "restartPolicy") != "Always":
            for word in (*_PROBES, "lifecycle"):
                if container.get(word) is not None:
                    report.forbidden(f"{where}.{word}", "may not be set for init containers without restartPolicy=Always")


def check_variables(report: Report, spec: Raw, path: str) -> None:
    """The variables of all containers, which depend on nothing else."""
    for word in CONTAINERS_CHECKED:
        for where, container in objs(spec, word, path):
            _check_env(report, container, where)


def _check_container(report: Report, container: Raw, path: str, spec: Raw, volumes: Mapping[str, Raw]) -> None:
    name, image = text(container, "name"), text(container, "image")
    if not name:
        report.required(f"{path}.name")
    else:
        report.names(f"{path}.name", name, validate_label_name(name))
    if not image:
        report.required(f"{path}.image")
    elif image != image.strip():
        report.invalid(f"{path}.image", image, "must not have leading or trailing whitespace")
    _check_ports(report, container, path, is_host_network=spec.get("hostNetwork") is True)
    _check_env(report, container, path)
    _check_mounts(report, container, path, volumes)
    check_resources(report, obj(container, "resources"), f"{path}.resources", spec)
    for word in _PROBES:
        if isinstance(container.get(word), dict):
            _check_probe(report, container[word], f"{path}.{word}", must_succeed_once=word != "readinessProbe")
    for word in ("postStart", "preStop"):
        handler = obj(container, "lifecycle").get(word)
        if isinstance(handler, dict):
            _check_one_of(report, handler, _HOOKS, f"{path}.lifecycle.{word}")
            _check_port_of(report, handler, f"{path}.lifecycle.{word}")
    _check_security(report, obj(container, "securityContext"), f"{path}.securityContext")


def _check_ports(report: Report, container: Raw, path: str, *, is_host_network: bool) -> None:
    ports = list(objs(container, "ports", path))
    unique(report, ports)
    for where, port in ports:
        name, host = text(port, "name"), number(port, "hostPort")
        if name:
            report.names(f"{where}.name", name, validate_port_name(name))
        if is_host_network and host not in (0, number(port, "containerPort")):
            report.invalid(f"{where}.hostPort", host, "must match containerPort when hostNetwork is true")


def _check_host_ports(report: Report, containers: Sequence[tuple[str, Raw]]) -> None:
    """No two ports of containers that run together take one of the host's."""
    seen: set[str] = set()
    for path, container in containers:
        for where, port in objs(container, "ports", path):
            if host := number(port, "hostPort"):
                taken = f"{text(port, 'protocol')}/{text(port, 'hostIP')}/{host}"
                if taken in seen:
                    report.duplicate(f"{where}.hostPort", taken)
                seen.add(taken)


def _check_env(report: Report, container: Raw, path: str) -> None:
    for where, variable in objs(container, "env", path, but=_is_plain_variable):
        name, source = text(variable, "name"), variable.get("valueFrom")
        if not name:
            report.required(f"{where}.name")
        else:
            report.names(f"{where}.name", name, validate_env_name(name))
        if not isinstance(source, dict):
            continue
        if text(variable, "value"):
            report.invalid(f"{where}.valueFrom", "", "may not be specified when `value` is not empty")
        _check_source(report, source, _ENV_SOURCES, f"{where}.valueFrom")
        field = text(obj(source, "fieldRef"), "fieldPath")
        if isinstance(source.get("fieldRef"), dict) and field.partition("[")[0] not in _FIELD_PATHS:
            report.unsupported(f"{where}.valueFrom.fieldRef.fieldPath", field, _FIELD_PATHS)
    for where, source in objs(container, "envFrom", path):
        _check_source(report, source, ("configMapRef", "secretRef"), where)
        for word in ("configMapRef", "secretRef"):
            if isinstance(source.get(word), dict) and not text(source[word], "name"):
                report.required(f"{where}.{word}.name")


def _is_plain_variable(variable: Raw) -> bool:
    """A good name and no source: most are so, and containers have many."""
    name = variable.get("name")
    return type(name) is str and not validate_env_name(name) and variable.get("valueFrom") is None


def _check_mounts(report: Report, container: Raw, path: str, volumes: Mapping[str, Raw]) -> None:
    taken: set[str] = set()
    for where, mount in objs(container, "volumeMounts", path):
        name, at = text(mount, "name"), text(mount, "mountPath")
        if name not in volumes:
            report.not_found(f"{where}.name", name)
        if not at:
            report.required(f"{where}.mountPath")
        elif at in taken:
            report.invalid(f"{where}.mountPath", at, "must be unique")
        taken.add(at)
        for word in ("subPath", "subPathExpr"):
            if not is_inside(value := text(mount, word)):
                report.invalid(f"{where}.{word}", value, "must be relative and may not contain '..'")
        if text(mount, "subPath") and text(mount, "subPathExpr"):
            report.invalid(f"{where}.subPathExpr", text(mount, "subPathExpr"), "subPathExpr and subPath exclude each other")
    devices = list(objs(container, "volumeDevices", path))
    unique(report, devices, "devicePath")
    for where, device in devices:
        if "persistentVolumeClaim" not in volumes.get(text(device, "name"), {}) and "ephemeral" not in volumes.get(
            text(device, "name"), {}
        ):
            report.invalid(f"{where}.name", text(device, "name"), "the pod has no claim or ephemeral volume of this name")


def is_inside(path: str) -> bool:
    """Whether a path leads from where it starts to something below."""
    return not path.startswith("/") and ".." not in path.split("/")


def check_resources(report: Report, resources: Raw, path: str, spec: Raw) -> None:
    """Requests and limits: names, amounts, and that no request exceeds its limit."""
    limits = _check_amounts(report, obj(resources, "limits"), f"{path}.limits")
    requests = _check_amounts(report, obj(resources, "requests"), f"{path}.requests")
    for name, request in requests.items():
        limit = limits.get(name)
        field = f"{path}.requests"
        if limit is None:
            if _is_exact(name):
                report.required(f"{path}.limits", f"a limit must be set for {name}, which can't be overcommitted")
        elif _is_exact(name) and request != limit:
            report.invalid(field, str(request), f"must be equal to the limit of {name}: {limit}")
        elif request > limit:
            report.invalid(field, str(request), f"must be less than or equal to the limit of {name}: {limit}")
    claims = {text(claim, "name") for _, claim in objs(spec, "resourceClaims", "")}
    for where, claim in objs(resources, "claims", path):
        if text(claim, "name") not in claims:
            report.invalid(f"{where}.name", text(claim, "name"), "the pod has no resource claim of this name")


def _check_amounts(report: Report, amounts: Raw, path: str) -> dict[str, Quantity]:
    good: dict[str, Quantity] = {}
    for name, value in amounts.items():
        report.names(f"{path}[{name}]", name, resource_name_problems(name))
        amount = check_quantity(report, value, f"{path}[{name}]")
        if amount is None:
            continue
        if _is_extended(name) and amount != Quantity.of(amount.value()):
            report.invalid(f"{path}[{name}]", value, "must be an integer")
        good[name] = amount
    return good


def resource_name_problems(name: str) -> list[str]:
    """What stands against a container asking for a resource of this name."""
    problems = validate_qualified_name(name)
    if not problems and "/" not in name and name not in _STANDARD and not name.startswith("hugepages-"):
        problems = ["must be cpu, memory, ephemeral-storage, hugepages-<size>, or have a domain, as in example.com/gpu"]
    return problems


def _is_extended(name: str) -> bool:
    return "/" in name and "kubernetes.io/" not in name


def _is_exact(name: str) -> bool:
    """Whether there is no overcommitting: huge pages, and what is counted in pieces."""
    return name.startswith("hugepages-") or _is_extended(name)


def _check_probe(report: Report, probe: Raw, path: str, *, must_succeed_once: bool) -> None:
    _check_one_of(report, probe, _HANDLERS, path)
    _check_port_of(report, probe, path)
    if must_succeed_once and number(probe, "successThreshold", 1) != 1:
        report.invalid(f"{path}.successThreshold", probe.get("successThreshold"), "must be 1")
    if isinstance(probe.get("exec"), dict) and not texts(probe["exec"], "command"):
        report.required(f"{path}.exec.command")


def _check_source(report: Report, owner: Raw, words: tuple[str, ...], path: str) -> None:
    """Where a variable comes from: one of `words`."""
    if all(owner.get(word) is None for word in words):
        report.invalid(path, "", f"must specify one of: {', '.join(f'`{word}`' for word in words[:-1])} or `{words[-1]}`")
    else:
        _check_one_of(report, owner, words, path)


def _check_port_of(report: Report, handler: Raw, path: str) -> None:
    """Where a probe or a hook knocks: a number, or the name of a port."""
    for word in ("httpGet", "tcpSocket"):
        port = obj(handler, word).get("port")
        if isinstance(port, str):
            report.names(f"{path}.{word}.port", port, validate_port_name(port))
        elif isinstance(port, int) and not 1 <= port <= 65535:
            report.invalid(f"{path}.{word}.port", port, "must be between 1 and 65535, inclusive")


def _check_one_of(report: Report, owner: Raw, words: tuple[str, ...], path: str) -> None:
    given = [word for word in words if owner.get(word) is not None]
    if not given:
        report.required(path, f"must specify one of: {', '.join(words)}")
    for word in given[1:]:
        report.forbidden(f"{path}.{word}", f"may not be set together with {given[0]}")


def check_seccomp(report: Report, context: Raw, path: str) -> None:
    """A profile of the node's own is named, and inside the directory of such profiles; others have no name."""
    profile = obj(context, "seccompProfile")
    kind, file = text(profile, "type"), text(profile, "localhostProfile")
    field = f"{path}.seccompProfile.localhostProfile"
    if kind == "Localhost" and not file:
        report.required(field, "must be set when seccomp type is Localhost")
    elif kind and kind != "Localhost" and profile.get("localhostProfile") is not None:
        report.invalid(field, file, "can only be set when seccomp type is Localhost")
    elif not is_inside(file):
        report.invalid(field, file, "must be relative and may not contain '..'")


def _check_security(report: Report, context: Raw, path: str) -> None:
    check_seccomp(report, context, path)
    if context.get("allowPrivilegeEscalation") is not False:
        return
    added = texts(obj(context, "capabilities"), "add")
    if context.get("privileged") is True:
        report.invalid(path, context, "cannot set allowPrivilegeEscalation to false and privileged to true")
    elif any(capability in ("SYS_ADMIN", "CAP_SYS_ADMIN") for capability in added):
        report.invalid(path, context, "cannot set allowPrivilegeEscalation to false and add CAP_SYS_ADMIN")
