"""`replay(log) == log`: for random histories, for every scenario of the benchmarks, across leaders, and after a kill."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.bench import engine_process
from muster.bench.handover import Handover, write
from muster.bench.scenario import load_scenario, scenario_names
from muster.bench.workload import generate
from muster.engine import checkpoint as checkpoints
from muster.engine import events as ev
from muster.engine.configuration import DEFAULT_NAME
from muster.engine.decisions import Place
from muster.engine.facts import Meta, PodFacts, PolicyFacts, QueueFacts, QueueSpecFacts, UserFacts, UserSpecFacts
from muster.engine.work import Work, encode_work
from muster.history.reader import Log
from muster.history.recorder import Recorder
from muster.history.recording import Recorded
from muster.history.replaying import NotReplayable, Progress, engines, replay
from muster.history.stores import DirectoryStore
from muster.objects.labels import Muster
from muster.policy.builtin import builtin_spec
from tests.engine.building import node, pod
from tests.engine.histories import Move, histories
from tests.history.recording import (
    CONFIGURATION,
    RecordedEngine,
    Ticking,
    log_at,
    make_engine,
    make_ordered,
    maker,
    play_recorded,
    recording,
)

EXAMPLES = 1_000 if os.environ.get("MUSTER_SOAK") else 30


@settings(max_examples=EXAMPLES, deadline=None)
@given(histories, st.lists(st.integers(1, 40), max_size=3))
def test_histories_replay(history: list[Move], cuts: list[int]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        run = play_recorded(history, Path(directory), cuts=cuts)
        outcome = replay(log_at(Path(directory)), maker())
        assert outcome.is_equal, outcome.difference and outcome.difference.text()
        assert outcome.decisions == len(run.log)
        assert not outcome.findings


QUEUES: list[ev.AnyEvent] = [
    ev.PolicySeen(PolicyFacts(metadata=Meta(name="balanced"), spec=builtin_spec("balanced"))),
    ev.PolicySeen(PolicyFacts(metadata=Meta(name="fair"), spec=builtin_spec("fair-share"))),
    ev.QueueSeen(QueueFacts(metadata=Meta(name="all"), spec=QueueSpecFacts(policy="balanced", is_default=True))),
    ev.QueueSeen(QueueFacts(metadata=Meta(name="lab"), spec=QueueSpecFacts(policy="fair", weight=3))),
    ev.UserSeen(UserFacts(metadata=Meta(name="ann"), spec=UserSpecFacts(level=2))),
]


def _owned(moves: list[Move]) -> list[Move]:
    """Pods say whose they are, in which queue, and how long they will run."""
    return [(what, _own(value) if what == "pod" else value) for what, value in moves]


def _own(facts: PodFacts) -> PodFacts:
    number = int(facts.metadata.name[1:])
    work = Work(
        user=("ann", "ben", "")[number % 3],
        queue=("lab", "", "all")[number % 3],
        estimate_s=60.0 * number or None,
        preemptible=number % 2 == 0,
        submitted=float(number),
    )
    notes = {**facts.metadata.annotations, Muster.WORK: encode_work(work)}
    return msgspec.structs.replace(facts, metadata=msgspec.structs.replace(facts.metadata, annotations=notes))


@settings(max_examples=EXAMPLES, deadline=None)
@given(histories, st.lists(st.integers(1, 40), max_size=3))
def test_ordered_histories_replay(history: list[Move], cuts: list[int]) -> None:
    """With queues, policies and users, which rank the work: what the order keeps goes through checkpoints too."""
    with tempfile.TemporaryDirectory() as directory:
        run = play_recorded(_owned(history), Path(directory), cuts=cuts, make=make_ordered, first=QUEUES)
        outcome = replay(log_at(Path(directory)), maker())
        assert outcome.is_equal, outcome.difference and outcome.difference.text()
        assert outcome.decisions == len(run.log)
        assert not run.engine.state.faults


SIZES = {"gang-1000": (100, 4_000), "anti-affinity": (60, 150), "gang-64": (30, 1_000), "preemption": (100, 100)}
"""Nodes and pods, where the usual ones are too few or too slow."""


@pytest.mark.slow
@pytest.mark.parametrize("name", scenario_names())
def test_scenarios_replay(name: str, tmp_path: Path) -> None:
    nodes, pods = SIZES.get(name, (30, 300))
    workload = generate(load_scenario(name), nodes, pods, 3, scheduler_name=DEFAULT_NAME)
    (tmp_path / "workload").mkdir()
    write(workload, tmp_path / "workload")
    with recording(tmp_path / "log") as recorder:
        measured = engine_process.run(
            Handover(tmp_path / "workload"), lambda: RecordedEngine.begun(recorder, renew_at=(4, 9, 27))
        )
    outcome = replay(log_at(tmp_path / "log"), maker())
    assert outcome.is_equal, outcome.difference and outcome.difference.text()
    assert outcome.segments > 1, "the run was too short to go on in a second segment"
    assert outcome.decisions > 0
    assert measured.pods_per_s > 0
    assert not outcome.findings


def test_a_log_of_several_leaders(tmp_path: Path) -> None:
    """A leader, another, and the first one again, in one directory; each begins with what it finds."""
    clock = Ticking()
    nodes, pods = [node(f"n{i}", cpu="4") for i in range(3)], [pod(f"p{i}", cpu="1") for i in range(12)]
    bound: dict[str, str] = {}
    for term, holder in enumerate(("a", "b", "a")):
        recorder = Recorder(DirectoryStore(tmp_path), clock=clock)
        recorded = Recorded(make_engine(), recorder, make_engine, epoch=term + 1, holder=holder)
        recorded.step([ev.NodeSeen(one) for one in nodes], clock(), units_max=0)
        seen = [_bound(one, bound.get(one.metadata.uid, "")) for one in pods[: 4 * (term + 1)]]
        for one in recorded.step([ev.PodSeen(each) for each in seen], clock() + 1):
            if isinstance(one, Place):
                bound |= {placed.uid: placed.node for placed in one.pods}
        recorder.close()
        clock.now += 60
    log = log_at(tmp_path)
    headers = []
    for name in log.names:
        with log.open(name) as segment:
            headers.append(segment.header)
    assert [(h.epoch, h.holder, h.sequence) for h in headers] == [(1, "a", 1), (2, "b", 1), (3, "a", 1)]
    assert len({h.term for h in headers}) == 3
    outcome = replay(log, maker())
    assert outcome.is_equal
    assert outcome.decisions == len(bound) == 12


def _bound(facts: PodFacts, to: str) -> PodFacts:
    return msgspec.structs.replace(facts, spec=msgspec.structs.replace(facts.spec, node_name=to)) if to else facts


def _small_log(path: Path) -> None:
    with recording(path) as recorder:
        recorded = Recorded(make_engine(), recorder, make_engine)
        recorded.step([ev.NodeSeen(node("n1", cpu="2")), ev.NodeSeen(node("n2", cpu="8"))], 1_700_000_000.0)
        recorded.step([ev.PodSeen(pod("a", cpu="1"))], 1_700_000_001.0)
        recorded.step([ev.PodSeen(pod("b", cpu="4")), ev.PodSeen(pod("c", cpu="64"))], 1_700_000_002.0, units_max=2)


def test_an_engine_that_decides_otherwise_is_found(tmp_path: Path) -> None:
    """Other weights, other choices: the first step that differs is named, and both sides of it are shown."""
    _small_log(tmp_path)
    other = {
        **CONFIGURATION,
        "profiles": [
            {**one, "plugins": {"score": {"disabled": [{"name": "*"}]}, "filter": {"disabled": [{"name": "NodeResourcesFit"}]}}}
            for one in (CONFIGURATION.get("profiles") or [{"schedulerName": DEFAULT_NAME}])
        ],
    }
    outcome = replay(log_at(tmp_path), lambda _document, _order: make_engine(other))
    assert outcome.difference is not None
    text = outcome.difference.text()
    assert outcome.difference.step in (2, 3)
    assert "recorded" in text
    assert "replayed" in text
    assert any(line.startswith("-") and not line.startswith("---") for line in text.splitlines())


def test_a_changed_event_is_found(tmp_path: Path) -> None:
    """A log that was made up from other events than those that led to its decisions."""
    with recording(tmp_path) as recorder:
        recorder.begin(configuration=CONFIGURATION)
        engine = make_engine()
        recorder.step(1.0, None, [ev.NodeSeen(node("n1", cpu="1"))], engine.step([ev.NodeSeen(node("n1", cpu="8"))], 1.0))
        events = [ev.PodSeen(pod("a", cpu="4"))]
        recorder.step(2.0, None, events, engine.step(events, 2.0))
    outcome = replay(log_at(tmp_path), maker())
    assert outcome.difference is not None
    assert outcome.difference.step == 2
    assert type(outcome.difference.recorded[0]).__name__ == "Place"
    assert type(outcome.difference.replayed[0]).__name__ == "Park"


def test_only_a_part_is_replayed(tmp_path: Path) -> None:
    _small_log(tmp_path)
    outcome = replay(log_at(tmp_path), maker(), stop=1_700_000_001.0)
    assert outcome.is_equal
    assert outcome.steps == 2


def test_progress_is_told(tmp_path: Path) -> None:
    _small_log(tmp_path)
    told: list[int] = []

    def watch(progress: Progress) -> None:
        told.append(progress.steps)

    replay(log_at(tmp_path), maker(), watch=watch)
    assert told[-1] == 3


def test_a_log_without_a_configuration_is_refused(tmp_path: Path) -> None:
    with recording(tmp_path) as recorder:
        recorder.begin()
        recorder.step(1.0, None, [], [])
    with pytest.raises(NotReplayable, match="without a configuration"):
        replay(log_at(tmp_path), engines())


def test_an_unknown_order_is_refused(tmp_path: Path) -> None:
    with recording(tmp_path) as recorder:
        recorder.begin(configuration=CONFIGURATION, order="Another")
        recorder.step(1.0, None, [], [])
    with pytest.raises(NotReplayable, match="'Another'"):
        replay(log_at(tmp_path), maker())


def test_one_segment_alone_replays(tmp_path: Path) -> None:
    with recording(tmp_path) as recorder:
        recorded = Recorded(make_engine(), recorder, make_engine)
        recorded.step([ev.NodeSeen(node("n1", cpu="4"))], 1.0)
        recorded.step([ev.PodSeen(pod("a", cpu="1"))], 2.0)
        kept = checkpoints.take(recorded.engine)
        recorded.engine = checkpoints.restore(kept, make_engine())
        recorder.rotate(kept)
        recorded.step([ev.PodSeen(pod("b", cpu="1"))], 3.0)
    second = log_at(tmp_path).names[1]
    outcome = replay(Log.at(tmp_path / str(second)), maker())
    assert outcome.is_equal
    assert (outcome.segments, outcome.steps, outcome.decisions) == (1, 1, 1)
