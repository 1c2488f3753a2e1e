"""What differs between two runs: fields of the spec, and how each task went. Pure.

Lists whose entries have a name (`alias`, `name`, `domainID`) are compared by it, so that a task inserted in front does not make
all the others look changed. Only what differs is listed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from muster.client.job_kinds import spec_of
from muster.client.job_tree import JobTree, TaskNode
from muster.objects.status import Raw

FIELDS_MAX = 1_000
_KEYS = ("alias", "name", "domainID", "destinationID")
_MISSING = object()


class FieldChange(msgspec.Struct, frozen=True):
    """One field of the spec. `before` and `after` are None where the field is not there at all."""

    path: str
    before: Any = None
    after: Any = None


class RunFacts(msgspec.Struct, frozen=True, rename="camel"):
    """How one task, or the job as a whole, went in one run."""

    phase: str = ""
    reason: str = ""
    duration_s: float | None = msgspec.field(default=None, name="durationSeconds")
    attempts: int = 0
    preemptions: int = 0
    nodes: list[str] = []


class TaskChange(msgspec.Struct, frozen=True):
    """A task that is in either run; None where it is missing."""

    alias: str
    before: RunFacts | None = None
    after: RunFacts | None = None

    @property
    def is_same(self) -> bool:
        return self.before == self.after


class JobDiff(msgspec.Struct, frozen=True, rename="camel"):
    before: str
    after: str
    job: TaskChange
    spec: list[FieldChange]
    tasks: list[TaskChange]
    left_out: int = 0
    """Changed fields beyond the bound, counted and not listed."""


def diff(before: tuple[Raw, JobTree], after: tuple[Raw, JobTree]) -> JobDiff:
    """Two jobs of the same kind or not, each as object and tree."""
    changes = [c for c in field_changes(spec_of(before[0]), spec_of(after[0]), "spec") if not c.path.endswith(".taskID")]
    old = {task.alias: task for task in before[1].tasks}
    new = {task.alias: task for task in after[1].tasks}
    tasks = [TaskChange(a, _facts(old.get(a)), _facts(new.get(a))) for a in dict.fromkeys([*old, *new])]
    return JobDiff(
        before=before[1].title,
        after=after[1].title,
        job=TaskChange("", _facts(before[1]), _facts(after[1])),
        spec=changes[:FIELDS_MAX],
        tasks=tasks,
        left_out=max(0, len(changes) - FIELDS_MAX),
    )


def field_changes(before: Any, after: Any, path: str) -> Iterator[FieldChange]:
    """Every leaf that differs, in the order of the fields."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in dict.fromkeys([*before, *after]):
            name = key if "." not in str(key) else f'"{key}"'
            yield from field_changes(before.get(key, _MISSING), after.get(key, _MISSING), f"{path}.{name}")
    elif isinstance(before, list) and isinstance(after, list):
        yield from _list_changes(before, after, path)
    elif type(before) is not type(after) or before != after:
        yield FieldChange(path, None if before is _MISSING else before, None if after is _MISSING else after)


def _list_changes(before: Sequence[Any], after: Sequence[Any], path: str) -> Iterator[FieldChange]:
    key = next((k for k in _KEYS if _names(before, k) is not None and _names(after, k) is not None), None)
    if key is None:
        for i in range(max(len(before), len(after))):
            old = before[i] if i < len(before) else _MISSING
            new = after[i] if i < len(after) else _MISSING
            yield from field_changes(old, new, f"{path}[{i}]")
        return
    old_by, new_by = {e[key]: e for e in before}, {e[key]: e for e in after}
    for name in dict.fromkeys([*old_by, *new_by]):
        yield from field_changes(old_by.get(name, _MISSING), new_by.get(name, _MISSING), f"{path}[{key}={name}]")


def _names(entries: Sequence[Any], key: str) -> list[str] | None:
    """The names of all entries under `key`; None unless each has its own."""
    names = [e.get(key) if isinstance(e, Mapping) else None for e in entries]
    is_named = all(isinstance(n, str) and n for n in names) and len(set(names)) == len(names)
    return [str(n) for n in names] if is_named else None


def _facts(node: TaskNode | JobTree | None) -> RunFacts | None:
    if node is None:
        return None
    nodes = node.nodes if isinstance(node, TaskNode) else sorted({n for task in node.tasks for n in task.nodes})
    phase = node.phase if isinstance(node, TaskNode) else node.outcome or node.phase
    return RunFacts(
        phase=phase,
        reason=node.reason,
        duration_s=node.duration_s(),
        attempts=node.attempts,
        preemptions=node.preemptions,
        nodes=nodes,
    )
