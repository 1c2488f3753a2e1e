"""Every active namespace has a ServiceAccount `default` and a ConfigMap `kube-root-ca.crt`, as pods expect it.

Embedded store only: on a real cluster kube-controller-manager does this. What a user changes on the ServiceAccount stays; the
certificate in the ConfigMap is put right. `plan` is pure; the controller around it reads caches.
"""

from __future__ import annotations

import msgspec

from muster.controllers.actions import Action, Create, Patch, target_of
from muster.controllers.runtime import Caches, Controller, Plan, Watch
from muster.objects.status import Raw
from muster.objects.view import View
from muster.store.cache import Cached, ObjectKey

ACCOUNT_NAME = "default"
ROOT_CA_NAME = "kube-root-ca.crt"
ROOT_CA_KEY = "ca.crt"
_DESCRIPTION = "Contains a CA bundle that can be used to verify this server when it is used from within a pod."


class NamespaceStatus(View):
    phase: str = "Active"


class NamespaceView(View):
    status: NamespaceStatus = msgspec.field(default_factory=NamespaceStatus)


def plan(namespace: str, account: Raw | None, root_ca: Raw | None, ca_pem: str) -> list[Action]:
    """What an active namespace lacks."""
    actions: list[Action] = []
    if account is None:
        actions.append(Create(_object("ServiceAccount", ACCOUNT_NAME, namespace)))
    data = {ROOT_CA_KEY: ca_pem}
    if root_ca is None:
        config = _object("ConfigMap", ROOT_CA_NAME, namespace)
        config["metadata"]["annotations"] = {"kubernetes.io/description": _DESCRIPTION}
        actions.append(Create({**config, "data": data}))
    elif root_ca.get("data") != data:
        stray = {key: None for key in root_ca.get("data") or {} if key != ROOT_CA_KEY}
        actions.append(Patch(target_of(root_ca), {"data": {**stray, **data}}))
    return actions


def _object(kind: str, name: str, namespace: str) -> Raw:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": namespace}}


def _namespace_key(obj: Cached, _caches: Caches) -> tuple[ObjectKey]:
    return (ObjectKey("", obj.key.namespace),)


NAMESPACES = Watch(group="", kind="Namespace", view=NamespaceView)
ACCOUNTS = Watch(group="", kind="ServiceAccount", field_selector=f"metadata.name={ACCOUNT_NAME}", keys=_namespace_key)
ROOT_CAS = Watch(group="", kind="ConfigMap", field_selector=f"metadata.name={ROOT_CA_NAME}", keys=_namespace_key)


class ServiceAccounts(Controller):
    """Keys are namespaces."""

    name = "service-accounts"
    watches = (NAMESPACES, ACCOUNTS, ROOT_CAS)

    def __init__(self, ca_pem: str) -> None:
        self._ca_pem = ca_pem

    def reconcile(self, key: ObjectKey, caches: Caches, now: float) -> Plan:
        namespace = caches[NAMESPACES].get(key)
        if namespace is None or namespace.deleting or namespace.view(NamespaceView).status.phase == "Terminating":
            return Plan()
        account = caches[ACCOUNTS].get(ObjectKey(key.name, ACCOUNT_NAME))
        root_ca = caches[ROOT_CAS].get(ObjectKey(key.name, ROOT_CA_NAME))
        return Plan(plan(key.name, account.raw if account else None, root_ca.raw if root_ca else None, self._ca_pem))
