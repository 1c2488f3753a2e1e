"""`kr8s`: its sync and its asyncio face, with waiting, scaling, labels, watches, and kinds made up on the spot."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.clients.conftest import GROUP
from tests.server.running import RunningServer
from tests.waiting import WAIT_S, blocked_until

pytestmark = pytest.mark.slow


@pytest.fixture
def api(kubeconfig: Path, namespace: str) -> Any:
    import kr8s

    return kr8s.api(kubeconfig=str(kubeconfig), namespace=namespace)


@pytest.fixture
async def async_api(kubeconfig: Path, namespace: str) -> Any:
    import kr8s.asyncio

    return await kr8s.asyncio.api(kubeconfig=str(kubeconfig), namespace=namespace)


def _map(name: str, namespace: str, **labels: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace, "labels": labels}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"n": "0"}}


def _deployment(namespace: str) -> dict[str, Any]:
    labels = {"app": "web"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "main", "image": "nginx"}]}}
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": namespace}, "spec": spec}


def test_who_am_i(any_kubeconfig: tuple[Path, str]) -> None:
    import kr8s

    path, user = any_kubeconfig
    api = kr8s.api(kubeconfig=str(path))
    assert api.whoami() == user
    assert api.version()["major"] == "1"
    assert ("batch", "Job") in {(one["version"].partition("/")[0], one["kind"]) for one in api.api_resources()}


def test_create_patch_delete(api: Any, namespace: str) -> None:
    from kr8s import NotFoundError
    from kr8s.objects import ConfigMap

    made = ConfigMap(_map("m", namespace), api=api)
    assert not made.exists()
    made.create()
    assert made.exists()
    made.patch({"data": {"a": "1"}})
    made.patch([{"op": "remove", "path": "/data/n"}], type="json")
    made.refresh()
    assert made.data == {"a": "1"}
    made.label(tier="front")
    made.label({"checked": ""})
    made.annotate(note="hello")
    assert ConfigMap.get("m", namespace=namespace, api=api).labels == {"tier": "front", "checked": ""}
    made.remove_label("checked")
    assert (dict(made.labels), dict(made.annotations)) == ({"tier": "front"}, {"note": "hello"})
    made.delete(propagation_policy="Foreground")
    made.wait("delete", timeout=int(WAIT_S))
    with pytest.raises(NotFoundError):
        ConfigMap.get("m", namespace=namespace, api=api)


def test_lists_selectors_and_owners(api: Any, namespace: str) -> None:
    from kr8s.objects import ConfigMap

    maps = [ConfigMap(_map(f"m{number}", namespace, number=str(number)), api=api) for number in range(4)]
    for one in maps:
        one.create()

    def names(**query: Any) -> list[str]:
        return [one.name for one in api.get("configmaps", namespace=namespace, **query)]

    assert names(label_selector={"number": "1"}) == ["m1"]
    assert names(label_selector="number in (2,3)") == ["m2", "m3"]
    assert names(field_selector={"metadata.name": "m0"}) == ["m0"]
    assert [one.name for one in ConfigMap.list(namespace=namespace, label_selector="number", api=api)] == [
        "m0",
        "m1",
        "m2",
        "m3",
    ]
    maps[0].adopt(maps[1])
    maps[0].delete(propagation_policy="Foreground")
    maps[1].wait("delete", timeout=int(WAIT_S))


def test_scale_status_and_wait(api: Any, namespace: str) -> None:
    from kr8s.objects import Deployment

    web = Deployment(_deployment(namespace), api=api)
    web.create()

    def controller() -> None:
        """Stands in for the one that makes the pods: says that there are as many as wanted."""
        conditions = [{"type": "Available", "status": "True", "reason": "Up", "message": ""}]
        Deployment.get("web", namespace=namespace, api=api).patch(
            {"status": {"observedGeneration": 2, "replicas": 3, "readyReplicas": 3, "conditions": conditions}},
            subresource="status",
        )

    acting = threading.Thread(target=controller)
    acting.start()
    web.wait("condition=Available", timeout=int(WAIT_S))
    acting.join()
    web.scale(3)
    assert web.replicas == 3
    web.wait("jsonpath='{.status.readyReplicas}'=3", timeout=int(WAIT_S))
    web.delete()


def test_errors(api: Any, namespace: str, nobody_kubeconfig: Path) -> None:
    import kr8s
    from kr8s.objects import ConfigMap, Pod

    ConfigMap(_map("m", namespace), api=api).create()
    with pytest.raises(kr8s.ServerError) as taken:
        ConfigMap(_map("m", namespace), api=api).create()
    assert taken.value.response.status_code == 409
    assert taken.value.response.json()["reason"] == "AlreadyExists"
    with pytest.raises(kr8s.ServerError) as invalid:
        Pod({"metadata": {"name": "p", "namespace": namespace}, "spec": {"containers": []}}, api=api).create()
    assert invalid.value.response.json()["details"]["causes"][0]["field"] == "spec.containers"
    other = kr8s.api(kubeconfig=str(nobody_kubeconfig), namespace=namespace)
    with pytest.raises(kr8s.ServerError) as forbidden:
        list(other.get("configmaps", namespace=namespace))
    assert "cannot list resource" in str(forbidden.value)


def test_kinds_made_up_on_the_spot(api: Any, namespace: str, widgets: str) -> None:
    from kr8s.objects import new_class

    widget = new_class("Widget", version=f"{GROUP}/v1", namespaced=True)
    one = widget({"metadata": {"name": "w", "namespace": namespace}, "spec": {"size": 3}}, api=api)
    one.create()
    one.patch({"spec": {"size": 4}})
    one.patch({"status": {"phase": "Up"}}, subresource="status")
    assert (one.spec.size, one.spec.color, one.status.phase) == (4, "red", "Up")
    [found] = api.get(f"widgets.{GROUP}", namespace=namespace)
    assert found.name == "w"
    job = new_class("Job", version="muster.dev/v1alpha1", namespaced=True)
    job(
        {"metadata": {"name": "j", "namespace": namespace}, "spec": {"roles": [{"name": "a", "command": ["true"]}]}}, api=api
    ).create()
    assert [one.name for one in api.get("jobs.muster.dev", namespace=namespace)] == ["j"]
    assert list(api.get("kusciajobs", namespace=namespace)) == []


async def test_asyncio_and_watch(async_api: Any, namespace: str, server: RunningServer) -> None:
    from kr8s.asyncio.objects import ConfigMap

    made = await ConfigMap(_map("m", namespace, of="watch"), api=async_api)
    await made.create()
    seen: list[tuple[str, str]] = []

    async def follow() -> None:
        async for kind, found in async_api.watch("configmaps", namespace=namespace, label_selector="of=watch"):
            seen.append((kind, found.data.n))
            if kind == "DELETED":
                return
            if len(seen) == 1:
                changed.set()

    changed = asyncio.Event()
    following = asyncio.create_task(follow())
    await asyncio.wait_for(changed.wait(), WAIT_S)
    await made.patch({"data": {"n": "1"}})
    await made.delete()
    await asyncio.wait_for(following, WAIT_S)
    assert seen == [("ADDED", "0"), ("MODIFIED", "1"), ("DELETED", "1")]


@pytest.fixture
def fleet(simulated: Path) -> Any:
    import kr8s

    return kr8s.api(kubeconfig=str(simulated), namespace="default")


def test_a_report_on_nodes_and_pods(fleet: Any) -> None:
    """The task: run something, and say what each node has and what runs there."""
    from kr8s.objects import Pod, new_class

    job = new_class("Job", version="muster.dev/v1alpha1", namespaced=True)
    role = {
        "name": "web",
        "replicas": 2,
        "command": ["serve"],
        "env": [{"name": "MUSTER_SIMULATED_SECONDS", "value": "forever"}],
        "resources": {"requests": {"cpu": "500m"}},
    }
    work = job({"metadata": {"name": "report", "namespace": "default"}, "spec": {"roles": [role]}}, api=fleet)
    work.create()
    try:
        # Not `work.wait`: kr8s watches by plural alone, and `jobs` are batch Jobs first.
        pods: list[Any] = []

        def are_there() -> bool:
            pods[:] = fleet.get("pods", namespace="default", label_selector={"muster.dev/job": "report"})
            return len(pods) == 2

        blocked_until(are_there)
        for pod in pods:
            assert isinstance(pod, Pod)
            pod.wait("condition=Ready", timeout=int(WAIT_S))
            assert pod.ready()
        report = {
            node.name: sorted(pod.name for pod in pods if pod.spec.nodeName == node.name)
            for node in fleet.get("nodes")
            if node.labels["muster.dev/simulated"] == "true"
        }
        assert len(report) == 4
        assert sorted(name for names in report.values() for name in names) == ["report-web-0", "report-web-1"]
    finally:
        work.delete()
        blocked_until(lambda: not work.exists())
