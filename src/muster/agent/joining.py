"""How a machine becomes a node: a key that never leaves it, a certificate from the control plane for a token, and its renewal.

    credentials/ca.crt        the control plane's authority, checked by file, by hash, or taken as it comes (loopback only)
    credentials/node.key      made here, 0600
    credentials/node.crt      CN=system:node:<name>; for client and server, so it is also what the log endpoint shows
    credentials/kubeconfig    names the three files, so that a renewed certificate comes into use without a restart
    credentials/joined.json   which server, node and domain the certificate is for

A second start with these files needs no token. The certificate is renewed when a third of its life is left.

Concurrency: coroutines on the agent's event loop; files are replaced whole. Every failure is a `JoinError` that names what is
wrong and what to do; tokens appear in no message.
"""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import re
import ssl
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from muster.client.files import replace_file
from muster.client.kubeconfig import write_kubeconfig
from muster.client.urls import UrlError, is_loopback, split_server

TIMEOUT_S: Final = 30.0
ANSWER_BYTES_MAX: Final = 1 << 20
RENEW_RATIO: Final = 1 / 3
_HASH: Final = re.compile(r"sha256:([0-9a-fA-F]{64})")


class JoinError(Exception):
    """Why this machine is no node. `is_lasting`: trying again alone does not help."""

    def __init__(self, message: str, *, is_lasting: bool = True) -> None:
        super().__init__(message)
        self.is_lasting = is_lasting


class Trust(msgspec.Struct, frozen=True, kw_only=True):
    """How the control plane's CA is known: one of the two, or neither for a server on loopback."""

    ca_file: Path | None = None
    ca_hash: str = ""


class JoinRequest(msgspec.Struct, frozen=True, kw_only=True):
    server: str
    name: str
    domain: str
    machine_id: str
    names: tuple[str, ...] = ()
    """Host names and addresses that the certificate should be good for besides the node's name."""
    trust: Trust = Trust()


class _Joined(msgspec.Struct, kw_only=True):
    server: str
    name: str
    domain: str


class _Answer(msgspec.Struct):
    node: str
    certificate: str
    ca: str


class Credentials:
    """The files of one agent, below `directory`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ca = directory / "ca.crt"
        self.key = directory / "node.key"
        self.certificate = directory / "node.crt"
        self.kubeconfig = directory / "kubeconfig"
        self._joined = directory / "joined.json"

    def joined(self) -> _Joined | None:
        try:
            found = msgspec.json.decode(self._joined.read_bytes(), type=_Joined)
        except (OSError, msgspec.DecodeError):
            return None
        files = (self.ca, self.key, self.certificate, self.kubeconfig)
        return found if all(path.is_file() for path in files) else None

    def certificate_now(self) -> x509.Certificate:
        try:
            return x509.load_pem_x509_certificate(self.certificate.read_bytes())
        except (OSError, ValueError) as error:
            raise JoinError(f"{self.certificate}: can't be used ({error}); remove {self.directory} and join again") from error

    def is_expired(self, now: float) -> bool:
        return self.certificate_now().not_valid_after_utc <= _at(now)

    def renew_in_s(self, now: float) -> float:
        """Until a third of the certificate's life is left; 0 or less: now."""
        certificate = self.certificate_now()
        life = certificate.not_valid_after_utc - certificate.not_valid_before_utc
        return (certificate.not_valid_after_utc - life * RENEW_RATIO - _at(now)).total_seconds()

    def store(self, request: JoinRequest, key: bytes, answer: _Answer) -> None:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.directory.chmod(0o700)
        self._joined.unlink(missing_ok=True)  # half of new credentials and half of old ones are none
        replace_file(self.ca, answer.ca.encode())
        self.replace_pair(key, answer.certificate.encode())
        self._write_kubeconfig(request.server, answer.node)
        joined = _Joined(server=request.server, name=answer.node, domain=request.domain)
        replace_file(self._joined, msgspec.json.encode(joined))

    def move(self, request: JoinRequest) -> None:
        """The control plane has another address now."""
        self._write_kubeconfig(request.server, request.name)
        joined = _Joined(server=request.server, name=request.name, domain=request.domain)
        replace_file(self._joined, msgspec.json.encode(joined))

    def _write_kubeconfig(self, server: str, node: str) -> None:
        write_kubeconfig(
            self.kubeconfig,
            server=server,
            ca=self.ca.absolute(),
            client_certificate=self.certificate.absolute(),
            client_key=self.key.absolute(),
            name="muster",
            user=f"system:node:{node}",
        )

    def replace_pair(self, key: bytes, certificate: bytes) -> None:
        """Key first: a crash between the two leaves a pair that does not fit, which `mend` sets right from `node.key.old`."""
        if self.key.is_file() and self.certificate.is_file():
            replace_file(self.directory / "node.key.old", self.key.read_bytes())
        replace_file(self.key, key)
        replace_file(self.certificate, certificate)
        (self.directory / "node.key.old").unlink(missing_ok=True)

    def mend(self) -> None:
        """After a crash in the middle of a renewal: the old key belongs to the certificate that is still there."""
        old = self.directory / "node.key.old"
        if old.is_file() and self.certificate.is_file():
            public = self.certificate_now().public_key()
            if _public(old.read_bytes()) == _encoded(public):
                replace_file(self.key, old.read_bytes())
        old.unlink(missing_ok=True)


async def ensure_joined(credentials: Credentials, request: JoinRequest, token: str, now: float) -> None:
    """Credentials for this server and node are on disk. Joins with the token where they are not there yet."""
    credentials.mend()
    has = credentials.joined()
    if has is not None:
        differs = [
            f"{what} {old or 'none'}, now {new or 'none'}"
            for what, old, new in (
                ("server", has.server, request.server),
                ("name", has.name, request.name),
                ("domain", has.domain, request.domain),
            )
            if old != new
        ]
        if not credentials.is_expired(now):
            if not differs:
                return
            if not token and len(differs) == 1 and has.server != request.server:
                # The same control plane at another address: whoever answers there must show a certificate of the CA we trust.
                credentials.move(request)
                return
        why = "its certificate has expired" if not differs else f"it joined as {'; '.join(differs)}"
        if not token:
            raise JoinError(f"{credentials.directory}: {why}; give a new token with --token ({_token_command(request.domain)})")
    elif not token:
        raise JoinError(
            f"this machine has not joined yet: give a token with --token ({_token_command(request.domain)} shows one)"
        )
    await join(credentials, request, token)


async def join(credentials: Credentials, request: JoinRequest, token: str) -> None:
    ca = await trusted_ca(request.server, request.trust)
    key = ec.generate_private_key(ec.SECP256R1())
    body = {
        "domain": request.domain,
        "name": request.name,
        "token": token,
        "csr": signing_request(key, request.name, request.names).decode(),
        "machineID": request.machine_id,
    }
    answer = await _post(f"{request.server}/muster/v1/nodes/join", body, _context(ca), _what(request))
    try:
        credentials.store(request, _pem(key), answer)
    except OSError as error:
        raise JoinError(f"{error.filename or credentials.directory}: {error.strerror}; the credentials must be kept") from error


def _what(request: JoinRequest) -> str:
    """For a refusal: as whom it joined, since a token is good for one party or for none, and the server tells nobody which."""
    return (
        f"joining as node {request.name} of {f'party {request.domain}' if request.domain else 'no party (no --domain given)'}"
    )


def _token_command(domain: str) -> str:
    return f"muster domain token create {domain}" if domain else "muster node token create"


async def renew(credentials: Credentials, request: JoinRequest) -> None:
    """A new key and certificate with the present one as the proof."""
    key = ec.generate_private_key(ec.SECP256R1())
    context = _context(credentials.ca.read_bytes())
    context.load_cert_chain(credentials.certificate, credentials.key)
    body = {"csr": signing_request(key, request.name, request.names).decode()}
    answer = await _post(f"{request.server}/muster/v1/nodes/renew", body, context, "renewal")
    replace_file(credentials.ca, answer.ca.encode())
    credentials.replace_pair(_pem(key), answer.certificate.encode())


async def trusted_ca(server: str, trust: Trust) -> bytes:
    """The CA's certificate in PEM, once it is known to be the right one."""
    if trust.ca_file is not None:
        try:
            data = trust.ca_file.read_bytes()
            x509.load_pem_x509_certificate(data)
        except OSError as error:
            raise JoinError(f"--ca-file {trust.ca_file}: {error.strerror}") from error
        except ValueError as error:
            raise JoinError(f"--ca-file {trust.ca_file}: no PEM certificate ({error})") from error
        return data
    try:
        host = split_server(server)[1]
    except UrlError as error:
        raise JoinError(f"--join {server}: {error}") from error
    wanted = _HASH.fullmatch(trust.ca_hash)
    if trust.ca_hash and wanted is None:
        raise JoinError(
            f"--ca-hash {trust.ca_hash[:80]!r}: it is sha256: and 64 hexadecimal digits, as `token create` prints it"
        )
    if wanted is None and not is_loopback(host):
        raise JoinError(
            f"--join {server}: on another machine the control plane must prove who it is; give --ca-hash sha256:... "
            "(printed by `muster domain token create`) or --ca-file"
        )
    # Whoever answers is not trusted yet: nothing is sent, and what comes back counts only by its hash.
    blind = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    blind.check_hostname, blind.verify_mode = False, ssl.CERT_NONE
    data = await _fetch(f"{server}/muster/v1/ca", blind)
    try:
        certificate = x509.load_pem_x509_certificate(data)
    except ValueError as error:
        raise JoinError(f"{server}/muster/v1/ca: no PEM certificate came back; is this the API of a Muster?") from error
    found = hashlib.sha256(certificate.public_bytes(serialization.Encoding.DER)).hexdigest()
    if wanted is not None and found != wanted[1].lower():
        raise JoinError(
            f"{server}: its CA has hash sha256:{found}, and --ca-hash says {trust.ca_hash}; this is not the right server"
        )
    return data


def signing_request(key: ec.EllipticCurvePrivateKey, name: str, names: Sequence[str]) -> bytes:
    """The server decides about the subject; what is asked for here are the names."""
    alternatives: list[x509.GeneralName] = []
    for one in dict.fromkeys((name, *names)):
        try:
            alternatives.append(x509.IPAddress(ipaddress.ip_address(one)))
        except ValueError:
            if re.fullmatch(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", one):
                alternatives.append(x509.DNSName(one))
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"system:node:{name}"[:64])])
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


# -- the wire ------------------------------------------------------------------------------------------------------------------


async def _fetch(url: str, context: ssl.SSLContext) -> bytes:
    code, body = await _exchange("GET", url, None, context)
    if code != 200:
        raise JoinError(f"{url}: answered {code}; is this the API of a Muster?", is_lasting=code < 500)
    return body


async def _post(url: str, body: dict[str, Any], context: ssl.SSLContext, what: str) -> _Answer:
    code, answer = await _exchange("POST", url, body, context)
    if code != 200:
        raise JoinError(f"{what} was refused ({code}): {_said(answer)}", is_lasting=400 <= code < 500 and code != 429)
    try:
        return msgspec.json.decode(answer, type=_Answer)
    except msgspec.DecodeError as error:
        raise JoinError(f"{url}: an answer that makes no sense ({error})") from error


async def _exchange(method: str, url: str, body: dict[str, Any] | None, context: ssl.SSLContext) -> tuple[int, bytes]:
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    ssl_of = context if url.startswith("https://") else False
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.request(method, url, json=body, ssl=ssl_of, allow_redirects=False) as answer,
        ):
            data = await answer.content.read(ANSWER_BYTES_MAX)
            while len(data) < ANSWER_BYTES_MAX and not answer.content.at_eof():
                data += await answer.content.read(ANSWER_BYTES_MAX - len(data))
            return answer.status, data
    except aiohttp.ClientConnectorCertificateError as error:
        raise JoinError(f"{url}: its certificate is not signed by the CA that is trusted: {error.certificate_error}") from error
    except (aiohttp.ClientError, TimeoutError, asyncio.IncompleteReadError, ssl.SSLError, OSError) as error:
        # A connector's own words name our side of it (an SSL context) besides what happened.
        cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
        why = (cause.strerror if isinstance(cause, OSError) else "") or str(cause) or "no answer in time"
        raise JoinError(f"{url}: can't be reached ({why})", is_lasting=False) from error


def _said(body: bytes) -> str:
    """The message of a Status, or the beginning of whatever came."""
    try:
        message = msgspec.json.decode(body).get("message")
    except (msgspec.DecodeError, AttributeError):
        message = None
    return str(message)[:500] if message else body[:200].decode("utf-8", "replace").strip() or "no reason given"


def _context(ca: bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_verify_locations(cadata=ca.decode("ascii"))
    return context


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def _public(key_pem: bytes) -> bytes:
    return _encoded(serialization.load_pem_private_key(key_pem, None).public_key())


def _encoded(public: Any) -> bytes:
    data: bytes = public.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return data


def _at(now: float) -> datetime:
    return datetime.fromtimestamp(int(now), tz=UTC)
