"""The load that API benchmarks put on a server: run as its own process, so that it shares no interpreter with what it measures.

`python -m muster.bench.load '<JSON of Plan>'` prints one JSON object. It speaks plain HTTPS with encoded bodies and does not
decode answers beyond what it must, because its own cost is taken from the same two cores. Bounded by the counts in the plan.
"""

from __future__ import annotations

import asyncio
import itertools
import ssl
import sys
import time
from collections.abc import Awaitable, Callable

import aiohttp
import msgspec
import uvloop

NAMESPACE = "default"
LINE_TIMEOUT_S = 240.0
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"


class Plan(msgspec.Struct, kw_only=True):
    """What to do. `line` is one of create, update, list, fanout; `count` operations by `clients` at once."""

    url: str
    ca_path: str
    token: str
    line: str
    prefix: str
    count: int
    clients: int = 1
    watchers: int = 0
    existing: int = 0
    """How many pods of this prefix there are to update."""


class Outcome(msgspec.Struct, kw_only=True):
    """`operations` in `seconds`; latencies are those of single requests."""

    operations: int
    seconds: float
    p50_ms: float
    p99_ms: float
    load_cpu_s: float
    bytes_read: int = 0


def pod(name: str, *, revision: str = "0") -> bytes:
    """A pending pod of about 2 KB, as a training operator would write it."""
    container = {
        "name": "main",
        "image": "registry.example/training/worker:1.4.2",
        "command": ["python", "-m", "train", "--config", "/etc/train/config.yaml"],
        "env": [{"name": f"SETTING_{i}", "value": f"value-of-setting-{i}"} for i in range(12)],
        "ports": [{"name": "rendezvous", "containerPort": 29500, "protocol": "TCP"}],
        "resources": {"requests": {"cpu": "500m", "memory": "512Mi"}, "limits": {"cpu": "2", "memory": "2Gi"}},
        "volumeMounts": [{"name": "config", "mountPath": "/etc/train"}, {"name": "scratch", "mountPath": "/scratch"}],
    }
    spec = {
        "schedulerName": "bench-nobody",
        "restartPolicy": "Never",
        "containers": [container],
        "nodeSelector": {"pool": "training"},
        "tolerations": [{"key": "dedicated", "operator": "Equal", "value": "training", "effect": "NoSchedule"}],
        "volumes": [{"name": "config", "configMap": {"name": "train-config"}}, {"name": "scratch", "emptyDir": {}}],
    }
    labels = {"app": "bench", "team": "vision", "revision": revision, "job": name.rsplit("-", 1)[0]}
    metadata = {"name": name, "namespace": NAMESPACE, "labels": labels, "annotations": {"bench/notes": "n" * 200}}
    return msgspec.json.encode({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})


class Load:
    def __init__(self, plan: Plan, session: aiohttp.ClientSession) -> None:
        self.plan = plan
        self.session = session
        self.latencies_s: list[float] = []
        self.bytes_read = 0

    async def call(self, method: str, path: str, body: bytes | None = None) -> bytes:
        started = time.perf_counter()
        headers = {"Content-Type": "application/json"} if body is not None else None
        async with self.session.request(method, self.plan.url + path, data=body, headers=headers) as answer:
            content = await answer.read()
            if answer.status >= 300:
                raise RuntimeError(f"{method} {path}: HTTP {answer.status}: {content[:300]!r}")
        self.latencies_s.append(time.perf_counter() - started)
        self.bytes_read += len(content)
        return content

    async def spread(self, one: Callable[[int], Awaitable[object]]) -> float:
        """`count` calls of `one` by `clients` workers; the seconds it took."""
        numbers = iter(range(self.plan.count))

        async def worker() -> None:
            for number in numbers:
                await one(number)

        started = time.perf_counter()
        await asyncio.gather(*(worker() for _ in range(self.plan.clients)))
        return time.perf_counter() - started

    async def create(self) -> float:
        bodies = [pod(f"{self.plan.prefix}-{i}") for i in range(self.plan.count)]
        return await self.spread(lambda i: self.call("POST", PODS, bodies[i]))

    async def update(self) -> float:
        """Replaces existing pods in turn, without a resourceVersion, each time with another label."""
        names = [f"{self.plan.prefix}-{i % self.plan.existing}" for i in range(self.plan.count)]
        # The line is in the label: an update that changes nothing makes no event, and a watcher would wait for it in vain.
        bodies = [pod(name, revision=f"{self.plan.line}-{self.plan.clients}-{i}") for i, name in enumerate(names)]
        return await self.spread(lambda i: self.call("PUT", f"{PODS}/{names[i]}", bodies[i]))

    async def list(self) -> float:
        return await self.spread(lambda _: self.call("GET", PODS))

    async def fanout(self) -> float:
        """`watchers` streams on all pods while `count` updates happen; done when each stream has seen each update."""
        version = msgspec.json.decode(await self.call("GET", f"{PODS}?limit=1"))["metadata"]["resourceVersion"]
        opened = asyncio.Semaphore(0)
        path = f"{PODS}?watch=1&resourceVersion={version}"

        async def watcher() -> None:
            seen = 0
            async with self.session.get(self.plan.url + path) as stream:
                opened.release()
                while seen < self.plan.count:
                    chunk = await stream.content.readany()
                    if not chunk:
                        raise RuntimeError(f"a watch ended after {seen} of {self.plan.count} events")
                    self.bytes_read += len(chunk)
                    seen += chunk.count(b"\n")

        streams = [asyncio.create_task(watcher()) for _ in range(self.plan.watchers)]
        for _ in streams:
            await opened.acquire()
        started = time.perf_counter()
        await self.update()
        await asyncio.gather(*streams)
        return time.perf_counter() - started


async def run(plan: Plan) -> Outcome:
    tls = ssl.create_default_context(cafile=plan.ca_path)
    connector = aiohttp.TCPConnector(limit=0, ssl=tls)
    headers = {"Authorization": f"Bearer {plan.token}"}
    timeout = aiohttp.ClientTimeout(total=600)
    async with aiohttp.ClientSession(connector=connector, headers=headers, timeout=timeout, read_bufsize=1 << 20) as session:
        load = Load(plan, session)
        # Connections are opened before the clock starts: a TLS handshake costs more than a request.
        await asyncio.gather(*(load.call("GET", "/version") for _ in range(plan.clients)))
        load.latencies_s.clear()
        lines = {"create": load.create, "update": load.update, "list": load.list, "fanout": load.fanout}
        cpu = time.process_time()
        async with asyncio.timeout(LINE_TIMEOUT_S):
            seconds = await lines[plan.line]()
        cpu = time.process_time() - cpu
    latencies = sorted(itertools.islice(load.latencies_s, plan.count))
    return Outcome(
        operations=plan.count * (plan.watchers or 1),
        seconds=seconds,
        p50_ms=1000 * latencies[len(latencies) // 2],
        p99_ms=1000 * latencies[min(len(latencies) - 1, len(latencies) * 99 // 100)],
        load_cpu_s=cpu,
        bytes_read=load.bytes_read,
    )


if __name__ == "__main__":
    uvloop.install()
    outcome = asyncio.run(run(msgspec.json.decode(sys.argv[1], type=Plan)))
    sys.stdout.buffer.write(msgspec.json.encode(outcome) + b"\n")
