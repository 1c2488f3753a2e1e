"""Rules about KusciaJobs and KusciaTasks: the graph, the parties, and what may change once the parties have agreed. Pure.

`check_job` and `check_task` hold at submission. `job_problems` is the same list for the job controller, because on a cluster
without our admission a job may be stored that no rule has seen. An update is held to what it makes wrong, not to what was
wrong before. Every message begins with a reason code, names the value and says what to do.

A task that others depend on may be tolerable, since Kuscia takes such jobs: when it fails, those others are skipped.
All checks are linear in the size of the job.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import msgspec

from muster.objects.conditions import find_condition
from muster.objects.names import LABEL_LEN_MAX, validate_label_name
from muster.objects.reason_codes import Reason
from muster.objects.rules import bandwidth
from muster.objects.rules.domains import is_reserved
from muster.objects.rules.report import Report, listed, number, obj, objs, text, texts
from muster.objects.status import Cause, Raw

CYCLE_SHOWN_MAX: Final = 12
OBJECT_BYTES_MAX: Final = 1_572_864
"""What stores take: ours, and etcd."""
_STATUS_BYTES: Final = 16 * 1024
_ENTRY_BYTES: Final = 330
_PARTY_BYTES: Final = 45
_FIELD_BYTES: Final = 7
_ID_SUFFIX_LEN: Final = 13
_UNSETTLED_PHASES: Final = ("", "initialized")
_FIXED_FIELDS: Final = ("tasks", "initiator", "scheduleMode", "flowID")

_JOB_BANDWIDTH = bandwidth.RULES["kuscia.secretflow", "KusciaJob"]
_TASK_BANDWIDTH = bandwidth.RULES["kuscia.secretflow", "KusciaTask"]


# -- entry points -----------------------------------------------------------------------------------------------------------


def check_job(report: Report, raw: Raw, old: Raw | None) -> None:
    _JOB_BANDWIDTH(report, raw, old)
    _add_new(report, raw, old, job_problems)
    if old is None or obj(raw, "spec") != obj(old, "spec"):
        _check_room(report, raw)
    if old is not None and is_settled(obj(old, "status")):
        _check_fixed(report, raw, old)


def check_task(report: Report, raw: Raw, old: Raw | None) -> None:
    _TASK_BANDWIDTH(report, raw, old)
    _add_new(report, raw, old, task_problems)
    if old is not None and text(obj(old, "status"), "phase") and obj(raw, "spec") != obj(old, "spec"):
        report.forbidden(
            "spec",
            f"{Reason.MANIFEST_INVALID.value}: the task is {text(obj(old, 'status'), 'phase')}, and a task stays as it is "
            "once it was taken up; delete it and make another",
        )


def job_problems(raw: Mapping[str, Any]) -> list[Cause]:
    """What stands against running this job, whoever stored it."""
    report = Report()
    spec = obj(raw, "spec")
    _check_domain_id(report, text(spec, "initiator"), "spec.initiator", "the party that schedules the job")
    tasks = list(objs(spec, "tasks", "spec"))
    if not tasks:
        _required(report, "spec.tasks", "a job has at least one task")
    _check_unique(report, tasks, "alias", "alias")
    _check_unique(report, tasks, "taskID", "task id")
    for where, task in tasks:
        if not text(task, "alias"):
            _required(report, f"{where}.alias", "the name by which other tasks refer to this one")
        if not text(task, "appImage"):
            _required(report, f"{where}.appImage", "the AppImage that the task runs")
        task_id = text(task, "taskID")
        if task_id:
            for problem in validate_label_name(task_id):
                _invalid(report, f"{where}.taskID", task_id, Reason.MANIFEST_INVALID, problem)
        _check_parties(report, task, where)
    _check_graph(report, tasks)
    return report.causes


def task_problems(raw: Mapping[str, Any]) -> list[Cause]:
    report = Report()
    spec = obj(raw, "spec")
    _check_domain_id(report, text(spec, "initiator"), "spec.initiator", "the party that schedules the task")
    _check_parties(report, spec, "spec")
    for where, party in objs(spec, "parties", "spec"):
        if not text(party, "appImageRef"):
            _required(report, f"{where}.appImageRef", "the AppImage that the party runs")
        replicas, least = obj(party, "template").get("replicas"), number(party, "minReservedPods")
        if isinstance(replicas, int) and least > max(replicas, 1):
            _invalid(
                report,
                f"{where}.minReservedPods",
                least,
                Reason.MANIFEST_INVALID,
                f"is more than the {replicas} replicas of the party, so it could never start; lower it",
            )
    return report.causes


def is_settled(status: Mapping[str, Any]) -> bool:
    """Whether the parties have been asked about the job as it is: from then on it stays so. One that was found invalid did not
    get that far, and may be corrected."""
    phase = text(status, "phase")
    if phase in _UNSETTLED_PHASES:
        return False
    validated = find_condition(status.get("conditions"), "JobValidated")
    return not (phase == "Failed" and validated is not None and validated.get("status") == "False")


# -- the graph --------------------------------------------------------------------------------------------------------------


def _check_graph(report: Report, tasks: Sequence[tuple[str, Raw]]) -> None:
    known = dict.fromkeys(text(task, "alias") for _, task in tasks)
    has = listed(list(known))
    edges: dict[str, list[str]] = {}
    places: dict[str, str] = {}
    for where, task in tasks:
        alias = text(task, "alias")
        if alias in edges:
            continue  # a second one of that name has its own cause already
        places[alias] = where
        edges[alias] = []
        for index, dependency in enumerate(dict.fromkeys(texts(task, "dependencies"))):
            field = f"{where}.dependencies[{index}]"
            if dependency == alias:
                _invalid(report, field, dependency, Reason.DEPENDENCY_CYCLE, "a task can't depend on itself; take it out")
            elif dependency not in known:
                message = f"no task of this job has the alias '{listed([dependency])}'; it has {has}"
                _invalid(report, field, dependency, Reason.DEPENDENCY_UNKNOWN, message)
            else:
                edges[alias].append(dependency)
    cycle = find_cycle(edges)
    if cycle:
        first = [listed([name]) for name in cycle[:CYCLE_SHOWN_MAX]]
        path = " -> ".join([*first, *(["..."] if len(cycle) > CYCLE_SHOWN_MAX else []), first[0]])
        message = f"these tasks wait for each other: {path} (each depends on the next); take one of these dependencies out"
        _invalid(report, f"{places[cycle[0]]}.dependencies", cycle[1], Reason.DEPENDENCY_CYCLE, message)


def find_cycle(edges: Mapping[str, Sequence[str]]) -> list[str]:
    """One circle of `edges` (each name to those that it depends on, all of them known); empty when there is none. Linear."""
    missing = {name: len(dependencies) for name, dependencies in edges.items()}
    dependents: dict[str, list[str]] = {name: [] for name in edges}
    for name, dependencies in edges.items():
        for dependency in dependencies:
            dependents[dependency].append(name)
    free = [name for name, count in missing.items() if count == 0]
    while free:
        name = free.pop()
        del missing[name]
        for dependent in dependents[name]:
            missing[dependent] -= 1
            if missing[dependent] == 0:
                free.append(dependent)
    if not missing:
        return []
    # Whoever is left depends on somebody who is left, so following such dependencies must come back to a name already seen.
    name, seen = next(iter(missing)), dict[str, int]()
    path: list[str] = []
    while name not in seen:
        seen[name] = len(path)
        path.append(name)
        name = next(dependency for dependency in edges[name] if dependency in missing)
    return path[seen[name] :]


# -- parties ----------------------------------------------------------------------------------------------------------------


def _check_parties(report: Report, parent: Raw, where: str) -> None:
    parties = list(objs(parent, "parties", where))
    if not parties:
        _required(report, f"{where}.parties", "a task runs at one party at least")
    seen: dict[tuple[str, str], str] = {}
    for path, party in parties:
        domain, role = text(party, "domainID"), text(party, "role")
        _check_domain_id(report, domain, f"{path}.domainID", "the party: a Domain")
        if (domain, role) in seen:
            said = f"party {domain} takes part with role {role!r}" if role else f"party {domain} takes part without a role"
            message = f"{said} twice, see {seen[domain, role]}; give them different roles, or join them"
            _invalid(report, path, domain, Reason.DUPLICATE_NAME, message)
        seen.setdefault((domain, role), path)
    least = number(obj(parent, "scheduleConfig"), "minReservedMembers")
    if parties and least > len(parties):
        _invalid(
            report,
            f"{where}.scheduleConfig.minReservedMembers",
            least,
            Reason.MANIFEST_INVALID,
            f"is more than the {len(parties)} parties of the task, so it could never start; lower it",
        )


def _check_domain_id(report: Report, domain: str, field: str, what: str) -> None:
    if not domain:
        _required(report, field, what)
    elif is_reserved(domain):
        _invalid(
            report, field, domain, Reason.NAME_RESERVED, "this name is kept for the system, no party has it; name a Domain"
        )
    else:
        for problem in validate_label_name(domain):
            _invalid(report, field, domain, Reason.MANIFEST_INVALID, problem)


# -- room for the status ----------------------------------------------------------------------------------------------------


def _check_room(report: Report, raw: Raw) -> None:
    """A job whose status would not fit beside its spec could run, and never end."""
    spec = obj(raw, "spec")
    own_bytes = len(msgspec.json.encode(spec))
    if own_bytes > OBJECT_BYTES_MAX:
        return  # the store says so
    name = text(obj(raw, "metadata"), "name")
    tasks = [task for _, task in objs(spec, "tasks", "spec")]
    status_bytes = _STATUS_BYTES + sum(_status_bytes(name, task) for task in tasks)
    if own_bytes + status_bytes > OBJECT_BYTES_MAX:
        report.too_long(
            "spec.tasks",
            f"{Reason.MANIFEST_INVALID.value}: the job has {own_bytes:,} bytes, its {len(tasks):,} tasks may need "
            f"{status_bytes:,} more for their status, and an object may have {OBJECT_BYTES_MAX:,}; "
            "keep large inputs elsewhere and refer to them, give shorter names, or split the job",
        )


def _status_bytes(job: str, task: Raw) -> int:
    """What is written about a task that has ended: its entry, its phase, its parties, and who wrote which field of it."""
    id_bytes = len(text(task, "taskID")) or min(len(job) + _ID_SUFFIX_LEN, LABEL_LEN_MAX)
    parties = (len(text(one, "domainID")) + len(text(one, "role")) for _, one in objs(task, "parties", ""))
    fields = sum(len(key) + _FIELD_BYTES for key in task)
    return (
        _ENTRY_BYTES
        + 5 * id_bytes
        + 2 * len(text(task, "alias").encode())
        + fields
        + sum(_PARTY_BYTES + one for one in parties)
    )


# -- helpers ----------------------------------------------------------------------------------------------------------------


def _check_fixed(report: Report, raw: Raw, old: Raw) -> None:
    spec, before, phase = obj(raw, "spec"), obj(old, "spec"), text(obj(old, "status"), "phase")
    for word in _FIXED_FIELDS:
        if (spec.get(word) or None) != (before.get(word) or None):
            report.forbidden(
                f"spec.{word}",
                f"{Reason.MANIFEST_INVALID.value}: the job is {phase}, and its parties agreed to it as it was; of its spec "
                "only maxParallelism may change now: submit a new job",
            )


def _add_new(report: Report, raw: Raw, old: Raw | None, find: Callable[[Raw], list[Cause]]) -> None:
    found = find(raw)
    known: Collection[Cause] = set(find(old)) if found and old is not None else ()
    report.causes += [cause for cause in found if cause not in known]


def _check_unique(report: Report, tasks: Sequence[tuple[str, Raw]], key: str, what: str) -> None:
    seen: dict[str, str] = {}
    for where, task in tasks:
        value = text(task, key)
        if value and value in seen:
            message = f"{seen[value]} has this {what} already; give each task its own"
            _invalid(report, f"{where}.{key}", value, Reason.DUPLICATE_NAME, message)
        seen.setdefault(value, where)


def _invalid(report: Report, field: str, value: object, reason: Reason, message: str) -> None:
    report.invalid(field, value, f"{reason.value}: {message}")


def _required(report: Report, field: str, message: str) -> None:
    report.required(field, f"{Reason.MANIFEST_INVALID.value}: {message}")


RULES: Final = {
    ("kuscia.secretflow", "KusciaJob"): check_job,
    ("kuscia.secretflow", "KusciaTask"): check_task,
}
