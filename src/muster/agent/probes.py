"""Probes and hooks: is a container alive, ready, started; and what it wants done around its start and end.

`Tally` (pure) counts results against thresholds. `Prober` is one task per probe of a run: it waits, asks, counts, and calls
back when the verdict changes. Requests go from the host to the pod's address (or to loopback when it shares the host's), never
to another host: a manifest must not make the node ask on its behalf.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Literal

import aiohttp
import msgspec

from muster.agent.contracts import AgentError, ContainerRuntime, RunRef
from muster.objects.kinds.containers import Container, HTTPGetAction, LifecycleHandler, Probe
from muster.objects.view import IntOrString

ProbeKind = Literal["startup", "liveness", "readiness"]
_OUTPUT_LEN_MAX = 1024
_BODY_BYTES_MAX = 10 * 1024
_SLEEP_S_MAX = 3600.0


class Result(msgspec.Struct, frozen=True):
    is_success: bool
    message: str = ""


class Tally:
    """Successes and failures in a row. `verdict` None: neither threshold was reached yet."""

    def __init__(self, probe: Probe) -> None:
        self._success_max = max(1, probe.success_threshold)
        self._failure_max = max(1, probe.failure_threshold)
        self._row = 0
        self.verdict: bool | None = None

    def count(self, is_success: bool) -> bool | None:
        if is_success:
            self._row = max(self._row, 0) + 1
            if self._row >= self._success_max:
                self.verdict = True
        else:
            self._row = min(self._row, 0) - 1
            if -self._row >= self._failure_max:
                self.verdict = False
        return self.verdict


def refusals(container: Container) -> list[str]:
    """Probes and hooks that this node can't do."""
    found = []
    probes = {
        "livenessProbe": container.liveness_probe,
        "readinessProbe": container.readiness_probe,
        "startupProbe": container.startup_probe,
    }
    for word, probe in probes.items():
        if probe is None:
            continue
        where = f"container {container.name}: {word}"
        if probe.grpc is not None:
            found.append(f"{where}: grpc probes are not offered by this node; use exec, httpGet or tcpSocket")
        found += [
            f"{where}: host {action.host!r}: probes go to the pod's own address; leave host out"
            for action in (probe.http_get, probe.tcp_socket)
            if action is not None and action.host
        ]
    lifecycle = container.lifecycle
    for word, hook in (("postStart", lifecycle.post_start), ("preStop", lifecycle.pre_stop)) if lifecycle else ():
        if hook is not None and hook.http_get is not None and hook.http_get.host:
            found.append(f"container {container.name}: lifecycle.{word}: host {hook.http_get.host!r}: leave host out")
    return found


class Asker:
    """Does one check or hook of one run."""

    def __init__(self, runtime: ContainerRuntime, ref: RunRef, container: Container, ip: str) -> None:
        self._runtime = runtime
        self._ref = ref
        self._container = container
        self._ip = ip or "127.0.0.1"

    async def probe(self, probe: Probe) -> Result:
        timeout_s = float(max(1, probe.timeout_seconds))
        try:
            if probe.exec is not None:
                return await self._exec(probe.exec.command, timeout_s)
            if probe.http_get is not None:
                return await self._http(probe.http_get, timeout_s)
            if probe.tcp_socket is not None:
                return await self._tcp(self._port(probe.tcp_socket.port), timeout_s)
        except AgentError as e:
            return Result(False, e.message)
        except (OSError, ValueError) as e:
            # A command of two megabytes, or a zero byte. It is asked again: a probe that ended here would say nothing more.
            return Result(False, str(e)[:_OUTPUT_LEN_MAX])
        return Result(False, "the probe says nothing that this node can check; use exec, httpGet or tcpSocket")

    async def hook(self, hook: LifecycleHandler, timeout_s: float) -> Result:
        try:
            if hook.exec is not None:
                return await self._exec(hook.exec.command, timeout_s)
            if hook.http_get is not None:
                return await self._http(hook.http_get, timeout_s)
        except AgentError as e:
            return Result(False, e.message)
        except (OSError, ValueError) as e:
            return Result(False, str(e)[:_OUTPUT_LEN_MAX])
        if hook.sleep is not None:
            await asyncio.sleep(min(max(0.0, float(hook.sleep.seconds)), timeout_s, _SLEEP_S_MAX))
        return Result(True)

    async def _exec(self, command: list[str], timeout_s: float) -> Result:
        if not command:
            return Result(False, "exec.command is empty")
        done = await self._runtime.exec(self._ref, command, timeout_s)
        output = done.output.decode("utf-8", "replace").strip()[:_OUTPUT_LEN_MAX]
        if done.is_timeout:
            return Result(False, f"command {command[0]!r} took longer than {timeout_s:g} s")
        return Result(done.code == 0, output or f"command {command[0]!r} ended with {done.code}")

    async def _http(self, action: HTTPGetAction, timeout_s: float) -> Result:
        scheme = "https" if action.scheme == "HTTPS" else "http"
        host = f"[{self._ip}]" if ":" in self._ip else self._ip
        url = f"{scheme}://{host}:{self._port(action.port)}/{action.path.lstrip('/')}"
        headers = {"User-Agent": "muster-probe", **{h.name: h.value for h in action.http_headers}}
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=timeout_s), trust_env=False) as session,
                session.get(url, headers=headers, ssl=False, allow_redirects=False) as answer,
            ):
                await answer.content.read(_BODY_BYTES_MAX)
                return Result(200 <= answer.status < 400, f"HTTP {answer.status} from {url}")
        except TimeoutError:
            return Result(False, f"{url} took longer than {timeout_s:g} s")
        except (aiohttp.ClientError, OSError, ValueError) as e:
            return Result(False, f"{url}: {str(e)[:_OUTPUT_LEN_MAX]}")

    async def _tcp(self, port: int, timeout_s: float) -> Result:
        where = f"{self._ip}:{port}"
        try:
            async with asyncio.timeout(timeout_s):
                _, writer = await asyncio.open_connection(self._ip, port)
            writer.transport.abort()
        except TimeoutError:
            return Result(False, f"{where} did not answer within {timeout_s:g} s")
        except OSError as e:
            return Result(False, f"{where}: {e.strerror or e}")
        return Result(True, f"{where} accepts connections")

    def _port(self, port: IntOrString) -> int:
        if isinstance(port, str) and not port.isdecimal():
            named = next((p.container_port for p in self._container.ports if p.name == port), None)
            if named is None:
                raise AgentError("Unhealthy", f"port {port!r} is no port of container {self._container.name}")
            return int(named)
        if not 1 <= int(port) <= 65535:
            raise AgentError("Unhealthy", f"port {port!r} is not between 1 and 65535")
        return int(port)


class Prober:
    """Repeats one probe while its run goes on. `tell(verdict, result)` is called after every check."""

    def __init__(self, kind: ProbeKind, probe: Probe, asker: Asker, tell: Callable[[bool | None, Result], None]) -> None:
        self.kind = kind
        self._probe = probe
        self._asker = asker
        self._tell = tell

    async def run(self) -> None:
        """Until cancelled; a startup probe ends with its first verdict."""
        probe, tally = self._probe, Tally(self._probe)
        await asyncio.sleep(max(0, probe.initial_delay_seconds))
        while True:
            result = await self._asker.probe(probe)
            verdict = tally.count(result.is_success)
            self._tell(verdict, result)
            if self.kind == "startup" and verdict is not None:
                return
            await asyncio.sleep(max(1, probe.period_seconds))
