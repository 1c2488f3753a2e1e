"""`lightkube`: typed and generic resources, sync and async, waiting, and bundles that are applied by the server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.manifests import DEPLOYMENT, widget
from tests.waiting import blocked_until

pytestmark = pytest.mark.slow


def _client(kubeconfig: Path, **more: Any) -> Any:
    from lightkube import Client, KubeConfig

    return Client(config=KubeConfig.from_file(kubeconfig), **more)


@pytest.fixture
def client(kubeconfig: Path, namespace: str) -> Iterator[Any]:
    with _client(kubeconfig, namespace=namespace, field_manager="tests") as made:
        yield made


def _map(name: str, **labels: str) -> Any:
    from lightkube.models.meta_v1 import ObjectMeta
    from lightkube.resources.core_v1 import ConfigMap

    return ConfigMap(metadata=ObjectMeta(name=name, labels=labels), data={"n": "0"})


def test_who_am_i(any_kubeconfig: tuple[Path, str]) -> None:
    from lightkube.models.meta_v1 import ObjectMeta
    from lightkube.resources.core_v1 import Namespace

    path, user = any_kubeconfig
    name = f"of-{user}"
    with _client(path) as client:
        client.create(Namespace(metadata=ObjectMeta(name=name, annotations={"by": user})))
        assert client.get(Namespace, name).metadata.annotations == {"by": user}
        client.delete(Namespace, name)


def test_create_patch_delete(client: Any) -> None:
    from lightkube import ApiError
    from lightkube.resources.core_v1 import ConfigMap
    from lightkube.types import CascadeType, PatchType

    client.create(_map("m"))
    assert client.patch(ConfigMap, "m", {"data": {"a": "1"}}).data == {"n": "0", "a": "1"}
    removed = client.patch(ConfigMap, "m", [{"op": "remove", "path": "/data/n"}], patch_type=PatchType.JSON)
    assert removed.data == {"a": "1"}
    assert client.patch(ConfigMap, "m", {"data": {"a": None}}, patch_type=PatchType.MERGE).data == {}
    applied = client.patch(
        ConfigMap,
        "m",
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": {"c": "3"}},
        patch_type=PatchType.APPLY,
        force=True,
    )
    assert applied.data == {"c": "3"}
    client.delete(ConfigMap, "m", cascade=CascadeType.FOREGROUND)

    def is_gone() -> bool:
        try:
            client.get(ConfigMap, "m")
        except ApiError as error:
            return (error.status.code, error.status.reason) == (404, "NotFound")
        return False

    blocked_until(is_gone)


def test_lists_selectors_and_pages(client: Any) -> None:
    from lightkube import operators as op
    from lightkube.resources.core_v1 import ConfigMap

    for number in range(7):
        client.create(_map(f"m{number}", number=str(number)))

    def names(**query: Any) -> list[str]:
        return [one.metadata.name for one in client.list(ConfigMap, **query)]

    assert names(labels={"number": op.in_(["1", "2"])}) == ["m1", "m2"]
    assert names(fields={"metadata.name": "m3"}) == ["m3"]
    assert names(labels={"number": op.exists()}, chunk_size=2) == [f"m{number}" for number in range(7)]
    client.deletecollection(ConfigMap)
    assert names(labels={"number": op.exists()}) == []


def test_watch_from_a_version(client: Any, compact: Callable[[], None]) -> None:
    from lightkube import ApiError
    from lightkube.resources.core_v1 import ConfigMap

    start = client.create(_map("a")).metadata.resourceVersion
    client.patch(ConfigMap, "a", {"data": {"n": "1"}})
    client.delete(ConfigMap, "a")
    seen = []
    for kind, found in client.watch(ConfigMap, resource_version=start):
        seen.append((kind, found.data["n"]))
        if kind == "DELETED":
            break
    assert seen == [("MODIFIED", "1"), ("DELETED", "1")]
    compact()
    with pytest.raises(ApiError) as caught:
        next(iter(client.watch(ConfigMap, resource_version=start)))
    assert caught.value.status.code == 410


def test_errors(client: Any, nobody_kubeconfig: Path, namespace: str) -> None:
    from lightkube import ApiError
    from lightkube.models.core_v1 import Container, PodSpec
    from lightkube.models.meta_v1 import ObjectMeta
    from lightkube.resources.core_v1 import ConfigMap, Pod

    made = client.create(_map("m"))
    with pytest.raises(ApiError) as taken:
        client.create(_map("m"))
    assert taken.value.status.reason == "AlreadyExists"
    client.patch(ConfigMap, "m", {"data": {"n": "1"}})
    with pytest.raises(ApiError) as stale:
        client.replace(made)
    assert stale.value.status.reason == "Conflict"
    with pytest.raises(ApiError) as invalid:
        client.create(Pod(metadata=ObjectMeta(name="p"), spec=PodSpec(containers=[Container(name="UPPER", image="i")])))
    assert invalid.value.status.code == 422
    assert [cause.field for cause in invalid.value.status.details.causes] == ["spec.containers[0].name"]
    with _client(nobody_kubeconfig) as other, pytest.raises(ApiError) as forbidden:
        list(other.list(Pod, namespace=namespace))
    assert forbidden.value.status.reason == "Forbidden"


def test_generic_resources(client: Any, namespace: str, widgets: str) -> None:
    """Custom kinds from their definitions; ours, which have none on this server, by name."""
    from lightkube import codecs
    from lightkube.generic_resource import create_global_resource, get_generic_resource, load_in_cluster_generic_resources

    load_in_cluster_generic_resources(client)
    kind = get_generic_resource(f"{widgets}/v1", "Widget")
    [wanted] = codecs.load_all_yaml(widget(widgets, size=3))
    assert client.create(wanted)["spec"] == {"size": 3, "color": "red"}
    client.patch(kind.Status, "w", {"status": {"phase": "Up"}}, patch_type=_merge())
    scaled = client.patch(kind.Scale, "w", {"spec": {"replicas": 4}}, patch_type=_merge())
    assert scaled.spec.replicas == 4
    live = client.get(kind, "w")
    assert (live.spec["replicas"], live.status["phase"]) == (4, "Up")
    assert [one.metadata.name for one in client.list(kind)] == ["w"]
    client.delete(kind, "w")

    domains = create_global_resource("kuscia.secretflow", "v1alpha1", "Domain", "domains")
    client.create(domains(metadata={"name": "yara"}, spec={}))
    assert "yara" in {one.metadata.name for one in client.list(domains)}
    client.delete(domains, "yara")


def _merge() -> Any:
    from lightkube.types import PatchType

    return PatchType.MERGE


def test_wait_for_a_condition(client: Any, widgets: str) -> None:
    from lightkube.resources.apiextensions_v1 import CustomResourceDefinition

    found = client.wait(CustomResourceDefinition, f"widgets.{widgets}", for_conditions=["Established"])
    assert found.metadata.name == f"widgets.{widgets}"


async def test_async_client(kubeconfig: Path, namespace: str) -> None:
    from lightkube import ApiError, AsyncClient, KubeConfig
    from lightkube.resources.core_v1 import ConfigMap

    client = AsyncClient(config=KubeConfig.from_file(kubeconfig), namespace=namespace)
    try:
        made = await client.create(_map("a"))
        await client.patch(ConfigMap, "a", {"data": {"n": "1"}})
        async for kind, found in client.watch(ConfigMap, resource_version=made.metadata.resourceVersion):
            assert (kind, found.data) == ("MODIFIED", {"n": "1"})
            break
        assert "a" in [one.metadata.name async for one in client.list(ConfigMap, chunk_size=1)]
        await client.delete(ConfigMap, "a")
        with pytest.raises(ApiError):
            await client.get(ConfigMap, "a")
    finally:
        await client.close()


def test_a_bundle_is_kept_as_it_should_be(client: Any, widgets: str) -> None:
    """The task: a small reconciler. It applies a bundle, again and again; what others own stays theirs, what it owns comes
    back, what it no longer wants goes."""
    from lightkube import codecs
    from lightkube.generic_resource import load_in_cluster_generic_resources
    from lightkube.resources.apps_v1 import Deployment
    from lightkube.resources.core_v1 import Service

    load_in_cluster_generic_resources(client)

    def reconcile(bundle: str) -> dict[str, str]:
        wanted = codecs.load_all_yaml(bundle)
        applied = [client.apply(one, force=True) for one in wanted]
        return {f"{one.kind}/{one.metadata.name}": one.metadata.resourceVersion for one in applied}

    bundle = DEPLOYMENT + "---\n" + widget(widgets, size=2)
    before = reconcile(bundle)
    assert set(before) == {"Deployment/shop", "Service/shop", "Widget/w"}
    assert reconcile(bundle) == before  # nothing is written when nothing has to be

    client.patch(Deployment, "shop", {"metadata": {"annotations": {"theirs": "yes"}}, "spec": {"replicas": 9}})
    reconcile(bundle)
    live = client.get(Deployment, "shop")
    assert (live.spec.replicas, live.metadata.annotations) == (2, {"theirs": "yes"})

    reconcile(bundle.replace("        ports: [{containerPort: 80}]\n", ""))
    assert client.get(Deployment, "shop").spec.template.spec.containers[0].ports is None
    client.delete(Service, "shop")
    assert set(reconcile(bundle)) == set(before)
    assert client.get(Service, "shop").spec.ports[0].targetPort == 80
