"""Rules for network policies and ingresses. Pure."""

from __future__ import annotations

import ipaddress
from typing import Any

from muster.objects.names import validate_label_name, validate_port_name, validate_subdomain
from muster.objects.rules.pods import is_ip
from muster.objects.rules.report import Report, check_selector, number, obj, objs, text, texts
from muster.objects.rules.services import is_network
from muster.objects.status import Raw

_CLASS_ANNOTATION = "kubernetes.io/ingress.class"


def check_network_policy(report: Report, raw: Raw, old: Raw | None) -> None:
    spec = obj(raw, "spec")
    check_selector(report, obj(spec, "podSelector"), "spec.podSelector")
    for direction, peers in (("ingress", "from"), ("egress", "to")):
        for where, rule in objs(spec, direction, "spec"):
            for path, port in objs(rule, "ports", where):
                _check_port(report, port.get("port"), f"{path}.port")
            for path, peer in objs(rule, peers, where):
                block = peer.get("ipBlock")
                if isinstance(block, dict):
                    if len(peer) > 1:
                        report.forbidden(path, "may not specify both ipBlock and another peer")
                    _check_block(report, block, f"{path}.ipBlock")
                elif not peer:
                    report.required(path, "must specify a peer")
    if len(texts(spec, "policyTypes")) > 2:
        report.invalid("spec.policyTypes", spec["policyTypes"], "may not specify more than two policyTypes")
    for index, word in enumerate(texts(spec, "policyTypes")):
        if word not in ("Ingress", "Egress"):
            report.unsupported(f"spec.policyTypes[{index}]", word, ["Ingress", "Egress"])


def _check_block(report: Report, block: Raw, path: str) -> None:
    whole = text(block, "cidr")
    if not is_network(whole):
        report.invalid(f"{path}.cidr", whole, "must be a network such as 10.0.0.0/8")
    outer = _span(whole) if is_network(whole) else None
    for index, network in enumerate(texts(block, "except")):
        field = f"{path}.except[{index}]"
        if not is_network(network):
            report.invalid(field, network, "must be a network such as 10.0.0.0/8")
        elif outer is not None:
            version, first, last = _span(network)
            if version != outer[0] or first < outer[1] or last > outer[2] or (first, last) == outer[1:]:
                report.invalid(field, network, f"must be a part of `cidr` ({whole}), and not all of it")


def _span(network: str) -> tuple[int, int, int]:
    """Version, first and last address of what `is_network` accepts. There may be very many, so the common ones are quick."""
    address, _, prefix = network.partition("/")
    parts = address.split(".")
    if len(parts) == 4 and ":" not in network and prefix.isdigit():
        size = 1 << (32 - int(prefix))
        value = (int(parts[0]) << 24) | (int(parts[1]) << 16) | (int(parts[2]) << 8) | int(parts[3])
        first = value - value % size
        return 4, first, first + size - 1
    found = ipaddress.ip_network(network, strict=False)
    return found.version, int(found.network_address), int(found.broadcast_address)


def _check_port(report: Report, port: Any, field: str) -> None:
    if isinstance(port, str):
        report.names(field, port, validate_port_name(port))
    elif isinstance(port, int) and not 1 <= port <= 65535:
        report.invalid(field, port, "must be between 1 and 65535, inclusive")


def check_ingress(report: Report, raw: Raw, old: Raw | None) -> None:
    spec = obj(raw, "spec")
    if not spec.get("rules") and not spec.get("defaultBackend"):
        report.invalid("spec", spec, "either `defaultBackend` or `rules` must be specified")
    if isinstance(spec.get("defaultBackend"), dict):
        _check_backend(report, spec["defaultBackend"], "spec.defaultBackend")
    name = text(spec, "ingressClassName")
    if name:
        report.names("spec.ingressClassName", name, validate_subdomain(name))
        if old is None and text(obj(obj(raw, "metadata"), "annotations"), _CLASS_ANNOTATION):
            report.invalid(
                f"metadata.annotations[{_CLASS_ANNOTATION}]", name, "can not be set when the class field is also set"
            )
    for where, tls in objs(spec, "tls", "spec"):
        for index, host in enumerate(texts(tls, "hosts")):
            _check_host(report, host, f"{where}.hosts[{index}]")
        if secret := text(tls, "secretName"):
            report.names(f"{where}.secretName", secret, validate_subdomain(secret))
    for where, rule in objs(spec, "rules", "spec"):
        if host := text(rule, "host"):
            _check_host(report, host, f"{where}.host")
        if isinstance(rule.get("http"), dict) and not rule["http"].get("paths"):
            report.required(f"{where}.http.paths")
        for path, item in objs(obj(rule, "http"), "paths", f"{where}.http"):
            if text(item, "pathType") in ("Exact", "Prefix") and not text(item, "path").startswith("/"):
                report.invalid(f"{path}.path", text(item, "path"), "must be an absolute path")
            elif text(item, "pathType") in ("Exact", "Prefix"):
                _check_path(report, text(item, "path"), f"{path}.path")
            _check_backend(report, obj(item, "backend"), f"{path}.backend")


def _check_host(report: Report, host: str, field: str) -> None:
    """A name, perhaps with `*` for its first part."""
    if is_ip(host):
        report.invalid(field, host, "must be a DNS name, not an IP address")
    else:
        report.names(field, host, validate_subdomain(host.removeprefix("*.")))


def _check_path(report: Report, path: str, field: str) -> None:
    for part in ("//", "/./", "/../", "%2f", "%2F"):
        if part in path:
            report.invalid(field, path, f"must not contain '{part}'")
    for end in ("/..", "/."):
        if path.endswith(end):
            report.invalid(field, path, f"cannot end with '{end}'")


def _check_backend(report: Report, backend: Raw, path: str) -> None:
    service, resource = backend.get("service"), backend.get("resource")
    if (service is None) == (resource is None):
        report.invalid(path, backend, "must have exactly one of `service` and `resource`")
    if isinstance(service, dict):
        name, port = text(service, "name"), obj(service, "port")
        report.names(f"{path}.service.name", name, validate_label_name(name))
        if bool(text(port, "name")) == bool(number(port, "number")):
            report.required(f"{path}.service.port", "port name or number is required, and not both")
