"""Namespaces that empty themselves."""

from __future__ import annotations

import asyncio

import pytest

from muster.objects.status import Conflict, Forbidden, NotFound
from muster.store.contract import Store
from tests.store.conformance.support import config_map, custom_kind, gone, pod, unique, until, widget


async def test_a_new_one_is_active(store: Store, namespace: str) -> None:
    namespaces = await store.resource("", "Namespace")
    there = await store.get(namespaces, namespace)
    assert there["status"]["phase"] == "Active"
    assert there["spec"]["finalizers"] == ["kubernetes"]


async def test_deleting_it_deletes_what_is_in_it(store: Store, namespace: str) -> None:
    namespaces, maps = await store.resource("", "Namespace"), await store.resource("", "ConfigMap")
    secrets, pods = await store.resource("", "Secret"), await store.resource("", "Pod")
    for n in range(30):
        await store.create(maps, config_map(f"m{n}"), namespace)
    await store.create(secrets, {"metadata": {"name": "s"}}, namespace)
    await store.create(pods, pod("p"), namespace)
    deleting = await store.delete(namespaces, namespace)
    assert deleting["status"]["phase"] == "Terminating"
    assert deleting["metadata"]["deletionTimestamp"]
    await gone(store, namespaces, namespace, None)
    for resource in (maps, secrets, pods):
        assert (await store.list(resource, namespace)).items == []
    with pytest.raises(NotFound):
        await store.get(namespaces, namespace)


async def test_custom_kinds_go_too(store: Store, namespace: str) -> None:
    namespaces = await store.resource("", "Namespace")
    async with custom_kind(store) as widgets:
        await store.create(widgets, widget(widgets.group, "a"), namespace)
        await store.delete(namespaces, namespace)
        await gone(store, widgets, "a", namespace)
        await gone(store, namespaces, namespace, None)


async def test_while_it_goes_nothing_new_comes_in_and_it_says_what_keeps_it(store: Store, namespace: str) -> None:
    namespaces, maps = await store.resource("", "Namespace"), await store.resource("", "ConfigMap")
    await store.create(maps, config_map("held", finalizers=["example.com/hold"]), namespace)
    await store.delete(namespaces, namespace)
    with pytest.raises(Forbidden, match="because it is being terminated") as refused:
        await store.create(maps, config_map("late"), namespace)
    assert any(cause.reason == "NamespaceTerminating" for cause in refused.value.causes)
    await until(store, maps, "held", namespace, lambda raw: bool(raw["metadata"].get("deletionTimestamp")))
    there = await store.get(namespaces, namespace)
    assert there["status"]["phase"] == "Terminating"

    def says_so(raw: dict[str, object]) -> bool:
        conditions = raw["status"].get("conditions") or []  # type: ignore[attr-defined]
        text = " ".join(c["message"] for c in conditions if c["status"] == "True")
        return "configmaps" in text and "example.com/hold" in text

    await until(store, namespaces, namespace, None, says_so)
    await store.patch(maps, "held", {"metadata": {"finalizers": None}}, namespace)
    await gone(store, namespaces, namespace, None)


async def test_its_own_finalizers_count(store: Store) -> None:
    namespaces = await store.resource("", "Namespace")
    name = unique("held")
    await store.create(namespaces, {"metadata": {"name": name, "finalizers": ["example.com/hold"]}})
    await store.delete(namespaces, name)
    await until(store, namespaces, name, None, lambda raw: not raw["spec"].get("finalizers"))
    assert (await store.get(namespaces, name))["metadata"]["finalizers"] == ["example.com/hold"]
    await store.patch(namespaces, name, {"metadata": {"finalizers": None}})
    await gone(store, namespaces, name, None)


async def test_writes_and_the_end_of_a_namespace_at_the_same_time(store: Store, namespace: str) -> None:
    """Whatever was accepted is gone with the namespace; whatever came too late was refused. Nothing is left behind."""
    namespaces, maps = await store.resource("", "Namespace"), await store.resource("", "ConfigMap")

    async def write(n: int) -> bool:
        try:
            await store.create(maps, config_map(f"m{n}"), namespace)
        except (Forbidden, NotFound, Conflict):
            return False
        return True

    accepted, _ = await asyncio.gather(asyncio.gather(*(write(n) for n in range(40))), store.delete(namespaces, namespace))
    await gone(store, namespaces, namespace, None)
    assert (await store.list(maps, namespace)).items == []
    assert len(accepted) == 40


async def test_some_are_never_deleted(store: Store) -> None:
    namespaces = await store.resource("", "Namespace")
    try:
        await store.get(namespaces, "kube-system")
    except NotFound:
        await store.create(namespaces, {"metadata": {"name": "kube-system"}})
    with pytest.raises(Forbidden, match="may not be deleted"):
        await store.delete(namespaces, "kube-system")
