"""Tokens with which a party's nodes join: made once, shown once, kept as hashes, good for one node unless said otherwise.

A token is `muster-join-<id>-<secret>`. The id (8 characters) names it in lists and for revoking; the secret is 256 random bits.
The Domain's `status.deployTokenStatuses` holds, for each token, the id with the rest masked, its state as Kuscia has it, and
the SHA-256 of the whole. A hash of so many random bits gives nothing away; what matters is who may write it, and that is who
may write the status of Domains. So no Secret is involved, and no controller needs to read Secrets.

Using a token and noting that it was used is one write: `spend` gives the list to be written under the version of the Domain
that it was read from. Two nodes with one token race for that write, and one of them loses.

Pure: the clock and the entropy are handed in. Every function takes the list as it is stored, whatever is in it, and returns a
new one.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import Final, Literal

import msgspec

from muster.objects.rules.report import number, text
from muster.objects.status import Raw
from muster.objects.time import format_time, time_or

TOKEN_PREFIX: Final = "muster-join-"  # noqa: S105 - lets scanners recognise a leaked token
ENTROPY_BYTES: Final = 37
TOKEN_CHARS_MAX: Final = 256
TOKENS_MAX: Final = 50
"""Tokens of one party that are kept, those that can't be used any more included; the oldest of these make way."""
LIFETIME_DEFAULT_S: Final = 24 * 3600
LIFETIME_MAX_S: Final = 365 * 24 * 3600
USES_MAX: Final = 10_000
_ID_BYTES: Final = 5
_ID_LEN: Final = 8
_MASK: Final = "********"

State = Literal["unused", "used", "revoked", "expired"]


class TokenProblem(ValueError):
    """What stands against it, and the way out."""


class Spent(msgspec.Struct, frozen=True):
    """A token was accepted: the list to write (under the version it was read from), and which token it was."""

    tokens: list[Raw]
    token_id: str


def new_join_token(entropy: bytes) -> str:
    """The clear text of a token from `ENTROPY_BYTES` random bytes."""
    if len(entropy) < ENTROPY_BYTES:
        raise ValueError(f"a token needs {ENTROPY_BYTES} random bytes, not {len(entropy)}")
    token_id = base64.b32encode(entropy[:_ID_BYTES]).decode().lower()
    secret = base64.urlsafe_b64encode(entropy[_ID_BYTES:ENTROPY_BYTES]).rstrip(b"=").decode()
    return f"{TOKEN_PREFIX}{token_id}-{secret}"


def token_id_of(token: str) -> str:
    """The part that names a token, from its clear text, its masked form or the id itself."""
    rest = token.removeprefix(TOKEN_PREFIX)
    return rest[:_ID_LEN]


def masked(token: str) -> str:
    return f"{TOKEN_PREFIX}{token_id_of(token)}-{_MASK}"


def token_hash(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def entries(value: object) -> list[Raw]:
    """`status.deployTokenStatuses` as it is stored; what is no object is left out."""
    return [dict(entry) for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def state_of(entry: Raw, now: float) -> State:
    """What a token is good for now. A time that can't be read is over."""
    if text(entry, "state") == "revoked":
        return "revoked"
    if text(entry, "state") == "used" or number(entry, "uses") >= (number(entry, "maxUses") or 1):
        return "used"
    return "expired" if time_or(entry.get("expirationTime"), now) <= now else "unused"


def mint(value: object, token: str, now: float, *, lifetime_s: int = LIFETIME_DEFAULT_S, max_uses: int = 1) -> list[Raw]:
    """The list with a new token in it. TokenProblem when the figures make no sense or there are too many already."""
    if not 1 <= lifetime_s <= LIFETIME_MAX_S:
        raise TokenProblem(f"a token is good for 1 second to {LIFETIME_MAX_S // 86_400} days, not for {lifetime_s} s")
    if not 1 <= max_uses <= USES_MAX:
        raise TokenProblem(f"a token is good for 1 to {USES_MAX:,} nodes, not for {max_uses:,}")
    known = entries(value)
    if any(token_id_of(text(entry, "token")) == token_id_of(token) for entry in known):
        raise TokenProblem(f"a token {token_id_of(token)} exists already; make another one")
    over = sorted(
        (index for index, entry in enumerate(known) if state_of(entry, now) != "unused"),
        key=lambda index: (text(known[index], "creationTime"), index),
    )
    gone = set(over[: max(len(known) + 1 - TOKENS_MAX, 0)])
    kept = [entry for index, entry in enumerate(known) if index not in gone]
    if len(kept) >= TOKENS_MAX:
        raise TokenProblem(f"there are {len(kept)} tokens that may still be used, as many as a party may have; revoke some")
    made = {
        "token": masked(token),
        "state": "unused",
        "lastTransitionTime": format_time(now),
        "hash": token_hash(token),
        "creationTime": format_time(now),
        "expirationTime": format_time(now + lifetime_s),
        "uses": 0,
        "maxUses": max_uses,
    }
    return [*kept, made]


def revoke(value: object, token: str, now: float) -> list[Raw]:
    """The list with one token (its id, masked or clear text) made useless for good. TokenProblem when it is not there."""
    known, token_id = entries(value), token_id_of(token)
    found = [entry for entry in known if token_id_of(text(entry, "token")) == token_id and token_id]
    if not found:
        ids = ", ".join(token_id_of(text(entry, "token")) for entry in known[:5]) or "none"
        raise TokenProblem(f"there is no token {token_id!r}; there are: {ids}{' ...' if len(known) > 5 else ''}")
    for entry in found:
        if text(entry, "state") != "revoked":
            entry["state"] = "revoked"
            entry["lastTransitionTime"] = format_time(now)
    return known


def spend(value: object, token: str, now: float) -> Spent:
    """Let one node join with `token`. TokenProblem says why not; it tells states only to who has the whole token.

    Every hash is compared, each in constant time, so that how long it takes says nothing about which are close.
    """
    known = entries(value)
    is_sound = token.startswith(TOKEN_PREFIX) and len(token) <= TOKEN_CHARS_MAX
    hashed = token_hash(token[:TOKEN_CHARS_MAX]).encode()
    found: Raw | None = None
    for entry in known:
        kept = text(entry, "hash").encode("utf-8", "surrogatepass")
        if hmac.compare_digest(kept, hashed) and is_sound:
            found = entry
    if found is None:
        raise TokenProblem("this is no token of the party; make one with: muster domain token create DOMAIN")
    state = state_of(found, now)
    if state != "unused":
        why = {"used": "has been used as often as it may", "revoked": "was revoked", "expired": "has expired"}[state]
        raise TokenProblem(f"the token {token_id_of(token)} {why}; make a new one with: muster domain token create DOMAIN")
    found["uses"] = number(found, "uses") + 1
    if found["uses"] >= (number(found, "maxUses") or 1):
        found["state"] = "used"
    found["lastTransitionTime"] = format_time(now)
    return Spent(known, token_id_of(token))
