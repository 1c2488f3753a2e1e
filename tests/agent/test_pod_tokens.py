"""Tokens of pods' service accounts, asked of a real server: bound, renewed in time, kept while nobody answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from muster.agent.contracts import AgentError
from muster.agent.environment import PodFields
from muster.agent.pod_tokens import LIFETIME_S, RENEW_S_MAX, PodTokens, TokenKey, wanted
from muster.agent.volumes import files_of
from muster.client.api import ApiClient
from muster.client.kubeconfig import load
from muster.objects.kinds.pods import PodSpec
from muster.objects.kinds.volumes import Volume
from muster.objects.status import Raw
from muster.objects.time import wall_clock
from muster.server import jws
from muster.store.kubernetes import KubernetesStore
from tests.server.running import RunningServer, running

KEY: TokenKey = ("", 1000)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running(tmp_path_factory.mktemp("tokens")) as made:
        yield made


class Clock:
    def __init__(self) -> None:
        self.now = wall_clock()

    def __call__(self) -> float:
        return self.now


def _spec(account: str = "default", **more: Any) -> PodSpec:
    return msgspec.convert({"serviceAccountName": account, "containers": [{"name": "c"}], **more}, PodSpec)


@pytest.fixture
def pod(server: RunningServer, request: pytest.FixtureRequest) -> Raw:
    name = request.node.name.replace("_", "-")[:50].strip("-")
    body = {"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    return server.create("/api/v1/namespaces/default/pods", body)


def _claims(token: bytes | str) -> Any:
    assert isinstance(token, bytes), token
    parsed = jws.parse(token.decode())
    assert parsed is not None
    return parsed.claims


def _asked(kubeconfig: Path, ask: Callable[[KubernetesStore], Coroutine[Any, Any, None]]) -> None:
    async def work() -> None:
        async with ApiClient(load(kubeconfig)) as client:
            await ask(KubernetesStore(client))

    asyncio.run(work())


def test_a_token_is_bound_to_its_pod_and_renewed_in_time(server: RunningServer, pod: Raw) -> None:
    async def ask(store: KubernetesStore) -> None:
        clock = Clock()
        tokens = PodTokens(store, clock)

        async def get(key: TokenKey = KEY) -> bytes | str:
            return (await tokens.fetch(pod, _spec(), [key, key]))[key]

        first = await get()
        claims = _claims(first)
        assert claims["kubernetes.io"]["pod"] == {"name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
        assert claims["exp"] - claims["iat"] == 1000
        clock.now += 790
        assert await get() == first
        clock.now += 11
        second = await get()
        assert second != first
        assert await get() == second
        day = ("vault", 7 * 24 * 3600)
        long = await get(day)
        assert _claims(long)["aud"] == ["vault"]
        clock.now += RENEW_S_MAX - 1
        assert await get(day) == long
        clock.now += 2
        assert await get(day) != long, "at the latest after a day"

    _asked(server.server.kubeconfig_path, ask)


def test_a_token_that_is_refused_says_why(server: RunningServer, pod: Raw) -> None:
    async def ask(store: KubernetesStore) -> None:
        found = await PodTokens(store, wall_clock).fetch(pod, _spec("nobody"), [KEY])
        assert "default/nobody is refused" in str(found[KEY])

    _asked(server.server.kubeconfig_path, ask)
    found = asyncio.run(PodTokens(object(), wall_clock).fetch(pod, _spec(), [KEY]))
    assert "no API server" in str(found[KEY])


def test_a_token_stays_while_nobody_answers(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        body = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
        pod = server.create("/api/v1/namespaces/default/pods", body)
        clock = Clock()
        kept: list[Any] = []

        async def ask(store: KubernetesStore) -> None:
            tokens = PodTokens(store, clock)
            kept.append(await tokens.fetch(pod, _spec(), [KEY]))
            await asyncio.to_thread(server.stop)
            clock.now += 900
            kept.append(await tokens.fetch(pod, _spec(), [KEY]))
            clock.now += 101
            with pytest.raises(AgentError, match="can't be had now"):
                await tokens.fetch(pod, _spec(), [KEY])

        _asked(server.server.kubeconfig_path, ask)
        assert kept[0] == kept[1], "due, and still good"


def test_volumes_name_tokens() -> None:
    sources = [
        {"serviceAccountToken": {"path": "token"}},
        {"serviceAccountToken": {"path": "deep/vault", "audience": "vault", "expirationSeconds": 7200}},
    ]
    raw = {"name": "t", "projected": {"sources": sources, "defaultMode": 0o400}}
    spec = _spec(volumes=[raw])
    assert list(wanted(spec)) == [("", LIFETIME_S), ("vault", 7200)]
    volume = msgspec.convert(raw, Volume)
    tokens: dict[TokenKey, bytes | str] = {("", LIFETIME_S): b"one", ("vault", 7200): b"two"}
    files = files_of(volume, PodFields(pod={}, spec=spec, tokens=tokens), {})
    assert {path: (file.data, file.mode) for path, file in files.items()} == {
        "token": (b"one", 0o400),
        "deep/vault": (b"two", 0o400),
    }
    tokens[("vault", 7200)] = "it is refused: no"
    with pytest.raises(AgentError, match="'t': serviceAccountToken: it is refused: no"):
        files_of(volume, PodFields(pod={}, spec=spec, tokens=tokens), {})
    assert list(wanted(_spec(volumes=[{**raw, "name": "kube-api-access-x"}]))) == [], "what a cluster adds is not asked for"
    lenient = msgspec.convert({**raw, "name": "kube-api-access-x"}, Volume)
    assert set(files_of(lenient, PodFields(pod={}, spec=spec, tokens=tokens), {})) == {"token"}
