"""Rules for services and for what stands behind them: endpoints and endpoint slices. Pure."""

from __future__ import annotations

import ipaddress
from typing import Any, Final

from muster.objects.names import validate_label_name, validate_port_name, validate_qualified_name, validate_subdomain
from muster.objects.rules.pods import is_ip, is_ipv4
from muster.objects.rules.report import Report, check_immutable, check_labels, number, obj, objs, text, texts, unique
from muster.objects.status import Raw

_ENDPOINTS_MAX: Final = 1000
_SLICE_PORTS_MAX: Final = 100
_EXPOSED: Final = ("NodePort", "LoadBalancer")
_SPECIAL: Final = ("0", "127.", "169.254.", "224.0.0.")
_MULTICAST: Final = {4: ipaddress.ip_network("224.0.0.0/24"), 6: ipaddress.ip_network("ff02::/16")}
"""Of one link, by version of the protocol."""


def check_service(report: Report, raw: Raw, old: Raw | None) -> None:
    spec = obj(raw, "spec")
    kind, address = text(spec, "type"), text(spec, "clusterIP")
    check_labels(report, obj(spec, "selector"), "spec.selector")
    ports = list(objs(spec, "ports", "spec"))
    if not ports and kind != "ExternalName" and address != "None":
        report.required("spec.ports")
    _check_service_ports(report, ports)
    _check_exposure(report, spec, ports)
    if kind == "ExternalName":
        name = text(spec, "externalName").removesuffix(".")
        if not name:
            report.required("spec.externalName")
        else:
            report.names("spec.externalName", name, validate_subdomain(name))
        if address not in ("", "None"):
            report.forbidden("spec.clusterIP", "may not be set when type is ExternalName")
    elif address not in ("", "None") and not is_ip(address):
        report.invalid("spec.clusterIP", address, "must be empty, 'None', or a valid IP address")
    if address == "None" and kind in ("NodePort", "LoadBalancer"):
        report.invalid("spec.clusterIP", address, f"may not be set to 'None' for {kind} services")
    for value in texts(spec, "clusterIPs"):
        if not is_ip(value) and value != "None":
            report.invalid("spec.clusterIPs", value, "must be an IP address")
    for value in texts(spec, "externalIPs"):
        _check_remote(report, value, "spec.externalIPs", may_be_loopback=False)
    for value in texts(spec, "loadBalancerSourceRanges"):
        if not is_network(value.strip()):
            report.invalid("spec.loadBalancerSourceRanges", value, "must be a network such as 10.0.0.0/8")
    if old is not None:
        before = text(obj(old, "spec"), "clusterIP")
        if before and address != before and "ExternalName" not in (kind, text(obj(old, "spec"), "type")):
            report.immutable("spec.clusterIP", address)


def _check_exposure(report: Report, spec: Raw, ports: list[tuple[str, Raw]]) -> None:
    """What only services have that can be reached from outside the cluster."""
    kind, policy = text(spec, "type"), text(spec, "externalTrafficPolicy")
    if kind not in _EXPOSED:
        if kind == "ClusterIP":
            for where, port in ports:
                if number(port, "nodePort"):
                    report.forbidden(f"{where}.nodePort", "may not be used when `type` is 'ClusterIP'")
        if policy:
            message = "may only be set on services of type NodePort or LoadBalancer"
            report.invalid("spec.externalTrafficPolicy", policy, message)
    if kind != "LoadBalancer" and texts(spec, "loadBalancerSourceRanges"):
        report.forbidden("spec.loadBalancerSourceRanges", "may only be used when `type` is 'LoadBalancer'")
    if (check_port := number(spec, "healthCheckNodePort")) and (kind, policy) != ("LoadBalancer", "Local"):
        message = "may only be set on services of type LoadBalancer with externalTrafficPolicy Local"
        report.invalid("spec.healthCheckNodePort", check_port, message)


def _check_remote(report: Report, address: str, field: str, *, may_be_loopback: bool) -> None:
    """An address that others can reach: `127.0.0.1` is somebody else for each of them."""
    if not is_ip(address):
        report.invalid(field, address, "must be an IP address")
        return
    if address[0].isdigit() and not address.startswith(_SPECIAL):
        return  # by far the most, and quick
    found = ipaddress.ip_address(address)
    for is_so, what in (
        (found.is_unspecified, "may not be unspecified"),
        (found.is_loopback and not may_be_loopback, "may not be in the loopback range"),
        (found.is_link_local, "may not be in the link-local range"),
        (found in _MULTICAST[found.version], "may not be in the link-local multicast range"),
    ):
        if is_so:
            report.invalid(field, address, what)


def _check_service_ports(report: Report, ports: list[tuple[str, Raw]]) -> None:
    unique(report, ports)
    seen: set[tuple[str, int]] = set()
    for where, port in ports:
        name, target = text(port, "name"), port.get("targetPort")
        if len(ports) > 1 and not name:
            report.required(f"{where}.name")
        if name:
            report.names(f"{where}.name", name, validate_label_name(name))
        if protocol := text(port, "appProtocol"):
            report.names(f"{where}.appProtocol", protocol, validate_qualified_name(protocol))
        pair = (text(port, "protocol"), number(port, "port"))
        if pair in seen:
            report.duplicate(where, {"port": pair[1], "protocol": pair[0]})
        seen.add(pair)
        if isinstance(target, str) and not (target.isascii() and target.isdigit() and len(target) <= 5):
            report.names(f"{where}.targetPort", target, validate_port_name(target))
        elif target is not None and not 1 <= _port_number(target) <= 65535:
            report.invalid(f"{where}.targetPort", target, "must be between 1 and 65535, or a port's name")


def _port_number(value: Any) -> int:
    return int(value) if isinstance(value, int | str) and not isinstance(value, bool) else 0


def is_network(value: str) -> bool:
    address, slash, prefix = value.partition("/")
    if slash and prefix.isascii() and prefix.isdigit() and len(prefix) <= 2 and int(prefix) <= 32 and is_ipv4(address):
        return True
    try:
        ipaddress.ip_network(value, strict=False)
    except ValueError:
        return False
    return "/" in value


def check_endpoints(report: Report, raw: Raw, old: Raw | None) -> None:
    for where, subset in objs(raw, "subsets", ""):
        for word in ("addresses", "notReadyAddresses"):
            for path, address in objs(subset, word, where):
                _check_remote(report, text(address, "ip"), f"{path}.ip", may_be_loopback=True)
                if name := text(address, "hostname"):
                    report.names(f"{path}.hostname", name, validate_label_name(name))
        if not subset.get("addresses") and not subset.get("notReadyAddresses"):
            report.required(where, "must specify `addresses` or `notReadyAddresses`")
        ports = list(objs(subset, "ports", where))
        for path, port in ports:
            if len(ports) > 1 and not text(port, "name"):
                report.required(f"{path}.name")


def check_endpoint_slice(report: Report, raw: Raw, old: Raw | None) -> None:
    kind = text(raw, "addressType")
    endpoints = list(objs(raw, "endpoints", ""))
    if len(endpoints) > _ENDPOINTS_MAX:
        report.too_many("endpoints", len(endpoints), _ENDPOINTS_MAX)
        return
    for where, endpoint in endpoints:
        for index, address in enumerate(texts(endpoint, "addresses")):
            path = f"{where}.addresses[{index}]"
            if kind == "FQDN":
                report.names(path, address, validate_subdomain(address))
            elif not is_ip(address) or ipaddress.ip_address(address).version != (6 if kind == "IPv6" else 4):
                report.invalid(path, address, f"must be an {kind} address")
    ports = list(objs(raw, "ports", ""))
    if len(ports) > _SLICE_PORTS_MAX:
        report.too_many("ports", len(ports), _SLICE_PORTS_MAX)
    seen: set[str] = set()
    for where, port in ports:
        if text(port, "name") in seen:
            report.duplicate(f"{where}.name", text(port, "name"))
        seen.add(text(port, "name"))
    if old is not None:
        check_immutable(report, raw.get("addressType"), old.get("addressType"), "addressType")
