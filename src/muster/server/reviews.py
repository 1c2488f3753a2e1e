"""Reviews: questions about who may do what and who a token is. Answered from memory, never stored.

Concurrency: stateless handlers on the event loop, registered as virtual kinds with `register`.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from muster.objects.status import BadRequest, Cause, Invalid, Raw
from muster.server.authentication import Authenticator, actor_of
from muster.server.authorization import Authorizer
from muster.server.exchange import Request, Response
from muster.server.handlers import ResourceHandlers
from muster.server.negotiation import encode, negotiate
from muster.server.rbac import Attributes, rule_raw
from muster.server.tokens import AUDIENCE, TokenRefused
from muster.store.embedded.admission import Actor

AUTHORIZATION = "authorization.k8s.io"
AUTHENTICATION = "authentication.k8s.io"


class _ResourceAttributes(msgspec.Struct, rename="camel"):
    namespace: str = ""
    verb: str = ""
    group: str = ""
    version: str = ""
    resource: str = ""
    subresource: str = ""
    name: str = ""


class _PathAttributes(msgspec.Struct):
    path: str = ""
    verb: str = ""


class _AccessSpec(msgspec.Struct, rename="camel"):
    resource_attributes: _ResourceAttributes | None = None
    non_resource_attributes: _PathAttributes | None = None
    user: str = ""
    uid: str = ""
    groups: list[str] = []
    extra: dict[str, list[str]] = {}


class _RulesSpec(msgspec.Struct):
    namespace: str = ""


class _TokenSpec(msgspec.Struct):
    token: str = ""
    audiences: list[str] = []


S = TypeVar("S", bound=msgspec.Struct)


class Reviews:
    def __init__(self, handlers: ResourceHandlers, authorizer: Authorizer, authenticator: Authenticator) -> None:
        self._handlers = handlers
        self._authorizer = authorizer
        self._authenticator = authenticator

    def register(self) -> None:
        virtual = self._handlers.virtual
        virtual[(AUTHORIZATION, "selfsubjectaccessreviews")] = self._self_access
        virtual[(AUTHORIZATION, "subjectaccessreviews")] = self._subject_access
        virtual[(AUTHORIZATION, "localsubjectaccessreviews")] = self._local_access
        virtual[(AUTHORIZATION, "selfsubjectrulesreviews")] = self._self_rules
        virtual[(AUTHENTICATION, "tokenreviews")] = self._token
        virtual[(AUTHENTICATION, "selfsubjectreviews")] = self._self

    # --- authorization

    async def _self_access(self, request: Request) -> Response:
        raw, spec = await self._read(request, "SelfSubjectAccessReview", AUTHORIZATION, _AccessSpec)
        status = self._decide(request.actor.user, request.actor.groups, _question(raw, spec))
        return _answer(request, raw, status)

    async def _subject_access(self, request: Request) -> Response:
        raw, spec = await self._read(request, "SubjectAccessReview", AUTHORIZATION, _AccessSpec)
        return _answer(request, raw, self._decide_subject(raw, spec))

    async def _local_access(self, request: Request) -> Response:
        raw, spec = await self._read(request, "LocalSubjectAccessReview", AUTHORIZATION, _AccessSpec)
        asked = spec.resource_attributes
        if asked is None:
            raise _invalid(raw, "spec.resourceAttributes", "Required value: a local review is about resources in its namespace")
        if asked.namespace != request.info.namespace:
            message = (
                f'Invalid value: "{asked.namespace[:80]}": it must be the namespace of the review, "{request.info.namespace}"'
            )
            raise _invalid(raw, "spec.resourceAttributes.namespace", message)
        return _answer(request, raw, self._decide_subject(raw, spec))

    def _decide_subject(self, raw: Raw, spec: _AccessSpec) -> Raw:
        if not spec.user and not spec.groups:
            raise _invalid(raw, "spec.user", 'Invalid value: "": at least one of user or group must be specified')
        return self._decide(spec.user, tuple(spec.groups), _question(raw, spec))

    def _decide(self, user: str, groups: tuple[str, ...], asked: Attributes) -> Raw:
        decision = self._authorizer.decide(user, groups, asked)
        status: Raw = {"allowed": decision.allowed}
        if decision.reason:
            status["reason"] = decision.reason
        return status

    async def _self_rules(self, request: Request) -> Response:
        raw, spec = await self._read(request, "SelfSubjectRulesReview", AUTHORIZATION, _RulesSpec)
        if not spec.namespace:
            raise BadRequest("spec.namespace: Required value: rules are listed for one namespace")
        rules = self._authorizer.rules(request.actor.user, request.actor.groups, spec.namespace)
        status = {
            "resourceRules": [rule_raw(rule) for rule in rules if rule.resources],
            "nonResourceRules": [rule_raw(rule) for rule in rules if rule.urls],
            "incomplete": False,
        }
        return _answer(request, raw, status)

    # --- authentication

    async def _token(self, request: Request) -> Response:
        raw, spec = await self._read(request, "TokenReview", AUTHENTICATION, _TokenSpec)
        if not spec.token:
            raise _invalid(raw, "spec.token", "Required value: the token to look at")
        audiences = tuple(spec.audiences) or (AUDIENCE,)
        status: Raw = {"authenticated": False, "user": {}}
        try:
            identity = await self._authenticator.identity_of_token(spec.token, audiences)
        except TokenRefused as error:
            identity, status["error"] = None, f"bearer token: {error}"
        if identity is not None:
            status = {"authenticated": True, "user": _user_info(actor_of(identity))}
            if spec.audiences:
                # Only those that the token is for: a reviewer looks for its own name here.
                status["audiences"] = [audience for audience in audiences if audience in identity.audiences]
        # The token is not echoed: answers may end up in logs.
        return _answer(request, {**raw, "spec": {"audiences": spec.audiences} if spec.audiences else {}}, status)

    async def _self(self, request: Request) -> Response:
        raw, _ = await self._read(request, "SelfSubjectReview", AUTHENTICATION, None)
        return _answer(request, raw, {"userInfo": _user_info(request.actor)})

    async def _read(self, request: Request, kind: str, group: str, spec_type: type[S] | None) -> tuple[Raw, Any]:
        raw = await self._handlers.object_body(request)
        api_version = f"{group}/{request.info.version}"
        for field, wanted in (("kind", kind), ("apiVersion", api_version)):
            if raw.get(field) not in (None, "", wanted):
                raise BadRequest(f"{field} of the object ({raw[field]!r:.100}) does not match the request ({wanted})")
        raw = {**raw, "kind": kind, "apiVersion": api_version}
        if spec_type is None:
            return raw, None
        try:
            return raw, msgspec.convert(raw.get("spec") or {}, spec_type)
        except msgspec.ValidationError as error:
            raise BadRequest(f"spec of the {kind} can't be read: {error}") from None


def _question(raw: Raw, spec: _AccessSpec) -> Attributes:
    asked, path = spec.resource_attributes, spec.non_resource_attributes
    if (asked is None) == (path is None):
        raise _invalid(
            raw, "spec", "Invalid value: exactly one of nonResourceAttributes or resourceAttributes must be specified"
        )
    if path is not None:
        return Attributes(verb=path.verb, path=path.path)
    assert asked is not None
    # A question about no resource in particular is about all of them.
    return Attributes(
        verb=asked.verb,
        group=asked.group,
        resource=asked.resource or "*",
        subresource=asked.subresource,
        namespace=asked.namespace,
        name=asked.name,
    )


def _answer(request: Request, raw: Raw, status: Raw) -> Response:
    form = negotiate(request.header("accept"), transforms=False)
    body = encode({**raw, "metadata": raw.get("metadata") or {}, "status": status}, form)
    return Response(code=201, body=body, content_type=form.content_type)


def _user_info(actor: Actor) -> Raw:
    info: Raw = {"username": actor.user, "groups": list(actor.groups)}
    if actor.uid:
        info["uid"] = actor.uid
    if actor.extra:
        info["extra"] = {key: list(values) for key, values in actor.extra.items()}
    return info


def _invalid(raw: Raw, field: str, message: str) -> Invalid:
    return Invalid(
        f'{raw["kind"]}.{raw["apiVersion"].partition("/")[0]} "" is invalid: {field}: {message}',
        kind=raw["kind"],
        causes=[Cause(field, message)],
    )
