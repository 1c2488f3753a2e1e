"""What the server remembers of the store to answer quickly: RBAC objects, token hashes, priority classes, limit ranges, what
nodes have and which pods are theirs.

Filled once at start and then, change by change, from the store's own notification, which comes before the write is answered: a
permission that was just granted holds for the very next request.

Concurrency: on the event loop. The callback decodes only the few kinds that it follows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from muster.controllers.work_sizes import is_kind_of_job
from muster.objects.labels import Muster
from muster.objects.resources import Resource
from muster.objects.status import NotFound, Raw
from muster.objects.time import Clock, parse_time
from muster.server.admission import PriorityClasses
from muster.server.authorization import RBAC_GROUP, RbacIndex
from muster.server.bandwidth_admission import FOLLOWED, Capacities
from muster.server.limit_ranges_admission import LimitRanges
from muster.server.logs import logger
from muster.server.node_index import NodeIndex
from muster.server.people import FOLLOWED as PEOPLE
from muster.server.people import People
from muster.server.tokens import TOKEN_NAMESPACE, TokenTable, identity_of_secret
from muster.server.webhook_matching import GROUP as WEBHOOK_GROUP
from muster.server.webhook_matching import KINDS as WEBHOOK_KINDS
from muster.server.webhook_matching import Configurations
from muster.store.contract import EventType
from muster.store.embedded import EmbeddedStore
from muster.store.embedded.collection import Collection
from muster.store.embedded.records import Event, Record

log = logger(__name__)

_RBAC_KINDS = {
    f"roles.{RBAC_GROUP}": "Role",
    f"clusterroles.{RBAC_GROUP}": "ClusterRole",
    f"rolebindings.{RBAC_GROUP}": "RoleBinding",
    f"clusterrolebindings.{RBAC_GROUP}": "ClusterRoleBinding",
}
_PRIORITIES = "priorityclasses.scheduling.k8s.io"
_LIMIT_RANGES = "limitranges"
_SECRETS = "secrets"
_PODS = "pods"
_NODES = "nodes"
_TASKS = "kusciatasks.kuscia.secretflow"
_DOMAINS = "domains.kuscia.secretflow"
_CAPACITIES = {_NODES: "Node", _DOMAINS: "Domain", "appimages.kuscia.secretflow": "AppImage"}
_PEOPLE = {f"{kind.lower()}s.{group}": (group, kind) for group, kind in PEOPLE if kind != "Pod"}
_WEBHOOKS = {f"{kind.lower()}s.{WEBHOOK_GROUP}": kind for kind in WEBHOOK_KINDS}
_SAYS_WHOSE = b'"muster.dev/'
"""Pods without any such label or annotation have no user and no queue, and need not be decoded."""


DELETION_LEEWAY_S = 60.0
"""How long tokens outlive the moment at which what they are bound to was to be gone; as in Kubernetes."""

Follower = Callable[[Collection, Event], None]


def follow(store: EmbeddedStore, follower: Follower) -> None:
    """Call `follower` for every change, after it shows to readers and before its writer is answered."""

    def guarded(collection: Collection, event: Event) -> None:
        try:
            follower(collection, event)
        except Exception as error:  # it runs inside the store's commit, which must never be disturbed
            log.error("a follower of the store failed", resource=collection.id, name=event.record.name, exc_info=error)

    store.listeners.append(guarded)


class Memory:
    def __init__(self, store: EmbeddedStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self.rbac = RbacIndex()
        self.tokens = TokenTable()
        self.priorities = PriorityClasses()
        self.limit_ranges = LimitRanges()
        self.capacities = Capacities()
        self.nodes = NodeIndex(store)
        self.people = People(clock, self.capacities.image, self.capacities.is_partner)
        self.webhooks = Configurations(self._versions_of)

    def start(self) -> None:
        """Read what is there, then follow."""
        roles = tuple((RBAC_GROUP, kind) for kind in _RBAC_KINDS.values())
        webhooks = tuple((WEBHOOK_GROUP, kind) for kind in WEBHOOK_KINDS)
        for group, kind in (
            *roles,
            ("scheduling.k8s.io", "PriorityClass"),
            ("", "LimitRange"),
            *webhooks,
            *FOLLOWED,
            *_PEOPLE.values(),
        ):
            resource = self._store.catalog.by_kind(group, kind)
            for record in self._store.list_records(resource).records:
                self._take(resource.qualified, record, deleted=False)
        for record in self._store.list_records(self._store.catalog.by_kind("", "Pod")).records:
            self._take_pod(record, None, deleted=False)
        for record in self._store.list_records(self._store.catalog.by_kind("kuscia.secretflow", "KusciaTask")).records:
            self._take_task(record, deleted=False)
        secrets = self._store.catalog.by_kind("", "Secret")
        for record in self._store.list_records(secrets, TOKEN_NAMESPACE).records:
            self._take(_SECRETS, record, deleted=False)
        follow(self._store, self._on_change)
        self._store.on_resources_changed.append(self.webhooks.forget)

    def _on_change(self, collection: Collection, event: Event) -> None:
        deleted = event.type is EventType.DELETED
        if collection.id == _PODS:  # by far the most
            self._take_pod(event.record, event.previous, deleted=deleted)
        else:
            self._take(collection.id, event.record, deleted=deleted)

    def _take(self, id_: str, record: Record, *, deleted: bool) -> None:
        if id_ in _PEOPLE:
            self.people.apply(_PEOPLE[id_][1], record.raw(), deleted=deleted)
            return
        if id_ == _TASKS:
            self._take_task(record, deleted=deleted)
            return
        kind = _RBAC_KINDS.get(id_)
        if kind is not None:
            self.rbac.apply(kind, record.raw(), deleted=deleted)
        elif id_ == _PRIORITIES:
            self.priorities.apply(record.raw(), deleted=deleted)
        elif id_ == _LIMIT_RANGES:
            self.limit_ranges.apply(record.raw(), deleted=deleted)
        elif id_ in _WEBHOOKS:
            self.webhooks.apply(_WEBHOOKS[id_], record.raw(), deleted=deleted)
        elif id_ in _CAPACITIES:
            raw = record.raw()
            self.capacities.apply(_CAPACITIES[id_], raw, deleted=deleted)
            if id_ == _NODES:
                self.nodes.apply_node(raw, deleted=deleted)
            elif id_ == _DOMAINS:
                self.nodes.apply_domain(raw, deleted=deleted)
        elif id_ == _SECRETS and record.namespace == TOKEN_NAMESPACE:
            self._take_secret(record.name, None if deleted else record.raw())

    def _take_pod(self, record: Record, previous: Record | None, *, deleted: bool) -> None:
        self.nodes.apply_pod(record, deleted=deleted)
        if any(owner.is_controller and is_kind_of_job(owner.api_version) for owner in record.owners):
            self.people.own_made("Pod", record.namespace, record.name, "" if deleted else record.labels.get(Muster.USER, ""))
        elif _SAYS_WHOSE in record.value or (previous is not None and _SAYS_WHOSE in previous.value):
            self.people.apply("Pod", record.raw(), deleted=deleted or _SAYS_WHOSE not in record.value)

    def _take_task(self, record: Record, *, deleted: bool) -> None:
        user = "" if deleted else record.labels.get(Muster.USER, "")
        self.people.own_made("KusciaTask", record.namespace, record.name, user)

    def _take_secret(self, name: str, raw: Raw | None) -> None:
        found = identity_of_secret(raw) if raw is not None else None
        if found is None:
            self.tokens.drop(name)
        else:
            self.tokens.put(name, *found)

    # --- look-ups in the store itself

    def _versions_of(self, resource: Resource) -> list[Resource]:
        return [other for other in self._store.catalog if other.collection == resource.collection]

    def find(self, group: str, kind: str, name: str) -> Raw | None:
        """An object of a kind without namespaces."""
        try:
            return self._store.get_record(self._store.catalog.by_kind(group, kind), name).raw()
        except NotFound:
            return None

    def namespace_labels(self, name: str) -> Mapping[str, str] | None:
        try:
            return self._store.get_record(self._store.catalog.by_kind("", "Namespace"), name).labels
        except NotFound:
            return None

    async def uid_of(self, kind: str, namespace: str, name: str) -> str | None:
        """The uid of a core object that is there and whose time has not come: a pod that is ending needs its token."""
        try:
            record = self._store.get_record(self._store.catalog.by_kind("", kind), name, None if kind == "Node" else namespace)
        except NotFound:
            return None
        if record.deleting:
            until = record.raw()["metadata"].get("deletionTimestamp")
            if not isinstance(until, str) or self._clock() > parse_time(until) + DELETION_LEEWAY_S:
                return None
        return record.uid

    def automount(self, namespace: str, account: str) -> bool | None:
        """What the service account says about tokens in its pods."""
        try:
            record = self._store.get_record(self._store.catalog.by_kind("", "ServiceAccount"), account, namespace)
        except NotFound:
            return None
        told = record.raw().get("automountServiceAccountToken")
        return told if isinstance(told, bool) else None

    async def has_account(self, namespace: str, name: str) -> bool:
        return await self.uid_of("ServiceAccount", namespace, name) is not None
