"""The roles and bindings that every server starts with: Kubernetes' well-known ones, and Muster's own.

Pure: objects as values, made from the catalog so that `view`, `edit` and `admin` know every kind that Muster ships. `bootstrap`
writes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from muster.objects.catalog import Catalog
from muster.objects.status import Raw
from muster.server.authorization import AUTHENTICATED, MASTERS, RBAC_GROUP, UNAUTHENTICATED

_READ = ["get", "list", "watch"]
_WRITE = ["create", "delete", "deletecollection", "patch", "update"]
_AUTOUPDATE = {"rbac.authorization.kubernetes.io/autoupdate": "true"}
_LABELS = {"kubernetes.io/bootstrapping": "rbac-defaults"}
_AGGREGATE = "rbac.authorization.k8s.io/aggregate-to-"
_HIDDEN = frozenset({"bindings"})
_ADMIN_ONLY = frozenset({"roles", "rolebindings"})
_READ_ONLY = frozenset(
    {"resourcequotas", "limitranges", "elasticquotas", "elasticquotaprofiles", "events", "controllerrevisions"}
)
"""Namespaced kinds that tenants look at and the system or an administrator writes."""


def default_roles(catalog: Catalog) -> list[Raw]:
    """ClusterRoles, each with every rule spelled out."""
    return [
        _role("cluster-admin", [_rule(["*"], ["*"], ["*"]), {"nonResourceURLs": ["*"], "verbs": ["*"]}]),
        _aggregate("view", into="edit"),
        _aggregate("edit", into="admin"),
        _aggregate("admin"),
        _role("system:aggregate-to-view", _namespaced(catalog, _READ), into="view"),
        _role("system:aggregate-to-edit", [_rule([""], ["secrets"], _READ), *_writes(catalog)], into="edit"),
        _role(
            "system:aggregate-to-admin",
            [
                _rule([RBAC_GROUP], sorted(_ADMIN_ONLY), [*_READ, *_WRITE]),
                _rule(["authorization.k8s.io"], ["localsubjectaccessreviews"], ["create"]),
            ],
            into="admin",
        ),
        _role(
            "system:basic-user",
            [
                _rule(["authorization.k8s.io"], ["selfsubjectaccessreviews", "selfsubjectrulesreviews"], ["create"]),
                _rule(["authentication.k8s.io"], ["selfsubjectreviews"], ["create"]),
                # What is asked about is checked there, against the work itself.
                {"nonResourceURLs": ["/muster/v1/explain", "/muster/v1/explain/*"], "verbs": ["get", "post"]},
                {"nonResourceURLs": ["/muster/v1/queues", "/muster/v1/queues/*", "/muster/v1/jobs/*"], "verbs": ["get"]},
                {"nonResourceURLs": ["/muster/v1/eta"], "verbs": ["post"]},
                {"nonResourceURLs": ["/muster/v1/people/me"], "verbs": ["get"]},
            ],
        ),
        _role("system:discovery", [{"nonResourceURLs": _DISCOVERY, "verbs": ["get", "head"]}]),
        _role("system:public-info-viewer", [{"nonResourceURLs": _PUBLIC, "verbs": ["get", "head"]}]),
        _role("system:monitoring", [{"nonResourceURLs": ["/metrics", *_PUBLIC], "verbs": ["get", "head"]}]),
        _role(
            "system:auth-delegator",
            [
                _rule(["authentication.k8s.io"], ["tokenreviews"], ["create"]),
                _rule(["authorization.k8s.io"], ["subjectaccessreviews"], ["create"]),
            ],
        ),
        _role("system:service-account-issuer-discovery", [{"nonResourceURLs": _ISSUER, "verbs": ["get"]}]),
        # What `kubectl top` asks for; in Kubernetes metrics-server brings it.
        _role("system:aggregated-metrics-reader", [_rule(["metrics.k8s.io"], ["pods", "nodes"], ["get", "list"])], into="view"),
        *_muster_roles(catalog),
    ]


_ISSUER = [path + end for path in ("/.well-known/openid-configuration", "/openid/v1/jwks") for end in ("", "/")]
_PUBLIC = ["/healthz", "/livez", "/readyz", "/version", "/version/"]
_DISCOVERY = [
    "/",
    "/api",
    "/api/*",
    "/apis",
    "/apis/*",
    "/healthz",
    "/livez",
    "/openapi",
    "/openapi/*",
    "/readyz",
    "/version",
    "/version/",
]


def _muster_roles(catalog: Catalog) -> list[Raw]:
    groups = sorted({resource.group for resource in catalog.custom})
    leases = _rule(["coordination.k8s.io"], ["leases"], [*_READ, *_WRITE])
    events = _rule(["", "events.k8s.io"], ["events"], ["create", "patch", "update"])
    core = ["configmaps", "endpoints", "persistentvolumeclaims", "pods", "secrets", "serviceaccounts", "services"]
    return [
        _role(
            "muster:controller",
            [
                _rule(groups, ["*"], ["*"]),
                _rule([""], core, [*_READ, *_WRITE]),
                _rule(
                    [""],
                    ["pods/binding", "pods/eviction", "pods/status", "serviceaccounts/token"],
                    ["create", "patch", "update"],
                ),
                _rule([""], ["namespaces", "nodes"], [*_READ, "create", "patch", "update"]),
                _rule([""], ["namespaces/status", "nodes/status", "resourcequotas/status"], ["patch", "update"]),
                _rule([""], ["limitranges", "persistentvolumes", "pods/log", "resourcequotas"], _READ),
                # Who may act for a party; nothing that the controllers may not do themselves.
                _rule([RBAC_GROUP], ["roles", "rolebindings"], [*_READ, "create", "patch", "update", "delete"]),
                _rule(["apps", "batch"], ["*"], [*_READ, *_WRITE]),
                _rule(["policy"], ["poddisruptionbudgets", "poddisruptionbudgets/status"], [*_READ, "patch", "update"]),
                _rule(["scheduling.k8s.io", "storage.k8s.io"], ["*"], _READ),
                _rule(["discovery.k8s.io"], ["endpointslices"], [*_READ, *_WRITE]),
                _rule(["apiextensions.k8s.io"], ["customresourcedefinitions"], _READ),
                leases,
                events,
            ],
        ),
        # For people with a User object: they see and stop their own work without any role, see `user_access`.
        _role(
            "muster:submitter",
            [
                _rule(["muster.dev"], ["jobs"], ["create"]),
                _rule(["kuscia.secretflow"], ["kusciajobs"], ["create"]),
            ],
        ),
        # For agents that have an account of their own instead of a certificate: nobody has it unless an administrator binds
        # it. Nodes that join with a token may do much less, see `node_access`.
        _role(
            "muster:node",
            [
                _rule([""], ["nodes"], [*_READ, "create", "patch", "update", "delete"]),
                _rule([""], ["nodes/status", "pods/status"], ["patch", "update"]),
                _rule([""], ["pods"], [*_READ, "patch", "delete"]),
                _rule([""], ["configmaps", "endpoints", "secrets", "services"], _READ),
                _rule(["authentication.k8s.io"], ["tokenreviews"], ["create"]),
                _rule(["authorization.k8s.io"], ["subjectaccessreviews"], ["create"]),
                _rule(
                    _present(groups, "slo.koordinator.sh", "scheduling.koordinator.sh"),
                    ["*"],
                    [*_READ, "create", "patch", "update"],
                ),
                leases,
                events,
            ],
        ),
    ]


def _present(groups: Sequence[str], *wanted: str) -> list[str]:
    return [group for group in wanted if group in groups] or list(wanted)


def default_bindings() -> list[Raw]:
    return [
        _binding("cluster-admin", "cluster-admin", [MASTERS]),
        _binding("system:basic-user", "system:basic-user", [AUTHENTICATED]),
        _binding("system:discovery", "system:discovery", [AUTHENTICATED]),
        _binding("system:public-info-viewer", "system:public-info-viewer", [AUTHENTICATED, UNAUTHENTICATED]),
        _binding("system:monitoring", "system:monitoring", ["system:monitoring"]),
        _binding(
            "system:service-account-issuer-discovery", "system:service-account-issuer-discovery", ["system:serviceaccounts"]
        ),
        _binding("muster:controller", "muster:controller", ["muster:controllers"]),
    ]


def _namespaced(catalog: Catalog, verbs: list[str]) -> list[Raw]:
    """A rule per group over its namespaced kinds. Secrets are left out: who reads one can act as whom it belongs to."""
    by_group: dict[str, list[str]] = {}
    for resource in catalog.all:
        if not resource.namespaced or "get" not in resource.verbs or resource.plural in _HIDDEN | _ADMIN_ONLY:
            continue
        if resource.plural == "secrets" and not resource.group:
            continue
        names = by_group.setdefault(resource.group, [])
        names.append(resource.plural)
        names += [f"{resource.plural}/{sub}" for sub in resource.subresources & {"status", "scale", "log"}]
    rules = [_rule([group], sorted(set(names)), verbs) for group, names in sorted(by_group.items())]
    return [*rules, _rule([""], ["namespaces"], _READ)]


def _writes(catalog: Catalog) -> list[Raw]:
    by_group: dict[str, list[str]] = {}
    for resource in catalog.all:
        if not resource.namespaced or "create" not in resource.verbs or resource.plural in _HIDDEN | _ADMIN_ONLY | _READ_ONLY:
            continue
        if "get" not in resource.verbs:
            continue
        names = by_group.setdefault(resource.group, [])
        names.append(resource.plural)
        names += [f"{resource.plural}/{sub}" for sub in resource.subresources & {"scale", "eviction"}]
    rules = [_rule([group], sorted(set(names)), _WRITE) for group, names in sorted(by_group.items())]
    return [
        *rules,
        _rule([""], ["serviceaccounts/token", "pods/eviction"], ["create"]),
        # Whoever may make pods of any content may also look into them. Reading is not enough: `view` has none of these.
        _rule([""], ["pods/exec", "pods/portforward"], ["create", "get"]),
    ]


def _rule(groups: Sequence[str], resources: Sequence[str], verbs: Sequence[str]) -> Raw:
    return {"apiGroups": list(groups), "resources": list(resources), "verbs": list(verbs)}


def _role(name: str, rules: list[Raw], *, into: str = "") -> Raw:
    """`into` is the aggregated role that takes these rules in."""
    labels = {**_LABELS, **({_AGGREGATE + into: "true"} if into else {})}
    return {
        "apiVersion": f"{RBAC_GROUP}/v1",
        "kind": "ClusterRole",
        "metadata": {"name": name, "labels": labels, "annotations": dict(_AUTOUPDATE)},
        "rules": rules,
    }


def _aggregate(name: str, *, into: str = "") -> Raw:
    """A role that is the sum of others, found by label; users extend it by labelling theirs."""
    selector = {"clusterRoleSelectors": [{"matchLabels": {_AGGREGATE + name: "true"}}]}
    return {**_role(name, [], into=into), "aggregationRule": selector}


def _binding(name: str, role: str, groups: Iterable[str]) -> Raw:
    return {
        "apiVersion": f"{RBAC_GROUP}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name, "labels": dict(_LABELS), "annotations": dict(_AUTOUPDATE)},
        "roleRef": {"apiGroup": RBAC_GROUP, "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": RBAC_GROUP, "kind": "Group", "name": group} for group in groups],
    }
