"""A real issuer of OpenID Connect tokens for tests: HTTPS on loopback with its own CA, discovery, keys that rotate.

What it says can be changed while it runs; `requests` lists what it was asked. It signs by itself, with nothing of the server's.
"""

from __future__ import annotations

import base64
import contextlib
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.x509.oid import ExtendedKeyUsageOID

from muster.objects.time import wall_clock
from muster.server.certificates import Authority, cert_pem, key_pem, new_key, self_signed

PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey
_CURVES = {"ES256": ("P-256", ec.SECP256R1, 32), "ES384": ("P-384", ec.SECP384R1, 48), "ES512": ("P-521", ec.SECP521R1, 66)}
_HASHES: dict[str, Callable[[], hashes.HashAlgorithm]] = {"256": hashes.SHA256, "384": hashes.SHA384, "512": hashes.SHA512}
RSA_KEY = rsa.generate_private_key(65537, 2048)
"""Made once: it takes a moment."""


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def part(value: Any) -> str:
    return b64(json.dumps(value).encode())


class SigningKey:
    def __init__(self, key_id: str, algorithm: str = "RS256") -> None:
        self.id = key_id
        self.algorithm = algorithm
        curve = _CURVES.get(algorithm)
        self.key: PrivateKey = RSA_KEY if curve is None else ec.generate_private_key(curve[1]())

    def jwk(self) -> dict[str, str]:
        common = {"kid": self.id, "use": "sig", "alg": self.algorithm}
        if isinstance(self.key, rsa.RSAPrivateKey):
            numbers = self.key.public_key().public_numbers()
            return {**common, "kty": "RSA", "n": b64(numbers.n.to_bytes(256, "big")), "e": b64(b"\x01\x00\x01")}
        name, _, size = _CURVES[self.algorithm]
        point = self.key.public_key().public_numbers()
        x, y = (b64(n.to_bytes(size, "big")) for n in (point.x, point.y))
        return {**common, "kty": "EC", "crv": name, "x": x, "y": y}

    def sign(self, claims: Any, **header: Any) -> str:
        signed = f"{part({'alg': self.algorithm, 'kid': self.id, **header})}.{part(claims)}"
        return f"{signed}.{b64(self._signature(signed.encode()))}"

    def _signature(self, data: bytes) -> bytes:
        made = _HASHES[self.algorithm[2:]]()
        if isinstance(self.key, ec.EllipticCurvePrivateKey):
            size = _CURVES[self.algorithm][2]
            return b"".join(n.to_bytes(size, "big") for n in decode_dss_signature(self.key.sign(data, ec.ECDSA(made))))
        pss = padding.PSS(padding.MGF1(made), padding.PSS.DIGEST_LENGTH)
        return self.key.sign(data, pss if self.algorithm.startswith("PS") else padding.PKCS1v15(), made)


class OidcIssuer:
    def __init__(self, directory: Path) -> None:
        authority_key = new_key()
        now = wall_clock()
        authority = Authority(self_signed("issuer-ca", authority_key, now, timedelta(days=1)), authority_key)
        key = new_key()
        leaf = authority.issue(
            key,
            common_name="issuer",
            usage=ExtendedKeyUsageOID.SERVER_AUTH,
            now=now,
            lifetime=timedelta(days=1),
            names=["127.0.0.1"],
        )
        pair = directory / "issuer.pem"
        pair.write_bytes(cert_pem(leaf) + key_pem(key))
        self.ca_pem = authority.pem.decode()
        self.ca_path = directory / "issuer-ca.crt"
        self.ca_path.write_text(self.ca_pem)
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.load_cert_chain(pair)
        self.keys = [SigningKey("k1")]
        self.requests: list[str] = []
        self.answers: dict[str, tuple[int, bytes]] = {}
        """By path, instead of what is said there otherwise."""
        self._port = 0
        self.start()
        self.url = f"https://127.0.0.1:{self._port}"

    def start(self) -> None:
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.requests.append(self.path)
                code, body = issuer.answers.get(self.path) or issuer.document(self.path)
                self.send_response(code)
                self.send_header("content-length", str(len(body)))
                if code == 302:
                    self.send_header("location", f"{issuer.url}/keys")
                self.end_headers()
                with contextlib.suppress(OSError):
                    self.wfile.write(body)

            def log_message(self, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), Handler)
        self._port = self._server.server_port
        self._server.socket = self._tls.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=30)

    def document(self, path: str) -> tuple[int, bytes]:
        if path == "/.well-known/openid-configuration":
            return 200, json.dumps({"issuer": self.url, "jwks_uri": f"{self.url}/keys"}).encode()
        if path == "/keys":
            return 200, json.dumps({"keys": [key.jwk() for key in self.keys]}).encode()
        return 404, b""

    def token(self, key: SigningKey | None = None, **claims: Any) -> str:
        """Signed by `key`, or the issuer's first; `claims` add to and replace the usual ones, None leaves out."""
        now = int(wall_clock())
        usual = {"iss": self.url, "sub": "ann", "aud": "muster", "iat": now, "exp": now + 600}
        told = {name: value for name, value in {**usual, **claims}.items() if value is not None}
        return (key or self.keys[0]).sign(told)


@contextlib.contextmanager
def oidc_issuer(directory: Path) -> Iterator[OidcIssuer]:
    issuer = OidcIssuer(directory)
    try:
        yield issuer
    finally:
        issuer.stop()
