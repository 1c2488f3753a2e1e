"""Connections into the pods of this node: a command beside a container, a port of a pod.

Called by the endpoint, through the carrier, on the event loop. What is asked for is checked here; what is opened belongs to the
caller, who closes it.

A pod that has no network of its own shares the node's, and with it the node's loopback, where things listen that are nobody
else's business: such a port is reached only in a pod whose manifest says `hostNetwork: true`, as in Kubernetes. See
docs/security.md.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from typing import Final

from muster.agent.contracts import AgentError, ExecSession, ExecWant, RunRef, StreamTarget
from muster.agent.pods_local import LocalPod, Observe
from muster.agent.pods_machine import Machine
from muster.agent.pods_reading import find_container, find_pod

ARGV_BYTES_MAX: Final = 2**20
ARGV_LEN_MAX: Final = 4096


async def open_exec(pods: Iterable[LocalPod], target: StreamTarget, want: ExecWant, machine: Machine) -> ExecSession:
    local = find_pod(pods, target.namespace, target.pod, target.uid)
    _check_command(want.argv)
    ref = _running(local, _container(local, target.container), machine.runtime.observe)
    return await machine.runtime.open_exec(ref, want)


async def dial(pods: Iterable[LocalPod], target: StreamTarget, port: int, machine: Machine) -> socket.socket:
    local = find_pod(pods, target.namespace, target.pod, target.uid)
    if not 1 <= port <= 65535:
        raise AgentError("BadRequest", f"port {port}: a port is between 1 and 65535")
    if target.container:
        _running(local, target.container, machine.runtime.observe)
    elif not any(_is_running(local, name, machine.runtime.observe) for name in local.containers):
        raise AgentError("BadRequest", f"pod {local.title} has no container that is running")
    netns = local.record.sandbox.netns
    if not netns and not local.spec.host_network:
        raise AgentError(
            "NotSupported",
            f"pod {local.title} has no network of its own on this node, so port {port} could be one of the node itself; "
            "it is reached only in a pod with hostNetwork: true",
        )
    if machine.dial is None:
        raise AgentError("NotSupported", "this node makes no connections into pods")
    try:
        return await machine.dial(netns, port)
    except AgentError as e:
        raise AgentError(e.reason, f"port {port} of pod {local.title}: {e.message}") from e


def _check_command(argv: tuple[str, ...]) -> None:
    if not argv or not argv[0]:
        raise AgentError("BadRequest", "command: empty: name a program")
    try:
        data = [os.fsencode(word) for word in argv]
    except UnicodeEncodeError as e:
        raise AgentError("BadRequest", f"command: {e.object[e.start]!r} can't be passed to a program") from e
    if any(b"\0" in word for word in data):
        raise AgentError("BadRequest", "command: a zero byte can't be passed to a program")
    if len(data) > ARGV_LEN_MAX or sum(map(len, data)) > ARGV_BYTES_MAX:
        raise AgentError("BadRequest", f"command: more than {ARGV_LEN_MAX} words or {ARGV_BYTES_MAX} bytes")


def _container(local: LocalPod, name: str) -> str:
    """A pod's only container need not be named."""
    if name:
        return name
    own = [container.name for container in local.spec.containers]
    if len(own) != 1:
        raise AgentError("BadRequest", f"pod {local.title} has several containers, name one of {', '.join(own)}")
    return own[0]


def _is_running(local: LocalPod, name: str, observe: Observe) -> bool:
    memory = find_container(local, name)
    state = observe(local.ref(name, memory.attempts[-1])) if memory.attempts else None
    return state is not None and state.state == "running"


def _running(local: LocalPod, name: str, observe: Observe) -> RunRef:
    """Its current run."""
    if not _is_running(local, name, observe):
        raise AgentError("BadRequest", f'container "{name}" in pod "{local.title}" is not running')
    return local.ref(name, local.containers[name].attempts[-1])
