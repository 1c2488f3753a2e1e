"""Rules for SchedulingPolicy and Queue (muster.dev): formulas that can be worked out, factors that mean something. Pure.

A wrong formula is refused with the position of the mistake and what to write instead. Whether a queue's parent and policy are
there is not for a rule to say: objects come in any order, and controllers report what is missing.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from muster.objects.formula import RESERVED, WEIGHTED_SUM, FormulaError, parse_formula
from muster.objects.labels import Kuscia
from muster.objects.meta import name_of
from muster.objects.names import validate_label_key, validate_label_value, validate_qualified_name, validate_subdomain
from muster.objects.reason_codes import Reason
from muster.objects.rules import bandwidth
from muster.objects.rules.report import Report, check_selector, obj, objs, text, texts, unique
from muster.objects.status import Raw

SHARED_BY: Final = ("user", "group", "queue")
"""Keys of FairShare: whose use and whose share."""
PLAIN_RESOURCES: Final = (
    "cpu",
    "memory",
    "gpu",
    "pods",
    "bandwidth",
    "bandwidth-egress",
    "bandwidth-ingress",
    "ephemeral-storage",
    Kuscia.RESOURCE_BANDWIDTH,
)
"""Resources without a prefix that a factor's key can name; `gpu` is all GPU resources together."""
_RESOURCE: Final = "a resource"
_KEYS: Final[Mapping[str, tuple[str, bool]]] = {
    "Size": (_RESOURCE, False),
    "ShareOfCluster": (_RESOURCE, False),
    "EstimatedUse": (_RESOURCE, True),
    "PredictedUse": (_RESOURCE, True),
    "AttainedService": (_RESOURCE, False),
    "Pressure": (_RESOURCE, False),
    "Interference": (_RESOURCE, False),
    "FairShare": ("whose share", False),
    "Tail": ("how many of a hundred", False),
    "Attribute": ("an attribute", True),
    "Label": ("a label", True),
}
"""What a source's key names, and whether there must be one. Sources that are not here take none."""
_KEY_LEN_MAX: Final = 317
_PERCENT: Final = re.compile(r"[0-9]{1,2}(\.[0-9]{1,6})?", re.ASCII)


def check_policy(report: Report, raw: Raw, _old: Raw | None = None) -> None:
    """A SchedulingPolicy."""
    spec = obj(raw, "spec")
    factors = list(objs(spec, "factors", "spec"))
    unique(report, factors)
    for path, factor in factors:
        _check_factor(report, factor, path)
    formula = text(spec, "formula")
    if not formula.strip():
        return
    names = {text(factor, "name") for _, factor in factors}
    try:
        parsed = parse_formula(formula, names - {""})
    except FormulaError as error:
        report.invalid("spec.formula", formula, f"{Reason.FORMULA_INVALID.value}: {error}")
        return
    if WEIGHTED_SUM not in parsed.names:
        for path, factor in factors:
            if factor.get("weight", 1) != 1:
                message = f"has no effect: the formula does not use {WEIGHTED_SUM}; write the weight into the formula instead"
                report.invalid(f"{path}.weight", factor.get("weight"), message)


def _check_factor(report: Report, factor: Raw, path: str) -> None:
    name, source = text(factor, "name"), text(factor, "source")
    if name in RESERVED:
        report.invalid(f"{path}.name", name, "is a word of the formula language; choose another name")
    for word in ("weight", "constant", "default", "scale", "min", "max"):
        value = factor.get(word)
        if isinstance(value, float) and not math.isfinite(value):
            report.invalid(f"{path}.{word}", value, "must be a finite number")
    low, high = _number(factor.get("min"), -math.inf), _number(factor.get("max"), math.inf)
    if low > high:
        report.invalid(f"{path}.min", low, f"must be less than or equal to max, which is {high}")
    if source != "Constant" and factor.get("constant"):
        report.forbidden(f"{path}.constant", f"only with source Constant; the source is {source}")
    _check_key(report, source, text(factor, "key"), f"{path}.key")


def _number(value: Any, otherwise: float) -> float:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else otherwise


def _check_key(report: Report, source: str, key: str, path: str) -> None:
    what, is_required = _KEYS.get(source, ("", False))
    if not key:
        if is_required:
            report.required(path, f"source {source} needs the name of {what}")
        return
    if not what:
        report.forbidden(path, f"source {source} takes no key")
    elif len(key) > _KEY_LEN_MAX:
        report.too_long(path, f"may not be more than {_KEY_LEN_MAX} characters")
    elif source == "Label":
        report.names(path, key, validate_label_key(key))
    elif source == "FairShare":
        if key not in SHARED_BY:
            report.unsupported(path, key, SHARED_BY)
    elif source == "Tail":
        if not _PERCENT.fullmatch(key) or not 0 < float(key) < 100:
            report.invalid(path, key, "must be a percentage above 0 and below 100, as in '99'; without a key it is all of them")
    elif what == _RESOURCE:
        _check_resource(report, key, path)


def _check_resource(report: Report, key: str, path: str) -> None:
    if key in PLAIN_RESOURCES or key.startswith("hugepages-"):
        return
    if "/" in key:
        report.names(path, key, validate_qualified_name(key))
        return
    near = difflib.get_close_matches(key, PLAIN_RESOURCES, 1)
    hint = f"did you mean {near[0]}?" if near else f"without a prefix there are {', '.join(PLAIN_RESOURCES)}"
    report.invalid(path, key, f"no such resource; {hint}")


def check_queue(report: Report, raw: Raw, old: Raw | None = None) -> None:
    """A Queue."""
    bandwidth.RULES["muster.dev", "Queue"](report, raw, old)
    spec, name = obj(raw, "spec"), name_of(raw)
    if name:
        # It is a label's value on every pod that waits in it.
        report.names("metadata.name", name, validate_label_value(name))
    parent = text(spec, "parent")
    if parent and parent == name:
        report.invalid("spec.parent", parent, "a queue can't be its own parent; name the queue above, or leave it out")
    for word in ("parent", "policy"):
        if text(spec, word):
            report.names(f"spec.{word}", text(spec, word), validate_subdomain(text(spec, word)))
    for index, pool in enumerate(texts(spec, "pools")):
        report.names(f"spec.pools[{index}]", pool, validate_label_value(pool) if pool else ["must not be empty"])
    admission = obj(spec, "admission")
    bandwidth.check_amounts(report, obj(admission, "perJobMax"), "spec.admission.perJobMax")
    if obj(admission, "selector"):
        check_selector(report, obj(admission, "selector"), "spec.admission.selector")


RULES: Final[Mapping[tuple[str, str], Callable[[Report, Raw, Raw | None], None]]] = {
    ("muster.dev", "SchedulingPolicy"): check_policy,
    ("muster.dev", "Queue"): check_queue,
}
