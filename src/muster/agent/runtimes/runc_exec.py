"""Runs `runc exec` to its end, or ends it: for probes and hooks. On the agent's event loop; its own process."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Final

from muster.agent.contracts import ExecResult

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


async def _read(process: asyncio.subprocess.Process, output: bytearray) -> None:
    assert process.stdout is not None
    while data := await process.stdout.read(64 * 1024):
        output += data[: OUTPUT_BYTES_MAX - len(output)]
