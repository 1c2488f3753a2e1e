"""A real `muster up` as a child process, for tests that kill it, restart it and talk to it over TLS."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import ssl
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from muster.agent.agent import run_dir_of
from muster.agent.ending import end_everything
from muster.agent.layout import Layout
from muster.cli.local_agents import agent_directories, end_agent

READY_TIMEOUT_S = 60.0


class ServerProcess:
    """One data directory, and at most one running server on it."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.url = ""
        self.token = ""
        self._child: asyncio.subprocess.Process | None = None

    async def start(self, *options: str) -> None:
        kubeconfig = self.data_dir / "kubeconfig"
        kubeconfig.unlink(missing_ok=True)
        command = [sys.executable, "-m", "muster.cli.main", "up", "--data-dir", str(self.data_dir), "--listen", "127.0.0.1:0"]
        command += options if any("agent" in option for option in options) else (*options, "--without", "agent")
        log = os.open(self.data_dir.parent / "muster-up.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._child = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log)
        os.close(log)
        async with asyncio.timeout(READY_TIMEOUT_S):
            while not await self._is_ready(kubeconfig):
                assert self._child.returncode is None, (self.data_dir.parent / "muster-up.log").read_text()[-3000:]
                await asyncio.sleep(0.01)

    async def _is_ready(self, kubeconfig: Path) -> bool:
        try:
            config = yaml.safe_load(kubeconfig.read_text())
            self.url = config["clusters"][0]["cluster"]["server"]
            self.token = config["users"][0]["user"]["token"]
            async with self.session() as session, session.get(f"{self.url}/readyz") as answer:
                return answer.status == 200
        except (OSError, TypeError, KeyError, yaml.YAMLError, aiohttp.ClientError):
            return False

    @property
    def pid(self) -> int:
        assert self._child is not None
        return self._child.pid

    def resident_bytes(self) -> int:
        """What the running server holds of memory."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    async def kill(self) -> None:
        assert self._child is not None
        with contextlib.suppress(ProcessLookupError):
            self._child.send_signal(signal.SIGKILL)
        await self._child.wait()

    async def stop(self) -> int:
        assert self._child is not None
        if self._child.returncode is None:
            self._child.send_signal(signal.SIGTERM)
        return await self._child.wait()

    async def end_tasks(self) -> list[Layout]:
        """After `stop` or `kill`: end the agents and what they run, as `muster down --tasks` does. Of which agents."""
        layouts = [Layout(path, run_dir_of(path)) for path in agent_directories(self.data_dir)]
        for layout in layouts:
            assert await asyncio.to_thread(end_agent, layout, 20.0)
            await end_everything(layout)
        return layouts

    def tls(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.data_dir / "pki" / "ca.crt"))

    @contextlib.asynccontextmanager
    async def session(self, connections_max: int = 0, **options: Any) -> AsyncIterator[aiohttp.ClientSession]:
        """With as many connections as it likes, or so many."""
        headers = {"Authorization": f"Bearer {self.token}"}
        connector = aiohttp.TCPConnector(ssl=self.tls(), limit=connections_max)
        async with aiohttp.ClientSession(connector=connector, headers=headers, **options) as session:
            yield session
