"""Rules about bandwidth, and about the requests and limits of Kuscia's and Muster's own kinds. Pure.

An update is held to what it makes wrong, not to what was wrong before: an object from before the rule, or from another server,
can still be worked on. Every message begins with a reason code.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from muster.objects.bandwidth import (
    Problem,
    is_bandwidth_resource,
    node_bandwidth,
    raw_pod_bandwidth,
    resource_bandwidth,
)
from muster.objects.bandwidth_peers import parse_peers
from muster.objects.bandwidth_units import format_bandwidth, kbps_to_bps, parse_bandwidth
from muster.objects.labels import Muster
from muster.objects.names import validate_qualified_name
from muster.objects.quantity import Quantity
from muster.objects.reason_codes import Reason
from muster.objects.rules.report import Report, obj, objs, text
from muster.objects.status import Raw

Check = Callable[[Report, Raw], None]
_PLAIN: Final = ("cpu", "memory", "ephemeral-storage")
_PLAIN_SHOWN: Final = "cpu, memory, ephemeral-storage, bandwidth and hugepages-SIZE"


def check_annotations(report: Report, kind: str, raw: Raw, old: Raw | None) -> None:
    """Of a Node or Pod: figures that can't be read, and requests above limits."""
    known = set(map(str, _annotated(kind, old))) if old is not None else set()
    told = {cause.field for cause in report.causes}
    for problem in _annotated(kind, raw):
        if str(problem) not in known and problem.field not in told:
            report.invalid(problem.field, problem.value, f"{problem.reason.value}: {problem.message}")


def _annotated(kind: str, raw: Raw) -> tuple[Problem, ...]:
    if kind == "Node":
        return node_bandwidth(obj(obj(raw, "metadata"), "annotations"), None).problems
    problems = raw_pod_bandwidth(raw).problems
    sent = obj(obj(raw, "metadata"), "annotations").get(Muster.BANDWIDTH_TO)
    if isinstance(sent, str):
        try:
            parse_peers(sent)
        except ValueError as error:
            field = f"metadata.annotations[{Muster.BANDWIDTH_TO}]"
            problems = (*problems, Problem(Reason.UNIT_INVALID, field, sent, str(error)))
    return problems


# -- requests and limits ----------------------------------------------------------------------------------------------------


def check_resources(report: Report, resources: Raw, path: str) -> None:
    """`requests` and `limits`: names, amounts in their units, and that no request is above its limit."""
    requests, limits = obj(resources, "requests"), obj(resources, "limits")
    if not requests and not limits:
        return
    asked = _amounts(report, requests, f"{path}.requests")
    ceilings = _amounts(report, limits, f"{path}.limits")
    for word, amounts in (("requests", requests), ("limits", limits)):
        for name in amounts:
            if not is_bandwidth_resource(name) and "/" not in name and not _is_plain(name):
                # No pod could ask for it, so the work would fail when it is to start.
                message = f"no such resource; without a prefix there are {_PLAIN_SHOWN}; others are named as in nvidia.com/gpu"
                report.invalid(f"{path}.{word}[{name}]", name, message)
    for name, amount in asked.items():
        if name in ceilings and amount > ceilings[name]:
            report.invalid(
                f"{path}.requests[{name}]",
                requests[name],
                f"{Reason.REQUEST_EXCEEDS_LIMIT.value}: the request is more than the limit {ceilings[name]}; "
                "lower the request or raise the limit",
            )
    for problem in resource_bandwidth(resources).problems:
        report.invalid(f"{path}.{problem.field}", problem.value, f"{problem.reason.value}: {problem.message}")


def _is_plain(name: str) -> bool:
    return name in _PLAIN or name.startswith("hugepages-")


def _amounts(report: Report, amounts: Raw, path: str) -> dict[str, Quantity]:
    """Everything but bandwidth, which has units of its own."""
    good: dict[str, Quantity] = {}
    for name, value in amounts.items():
        report.names(f"{path}[{name}]", name, validate_qualified_name(name))
        if is_bandwidth_resource(name):
            continue
        amount = _amount(report, value, f"{path}[{name}]")
        if amount is not None:
            good[name] = amount
    return good


def _amount(report: Report, value: Any, field: str) -> Quantity | None:
    try:
        amount = Quantity.parse(value)
    except ValueError as error:
        report.invalid(field, value, f"{Reason.UNIT_INVALID.value}: {error}")
        return None
    if amount < 0:
        report.invalid(field, value, "must be greater than or equal to 0")
        return None
    return amount


def check_amounts(report: Report, amounts: Raw, path: str) -> None:
    """A map of resource names to amounts that is neither request nor limit: a quota."""
    _amounts(report, amounts, path)
    for problem in resource_bandwidth({"requests": amounts}).problems:
        field = problem.field.removeprefix("requests")
        report.invalid(f"{path}{field}", problem.value, f"{problem.reason.value}: {problem.message}")


def _check_limits(report: Report, party: Raw, path: str) -> None:
    """Kuscia's ceilings towards single peers."""
    for where, limit in objs(party, "bandwidthLimits", path):
        if not text(limit, "destinationID"):
            report.required(f"{where}.destinationID", "the party that the ceiling is for")
        value = limit.get("limitKBps")
        try:
            bps = kbps_to_bps(value)
        except ValueError as error:
            report.invalid(f"{where}.limitKBps", value, f"{Reason.UNIT_INVALID.value}: {error}")
            continue
        if bps == 0:
            report.invalid(
                f"{where}.limitKBps", value, "must be greater than 0: KiB per second; leave the entry out for no limit"
            )


# -- kinds ------------------------------------------------------------------------------------------------------------------


def _kuscia_job(report: Report, raw: Raw) -> None:
    for where, task in objs(obj(raw, "spec"), "tasks", "spec"):
        for path, party in objs(task, "parties", where):
            check_resources(report, obj(party, "resources"), f"{path}.resources")
            _check_limits(report, party, path)


def _kuscia_parties(report: Report, raw: Raw) -> None:
    for path, party in objs(obj(raw, "spec"), "parties", "spec"):
        _check_template(report, obj(party, "template"), f"{path}.template")
        _check_limits(report, party, path)


def _app_image(report: Report, raw: Raw) -> None:
    for path, template in objs(obj(raw, "spec"), "deployTemplates", "spec"):
        _check_template(report, template, path)


def _check_template(report: Report, template: Raw, path: str) -> None:
    for where, container in objs(obj(template, "spec"), "containers", f"{path}.spec"):
        check_resources(report, obj(container, "resources"), f"{where}.resources")


def _domain(report: Report, raw: Raw) -> None:
    check_amounts(report, obj(obj(obj(raw, "spec"), "resourceQuota"), "hard"), "spec.resourceQuota.hard")


def _tenant(report: Report, raw: Raw) -> None:
    """A User, UserGroup or Queue."""
    spec = obj(raw, "spec")
    for limits, path in ((obj(spec, "limits"), "spec.limits"), (obj(obj(spec, "budget"), "limits"), "spec.budget.limits")):
        for word in ("concurrent", "submitted", "perJob"):
            check_amounts(report, obj(limits, word), f"{path}.{word}")


def _job(report: Report, raw: Raw) -> None:
    for path, role in objs(obj(raw, "spec"), "roles", "spec"):
        check_resources(report, obj(role, "resources"), f"{path}.resources")


def _link(report: Report, raw: Raw) -> None:
    spec = obj(raw, "spec")
    ends = [_check_end(report, obj(spec, word), f"spec.{word}") for word in ("from", "to")]
    if ends[0] is not None and ends[0] == ends[1]:
        kind, name = ends[0]
        report.invalid("spec.to", {kind: name}, f"is the same {kind} as spec.from; a link joins two different ends")
    figures = {word: _figure(report, spec, word) for word in ("capacity", "reverse", "reserved")}
    reserved = figures["reserved"] or 0
    for word in ("capacity", "reverse"):
        bps = figures[word]
        if bps is not None and reserved > bps:
            report.invalid(
                "spec.reserved",
                spec.get("reserved"),
                f"is more than spec.{word} {format_bandwidth(bps)}: nothing would be left",
            )


def _check_end(report: Report, end: Raw, path: str) -> tuple[str, str] | None:
    given = [(word, text(end, word)) for word in ("domain", "pool") if text(end, word)]
    if not given:
        report.required(path, "name a domain or a pool")
    elif len(given) > 1:
        report.invalid(path, end, "names a domain and a pool; keep one of them")
    return given[0] if len(given) == 1 else None


def _figure(report: Report, spec: Raw, word: str) -> int | None:
    value = spec.get(word)
    if value is None:
        return None
    try:
        return parse_bandwidth(value)
    except ValueError as error:
        report.invalid(f"spec.{word}", value, f"{Reason.UNIT_INVALID.value}: {error}")
        return None


def _new_causes(check: Check) -> Callable[[Report, Raw, Raw | None], None]:
    def rule(report: Report, raw: Raw, old: Raw | None) -> None:
        found = Report()
        check(found, raw)
        known: Collection[object] = ()
        if found.causes and old is not None:
            before = Report()
            check(before, old)
            known = set(before.causes)
        report.causes += [cause for cause in found.causes if cause not in known]

    return rule


RULES: Final[Mapping[tuple[str, str], Callable[[Report, Raw, Raw | None], None]]] = {
    ("kuscia.secretflow", "KusciaJob"): _new_causes(_kuscia_job),
    ("kuscia.secretflow", "KusciaTask"): _new_causes(_kuscia_parties),
    ("kuscia.secretflow", "KusciaDeployment"): _new_causes(_kuscia_parties),
    ("kuscia.secretflow", "AppImage"): _new_causes(_app_image),
    ("kuscia.secretflow", "Domain"): _new_causes(_domain),
    **{("muster.dev", kind): _new_causes(_tenant) for kind in ("User", "UserGroup", "Queue")},
    ("muster.dev", "Job"): _new_causes(_job),
    ("muster.dev", "Link"): _new_causes(_link),
}
