"""Whole lives of jobs on a little store: any graph, any outcome, any command, crashes between writes, caches that lag.

Whatever happens, the following holds: no KusciaTask is made before what it depends on has succeeded, none twice in one run,
none beyond maxParallelism; carrying out a plan twice is carrying it out once; and once commands stop, the job ends, or is
suspended, or waits for something that it names.
"""

from __future__ import annotations

import contextlib
import copy
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.controllers.kuscia_jobs import FACTS, JobStore, Stale, job, task
from tests.controllers.test_kuscia_job_graph import graphs

from muster.controllers.kuscia_job_tasks import Facts
from muster.objects.labels import Muster
from muster.objects.status import Raw

SOAK = bool(os.environ.get("MUSTER_SOAK"))
FINAL = ("Succeeded", "Failed", "Cancelled")
COMMANDS = st.sampled_from(["Start", "Stop", "Cancel", "Suspend", "Suspend", "Restart", "Restart"])


class Life:
    """A job, what happens to it, and what must never be seen."""

    def __init__(self, raw: Raw) -> None:
        self.store = JobStore(raw)
        self.store.holds_deletes = True
        self.dependencies = {t["alias"]: t.get("dependencies", []) for t in raw["spec"]["tasks"]}
        self.limit = raw["spec"]["maxParallelism"]
        self.history = [self.store.snapshot()]
        self.seen = [0, 0]
        """How far the caches of jobs and of tasks have come in the history; each goes its own way, and only forward."""
        self.has_rerun = False
        self.wins: dict[str, str] = {}
        """By name: the run in which the task succeeded."""

    def look(self) -> None:
        """After every write."""
        store = self.store
        assert len(set(store.created)) == len(store.created), "made twice in one run"
        assert len(store.under_way()) <= self.limit
        for name, raw in store.tasks.items():
            if raw["status"].get("phase") == "Succeeded":
                self.wins[name] = raw["metadata"]["annotations"][Muster.RUN]
        for name, run in store.created:
            if not self.has_rerun and name in self.wins:
                assert int(run) <= int(self.wins[name]), "what has succeeded was made again"

    def act(self, crash_after: int | None, lags: tuple[int, int]) -> None:
        """Plan from caches that are so many steps behind, and carry it out, perhaps not to the end."""
        before = {name: raw["metadata"]["uid"] for name, raw in self.store.tasks.items()}
        told = self.told()
        self.history.append(self.store.snapshot())
        newest = len(self.history) - 1
        self.seen = [max(self.seen[n], newest - lags[n]) for n in range(2)]
        seen = self.history[self.seen[0]][0], self.history[self.seen[1]][1]
        with contextlib.suppress(Stale):
            self.store.apply(self.store.plan(seen).actions, crash_after)
        for name, raw in self.store.tasks.items():
            if before.get(name) != raw["metadata"]["uid"]:
                self.check_new(raw)
        assert self.store.phase != "Running" or not self.stopped() - told, "what belongs to a job that runs was stopped"
        self.look()

    def told(self) -> set[str]:
        """The tasks (their uids) that were told to stop. One may succeed all the same, and a later run keeps what succeeded."""
        return {raw["metadata"]["uid"] for raw in self.store.tasks.values() if Muster.STOP in raw["metadata"]["annotations"]}

    def stopped(self) -> set[str]:
        """Those of them that belong to the present run."""
        runs = {r["taskID"]: r.get("run", 0) for r in self.store.status.get("tasks", ())}
        found = ((name, raw["metadata"]) for name, raw in self.store.tasks.items())
        return self.told() & {meta["uid"] for name, meta in found if int(meta["annotations"][Muster.RUN]) >= runs.get(name, 0)}

    def check_new(self, raw: Raw) -> None:
        assert self.store.phase == "Running", "made although the job does not run"
        by_alias = {r["alias"]: r for r in self.store.status["tasks"]}
        alias = raw["metadata"]["annotations"]["kuscia.secretflow/task-alias"]
        for dependency in self.dependencies[alias]:
            assert by_alias[dependency]["phase"] == "Succeeded", f"{alias} before {dependency}"

    def tick(self, data: st.DataObject) -> None:
        """Something happens."""
        store = self.store
        self.history.append(store.snapshot())
        match data.draw(st.sampled_from(["act", "act", "task", "task", "stops", "deletes", "command"])):
            case "act":
                lag = st.sampled_from([0, 0, 1, 2, 4])
                self.act(data.draw(st.none() | st.integers(0, 4)), (data.draw(lag), data.draw(lag)))
            case "task" if store.under_way():
                name = data.draw(st.sampled_from(store.under_way()))
                store.move(name, data.draw(st.sampled_from(["Pending", "Running", "Succeeded", "Succeeded", "Failed"])))
                self.look()
            case "stops":
                store.obey_stops()
            case "deletes":
                store.finish_deletes()
            case "command":
                word = data.draw(COMMANDS)
                notes = {}
                if word == "Restart" and data.draw(st.booleans()):
                    notes = {Muster.RERUN_FROM: data.draw(st.sampled_from(sorted(self.dependencies)))}
                    self.has_rerun = True
                store.command(word, **notes)

    def finish(self, data: st.DataObject) -> None:
        """No more commands: tasks end, one way or the other, and stops and deletions are done."""
        for _ in range(20 * len(self.dependencies) + 40):
            self.store.settle()
            self.look()
            if self.store.phase in (*FINAL, "Suspended") and not self.store.under_way():
                break
            self.store.obey_stops()
            self.store.finish_deletes()
            self.store.settle()
            for name in self.store.under_way():
                if Muster.STOP not in self.store.tasks[name]["metadata"]["annotations"]:
                    self.store.move(name, data.draw(st.sampled_from(["Succeeded", "Succeeded", "Failed"])))
                    break


@st.composite
def jobs(draw: st.DrawFn, tasks_max: int = 12) -> Raw:
    tasks = [raw | {"tolerable": draw(st.booleans())} for raw in draw(graphs(tasks_max))]
    mode = draw(st.sampled_from(["Strict", "BestEffort"]))
    return job(*tasks, scheduleMode=mode, maxParallelism=draw(st.integers(1, 4)))


def expected_end(store: JobStore, raw: Raw) -> str:
    phases, bad = store.phases(), False
    for one in raw["spec"]["tasks"]:
        bad |= phases[one["alias"]] != "Succeeded" and not one["tolerable"]
    return "Failed" if bad else "Succeeded"


@given(raw=jobs(), data=st.data())
@settings(max_examples=50, deadline=None)
def test_a_job_that_nobody_commands_ends_as_its_tasks_do(raw: Raw, data: st.DataObject) -> None:
    life = Life(raw)
    life.finish(data)
    assert life.store.phase == expected_end(life.store, raw)
    assert all(phase in ("Succeeded", "Failed", "Skipped") for phase in life.store.phases().values())
    assert not life.store.under_way()


def live(raw: Raw, data: st.DataObject) -> None:
    """A life with everything that can happen, to its end."""
    life = Life(raw)
    life.store.settle()
    for _ in range(data.draw(st.integers(0, 40))):
        life.tick(data)
    life.finish(data)
    if life.store.phase == "Suspended":
        life.store.command("Restart")
        life.finish(data)
    assert life.store.phase in FINAL
    assert not life.store.under_way()
    if life.store.phase == "Succeeded":
        assert expected_end(life.store, raw) == "Succeeded"
    writes = life.store.writes
    life.store.settle()
    assert life.store.writes == writes, "nothing left to do"


@given(raw=jobs(tasks_max=3), data=st.data())
@settings(max_examples=60, deadline=None)
def test_whatever_happens_the_job_ends(raw: Raw, data: st.DataObject) -> None:
    live(raw, data)


@pytest.mark.soak
@given(raw=jobs(tasks_max=5), data=st.data())
@settings(max_examples=10_000 if SOAK else 40, deadline=None)
def test_many_lives(raw: Raw, data: st.DataObject) -> None:
    live(raw, data)


@given(raw=jobs(tasks_max=4), data=st.data())
@settings(max_examples=50, deadline=None)
def test_a_plan_carried_out_twice_is_carried_out_once(raw: Raw, data: st.DataObject) -> None:
    life = Life(raw)
    for _ in range(data.draw(st.integers(0, 20))):
        life.tick(data)
    actions = life.store.plan().actions
    life.store.apply(actions)
    once = life.store.snapshot()
    with contextlib.suppress(Stale):
        life.store.apply(actions)
    assert life.store.snapshot() == once


@given(raw=jobs(), data=st.data(), party=st.booleans())
@settings(max_examples=30, deadline=None)
def test_what_is_missing_is_named_while_it_is_missing(raw: Raw, data: st.DataObject, party: bool) -> None:
    life = Life(raw)
    life.store.facts = Facts(images=FACTS.images) if party else Facts(parties=FACTS.parties)
    life.store.settle()
    assert life.store.status["reason"] == ("PartyUnknown" if party else "AppImageNotFound")
    assert not life.store.tasks
    assert not life.store.plan().actions
    life.store.facts = FACTS
    life.finish(data)
    assert life.store.phase == expected_end(life.store, raw)


def test_a_crash_after_any_write_of_a_restart_leads_to_the_same_end() -> None:
    def end(crash_after: int | None) -> tuple[str, dict[str, str], list[str]]:
        store = JobStore(job(task("a"), task("b", "a"), task("c", "a"), maxParallelism=3))
        store.settle()
        store.end("a")
        store.end("b")
        store.command("Suspend")
        store.settle()
        store.obey_stops()
        store.settle()
        store.command("Restart", **{Muster.RERUN_FROM: "b"})
        for _ in range(8):
            store.apply(copy.deepcopy(store.plan().actions), crash_after)
        store.settle()
        store.end("b")
        store.end("c")
        return store.phase, store.phases(), [run for _, run in store.created]

    whole = end(None)
    assert whole == ("Succeeded", dict.fromkeys("abc", "Succeeded"), ["0", "0", "0", "1", "1"])
    for crash_after in range(1, 6):
        assert end(crash_after) == whole
