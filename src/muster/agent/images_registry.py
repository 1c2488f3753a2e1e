"""Fetches an image from a registry into an OCI layout, with skopeo. Its own process, bounded in time and in bytes.

On the agent's event loop. Credentials are skopeo's own (`skopeo login` by the user that runs the agent); a manifest can't name
any. What is fetched is verified again by whoever unpacks it.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Final

from muster.agent.contracts import AgentError
from muster.agent.images_names import LocalPath, Name
from muster.agent.images_sources import DOCUMENT_BYTES_MAX, digest_of

PULL_TIMEOUT_S: Final = 1800.0
ASK_TIMEOUT_S: Final = 60.0
LOOK_EVERY_S: Final = 2.0
_POLICY: Final = Path("/etc/containers/policy.json")
_LOG_LINE: Final = re.compile(r'time="[^"]*" level=\w+ msg="(.*)"')


class Registry:
    def __init__(self, insecure: list[str], bytes_max: int, skopeo: str = "skopeo") -> None:
        self._insecure = set(insecure)
        self._bytes_max = bytes_max
        self._skopeo = skopeo

    def why_not(self) -> str | None:
        return None if shutil.which(self._skopeo) else f"{self._skopeo} is not installed"

    async def digest(self, name: Name) -> str:
        """Of what the registry has under this name now."""
        raw = await self._run(name, ["inspect", "--raw", *self._tls(name, ""), f"docker://{name}"], ASK_TIMEOUT_S, None)
        found = digest_of(raw)
        if name.digest and found != name.digest:
            raise AgentError("ErrImagePull", f"image {name}: the registry answers with {found}")
        return found

    async def fetch(self, name: Name, digest: str, into: Path) -> LocalPath:
        exact = f"docker://{name.path}@{digest}"
        copy = ["copy", "--quiet", "--override-os", "linux", *self._tls(name, "src-"), exact, f"oci:{into}:image"]
        await self._run(name, copy, PULL_TIMEOUT_S, into)
        return LocalPath(kind="oci", path=str(into), tag="image")

    def _tls(self, name: Name, prefix: str) -> list[str]:
        return [f"--{prefix}tls-verify=false"] if name.host in self._insecure else []

    async def _run(self, name: Name, args: list[str], timeout_s: float, watched: Path | None) -> bytes:
        """AgentError with the last line that skopeo says. Ended when it takes too long or `watched` grows too big."""
        if why := self.why_not():
            raise AgentError("ErrImagePull", f"image {name}: not on this node, and can't be pulled: {why}")
        policy = [] if _POLICY.exists() else ["--insecure-policy"]
        env = dict(os.environ)
        if watched is not None:
            await asyncio.to_thread(watched.mkdir, parents=True, exist_ok=True)
            env["TMPDIR"] = str(watched)
        process = await asyncio.create_subprocess_exec(
            self._skopeo,
            *policy,
            *args,
            env=env,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        work = asyncio.ensure_future(_output(process))
        try:
            waited_s = 0.0
            while not work.done() and waited_s < timeout_s:
                await asyncio.wait({work}, timeout=LOOK_EVERY_S)
                waited_s += LOOK_EVERY_S
                if watched is not None and await asyncio.to_thread(_size, watched) > self._bytes_max:
                    raise AgentError("ErrImagePull", f"image {name}: more than {self._bytes_max} bytes to fetch")
            if not work.done():
                raise AgentError("ErrImagePull", f"image {name}: not fetched within {timeout_s:.0f} s")
            output, errors = work.result()
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()
            with suppress(asyncio.CancelledError):
                await work
        if process.returncode != 0:
            raise AgentError("ErrImagePull", f"image {name}: {said(errors.decode(errors='replace'))}")
        return output


def said(errors: str) -> str:
    """The last line of skopeo's, without the time and level before its words: what is said again is then the same again."""
    lines = errors.strip().splitlines()
    if not lines:
        return "skopeo failed without a word"
    found = _LOG_LINE.fullmatch(lines[-1])
    return (re.sub(r'\\(["\\])', r"\1", found[1]) if found else lines[-1])[:500]


async def _output(process: asyncio.subprocess.Process) -> tuple[bytes, bytes]:
    """Both streams, bounded: what comes beyond is read and dropped."""
    assert process.stdout is not None
    assert process.stderr is not None
    output, errors = await asyncio.gather(_first(process.stdout), _first(process.stderr))
    await process.wait()
    return output, errors


async def _first(stream: asyncio.StreamReader) -> bytes:
    kept = b""
    while data := await stream.read(64 * 1024):
        kept += data[: max(0, DOCUMENT_BYTES_MAX - len(kept))]
    return kept


def _size(directory: Path) -> int:
    total = 0
    for where, _, files in os.walk(directory):
        for name in files:
            with suppress(OSError):
                total += os.lstat(os.path.join(where, name)).st_size
    return total
