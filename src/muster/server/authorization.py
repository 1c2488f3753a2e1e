"""Who may do what: RBAC evaluated as Kubernetes does, from an index in memory.

The index is fed with the four RBAC kinds as they change in the store (`RbacIndex.apply`), on the event loop that also asks, so
no locks. Answers are remembered per subject until any of those objects changes.

Invariants: no binding, no permission; `system:masters` may do everything, whatever is stored, so that a broken policy can be
repaired; a binding to a role that does not exist grants nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from muster.objects.meta import labels_of, name_of, namespace_of
from muster.objects.selectors import LabelSelector, from_label_selector
from muster.objects.status import Forbidden
from muster.objects.view import view_of
from muster.server.paths import RequestInfo
from muster.server.rbac import Attributes, Rule, rules_of

RBAC_GROUP = "rbac.authorization.k8s.io"
MASTERS = "system:masters"
AUTHENTICATED = "system:authenticated"
UNAUTHENTICATED = "system:unauthenticated"
_GRANTS_CACHED_MAX = 4096
_GRANTS_KEY_CHARS_MAX = 4096
"""Whoever asks for a review names users, groups and namespaces of any length: what is longer is found anew each time."""

Subject = tuple[str, str]
"""("User", name) or ("Group", name); a service account is the user `system:serviceaccount:namespace:name`."""


class RoleRef(msgspec.Struct, frozen=True):
    kind: str
    name: str


class Grant(msgspec.Struct, frozen=True):
    """The rules that a subject has, and through which binding: those of the role itself, which all who have it share."""

    rules: tuple[Rule, ...]
    source: str


class Decision(msgspec.Struct, frozen=True):
    allowed: bool
    reason: str = ""
    only: str = ""
    """A label selector: of what a list or a watch finds, only this is allowed."""


Opinion = Callable[[str, Sequence[str], Attributes], Decision | None]
"""(user, groups, question)."""


class _ClusterRole(msgspec.Struct, frozen=True):
    rules: tuple[Rule, ...]
    labels: Mapping[str, str]
    aggregates: tuple[Any, ...] | None
    """Label queries of an aggregation rule; None for an ordinary role."""


class _Binding(msgspec.Struct, frozen=True):
    role: RoleRef
    subjects: tuple[Subject, ...]


class RbacIndex:
    """Roles and bindings, by who they are for."""

    def __init__(self) -> None:
        self._roles: dict[tuple[str, str], tuple[Rule, ...]] = {}
        self._cluster_roles: dict[str, _ClusterRole] = {}
        self._bindings: dict[tuple[str, str], _Binding] = {}
        """By (namespace, name); the namespace of a ClusterRoleBinding is ""."""
        self._by_subject: dict[tuple[str, Subject], set[str]] = {}
        """(namespace, subject) to names of bindings."""
        self._grants: OrderedDict[tuple[str, tuple[str, ...], str], tuple[Grant, ...]] = OrderedDict()
        self._expansions: dict[str, tuple[Rule, ...]] = {}
        """By ClusterRole: what it comes to. Like the grants, until any object changes."""

    def apply(self, kind: str, raw: Mapping[str, Any], *, deleted: bool = False) -> None:
        """Take in the present state of one object."""
        key = (namespace_of(raw), name_of(raw))
        if kind == "Role":
            self._put(self._roles, key, None if deleted else rules_of(raw))
        elif kind == "ClusterRole":
            self._put(self._cluster_roles, key[1], None if deleted else _cluster_role(raw))
        elif kind in ("RoleBinding", "ClusterRoleBinding"):
            self._bind(key, None if deleted else _binding(raw))
        self._grants.clear()
        self._expansions.clear()

    @staticmethod
    def _put(table: dict[Any, Any], key: Any, value: Any) -> None:
        if value is None:
            table.pop(key, None)
        else:
            table[key] = value

    def _bind(self, key: tuple[str, str], binding: _Binding | None) -> None:
        old = self._bindings.pop(key, None)
        for subject in old.subjects if old else ():
            names = self._by_subject.get((key[0], subject), set())
            names.discard(key[1])
            if not names:
                self._by_subject.pop((key[0], subject), None)
        if binding is not None:
            self._bindings[key] = binding
            for subject in binding.subjects:
                self._by_subject.setdefault((key[0], subject), set()).add(key[1])

    def role_rules(self, ref: RoleRef, namespace: str) -> tuple[Rule, ...] | None:
        """What a role grants; None when there is no such role."""
        if ref.kind == "Role":
            return self._roles.get((namespace, ref.name))
        if ref.name not in self._cluster_roles:
            return None
        found = self._expansions.get(ref.name)
        if found is None:
            found = self._expansions[ref.name] = tuple(self._expanded(ref.name, set()))
        return found

    def _expanded(self, name: str, seen: set[str]) -> dict[Rule, None]:
        """The rules of a ClusterRole; those of an aggregated one are the sum of what its labels select, however deep."""
        seen.add(name)
        role = self._cluster_roles[name]
        if role.aggregates is None:
            return dict.fromkeys(role.rules)
        merged: dict[Rule, None] = {}
        for other, candidate in sorted(self._cluster_roles.items()):
            if other not in seen and any(query.matches(candidate.labels) for query in role.aggregates):
                merged.update(self._expanded(other, seen))
        return merged

    def aggregated(self) -> dict[str, tuple[Rule, ...]]:
        """All aggregated ClusterRoles with what they come to: for those who like to read it in the object."""
        return {
            name: tuple(self._expanded(name, set()))
            for name, role in self._cluster_roles.items()
            if role.aggregates is not None
        }

    def grants(self, user: str, groups: Sequence[str], namespace: str) -> tuple[Grant, ...]:
        """All that a user has in `namespace` ("" for cluster-wide bindings only)."""
        key = (user, tuple(groups), namespace)
        found = self._grants.get(key)
        if found is None:
            found = tuple(self._find_grants(user, groups, namespace))
            if len(user) + len(namespace) + sum(map(len, groups)) <= _GRANTS_KEY_CHARS_MAX:
                self._grants[key] = found
                if len(self._grants) > _GRANTS_CACHED_MAX:
                    self._grants.popitem(last=False)
        return found

    def _find_grants(self, user: str, groups: Sequence[str], namespace: str) -> Iterator[Grant]:
        """Each role once, by the first binding: whoever may bind a role may do so a thousand times."""
        subjects: list[Subject] = [("User", user), *(("Group", group) for group in groups)]
        seen: set[tuple[str, RoleRef]] = set()
        for scope in ("", namespace) if namespace else ("",):
            for subject in subjects:
                for name in sorted(self._by_subject.get((scope, subject), ())):
                    role = self._bindings[(scope, name)].role
                    rules = self.role_rules(role, scope)
                    if not rules or (scope, role) in seen:
                        continue
                    seen.add((scope, role))
                    what = f'ClusterRoleBinding "{name}"' if not scope else f'RoleBinding "{scope}/{name}"'
                    source = f'{what} of {role.kind} "{role.name}" to {subject[0]} "{subject[1]}"'
                    yield Grant(rules, source)


class Authorizer:
    """Answers `Attributes` with a `Decision`. `others` are asked before RBAC: each allows, or has no opinion (None)."""

    def __init__(self, index: RbacIndex, others: Sequence[Opinion] = ()) -> None:
        self.index = index
        self._others = tuple(others)

    def decide(self, user: str, groups: Sequence[str], asked: Attributes) -> Decision:
        if MASTERS in groups:
            return Decision(True)
        narrow: Decision | None = None
        for other in self._others:
            decision = other(user, groups, asked)
            if decision is not None and not decision.only:
                return decision
            narrow = narrow or decision
        for grant in self.index.grants(user, groups, asked.namespace if asked.is_resource else ""):
            if any(rule.allows(asked) for rule in grant.rules):
                return Decision(True, f"RBAC: allowed by {grant.source}")
        return narrow or Decision(False)

    def rules_len(self, user: str, groups: Sequence[str], namespace: str) -> int:
        """How many rules a decision there may have to look at."""
        return 0 if MASTERS in groups else sum(len(grant.rules) for grant in self.index.grants(user, groups, namespace))

    def rules(self, user: str, groups: Sequence[str], namespace: str) -> list[Rule]:
        """Everything the user holds there, for rule reviews and for the check against escalation."""
        if MASTERS in groups:
            everything = frozenset("*")
            return [Rule(everything, everything, everything), Rule(verbs=everything, urls=everything)]
        return [rule for grant in self.index.grants(user, groups, namespace) for rule in grant.rules]

    def require(self, user: str, groups: Sequence[str], info: RequestInfo) -> Decision:
        """Raise Forbidden, worded as Kubernetes does, unless the request is allowed; then say why it is."""
        asked = attributes_of(info)
        decision = self.decide(user, groups, asked)
        if not decision.allowed:
            raise forbidden(user, asked)
        return decision


def attributes_of(info: RequestInfo) -> Attributes:
    if not info.is_resource:
        return Attributes(verb=info.verb, path=info.path)
    return Attributes(
        verb=info.verb,
        group=info.group,
        resource=info.resource,
        subresource=info.subresource,
        namespace=info.namespace,
        name=info.name,
        path=info.path,
        field_selector=info.field_selector,
        label_selector=info.label_selector,
    )


def forbidden(user: str, asked: Attributes) -> Forbidden:
    if not asked.is_resource:
        return Forbidden(f'forbidden: User "{user}" cannot {asked.verb} path "{asked.path}"')
    qualified = f"{asked.resource}.{asked.group}" if asked.group else asked.resource
    what = f'{qualified} "{asked.name}"' if asked.name else qualified
    where = f'in the namespace "{asked.namespace}"' if asked.namespace else "at the cluster scope"
    return Forbidden(
        f'{what} is forbidden: User "{user}" cannot {asked.verb} resource "{asked.resource_path}" '
        f'in API group "{asked.group}" {where}',
        kind=asked.resource,
        group=asked.group,
        name=asked.name,
    )


def impersonation_questions(user: str, uid: str, groups: Sequence[str], extra: Mapping[str, Sequence[str]]) -> list[Attributes]:
    """What must be allowed to act as a user: `impersonate` on the user, on each group, on the uid and the extras."""
    parts = user.split(":")
    if user.startswith("system:serviceaccount:") and len(parts) == 4:
        questions = [Attributes(verb="impersonate", resource="serviceaccounts", namespace=parts[2], name=parts[3])]
    else:
        questions = [Attributes(verb="impersonate", resource="users", name=user)]
    questions += [Attributes(verb="impersonate", resource="groups", name=group) for group in groups]
    group = "authentication.k8s.io"
    if uid:
        questions.append(Attributes(verb="impersonate", group=group, resource="uids", name=uid))
    for key, values in extra.items():
        questions += [
            Attributes(verb="impersonate", group=group, resource="userextras", subresource=key, name=value) for value in values
        ]
    return questions


def role_ref_of(raw: Mapping[str, Any]) -> RoleRef:
    ref = raw.get("roleRef")
    ref = ref if isinstance(ref, dict) else {}
    if ref.get("apiGroup", RBAC_GROUP) not in (RBAC_GROUP, ""):
        return RoleRef("", "")
    return RoleRef(str(ref.get("kind", "")), str(ref.get("name", "")))


def _cluster_role(raw: Mapping[str, Any]) -> _ClusterRole:
    aggregation = raw.get("aggregationRule")
    queries: tuple[Any, ...] | None = None
    if isinstance(aggregation, dict):
        selectors = aggregation.get("clusterRoleSelectors")
        queries = tuple(_query(s) for s in selectors if isinstance(s, dict)) if isinstance(selectors, list) else ()
        queries = tuple(query for query in queries if query is not None)
    return _ClusterRole(rules_of(raw), labels_of(raw), queries)


def _query(raw: dict[str, Any]) -> Any:
    try:
        return from_label_selector(view_of(LabelSelector, raw))
    except (ValueError, msgspec.ValidationError):
        return None  # a selector that can't be read selects nothing


def _binding(raw: Mapping[str, Any]) -> _Binding:
    subjects = raw.get("subjects")
    own = namespace_of(raw)
    found = [_subject(s, own) for s in subjects if isinstance(s, dict)] if isinstance(subjects, list) else []
    return _Binding(role_ref_of(raw), tuple(s for s in found if s is not None))


def _subject(raw: Mapping[str, Any], own_namespace: str) -> Subject | None:
    kind, name = raw.get("kind"), raw.get("name")
    if not isinstance(name, str) or not name:
        return None
    if kind == "ServiceAccount":
        namespace = raw.get("namespace") or own_namespace
        return ("User", f"system:serviceaccount:{namespace}:{name}") if namespace else None
    return (str(kind), name) if kind in ("User", "Group") else None
