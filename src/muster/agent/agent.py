"""The agent: all parts of a node, started in order, watched, and stopped in order.

    claim        one agent per data directory
    measuring    what the machine has
    endpoint     listens, so that the Node can say where
    node         registered; says that it is not ready yet
    network      once the control plane has given it addresses for pods
    runtime      shims, cgroups, images
    pods         carries what is bound here; names, metrics beside it
    node         ready

Concurrency: one event loop. Each part that runs for long is a task of its own; one that fails is named in the Node's Ready
condition, and started again. Stopping goes backwards; what runs in pods goes on.

Invariant: whatever `start` raises, nothing of this agent is left running, and the data directory is free again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final, cast

import msgspec

from muster.agent import assembly
from muster.agent.claim import Claim
from muster.agent.config import AgentConfig, Process
from muster.agent.contact import Contact
from muster.agent.contracts import AgentError, ExecSession, ExecWant, LogQuery, Missing, PodCarrier, StreamTarget
from muster.agent.fencing import count_running, is_guarded, kill_runs
from muster.agent.joining import Credentials, JoinError, JoinRequest, Trust, renew
from muster.agent.layout import Layout
from muster.agent.measuring import (
    Found,
    Identity,
    Places,
    default_interface,
    identify,
    interface_address,
    measure,
    read_pressure,
)
from muster.agent.node import Forgotten, NodeKeeper
from muster.agent.node_object import Facts, node_name
from muster.agent.offering import Offer, offer
from muster.agent.serving import Endpoint
from muster.agent.serving_access import AskedAccess, ensure_self_signed, tls_context
from muster.agent.user_ranges import users_of
from muster.client.urls import UrlError, is_loopback, split_server
from muster.objects.time import Clock
from muster.store.backoff import Backoff, is_cancelled
from muster.store.contract import Store
from muster.store.events import EventRecorder

log = logging.getLogger(__name__)

POD_CIDR_WAIT_S: Final = 10.0
GUARD_LOOK_S: Final = 5.0
RENEW_RETRY_S: Final = 600.0
RENEW_LOOK_S: Final = 3600.0
_RESTART: Final = Backoff(base_s=1.0, max_s=60.0)
_FIXED: Final = ("name", "domain", "runtime", "network", "process", "runc", "kubernetes", "serving", "devices")
"""Sections that a running agent can't change."""


class Startable(Exception):
    """A part could not be started: which, and why."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What is no part of the configuration file."""

    server: str
    """The control plane's URL."""
    ca: bytes | None = None
    join: JoinRequest | None = None
    """How the agent joined, for the renewal of its certificate; None when it was given a kubeconfig."""


class Agent:
    """`start`, then `run`, then `stop`. `say` tells people what they should know; the log has the rest."""

    def __init__(
        self,
        config: AgentConfig,
        store: Store,
        layout: Layout,
        options: Options,
        *,
        clock: Clock,
        say: Callable[[str], None] = log.warning,
    ) -> None:
        self.config = _with_users(config, layout)
        self.layout = layout
        self._store = store
        self._options = options
        self._clock = clock
        self._say = say
        self.identity: Identity = identify()
        self.name = node_name(config, self.identity.hostname)
        self._found: Found | None = None
        self._offer: Offer | None = None
        self._claim: Claim | None = None
        self._parts: assembly.Parts | None = None
        self._endpoint: Endpoint | None = None
        self._tls: Any = None
        self._address = ""
        self._problems: dict[str, str] = {"agent": "the agent is starting"}
        self._network_problem = ""
        self._tasks: list[asyncio.Task[None]] = []
        self._recorder = EventRecorder(store, component="muster-agent", clock=clock, instance=self.name)
        self._contact: Contact | None = None
        self.keeper: NodeKeeper | None = None

    # -- start -----------------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Ready for work when it returns. Raises Startable, Taken, Forgotten; waits while the control plane is away."""
        try:
            self._prepare()
            await self._serve()
            self._recorder.start()
            contact = self._contact = Contact(self.layout.data, self.identity.boot_id, fence_s=self.config.timing.fence_seconds)
            await self._ensure_guard()
            keeper = self.keeper = NodeKeeper(
                self._store,
                self.name,
                self.facts,
                clock=self._clock,
                contact=contact,
                fence=self._fence,
                pods_len=lambda: count_running(self.layout.pods),
                recorder=self._recorder,
                say=self._say,
            )
            self._begin("fence", self._keep_guard)
            await keeper.register()
            self._begin("node", keeper.run)
            await self._open_parts(keeper)
            if self._options.join is not None:
                self._begin("certificate", self._keep_certificate)
            self._problems.pop("agent", None)
            keeper.poke()
        except BaseException:
            await self.stop()
            raise

    def _prepare(self) -> None:
        data = self.layout.data
        try:
            for path, mode in (
                (data, 0o711),
                (self.layout.pods, 0o711),
                (self.layout.credentials, 0o700),
                (self.layout.run, 0o711),
            ):
                path.mkdir(mode=mode, parents=True, exist_ok=True)
                path.chmod(mode)
            self._claim = Claim(self.layout.lock)
            self._found = measure(self.config, data)
        except OSError as error:
            what = f"{error.filename or data}: {error.strerror}"
            raise Startable(f"data directory {data}: {what}; choose another with --data-dir") from error
        self._offer = offer(self._found, self.config)
        for note in self._offer.notes:
            log.info("node %s: %s", self.name, note)

    async def _serve(self) -> None:
        assert self._found is not None
        host, port = self._listen(self._found)
        self._address = self.config.serving.address or (self._found.address if host in ("", "0.0.0.0", "::") else host)  # noqa: S104
        credentials = Credentials(self.layout.credentials)
        try:
            if self._options.join is not None:
                pair = credentials.certificate, credentials.key
            else:
                pair = ensure_self_signed(
                    self.layout.credentials, self.name, (self.identity.hostname, self._address), self._clock()
                )
            self._tls = tls_context(*pair, self._options.ca)
            endpoint = Endpoint(
                logs=self._logs,
                open_exec=self._open_exec,
                dial=self._dial,
                access=AskedAccess(self._store, self.name, self._clock),
                tls=self._tls,
                clock=self._clock,
                is_healthy=self.problem,
            )
            await endpoint.start(host, port)
        except (OSError, ValueError) as error:
            raise Startable(f"log endpoint on {host}:{port} (serving.listen): {error}") from error
        self._endpoint = endpoint

    def _listen(self, found: Found) -> tuple[str, int]:
        if self.config.serving.listen:
            host, _, port = self.config.serving.listen.rpartition(":")
            return host.strip("[]"), int(port)
        if is_loopback(split_server(self._options.server)[1]) or not found.address:
            return "127.0.0.1", 0
        return found.address, 0

    async def _open_parts(self, keeper: NodeKeeper) -> None:
        assert self._offer is not None
        needs_network = self.config.runtime != "kubernetes" and self.config.network.enabled != "never"
        cidr = self.config.network.pod_cidr
        if needs_network:
            # The Node's own counts: it never changes, and is where other nodes send what is for the pods here.
            given = await keeper.wait_pod_cidr(POD_CIDR_WAIT_S if not cidr else 0.0)
            if cidr and given and given != cidr:
                self._say(
                    f"network.podCIDR: {cidr}: node {self.name} has {given} (spec.podCIDR), which never changes, and uses "
                    "that; leave the field out, or delete the node and let it join again"
                )
            cidr = given or cidr
            if not cidr:
                self._network_problem = (
                    f"the control plane has given node {self.name} no addresses for pods (spec.podCIDR); "
                    "set network.podCIDR, or network.enabled: never"
                )
        parts = self._parts = assembly.Parts(
            self.config, self.layout, self._store, self.name, clock=self._clock, recorder=self._recorder
        )
        try:
            await parts.open(
                pod_cidr=cidr,
                offer=self._offer,
                address=self._address,
                uplink=self._found.uplink if self._found is not None else "",
                may_start=lambda: keeper.may_start,
            )
        except assembly.PartFailed as error:
            raise Startable(str(error)) from error
        for one in self.missing():
            log.info("node %s can't do everything: %s", self.name, one)
        for name, run in parts.tasks():
            self._begin(name, run)

    # -- while it runs ---------------------------------------------------------------------------------------------------------

    @property
    def pods(self) -> PodCarrier:
        assert self._parts is not None
        assert self._parts.carrier is not None
        return self._parts.carrier

    @property
    def port(self) -> int:
        return self._endpoint.port if self._endpoint is not None else 0

    def missing(self) -> Sequence[Missing]:
        return self._parts.missing() if self._parts is not None else ()

    def problem(self) -> str:
        """Why the node takes no work; empty when it does."""
        return "; ".join(self._problems.values())

    def facts(self) -> Facts:
        assert self._offer is not None
        return Facts(
            name=self.name,
            config=self.config,
            identity=self.identity,
            agent_id=f"{self.identity.machine_id}/{self.layout.id}",
            offer=self._offer,
            pressure=read_pressure(self.layout.data),
            addresses=(self._address,) if self._address else (),
            port=self.port,
            missing=tuple(self.missing()),
            not_ready=self.problem(),
            network_problem=self._network_problem,
        )

    async def run(self) -> None:
        """Until cancelled, or until the control plane has said that this node is no longer one of its own (Forgotten)."""
        assert self.keeper is not None
        await self.keeper.forgotten.wait()
        raise Forgotten(
            f"node {self.name} was removed from the control plane, which revoked its certificate; "
            "join again with a new token (muster domain token create)"
        )

    def reload(self, config: AgentConfig) -> list[str]:
        """Take over what may change while running; the sections that need a restart."""
        config = _with_users(config, self.layout)
        later = [name for name in _FIXED if getattr(config, name) != getattr(self.config, name)]
        self.config = msgspec.structs.replace(config, **{name: getattr(self.config, name) for name in _FIXED})
        if self._found is not None:
            self._found = measure(self.config, self.layout.data)
            self._offer = offer(self._found, self.config)
            if self._parts is not None:
                self._parts.resize(self._offer)
        if self.keeper is not None:
            self.keeper.poke()
        return later

    def _begin(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        self._tasks.append(asyncio.create_task(self._supervise(name, run), name=f"agent {self.name}: {name}"))

    async def _supervise(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        attempt = 0
        while True:
            try:
                self._problems.pop(name, None)
                await run()
                raise RuntimeError("it ended by itself")
            except Exception as error:
                if is_cancelled():
                    raise
                log.exception("node %s: %s failed and is started again", self.name, name)
                self._problems[name] = f"{name} failed and is started again: {error}"
            if self.keeper is not None:
                self.keeper.poke()
            await asyncio.sleep(_RESTART.delay_s(attempt, name))
            attempt += 1

    async def _logs(self, query: LogQuery) -> AsyncIterator[bytes]:
        async with contextlib.aclosing(cast(AsyncGenerator[bytes, None], self._ready_pods().logs(query))) as chunks:
            async for chunk in chunks:
                yield chunk

    async def _open_exec(self, target: StreamTarget, want: ExecWant) -> ExecSession:
        return await self._ready_pods().open_exec(target, want)

    async def _dial(self, target: StreamTarget, port: int) -> socket.socket:
        return await self._ready_pods().dial(target, port)

    def _ready_pods(self) -> PodCarrier:
        if self._parts is None or self._parts.carrier is None:
            raise AgentError("Unavailable", f"the agent of node {self.name} is starting; try again")
        return self._parts.carrier

    async def _keep_guard(self) -> None:
        """The deadline holds also when this process is gone: for as long as there is one, a guard watches it."""
        while True:
            await self._ensure_guard()
            await asyncio.sleep(GUARD_LOOK_S)

    async def _ensure_guard(self) -> None:
        assert self._contact is not None
        fence_s = self._contact.fence_s = self.config.timing.fence_seconds
        self._contact.write()
        if not fence_s or is_guarded(self.layout.data):
            return
        command = (sys.executable, "-m", "muster.agent.fencing", str(self.layout.data))
        null = asyncio.subprocess.DEVNULL
        starting = await asyncio.create_subprocess_exec(*command, stdin=null, stdout=null, stderr=null, start_new_session=True)
        await starting.wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GUARD_LOOK_S):
                while not is_guarded(self.layout.data):  # noqa: ASYNC110 - a lock of another process, no event
                    await asyncio.sleep(0.02)

    async def _fence(self) -> int:
        """Kill everything that runs here, by the shims, and by cgroup what that leaves."""
        killed = await asyncio.to_thread(kill_runs, self.layout.pods, self.identity.boot_id, mark=True)
        return len(killed | (self._parts.kill_all() if self._parts is not None else set()))

    async def _keep_certificate(self) -> None:
        credentials, request = Credentials(self.layout.credentials), self._options.join
        assert request is not None
        while True:
            wait_s = credentials.renew_in_s(self._clock())
            if wait_s > 0:
                await asyncio.sleep(min(wait_s, RENEW_LOOK_S))
                continue
            try:
                await renew(credentials, request)
                self._tls.load_cert_chain(credentials.certificate, credentials.key)
                log.info("node %s has a new certificate", self.name)
            except JoinError as error:
                self._say(f"the certificate of node {self.name} could not be renewed, and is tried again: {error}")
                await asyncio.sleep(RENEW_RETRY_S)

    # -- the end ---------------------------------------------------------------------------------------------------------------

    async def leave(self, *, drain: Callable[[], bool]) -> None:
        """The node goes for good: no more work, wait for what is here (end it, once `drain` says so), delete the Node, take
        everything out of the kernel."""
        assert self.keeper is not None
        await self.keeper.leave(drain=drain, say=self._say)
        await self._end_tasks()
        if self._parts is not None:
            await self._parts.teardown()
        for gone in (self.layout.credentials, self.layout.run):
            shutil.rmtree(gone, ignore_errors=True)

    async def stop(self) -> None:
        """In order, whatever was started; tasks of pods go on. May be called at any time, and again."""
        await self._end_tasks()
        if self.keeper is not None:
            await self.keeper.stop()
        endpoint, self._endpoint = self._endpoint, None
        if endpoint is not None:
            await endpoint.stop()
        parts, self._parts = self._parts, None
        if parts is not None:
            await parts.close()
        await self._recorder.stop()
        claim, self._claim = self._claim, None
        if claim is not None:
            claim.release()

    async def _end_tasks(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in reversed(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _with_users(config: AgentConfig, layout: Layout) -> AgentConfig:
    """Users that no other agent of this machine gives out, where the file names none."""
    if config.process.user_range != Process().user_range:
        return config
    process = msgspec.structs.replace(config.process, user_range=users_of(layout.data))
    return msgspec.structs.replace(config, process=process)


def run_dir_of(data: Path) -> Path | None:
    """Where the agent of this directory keeps what a reboot may take: None, which is below /run, for root; otherwise a short
    path of the user's own, since the path of a socket has at most 107 characters."""
    if os.geteuid() == 0 and os.access("/run", os.W_OK):
        return None
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    parent = Path(base) / "muster" if base.startswith("/") else Path(tempfile.gettempdir()) / f"muster-{os.geteuid()}"
    return parent / Layout(data, data).id


def join_request(config: AgentConfig, server: str, trust: Trust) -> JoinRequest:
    """What this machine asks for when it joins `server`, which is made a whole URL here. JoinError names what is wrong."""
    try:
        url = split_server(server, default_scheme="https")[0]
    except UrlError as error:
        raise JoinError(f"--join {error}") from error
    identity = identify()
    uplink = config.network.uplink or default_interface(Places())
    address = config.serving.address or (interface_address(uplink) if uplink else "")
    return JoinRequest(
        server=url,
        name=node_name(config, identity.hostname),
        domain=config.domain,
        machine_id=identity.machine_id,
        names=tuple(filter(None, (identity.hostname.lower(), address))),
        trust=trust,
    )
