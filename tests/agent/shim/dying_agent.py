"""An agent to be killed: opens shims on a directory and starts runs, as told on its command line.

python dying_agent.py DATA NAME...     starts one run for each name, says `launched NAME`, then waits for its end
with NAME:die                          writes launch.json, says so, and waits without asking for a start
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from muster.agent.layout import Layout
from muster.agent.shim.client import Shims


def launch(layout: Layout, name: str, script: str) -> dict[str, object]:
    """A run on the host's files, as the agent's own user: what is tested here is the shim, not the container."""
    return {
        "argv": ["sh", "-c", script],
        "env": [["PATH", os.environ["PATH"]], ["NAME", name], ["DATA", str(layout.data)]],
        "cwd": str(layout.data),
        "user": os.geteuid(),
        "group": os.getegid(),
        "groups": [],
        "hostname": "",
        "netns": "",
        "namespaces": [],
        "root": {"kind": "host"},
        "mounts": [],
        "hide": [],
        "cgroupProcs": [],
        "log": {"bytesMax": 65536, "filesMax": 2},
        "oomFile": "",
        "pidFile": "",
        "stopArgv": [],
    }


SCRIPT = 'echo $NAME >> "$DATA/starts"; echo begun; until [ -e "$DATA/go" ]; do sleep 0.02; done; echo done; exit 7'


async def main(data: Path, names: list[str]) -> None:
    layout = Layout(data, data / "run")
    shims = Shims(layout)
    await shims.open()
    print("open", flush=True)
    for name in names:
        plain, _, how = name.partition(":")
        run_dir = layout.run_dir("pod", plain, 0)
        shims.write_launch(run_dir, launch(layout, plain, SCRIPT))
        if how != "die":
            await shims.launch(run_dir, has_own_pids=os.geteuid() == 0)
        print(f"launched {plain}", flush=True)
    await asyncio.sleep(3600)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2:]))
