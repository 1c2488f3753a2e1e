"""An agent to be killed while commands are open, for `test_sessions_killed`: opens some beside a container that runs, says
`open`, and waits.

python talking_agent.py process|runc DATA RUN UID MARK        what it opens sleeps for MARK seconds
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from muster.agent.cgroups import open_cgroups
from muster.agent.config import AgentConfig
from muster.agent.contracts import ContainerRuntime, ExecWant, RunRef
from muster.agent.layout import Layout
from muster.agent.runtimes.process import ProcessRuntime
from muster.agent.runtimes.runc import RuncRuntime
from muster.agent.shim.client import Shims
from tests.agent.talking import read_until


async def main(kind: str, data: str, run: str, uid: str, mark: str) -> None:
    layout = Layout(Path(data), Path(run))
    shims = Shims(layout)
    await shims.open()
    made = RuncRuntime if kind == "runc" else ProcessRuntime
    runtime: ContainerRuntime = made(layout, shims, open_cgroups(layout.id), AgentConfig())
    await runtime.open()
    script = f"set -m; trap '' HUP; (sleep {mark} &); echo ready; while :; do sleep {mark}; done"
    opened = []
    for has_tty in (False, True):
        want = ExecWant(argv=("sh", "-c", script), has_stdin=True, has_tty=has_tty)
        session = await runtime.open_exec(RunRef(uid, "main", 0), want)
        await read_until(session.stdout, b"ready")
        opened.append(session)
    print("open", flush=True)
    await asyncio.sleep(3600)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
