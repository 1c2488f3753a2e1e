"""What pods see of config maps, secrets, their own fields, and directories."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from muster.objects.status import Raw
from tests.agent.carrier.carriers import LocalCarrier
from tests.agent.carrier.conftest import World, container_status, status, terminated
from tests.waiting import until


async def see(world: World, script: str, volumes: list[Raw], mounts: list[Raw], **more: Any) -> str:
    container = world.container(script, volumeMounts=mounts, **more)
    await world.create(containers=[container], volumes=volumes)
    pod = await world.ended()
    assert status(pod)["phase"] == "Succeeded", (pod["status"], await world.logs())
    return await world.logs()


async def test_config_maps_and_secrets_are_files(world: World) -> None:
    await world.make(
        "ConfigMap", "cm", data={"a.txt": "A", "b.txt": "B"}, binaryData={"bin": base64.b64encode(b"x\n").decode()}
    )
    await world.make("Secret", "sec", data={"pw": base64.b64encode(b"s3cret").decode()})
    volumes = [
        {"name": "cm", "configMap": {"name": "cm"}},
        {"name": "some", "configMap": {"name": "cm", "items": [{"key": "a.txt", "path": "deep/er/a", "mode": 0o400}]}},
        {"name": "sec", "secret": {"secretName": "sec", "defaultMode": 0o440}},
        {"name": "none", "secret": {"secretName": "nothing", "optional": True}},
    ]
    mounts = [{"name": v["name"], "mountPath": f"/v/{v['name']}"} for v in volumes]
    script = (
        "cat /v/cm/a.txt /v/cm/b.txt; echo; cat /v/cm/bin; cat /v/some/deep/er/a; echo; cat /v/sec/pw; echo; "
        "ls /v/some /v/none; (echo no > /v/cm/new) 2>/dev/null && echo written; echo end"
    )
    text = await see(world, script, volumes, mounts)
    assert text.split() == ["AB", "x", "A", "s3cret", "/v/none:", "/v/some:", "deep", "end"]


@pytest.mark.needs("labels")
async def test_a_pod_reads_about_itself(world: World) -> None:
    items = [
        {"path": "name", "fieldRef": {"fieldPath": "metadata.name"}},
        {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}},
        {"path": "cpu", "resourceFieldRef": {"containerName": "main", "resource": "requests.cpu", "divisor": "1m"}},
    ]
    await world.make("ConfigMap", "cm", data={"k": "v"})
    sources = [{"downwardAPI": {"items": items}}, {"configMap": {"name": "cm"}}]
    volumes = [{"name": "own", "downwardAPI": {"items": items[:1]}}, {"name": "all", "projected": {"sources": sources}}]
    mounts = [{"name": "own", "mountPath": "/own"}, {"name": "all", "mountPath": "/all"}]
    script = "cat /own/name; echo; cat /all/labels; echo; cat /all/cpu; echo; cat /all/k"
    text = await see(world, script, volumes, mounts, resources={"requests": {"cpu": "250m"}})
    assert text.split() == ["p", 'app="a"', "250", "v"]


async def test_one_key_at_a_path_of_its_own(world: World) -> None:
    await world.make("ConfigMap", "cm", data={"conf": "inside"})
    volumes = [{"name": "cm", "configMap": {"name": "cm"}}, {"name": "e", "emptyDir": {}}]
    mounts = [
        {"name": "cm", "mountPath": "/opt/app/conf", "subPath": "conf"},
        {"name": "e", "mountPath": "/work", "subPath": "a/b"},
    ]
    text = await see(world, "cat /opt/app/conf; echo; echo x > /work/f && cat /work/f", volumes, mounts)
    assert text.split() == ["inside", "x"]


async def test_memory_and_read_only_directories(world: World) -> None:
    volumes: list[Raw] = [{"name": "m", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}, {"name": "e", "emptyDir": {}}]
    mounts: list[Raw] = [{"name": "m", "mountPath": "/m"}, {"name": "e", "mountPath": "/e", "readOnly": True}]
    script = (
        "echo a > /m/f && cat /m/f; dd if=/dev/zero of=/m/big bs=1024 count=4096 2>/dev/null || echo full; "
        "(echo b > /e/f) 2>/dev/null || echo sealed; grep ' /m ' /proc/mounts | cut -d' ' -f3"
    )
    assert (await see(world, script, volumes, mounts)).split() == ["a", "full", "sealed", "tmpfs"]


@pytest.mark.needs("refresh")
async def test_a_changed_config_map_reaches_a_running_pod(world: World) -> None:
    await world.make("ConfigMap", "cm", data={"k": "old", "gone": "x"})
    script = "while grep -q old /v/k; do sleep 0.1; done; cat /v/k; echo; ls /v"
    container = world.container(script, volumeMounts=[{"name": "v", "mountPath": "/v"}])
    await world.create(containers=[container], volumes=[{"name": "v", "configMap": {"name": "cm"}}])
    await world.phase("Running")
    maps = await world.store.resource("", "ConfigMap")
    await world.store.patch(maps, "cm", {"data": {"k": "new", "gone": None, "more": "y"}}, world.namespace)
    await world.ended()
    assert (await world.logs()).split() == ["new", "k", "more"]


@pytest.mark.needs("records")
async def test_a_changed_label_reaches_a_running_pod(world: World) -> None:
    items = [{"path": "app", "fieldRef": {"fieldPath": "metadata.labels['app']"}}]
    script = "while grep -q '^a$' /v/app || [ ! -s /v/app ]; do sleep 0.1; done; cat /v/app"
    container = world.container(script, volumeMounts=[{"name": "v", "mountPath": "/v"}])
    await world.create(containers=[container], volumes=[{"name": "v", "downwardAPI": {"items": items}}])
    await world.phase("Running")
    pods = await world.store.resource("", "Pod")
    await world.store.patch(pods, "p", {"metadata": {"labels": {"app": "changed"}}}, world.namespace)
    await world.ended()
    assert await world.logs() == "changed"


async def test_a_missing_config_map_is_waited_for(world: World) -> None:
    container = world.container("cat /v/k", volumeMounts=[{"name": "v", "mountPath": "/v"}])
    await world.create(containers=[container], volumes=[{"name": "v", "configMap": {"name": "later"}}])
    pod = await world.when(lambda pod: container_status(pod).get("state", {}).get("waiting", {}).get("message"))
    assert "later" in container_status(pod)["state"]["waiting"]["message"]

    async def is_told() -> bool:
        return bool(await world.events("FailedMount"))

    if world.has("events"):
        await until(is_told)


@pytest.mark.parametrize(
    ("volume", "word"),
    [
        ({"persistentVolumeClaim": {"claimName": "c"}}, "persistentVolumeClaim"),
        ({"nfs": {"server": "s", "path": "/"}}, "nfs"),
        ({"hostPath": {"path": "/etc"}}, "allowedHostPaths"),
    ],
    ids=["claim", "nfs", "hostPath"],
)
@pytest.mark.needs("hostpath")
async def test_what_the_node_does_not_give(world: World, volume: Raw, word: str) -> None:
    container = world.container("true", volumeMounts=[{"name": "v", "mountPath": "/v"}])
    await world.create(containers=[container], volumes=[{"name": "v", **volume}])
    pod = await world.ended()
    assert (status(pod)["phase"], status(pod)["reason"]) == ("Failed", "FailedMount")
    assert word in status(pod)["message"]
    assert not terminated(pod)


@pytest.mark.needs("hostpath")
async def test_host_paths_below_what_is_allowed(world: World) -> None:
    assert isinstance(world.carrier, LocalCarrier)
    allowed: Path = world.carrier.allowed
    allowed.chmod(0o755)
    (allowed / "file").write_text("from the host\n")
    (allowed / "out").symlink_to("/etc")
    container = world.container("cat /v/file", volumeMounts=[{"name": "v", "mountPath": "/v", "readOnly": True}])
    await world.create(containers=[container], volumes=[{"name": "v", "hostPath": {"path": str(allowed), "type": "Directory"}}])
    await world.ended()
    assert await world.logs() == "from the host\n"
    escape = {"name": "v", "hostPath": {"path": str(allowed / "out")}}
    await world.create(name="q", containers=[container], volumes=[escape])
    pod = await world.when(lambda pod: container_status(pod).get("state", {}).get("waiting", {}).get("message"), "q")
    assert "allowedHostPaths" in container_status(pod)["state"]["waiting"]["message"]


@pytest.mark.needs("hostpath")
async def test_a_planted_link_does_not_lead_out_of_a_volume(world: World) -> None:
    """One container plants a link, the next one mounts what it points to."""
    volumes = [{"name": "e", "emptyDir": {}}]
    plant = world.container("ln -s /etc /e/link", "plant", volumeMounts=[{"name": "e", "mountPath": "/e"}])
    use = world.container("ls /x", volumeMounts=[{"name": "e", "mountPath": "/x", "subPath": "link"}])
    await world.create(initContainers=[plant], containers=[use], volumes=volumes)
    pod = await world.when(lambda pod: container_status(pod).get("state", {}).get("waiting", {}).get("message"))
    assert "link" in container_status(pod)["state"]["waiting"]["message"]
