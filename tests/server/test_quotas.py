"""ResourceQuotas on the embedded store: no race, no leak, whatever fails; and over HTTP on a real server."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from muster.objects.catalog import CATALOG
from muster.objects.status import ApiError, Forbidden, Raw
from muster.server.quotas import Quotas
from muster.store.contract import Operation, WriteOptions
from muster.store.embedded import EmbeddedStore
from tests.server.running import RunningServer, running
from tests.store.conformance.support import definition
from tests.store.embedded.faulty import faulty_disk
from tests.store.embedded.support import CONFIG_MAPS, CRDS, config_map, open_store

PODS = CATALOG.by_kind("", "Pod")
QUOTAS = CATALOG.by_kind("", "ResourceQuota")
SEEDS = 200 if os.environ.get("MUSTER_SOAK") else 10


def pod(name: str, cpu: str = "1", **more: Any) -> Raw:
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [container], **more}}


def quota(name: str = "q", counts: Raw | None = None, **hard: Any) -> Raw:
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": name},
        "spec": {"hard": {**(counts or {}), **{key.replace("_", "."): value for key, value in hard.items()}}},
    }


class Slow:
    """Admission that lets others run, as webhooks do."""

    async def mutate(self, request: Any) -> None:
        await asyncio.sleep(0)

    async def validate(self, request: Any) -> None:
        await asyncio.sleep(0)


@asynccontextmanager
async def opened(path: Path | None = None, **options: Any) -> AsyncIterator[tuple[EmbeddedStore, Quotas]]:
    store = await open_store(path, admission=Slow(), **options)
    quotas = Quotas(store)
    quotas.start()
    try:
        yield store, quotas
    finally:
        await quotas.stop()
        await store.close()


async def used(store: EmbeddedStore, quotas: Quotas, name: str = "q") -> Raw:
    await quotas.idle()
    found: Raw = (await said(store, name))["used"]
    return found


async def said(store: EmbeddedStore, name: str = "q") -> Raw:
    status: Raw = (await store.get(QUOTAS, name, "default"))["status"]
    return status


async def created(store: EmbeddedStore, names: Sequence[str], **options: Any) -> list[bool]:
    """Whether each of these pods, created at the same time, came to be. Whatever is not Forbidden is raised."""
    answers = await asyncio.gather(
        *(store.create(PODS, pod(name, **options), "default") for name in names), return_exceptions=True
    )
    others = [answer for answer in answers if isinstance(answer, BaseException) and not isinstance(answer, Forbidden)]
    assert not others
    return [not isinstance(answer, Forbidden) for answer in answers]


@pytest.mark.parametrize("is_on_disk", [True, False])
async def test_of_many_at_once_as_many_come_to_be_as_there_is_room_for(tmp_path: Path, is_on_disk: bool) -> None:
    async with opened(tmp_path / "s" if is_on_disk else None) as (store, quotas):
        await store.create(QUOTAS, quota(pods=7, requests_cpu=20), "default")
        assert sum(await created(store, [f"p{n}" for n in range(50)])) == 7
        assert await said(store) == {"hard": {"pods": "7", "requests.cpu": "20"}, "used": {"pods": "7", "requests.cpu": "7"}}
        first = store.list_records(PODS, "default").records[0].name
        await store.delete(PODS, first, "default", grace_period_s=0)
        assert sum(await created(store, [f"q{n}" for n in range(10)], cpu="14")) == 1
        assert await used(store, quotas) == {"pods": "7", "requests.cpu": "20"}


async def test_a_quota_holds_from_the_moment_it_is_made(tmp_path: Path) -> None:
    """Not from the moment its maker is answered: what is submitted after it is judged by it, also while both are in flight."""
    async with opened(tmp_path / "s") as (store, quotas):
        await created(store, ["a", "b"])
        making = asyncio.ensure_future(store.create(QUOTAS, quota(pods=3), "default"))
        came = await created(store, [f"p{n}" for n in range(20)])
        await making
        assert came == [True] + [False] * 19
        assert await used(store, quotas) == {"pods": "3"}


async def test_what_is_said_when_it_is_refused() -> None:
    async with opened() as (store, _):
        await store.create(QUOTAS, quota(requests_cpu=1), "default")
        await store.create(PODS, pod("a", "600m"), "default")
        with pytest.raises(Forbidden) as refused:
            await store.create(PODS, pod("b", "500m"), "default")
        assert str(refused.value) == (
            'pods "b" is forbidden: exceeded quota: q, requested: requests.cpu=500m, used: requests.cpu=600m, '
            "limited: requests.cpu=1"
        )
        assert (refused.value.kind, refused.value.name) == ("pods", "b")


async def test_a_dry_run_is_judged_and_counts_nothing() -> None:
    async with opened() as (store, quotas):
        await store.create(QUOTAS, quota(pods=1), "default")
        dry = WriteOptions(dry_run=True)
        for _ in range(3):
            await store.create(PODS, pod("a"), "default", dry)
        assert await used(store, quotas) == {"pods": "0"}
        await store.create(PODS, pod("a"), "default")
        with pytest.raises(Forbidden):
            await store.create(PODS, pod("b"), "default", dry)


async def test_a_transaction_is_judged_as_a_whole() -> None:
    async with opened() as (store, quotas):
        await store.create(QUOTAS, quota(pods=2), "default")
        three = [Operation(verb="create", resource=PODS, namespace="default", object=pod(name)) for name in "abc"]
        with pytest.raises(Forbidden, match="requested: pods=3, used: pods=0, limited: pods=2"):
            await store.transaction(three)
        assert await used(store, quotas) == {"pods": "0"}
        await store.transaction(three[:2])
        assert (await said(store))["used"] == {"pods": "2"}
        with pytest.raises(Forbidden):
            await store.transaction(three[2:])
        await store.transaction([Operation(verb="delete", resource=PODS, name="a", namespace="default"), three[2]])
        assert [record.name for record in store.list_records(PODS, "default").records] == ["b", "c"]


async def test_pods_that_end_and_objects_that_go_make_room() -> None:
    async with opened() as (store, quotas):
        await store.create(QUOTAS, quota(pods=1, counts={"count/pods": 3}), "default")
        await store.create(PODS, pod("a"), "default")
        assert not any(await created(store, ["b"]))
        await store.patch(PODS, "a", {"status": {"phase": "Succeeded"}}, "default", subresource="status")
        assert await used(store, quotas) == {"count/pods": "1", "pods": "0"}
        assert all(await created(store, ["b"]))
        await store.delete(PODS, "b", "default", grace_period_s=0)
        assert await used(store, quotas) == {"count/pods": "1", "pods": "0"}


async def test_many_deletions_are_told_in_few_writes() -> None:
    async with opened() as (store, quotas):
        await store.create(QUOTAS, quota(pods=200), "default")
        await created(store, [f"p{n}" for n in range(100)])
        before = store.get_record(QUOTAS, "q", "default").rv
        watch = store.watch_records(QUOTAS, "default", resource_version=str(before), bookmarks=False)
        await store.delete_collection(PODS, "default", grace_period_s=0)
        assert await used(store, quotas) == {"pods": "0"}
        told = 0
        async for batch in watch:
            told += len(batch)
            if b'"used":{"pods":"0"}' in batch[-1].record.value:
                break
        watch.close()
        assert told < 50


async def test_kinds_of_definitions_are_counted() -> None:
    async with opened() as (store, _):
        await store.create(QUOTAS, quota(counts={"count/widgets.g.example.com": 1, "count/configmaps": 1}), "default")
        await store.create(CRDS, definition("g.example.com"))
        widgets = await store.resource("g.example.com", "Widget")
        widget: Raw = {"apiVersion": widgets.api_version, "kind": "Widget", "spec": {"size": 1}}
        await store.create(widgets, {**widget, "metadata": {"name": "a"}}, "default")
        with pytest.raises(Forbidden, match=r"count/widgets\.g\.example\.com=1, limited"):
            await store.create(widgets, {**widget, "metadata": {"name": "b"}}, "default")
        await store.create(CONFIG_MAPS, config_map("a"), "default")
        with pytest.raises(Forbidden):
            await store.create(CONFIG_MAPS, config_map("b"), "default")
        await store.update(CONFIG_MAPS, config_map("a", {"k": "v"}), "default")


async def test_nothing_is_decided_by_what_a_status_says() -> None:
    async with opened() as (store, quotas):
        await store.create(QUOTAS, quota(pods=1), "default")
        await store.create(PODS, pod("a"), "default")
        await store.patch(QUOTAS, "q", {"status": {"used": {"pods": "0"}}}, "default", subresource="status")
        assert not any(await created(store, ["b"]))
        assert await used(store, quotas) == {"pods": "1"}, "and what it said wrongly is put right"


async def test_quotas_that_are_deleted_bind_nobody() -> None:
    async with opened() as (store, _):
        await store.create(QUOTAS, quota(pods=0), "default")
        await store.create(QUOTAS, quota("r", pods=1), "default")
        assert not any(await created(store, ["a"]))
        await store.delete(QUOTAS, "q", "default")
        assert all(await created(store, ["a"]))
        await store.delete(QUOTAS, "r", "default")
        assert all(await created(store, ["b", "c"]))


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(SEEDS))
async def test_after_a_disk_that_failed_everything_is_counted_as_it_is(tmp_path: Path, seed: int) -> None:
    """Writes fail at an operation of the disk that the seed picks; what failed leaves no trace in what is counted."""
    chance = random.Random(seed)
    with faulty_disk() as disk:
        async with opened(tmp_path / "s") as (store, _):
            await store.create(QUOTAS, quota(pods=12), "default")
            disk.fail(chance.randrange(12), chance.choice([1, 3]), full=chance.random() < 0.5)
            for batch in range(5):
                writes = [store.create(PODS, pod(f"p{batch}-{n}"), "default") for n in range(5)]
                writes += [
                    store.delete(PODS, record.name, "default", grace_period_s=0)
                    for record in store.list_records(PODS, "default").records[:2]
                ]
                if chance.random() < 0.4:
                    writes.append(store.patch(QUOTAS, "q", {"spec": {"hard": {"pods": chance.randrange(8, 14)}}}, "default"))
                answers = await asyncio.gather(*writes, return_exceptions=True)
                assert all(isinstance(one, ApiError) for one in answers if isinstance(one, BaseException))
            disk.fail(0, 0, full=False)
            hard = (await store.get(QUOTAS, "q", "default"))["spec"]["hard"]["pods"]
            there = len(store.list_records(PODS, "default").records)
            assert there <= 13
            came = await created(store, [f"z{n}" for n in range(20)])
            assert there + sum(came) == max(int(hard), there)
            assert (await said(store))["used"] == {"pods": str(there + sum(came))} or not any(came)


async def test_a_server_that_starts_counts_what_it_finds(tmp_path: Path) -> None:
    async with opened(tmp_path / "s") as (store, quotas):
        await store.create(QUOTAS, quota(pods=3), "default")
        await created(store, ["a", "b"])
    bare = await open_store(tmp_path / "s")  # nobody counts, as if the server had died before it could
    await bare.delete(PODS, "a", "default", grace_period_s=0)
    await bare.close()
    async with opened(tmp_path / "s") as (store, quotas):
        assert await used(store, quotas) == {"pods": "1"}
        assert sum(await created(store, [f"p{n}" for n in range(5)])) == 2


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("nvidia.com/gpu", "no object counts for it; of other resources it is requests.nvidia.com/gpu"),
        ("count/events", "no object counts for it"),
        ("count/deployment.apps", "no kind deployment.apps is served; name it as in count/deployments.apps"),
        ("count/deployments.apps", ""),
        ("requests.nvidia.com/gpu", ""),
    ],
)
def test_what_bounds_nothing_is_told(server: RunningServer, namespace: str, name: str, told: str) -> None:
    made = server.request("POST", f"/api/v1/namespaces/{namespace}/resourcequotas", quota(counts={name: 1}))
    assert made.code == 201
    warnings = made.headers.get_all("Warning") or []
    assert warnings == ([f'299 - "spec.hard[{name}] bounds nothing: {told}"'] if told else [])


def test_over_http_and_after_a_restart(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        server.namespace("n")
        server.create("/api/v1/namespaces/n/resourcequotas", quota(pods=1))
        limits = {"limits": [{"type": "Container", "defaultRequest": {"cpu": "100m"}, "max": {"cpu": "2"}}]}
        server.create("/api/v1/namespaces/n/limitranges", {"metadata": {"name": "l"}, "spec": limits})
        assert _post(server, "a").code == 201
        assert _post(server, "b").reason == "Forbidden"
    with running(tmp_path) as server:
        assert "exceeded quota: q" in _post(server, "b").message
        assert server.request("DELETE", "/api/v1/namespaces/n/pods/a?gracePeriodSeconds=0").code == 200
        assert "maximum cpu usage per Container is 2, but limit is 3" in _post(server, "b", "3").message
        made = _post(server, "b")
        assert made.code == 201
        resources = made.json["spec"]["containers"][0]["resources"]
        assert resources == {"limits": {"cpu": "2"}, "requests": {"cpu": "100m"}}
        found = server.request("GET", "/api/v1/namespaces/n/resourcequotas/q").json
        assert found["status"] == {"hard": {"pods": "1"}, "used": {"pods": "1"}}


def _post(server: RunningServer, name: str, limit: str = "") -> Any:
    container: Raw = {"name": "c", "image": "i", **({"resources": {"limits": {"cpu": limit}}} if limit else {})}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [container]}}
    return server.request("POST", "/api/v1/namespaces/n/pods", body)
