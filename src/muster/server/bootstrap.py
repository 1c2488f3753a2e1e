"""What a server puts into its store when it starts, and keeps there while it runs.

At start: the system namespaces, the default roles and bindings, the system's priority classes, the administrator's token.
While running: every namespace has its `default` service account and the server's CA, and aggregated ClusterRoles show the rules
that they come to.

Concurrency: `bootstrap` runs before the port opens; `Keeper` is one task on the event loop. Everything is idempotent: a crash
anywhere is repaired by the next start. What an administrator changed on a default role is kept; rules it lacks are added,
unless its autoupdate annotation says "false".
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from muster.objects.meta import annotations_of, labels_of
from muster.objects.names import KUBERNETES_NAMESPACES
from muster.objects.resources import Resource
from muster.objects.status import AlreadyExists, ApiError, NotFound, Raw
from muster.server.admission import DEFAULT_ACCOUNT, SYSTEM_PRIORITIES
from muster.server.authorization import RBAC_GROUP, RbacIndex
from muster.server.memory import follow
from muster.server.rbac import rule_raw, rules_of, uncovered
from muster.server.roles import default_bindings, default_roles
from muster.server.tokens import TOKEN_NAMESPACE, token_secret
from muster.server.upkeep import Upkeep
from muster.store.contract import EventType, PatchType, WriteOptions
from muster.store.embedded import EmbeddedStore
from muster.store.embedded.collection import Collection
from muster.store.embedded.records import Event

NAMESPACES = (*KUBERNETES_NAMESPACES, "cross-domain")
"""Kubernetes' own, and the one in which Kuscia keeps what belongs to several parties."""
ADMIN_TOKEN_SECRET = "admin-token"  # noqa: S105 - the name of the object, not the token
CA_CONFIG_MAP = "kube-root-ca.crt"
_OPTIONS = WriteOptions(field_manager="muster-server")


async def bootstrap(store: EmbeddedStore) -> None:
    """Everything but the token."""
    for name in NAMESPACES:
        await _ensure(store, "", "Namespace", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    for name, value in SYSTEM_PRIORITIES.items():
        priority = {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": name},
            "value": value,
            "description": "For parts of the system that must not be evicted.",
        }
        await _ensure(store, "scheduling.k8s.io", "PriorityClass", priority)
    for role in default_roles(store.catalog):
        await _ensure_role(store, role)
    for binding in default_bindings():
        await _ensure(store, RBAC_GROUP, "ClusterRoleBinding", binding)
    await _take_back_node_binding(store)


async def _take_back_node_binding(store: EmbeddedStore) -> None:
    """Earlier releases bound a broad role to all nodes; what a node may do is decided by `node_access` now."""
    resource = store.catalog.by_kind(RBAC_GROUP, "ClusterRoleBinding")
    with contextlib.suppress(NotFound):
        found = await store.get(resource, "muster:node")
        is_ours = labels_of(found).get("kubernetes.io/bootstrapping") == "rbac-defaults"
        if is_ours and annotations_of(found).get("rbac.authorization.kubernetes.io/autoupdate") != "false":
            await store.delete(resource, "muster:node", None, _OPTIONS)


async def ensure_admin_token(store: EmbeddedStore, hashed: str) -> None:
    """Make the token with this hash, and no older one, the administrator's."""
    secret = token_secret(
        ADMIN_TOKEN_SECRET, hashed, "admin", ["system:masters"], "The token in the kubeconfig that the server wrote."
    )
    resource = store.catalog.by_kind("", "Secret")
    try:
        current = await store.get(resource, ADMIN_TOKEN_SECRET, TOKEN_NAMESPACE)
    except NotFound:
        await store.create(resource, secret, TOKEN_NAMESPACE, _OPTIONS)
        return
    if current.get("data") != secret["data"] or current.get("type") != secret["type"]:
        await store.delete(resource, ADMIN_TOKEN_SECRET, TOKEN_NAMESPACE, _OPTIONS)
        await store.create(resource, secret, TOKEN_NAMESPACE, _OPTIONS)


async def _ensure(store: EmbeddedStore, group: str, kind: str, obj: Raw, namespace: str | None = None) -> bool:
    """Create `obj` unless there is one of that name; whether it was created."""
    resource = store.catalog.by_kind(group, kind)
    with contextlib.suppress(NotFound):
        await store.get(resource, obj["metadata"]["name"], namespace)
        return False
    with contextlib.suppress(AlreadyExists):
        await store.create(resource, obj, namespace, _OPTIONS)
    return True


async def _ensure_role(store: EmbeddedStore, role: Raw) -> None:
    if await _ensure(store, RBAC_GROUP, "ClusterRole", role):
        return
    resource = store.catalog.by_kind(RBAC_GROUP, "ClusterRole")
    current = await store.get(resource, role["metadata"]["name"])
    if annotations_of(current).get("rbac.authorization.kubernetes.io/autoupdate") == "false":
        return
    patch: Raw = {}
    if role.get("aggregationRule"):
        if not current.get("aggregationRule"):
            patch = {"aggregationRule": role["aggregationRule"]}
    else:
        missing = uncovered(rules_of(current), rules_of(role))
        if missing:
            patch = {"rules": [*(current.get("rules") or []), *map(rule_raw, missing)]}
    labels = {
        key: value for key, value in role["metadata"]["labels"].items() if key not in current["metadata"].get("labels", {})
    }
    if labels:
        patch["metadata"] = {"labels": labels}
    if patch:
        await store.patch(resource, role["metadata"]["name"], patch, None, _OPTIONS, patch_type=PatchType.MERGE)


class Keeper(Upkeep):
    """Keeps what every namespace must have, and the text of aggregated roles. Wakes when something it looks after changes."""

    what = "namespaces and aggregated roles"

    def __init__(self, store: EmbeddedStore, rbac: RbacIndex, ca_pem: Callable[[], str]) -> None:
        super().__init__()
        self._store = store
        self._rbac = rbac
        self._ca_pem = ca_pem
        self._namespaces: set[str] = set()
        self._roles_dirty = True

    async def start(self) -> None:
        """One full round, then follow changes in a task."""
        resource = self._store.catalog.by_kind("", "Namespace")
        self._namespaces = {record.name for record in self._store.list_records(resource).records}
        follow(self._store, self._on_change)
        await self._round()
        self._begin()

    def _on_change(self, collection: Collection, event: Event) -> None:
        record = event.record
        if collection.id == "namespaces":
            if event.type is EventType.ADDED:
                self._namespaces.add(record.name)
        elif collection.id == f"clusterroles.{RBAC_GROUP}":
            self._roles_dirty = True
        elif event.type is EventType.DELETED and (
            (collection.id == "serviceaccounts" and record.name == DEFAULT_ACCOUNT)
            or (collection.id == "configmaps" and record.name == CA_CONFIG_MAP)
        ):
            self._namespaces.add(record.namespace)
        else:
            return
        self._wake()

    async def _round(self) -> None:
        while self._namespaces:
            name = next(iter(self._namespaces))
            await self._furnish(name)
            self._namespaces.discard(name)
        if self._roles_dirty:
            self._roles_dirty = False
            try:
                await self._write_aggregated()
            except BaseException:
                self._roles_dirty = True
                raise

    async def _furnish(self, namespace: str) -> None:
        """`default` account and the CA certificate; a namespace that is going or gone is left alone."""
        try:
            record = self._store.get_record(self._store.catalog.by_kind("", "Namespace"), namespace)
        except NotFound:
            return
        if record.deleting:
            return
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": DEFAULT_ACCOUNT}}
        ca = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": CA_CONFIG_MAP}, "data": {"ca.crt": self._ca_pem()}}
        for kind, obj in (("ServiceAccount", account), ("ConfigMap", ca)):
            try:
                await _ensure(self._store, "", kind, obj, namespace)
            except ApiError as error:
                if error.code not in (403, 404):  # it began to terminate in between
                    raise

    async def _write_aggregated(self) -> None:
        resource: Resource = self._store.catalog.by_kind(RBAC_GROUP, "ClusterRole")
        for name, rules in self._rbac.aggregated().items():
            try:
                current = await self._store.get(resource, name)
                wanted = [rule_raw(rule) for rule in rules]
                if (current.get("rules") or []) != wanted:
                    await self._store.patch(resource, name, {"rules": wanted}, None, _OPTIONS, patch_type=PatchType.MERGE)
            except NotFound:
                continue
