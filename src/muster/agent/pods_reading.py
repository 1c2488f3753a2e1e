"""Finds the pod, and the log, that somebody asks for. What is in a log is read by `log_files`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path

from muster.agent.contracts import AgentError, LogQuery, RunRef, RunState
from muster.agent.log_files import read_log
from muster.agent.pods_local import ContainerMemory, LocalPod


def read_logs(pods: Iterable[LocalPod], query: LogQuery, observe: Callable[[RunRef], RunState | None]) -> AsyncIterator[bytes]:
    """AgentError `NotFound` or `BadRequest` when there is no such log."""
    local, attempt = _find(pods, query)
    run_dir: Path = local.run_dir(query.container, attempt)
    ref = local.ref(query.container, attempt)

    def is_over() -> bool:
        state = observe(ref)
        return state is None or state.state == "exited"

    return read_log(run_dir, query, is_over)


def find_pod(pods: Iterable[LocalPod], namespace: str, name: str, uid: str) -> LocalPod:
    """uid "": whichever there is; of several the latest. AgentError `NotFound`."""
    title = f"{namespace}/{name}"
    found = [local for local in pods if local.title == title and uid in ("", local.uid)]
    if not found:
        raise AgentError("NotFound", f"pod {title} has nothing on this node")
    return max(found, key=lambda one: one.record.started_at)


def find_container(local: LocalPod, name: str) -> ContainerMemory:
    """AgentError `BadRequest`."""
    memory = local.containers.get(name)
    if memory is None:
        raise AgentError("BadRequest", f"pod {local.title} has no container {name!r}; it has {', '.join(local.containers)}")
    return memory


def _find(pods: Iterable[LocalPod], query: LogQuery) -> tuple[LocalPod, int]:
    local = find_pod(pods, query.namespace, query.pod, query.uid)
    memory = find_container(local, query.container)
    name = local.title
    if query.previous:
        if len(memory.attempts) < 2:
            raise AgentError(
                "BadRequest", f"container {query.container!r} of pod {name} has no earlier run; leave out previous"
            )
        return local, memory.attempts[-2]
    if not memory.attempts:
        why = memory.problem.reason if memory.problem is not None else "ContainerCreating"
        raise AgentError("BadRequest", f"container {query.container!r} of pod {name} waits to start: {why}")
    return local, memory.attempts[-1]
