"""The carrier that takes pods into another cluster, for the contract suite: a real kube-apiserver with a node of its own.

What stands for that cluster's kubelet is the process carrier on its API server, so that pods really run there, and a small
HTTPS server for their logs, which the API server asks as it would ask a kubelet.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ipaddress
import socket
import ssl
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import ClassVar

from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from muster.agent.config import Kubernetes as Settings
from muster.agent.contracts import AgentError, ExecSession, ExecWant, LogQuery, StreamTarget
from muster.agent.runtimes.kubernetes import KubernetesPods
from muster.agent.runtimes.kubernetes_pods import CARRIER
from muster.bench.kubernetes import ControlPlane
from muster.client import ApiClient
from muster.objects.status import ApiError, NotFound, Raw
from muster.objects.time import format_time, wall_clock
from muster.store.contract import Store
from muster.store.kubernetes import KubernetesStore
from tests.agent.carrier.carriers import CarrierUnderTest, ProcessCarrier
from tests.waiting import until


class KubernetesCarrier(CarrierUnderTest):
    plane: ClassVar[ControlPlane]

    def __init__(self, store: Store, tmp_path: Path) -> None:
        super().__init__(store, tmp_path)
        self._namespace = f"institution-{uuid.uuid4().hex[:8]}"
        self._there: KubernetesStore | None = None
        self._kubelet: ProcessCarrier | None = None
        self._logs: LogServer | None = None
        self._pods: KubernetesPods | None = None

    async def start(self) -> None:
        if self._there is None:
            await self._start_the_other_cluster()
        assert self._kubelet is not None
        template = {"spec": {"nodeName": self._kubelet.node}}
        settings = Settings(kubeconfig=str(self.plane.kubeconfig_path), namespace=self._namespace, template=template)
        self._pods = KubernetesPods(self.store, settings, node=self.node, identity="suite", clock=wall_clock)
        await self._pods.open()
        self._task = asyncio.create_task(self._pods.run())

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if self._pods is not None:
            await self._pods.close()
            self._pods = None

    async def kill(self) -> None:
        self.was_killed = True
        await self.stop()

    async def close(self) -> None:
        await self.stop()
        assert self._there is not None
        assert self._kubelet is not None
        assert self._logs is not None
        for kind, name in (("Node", self._kubelet.node), ("Namespace", self._namespace)):
            with contextlib.suppress(ApiError):
                await self._there.delete(await self._there.resource("", kind), name)
        await self._kubelet.close()
        await self._logs.stop()
        await self._there.close()

    def logs(self, query: LogQuery) -> AsyncIterator[bytes]:
        assert self._pods is not None
        return self._pods.logs(query)

    async def open_exec(self, target: StreamTarget, want: ExecWant) -> ExecSession:
        assert self._pods is not None
        return await self._pods.open_exec(target, want)

    async def dial(self, target: StreamTarget, port: int) -> socket.socket:
        assert self._pods is not None
        return await self._pods.dial(target, port)

    def volumes(self, name: str) -> list[Path]:
        assert self._kubelet is not None
        return self._kubelet.volumes(name)

    async def leftovers(self) -> list[str]:
        assert self._there is not None
        assert self._kubelet is not None
        found = await self._kubelet.leftovers()
        for kind in ("Pod", "ConfigMap", "Secret"):
            page = await self._there.list(await self._there.resource("", kind), self._namespace, label_selector=CARRIER)
            found += [f"{kind} {one['metadata']['name']} of the other cluster" for one in page.items]
        return found

    async def _start_the_other_cluster(self) -> None:
        there = self._there = KubernetesStore(await ApiClient.from_kubeconfig(self.plane.kubeconfig_path))
        namespaces = await there.resource("", "Namespace")
        await there.create(namespaces, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self._namespace}})
        folder = self.tmp_path / "there"
        folder.mkdir()
        kubelet = self._kubelet = ProcessCarrier(there, folder)
        self._logs = LogServer(kubelet, folder)
        await self._logs.start()
        await self._register(there, kubelet.node, self._logs.port)
        await kubelet.start()

        async def has_account() -> bool:
            try:
                await there.get(await there.resource("", "ServiceAccount"), "default", self._namespace)
            except NotFound:
                return False
            return True

        await until(has_account)

    async def _register(self, there: Store, name: str, port: int) -> None:
        nodes = await there.resource("", "Node")
        await there.create(nodes, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
        now = format_time(wall_clock())
        ready = {
            "type": "Ready",
            "status": "True",
            "reason": "KubeletReady",
            "lastHeartbeatTime": now,
            "lastTransitionTime": now,
        }
        status: Raw = {
            "conditions": [ready],
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
            "capacity": {"cpu": "64", "memory": "64Gi", "pods": "500"},
        }
        await there.patch(nodes, name, {"status": status}, subresource="status")


class LogServer:
    """`/containerLogs` of one node, on loopback. Whoever asks is answered: the test's API server has no certificate to show."""

    def __init__(self, carrier: ProcessCarrier, folder: Path) -> None:
        self._carrier = carrier
        self._folder = folder
        self._runner: web.AppRunner
        self.port = 0

    async def start(self) -> None:
        app = web.Application()
        app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=_own_certificate(self._folder))
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        asked = request.query
        query = LogQuery(
            namespace=request.match_info["namespace"],
            pod=request.match_info["pod"],
            container=request.match_info["container"],
            follow=asked.get("follow") == "true",
            previous=asked.get("previous") == "true",
            timestamps=asked.get("timestamps") == "true",
            tail_lines=int(asked["tailLines"]) if "tailLines" in asked else None,
            limit_bytes=int(asked["limitBytes"]) if "limitBytes" in asked else None,
        )
        answer = web.StreamResponse()
        try:
            async for chunk in self._carrier.logs(query):
                if not answer.prepared:
                    await answer.prepare(request)
                await answer.write(chunk)
        except AgentError as e:
            return web.Response(status=404 if e.reason == "NotFound" else 400, text=e.message)
        if not answer.prepared:
            await answer.prepare(request)
        return answer


def _own_certificate(folder: Path) -> ssl.SSLContext:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kubelet")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=2))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path = folder / "kubelet.pem"
    secret = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path.write_bytes(secret + certificate.public_bytes(serialization.Encoding.PEM))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    return context
