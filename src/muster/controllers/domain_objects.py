"""What a party has in the store besides its Domain, as values: its namespace, its configuration, and who may act for it.

Pure. The rules below are all that a party's service account may do, and only in the party's own namespace. An own party's
account is what its agents and gateways act with; a partner's is what the partner's control plane reads and votes with, so it
sees nothing of pods, services and configuration. Neither reads Secrets, writes workloads, or sees another party. That is less
than Kuscia grants (`kuscia.secretflow/*` with all verbs, and every node of the cluster).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from muster.controllers.parties import PARTNER
from muster.objects.kinds.kuscia_base import GROUP
from muster.objects.labels import Kubernetes, KusciaLabel
from muster.objects.meta import owner_reference
from muster.objects.names import NAMESPACE_CROSS_DOMAIN
from muster.objects.status import Raw

RBAC_GROUP: Final = "rbac.authorization.k8s.io"
CONFIG_NAME: Final = "domain-config"
MANAGED_BY: Final = "muster"

_READ: Final = ("get", "list", "watch")
_CHANGE: Final = ("patch", "update")
_OWN: Final = (*_READ, "create", *_CHANGE, "delete")
_SHARED: Final = ("kusciadeployments", "kusciajobs", "kusciatasks")
_VOTES: Final = ("kusciadeploymentsummaries", "kusciajobsummaries", "kusciatasksummaries", "taskresources")


class Permission(NamedTuple):
    group: str
    resources: tuple[str, ...]
    verbs: tuple[str, ...]

    def to_raw(self) -> Raw:
        return {"apiGroups": [self.group], "resources": list(self.resources), "verbs": list(self.verbs)}


OWN_PERMISSIONS: Final = (
    Permission("", ("pods",), (*_READ, "delete")),
    Permission("", ("pods/status",), _CHANGE),
    Permission("", ("pods/log",), ("get",)),
    Permission("", ("configmaps", "endpoints", "services"), _READ),
    Permission("", ("events",), ("create", "patch")),
    Permission(GROUP, ("domainappimages", "domainroutes", *_SHARED), _READ),
    Permission(GROUP, _VOTES, (*_READ, *_CHANGE)),
    Permission(GROUP, ("domaindatagrants", "domaindatas", "domaindatasources", "gateways"), _OWN),
    Permission(
        GROUP,
        ("domaindatagrants/status", "domaindatas/status", "domaindatasources/status", "domainroutes/status", "gateways/status"),
        _CHANGE,
    ),
)
PARTNER_PERMISSIONS: Final = (
    Permission(GROUP, ("domaindatagrants", "domaindatas", *_SHARED), _READ),
    Permission(GROUP, _VOTES, (*_READ, *_CHANGE)),
)


def permissions_of(role: str) -> Sequence[Permission]:
    return PARTNER_PERMISSIONS if role == PARTNER else OWN_PERMISSIONS


def namespace_labels(party: str, role: str, protocols: Sequence[str]) -> dict[str, str | None]:
    """The labels that Kuscia's tools find a party by; None where there must be none."""
    return {
        KusciaLabel.DOMAIN_NAME: party,
        KusciaLabel.DOMAIN_ROLE: role or None,
        KusciaLabel.INTERCONN_PROTOCOLS: "_".join(protocols) or None,
        KusciaLabel.DOMAIN_DELETED: None,
    }


def namespace(name: str, labels: Mapping[str, str | None]) -> Raw:
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": name, "labels": {key: value for key, value in labels.items() if value is not None}},
    }


def cross_domain() -> Raw:
    return namespace(NAMESPACE_CROSS_DOMAIN, {Kubernetes.MANAGED_BY: MANAGED_BY})


def configuration(party: str) -> Raw:
    """Empty: what is in it is the party's. It outlives the Domain, so nobody owns it."""
    metadata = {"name": CONFIG_NAME, "namespace": party, "labels": {Kubernetes.MANAGED_BY: MANAGED_BY}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}


def access(domain: Raw, party: str, role: str) -> tuple[Raw, Raw, Raw]:
    """The party's ServiceAccount, Role and RoleBinding. The Domain owns them: they go with it, come what may."""

    def metadata() -> Raw:
        return {
            "name": party,
            "namespace": party,
            "labels": {Kubernetes.MANAGED_BY: MANAGED_BY, KusciaLabel.DOMAIN_NAME: party},
            "ownerReferences": [owner_reference(domain)],
        }

    return (
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata(), "automountServiceAccountToken": False},
        {
            "apiVersion": f"{RBAC_GROUP}/v1",
            "kind": "Role",
            "metadata": metadata(),
            "rules": [permission.to_raw() for permission in permissions_of(role)],
        },
        {
            "apiVersion": f"{RBAC_GROUP}/v1",
            "kind": "RoleBinding",
            "metadata": metadata(),
            "roleRef": {"apiGroup": RBAC_GROUP, "kind": "Role", "name": party},
            "subjects": [{"kind": "ServiceAccount", "name": party, "namespace": party}],
        },
    )
