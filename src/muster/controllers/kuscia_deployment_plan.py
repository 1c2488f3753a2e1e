"""What to do next for a KusciaDeployment: ports, files and services, pods in and out, status, and the end. Pure.

    ports (an annotation, under the version that was read) -> services and files -> pods, as `kuscia_deployment_rollout` says

How it can be interrupted anywhere: names follow from the deployment, the template and the lowest free number, so that making
a thing twice finds the first one's work, and what to delete is chosen the same way each time from the same pods. What is wrong
with the manifests stops nothing that runs: its pods are left as they are, and the status says what is wrong.

The end: pods, services and files are deleted; the finalizer goes when the *store* (not the cache, which may lag behind what was
just made) has none of them left. `DeploymentPlan.is_last` says that the caller must look.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from muster.controllers.actions import (
    Action,
    Create,
    Delete,
    Emit,
    Patch,
    PatchStatus,
    Target,
    Together,
    target_of,
    with_finalizer,
    without_finalizer,
)
from muster.controllers.kuscia_deployment_parts import (
    Part,
    Template,
    files_of,
    parts_of,
    pod_of,
    replica_of,
    services_of,
    template_of,
    wishes_of,
)
from muster.controllers.kuscia_deployment_rollout import rollout
from muster.controllers.kuscia_deployment_status import (
    FAILED,
    PARTIAL,
    PROGRESSING,
    PartState,
    Whole,
    part_status,
    status_patch,
    whole_of,
)
from muster.controllers.kuscia_task_pods import TaskPod, finding
from muster.controllers.parties import Party
from muster.controllers.task_kit import KitError, short
from muster.controllers.task_ports import (
    IsTaken,
    PartyPorts,
    PortsExhausted,
    allocate,
    deployment_annotation,
    deployment_ports,
    fits,
)
from muster.objects.kinds.kuscia_tasks import PartyAllocatedPorts
from muster.objects.labels import KusciaAnnotation, KusciaLabel, Muster
from muster.objects.meta import finalizers_of, is_deleting, labels_of, name_of, namespace_of, uid_of
from muster.objects.reason_codes import Reason
from muster.objects.rules.report import obj, text
from muster.objects.status import Raw
from muster.store.events import NORMAL, WARNING, reference_to

LOOK_AGAIN_S: Final = 15.0
_STEP_MAX: Final = 200
"""Pods made or deleted in one go; the rest follows when these are seen."""


class DeploymentState(msgspec.Struct, frozen=True, kw_only=True):
    """A deployment and all that belongs to it, as the caches have it at one moment."""

    deployment: Raw
    pods: Sequence[TaskPod] = ()
    services: Sequence[Raw] = ()
    files: Sequence[Raw] = ()
    find_image: Callable[[str], Raw | None] = lambda _name: None
    find_party: Callable[[str], Party | None] = lambda _name: None
    partners: Mapping[str, Mapping[str, Raw]] = msgspec.field(default_factory=dict)
    """What partners say: entries of `status.partyDeploymentStatuses` by party."""
    foreign: frozenset[tuple[str, str]] = frozenset()
    """Services (namespace, name) that exist and belong to somebody else."""
    is_taken: IsTaken = lambda _domain, _number: False
    now: float = 0.0

    @property
    def status(self) -> Raw:
        return obj(self.deployment, "status")


class DeploymentPlan(msgspec.Struct, frozen=True):
    actions: Sequence[Action] = ()
    requeue_after_s: float | None = None
    allocated: list[PartyAllocatedPorts] | None = None
    """Ports that the actions are about to write down."""
    is_last: bool = False
    """Nothing of it is in the caches any more: look in the store, and if that agrees, let go."""


def plan(state: DeploymentState) -> DeploymentPlan:
    deployment = state.deployment
    if is_deleting(deployment):
        return _leave(state)
    if Muster.DEPLOYMENT_FINALIZER not in finalizers_of(deployment):
        return DeploymentPlan([with_finalizer(deployment, Muster.DEPLOYMENT_FINALIZER)])
    try:
        parts = parts_of(deployment, state.find_image, state.find_party)
        allocated = deployment_ports(deployment)
        wishes = wishes_of(parts, allocated)
        if not fits(allocated, wishes):
            return _allocate(state, wishes)
        return _carry_on(state, parts, allocated)
    except KitError as error:
        return _trouble(state, PROGRESSING if error.is_waiting else FAILED, error.reason.value, str(error))
    except PortsExhausted as error:
        phase = FAILED if error.is_final else PROGRESSING
        return _trouble(state, phase, Reason.PORTS_EXHAUSTED.value, str(error))


def _allocate(state: DeploymentState, wishes: Sequence[PartyPorts]) -> DeploymentPlan:
    allocated = allocate(wishes, uid_of(state.deployment), state.is_taken)
    note = {KusciaAnnotation.ALLOCATED_PORTS: deployment_annotation(allocated)}
    write = Patch(target_of(state.deployment, at_version=True), {"metadata": {"annotations": note}})
    return DeploymentPlan([write], None, allocated)


# -- running it ---------------------------------------------------------------------------------------------------------------


def _carry_on(state: DeploymentState, parts: Sequence[Part], allocated: Sequence[PartyAllocatedPorts]) -> DeploymentPlan:
    own = [part for part in parts if part.kit.is_own]
    templates = [template_of(state.deployment, part, parts, allocated) for part in own]
    services = [one for part in own for one in services_of(state.deployment, part, allocated)]
    for one in services:
        if (namespace_of(one), name_of(one)) in state.foreign:
            raise KitError(
                Reason.DUPLICATE_NAME,
                f"Service {namespace_of(one)}/{name_of(one)} exists and is not this deployment's; choose another "
                "serviceNamePrefix, or delete that Service",
                is_waiting=True,
            )
    made = (files_of(state.deployment, part, template) for part, template in zip(own, templates, strict=True))
    files = [one for one in made if one is not None]
    actions: list[Action] = _keep(services, state.services)
    actions += [Create(one) for one in files if _place(one) not in {_place(known) for known in state.files}]
    states, again_s = [], None
    for part, template in zip(own, templates, strict=True):
        found, more, part_again_s = _roll(state, part, template)
        states.append(found)
        actions += more
        again_s = _earlier(again_s, part_again_s)
    actions += _remove_strangers(state, own)
    actions += _remove_files(state, templates)
    silent = sorted({part.kit.domain_id for part in parts if not part.kit.is_own} - state.partners.keys())
    actions += _report(state, states, whole_of(states, state.partners, silent), len(parts))
    return DeploymentPlan(actions, again_s)


def _roll(state: DeploymentState, part: Part, template: Template) -> tuple[PartState, list[Action], float | None]:
    pods = [pod for pod in state.pods if _belongs(pod, part)]
    replicas = [replica_of(pod, state.now) for pod in pods]
    findings = {pod.metadata.name: finding(pod, state.now) for pod in pods}
    unready = {one.name: findings[one.name] for one in replicas if not one.is_ready}
    next_ = rollout(part.desired, part.strategy, replicas, template.hash, state.now)
    again_s = next_.again_s
    for found in unready.values():
        again_s = _earlier(again_s, found.again_s)
    made = [Create(pod_of(part, template, new.index, new.attempt)) for new in next_.create[:_STEP_MAX]]
    gone = [Delete(Target("", "Pod", one.name, part.kit.domain_id, one.uid)) for one in next_.delete[:_STEP_MAX]]
    # What comes first: an ended pod holds the number of attempts until its replacement has it.
    actions: list[Action] = [Together(tuple(some)) for some in (made, gone) if some]
    found_state = PartState(part=part, template_hash=template.hash, pods=replicas, findings=unready)
    return found_state, actions, again_s


def _belongs(pod: TaskPod, part: Part) -> bool:
    name = pod.metadata.labels.get(KusciaLabel.KUBERNETES_DEPLOYMENT_NAME, "")
    return pod.metadata.namespace == part.kit.domain_id and name == short(part.name)


def _keep(wanted: Sequence[Raw], there: Sequence[Raw]) -> list[Action]:
    """Services as they should be, and no others."""
    known = {_place(one): one for one in there}
    actions: list[Action] = []
    for one in wanted:
        found = known.pop(_place(one), None)
        if found is None:
            actions.append(Create(one))
        elif not is_deleting(found) and (patch := _difference(found, one)):
            actions.append(Patch(target_of(found), patch))
    return actions + [Delete(target_of(one)) for one in known.values() if not is_deleting(one)]


def _difference(found: Raw, wanted: Raw) -> Raw:
    patch: Raw = {}
    # What is false or empty may not be stored at all.
    spec = {key: value for key, value in wanted["spec"].items() if (obj(found, "spec").get(key) or None) != (value or None)}
    if spec:
        patch["spec"] = spec
    for word in ("labels", "annotations"):
        has = obj(obj(found, "metadata"), word)
        changed = {key: value for key, value in wanted["metadata"][word].items() if has.get(key) != value}
        if changed:
            patch.setdefault("metadata", {})[word] = changed
    return patch


def _remove_strangers(state: DeploymentState, own: Sequence[Part]) -> list[Action]:
    """Pods of parties that are not part of it any more."""
    left = [pod for pod in state.pods if not any(_belongs(pod, part) for part in own)]
    targets = [
        Target("", "Pod", pod.metadata.name, pod.metadata.namespace, pod.metadata.uid)
        for pod in left
        if not pod.metadata.deletion_timestamp
    ]
    return [Together(tuple(Delete(target) for target in targets[:_STEP_MAX]))] if targets else []


def _remove_files(state: DeploymentState, templates: Sequence[Template]) -> list[Action]:
    """Files of versions that no pod has any more."""
    used = {pod.metadata.labels.get(Muster.TEMPLATE_HASH, "") for pod in state.pods} | {one.hash for one in templates}
    old = [one for one in state.files if labels_of(one).get(Muster.TEMPLATE_HASH, "") not in used and not is_deleting(one)]
    return [Delete(target_of(one)) for one in old]


# -- status -------------------------------------------------------------------------------------------------------------------


def _report(state: DeploymentState, states: Sequence[PartState], whole: Whole, total: int) -> list[Action]:
    old = obj(state.status, "partyDeploymentStatuses")
    entries: dict[str, dict[str, Any]] = {party: dict(theirs) for party, theirs in state.partners.items()}
    for one in states:
        party = one.part.kit.domain_id
        before = obj(obj(old, party), one.part.name)
        entries.setdefault(party, {})[one.part.name] = part_status(one, before, state.now)
    up = sum(1 for theirs in entries.values() for entry in theirs.values() if text(entry, "phase") == "Available")
    new: Raw = {
        "phase": whole.phase,
        "reason": whole.reason,
        "message": whole.message,
        "totalParties": total,
        "availableParties": up,
        "partyDeploymentStatuses": entries,
    }
    return _write(state, new, whole)


def _write(state: DeploymentState, new: Raw, whole: Whole) -> list[Action]:
    patch = status_patch(state.status, new, state.now)
    if patch is None:
        return []
    actions: list[Action] = [PatchStatus(target_of(state.deployment), patch)]
    if text(state.status, "phase") != whole.phase:
        kind = WARNING if whole.phase == FAILED else NORMAL
        message = whole.message or f"{new.get('availableParties', 0)} of {new.get('totalParties', 0)} parties are available"
        actions.append(Emit(reference_to(state.deployment), kind, whole.reason or whole.phase, message))
    return actions


def refuse(state: DeploymentState, message: str, *, is_final: bool) -> DeploymentPlan:
    """The server refuses an object that the deployment needs: because it is wrong, or for now, because of a quota."""
    is_up = any(replica_of(pod, state.now).is_ready for pod in state.pods)
    phase = FAILED if is_final else PARTIAL if is_up else PROGRESSING
    reason = Reason.MANIFEST_INVALID if is_final else Reason.CREATION_REFUSED
    return _trouble(state, phase, reason.value, f"the server refuses what the deployment needs: {message}")


def _trouble(state: DeploymentState, phase: str, reason: str, message: str) -> DeploymentPlan:
    """Nothing can be made of the manifests now. What runs is left as it is."""
    if state.pods:
        message = f"{message}; the {len(state.pods)} pods that there are stay as they are"
    new = {"phase": phase, "reason": reason, "message": message}
    kept = obj(state.status, "partyDeploymentStatuses")
    whole = Whole(phase, reason, message)
    return DeploymentPlan(_write(state, {**new, "partyDeploymentStatuses": kept}, whole), LOOK_AGAIN_S)


# -- the end ------------------------------------------------------------------------------------------------------------------


def _leave(state: DeploymentState) -> DeploymentPlan:
    if Muster.DEPLOYMENT_FINALIZER not in finalizers_of(state.deployment):
        return DeploymentPlan()
    targets = [
        Target("", "Pod", pod.metadata.name, pod.metadata.namespace, pod.metadata.uid)
        for pod in state.pods
        if not pod.metadata.deletion_timestamp
    ]
    targets += [target_of(one) for one in (*state.services, *state.files) if not is_deleting(one)]
    if targets:
        return DeploymentPlan([Together(tuple(Delete(target) for target in targets[:_STEP_MAX]))])
    if state.pods or state.services or state.files:
        return DeploymentPlan()
    return DeploymentPlan([without_finalizer(state.deployment, Muster.DEPLOYMENT_FINALIZER)], is_last=True)


def _place(raw: Raw) -> tuple[str, str]:
    return namespace_of(raw), name_of(raw)


def _earlier(one: float | None, other: float | None) -> float | None:
    return other if one is None else one if other is None else min(one, other)
