"""Muster's own kinds on a real API server, for tests that run on both stores."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator

import msgspec

from muster.cli.manifests import rules_for
from muster.client import ApiClient, Impersonation
from muster.controllers.domain_objects import RBAC_GROUP
from muster.objects.catalog import CATALOG
from muster.objects.crd import crds_for
from muster.objects.status import AlreadyExists, NotFound, Raw
from muster.store.contract import Store
from muster.store.kubernetes import KubernetesStore

_SERVED_WITHIN_S = 60.0


async def serve_kinds(store: Store, *kinds: str) -> None:
    """Until the store serves these kinds. The embedded store has them from the start."""
    if not isinstance(store, KubernetesStore):
        return
    wanted = [resource for resource in CATALOG.custom if resource.kind in kinds]
    assert len(wanted) == len(kinds), f"not all of {kinds} are ours"
    definitions = await store.resource("apiextensions.k8s.io", "CustomResourceDefinition")
    for crd in crds_for(wanted):
        with contextlib.suppress(AlreadyExists):
            await store.create(definitions, crd)
    async with asyncio.timeout(_SERVED_WITHIN_S):
        for resource in wanted:
            while True:
                try:
                    await store.list(await store.resource(resource.group, resource.kind), limit=1)
                    break
                except NotFound:
                    await asyncio.sleep(0.2)


@contextlib.asynccontextmanager
async def with_permissions_of(store: Store, *controllers: str) -> AsyncIterator[Store]:
    """On a real API server, a store that may do what `muster install` grants to these controllers, and nothing else.

    The embedded store is handed back as it is: controllers in its process ask nobody.
    """
    if not isinstance(store, KubernetesStore):
        yield store
        return
    name = f"permissions-{uuid.uuid4().hex[:8]}"
    role, binding = _granted(name, controllers)
    roles = await store.resource(RBAC_GROUP, "ClusterRole")
    bindings = await store.resource(RBAC_GROUP, "ClusterRoleBinding")
    await store.create(roles, role)
    await store.create(bindings, binding)
    await _until_granted(store, name, role["rules"][0])
    config = msgspec.structs.replace(store.client.config, impersonate=Impersonation(user=name))
    narrow = KubernetesStore(ApiClient(config))
    try:
        yield narrow
    finally:
        await narrow.close()
        await store.delete(bindings, name)
        await store.delete(roles, name)


async def _until_granted(store: Store, user: str, rule: Raw) -> None:
    """A real API server decides by what it has seen of roles and bindings, a moment after they were made."""
    reviews = await store.resource("authorization.k8s.io", "SubjectAccessReview")
    asked = {"group": rule["apiGroups"][0], "resource": rule["resources"][0].split("/")[0], "verb": rule["verbs"][0]}
    asked["subresource"] = rule["resources"][0].partition("/")[2]
    asked["name"] = rule.get("resourceNames", [""])[0]
    review = {
        "metadata": {},
        "spec": {"user": user, "resourceAttributes": {key: value for key, value in asked.items() if value}},
    }
    async with asyncio.timeout(_SERVED_WITHIN_S):
        while not (await store.create(reviews, review))["status"]["allowed"]:
            await asyncio.sleep(0.05)


def _granted(name: str, controllers: tuple[str, ...]) -> tuple[Raw, Raw]:
    rules = []
    for rule in rules_for(controllers):
        raw: Raw = {"apiGroups": [rule.group], "resources": list(rule.resources), "verbs": list(rule.verbs)}
        rules.append({**raw, "resourceNames": list(rule.names)} if rule.names else raw)
    meta = {"name": name}
    subject = {"apiGroup": RBAC_GROUP, "kind": "User", "name": name}
    return (
        {"apiVersion": f"{RBAC_GROUP}/v1", "kind": "ClusterRole", "metadata": meta, "rules": rules},
        {
            "apiVersion": f"{RBAC_GROUP}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": meta,
            "roleRef": {"apiGroup": RBAC_GROUP, "kind": "ClusterRole", "name": name},
            "subjects": [subject],
        },
    )
