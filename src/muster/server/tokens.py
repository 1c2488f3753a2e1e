"""Bearer tokens: random ones that are kept only as hashes, and signed ones for service accounts that are not kept at all.

- A *random* token is 256 bits of entropy. Its SHA-256 lies in a Secret of type `muster.dev/token-hash` in `kube-system`, with
  the user and groups it stands for; the clear text is shown once and never stored by the server. Comparison is constant-time.
- A *service-account* token is a JWT signed with ES256 by the key in `pki/sa.key`; it names the account's uid and dies with it.

Concurrency: plain values and pure functions; the clock and the entropy are handed in.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature

from muster.objects.names import NAMESPACE_SYSTEM
from muster.objects.status import Raw

TOKEN_SECRET_TYPE = "muster.dev/token-hash"  # noqa: S105 - the type of a Secret, not a secret
TOKEN_NAMESPACE = NAMESPACE_SYSTEM
"""Such Secrets elsewhere mean nothing."""
TOKEN_PREFIX = "muster-"  # noqa: S105 - lets scanners recognise a leaked token
TOKEN_CHARS_MAX = 8192
ISSUER = "https://kubernetes.default.svc"
AUDIENCE = ISSUER
_P256_BYTES = 32
_HEX = frozenset("0123456789abcdef")


class Identity(msgspec.Struct, frozen=True):
    """Who a credential stands for, before the groups that everyone gets."""

    user: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    expires_s: float | None = None
    audiences: tuple[str, ...] = (AUDIENCE,)
    """For whom the credential is meant."""


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
    """Hashes of random tokens. A look-up touches only those that share the first 32 bits, and compares in constant time."""

    def __init__(self) -> None:
        self._by_prefix: dict[str, dict[str, Identity]] = {}
        self._by_secret: dict[str, str] = {}

    def put(self, secret: str, hashed: str, identity: Identity) -> None:
        self.drop(secret)
        self._by_secret[secret] = hashed
        self._by_prefix.setdefault(hashed[:8], {})[hashed] = identity

    def drop(self, secret: str) -> None:
        hashed = self._by_secret.pop(secret, None)
        if hashed is not None:
            entries = self._by_prefix[hashed[:8]]
            entries.pop(hashed, None)
            if not entries:
                del self._by_prefix[hashed[:8]]

    def find(self, token: str, now_s: float) -> Identity | None:
        hashed = token_hash(token)
        found = None
        for candidate, identity in self._by_prefix.get(hashed[:8], {}).items():
            if hmac.compare_digest(candidate, hashed):
                found = identity
        if found is None or (found.expires_s is not None and found.expires_s <= now_s):
            return None
        return found


# --- service-account tokens


def sign(key: ec.EllipticCurvePrivateKey, claims: Raw) -> str:
    """A JWT with ES256."""
    signed = f"{_b64(msgspec.json.encode({'alg': 'ES256', 'typ': 'JWT'}))}.{_b64(msgspec.json.encode(claims))}"
    r, s = decode_dss_signature(key.sign(signed.encode(), ec.ECDSA(hashes.SHA256())))
    return f"{signed}.{_b64(r.to_bytes(_P256_BYTES, 'big') + s.to_bytes(_P256_BYTES, 'big'))}"


def verify(key: ec.EllipticCurvePublicKey, token: str, now_s: float) -> ServiceAccountClaims | None:
    """The claims of a token that we signed and that is valid now; None otherwise. Only ES256 is ever accepted."""
    parts = token.split(".")
    if len(parts) != 3 or len(token) > TOKEN_CHARS_MAX:
        return None
    try:
        header = msgspec.json.decode(_unb64(parts[0]))
        signature = _unb64(parts[2])
        if not isinstance(header, dict) or header.get("alg") != "ES256" or len(signature) != 2 * _P256_BYTES:
            return None
        r, s = int.from_bytes(signature[:_P256_BYTES], "big"), int.from_bytes(signature[_P256_BYTES:], "big")
        key.verify(encode_dss_signature(r, s), f"{parts[0]}.{parts[1]}".encode(), ec.ECDSA(hashes.SHA256()))
        claims = msgspec.json.decode(_unb64(parts[1]), type=_Claims)
    except (ValueError, InvalidSignature, msgspec.MsgspecError):
        return None
    if claims.iss != ISSUER or not claims.nbf <= now_s + 1 or not now_s < claims.exp:
        return None
    about = claims.kubernetes
    bound_kind, bound = next(((k, v) for k, v in (("Pod", about.pod), ("Secret", about.secret)) if v is not None), ("", _Ref()))
    return ServiceAccountClaims(
        namespace=about.namespace,
        name=about.serviceaccount.name,
        uid=about.serviceaccount.uid,
        audiences=tuple(claims.aud),
        expires_s=claims.exp,
        bound_kind=bound_kind,
        bound_name=bound.name,
        bound_uid=bound.uid,
    )


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
) -> Raw:
    """`bound` is (kind, name, uid) of the Pod or Secret whose end is also the token's."""
    about: Raw = {"namespace": namespace, "serviceaccount": {"name": name, "uid": uid}}
    if bound:
        about[bound[0].lower()] = {"name": bound[1], "uid": bound[2]}
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


class _Ref(msgspec.Struct):
    name: str = ""
    uid: str = ""


class _About(msgspec.Struct):
    namespace: str
    serviceaccount: _Ref
    pod: _Ref | None = None
    secret: _Ref | None = None


class _Claims(msgspec.Struct):
    iss: str
    aud: list[str]
    exp: float
    nbf: float
    kubernetes: _About = msgspec.field(name="kubernetes.io")


def _b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _unb64(text: str) -> bytes:
    data = base64.b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
    if _b64(data) != text:
        raise ValueError("not in its one canonical form")
    return data
