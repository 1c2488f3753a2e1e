"""Rules for where a pod may go: selectors, affinity, tolerations, spreading; also the taints that stand against it. Pure."""

from __future__ import annotations

from typing import Any

from muster.objects.names import validate_label_key, validate_label_value, validate_qualified_name
from muster.objects.rules.report import Report, check_labels, check_selector, obj, objs, text, texts
from muster.objects.status import Raw

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def check_placement(report: Report, spec: Raw, path: str) -> None:
    check_labels(report, obj(spec, "nodeSelector"), f"{path}.nodeSelector")
    affinity = obj(spec, "affinity")
    _check_node_affinity(report, obj(affinity, "nodeAffinity"), f"{path}.affinity.nodeAffinity")
    for word in ("podAffinity", "podAntiAffinity"):
        _check_pod_affinity(report, obj(affinity, word), f"{path}.affinity.{word}")
    for where, toleration in objs(spec, "tolerations", path):
        _check_toleration(report, toleration, where)
    _check_spreading(report, spec, path)


def check_node_selector(report: Report, selector: Any, path: str) -> None:
    """A NodeSelector: terms of which any one will do."""
    value = selector.get("nodeSelectorTerms") if isinstance(selector, dict) else None
    terms = value if isinstance(value, list) else []
    if not any(isinstance(term, dict) for term in terms):
        report.required(f"{path}.nodeSelectorTerms", "must have at least one node selector term")
    for index, term in enumerate(terms):
        # There may be very many, and an empty one is right: it selects nothing.
        if term and isinstance(term, dict):
            _check_term(report, term, f"{path}.nodeSelectorTerms[{index}]")


def _check_node_affinity(report: Report, affinity: Raw, path: str) -> None:
    if isinstance(affinity.get(_REQUIRED), dict):
        check_node_selector(report, affinity[_REQUIRED], f"{path}.{_REQUIRED}")
    for where, preferred in objs(affinity, _PREFERRED, path):
        _check_term(report, obj(preferred, "preference"), f"{where}.preference")


def _check_term(report: Report, term: Raw, path: str) -> None:
    for where, requirement in objs(term, "matchExpressions", path):
        key, operator, values = text(requirement, "key"), text(requirement, "operator"), texts(requirement, "values")
        report.names(f"{where}.key", key, validate_label_key(key))
        _check_values(report, operator, values, where)
        for value in values if operator in ("In", "NotIn") else ():
            report.names(f"{where}.values", value, validate_label_value(value))
    for where, requirement in objs(term, "matchFields", path):
        key, operator, values = text(requirement, "key"), text(requirement, "operator"), texts(requirement, "values")
        if key != "metadata.name":
            report.unsupported(f"{where}.key", key, ["metadata.name"])
        if operator not in ("In", "NotIn"):
            report.unsupported(f"{where}.operator", operator, ["In", "NotIn"])
        elif len(values) != 1:
            report.required(
                f"{where}.values", "must be only one value when `operator` is 'In' or 'NotIn' for node field selector"
            )


def _check_values(report: Report, operator: str, values: list[str], path: str) -> None:
    if operator in ("In", "NotIn") and not values:
        report.required(f"{path}.values", f"must be specified when operator is {operator}")
    elif operator in ("Exists", "DoesNotExist") and values:
        report.forbidden(f"{path}.values", f"may not be specified when operator is {operator}")
    elif operator in ("Gt", "Lt") and (len(values) != 1 or not values[0].lstrip("-").isdigit()):
        report.required(f"{path}.values", f"must be one whole number when operator is {operator}")


def _check_pod_affinity(report: Report, affinity: Raw, path: str) -> None:
    terms = list(objs(affinity, _REQUIRED, path))
    terms += [(f"{where}.podAffinityTerm", obj(term, "podAffinityTerm")) for where, term in objs(affinity, _PREFERRED, path)]
    for where, term in terms:
        key = text(term, "topologyKey")
        if not key:
            report.required(f"{where}.topologyKey", "can not be empty")
        else:
            report.names(f"{where}.topologyKey", key, validate_label_key(key))
        check_selector(report, obj(term, "labelSelector"), f"{where}.labelSelector")
        check_selector(report, obj(term, "namespaceSelector"), f"{where}.namespaceSelector")


def _check_toleration(report: Report, toleration: Raw, path: str) -> None:
    key, operator, value = text(toleration, "key"), text(toleration, "operator"), text(toleration, "value")
    if key:
        report.names(f"{path}.key", key, validate_label_key(key))
    elif operator != "Exists":
        report.invalid(
            f"{path}.operator", operator, "operator must be Exists when `key` is empty, which means to match all taints"
        )
    if operator == "Exists" and value:
        report.invalid(f"{path}.operator", toleration, "value must be empty when `operator` is 'Exists'")
    elif operator in ("", "Equal"):
        report.names(f"{path}.value", value, validate_label_value(value))
    if toleration.get("tolerationSeconds") is not None and text(toleration, "effect") != "NoExecute":
        report.invalid(
            f"{path}.effect", text(toleration, "effect"), "effect must be 'NoExecute' when `tolerationSeconds` is set"
        )


def _check_spreading(report: Report, spec: Raw, path: str) -> None:
    seen: set[tuple[str, str]] = set()
    for where, constraint in objs(spec, "topologySpreadConstraints", path):
        key = text(constraint, "topologyKey")
        if not key:
            report.required(f"{where}.topologyKey", "can not be empty")
        else:
            report.names(f"{where}.topologyKey", key, validate_label_key(key))
        pair = (key, text(constraint, "whenUnsatisfiable"))
        if pair in seen:
            report.duplicate(where, f"{{{pair[0]}, {pair[1]}}}")
        seen.add(pair)
        check_selector(report, obj(constraint, "labelSelector"), f"{where}.labelSelector")
        if constraint.get("minDomains") is not None and pair[1] != "DoNotSchedule":
            report.invalid(
                f"{where}.minDomains", constraint["minDomains"], "can only be used with whenUnsatisfiable: DoNotSchedule"
            )


def check_taints(report: Report, spec: Raw, path: str) -> None:
    seen: set[tuple[str, str]] = set()
    for where, taint in objs(spec, "taints", path):
        key, value = text(taint, "key"), text(taint, "value")
        report.names(f"{where}.key", key, validate_qualified_name(key))
        report.names(f"{where}.value", value, validate_label_value(value))
        pair = (key, text(taint, "effect"))
        if pair in seen:
            report.duplicate(where, f"{pair[0]}:{pair[1]}")
        seen.add(pair)
