"""Pulling the plug: SIGKILL at random moments under a write storm, over the real API, by seed.

What must hold after every restart: each acknowledged write is there; no object is in a state that nobody wrote; and a
watcher that resumes from the last version it saw has, in the end, seen every acknowledged version once and in order.
"""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from tests.e2e.server_process import ServerProcess

ROUNDS = 200 if os.environ.get("MUSTER_SOAK") else 6
WRITERS = 8
OBJECTS_PER_WRITER = 5
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
SELECTOR = "labelSelector=storm"

Absent = None
State = int | None
"""The generation number that a config map holds, or None when it does not exist."""


class Writer:
    """Owns some names, so that it alone knows what each may be: the last acknowledged state, or the one in flight."""

    def __init__(self, number: int, seed: int) -> None:
        self.names = [f"storm-{number}-{i}" for i in range(OBJECTS_PER_WRITER)]
        self.random = random.Random(f"{seed}-{number}")
        self.acknowledged: dict[str, State] = dict.fromkeys(self.names, Absent)
        self.in_flight: dict[str, State] = {}
        self.versions: set[str] = set()
        self.counter = 0

    async def write_until_cut(self, session: aiohttp.ClientSession, url: str) -> None:
        try:
            while True:
                await self._one(session, url)
        except (aiohttp.ClientError, ConnectionError, TimeoutError, asyncio.CancelledError):
            return

    async def _one(self, session: aiohttp.ClientSession, url: str) -> None:
        name = self.random.choice(self.names)
        self.counter += 1
        current = self.acknowledged[name]
        if current is not Absent and self.random.random() < 0.25:
            method, path, body, after = "DELETE", f"{CONFIG_MAPS}/{name}", None, Absent
        else:
            body, after = _config_map(name, self.counter), self.counter
            method, path = ("POST", CONFIG_MAPS) if current is Absent else ("PUT", f"{CONFIG_MAPS}/{name}")
        self.in_flight[name] = after
        async with session.request(method, url + path, json=body) as answer:
            content = await answer.read()
            assert answer.status in (200, 201), (method, path, answer.status, content)
        self.acknowledged[name] = after
        del self.in_flight[name]
        if method != "DELETE":
            self.versions.add(msgspec.json.decode(content)["metadata"]["resourceVersion"])

    def settle(self, found: dict[str, State]) -> None:
        """After a restart: what is there must be what was acknowledged, or what was in flight when the plug was pulled."""
        for name in self.names:
            allowed = {self.acknowledged[name]}
            if name in self.in_flight:
                allowed.add(self.in_flight[name])
            assert found.get(name, Absent) in allowed, (name, found.get(name), allowed)
            self.acknowledged[name] = found.get(name, Absent)
        self.in_flight.clear()


class Watcher:
    """Follows all config maps of the storm across restarts, from the last version that it saw."""

    def __init__(self, version: str) -> None:
        self.version = version
        self.versions: list[int] = []
        self.state: dict[str, State] = {}

    async def follow(self, session: aiohttp.ClientSession, url: str) -> None:
        path = f"{CONFIG_MAPS}?watch=1&{SELECTOR}&allowWatchBookmarks=true&resourceVersion={self.version}"
        try:
            async with session.get(url + path) as stream:
                assert stream.status == 200, await stream.text()
                async for line in stream.content:
                    self._take(msgspec.json.decode(line))
        except (aiohttp.ClientError, ConnectionError, asyncio.CancelledError, msgspec.DecodeError):
            return  # cut off, perhaps in the middle of a line: that event was not seen

    def _take(self, event: dict[str, Any]) -> None:
        assert event["type"] != "ERROR", event
        metadata = event["object"]["metadata"]
        self.version = metadata["resourceVersion"]
        if event["type"] == "BOOKMARK":
            return
        self.versions.append(int(self.version))
        name = metadata["name"]
        if event["type"] == "ADDED":
            assert name not in self.state, ("added twice", event)
        else:
            assert name in self.state, ("changed before it was added", event)
        if event["type"] == "DELETED":
            del self.state[name]
        else:
            self.state[name] = _generation(event["object"])


def _config_map(name: str, generation: int) -> dict[str, Any]:
    # Two keys that must agree: a half-applied write would show.
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "labels": {"storm": "yes"}},
        "data": {"first": str(generation), "padding": "x" * 500, "last": str(generation)},
    }


def _generation(raw: dict[str, Any]) -> int:
    assert raw["data"]["first"] == raw["data"]["last"], raw
    return int(raw["data"]["first"])


async def _list(session: aiohttp.ClientSession, url: str) -> tuple[dict[str, State], str]:
    async with session.get(f"{url}{CONFIG_MAPS}?{SELECTOR}") as answer:
        assert answer.status == 200
        listed = msgspec.json.decode(await answer.read())
    return {item["metadata"]["name"]: _generation(item) for item in listed["items"]}, listed["metadata"]["resourceVersion"]


async def _storm(server: ServerProcess, writers: list[Writer], watcher: Watcher, pause_s: float) -> None:
    async with server.session() as session:
        watching = asyncio.create_task(watcher.follow(session, server.url))
        writing = [asyncio.create_task(writer.write_until_cut(session, server.url)) for writer in writers]
        await asyncio.sleep(pause_s)
        await server.kill()
        await asyncio.wait_for(asyncio.gather(watching, *writing), 30)


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.timeout(7200)
async def test_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    seed = int(os.environ.get("MUSTER_SEED", "20261115"))
    chance = random.Random(seed)
    server = ServerProcess(tmp_path / "data")
    writers = [Writer(number, seed) for number in range(WRITERS)]
    await server.start()
    async with server.session() as session:
        _, version = await _list(session, server.url)
    watcher = Watcher(version)
    for _ in range(ROUNDS):
        await _storm(server, writers, watcher, pause_s=chance.uniform(0.02, 0.5))
        await server.start()
        async with server.session() as session:
            found, _ = await _list(session, server.url)
        for writer in writers:
            writer.settle(found)

    # Let the watcher catch up with a last write, then compare all that it saw with all that was acknowledged.
    async with server.session() as session:
        watching = asyncio.create_task(watcher.follow(session, server.url))
        async with session.post(server.url + CONFIG_MAPS, json=_config_map("storm-last", 1)) as answer:
            assert answer.status == 201, await answer.text()
        async with asyncio.timeout(30):
            while "storm-last" not in watcher.state:
                await asyncio.sleep(0.01)
        watching.cancel()
        await watching
        found, _ = await _list(session, server.url)
    assert await server.stop() == 0

    acknowledged = {int(version) for writer in writers for version in writer.versions}
    assert watcher.versions == sorted(set(watcher.versions)), "a repeated or reordered event"
    assert not acknowledged - set(watcher.versions), "an acknowledged write that the watcher never saw"
    assert watcher.state == found
    assert len(acknowledged) > ROUNDS, "the storm wrote too little to prove anything"
