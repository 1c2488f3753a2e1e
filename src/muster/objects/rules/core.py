"""Rules for the core group's kinds other than pods: configuration, services, nodes, quotas. Pure."""

from __future__ import annotations

import ipaddress
from typing import Any, Final

import msgspec

from muster.objects.names import (
    validate_config_key,
    validate_label_name,
    validate_port_name,
    validate_qualified_name,
    validate_subdomain,
)
from muster.objects.quantity import Quantity
from muster.objects.resource_quotas import SCOPES, kind_of
from muster.objects.rules.placement import check_taints
from muster.objects.rules.pods import is_ip, is_ipv4
from muster.objects.rules.report import (
    Report,
    check_immutable,
    check_labels,
    check_quantities,
    number,
    obj,
    objs,
    text,
    texts,
    unique,
)
from muster.objects.status import Raw

CONFIG_BYTES_MAX: Final = 1024 * 1024
_ENDPOINTS_MAX: Final = 1000
_SLICE_PORTS_MAX: Final = 100
_LIMIT_TYPES: Final = ("Pod", "Container", "PersistentVolumeClaim")


# -- configuration ----------------------------------------------------------------------------------------------------------


def check_config_map(report: Report, raw: Raw, old: Raw | None) -> None:
    data, binary = obj(raw, "data"), obj(raw, "binaryData")
    for word, values in (("data", data), ("binaryData", binary)):
        for key in values:
            report.names(f"{word}[{key}]", key, validate_config_key(key))
    for key in sorted(data.keys() & binary.keys()):
        report.invalid(f"data[{key}]", key, "duplicate of key present in binaryData")
    size = sum(len(v.encode("utf-8", "surrogatepass")) for v in data.values() if isinstance(v, str))
    size += sum(_decoded_len(v) for v in binary.values())
    if size > CONFIG_BYTES_MAX:
        report.too_long("data", f"{size} bytes: may not be more than {CONFIG_BYTES_MAX} bytes")
    if old is not None:
        _check_frozen(report, raw, old, ("data", "binaryData"))


def check_secret(report: Report, raw: Raw, old: Raw | None) -> None:
    data = obj(raw, "data")
    for key in data:
        report.names(f"data[{key}]", key, validate_config_key(key))
    size = sum(_decoded_len(value) for value in data.values())
    if size > CONFIG_BYTES_MAX:
        report.too_long("data", f"{size} bytes: may not be more than {CONFIG_BYTES_MAX} bytes")
    needed: dict[str, tuple[str, ...]] = {
        "kubernetes.io/tls": ("tls.crt", "tls.key"),
        "kubernetes.io/dockerconfigjson": (".dockerconfigjson",),
        "kubernetes.io/dockercfg": (".dockercfg",),
        "kubernetes.io/ssh-auth": ("ssh-privatekey",),
    }
    kind = text(raw, "type")
    for key in needed.get(kind, ()):
        if key not in data:
            report.required(f"data[{key}]")
    if kind == "kubernetes.io/basic-auth" and not data.keys() & {"username", "password"}:
        report.required("data[username]")
        report.required("data[password]")
    annotations = obj(obj(raw, "metadata"), "annotations")
    if kind == "kubernetes.io/service-account-token" and not annotations.get("kubernetes.io/service-account.name"):
        report.required("metadata.annotations[kubernetes.io/service-account.name]")
    if old is not None:
        check_immutable(report, raw.get("type"), old.get("type"), "type")
        _check_frozen(report, raw, old, ("data",))


def _decoded_len(value: Any) -> int:
    return len(value) * 3 // 4 if isinstance(value, str) else 0


def _check_frozen(report: Report, raw: Raw, old: Raw, fields: tuple[str, ...]) -> None:
    if old.get("immutable") is not True:
        return
    if raw.get("immutable") is not True:
        report.forbidden("immutable", "field is immutable when `immutable` is set")
    for field in fields:
        if obj(raw, field) != obj(old, field):
            report.forbidden(field, "field is immutable when `immutable` is set")


# -- services ---------------------------------------------------------------------------------------------------------------


def check_service(report: Report, raw: Raw, old: Raw | None) -> None:
    spec = obj(raw, "spec")
    kind, address = text(spec, "type"), text(spec, "clusterIP")
    check_labels(report, obj(spec, "selector"), "spec.selector")
    ports = list(objs(spec, "ports", "spec"))
    if not ports and kind != "ExternalName" and address != "None":
        report.required("spec.ports")
    _check_service_ports(report, ports)
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
    for word in ("externalIPs", "clusterIPs"):
        for value in texts(spec, word):
            if not is_ip(value) and not (word == "clusterIPs" and value == "None"):
                report.invalid(f"spec.{word}", value, "must be an IP address")
    for value in texts(spec, "loadBalancerSourceRanges"):
        if not is_network(value.strip()):
            report.invalid("spec.loadBalancerSourceRanges", value, "must be a network such as 10.0.0.0/8")
    if old is not None:
        before = text(obj(old, "spec"), "clusterIP")
        if before and address != before and "ExternalName" not in (kind, text(obj(old, "spec"), "type")):
            report.immutable("spec.clusterIP", address)


def _check_service_ports(report: Report, ports: list[tuple[str, Raw]]) -> None:
    unique(report, ports)
    seen: set[tuple[str, int]] = set()
    for where, port in ports:
        name, target = text(port, "name"), port.get("targetPort")
        if len(ports) > 1 and not name:
            report.required(f"{where}.name")
        if name:
            report.names(f"{where}.name", name, validate_label_name(name))
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
                if not is_ip(text(address, "ip")):
                    report.invalid(f"{path}.ip", text(address, "ip"), "must be an IP address")
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


# -- nodes, namespaces, quotas, events --------------------------------------------------------------------------------------


def check_node(report: Report, raw: Raw, old: Raw | None) -> None:
    spec, status = obj(raw, "spec"), obj(raw, "status")
    check_taints(report, spec, "spec")
    for word in ("capacity", "allocatable"):
        check_quantities(report, obj(status, word), f"status.{word}")
    for network in texts(spec, "podCIDRs"):
        if not is_network(network):
            report.invalid("spec.podCIDRs", network, "must be a network such as 10.244.0.0/24")
    if old is not None:
        for word in ("providerID", "podCIDR"):
            before = text(obj(old, "spec"), word)
            if before and text(spec, word) != before:
                report.forbidden(f"spec.{word}", "node updates may not change it once set")


def check_resource_quota(report: Report, raw: Raw, old: Raw | None) -> None:
    spec = obj(raw, "spec")
    amounts = {name.replace("count/", "", 1): value for name, value in obj(spec, "hard").items()}
    check_quantities(report, amounts, "spec.hard")
    before = obj(obj(old, "spec"), "hard")
    for name in obj(spec, "hard"):
        if "/" not in name and not kind_of(name) and name not in before:
            report.invalid(f"spec.hard[{name}]", name, "must be a standard resource for quota")
    if old is not None:
        check_immutable(report, spec.get("scopes"), obj(old, "spec").get("scopes"), "spec.scopes")
        return
    selected = objs(obj(spec, "scopeSelector"), "matchExpressions", "spec.scopeSelector")
    named = [("spec.scopes", scope, "Exists") for scope in texts(spec, "scopes")]
    named += [(where, text(one, "scopeName"), text(one, "operator")) for where, one in selected]
    _check_scopes(report, named, list(obj(spec, "hard")))


def _check_scopes(report: Report, named: list[tuple[str, str, str]], bounded: list[str]) -> None:
    """Scopes (field, name, operator) that are known, do not exclude each other, and are about pods, as what is bounded is."""
    scopes = {scope for _, scope, _ in named}
    for field, scope, operator in named:
        if scope not in SCOPES:
            report.invalid(field, scope, f"unsupported scope; there are {', '.join(SCOPES)}")
        elif scope != "PriorityClass" and operator != "Exists":
            report.invalid(f"{field}.operator", operator, f"must be 'Exists' when scope is {scope}")
        elif f"Not{scope}" in scopes:
            report.invalid(field, scope, "conflicting scopes")
        else:
            for name in bounded:
                if kind_of(name) != "pods" or (scope == "BestEffort" and name != "pods"):
                    report.invalid(field, scope, f"unsupported scope applied to resource {name}")


def check_limit_range(report: Report, raw: Raw, old: Raw | None) -> None:
    items = list(objs(obj(raw, "spec"), "limits", "spec"))
    unique(report, items, "type")
    for where, item in items:
        kind = text(item, "type")
        if kind not in _LIMIT_TYPES and validate_qualified_name(kind):
            report.unsupported(f"{where}.type", kind, _LIMIT_TYPES)
        amounts = {
            word: check_quantities(report, obj(item, word), f"{where}.{word}")
            for word in ("min", "max", "default", "defaultRequest", "maxLimitRequestRatio")
        }
        for word in ("default", "defaultRequest"):
            if kind == "Pod" and item.get(word):
                report.forbidden(f"{where}.{word}", "may not be specified when `type` is 'Pod'")
        order = ("min", "defaultRequest", "default", "max")
        for low_at, low in enumerate(order):
            for high in order[low_at + 1 :]:
                for name in amounts[low].keys() & amounts[high].keys():
                    if amounts[low][name].nanos > amounts[high][name].nanos:
                        report.invalid(
                            f"{where}.{low}[{name}]",
                            str(amounts[low][name]),
                            f"{low} is more than {high} ({amounts[high][name]})",
                        )
        for name, ratio in amounts["maxLimitRequestRatio"].items():
            if ratio < Quantity.of(1):
                report.invalid(f"{where}.maxLimitRequestRatio[{name}]", str(ratio), "must be 1 or more")


def check_event(report: Report, raw: Raw, old: Raw | None) -> None:
    subject = obj(raw, "involvedObject") or obj(raw, "regarding")
    namespace, about = text(obj(raw, "metadata"), "namespace"), text(subject, "namespace")
    if about and namespace != about:
        report.invalid("involvedObject.namespace", about, f"does not match event.namespace ({namespace})")
    elif not about and namespace not in ("", "default"):
        report.invalid("involvedObject.namespace", about, "events about cluster-wide objects belong into the namespace default")
    if len(msgspec.json.encode(raw.get("message") or raw.get("note") or "")) > CONFIG_BYTES_MAX:
        report.too_long("message", f"may not be more than {CONFIG_BYTES_MAX} bytes")


def check_service_account(report: Report, raw: Raw, old: Raw | None) -> None:
    for where, reference in objs(raw, "imagePullSecrets", ""):
        if not text(reference, "name"):
            report.required(f"{where}.name")


def check_binding(report: Report, raw: Raw, old: Raw | None) -> None:
    target = obj(raw, "target")
    if text(target, "kind") not in ("", "Node"):
        report.unsupported("target.kind", text(target, "kind"), ["Node", "<empty>"])
    if not text(target, "name"):
        report.required("target.name")
