"""Muster on one machine: the server on its embedded store and the controllers, started and stopped together.

Everything runs on one event loop, but for the agents, which are child processes (`local_agents`). Start: claim on the data
directory, server, controllers, record of what runs, agents; nobody waits for those. Stop: the same backwards, so that agents
and controllers still have a store when they put things in order. A part that fails to start takes down those before it, and
the error says which and why.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prometheus_client import REGISTRY
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from muster import __version__
from muster.cli.access_options import AccessOptions
from muster.cli.datadir import Claim, ServerRecord, prepare, unwritable
from muster.cli.errors import CliError
from muster.cli.history_options import HistoryOptions
from muster.cli.pod_range import pod_range
from muster.controllers.long_runs import tune_for_long_runs
from muster.objects.status import ApiError, Raw, StorageFull
from muster.objects.time import Clock, format_time, wall_clock
from muster.server.authorization import Authorizer
from muster.server.config import ServerConfig
from muster.server.listener import ListenError
from muster.server.pki import PkiError
from muster.server.rbac import Attributes
from muster.server.run import Server
from muster.server.settings_files import SettingsError
from muster.store.embedded.admission import Actor
from muster.store.embedded.errors import StoreError
from muster.store.embedded.restoring import finish

if TYPE_CHECKING:
    from muster.cli.local_agents import LocalAgents
    from muster.cli.simulated import Pretending, SimulatedNodes
    from muster.controllers.manager import Manager, ManagerHealth
    from muster.engine.machine import Engine

# What only some parts need is imported where they start: it is half of the time that the server alone takes to be ready.

CONTROLLERS_WAIT_S = 10.0
POLL_S = 0.01
STATUS_PATH = "/muster/status"
IMPLEMENTED = ("server", "controllers")
"""Parts that this release has; `muster.cli.parts` also names those to come."""
AGENT = "agent"


class Local:
    """One running Muster. `start`, then `wait`, then `stop`."""

    def __init__(
        self,
        data_dir: Path,
        host: str,
        port: int,
        left_out: list[str],
        clock: Clock = wall_clock,
        *,
        scheduler_config: str | None = None,
        workload_approval: bool = False,
        simulated: SimulatedNodes | None = None,
        agents: tuple[str, ...] | None = None,
        log_level: str = "warning",
        history: HistoryOptions | None = None,
        access: AccessOptions | None = None,
    ) -> None:
        """`history`: where decisions are recorded; nowhere without it."""
        self.parts = [part for part in IMPLEMENTED if part not in left_out]
        # Simulated nodes are there to play with: real ones beside them would take some of the pods, unless asked for by name.
        if "agent" not in left_out and (simulated is None or agents is not None):
            self.parts.append(AGENT)
        if simulated is not None:
            self.parts.append(simulated.said())
        self.simulated = simulated
        self.left_out = left_out
        access = access or AccessOptions()
        self.server = Server(
            ServerConfig(
                data_dir=data_dir,
                host=host,
                port=port,
                clock=clock,
                authentication=access.settings(),
                audit_policy_path=access.audit_policy_file,
            )
        )
        self._clock = clock
        self._scheduler_config = scheduler_config
        self._workload_approval = workload_approval
        self._history = history.recorder(clock) if history is not None and "controllers" in self.parts else None
        if self._history is not None:
            self.server.audit_listener = self._note_action
        self._claim: Claim | None = None
        self._manager: Manager | None = None
        self._pretending: Pretending | None = None
        self._wanted_agents = agents
        self._agents: LocalAgents | None = None
        self._log_level = log_level
        self.tasks_left = 0
        """Pods that go on after `stop`."""
        self._acting: asyncio.Task[None] | None = None
        self._started_at = ""

    async def start(self) -> None:
        """Raises CliError, with nothing left running and the directory free again."""
        data_dir = self.server.config.data_dir
        prepare(data_dir)
        self._claim = Claim(data_dir)
        try:
            self._finish_restore(data_dir)
            self.server.pod_range = pod_range(data_dir)
            self.server.extra_routes.append(Route(STATUS_PATH, self._status))
            tune_for_long_runs()
            if "controllers" in self.parts:
                self._add_controllers_routes()
            await self._start_server()
            if "controllers" in self.parts:
                self._start_controllers()
                await self._controllers_running()
            await self._start_simulated()
            self._started_at = format_time(self._clock())
            self._claim.publish(
                ServerRecord(
                    pid=os.getpid(),
                    url=self.server.url,
                    version=__version__,
                    started_at=self._started_at,
                    parts=self.parts,
                    left_out=self.left_out,
                )
            )
            self._start_agents()
        except OSError as e:
            await self.stop()
            raise unwritable(data_dir, e) from e
        except BaseException:
            await self.stop()
            raise

    def _add_controllers_routes(self) -> None:
        """What the server asks of the controllers and of the scheduler's engine."""
        from muster.server.accounting import AccountedPods
        from muster.server.explaining import Explaining
        from muster.server.forecasting import Forecasting
        from muster.server.queueing import Queueing
        from muster.server.turns import Turns
        from muster.server.unattended import Unattended

        self.server.extra_hooks += [AccountedPods(allows=self._allows), Unattended()]
        self.server.checks["controllers"] = self._controllers_check
        self.server.extra_routes += Explaining(self._engine, lambda: self.server.store, self._image).routes()
        turns = Turns()
        self.server.extra_routes += Queueing(self._engine, turns).routes()
        self.server.extra_routes += Forecasting(self._engine, self._image, turns, lambda: self.server.memory.people).routes()

    def _finish_restore(self, data_dir: Path) -> None:
        """Of what an interrupted restore is about to replace, nothing may be read before."""
        try:
            finish(data_dir, self._clock())
        except StoreError as e:
            raise CliError(str(e)) from e

    async def _start_server(self) -> None:
        try:
            await self.server.start()
        except (StoreError, PkiError, SettingsError, ListenError) as e:
            raise CliError(str(e)) from e
        except StorageFull as e:
            data_dir = self.server.config.data_dir
            raise CliError(f"data directory {data_dir}: the disk is full; free some space, or choose another") from e
        except ApiError as e:
            raise CliError(f"the server could not start: {e.message}") from e

    def _start_controllers(self) -> None:
        from muster.controllers import embedded_controllers
        from muster.controllers.manager import Manager

        controllers = embedded_controllers(
            ca_pem=self.server.pki.ca_pem.decode(),
            scheduler_config=self._scheduler_config,
            workload_approval=self._workload_approval,
            pod_range=self.server.pod_range,
            history=self._history,
        )
        self._manager = Manager(self.server.store, controllers, clock=self._clock)
        self._acting = asyncio.create_task(self._manager.run(), name="controllers")
        self.server.metrics.registry.register(OwnMetrics())

    async def _controllers_running(self) -> None:
        """Ready means that what is created now is also acted upon. A controller that is late is not waited for for ever."""
        assert self._acting is not None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CONTROLLERS_WAIT_S):
                while self._controllers_check() and not self._acting.done():  # noqa: ASYNC110 - states, no event
                    await asyncio.sleep(POLL_S)

    async def _start_simulated(self) -> None:
        """Simulated nodes of an earlier start that are not asked for now are gone for good: nobody pretends there any more."""
        from muster.cli.simulated import Pretending, remove_left_over
        from muster.cli.simulated_logs import SimulatedLogs

        store, log = self.server.store, ("", "pods", "log")
        if self.simulated is None:
            await remove_left_over(store, [])
            return
        pretending = self._pretending = Pretending(self.simulated, store, self._clock)
        await remove_left_over(store, [machine.name for machine in pretending.machines])
        otherwise = self.server.handlers.subresources[log]
        self.server.handlers.subresources[log] = SimulatedLogs(pretending, store, self._clock, otherwise)
        await pretending.start()

    def _start_agents(self) -> None:
        if AGENT not in self.parts:
            return
        from muster.cli.local_agents import LocalAgents

        agents = self._agents = LocalAgents(
            self.server.config.data_dir,
            self.server.store,
            self.server.url,
            wanted=self._wanted_agents,
            ca_path=self.server.pki.ca_path,
            clock=self._clock,
            log_level=self._log_level,
        )
        agents.start()

    async def wait_failed(self) -> None:
        """Returns only by raising: a part that should run for ever has ended."""
        agents = self._agents.task if self._agents is not None else None
        pretending = self._pretending.tasks if self._pretending else ()
        running = [task for task in (self._acting, agents, *pretending) if task is not None]
        if not running:
            await asyncio.get_running_loop().create_future()
        done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        names = ", ".join(task.get_name() for task in done)
        raise CliError(f"{names}: stopped by itself, which is a bug; the log says why")

    async def stop(self) -> None:
        """In order, whatever was started. May be called at any time, and again."""
        agents, self._agents = self._agents, None
        if agents is not None:
            self.tasks_left = await agents.stop()
        pretending, self._pretending = self._pretending, None
        if pretending is not None:
            await pretending.stop()
        acting, self._acting = self._acting, None
        if acting is not None:
            acting.cancel()
            await asyncio.gather(acting, return_exceptions=True)
        await self.server.stop()
        if self._history is not None:
            await asyncio.to_thread(self._history.close)
        claim, self._claim = self._claim, None
        if claim is not None:
            claim.release()

    async def _allows(self, actor: Actor, asked: Attributes) -> bool:
        return Authorizer(self.server.memory.rbac).decide(actor.user, actor.groups, asked).allowed

    def _note_action(self, entry: Raw) -> None:
        from muster.history.actions import action_of

        action = action_of(entry)
        if action is not None and self._history is not None:
            self._history.action(action)

    # --- what others may ask

    def _image(self, name: str) -> Mapping[str, Any] | None:
        return self.server.memory.capacities.image(name)

    def _engine(self) -> Engine | None:
        """The scheduler's engine, once it decides."""
        from muster.controllers.scheduler_running import SchedulerRunner

        runners = self._manager.runners if self._manager is not None else ()
        return next((runner.live_engine for runner in runners if isinstance(runner, SchedulerRunner)), None)

    def _controllers_check(self) -> str:
        """For /readyz: every controller runs. One that fails on some object does not make the server unready."""
        if self._manager is None:
            return "not started yet"
        slow = [f"{r.name} is {r.state}" for r in self._manager.runners if r.state != "running"]
        return "; ".join(slow)

    async def _status(self, request: Request) -> JSONResponse:
        usage = self.server.store.usage()
        body: dict[str, Any] = {
            "version": __version__,
            "startedAt": self._started_at,
            "pid": os.getpid(),
            "parts": self.parts,
            "leftOut": self.left_out,
            "agents": self._agents.running() if self._agents is not None else [],
            "store": {
                "resourceVersion": str(usage.resource_version),
                "bytes": usage.file_bytes,
                "watchers": usage.watchers_len,
            },
            "objects": {kind: count for kind, count in sorted(usage.objects.items()) if count},
        }
        if self._manager is not None:
            body["controllers"] = health_to_raw(self._manager.health())
        return JSONResponse(body)


def health_to_raw(health: ManagerHealth) -> Raw:
    """As /muster/status shows it."""
    return {
        "ready": health.is_ready,
        "healthy": health.is_healthy,
        "leading": health.is_leading,
        "leader": health.leader,
        "informers": health.informers,
        "controllers": [
            {
                "name": c.name,
                "state": c.state,
                "healthy": c.is_healthy,
                "queued": c.queued,
                "failingCount": c.failing_count,
                "failing": c.failing,
            }
            for c in health.controllers
        ],
    }


class OwnMetrics(Collector):
    """The metrics that controllers and informers keep in the process-wide registry, for the server's page.

    The process and platform metrics there are left out: the server has its own.
    """

    def collect(self) -> Iterator[Metric]:
        return (metric for metric in REGISTRY.collect() if metric.name.startswith("muster_"))

    def describe(self) -> Iterator[Metric]:
        """None in advance: the server's registry then does not compare names, which come and go with controllers."""
        return iter(())
