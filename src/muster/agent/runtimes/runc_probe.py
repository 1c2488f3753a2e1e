"""Finds out what works here: runc or crun, with a user namespace or without. By running a container that does nothing.

On the agent's event loop; a few tenths of a second, once, when the runtime is opened.
"""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import tempfile
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from muster.agent.contracts import AgentError, ContainerSpec, Image, Sandbox
from muster.agent.runtimes import runc_bundle, runc_seccomp
from muster.agent.runtimes.runc_users import User, mappings

TIMEOUT_S: Final = 60.0
RUN: Final = Path("/run/muster")


class Found(msgspec.Struct, frozen=True, kw_only=True):
    binary: str
    has_user_namespace: bool
    has_seccomp: bool
    failures: tuple[str, ...] = ()
    """What was tried before and did not work."""


def mount_point(run: Path, agent_id: str) -> str:
    """Where roots are put together. Users that are not root here must be able to pass through to it, and `runc exec` wants
    the root's directory to exist, though only as a name."""
    for directory in (run, RUN / agent_id):
        point = directory / "runc" / "root"
        (point / "merged").mkdir(mode=0o711, parents=True, exist_ok=True)
        for path in (point, point.parent):
            path.chmod(0o711)
        if all(path.stat().st_mode & 0o001 for path in (point, *point.parents)) and not set(":,\\") & set(str(point)):
            return str(point)
    raise AgentError("RuntimeNotReady", f"{run} and {RUN}: users other than root can't pass through; allow it (mode 0711)")


def remove_mount_point(point: str) -> None:
    """What `mount_point` made, as far as nothing else is in there. For when no container is left: the kernel would take their
    roots away with it."""
    top = Path(point)
    for path in (top / "merged", top, top.parent, top.parent.parent):
        with suppress(OSError):
            path.rmdir()


async def probe(binaries: list[str], user_namespace: str, enter: list[str], point: str, state: Path) -> Found:
    """AgentError `RuntimeNotReady` with everything that was tried."""
    if os.geteuid() != 0:
        raise AgentError("RuntimeNotReady", "the runc runtime needs root: run the agent as root, or use runtime: process")
    failures: list[str] = []
    wanted = {"auto": (True, False), "always": (True,), "never": (False,)}[user_namespace]
    has_seccomp = os.uname().machine in runc_seccomp.ARCHITECTURES
    for name in binaries:
        binary = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin:/usr/local/sbin")
        if binary is None:
            failures.append(f"{name}: not installed")
            continue
        for with_user in wanted:
            problem = await _try(binary, with_user=with_user, has_seccomp=has_seccomp, enter=enter, point=point, state=state)
            if problem is None:
                found = (binary, with_user, has_seccomp)
                return Found(binary=found[0], has_user_namespace=found[1], has_seccomp=found[2], failures=tuple(failures))
            failures.append(f"{name}{' with a user namespace' if with_user else ''}: {problem}")
    raise AgentError("RuntimeNotReady", "no container could be run: " + "; ".join(failures))


async def _try(binary: str, *, with_user: bool, has_seccomp: bool, enter: list[str], point: str, state: Path) -> str | None:
    bundle = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="muster-probe-"))
    name = f"probe-{uuid.uuid4().hex[:12]}"
    try:
        ids = await asyncio.to_thread(_write, bundle, point, name, with_user, has_seccomp)
        words = [f"point={point}", "lower=/", f"layer={bundle}", *ids, "--"]
        code, output = await _run([*enter, *words, binary, "--root", str(state), "run", "--bundle", str(bundle), name])
        return None if code == 0 else (output.strip().splitlines() or [f"exit code {code}"])[-1][:400]
    finally:
        await _run([binary, "--root", str(state), "delete", "-f", name])
        await asyncio.to_thread(shutil.rmtree, bundle, ignore_errors=True)
        await asyncio.to_thread(_take_groups_away, name)


def _write(bundle: Path, point: str, name: str, with_user: bool, has_seccomp: bool) -> list[str]:
    sandbox = Sandbox(uid=name, namespace="", name=name, hostname="probe", user=2_000_000_000)
    ids = mappings(sandbox, ()) if with_user else ()
    setting = runc_bundle.Setting(
        root=f"{point}/merged",
        sys=f"{point}/sys",
        cgroups_path=f"/muster-{name}",
        user=User(uid=0, gid=0),
        ids=ids,
        machine=os.uname().machine,
        nofile_max=resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        has_seccomp=has_seccomp,
    )
    spec = ContainerSpec(name="probe", attempt=0, command=("/bin/true",))
    config = runc_bundle.config(sandbox, spec, Image(), setting)
    config["linux"]["resources"].pop("cpu")
    (bundle / "config.json").write_bytes(msgspec.json.encode(config))
    for directory in ("upper", "work"):
        (bundle / directory).mkdir(mode=0o755)
    if ids:
        os.chown(bundle / "upper", ids[0].outside, ids[0].outside)
    return enter_ids(config)


def enter_ids(config: dict[str, Any]) -> list[str]:
    """The words that tell `runc_enter` how ids are shown."""
    maps = config["linux"].get("uidMappings")
    if not maps:
        return []
    lines = "\n".join(f"{m['containerID']} {m['hostID']} {m['size']}" for m in maps)
    return [f"uids={lines}", f"gids={lines}"]


def _take_groups_away(name: str) -> None:
    """crun and runc make the group in every hierarchy, and may leave one behind when they fail."""
    for path in (*Path("/sys/fs/cgroup").glob(f"muster-{name}"), *Path("/sys/fs/cgroup").glob(f"*/muster-{name}")):
        with suppress(OSError):
            path.rmdir()


async def _run(argv: list[str]) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        *argv, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), TIMEOUT_S)
    except TimeoutError:
        process.kill()
        await process.wait()
        return 124, f"no answer within {TIMEOUT_S:.0f} s"
    return process.returncode or 0, output.decode(errors="replace")
