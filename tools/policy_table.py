"""The tables of docs/benchmarks.md on public traces: policies by what is known of run times and by how GPUs are placed.

    python tools/policy_table.py --out figures.jsonl PHILLY/trace1.csv=16x8 PHILLY/trace2.csv=48x8

One `muster simulate` after the other, each a process of its own. What is in the file of figures already is not run again, so it
can be stopped and gone on with; remove the file after a change of the code. Prints the tables in Markdown.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

POLICIES = ("fifo", "skip-ahead", "easy", "sjf", "balanced")
BLIND = ("fifo", "skip-ahead")
"""They ask for no estimate, so they come out the same whatever is known."""
SETTINGS = (("counts", "oracle"), ("counts", "history"), ("counts", "none"), ("nodes", "oracle"), ("nodes", "history"))
Key = tuple[str, str, str, str]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="+", metavar="FILE=NODESxGPUS", help="a trace of --format philly, and its cluster")
    parser.add_argument("--out", type=Path, required=True, help="JSON lines of figures; gone on with where it is there")
    parser.add_argument("--policy", action="append", choices=POLICIES, help="only this one, and others that are given so")
    options = parser.parse_args()
    traces = [text.rpartition("=") for text in options.traces]
    known = read(options.out)
    for path, _, cluster in traces:
        for placement, estimates in SETTINGS:
            for policy in options.policy or POLICIES:
                key = (Path(path).name, policy, estimates, placement)
                if key not in known and not (policy in BLIND and estimates != "oracle"):
                    known[key] = simulate(path, cluster, key, options.out)
    for path, _, cluster in traces:
        print(f"\n{Path(path).name} on {cluster}:\n")
        show(Path(path).name, known)


def read(path: Path) -> dict[Key, dict[str, float]]:
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return {(line["trace"], line["policy"], line["estimates"], line["placement"]): line for line in lines}


def simulate(path: str, cluster: str, key: Key, out: Path) -> dict[str, float]:
    _, policy, estimates, placement = key
    command = [sys.executable, "-m", "muster.cli.main", "simulate", "--trace", path, "--format", "philly", "--cluster", cluster]
    command += ["--policy", policy, "--estimates", estimates, "--placement", placement, "--json"]
    print(" ".join(command[3:]), file=sys.stderr)
    line = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    with out.open("a") as file:
        file.write(line if line.endswith("\n") else line + "\n")
    found: dict[str, float] = json.loads(line)
    return found


def show(trace: str, known: dict[Key, dict[str, float]]) -> None:
    print("| GPUs | run times | policy | mean completion h | 99 % h | longest h | wait of 16 GPUs and more h | stops per job |")
    print("|---|---|---|---|---|---|---|---|")
    for placement, estimates in SETTINGS:
        for policy in POLICIES:
            one = known.get((trace, policy, estimates, placement))
            if one is None:
                continue
            told = "any" if policy in BLIND else estimates
            times = (
                f"{one['jct_mean_h']:,.1f} | {one['jct_p99_h']:,.0f} | {one['jct_max_h']:,.0f} | {one['wait_wide_mean_h']:,.1f}"
            )
            print(f"| {placement} | {told} | {policy} | {times} | {one['preemptions_per_job']:.2f} |")


if __name__ == "__main__":
    main()
