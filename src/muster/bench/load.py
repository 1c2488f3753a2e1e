"""The load that API benchmarks put on a server: run as its own process, so that it shares no interpreter with what it measures.

`python -m muster.bench.load '<JSON of Plan>'` prints one JSON object. It speaks plain HTTPS with bodies that are encoded before
the clock starts, and does not decode answers beyond what it must, because its own cost is taken from the same two cores.
Bounded by the counts in the plan.
"""

from __future__ import annotations

import asyncio
import itertools
import ssl
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from urllib.parse import urlsplit

import msgspec
import uvloop

from muster.bench import processes
from muster.bench.http_client import Connection

NAMESPACE = "default"
LINE_TIMEOUT_S = 600.0
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
_APPLY = "application/apply-patch+yaml"


class Plan(msgspec.Struct, kw_only=True):
    """What to do: `count` operations of the kind `line` (a method of `Load`) by `clients` at once."""

    url: str
    ca_path: str
    cert_path: str
    key_path: str
    line: str
    prefix: str
    count: int
    clients: int = 1
    watchers: int = 0
    existing: int = 0
    """How many pods of this prefix there are, to be read, updated or bound."""
    pids: list[int] = []
    """The server's processes, of which the CPU time is read."""


class Outcome(msgspec.Struct, kw_only=True):
    """`operations` in `seconds`; latencies are those of single requests."""

    operations: int
    seconds: float
    p50_ms: float
    p99_ms: float
    load_cpu_s: float
    server_cpu_s: list[float]
    """Of each of the plan's processes, meanwhile."""
    machine_busy_s: float
    """CPU time that anyone used meanwhile."""
    bytes_read: int = 0


def pod(name: str, *, revision: str = "0") -> bytes:
    """A pending pod of about 2 KB, as a training operator would write it. No two have the same spec: each knows its rank."""
    job, _, rank = name.rpartition("-")
    settings = [{"name": f"SETTING_{i}", "value": f"value-of-setting-{i}"} for i in range(11)]
    container = {
        "name": "main",
        "image": "registry.example/training/worker:1.4.2",
        "command": ["python", "-m", "train", "--config", "/etc/train/config.yaml"],
        "env": [{"name": "RANK", "value": rank}, *settings],
        "ports": [{"name": "rendezvous", "containerPort": 29500, "protocol": "TCP"}],
        "resources": {"requests": {"cpu": "500m", "memory": "512Mi"}, "limits": {"cpu": "2", "memory": "2Gi"}},
        "volumeMounts": [{"name": "config", "mountPath": "/etc/train"}, {"name": "scratch", "mountPath": "/scratch"}],
    }
    spec = {
        "schedulerName": "bench-nobody",
        "hostname": name,
        "restartPolicy": "Never",
        "containers": [container],
        "nodeSelector": {"pool": "training"},
        "tolerations": [{"key": "dedicated", "operator": "Equal", "value": "training", "effect": "NoSchedule"}],
        "volumes": [{"name": "config", "configMap": {"name": "train-config"}}, {"name": "scratch", "emptyDir": {}}],
    }
    labels = {"app": "bench", "team": "vision", "revision": revision, "job": job}
    metadata = {"name": name, "namespace": NAMESPACE, "labels": labels, "annotations": {"bench/notes": "n" * 200}}
    return msgspec.json.encode({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})


def binding(name: str, node: str) -> bytes:
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    return msgspec.json.encode({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target})


class Load:
    """Each public method is one kind of line: it makes its requests ready, then returns the seconds that they took."""

    def __init__(self, plan: Plan, tls: ssl.SSLContext) -> None:
        self.plan = plan
        self._tls = tls
        self._connections: list[Connection] = []
        self.latencies_s: list[float] = []
        self.bytes_read = 0
        self.clock = _Clock(plan.pids)

    async def _open(self) -> Connection:
        where = urlsplit(self.plan.url)
        connection = await Connection.open(str(where.hostname), where.port or 443, self._tls)
        self._connections.append(connection)
        return connection

    async def connect(self) -> None:
        """Connections are opened and used once before the clock starts: a TLS handshake costs more than a request."""
        for _ in range(self.plan.clients):
            await (await self._open()).call("GET", "/version")

    def close(self) -> None:
        for connection in self._connections:
            connection.close()

    async def _call(
        self, connection: Connection, method: str, target: str, body: bytes = b"", content_type: str = "application/json"
    ) -> bytes:
        started = time.perf_counter()
        content = await connection.call(method, target, body, content_type)
        self.latencies_s.append(time.perf_counter() - started)
        self.bytes_read += len(content)
        return content

    async def _spread(self, one: Callable[[Connection, int], Awaitable[object]]) -> float:
        """`count` calls of `one` by `clients` workers; the seconds it took."""
        numbers = iter(range(self.plan.count))

        async def worker(connection: Connection) -> None:
            for number in numbers:
                await one(connection, number)

        self.clock.start()
        await asyncio.gather(*(worker(connection) for connection in self._connections[: self.plan.clients]))
        return self.clock.stop()

    def _names(self) -> list[str]:
        """Of the pods that there are, in turn."""
        return [f"{self.plan.prefix}-{i % self.plan.existing}" for i in range(self.plan.count)]

    async def create(self) -> float:
        bodies = [pod(f"{self.plan.prefix}-{i}") for i in range(self.plan.count)]
        return await self._spread(lambda c, i: self._call(c, "POST", PODS, bodies[i]))

    async def warm(self) -> float:
        """Creates that are not stored: a fresh server has things to make ready when the first pods come."""
        bodies = [pod(f"{self.plan.prefix}-{i}") for i in range(self.plan.count)]
        return await self._spread(lambda c, i: self._call(c, "POST", f"{PODS}?dryRun=All", bodies[i]))

    async def update(self) -> float:
        """Replaces existing pods in turn, without a resourceVersion, each time with another label."""
        names = self._names()
        # The line is in the label: an update that changes nothing makes no event, and a watcher would wait for it in vain.
        bodies = [pod(name, revision=f"{self.plan.line}-{self.plan.clients}-{i}") for i, name in enumerate(names)]
        return await self._spread(lambda c, i: self._call(c, "PUT", f"{PODS}/{names[i]}", bodies[i]))

    async def get(self) -> float:
        names = self._names()
        return await self._spread(lambda c, i: self._call(c, "GET", f"{PODS}/{names[i]}"))

    async def list(self) -> float:
        return await self._spread(lambda c, _: self._call(c, "GET", PODS))

    async def bind(self) -> float:
        """Each pod once, as a scheduler does."""
        names = self._names()
        bodies = [binding(name, f"node-{i % 100}") for i, name in enumerate(names)]
        return await self._spread(lambda c, i: self._call(c, "POST", f"{PODS}/{names[i]}/binding", bodies[i]))

    async def apply(self) -> float:
        """Server-side apply of pods that are not there yet."""
        return await self._applied("0")

    async def reapply(self) -> float:
        """The same manager applies the same pods again, with another label."""
        return await self._applied("1")

    async def _applied(self, revision: str) -> float:
        names = [f"{self.plan.prefix}-{i}" for i in range(self.plan.count)]
        bodies = [pod(name, revision=revision) for name in names]
        targets = [f"{PODS}/{name}?fieldManager=bench" for name in names]
        return await self._spread(lambda c, i: self._call(c, "PATCH", targets[i], bodies[i], _APPLY))

    async def fanout(self) -> float:
        """`watchers` streams on all pods while `count` updates happen; done when each stream has seen each update."""
        version = msgspec.json.decode(await self._call(self._connections[0], "GET", f"{PODS}?limit=1"))
        target = f"{PODS}?watch=1&resourceVersion={version['metadata']['resourceVersion']}"
        streams = [_Stream(self.plan.count) for _ in range(self.plan.watchers)]
        for stream in streams:
            await (await self._open()).stream(target, stream.take)
        self.latencies_s.clear()
        await self.update()
        await asyncio.gather(*(stream.done for stream in streams))
        self.bytes_read += sum(stream.bytes_read for stream in streams)
        return self.clock.stop()


class _Clock:
    """Wall time, and CPU time of this process and the server's, from `start` to the last `stop`."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = pids
        self._started = (0.0, 0.0, [0.0 for _ in pids], 0.0)
        self.load_cpu_s = self.machine_busy_s = 0.0
        self.server_cpu_s: list[float] = []

    def start(self) -> None:
        server = [processes.cpu_s([pid]) for pid in self._pids]
        self._started = (time.perf_counter(), time.process_time(), server, processes.machine_busy_s())

    def stop(self) -> float:
        wall, own, server, busy = self._started
        seconds = time.perf_counter() - wall
        self.load_cpu_s, self.machine_busy_s = time.process_time() - own, processes.machine_busy_s() - busy
        self.server_cpu_s = [processes.cpu_s([pid]) - before for pid, before in zip(self._pids, server, strict=True)]
        return seconds


class _Stream:
    """Counts the events of one watch."""

    def __init__(self, wanted: int) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.bytes_read = 0
        self._missing = wanted

    def take(self, chunk: bytes) -> None:
        self.bytes_read += len(chunk)
        self._missing -= chunk.count(b"\n")
        if self.done.done():
            return
        if self._missing <= 0:
            self.done.set_result(None)
        elif not chunk:
            self.done.set_exception(RuntimeError(f"a watch ended {self._missing} events too early"))


async def run(plan: Plan) -> Outcome:
    tls = ssl.create_default_context(cafile=plan.ca_path)
    tls.load_cert_chain(plan.cert_path, plan.key_path)
    load = Load(plan, tls)
    try:
        await load.connect()
        async with asyncio.timeout(LINE_TIMEOUT_S):
            seconds: float = await getattr(load, plan.line)()
    finally:
        load.close()
    latencies = sorted(itertools.islice(load.latencies_s, plan.count))
    return Outcome(
        operations=plan.count * (plan.watchers or 1),
        seconds=seconds,
        p50_ms=1000 * latencies[len(latencies) // 2],
        p99_ms=1000 * latencies[min(len(latencies) - 1, len(latencies) * 99 // 100)],
        load_cpu_s=load.clock.load_cpu_s,
        server_cpu_s=load.clock.server_cpu_s,
        machine_busy_s=load.clock.machine_busy_s,
        bytes_read=load.bytes_read,
    )


if __name__ == "__main__":
    uvloop.install()
    outcome = asyncio.run(run(msgspec.json.decode(sys.argv[1], type=Plan)))
    sys.stdout.buffer.write(msgspec.json.encode(outcome) + b"\n")
