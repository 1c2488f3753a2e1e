"""TLS contexts from PEM data, without leaving a private key on disk.

`TlsSource` is used on one event loop. It looks at certificate files again at most every `RECHECK_S` seconds, so rotated
certificates come into use without a restart; a new context means new connections, old ones finish as they are.
"""

from __future__ import annotations

import ssl
from pathlib import Path

from muster.client.config import Pem, Tls
from muster.client.errors import CredentialError
from muster.client.files import key_file
from muster.objects.time import Clock

RECHECK_S = 30.0


def make_context(tls: Tls, certificate: tuple[bytes, bytes] | None = None) -> ssl.SSLContext:
    """A client context for `tls`. `certificate` (PEM certificate and key, from an exec plugin) wins over the one in `tls`.

    Raises CredentialError naming the field that OpenSSL refuses.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # As Go does: a kubeconfig may name an intermediate CA as its trust anchor.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif tls.ca is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    else:
        try:
            context.load_verify_locations(cadata=_read(tls.ca, "certificate-authority").decode("ascii"))
        except (ssl.SSLError, UnicodeDecodeError, ValueError) as error:
            raise CredentialError(f"certificate-authority{_where(tls.ca)} holds no usable PEM certificate: {error}") from error
    if certificate is None and tls.client_certificate is not None and tls.client_key is not None:
        certificate = _read(tls.client_certificate, "client-certificate"), _read(tls.client_key, "client-key")
    if certificate is not None:
        _load_pair(context, *certificate, where=_where(tls.client_certificate))
    return context


class TlsSource:
    """The context to use now; a new one when a certificate file or the exec plugin's certificate has changed."""

    def __init__(self, tls: Tls, clock: Clock) -> None:
        self._tls = tls
        self._clock = clock
        self._files = [pem for pem in (tls.ca, tls.client_certificate, tls.client_key) if isinstance(pem, Path)]
        self._stamp: tuple[object, ...] = ()
        self._checked_at = float("-inf")
        self._certificate: tuple[bytes, bytes] | None = None
        self._context: ssl.SSLContext | None = None

    def context(self, certificate: tuple[bytes, bytes] | None) -> ssl.SSLContext:
        now = self._clock()
        if self._context is not None and certificate == self._certificate and 0 <= now - self._checked_at < RECHECK_S:
            return self._context
        stamp = tuple(_stamp(path) for path in self._files)
        self._checked_at = now
        if self._context is None or certificate != self._certificate or stamp != self._stamp:
            try:
                self._context = make_context(self._tls, certificate)
            except CredentialError:
                # Half-written while being rotated: the old one still works, and the next look will see the rest.
                if self._context is None or certificate != self._certificate:
                    raise
            else:
                self._stamp, self._certificate = stamp, certificate
        return self._context


def _stamp(path: Path) -> object:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _read(pem: Pem, field: str) -> bytes:
    if isinstance(pem, bytes):
        return pem
    try:
        return pem.read_bytes()
    except OSError as error:
        raise CredentialError(f"{field}: cannot read {pem}: {error.strerror or error}") from error


def _where(pem: Pem | None) -> str:
    return f" {pem}" if isinstance(pem, Path) else ""


def _load_pair(context: ssl.SSLContext, certificate: bytes, key: bytes, *, where: str) -> None:
    def no_password() -> str:
        # Without this OpenSSL would ask on the terminal and hang a server.
        raise CredentialError(f"client-key{where} is encrypted with a pass phrase; give it unencrypted")

    with key_file(certificate.rstrip() + b"\n" + key) as path:
        try:
            context.load_cert_chain(path, password=no_password)
        except (ssl.SSLError, ValueError) as error:
            raise CredentialError(
                f"client-certificate{where} and its key are not a usable PEM pair (do they belong together?): {error}"
            ) from error
