"""Get and list: selectors, pages, snapshots."""

from __future__ import annotations

import pytest

from muster.objects.status import ApiError, BadRequest, NotFound
from muster.store.contract import Store
from tests.store.conformance.support import config_map, pod, unique


def names(items: list[dict[str, object]]) -> list[str]:
    return [item["metadata"]["name"] for item in items]  # type: ignore[index]


async def test_get_what_was_created(store: Store, namespace: str) -> None:
    maps = await store.resource("", "ConfigMap")
    created = await store.create(maps, config_map("a", {"x": "1", "text": "é ü 中 \u2028"}), namespace)
    assert await store.get(maps, "a", namespace) == created
    assert created["data"] == {"x": "1", "text": "é ü 中 \u2028"}
    assert created["apiVersion"] == "v1"
    assert created["kind"] == "ConfigMap"


async def test_a_returned_object_belongs_to_the_caller(store: Store, namespace: str) -> None:
    maps = await store.resource("", "ConfigMap")
    sent = config_map("a", labels={"k": "v"})
    created = await store.create(maps, sent, namespace)
    created["data"]["key"] = sent["data"]["key"] = "changed"
    sent["metadata"]["labels"]["k"] = "changed"
    assert (await store.get(maps, "a", namespace))["data"] == {"key": "value"}
    assert len((await store.list(maps, namespace, label_selector="k=v")).items) == 1


async def test_not_found_names_the_object(store: Store, namespace: str) -> None:
    maps = await store.resource("", "ConfigMap")
    with pytest.raises(NotFound, match='configmaps "nobody" not found') as missing:
        await store.get(maps, "nobody", namespace)
    assert missing.value.name == "nobody"
    with pytest.raises(NotFound):
        await store.get(maps, "a", unique("no-such-namespace"))


async def test_unknown_kind(store: Store) -> None:
    with pytest.raises(NotFound):
        await store.resource("example.com", "Unheard")


async def test_list_is_sorted_and_by_namespace(store: Store, namespace: str) -> None:
    maps = await store.resource("", "ConfigMap")
    for name in ("c", "a", "b"):
        await store.create(maps, config_map(name, labels={"test": namespace}), namespace)
    listed = await store.list(maps, namespace, label_selector=f"test={namespace}")
    assert names(listed.items) == ["a", "b", "c"]
    assert listed.resource_version
    assert listed.continue_token == ""
    everywhere = await store.list(maps, label_selector=f"test={namespace}")
    assert names(everywhere.items) == ["a", "b", "c"]
    assert (await store.list(maps, unique("elsewhere"))).items == []
    assert all(item["kind"] == "ConfigMap" and item["apiVersion"] == "v1" for item in listed.items)


@pytest.mark.parametrize(
    ("selector", "found"),
    [
        pytest.param("tier=web", ["a", "b"], id="equal"),
        pytest.param("tier==web,env!=prod", ["b"], id="equal and not equal"),
        pytest.param("env in (prod,test)", ["a", "b", "c"], id="in"),
        pytest.param("env notin (prod)", ["b", "d"], id="notin includes those without"),
        pytest.param("tier", ["a", "b", "c"], id="exists"),
        pytest.param("!env", ["d"], id="does not exist"),
        pytest.param("tier=nothing", [], id="nothing"),
    ],
)
async def test_label_selectors(store: Store, namespace: str, selector: str, found: list[str]) -> None:
    maps = await store.resource("", "ConfigMap")
    labels = {
        "a": {"tier": "web", "env": "prod"},
        "b": {"tier": "web", "env": "test"},
        "c": {"tier": "db", "env": "prod"},
        "d": {},
    }
    for name, own in labels.items():
        await store.create(maps, config_map(name, labels={"suite": "labels", **own}), namespace)
    listed = await store.list(maps, namespace, label_selector=f"suite=labels,{selector}")
    assert names(listed.items) == found


async def test_field_selectors(store: Store, namespace: str) -> None:
    pods = await store.resource("", "Pod")
    await store.create(pods, pod("bound", node="n1"), namespace)
    await store.create(pods, pod("free"), namespace)
    for selector, found in (
        ("spec.nodeName=n1", ["bound"]),
        ("spec.nodeName=", ["free"]),
        ("spec.nodeName!=n1", ["free"]),
        ("metadata.name=free", ["free"]),
        (f"metadata.namespace={namespace}", ["bound", "free"]),
        ("status.phase=Pending,spec.nodeName=n1", ["bound"]),
        ("metadata.name=nobody", []),
    ):
        assert names((await store.list(pods, namespace, field_selector=selector)).items) == found, selector


@pytest.mark.parametrize(
    ("labels", "fields"),
    [
        pytest.param("a in (", "", id="label selector cut short"),
        pytest.param("a=b=c", "", id="label selector with two values"),
        pytest.param("", "spec.unheard=1", id="field that can't be selected by"),
        pytest.param("", "metadata.name", id="field selector without value"),
    ],
)
async def test_bad_selectors_are_bad_requests(store: Store, namespace: str, labels: str, fields: str) -> None:
    pods = await store.resource("", "Pod")
    with pytest.raises(BadRequest):
        await store.list(pods, namespace, label_selector=labels, field_selector=fields)


async def test_pages_are_one_snapshot(store: Store, namespace: str) -> None:
    maps = await store.resource("", "ConfigMap")
    for name in ("a", "c", "e", "g", "i"):
        await store.create(maps, config_map(name, {"v": "old"}, labels={"paged": "yes"}), namespace)
    page = await store.list(maps, namespace, label_selector="paged=yes", limit=2)
    assert names(page.items) == ["a", "c"]
    first_version = page.resource_version
    # Between pages: one is changed, one deleted, two appear, before and after the reader's position.
    await store.patch(maps, "g", {"data": {"v": "new"}}, namespace)
    await store.delete(maps, "e", namespace)
    for name in ("b", "f"):
        await store.create(maps, config_map(name, labels={"paged": "yes"}), namespace)
    items = list(page.items)
    while page.continue_token:
        page = await store.list(maps, namespace, label_selector="paged=yes", limit=2, continue_token=page.continue_token)
        assert page.resource_version == first_version
        items += page.items
    assert names(items) == ["a", "c", "e", "g", "i"]
    assert all(item["data"] == {"v": "old"} for item in items)
    assert names((await store.list(maps, namespace, label_selector="paged=yes")).items) == ["a", "b", "c", "f", "g", "i"]


async def test_pages_say_how_many_follow(store: Store, namespace: str) -> None:
    maps = await store.resource("", "Secret")
    for name in ("a", "b", "c", "d", "e"):
        await store.create(maps, {"metadata": {"name": name}, "type": "Opaque"}, namespace)
    page = await store.list(maps, namespace, limit=2)
    assert page.remaining == 3
    page = await store.list(maps, namespace, limit=2, continue_token=page.continue_token)
    assert page.remaining == 1
    page = await store.list(maps, namespace, limit=2, continue_token=page.continue_token)
    assert (names(page.items), page.remaining, page.continue_token) == (["e"], None, "")


@pytest.mark.parametrize("token", ["garbage", "e30", "AAAA", "!!!"])
async def test_a_made_up_continue_token_is_a_bad_request(store: Store, namespace: str, token: str) -> None:
    maps = await store.resource("", "ConfigMap")
    with pytest.raises(BadRequest, match="continue key is not valid"):
        await store.list(maps, namespace, limit=1, continue_token=token)


async def test_cluster_wide_objects_have_no_namespace(store: Store) -> None:
    nodes = await store.resource("", "Node")
    name = unique("node")
    created = await store.create(nodes, {"metadata": {"name": name}})
    try:
        assert "namespace" not in created["metadata"]
        assert (await store.get(nodes, name))["metadata"]["uid"] == created["metadata"]["uid"]
        assert names((await store.list(nodes, field_selector=f"metadata.name={name}")).items) == [name]
    finally:
        await store.delete(nodes, name)
    with pytest.raises(ApiError):
        await store.get(nodes, name)


async def test_a_store_says_which_version_it_is_like(store: Store) -> None:
    assert await store.minor_version() >= 20
