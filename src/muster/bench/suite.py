"""Which lines a run of benchmarks has: one scenario where the user says, or all of them at the sizes that say most."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from muster.bench import on_embedded, on_engine, on_kubernetes
from muster.bench.lines import On, Say, SchedulingLine
from muster.bench.scenario import load_scenario, scenario_names

DEFAULT_PAIRS = 3
_ALL_SIZES = (500, 1000, 5000, 20000)


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One line to be measured. `pods` None means the scenario's own number."""

    scenario: str
    on: On
    nodes: int
    pods: int | None = None
    pairs: int = DEFAULT_PAIRS


def tasks_of(
    name: str, on: Sequence[On], *, nodes: int | None = None, pods: int | None = None, pairs: int | None = None
) -> Iterator[Task]:
    """One scenario, in each place, at one size: 1,000 nodes unless said otherwise."""
    for place in on:
        yield Task(scenario=name, on=place, nodes=nodes or 1000, pods=pods, pairs=pairs or DEFAULT_PAIRS)


def all_tasks(
    on: Sequence[On], *, nodes: int | None = None, pods: int | None = None, pairs: int | None = None
) -> Iterator[Task]:
    """Every scenario in each place. The sizes are those that say most; `nodes` replaces them by one."""
    sizes: dict[On, dict[str, tuple[int, ...]]] = {
        "engine": {"basic": _ALL_SIZES, "gang-64": _ALL_SIZES},
        "embedded": {"basic": (1000, 5000, 20000)},
        "kubernetes": {"basic": (1000, 5000, 20000)},
    }
    usual: dict[On, int] = {"engine": 5000, "embedded": 1000, "kubernetes": 1000}
    for place in on:
        for name in scenario_names():
            for size in (nodes,) if nodes else sizes[place].get(name, (usual[place],)):
                # A peer makes a pair take a minute or more: several where the ratio is an aim, one elsewhere.
                few = 1 if place == "kubernetes" and name not in sizes[place] else DEFAULT_PAIRS
                yield Task(scenario=name, on=place, nodes=size, pods=pods, pairs=pairs or few)


def measure(task: Task, *, seed: int, say: Say) -> SchedulingLine:
    scenario = load_scenario(task.scenario)
    size = scenario.size_for(task.nodes)
    pods = task.pods or size.pods
    if task.on == "kubernetes":
        pods = task.pods or size.pods_on_kubernetes or size.pods
    say(f"{task.scenario} on {task.on}: {task.nodes:,} nodes, {pods:,} pods")
    if task.on == "engine":
        return on_engine.run(scenario, task.nodes, pods, seed=seed, say=say)
    if task.on == "embedded":
        return on_embedded.run(scenario, task.nodes, pods, seed=seed, say=say)
    return on_kubernetes.run(scenario, task.nodes, pods, seed=seed, pairs=task.pairs, say=say)
