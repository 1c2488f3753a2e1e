"""What a log says about the past: who ran what where when, waits, use against request, and who did what."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from muster.engine import checkpoint as checkpoints
from muster.engine import events as ev
from muster.engine.decisions import Evict, Place, PlacedPod, Victim
from muster.engine.facts import NodeMetricFacts, PodFacts
from muster.engine.work import Work, encode_work
from muster.history import queries
from muster.history.actions import action_of
from muster.history.queries import Wanted
from muster.history.recording import Recorded
from muster.history.records import Action, Step
from muster.history.tracking import Run, Tracker
from muster.objects.labels import Muster
from muster.objects.time import format_time
from tests.engine.building import node, pod
from tests.engine.histories import with_node
from tests.history.recording import log_at, make_engine, recording
from tests.policy.building import queue_facts, user_facts

T = 1_700_000_000.0


def worker(name: str, user: str, *, cpu: str = "2", at: float = T, queue: str = "q") -> PodFacts:
    work = Work(job=f"Job/default/{name}", user=user, group="lab", queue=queue, type="cv", name=name, submitted=at)
    made = pod(name, cpu=cpu, annotations={Muster.WORK: encode_work(work)})
    meta = msgspec.structs.replace(made.metadata, creation_timestamp=format_time(at))
    return msgspec.structs.replace(made, metadata=meta)


def metric(where: str, **millicores: int) -> ev.NodeMetricSeen:
    pods = [
        {"namespace": "default", "name": name, "podUsage": {"resources": {"cpu": f"{amount}m"}}}
        for name, amount in millicores.items()
    ]
    raw = {"metadata": {"name": where}, "status": {"podsMetric": pods}}
    return ev.NodeMetricSeen(msgspec.convert(raw, NodeMetricFacts))


@pytest.fixture
def log(tmp_path: Path) -> Any:
    """Ann's job runs for 100 s; Ben's waits for it, runs, and is over in the second segment; a third never fits."""
    with recording(tmp_path) as recorder:
        recorded = Recorded(make_engine(), recorder, make_engine)
        recorder.action(Action(T, "ann", "create", "jobs.muster.dev", "default", "a", code=201))
        ann, ben, cat = worker("a", "ann"), worker("b", "ben", at=T + 10), worker("c", "cat", cpu="64", at=T + 20, queue="r")
        recorded.step([ev.NodeSeen(node("n1", cpu="3"))], T)
        recorded.step([ev.PodSeen(ann)], T + 5)
        recorded.step([ev.PodSeen(with_node(ann, "n1"))], T + 6)
        recorded.step([ev.PodSeen(ben), ev.PodSeen(cat)], T + 20)
        recorded.step([metric("n1", a=500)], T + 30)
        recorded.step([metric("n1", a=1500)], T + 60)
        kept = checkpoints.take(recorded.engine)
        recorded.engine = checkpoints.restore(kept, make_engine())
        recorder.rotate(kept)
        recorded.step([ev.PodSeen(with_node(ann, "n1", "Succeeded"))], T + 105)
        recorded.step([ev.PodSeen(with_node(ben, "n1"))], T + 106)
        recorded.step([ev.PodGone(ben.metadata.uid)], T + 205)
        recorder.action(Action(T + 204, "root", "delete", "jobs.muster.dev", "default", "b", code=200))
    return log_at(tmp_path)


def by_name(found: Any) -> dict[str, Run]:
    return {run.pod: run for run in found}


def test_who_ran_what_where_when(log: Any) -> None:
    found = by_name(queries.runs(log))
    ann, ben, cat = found["a"], found["b"], found["c"]
    assert (ann.user, ann.group, ann.queue, ann.type, ann.job) == ("ann", "lab", "q", "cv", "Job/default/a")
    assert (ann.node, ann.outcome, ann.placed, ann.ended) == ("n1", "Succeeded", T + 5, T + 105)
    assert (ann.wait_s, ann.run_s) == (5, 100)
    assert (ben.node, ben.outcome, ben.placed, ben.wait_s) == ("n1", "Gone", T + 105, 95)
    assert (cat.outcome, cat.node, cat.placed) == ("Waiting", "", None)
    assert ben.reasons_s == {"CPUInsufficient": 85}


def test_jobs(log: Any) -> None:
    table = queries.jobs_table(queries.runs(log))
    rows = {row[0]: dict(zip(table.columns, row, strict=True)) for row in table.rows}
    assert rows["Job/default/a"]["nodes"] == "n1"
    assert rows["Job/default/b"]["wait_s"] == 95
    assert rows["Job/default/c"]["outcome"] == "Waiting"


@pytest.mark.parametrize(
    ("wanted", "pods"),
    [
        pytest.param(Wanted(user="ben"), {"b"}, id="by user"),
        pytest.param(Wanted(queue="q"), {"a", "b"}, id="by queue"),
        pytest.param(Wanted(job="c"), {"c"}, id="by name"),
        pytest.param(Wanted(job="Job/default/a"), {"a"}, id="by whole name"),
        pytest.param(Wanted(stop=T + 15), {"a"}, id="until"),
        pytest.param(Wanted(start=T + 150), {"b", "c"}, id="since"),
    ],
)
def test_filters(log: Any, wanted: Wanted, pods: set[str]) -> None:
    assert set(by_name(queries.runs(log, wanted))) == pods


@pytest.mark.parametrize(("at", "pods"), [(T + 4, set()), (T + 50, {"a"}), (T + 105, {"b"}), (T + 205, set())])
def test_who_used_what_at_a_moment(log: Any, at: float, pods: set[str]) -> None:
    assert set(by_name(queries.running_at(queries.runs(log), at))) == pods


def test_use_against_request(log: Any) -> None:
    table = queries.use_table(queries.runs(log), "user")
    rows = {(row[0], row[1]): dict(zip(table.columns, row, strict=True)) for row in table.rows}
    cpu = rows["ann", "cpu"]
    assert (cpu["requested"], cpu["used_mean"], cpu["used_max"], cpu["used_share"]) == (2, 1, 1.5, 0.5)
    assert cpu["unit"] == "cores"
    assert cpu["resource_hours"] == pytest.approx(2 * 100 / 3600)
    assert rows["ben", "cpu"]["used_mean"] is None
    assert ("cat", "cpu") not in rows


def test_waits(log: Any) -> None:
    table = queries.waits_table(queries.runs(log), "queue")
    assert [row[:2] for row in table.rows] == [("q", 2), ("r", 0)]
    by_reason = queries.waits_table(queries.runs(log), "reason")
    (ben,) = [row for row in by_reason.rows if row[0] == "CPUInsufficient"]
    assert ben[1:3] == (1, 85.0)
    assert sum(int(str(row[-1])) for row in by_reason.rows) == 1, "the third waits still"


def test_decisions(log: Any) -> None:
    rows = [dict(zip(queries.DECISION_COLUMNS, row, strict=True)) for row in queries.decisions(log)]
    assert [(row["decision"], row["unit"]) for row in rows[:3]] == [
        ("Place", "Pod/default/a"),
        ("Park", "Pod/default/b"),
        ("Park", "Pod/default/c"),
    ]
    assert rows[1]["reason"] == "CPUInsufficient"
    only = list(queries.decisions(log, Wanted(job="b")))
    assert {row[2] for row in only} == {"Pod/default/b"}


def test_actions(log: Any) -> None:
    assert [row[1:6] for row in queries.actions(log)] == [
        ("ann", "create", "jobs.muster.dev", "default", "a"),
        ("root", "delete", "jobs.muster.dev", "default", "b"),
    ]
    assert len(list(queries.actions(log, Wanted(user="ann")))) == 1


def test_past_runs_are_what_the_engine_takes_in(log: Any) -> None:
    (run,) = queries.past_runs(log)
    assert (run.user, run.name, run.type, run.seconds, run.used) == ("ann", "a", "cv", 100.0, {"cpu": 1500})
    make_engine().step([ev.RunsSeen([run])], T)


def test_segments(log: Any) -> None:
    table = queries.segments_table(log)
    assert [(row[5], row[7], row[-1]) for row in table.rows] == [(1, 6, "whole"), (2, 3, "whole")]


def test_a_pod_that_the_next_leader_does_not_find_has_ended(tmp_path: Path) -> None:
    with recording(tmp_path) as recorder:
        first = Recorded(make_engine(), recorder, make_engine)
        first.step([ev.NodeSeen(node("n1")), ev.PodSeen(pod("gone")), ev.PodSeen(pod("stays"))], T)
    with recording(tmp_path) as recorder:
        second = Recorded(make_engine(), recorder, make_engine, epoch=2)
        second.step([ev.NodeSeen(node("n1")), ev.PodSeen(with_node(pod("stays"), "n1"))], T + 50)
        second.step([ev.PodGone(pod("stays").metadata.uid)], T + 60)
    found = by_name(queries.runs(log_at(tmp_path)))
    assert found["gone"].outcome == "Unknown"
    assert found["stays"].outcome == "Gone"
    assert found["stays"].placed == T


ENTRY = {
    "time": "2026-11-16T09:00:00.000000Z",
    "stage": "complete",
    "user": "ann",
    "verb": "create",
    "uri": "/apis/muster.dev/v1alpha1/namespaces/default/jobs",
    "code": 201,
    "notes": {"name": "made"},
    "object": {"group": "muster.dev", "resource": "jobs", "namespace": "default", "name": "", "subresource": ""},
}


@pytest.mark.parametrize(
    ("changes", "is_kept"),
    [
        pytest.param({}, True, id="a submission"),
        pytest.param({"verb": "list"}, False, id="a read"),
        pytest.param({"stage": "started"}, False, id="not over yet"),
        pytest.param({"uri": "/apis/x?dryRun=All"}, False, id="a dry run"),
        pytest.param({"user": "system:node:n1"}, False, id="a node"),
        pytest.param({"object": None}, False, id="no object"),
        pytest.param({"object": {"resource": "leases"}}, False, id="a heartbeat"),
        pytest.param({"code": 403, "reason": "Forbidden"}, True, id="refused"),
    ],
)
def test_which_requests_are_actions(changes: dict[str, Any], is_kept: bool) -> None:
    found = action_of({**ENTRY, **changes})
    assert (found is not None) == is_kept
    if found is not None:
        assert (found.user, found.resource, found.name) == ("ann", "jobs.muster.dev", "made")


def test_what_was_changed_is_in_the_note() -> None:
    found = action_of({**ENTRY, "code": 403, "reason": "Forbidden", "notes": {"did": "Held: repair"}})
    assert found is not None
    assert found.note == "Forbidden; Held: repair"


def test_a_run_counts_once_and_says_whose_it_was(tmp_path: Path) -> None:
    """Pods that have ended change and go (finalizers, labels), before and after a segment ends: that is no second run. The
    group is the user's, and the queue the one that takes what names none."""
    with recording(tmp_path) as recorder:
        recorded = Recorded(make_engine(), recorder, make_engine)
        first = worker("a", "ann", queue="")
        work = Work(job="Job/default/a", user="ann", submitted=T)
        ann = msgspec.structs.replace(
            first, metadata=msgspec.structs.replace(first.metadata, annotations={Muster.WORK: encode_work(work)})
        )
        user = ev.UserSeen(user_facts("ann", group="lab"))
        recorded.step([ev.NodeSeen(node("n1", cpu="3")), ev.QueueSeen(queue_facts("main", isDefault=True)), user], T)
        recorded.step([ev.PodSeen(ann)], T + 5)
        recorded.step([ev.PodSeen(with_node(ann, "n1"))], T + 6)
        ended = with_node(ann, "n1", "Succeeded")
        recorded.step([ev.PodSeen(ended)], T + 50)
        changed = msgspec.structs.replace(ended, metadata=msgspec.structs.replace(ended.metadata, labels={"x": "y"}))
        recorded.step([ev.PodSeen(changed)], T + 60)
        kept = checkpoints.take(recorded.engine)
        recorded.engine = checkpoints.restore(kept, make_engine())
        recorder.rotate(kept)
        recorded.step([ev.PodSeen(ended)], T + 70)
        recorded.step([ev.PodGone(ended.metadata.uid)], T + 80)
    [run] = queries.runs(log_at(tmp_path))
    assert (run.outcome, run.placed, run.ended, run.group, run.queue) == ("Succeeded", T + 5, T + 50, "lab", "main")
    table = queries.use_table(queries.runs(log_at(tmp_path)), "group")
    assert [row[:4] for row in table.rows if row[1] == "cpu"] == [("lab", "cpu", "cores", 1)]


def test_attempts_of_a_job_add_up() -> None:
    """It ran for 100 s, made way, waited for 50 s, and ran for 200 s."""

    def run(pod: str, placed: float, ended: float, outcome: str) -> Run:
        made = Run(namespace="d", pod=pod, uid=f"{pod}{placed}", job="Job/d/j", submitted=0.0, placed=placed, node="n")
        return msgspec.structs.replace(made, ended=ended, outcome=outcome)

    stopped, done = "Evicted", "Succeeded"
    attempts = [run("p", 0, 100, stopped), run("q", 0, 90, stopped), run("p", 150, 350, done), run("q", 150, 340, done)]
    table = queries.jobs_table(attempts)
    [row] = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    assert (row["wait_s"], row["run_s"], row["evictions"], row["outcome"]) == (0.0, 300.0, 2, "Succeeded")


def test_victims_were_evicted_however_they_ended() -> None:
    tracker = Tracker()
    lost = worker("a", "ann")
    uid = lost.metadata.uid
    placed = Place(unit="u", pods=(PlacedPod(namespace="default", name="a", uid=uid, node="n1"),))
    evicted = Evict(unit="v", victims=(Victim(namespace="default", name="a", uid=uid, node="n1"),))
    tracker.step(Step(now=T, units_max=None, events=[ev.PodSeen(lost)], decisions=[placed]))
    tracker.step(Step(now=T + 5, units_max=None, events=[], decisions=[evicted]))
    tracker.step(Step(now=T + 9, units_max=None, events=[ev.PodSeen(with_node(lost, "n1", "Failed"))], decisions=[]))
    assert [(run.outcome, run.ended) for run in tracker.take()] == [("Evicted", T + 9)]
