"""A process under a storm of writes is killed at random moments, by seed, again and again on the same directory.

After each kill: every write that was answered is there, none is half there, everything a watcher was shown is there, and a
watch from any version it had seen goes on with what follows, without a gap or a repetition.

Five rounds by default; MUSTER_SOAK=1 runs 200. A round that fails says its seed: MUSTER_CRASH_SEED=n runs that one first.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from muster.objects.status import Expired
from muster.store.contract import EventType
from muster.store.embedded import EmbeddedStore
from tests.store.embedded.crash_writer import value_of
from tests.store.embedded.support import CONFIG_MAPS, ManualClock

ROOT = Path(__file__).parents[3]
ROUNDS = 200 if os.environ.get("MUSTER_SOAK") else 5
FIRST_SEED = int(os.environ.get("MUSTER_CRASH_SEED", "1"))

State = dict[str, str]
Seen = tuple[int, str, str]


def storm(directory: Path, log: Path, seed: int) -> bool:
    """Start a writer, kill it at a moment that the seed picks. False when it was killed before it had opened the store."""
    rng = random.Random(seed)
    command = [sys.executable, "-m", "tests.store.embedded.crash_writer", str(directory), str(log), str(seed)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None
        dies_early = rng.random() < 0.15
        if not dies_early:
            assert process.stdout.readline() == b"ready\n"
        # The randomness under test is the moment of death; nothing waits for anything here.
        time.sleep(rng.uniform(0.2, 0.7) if dies_early else rng.uniform(0.0, 0.6))
        process.kill()
        is_open = not dies_early or process.stdout.readline() == b"ready\n"
        assert process.wait() == -9
    return is_open


def read_log(log: Path) -> list[list[Any]]:
    lines = log.read_bytes().split(b"\n") if log.exists() else []
    return [msgspec.json.decode(line) for line in lines[:-1]]


class Expected:
    """What must be there, and what may be: a write that was started and not answered happened wholly or not at all."""

    def __init__(self, before: State) -> None:
        self.sure = dict(before)
        self.open: dict[int, dict[str, str | None]] = {}
        self.versions: list[int] = []

    def read(self, entries: list[list[Any]]) -> None:
        for entry in entries:
            if entry[0] == "start":
                assert entry[1] not in self.open
                self.open[entry[1]] = entry[3]
            elif entry[0] == "done":
                self._settle(self.open.pop(entry[1]))
                self.versions += map(int, entry[2])

    def _settle(self, changes: dict[str, str | None]) -> None:
        for name, value in changes.items():
            if value is None:
                self.sure.pop(name, None)
            else:
                self.sure[name] = value

    def check(self, found: State) -> None:
        """Each open write is either all in `found` or not at all; nothing else differs from what is sure."""
        for changes in self.open.values():
            happened = [found.get(name) == value for name, value in changes.items()]
            assert all(happened) or not any(happened), f"half of {changes} is there"
            if all(happened):
                self._settle(changes)
        lost = {name: value for name, value in self.sure.items() if found.get(name) != value}
        assert not lost, f"acknowledged and not there: {lost}"
        assert found == self.sure


async def events_after(store: EmbeddedStore, version: int) -> list[Seen] | None:
    """Everything a watch from `version` gives; None when that is compacted."""
    try:
        watcher = store.watch_records(CONFIG_MAPS, "default", resource_version=str(version), timeout_s=0)
    except Expired:
        return None
    found: list[Seen] = []
    async for batch in watcher:
        found += [(e.rv, e.type.value, e.record.name) for e in batch if e.type is not EventType.BOOKMARK]
    # A watch ends at its timeout with what it had by then, so go on from there until there is nothing more.
    if found:
        rest = await events_after(store, found[-1][0])
        assert rest is not None
        found += rest
    return found


async def check_watches(store: EmbeddedStore, before: State, start: int, seen: list[Seen], rng: random.Random) -> None:
    whole = await events_after(store, start)
    if whole is None:
        # Compacted: then the watcher lists again; what it was shown must still be history's beginning or older.
        assert seen
        whole = await events_after(store, seen[-1][0])
        if whole is None:
            return
        whole = [*seen, *whole]
    assert whole[: len(seen)] == seen, "a watcher was shown something that did not last"
    versions = [event[0] for event in whole]
    assert versions == sorted(set(versions))
    there = set(before)
    for _, type_, name in whole:
        assert (type_ == "ADDED") == (name not in there), f"{type_} {name} does not follow from what was before"
        there.discard(name) if type_ == "DELETED" else there.add(name)
    assert there == {record.name for record in store.list_records(CONFIG_MAPS).records}
    for index in sorted(rng.sample(range(len(whole)), min(5, len(whole)))):
        rest = await events_after(store, whole[index][0])
        assert rest is None or rest == whole[index + 1 :]


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_killed_at_any_moment(tmp_path: Path) -> None:
    directory = tmp_path / "store"
    state: State = {}
    version = 1
    answered = 0
    for seed in range(FIRST_SEED, FIRST_SEED + ROUNDS):
        rng = random.Random(-seed)
        log = tmp_path / f"log-{seed}"
        storm(directory, log, seed)
        entries = read_log(log)
        expected = Expected(state)
        expected.read(entries)
        answered += len(expected.versions)
        seen = [(int(e[1]), str(e[2]), str(e[3])) for e in entries if e[0] == "seen"]
        # Look at a copy: the next process shall find the directory as this one's death left it.
        copy = tmp_path / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        if directory.exists():
            shutil.copytree(directory, copy)
        store = await EmbeddedStore.open(copy, clock=ManualClock(), writer="inline")
        try:
            found = {r.name: value_of(r.raw()) for r in store.list_records(CONFIG_MAPS).records}
            expected.check(found)
            assert int(store.resource_version) >= max([version, *expected.versions])
            assert sorted(expected.versions) == sorted(set(expected.versions))
            for writer in range(8):
                assert found.get(f"w{writer}-left") == found.get(f"w{writer}-right")
            await check_watches(store, state, version, seen, rng)
            state, version = found, int(store.resource_version)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        finally:
            await store.close()
        log.unlink(missing_ok=True)
    assert answered > 20 * ROUNDS, "there was hardly a storm"
