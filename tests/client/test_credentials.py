from __future__ import annotations

import asyncio
import base64
import contextlib
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from muster.client.api import ApiClient
from muster.client.config import Auth, ClientConfig, ExecPlugin, Tls
from muster.client.credentials import (
    EXPIRY_MARGIN_S,
    PLUGIN_OUTPUT_BYTES_MAX,
    PLUGIN_SPACING_S,
    TOKEN_FILE_S,
    Credential,
    Credentials,
    exec_info,
)
from muster.client.errors import CredentialError
from muster.objects.status import Unauthorized
from muster.objects.time import format_time
from tests.client.certificates import Authority
from tests.client.scripted import QUICK, Received, scripted, status

V1 = "client.authentication.k8s.io/v1"
V1BETA1 = "client.authentication.k8s.io/v1beta1"


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def config(auth: Auth) -> ClientConfig:
    return ClientConfig(server="https://example", auth=auth, source="a test")


class Plugin:
    """A real program: it counts its runs in a file and prints what the test put beside it."""

    def __init__(self, directory: Path, *, api_version: str = V1, code: str = "") -> None:
        self.answer_file = directory / "answer"
        self.runs_file = directory / "runs"
        self.info_file = directory / "info"
        self.api_version = api_version
        program = directory / "plugin.py"
        program.write_text(
            f"import os, sys, pathlib\n"
            f"with open({str(self.runs_file)!r}, 'a') as f: f.write('x')\n"
            f"pathlib.Path({str(self.info_file)!r}).write_text(os.environ['KUBERNETES_EXEC_INFO'])\n"
            f"{code}\n"
            f"sys.stdout.write(pathlib.Path({str(self.answer_file)!r}).read_text())\n"
        )
        self.spec = ExecPlugin(
            api_version=api_version,
            command=sys.executable,
            args=(str(program),),
            env=(("FROM", "test"),),
            interactive_mode="Never",
        )

    def gives(self, **fields: Any) -> None:
        self.prints({"apiVersion": self.api_version, "kind": "ExecCredential", "status": fields})

    def prints(self, answer: Any) -> None:
        self.answer_file.write_text(answer if isinstance(answer, str) else msgspec.json.encode(answer).decode())

    @property
    def runs(self) -> int:
        return len(self.runs_file.read_text()) if self.runs_file.exists() else 0


@pytest.mark.parametrize(
    ("auth", "header"),
    [
        pytest.param(Auth(), "", id="anonymous"),
        pytest.param(Auth(token="t"), "Bearer t", id="token"),
        pytest.param(Auth(username="me", password="pä"), "Basic " + base64.b64encode("me:pä".encode()).decode(), id="basic"),
    ],
)
async def test_fixed(auth: Auth, header: str) -> None:
    credentials = Credentials(config(auth), Clock())
    current = await credentials.current()
    assert current.authorization == header
    assert not credentials.refused(current), "there is no other to be had"


async def test_token_file_is_read_again(tmp_path: Path) -> None:
    clock = Clock()
    file = tmp_path / "token"
    file.write_text("one\n")
    credentials = Credentials(config(Auth(token_file=file)), clock)
    assert (await credentials.current()).authorization == "Bearer one"
    file.write_text("two")
    assert (await credentials.current()).authorization == "Bearer one"
    clock.now += TOKEN_FILE_S
    assert (await credentials.current()).authorization == "Bearer two"
    file.write_text("")
    clock.now += TOKEN_FILE_S
    assert (await credentials.current()).authorization == "Bearer two", "an empty file is one being written"
    file.write_text("three")
    assert credentials.refused(await credentials.current())
    assert (await credentials.current()).authorization == "Bearer three", "a refusal makes it look at once"


async def test_a_clock_that_is_set_back_keeps_no_failure(tmp_path: Path) -> None:
    """A machine may begin an hour ahead, without a network, and be put right a moment later."""
    clock, file = Clock(), tmp_path / "token"
    credentials = Credentials(config(Auth(token_file=file)), clock)
    with pytest.raises(CredentialError):
        await credentials.current()
    file.write_text("there")
    clock.now -= 3600
    assert (await credentials.current()).authorization == "Bearer there"


async def test_token_file_that_is_gone(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    with pytest.raises(CredentialError, match=r"gone cannot be read.*a test"):
        await Credentials(config(Auth(token_file=gone)), Clock()).current()
    fallback = await Credentials(config(Auth(token_file=gone, token="t")), Clock()).current()
    assert fallback.authorization == "Bearer t"


@pytest.mark.parametrize("api_version", [V1, V1BETA1])
async def test_plugin_runs_once_until_it_expires(tmp_path: Path, api_version: str) -> None:
    clock = Clock()
    plugin = Plugin(tmp_path, api_version=api_version)
    plugin.gives(token="one", expirationTimestamp=format_time(clock.now + 3600))
    credentials = Credentials(config(Auth(exec_plugin=plugin.spec)), clock)
    together = await asyncio.gather(*(credentials.current() for _ in range(50)))
    assert {c.authorization for c in together} == {"Bearer one"}
    assert plugin.runs == 1
    plugin.gives(token="two")
    clock.now += 3600 - EXPIRY_MARGIN_S - 1
    assert (await credentials.current()).authorization == "Bearer one"
    clock.now += 2
    assert (await credentials.current()).authorization == "Bearer two"
    clock.now += 10**9
    assert (await credentials.current()).authorization == "Bearer two", "without an expiry it lasts until it is refused"
    assert plugin.runs == 2


async def test_plugin_runs_once_for_many_refusals(tmp_path: Path) -> None:
    plugin = Plugin(tmp_path)
    plugin.gives(token="one")
    credentials = Credentials(config(Auth(exec_plugin=plugin.spec)), Clock())
    old = await credentials.current()
    plugin.gives(token="two")
    assert credentials.refused(old)
    new = await credentials.current()
    assert new.authorization == "Bearer two"
    assert credentials.refused(old), "a late refusal of the old one"
    assert await credentials.current() is new
    assert plugin.runs == 2


async def test_plugin_that_fails_is_not_started_for_every_request(tmp_path: Path) -> None:
    clock = Clock()
    plugin = Plugin(tmp_path, code="sys.exit('log in first')")
    credentials = Credentials(config(Auth(exec_plugin=plugin.spec)), clock)
    for _ in range(3):
        with pytest.raises(CredentialError, match=r"exit code 1: log in first"):
            await credentials.current()
    assert plugin.runs == 1
    clock.now += PLUGIN_SPACING_S
    with pytest.raises(CredentialError):
        await credentials.current()
    assert plugin.runs == 2


async def test_plugin_that_is_expired_at_birth_is_spaced(tmp_path: Path) -> None:
    clock = Clock()
    plugin = Plugin(tmp_path)
    plugin.gives(token="old", expirationTimestamp=format_time(clock.now - 100))
    credentials = Credentials(config(Auth(exec_plugin=plugin.spec)), clock)
    for _ in range(5):
        await credentials.current()
    assert plugin.runs == 1


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        pytest.param("hello", "no ExecCredential", id="no JSON"),
        pytest.param("[]", "no ExecCredential", id="a list"),
        pytest.param({"apiVersion": V1, "kind": "Pod", "status": {"token": "t"}}, "Pod", id="another kind"),
        pytest.param(
            {"apiVersion": V1BETA1, "kind": "ExecCredential", "status": {"token": "t"}}, "v1beta1", id="another version"
        ),
        pytest.param({"apiVersion": V1, "kind": "ExecCredential"}, "neither", id="no status"),
        pytest.param({"apiVersion": V1, "kind": "ExecCredential", "status": {"token": "a\nb"}}, "header", id="line break"),
        pytest.param(
            {"apiVersion": V1, "kind": "ExecCredential", "status": {"clientKeyData": "k"}}, "must give both", id="half a pair"
        ),
        pytest.param(
            {"apiVersion": V1, "kind": "ExecCredential", "status": {"token": "t", "expirationTimestamp": "soon"}},
            "expirationTimestamp.*soon",
            id="bad time",
        ),
        pytest.param("x" * (PLUGIN_OUTPUT_BYTES_MAX + 1), "more than 1 MiB", id="too much"),
    ],
)
async def test_bad_answers_of_a_plugin(tmp_path: Path, answer: Any, words: str) -> None:
    plugin = Plugin(tmp_path)
    plugin.prints(answer)
    with pytest.raises(CredentialError, match=words):
        await Credentials(config(Auth(exec_plugin=plugin.spec)), Clock()).current()


async def test_what_a_plugin_said_stands_beside_its_bad_answer(tmp_path: Path) -> None:
    plugin = Plugin(tmp_path, code="sys.stderr.write('log in first\\n')")
    plugin.prints("hello")
    with pytest.raises(CredentialError, match=r"no ExecCredential: .*; it said: log in first$"):
        await Credentials(config(Auth(exec_plugin=plugin.spec)), Clock()).current()


async def test_a_plugin_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    script = f"sleep 1000 & echo $! > {file}.new; mv {file}.new {file}; wait"
    spec = ExecPlugin(api_version=V1, command="sh", args=("-c", script), interactive_mode="Never")
    timeout_s = 0.25
    while not file.exists():  # on a busy machine it may not even have begun by then
        timeout_s *= 2
        credentials = Credentials(config(Auth(exec_plugin=spec)), Clock(), plugin_timeout_s=timeout_s)
        with pytest.raises(CredentialError, match=rf"sh did not finish within {timeout_s:g} s"):
            await credentials.current()
    state = Path(f"/proc/{int(file.read_text())}/stat")
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        while state.read_text().rpartition(")")[2].split()[0] != "Z":  # until the kernel is through with it
            await asyncio.sleep(0.001)


async def test_a_plugin_that_is_not_there_gives_its_hint(tmp_path: Path) -> None:
    spec = ExecPlugin(api_version=V1, command="no-such-plugin", install_hint="Get it from the shop.", interactive_mode="Never")
    with pytest.raises(CredentialError, match=r"no-such-plugin cannot be started.*Get it from the shop"):
        await Credentials(config(Auth(exec_plugin=spec)), Clock()).current()


async def test_a_plugin_that_needs_a_user_is_not_started_without_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin = Plugin(tmp_path)
    spec = msgspec.structs.replace(plugin.spec, interactive_mode="Always")
    with Path("/dev/null").open() as null:
        monkeypatch.setattr(sys, "stdin", null)
        with pytest.raises(CredentialError, match="no terminal"):
            await Credentials(config(Auth(exec_plugin=spec)), Clock()).current()
    assert plugin.runs == 0


async def test_what_a_plugin_is_told(tmp_path: Path) -> None:
    plugin = Plugin(tmp_path)
    plugin.gives(token="t")
    spec = msgspec.structs.replace(plugin.spec, provide_cluster_info=True, cluster_config={"audience": "x"})
    full = ClientConfig(server="https://example", tls=Tls(ca=b"pem", server_name="inner"), auth=Auth(exec_plugin=spec))
    await Credentials(full, Clock()).current()
    info = msgspec.json.decode(plugin.info_file.read_bytes())
    cluster = {
        "server": "https://example",
        "tls-server-name": "inner",
        "certificate-authority-data": base64.b64encode(b"pem").decode(),
        "config": {"audience": "x"},
    }
    assert info == {"apiVersion": V1, "kind": "ExecCredential", "spec": {"interactive": False, "cluster": cluster}}
    assert exec_info(plugin.spec, full, True)["spec"] == {"interactive": True}


async def test_a_refused_plugin_token_is_renewed_within_the_request(tmp_path: Path) -> None:
    plugin = Plugin(tmp_path)
    plugin.gives(token="one")

    async def handler(request: Received) -> None:
        if request.headers["authorization"] == "Bearer two":
            await request.answer(200, {"minor": "1"})
        else:
            plugin.gives(token="two")
            await request.answer(401, status(401, "Unauthorized"))

    async with scripted(handler) as server:
        async with ApiClient(server.config(auth=Auth(exec_plugin=plugin.spec)), limits=QUICK) as client:
            assert (await client.version())["minor"] == "1"
        assert [r.headers["authorization"] for r in server.requests] == ["Bearer one", "Bearer two"]


async def test_a_fixed_token_that_is_refused_is_sent_once(tmp_path: Path) -> None:
    async def handler(request: Received) -> None:
        await request.answer(401, status(401, "Unauthorized", "who are you"))

    async with scripted(handler) as server:
        async with ApiClient(server.config(auth=Auth(token="t")), limits=QUICK) as client:
            with pytest.raises(Unauthorized, match="who are you"):
                await client.version()
        assert len(server.requests) == 1


async def test_a_certificate_from_a_plugin(tmp_path: Path) -> None:
    authority = Authority()
    pair = authority.issue("from-plugin")
    plugin = Plugin(tmp_path)
    plugin.gives(clientCertificateData=pair.certificate.decode(), clientKeyData=pair.key.decode())

    async def handler(request: Received) -> None:
        subject = dict(part[0] for part in request.writer.get_extra_info("peercert")["subject"])
        await request.answer(200, {"subject": subject["commonName"]})

    server_tls = authority.server_context(tmp_path, hosts=("127.0.0.1",), needs_client=True)
    async with scripted(handler, tls=server_tls) as server:
        full = server.config(auth=Auth(exec_plugin=plugin.spec), tls=Tls(ca=authority.certificate))
        async with ApiClient(full, limits=QUICK) as client:
            assert (await client.version())["subject"] == "from-plugin"


def test_repr_hides_the_secret() -> None:
    assert "sesame" not in repr(Credential("Bearer sesame", (b"sesame", b"sesame")))
