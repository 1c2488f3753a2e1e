"""Durability as the store promises it: what was answered is on disk, what was not is nowhere, and reads go on."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.objects.status import (
    AlreadyExists,
    InternalError,
    NotFound,
    Raw,
    RequestEntityTooLarge,
    ServiceUnavailable,
    StorageFull,
    TooManyRequests,
)
from muster.store.contract import EventType, Operation
from muster.store.embedded import EmbeddedStore, Limits, StoreLocked, transaction
from muster.store.embedded.database import CommitFailed, Database, Row
from muster.store.embedded.records import Key, Record, record_of
from tests.store.embedded.support import CONFIG_MAPS, SECRETS, ManualClock, config_map, open_store, seeded


def names(store: EmbeddedStore) -> list[str]:
    return [record.name for record in store.list_records(CONFIG_MAPS).records]


@pytest.fixture(params=["thread", "inline"])
def writer(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def test_everything_is_there_after_a_restart(tmp_path: Path, writer: str) -> None:
    store = await open_store(tmp_path, writer=writer)
    for n in range(20):
        await store.create(CONFIG_MAPS, config_map(f"m{n:02}", labels={"n": str(n % 2)}), "default")
    await store.patch(CONFIG_MAPS, "m03", {"data": {"changed": "yes"}}, "default")
    await store.delete(CONFIG_MAPS, "m07", "default")
    before = {r.key: (r.value, r.rv) for r in store.list_records(CONFIG_MAPS).records}
    version = store.resource_version
    await store.close()
    again = await open_store(tmp_path, writer=writer)
    assert {r.key: (r.value, r.rv) for r in again.list_records(CONFIG_MAPS).records} == before
    assert again.resource_version == version
    assert len(again.list_records(CONFIG_MAPS, label_selector="n=1").records) == 9
    created = await again.create(CONFIG_MAPS, config_map("new"), "default")
    assert int(created["metadata"]["resourceVersion"]) > int(version)
    await again.close()


async def test_versions_are_never_used_twice_even_if_the_last_was_a_deletion(tmp_path: Path) -> None:
    store = await open_store(tmp_path)
    await store.create(CONFIG_MAPS, config_map("a"), "default")
    await store.delete(CONFIG_MAPS, "a", "default")
    version = int(store.resource_version)
    store.compact()
    await store.close()
    again = await open_store(tmp_path)
    assert int(again.resource_version) >= version
    created = await again.create(CONFIG_MAPS, config_map("a"), "default")
    assert int(created["metadata"]["resourceVersion"]) > version
    await again.close()


async def test_watches_and_lists_go_on_across_a_restart(tmp_path: Path) -> None:
    store = await open_store(tmp_path)
    for name in "abc":
        await store.create(CONFIG_MAPS, config_map(name, labels={"on": "yes"}), "default")
    page = await store.list(CONFIG_MAPS, "default", limit=1)
    start = store.resource_version
    await store.patch(CONFIG_MAPS, "b", {"metadata": {"labels": {"on": "no"}}}, "default")
    await store.delete(CONFIG_MAPS, "c", "default")
    await store.close()
    again = await open_store(tmp_path)
    rest = await again.list(CONFIG_MAPS, "default", continue_token=page.continue_token)
    assert [item["metadata"]["name"] for item in rest.items] == ["b", "c"]
    assert rest.items[0]["metadata"]["labels"] == {"on": "yes"}
    watcher = again.watch_records(CONFIG_MAPS, "default", label_selector="on=yes", resource_version=start)
    batch = await anext(watcher)
    assert [(event.type, event.record.name) for event in batch] == [(EventType.DELETED, "b"), (EventType.DELETED, "c")]
    await again.close()


async def test_readers_see_nothing_before_it_is_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await open_store(tmp_path)
    on_disk: list[str] = []
    commit = Database.commit

    def watched(self: Database, rows: list[Row]) -> None:
        commit(self, rows)
        on_disk.extend(row.name for row in rows)

    monkeypatch.setattr(Database, "commit", watched)
    watcher = store.watch_records(CONFIG_MAPS, resource_version=store.resource_version)
    writes = [asyncio.ensure_future(store.create(CONFIG_MAPS, config_map(f"m{n}"), "default")) for n in range(50)]
    seen = 0
    while seen < 50:
        for event in await anext(watcher):
            assert event.record.name in on_disk
            seen += 1
    await asyncio.gather(*writes)
    await store.close()


async def test_a_second_server_is_refused(tmp_path: Path) -> None:
    store = await open_store(tmp_path)
    with pytest.raises(StoreLocked, match=f"process {os.getpid()}"):
        await EmbeddedStore.open(tmp_path, clock=ManualClock())
    await store.create(CONFIG_MAPS, config_map("a"), "default")
    await store.close()


# --- commits that fail -------------------------------------------------------------------------------------------


class Disk:
    """Lets commits fail when a test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.failure: CommitFailed | None = None
        commit = Database.commit

        def failing(database: Database, rows: list[Row]) -> None:
            if self.failure is not None:
                raise self.failure
            commit(database, rows)

        monkeypatch.setattr(Database, "commit", failing)


async def test_everyone_in_flight_hears_of_a_failure_and_nothing_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writer: str
) -> None:
    disk = Disk(monkeypatch)
    store = await open_store(tmp_path, writer=writer)
    await store.create(CONFIG_MAPS, config_map("a"), "default")
    version = store.resource_version
    watcher = store.watch_records(CONFIG_MAPS, resource_version=version)
    disk.failure = CommitFailed("no room left", full=True)
    outcomes = await asyncio.gather(
        *(store.create(CONFIG_MAPS, config_map(f"m{n}"), "default") for n in range(10)),
        store.patch(CONFIG_MAPS, "a", {"data": {"x": "1"}}, "default"),
        store.delete(CONFIG_MAPS, "a", "default"),
        return_exceptions=True,
    )
    # The delete saw the patch's failure or its own; either way nothing happened.
    assert all(isinstance(outcome, StorageFull) for outcome in outcomes), outcomes
    assert names(store) == ["a"]
    assert store.resource_version == version
    assert store.usage().in_flight_len == 0
    disk.failure = CommitFailed("I/O error", full=False)
    with pytest.raises(InternalError, match="nothing of it was kept and reads go on"):
        await store.create(CONFIG_MAPS, config_map("m1"), "default")
    disk.failure = None
    await store.create(CONFIG_MAPS, config_map("m1"), "default")
    assert names(store) == ["a", "m1"]
    assert [event.record.name for event in await anext(watcher)] == ["m1"]
    await store.close()
    again = await open_store(tmp_path)
    assert names(again) == ["a", "m1"]
    await again.close()


async def test_a_refusal_that_rested_on_a_failed_write_is_thought_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second create finds the first one's name taken, by something that then never came to be."""
    disk = Disk(monkeypatch)
    store = await open_store(tmp_path)
    disk.failure = CommitFailed("no room left", full=True)
    first = asyncio.ensure_future(store.create(CONFIG_MAPS, config_map("a"), "default"))
    await asyncio.sleep(0)
    second = asyncio.ensure_future(store.create(CONFIG_MAPS, config_map("a", {"second": "yes"}), "default"))
    with pytest.raises(StorageFull):
        await first
    disk.failure = None
    outcome = (await asyncio.gather(second, return_exceptions=True))[0]
    assert not isinstance(outcome, AlreadyExists)
    if isinstance(outcome, BaseException):
        assert isinstance(outcome, StorageFull)
        await store.create(CONFIG_MAPS, config_map("a", {"second": "yes"}), "default")
    assert (await store.get(CONFIG_MAPS, "a", "default"))["data"] == {"second": "yes"}
    await store.close()


async def test_a_cancelled_writer_does_not_undo_its_write(tmp_path: Path) -> None:
    store = await open_store(tmp_path)
    task = asyncio.ensure_future(store.create(CONFIG_MAPS, config_map("a"), "default"))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await store.settled()
    assert names(store) == ["a"]
    await store.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs needs root")
    mount = tmp_path / "mount"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(mount)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"mounting a small tmpfs is not allowed here: {done.stderr.strip()}")
    yield mount
    subprocess.run(["umount", "-l", str(mount)], check=True)


async def test_a_disk_that_really_is_full(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * 500_000)
    store = await open_store(small_disk / "store")
    accepted: list[str] = []

    async def fill(worker: int) -> None:
        for n in range(1000):
            name = f"m{worker}-{n}"
            await store.create(CONFIG_MAPS, config_map(name, {"x": "y" * 3000}), "default")
            accepted.append(name)

    outcomes = await asyncio.gather(*(fill(worker) for worker in range(8)), return_exceptions=True)
    assert all(isinstance(outcome, StorageFull) for outcome in outcomes)
    assert names(store) == sorted(accepted)
    assert (await store.get(CONFIG_MAPS, accepted[0], "default"))["data"]["x"][0] == "y"
    ballast.unlink()
    await store.create(CONFIG_MAPS, config_map("after"), "default")
    await store.close()
    again = await open_store(small_disk / "store")
    assert names(again) == sorted([*accepted, "after"])
    await again.close()


# --- limits ------------------------------------------------------------------------------------------------------


async def test_objects_have_a_size(tmp_path: Path) -> None:
    store = await open_store(tmp_path, limits=Limits(object_bytes_max=2000))
    await store.create(CONFIG_MAPS, config_map("small", {"x": "y" * 1000}), "default")
    version = store.resource_version
    for write in (
        store.create(CONFIG_MAPS, config_map("large", {"x": "y" * 3000}), "default"),
        store.patch(CONFIG_MAPS, "small", {"data": {"z": "y" * 3000}}, "default"),
    ):
        with pytest.raises(
            RequestEntityTooLarge, match=r'configmaps "(small|large)" has [0-9]+ bytes as JSON and the limit is 2000'
        ):
            await write
    assert store.resource_version == version
    await store.close()


@pytest.mark.parametrize(
    "limits", [Limits(writes_in_flight_max=5), Limits(writes_in_flight_bytes_max=3000)], ids=["count", "bytes"]
)
async def test_writes_in_flight_are_bounded(tmp_path: Path, limits: Limits) -> None:
    store = await open_store(tmp_path, limits=limits)
    outcomes = await asyncio.gather(
        *(store.create(CONFIG_MAPS, config_map(f"m{n:02}", {"x": "y" * 500}), "default") for n in range(30)),
        return_exceptions=True,
    )
    refused = [outcome for outcome in outcomes if isinstance(outcome, TooManyRequests)]
    assert refused
    assert refused[0].retry_after_s == 1
    assert len(names(store)) == 30 - len(refused) > 0
    assert store.usage().refused_writes == len(refused)
    await store.create(CONFIG_MAPS, config_map("later"), "default")
    await store.close()


async def test_watches_are_bounded() -> None:
    store = await open_store(limits=Limits(watchers_max=2))
    one = store.watch_records(CONFIG_MAPS)
    store.watch_records(CONFIG_MAPS)
    with pytest.raises(TooManyRequests, match="2 watches are open, which is the limit"):
        store.watch_records(CONFIG_MAPS)
    one.close()
    store.watch_records(CONFIG_MAPS)
    await store.close()
    assert store.usage().watchers_len == 0


async def test_transactions_are_bounded() -> None:
    store = await open_store(limits=Limits(transaction_len_max=3))
    operations = [
        Operation(verb="create", resource=CONFIG_MAPS, namespace="default", object=config_map(f"m{n}")) for n in range(4)
    ]
    with pytest.raises(Exception, match="a transaction may have 3 operations; this one has 4"):
        await store.transaction(operations)
    assert len(await store.transaction(operations[:3])) == 3
    await store.close()


async def test_a_transaction_is_one_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commits: list[int] = []
    commit = Database.commit

    def counted(self: Database, rows: list[Row]) -> None:
        commits.append(len(rows))
        commit(self, rows)

    store = await open_store(tmp_path)
    monkeypatch.setattr(Database, "commit", counted)
    await store.transaction(
        [Operation(verb="create", resource=CONFIG_MAPS, namespace="default", object=config_map(f"m{n}")) for n in range(100)]
    )
    assert commits == [100]
    await store.close()


async def test_each_operation_of_a_transaction_is_copied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next ones see it; copying all again for each of them would make long transactions quadratic."""
    copies: list[str] = []

    def counted(raw: Raw, key: Key, *rest: Any) -> Record:
        copies.append(key[1])
        return record_of(raw, key, *rest)

    store = await open_store()
    monkeypatch.setattr(transaction, "record_of", counted)
    creations = [Operation(verb="create", resource=CONFIG_MAPS, namespace="default", object=config_map(n)) for n in "abc"]
    patch = {"data": {"k": "patched"}}
    again = Operation(verb="patch", resource=CONFIG_MAPS, namespace="default", name="a", patch=patch)
    results = await store.transaction([*creations, again])
    assert copies == ["a", "b", "c", "a"]
    assert results[3]["data"]["k"] == "patched"
    assert results[3]["metadata"]["uid"] == results[0]["metadata"]["uid"]
    await store.close()


# --- the end -----------------------------------------------------------------------------------------------------


async def test_a_closed_store_says_so(tmp_path: Path) -> None:
    store = await open_store(tmp_path)
    watcher = store.watch_records(CONFIG_MAPS, resource_version=store.resource_version)
    reading = asyncio.ensure_future(anext(watcher, None))
    await asyncio.sleep(0)
    accepted = asyncio.ensure_future(store.create(CONFIG_MAPS, config_map("accepted"), "default"))
    await asyncio.sleep(0)
    await store.close()
    await store.close()
    assert await accepted
    while (batch := await reading) is not None:  # it may have seen the last write; then it ends
        assert [event.record.name for event in batch] == ["accepted"]
        reading = asyncio.ensure_future(anext(watcher, None))
    for refused in (store.create(CONFIG_MAPS, config_map("b"), "default"), store.get(CONFIG_MAPS, "accepted", "default")):
        with pytest.raises(ServiceUnavailable, match="the store is closed"):
            await refused
    again = await open_store(tmp_path)
    assert names(again) == ["accepted"]
    await again.close()


# --- repeatability -----------------------------------------------------------------------------------------------


async def script(store: EmbeddedStore, clock: ManualClock) -> None:
    """A bit of everything, some of it at the same time."""
    await asyncio.gather(*(store.create(CONFIG_MAPS, {"metadata": {"generateName": "m-"}}, "default") for _ in range(10)))
    for n in range(5):
        clock.now += 1.5
        await store.create(CONFIG_MAPS, config_map(f"c{n}"), "default")
        owner = await store.get(CONFIG_MAPS, f"c{n}", "default")
        reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": f"c{n}", "uid": owner["metadata"]["uid"]}
        await store.create(SECRETS, {"metadata": {"name": f"s{n}", "ownerReferences": [reference]}}, "default")
    await asyncio.gather(
        store.patch(CONFIG_MAPS, "c0", {"data": {"x": "1"}}, "default"),
        store.delete(CONFIG_MAPS, "c1", "default"),
        store.delete(CONFIG_MAPS, "c2", "default", propagation="Foreground"),
        return_exceptions=True,
    )
    await store.settled()


async def run_script(path: Path | None, seed: int) -> list[tuple[Any, ...]]:
    clock = ManualClock()
    store = await open_store(path, clock=clock, writer="inline", entropy=seeded(seed))
    seen: list[tuple[Any, ...]] = []
    store._core.listeners.append(lambda _, event: seen.append((event.type, event.record.value)))
    await script(store, clock)
    await store.close()
    return seen


async def test_same_calls_same_bytes(tmp_path: Path) -> None:
    in_memory = await run_script(None, seed=1)
    assert in_memory == await run_script(None, seed=1)
    assert in_memory == await run_script(tmp_path, seed=1)
    assert in_memory != await run_script(None, seed=2)
    assert len(in_memory) > 25


async def test_not_found_after_a_failed_create(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch)
    store = await open_store(tmp_path)
    disk.failure = CommitFailed("no room left", full=True)
    with pytest.raises(StorageFull):
        await store.create(CONFIG_MAPS, config_map("a"), "default")
    with pytest.raises(NotFound):
        await store.get(CONFIG_MAPS, "a", "default")
    await store.close()
