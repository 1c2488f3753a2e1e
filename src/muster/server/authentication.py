"""Who is asking: client certificates, random bearer tokens, service-account tokens, tokens of OpenID Connect issuers.

Concurrency: runs on the server's event loop. Reads of service accounts go to the store's memory.

Invariants: a token in clear text is never stored, logged or put into an error; anonymous requests pass only to the few paths
in `OPEN_PATHS` and `JOIN_PATHS`; every authenticated user has the group `system:authenticated`; a node's certificate is good
only while the node's Node object lists it.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from muster.objects.status import BadRequest, Unauthorized
from muster.objects.time import Clock
from muster.server.authorization import AUTHENTICATED, UNAUTHENTICATED, Authorizer, forbidden, impersonation_questions
from muster.server.config import ServerLimits
from muster.server.jws import TOKEN_CHARS_MAX
from muster.server.node_index import NODE_USER_PREFIX, serial_of_peer
from muster.server.oidc import OidcTokens
from muster.server.token_keys import TokenKeys
from muster.server.tokens import (
    AUDIENCE,
    Identity,
    ServiceAccountClaims,
    TokenRefused,
    TokenTable,
    names_us,
    service_account_extra,
    service_account_groups,
    service_account_user,
    verify,
)
from muster.store.embedded.admission import Actor

OPEN_PATHS = frozenset({"/healthz", "/readyz", "/livez", "/version", "/version/"})
JOIN_PATHS = {"/muster/v1/ca": "GET", "/muster/v1/nodes/join": "POST"}
"""With which method a machine that is nobody yet may ask there. Credentials are not looked at."""
ANONYMOUS = Actor(user="system:anonymous", groups=(UNAUTHENTICATED,))
_IMPERSONATE = "impersonate-"
_IMPERSONATED_GROUPS_MAX = 64

CheckNode = Callable[[str, str], None]
"""(node, serial number of its certificate in hexadecimal): raises Unauthorized unless that certificate is good now."""
UidOf = Callable[[str, str, str], Awaitable[str | None]]
"""(kind, namespace, name) to the uid of that object in the store, None when it is not there or is being deleted."""


class CredentialsRefused(Unauthorized):
    """The client learns no more than that; `why` is for the audit log."""

    def __init__(self, why: str) -> None:
        super().__init__("Unauthorized")
        self.why = why


class Authenticator:
    def __init__(
        self,
        *,
        tokens: TokenTable,
        token_keys: TokenKeys,
        oidc: OidcTokens,
        uid_of: UidOf,
        clock: Clock,
        limits: ServerLimits,
        check_node: CheckNode,
    ) -> None:
        self._tokens = tokens
        self._token_keys = token_keys
        self._oidc = oidc
        self._uid_of = uid_of
        self._check_node = check_node
        self._clock = clock
        self._verified_max = limits.token_cache_max
        self._verified: OrderedDict[bytes, ServiceAccountClaims] = OrderedDict()
        self._verified_by = token_keys.public

    async def authenticate(self, authorization: str, peer: Mapping[str, Any] | None) -> Actor | None:
        """The user behind a request; None when it carries no credentials. Unauthorized when they are wrong."""
        identity = identity_of_certificate(peer)
        if identity is not None and identity.user.startswith(NODE_USER_PREFIX):
            self._check_node(identity.user.removeprefix(NODE_USER_PREFIX), serial_of_peer(peer))
        if identity is None and authorization:
            scheme, _, token = authorization.partition(" ")
            if scheme.lower() == "bearer" and token.strip():
                try:
                    identity = await self.identity_of_token(token.strip())
                except TokenRefused as error:
                    raise CredentialsRefused(f"bearer token: {error}") from None
                if identity is None:
                    raise CredentialsRefused("bearer token: it is not known here: it was revoked, or is of another server")
            if identity is None:
                raise CredentialsRefused(f"invalid {scheme[:20].lower()} credentials")
        return None if identity is None else actor_of(identity)

    async def identity_of_token(self, token: str, audiences: Sequence[str] = (AUDIENCE,)) -> Identity | None:
        """Who a bearer token stands for, if it is valid now for one of `audiences`. TokenRefused tells more than None."""
        if not token or len(token) > TOKEN_CHARS_MAX or not token.isascii():
            return None
        found = self._tokens.find(token, self._clock())
        if found is not None:
            return found if AUDIENCE in audiences else None
        claims = self._claims(token)
        if claims is None:
            # Its audience is the issuer's business; here it is a credential for this server, like a random one.
            identity = await self._oidc.identity(token) if AUDIENCE in audiences else None
            if identity is None and names_us(token):
                raise TokenRefused("no key of this server signed it: the key was withdrawn, or is of another server")
            return identity
        user = service_account_user(claims.namespace, claims.name)
        if not set(claims.audiences) & set(audiences):
            raise TokenRefused(f"it is of {user} for {_listed(claims.audiences)}, not for {_listed(audiences)}")
        if await self._uid_of("ServiceAccount", claims.namespace, claims.name) != claims.uid:
            raise TokenRefused(f"it is of {user}, and that ServiceAccount was deleted since")
        if claims.bound_kind and await self._uid_of(claims.bound_kind, claims.namespace, claims.bound_name) != claims.bound_uid:
            raise TokenRefused(f"it is of {user}, bound to the {claims.bound_kind} {claims.bound_name}, which is gone")
        groups = service_account_groups(claims.namespace)
        extra = service_account_extra(claims)
        return Identity(user=user, uid=claims.uid, groups=groups, audiences=claims.audiences, extra=extra)

    def _claims(self, token: str) -> ServiceAccountClaims | None:
        """Verified claims; the signature of a token that was seen before is not checked again."""
        if self._token_keys.public is not self._verified_by:
            self._verified.clear()
            self._verified_by = self._token_keys.public
        key = hashlib.sha256(token.encode()).digest()
        now = self._clock()
        claims = self._verified.get(key)
        if claims is not None:
            if now < claims.expires_s:
                return claims
            del self._verified[key]
        claims = verify(self._token_keys.public, token, now)
        if claims is not None:
            self._verified[key] = claims
            if len(self._verified) > self._verified_max:
                self._verified.popitem(last=False)
        return claims


def _listed(audiences: Sequence[str]) -> str:
    return f"{', '.join(audiences):.200}"


def actor_of(identity: Identity) -> Actor:
    groups = tuple(dict.fromkeys((*identity.groups, AUTHENTICATED)))
    return Actor(user=identity.user, uid=identity.uid, groups=groups, extra=identity.extra)


def identity_of_certificate(peer: Mapping[str, Any] | None) -> Identity | None:
    """CN is the user, every O a group. `peer` is what `ssl` gives for a certificate that it has verified against our CA."""
    user = ""
    groups = []
    for relative_name in (peer or {}).get("subject", ()):
        for key, value in relative_name:
            if key == "commonName":
                user = value
            elif key == "organizationName":
                groups.append(value)
    return Identity(user=user, groups=tuple(groups)) if user else None


def impersonated(actor: Actor, headers: Sequence[tuple[str, str]], authorizer: Authorizer) -> Actor:
    """The user that `Impersonate-*` headers ask to act as, if `actor` may; `actor` itself without such headers."""
    user = uid = ""
    groups: list[str] = []
    extra: dict[str, tuple[str, ...]] = {}
    for name, value in headers:
        if not name.startswith(_IMPERSONATE):
            continue
        what = name[len(_IMPERSONATE) :]
        if what == "user":
            user = user or value
        elif what == "uid":
            uid = uid or value
        elif what == "group":
            groups.append(value)
        elif what.startswith("extra-"):
            key = unquote(what[len("extra-") :])  # names of headers have no slashes; keys of extras mostly do
            extra[key] = (*extra.get(key, ()), value)
    if not (user or uid or groups or extra):
        return actor
    if not user:
        raise BadRequest("impersonation needs the Impersonate-User header beside the group, uid and extra headers")
    if len(groups) > _IMPERSONATED_GROUPS_MAX:
        raise BadRequest(f"{len(groups)} Impersonate-Group headers; at most {_IMPERSONATED_GROUPS_MAX} are allowed")
    for asked in impersonation_questions(user, uid, groups, extra):
        if not authorizer.decide(actor.user, actor.groups, asked).allowed:
            raise forbidden(actor.user, asked)
    parts = user.split(":")
    if len(parts) == 4 and parts[:2] == ["system", "serviceaccount"] and not groups:
        # No other name was asked about as an account's, so no other has its groups.
        groups = list(service_account_groups(parts[2]))
    if user == ANONYMOUS.user:
        groups.append(UNAUTHENTICATED)
    elif UNAUTHENTICATED not in groups:
        groups.append(AUTHENTICATED)
    return Actor(user=user, uid=uid, groups=tuple(dict.fromkeys(groups)), extra=extra)
