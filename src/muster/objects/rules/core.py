"""Rules for the core group's kinds other than pods, services and storage: configuration, nodes, quotas. Pure."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from muster.objects.names import (
    validate_config_key,
    validate_qualified_name,
)
from muster.objects.quantity import Quantity
from muster.objects.resource_quotas import SCOPES, is_whole, kind_of
from muster.objects.rules.containers import resource_name_problems
from muster.objects.rules.placement import check_taints
from muster.objects.rules.report import (
    Report,
    check_immutable,
    check_quantities,
    obj,
    objs,
    text,
    texts,
    unique,
)
from muster.objects.rules.services import is_network
from muster.objects.status import Raw

CONFIG_BYTES_MAX: Final = 1024 * 1024
_JSON_KEYS: Final = frozenset({".dockerconfigjson", ".dockercfg"})
"""Of Secrets with what a registry asks for."""
_LIMIT_TYPES: Final = ("Pod", "Container", "PersistentVolumeClaim")
_NOT_OF_PODS: Final = ("default", "defaultRequest")


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
        if key not in data or (key == "ssh-privatekey" and not data[key]):
            report.required(f"data[{key}]")
        elif key in _JSON_KEYS and not _holds_json_object(data[key]):
            report.invalid(f"data[{key}]", "<secret contents redacted>", "must be base64 of a JSON object")
    if kind == "kubernetes.io/basic-auth" and not data.keys() & {"username", "password"}:
        report.required("data[username]")
        report.required("data[password]")
    annotations = obj(obj(raw, "metadata"), "annotations")
    if kind == "kubernetes.io/service-account-token" and not annotations.get("kubernetes.io/service-account.name"):
        report.required("metadata.annotations[kubernetes.io/service-account.name]")
    if old is not None:
        check_immutable(report, raw.get("type"), old.get("type"), "type")
        _check_frozen(report, raw, old, ("data",))


def _holds_json_object(value: Any) -> bool:
    try:
        found = msgspec.json.decode(base64.b64decode(value))
    except (TypeError, ValueError, RecursionError):
        return False
    return found is None or isinstance(found, dict)


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


# -- nodes, namespaces, quotas ----------------------------------------------------------------------------------------------


def check_node(report: Report, raw: Raw, old: Raw | None) -> None:
    spec, status = obj(raw, "spec"), obj(raw, "status")
    check_taints(report, spec, "spec")
    for word in ("capacity", "allocatable"):
        check_quantities(report, obj(status, word), f"status.{word}")
    for index, network in enumerate(texts(spec, "podCIDRs") or [text(spec, "podCIDR")]):
        if network and not is_network(network):
            report.invalid(f"spec.podCIDRs[{index}]", network, "must be a network such as 10.244.0.0/24")
    if old is not None:
        for word in ("providerID", "podCIDR"):
            before = text(obj(old, "spec"), word)
            if before and text(spec, word) != before:
                report.forbidden(f"spec.{word}", "node updates may not change it once set")


def check_resource_quota(report: Report, raw: Raw, old: Raw | None) -> None:
    spec = obj(raw, "spec")
    amounts = {name.replace("count/", "", 1): value for name, value in obj(spec, "hard").items()}
    good = check_quantities(report, amounts, "spec.hard")
    before = obj(obj(old, "spec"), "hard")
    for name in obj(spec, "hard"):
        if "/" not in name and not kind_of(name) and name not in before:
            report.invalid(f"spec.hard[{name}]", name, "must be a standard resource for quota")
        elif is_whole(name) and (amount := good.get(name.replace("count/", "", 1))) and amount != Quantity.of(amount.value()):
            report.invalid(f"spec.hard[{name}]", str(amount), "must be an integer")
    if old is not None:
        check_immutable(report, spec.get("scopes"), obj(old, "spec").get("scopes"), "spec.scopes")
        return
    selected = objs(obj(spec, "scopeSelector"), "matchExpressions", "spec.scopeSelector")
    named = [("spec.scopes", scope, "Exists") for scope in texts(spec, "scopes")]
    named += [(where, text(one, "scopeName"), text(one, "operator")) for where, one in selected]
    _check_scopes(report, named, list(obj(spec, "hard")))
    for where, one in selected:
        operator = text(one, "operator")
        if operator in ("In", "NotIn") and not texts(one, "values"):
            report.required(f"{where}.values", f"must be at least one value when operator is {operator}")
        elif operator in ("Exists", "DoesNotExist") and texts(one, "values"):
            report.invalid(f"{where}.values", texts(one, "values"), f"must be no value when operator is {operator}")


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
        _check_bounded(report, where, kind, amounts)
        for word in _NOT_OF_PODS:
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
        if kind == "PersistentVolumeClaim" and "storage" not in obj(item, "min") and "storage" not in obj(item, "max"):
            report.required(f"{where}.limits", "either minimum or maximum storage value is required, but neither was provided")
        for name, ratio in amounts["maxLimitRequestRatio"].items():
            _check_ratio(
                report, f"{where}.maxLimitRequestRatio[{name}]", ratio, amounts["min"].get(name), amounts["max"].get(name)
            )


def _check_bounded(report: Report, where: str, kind: str, amounts: Mapping[str, Mapping[str, Quantity]]) -> None:
    """What is bounded has to be something that there is: of containers what they can ask for, of others more."""
    for word, named in amounts.items():
        if kind == "Pod" and word in _NOT_OF_PODS:
            continue
        for name in named:
            field = f"{where}.{word}[{name}]"
            if kind in ("Pod", "Container"):
                if not validate_qualified_name(name):  # which is said already
                    report.names(field, name, resource_name_problems(name))
            elif "/" not in name and name != "storage" and not kind_of(name):
                report.invalid(field, name, "must be a standard resource type or fully qualified")


def _check_ratio(report: Report, field: str, ratio: Quantity, least: Quantity | None, most: Quantity | None) -> None:
    """A ratio of limit to request that the bounds themselves already rule out is a mistake."""
    if ratio < Quantity.of(1):
        report.invalid(field, str(ratio), "must be 1 or more")
    elif least and most and ratio.fraction() * least.fraction() > most.fraction():
        report.invalid(field, str(ratio), f"is greater than max/min = {float(most) / float(least):f}")


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
