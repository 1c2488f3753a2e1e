"""Network: ports, iproute2, traffic shaping tried for real in a network namespace that disappears with its process."""

from __future__ import annotations

import errno
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping

from muster.cli.doctor.kernel import NAMESPACES, PROBE_TIMEOUT_S
from muster.cli.doctor.model import Finding, ok, warning

DEFAULT_PORT = 6443

# Each step is one capability; it runs inside one private network namespace, in this order.
SHAPING_STEPS: dict[str, tuple[str, ...]] = {
    "veth": ("ip link add mst0 type veth peer name mst1", "ip link set mst0 up"),
    "htb": (
        "tc qdisc add dev mst0 root handle 1: htb default 1",
        "tc class add dev mst0 parent 1: classid 1:1 htb rate 100mbit ceil 200mbit",
    ),
    "tbf": ("tc qdisc add dev mst1 root tbf rate 100mbit burst 64kb latency 50ms",),
    "ifb": ("ip link add mst2 type ifb",),
}
SHAPING_COSTS = {
    "veth": "tasks cannot have a network of their own, so their bandwidth is neither limited nor measured",
    "htb": "granted bandwidth is not enforced: a task may use the whole uplink",
    "tbf": "a single interface cannot be capped without HTB",
    "ifb": "incoming traffic is limited only at its sender",
}

_IN_NAMESPACE = """
import ctypes, subprocess, sys
libc = ctypes.CDLL(None, use_errno=True)
if libc.unshare(int(sys.argv[1])) != 0:
    sys.exit(3)
for step in sys.argv[2:]:
    name, _, commands = step.partition("=")
    done = all(subprocess.run(c.split(), capture_output=True).returncode == 0 for c in commands.split(";"))
    print(name, int(done), flush=True)
"""


def judge_port(host: str, port: int, problem: str, owner: int | None) -> Finding:
    """`problem` is empty when the port could be bound; `owner` is our own server's process, if that is what holds it."""
    where = f"{host}:{port}"
    if not problem:
        return ok("port", f"{where} is free", port=port)
    if owner:
        return ok("port", f"{where} is held by the Muster that runs here (process {owner})", port=port)
    return warning(
        "port",
        f"{where}: {problem}",
        "'muster up' cannot use its default address",
        "stop what holds it, or start with --listen 127.0.0.1:0 (any free port)",
        port=port,
    )


def probe_port(owner: int | None, host: str = "127.0.0.1", port: int = DEFAULT_PORT) -> Finding:
    problem = ""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((host, port))
    except OSError as e:
        problem = "in use by another process" if e.errno == errno.EADDRINUSE else str(e.strerror)
    return judge_port(host, port, problem, owner)


def judge_iproute(tools: Mapping[str, str]) -> Finding:
    missing = [name for name, path in tools.items() if not path]
    if not missing:
        return ok("iproute2", "ip and tc found", **tools)
    return warning(
        "iproute2",
        f"missing: {', '.join(missing)}",
        "tasks get no network of their own and no bandwidth limit",
        "install the package iproute2 (apt-get install iproute2)",
        **tools,
    )


def find_iproute() -> dict[str, str]:
    # Debian keeps both in /usr/sbin, which is not on an ordinary user's PATH.
    return {name: shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin") or "" for name in ("ip", "tc")}


def try_shaping(tools: Mapping[str, str], *, nested: bool) -> dict[str, bool] | None:
    """Which steps work; None when no network namespace can be had."""
    flags = NAMESPACES["net"] | (NAMESPACES["user"] if nested else 0)
    steps = [
        f"{name}={';'.join(tools[c.split()[0]] + c[c.index(' ') :] for c in commands)}"
        for name, commands in SHAPING_STEPS.items()
    ]
    try:
        done = subprocess.run(  # noqa: S603 - fixed text, no user input
            [sys.executable, "-c", _IN_NAMESPACE, str(flags), *steps],
            capture_output=True,
            text=True,
            timeout=PROBE_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    if done.returncode == 3:
        return None
    said = dict(line.split() for line in done.stdout.splitlines() if len(line.split()) == 2)
    return {name: said.get(name) == "1" for name in SHAPING_STEPS}


def judge_shaping(steps: Mapping[str, bool] | None, *, nested: bool) -> Finding:
    if steps is None:
        return warning(
            "shaping",
            "no network namespace could be made",
            SHAPING_COSTS["htb"],
            "run as root with CAP_NET_ADMIN and CAP_SYS_ADMIN",
        )
    missing = [name for name, works in steps.items() if not works]
    facts = {"steps": dict(steps), "insideUserNamespace": nested}
    if missing:
        return warning(
            "shaping",
            f"works: {', '.join(n for n in steps if steps[n]) or 'nothing'}; not: {', '.join(missing)}",
            "; ".join(SHAPING_COSTS[name] for name in missing),
            f"load the kernel modules ({', '.join(_module(name) for name in missing)}), or use a kernel that has them",
            **facts,
        )
    if nested:
        return warning(
            "shaping",
            f"{', '.join(steps)} work, inside a user namespace only",
            "a task's own interface can be limited, the machine's uplink cannot be shared out",
            "run as root",
            **facts,
        )
    return ok("shaping", f"{', '.join(steps)} work", **facts)


def _module(step: str) -> str:
    return {"htb": "sch_htb", "tbf": "sch_tbf"}.get(step, step)


def probe_network(owner: int | None, *, is_root: bool) -> list[Finding]:
    tools = find_iproute()
    findings = [probe_port(owner), judge_iproute(tools)]
    if all(tools.values()):
        findings.append(judge_shaping(try_shaping(tools, nested=not is_root), nested=not is_root))
    return findings
