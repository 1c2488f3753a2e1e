"""Finds the log that somebody asks for. What is in it is read by `log_files`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path

from muster.agent.contracts import AgentError, LogQuery, RunRef, RunState
from muster.agent.log_files import read_log
from muster.agent.pods_local import LocalPod


def read_logs(pods: Iterable[LocalPod], query: LogQuery, observe: Callable[[RunRef], RunState | None]) -> AsyncIterator[bytes]:
    """AgentError `NotFound` or `BadRequest` when there is no such log."""
    local, attempt = _find(pods, query)
    run_dir: Path = local.run_dir(query.container, attempt)
    ref = local.ref(query.container, attempt)

    def is_over() -> bool:
        state = observe(ref)
        return state is None or state.state == "exited"

    return read_log(run_dir, query, is_over)


def _find(pods: Iterable[LocalPod], query: LogQuery) -> tuple[LocalPod, int]:
    name = f"{query.namespace}/{query.pod}"
    found = [local for local in pods if local.title == name and query.uid in ("", local.uid)]
    if not found:
        raise AgentError("NotFound", f"pod {name} has nothing on this node")
    local = max(found, key=lambda one: one.record.started_at)
    memory = local.containers.get(query.container)
    if memory is None:
        raise AgentError("BadRequest", f"pod {name} has no container {query.container!r}; it has {', '.join(local.containers)}")
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
