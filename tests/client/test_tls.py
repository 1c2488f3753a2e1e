"""Certificates against a real TLS server in the same process."""

from __future__ import annotations

import asyncio
import os
import ssl
import tempfile
from pathlib import Path

import pytest

from muster.client import tls as tls_module
from muster.client.api import ApiClient
from muster.client.config import ClientConfig, Tls
from muster.client.errors import CredentialError, OutcomeUnknown, Untrusted
from muster.client.tls import TlsSource, make_context
from tests.client.certificates import Authority
from tests.client.scripted import QUICK, Received, scripted


async def say_subject(request: Received) -> None:
    """Answer with the common name of the client's certificate, as the server's TLS saw it."""
    certificate = request.writer.get_extra_info("peercert") or {}
    names = dict(pair[0] for pair in certificate.get("subject", ()))
    await request.answer(200, {"subject": names.get("commonName", "")})


async def subject_seen(server_tls: ssl.SSLContext, tls: Tls) -> str:
    async with scripted(say_subject, tls=server_tls) as server, ApiClient(server.config(tls=tls), limits=QUICK) as client:
        return str((await client.version())["subject"])


async def test_client_certificate_inline_and_from_files(tmp_path: Path) -> None:
    authority = Authority()
    pair = authority.issue("alice")
    server = authority.server_context(tmp_path, hosts=("127.0.0.1",), needs_client=True)
    inline = Tls(ca=authority.certificate, client_certificate=pair.certificate, client_key=pair.key)
    assert await subject_seen(server, inline) == "alice"
    (tmp_path / "ca").write_bytes(authority.certificate)
    (tmp_path / "crt").write_bytes(pair.certificate)
    (tmp_path / "key").write_bytes(pair.key)
    files = Tls(ca=tmp_path / "ca", client_certificate=tmp_path / "crt", client_key=tmp_path / "key")
    assert await subject_seen(server, files) == "alice"


async def test_a_server_that_wants_a_certificate_refuses_without(tmp_path: Path) -> None:
    authority = Authority()
    server = authority.server_context(tmp_path, hosts=("127.0.0.1",), needs_client=True)
    # TLS 1.3 tells the client only after the handshake, and asyncio may lose the alert: then it is a broken connection.
    with pytest.raises((Untrusted, OutcomeUnknown)):
        await subject_seen(server, Tls(ca=authority.certificate))


@pytest.mark.parametrize(
    ("hosts", "tls", "is_accepted"),
    [
        pytest.param(("127.0.0.1",), {}, True, id="address in the certificate"),
        pytest.param(("other.example",), {}, False, id="another name"),
        pytest.param(("other.example",), {"server_name": "other.example"}, True, id="tls-server-name"),
        pytest.param(("127.0.0.1",), {"server_name": "other.example"}, False, id="wrong tls-server-name"),
        pytest.param(("other.example",), {"verify": False}, True, id="insecure"),
    ],
)
async def test_server_name(tmp_path: Path, hosts: tuple[str, ...], tls: dict[str, object], is_accepted: bool) -> None:
    authority = Authority()
    server = authority.server_context(tmp_path, hosts=hosts)
    config = Tls(ca=None if tls.get("verify") is False else authority.certificate, **tls)  # type: ignore[arg-type]
    if is_accepted:
        assert await subject_seen(server, config) == ""
    else:
        with pytest.raises(Untrusted, match=r"TLS failed.*certificate-authority"):
            await subject_seen(server, config)


async def test_a_foreign_authority_is_not_trusted_and_not_tried_again(tmp_path: Path) -> None:
    server_tls = Authority().server_context(tmp_path, hosts=("127.0.0.1",))
    tls = Tls(ca=Authority("foreign").certificate)
    async with scripted(say_subject, tls=server_tls) as server, ApiClient(server.config(tls=tls), limits=QUICK) as client:
        with pytest.raises(Untrusted):
            await client.version()
        assert (server.requests, client.stats.retries) == ([], 0)


async def test_plain_server_behind_https() -> None:
    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with ApiClient(ClientConfig(server=f"https://127.0.0.1:{port}", tls=Tls(verify=False)), limits=QUICK) as client:
            with pytest.raises(Untrusted, match="TLS failed"):
                await client.version()


@pytest.mark.parametrize("has_memory_files", [True, False])
def test_keys_never_stay_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_memory_files: bool) -> None:
    seen: list[int] = []
    real = os.unlink

    def unlink(path: str) -> None:
        seen.append(os.stat(path).st_mode & 0o777)
        real(path)

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(os, "unlink", unlink)
    if not has_memory_files:
        monkeypatch.delattr(os, "memfd_create")
    authority = Authority()
    pair = authority.issue("alice")
    make_context(Tls(ca=authority.certificate, client_certificate=pair.certificate, client_key=pair.key))
    with pytest.raises(CredentialError, match="PEM pair"):
        make_context(Tls(client_certificate=pair.certificate, client_key=authority.issue("bob").key))
    assert list(tmp_path.iterdir()) == []
    assert seen == ([] if has_memory_files else [0o600, 0o600])


@pytest.mark.parametrize(
    ("tls", "words"),
    [
        pytest.param(
            Tls(ca=b"-----BEGIN CERTIFICATE-----\nxx\n-----END CERTIFICATE-----"), "certificate-authority", id="bad CA"
        ),
        pytest.param(Tls(ca=Path("/nowhere/ca.crt")), r"certificate-authority: cannot read /nowhere/ca.crt", id="no CA file"),
        pytest.param(Tls(client_certificate=b"x", client_key=b"y"), "client-certificate", id="bad pair"),
    ],
)
def test_bad_material_is_named(tls: Tls, words: str) -> None:
    with pytest.raises(CredentialError, match=words):
        make_context(tls)


def test_rotated_files_come_into_use(tmp_path: Path) -> None:
    authority = Authority()
    crt, key = tmp_path / "crt", tmp_path / "key"

    def write(name: str) -> None:
        pair = authority.issue(name)
        crt.write_bytes(pair.certificate)
        key.write_bytes(pair.key)

    write("first")
    now = [0.0]
    source = TlsSource(Tls(ca=authority.certificate, client_certificate=crt, client_key=key), lambda: now[0])
    first = source.context(None)
    write("second-and-longer")
    assert source.context(None) is first, "files are not looked at for every request"
    now[0] += tls_module.RECHECK_S
    second = source.context(None)
    assert second is not first
    crt.write_bytes(b"half writ")
    now[0] += tls_module.RECHECK_S
    assert source.context(None) is second, "a half-written file does not take the connection down"
