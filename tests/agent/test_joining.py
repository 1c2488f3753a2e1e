"""Joining a real server over TLS: who is trusted, what is kept, renewal, and what goes wrong."""

from __future__ import annotations

import asyncio
import hashlib
import os
import ssl
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from muster.agent import joining
from muster.agent.joining import Credentials, JoinError, JoinRequest, Trust, ensure_joined, join, renew, trusted_ca
from muster.client.api import ApiClient
from muster.client.kubeconfig import load
from muster.objects.time import wall_clock
from tests.server.joining_nodes import MANY, party, token_for
from tests.server.running import RunningServer, running


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running(tmp_path_factory.mktemp("joining"), limits=MANY) as made:
        party(made, "alice")
        yield made


@pytest.fixture
def credentials(tmp_path: Path) -> Credentials:
    return Credentials(tmp_path / "credentials")


def asked(server: RunningServer, name: str, **more: Any) -> JoinRequest:
    plain: dict[str, Any] = {
        "server": server.server.url,
        "name": name,
        "domain": "alice",
        "machine_id": f"id-of-{name}",
        "names": ("box", "192.0.2.9"),
        "trust": Trust(ca_file=server.server.pki.ca_path),
    }
    return JoinRequest(**plain | more)


def ca_hash(server: RunningServer) -> str:
    der = x509.load_pem_x509_certificate(server.server.pki.ca_pem).public_bytes(Encoding.DER)
    return f"sha256:{hashlib.sha256(der).hexdigest()}"


async def test_joining_gives_credentials_that_work(server: RunningServer, credentials: Credentials) -> None:
    await ensure_joined(credentials, asked(server, "j1"), token_for(server, "alice"), wall_clock())
    for path in credentials.directory.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert stat.S_IMODE(credentials.directory.stat().st_mode) == 0o700
    certificate = credentials.certificate_now()
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["j1"]
    assert [str(one) for one in names.get_values_for_type(x509.IPAddress)] == ["192.0.2.9"]
    async with ApiClient(load(credentials.kubeconfig)) as client:
        node = await client.get(await client.resource("", "Node"), "j1")
    assert node["metadata"]["labels"]["domain"] == "alice"


async def test_a_second_start_needs_no_token_nor_the_server(server: RunningServer, credentials: Credentials) -> None:
    request = asked(server, "j2")
    await ensure_joined(credentials, request, token_for(server, "alice"), wall_clock())
    before = credentials.certificate.read_bytes()
    await ensure_joined(credentials, request, "", wall_clock())
    moved = msgspec.structs.replace(request, server="https://127.0.0.1:1")
    await ensure_joined(credentials, moved, "", wall_clock())
    assert load(credentials.kubeconfig).server == "https://127.0.0.1:1", "the same control plane at another address"
    assert credentials.certificate.read_bytes() == before


@pytest.mark.parametrize("change", [{"name": "other"}, {"domain": ""}], ids=["another name", "another party"])
async def test_being_somebody_else_needs_a_token(
    server: RunningServer, credentials: Credentials, change: dict[str, str]
) -> None:
    request = asked(server, f"j3-{''.join(change)}")
    await ensure_joined(credentials, request, token_for(server, "alice"), wall_clock())
    with pytest.raises(JoinError, match="it joined as"):
        await ensure_joined(credentials, msgspec.structs.replace(request, **change), "", wall_clock())


async def test_an_expired_certificate_needs_a_token(server: RunningServer, credentials: Credentials) -> None:
    request = asked(server, "j4")
    await ensure_joined(credentials, request, token_for(server, "alice"), wall_clock())
    later = wall_clock() + 91 * 86400
    with pytest.raises(JoinError, match="has expired"):
        await ensure_joined(credentials, request, "", later)
    assert credentials.renew_in_s(wall_clock()) > 50 * 86400
    assert credentials.renew_in_s(wall_clock() + 61 * 86400) < 0


async def test_without_token_and_credentials(server: RunningServer, credentials: Credentials) -> None:
    with pytest.raises(JoinError, match="has not joined yet"):
        await ensure_joined(credentials, asked(server, "j5"), "", wall_clock())


async def test_a_wrong_token_is_refused_and_told_nowhere(server: RunningServer, credentials: Credentials) -> None:
    with pytest.raises(JoinError) as caught:
        await join(credentials, asked(server, "j6"), "guessed.secret-token")
    assert "refused (403)" in str(caught.value)
    assert "guessed" not in str(caught.value)
    assert caught.value.is_lasting
    assert not credentials.directory.exists()


async def test_a_name_of_another_machine(server: RunningServer, tmp_path: Path) -> None:
    await join(Credentials(tmp_path / "a"), asked(server, "j7"), token_for(server, "alice"))
    with pytest.raises(JoinError, match=r"refused \(409\)"):
        await join(Credentials(tmp_path / "b"), asked(server, "j7", machine_id="another"), token_for(server, "alice"))


async def test_renewal_replaces_key_and_certificate(server: RunningServer, credentials: Credentials) -> None:
    request = asked(server, "j8")
    await join(credentials, request, token_for(server, "alice"))
    key, serial = credentials.key.read_bytes(), credentials.certificate_now().serial_number
    await renew(credentials, request)
    assert credentials.key.read_bytes() != key
    assert credentials.certificate_now().serial_number != serial
    async with ApiClient(load(credentials.kubeconfig)) as client:
        await client.get(await client.resource("", "Node"), "j8")


@pytest.mark.parametrize("moment", ["before the certificate", "after the certificate"])
async def test_a_crash_in_the_middle_of_a_renewal(server: RunningServer, credentials: Credentials, moment: str) -> None:
    request = asked(server, f"j9-{moment.partition(' ')[0]}")
    await join(credentials, request, token_for(server, "alice"))
    old_key, old_certificate = credentials.key.read_bytes(), credentials.certificate.read_bytes()
    await renew(credentials, request)
    new_certificate = credentials.certificate.read_bytes()
    (credentials.directory / "node.key.old").write_bytes(old_key)
    if moment.startswith("before"):
        credentials.certificate.write_bytes(old_certificate)
    await ensure_joined(credentials, request, "", wall_clock())
    assert credentials.key.read_bytes() == old_key if moment.startswith("before") else credentials.key.read_bytes() != old_key
    assert moment.startswith("before") or credentials.certificate.read_bytes() == new_certificate
    ssl.create_default_context().load_cert_chain(credentials.certificate, credentials.key)
    assert not (credentials.directory / "node.key.old").exists()


# -- trust ---------------------------------------------------------------------------------------------------------------------


async def test_trust_by_hash_by_file_and_on_loopback_by_nothing(server: RunningServer) -> None:
    url, pem = server.server.url, server.server.pki.ca_pem
    assert await trusted_ca(url, Trust(ca_hash=ca_hash(server))) == pem
    assert await trusted_ca(url, Trust(ca_hash=ca_hash(server).upper().replace("SHA256", "sha256"))) == pem
    assert await trusted_ca(url, Trust(ca_file=server.server.pki.ca_path)) == pem
    assert await trusted_ca(url, Trust()) == pem


@pytest.mark.parametrize(
    ("trust", "words"),
    [
        pytest.param({"ca_hash": f"sha256:{'0' * 64}"}, "not the right server", id="another CA"),
        pytest.param({"ca_hash": "sha256:12"}, "64 hexadecimal digits", id="no hash"),
        pytest.param({"ca_hash": "md5:" + "0" * 64}, "64 hexadecimal digits", id="another kind of hash"),
        pytest.param({"ca_file": Path("/nowhere/ca.crt")}, "No such file", id="no file"),
        pytest.param({"ca_file": Path("/etc/hostname")}, "no PEM certificate", id="no certificate"),
    ],
)
async def test_trust_that_is_refused(server: RunningServer, trust: dict[str, Any], words: str) -> None:
    with pytest.raises(JoinError, match=words):
        await trusted_ca(server.server.url, Trust(**trust))


async def test_another_machine_must_prove_who_it_is() -> None:
    with pytest.raises(JoinError, match="must prove who it is"):
        await trusted_ca("https://192.0.2.1:6443", Trust())


async def test_a_token_is_never_sent_to_a_server_with_another_ca(
    server: RunningServer, credentials: Credentials, tmp_path: Path
) -> None:
    """The one that listens has a certificate of a CA that is not the trusted one: the handshake ends it."""
    from muster.server.pki import Pki

    other = Pki.ensure(tmp_path / "other", wall_clock)
    with pytest.raises(JoinError, match="not signed by the CA that is trusted"):
        await join(credentials, asked(server, "j10", trust=Trust(ca_file=other.ca_path)), token_for(server, "alice"))


async def test_nobody_there(credentials: Credentials) -> None:
    request = JoinRequest(server="https://127.0.0.1:1", name="n", domain="", machine_id="m")
    with pytest.raises(JoinError, match="can't be reached") as caught:
        await join(credentials, request, "t")
    assert not caught.value.is_lasting
    assert "SSLContext" not in str(caught.value)


async def test_a_partys_token_without_the_party(server: RunningServer, credentials: Credentials) -> None:
    """The server tells nobody whose token it is, so the agent says as whom it came."""
    with pytest.raises(JoinError, match=r"node j11 of no party \(no --domain given\) was refused \(403\)"):
        await join(credentials, asked(server, "j11", domain=""), token_for(server, "alice"))


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", "no PEM certificate", id="no certificate"),
        pytest.param(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "answered 404", id="not a Muster"),
        pytest.param(b"nonsense\r\n\r\n", "can't be reached", id="no HTTP"),
        pytest.param(b"", "can't be reached", id="hangs up"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n" + b"x" * 2_000_000, "no PEM", id="endless"),
    ],
)
async def test_servers_that_are_none(answer: bytes, words: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        if len(answer) > joining.ANSWER_BYTES_MAX:
            await reader.read(-1)  # it goes on until the other side has had enough
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        port = listening.sockets[0].getsockname()[1]
        with pytest.raises(JoinError, match=words):
            await trusted_ca(f"http://127.0.0.1:{port}", Trust())
    finally:
        listening.close()


def test_the_signing_request_leaves_out_what_is_no_name() -> None:
    from cryptography.hazmat.primitives.asymmetric import ec

    made = joining.signing_request(
        ec.generate_private_key(ec.SECP256R1()), "n1", ("Box_1", "10.0.0.1", "", "fe80::1", "ok.example")
    )
    names = x509.load_pem_x509_csr(made).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["n1", "ok.example"]
    assert [str(one) for one in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.1", "fe80::1"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
async def test_a_directory_that_cannot_be_written(server: RunningServer, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(JoinError, match="must be kept"):
        await join(Credentials(tmp_path / "c"), asked(server, "j11"), token_for(server, "alice"))
