"""Thresholds, and checks against real servers and a scripted runtime."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
import pytest
from aiohttp import web

from muster.agent.contracts import AgentError, ExecResult, RunRef
from muster.agent.probes import Asker, Prober, Result, Tally, refusals
from muster.objects.kinds.containers import Container, LifecycleHandler, Probe

REF = RunRef("u", "main", 0)


class Execs:
    """The one method of a runtime that probes use."""

    def __init__(self, *answers: ExecResult | AgentError) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, ...]] = []

    async def exec(self, ref: RunRef, argv: Sequence[str], timeout_s: float) -> ExecResult:
        self.asked.append(tuple(argv))
        answer = self.answers.pop(0)
        if isinstance(answer, AgentError):
            raise answer
        return answer


def probe(**more: Any) -> Probe:
    return msgspec.convert(more, Probe)


def asker(runtime: Any = None, container: dict[str, Any] | None = None) -> Asker:
    asked: Any = runtime if runtime is not None else Execs()
    return Asker(asked, REF, msgspec.convert({"name": "main", **(container or {})}, Container), "127.0.0.1")


@pytest.mark.parametrize(
    ("thresholds", "results", "verdicts"),
    [
        ({}, "+-+", [True, True, True]),
        ({"failureThreshold": 1}, "+-+", [True, False, True]),
        ({"failureThreshold": 2, "successThreshold": 2}, "++--++", [None, True, True, False, False, True]),
        ({"failureThreshold": 2}, "-+-+--", [None, True, True, True, True, False]),
        ({"failureThreshold": 3}, "--", [None, None]),
    ],
)
def test_tally(thresholds: dict[str, int], results: str, verdicts: list[bool | None]) -> None:
    tally = Tally(probe(**thresholds))
    assert [tally.count(result == "+") for result in results] == verdicts


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (ExecResult(0, b"fine\n"), Result(True, "fine")),
        (ExecResult(1, b"\xff sick"), Result(False, "\ufffd sick")),
        (ExecResult(0, b"", is_timeout=True), Result(False, "command 'x' took longer than 1 s")),
        (AgentError("NotFound", "it is gone"), Result(False, "it is gone")),
    ],
)
async def test_exec(answer: ExecResult | AgentError, expected: Result) -> None:
    assert await asker(Execs(answer)).probe(probe(exec={"command": ["x"]})) == expected


@pytest.fixture
async def port() -> AsyncIterator[int]:
    """Answers with the status in its path; `/slow` never, `/big` with more than anyone reads."""

    async def answer(request: web.Request) -> web.StreamResponse:
        word = request.match_info["word"]
        if word == "slow":
            await asyncio.sleep(1000)
        if word == "big":
            return web.Response(text="x" * 10_000_000)
        if word == "header":
            return web.Response(status=200 if request.headers.get("X-Probe") == "yes" else 500)
        headers = {"Location": "http://192.0.2.1/"} if word == "302" else {}
        return web.Response(status=int(word), headers=headers)

    app = web.Application()
    app.router.add_get("/{word}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield runner.addresses[0][1]
    await runner.cleanup()


@pytest.mark.parametrize(
    ("path", "is_success"),
    [("/200", True), ("200", True), ("/302", True), ("/404", False), ("/500", False), ("/slow", False), ("/big", True)],
)
async def test_http(port: int, path: str, is_success: bool) -> None:
    patience = {"timeoutSeconds": 1 if path == "/slow" else 60}
    assert (await asker().probe(probe(httpGet={"port": port, "path": path}, **patience))).is_success is is_success


async def test_http_by_the_name_of_a_port_with_headers(port: int) -> None:
    named = asker(container={"ports": [{"name": "web", "containerPort": port}]})
    get = {"port": "web", "path": "/header", "httpHeaders": [{"name": "X-Probe", "value": "yes"}]}
    assert (await named.probe(probe(httpGet=get))).is_success
    wrong = await named.probe(probe(httpGet={**get, "port": "nobody"}))
    assert (wrong.is_success, "nobody" in wrong.message) == (False, True)


async def test_tcp(port: int) -> None:
    assert (await asker().probe(probe(tcpSocket={"port": port}))).is_success
    assert not (await asker().probe(probe(tcpSocket={"port": 1}))).is_success
    assert not (await asker().probe(probe(tcpSocket={"port": 0}))).is_success


async def test_hooks(port: int) -> None:
    def hook(**more: Any) -> LifecycleHandler:
        return msgspec.convert(more, LifecycleHandler)

    assert (await asker().hook(hook(httpGet={"port": port, "path": "/200"}), 5)).is_success
    assert not (await asker().hook(hook(httpGet={"port": port, "path": "/500"}), 5)).is_success
    assert (await asker().hook(hook(sleep={"seconds": 0}), 5)).is_success
    runtime = Execs(ExecResult(2, b"no"))
    assert await asker(runtime).hook(hook(exec={"command": ["a", "b"]}), 5) == Result(False, "no")
    assert runtime.asked == [("a", "b")]


async def test_a_startup_probe_ends_with_its_verdict() -> None:
    told: list[tuple[bool | None, bool]] = []
    runtime = Execs(ExecResult(1, b""), ExecResult(0, b""))
    often = probe(exec={"command": ["x"]}, periodSeconds=1)
    started = Prober("startup", often, asker(runtime), lambda v, r: told.append((v, r.is_success)))
    await started.run()
    assert told == [(None, False), (True, True)]


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ({"livenessProbe": {"grpc": {"port": 1}}}, "grpc"),
        ({"readinessProbe": {"httpGet": {"port": 1, "host": "192.0.2.1"}}}, "192.0.2.1"),
        ({"startupProbe": {"tcpSocket": {"port": 1, "host": "h"}}}, "'h'"),
        ({"lifecycle": {"preStop": {"httpGet": {"port": 1, "host": "h"}}}}, "preStop"),
    ],
)
def test_refusals(more: dict[str, Any], word: str) -> None:
    (message,) = refusals(msgspec.convert({"name": "main", **more}, Container))
    assert word in message
