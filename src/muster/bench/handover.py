"""Hands a workload to a fresh process, so that what is measured there is the scheduler's own: its memory and its time.

The parent generates and writes files of JSON lines; the child reads them object by object and keeps none. Blocking on both
sides.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import msgspec

from muster.bench.lines import On, Outcome, Say, SchedulingLine
from muster.bench.scenario import Scenario
from muster.bench.workload import Step, Workload, as_stored, generate
from muster.engine.configuration import DEFAULT_NAME
from muster.objects.status import Raw

CHILD_TIMEOUT_S = 3600.0
_SAID_LEN_MAX = 40
"""Lines of a child that failed which are shown."""
_PARTS = ("namespaces", "priority_classes", "nodes", "running", "backlog", "measured")


def write(workload: Workload, directory: Path) -> None:
    """One file per part. Objects get what a server would add; the numbers go on through all parts, as versions do."""
    number = 0
    for part in _PARTS:
        with (directory / part).open("wb") as file:
            for raw in getattr(workload, part):
                file.write(msgspec.json.encode(as_stored(raw, number)) + b"\n")
                number += 1
    (directory / "churn").write_bytes(b"".join(msgspec.json.encode(_stored(step)) + b"\n" for step in workload.churn))


def _stored(step: Step) -> Step:
    late = 10_000_000 + step.after_bound * 1000
    return msgspec.structs.replace(
        step,
        create_nodes=[as_stored(raw, late + index) for index, raw in enumerate(step.create_nodes)],
        create_pods=[as_stored(raw, late + 500 + index) for index, raw in enumerate(step.create_pods)],
    )


class Handover:
    """The child's side: each part as encoded objects, one by one."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def lines(self, part: str) -> Iterator[bytes]:
        assert part in _PARTS, part
        with (self._directory / part).open("rb") as file:
            for line in file:
                yield line.rstrip(b"\n")

    def raw(self, part: str) -> Iterator[Raw]:
        for line in self.lines(part):
            yield msgspec.json.decode(line)

    def count(self, part: str) -> int:
        return sum(1 for _ in self.lines(part))

    def churn(self) -> list[Step]:
        return [msgspec.json.decode(line, type=Step) for line in (self._directory / "churn").read_bytes().splitlines()]


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A directory in memory where there is one: reading the workload must not wait for a disk."""
    memory = Path("/dev/shm")
    where = memory if os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="muster-bench-", dir=where) as directory:
        yield Path(directory)


def measure_in_child(module: str, on: On, scenario: Scenario, *, nodes: int, pods: int, seed: int, say: Say) -> SchedulingLine:
    """Generate, hand over, and make a line of what the child says."""
    outcome = _run_child(module, generate(scenario, nodes, pods, seed, scheduler_name=DEFAULT_NAME), say)
    return SchedulingLine(
        scenario=scenario.name,
        on=on,
        nodes=nodes,
        pods=pods,
        pods_per_s=outcome.pods_per_s,
        decision_p50_us=outcome.decision_p50_us,
        decision_p99_us=outcome.decision_p99_us,
        rss_mb=outcome.rss_mb,
        unbound=outcome.unbound,
        seed=seed,
        bound_by=outcome.bound_by,
    )


def _run_child(module: str, workload: Workload, say: Say) -> Outcome:
    """`python -m module DIRECTORY` prints an Outcome on its last line; what it says on stderr is passed on."""
    with scratch() as directory:
        write(workload, directory)
        return msgspec.json.decode(child_line(module, str(directory), say=say), type=Outcome)


def child_line(module: str, *arguments: str, say: Say) -> bytes:
    """The last line that `python -m module ARGUMENTS` prints. What it says on stderr is passed on as it comes; RuntimeError
    with the end of it when it fails, or takes longer than CHILD_TIMEOUT_S."""
    # One core is what the figures are about: NumPy's own threads would add the second for nothing.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    said: deque[str] = deque(maxlen=_SAID_LEN_MAX)
    command = [sys.executable, "-m", module, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as child:
        late = threading.Timer(CHILD_TIMEOUT_S, child.kill)
        answers: list[bytes] = []
        # What it prints must not fill its pipe while it is still saying something.
        reading = threading.Thread(target=lambda: answers.append(child.stdout.read() if child.stdout else b""))
        late.start()
        reading.start()
        try:
            for line in child.stderr or ():
                said.append(line.decode(errors="replace").rstrip())
                say(f"  {said[-1]}")
            reading.join()
        except BaseException:
            child.kill()
            raise
        finally:
            late.cancel()
    if child.returncode != 0 or not answers[0].strip():
        last = said[-1] if said else "it said nothing"
        tail = "\n".join(said)
        raise RuntimeError(f"{module} failed with code {child.returncode}: {last}\n{tail}")
    return answers[0].splitlines()[-1]
