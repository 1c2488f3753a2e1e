"""Cleaning up, beyond what the conformance suite asks of both stores: circles, unresolvable owners, crashes, retries."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from muster.objects.meta import owner_reference
from muster.objects.resources import Resource
from muster.objects.status import Forbidden, NotFound, Raw, StorageFull
from muster.store.contract import EventType
from muster.store.embedded import AdmissionRequest, EmbeddedStore
from muster.store.embedded.collection import Collection
from muster.store.embedded.database import CommitFailed, Database, Row
from muster.store.embedded.records import Event
from tests.store.conformance.support import definition
from tests.store.embedded.support import CONFIG_MAPS, CRDS, NAMESPACES, NODES, PODS, SECRETS, config_map, open_store, pod


async def make(store: EmbeddedStore, name: str, *owners: Raw, namespace: str = "default", **metadata: Any) -> Raw:
    references = [owner_reference(owner, controller=False) for owner in owners]
    return await store.create(CONFIG_MAPS, config_map(name, ownerReferences=references, **metadata), namespace)


def there(store: EmbeddedStore, namespace: str = "default") -> list[str]:
    return [record.name for record in store.list_records(CONFIG_MAPS, namespace).records]


async def test_a_long_chain_goes_link_by_link() -> None:
    store = await open_store()
    link = await make(store, "n000")
    for n in range(1, 150):
        link = await make(store, f"n{n:03}", link)
    await store.delete(CONFIG_MAPS, "n000", "default")
    await store.settled()
    assert there(store) == []
    await store.close()


async def test_a_wide_family_goes_together(tmp_path: Path) -> None:
    store = await open_store(tmp_path)
    owner = await make(store, "owner")
    for n in range(300):
        await make(store, f"child{n:03}", owner)
    before = store.usage()
    await store.delete(CONFIG_MAPS, "owner", "default")
    await store.settled()
    after = store.usage()
    assert there(store) == []
    assert after.batches - before.batches < 150, "deletes share their commits"
    await store.close()


async def test_a_circle_of_owners_goes_when_asked_in_the_foreground() -> None:
    store = await open_store()
    one = await make(store, "one")
    two = await make(store, "two", one)
    reference = owner_reference(two, controller=False)
    await store.patch(CONFIG_MAPS, "one", {"metadata": {"ownerReferences": [reference]}}, "default")
    await store.delete(CONFIG_MAPS, "one", "default", propagation="Foreground")
    await store.settled()
    assert there(store) == []
    await store.close()


async def test_foreground_goes_all_the_way_down_before_it_comes_up() -> None:
    store = await open_store()
    top = await make(store, "top")
    middle = await make(store, "middle", top)
    await make(store, "bottom", middle)
    watcher = store.watch_records(CONFIG_MAPS, "default", resource_version=store.resource_version)
    await store.delete(CONFIG_MAPS, "top", "default", propagation="Foreground")
    await store.settled()
    order = [e.record.name for e in await anext(watcher) if e.type is EventType.DELETED]
    assert order == ["bottom", "middle", "top"]
    await store.close()


@pytest.mark.parametrize(
    ("reference", "is_collected"),
    [
        pytest.param({"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "u"}, True, id="never was"),
        pytest.param(
            {"apiVersion": "unheard.example.com/v1", "kind": "Thing", "name": "x", "uid": "u"}, False, id="unknown kind"
        ),
        pytest.param({"apiVersion": "v1", "kind": "Node", "name": "x", "uid": "u"}, True, id="cluster-wide, never was"),
    ],
)
async def test_owners_that_are_not_there(reference: Raw, is_collected: bool) -> None:
    store = await open_store()
    await store.create(CONFIG_MAPS, config_map("child", ownerReferences=[reference]), "default")
    await store.settled()
    assert there(store) == ([] if is_collected else ["child"])
    await store.close()


async def test_an_owner_in_another_namespace_counts_as_gone() -> None:
    store = await open_store()
    await store.create(NAMESPACES, {"metadata": {"name": "other"}})
    owner = await make(store, "owner", namespace="other")
    await make(store, "child", owner)
    await store.settled()
    assert there(store) == []
    assert there(store, "other") == ["owner"]
    await store.close()


async def test_nobody_keeps_an_object_of_another_namespace_by_naming_its_uid() -> None:
    store = await open_store()
    await store.create(NAMESPACES, {"metadata": {"name": "other"}})
    owner = await make(store, "owner", namespace="other")
    reference = owner_reference(owner, block=True)
    await store.create(CONFIG_MAPS, config_map("blocker", finalizers=["a.b/c"], ownerReferences=[reference]), "default")
    await store.delete(CONFIG_MAPS, "owner", "other", propagation="Foreground")
    await store.settled()
    assert there(store, "other") == []
    await store.close()


async def test_a_cluster_wide_object_is_not_collected_for_a_namespaced_owner() -> None:
    store = await open_store()
    owner = await make(store, "owner")
    await store.create(NODES, {"metadata": {"name": "n", "ownerReferences": [owner_reference(owner)]}})
    await store.delete(CONFIG_MAPS, "owner", "default")
    await store.settled()
    assert (await store.get(NODES, "n"))["metadata"]["name"] == "n"
    await store.close()


async def test_pods_on_nodes_get_their_grace() -> None:
    store = await open_store()
    owner = await make(store, "owner")
    child = pod("child", ownerReferences=[owner_reference(owner)])
    child["spec"]["nodeName"] = "n1"
    await store.create(PODS, child, "default")
    await store.delete(CONFIG_MAPS, "owner", "default")
    await store.settled()
    deleting = await store.get(PODS, "child", "default")
    assert deleting["metadata"]["deletionGracePeriodSeconds"] == 30
    await store.close()


async def test_what_a_crash_left_undone_is_found_when_the_store_opens(tmp_path: Path) -> None:
    store = await open_store(tmp_path)
    owner = await make(store, "owner")
    await make(store, "child", owner)
    orphaning = await make(store, "orphaning")
    await make(store, "orphan", orphaning)
    waiting = await make(store, "waiting")
    await make(store, "awaited", waiting)
    await store.create(NAMESPACES, {"metadata": {"name": "going"}})
    await make(store, "content", namespace="going")
    # As if the process died right after each of these was committed: nothing is collected any more.
    await store._garbage.close()
    await store.delete(CONFIG_MAPS, "owner", "default")
    await store.delete(CONFIG_MAPS, "orphaning", "default", propagation="Orphan")
    await store.delete(CONFIG_MAPS, "waiting", "default", propagation="Foreground")
    await store.delete(NAMESPACES, "going")
    assert there(store) == ["awaited", "child", "orphan", "orphaning", "waiting"]
    await store.close()
    again = await open_store(tmp_path)
    await again.settled()
    assert there(again) == ["orphan"]
    assert "ownerReferences" not in (await again.get(CONFIG_MAPS, "orphan", "default"))["metadata"]
    with pytest.raises(NotFound):
        await again.get(NAMESPACES, "going")
    await again.close()


async def test_a_full_disk_delays_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import muster.store.embedded.garbage as garbage

    monkeypatch.setattr(garbage, "_RETRY_S", (0.01,))
    store = await open_store(tmp_path)
    owner = await make(store, "owner")
    await make(store, "child", owner)
    failures = 0
    commit = Database.commit

    def sometimes(self: Database, rows: list[Row]) -> None:
        nonlocal failures
        if rows[0].name == "child" and failures < 3:
            failures += 1
            raise CommitFailed("no room left", full=True)
        commit(self, rows)

    monkeypatch.setattr(Database, "commit", sometimes)
    watcher = store.watch_records(CONFIG_MAPS, "default", resource_version=store.resource_version)
    await store.delete(CONFIG_MAPS, "owner", "default")
    deleted: list[str] = []
    while "child" not in deleted:
        deleted += [event.record.name for event in await anext(watcher)]
    assert failures == 3
    await store.close()


class Asks:
    """Admission that refuses a delete of `name` so many times, and does something while it thinks about the next one."""

    def __init__(self, name: str, act: Callable[[], Awaitable[object]] | None = None, refusals: int = 0) -> None:
        self._name = name
        self._act = act
        self.refusals = refusals

    async def mutate(self, request: AdmissionRequest) -> Raw | None:
        return None

    async def validate(self, request: AdmissionRequest) -> None:
        if request.operation != "DELETE" or request.name != self._name:
            return
        if self.refusals:
            self.refusals -= 1
            raise Forbidden("not yet")
        act, self._act = self._act, None
        if act is not None:
            await act()


def right_behind(store: EmbeddedStore, name: str, act: Callable[[], Awaitable[None]]) -> asyncio.Future[None]:
    """Let `act` begin when the end of `name` shows, just before the collector does: what it writes is pending then."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run() -> None:
        await act()
        done.set_result(None)

    def on_event(_: Collection, event: Event) -> None:
        if event.type is EventType.DELETED and event.record.name == name:
            tasks.append(asyncio.ensure_future(run()))

    tasks: list[asyncio.Future[None]] = []
    store._core.listeners.insert(0, on_event)
    return done


@pytest.mark.parametrize("is_released", [pytest.param(True, id="released"), pytest.param(False, id="owned by another one")])
@pytest.mark.parametrize("is_asked", [pytest.param(True, id="while a hook was asked"), pytest.param(False, id="still pending")])
async def test_whoever_was_told_that_an_object_has_no_such_owner_any_more_keeps_it(
    tmp_path: Path, is_released: bool, is_asked: bool
) -> None:
    store = await open_store(tmp_path)
    owner, other = await make(store, "owner"), await make(store, "other")
    await make(store, "child", owner)
    references = None if is_released else [owner_reference(other, controller=False)]

    async def release() -> None:
        await store.patch(CONFIG_MAPS, "child", {"metadata": {"ownerReferences": references}}, "default")

    if is_asked:
        store.admission = Asks("child", release)
        await store.delete(CONFIG_MAPS, "owner", "default")
    else:
        released = right_behind(store, "owner", release)
        await store.delete(CONFIG_MAPS, "owner", "default")
        await released
    await store.settled()
    assert there(store) == ["child", "other"]
    await store.close()


async def test_a_release_that_fails_on_its_way_to_disk_keeps_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await open_store(tmp_path)
    owner = await make(store, "owner")
    await make(store, "child", owner)
    commit = Database.commit

    def refuse_release(self: Database, rows: list[Row]) -> None:
        if rows[0].name == "child" and b"ownerReferences" not in rows[0].value:
            raise CommitFailed("no room left", full=True)
        commit(self, rows)

    async def release() -> None:
        with pytest.raises(StorageFull):
            await store.patch(CONFIG_MAPS, "child", {"metadata": {"ownerReferences": None}}, "default")

    monkeypatch.setattr(Database, "commit", refuse_release)
    failed = right_behind(store, "owner", release)
    await store.delete(CONFIG_MAPS, "owner", "default")
    await failed
    await store.settled()
    assert there(store) == []
    await store.close()


async def test_whoever_asked_for_dependents_to_stay_after_all_keeps_them() -> None:
    store = await open_store()
    owner = await make(store, "owner")
    await make(store, "child", owner)
    store.admission = Asks("child", lambda: store.delete(CONFIG_MAPS, "owner", "default", propagation="Orphan"))
    await store.delete(CONFIG_MAPS, "owner", "default", propagation="Foreground")
    await store.settled()
    assert there(store) == ["child"]
    await store.close()


async def test_a_reference_to_what_is_gone_is_the_last_one_when_the_other_is_taken_away_meanwhile(tmp_path: Path) -> None:
    store = await open_store(tmp_path)
    gone, kept = await make(store, "gone"), await make(store, "kept")
    await make(store, "child", gone, kept)
    reference = owner_reference(gone, controller=False)

    async def release() -> None:
        await store.patch(CONFIG_MAPS, "child", {"metadata": {"ownerReferences": [reference]}}, "default")

    released = right_behind(store, "gone", release)
    await store.delete(CONFIG_MAPS, "gone", "default")
    await released
    await store.settled()
    assert there(store) == ["kept"]
    await store.close()


GROUP = "g.example.com"
DEFINITION = f"widgets.{GROUP}"


async def with_family(store: EmbeddedStore, number: int = 1) -> Resource:
    """A custom object that owns config maps."""
    await store.create(CRDS, definition(GROUP))
    widgets = await store.resource(GROUP, "Widget")
    owner = await store.create(widgets, {"metadata": {"name": "owner"}, "spec": {"size": 1}}, "default")
    await asyncio.gather(*(make(store, f"child{n:03}", owner) for n in range(number)))
    return widgets


async def until_gone(store: EmbeddedStore, since: str) -> None:
    """Until the definition is: what had to be tried again is done then."""
    async for batch in store.watch_records(CRDS, resource_version=since):
        if any(event.type is EventType.DELETED for event in batch):
            return


@pytest.mark.parametrize("number", [1, 200])
async def test_what_custom_objects_owned_goes_with_their_kind(number: int) -> None:
    store = await open_store()
    await with_family(store, number)
    await store.delete(CRDS, DEFINITION)
    await store.settled()
    assert (there(store), store.list_records(CRDS).records) == ([], [])
    await store.close()


async def test_what_a_custom_object_owned_goes_though_its_kind_goes_at_the_same_time() -> None:
    store = await open_store()
    widgets = await with_family(store, 200)
    await asyncio.gather(store.delete(CRDS, DEFINITION), store.delete(widgets, "owner", "default"))
    await store.settled()
    assert (there(store), store.list_records(CRDS).records) == ([], [])
    await store.close()


async def test_a_kind_waits_for_what_could_not_be_deleted_of_what_its_objects_owned(monkeypatch: pytest.MonkeyPatch) -> None:
    import muster.store.embedded.garbage as garbage

    monkeypatch.setattr(garbage, "_RETRY_S", (0.01,))
    hook = Asks("child000", refusals=5)
    store = await open_store(admission=hook)
    await with_family(store)
    before = store.resource_version
    await store.delete(CRDS, DEFINITION)
    await until_gone(store, before)
    assert (there(store), hook.refusals) == ([], 0)
    await store.close()


async def test_what_custom_objects_owned_goes_with_their_kind_after_a_crash(tmp_path: Path) -> None:
    store = await open_store(tmp_path, admission=Asks("child000", refusals=1_000_000))
    widgets = await with_family(store)
    await store.delete(CRDS, DEFINITION)
    await store.settled()
    assert not store.list_records(widgets).records
    assert there(store) == ["child000"]
    await store.close()
    again = await open_store(tmp_path)
    await again.settled()
    assert (there(again), again.list_records(CRDS).records) == ([], [])
    await again.close()


async def test_a_kind_does_not_wait_for_what_is_being_deleted_or_has_other_owners() -> None:
    store = await open_store()
    widgets = await with_family(store)
    owner, other = await store.get(widgets, "owner", "default"), await make(store, "other")
    await make(store, "held", owner, finalizers=["example.com/hold"])
    await make(store, "shared", owner, other)
    await store.delete(CRDS, DEFINITION)
    await store.settled()
    assert (there(store), store.list_records(CRDS).records) == (["held", "other", "shared"], [])
    kept = await store.get(CONFIG_MAPS, "shared", "default")
    assert [reference["name"] for reference in kept["metadata"]["ownerReferences"]] == ["other"]
    await store.close()


async def test_a_kind_does_not_wait_for_a_reference_whose_uid_is_that_of_an_owner_of_another_kind() -> None:
    store = await open_store()
    await with_family(store)
    right = owner_reference(await make(store, "other"), controller=False)
    references = [{**right, "apiVersion": f"{GROUP}/v1", "kind": "Widget"}, right]
    await store.create(CONFIG_MAPS, config_map("twice", ownerReferences=references), "default")
    await store.delete(CRDS, DEFINITION)
    await store.settled()
    assert (there(store), store.list_records(CRDS).records) == (["other", "twice"], [])
    await store.close()


async def test_a_namespace_lists_what_keeps_it() -> None:
    store = await open_store()
    await store.create(NAMESPACES, {"metadata": {"name": "going"}})
    await make(store, "held", namespace="going", finalizers=["example.com/one"])
    await store.create(SECRETS, {"metadata": {"name": "s", "finalizers": ["example.com/two"]}}, "going")
    await store.delete(NAMESPACES, "going")
    await store.settled()
    conditions = {c["type"]: c for c in (await store.get(NAMESPACES, "going"))["status"]["conditions"]}
    assert conditions["NamespaceContentRemaining"]["message"] == (
        "Some resources are remaining: configmaps has 1 resource instances, secrets has 1 resource instances"
    )
    assert conditions["NamespaceFinalizersRemaining"]["message"].endswith(
        "example.com/one in 1 resource instances, example.com/two in 1 resource instances"
    )
    await store.patch(CONFIG_MAPS, "held", {"metadata": {"finalizers": None}}, "going")
    await store.patch(SECRETS, "s", {"metadata": {"finalizers": None}}, "going")
    await store.settled()
    with pytest.raises(NotFound):
        await store.get(NAMESPACES, "going")
    await store.close()


async def test_a_namespaces_finalizers_can_be_taken_away_by_hand() -> None:
    """What an operator does with a namespace that is stuck: replace it through `finalize`."""
    store = await open_store()
    await store.create(NAMESPACES, {"metadata": {"name": "stuck"}, "spec": {"finalizers": ["example.com/mine"]}})
    created = await store.get(NAMESPACES, "stuck")
    assert created["spec"]["finalizers"] == ["example.com/mine", "kubernetes"]
    await store.delete(NAMESPACES, "stuck")
    await store.settled()
    left = await store.get(NAMESPACES, "stuck")
    assert left["spec"]["finalizers"] == ["example.com/mine"]
    await store.update(NAMESPACES, {**left, "spec": {"finalizers": []}}, subresource="finalize")
    with pytest.raises(NotFound):
        await store.get(NAMESPACES, "stuck")
    await store.close()


async def test_a_namespaces_own_fields_are_not_the_clients() -> None:
    store = await open_store()
    created = await store.create(NAMESPACES, {"metadata": {"name": "n"}, "status": {"phase": "Terminating"}})
    assert created["status"] == {"phase": "Active"}
    assert created["metadata"]["labels"] == {"kubernetes.io/metadata.name": "n"}
    updated = await store.update(NAMESPACES, {"metadata": {"name": "n", "labels": {"x": "y"}}, "spec": {"finalizers": []}})
    assert updated["spec"] == {"finalizers": ["kubernetes"]}
    assert updated["metadata"]["labels"] == {"x": "y", "kubernetes.io/metadata.name": "n"}
    await store.close()
