"""The task controller in real time, with the reservation's: on the embedded store, and on a real API server."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncIterator

import pytest
from tests.controllers.kinds import serve_kinds
from tests.controllers.kuscia_tasks import app_image, container, domain, party, task, template
from tests.controllers.scheduling import create
from tests.waiting import until

from muster.controllers.kuscia_task import KusciaTasks
from muster.controllers.manager import Manager
from muster.controllers.task_reservation import TaskReservation
from muster.objects.meta import name_of
from muster.objects.status import AlreadyExists, ApiError, NotFound, Raw
from muster.objects.time import wall_clock
from muster.store.contract import Store

GROUP = "kuscia.secretflow"
KINDS = ("KusciaTask", "TaskResourceGroup", "TaskResource", "AppImage", "Domain", "KusciaTaskSummary", "KusciaDeployment")


@pytest.fixture
async def parties(real_store: Store) -> AsyncIterator[tuple[str, str]]:
    """Two parties with their namespaces, and the controllers."""
    await serve_kinds(real_store, *KINDS)
    word = uuid.uuid4().hex[:8]
    names = (f"alice-{word}", f"bob-{word}")
    namespaces = await real_store.resource("", "Namespace")
    for name in ("cross-domain", *names):
        with contextlib.suppress(AlreadyExists):
            await real_store.create(namespaces, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    await create(real_store, *(domain(name) for name in names))
    manager = Manager(real_store, [KusciaTasks(), TaskReservation()], clock=wall_clock)
    manager.start()
    yield names
    await manager.stop()
    for name in names:
        with contextlib.suppress(ApiError):
            await real_store.delete(await real_store.resource(GROUP, "Domain"), name)
            await real_store.delete(namespaces, name)


async def test_from_task_to_pods_to_its_end(real_store: Store, parties: tuple[str, str]) -> None:
    image = f"image-{parties[0]}"
    ports = [{"name": "spu", "scope": "Cluster"}]
    mounts = [{"mountPath": "/etc/task.conf", "subPath": "task.conf"}]
    files = {"task.conf": "{{.TASK_ID}} {{{.TASK_CLUSTER_DEFINE.selfPartyIdx}}}"}
    await create(real_store, app_image(image, template(container(ports=ports, configVolumeMounts=mounts)), files=files))
    name = f"task-{parties[0]}"
    await create(real_store, task(name, *(party(one, "host" if one == parties[0] else "guest", image) for one in parties)))
    tasks, pods = await real_store.resource(GROUP, "KusciaTask"), await real_store.resource("", "Pod")

    async def status() -> Raw:
        return (await real_store.get(tasks, name, "cross-domain")).get("status") or {}

    async def listed(kind: str) -> list[Raw]:
        resource = await real_store.resource("", kind)
        return [one for where in parties for one in (await real_store.list(resource, where)).items if name in name_of(one)]

    async def has_begun() -> bool:
        return any(
            one["type"] == "ResourceCreated" and one["status"] == "True" for one in (await status()).get("conditions", ())
        )

    await until(has_begun)
    assert {name_of(one) for one in await listed("Service")} == {f"{name}-host-0-spu", f"{name}-guest-0-spu"}
    assert {one["data"]["task.conf"] for one in await listed("ConfigMap")} == {f"{name} 0", f"{name} 1"}
    for phase, expected in (("Running", "Running"), ("Succeeded", "Succeeded")):
        for one in await listed("Pod"):
            await real_store.patch(
                pods, name_of(one), {"status": {"phase": phase}}, one["metadata"]["namespace"], subresource="status"
            )

        async def is_there(expected: str = expected) -> bool:
            return (await status()).get("phase") == expected

        await until(is_there)

    async def is_clean() -> bool:
        return not await listed("Service") and not await listed("ConfigMap")

    await until(is_clean)
    assert len(await listed("Pod")) == 2, "pods that ended are kept for their logs"
    await real_store.delete(tasks, name, "cross-domain")

    async def is_gone() -> bool:
        # No kubelet confirms the end of a pod here.
        for one in await listed("Pod"):
            with contextlib.suppress(NotFound):
                await real_store.delete(pods, name_of(one), one["metadata"]["namespace"], grace_period_s=0)
        try:
            await status()
        except NotFound:
            return True
        return False

    await until(is_gone)


async def test_what_the_server_refuses_fails_the_task(real_store: Store, parties: tuple[str, str]) -> None:
    """A template that is only found to be wrong when it is a pod."""
    image, name = f"image-{parties[0]}", f"task-{parties[0]}"
    await create(
        real_store, app_image(image, template(container(livenessProbe={"exec": {"command": ["x"]}, "successThreshold": 2})))
    )
    await create(real_store, task(name, party(parties[0], "host", image)))
    tasks = await real_store.resource(GROUP, "KusciaTask")

    async def has_failed() -> bool:
        status = (await real_store.get(tasks, name, "cross-domain")).get("status") or {}
        return (status.get("phase"), status.get("reason")) == ("Failed", "ManifestInvalid") and "successThreshold" in status[
            "message"
        ]

    await until(has_failed)


async def test_a_pod_of_somebody_elses_keeps_the_task_waiting(real_store: Store, parties: tuple[str, str]) -> None:
    image, name = f"image-{parties[0]}", f"task-{parties[0]}"
    stranger = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"{name}-host-0", "namespace": parties[0]},
        "spec": {"schedulerName": "nobody", "containers": [{"name": "x", "image": "y"}]},
    }
    await create(real_store, app_image(image), stranger, task(name, party(parties[0], "host", image)))
    tasks = await real_store.resource(GROUP, "KusciaTask")

    async def status() -> Raw:
        return (await real_store.get(tasks, name, "cross-domain")).get("status") or {}

    async def says_so() -> bool:
        return (await status()).get("reason") == "CreationRefused"

    await until(says_so)
    assert f"{name}-host-0 exists and belongs to no controller" in (await status())["message"]
