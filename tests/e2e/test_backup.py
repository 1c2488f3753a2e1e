"""Backups and restores as an operator makes them: the real server under a storm, the real command line, SIGKILL by seed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import shutil
import sys
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from muster.store.embedded.archive import Contents, read
from muster.store.embedded.database import Row
from muster.store.embedded.restoring import READY, finish
from muster.store.embedded.snapshot import snapshot_of_file
from tests.e2e.server_process import ServerProcess
from tests.e2e.test_crash import CONFIG_MAPS, SELECTOR, Writer

SEED = int(os.environ.get("MUSTER_SEED", "20261116"))
WRITERS = 6
KILLS = 60 if os.environ.get("MUSTER_SOAK") else 6
Object = dict[str, Any]


async def muster(*args: str, kill_after_s: float | None = None) -> tuple[int, str]:
    """Run the command line; its code and all that it said. Killed at that moment if it has not ended by then."""
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "muster.cli.main",
        *args,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={k: v for k, v in os.environ.items() if not k.startswith(("KUBE", "MUSTER"))},
    )
    if kill_after_s is not None:
        with contextlib.suppress(TimeoutError):
            # The randomness under test is the moment of death; nothing waits for anything here.
            await asyncio.wait_for(child.wait(), kill_after_s)
        with contextlib.suppress(ProcessLookupError):
            child.kill()
    output, _ = await child.communicate()
    assert child.returncode is not None
    return child.returncode, output.decode()


def verified(path: Path) -> Contents:
    with path.open("rb") as file:
        return read(file)


class History:
    """Every event of the storm's objects, so that their state at any version is known."""

    def __init__(self) -> None:
        self.events: list[tuple[int, str, Object]] = []

    async def follow(self, session: aiohttp.ClientSession, url: str, version: str) -> None:
        path = f"{CONFIG_MAPS}?watch=1&{SELECTOR}&allowWatchBookmarks=true&resourceVersion={version}"
        async with session.get(url + path) as stream:
            assert stream.status == 200, await stream.text()
            async for line in stream.content:
                event = msgspec.json.decode(line)
                assert event["type"] != "ERROR", event
                rv = int(event["object"]["metadata"]["resourceVersion"])
                self.events.append((rv, event["type"], event["object"]))

    @property
    def seen(self) -> int:
        return self.events[-1][0] if self.events else 0

    def at(self, version: int) -> dict[str, Object]:
        state: dict[str, Object] = {}
        for rv, type_, found in self.events:
            if rv <= version and type_ != "BOOKMARK":
                if type_ == "DELETED":
                    state.pop(found["metadata"]["name"], None)
                else:
                    state[found["metadata"]["name"]] = found
        return state


async def listed(server: ServerProcess) -> tuple[dict[str, Object], str]:
    async with server.session() as session, session.get(f"{server.url}{CONFIG_MAPS}?{SELECTOR}") as answer:
        assert answer.status == 200
        body = msgspec.json.decode(await answer.read())
    kind = {"apiVersion": "v1", "kind": "ConfigMap"}
    return {item["metadata"]["name"]: kind | item for item in body["items"]}, body["metadata"]["resourceVersion"]


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_a_backup_under_a_storm_is_one_state_and_comes_back(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "data")
    await server.start()
    _, version = await listed(server)
    history = History()
    writers = [Writer(number, SEED) for number in range(WRITERS)]
    backups: list[Path] = []
    async with server.session() as session:
        following = asyncio.create_task(history.follow(session, server.url, version))
        writing = [asyncio.create_task(writer.write_until_cut(session, server.url)) for writer in writers]
        for number in range(3):
            path = tmp_path / f"backup-{number}.tar"
            keys = ("--with-keys",) if number == 2 else ()
            before = sum(len(writer.versions) for writer in writers)
            code, output = await muster("backup", str(path), "--data-dir", str(server.data_dir), *keys)
            assert code == 0, output
            assert "verified" in output
            assert sum(len(writer.versions) for writer in writers) > before, "nothing was written meanwhile"
            backups.append(path)
        for task in writing:
            task.cancel()
        await asyncio.gather(*writing)
        last = max(verified(path).manifest.resource_version for path in backups)
        async with asyncio.timeout(60):
            while history.seen < last and not following.done():
                body = {"metadata": {"name": "storm-end", "labels": {"storm": "yes"}, "generateName": "x"}, "data": {}}
                async with session.post(server.url + CONFIG_MAPS, json=body) as answer:
                    assert answer.status in (201, 409), await answer.text()
                await asyncio.sleep(0.05)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
    _, lost = await listed(server)
    assert await server.stop() == 0

    for number, path in enumerate(backups):
        assert path.stat().st_mode & 0o777 == 0o600
        manifest = verified(path).manifest
        again = ServerProcess(tmp_path / f"restored-{number}" / "data")
        code, output = await muster("restore", str(path), "--data-dir", str(again.data_dir))
        assert code == 0, output
        await again.start()
        found, now = await listed(again)
        expected = history.at(manifest.resource_version)
        assert found == expected, f"seed {SEED}: backup {number} is not the state at version {manifest.resource_version}"
        assert int(now) > int(lost) + 1_000_000
        for old in (version, str(manifest.resource_version), lost):
            assert await _is_told_to_list_anew(again, old)
        if number == 2:
            assert (again.data_dir / "pki" / "ca.crt").read_bytes() == (server.data_dir / "pki" / "ca.crt").read_bytes()
        assert await again.stop() == 0


async def _is_told_to_list_anew(server: ServerProcess, version: str) -> bool:
    path = f"{server.url}{CONFIG_MAPS}?watch=1&resourceVersion={version}"
    async with server.session() as session, session.get(path) as answer:
        body = msgspec.json.decode(await answer.content.readline())
    status = body["object"] if answer.status == 200 else body
    return bool(status["code"] == 410 and status["reason"] in ("Expired", "Gone"))


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.timeout(3600)
async def test_killed_at_any_moment(tmp_path: Path) -> None:
    """A killed `backup` leaves no half file under its name; a killed `restore` the old state, or one that goes on by itself."""
    chance = random.Random(SEED)
    server = ServerProcess(tmp_path / "data")
    await server.start()
    async with server.session() as session:
        for number in range(200):
            body = {"metadata": {"name": f"s{number}", "labels": {"storm": "yes"}}, "data": {"t": chance.randbytes(2000).hex()}}
            async with session.post(server.url + CONFIG_MAPS, json=body) as answer:
                assert answer.status == 201
    before, _ = await listed(server)
    target = tmp_path / "backups"
    loop = asyncio.get_running_loop()
    begun = loop.time()
    code, output = await muster("backup", "--to", str(target), "--data-dir", str(server.data_dir), "-o", "json")
    assert code == 0, output
    takes_s = loop.time() - begun
    """How long a command takes here, about: most are to be killed before they are done, on any machine."""
    killed = 0
    for _ in range(KILLS):
        arguments = ("backup", "--to", str(target), "--keep", "3", "--data-dir", str(server.data_dir))
        code, _ = await muster(*arguments, kill_after_s=chance.uniform(0.2, 1.1) * takes_s)
        killed += code == -9
        for path in target.glob("*.tar"):
            assert verified(path).manifest.objects >= 200
    code, output = await muster("backup", "--to", str(target), "--keep", "1", "--data-dir", str(server.data_dir), "-o", "json")
    assert code == 0, output
    archive = Path(json.loads(output)["file"])
    assert [path.name for path in target.iterdir()] == [archive.name], "drafts of killed commands, or older backups, are left"
    assert (await listed(server))[0] == before
    async with server.session() as session, session.delete(f"{server.url}{CONFIG_MAPS}/s0") as answer:
        assert answer.status == 200
    assert await server.stop() == 0

    old = list(snapshot_of_file(server.data_dir / "store").rows())
    new: list[Row] = []
    with archive.open("rb") as file:
        read(file, new.extend)
    assert old != new
    content = archive.read_bytes()
    for number in range(KILLS):
        place = tmp_path / f"place-{number}"
        shutil.copytree(server.data_dir, place)
        restoring = ("restore", str(archive), "--data-dir", str(place), "--force")
        code, _ = await muster(*restoring, kill_after_s=chance.uniform(0.2, 1.1) * takes_s)
        killed += code == -9
        finish(place, 0.0)  # as the next start of a server does
        assert not (place / READY).exists()
        assert list(snapshot_of_file(place / "store").rows()) in (old, new)
        shutil.rmtree(place)
    assert archive.read_bytes() == content
    assert killed, f"seed {SEED}: every command was done before it could be killed"
