"""Agent, tasks and store die in any order: no task is lost, none runs twice, nothing is left.

Every run of a container leaves a mark before it does anything else. The story of a seed is played, then everything is let come
to rest, and the marks are compared with what the store was told.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from pathlib import Path

import msgspec
import pytest

from muster.agent.contracts import Started
from muster.objects.status import NotFound, Raw
from tests.agent.carrier.carriers import LocalCarrier
from tests.agent.carrier.conftest import World, restarts, status

ROUNDS = 300 if os.environ.get("MUSTER_SOAK") else 2
STEPS = 14

SCRIPT = "echo run >> /marks/$NAME; sleep $SLEEP; exit $CODE"


class Story:
    def __init__(self, world: World, seed: int) -> None:
        assert isinstance(world.carrier, LocalCarrier)
        self.world = world
        self.carrier = world.carrier
        self.random = random.Random(seed)
        self.marks: Path = world.carrier.allowed
        self.marks.chmod(0o777)
        self.made: list[str] = []
        self.deleted: set[str] = set()
        self.is_up = True

    async def play(self) -> None:
        for _ in range(STEPS):
            step = self.random.choice(
                [self.create, self.create, self.crash, self.kill_task, self.outage, self.delete, self.wait]
            )
            await step()
        self.world.outage.come_back()
        if not self.is_up:
            await self.crash()

    async def create(self) -> None:
        name = f"p{len(self.made)}"
        env = {"NAME": name, "SLEEP": str(self.random.choice([0, 0.3, 1])), "CODE": str(self.random.choice([0, 1]))}
        container = self.world.container(
            SCRIPT,
            env=[{"name": key, "value": value} for key, value in env.items()],
            volumeMounts=[{"name": "marks", "mountPath": "/marks"}],
        )
        policy = self.random.choice(["Never", "OnFailure"])
        volumes = [{"name": "marks", "hostPath": {"path": str(self.marks)}}]
        self.made.append(name)
        await self.world.create(
            name=name, containers=[container], volumes=volumes, restartPolicy=policy, terminationGracePeriodSeconds=1
        )

    async def crash(self) -> None:
        if self.is_up:
            await self.carrier.kill()
        else:
            await self.carrier.start()
        self.is_up = not self.is_up

    async def outage(self) -> None:
        self.random.choice([self.world.outage.go, self.world.outage.come_back])()

    async def delete(self) -> None:
        left = [name for name in self.made if name not in self.deleted]
        if left:
            name = self.random.choice(left)
            self.deleted.add(name)
            with contextlib.suppress(NotFound):
                await self.world.delete(name, grace_s=self.random.choice([0, None]))

    async def kill_task(self) -> None:
        """The first process of some run, or its shim, as the kernel might."""
        runs = [path.parent for path in self.carrier.layout.pods.glob("*/containers/*/*/started.json")]
        alive = [run_dir for run_dir in runs if not (run_dir / "exit.json").exists()]
        if not alive:
            return
        with contextlib.suppress(FileNotFoundError):
            started = msgspec.json.decode((self.random.choice(alive) / "started.json").read_bytes(), type=Started)
            is_shim = self.random.random() < 0.5
            pid, ticks = (started.shim_pid, started.shim_start_ticks) if is_shim else (started.pid, started.start_ticks)
            kill_exactly(pid, ticks)

    async def wait(self) -> None:
        await asyncio.sleep(self.random.choice([0.05, 0.3, 0.8]))

    def runs(self, name: str) -> int:
        path = self.marks / name
        return len(path.read_text().splitlines()) if path.exists() else 0


def kill_exactly(pid: int, start_ticks: int) -> None:
    """That very process: a pid alone may be somebody else's by now."""
    with contextlib.suppress(ProcessLookupError, FileNotFoundError):
        pidfd = os.pidfd_open(pid)
        try:
            found = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
            if found == start_ticks:
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        finally:
            os.close(pidfd)


def is_settled(pod: Raw) -> bool:
    waiting = [one.get("state", {}).get("waiting", {}) for one in status(pod).get("containerStatuses") or ()]
    is_backing_off = any(one.get("reason") == "CrashLoopBackOff" for one in waiting)
    return status(pod).get("phase") in ("Succeeded", "Failed") or is_backing_off


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(ROUNDS))
@pytest.mark.needs("hostpath", "records")
async def test_any_order_of_deaths(world: World, seed: int) -> None:
    story = Story(world, seed)
    await story.play()
    for name in story.made:
        if name in story.deleted:
            await world.gone(name)
            continue
        pod = await world.when(is_settled, name)
        assert status(pod).get("reason") in (None, "Lost"), pod
        # Killed before its first word, a run leaves no mark; no run leaves two.
        assert story.runs(name) <= restarts(pod) + 1, (name, story.runs(name), pod)
        if status(pod).get("phase") != "Failed":
            assert story.runs(name) >= 1
