"""The keys of service-account tokens: one signs; those before it are accepted until the last of their tokens has expired.

    pki/sa.key                            signs; made on first start
    pki/sa-retired-<instant>.pub          public halves of its predecessors, named after the second in which they were retired

`rotate` puts a new key in place; a running server takes it up with `reload`, on its own, within seconds. To remove a retired
file ends the tokens of that key at once, as one does with a key that was stolen: no key has two such files for longer than a
rotation takes. Files belong to whom the signing key belongs to, whoever rotates.

Concurrency: files are read and written on a worker thread; `signing` and `public` are replaced together, in one assignment, and
read on the event loop. Files are replaced atomically: a crash in the middle of `rotate` leaves the old key signing.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from muster.client.files import replace_file
from muster.objects.status import Raw
from muster.objects.time import Clock
from muster.server.certificates import Key, key_pem, new_key
from muster.server.jws import VerifyKey, jwk_of, key_id_of
from muster.server.pki import TOKEN_CURVE, PkiError, read_key
from muster.server.tokens import ISSUER

RETIRED_MAX: Final = 100
DISCOVERY_PATH: Final = "/.well-known/openid-configuration"
JWKS_PATH: Final = "/openid/v1/jwks"
_SIGNING: Final = "sa.key"
_RETIRED: Final = "sa-retired-*.pub"
_CACHED: Final = "public, max-age=3600"


class _Keys(msgspec.Struct, frozen=True):
    signing: Key
    public: tuple[VerifyKey, ...]
    """The signing one first."""


class TokenKeys:
    """The keys in `directory`. `lifetime_s` is the longest that a token can have."""

    def __init__(self, directory: Path, clock: Clock, lifetime_s: float) -> None:
        self._directory = directory
        self._clock = clock
        self._lifetime_s = lifetime_s
        self._keys = self._load()

    @property
    def signing(self) -> Key:
        return self._keys.signing

    @property
    def public(self) -> tuple[VerifyKey, ...]:
        """All that are accepted now."""
        return self._keys.public

    def reload(self) -> bool:
        """Take up what lies in the directory now; whether that is something else. PkiError leaves everything as it was."""
        found = self._load()
        if [key.key_id for key in found.public] == [key.key_id for key in self._keys.public]:
            return False
        self._keys = found
        return True

    def jwks(self) -> Raw:
        return {"keys": [jwk_of(key.key) for key in self.public if isinstance(key.key, ec.EllipticCurvePublicKey)]}

    def _load(self) -> _Keys:
        signing = _signing_key(self._directory)
        found = {key_id_of(signing.public_key()): signing.public_key()}
        for path in sorted(self._directory.glob(_RETIRED), reverse=True)[:RETIRED_MAX]:
            if self._clock() < _retired_at(path) + self._lifetime_s:
                key = _read_public(path)
                found.setdefault(key_id_of(key), key)
        return _Keys(signing, tuple(VerifyKey(key, key_id, "ES256") for key_id, key in found.items()))


def rotate(directory: Path, clock: Clock, lifetime_s: float) -> tuple[str, Path]:
    """Make a new signing key; its id, and where the public half of the old one lies. PkiError when the files can't be used."""
    old = _signing_key(directory)
    now = int(clock())
    retired = directory / f"sa-retired-{now}.pub"
    pem = serialization.PublicFormat.SubjectPublicKeyInfo
    made = new_key()
    try:
        for path in directory.glob(_RETIRED):
            if now >= _retired_at(path) + lifetime_s:
                path.unlink(missing_ok=True)
        if len(list(directory.glob(_RETIRED))) >= RETIRED_MAX:
            raise PkiError(f"{directory}: {RETIRED_MAX} retired keys are kept already; remove those whose tokens have expired")
        if retired.exists():
            raise PkiError(f"{retired}: a key was retired in this very second; try again")
        owner = _owner_of(directory / _SIGNING)
        replace_file(retired, old.public_key().public_bytes(serialization.Encoding.PEM, pem), owner=owner)
        for path in directory.glob(_RETIRED):
            # Of a rotation that was cut off: the key would live on in it after `retired` is removed.
            if path != retired and path.read_bytes() == retired.read_bytes():
                path.unlink(missing_ok=True)
        replace_file(directory / _SIGNING, key_pem(made), owner=owner)
    except OSError as error:
        raise PkiError(
            f"{error.filename or directory}: {error.strerror}; the directory must be writable by this user"
        ) from error
    return key_id_of(made.public_key()), retired


def _signing_key(directory: Path) -> Key:
    path = directory / _SIGNING
    if not path.exists():
        raise PkiError(f"{path}: not there; a server makes it on its first start")
    key = read_key(path)
    if key.curve.name != TOKEN_CURVE:
        raise PkiError(
            f"{path}: its curve is {key.curve.name}, and tokens are signed on {TOKEN_CURVE}; "
            "restore it from a backup, or remove it (tokens of service accounts then have to be made anew)"
        )
    return key


def _owner_of(path: Path) -> tuple[int, int]:
    """User and group that a server runs as which reads this file: an administrator's own could not be read by it."""
    status = path.stat()
    if os.geteuid() not in (0, status.st_uid):
        raise PkiError(f"{path}: belongs to user {status.st_uid}; run this as that user, or as root")
    return status.st_uid, status.st_gid


def _retired_at(path: Path) -> float:
    text = path.stem.rpartition("-")[2]
    if not text.isdigit() or len(text) > 12:
        raise PkiError(f"{path}: the name says no instant; call it sa-retired-<seconds since 1970>.pub")
    return float(text)


def _read_public(path: Path) -> ec.EllipticCurvePublicKey:
    try:
        key = serialization.load_pem_public_key(path.read_bytes())
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise PkiError(f"{path}: no public key in PEM ({error}); restore it, or remove it to end its tokens") from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name != TOKEN_CURVE:
        raise PkiError(f"{path}: no key on {TOKEN_CURVE}; remove it")
    return key


class IssuerDiscovery:
    """What others need to verify our tokens by themselves: the discovery document and the key set. Needs the role
    `system:service-account-issuer-discovery`, as in Kubernetes."""

    def __init__(self, keys: TokenKeys, url: Callable[[], str]) -> None:
        """`url` of this server, as others reach it, once it listens."""
        self._keys = keys
        self._url = url

    def routes(self) -> list[BaseRoute]:
        return [Route(DISCOVERY_PATH, self._discovery), Route(JWKS_PATH, self._jwks)]

    async def _discovery(self, request: Request) -> Response:
        document = {
            "issuer": ISSUER,
            "jwks_uri": f"{self._url()}{JWKS_PATH}",
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["ES256"],
        }
        return _json(document, "application/json")

    async def _jwks(self, request: Request) -> Response:
        return _json(self._keys.jwks(), "application/jwk-set+json")


def _json(document: Raw, media: str) -> Response:
    return Response(msgspec.json.encode(document), media_type=media, headers={"cache-control": _CACHED})
