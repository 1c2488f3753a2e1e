"""The server's own certificate authority: made on first start, kept in `data_dir/pki`, leaf certificates renewed in time.

    ca.crt ca.key           signs the three below; ten years
    server.crt server.key   for loopback, the listen host and what the configuration adds; one year
    admin.crt admin.key     CN=admin O=system:masters, for clients that prefer certificates; one year
    sa.key                  signs service-account tokens

Concurrency: called from one thread, at start and from the renewal task. Files are replaced atomically (a crash leaves the old
or the new one) and keys are readable by their owner only. A leaf is renewed when a third of its life is left, when the names
have changed, or when it does not belong to the present CA. The CA itself is never replaced silently: every client trusts it.
"""

from __future__ import annotations

import ipaddress
import os
import ssl
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from muster.objects.time import Clock

CA_LIFETIME = timedelta(days=3650)
LEAF_LIFETIME = timedelta(days=365)
_BACKDATE = timedelta(minutes=5)  # a peer's clock may run behind ours
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_SERVICE_NAMES = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local")


class PkiError(Exception):
    """The key material on disk can't be used; the message names the file and what to do."""


class Pki:
    """The files under `directory`, loaded. Make one with `Pki.ensure`."""

    def __init__(self, directory: Path, clock: Clock) -> None:
        self.directory = directory
        self._clock = clock
        self._ca_cert: x509.Certificate
        self._ca_key: ec.EllipticCurvePrivateKey
        self.token_key: ec.EllipticCurvePrivateKey

    @classmethod
    def ensure(cls, directory: Path, clock: Clock, names: Iterable[str] = ()) -> Pki:
        """Load what is there, make what is missing, renew what is due."""
        pki = cls(directory, clock)
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            directory.chmod(0o700)
            pki._load_authority()
            pki.token_key = pki._load_or_make_key("sa")
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
        return self._ca_cert.public_bytes(serialization.Encoding.PEM)

    def renew(self, names: Iterable[str] = ()) -> list[str]:
        """Renew the leaves that are due; the names of those that were."""
        wanted = list(dict.fromkeys((*_LOOPBACK, *_SERVICE_NAMES, *names)))
        renewed = []
        if self._is_due("server", wanted):
            self._issue("server", common_name="muster", names=wanted, usage=ExtendedKeyUsageOID.SERVER_AUTH)
            renewed.append("server")
        if self._is_due("admin", []):
            self._issue("admin", common_name="admin", groups=("system:masters",), usage=ExtendedKeyUsageOID.CLIENT_AUTH)
            renewed.append("admin")
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
        key = ec.generate_private_key(ec.SECP256R1())
        cert = self._sign(key, common_name=user, groups=tuple(groups), usage=ExtendedKeyUsageOID.CLIENT_AUTH, lifetime=lifetime)
        return cert.public_bytes(serialization.Encoding.PEM), _key_pem(key)

    # --- the authority

    def _load_authority(self) -> None:
        cert_path, key_path = self.ca_path, self.directory / "ca.key"
        if cert_path.exists() and not key_path.exists():
            raise PkiError(
                f"{key_path} is missing while {cert_path} is there; restore it from a backup, or remove {self.directory} "
                "to start with a new CA (clients then need the new kubeconfig)"
            )
        self._ca_key = self._load_or_make_key("ca")
        if not cert_path.exists():
            # First start, or a crash between the two files; the same key makes a certificate that is as good as the lost one.
            self._ca_cert = self._self_signed(self._ca_key)
            write_private(cert_path, self._ca_cert.public_bytes(serialization.Encoding.PEM), 0o644)
            return
        self._ca_cert = _read_cert(cert_path)
        if not _same_key(self._ca_cert, self._ca_key):
            raise PkiError(f"{cert_path} and {key_path} do not belong together; restore both from the same backup")
        if self._ca_cert.not_valid_after_utc <= self._now():
            raise PkiError(
                f"{cert_path} expired on {self._ca_cert.not_valid_after_utc:%Y-%m-%d}; remove {self.directory} "
                "to start with a new CA (clients then need the new kubeconfig)"
            )

    def _self_signed(self, key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "muster-ca")])
        now = self._now()
        usage = x509.KeyUsage(
            digital_signature=True,
            key_cert_sign=True,
            crl_sign=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            encipher_only=False,
            decipher_only=False,
        )
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _BACKDATE)
            .not_valid_after(now + CA_LIFETIME)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )

    # --- leaves

    def _is_due(self, stem: str, names: list[str]) -> bool:
        cert_path, key_path = self.directory / f"{stem}.crt", self.directory / f"{stem}.key"
        if not (cert_path.exists() and key_path.exists()):
            return True
        try:
            cert, key = _read_cert(cert_path), _read_key(key_path)
            cert.verify_directly_issued_by(self._ca_cert)
        except (PkiError, InvalidSignature, ValueError, TypeError):
            return True  # a leaf that can't be read is simply made anew: nobody pins it
        remaining = cert.not_valid_after_utc - self._now()
        is_young = remaining > (cert.not_valid_after_utc - cert.not_valid_before_utc) / 3
        return not (is_young and _same_key(cert, key) and _covers(cert, names))

    def _issue(
        self,
        stem: str,
        *,
        common_name: str,
        usage: x509.ObjectIdentifier,
        groups: tuple[str, ...] = (),
        names: Iterable[str] = (),
    ) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        cert = self._sign(key, common_name=common_name, groups=groups, names=names, usage=usage, lifetime=LEAF_LIFETIME)
        write_private(self.directory / f"{stem}.key", _key_pem(key), 0o600)
        write_private(self.directory / f"{stem}.crt", cert.public_bytes(serialization.Encoding.PEM), 0o644)

    def _sign(
        self,
        key: ec.EllipticCurvePrivateKey,
        *,
        common_name: str,
        usage: x509.ObjectIdentifier,
        lifetime: timedelta,
        groups: tuple[str, ...] = (),
        names: Iterable[str] = (),
    ) -> x509.Certificate:
        subject = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
        subject.append(x509.NameAttribute(NameOID.COMMON_NAME, common_name))
        now = self._now()
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name(subject))
            .issuer_name(self._ca_cert.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _BACKDATE)
            .not_valid_after(min(now + lifetime, self._ca_cert.not_valid_after_utc))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._ca_key.public_key()), critical=False)
        )
        alternatives = [_general_name(name) for name in names]
        if alternatives:
            builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        return builder.sign(self._ca_key, hashes.SHA256())

    def _load_or_make_key(self, stem: str) -> ec.EllipticCurvePrivateKey:
        path = self.directory / f"{stem}.key"
        if path.exists():
            return _read_key(path)
        key = ec.generate_private_key(ec.SECP256R1())
        write_private(path, _key_pem(key), 0o600)
        return key

    def _now(self) -> datetime:
        return datetime.fromtimestamp(int(self._clock()), tz=UTC)


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        try:
            return x509.DNSName(name)
        except ValueError as error:
            raise PkiError(f"{name!r} can't stand in a certificate: use an ASCII host name or an IP address") from error


def _covers(cert: x509.Certificate, names: list[str]) -> bool:
    if not names:
        return True
    try:
        present = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return False
    return all(_general_name(name) in present for name in names)


def _same_key(cert: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> bool:
    return cert.public_key() == key.public_key()


def _read_cert(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except ValueError as error:
        raise PkiError(f"{path}: not a certificate in PEM ({error}); restore it from a backup") from error


def _read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (ValueError, TypeError) as error:
        raise PkiError(f"{path}: not an unencrypted private key in PEM ({error}); restore it from a backup") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise PkiError(f"{path}: expected an elliptic-curve key, found {type(key).__name__}")
    path.chmod(0o600)
    return key


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def write_private(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Replace `path` in one step; never, not even for a moment, with wider permissions than `mode`."""
    scratch = path.with_name(f".{path.name}.new")
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, mode)
    try:
        os.fchmod(descriptor, mode)
        view = memoryview(content)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    scratch.replace(path)
    parent = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(parent)
    finally:
        os.close(parent)
