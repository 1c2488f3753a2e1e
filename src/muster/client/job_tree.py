"""A job as a tree for people and programs: job, tasks, parties, pods, each with its phase and why it is there.

`build_tree` is pure: the job, its tasks and the pods that could be read go in. What a KusciaTask's status says is the ground,
because it also covers pods of control planes that can't be asked; live pods add what only they know. Of a Job (muster.dev) the
roles stand where tasks do, so that one rendering serves both kinds.

Objects may come from any server at any moment: a field that is missing or of the wrong type reads as empty, and nothing raises.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from muster.client.job_kinds import KUSCIA_JOB, Outcome, outcome_of, phase_of, spec_of, stage_of, status_of
from muster.client.job_nodes import JobTree, PartyNode, PodNode, TaskNode, duration_s, instant
from muster.objects.job_stages import STAGE_CONDITION
from muster.objects.labels import KusciaAnnotation, KusciaLabel, Muster
from muster.objects.meta import annotations_of, labels_of, metadata_of, name_of, namespace_of, uid_of
from muster.objects.status import Raw
from muster.objects.words import whole_number

RECORDS_MAX = 64
FINISHED_PHASES = ("Succeeded", "Failed", "Skipped", "Cancelled")

__all__ = ["JobTree", "PartyNode", "PodNode", "TaskNode", "build_tree", "duration_s", "instant", "parties_of", "pod_node"]


def build_tree(job: Mapping[str, Any], tasks: Iterable[Raw] = (), pods: Iterable[Raw] = ()) -> JobTree:
    """The tree of `job`. `tasks` are its KusciaTasks; `pods` are those of its tasks or roles."""
    spec, status = spec_of(job), status_of(job)
    outcome = outcome_of(job)
    is_kuscia = job.get("kind") == KUSCIA_JOB.kind
    nodes = _tasks(spec, status, list(tasks), list(pods)) if is_kuscia else _roles(spec, status, list(pods))
    place = _part(status, "place")
    return JobTree(
        kind=_text(job.get("kind")),
        namespace=namespace_of(job),
        name=name_of(job),
        uid=uid_of(job),
        phase=phase_of(job),
        outcome=outcome.value if outcome else "",
        reason=_text(status.get("reason")),
        message=_text(status.get("message")),
        progress=_job_progress(status, nodes, outcome, is_kuscia=is_kuscia),
        initiator=_text(spec.get("initiator" if is_kuscia else "user")),
        parties=parties_of(job),
        queue=_text(spec.get("queue")) or labels_of(job).get(Muster.QUEUE, ""),
        place=_count(place.get("position")),
        attempts=_count(status.get("attempts")),
        preemptions=_count(status.get("preemptions")),
        stage=stage_of(job),
        refusal=refusal_of(job),
        approvals={party: _text(word) for party, word in _part(status, "approveStatus").items()},
        created=_text(metadata_of(job).get("creationTimestamp")),
        started=_text(status.get("startTime")),
        ended=_text(status.get("completionTime")),
        labels=labels_of(job),
        tasks=nodes,
    )


def refusal_of(job: Mapping[str, Any]) -> str:
    """Why the last command was not followed; empty when it was, or is not answered yet."""
    status = status_of(job)
    for condition in _parts(status, "conditions"):
        if condition.get("type") == STAGE_CONDITION and condition.get("status") == "False":
            return _text(condition.get("message")) if status.get("stage") == stage_of(job) else ""
    return ""


def parties_of(job: Mapping[str, Any]) -> list[str]:
    """The parties of a KusciaJob, each once, in the order of the spec."""
    found = [_text(party.get("domainID")) for task in _parts(spec_of(job), "tasks") for party in _parts(task, "parties")]
    return [party for party in dict.fromkeys(found) if party]


# --- KusciaJob ----------------------------------------------------------------------------------------------------------------


def _tasks(spec: Raw, status: Raw, tasks: Sequence[Raw], pods: Sequence[Raw]) -> list[TaskNode]:
    said = {_text(one.get("alias")): one for one in _parts(status, "tasks")}
    by_alias: dict[str, Raw] = {}
    by_name: dict[str, Raw] = {}
    for raw in tasks:
        by_name[name_of(raw)] = raw
        by_alias[annotations_of(raw).get(KusciaAnnotation.TASK_ALIAS, "")] = raw
    live: dict[str, list[Raw]] = {}
    for pod in pods:
        live.setdefault(labels_of(pod).get(KusciaLabel.TASK_UID, ""), []).append(pod)
    return [_task(one, said.get(_text(one.get("alias")), {}), by_alias, by_name, live) for one in _parts(spec, "tasks")]


def _task(
    one: Raw, said: Raw, by_alias: Mapping[str, Raw], by_name: Mapping[str, Raw], live: Mapping[str, list[Raw]]
) -> TaskNode:
    alias = _text(one.get("alias"))
    task_id = _text(said.get("taskID")) or _text(one.get("taskID"))
    raw = by_alias.get(alias) or by_name.get(task_id) or {}
    own = status_of(raw)

    # The task's own status is newer than the copy in its job, as long as there is a task that says something.
    best = own if own.get("phase") else {**said, **own}
    dependencies = one.get("dependencies")
    return TaskNode(
        alias=alias,
        task_id=name_of(raw) or task_id,
        phase=_text(best.get("phase")) or ("Pending" if raw else "Waiting"),
        reason=_text(best.get("reason")),
        message=_text(best.get("message")),
        progress=1.0 if best.get("phase") == "Succeeded" else _share(best.get("progress")),
        attempts=_count(best.get("attempts")),
        preemptions=_count(best.get("preemptions")),
        dependencies=[name for name in dependencies if isinstance(name, str)] if isinstance(dependencies, list) else [],
        is_tolerable=one.get("tolerable") is True,
        retry_time=_text(own.get("retryTime")),
        started=_text(best.get("startTime")),
        ended=_text(best.get("completionTime")),
        parties=_parties(one, raw, live.get(uid_of(raw), []) if raw else []),
    )


def _parties(one: Raw, raw: Raw, live: Sequence[Raw]) -> list[PartyNode]:
    own = status_of(raw)
    said = {(_text(p.get("domainID")), _text(p.get("role"))): p for p in _parts(own, "partyTaskStatus")}
    pods = _pods_of_task(own, live)
    found = []
    wanted = _parts(one, "parties")
    for party in wanted:
        domain, role = _text(party.get("domainID")), _text(party.get("role"))
        same_domain = sum(1 for other in wanted if other.get("domainID") == domain)
        status = said.get((domain, role), {})
        found.append(
            PartyNode(
                party=domain,
                role=role,
                phase=_text(status.get("phase")),
                message=_text(status.get("message")),
                pods=[pod for pod in pods if pod.namespace == domain and (same_domain == 1 or _is_of_role(pod, raw, role))],
            )
        )
    return found


def _is_of_role(pod: PodNode, task: Raw, role: str) -> bool:
    """Where one party plays two roles, their pods are told apart by name: `TASK-ROLE-N`, or `TASK-N` without a role."""
    rest = pod.name.removeprefix(f"{name_of(task)}-")
    head = rest.rpartition("-")[0]
    return head == role


def _pods_of_task(own: Raw, live: Sequence[Raw]) -> list[PodNode]:
    found: dict[tuple[str, str], PodNode] = {}
    for status in _part(own, "podStatuses").values():
        if isinstance(status, dict):
            pod = PodNode(
                namespace=_text(status.get("namespace")),
                name=_text(status.get("podName")),
                phase=_text(status.get("podPhase")),
                node=_text(status.get("nodeName")),
                reason=_text(status.get("reason")),
                message=_text(status.get("message")),
            )
            found[pod.namespace, pod.name] = pod
    for raw in live:
        node = pod_node(raw)
        found[node.namespace, node.name] = node
    return [found[key] for key in sorted(found)]


# --- Job (muster.dev) ---------------------------------------------------------------------------------------------------------


def _roles(spec: Raw, status: Raw, pods: Sequence[Raw]) -> list[TaskNode]:
    said = {_text(one.get("name")): one for one in _parts(status, "roles")}
    by_role: dict[str, list[Raw]] = {}
    for pod in pods:
        by_role.setdefault(labels_of(pod).get(Muster.ROLE, ""), []).append(pod)
    found = []
    for role in _parts(spec, "roles"):
        name = _text(role.get("name"))
        ordered = sorted(by_role.get(name, []), key=_index)
        nodes = [pod_node(pod) for pod in ordered]
        phase = _role_phase(said.get(name, {}), phase=_text(status.get("phase")))
        reported = [pod.progress for pod in nodes if pod.progress is not None]
        found.append(
            TaskNode(
                alias=name,
                phase=phase,
                progress=1.0 if phase == "Succeeded" else _mean(reported),
                started=_text(status.get("startTime")),
                ended=_text(status.get("completionTime")),
                parties=[PartyNode(role=name, pods=nodes)],
            )
        )
    return found


def _role_phase(counts: Raw, *, phase: str) -> str:
    if _count(counts.get("failed")):
        return "Failed"
    if _count(counts.get("running")):
        return "Running"
    if _count(counts.get("succeeded")) and not _count(counts.get("pending")):
        return "Succeeded"
    return phase if phase in ("Cancelled", "Suspended") else "Pending"


def _index(pod: Raw) -> tuple[int, str]:
    return (whole_number(labels_of(pod).get(Muster.INDEX, "")), name_of(pod))


# --- pods ---------------------------------------------------------------------------------------------------------------------


def pod_node(raw: Raw) -> PodNode:
    """What a pod says of itself: where it is, and while it does not run, why."""
    status = status_of(raw)
    reason, message = _pod_reason(status)
    containers = [_text(one.get("name")) for one in _parts(spec_of(raw), "containers")]
    return PodNode(
        namespace=namespace_of(raw),
        name=name_of(raw),
        uid=uid_of(raw),
        phase=_text(status.get("phase")) or "Pending",
        node=_text(spec_of(raw).get("nodeName")),
        reason=reason,
        message=message,
        progress=_annotated_progress(raw),
        records=dict(list(_annotated_object(raw, Muster.RECORDS).items())[:RECORDS_MAX]),
        sent_bytes=_count(_annotated_object(raw, Muster.TRAFFIC).get("sentBytes")),
        received_bytes=_count(_annotated_object(raw, Muster.TRAFFIC).get("receivedBytes")),
        restarts=sum(_count(one.get("restartCount")) for one in _parts(status, "containerStatuses")),
        containers=[name for name in containers if name],
    )


def _pod_reason(status: Raw) -> tuple[str, str]:
    conditions = {condition.get("type"): condition for condition in _parts(status, "conditions")}
    for type_, while_waiting in ((Muster.WAITING, "True"), ("PodScheduled", "False")):
        condition = conditions.get(type_, {})
        if condition.get("status") == while_waiting:
            reason, message = _text(condition.get("reason")), _text(condition.get("message"))
            return reason, message.removeprefix(f"{reason}: ")
    if status.get("reason") or status.get("message"):
        return _text(status.get("reason")), _text(status.get("message"))
    for container in _parts(status, "containerStatuses"):
        state = _part(container, "state")
        waiting, ended = _part(state, "waiting"), _part(state, "terminated")
        if waiting.get("reason"):
            return _text(waiting.get("reason")), _text(waiting.get("message"))
        if ended.get("exitCode"):
            return _text(ended.get("reason")) or "Error", f"exit code {ended['exitCode']}"
    return "", ""


def _annotated_progress(raw: Raw) -> float | None:
    text = annotations_of(raw).get(Muster.PROGRESS, "")
    try:
        return _share(float(text)) if text else None
    except ValueError:
        return None


def _annotated_object(raw: Raw, name: str) -> Raw:
    """A JSON object in an annotation; empty when it is anything else."""
    try:
        found = msgspec.json.decode(annotations_of(raw).get(name, "") or b"{}")
    except (msgspec.MsgspecError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


# --- reading anything ---------------------------------------------------------------------------------------------------------


def _job_progress(status: Raw, tasks: Sequence[TaskNode], outcome: Outcome | None, *, is_kuscia: bool) -> float:
    if outcome is Outcome.SUCCEEDED:
        return 1.0
    if not is_kuscia:
        return _share(status.get("progress"))
    # A task that will not run any more holds nothing up: what is left is the others.
    return _mean([1.0 if task.phase == "Skipped" or _is_tolerated(task) else task.progress for task in tasks])


def _is_tolerated(task: TaskNode) -> bool:
    return task.is_tolerable and task.phase == "Failed"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _share(value: object) -> float:
    return min(1.0, max(0.0, float(value))) if isinstance(value, int | float) and value == value else 0.0  # noqa: PLR0124 - NaN


def _count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _part(raw: Mapping[str, Any], key: str) -> Raw:
    value = raw.get(key)
    return value if isinstance(value, dict) else {}


def _parts(raw: Mapping[str, Any], key: str) -> list[Raw]:
    value = raw.get(key)
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
