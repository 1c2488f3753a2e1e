"""Kubernetes' `rbac.authorization.k8s.io/v1`: who may do what. Pure."""

# ruff: noqa: RUF012 - msgspec gives each object an empty container of its own
from __future__ import annotations

from typing import Annotated

from muster.objects.kinds.base import AGE, ATOMIC_MAP, Native, NativeObject, Selector, Strings
from muster.objects.resources import Column, Resource
from muster.objects.view import ATOMIC

GROUP = "rbac.authorization.k8s.io"


class PolicyRule(Native):
    """Verbs on resources, or on URLs that are no resources."""

    verbs: Annotated[Strings, "What may be done: get, list, watch, create, ...; `*` for all."]
    api_groups: Annotated[Strings, "Groups of the resources; empty text for the core group, `*` for all."] = []
    resources: Annotated[Strings, "Resources, also `pods/status` or `*/scale`; `*` for all."] = []
    resource_names: Annotated[Strings, "Only objects with these names."] = []
    non_resource_urls: Annotated[Strings, "URLs such as `/healthz` or `/logs/*`; in cluster roles only."] = []


class Role(NativeObject):
    """What may be done in a namespace. Rules only allow; nothing forbids."""

    rules: Annotated[list[PolicyRule], ATOMIC, "What is allowed."] = []


class AggregationRule(Native):
    """Rules taken over from other cluster roles."""

    cluster_role_selectors: Annotated[list[Selector], ATOMIC, "Which ones; any selector will do."] = []


class ClusterRole(NativeObject):
    """What may be done in the whole cluster, or in a namespace where a RoleBinding names it."""

    rules: Annotated[list[PolicyRule], ATOMIC, "What is allowed."] = []
    aggregation_rule: Annotated[AggregationRule | None, "Rules are taken over from others, and those above overwritten."] = None


class RoleRef(Native):
    """The role that is given. Can't be changed: delete the binding and make another."""

    __schema_extra__ = ATOMIC_MAP

    kind: Annotated[str, "Role or ClusterRole."]
    name: Annotated[str, "Its name."]
    api_group: Annotated[str, "Its group."] = GROUP


class Subject(Native):
    """Who gets the role."""

    __schema_extra__ = ATOMIC_MAP

    kind: Annotated[str, "User, Group or ServiceAccount."]
    name: Annotated[str, "Name."]
    api_group: Annotated[str, "Empty for service accounts, this group for users and groups."] = ""
    namespace: Annotated[str, "Namespace of a service account."] = ""


class RoleBinding(NativeObject, kw_only=True):
    """Gives a role to subjects, in a namespace."""

    role_ref: Annotated[RoleRef, "The role."]
    subjects: Annotated[list[Subject], ATOMIC, "Who gets it."] = []


class ClusterRoleBinding(NativeObject, kw_only=True):
    """Gives a cluster role to subjects, everywhere."""

    role_ref: Annotated[RoleRef, "The role."]
    subjects: Annotated[list[Subject], ATOMIC, "Who gets it."] = []


_SUBJECT_COLUMNS = (
    Column(name="Role", path=".roleRef.name"),
    AGE,
    Column(name="Users", path='.subjects[?(@.kind=="User")].name', priority=1),
    Column(name="Groups", path='.subjects[?(@.kind=="Group")].name', priority=1),
    Column(name="ServiceAccounts", path='.subjects[?(@.kind=="ServiceAccount")].name', priority=1),
)
_CREATED = (Column(name="Created At", path=".metadata.creationTimestamp"),)

RESOURCES: tuple[Resource, ...] = (
    Resource(group=GROUP, version="v1", kind="Role", plural="roles", generation_tracked=False, view=Role, columns=_CREATED),
    Resource(
        group=GROUP,
        version="v1",
        kind="RoleBinding",
        plural="rolebindings",
        generation_tracked=False,
        view=RoleBinding,
        columns=_SUBJECT_COLUMNS,
    ),
    Resource(
        group=GROUP,
        version="v1",
        kind="ClusterRole",
        plural="clusterroles",
        namespaced=False,
        generation_tracked=False,
        view=ClusterRole,
        columns=_CREATED,
    ),
    Resource(
        group=GROUP,
        version="v1",
        kind="ClusterRoleBinding",
        plural="clusterrolebindings",
        namespaced=False,
        generation_tracked=False,
        view=ClusterRoleBinding,
        columns=_SUBJECT_COLUMNS,
    ),
)
