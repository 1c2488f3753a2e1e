"""Users of OpenID Connect issuers: from a token to who it stands for, or why it stands for nobody.

As kube-apiserver decides it: the issuer must be one of ours, the signature by one of its keys with an accepted algorithm, the
audience one of those configured; `exp` is taken exactly, `nbf` with five minutes for clocks that differ; then claims become
name, groups and uid. Beyond Kubernetes, names that begin with `system:` or `muster:` are never an issuer's to give: such a user
is refused and such groups are left out, so that nobody becomes a node or an administrator by what an issuer writes.

Concurrency: one event loop. A token that was verified is remembered (by hash) until it expires, until the keys of its issuer
change, or until the settings do. `identity_of_claims` is pure.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Final

from muster.objects.time import Clock
from muster.server import jws
from muster.server.logs import logger
from muster.server.oidc_keys import IssuerKeys
from muster.server.oidc_settings import Issuer
from muster.server.tokens import Identity, TokenRefused

log = logger(__name__)
NOT_BEFORE_LEEWAY_S: Final = 300.0
RESERVED: Final = ("system:", "muster:")
NAME_CHARS_MAX: Final = 1024
_SHOWN_MAX: Final = 100


class OidcTokens:
    """See the module. `replace` takes the settings of now; `close` ends what is under way."""

    def __init__(self, issuers: Sequence[Issuer], clock: Clock, *, cached_max: int) -> None:
        self._clock = clock
        self._cached_max = cached_max
        self._verified: OrderedDict[bytes, tuple[Identity, float]] = OrderedDict()
        self._issuers: dict[str, tuple[Issuer, IssuerKeys]] = {}
        self._closing: list[IssuerKeys] = []
        self._take(issuers)

    def replace(self, issuers: Sequence[Issuer]) -> bool:
        """Trust exactly these from now on; whether that is a change. Keys of issuers that stay as they are stay, too."""
        if tuple(issuers) == tuple(issuer for issuer, _ in self._issuers.values()):
            return False
        self._take(issuers)
        return True

    def _take(self, issuers: Sequence[Issuer]) -> None:
        old, self._issuers = self._issuers, {}
        for issuer in issuers:
            known = old.get(issuer.url)
            if known is not None and known[0] == issuer:
                self._issuers[issuer.url] = old.pop(issuer.url)
            else:
                self._issuers[issuer.url] = (issuer, IssuerKeys(issuer, self._clock, on_change=self._verified.clear))
        self._closing = [keys for keys in (*self._closing, *(keys for _, keys in old.values())) if keys.is_fetching]
        self._verified.clear()

    def warm_up(self) -> None:
        """Fetch keys before the first token comes, so that what is wrong stands in the log at once."""
        for _, keys in self._issuers.values():
            keys.refresh()

    def refresh_aged(self) -> None:
        """Look now and then whether keys have been withdrawn, also while no token comes: the next may be a thief's."""
        for _, keys in self._issuers.values():
            keys.refresh_aged()

    async def close(self) -> None:
        running = [*self._closing, *(keys for _, keys in self._issuers.values())]
        await asyncio.gather(*(keys.close() for keys in running))

    async def identity(self, text: str) -> Identity | None:
        """Who the token stands for; None when it is no token of an issuer of ours. TokenRefused when it is, and no good."""
        if not self._issuers:
            return None
        token = jws.parse(text)
        known = self._issuers.get(token.issuer) if token is not None else None
        if token is None or known is None:
            return None
        issuer, keys = known
        digest = hashlib.sha256(text.encode()).digest()
        now = self._clock()
        if (cached := self._verified.get(digest)) is not None:
            if now <= cached[1]:
                keys.refresh_aged()
                return cached[0]
            del self._verified[digest]
        # What costs nothing first: an expired token never makes us ask its issuer.
        identity, expires_s = identity_of_claims(issuer, token.claims, now)
        if token.algorithm not in issuer.algorithms:
            raise TokenRefused(f"it is signed with {token.algorithm}; accepted: {', '.join(issuer.algorithms)}")
        candidates = await keys.candidates(token)
        if not candidates:
            detail = f" ({keys.problem})" if keys.problem else ""
            raise TokenRefused(f"the issuer's key {token.key_id!r:.100} for {token.algorithm} is not known{detail}")
        if not jws.verified_by(token, candidates):
            raise TokenRefused("its signature is wrong")
        if self._issuers.get(issuer.url) is known:  # the settings may have changed while the keys were fetched
            self._verified[digest] = (identity, expires_s)
            if len(self._verified) > self._cached_max:
                self._verified.popitem(last=False)
        return identity


def identity_of_claims(issuer: Issuer, claims: Mapping[str, Any], now_s: float) -> tuple[Identity, float]:
    """Who these claims stand for, and until when, if a signature vouches for them. TokenRefused when for nobody."""
    expires_s = _instant(claims, "exp")
    if expires_s is None:
        raise TokenRefused("it has no exp, so it would never expire")
    if now_s > expires_s:
        raise TokenRefused(f"it expired {now_s - expires_s:.0f} s ago")
    not_before_s = _instant(claims, "nbf")
    if not_before_s is not None and now_s + NOT_BEFORE_LEEWAY_S < not_before_s:
        raise TokenRefused(f"it is not good before {not_before_s - now_s:.0f} s from now")
    audiences = _texts(claims, "aud")
    if not set(audiences) & set(issuer.audiences):
        raise TokenRefused(f"it is for {_shown(audiences)}, not for {_shown(issuer.audiences)}")
    for claim, value in issuer.required_claims:
        if claim not in claims:
            raise TokenRefused(f"the required claim {claim!r} is not there")
        if claims[claim] != value or not isinstance(claims[claim], str):
            raise TokenRefused(f"the claim {claim!r} is {_shown(claims[claim])}, not {value!r}")
    user = issuer.username_prefix + _text(claims, issuer.username_claim)
    if issuer.username_claim == "email":
        _check_email(claims)
    if user.startswith(RESERVED):
        raise TokenRefused(f"the user name {_shown(user)} begins with {' or '.join(RESERVED)}, which no issuer may give")
    groups = [issuer.groups_prefix + group for group in _texts(claims, issuer.groups_claim)] if issuer.groups_claim else []
    uid = _text(claims, issuer.uid_claim) if issuer.uid_claim else ""
    own = tuple(dict.fromkeys(group for group in groups if group and not group.startswith(RESERVED)))
    return Identity(user=user, uid=uid, groups=own), expires_s


def _text(claims: Mapping[str, Any], claim: str) -> str:
    found = claims.get(claim)
    if not isinstance(found, str) or not found or len(found) > NAME_CHARS_MAX:
        what = f"is {_shown(found)}" if claim in claims else "is not there"
        raise TokenRefused(f"the claim {claim!r} {what}; a text of at most {NAME_CHARS_MAX} characters is needed")
    return found


def _texts(claims: Mapping[str, Any], claim: str) -> list[str]:
    """A text, or a list of texts; nothing when the claim is not there."""
    found = claims.get(claim)
    if found is None:
        return []
    if isinstance(found, str):
        return [found]
    if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
        raise TokenRefused(f"the claim {claim!r} is {_shown(found)}; a text or a list of texts is needed")
    return found


def _check_email(claims: Mapping[str, Any]) -> None:
    """An address that the issuer did not check is whatever its user typed. Saying nothing is taken for checked."""
    verified = claims.get("email_verified", True)
    if not isinstance(verified, bool):
        raise TokenRefused(f"the claim 'email_verified' is {_shown(verified)}, neither true nor false")
    if not verified:
        raise TokenRefused("its email address is not verified")


def _instant(claims: Mapping[str, Any], claim: str) -> float | None:
    found = claims.get(claim)
    if found is None:
        return None
    if isinstance(found, bool) or not isinstance(found, int | float) or abs(found) > 1e15:
        raise TokenRefused(f"the claim {claim!r} is {_shown(found)}, no time in seconds")
    return float(found)


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number of thousands of digits, a very deep list
        return f"some {type(value).__name__}"
    return text if len(text) <= _SHOWN_MAX else text[:_SHOWN_MAX] + "..."
