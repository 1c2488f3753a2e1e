"""Runs `runc exec` to its end, or ends it: for probes and hooks. On the agent's event loop; its own process.

Commands whose streams somebody else has are held by a child of the zygote: `shim.holding`."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from muster.agent.contracts import AgentError, ExecResult
from muster.agent.runtimes.runc_users import IdRange, outside

OUTPUT_BYTES_MAX: Final = 10 * 1024
TIMEOUT_CODE: Final = 137


async def run(argv: list[str], pid_file: Path, timeout_s: float) -> ExecResult:
    """What the command printed and said. One that takes too long is killed, with whatever it started in its session."""
    process = await asyncio.create_subprocess_exec(
        *argv, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output = bytearray()
    try:
        async with asyncio.timeout(timeout_s):
            await _read(process, output)
            code = await process.wait()
    except TimeoutError:
        return ExecResult(TIMEOUT_CODE, bytes(output), is_timeout=True)
    finally:
        if process.returncode is None:
            # The command first: without runc nobody could say any more which process it is.
            with suppress(OSError, ValueError):
                os.killpg(int(await asyncio.to_thread(pid_file.read_text)), signal.SIGKILL)
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    return ExecResult(128 - code if code < 0 else code, bytes(output))


class _User(msgspec.Struct):
    uid: int = 0
    gid: int = 0


class _Process(msgspec.Struct):
    env: list[str] = []
    user: _User = msgspec.field(default_factory=_User)


class _Mapping(msgspec.Struct, rename="camel"):
    container_id: int = msgspec.field(name="containerID")
    host_id: int = msgspec.field(name="hostID")
    size: int


class _Linux(msgspec.Struct, rename="camel"):
    uid_mappings: list[_Mapping] = []


class _Config(msgspec.Struct):
    process: _Process
    linux: _Linux = msgspec.field(default_factory=_Linux)


def beside(config: Path) -> tuple[bool, int, int]:
    """From a bundle's `config.json`: whether image or manifest say what a terminal is like (TERM), and the container's user and
    group as the node has them. In a thread. AgentError `ExecFailed`."""
    try:
        found = msgspec.json.decode(config.read_bytes(), type=_Config)
    except (OSError, msgspec.DecodeError) as e:
        raise AgentError("ExecFailed", f"the container's configuration can't be read: {e}") from e
    ranges = tuple(IdRange(inside=m.container_id, outside=m.host_id, count=m.size) for m in found.linux.uid_mappings)
    user = found.process.user
    has_term = any(pair.startswith("TERM=") for pair in found.process.env)
    return has_term, outside(ranges, user.uid), outside(ranges, user.gid)


async def _read(process: asyncio.subprocess.Process, output: bytearray) -> None:
    assert process.stdout is not None
    while data := await process.stdout.read(64 * 1024):
        output += data[: OUTPUT_BYTES_MAX - len(output)]
