"""`kubernetes_asyncio`: the generated API on aiohttp, its watch, its dynamic client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import WAIT_S, until

pytestmark = pytest.mark.slow

CREATED = 100
MERGE = "application/merge-patch+json"


@pytest.fixture
async def api(kubeconfig: Path) -> AsyncIterator[Any]:
    from kubernetes_asyncio import config

    async with await config.new_client_from_config(str(kubeconfig)) as made:
        yield made


@pytest.fixture
def core(api: Any) -> Any:
    from kubernetes_asyncio.client import CoreV1Api

    return CoreV1Api(api)


def _map(name: str, **labels: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": labels}, "data": {"n": "0"}}


async def test_who_am_i(any_kubeconfig: tuple[Path, str]) -> None:
    from kubernetes_asyncio import config
    from kubernetes_asyncio.client import AuthenticationV1Api, V1SelfSubjectReview

    path, user = any_kubeconfig
    async with await config.new_client_from_config(str(path)) as api:
        me = await AuthenticationV1Api(api).create_self_subject_review(V1SelfSubjectReview())
        assert me.status.user_info.username == user


async def test_create_patch_delete(core: Any, namespace: str) -> None:
    from kubernetes_asyncio.client import ApiException, V1DeleteOptions, V1Preconditions

    made = await core.create_namespaced_config_map(namespace, _map("m"))
    patch = core.patch_namespaced_config_map
    assert (await patch("m", namespace, {"data": {"a": "1"}})).data == {"n": "0", "a": "1"}
    assert (await patch("m", namespace, [{"op": "remove", "path": "/data/n"}])).data == {"a": "1"}
    assert (await patch("m", namespace, {"data": {"a": None, "b": "2"}}, _content_type=MERGE)).data == {"b": "2"}
    applied = await patch(
        "m",
        namespace,
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": {"c": "3"}},
        field_manager="tests",
        force=True,
        _content_type="application/apply-patch+yaml",
    )
    assert applied.data == {"b": "2", "c": "3"}
    wrong = V1DeleteOptions(preconditions=V1Preconditions(resource_version=made.metadata.resource_version))
    with pytest.raises(ApiException) as caught:
        await core.delete_namespaced_config_map("m", namespace, body=wrong)
    assert caught.value.status == 409
    await core.delete_namespaced_config_map("m", namespace, propagation_policy="Foreground")

    async def is_gone() -> bool:
        try:
            await core.read_namespaced_config_map("m", namespace)
        except ApiException as error:
            return bool(error.status == 404)
        return False

    await until(is_gone)


async def test_pages(core: Any, namespace: str) -> None:
    for number in range(5):
        await core.create_namespaced_config_map(namespace, _map(f"m{number}", of="pages"))
    names: list[str] = []
    token = None
    while token != "":
        page = await core.list_namespaced_config_map(namespace, label_selector="of=pages", limit=2, _continue=token)
        names += [found.metadata.name for found in page.items]
        token = page.metadata._continue or ""
    assert names == [f"m{number}" for number in range(5)]


async def test_errors(core: Any, namespace: str, nobody_kubeconfig: Path) -> None:
    from kubernetes_asyncio import config
    from kubernetes_asyncio.client import ApiException, CoreV1Api

    async def refused(call: Any) -> tuple[int, str]:
        with pytest.raises(ApiException) as caught:
            await call
        return caught.value.status, json.loads(caught.value.body)["reason"]

    made = await core.create_namespaced_config_map(namespace, _map("m"))
    assert await refused(core.create_namespaced_config_map(namespace, _map("m"))) == (409, "AlreadyExists")
    await core.patch_namespaced_config_map("m", namespace, {"data": {"n": "1"}})
    assert await refused(core.replace_namespaced_config_map("m", namespace, made)) == (409, "Conflict")
    assert await refused(core.create_namespaced_pod(namespace, {"metadata": {"name": "p"}, "spec": {"containers": []}})) == (
        422,
        "Invalid",
    )
    async with await config.new_client_from_config(str(nobody_kubeconfig)) as other:
        assert await refused(CoreV1Api(other).list_namespaced_pod(namespace)) == (403, "Forbidden")


async def test_watch_resumes_and_hears_of_compaction(core: Any, namespace: str, compact: Callable[[], None]) -> None:
    from kubernetes_asyncio import watch
    from kubernetes_asyncio.client import ApiException

    start = (await core.list_namespaced_config_map(namespace)).metadata.resource_version
    await core.create_namespaced_config_map(namespace, _map("a"))
    await core.patch_namespaced_config_map("a", namespace, {"data": {"n": "1"}})
    seen = []
    async with watch.Watch() as watching:
        async for event in watching.stream(core.list_namespaced_config_map, namespace, resource_version=start):
            seen.append((event["type"], event["object"].data["n"]))
            if len(seen) == 2:
                break
    assert seen == [("ADDED", "0"), ("MODIFIED", "1")]
    await asyncio.to_thread(compact)

    async def from_the_start() -> None:
        async with watch.Watch() as watching:
            async for _ in watching.stream(
                core.list_namespaced_config_map, namespace, resource_version=start, timeout_seconds=5
            ):
                return

    with pytest.raises(ApiException) as caught:
        await from_the_start()
    assert caught.value.status == 410


async def test_custom_and_dynamic(api: Any, namespace: str, widgets: str) -> None:
    from kubernetes_asyncio.client import CustomObjectsApi
    from kubernetes_asyncio.dynamic import DynamicClient

    custom, of = CustomObjectsApi(api), (widgets, "v1", namespace, "widgets")
    await custom.create_namespaced_custom_object(*of, {"kind": "Widget", "metadata": {"name": "w"}, "spec": {"size": 3}})
    await custom.patch_namespaced_custom_object_status(*of, "w", {"status": {"phase": "Up"}}, _content_type=MERGE)

    client = await DynamicClient(api)
    kind = await client.resources.get(api_version=f"{widgets}/v1", kind="Widget")
    live = await kind.get(name="w", namespace=namespace)
    assert (live.spec.color, live.status.phase) == ("red", "Up")
    patched = await kind.patch(name="w", namespace=namespace, body={"spec": {"size": 5}}, content_type=MERGE)
    assert patched.spec.size == 5
    domains = await client.resources.get(api_version="kuscia.secretflow/v1alpha1", kind="Domain")
    assert (await domains.get()).kind == "DomainList"
    await kind.delete(name="w", namespace=namespace)


async def test_a_watch_misses_none_of_many_at_once(core: Any, namespace: str) -> None:
    """The task: many objects made at the same time, while a watch that began before counts them."""
    from kubernetes_asyncio import watch

    start = (await core.list_namespaced_config_map(namespace)).metadata.resource_version
    seen: set[str] = set()

    async def count() -> None:
        async with watch.Watch() as watching:
            async for event in watching.stream(
                core.list_namespaced_config_map, namespace, label_selector="of=many", resource_version=start
            ):
                assert event["type"] == "ADDED"
                seen.add(event["object"].metadata.name)
                if len(seen) == CREATED:
                    return

    counting = asyncio.create_task(count())
    names = [f"m{number:03}" for number in range(CREATED)]
    await asyncio.gather(*(core.create_namespaced_config_map(namespace, _map(name, of="many")) for name in names))
    await asyncio.wait_for(counting, WAIT_S)
    assert seen == set(names)
