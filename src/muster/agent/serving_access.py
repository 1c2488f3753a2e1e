"""Who may use the agent's endpoint, and the TLS that it speaks.

Allowed are client certificates of the control plane's CA for its administrators (O=system:masters) and for the API server
itself (CN=system:apiserver); and any certificate or bearer token whose owner may `get nodes/proxy` of this node, as the API
server says when it is asked (TokenReview, SubjectAccessReview); for a connection into a pod `create nodes/proxy`, since whoever
may read opens no shell. Its answers are remembered for a short time, by a hash of the
token; no token is kept or logged.

Concurrency: one per endpoint, on its event loop.
"""

from __future__ import annotations

import hashlib
import ipaddress
import logging
import ssl
from collections import OrderedDict
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import msgspec
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from muster.client.files import replace_file
from muster.objects.status import ApiError, Raw
from muster.objects.time import Clock
from muster.store.contract import Store

log = logging.getLogger(__name__)

MASTERS: Final = "system:masters"
API_SERVER: Final = "system:apiserver"
REMEMBERED_MAX: Final = 256
ASKING_MAX: Final = 16
ALLOWED_S: Final = 60.0
REFUSED_S: Final = 5.0
SELF_SIGNED_DAYS: Final = 365


class User(msgspec.Struct, frozen=True):
    name: str
    groups: tuple[str, ...] = ()


class AskedAccess:
    """See the module."""

    def __init__(self, store: Store, node: str, clock: Clock) -> None:
        self._store = store
        self._node = node
        self._clock = clock
        self._asking = 0
        self._remembered: OrderedDict[str, tuple[float, tuple[int, str] | None]] = OrderedDict()

    async def refusal(self, request: web.Request, verb: str = "get") -> tuple[int, str] | None:
        certificate = request.transport.get_extra_info("peercert") if request.transport is not None else None
        if certificate:
            user = user_of(certificate)
            if user.name == API_SERVER or MASTERS in user.groups:
                return None
            return await self._remembering(verb, f"user {user}", user, "")
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            return 401, "a client certificate of the control plane's CA, or a bearer token, is needed here"
        return await self._remembering(verb, hashlib.sha256(token.strip().encode()).hexdigest(), None, token.strip())

    async def _remembering(self, verb: str, who: str, user: User | None, token: str) -> tuple[int, str] | None:
        now, key = self._clock(), f"{verb} {who}"
        found = self._remembered.get(key)
        if found is not None and found[0] > now:
            return found[1]
        if self._asking >= ASKING_MAX:
            # Anybody may send a token. Guesses must not become a flood on the API server, in the agent's name.
            return 429, f"{ASKING_MAX} requests are being checked by the API server; try again"
        self._asking += 1
        try:
            refused = await self._ask(verb, user, token)
        except ApiError as error:
            log.warning("the API server was asked who may look into pods here, and answered: %s", error)
            return 503, f"the API server can't be asked whether this is allowed: {error.message}"
        finally:
            self._asking -= 1
        self._remembered.pop(key, None)
        self._remembered[key] = (now + (REFUSED_S if refused else ALLOWED_S), refused)
        while len(self._remembered) > REMEMBERED_MAX:
            self._remembered.popitem(last=False)
        return refused

    async def _ask(self, verb: str, user: User | None, token: str) -> tuple[int, str] | None:
        if user is None:
            review = await self._review("authentication.k8s.io", "TokenReview", {"token": token})
            if not review.get("authenticated"):
                return 401, "the API server does not know this token"
            known = review.get("user") or {}
            user = User(str(known.get("username", "")), tuple(map(str, known.get("groups") or ())))
        attributes = {"verb": verb, "resource": "nodes", "subresource": "proxy", "name": self._node}
        spec = {"user": user.name, "groups": list(user.groups), "resourceAttributes": attributes}
        answer = await self._review("authorization.k8s.io", "SubjectAccessReview", spec)
        if answer.get("allowed"):
            return None
        return 403, f"user {user.name!r} may not {verb} nodes/proxy of node {self._node!r}"

    async def _review(self, group: str, kind: str, spec: Raw) -> Raw:
        resource = await self._store.resource(group, kind)
        body = {"apiVersion": resource.api_version, "kind": kind, "metadata": {}, "spec": spec}
        return (await self._store.create(resource, body)).get("status") or {}


def user_of(certificate: dict[str, Any]) -> User:
    """From what `ssl` says of a verified certificate."""
    names = [pair for part in certificate.get("subject", ()) for pair in part]
    common = next((value for key, value in names if key == "commonName"), "")
    return User(common, tuple(value for key, value in names if key == "organizationName"))


# -- TLS -----------------------------------------------------------------------------------------------------------------------


def tls_context(certificate: Path, key: Path, ca: bytes | None) -> ssl.SSLContext:
    """A client certificate is optional; one that is shown must be signed by the CA."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.load_cert_chain(certificate, key)
    if ca is not None:
        context.load_verify_locations(cadata=ca.decode("ascii"))
        context.verify_mode = ssl.CERT_OPTIONAL
    return context


def ensure_self_signed(directory: Path, node: str, names: Sequence[str], now: float) -> tuple[Path, Path]:
    """For agents that were given a kubeconfig and no certificate of the CA: as kubelets do, one of their own."""
    certificate, key = directory / "serving.crt", directory / "serving.key"
    try:
        found = x509.load_pem_x509_certificate(certificate.read_bytes())
        if key.is_file() and found.not_valid_after_utc - _at(now) > timedelta(days=SELF_SIGNED_DAYS / 3):
            return certificate, key
    except (OSError, ValueError):
        pass
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    made = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"system:node:{node}"[:64])])
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(made.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_at(now) - timedelta(hours=1))
        .not_valid_after(_at(now) + timedelta(days=SELF_SIGNED_DAYS))
        .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in dict.fromkeys((node, *names))]), False)
    )
    signed = builder.sign(made, hashes.SHA256())
    pem = serialization.Encoding.PEM
    replace_file(key, made.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
    replace_file(certificate, signed.public_bytes(pem))
    return certificate, key


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _at(now: float) -> datetime:
    return datetime.fromtimestamp(int(now), tz=UTC)
