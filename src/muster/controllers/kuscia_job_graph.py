"""The graph of a job: who waits for whom, what may start, and what never will. Pure, and linear in tasks and dependencies.

Tasks are numbered as the spec lists them, so that ties are broken the same way everywhere. A `Graph` is made of a job whose
graph is sound (`rules.kuscia_jobs.job_problems` found nothing); dependencies on aliases that do not exist are left out here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from muster.objects.kinds.kuscia_jobs import JobTask

SUCCEEDED, FAILED, SKIPPED, WAITING = "Succeeded", "Failed", "Skipped", "Waiting"
"""Phases that decide what becomes of dependents; every other phase means that the task is under way."""


class Graph(msgspec.Struct, frozen=True):
    """`order` has every task after those that it depends on."""

    tasks: Sequence[JobTask]
    parents: Sequence[Sequence[int]]
    children: Sequence[Sequence[int]]
    order: Sequence[int]

    @classmethod
    def of(cls, tasks: Sequence[JobTask]) -> Graph:
        """Tasks of a circle are missing from `order`: a job with one must not get here."""
        numbers = {task.alias: number for number, task in reversed(list(enumerate(tasks)))}
        parents = [[numbers[alias] for alias in dict.fromkeys(task.dependencies) if alias in numbers] for task in tasks]
        children: list[list[int]] = [[] for _ in tasks]
        missing = [len(own) for own in parents]
        for number, own in enumerate(parents):
            for parent in own:
                children[parent].append(number)
        order = [number for number, count in enumerate(missing) if count == 0]
        for number in order:  # grows while it is read
            for child in children[number]:
                missing[child] -= 1
                if missing[child] == 0:
                    order.append(child)
        return cls(tasks, parents, children, order)

    def descendants(self, aliases: Collection[str]) -> set[str]:
        """These and all that depends on them, directly or not."""
        wanted = set(aliases)
        reached = [number for number, task in enumerate(self.tasks) if task.alias in wanted]
        seen = set(reached)
        for number in reached:
            for child in self.children[number]:
                if child not in seen:
                    seen.add(child)
                    reached.append(child)
        return {self.tasks[number].alias for number in seen}


class Split(msgspec.Struct, frozen=True):
    """What becomes of the tasks that have not been created. Aliases, in the order named."""

    ready: Sequence[str]
    """All that they depend on has succeeded; the most urgent first, then as the spec lists them."""
    blocked: Mapping[str, str]
    """Still waiting, by the alias of the first dependency that has not succeeded yet."""
    skipped: Mapping[str, str]
    """Never to be started, by the alias of the task at the root of it: one that failed."""


def split(graph: Graph, phases: Mapping[str, str]) -> Split:
    """`phases` by alias; a task that is not there, Waiting or Skipped has not been created."""
    culprits: dict[int, str] = {}
    blocked: dict[str, str] = {}
    skipped: dict[str, str] = {}
    ready: list[int] = []
    for number in graph.order:
        alias = graph.tasks[number].alias
        phase = phases.get(alias, WAITING)
        if phase == FAILED:
            culprits[number] = alias
        if phase not in (WAITING, SKIPPED):
            continue
        parents = graph.parents[number]
        culprit = next((culprits[parent] for parent in parents if parent in culprits), None)
        if culprit is not None:
            culprits[number] = skipped[alias] = culprit
            continue
        unfinished = next((p for p in parents if phases.get(graph.tasks[p].alias, WAITING) != SUCCEEDED), None)
        if unfinished is None:
            ready.append(number)
        else:
            blocked[alias] = graph.tasks[unfinished].alias
    return Split(_by_urgency(graph.tasks, ready), blocked, skipped)


def _by_urgency(tasks: Sequence[JobTask], numbers: Iterable[int]) -> list[str]:
    return [tasks[number].alias for number in sorted(numbers, key=lambda number: (-tasks[number].priority, number))]
