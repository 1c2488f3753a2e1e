"""Rules about KusciaDeployments: parties, replicas, strategies, names of services. Pure.

An update is held to what it makes wrong, not to what was wrong before. Every message begins with a reason code.
"""

from __future__ import annotations

from typing import Any, Final

from muster.objects.labels import KusciaAnnotation
from muster.objects.names import validate_dns1035_label, validate_label_name
from muster.objects.reason_codes import Reason
from muster.objects.rules import bandwidth
from muster.objects.rules.report import Report, obj, objs, text
from muster.objects.status import Cause, Raw

REPLICAS_MAX: Final = 1_000
PARTIES_MAX: Final = 128
PREFIX_LEN_MAX: Final = 40
AFFINITY_MODES: Final = ("none", "affinity", "anti-affinity")
_INVALID: Final = Reason.MANIFEST_INVALID.value
_BANDWIDTH = bandwidth.RULES["kuscia.secretflow", "KusciaDeployment"]


def check_deployment(report: Report, raw: Raw, old: Raw | None) -> None:
    _BANDWIDTH(report, raw, old)
    known = set(deployment_problems(old)) if old is not None else ()
    report.causes += [cause for cause in deployment_problems(raw) if cause not in known]


def deployment_problems(raw: Raw) -> list[Cause]:
    """All that stands against running this service."""
    report = Report()
    spec = obj(raw, "spec")
    if not text(spec, "initiator"):
        report.required("spec.initiator", f"{_INVALID}: the party whose service this is")
    parties = list(objs(spec, "parties", "spec"))
    if not parties:
        report.required("spec.parties", f"{_INVALID}: at least one party")
    if len(parties) > PARTIES_MAX:
        report.too_many("spec.parties", len(parties), PARTIES_MAX)
        return report.causes
    seen: set[tuple[str, str]] = set()
    prefixes: set[tuple[str, str]] = set()
    for path, party in parties:
        domain_id, role = text(party, "domainID"), text(party, "role")
        _check_word(report, domain_id, f"{path}.domainID")
        if role:
            _check_word(report, role, f"{path}.role")
        if (domain_id, role) in seen:
            report.invalid(
                path, domain_id, f"{Reason.DUPLICATE_NAME.value}: is there twice in role {role!r}; give each its own"
            )
        seen.add((domain_id, role))
        if not text(party, "appImageRef"):
            report.required(f"{path}.appImageRef", f"{_INVALID}: the AppImage to run")
        prefix = text(party, "serviceNamePrefix")
        if prefix:
            _check_prefix(report, prefix, f"{path}.serviceNamePrefix")
            if (domain_id, prefix) in prefixes:
                why = f"{Reason.DUPLICATE_NAME.value}: another part of {domain_id} has it; choose another"
                report.invalid(f"{path}.serviceNamePrefix", prefix, why)
            prefixes.add((domain_id, prefix))
        _check_template(report, obj(party, "template"), f"{path}.template")
    mode = text(obj(obj(raw, "metadata"), "annotations"), KusciaAnnotation.AFFINITY_MODE)
    if mode and mode not in AFFINITY_MODES:
        words = f"{_INVALID}: write {', '.join(AFFINITY_MODES)}"
        report.invalid(f"metadata.annotations[{KusciaAnnotation.AFFINITY_MODE}]", mode, words)
    return report.causes


def _check_word(report: Report, word: str, field: str) -> None:
    report.names(field, word, [f"{_INVALID}: {problem}" for problem in validate_label_name(word)])


def _check_prefix(report: Report, prefix: str, field: str) -> None:
    report.names(field, prefix, [f"{_INVALID}: {problem}" for problem in validate_dns1035_label(prefix)])
    if len(prefix) > PREFIX_LEN_MAX:
        report.invalid(field, prefix, f"{_INVALID}: must be no more than {PREFIX_LEN_MAX} characters: the port's name follows")


def _check_template(report: Report, template: Raw, path: str) -> None:
    replicas = template.get("replicas")
    if isinstance(replicas, int) and not 0 <= replicas <= REPLICAS_MAX:
        report.invalid(f"{path}.replicas", replicas, f"{_INVALID}: must be 0 to {REPLICAS_MAX:,}")
    strategy = obj(template, "strategy")
    rolling = strategy.get("rollingUpdate")
    if text(strategy, "type") == "Recreate" and isinstance(rolling, dict) and rolling:
        report.forbidden(f"{path}.strategy.rollingUpdate", f"{_INVALID}: has no meaning with type Recreate; remove one of them")
    for word in ("maxSurge", "maxUnavailable"):
        problem = share_problem(obj(strategy, "rollingUpdate").get(word))
        if problem:
            field = f"{path}.strategy.rollingUpdate.{word}"
            report.invalid(field, obj(strategy, "rollingUpdate").get(word), f"{_INVALID}: {problem}")
    if all(_is_nothing(obj(strategy, "rollingUpdate").get(word)) for word in ("maxSurge", "maxUnavailable")):
        report.invalid(
            f"{path}.strategy.rollingUpdate.maxUnavailable",
            0,
            f"{_INVALID}: may not be 0 while maxSurge is: nothing could move",
        )


def share_problem(value: Any) -> str:
    """What is wrong with a number of pods or a percentage; "" when nothing is, or when it is left out."""
    if value is None:
        return ""
    if isinstance(value, int) and not isinstance(value, bool):
        return "" if 0 <= value <= REPLICAS_MAX else f"must be 0 to {REPLICAS_MAX:,}"
    is_share = isinstance(value, str) and value.endswith("%") and value[:-1].isascii() and value[:-1].isdecimal()
    if not is_share or len(value) > 4 or int(value[:-1]) > 100:
        return "must be a number of pods or a percentage from 0% to 100%"
    return ""


def _is_nothing(value: Any) -> bool:
    return value == 0 or (
        isinstance(value, str) and value.rstrip("%").strip("0") == "" and value.endswith("%") and len(value) > 1
    )
