"""`muster up` schedules: pods that name its profile or none find a node, and those that do not fit say why."""

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
            plain = pod("plain")
            del plain["spec"]["schedulerName"]
            await create(store, node("n1", "2"), pod("a"), pod("big", "3"), plain, pod("stranger", scheduler="nobody"))
            pods = await store.resource("", "Pod")

            async def live(name: str) -> Raw:
                return await store.get(pods, name, "default")

            async def are_placed() -> bool:
                return [(await live(name))["spec"].get("nodeName") for name in ("a", "plain")] == ["n1", "n1"]

            async def say_why() -> bool:
                found = []
                for name in ("big", "stranger"):
                    conditions = ((await live(name)).get("status") or {}).get("conditions")
                    found.append((find_condition(conditions, "muster.dev/Waiting") or {}).get("reason"))
                return found == ["Impossible", "NoProfile"]

            await until(are_placed)
            await until(say_why)
            assert "nodeName" not in (await live("stranger"))["spec"]
        finally:
            await store.close()
