"""The log endpoint over real TLS: who may ask, what is answered, and what happens when readers go away."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from muster.agent import serving
from muster.agent.contracts import AgentError, LogQuery
from muster.agent.serving import Endpoint
from muster.agent.serving_access import AskedAccess, User, ensure_self_signed, tls_context, user_of
from muster.agent.serving_query import BadQuery, read_query
from muster.client.files import key_file
from muster.objects.status import Raw, ServiceUnavailable
from muster.objects.time import wall_clock
from muster.server.pki import Pki
from tests.agent.streaming_rig import no_streams
from tests.waiting import until

PATH = {"namespace": "ns", "pod": "p", "container": "c"}
LOGS = "/containerLogs/ns/p/c"


# -- what is asked -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        pytest.param({}, {}, id="all of it"),
        pytest.param({"follow": "true", "timestamps": "1"}, {"follow": True, "timestamps": True}, id="flags"),
        pytest.param({"follow": "false", "previous": "T"}, {"previous": True}, id="other spellings"),
        pytest.param({"tailLines": "0"}, {"tail_lines": 0}, id="no old lines"),
        pytest.param({"limitBytes": "10"}, {"limit_bytes": 10}, id="so many bytes"),
        pytest.param({"sinceSeconds": "30"}, {"since": 970.0}, id="so long ago"),
        pytest.param({"sinceTime": "1970-01-01T00:10:00Z"}, {"since": 600.0}, id="since a time"),
        pytest.param({"uid": "u"}, {"uid": "u"}, id="of one pod only"),
        pytest.param({"pretty": "x"}, {}, id="what nobody knows"),
    ],
)
def test_queries(query: Mapping[str, str], expected: Mapping[str, Any]) -> None:
    assert read_query(PATH, query, 1000.0) == LogQuery(namespace="ns", pod="p", container="c", **expected)


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"follow": "maybe"}, "follow"),
        ({"tailLines": "-1"}, "tailLines"),
        ({"tailLines": "9" * 30}, "tailLines"),
        ({"tailLines": "٣"}, "tailLines"),
        ({"limitBytes": "0"}, "limitBytes"),
        ({"sinceSeconds": "0"}, "sinceSeconds"),
        ({"sinceTime": "yesterday"}, "sinceTime"),
        ({"sinceTime": "1970-01-01T00:10:00Z", "sinceSeconds": "3"}, "sinceTime and sinceSeconds"),
    ],
)
def test_bad_queries_name_the_field(query: Mapping[str, str], field: str) -> None:
    with pytest.raises(BadQuery, match=f"^{field}"):
        read_query(PATH, query, 1000.0)


# -- the endpoint --------------------------------------------------------------------------------------------------------------


class Logs:
    """A carrier's logs: lines that are there, an error, or a container that says nothing."""

    def __init__(self) -> None:
        self.queries: list[LogQuery] = []
        self.error: AgentError | None = None
        self.is_silent = False
        self.fails_after = False
        self.open = 0

    async def read(self, query: LogQuery) -> AsyncIterator[bytes]:
        self.queries.append(query)
        if self.error is not None:
            raise self.error
        self.open += 1
        try:
            if self.is_silent:
                await asyncio.get_running_loop().create_future()
            yield b"one\n"
            yield b"two\n"
            if self.fails_after:
                raise AgentError("Gone", "the file is gone")
            if query.follow:
                await asyncio.get_running_loop().create_future()
        finally:
            self.open -= 1


class Reviews:
    """The API server's answers: `good` is known and may read, `known` is known and may not."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.is_away = False

    async def resource(self, group: str, kind: str) -> Any:
        return type("Kind", (), {"api_version": f"{group}/v1", "kind": kind})

    async def create(self, resource: Any, body: Raw) -> Raw:
        if self.is_away:
            raise ServiceUnavailable("away")
        self.asked.append(body["kind"])
        if body["kind"] == "TokenReview":
            token = body["spec"]["token"]
            return {"status": {"authenticated": token in ("good", "known"), "user": {"username": token, "groups": ["g"]}}}
        attributes = body["spec"]["resourceAttributes"]
        verb = attributes["verb"]
        assert attributes == {"verb": verb, "resource": "nodes", "subresource": "proxy", "name": "n1"}
        return {"status": {"allowed": verb == "get" and body["spec"]["user"] == "good"}}


class Rig:
    def __init__(self, directory: Path) -> None:
        self.pki = Pki.ensure(directory / "pki", wall_clock)
        self.logs = Logs()
        self.reviews = Reviews()
        self.access = AskedAccess(self.reviews, "n1", wall_clock)  # type: ignore[arg-type]
        pair = ensure_self_signed(directory / "credentials", "n1", ("box", "127.0.0.1"), wall_clock())
        self.ca = pair[0].read_bytes()
        self.problem = ""
        self.endpoint = Endpoint(
            logs=self.logs.read,
            **no_streams(),
            access=self.access,
            tls=tls_context(*pair, self.pki.ca_pem),
            clock=wall_clock,
            is_healthy=lambda: self.problem,
        )

    @contextlib.asynccontextmanager
    async def asking(
        self, path: str, *, user: str = "", groups: tuple[str, ...] = (), token: str = "", pki: Pki | None = None, **query: str
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        tls.load_verify_locations(cadata=self.ca.decode())
        if user:
            certificate, key = (pki or self.pki).issue_client(user, groups)
            with key_file(certificate + key) as file:
                tls.load_cert_chain(file)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        url = f"https://127.0.0.1:{self.endpoint.port}{path}"
        async with aiohttp.ClientSession() as session, session.get(url, ssl=tls, headers=headers, params=query) as answer:
            yield answer

    async def ask(self, path: str, **how: Any) -> tuple[int, str]:
        async with self.asking(path, **how) as answer:
            return answer.status, await answer.text()


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    made = Rig(tmp_path)
    await made.endpoint.start("127.0.0.1", 0)
    try:
        yield made
    finally:
        await made.endpoint.stop()


@pytest.mark.parametrize(
    "who",
    [
        pytest.param({"user": "system:apiserver"}, id="the API server"),
        pytest.param({"user": "somebody", "groups": ("system:masters",)}, id="an administrator"),
        pytest.param({"user": "good"}, id="a user who may, by certificate"),
        pytest.param({"token": "good"}, id="a user who may, by token"),
    ],
)
async def test_who_may(rig: Rig, who: dict[str, Any]) -> None:
    assert await rig.ask(LOGS, tailLines="2", **who) == (200, "one\ntwo\n")
    assert rig.logs.queries == [LogQuery(namespace="ns", pod="p", container="c", tail_lines=2)]
    code, text = await rig.ask("/metrics", **who)
    assert code == 200
    assert "python_info" in text


@pytest.mark.parametrize(
    ("who", "code"),
    [
        pytest.param({}, 401, id="nobody"),
        pytest.param({"token": "guessed"}, 401, id="a token that nobody knows"),
        pytest.param({"token": "known"}, 403, id="a user who may not, by token"),
        pytest.param({"user": "known"}, 403, id="a user who may not, by certificate"),
        pytest.param({"user": "system:node:n2", "groups": ("system:nodes",)}, 403, id="another node"),
    ],
)
@pytest.mark.parametrize("path", [LOGS, "/metrics", "/attach/ns/p/c", "/exec/ns/p/c", "/portForward/ns/p"])
async def test_who_may_not(rig: Rig, who: dict[str, Any], code: int, path: str) -> None:
    assert (await rig.ask(path, **who))[0] == code
    assert rig.logs.queries == []


async def test_a_certificate_of_another_authority_is_not_even_heard(rig: Rig, tmp_path: Path) -> None:
    other = Pki.ensure(tmp_path / "other", wall_clock)
    with pytest.raises(aiohttp.ClientError):
        await rig.ask(LOGS, user="system:apiserver", pki=other)
    assert rig.logs.queries == []


async def test_answers_about_users_are_remembered_for_a_while(rig: Rig) -> None:
    for _ in range(3):
        await rig.ask(LOGS, token="good")
    assert rig.reviews.asked == ["TokenReview", "SubjectAccessReview"]
    rig.reviews.is_away = True
    code, text = await rig.ask(LOGS, token="other")
    assert (code, "can't be asked" in text) == (503, True)


@pytest.mark.parametrize("path", ["/exec/ns/p/c", "/portForward/ns/p"])
async def test_who_may_read_opens_no_connection_into_a_pod(rig: Rig, path: str) -> None:
    """Nor is what is remembered of the one taken for the other."""
    assert (await rig.ask("/metrics", token="good"))[0] == 200
    code, said = await rig.ask(path, token="good")
    assert (code, "may not create nodes/proxy" in said) == (403, True), said
    assert (await rig.ask("/metrics", token="good"))[0] == 200


async def test_health_is_for_everybody(rig: Rig) -> None:
    assert await rig.ask("/healthz") == (200, "ok")
    rig.problem = "pods failed"
    assert await rig.ask("/healthz") == (503, "pods failed")


@pytest.mark.parametrize("path", ["/attach/ns/p/c", "/run/ns/p/c", "/cri/exec/x"])
async def test_what_is_not_supported_says_so(rig: Rig, path: str) -> None:
    code, text = await rig.ask(path, user="system:apiserver")
    assert code == 501
    assert "not supported" in text


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (AgentError("NotFound", "no such pod"), 404),
        (AgentError("BadRequest", "it was never started"), 400),
        (AgentError("Unavailable", "starting"), 503),
        (AgentError("Broken", "oh"), 500),
    ],
    ids=lambda one: getattr(one, "reason", one),
)
async def test_errors_before_the_first_line(rig: Rig, error: AgentError, code: int) -> None:
    rig.logs.error = error
    assert await rig.ask(LOGS, user="system:apiserver") == (code, error.message + "\n")


async def test_a_bad_query_is_answered_and_goes_no_further(rig: Rig) -> None:
    code, text = await rig.ask(LOGS, user="system:apiserver", tailLines="x")
    assert (code, "tailLines" in text) == (400, True)
    assert rig.logs.queries == []


async def test_an_error_in_the_middle_is_seen_as_one(rig: Rig) -> None:
    rig.logs.fails_after = True
    with pytest.raises(aiohttp.ClientError):
        await rig.ask(LOGS, user="system:apiserver")


@pytest.mark.parametrize("is_silent", [False, True], ids=["after some lines", "that never says anything"])
async def test_a_reader_that_goes_away_ends_its_reading(rig: Rig, is_silent: bool) -> None:
    rig.logs.is_silent = is_silent
    async with rig.asking(LOGS, user="system:apiserver", follow="true") as answer:
        assert answer.status == 200
        if not is_silent:
            assert await answer.content.readline() == b"one\n"
        assert rig.logs.open == 1

    async def is_over() -> bool:
        return rig.logs.open == 0

    await until(is_over)


async def test_too_many_readers(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "STREAMS_MAX", 1)
    async with rig.asking(LOGS, user="system:apiserver", follow="true"):
        assert (await rig.ask(LOGS, user="system:apiserver"))[0] == 429

    async def is_free() -> bool:
        return (await rig.ask(LOGS, user="system:apiserver"))[0] == 200

    await until(is_free)


async def test_stopping_with_readers_ends(rig: Rig) -> None:
    async with rig.asking(LOGS, user="system:apiserver", follow="true") as answer:
        await answer.content.readline()
        await rig.endpoint.stop()
    assert rig.logs.open == 0


async def test_a_port_that_is_taken_is_an_error(rig: Rig, tmp_path: Path) -> None:
    other = Endpoint(logs=rig.logs.read, **no_streams(), access=rig.access, tls=None, clock=wall_clock)
    with pytest.raises(OSError, match=str(rig.endpoint.port)):
        await other.start("127.0.0.1", rig.endpoint.port)
    await other.stop()


def test_a_self_signed_certificate_is_kept_until_it_is_old(tmp_path: Path) -> None:
    now = wall_clock()
    certificate, _ = ensure_self_signed(tmp_path, "n1", ("127.0.0.1",), now)
    first = certificate.read_bytes()
    ensure_self_signed(tmp_path, "n1", ("127.0.0.1",), now + 86400)
    assert certificate.read_bytes() == first
    ensure_self_signed(tmp_path, "n1", ("127.0.0.1",), now + 300 * 86400)
    assert certificate.read_bytes() != first


def test_users_of_certificates() -> None:
    subject = ((("organizationName", "a"),), (("organizationName", "b"),), (("commonName", "me"),))
    assert user_of({"subject": subject}) == User("me", ("a", "b"))
    assert user_of({}) == User("")
