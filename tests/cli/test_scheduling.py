"""`muster up` schedules: pods that name its profile find a node, and those that do not fit say why."""

from __future__ import annotations

from pathlib import Path

from muster.client import ApiClient
from muster.objects.conditions import find_condition
from muster.objects.status import Raw
from muster.store.kubernetes import KubernetesStore
from tests.cli.support import Up, environment
from tests.controllers.scheduling import create, node, pod
from tests.waiting import until


async def test_pods_find_their_node(tmp_path: Path) -> None:
    with Up(tmp_path / "data", env=environment(tmp_path)) as up:
        store = KubernetesStore(await ApiClient.from_kubeconfig(up.kubeconfig))
        try:
            await create(store, node("n1", "2"), pod("a"), pod("big", "3"), pod("stranger", scheduler="default-scheduler"))
            pods = await store.resource("", "Pod")

            async def live(name: str) -> Raw:
                return await store.get(pods, name, "default")

            async def is_placed() -> bool:
                return bool((await live("a"))["spec"].get("nodeName") == "n1")

            async def says_why() -> bool:
                conditions = ((await live("big")).get("status") or {}).get("conditions")
                return (find_condition(conditions, "muster.dev/Waiting") or {}).get("reason") == "Impossible"

            await until(is_placed)
            await until(says_why)
            assert "nodeName" not in (await live("stranger"))["spec"]
        finally:
            await store.close()
