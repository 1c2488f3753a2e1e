"""Forecasts of starts, measured: how often their intervals hold, and how wide they are beside what past waits alone would say.

Jobs of `sim.habits` go through the real engine, order and forecaster under the virtual clock. Every job that has to wait is
forecast once, in the instant in which it begins to wait. The interval of the marginal history is from the 5th to the 95th
percentile of all waits that had ended by then, of jobs that had to wait: what one would say without looking at the line.

Single-threaded, no clock: equal settings give equal figures. From a shell, one line of JSON for each seed; every setting of
`sim.habits` is an option:

    python -m muster.sim.eta_measure --seed 301 302 --policy easy --load 0.8
"""

from __future__ import annotations

import argparse
import statistics
import sys
from bisect import insort
from collections.abc import Sequence

import msgspec

from muster.engine import events as ev
from muster.engine.decisions import AnyDecision, Place
from muster.engine.machine import Engine
from muster.policy.calibration import KEPT_MIN
from muster.policy.eta import Start
from muster.policy.order import PolicyOrder
from muster.sim.clock import START_S
from muster.sim.habits import Settings, generate
from muster.sim.trace_cluster import Placement, Shaping, parse_cluster
from muster.sim.trace_policy import load_policy
from muster.sim.trace_run import TraceRun
from muster.sim.trace_simulation import checked, new_engine, shuffled, sim_job

GPUS_PER_NODE = 8
INSTANT_S = 1e-3
"""What is told and what happens are compared to the millisecond."""


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one run."""

    jobs: int
    waited: int
    intervals: int
    """Forecasts that had an interval: all but the first ones."""
    held: int
    early: int
    """It started before its interval."""
    width_s: float
    """The median."""
    marginal_width_s: float

    @property
    def coverage(self) -> float:
        return self.held / self.intervals if self.intervals else 0.0

    @property
    def relative_width(self) -> float:
        return self.width_s / self.marginal_width_s if self.marginal_width_s else 0.0


def measure(settings: Settings, policy: str = "balanced", placement: Placement = "nodes") -> Measured:
    """One run. The cluster has nodes of GPUS_PER_NODE GPUs."""
    jobs = generate(settings)
    engine = new_engine(None, "history", forecasts=True)
    cluster = parse_cluster(f"{max(settings.gpus // GPUS_PER_NODE, 1)}x{GPUS_PER_NODE}", placement)
    shaping = Shaping(cluster, jobs)
    world: list[ev.AnyEvent] = [*(ev.NodeSeen(node) for node in shaping.nodes()), *load_policy(policy).events()]
    watch = _Watch(engine)
    run = TraceRun(
        engine,
        [sim_job(job, shaping, "history") for job in shuffled(jobs, 0)],
        gpus=cluster.gpus,
        world=[(START_S, event) for event in world],
        step=watch.step,
    )
    checked(run.run())
    return watch.measured(len(jobs))


class _Watch:
    """Steps the engine, asks for a forecast of everybody who begins to wait, and sees what comes of it."""

    def __init__(self, engine: Engine) -> None:
        assert engine.order is not None
        assert isinstance(engine.order.inner, PolicyOrder)
        self._engine, self._forecaster = engine, engine.order.inner.forecaster
        self._new: dict[str, None] = {}
        self._since: dict[str, float] = {}
        self._told: dict[str, tuple[Start, float]] = {}
        """By unit: what was said, and how wide the marginal interval was then."""
        self._waits: list[float] = []
        self._outcomes: list[tuple[float, float, int]] = []
        """Width, marginal width, and -1, 0 or 1: before, in or after the interval."""

    def step(self, events: Sequence[ev.AnyEvent], now: float) -> list[AnyDecision]:
        decisions = self._engine.step(events, now)
        for event in events:
            pod = self._engine.state.pods.get(event.pod.metadata.uid) if isinstance(event, ev.PodSeen) else None
            if pod is not None and not pod.node:
                self._new[pod.unit] = None
        for decision in decisions:
            if isinstance(decision, Place):
                self._started(decision.unit, now)
        if not self._engine.has_work:
            self._ask(now)
        return decisions

    def _ask(self, now: float) -> None:
        waiting = [unit for unit in self._new if unit in self._engine.waiting.units and unit not in self._since]
        self._new = {}
        if not waiting:
            return
        for unit in waiting:
            self._since[unit] = now
        for unit, start in self._forecaster.forecast(waiting, now).items():
            if start.confidence and len(self._waits) >= KEPT_MIN:
                self._told[unit] = (start, _quantile(self._waits, 0.95) - _quantile(self._waits, 0.05))

    def _started(self, unit: str, now: float) -> None:
        self._new.pop(unit, None)
        since = self._since.get(unit)
        if since is None:
            return
        insort(self._waits, now - since)
        told = self._told.pop(unit, None)
        if told is not None and told[0].earliest is not None and told[0].latest is not None:
            early, late = now < told[0].earliest - INSTANT_S, now > told[0].latest + INSTANT_S
            self._outcomes.append((told[0].latest - told[0].earliest, told[1], int(late) - int(early)))

    def measured(self, jobs: int) -> Measured:
        found = self._outcomes
        return Measured(
            jobs=jobs,
            waited=len(self._waits),
            intervals=len(found),
            held=sum(side == 0 for _, _, side in found),
            early=sum(side < 0 for _, _, side in found),
            width_s=statistics.median([width for width, _, _ in found]) if found else 0.0,
            marginal_width_s=statistics.median([width for _, width, _ in found]) if found else 0.0,
        )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m muster.sim.eta_measure", description="How often forecasts of starts hold.")
    parser.add_argument("--policy", default="balanced", help="the name of a policy, or a file")
    parser.add_argument("--placement", choices=("nodes", "counts"), default="nodes")
    parser.add_argument("--seed", type=int, nargs="+", default=[0])
    for field in msgspec.structs.fields(Settings):
        option = f"--{field.name.replace('_', '-')}"
        if field.type is bool:
            parser.add_argument(option, action=argparse.BooleanOptionalAction, default=field.default)
        elif field.name != "seed":
            parser.add_argument(option, type=field.type, default=field.default)
    given = vars(parser.parse_args(arguments))
    policy, placement, seeds = given.pop("policy"), given.pop("placement"), given.pop("seed")
    for seed in seeds:
        try:
            found = measure(Settings(seed=seed, **given), policy, placement)
        except ValueError as error:
            parser.error(str(error))
        sys.stdout.write(msgspec.json.encode(_shown(seed, policy, found)).decode() + "\n")
        sys.stdout.flush()
    return 0


def _shown(seed: int, policy: str, found: Measured) -> dict[str, object]:
    ratios = {"coverage": round(found.coverage, 4), "relative_width": round(found.relative_width, 4)}
    return {"seed": seed, "policy": policy, **msgspec.structs.asdict(found), **ratios}


def _quantile(ordered: Sequence[float], level: float) -> float:
    return ordered[min(int(level * len(ordered)), len(ordered) - 1)]


if __name__ == "__main__":
    sys.exit(main())
