"""The server's own certificate authority: made on first start, kept in `data_dir/pki`, leaf certificates renewed in time.

    ca.crt ca.key           signs the others, and the certificates of nodes that join; ten years
    server.crt server.key   for loopback, the listen host and what the configuration adds; one year
    admin.crt admin.key     CN=admin O=system:masters, for clients that prefer certificates; one year
    apiserver-client.*      CN=system:apiserver, with which this server asks the agents of nodes for logs; one year
    sa.key                  signs service-account tokens; see `token_keys`

Concurrency: called from one thread, at start and from the renewal task. Files are replaced atomically (a crash leaves the old
or the new one) and keys are readable by their owner only. A leaf is renewed when a third of its life is left, when the names
have changed, or when it does not belong to the present CA. The CA itself is never replaced silently: every client trusts it.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID

from muster.client.files import replace_file
from muster.objects.time import Clock
from muster.server.certificates import Authority, Key, belong_together, cert_pem, general_name, key_pem, new_key, self_signed

CA_LIFETIME = timedelta(days=3650)
TOKEN_CURVE = "secp256r1"  # noqa: S105 - the name of a curve
"""What ES256, the algorithm of service-account tokens, stands on."""
LEAF_LIFETIME = timedelta(days=365)
NODE_LIFETIME = timedelta(days=90)
"""Of a node's certificate. Agents renew theirs when a third of it is left."""
APISERVER_USER = "system:apiserver"
"""Who this server is to the agents of nodes."""
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_SERVICE_NAMES = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local")


class PkiError(Exception):
    """The key material on disk can't be used; the message names the file and what to do."""


class Pki:
    """The files under `directory`, loaded. Make one with `Pki.ensure`."""

    def __init__(self, directory: Path, clock: Clock) -> None:
        self.directory = directory
        self._clock = clock
        self._ca: Authority
        self._own_names: frozenset[str] = frozenset()

    @classmethod
    def ensure(cls, directory: Path, clock: Clock, names: Iterable[str] = ()) -> Pki:
        """Load what is there, make what is missing, renew what is due."""
        pki = cls(directory, clock)
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            directory.chmod(0o700)
            pki._load_authority()
            pki._load_or_make_key("sa")
            pki.renew(names)
        except OSError as error:
            raise PkiError(
                f"{error.filename or directory}: {error.strerror}; the directory must be writable by this user"
            ) from error
        return pki

    @property
    def ca_path(self) -> Path:
        return self.directory / "ca.crt"

    @property
    def admin_cert_path(self) -> Path:
        return self.directory / "admin.crt"

    @property
    def admin_key_path(self) -> Path:
        return self.directory / "admin.key"

    @property
    def ca_pem(self) -> bytes:
        return self._ca.pem

    def renew(self, names: Iterable[str] = ()) -> list[str]:
        """Renew the leaves that are due; the names of those that were."""
        wanted = list(dict.fromkeys((*_LOOPBACK, *_SERVICE_NAMES, *names)))
        try:
            for name in wanted:
                general_name(name)
        except ValueError as error:
            raise PkiError(str(error)) from error
        self._own_names = frozenset(name.lower() for name in wanted)
        renewed = []
        if self._is_due("server", wanted):
            self._issue("server", common_name="muster", names=wanted, usage=ExtendedKeyUsageOID.SERVER_AUTH)
            renewed.append("server")
        if self._is_due("admin", []):
            self._issue("admin", common_name="admin", groups=("system:masters",), usage=ExtendedKeyUsageOID.CLIENT_AUTH)
            renewed.append("admin")
        if self._is_due("apiserver-client", []):
            self._issue("apiserver-client", common_name=APISERVER_USER, usage=ExtendedKeyUsageOID.CLIENT_AUTH)
            renewed.append("apiserver-client")
        return renewed

    def server_context(self) -> ssl.SSLContext:
        """TLS for the listener. A client certificate is optional, but one that is shown must be signed by our CA."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.verify_mode = ssl.CERT_OPTIONAL
        context.load_verify_locations(cadata=self.ca_pem.decode())
        context.set_alpn_protocols(["http/1.1"])
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
        self.load_server_chain(context)
        return context

    def load_server_chain(self, context: ssl.SSLContext) -> None:
        """(Re)load the server certificate; connections made from now on see the new one."""
        try:
            context.load_cert_chain(self.directory / "server.crt", self.directory / "server.key")
        except (OSError, ssl.SSLError) as error:
            raise PkiError(
                f"{self.directory / 'server.crt'}: cannot be loaded ({error}); delete it to have it remade"
            ) from error

    def issue_client(self, user: str, groups: Iterable[str] = (), lifetime: timedelta = LEAF_LIFETIME) -> tuple[bytes, bytes]:
        """(certificate, key) in PEM for `user` in `groups`; nothing is written to disk."""
        key = new_key()
        cert = self._ca.issue(
            key,
            common_name=user,
            groups=groups,
            usage=ExtendedKeyUsageOID.CLIENT_AUTH,
            now=self._clock(),
            lifetime=lifetime,
        )
        return cert_pem(cert), key_pem(key)

    def sign_node(
        self,
        key: CertificatePublicKeyTypes,
        *,
        user: str,
        groups: Iterable[str],
        names: Iterable[str],
        lifetime: timedelta = NODE_LIFETIME,
    ) -> x509.Certificate:
        """A certificate with which a node both asks this server and answers it. ValueError for names that can't stand in it."""
        return self._ca.issue(
            key,
            common_name=user,
            groups=groups,
            names=names,
            usage=(ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH),
            now=self._clock(),
            lifetime=lifetime,
        )

    def client_context(self) -> ssl.SSLContext:
        """TLS towards the agents of nodes, as `system:apiserver`. A node is known by its name, not by its address: its
        certificate must be signed by our CA and stand for the name that is given as `server_hostname`."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_verify_locations(cadata=self.ca_pem.decode())
        try:
            context.load_cert_chain(self.directory / "apiserver-client.crt", self.directory / "apiserver-client.key")
        except (OSError, ssl.SSLError) as error:
            raise PkiError(
                f"{self.directory / 'apiserver-client.crt'}: cannot be loaded ({error}); delete it and start the server again"
            ) from error
        return context

    @property
    def own_names(self) -> frozenset[str]:
        """Host names and addresses that stand for this server; no node may have a certificate for one of them."""
        return self._own_names

    # --- the authority

    def _load_authority(self) -> None:
        cert_path, key_path = self.ca_path, self.directory / "ca.key"
        if cert_path.exists() and not key_path.exists():
            raise PkiError(
                f"{key_path} is missing while {cert_path} is there; restore it from a backup, or remove {self.directory} "
                "to start with a new CA (clients then need the new kubeconfig)"
            )
        key = self._load_or_make_key("ca")
        if not cert_path.exists():
            # First start, or a crash between the two files; the same key makes a certificate that is as good as the lost one.
            self._ca = Authority(self_signed("muster-ca", key, self._clock(), CA_LIFETIME), key)
            replace_file(cert_path, self._ca.pem, 0o644)
            return
        self._ca = Authority(_read_cert(cert_path), key)
        if not belong_together(self._ca.certificate, key):
            raise PkiError(f"{cert_path} and {key_path} do not belong together; restore both from the same backup")
        end = self._ca.certificate.not_valid_after_utc
        if end <= self._now():
            raise PkiError(
                f"{cert_path} expired on {end:%Y-%m-%d}; remove {self.directory} "
                "to start with a new CA (clients then need the new kubeconfig)"
            )

    # --- leaves

    def _is_due(self, stem: str, names: list[str]) -> bool:
        cert_path, key_path = self.directory / f"{stem}.crt", self.directory / f"{stem}.key"
        if not (cert_path.exists() and key_path.exists()):
            return True
        try:
            cert, key = _read_cert(cert_path), read_key(key_path)
            cert.verify_directly_issued_by(self._ca.certificate)
        except (PkiError, InvalidSignature, ValueError, TypeError):
            return True  # a leaf that can't be read is simply made anew: nobody pins it
        remaining = cert.not_valid_after_utc - self._now()
        is_young = remaining > (cert.not_valid_after_utc - cert.not_valid_before_utc) / 3
        return not (is_young and belong_together(cert, key) and _covers(cert, names))

    def _issue(
        self,
        stem: str,
        *,
        common_name: str,
        usage: x509.ObjectIdentifier,
        groups: tuple[str, ...] = (),
        names: Iterable[str] = (),
    ) -> None:
        key = new_key()
        cert = self._ca.issue(
            key,
            common_name=common_name,
            groups=groups,
            names=names,
            usage=usage,
            now=self._clock(),
            lifetime=LEAF_LIFETIME,
        )
        replace_file(self.directory / f"{stem}.key", key_pem(key))
        replace_file(self.directory / f"{stem}.crt", cert_pem(cert), 0o644)

    def _load_or_make_key(self, stem: str) -> Key:
        path = self.directory / f"{stem}.key"
        if path.exists():
            return read_key(path)
        key = new_key()
        replace_file(path, key_pem(key))
        return key

    def _now(self) -> datetime:
        return datetime.fromtimestamp(int(self._clock()), tz=UTC)


def _covers(cert: x509.Certificate, names: list[str]) -> bool:
    if not names:
        return True
    try:
        present = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return False
    return all(general_name(name) in present for name in names)


def _read_cert(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except ValueError as error:
        raise PkiError(f"{path}: not a certificate in PEM ({error}); restore it from a backup") from error


def read_key(path: Path) -> Key:
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (ValueError, TypeError) as error:
        raise PkiError(f"{path}: not an unencrypted private key in PEM ({error}); restore it from a backup") from error
    if not isinstance(key, Key):
        raise PkiError(f"{path}: expected an elliptic-curve key, found {type(key).__name__}")
    path.chmod(0o600)
    return key
