"""The certificate authority: what is made, kept, renewed and refused."""

from __future__ import annotations

import ssl
import stat
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from muster.server.pki import LEAF_LIFETIME, Pki, PkiError

_NOW = 1_800_000_000.0


def _ensure(path: Path, now: float = _NOW, names: tuple[str, ...] = ()) -> Pki:
    return Pki.ensure(path, lambda: now, names)


def _cert(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def test_first_start_makes_everything_private(tmp_path: Path) -> None:
    _ensure(tmp_path / "pki")
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "pki").iterdir()}
    assert modes == {
        **dict.fromkeys(("ca.key", "server.key", "admin.key", "apiserver-client.key", "sa.key"), 0o600),
        **dict.fromkeys(("ca.crt", "server.crt", "admin.crt", "apiserver-client.crt"), 0o644),
    }
    assert stat.S_IMODE((tmp_path / "pki").stat().st_mode) == 0o700


def test_second_start_keeps_everything(tmp_path: Path) -> None:
    _ensure(tmp_path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert _ensure(tmp_path).renew() == []
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_server_certificate_names(tmp_path: Path) -> None:
    _ensure(tmp_path, names=("muster.example.org", "192.0.2.7"))
    names = _cert(tmp_path / "server.crt").extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {"localhost", "muster.example.org"} <= set(names.get_values_for_type(x509.DNSName))
    assert {"127.0.0.1", "::1", "192.0.2.7"} <= {str(ip) for ip in names.get_values_for_type(x509.IPAddress)}


def test_each_leaf_serves_one_purpose(tmp_path: Path) -> None:
    _ensure(tmp_path)
    for name, purpose in (("server", ExtendedKeyUsageOID.SERVER_AUTH), ("admin", ExtendedKeyUsageOID.CLIENT_AUTH)):
        usage = _cert(tmp_path / f"{name}.crt").extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        assert list(usage) == [purpose]


@pytest.mark.parametrize(
    ("share_of_life", "is_renewed"),
    [
        pytest.param(0.5, False, id="half way"),
        pytest.param(0.7, True, id="a third left"),
        pytest.param(2.0, True, id="expired"),
    ],
)
def test_renewal_by_age(tmp_path: Path, share_of_life: float, is_renewed: bool) -> None:
    _ensure(tmp_path)
    old = (tmp_path / "server.crt").read_bytes()
    _ensure(tmp_path, now=_NOW + share_of_life * LEAF_LIFETIME.total_seconds())
    assert ((tmp_path / "server.crt").read_bytes() != old) is is_renewed
    _cert(tmp_path / "server.crt").verify_directly_issued_by(_cert(tmp_path / "ca.crt"))


@pytest.mark.parametrize("damage", ["names", "text", "key", "missing", "foreign"])
def test_renewal_of_what_does_not_fit(tmp_path: Path, damage: str) -> None:
    directory = tmp_path / "pki"
    _ensure(directory)
    names: tuple[str, ...] = ()
    if damage == "names":
        names = ("new.example.org",)
    elif damage == "text":
        (directory / "server.crt").write_text("no certificate")
    elif damage == "key":
        (directory / "server.key").write_bytes((directory / "sa.key").read_bytes())
    elif damage == "missing":
        (directory / "server.key").unlink()
    else:
        _ensure(tmp_path / "other")
        (directory / "server.crt").write_bytes((tmp_path / "other" / "server.crt").read_bytes())
        (directory / "server.key").write_bytes((tmp_path / "other" / "server.key").read_bytes())
    pki = _ensure(directory, names=names)
    _cert(directory / "server.crt").verify_directly_issued_by(_cert(directory / "ca.crt"))
    pki.server_context()  # certificate and key belong together
    assert pki.renew(names) == []


def test_a_crash_between_key_and_certificate_is_repaired(tmp_path: Path) -> None:
    _ensure(tmp_path)
    key = (tmp_path / "ca.key").read_bytes()
    (tmp_path / "ca.crt").unlink()
    _ensure(tmp_path)
    assert (tmp_path / "ca.key").read_bytes() == key
    _cert(tmp_path / "server.crt").verify_directly_issued_by(_cert(tmp_path / "ca.crt"))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        pytest.param("key", "ca.key is missing", id="CA key lost"),
        pytest.param("cert", "not a certificate", id="CA certificate broken"),
        pytest.param("swap", "do not belong together", id="key of another CA"),
        pytest.param("expired", "expired on", id="CA expired"),
        pytest.param("sa", "not an unencrypted private key", id="token key broken"),
    ],
)
def test_the_authority_is_never_replaced_silently(tmp_path: Path, damage: str, message: str) -> None:
    _ensure(tmp_path)
    now = _NOW
    if damage == "key":
        (tmp_path / "ca.key").unlink()
    elif damage == "cert":
        (tmp_path / "ca.crt").write_text("broken")
    elif damage == "swap":
        (tmp_path / "ca.key").write_bytes((tmp_path / "sa.key").read_bytes())
    elif damage == "expired":
        now += timedelta(days=4000).total_seconds()
    else:
        (tmp_path / "sa.key").write_text("broken")
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    with pytest.raises(PkiError, match=message):
        _ensure(tmp_path, now=now)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_a_directory_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "pki").write_text("")
    with pytest.raises(PkiError, match="must be writable"):
        _ensure(tmp_path / "pki")


def test_wide_permissions_are_narrowed(tmp_path: Path) -> None:
    _ensure(tmp_path)
    (tmp_path / "ca.key").chmod(0o644)
    _ensure(tmp_path)
    assert stat.S_IMODE((tmp_path / "ca.key").stat().st_mode) == 0o600


def test_client_certificates(tmp_path: Path) -> None:
    pki = _ensure(tmp_path)
    pem, _key = pki.issue_client("alice", ["dev", "ops"])
    cert = x509.load_pem_x509_certificate(pem)
    cert.verify_directly_issued_by(_cert(tmp_path / "ca.crt"))
    assert "CN=alice" in cert.subject.rfc4514_string()
    assert cert.not_valid_after_utc <= _cert(tmp_path / "ca.crt").not_valid_after_utc


def test_context_is_strict(tmp_path: Path) -> None:
    context = _ensure(tmp_path).server_context()
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert context.verify_mode == ssl.CERT_OPTIONAL
