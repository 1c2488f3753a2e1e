"""An agent of an ordinary user, for `test_process_rootless`: runs one task and prints, as JSON, what came of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from muster.agent.config import AgentConfig
from muster.agent.contracts import ContainerSpec, ExecWant, Image, Mount, RunRef, Sandbox
from muster.agent.layout import Layout
from muster.agent.runtimes.process import ProcessRuntime
from muster.agent.shim.client import Shims

SCRIPT = (
    "cat /data/f; touch /data/new || echo refused; id -u; hostname; echo $$; ls -A /tmp | grep muster-test-; cat $DATA/secret;"
    "touch /usr/x || echo refused; grep CapEff /proc/self/status; (setsid sleep 1007 &); echo ready; sleep 1008"
)


class NoCgroups:
    """An ordinary user has none here."""

    def procs_files(self, uid: str, container: str) -> Sequence[str]:
        return []

    def oom_file(self, uid: str, container: str) -> str:
        return ""

    def kill(self, uid: str, container: str | None = None) -> int:
        return 0


async def talk(runtime: ProcessRuntime, ref: RunRef, want: ExecWant) -> list[object]:
    """What an open command prints, and its code."""
    session = await runtime.open_exec(ref, want)
    os.write(session.stdin, b"typed\n\4" if want.has_tty else b"typed\n")
    session.close_stdin()
    code = await session.wait()
    os.set_blocking(session.stdout, True)
    output = b""
    with contextlib.suppress(OSError):  # how a terminal ends
        while data := os.read(session.stdout, 4096):
            output += data
    await session.close()
    return [code, output.decode().split()]


async def main(data: Path) -> None:
    layout = Layout(data, data / "run")
    shims = Shims(layout)
    await shims.open()
    runtime = ProcessRuntime(layout, shims, NoCgroups(), AgentConfig())  # type: ignore[arg-type]
    await runtime.open()
    volume = layout.volume("pod", "v")
    volume.mkdir(parents=True)
    (volume / "f").write_text("in the volume\n")
    (data / "secret").write_text("of the agent\n")
    sandbox = Sandbox(uid="pod", namespace="n", name="pod", hostname="inside", user=2_000_000_000)
    ref = RunRef("pod", "main", 0)
    missing = [one.feature for one in runtime.missing()]
    result: dict[str, object] = {"missing": missing, "user": os.geteuid()}
    if len(missing) == 1:
        mount = Mount(target="/data", source=str(volume), read_only=True)
        env = (("DATA", str(data)),)
        spec = ContainerSpec(name="main", attempt=0, command=("sh", "-c", SCRIPT), mounts=(mount,), env=env)
        await runtime.start(sandbox, spec, Image())
        log = layout.run_dir("pod", "main", 0) / "log" / "0.log"
        async with asyncio.timeout(60):
            while True:
                with contextlib.suppress(FileNotFoundError):
                    if "ready" in log.read_text():
                        break
                await asyncio.sleep(0.02)
        beside = await runtime.exec(ref, ["sh", "-c", "cat /data/f; pgrep -xc sleep"], 30)
        opened = {}
        for has_tty in (False, True):
            want = ExecWant(argv=("sh", "-c", "cat; hostname; tty; pgrep -xc sleep; exit 6"), has_stdin=True, has_tty=has_tty)
            opened[str(has_tty)] = await talk(runtime, ref, want)
        await runtime.remove(sandbox, ref)
        found = runtime.observe(ref)
        lines = [line.split(" ", 3)[3] for line in log.read_text().splitlines() if " stdout " in line]
        result |= {
            "lines": lines,
            "beside": beside.output.decode(),
            "opened": opened,
            "code": found.exited.code if found and found.exited else None,
        }
    await shims.close()
    print(json.dumps(result))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
