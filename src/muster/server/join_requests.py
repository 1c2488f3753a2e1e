"""What a machine that wants to join sends: read and checked, before anything that is stored is looked at.

Pure. Every mistake is a 400 or 422 that names the field and the value; none depends on what is in the store, so whoever asks
may know all of it.
"""

from __future__ import annotations

import ipaddress
from typing import Final, TypeVar

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from muster.objects.names import validate_label_name, validate_subdomain
from muster.objects.status import ApiError, BadRequest, Cause, Invalid
from muster.server.node_index import NODE_USER_PREFIX, PARTY_GROUP_PREFIX

T = TypeVar("T")
NAME_CHARS_MAX: Final = 64 - len(NODE_USER_PREFIX)
"""A common name has at most 64 characters."""
DOMAIN_CHARS_MAX: Final = 64 - len(PARTY_GROUP_PREFIX)
MACHINE_ID_CHARS_MAX: Final = 128
NAMES_MAX: Final = 32
"""Host names and addresses of one certificate."""
RSA_BITS: Final = (2048, 8192)
_CURVES: Final = ("secp256r1", "secp384r1", "secp521r1")


class Join(msgspec.Struct, kw_only=True):
    """The body of a request to join."""

    name: str
    token: str
    csr: str
    machine_id: str = msgspec.field(name="machineID")
    domain: str = ""


class Renew(msgspec.Struct, kw_only=True):
    """The body of a request for a new certificate."""

    csr: str


def decoded(body: bytes, type_: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=type_)
    except msgspec.ValidationError as error:
        text = str(error)
        field = text.rpartition("`$.")[2].rstrip("`") if "`$." in text else ""
        raise _invalid(field or "body", text) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"the body is not JSON: {error}") from None


def check(asked: Join, own: frozenset[str]) -> None:
    """Nothing that depends on what is stored: whoever asks may know all of this."""
    causes = []
    problems = validate_subdomain(asked.name)
    if not problems and len(asked.name) > NAME_CHARS_MAX:
        problems = [f"at most {NAME_CHARS_MAX} characters fit into a certificate; give another with --name"]
    if not problems and (asked.name in own or _is_address(asked.name) or _is_service(asked.name)):
        problems = ["it is an address, or a name of this server or of a Service; give another with --name"]
    causes += [Cause("name", f"{asked.name[:80]!r}: {problem}") for problem in problems[:1]]
    problems = validate_label_name(asked.domain) if asked.domain else []
    if not problems and len(asked.domain) > DOMAIN_CHARS_MAX:
        problems = [f"at most {DOMAIN_CHARS_MAX} characters fit into a certificate; its nodes can't join with a token"]
    causes += [Cause("domain", f"{asked.domain[:80]!r}: {problem}") for problem in problems[:1]]
    machine = asked.machine_id
    if not (0 < len(machine) <= MACHINE_ID_CHARS_MAX and machine.isascii() and machine.isprintable()):
        causes.append(
            Cause("machineID", f"{machine[:80]!r}: 1 to {MACHINE_ID_CHARS_MAX} printable characters that name the machine")
        )
    if causes:
        raise _invalid_all(causes)


def read_csr(text: str) -> x509.CertificateSigningRequest:
    try:
        csr = x509.load_pem_x509_csr(text.encode("ascii"))
        if not csr.is_signature_valid:
            raise ValueError("its signature is not that of its key")
        key = csr.public_key()
    except (ValueError, TypeError, UnicodeEncodeError) as error:
        raise _invalid("csr", f"not a certificate signing request in PEM: {error}") from None
    except Exception:  # noqa: BLE001 - keys and algorithms that the library does not know, each with an error of its own
        raise _invalid("csr", "its key or signature algorithm is not supported; use an elliptic key (P-256)") from None
    is_sound = (
        isinstance(key, ed25519.Ed25519PublicKey)
        or (isinstance(key, ec.EllipticCurvePublicKey) and key.curve.name in _CURVES)
        or (isinstance(key, rsa.RSAPublicKey) and RSA_BITS[0] <= key.key_size <= RSA_BITS[1])
    )
    if not is_sound:
        raise _invalid("csr", f"its key must be P-256, P-384, P-521, Ed25519 or RSA with {RSA_BITS[0]} to {RSA_BITS[1]} bits")
    return csr


def names_for(csr: x509.CertificateSigningRequest, node: str, own: frozenset[str]) -> list[str]:
    """The names of a node's certificate: its own, by which this server knows it, and of the addresses that it asks for those
    that can't stand for this server or for whoever happens to listen on loopback."""
    try:
        asked = csr.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        addresses = asked.get_values_for_type(x509.IPAddress)
    except (x509.ExtensionNotFound, ValueError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType):
        addresses = []
    found = [node]
    for address in addresses:
        if not isinstance(address, ipaddress.IPv4Address | ipaddress.IPv6Address):
            continue  # a whole network
        plain = getattr(address, "ipv4_mapped", None) or address
        if not (plain.is_loopback or plain.is_unspecified or plain.is_multicast):
            found.append(str(plain))
    return [name for name in dict.fromkeys(found) if name not in own][:NAMES_MAX]


def _is_service(name: str) -> bool:
    """A certificate for such a name would vouch for a node where a Service (a webhook, say) is meant."""
    return name.endswith((".svc", ".svc.cluster.local"))


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _invalid(field: str, message: str) -> ApiError:
    return _invalid_all([Cause(field, message)])


def _invalid_all(causes: list[Cause]) -> ApiError:
    return Invalid("; ".join(f"{cause.field}: {cause.message}" for cause in causes), causes=causes)
