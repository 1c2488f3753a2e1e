"""Rules for pods and pod templates: what may be created, and what may be changed afterwards. Pure as seen from outside."""

from __future__ import annotations

import hashlib
import ipaddress
import re
from typing import Any, Final

import msgspec

from muster.objects.names import validate_label_name, validate_qualified_name, validate_subdomain
from muster.objects.rules.containers import (
    CONTAINERS_CHECKED,
    check_containers,
    check_resources,
    check_seccomp,
    check_variables,
    is_inside,
)
from muster.objects.rules.placement import check_placement
from muster.objects.rules.report import (
    Report,
    check_labels,
    check_quantities,
    check_quantity,
    number,
    obj,
    objs,
    text,
    texts,
    unique,
)
from muster.objects.status import Raw
from muster.objects.view import copy_json

_VOLUME_SOURCE_WORDS: Final = frozenset({"name"})
_CHANGEABLE: Final = (
    "only `spec.containers[*].image`, `spec.initContainers[*].image`, `spec.activeDeadlineSeconds`, "
    "`spec.tolerations` (additions) and `spec.terminationGracePeriodSeconds` (1, when it was negative) may be changed"
)


def check_pod(report: Report, raw: Raw, old: Raw | None, subresource: str) -> None:
    spec = obj(raw, "spec")
    if not isinstance(raw.get("spec"), dict):
        report.required("spec.containers", "a pod needs at least one container")
        return
    if old is None:
        check_pod_spec(report, spec, "spec")
        if spec.get("ephemeralContainers"):
            report.forbidden("spec.ephemeralContainers", "cannot be set on create")
        if spec.get("schedulingGates") and text(spec, "nodeName"):
            report.forbidden("spec.nodeName", "cannot be set until all schedulingGates have been cleared")
    elif subresource == "":
        check_pod_spec(report, spec, "spec")
        _check_change(report, spec, obj(old, "spec"))


def check_template(report: Report, template: Raw, path: str) -> None:
    """A pod template inside another object."""
    spec = template.get("spec")
    if not isinstance(spec, dict):
        report.required(f"{path}.spec.containers", "a pod needs at least one container")
        return
    check_labels(report, obj(template, "metadata").get("labels"), f"{path}.metadata.labels")
    check_pod_spec(report, spec, f"{path}.spec")
    if spec.get("ephemeralContainers"):
        report.forbidden(f"{path}.spec.ephemeralContainers", "not allowed in a pod template")


def check_pod_spec(report: Report, spec: Raw, path: str) -> None:
    """The pods of a job differ in few things, so the rest of a spec that was found good is not gone through again."""
    likeness = _likeness(spec) if not report.causes else None
    if likeness is not None and likeness in _good:
        check_variables(report, spec, path)
        _check_hostname(report, spec, path)
        return
    _check_all(report, spec, path)
    if likeness is not None and not report.causes:
        if len(_good) >= _GOOD_MAX:
            _good.clear()
        _good[likeness] = None


_SYSCTL: Final = re.compile(r"[a-z0-9](?:[-_a-z0-9]*[a-z0-9])?(?:[./][a-z0-9](?:[-_a-z0-9]*[a-z0-9])?)*", re.ASCII)
_SYSCTL_LEN_MAX: Final = 253
_GOOD_MAX: Final = 4096
_good: Final[dict[bytes, None]] = {}
"""Specs that keep to all rules, but for what `_likeness` leaves out, by a digest. Only ever a shortcut: what is not here is
checked. Any thread may use it."""
_encode: Final = msgspec.json.Encoder().encode
_canonical: Final = msgspec.json.Encoder(order="deterministic").encode


def _likeness(spec: Raw) -> bytes | None:
    """A digest of all but the hostname and the containers' variables; None when it has none."""
    rest = {key: value for key, value in spec.items() if key != "hostname"}
    for word in CONTAINERS_CHECKED:
        containers = rest.get(word)
        if isinstance(containers, list):
            rest[word] = [
                {key: value for key, value in container.items() if key != "env"} if isinstance(container, dict) else container
                for container in containers
            ]
    try:
        return hashlib.blake2b(_encode(rest), digest_size=20).digest()
    except (TypeError, ValueError, OverflowError, RecursionError):
        return None


def _check_all(report: Report, spec: Raw, path: str) -> None:
    check_containers(report, spec, path)
    check_placement(report, spec, path)
    _check_volumes(report, spec, path)
    _check_network(report, spec, path)
    check_quantities(report, obj(spec, "overhead"), f"{path}.overhead")
    check_resources(report, obj(spec, "resources"), f"{path}.resources", spec)
    for word, validate in (
        ("serviceAccountName", validate_subdomain),
        ("nodeName", validate_subdomain),
        ("priorityClassName", validate_subdomain),
        ("runtimeClassName", validate_subdomain),
    ):
        value = text(spec, word)
        if value:
            report.names(f"{path}.{word}", value, validate(value))
    if "schedulerName" in spec and not text(spec, "schedulerName"):
        report.required(f"{path}.schedulerName")
    check_seccomp(report, obj(spec, "securityContext"), f"{path}.securityContext")
    for where, parameter in objs(obj(spec, "securityContext"), "sysctls", f"{path}.securityContext"):
        name = text(parameter, "name")
        if len(name) > _SYSCTL_LEN_MAX or not _SYSCTL.fullmatch(name):
            report.invalid(f"{where}.name", name, "must be the name of a kernel parameter, such as net.core.somaxconn")
    if spec.get("hostPID") is True and spec.get("shareProcessNamespace") is True:
        report.invalid(f"{path}.shareProcessNamespace", True, "shareProcessNamespace and hostPID exclude each other")
    gates = list(objs(spec, "schedulingGates", path))
    unique(report, gates)
    for where, gate in gates:
        report.names(f"{where}.name", text(gate, "name"), validate_qualified_name(text(gate, "name")))
    for where, gate in objs(spec, "readinessGates", path):
        report.names(
            f"{where}.conditionType", text(gate, "conditionType"), validate_qualified_name(text(gate, "conditionType"))
        )
    unique(report, objs(spec, "resourceClaims", path))


def _check_volumes(report: Report, spec: Raw, path: str) -> None:
    volumes = list(objs(spec, "volumes", path))
    unique(report, volumes)
    for where, volume in volumes:
        name = text(volume, "name")
        if name:
            report.names(f"{where}.name", name, validate_label_name(name))
        else:
            report.required(f"{where}.name")
        sources = sorted(key for key, value in volume.items() if key not in _VOLUME_SOURCE_WORDS and value is not None)
        if not sources:
            report.required(where, "must specify a volume type")
        for source in sources[1:]:
            report.forbidden(f"{where}.{source}", "may not specify more than one volume type")
        for word, key in (("configMap", "name"), ("secret", "secretName"), ("persistentVolumeClaim", "claimName")):
            source_of = volume.get(word)
            if isinstance(source_of, dict) and not text(source_of, key):
                report.required(f"{where}.{word}.{key}")
        for word in ("configMap", "secret", "downwardAPI"):
            _check_files(report, obj(volume, word), f"{where}.{word}")
        for part_at, part in objs(obj(volume, "projected"), "sources", f"{where}.projected"):
            for word in ("configMap", "secret", "downwardAPI"):
                _check_files(report, obj(part, word), f"{part_at}.{word}")
        size = obj(volume, "emptyDir").get("sizeLimit")
        if size is not None:
            check_quantity(report, size, f"{where}.emptyDir.sizeLimit")
        host = text(obj(volume, "hostPath"), "path")
        if "hostPath" in volume and (not host or ".." in host.split("/")):
            report.invalid(f"{where}.hostPath.path", host, "must be a path without '..'")


def _check_files(report: Report, source: Raw, path: str) -> None:
    """The files of a volume are inside it."""
    for where, item in objs(source, "items", path):
        file = text(item, "path")
        if not is_inside(file):
            report.invalid(f"{where}.path", file, "must be relative and may not contain '..'")


def _check_hostname(report: Report, spec: Raw, path: str) -> None:
    value = text(spec, "hostname")
    if value:
        report.names(f"{path}.hostname", value, validate_label_name(value))


def _check_network(report: Report, spec: Raw, path: str) -> None:
    _check_hostname(report, spec, path)
    subdomain = text(spec, "subdomain")
    if subdomain:
        report.names(f"{path}.subdomain", subdomain, validate_label_name(subdomain))
    nameservers = texts(obj(spec, "dnsConfig"), "nameservers")
    if spec.get("dnsPolicy") == "None" and not obj(spec, "dnsConfig"):
        report.required(f"{path}.dnsConfig", "must provide `dnsConfig` when `dnsPolicy` is None")
    elif spec.get("dnsPolicy") == "None" and not nameservers:
        report.required(f"{path}.dnsConfig.nameservers", "must provide at least one name server when dnsPolicy is None")
    for index, address in enumerate(nameservers):
        if not is_ip(address):
            report.invalid(f"{path}.dnsConfig.nameservers[{index}]", address, "must be an IP address")
    for where, alias in objs(spec, "hostAliases", path):
        if not is_ip(text(alias, "ip")):
            report.invalid(f"{where}.ip", text(alias, "ip"), "must be an IP address")
        for name in texts(alias, "hostnames"):
            report.names(f"{where}.hostnames", name, validate_subdomain(name))


_IPV4: Final = re.compile(r"(?:(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])(?:\.(?!\Z)|\Z)){4}")


def is_ipv4(address: str) -> bool:
    return _IPV4.fullmatch(address) is not None


def is_ip(address: str) -> bool:
    if is_ipv4(address):  # most are, and there may be very many
        return True
    try:
        ipaddress.ip_address(address)
    except ValueError:
        return False
    return True


# -- changes ----------------------------------------------------------------------------------------------------------------


def _check_change(report: Report, spec: Raw, old: Raw) -> None:
    if len(list(objs(spec, "containers", ""))) != len(list(objs(old, "containers", ""))):
        report.forbidden("spec.containers", "pod updates may not add or remove containers")
        return
    _check_deadline(report, spec, old)
    _check_tolerations(report, spec, old)
    _check_gates(report, spec, old)
    may_narrow = bool(old.get("schedulingGates")) and _is_narrower(spec, old)
    fixed, before = _fixed_part(spec, old, may_narrow=may_narrow), _fixed_part(old, old, may_narrow=may_narrow)
    if fixed != before:
        changed = ", ".join(sorted(key for key in fixed.keys() | before.keys() if fixed.get(key) != before.get(key)))
        report.forbidden("spec", f"pod updates may not change fields other than these: {_CHANGEABLE}; changed: {changed}")


def _check_deadline(report: Report, spec: Raw, old: Raw) -> None:
    was, now = old.get("activeDeadlineSeconds"), spec.get("activeDeadlineSeconds")
    if was is not None and (now is None or number(spec, "activeDeadlineSeconds") > number(old, "activeDeadlineSeconds")):
        report.invalid("spec.activeDeadlineSeconds", now, f"must be less than or equal to the previous value ({was})")


def _check_tolerations(report: Report, spec: Raw, old: Raw) -> None:
    kept = {_canonical(_without(toleration, "tolerationSeconds")) for _, toleration in objs(spec, "tolerations", "")}
    for _, toleration in objs(old, "tolerations", ""):
        if _canonical(_without(toleration, "tolerationSeconds")) not in kept:
            report.forbidden("spec.tolerations", f"existing tolerations may not be changed or removed: {toleration}")


def _check_gates(report: Report, spec: Raw, old: Raw) -> None:
    before = {text(gate, "name") for _, gate in objs(old, "schedulingGates", "")}
    for where, gate in objs(spec, "schedulingGates", "spec"):
        if text(gate, "name") not in before:
            report.forbidden(where, "only deletion is allowed, but found a new scheduling gate")


def _fixed_part(spec: Raw, old: Raw, *, may_narrow: bool) -> Raw:
    """What of `spec` an update may not touch. While a pod is gated, where it may go can still be narrowed down."""
    fixed: Raw = copy_json(spec)
    for word in ("activeDeadlineSeconds", "tolerations", "schedulingGates"):
        fixed.pop(word, None)
    for word in ("containers", "initContainers"):
        for _, container in objs(fixed, word, ""):
            container.pop("image", None)
    if number(old, "terminationGracePeriodSeconds", 0) < 0 and fixed.get("terminationGracePeriodSeconds") == 1:
        fixed["terminationGracePeriodSeconds"] = old.get("terminationGracePeriodSeconds")
    if may_narrow:
        fixed.pop("nodeSelector", None)
        obj(obj(fixed, "affinity"), "nodeAffinity").clear()
        if not any(obj(fixed, "affinity").values()):
            fixed.pop("affinity", None)
    return {key: value for key, value in fixed.items() if value not in (None, [], {})}


def _is_narrower(spec: Raw, old: Raw) -> bool:
    """Whether every node that `spec` allows was allowed by `old`: labels added, and conditions added to every term."""
    if not obj(old, "nodeSelector").items() <= obj(spec, "nodeSelector").items():
        return False
    terms, before = (_required_terms(owner) for owner in (spec, old))
    if not before:
        return True
    if len(terms) != len(before):
        return False
    return all(
        _conditions(was, word) <= _conditions(new, word)
        for new, was in zip(terms, before, strict=True)
        for word in ("matchExpressions", "matchFields")
    )


def _conditions(term: Raw, word: str) -> set[bytes]:
    return {_canonical(condition) for _, condition in objs(term, word, "")}


def _required_terms(spec: Raw) -> list[Raw]:
    affinity = obj(obj(spec, "affinity"), "nodeAffinity")
    return [term for _, term in objs(obj(affinity, "requiredDuringSchedulingIgnoredDuringExecution"), "nodeSelectorTerms", "")]


def _without(value: Raw, key: str) -> dict[str, Any]:
    return {k: v for k, v in value.items() if k != key and v not in (None, "")}
