"""A small made-up trace, for tests: jobs of several sizes and owners that crowd a small cluster. One seed, one trace."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from muster.sim.entropy import Entropy
from muster.sim.trace_formats import TraceJob

CLUSTER = "2x8"
_COLUMNS = ("id", "submit_s", "run_s", "gpus", "type", "user", "group", "estimate_s")


def small_trace(count: int = 40, seed: int = 1) -> list[TraceJob]:
    chance = Entropy(seed).stream("trace")
    jobs, now = [], 0
    for number in range(count):
        now += round(chance.expovariate(1 / 300))
        user = chance.choice(("ann", "ben", "cho"))
        run_s = float(round(chance.lognormvariate(7, 1.2)) + 1)
        jobs.append(
            TraceJob(
                id=f"job-{number}",
                submit_s=float(now),
                run_s=run_s,
                gpu_milli=1000 * chance.choices((1, 2, 4, 8, 16), (10, 4, 3, 2, 2))[0],
                type=chance.choice(("train", "tune")),
                user=user,
                group="vision" if user == "ann" else "speech",
                estimate_s=run_s,
                line=number + 2,
            )
        )
    return jobs


def write_trace(path: Path, jobs: Sequence[TraceJob]) -> Path:
    rows = [",".join(str(getattr(job, column)) for column in _COLUMNS) for job in jobs]
    path.write_text("\n".join([",".join(_COLUMNS), *rows]) + "\n")
    return path
