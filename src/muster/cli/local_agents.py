"""The agents that `muster up` runs: one for each of its local parties and one of no party, each with its part of the machine.

    <data>/agents/<party>/           the agent's own data directory (`default` for the one of no party)
    <data>/agents/<party>/agent.yaml written here: share of the machine, users, what tasks must not see
    <data>/agents/<party>/agent.log  what it says

An agent is a child process in a session of its own: it outlives a `muster up` that crashes, and its tasks outlive it. The next
`muster up` ends an agent that it finds on a directory and starts its own there, which takes the tasks back.

Concurrency: one task on the server's event loop. It looks at the Domains and at the children every `LOOK_S`: a party that comes
gets an agent, one that goes loses it, and everybody's share is computed anew (SIGHUP).

Invariant: at most one child per party, and never one beside an agent that is still on the directory.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from muster.agent.claim import holder_of
from muster.agent.fencing import count_running
from muster.agent.joining import Credentials, JoinError
from muster.agent.layout import Layout
from muster.agent.user_ranges import users_of
from muster.cli.errors import ExitCode, UsageError
from muster.client.files import replace_file
from muster.controllers.parties import PARTNER
from muster.objects.meta import is_deleting, name_of
from muster.objects.names import validate_label_name
from muster.objects.status import ApiError
from muster.objects.time import Clock
from muster.server.joining import mint_token
from muster.store.backoff import Backoff
from muster.store.embedded import EmbeddedStore

log = logging.getLogger(__name__)

PARTY_LESS = "default"
AGENTS_MAX = 64
LOOK_S = 0.5
STOP_S = 15.0
REPLACE_S = 3.0
"""An agent of an earlier `muster up` has nobody left to report to; killing it costs nothing."""
LOG_BYTES_MAX = 8 << 20
_RESTART = Backoff(base_s=1.0, max_s=60.0)


def parse_agents(values: Sequence[str]) -> tuple[str, ...] | None:
    """`alice,bob` of `--agents`; None for `auto`. UsageError names what is wrong."""
    words = [word.strip() for value in values for word in value.split(",") if word.strip()]
    if not words or words == ["auto"]:
        return None
    for word in words:
        if word == "auto":
            raise UsageError("--agents: 'auto' stands alone, or parties are named")
        if problems := validate_label_name(word):
            raise UsageError(f"--agents '{word}': {problems[0]}")
    if len(set(words)) > AGENTS_MAX:
        raise UsageError(f"--agents: {len(set(words))} parties; at most {AGENTS_MAX} agents run on one machine")
    return tuple(dict.fromkeys(words))


class _Child:
    """One agent. `process` is None while it does not run."""

    def __init__(self, party: str, directory: Path) -> None:
        self.party = party
        self.directory = directory
        self.process: asyncio.subprocess.Process | None = None
        self.failures = 0
        self.retry_at_s = 0.0
        self.config = b""
        self.has_told = False

    @property
    def domain(self) -> str:
        return "" if self.party == PARTY_LESS else self.party


class LocalAgents:
    """`start`, then `stop`. `wanted` None: one for each local Domain, and one of no party."""

    def __init__(
        self,
        data_dir: Path,
        store: EmbeddedStore,
        url: str,
        *,
        wanted: tuple[str, ...] | None,
        ca_path: Path,
        clock: Clock,
        log_level: str = "warning",
    ) -> None:
        self._data_dir = data_dir
        self._root = data_dir / "agents"
        self._store = store
        self._url = url
        self._wanted = wanted
        self._ca_path = ca_path
        self._clock = clock
        self._log_level = log_level
        self._children: dict[str, _Child] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="local agents")

    @property
    def task(self) -> asyncio.Task[None] | None:
        return self._task

    def running(self) -> list[str]:
        return [child.party for child in self._children.values() if _is_running(child)]

    async def stop(self) -> int:
        """End the agents, in order; how many pods go on without them."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        children, self._children = list(self._children.values()), {}
        await asyncio.gather(*(self._end(child) for child in children))
        return await asyncio.to_thread(lambda: sum(count_running(Layout(child.directory).pods) for child in children))

    # -- what should run -------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            try:
                await self._look()
            except ApiError as error:
                log.warning("local agents can't be looked after at the moment: %s", error)
            await asyncio.sleep(LOOK_S)

    async def _look(self) -> None:
        parties = await self._parties()
        for party in [name for name in self._children if name not in parties]:
            log.info("the agent of party %s ends: the party is gone", party)
            await self._end(self._children.pop(party))
        for party in parties:
            if party not in self._children:
                self._children[party] = _Child(party, self._root / party)
        await asyncio.gather(*(self._tend(child) for child in list(self._children.values())))

    async def _parties(self) -> list[str]:
        if self._wanted is not None:
            return list(self._wanted)
        domains = await self._store.resource("kuscia.secretflow", "Domain")
        page = await self._store.list(domains)
        local = [name_of(one) for one in page.items if (one.get("spec") or {}).get("role") != PARTNER and not is_deleting(one)]
        return [PARTY_LESS, *sorted(local)][:AGENTS_MAX]

    async def _tend(self, child: _Child) -> None:
        try:
            await self._set_right(child)
        except OSError as error:
            self._failed(child, str(error))

    async def _set_right(self, child: _Child) -> None:
        """This child runs with the configuration that it should have."""
        now_s = asyncio.get_running_loop().time()
        is_new = self._configure(child)
        if child.process is not None and child.process.returncode is None:
            if is_new:
                child.process.send_signal(signal.SIGHUP)
            return
        if child.process is not None:
            code, child.process = child.process.returncode, None
            if code == ExitCode.FORBIDDEN:
                # Somebody deleted its node, or its certificate is too old: it joins again.
                shutil.rmtree(Layout(child.directory).credentials, ignore_errors=True)
            self._failed(child, f"ended with code {code}; see {child.directory / 'agent.log'}")
        if now_s >= child.retry_at_s:
            await self._begin(child)

    def _failed(self, child: _Child, why: str) -> None:
        log.warning("the agent of %s: %s", child.party, why)
        child.retry_at_s = asyncio.get_running_loop().time() + _RESTART.delay_s(child.failures, child.party)
        child.failures += 1

    def _configure(self, child: _Child) -> bool:
        """Write its configuration where it has changed; whether it has."""
        names = list(self._children)
        count, place = len(names), names.index(child.party)
        config = {
            "domain": child.domain,
            # Rounded down, so that all parts together are never more than the machine.
            "capacity": {"share": _down(1 / count), "shareOffset": _down(place / count)},
            "process": {"userRange": list(users_of(child.directory)), "hide": [str(self._data_dir)]},
        }
        text = msgspec.yaml.encode(config)
        if text == child.config:
            return False
        child.directory.mkdir(mode=0o711, parents=True, exist_ok=True)
        replace_file(child.directory / "agent.yaml", text)
        child.config = text
        return True

    # -- children --------------------------------------------------------------------------------------------------------------

    async def _begin(self, child: _Child) -> None:
        layout = Layout(child.directory)
        if not await asyncio.to_thread(end_agent, layout, REPLACE_S):
            self._failed(child, f"another agent is on {child.directory} and does not end")
            return
        token = ""
        if not _has_joined(layout, self._clock()):
            try:
                token = await mint_token(self._store, child.domain, self._clock)
            except ApiError as error:
                if not child.has_told:
                    log.warning("the agent of %s waits: %s", child.party, error)
                child.has_told = True
                return
        command = [sys.executable, "-m", "muster.cli.main", "agent", "--join", self._url, "--ca-file", str(self._ca_path)]
        command += ["--data-dir", str(child.directory), "--config", str(child.directory / "agent.yaml")]
        command += ["--log-level", self._log_level]
        environ = {key: value for key, value in os.environ.items() if key not in ("KUBECONFIG", "MUSTER_JOIN_TOKEN")}
        if token:
            environ["MUSTER_JOIN_TOKEN"] = token
        said = _open_log(child.directory / "agent.log")
        try:
            child.process = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.DEVNULL, stdout=said, stderr=said, env=environ, start_new_session=True
            )
        finally:
            os.close(said)

    async def _end(self, child: _Child) -> None:
        process, child.process = child.process, None
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(STOP_S):
                await process.wait()
        except TimeoutError:
            log.warning("the agent of %s has not ended in %g s and is killed; its tasks go on", child.party, STOP_S)
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def _is_running(child: _Child) -> bool:
    return child.process is not None and child.process.returncode is None


def _down(value: float) -> float:
    return int(value * 10_000) / 10_000


def _has_joined(layout: Layout, now: float) -> bool:
    credentials = Credentials(layout.credentials)
    try:
        return credentials.joined() is not None and not credentials.is_expired(now)
    except JoinError:
        return False


def _open_log(path: Path) -> int:
    with contextlib.suppress(OSError):
        if path.stat().st_size > LOG_BYTES_MAX:
            path.replace(path.with_name(f"{path.name}.old"))
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


def end_agent(layout: Layout, timeout_s: float) -> bool:
    """End the agent that is on this directory, if one is; whether the directory is free now. Its tasks go on. Blocking."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        pid = holder_of(layout.lock)
        if pid is None:
            return True
        try:
            handle = os.pidfd_open(pid)
        except (ProcessLookupError, OSError):
            continue
        try:
            # The handle is fixed to one process; if the lock is still that number's, it is the agent.
            if holder_of(layout.lock) == pid:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(handle, number)
                select.select([handle], [], [], timeout_s)
        finally:
            os.close(handle)
    return holder_of(layout.lock) is None


def agent_directories(data_dir: Path) -> list[Path]:
    """Of all agents that a `muster up` on this directory ever had."""
    root = data_dir / "agents"
    return sorted(path for path in root.iterdir() if path.is_dir()) if root.is_dir() else []
