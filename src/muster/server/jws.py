"""JSON Web Signatures in their compact form and the keys that they are made with: our own bearer tokens, and those of issuers.

Pure. `parse` takes any text and gives None for what is no such token; nothing in a token chooses how it is verified but the
name of an asymmetric algorithm, which the key and the caller must both accept. `none` and the HMAC family do not exist here:
a public key can never be taken for a shared secret.

Invariants: no input makes `parse`, `verifies` or `key_of_jwk` raise; a token has one spelling (base64 is canonical); the work
for a token is bounded by its length and by one signature check for each candidate key.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature

from muster.objects.json_numbers import has_many_extremes
from muster.objects.status import Raw

TOKEN_CHARS_MAX: Final = 32 * 1024
"""A token with hundreds of groups has some 16 KiB; the head of a request takes 64."""
KEY_BITS_MIN: Final = 2048
KEY_BITS_MAX: Final = 8192
"""Of an RSA key: below the first RFC 7518 forbids it, above the second checks take milliseconds."""

_HASHES: Final[Mapping[str, hashes.HashAlgorithm]] = {
    "256": hashes.SHA256(),
    "384": hashes.SHA384(),
    "512": hashes.SHA512(),
}
_CURVES: Final = {"ES256": (ec.SECP256R1(), 32), "ES384": (ec.SECP384R1(), 48), "ES512": (ec.SECP521R1(), 66)}
_CURVE_OF_JWK: Final = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512"}
ALGORITHMS: Final = tuple(f"{family}{size}" for family in ("RS", "ES", "PS") for size in _HASHES)

PublicKey = rsa.RSAPublicKey | ec.EllipticCurvePublicKey


class Token(msgspec.Struct, frozen=True):
    """A token taken apart; nothing in it is known to be true yet."""

    algorithm: str
    key_id: str
    claims: Mapping[str, Any]
    signed: bytes
    signature: bytes

    @property
    def issuer(self) -> str:
        found = self.claims.get("iss")
        return found if isinstance(found, str) else ""


class VerifyKey(msgspec.Struct, frozen=True):
    """A public key, the name it goes by, and the one algorithm it is for ("" for all that fit)."""

    key: PublicKey
    key_id: str = ""
    algorithm: str = ""

    def fits(self, token: Token) -> bool:
        """A token that names no key is tried with all."""
        if token.key_id and token.key_id != self.key_id:
            return False
        if self.algorithm and self.algorithm != token.algorithm:
            return False
        if isinstance(self.key, rsa.RSAPublicKey):
            return token.algorithm[:2] in ("RS", "PS")
        curve = _CURVES.get(token.algorithm)
        return curve is not None and curve[0].name == self.key.curve.name


def parse(text: str) -> Token | None:
    parts = text.split(".", 3)
    if len(parts) != 3 or len(text) > TOKEN_CHARS_MAX:
        return None
    try:
        head, body, signature = map(unb64, parts)
        if has_many_extremes(head) or has_many_extremes(body):
            return None  # made to keep us busy: nobody has proved anything yet
        header, claims = msgspec.json.decode(head), msgspec.json.decode(body)
    except (ValueError, msgspec.MsgspecError, RecursionError):
        return None
    if not isinstance(header, dict) or not isinstance(claims, dict):
        return None
    algorithm, key_id = header.get("alg"), header.get("kid", "")
    # "crit" lists what a reader must understand beyond the standard: nothing here does.
    if algorithm not in ALGORITHMS or not isinstance(key_id, str) or "crit" in header:
        return None
    return Token(algorithm, key_id, claims, f"{parts[0]}.{parts[1]}".encode("ascii"), signature)


def verifies(token: Token, key: VerifyKey) -> bool:
    """Whether the holder of the private half of `key` signed exactly this."""
    if not key.fits(token):
        return False
    family, algorithm = token.algorithm[:2], _HASHES[token.algorithm[2:]]
    try:
        if isinstance(key.key, ec.EllipticCurvePublicKey):
            size = _CURVES[token.algorithm][1]
            if len(token.signature) != 2 * size:
                return False
            r, s = (int.from_bytes(part, "big") for part in (token.signature[:size], token.signature[size:]))
            key.key.verify(encode_dss_signature(r, s), token.signed, ec.ECDSA(algorithm))
        else:
            pss = padding.PSS(mgf=padding.MGF1(algorithm), salt_length=padding.PSS.DIGEST_LENGTH)
            key.key.verify(token.signature, token.signed, pss if family == "PS" else padding.PKCS1v15(), algorithm)
    except (InvalidSignature, ValueError, UnsupportedAlgorithm):
        return False
    return True


def verified_by(token: Token, keys: Sequence[VerifyKey]) -> bool:
    return any(verifies(token, key) for key in keys)


def sign_es256(key: ec.EllipticCurvePrivateKey, claims: Raw) -> str:
    """A token of ours, which names its key."""
    header = {"alg": "ES256", "kid": key_id_of(key.public_key()), "typ": "JWT"}
    signed = f"{b64(msgspec.json.encode(header))}.{b64(msgspec.json.encode(claims))}"
    r, s = decode_dss_signature(key.sign(signed.encode(), ec.ECDSA(hashes.SHA256())))
    return f"{signed}.{b64(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}"


def key_id_of(key: PublicKey) -> str:
    """The name of a key: the hash of its public half, so that it is the same wherever the key is."""
    der = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return b64(hashlib.sha256(der).digest())


# --- JSON Web Keys


def key_of_jwk(raw: object) -> VerifyKey | None:
    """The key of one entry of a key set; None for what is not for signatures, or is none that we verify with."""
    if not isinstance(raw, dict) or raw.get("use", "sig") != "sig":
        return None
    key_id, algorithm = raw.get("kid", ""), raw.get("alg", "")
    if not isinstance(key_id, str) or not isinstance(algorithm, str) or (algorithm and algorithm not in ALGORITHMS):
        return None
    try:
        if raw.get("kty") == "RSA":
            n, e = _number(raw.get("n")), _number(raw.get("e"))
            if not KEY_BITS_MIN <= n.bit_length() <= KEY_BITS_MAX or e.bit_length() > 32:
                return None
            return VerifyKey(rsa.RSAPublicNumbers(e, n).public_key(), key_id, algorithm)
        if raw.get("kty") == "EC" and (name := _CURVE_OF_JWK.get(str(raw.get("crv")))):
            curve = _CURVES[name][0]
            point = ec.EllipticCurvePublicNumbers(_number(raw.get("x")), _number(raw.get("y")), curve)
            return VerifyKey(point.public_key(), key_id, algorithm)
    except (ValueError, UnsupportedAlgorithm):
        return None
    return None


def jwk_of(key: ec.EllipticCurvePublicKey) -> Raw:
    """Our own key, as others find it in our key set."""
    numbers = key.public_numbers()
    x, y = (b64(number.to_bytes(32, "big")) for number in (numbers.x, numbers.y))
    return {"use": "sig", "kty": "EC", "kid": key_id_of(key), "crv": "P-256", "alg": "ES256", "x": x, "y": y}


def _number(text: object) -> int:
    if not isinstance(text, str) or len(text) > KEY_BITS_MAX // 4:
        raise ValueError("no number")
    return int.from_bytes(unb64(text), "big")


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def unb64(text: str) -> bytes:
    data = base64.b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
    if b64(data) != text:
        raise ValueError("not in its one canonical form")
    return data
