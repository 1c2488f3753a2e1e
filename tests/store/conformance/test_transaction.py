"""Several objects in one durable step, where a store can do that."""

from __future__ import annotations

import asyncio

import pytest

from muster.objects.status import AlreadyExists, Conflict, Invalid, MethodNotAllowed, NotFound
from muster.store.contract import Operation, Preconditions, Store
from tests.store.conformance.support import brief, config_map, watching


async def test_a_store_that_can_not_says_so(store: Store) -> None:
    if store.is_atomic:
        assert await store.transaction([]) == []
        return
    with pytest.raises(MethodNotAllowed):
        await store.transaction([])


async def test_all_in_order(store: Store, namespace: str) -> None:
    if not store.is_atomic:
        pytest.skip("this store has no transactions")
    maps, secrets = await store.resource("", "ConfigMap"), await store.resource("", "Secret")
    await store.create(maps, config_map("old"), namespace)
    await store.create(maps, config_map("patched"), namespace)
    start = (await store.list(maps, namespace)).resource_version
    results = await store.transaction(
        [
            Operation(verb="create", resource=maps, namespace=namespace, object=config_map("new")),
            Operation(verb="update", resource=maps, namespace=namespace, object=config_map("new", {"k": "later"})),
            Operation(verb="create", resource=secrets, namespace=namespace, object={"metadata": {"generateName": "s-"}}),
            Operation(verb="patch", resource=maps, namespace=namespace, name="patched", patch={"data": {"k": "v"}}),
            Operation(verb="delete", resource=maps, namespace=namespace, name="old"),
        ]
    )
    assert [r["metadata"]["name"] for r in results][:2] == ["new", "new"]
    assert results[1]["data"] == {"k": "later"}
    assert results[2]["metadata"]["name"].startswith("s-")
    assert results[3]["data"] == {"key": "value", "k": "v"}
    assert [item["metadata"]["name"] for item in (await store.list(maps, namespace)).items] == ["new", "patched"]
    async with watching(store, maps, namespace, resource_version=start) as watch:
        assert brief(await watch.take(4)) == [
            ("ADDED", "new"),
            ("MODIFIED", "new"),
            ("MODIFIED", "patched"),
            ("DELETED", "old"),
        ]


async def test_one_refusal_undoes_all(store: Store, namespace: str) -> None:
    if not store.is_atomic:
        pytest.skip("this store has no transactions")
    maps = await store.resource("", "ConfigMap")
    existing = await store.create(maps, config_map("existing"), namespace)
    good = Operation(verb="create", resource=maps, namespace=namespace, object=config_map("new"))
    stale = Preconditions(resource_version="1")
    for bad, refusal in (
        (Operation(verb="create", resource=maps, namespace=namespace, object=config_map("existing")), AlreadyExists),
        (Operation(verb="create", resource=maps, namespace=namespace, object=config_map("new")), AlreadyExists),
        (Operation(verb="create", resource=maps, namespace=namespace, object=config_map("Bad_Name")), Invalid),
        (Operation(verb="patch", resource=maps, namespace=namespace, name="nobody", patch={}), NotFound),
        (Operation(verb="delete", resource=maps, namespace=namespace, name="existing", preconditions=stale), Conflict),
    ):
        start = (await store.list(maps, namespace)).resource_version
        with pytest.raises(refusal):
            await store.transaction([good, bad])
        assert (await store.list(maps, namespace)).resource_version == start
    assert await store.get(maps, "existing", namespace) == existing
    with pytest.raises(NotFound):
        await store.get(maps, "new", namespace)


async def test_transactions_do_not_mix(store: Store, namespace: str) -> None:
    """Each moves one unit from one account to the other, under the versions it read; whatever happens, the sum is kept."""
    if not store.is_atomic:
        pytest.skip("this store has no transactions")
    maps = await store.resource("", "ConfigMap")
    for name in ("a", "b"):
        await store.create(maps, config_map(name, {"n": "50"}), namespace)

    async def move(source: str, target: str) -> None:
        while True:
            one, two = await store.get(maps, source, namespace), await store.get(maps, target, namespace)
            one["data"]["n"] = str(int(one["data"]["n"]) - 1)
            two["data"]["n"] = str(int(two["data"]["n"]) + 1)
            try:
                await store.transaction(
                    [
                        Operation(verb="update", resource=maps, namespace=namespace, object=one),
                        Operation(verb="update", resource=maps, namespace=namespace, object=two),
                    ]
                )
            except Conflict:
                continue
            return

    await asyncio.gather(*(move("a", "b") for _ in range(15)), *(move("b", "a") for _ in range(5)))
    amounts = {name: int((await store.get(maps, name, namespace))["data"]["n"]) for name in ("a", "b")}
    assert amounts == {"a": 40, "b": 60}
