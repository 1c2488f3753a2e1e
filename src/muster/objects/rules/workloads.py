"""Rules for kinds that make pods and for disruption budgets. Pure."""

from __future__ import annotations

import re
from typing import Any, Final

from muster.objects.meta import labels_of
from muster.objects.rules.pods import check_template
from muster.objects.rules.report import Report, check_immutable, check_selector, number, obj, objs, text
from muster.objects.rules.storage import check_claim_spec
from muster.objects.selectors import LabelSelector, from_label_selector
from muster.objects.status import Raw
from muster.objects.view import view_of

_PERCENT: Final = re.compile(r"\d+%", re.ASCII)
_SCHEDULE_WORDS: Final = frozenset({"@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly"})
_SCHEDULE_FIELD: Final = re.compile(r"(\*|\?|[0-9A-Za-z]+(-[0-9A-Za-z]+)?)(/\d+)?(,(\*|[0-9A-Za-z]+(-[0-9A-Za-z]+)?)(/\d+)?)*")


def check_workload(report: Report, raw: Raw, old: Raw | None) -> None:
    """Deployment, ReplicaSet, StatefulSet, DaemonSet."""
    spec = obj(raw, "spec")
    selector, template = spec.get("selector"), obj(spec, "template")
    _check_selects(report, selector, template, "spec")
    check_template(report, _with_claims(spec, template), "spec.template")
    policy = text(obj(template, "spec"), "restartPolicy")
    if policy not in ("", "Always"):
        report.unsupported("spec.template.spec.restartPolicy", policy, ["Always"])
    for word in ("strategy", "updateStrategy"):
        strategy = obj(spec, word)
        rolling = obj(strategy, "rollingUpdate")
        if rolling and text(strategy, "type") not in ("", "RollingUpdate"):
            report.forbidden(f"spec.{word}.rollingUpdate", f"may not be specified when the type is {text(strategy, 'type')!r}")
        for key in ("maxUnavailable", "maxSurge"):
            check_count_or_percent(report, rolling.get(key), f"spec.{word}.rollingUpdate.{key}", is_whole=key != "maxSurge")
        if _is_zero(rolling.get("maxUnavailable")) and _is_zero(rolling.get("maxSurge")):
            report.invalid(f"spec.{word}.rollingUpdate.maxUnavailable", 0, "may not be 0 when `maxSurge` is 0")
    deadline_s, ready_s = spec.get("progressDeadlineSeconds"), number(spec, "minReadySeconds")
    if isinstance(deadline_s, int) and deadline_s <= ready_s:
        report.invalid("spec.progressDeadlineSeconds", deadline_s, f"must be greater than minReadySeconds ({ready_s})")
    if obj(template, "spec").get("activeDeadlineSeconds") is not None:
        report.forbidden("spec.template.spec.activeDeadlineSeconds", f"a {raw.get('kind')} has no end; leave it out")
    for where, claim in objs(spec, "volumeClaimTemplates", "spec"):
        check_claim_spec(report, obj(claim, "spec"), f"{where}.spec")
    if old is not None:
        check_immutable(report, selector, obj(old, "spec").get("selector"), "spec.selector")
        if raw.get("kind") == "StatefulSet":
            for word in ("serviceName", "podManagementPolicy", "volumeClaimTemplates"):
                if (spec.get(word) or None) != (obj(old, "spec").get(word) or None):
                    report.forbidden(f"spec.{word}", "updates to statefulset spec may not change it")


def _with_claims(spec: Raw, template: Raw) -> Raw:
    """The template of a StatefulSet as its pods will be: each claim template is a volume of its name, in place of any other."""
    claims = dict.fromkeys(text(obj(claim, "metadata"), "name") for _, claim in objs(spec, "volumeClaimTemplates", ""))
    pod = template.get("spec")
    if not claims or not isinstance(pod, dict) or not isinstance(pod.get("volumes", []), list):
        return template
    volumes = [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in claims]
    others = [
        v
        for v in pod.get("volumes", [])
        if not (isinstance(v, dict) and isinstance(v.get("name"), str) and v["name"] in claims)
    ]
    return {**template, "spec": {**pod, "volumes": [*others, *volumes]}}


def check_replication_controller(report: Report, raw: Raw, old: Raw | None) -> None:
    spec = obj(raw, "spec")
    if not obj(spec, "selector"):
        report.required("spec.selector")
    template = spec.get("template")
    if isinstance(template, dict):
        _check_selects(report, {"matchLabels": obj(spec, "selector")}, template, "spec")
        check_template(report, template, "spec.template")
    else:
        report.required("spec.template")


def _check_selects(report: Report, selector: Any, template: Raw, path: str) -> None:
    check_selector(report, selector, f"{path}.selector")
    if not isinstance(selector, dict) or not (selector.get("matchLabels") or selector.get("matchExpressions")):
        report.invalid(f"{path}.selector", selector, "empty selector is invalid here; it must select the template's labels")
        return
    if report.causes:
        return
    labels = labels_of(template)
    try:
        query = from_label_selector(view_of(LabelSelector, selector))
    except ValueError as error:  # msgspec's errors are among these
        report.invalid(f"{path}.selector", selector, str(error))
        return
    # One by one: to put them together pays only for a query that is asked again.
    if not all(requirement.matches(labels) for requirement in query.requirements):
        report.invalid(f"{path}.template.metadata.labels", labels, "`selector` does not match template `labels`")


def _is_zero(value: Any) -> bool:
    return value in (0, "0", "0%") and not isinstance(value, bool)


def check_count_or_percent(report: Report, value: Any, field: str, *, is_whole: bool = True) -> None:
    """`is_whole`: it is a part of something, of which there is no more than all."""
    if isinstance(value, str) and not _PERCENT.fullmatch(value):
        report.invalid(field, value, "must be a number or a percentage such as 25%")
    elif isinstance(value, str) and is_whole and (len(value) > 4 or int(value[:-1]) > 100):
        report.invalid(field, value, "must not be greater than 100%")
    elif isinstance(value, int) and value < 0:
        report.invalid(field, value, "must be greater than or equal to 0")


def check_job(report: Report, raw: Raw, old: Raw | None) -> None:
    spec = obj(raw, "spec")
    _check_job_spec(report, spec, "spec")
    if old is None:
        _check_job_selector(report, raw, spec)
        return
    before = obj(old, "spec")
    fields = ["completionMode", "podFailurePolicy", "backoffLimitPerIndex", "managedBy", "successPolicy"]
    if spec.get("completionMode") != "Indexed":
        fields.append("completions")
    if not before.get("suspend"):
        fields.append("template")  # a suspended job's pods do not exist yet, and where they go may be decided late
    if before.get("selector"):
        fields.append("selector")
    for word in fields:
        check_immutable(report, spec.get(word), before.get(word), f"spec.{word}")


def _check_job_selector(report: Report, raw: Raw, spec: Raw) -> None:
    """A new job selects its pods by its own uid, which is filled in; whoever chooses otherwise has to say so."""
    selector = spec.get("selector")
    if spec.get("manualSelector") is True:
        _check_selects(report, selector, obj(spec, "template"), "spec")
    elif selector and text(obj(raw, "metadata"), "uid") not in obj(selector, "matchLabels").values():
        report.invalid("spec.selector", selector, "`selector` not auto-generated; leave it out, or set manualSelector")


def _check_job_spec(report: Report, spec: Raw, path: str) -> None:
    template = obj(spec, "template")
    check_template(report, template, f"{path}.template")
    policy = text(obj(template, "spec"), "restartPolicy")
    if policy in ("", "Always"):  # which is filled in where nobody says
        report.required(f"{path}.template.spec.restartPolicy", 'valid values: "OnFailure", "Never"')
    elif policy not in ("OnFailure", "Never"):
        report.unsupported(f"{path}.template.spec.restartPolicy", policy, ["OnFailure", "Never"])
    if spec.get("completionMode") == "Indexed" and spec.get("completions") is None:
        report.required(f"{path}.completions", "when completion mode is Indexed")


def check_cron_job(report: Report, raw: Raw, old: Raw | None) -> None:
    spec = obj(raw, "spec")
    schedule = text(spec, "schedule")
    if not _is_schedule(schedule):
        report.invalid(
            "spec.schedule", schedule, "must be five fields of cron, such as '*/5 * * * *', or a word such as @daily"
        )
    _check_job_spec(report, obj(obj(spec, "jobTemplate"), "spec"), "spec.jobTemplate.spec")


def _is_schedule(schedule: str) -> bool:
    if schedule in _SCHEDULE_WORDS or (schedule.startswith("@every ") and len(schedule) > 7):
        return True
    fields = schedule.split()
    return len(fields) == 5 and all(_SCHEDULE_FIELD.fullmatch(field) for field in fields)


def check_disruption_budget(report: Report, raw: Raw, old: Raw | None) -> None:
    spec = obj(raw, "spec")
    if spec.get("minAvailable") is not None and spec.get("maxUnavailable") is not None:
        report.invalid("spec", spec, "minAvailable and maxUnavailable cannot be both set")
    for word in ("minAvailable", "maxUnavailable"):
        check_count_or_percent(report, spec.get(word), f"spec.{word}")
    check_selector(report, obj(spec, "selector"), "spec.selector")
