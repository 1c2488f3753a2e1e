"""A task with a partner in real time, from the reservation to its end: on the embedded store and on a real API server.

What the stores must agree on: versions as preconditions of patches, with and without a status subresource; cluster-wide
owners of namespaced objects; plans that are held.
"""

from __future__ import annotations

import uuid

from tests.controllers.kinds import serve_kinds
from tests.controllers.scheduling import create, node
from tests.controllers.tasks import PARTY_LABEL, group, party, pods_of
from tests.waiting import until

from muster.controllers.interconn_host import InterconnHost
from muster.controllers.manager import Manager
from muster.controllers.scheduler import Scheduler
from muster.controllers.task_reservation import TaskReservation
from muster.controllers.task_reservation_parts import advance
from muster.engine.machine import Engine
from muster.engine.plugins.fit import Fit
from muster.engine.plugins.node_affinity import NodeAffinity
from muster.engine.profile import Profile
from muster.objects.labels import KusciaAnnotation
from muster.objects.meta import annotations_of
from muster.objects.status import NotFound, Raw
from muster.objects.time import wall_clock
from muster.store.contract import Store

KUSCIA = "kuscia.secretflow"
KINDS = (
    "TaskResourceGroup",
    "TaskResource",
    "Domain",
    "KusciaTask",
    "KusciaTaskSummary",
    "KusciaJob",
    "KusciaJobSummary",
    "Placement",
)


async def test_a_task_with_a_partner(real_store: Store, namespace: str) -> None:
    await serve_kinds(real_store, *KINDS)
    own, partner, task = namespace, f"bob-{uuid.uuid4().hex[:8]}", f"t-{uuid.uuid4().hex[:8]}"
    spaces, nodes = await real_store.resource("", "Namespace"), await real_store.resource("", "Node")
    await create(real_store, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": partner}})
    await create(
        real_store,
        {
            "apiVersion": f"{KUSCIA}/v1alpha1",
            "kind": "Domain",
            "metadata": {"name": partner},
            "spec": {"role": "partner", "interConnProtocols": ["kuscia"]},
        },
    )
    machine = node(f"node-{task}", "2")
    machine["metadata"]["labels"][PARTY_LABEL] = own
    await create(real_store, machine)
    await real_store.patch(nodes, f"node-{task}", {"status": machine["status"]}, subresource="status")
    profile = f"muster-{task}"
    scheduler = Scheduler(engine=lambda: Engine([Profile(profile, [Fit(), NodeAffinity()])]))
    manager = Manager(real_store, [scheduler, TaskReservation(), InterconnHost()], clock=wall_clock)
    manager.start()
    try:
        [made] = await create(real_store, group(task, [party(own, task, pods=2)], [party(partner, task)], initiator=own))
        await create(real_store, *pods_of(made, schedulerName=profile))
        await _run(real_store, task, own, partner)
    finally:
        await manager.stop()
        await real_store.delete(nodes, f"node-{task}")
        await real_store.delete(spaces, partner)


async def _run(store: Store, task: str, own: str, partner: str) -> None:
    groups, resources = await store.resource(KUSCIA, "TaskResourceGroup"), await store.resource(KUSCIA, "TaskResource")
    pods, placements = await store.resource("", "Pod"), await store.resource("muster.dev", "Placement")

    async def resource(domain: str) -> Raw:
        found = (await store.list(resources, domain)).items
        return next((one for one in found if annotations_of(one)[KusciaAnnotation.TASK_RESOURCE_GROUP] == task), {})

    async def has_voted() -> bool:
        ready = [(await resource(domain)).get("status", {}).get("phase") for domain in (own, partner)]
        return ready == ["Reserved", "Reserving"]

    async def plans() -> list[Raw]:
        return [one for one in (await store.list(placements)).items if one["spec"]["unit"] == f"Task/{task}"]

    await until(has_voted)
    [plan] = await plans()
    assert plan["spec"]["heldUntil"]
    assert not any(pod["spec"].get("nodeName") for pod in (await store.list(pods, own)).items)
    summary = await store.get(await store.resource(KUSCIA, "KusciaTaskSummary"), task, partner)
    [entry] = summary["status"]["resourceStatus"][partner]
    summary["status"]["resourceStatus"][partner] = [{**entry, "phase": "Reserved"}]
    await store.patch(await store.resource(KUSCIA, "KusciaTaskSummary"), task, {"status": summary["status"]}, partner)

    async def all_placed() -> bool:
        found = (await store.list(pods, own)).items
        return len(found) == 2 and all(pod["spec"].get("nodeName") for pod in found) and not await plans()

    await until(all_placed)
    assert (await store.get(groups, task))["status"]["phase"] == "Reserved"
    for domain in (own, partner):
        found = await resource(domain)
        assert found["status"]["phase"] == "Schedulable"
        assert advance(found, "Reserved", 0, now=0.0, reason="Late") is None
    await store.delete(groups, task)

    async def all_gone() -> bool:
        try:
            await store.get(groups, task)
            return False
        except NotFound:
            return not await resource(own) and not await resource(partner)

    await until(all_gone)
