"""Jobs of a Slurm cluster as a trace for `muster simulate`: what sacct printed comes in, CSV goes out.

    sacct -a -X -P -n -S 2026-10-01 -o JobIDRaw,Submit,ElapsedRaw,TimelimitRaw,User,Account,Partition,AllocTRES |
        python from_sacct.py > trace.csv

Jobs that never ran are left out, and so are lines that can't be read; how many is said on standard error. Times are taken as
UTC: only their differences matter. `TimelimitRaw` (minutes) becomes the owner's estimate. Nothing counts as preemptible; where
jobs save their state, write `true` and how often (`checkpoint_s`).
"""

from __future__ import annotations

import csv
import sys
from datetime import UTC, datetime

COLUMNS = ("id", "submit_s", "run_s", "estimate_s", "user", "group", "queue", "gpus", "cpu_milli", "memory_mib", "preemptible")
MEMORY_MIB = {"K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2}


def amounts(text: str) -> tuple[int, int, int]:
    """GPUs, millicores and MiB of `cpu=8,gres/gpu=2,mem=64G,node=1`."""
    found = dict(part.split("=", 1) for part in text.split(",") if "=" in part)
    memory = found.get("mem") or "0M"
    mib = float(memory[:-1]) * MEMORY_MIB[memory[-1]] if memory[-1] in MEMORY_MIB else float(memory)
    return int(found.get("gres/gpu", 0)), int(float(found.get("cpu", 0)) * 1000), round(mib)


def job_of(line: str) -> tuple[float, list[object]] | None:
    """When it was submitted, and its row without that; None if it never ran. ValueError for what can't be read."""
    job, submit, elapsed, limit, user, account, partition, tres = line.rstrip("\n").split("|")
    if int(elapsed) <= 0 or not tres:
        return None
    submitted = datetime.fromisoformat(submit).replace(tzinfo=UTC).timestamp()
    estimate = int(limit) * 60 if limit.isdecimal() else ""
    return submitted, [job, int(elapsed), estimate, user, account, partition, *amounts(tres), "false"]


def main() -> None:
    jobs, idle, bad = list[tuple[float, list[object]]](), 0, 0
    for line in sys.stdin:
        try:
            job = job_of(line)
        except ValueError:
            bad += 1
            continue
        if job is None:
            idle += 1
        else:
            jobs.append(job)
    jobs.sort(key=lambda one: one[0])
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(COLUMNS)
    for submitted, (name, *rest) in jobs:
        out.writerow([name, round(submitted - jobs[0][0]), *rest])
    sys.stderr.write(f"{len(jobs)} jobs; left out: {idle} that never ran, {bad} lines that can't be read\n")


if __name__ == "__main__":
    main()
