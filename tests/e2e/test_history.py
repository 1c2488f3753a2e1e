"""A real `muster up` that is killed, started again and stopped: its log tells what people asked for, what ran, and replays."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from muster.history import queries
from muster.history.reader import Log
from muster.history.replaying import engines, known_orders, replay
from muster.objects.status import Raw
from tests.e2e.server_process import ServerProcess

WAIT_S = 60.0


def _pod(name: str) -> Raw:
    container = {"name": "main", "image": "app", "resources": {"requests": {"cpu": "100m"}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"containers": [container], "restartPolicy": "Never"},
    }


async def _submit(server: ServerProcess, name: str) -> None:
    async with server.session() as session:
        url = f"{server.url}/api/v1/namespaces/default/pods"
        async with session.post(url, json=_pod(name)) as answer:
            assert answer.status == 201, await answer.text()


async def _until(is_true: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not is_true():
            await asyncio.sleep(0.2)


@pytest.mark.slow
async def test_a_killed_muster_and_the_next_one(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "data")
    path = tmp_path / "data" / "history"

    def placed() -> set[str]:
        return {run.pod for run in queries.runs(Log.at(path)) if run.node} if path.exists() else set()

    await server.start("--simulated-nodes", "default=1")
    try:
        await _submit(server, "first")
        await _until(lambda: "first" in placed())
        await server.kill()
        await server.start("--simulated-nodes", "default=1")
        await _submit(server, "second")
        await _until(lambda: "second" in placed())
    finally:
        await server.stop()

    log = Log.at(path)
    outcome = replay(log, engines(orders=known_orders()))
    assert outcome.is_equal, outcome.difference and outcome.difference.text()
    assert outcome.segments == 2
    assert ["killed" in finding.text for finding in outcome.findings] == [True]
    acts = [(row[2], row[3], row[5]) for row in queries.actions(log)]
    assert ("create", "pods", "first") in acts
    assert ("create", "pods", "second") in acts
