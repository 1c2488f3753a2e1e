"""An answer of the control plane that no honest one gives: pods of nonsense. The agent goes on, and so do the other pods.

The pods are in a real store, and valid there; on their way to the agent they are exchanged for what Hypothesis made of them.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muster.objects.resources import Resource
from muster.objects.status import Raw
from muster.objects.time import wall_clock
from muster.store.contract import Page, WatchEvent
from muster.store.embedded import EmbeddedStore
from tests.agent.carrier.carriers import ProcessCarrier, Unavailable
from tests.agent.carrier.conftest import World, status
from tests.agent.carrier.outages import OutageStore
from tests.waiting import until

KEPT = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds")
PODS = 12

SOUND: Raw = {
    "metadata": {"labels": {"a": "b"}, "annotations": {"kubernetes.io/egress-bandwidth": "10M", "muster.dev/runtime": ""}},
    "spec": {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "hostname": "h",
        "subdomain": "s",
        "activeDeadlineSeconds": 100,
        "dnsConfig": {"nameservers": ["192.0.2.1"], "options": [{"name": "a", "value": "b"}]},
        "hostAliases": [{"ip": "192.0.2.2", "hostnames": ["a"]}],
        "volumes": [
            {"name": "e", "emptyDir": {"sizeLimit": "1Mi"}},
            {"name": "m", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
            {"name": "c", "configMap": {"name": "cm", "optional": True, "items": [{"key": "k", "path": "p", "mode": 420}]}},
            {"name": "d", "downwardAPI": {"items": [{"path": "l", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
        ],
        "containers": [
            {
                "name": "main",
                "image": "none",
                "command": ["sh", "-c", "true"],
                "args": ["x"],
                "workingDir": "/tmp",
                "env": [
                    {"name": "A", "value": "b"},
                    {"name": "R", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}}},
                ],
                "ports": [{"name": "p", "containerPort": 80}],
                "resources": {"limits": {"cpu": "500m", "memory": "64Mi"}, "requests": {"cpu": "1m"}},
                "livenessProbe": {"exec": {"command": ["true"]}, "periodSeconds": 1},
                "readinessProbe": {"httpGet": {"path": "/", "port": 80, "httpHeaders": [{"name": "a", "value": "b"}]}},
                "lifecycle": {"postStart": {"exec": {"command": ["true"]}}},
                "volumeMounts": [{"name": "e", "mountPath": "/e", "subPath": "x"}, {"name": "c", "mountPath": "/c"}],
                "terminationMessagePath": "/dev/termination-log",
                "securityContext": {"capabilities": {"drop": ["ALL"]}, "runAsNonRoot": False},
            }
        ],
    },
    "status": {
        "phase": "Pending",
        "containerStatuses": [{"name": "main", "state": {"waiting": {}}}],
        "conditions": [{"type": "Ready", "status": "False"}],
    },
}

NONSENSE: st.SearchStrategy[Any] = st.sampled_from(
    [
        None, True, -1, 0, 2**31, 2**63 - 1, -(2**63), 1e308, "", "..", "/", "../../etc", "a/b", "\x00", "\n", "x" * 70_000,
        "NaN", "-1", "1e99999", "9" * 500, "-5Gi", "99999999999Ei", "$(A)", "$(" * 1000, "名", [], {}, [[]], [{}], [None],
        {"": ""}, {"a": None}, ["x"] * 5000, [{"name": "e"}] * 300,
    ]
)  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from places(inner, (*path, key))


@st.composite
def spoiled(draw: st.DrawFn) -> Raw:
    pod = copy.deepcopy(SOUND)
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(sorted(places(pod), key=str)))
        at: Any = pod
        for key in path[:-1]:
            at = at[key]
        if draw(st.booleans()) or isinstance(at, dict):
            at[path[-1]] = copy.deepcopy(draw(NONSENSE))
        else:
            at.append(copy.deepcopy(at[path[-1]]))
    return pod


class LyingStore(OutageStore):
    """Shows some pods as something else."""

    def __init__(self, inner: EmbeddedStore) -> None:
        super().__init__(inner)
        self.shown: dict[str, Raw] = {}

    def _exchange(self, resource: Resource, raw: Raw) -> Raw:
        lie = self.shown.get(raw["metadata"]["name"]) if resource.kind == "Pod" else None
        if lie is None:
            return raw
        meta, spec = lie.get("metadata"), lie.get("spec")
        kept = {key: value for key, value in raw["metadata"].items() if key in KEPT}
        is_over = (raw.get("status") or {}).get("phase") in ("Succeeded", "Failed")
        return {
            **raw,
            "metadata": {**(meta if isinstance(meta, dict) else {}), **kept},
            "spec": {**spec, "nodeName": raw["spec"]["nodeName"]} if isinstance(spec, dict) else spec,
            "status": raw.get("status") if is_over else lie.get("status"),
        }

    async def list(self, resource: Resource, namespace: str | None = None, **options: Any) -> Page:
        page = await super().list(resource, namespace, **options)
        return msgspec.structs.replace(page, items=[self._exchange(resource, raw) for raw in page.items])

    async def watch(self, resource: Resource, namespace: str | None = None, **options: Any) -> AsyncIterator[WatchEvent]:
        async for event in super().watch(resource, namespace, **options):
            yield msgspec.structs.replace(event, object=self._exchange(resource, event.object)) if event.object else event


@pytest.mark.slow
@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(lies=st.lists(spoiled(), min_size=PODS, max_size=PODS))
def test_pods_of_nonsense(lies: list[Raw], tmp_path_factory: pytest.TempPathFactory) -> None:
    asyncio.run(carry(lies, tmp_path_factory.mktemp("lies")))


async def carry(lies: list[Raw], tmp_path: Path) -> None:
    store = await EmbeddedStore.open(tmp_path / "store", clock=wall_clock)
    lying = LyingStore(store)
    try:
        carrier = ProcessCarrier(lying, tmp_path)
    except Unavailable as e:
        await store.close()
        pytest.skip(str(e))
    await carrier.start()
    world = World(store, carrier, lying)
    try:
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": world.namespace}}
        await store.create(await store.resource("", "Namespace"), body)
        await world.create("echo well; sleep 1000", name="neighbour", terminationGracePeriodSeconds=0)
        await world.printed("well", "neighbour")
        for number, lie in enumerate(lies):
            lying.shown[f"lie{number}"] = lie
            await world.create("true", name=f"lie{number}")
        await world.create("echo fine", name="after")
        assert status(await world.ended("after"))["phase"] == "Succeeded"
        assert status(await world.get("neighbour"))["phase"] == "Running"
        assert carrier.is_up, "the agent gave up"
        pods = await store.resource("", "Pod")
        for pod in (await store.list(pods, world.namespace)).items:
            await store.delete(pods, pod["metadata"]["name"], world.namespace, grace_period_s=0)

        async def is_clean() -> bool:
            return not await carrier.leftovers()

        await until(is_clean)
    finally:
        await carrier.close()
        await store.close()
