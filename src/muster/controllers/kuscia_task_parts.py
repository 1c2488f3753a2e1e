"""What a task is made of: its group, its pods, its services and files, and the pieces of its status. Pure.

Everything but the group belongs to the group (a controller owner reference), because it is cluster-wide and the task is not:
deleting the group takes all of it. Names follow from the task, so that making a thing twice finds the first one's work.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import msgspec

from muster.controllers.actions import Action, Target
from muster.controllers.job_work import said_anew, task_work, work_notes
from muster.controllers.kuscia_job_shares import pod_shares, total_of
from muster.controllers.kuscia_task_pods import TaskPod
from muster.controllers.kuscia_task_status import PartnerStatuses
from muster.controllers.parties import Party
from muster.controllers.task_kit import PartyKit, Work, cluster_define, define_parties, define_party, pod_name, service_name
from muster.controllers.task_kit_objects import config_files, config_map, pod_selector, pod_template, service
from muster.controllers.task_ports import IsTaken
from muster.controllers.task_reservation_parts import GROUP_KIND, task_resource_name
from muster.objects.conditions import ConditionStatus, set_condition
from muster.objects.kinds.kuscia_base import API_VERSION
from muster.objects.kinds.kuscia_tasks import KusciaTask, PartyAllocatedPorts, TaskResourceGroup
from muster.objects.labels import KusciaAnnotation, KusciaLabel, Muster
from muster.objects.meta import annotations_of, labels_of, name_of, owner_reference, uid_of
from muster.objects.names import validate_label_value
from muster.objects.rules.report import objs
from muster.objects.status import Raw
from muster.objects.words import whole_number

CONTROLLER_VALUE: Final = "kusciatask"
DEFAULT_RESERVED_S: Final = 30
DEFAULT_RETRY_S: Final = 30

_GROUP_NOTES: Final = (
    KusciaAnnotation.SELF_CLUSTER_AS_INITIATOR,
    KusciaAnnotation.SELF_CLUSTER_AS_PARTICIPANT,
    KusciaAnnotation.JOB_ID,
    KusciaAnnotation.TASK_ALIAS,
    KusciaAnnotation.INTERCONN_KUSCIA_PARTIES,
    KusciaAnnotation.INTERCONN_BFIA_PARTIES,
    KusciaAnnotation.PARTY_MASTER_DOMAIN,
    Muster.SUMMARY_UID,
)
_CARRIED: Final = (Muster.QUEUE, Muster.PREEMPTIBLE, Muster.USER, Muster.GROUP)
"""From the task to its group and pods, where they are labels as well: what decides its place in the queue."""
_CARRIED_NOTES: Final = (
    Muster.RUNTIME,
    Muster.SIMULATED_SECONDS,
    Muster.SIMULATED_EXIT_CODE,
    Muster.SIMULATED_FAILURES,
)


class TaskState(msgspec.Struct, frozen=True, kw_only=True):
    """A task and all that belongs to it, as the caches have it at one moment."""

    task: Raw
    view: KusciaTask
    group: Raw | None = None
    group_view: TaskResourceGroup | None = None
    resources: Mapping[tuple[str, str], str] = msgspec.field(default_factory=dict)
    """The uids of the group's TaskResources, by namespace and name."""
    pods: Sequence[TaskPod] = ()
    """Of every attempt."""
    others: Sequence[Target] = ()
    """Its services and config maps."""
    find_image: Callable[[str], Raw | None] = lambda _name: None
    find_party: Callable[[str], Party | None] = lambda _name: None
    partners: PartnerStatuses = msgspec.field(default_factory=dict)
    is_taken: IsTaken = lambda _domain, _number: False
    now: float = 0.0

    @property
    def uid(self) -> str:
        return self.view.metadata.uid

    @property
    def attempt(self) -> int:
        return max(self.view.status.attempts, 1)

    @property
    def is_member(self) -> bool:
        """Whether another control plane decides about the task. There is one KusciaTask for each of its attempts here."""
        return annotations_of(self.task).get(KusciaAnnotation.SELF_CLUSTER_AS_INITIATOR) == "false"

    @property
    def group_attempt(self) -> int:
        """The attempt that the group in the cache was made for; 0 when it does not say."""
        return whole_number(annotations_of(self.group or {}).get(Muster.ATTEMPT, ""))

    @property
    def status(self) -> Raw:
        found = self.task.get("status")
        return found if isinstance(found, dict) else {}


def work_of(task: Raw, view: KusciaTask) -> Work:
    labels = {KusciaLabel.CONTROLLER: CONTROLLER_VALUE, KusciaLabel.TASK_UID: view.metadata.uid}
    for key in (KusciaLabel.INTERCONN_PROTOCOL_TYPE, KusciaLabel.JOB_UID):
        if value := labels_of(task).get(key):
            labels[key] = value
    notes = {KusciaAnnotation.INITIATOR: view.spec.initiator, KusciaAnnotation.TASK_ID: view.metadata.name}
    return Work(
        kind="task",
        name=view.metadata.name,
        uid=view.metadata.uid,
        initiator=view.spec.initiator,
        input_config=view.spec.task_input_config,
        labels=labels,
        annotations=notes,
    )


def carried(task: Raw) -> tuple[dict[str, str], dict[str, str]]:
    """The labels and annotations that go from the task to its group and its pods."""
    known = {**annotations_of(task), **labels_of(task)}
    labels = {key: known[key] for key in _CARRIED if known.get(key) and not validate_label_value(known[key])}
    return labels, {key: known[key] for key in (*_CARRIED, *_CARRIED_NOTES) if known.get(key)}


# -- the group --------------------------------------------------------------------------------------------------------------


def group_of(state: TaskState, kits: Sequence[PartyKit]) -> Raw:
    """The TaskResourceGroup of this attempt."""
    view, notes = state.view, annotations_of(state.task)
    labels, more = carried(state.task)
    config = view.spec.schedule_config
    own = [_group_party(state, kit) for kit in kits if kit.is_own]
    others = [_group_party(state, kit) for kit in kits if not kit.is_own]
    least = config.min_reserved_members or len(kits)
    spec: Raw = {
        "initiator": view.spec.initiator,
        "minReservedMembers": min(least, len(kits)),
        "resourceReservedSeconds": config.resource_reserved_seconds or DEFAULT_RESERVED_S,
        "retryIntervalSeconds": config.retry_interval_seconds or DEFAULT_RETRY_S,
        "lifecycleSeconds": config.lifecycle_seconds,
        "parties": own,
    }
    if others:
        spec["outOfControlledParties"] = others
    annotations = {
        **{key: notes[key] for key in _GROUP_NOTES if notes.get(key)},
        **more,
        KusciaAnnotation.INITIATOR: view.spec.initiator,
        KusciaAnnotation.TASK_ID: view.metadata.name,
        Muster.ORIGIN_CREATED: notes.get(Muster.ORIGIN_CREATED) or view.metadata.creation_timestamp,
        Muster.ORIGIN_UID: notes.get(Muster.ORIGIN_UID) or view.metadata.uid,
        Muster.ATTEMPT: str(state.attempt),
        Muster.KIT: kit_hash(kits),
    }
    return {
        "apiVersion": API_VERSION,
        "kind": GROUP_KIND,
        "metadata": {
            "name": view.metadata.name,
            "labels": {**labels, **work_of(state.task, view).labels},
            "annotations": annotations,
        },
        "spec": spec,
    }


def _group_party(state: TaskState, kit: PartyKit) -> Raw:
    party: Raw = {
        "domainID": kit.domain_id,
        "role": kit.role,
        "minReservedPods": kit.min_pods,
        "taskResourceName": task_resource_name(state.uid, kit.domain_id, kit.role),
    }
    if kit.is_own:
        party["pods"] = [{"name": name} for name in kit.pod_names(state.view.metadata.name)]
    return {key: value for key, value in party.items() if value != ""}


def kit_hash(kits: Sequence[PartyKit]) -> str:
    """Of all that the pods of an attempt are made from: one made half from one version of an AppImage and half from another
    would be neither."""
    return hashlib.sha256(msgspec.json.encode(kits, order="sorted")).hexdigest()[:16]


# -- pods, services, files --------------------------------------------------------------------------------------------------


class Objects(msgspec.Struct, frozen=True):
    """Of one attempt: config maps and services, which come first, and pods. `services` has all, made or not."""

    before: list[Raw]
    pods: list[Raw]
    services: dict[str, Raw]
    """Their entries in `status.serviceStatuses`."""


def objects_of(state: TaskState, kits: Sequence[PartyKit], made: Collection[str] = ()) -> Objects:
    """All objects of the own parties but for the pods in `made` (by `namespace/name`) and what was made before them.

    The group and its TaskResources exist. KitError when a template can't be rendered."""
    assert state.group is not None
    task_name, work = state.view.metadata.name, work_of(state.task, state.view)
    numbers = {(p.domain_id, p.role): p.named_port for p in state.view.status.allocated_ports}
    listed = [define_party(kit, kit.pod_names(task_name), numbers.get((kit.domain_id, kit.role), {})) for kit in kits]
    parties = define_parties(listed)
    owner = [owner_reference(state.group)]
    found = Objects([], [], {})
    for kit in kits:
        given = numbers.get((kit.domain_id, kit.role), {})
        for index, name in enumerate(kit.pod_names(task_name) if kit.is_own else ()):
            ports = {port.name: given[f"{name}/{port.name}"] for port in kit.ports}
            found.services.update(_service_statuses(kit, name, ports))
            if f"{kit.domain_id}/{name}" in made:
                continue
            define = cluster_define(parties, kit.index, index)
            files = config_files(kit, work, ports, define)
            if files:
                found.before.append(config_map(kit, work, _config_name(name), files))
            found.pods.append(_pod(state, kit, index, ports, define, has_files=bool(files)))
            found.before.extend(
                service(kit, work, name, port.name, number=ports[port.name], selector=pod_selector(name))
                for port in kit.ports
                if port.has_service
            )
    for one in (*found.before, *found.pods):
        one["metadata"]["ownerReferences"] = owner
    return found


def _config_name(pod_name: str) -> str:
    return f"{pod_name}-config"


def _pod(state: TaskState, kit: PartyKit, index: int, ports: Mapping[str, int], define: str, *, has_files: bool) -> Raw:
    assert state.group is not None
    name = pod_name(state.view.metadata.name, kit.role, index)
    labels, notes = carried(state.task)
    resource = task_resource_name(state.uid, kit.domain_id, kit.role)
    total = total_of(annotations_of(state.task), kit.domain_id, kit.role)
    containers = sum(1 for _ in objs(kit.spec, "containers", ""))
    template = pod_template(
        kit,
        work_of(state.task, state.view),
        ports,
        define,
        config_name=_config_name(name) if has_files else "",
        shares=pod_shares(total, replicas=kit.replicas, containers=containers, pod=index) if total else (),
        pod_index=index,
        priority_class=annotations_of(state.task).get(Muster.PRIORITY_CLASS, ""),
    )
    template["metadata"]["labels"] |= {
        **labels,
        **pod_selector(name),
        KusciaLabel.TASK_RESOURCE_GROUP_UID: uid_of(state.group),
        KusciaLabel.TASK_RESOURCE_UID: state.resources[kit.domain_id, resource],
    }
    template["metadata"]["annotations"] |= {
        **notes,
        **work_notes(task_work(state.task, state.view)),
        KusciaAnnotation.TASK_RESOURCE_GROUP: name_of(state.group),
        KusciaAnnotation.TASK_RESOURCE: resource,
    }
    template["metadata"] |= {"name": name, "namespace": kit.domain_id}
    return {"apiVersion": "v1", "kind": "Pod", **template}


def said_of(state: TaskState) -> list[Action]:
    """What the pods of this attempt say of the task, where it has changed."""
    assert state.group is not None
    own = uid_of(state.group)
    pods = [pod.said for pod in state.pods if pod.group_uid == own and not pod.is_deleting and not pod.is_finished]
    return said_anew(state.task, task_work(state.task, state.view), pods)


def _service_statuses(kit: PartyKit, pod_name: str, ports: Mapping[str, int]) -> dict[str, Raw]:
    found: dict[str, Raw] = {}
    for port in kit.ports:
        if port.has_service:
            name = service_name(pod_name, port.name)
            found[f"{kit.domain_id}/{name}"] = {
                "namespace": kit.domain_id,
                "serviceName": name,
                "portName": port.name,
                "portNumber": ports[port.name],
                "scope": port.scope,
            }
    return found


# -- status -----------------------------------------------------------------------------------------------------------------


def ports_status(allocated: Sequence[PartyAllocatedPorts]) -> list[Raw]:
    return [
        {"domainID": one.domain_id, **({"role": one.role} if one.role else {}), "namedPort": dict(one.named_port)}
        for one in allocated
    ]


def with_conditions(state: TaskState, *facts: tuple[str, ConditionStatus, str, str]) -> list[Raw]:
    """The task's conditions with these set: (type, status, reason, message)."""
    found: Any = state.status.get("conditions")
    for type_, status, reason, message in facts:
        found = set_condition(found, type_=type_, status=status, now=state.now, reason=reason, message=message)
    return list(found or ())
