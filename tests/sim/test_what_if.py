"""A decision log read as a trace, and run again: the same policy gives what was, another gives what it gives directly."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from tests.sim.trace_building import CLUSTER, small_trace

from muster.engine import events as ev
from muster.engine.decisions import Evict, Place, PlacedPod, Victim
from muster.engine.facts import PodFacts, PodStatusFacts
from muster.engine.testing import node, pod
from muster.engine.work import Work, encode_work
from muster.history.reader import Log
from muster.history.recorder import Recorder
from muster.history.records import Step
from muster.history.stores import DirectoryStore
from muster.objects.labels import Muster
from muster.sim.recorded import Reading, Recorded, read_log, recorded_of
from muster.sim.trace_cluster import parse_cluster
from muster.sim.trace_policy import load_policy
from muster.sim.trace_run import Outcome
from muster.sim.trace_simulation import Setup, simulate
from muster.sim.what_if import Change, what_if


def setup(policy: str) -> Setup:
    return Setup(cluster=parse_cluster(CLUSTER, "nodes"), policy=load_policy(policy), estimates="history")


def spans(outcome: Outcome) -> list[tuple[float, float, int]]:
    return sorted((job.started, job.ended, job.preemptions) for job in outcome.jobs)


@pytest.mark.parametrize("policy", ["fifo", "balanced"])
def test_a_recorded_simulation_run_again_is_itself_and_another_policy_is_what_it_would_be(tmp_path: Path, policy: str) -> None:
    jobs = small_trace(30)
    recorder = Recorder(DirectoryStore(tmp_path), clock=lambda: 1e9)
    try:
        direct = simulate(jobs, setup(policy), recorder=recorder)
    finally:
        recorder.close()
    recorded = read_log(Log.at(tmp_path))
    assert not recorded.notes
    assert recorded.outcome.gpus == direct.gpus
    assert [job.gpus for job in recorded.jobs] == [job.gpus for job in direct.jobs]
    assert spans(recorded.outcome) == spans(direct)
    assert spans(what_if(recorded, Change())) == spans(direct)
    other = what_if(recorded, Change(load_policy("sjf")))
    assert spans(other) == spans(simulate(jobs, setup("sjf")))
    assert spans(other) != spans(direct)


def test_on_more_nodes_nobody_waits(tmp_path: Path) -> None:
    recorder = Recorder(DirectoryStore(tmp_path), clock=lambda: 1e9)
    try:
        simulate(small_trace(20), setup("fifo"), recorder=recorder)
    finally:
        recorder.close()
    outcome = what_if(read_log(Log.at(tmp_path)), Change(cluster=parse_cluster("40x8", "nodes")))
    assert outcome.gpus == 320
    assert all(job.wait_s == 0 for job in outcome.jobs)


# -- what is in a log ----------------------------------------------------------------------------------------------------------


def seen(name: str, *, on: str = "", phase: str = "", work: Work | None = None, gates: bool = False) -> ev.PodSeen:
    more: dict[str, Any] = {"schedulingGates": [{"name": "g"}]} if gates else {}
    notes = {Muster.WORK: encode_work(work)} if work is not None else {}
    facts = pod(name, cpu="2", node=on, annotations=notes, **more)
    return ev.PodSeen(PodFacts(metadata=facts.metadata, spec=facts.spec, status=PodStatusFacts(phase=phase)))


def uid(name: str) -> str:
    return f"pod-default-{name}"


def place(name: str) -> Place:
    return Place(f"Pod/default/{name}", (PlacedPod(uid(name), "default", name, "n1"),))


def read(*steps: tuple[float, list[ev.AnyEvent], list[Place | Evict]]) -> Recorded:
    reading = Reading()
    for now, events, decisions in steps:
        reading.take(now, events)
        reading.decide(Step(now, None, events, decisions))
    return recorded_of(reading, restart_cost_s=5)


def test_a_job_runs_from_its_placement_to_its_end() -> None:
    found = read(
        (0, [ev.NodeSeen(node("n1", cpu="8"))], []),
        (10, [seen("a")], []),
        (15, [], [place("a")]),
        (40, [seen("a", on="n1", phase="Succeeded")], []),
        (50, [ev.PodGone(uid("a"))], []),
    )
    (job,) = found.jobs
    assert (job.arrival, job.run_s, job.gpus, found.outcome.unit, found.outcome.gpus) == (10, 25, 2, "core", 8)
    assert [(one.submitted, one.started, one.ended, one.wait_s) for one in found.outcome.jobs] == [(10, 15, 40, 5)]


def test_who_was_evicted_and_came_back_is_one_job() -> None:
    first = Work(job="Job/default/a", submitted=10)
    second = Work(job="Job/default/a", submitted=10, attained_s=20, preemptions=1)
    victim = Victim(uid("a-1"), "default", "a-1", "n1")
    found = read(
        (10, [seen("a-1", work=first)], [place("a-1")]),
        (40, [], [Evict("Pod/default/other", (victim,))]),
        (41, [ev.PodGone(uid("a-1")), seen("a-2", work=second)], []),
        (60, [], [place("a-2")]),
        (90, [ev.PodGone(uid("a-2"))], []),
    )
    (job,) = found.jobs
    assert (job.arrival, job.run_s, job.work.attained_s, job.work.preemptions) == (10, 25 + 20, 0, 0)
    assert [(one.started, one.ended, one.preemptions, one.held_s) for one in found.outcome.jobs] == [(10, 90, 1, 31 + 30)]


def test_what_is_not_known_is_estimated_and_said() -> None:
    estimate = Work(estimate_s=500)
    found = read(
        (0, [seen("done"), seen("runs"), seen("waits", work=estimate), seen("left")], [place("done"), place("runs")]),
        (10, [ev.PodGone(uid("done")), ev.PodGone(uid("left"))], []),
        (100, [seen("last", gates=True)], []),
    )
    assert {job.id.rpartition("/")[2]: job.run_s for job in found.jobs} == {"done": 10, "runs": 100, "waits": 500}
    assert [math.isnan(job.ended) for job in found.outcome.jobs] == [False, True, True]
    assert found.notes == (
        "2 jobs had not ended when the log ends: their length is an estimate",
        "1 jobs went before they had started: they are left out",
    )


def test_pods_that_had_a_node_stay_in_the_world() -> None:
    found = read((0, [seen("old", on="n1")], []), (5, [ev.PodGone(uid("old"))], []))
    assert not found.jobs
    assert [(at, type(event).__name__) for at, event in found.world] == [(0, "PodSeen"), (5, "PodGone")]
    assert found.notes == ("1 pods had a node when they were first seen: they stay there as long as they did",)
