"""The carriers that the suite runs on, and what its tests do with pods."""

from __future__ import annotations

import asyncio
import contextlib
import os
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from muster.agent.contracts import AgentError, LogQuery
from muster.objects.status import NotFound, Raw
from muster.objects.time import wall_clock
from muster.store.contract import Store
from muster.store.embedded import EmbeddedStore
from tests.agent.carrier.carriers import CARRIERS, CarrierUnderTest, Unavailable
from tests.agent.carrier.elsewhere import KubernetesCarrier
from tests.agent.carrier.outages import OutageStore
from tests.waiting import until


class World:
    """A store, a carrier, and a namespace for one test."""

    def __init__(self, store: Store, carrier: CarrierUnderTest, outage: OutageStore) -> None:
        self.store = store
        self.outage = outage
        """The store as the carrier sees it."""
        self.carrier = carrier
        self.namespace = f"n{uuid.uuid4().hex[:8]}"

    def has(self, flag: str) -> bool:
        return flag in self.carrier.flags

    def container(self, script: str = "", name: str = "main", **more: Any) -> Raw:
        command = {"command": ["sh", "-c", script]} if script else {}
        return {"name": name, "image": self.carrier.image, "imagePullPolicy": "IfNotPresent", **command, **more}

    async def create(self, script: str = "", *, name: str = "p", annotations: dict[str, str] | None = None, **spec: Any) -> Raw:
        """A pod that is bound already. Keyword arguments go into its spec, or with `script` into its one container too."""
        containers = spec.pop("containers", None) or [self.container(script)]
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": self.namespace, "labels": {"app": "a"}, "annotations": annotations or {}},
            "spec": {"restartPolicy": "Never", "nodeName": self.carrier.node, "containers": containers, **spec},
        }
        return await self.store.create(await self.store.resource("", "Pod"), body, self.namespace)

    async def make(self, kind: str, name: str, **data: Any) -> Raw:
        body = {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": self.namespace}, **data}
        return await self.store.create(await self.store.resource("", kind), body, self.namespace)

    async def get(self, name: str = "p") -> Raw:
        return await self.store.get(await self.store.resource("", "Pod"), name, self.namespace)

    async def delete(self, name: str = "p", grace_s: int | None = None) -> None:
        await self.store.delete(await self.store.resource("", "Pod"), name, self.namespace, grace_period_s=grace_s)

    async def gone(self, name: str = "p") -> None:
        async def is_gone() -> bool:
            try:
                await self.get(name)
            except NotFound:
                return True
            return False

        await until(is_gone)

    async def when(self, check: Callable[[Raw], object], name: str = "p") -> Raw:
        """The pod, as soon as this holds for it."""
        found: list[Raw] = []

        async def holds() -> bool:
            found[:] = [await self.get(name)]
            return bool(check(found[0]))

        try:
            await until(holds)
        except TimeoutError:
            raise AssertionError(f"it did not come about; the pod is {found}") from None
        return found[0]

    async def phase(self, phase: str, name: str = "p") -> Raw:
        return await self.when(lambda pod: status(pod).get("phase") == phase, name)

    async def ended(self, name: str = "p") -> Raw:
        return await self.when(lambda pod: status(pod).get("phase") in ("Succeeded", "Failed"), name)

    async def logs(self, name: str = "p", container: str = "main", **more: Any) -> str:
        query = LogQuery(namespace=self.namespace, pod=name, container=container, **more)
        return b"".join([chunk async for chunk in self.carrier.logs(query)]).decode()

    async def printed(self, text: str, name: str = "p", container: str = "main", **more: Any) -> None:
        """Until the log has this."""

        async def has() -> bool:
            try:
                return text in await self.logs(name, container, **more)
            except AgentError:
                return False  # it has not begun

        await until(has)

    async def events(self, reason: str) -> list[Raw]:
        page = await self.store.list(await self.store.resource("", "Event"), self.namespace)
        return [event for event in page.items if event["reason"] == reason]


def status(pod: Raw) -> Raw:
    found: Raw = pod.get("status") or {}
    return found


def container_status(pod: Raw, name: str = "main") -> Raw:
    every = [*(status(pod).get("containerStatuses") or ()), *(status(pod).get("initContainerStatuses") or ())]
    return next((one for one in every if one["name"] == name), {})


def terminated(pod: Raw, name: str = "main") -> Raw:
    found: Raw = container_status(pod, name).get("state", {}).get("terminated") or {}
    return found


def restarts(pod: Raw, name: str = "main") -> int:
    return int(container_status(pod, name).get("restartCount", 0))


def condition(pod: Raw, type_: str) -> str:
    return next((str(c["status"]) for c in status(pod).get("conditions") or () if c["type"] == type_), "")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    opened = await EmbeddedStore.open(tmp_path / "store", clock=wall_clock)
    yield opened
    await opened.close()


QUICK = "process"
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in CARRIERS if name != QUICK]
ELSEWHERE = pytest.param("kubernetes", marks=[pytest.mark.kubernetes, pytest.mark.slow])


@pytest.fixture(params=[QUICK, *SLOW, ELSEWHERE])
async def world(request: pytest.FixtureRequest, store: Store, tmp_path: Path) -> AsyncIterator[World]:
    """Starts the carrier; at the end everything is deleted and nothing may be left."""
    kind: type[CarrierUnderTest] = CARRIERS.get(request.param, KubernetesCarrier)
    for flag in (flag for mark in request.node.iter_markers("needs") for flag in mark.args):
        if flag not in kind.flags:
            pytest.skip(f"this carrier has no {flag!r}")
    if kind is KubernetesCarrier:
        KubernetesCarrier.plane = request.getfixturevalue("kubernetes")
    try:
        outage = OutageStore(store)
        carrier = kind(outage, tmp_path)
        await carrier.start()
    except Unavailable as e:
        if os.environ.get("CI"):
            pytest.fail(f"CI must run carrier {request.param}: {e}")
        pytest.skip(f"carrier {request.param}: {e}")
    made = World(store, carrier, outage)
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": made.namespace}}
    await store.create(await store.resource("", "Namespace"), body)
    try:
        yield made
    finally:
        await _finish(made)


async def _finish(world: World) -> None:
    world.outage.come_back()
    pods = await world.store.resource("", "Pod")
    # After an outage it may wait long for a next try, and what a crash left in the making is swept by a start.
    if world.outage.refused or world.carrier.was_killed or not world.carrier.is_up:
        await world.carrier.stop()
        await world.carrier.start()
    for pod in (await world.store.list(pods, world.namespace)).items:
        await world.store.delete(pods, pod["metadata"]["name"], world.namespace, grace_period_s=0)
    left: list[str] = []

    async def is_clean() -> bool:
        left[:] = await world.carrier.leftovers()
        return not left

    with contextlib.suppress(TimeoutError):
        await until(is_clean)
    await world.carrier.close()
    await asyncio.sleep(0)
    assert not left, f"left behind: {left}"
