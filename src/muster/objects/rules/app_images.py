"""Rules about AppImages: what a schema can't say about templates, ports, probes and files. Pure.

What Kuscia takes and means something is taken: two templates may have one name (its own examples do), as long as no role could
mean both; a probe may name a number that no port has. What could only fail later, when a task starts, is refused here, where
its author reads the answer. An update is held to what it makes wrong, not to what was wrong before. Every message begins with
a reason code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from muster.objects.config_templates import TemplateSyntaxError, parse_template
from muster.objects.names import validate_config_key, validate_env_name, validate_label_name, validate_port_name
from muster.objects.reason_codes import Reason
from muster.objects.rules import bandwidth
from muster.objects.rules.report import Report, listed, obj, objs, text, texts
from muster.objects.status import Cause, Raw

REPLICAS_MAX: Final = 1_000
TEMPLATES_MAX: Final = 64
FILES_MAX: Final = 64
PORTS_MAX: Final = 64
"""Ports of one pod."""
_FILES_BYTES_MAX: Final = 512 * 1024
_PROBES: Final = ("livenessProbe", "readinessProbe", "startupProbe")
_INVALID: Final = Reason.MANIFEST_INVALID.value
_DUPLICATE: Final = Reason.DUPLICATE_NAME.value

_BANDWIDTH = bandwidth.RULES["kuscia.secretflow", "AppImage"]


def check_app_image(report: Report, raw: Raw, old: Raw | None) -> None:
    _BANDWIDTH(report, raw, old)
    known = set(app_image_problems(old)) if old is not None else ()
    report.causes += [cause for cause in app_image_problems(raw) if cause not in known]


def app_image_problems(raw: Mapping[str, Any]) -> list[Cause]:
    """All that stands against running this AppImage."""
    report = Report()
    spec = obj(raw, "spec")
    for word in ("name", "tag"):
        value = text(obj(spec, "image"), word)
        if value != value.strip() or any(char.isspace() for char in value):
            report.invalid(f"spec.image.{word}", value, f"{_INVALID}: must not hold white space")
    if not text(obj(spec, "image"), "name"):
        report.required("spec.image.name", f"{_INVALID}: the image to run")
    files = obj(spec, "configTemplates")
    _check_files(report, files)
    templates = list(objs(spec, "deployTemplates", "spec"))
    if not templates:
        report.required("spec.deployTemplates", f"{_INVALID}: at least one template, or no party could run this")
    if len(templates) > TEMPLATES_MAX:
        report.too_many("spec.deployTemplates", len(templates), TEMPLATES_MAX)
        return report.causes
    _check_roles(report, templates)
    for path, template in templates:
        _check_template(report, template, path, files)
    return report.causes


def _check_files(report: Report, files: Raw) -> None:
    if len(files) > FILES_MAX:
        report.too_many("spec.configTemplates", len(files), FILES_MAX)
        return
    size_bytes = 0
    for name, content in files.items():
        field = f"spec.configTemplates[{name}]"
        report.names(field, name, [f"{_INVALID}: {problem}" for problem in validate_config_key(name)])
        if not isinstance(content, str):
            continue
        size_bytes += len(content.encode("utf-8", "surrogatepass"))
        try:
            parse_template(content)
        except TemplateSyntaxError as error:
            report.invalid(field, content, f"{Reason.CONFIG_RENDER_FAILED.value}: {error}")
    if size_bytes > _FILES_BYTES_MAX:
        report.too_long(
            "spec.configTemplates", f"{_INVALID}: the files hold {size_bytes:,} bytes together; at most {_FILES_BYTES_MAX:,}"
        )


def _check_roles(report: Report, templates: Sequence[tuple[str, Raw]]) -> None:
    """No role may mean two templates: Kuscia would take the first, and the other one would never run."""
    seen: dict[str, str] = {}
    for path, template in templates:
        written = text(template, "role")
        roles = list(dict.fromkeys(word.strip() for word in written.split(",")))
        for role in roles:
            if not role and written:
                report.invalid(
                    f"{path}.role", written, f"{_INVALID}: has an empty role between commas; write it like host,guest"
                )
                continue
            if role:
                report.names(f"{path}.role", role, [f"{_INVALID}: {problem}" for problem in validate_label_name(role)])
            if role in seen:
                meant = f"role {role!r}" if role else "parties without a role of their own"
                message = f"{_DUPLICATE}: {meant} has a template already, {seen[role]}; the second one would never be used"
                report.invalid(f"{path}.role", written, message)
            seen.setdefault(role, path)


def _check_template(report: Report, template: Raw, path: str, files: Raw) -> None:
    replicas = template.get("replicas")
    if isinstance(replicas, int) and not 0 <= replicas <= REPLICAS_MAX:
        report.invalid(f"{path}.replicas", replicas, f"{_INVALID}: must be 0 to {REPLICAS_MAX:,}")
    containers = list(objs(obj(template, "spec"), "containers", f"{path}.spec"))
    if not containers:
        report.required(f"{path}.spec.containers", f"{_INVALID}: a pod needs at least one container")
    names: set[str] = set()
    ports: dict[str, str] = {}
    numbers: dict[int, str] = {}
    for where, container in containers:
        name = text(container, "name")
        report.names(f"{where}.name", name, [f"{_INVALID}: {problem}" for problem in validate_label_name(name)])
        if name in names:
            report.invalid(f"{where}.name", name, f"{_DUPLICATE}: two containers of the pod have this name; rename one")
        names.add(name)
        _check_ports(report, container, where, ports, numbers)
    if len(ports) > PORTS_MAX:
        report.too_many(f"{path}.spec.containers[*].ports", len(ports), PORTS_MAX)
    known = listed(sorted(ports))
    for where, container in containers:
        _check_probes(report, container, where, ports, known)
        _check_mounts(report, container, where, files)
        for at, variable in objs(container, "env", where):
            name = text(variable, "name")
            report.names(f"{at}.name", name, [f"{_INVALID}: {problem}" for problem in validate_env_name(name)])
    _check_policy(report, template, path, ports, known)


def _check_ports(report: Report, container: Raw, path: str, ports: dict[str, str], numbers: dict[int, str]) -> None:
    for where, port in objs(container, "ports", path):
        name, number = text(port, "name"), port.get("port")
        report.names(f"{where}.name", name, [f"{_INVALID}: {problem}" for problem in validate_port_name(name)])
        if name in ports:
            report.invalid(f"{where}.name", name, f"{_DUPLICATE}: {ports[name]} has this name; ports of one pod need their own")
        ports.setdefault(name, where)
        if not isinstance(number, int) or isinstance(number, bool) or number == 0:
            continue
        if not 1 <= number <= 65_535:
            report.invalid(f"{where}.port", number, f"{_INVALID}: must be 1 to 65535; leave it out to have one allocated")
        elif number in numbers:
            message = f"{_DUPLICATE}: {numbers[number]} has this number; leave one out to have it allocated"
            report.invalid(f"{where}.port", number, message)
        numbers.setdefault(number, where)


def _check_probes(report: Report, container: Raw, path: str, ports: Mapping[str, str], known: str) -> None:
    targets = [
        (f"{path}.{probe}.{kind}.port", obj(obj(container, probe), kind).get("port"))
        for probe in _PROBES
        for kind in ("httpGet", "tcpSocket", "grpc")
    ]
    targets.append((f"{path}.metricProbe.port", obj(container, "metricProbe").get("port")))
    for field, port in targets:
        if isinstance(port, str) and port and port not in ports:
            report.invalid(field, port, f"{_INVALID}: no port of the pod has this name; there are: {known}")
        elif isinstance(port, int) and not isinstance(port, bool) and not 1 <= port <= 65_535:
            report.invalid(field, port, f"{_INVALID}: must be 1 to 65535, or the name of a port")


def _check_mounts(report: Report, container: Raw, path: str, files: Raw) -> None:
    places: set[str] = set()
    for where, mount in objs(container, "configVolumeMounts", path):
        place, file = text(mount, "mountPath"), text(mount, "subPath")
        if not place.startswith("/") or ":" in place:
            report.invalid(f"{where}.mountPath", place, f"{_INVALID}: must be an absolute path without ':'")
        if place in places:
            report.invalid(f"{where}.mountPath", place, f"{_DUPLICATE}: two files can't be mounted at one place")
        places.add(place)
        if file and file not in files:
            known = listed(sorted(files))
            report.invalid(f"{where}.subPath", file, f"{_INVALID}: spec.configTemplates has no such file; there are: {known}")


def _check_policy(report: Report, template: Raw, path: str, ports: Mapping[str, str], known: str) -> None:
    for where, ingress in objs(obj(template, "networkPolicy"), "ingresses", f"{path}.networkPolicy"):
        for at, port in objs(ingress, "ports", where):
            if text(port, "port") not in ports:
                report.invalid(f"{at}.port", text(port, "port"), f"{_INVALID}: no port has this name; there are: {known}")
        if not texts(obj(ingress, "from"), "roles"):
            report.required(f"{where}.from.roles", f"{_INVALID}: the roles that may reach these ports")
