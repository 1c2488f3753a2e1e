"""Bearer tokens: random ones that are kept only as hashes, and signed ones for service accounts that are not kept at all.

- A *random* token is 256 bits of entropy. Its SHA-256 lies in a Secret of type `muster.dev/token-hash` in `kube-system`, with
  the user and groups it stands for; the clear text is shown once and never stored by the server. Comparison is constant-time.
- A *service-account* token is a JWT signed with ES256 by the key in `pki/sa.key`; it names the account's uid and dies with it.
  Tokens that an earlier key signed are good until they expire (`token_keys`).

Concurrency: plain values and pure functions; the clock and the entropy are handed in.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from cryptography.hazmat.primitives.asymmetric import ec

from muster.objects.names import NAMESPACE_SYSTEM
from muster.objects.status import Raw
from muster.server import jws

TOKEN_SECRET_TYPE = "muster.dev/token-hash"  # noqa: S105 - the type of a Secret, not a secret
TOKEN_NAMESPACE = NAMESPACE_SYSTEM
"""Such Secrets elsewhere mean nothing."""
TOKEN_PREFIX = "muster-"  # noqa: S105 - lets scanners recognise a leaked token
BOUND_KINDS = ("Pod", "Secret", "Node")
"""What a token may be bound to, so that it ends with it."""
ISSUER = "https://kubernetes.default.svc"
AUDIENCE = ISSUER
_HEX = frozenset("0123456789abcdef")


class TokenRefused(Exception):
    """A token of ours, or of an issuer that we trust, which stands for nobody; says why, and holds nothing of its signature."""


class Identity(msgspec.Struct, frozen=True):
    """Who a credential stands for, before the groups that everyone gets."""

    user: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    expires_s: float | None = None
    audiences: tuple[str, ...] = (AUDIENCE,)
    """For whom the credential is meant."""
    extra: Mapping[str, tuple[str, ...]] = msgspec.field(default_factory=dict)


class ServiceAccountClaims(msgspec.Struct, frozen=True):
    """What a verified service-account token says."""

    namespace: str
    name: str
    uid: str
    audiences: tuple[str, ...]
    expires_s: float
    bound_kind: str = ""
    bound_name: str = ""
    bound_uid: str = ""
    node_name: str = ""
    node_uid: str = ""
    """Of the node on which the pod runs that it is bound to."""
    token_id: str = ""


def new_token(entropy: bytes) -> str:
    """The clear text of a random token from 32 bytes of entropy."""
    assert len(entropy) >= 32
    return TOKEN_PREFIX + base64.urlsafe_b64encode(entropy).rstrip(b"=").decode()


def token_hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def token_secret(
    name: str,
    hashed: str,
    user: str,
    groups: Sequence[str],
    description: str,
    *,
    labels: Mapping[str, str] | None = None,
    expires_s: float | None = None,
) -> Raw:
    """The object that makes a random token valid. Deleting it revokes the token."""
    data = {"sha256": hashed, "user": user, "groups": ",".join(groups)}
    if expires_s is not None:
        data["expires"] = repr(float(expires_s))
    metadata: Raw = {"name": name, "namespace": TOKEN_NAMESPACE, "annotations": {"muster.dev/description": description}}
    if labels:
        metadata["labels"] = dict(labels)
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata,
        "type": TOKEN_SECRET_TYPE,
        "data": {key: base64.b64encode(value.encode()).decode() for key, value in data.items()},
    }


def identity_of_secret(raw: Mapping[str, Any]) -> tuple[str, Identity] | None:
    """(hash, identity) of a token Secret; None when it is of another type or can't be read."""
    if raw.get("type") != TOKEN_SECRET_TYPE or not isinstance(raw.get("data"), dict):
        return None
    try:
        data = {key: base64.b64decode(value, validate=True).decode() for key, value in raw["data"].items()}
        hashed, user = data["sha256"], data["user"]
        expires_s = float(data["expires"]) if data.get("expires") else None
    except (KeyError, ValueError, TypeError, AttributeError):
        return None
    if len(hashed) != 64 or not _HEX.issuperset(hashed) or not user:
        return None
    groups = tuple(group for group in data.get("groups", "").split(",") if group)
    return hashed, Identity(user=user, groups=groups, expires_s=expires_s)


class TokenTable:
    """Hashes of random tokens. A look-up touches only those that share the first 32 bits, and compares in constant time.

    Secrets that were copied have the same hash: a token is good while one of them is there, and stands for whom the first of
    them by name says."""

    def __init__(self) -> None:
        self._by_prefix: dict[str, dict[str, dict[str, Identity]]] = {}
        """Identities by the names of their Secrets, by hash."""
        self._by_secret: dict[str, str] = {}

    def put(self, secret: str, hashed: str, identity: Identity) -> None:
        self.drop(secret)
        self._by_secret[secret] = hashed
        self._by_prefix.setdefault(hashed[:8], {}).setdefault(hashed, {})[secret] = identity

    def drop(self, secret: str) -> None:
        hashed = self._by_secret.pop(secret, None)
        if hashed is not None:
            entries = self._by_prefix[hashed[:8]]
            del entries[hashed][secret]
            if not entries[hashed]:
                del entries[hashed]
            if not entries:
                del self._by_prefix[hashed[:8]]

    def find(self, token: str, now_s: float) -> Identity | None:
        """None when it is not known. TokenRefused when it has expired."""
        hashed = token_hash(token)
        found = None
        for candidate, identities in self._by_prefix.get(hashed[:8], {}).items():
            if hmac.compare_digest(candidate, hashed):
                found = identities[min(identities)]
        if found is not None and found.expires_s is not None and found.expires_s <= now_s:
            raise TokenRefused(f"it is of {found.user!r:.100} and expired {now_s - found.expires_s:.0f} s ago")
        return found


# --- service-account tokens


def sign(key: ec.EllipticCurvePrivateKey, claims: Raw) -> str:
    """A JWT with ES256."""
    return jws.sign_es256(key, claims)


def verify(keys: Sequence[jws.VerifyKey], token: str, now_s: float) -> ServiceAccountClaims | None:
    """The claims of a token that we signed with one of `keys`; None for others. TokenRefused when it is not valid now."""
    parsed = jws.parse(token)
    # Who issued it first: tokens of others are many, and checking a signature is what costs.
    if parsed is None or parsed.issuer != ISSUER or not jws.verified_by(parsed, keys):
        return None
    try:
        claims = msgspec.convert(parsed.claims, _Claims)
    except (ValueError, OverflowError, msgspec.ValidationError):
        return None
    about = claims.kubernetes
    whose = service_account_user(about.namespace, about.serviceaccount.name)
    if not claims.nbf <= now_s + 1:
        raise TokenRefused(f"it is of {whose!r:.100} and not good before {claims.nbf - now_s:.0f} s from now")
    if not now_s < claims.exp:
        raise TokenRefused(f"it is of {whose!r:.100} and expired {now_s - claims.exp:.0f} s ago")
    bound_kind, bound = next(
        ((kind, ref) for kind, ref in zip(BOUND_KINDS, (about.pod, about.secret, about.node), strict=True) if ref is not None),
        ("", _Ref()),
    )
    return ServiceAccountClaims(
        namespace=about.namespace,
        name=about.serviceaccount.name,
        uid=about.serviceaccount.uid,
        audiences=tuple(claims.aud),
        expires_s=claims.exp,
        bound_kind=bound_kind,
        bound_name=bound.name,
        bound_uid=bound.uid,
        node_name=about.node.name if about.node is not None else "",
        node_uid=about.node.uid if about.node is not None else "",
        token_id=claims.jti,
    )


def names_us(token: str) -> bool:
    """Whether a token says that we signed it, true or not."""
    parsed = jws.parse(token)
    return parsed is not None and parsed.issuer == ISSUER


def service_account_claims(
    *,
    namespace: str,
    name: str,
    uid: str,
    audiences: Sequence[str],
    now_s: float,
    lifetime_s: int,
    token_id: str,
    bound: tuple[str, str, str] | None = None,
    node: tuple[str, str] | None = None,
) -> Raw:
    """`bound` is (kind, name, uid) of the object whose end is also the token's; `node` (name, uid) of where that pod runs."""
    about: Raw = {"namespace": namespace, "serviceaccount": {"name": name, "uid": uid}}
    if bound:
        about[bound[0].lower()] = {"name": bound[1], "uid": bound[2]}
    if node:
        about["node"] = {"name": node[0], "uid": node[1]}
    return {
        "iss": ISSUER,
        "sub": service_account_user(namespace, name),
        "aud": list(audiences),
        "iat": int(now_s),
        "nbf": int(now_s),
        "exp": int(now_s) + lifetime_s,
        "jti": token_id,
        "kubernetes.io": about,
    }


def service_account_user(namespace: str, name: str) -> str:
    return f"system:serviceaccount:{namespace}:{name}"


def service_account_groups(namespace: str) -> tuple[str, ...]:
    return ("system:serviceaccounts", f"system:serviceaccounts:{namespace}")


def service_account_extra(claims: ServiceAccountClaims) -> dict[str, tuple[str, ...]]:
    """What Kubernetes tells about a token beside whose it is: its id, and the pod and node that it is bound to."""
    extra = {"credential-id": f"JTI={claims.token_id}" if claims.token_id else ""}
    if claims.bound_kind == "Pod":
        extra |= {"pod-name": claims.bound_name, "pod-uid": claims.bound_uid}
    extra |= {"node-name": claims.node_name, "node-uid": claims.node_uid}
    return {f"authentication.kubernetes.io/{key}": (value,) for key, value in extra.items() if value}


class _Ref(msgspec.Struct):
    name: str = ""
    uid: str = ""


class _About(msgspec.Struct):
    namespace: str
    serviceaccount: _Ref
    pod: _Ref | None = None
    secret: _Ref | None = None
    node: _Ref | None = None


class _Claims(msgspec.Struct, kw_only=True):
    iss: str
    aud: list[str]
    exp: float
    nbf: float
    jti: str = ""
    kubernetes: _About = msgspec.field(name="kubernetes.io")
