"""Small certificate authorities: the server's own, the webhooks', and that of a control plane made for a test.

Elliptic keys throughout: making one takes no time. Nothing is read or written here; who keeps an authority, and where, is its
owner's business. Keys and serial numbers come from the cryptography library's own randomness, the time is handed in.
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.x509.oid import NameOID

Key = ec.EllipticCurvePrivateKey
_IN_BUNDLE = re.compile(rb"-----BEGIN CERTIFICATE-----\s.*?-----END CERTIFICATE-----", re.DOTALL)
_BACKDATE = timedelta(minutes=5)  # a peer's clock may run behind ours


class Authority:
    """A CA certificate and its key."""

    def __init__(self, certificate: x509.Certificate, key: Key) -> None:
        self.certificate = certificate
        self.key = key

    @property
    def pem(self) -> bytes:
        return cert_pem(self.certificate)

    def issue(
        self,
        key: Key | CertificatePublicKeyTypes,
        *,
        common_name: str,
        usage: x509.ObjectIdentifier | Sequence[x509.ObjectIdentifier],
        now: float,
        lifetime: timedelta,
        groups: Iterable[str] = (),
        names: Iterable[str] = (),
    ) -> x509.Certificate:
        """A certificate for `key` (or whoever has the private half of it), good no longer than the CA itself. ValueError for a
        name that no certificate can have."""
        subject = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
        subject.append(x509.NameAttribute(NameOID.COMMON_NAME, common_name))
        end = min(_at(now) + lifetime, self.certificate.not_valid_after_utc)
        public = key.public_key() if isinstance(key, Key) else key
        usages = [usage] if isinstance(usage, x509.ObjectIdentifier) else list(usage)
        builder = (
            _builder(x509.Name(subject), self.certificate.subject, public, now, end)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False)
        )
        alternatives = [general_name(name) for name in names]
        if alternatives:
            builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        return builder.sign(self.key, hashes.SHA256())


def self_signed(common_name: str, key: Key, now: float, lifetime: timedelta) -> x509.Certificate:
    """The certificate of a CA that may sign leaves, and nothing that signs in turn."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
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
        _builder(name, name, key.public_key(), now, _at(now) + lifetime)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )


def new_key() -> Key:
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: Key) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def cert_pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def certificates_in(bundle: bytes) -> list[bytes]:
    """Those of a file in PEM that can be read, in DER. Whatever else is in it is skipped."""
    found: list[bytes] = []
    for text in _IN_BUNDLE.findall(bundle):
        with contextlib.suppress(ValueError):
            found.append(x509.load_pem_x509_certificate(text).public_bytes(serialization.Encoding.DER))
    return found


def belong_together(certificate: x509.Certificate, key: Key) -> bool:
    return certificate.public_key() == key.public_key()


def general_name(name: str) -> x509.GeneralName:
    """A host name or an address, as certificates list them. ValueError for anything else."""
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        try:
            return x509.DNSName(name)
        except ValueError as error:
            raise ValueError(f"{name!r} can't stand in a certificate: use an ASCII host name or an IP address") from error


def _builder(
    subject: x509.Name, issuer: x509.Name, key: CertificatePublicKeyTypes, now: float, end: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_at(now) - _BACKDATE)
        .not_valid_after(end)
    )


def _at(now: float) -> datetime:
    return datetime.fromtimestamp(int(now), tz=UTC)
