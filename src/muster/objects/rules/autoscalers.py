"""Rules for HorizontalPodAutoscaler. Pure."""

from __future__ import annotations

from typing import Final

from muster.objects.kinds.autoscalers import METRIC_SOURCES
from muster.objects.names import validate_path_segment
from muster.objects.rules.report import Report, check_quantity, check_selector, number, obj, objs, text
from muster.objects.status import Raw

_TARGETS: Final = {"Utilization": "averageUtilization", "Value": "value", "AverageValue": "averageValue"}
_ALLOWED: Final = {
    "object": ("Value", "AverageValue"),
    "pods": ("AverageValue",),
    "resource": ("Utilization", "AverageValue"),
    "containerResource": ("Utilization", "AverageValue"),
    "external": ("Value", "AverageValue"),
}


def check_autoscaler(report: Report, raw: Raw, old: Raw | None) -> None:
    spec = obj(raw, "spec")
    if not spec:
        report.required("spec", "what to scale, and between which bounds")
        return
    _check_reference(report, obj(spec, "scaleTargetRef"), "spec.scaleTargetRef")
    low, high = number(spec, "minReplicas", 1), number(spec, "maxReplicas")
    if low < 1:
        report.invalid("spec.minReplicas", low, "must be greater than or equal to 1")
    if high < 1:
        report.invalid("spec.maxReplicas", high, "must be greater than 0")
    elif high < low:
        report.invalid("spec.maxReplicas", high, "must be greater than or equal to `minReplicas`")
    for where, metric in objs(spec, "metrics", "spec"):
        _check_metric(report, metric, where)
    for word in ("scaleUp", "scaleDown"):
        rules = obj(obj(spec, "behavior"), word)
        if isinstance(rules.get("policies"), list) and not rules["policies"]:
            report.required(f"spec.behavior.{word}.policies", "must specify at least one policy")
        if rules.get("tolerance") is not None:
            check_quantity(report, rules["tolerance"], f"spec.behavior.{word}.tolerance")


def _check_reference(report: Report, reference: Raw, path: str) -> None:
    for word in ("kind", "name"):
        value = text(reference, word)
        if not value:
            report.required(f"{path}.{word}")
        else:
            report.names(f"{path}.{word}", value, validate_path_segment(value))


def _check_metric(report: Report, metric: Raw, path: str) -> None:
    kind = text(metric, "type")
    wanted = METRIC_SOURCES.get(kind, "")
    for source in METRIC_SOURCES.values():
        if source != wanted and metric.get(source) is not None:
            report.forbidden(f"{path}.{source}", f"must be populated for the given metric source only, which is {kind}")
    if not isinstance(metric.get(wanted), dict):
        report.required(f"{path}.{wanted or 'type'}", "must populate information for the given metric source")
        return
    source, where = metric[wanted], f"{path}.{wanted}"
    if wanted == "object":
        _check_reference(report, obj(source, "describedObject"), f"{where}.describedObject")
    if wanted in ("resource", "containerResource"):
        if not text(source, "name"):
            report.required(f"{where}.name", "must specify a resource name")
    else:
        name = text(obj(source, "metric"), "name")
        if not name:
            report.required(f"{where}.metric.name", "must specify a metric name")
        else:
            report.names(f"{where}.metric.name", name, validate_path_segment(name))
        check_selector(report, obj(obj(source, "metric"), "selector"), f"{where}.metric.selector")
    if wanted == "containerResource" and not text(source, "container"):
        report.required(f"{where}.container", "must specify a container")
    _check_target(report, obj(source, "target"), f"{where}.target", _ALLOWED[wanted])


def _check_target(report: Report, target: Raw, path: str, allowed: tuple[str, ...]) -> None:
    kind = text(target, "type")
    if kind not in allowed:
        report.unsupported(f"{path}.type", kind, allowed)
        return
    for other, field in _TARGETS.items():
        value = target.get(field)
        if value is None:
            if other == kind:
                report.required(f"{path}.{field}", f"must be set when the type is {kind}")
        elif other != kind:
            report.forbidden(f"{path}.{field}", f"may not be set when the type is {kind}")
        elif field == "averageUtilization":
            if number(target, field) < 1:
                report.invalid(f"{path}.{field}", value, "must be greater than 0")
        else:
            amount = check_quantity(report, value, f"{path}.{field}")
            if amount is not None and not amount:
                report.invalid(f"{path}.{field}", value, "must be positive")
