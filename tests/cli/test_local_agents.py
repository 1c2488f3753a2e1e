"""The agents of `muster up`: which there are, what each is given, and how they are looked after. Agents are real processes."""

from __future__ import annotations

import asyncio
import itertools
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from muster.agent.claim import Claim, holder_of
from muster.agent.layout import Layout
from muster.agent.user_ranges import FIRST, LAST, users_of
from muster.cli import local_agents
from muster.cli.errors import ExitCode, UsageError
from muster.cli.local_agents import LocalAgents, end_agent, parse_agents
from muster.objects.time import wall_clock
from muster.sim.workloads import domain
from muster.store.backoff import Backoff
from muster.store.embedded import EmbeddedStore
from tests.waiting import until


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        pytest.param((), None, id="nothing"),
        pytest.param(("auto",), None, id="auto"),
        pytest.param(("alice,bob", "default"), ("alice", "bob", "default"), id="several"),
        pytest.param(("alice, alice",), ("alice",), id="twice"),
    ],
)
def test_agents_by_name(values: tuple[str, ...], expected: tuple[str, ...] | None) -> None:
    assert parse_agents(values) == expected


@pytest.mark.parametrize("value", ["Alice", "a/b", "auto,alice", "../x", ",".join(f"p{n}" for n in range(65))])
def test_agents_that_cannot_be(value: str) -> None:
    with pytest.raises(UsageError, match="--agents"):
        parse_agents((value,))


def test_agents_of_one_machine_have_users_of_their_own() -> None:
    ranges = sorted(users_of(Path(f"/data/agents/{n}")) for n in range(50))
    assert all(FIRST <= first < last <= LAST for first, last in ranges)
    assert len({first for first, _ in ranges}) == 50
    assert all(before[1] < after[0] for before, after in itertools.pairwise(ranges))


# -- looking after them --------------------------------------------------------------------------------------------------------

PRETENDED = """
import json, signal, sys, time
from pathlib import Path
from muster.agent.claim import Claim

directory = Path(sys.argv[sys.argv.index("--data-dir") + 1])
claim = Claim(directory / "agent.lock")
said = directory / "said.jsonl"


def say(what):
    with said.open("a") as file:
        file.write(json.dumps(what) + "\\n")


signal.signal(signal.SIGHUP, lambda *_: say("reload"))
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
import os
say({"token": bool(os.environ.get("MUSTER_JOIN_TOKEN")), "join": sys.argv[sys.argv.index("--join") + 1]})
while not (directory / "end").exists():
    time.sleep(0.02)
code = int((directory / "end").read_text())
(directory / "end").unlink()
sys.exit(code)
"""
"""Stands for the agent program: what it is told is all that matters here. The real one is in tests/e2e/test_agent.py."""


class Rig:
    def __init__(self, store: EmbeddedStore, root: Path) -> None:
        self.store = store
        self.root = root
        self.agents = self.another(None)

    def another(self, wanted: tuple[str, ...] | None) -> LocalAgents:
        return LocalAgents(
            self.root, self.store, "https://127.0.0.1:9", wanted=wanted, ca_path=self.root / "ca.crt", clock=wall_clock
        )

    async def create(self, raw: dict[str, Any]) -> None:
        await self.store.create(await self.store.resource("kuscia.secretflow", "Domain"), raw)

    def pid(self, party: str) -> int | None:
        return holder_of(self.root / "agents" / party / "agent.lock") or None

    def said(self, party: str) -> list[Any]:
        path = self.root / "agents" / party / "said.jsonl"
        return [yaml.safe_load(line) for line in path.read_text().splitlines()] if path.exists() else []

    def config(self, party: str) -> dict[str, Any]:
        found: dict[str, Any] = yaml.safe_load((self.root / "agents" / party / "agent.yaml").read_text())
        return found

    async def until_running(self, *parties: str) -> None:
        async def are_so() -> bool:
            return all(self.said(party) and self.pid(party) for party in parties)

        await until(are_so)


@pytest.fixture
async def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    real = asyncio.create_subprocess_exec

    async def pretend(*command: str, **options: Any) -> asyncio.subprocess.Process:
        return await real(sys.executable, "-c", PRETENDED, *command[3:], **options)

    async def mint(_store: object, party: str, _clock: object) -> str:
        return f"token-of-{party}"

    monkeypatch.setattr(asyncio, "create_subprocess_exec", pretend)
    monkeypatch.setattr(local_agents, "mint_token", mint)
    monkeypatch.setattr(local_agents, "LOOK_S", 0.05)
    store = await EmbeddedStore.open(None, clock=wall_clock)
    made = Rig(store, tmp_path)
    try:
        yield made
    finally:
        await made.agents.stop()
        await store.close()


async def test_one_for_each_local_party_with_an_even_share(rig: Rig) -> None:
    await rig.create(domain("alice"))
    await rig.create(domain("carol") | {"spec": {"role": "partner"}})
    rig.agents.start()
    await rig.until_running("default", "alice")
    assert rig.said("alice") == [{"token": True, "join": "https://127.0.0.1:9"}]
    assert (rig.config("alice")["domain"], rig.config("default")["domain"]) == ("alice", "")
    assert rig.config("alice")["capacity"] == {"share": 0.5, "shareOffset": 0.5}
    assert rig.config("alice")["process"]["hide"] == [str(rig.root)]
    assert not (rig.root / "agents" / "carol").exists(), "a partner has machines of its own"
    await rig.create(domain("bob"))
    await rig.until_running("bob")

    async def has_reloaded() -> bool:
        return "reload" in rig.said("alice") and "reload" in rig.said("default")

    await until(has_reloaded)
    assert rig.config("alice")["capacity"]["share"] == pytest.approx(0.3333)
    await rig.store.delete(await rig.store.resource("kuscia.secretflow", "Domain"), "bob")

    async def is_gone() -> bool:
        return rig.pid("bob") is None

    await until(is_gone)
    assert sorted(rig.agents.running()) == ["alice", "default"]


async def test_stopping_ends_them(rig: Rig) -> None:
    rig.agents.start()
    await rig.until_running("default")
    assert await rig.agents.stop() == 0
    assert rig.pid("default") is None


async def test_one_that_dies_is_started_again(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_agents, "_RESTART", Backoff(base_s=0.01, max_s=0.02))
    rig.agents.start()
    await rig.until_running("default")
    (rig.root / "agents/default/end").write_text("1")

    async def is_second() -> bool:
        return len(rig.said("default")) == 2

    await until(is_second)


async def test_one_whose_node_was_deleted_joins_again(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_agents, "_RESTART", Backoff(base_s=0.01, max_s=0.02))
    rig.agents.start()
    await rig.until_running("default")
    credentials = rig.root / "agents/default/credentials"
    credentials.mkdir()
    (credentials / "node.crt").touch()
    (rig.root / "agents/default/end").write_text(str(int(ExitCode.FORBIDDEN)))

    async def is_second() -> bool:
        return len(rig.said("default")) == 2

    await until(is_second)
    assert rig.said("default")[1]["token"]
    assert not credentials.exists()


async def test_an_agent_of_an_earlier_start_is_replaced(rig: Rig) -> None:
    rig.agents.start()
    await rig.until_running("default")
    first = rig.pid("default")
    task, rig.agents._task = rig.agents._task, None  # as after a crash: nobody ends the children
    assert task is not None
    task.cancel()
    left, rig.agents = rig.agents, rig.another(("default",))
    rig.agents.start()

    async def is_another() -> bool:
        return rig.pid("default") not in (None, first)

    await until(is_another)
    await left.stop()


def test_ending_an_agent_ends_no_other_process(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    assert end_agent(layout, 5.0), "nobody is there"
    other = subprocess.Popen(["sleep", "1000"])
    try:
        layout.lock.write_text(f"{other.pid}\n")
        assert end_agent(layout, 5.0), "the file names a process, but nobody holds the lock"
        assert other.poll() is None
    finally:
        other.send_signal(signal.SIGKILL)
        other.wait()
    Claim(layout.lock).release()
