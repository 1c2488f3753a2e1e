"""What to do next for a Domain: the pure half of the controller `domain`.

A Domain has a namespace of its name, with Kuscia's labels; a ConfigMap `domain-config`; and a ServiceAccount, Role and
RoleBinding of its name (see `domain_objects`). Its status shows its nodes and its quota.

A namespace that is there already and does not carry the party's label is somebody's: it becomes the party's only when nothing
is in it that the party's account could then reach. Otherwise nothing is touched, and the condition `Ready` says what to do.

A Domain that is deleted stays while work of the party has not ended; the condition `Terminating` and an event name what holds
it. Then the account goes, so that nobody acts for the party any more, the namespace is labelled as deleted, and the Domain is
gone. The namespace and everything in it stays: data is not deleted by deleting a Domain, an administrator deletes it.

Pure: the same inputs give the same actions, and doing them twice changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from muster.controllers import domain_objects as objects
from muster.controllers.actions import (
    Action,
    Create,
    Delete,
    Emit,
    Patch,
    PatchStatus,
    target_of,
    with_finalizer,
    without_finalizer,
)
from muster.controllers.domain_status import node_entries, quota_status
from muster.controllers.runtime import Plan
from muster.engine.facts import PodFacts, QuotaFacts
from muster.objects.conditions import ConditionStatus, find_condition, set_condition
from muster.objects.labels import KusciaLabel, Muster
from muster.objects.meta import controller_of, finalizers_of, is_deleting, labels_of, name_of, uid_of
from muster.objects.names import validate_label_name
from muster.objects.reason_codes import Reason
from muster.objects.rules.domains import is_reserved
from muster.objects.rules.report import obj, text, texts
from muster.objects.status import Raw
from muster.objects.words import short_list
from muster.store.events import NORMAL, WARNING, EventKind, reference_to

READY: Final = "Ready"
TERMINATING: Final = "Terminating"
HOLDERS_SHOWN_MAX: Final = 5
LOOK_AGAIN_S: Final = 60.0
"""A namespace that can't be taken over is looked at again after so long: what is in it tells nobody when it goes."""


class Situation(msgspec.Struct, frozen=True, kw_only=True):
    """A Domain, and what the caches hold of it."""

    domain: Raw
    namespace: Raw | None = None
    has_cross_domain: bool = True
    configuration: Raw | None = None
    account: Raw | None = None
    role: Raw | None = None
    binding: Raw | None = None
    strangers: Sequence[str] | None = ()
    """What is in a namespace that does not carry the party's label; None when nobody has looked."""
    nodes: Sequence[Raw] = ()
    """As `domain_status.node_entry` makes them."""
    quota: QuotaFacts | None = None
    pods: Callable[[], Iterable[PodFacts]] = tuple
    """The party's pods; asked for only when they are to be counted."""
    holders: Sequence[str] = ()
    """Work of the party that has not ended; only looked for while the Domain is being deleted."""

    @property
    def party(self) -> str:
        return name_of(self.domain)

    @property
    def is_ours(self) -> bool:
        """Whether the namespace is the party's by its label."""
        return self.namespace is not None and labels_of(self.namespace).get(KusciaLabel.DOMAIN_NAME) == self.party

    @property
    def needs_look(self) -> bool:
        """Whether it must be known what is in the namespace."""
        return self.namespace is not None and not self.is_ours and not is_deleting(self.namespace)


class _Fact(NamedTuple):
    """A condition's status, and why."""

    status: ConditionStatus
    reason: str
    message: str


def plan(at: Situation, now: float) -> Plan:
    if is_deleting(at.domain):
        return _plan_end(at, now)
    actions: list[Action] = []
    if is_reserved(at.party):
        # From before the rule, or from a server without it: a namespace of the system is never handed out.
        why = f"the name {at.party} is kept for the system; delete this Domain and make one with another name"
        return _report(at, actions, _Fact("False", Reason.NAME_RESERVED.value, why), now)
    if problems := validate_label_name(at.party):
        why = f"the name {at.party} can't be that of a namespace: {problems[0]}; make a Domain with another name"
        return _report(at, actions, _Fact("False", Reason.MANIFEST_INVALID.value, why), now)
    if Muster.DOMAIN_FINALIZER not in finalizers_of(at.domain):
        # The rest waits for the new version: a Domain without the finalizer may be gone at any moment.
        return Plan([with_finalizer(at.domain, Muster.DOMAIN_FINALIZER)])
    if not at.has_cross_domain:
        actions.append(Create(objects.cross_domain()))
    refusal = _claim_namespace(at, actions)
    if refusal is not None:
        return _report(at, actions, refusal, now)
    if at.configuration is None:
        actions.append(Create(objects.configuration(at.party)))
    _grant_access(at, actions)
    return _report(at, actions, _Fact("True", "Prepared", f"namespace {at.party} is ready"), now)


# -- the namespace ------------------------------------------------------------------------------------------------------------


def _claim_namespace(at: Situation, actions: list[Action]) -> _Fact | None:
    """Make the namespace the party's; the condition when that can't be."""
    spec = obj(at.domain, "spec")
    wanted = objects.namespace_labels(at.party, text(spec, "role"), texts(spec, "interConnProtocols"))
    if at.namespace is None:
        actions.append(Create(objects.namespace(at.party, wanted)))
        return None
    if is_deleting(at.namespace):
        return _Fact("False", "NamespaceTerminating", f"namespace {at.party} is being deleted; it is made again after that")
    if not at.is_ours and at.strangers is None:
        return _Fact("False", "NamespaceUnknown", f"what is in namespace {at.party} has not been looked at yet")
    if not at.is_ours and at.strangers:
        why = (
            f"namespace {at.party} was there before this Domain and holds {short_list(at.strangers, HOLDERS_SHOWN_MAX)}. "
            "If it is the party's: "
            f"kubectl label namespace {at.party} {KusciaLabel.DOMAIN_NAME}={at.party}. If not: empty it, or choose another name"
        )
        return _Fact("False", "NamespaceTaken", why)
    labels = labels_of(at.namespace)
    changes = {key: value for key, value in wanted.items() if labels.get(key) != value}
    if changes:
        actions.append(Patch(target_of(at.namespace), {"metadata": {"labels": changes}}))
    if not at.is_ours:
        actions.append(_emit(at, NORMAL, "NamespaceAdopted", f"namespace {at.party} was empty and is the party's now"))
    elif KusciaLabel.DOMAIN_DELETED in changes:
        kept = f"namespace {at.party} was kept from an earlier Domain of this name; what is in it is the party's again"
        actions.append(_emit(at, NORMAL, "NamespaceTakenOver", kept))
    return None


# -- who may act for the party ------------------------------------------------------------------------------------------------


def _grant_access(at: Situation, actions: list[Action]) -> None:
    account, role, binding = objects.access(at.domain, at.party, text(obj(at.domain, "spec"), "role"))
    for wanted, found, words in (
        (account, at.account, ()),
        (role, at.role, ("rules",)),
        (binding, at.binding, ("subjects",)),
    ):
        if found is None:
            actions.append(Create(wanted))
            continue
        owner = controller_of(found)
        is_foreign = owner is not None and owner.get("uid") != uid_of(at.domain)
        is_fixed = wanted.get("roleRef") != found.get("roleRef")  # nobody can change that one
        if is_deleting(found):
            continue
        if is_foreign or is_fixed:
            # What an earlier Domain left behind goes; its successor is made when the cache shows that it is gone.
            actions.append(Delete(target_of(found)))
            continue
        patch = {word: wanted[word] for word in words if found.get(word) != wanted[word]}
        if owner is None:
            patch["metadata"] = {"ownerReferences": wanted["metadata"]["ownerReferences"]}
        if patch:
            actions.append(Patch(target_of(found), patch))


# -- status -------------------------------------------------------------------------------------------------------------------


def _report(at: Situation, actions: list[Action], ready: _Fact, now: float) -> Plan:
    status = obj(at.domain, "status")
    patch: Raw = {}
    before = find_condition(status.get("conditions"), READY) or {}
    if (before.get("status"), before.get("reason"), before.get("message")) != ready:
        patch["conditions"] = _conditions(at, READY, ready, now)
        if ready.status != "True":
            actions.append(_emit(at, WARNING, ready.reason, ready.message))
    entries = node_entries(status.get("nodeStatuses"), at.nodes)
    if entries is not None:
        patch["nodeStatuses"] = entries
    is_due, quota, again_s = quota_status(status.get("resourceQuota"), at.quota, at.pods, now)
    if is_due:
        patch["resourceQuota"] = quota
    if patch:
        actions.append(PatchStatus(target_of(at.domain), patch))
    if ready.status != "True":
        again_s = LOOK_AGAIN_S if again_s is None else min(again_s, LOOK_AGAIN_S)
    return Plan(actions, again_s)


def _conditions(at: Situation, type_: str, ready: _Fact, now: float) -> list[Raw]:
    conditions = obj(at.domain, "status").get("conditions")
    return set_condition(conditions, type_=type_, status=ready.status, now=now, reason=ready.reason, message=ready.message)


def _emit(at: Situation, kind: EventKind, reason: str, message: str) -> Emit:
    return Emit(reference_to(at.domain), kind, reason, message)


# -- the end ------------------------------------------------------------------------------------------------------------------


def _plan_end(at: Situation, now: float) -> Plan:
    if Muster.DOMAIN_FINALIZER not in finalizers_of(at.domain):
        return Plan()
    if at.holders:
        return _wait_for(at, now)
    actions: list[Action] = []
    if at.is_ours and at.namespace is not None:
        granted = (at.binding, at.role, at.account)
        actions += [Delete(target_of(found)) for found in granted if found is not None and not is_deleting(found)]
        if labels_of(at.namespace).get(KusciaLabel.DOMAIN_DELETED) != "true" and not is_deleting(at.namespace):
            actions.append(Patch(target_of(at.namespace), {"metadata": {"labels": {KusciaLabel.DOMAIN_DELETED: "true"}}}))
            message = f"namespace {at.party} and all that is in it are kept; to delete the data too: kubectl delete namespace "
            actions.append(_emit(at, NORMAL, "NamespaceKept", message + at.party))
    actions.append(without_finalizer(at.domain, Muster.DOMAIN_FINALIZER))
    return Plan(actions)


def _wait_for(at: Situation, now: float) -> Plan:
    count = len(at.holders)
    what = "1 piece of work" if count == 1 else f"{count} pieces of work"
    message = f"waits for {what} of {at.party} to end: {short_list(at.holders, HOLDERS_SHOWN_MAX)}. Stop it to go on, or wait"
    before = find_condition(obj(at.domain, "status").get("conditions"), TERMINATING) or {}
    if before.get("message") == message:
        return Plan()
    conditions = _conditions(at, TERMINATING, _Fact("True", "WorkRunning", message), now)
    return Plan(
        [
            PatchStatus(target_of(at.domain), {"conditions": conditions}),
            _emit(at, WARNING, "WorkRunning", message),
        ]
    )
