"""A decision log read as a trace, and run again: the same policy gives what was, another gives what it gives directly."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from tests.sim.trace_building import CLUSTER, small_trace

from muster.engine import events as ev
from muster.engine.decisions import Evict, Place, PlacedPod, Victim
from muster.engine.facts import LimitsFacts, Meta, PodFacts, PodStatusFacts, QueueFacts, QueueSpecFacts
from muster.engine.testing import node, pod
from muster.engine.work import Work, encode_work
from muster.history.reader import Log
from muster.history.recorder import Recorder
from muster.history.records import Step
from muster.history.stores import DirectoryStore
from muster.objects.job_pods import DEFAULT_SCHEDULER
from muster.objects.labels import Muster
from muster.sim.log_reading import Reading
from muster.sim.recorded import Recorded, read_log, recorded_of
from muster.sim.trace_cluster import parse_cluster
from muster.sim.trace_policy import load_policy
from muster.sim.trace_run import Outcome
from muster.sim.trace_simulation import Setup, simulate
from muster.sim.what_if import Change, nodes_like, what_if


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


def test_other_nodes_have_what_the_recorded_ones_have_but_for_gpus() -> None:
    """Jobs of 6 cores: on nodes of 8 GPUs that say nothing of cores, one fits a node as before."""
    steps: list[tuple[float, list[ev.AnyEvent], list[Place | Evict]]] = [
        (0, [ev.NodeSeen(node(f"n{n}", cpu="8", labels={"zone": "z"})) for n in range(3)], []),
        (1, [ev.NodeSeen(node("large", cpu="64"))], []),
        (
            2,
            [ev.PodSeen(pod(f"p{n}", cpu="6", schedulerName=DEFAULT_SCHEDULER)) for n in range(4)],
            [place(f"p{n}") for n in range(4)],
        ),
        (100, [ev.PodGone(uid(f"p{n}")) for n in range(4)], []),
    ]
    recorded = read(*steps)
    found = nodes_like(recorded, parse_cluster("2x8", "nodes"))
    assert [one.status.allocatable["cpu"] for one in found] == ["8", "8"]
    assert [one.status.allocatable["nvidia.com/gpu"] for one in found] == [8, 8]
    assert found[0].metadata.labels["zone"] == "z"
    assert found[0].metadata.labels["kubernetes.io/hostname"] == "node-0"
    fewer = what_if(recorded, Change(load_policy("fifo"), parse_cluster("2x8", "nodes")))
    assert sorted(job.wait_s for job in fewer.jobs) == [0, 0, 98, 98]
    assert (fewer.gpus, fewer.unit) == (16, "core")


def test_queues_stay_as_they_were_under_another_policy(tmp_path: Path) -> None:
    """Two queues with limits of one pod each: by name, another policy keeps the limits; a file with queues replaces them."""
    queues = [
        QueueFacts(metadata=Meta(name=name), spec=QueueSpecFacts(policy="old", limits=LimitsFacts(concurrent={"cpu": "2"})))
        for name in ("a", "b")
    ]
    pods = [
        seen(f"{queue}{n}", work=Work(job=f"Job/default/{queue}{n}", queue=queue, submitted=1))
        for queue in "ab"
        for n in range(2)
    ]
    recorded = read(
        (0, [ev.NodeSeen(node("n1", cpu="64")), *(ev.QueueSeen(queue) for queue in queues)], []),
        (1, [*pods], [place(f"{queue}{n}") for queue in "ab" for n in range(2)]),
        (51, [ev.PodGone(uid(f"{queue}{n}")) for queue in "ab" for n in range(2)], []),
    )
    kept = what_if(recorded, Change(load_policy("fifo")))
    assert sorted(job.wait_s for job in kept.jobs) == [0, 0, 50, 50]
    mine = tmp_path / "mine.yaml"
    head = "apiVersion: muster.dev/v1alpha1\nkind: "
    queue = head + "Queue\nmetadata: {name: NAME}\nspec: {policy: p}\n---\n"
    policy = head + "SchedulingPolicy\nmetadata: {name: p}\nspec: {factors: [{name: a, source: AgeSeconds}], formula: a}\n"
    mine.write_text(queue.replace("NAME", "a") + queue.replace("NAME", "b") + policy)
    replaced = what_if(recorded, Change(load_policy(str(mine))))
    assert [job.wait_s for job in replaced.jobs] == [0, 0, 0, 0]


# -- what is in a log ----------------------------------------------------------------------------------------------------------


def seen(name: str, *, on: str = "", phase: str = "", work: Work | None = None, gates: bool = False) -> ev.PodSeen:
    more: dict[str, Any] = {"schedulerName": DEFAULT_SCHEDULER}
    more |= {"schedulingGates": [{"name": "g"}]} if gates else {}
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


def test_pods_of_another_scheduler_are_part_of_the_world() -> None:
    reading = Reading()
    reading.served = frozenset({DEFAULT_SCHEDULER})
    other = pod("other", cpu="2", schedulerName="default-scheduler")
    bound = pod("other", cpu="2", schedulerName="default-scheduler", node="n1")
    reading.take(0, [ev.NodeSeen(node("n1", cpu="8")), ev.PodSeen(other), seen("mine")])
    reading.take(5, [ev.PodSeen(bound)])
    found = recorded_of(reading)
    assert [job.id for job in found.jobs] == ["Pod/default/mine"]
    assert [event.pod.spec.node_name for _, event in found.world if isinstance(event, ev.PodSeen)] == ["", "n1"]
    assert any("another scheduler" in note for note in found.notes)


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
    assert found.notes == ("1 pods had a node when they were first seen, or another scheduler: they stay as they were",)
