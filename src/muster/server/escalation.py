"""Nobody can give away what they do not have: the checks on writes to roles and bindings, and to the Secrets that make tokens.

An admission hook, so it sees the object as it would be stored, whatever kind of write led to it. A role may grant only what its
author holds in that scope, unless they have the verb `escalate` on it, and whoever writes an aggregated one must hold
everything; a binding may only refer to a role whose rules its author holds, unless they have `bind` on that role. Muster itself
(no actor) and `system:masters` are not checked.

Whoever makes a token for a user can act as that user, so it needs the permission to impersonate them.

Concurrency: on the event loop; reads the RBAC index only.
"""

from __future__ import annotations

from collections.abc import Sequence

from muster.objects.status import Cause, Forbidden, Invalid, NotFound, Raw
from muster.server.authorization import (
    MASTERS,
    RBAC_GROUP,
    Authorizer,
    RoleRef,
    forbidden,
    impersonation_questions,
    role_ref_of,
)
from muster.server.rbac import Attributes, Rule, quoted, rules_of, uncovered
from muster.server.tokens import TOKEN_NAMESPACE, identity_of_secret
from muster.store.embedded.admission import Actor, AdmissionRequest

_SHOWN_MAX = 20
_ROLE_PLURALS = {"Role": "roles", "ClusterRole": "clusterroles"}
_EVERYTHING = Rule(frozenset("*"), frozenset("*"), frozenset("*"))
_EVERY_URL = Rule(verbs=frozenset("*"), urls=frozenset("*"))


class EscalationCheck:
    """Admission for the four RBAC kinds."""

    def __init__(self, authorizer: Authorizer) -> None:
        self._authorizer = authorizer

    async def mutate(self, request: AdmissionRequest) -> Raw | None:
        return None

    async def validate(self, request: AdmissionRequest) -> None:
        resource = request.resource
        if resource.group != RBAC_GROUP or request.object is None or request.operation not in ("CREATE", "UPDATE"):
            return
        if resource.kind.endswith("Binding"):
            _check_role_ref(request)
        actor = request.actor
        if actor is None or MASTERS in actor.groups or _only_metadata_changed(request):
            return
        if resource.kind.endswith("Binding"):
            self._check_binding(request, actor, request.object)
        else:
            self._check_role(request, actor, request.object)

    def _check_role(self, request: AdmissionRequest, actor: Actor, role: Raw) -> None:
        plural = request.resource.plural
        if self._may(actor, "escalate", plural, request.namespace, request.name):
            return
        wanted: list[Rule] = list(rules_of(role))
        if role.get("aggregationRule") or (request.old or {}).get("aggregationRule"):
            # Its own rules say nothing: it grants what its labels select, of which nothing is known in advance; and by a label
            # of its own another one takes all of that in.
            wanted = [_EVERYTHING, _EVERY_URL]
        self._require(request, actor, wanted, request.namespace)

    def _check_binding(self, request: AdmissionRequest, actor: Actor, binding: Raw) -> None:
        ref = role_ref_of(binding)
        plural = _ROLE_PLURALS.get(ref.kind, "")
        if self._may(actor, "bind", plural, request.namespace, ref.name):
            return
        rules = self._authorizer.index.role_rules(ref, request.namespace)
        if rules is None:
            raise NotFound(
                f'{plural}.{RBAC_GROUP} "{ref.name}" not found; create the role before a binding to it',
                group=RBAC_GROUP,
                name=ref.name,
            )
        self._require(request, actor, rules, request.namespace)

    def _may(self, actor: Actor, verb: str, plural: str, namespace: str, name: str) -> bool:
        asked = Attributes(verb=verb, group=RBAC_GROUP, resource=plural, namespace=namespace, name=name)
        return bool(plural) and self._authorizer.decide(actor.user, actor.groups, asked).allowed

    def _require(self, request: AdmissionRequest, actor: Actor, wanted: Sequence[Rule], namespace: str) -> None:
        owned = self._authorizer.rules(actor.user, actor.groups, namespace)
        try:
            missing = uncovered(owned, wanted)
        except ValueError as error:
            missing, why = [], str(error)
        else:
            if not missing:
                return
            why = "\n".join(str(rule) for rule in missing[:_SHOWN_MAX])
            if len(missing) > _SHOWN_MAX:
                why += f"\n... and {len(missing) - _SHOWN_MAX} more"
        groups = " ".join(f'"{group}"' for group in actor.groups)
        raise Forbidden(
            f'{request.resource.qualified} "{request.name}" is forbidden: user "{actor.user}" (groups=[{groups}]) '
            f"is attempting to grant RBAC permissions not currently held:\n{why}",
            kind=request.resource.plural,
            group=RBAC_GROUP,
            name=request.name,
        )


class TokenCheck:
    """Admission for the Secrets that hold hashes of tokens."""

    def __init__(self, authorizer: Authorizer) -> None:
        self._authorizer = authorizer

    async def mutate(self, request: AdmissionRequest) -> Raw | None:
        return None

    async def validate(self, request: AdmissionRequest) -> None:
        actor, raw = request.actor, request.object
        if actor is None or raw is None or MASTERS in actor.groups or request.resource.qualified != "secrets":
            return
        found = identity_of_secret(raw)
        if found is None or request.namespace != TOKEN_NAMESPACE:
            return
        _, identity = found
        for asked in impersonation_questions(identity.user, "", identity.groups, {}):
            if not self._authorizer.decide(actor.user, actor.groups, asked).allowed:
                raise forbidden(actor.user, asked)


def _only_metadata_changed(request: AdmissionRequest) -> bool:
    """Labels of a ClusterRole count as content: an aggregated role may pick it up by them."""
    if request.operation != "UPDATE" or request.old is None or request.object is None:
        return False
    return _content(request.old) == _content(request.object)


def _content(raw: Raw) -> Raw:
    content = {key: value for key, value in raw.items() if key != "metadata"}
    if raw.get("kind") == "ClusterRole":
        content["labels"] = raw.get("metadata", {}).get("labels")
    return content


def _check_role_ref(request: AdmissionRequest) -> None:
    assert request.object is not None
    ref = role_ref_of(request.object)
    kinds = ("ClusterRole",) if request.resource.kind == "ClusterRoleBinding" else ("Role", "ClusterRole")
    causes = []
    if ref.kind not in kinds:
        message = f'Unsupported value: "{ref.kind}": supported values: {", ".join(quoted(kind) for kind in kinds)}'
        causes.append(Cause("roleRef.kind", message, "FieldValueNotSupported"))
    if not ref.name:
        causes.append(Cause("roleRef.name", "Required value: name of the role to bind", "FieldValueRequired"))
    if request.old is not None and not causes and role_ref_of(request.old) != ref:
        causes.append(
            Cause("roleRef", f"Invalid value: {_ref_text(ref)}: cannot change roleRef; delete the binding and make a new one")
        )
    if causes:
        raise Invalid(
            f'{request.resource.kind}.{RBAC_GROUP} "{request.name}" is invalid: '
            + ", ".join(f"{cause.field}: {cause.message}" for cause in causes),
            kind=request.resource.kind,
            group=RBAC_GROUP,
            name=request.name,
            causes=causes,
        )


def _ref_text(ref: RoleRef) -> str:
    return f'{{"kind":"{ref.kind}","name":"{ref.name}"}}'
