"""Rules for Job (muster.dev): names that fit, roles that make sense, and what may change once it is there. Pure.

The pods that the job would make are checked as well, so that a template which no server would take is refused here and not
later. `check_spec` is also what the controller asks about jobs that came in where no rule of ours runs.

| field of a stored Job | may change |
|---|---|
| state | always; Cancelled stays |
| estimate, attributes, deadline, retry, limits on time, checkpointIntervalSeconds, ttlSecondsAfterFinished | always |
| queue | until it starts |
| priority, user, type, preemptible, pools, schedulerName | while it is Suspended or Stopped |
| roles | never: submit another job |
"""

from __future__ import annotations

from typing import Final

import msgspec

from muster.objects.job_pods import PODS_MAX, PORT_COUNT, JobPods, pod_name
from muster.objects.kinds.muster_jobs import Job, Role
from muster.objects.kinds.pods import Pod
from muster.objects.labels import Muster, Sigs
from muster.objects.meta import name_of
from muster.objects.names import (
    LABEL_LEN_MAX,
    validate_dns1035_label,
    validate_label_value,
    validate_port_name,
    validate_subdomain,
)
from muster.objects.reason_codes import Reason
from muster.objects.rules import bandwidth, pods
from muster.objects.rules.report import Report, obj, objs, text, unique
from muster.objects.status import Raw
from muster.objects.time import parse_time
from muster.objects.view import view_of

_PLACED: Final = ("priority", "queue", "user", "type", "preemptible", "pools", "schedulerName")
_HELD: Final = ("Suspended", "Stopped")
_OWN_LABELS: Final = (Muster.JOB, Muster.ROLE, Muster.INDEX, Muster.POOL, Muster.PREEMPTIBLE, Sigs.POD_GROUP)
_OWN_FIELDS: Final = ("nodeName", "hostname", "subdomain", "priority")
_WAITING: Final = ("", "Queued")
_GENERATED_LEN: Final = 5
_POOLS_MAX: Final = 16
_USER_LEN_MAX: Final = 253


def check_job(report: Report, raw: Raw, old: Raw | None) -> None:
    """A new job must be right in all; an update is held to what it changes."""
    bandwidth.RULES["muster.dev", "Job"](report, raw, old)
    # Amounts that are wrong in a role are wrong in its pods as well: once is enough.
    with_pods = not report.causes
    if old is None:
        check_spec(report, raw, with_pods=with_pods)
        return
    _check_change(report, raw, old)
    found, before = Report(), Report()
    check_spec(found, raw, with_pods=with_pods)
    check_spec(before, old)
    known = {*before.causes, *report.causes}
    report.causes += [cause for cause in found.causes if cause not in known]


def check_spec(report: Report, raw: Raw, *, with_pods: bool = True) -> None:
    """Everything but bandwidth amounts and changes."""
    try:
        view = view_of(Job, raw)
    except msgspec.ValidationError as error:
        report.invalid("spec", name_of(raw), f"{Reason.MANIFEST_INVALID.value}: {error}")
        return
    count = len(report.causes)
    name = name_of(raw)
    if name:
        report.names("metadata.name", name, validate_dns1035_label(name))
    prefix = text(obj(raw, "metadata"), "generateName")
    _check_roles(report, raw, view, name or prefix + "x" * _GENERATED_LEN)
    _check_owner(report, view)
    if with_pods and len(report.causes) == count:
        _check_pods(report, raw, view)


def _check_owner(report: Report, view: Job) -> None:
    spec = view.spec
    if spec.queue:
        report.names("spec.queue", spec.queue, validate_label_value(spec.queue))
    if len(spec.user) > _USER_LEN_MAX:
        report.too_long("spec.user", f"may not be more than {_USER_LEN_MAX} characters")
    if spec.deadline:
        try:
            parse_time(spec.deadline)
        except ValueError as error:
            report.invalid("spec.deadline", spec.deadline, str(error))
    if len(spec.pools) > _POOLS_MAX:
        message = f"at most {_POOLS_MAX}; name fewer, or make one NodePool of all these nodes"
        report.invalid("spec.pools", len(spec.pools), message)
    for index, pool in enumerate(spec.pools):
        report.names(f"spec.pools[{index}]", pool, validate_label_value(pool) if pool else ["must not be empty"])
    if spec.scheduler_name:
        report.names("spec.schedulerName", spec.scheduler_name, validate_subdomain(spec.scheduler_name))


def _check_roles(report: Report, raw: Raw, view: Job, job: str) -> None:
    roles = list(objs(obj(raw, "spec"), "roles", "spec"))
    names = [text(raw_role, "name") for _, raw_role in roles]
    for (path, _), name in zip(roles, names, strict=True):
        if names.count(name) > 1:
            report.invalid(f"{path}.name", name, f"{Reason.DUPLICATE_NAME.value}: two roles have this name; rename one")
    for (path, raw_role), role in zip(roles, view.spec.roles, strict=True):
        _check_role(report, role, raw_role, path, job)
    if all(role.completion == "Service" for role in view.spec.roles):
        report.invalid(
            "spec.roles", [r.name for r in view.spec.roles], "needs a role with completion Required: what ends the job"
        )
    total = sum(role.replicas for role in view.spec.roles)
    if total > PODS_MAX:
        report.invalid("spec.roles", total, f"the replicas of all roles together may be at most {PODS_MAX}")
    given = sum(role.replicas for role in view.spec.roles for port in role.ports if port.port is None)
    if given > PORT_COUNT // 2:
        message = f"replicas with ports that are allocated may be at most {PORT_COUNT // 2}; give a number: port"
        report.invalid("spec.roles", given, message)


def _check_role(report: Report, role: Role, raw: Raw, path: str, job: str) -> None:
    longest = pod_name(job, role.name, role.replicas - 1)
    if len(longest) > LABEL_LEN_MAX:
        message = (
            f"the pod {longest} would have a name of {len(longest)} characters; at most {LABEL_LEN_MAX} are possible: "
            "shorten the name of the job or of the role"
        )
        report.invalid(f"{path}.name", role.name, message)
    if role.min_replicas is not None and role.min_replicas > role.replicas:
        message = f"must be less than or equal to replicas, which is {role.replicas}"
        report.invalid(f"{path}.minReplicas", role.min_replicas, message)
    spec = obj(obj(raw, "template"), "spec")
    main = next(iter(sorted(objs(spec, "containers", ""), key=lambda item: text(item[1], "name") != "main")), ("", {}))[1]
    has_image = bool(role.image or text(main, "image"))
    if not has_image and not role.command and not main.get("command"):
        report.required(f"{path}.command", f"role {role.name} has neither a command nor an image; give one of them")
    if role.runtime in ("runc", "kubernetes") and not has_image:
        report.required(f"{path}.image", f"runtime {role.runtime} runs images; name one, or leave runtime out")
    for word in ("env", "ports"):
        unique(report, objs(raw, word, path))
    seen: set[tuple[int, str]] = set()
    for index, port in enumerate(role.ports):
        report.names(f"{path}.ports[{index}].name", port.name, validate_port_name(port.name))
        if port.port is not None and (port.port, port.protocol) in seen:
            report.duplicate(f"{path}.ports[{index}].port", port.port)
        seen.add((port.port or 0, port.protocol))
    _check_template(report, obj(raw, "template"), f"{path}.template")


def _check_template(report: Report, template: Raw, path: str) -> None:
    for key in template:
        if key not in ("metadata", "spec"):
            report.forbidden(f"{path}.{key}", "a pod template has metadata and spec")
        elif not isinstance(template[key], dict):
            report.invalid(f"{path}.{key}", template[key], "must be an object")
    for key in sorted(set(obj(template, "metadata")) - {"labels", "annotations"}):
        report.forbidden(f"{path}.metadata.{key}", "only labels and annotations can be given: names follow from the job")
    labels = obj(obj(template, "metadata"), "labels")
    for label in _OWN_LABELS:
        if label in labels:
            report.forbidden(f"{path}.metadata.labels[{label}]", "is set by Muster; use the fields of the job and the role")
    spec = obj(template, "spec")
    for key in _OWN_FIELDS:
        if key in spec:
            report.forbidden(f"{path}.spec.{key}", "is set by Muster; use the fields of the job and the role")
    containers = spec.get("containers", [])
    if not isinstance(containers, list) or not all(isinstance(container, dict) for container in containers):
        report.invalid(f"{path}.spec.containers", containers, "must be a list of containers")


def _check_pods(report: Report, raw: Raw, view: Job) -> None:
    """One pod of each role, as it would be made."""
    made = JobPods(raw, view)
    for index, role in enumerate(view.spec.roles):
        found = Report()
        try:
            pod = made.pod(role, 0)
            view_of(Pod, pod)
            pods.check_pod(found, pod, None, "")
        except (TypeError, AttributeError, ValueError, LookupError) as error:
            report.invalid(f"spec.roles[{index}].template", role.name, f"can't be read as a pod template: {error}")
            continue
        for cause in found.causes:
            field = f"spec.roles[{index}].template.{cause.field}"
            report.causes.append(msgspec.structs.replace(cause, field=field))


def _check_change(report: Report, raw: Raw, old: Raw) -> None:
    spec, before = obj(raw, "spec"), obj(old, "spec")
    if (spec.get("roles") or None) != (before.get("roles") or None):
        report.forbidden("spec.roles", "the roles of a job can't change; submit another job, as `muster job rerun` does")
    state, was = text(spec, "state") or "Running", text(before, "state") or "Running"
    if was == "Cancelled" and state != was:
        report.invalid("spec.state", state, "a cancelled job stays cancelled; submit it again")
    phase = text(obj(old, "status"), "phase")
    is_held = state in _HELD or (was in _HELD and phase in ("", "Suspended", "Failed"))
    if is_held:
        return
    for word in _PLACED:
        if word == "queue" and phase in _WAITING:
            continue
        if (spec.get(word) or None) != (before.get(word) or None):
            report.forbidden(
                f"spec.{word}", "can only change while the job is Suspended or Stopped; set spec.state to Suspended first"
            )
