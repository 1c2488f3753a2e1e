"""Where work ran well: what is clear and what is not, how it fades, and what placement makes of it, log and replay included."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.engine import checkpoint as checkpoints
from muster.engine import events as ev
from muster.engine.decisions import Place
from muster.engine.facts import PodFacts, RunFacts
from muster.engine.plugins.past_runs import NODE
from muster.engine.work import Work, encode_work
from muster.history.recording import Recorded
from muster.history.replaying import replay
from muster.objects.labels import Muster
from muster.policy.order import PolicyOrder
from muster.policy.places import Place as Standing
from muster.policy.predict import Predictor
from muster.policy.where import FADE_RUNS, PLACES_MAX, Kind, Where
from muster.sim.entropy import Entropy
from tests.engine.building import node, pod
from tests.history.recording import log_at, make_ordered, maker, recording
from tests.policy.building import policy_facts, queue_facts

KIND: Kind = (3, "ann", "x")
Seen = Sequence[tuple[str, float | None, int]]
"""Node, distance (None: failed), how often."""


def known(seen: Seen) -> dict[str, float]:
    where = Where()
    for name, miss, count in seen:
        for turn in range(count):
            where.ended([KIND], {NODE: name}, None if miss is None else miss + 0.02 * (turn % 3))
    return {one.value: one.cost for one in where.of([KIND])}


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        pytest.param([("a", 0.0, 6), ("b", 0.7, 6)], {"a": 0.5, "b": 2.01}, id="half as long on a"),
        pytest.param([("a", 0.0, 5), ("b", 0.7, 6)], {}, id="too few runs"),
        pytest.param([("a", 0.0, 9), ("b", 0.08, 9)], {}, id="too small a difference"),
        pytest.param([("a", -1.0, 3), ("a", 1.0, 3), ("b", 0.5, 9)], {}, id="too unsure"),
        pytest.param([("a", 0.0, 20), ("b", None, 2)], {"b": 5.86}, id="it failed on b"),
        pytest.param([("a", 0.0, 20), ("b", None, 1)], {}, id="once is not enough"),
        pytest.param([("a", 0.0, 8), ("b", None, 2)], {}, id="nor is it with little elsewhere"),
        pytest.param([("a", None, 8), ("b", None, 8)], {}, id="what fails everywhere says nothing"),
        pytest.param([("a", 0.0, 40)], {}, id="there is nowhere else"),
    ],
)
def test_what_is_clear(seen: Seen, expected: dict[str, float]) -> None:
    assert known(seen) == pytest.approx(expected, abs=0.011)


def test_a_node_that_was_avoided_is_tried_again() -> None:
    where = Where()
    for name, miss, count in (("a", 0.0, 20), ("b", None, 2)):
        for _ in range(count):
            where.ended([KIND], {NODE: name}, miss)
    assert [one.value for one in where.of([KIND])] == ["b"]
    for _ in range(FADE_RUNS):
        where.ended([KIND], {NODE: "a"}, 0.0)
    assert where.of([KIND]) == ()


def test_the_closest_kind_counts() -> None:
    where, wide, close = Where(), (1, "", "x"), (4, "ann", "job")
    for turn in range(8):
        where.ended([wide], {NODE: "a" if turn % 2 else "b"}, 0.5 if turn % 2 else 0.0)
        where.ended([wide], {NODE: "a" if turn % 2 else "b"}, 0.5 if turn % 2 else 0.0)
        where.ended([wide], {NODE: "a" if turn % 2 else "b"}, 0.5 if turn % 2 else 0.0)
    for turn in range(16):
        where.ended([close], {NODE: "a" if turn % 2 else "b"}, 0.0 if turn % 2 else 0.5)
    assert {one.value: one.cost for one in where.of([wide])} == {"a": 1.65, "b": 0.61}
    assert {one.value: one.cost for one in where.of([wide, close])} == {"a": 0.61, "b": 1.65}


def test_what_the_owner_says_of_the_work_tells_where_it_runs_well() -> None:
    """Vision runs in half the time on one model, language does not care; a user whom nobody knows asks."""
    predictor, model = Predictor(), "node.koordinator.sh/gpu-model"
    for turn in range(24):
        for domain, gain in (("cv", 0.5), ("nlp", 1.0)):
            for gpu in ("A100", "V100"):
                predictor.ended(
                    RunFacts(
                        user=f"user{turn}",
                        type="training",
                        seconds=(1_000.0 + turn) * (gain if gpu == "A100" else 1.0),
                        attributes={"domain": domain, "seed": "7", "bid": str(turn)},
                        labels={model: gpu},
                    )
                )
    seeing = Work(user="new", type="training", attributes={"domain": "cv", "seed": "7"})
    found = predictor.predict(seeing, {}, 0.0)
    assert found is not None
    assert found.affinity == {model: "A100"}
    assert "A100" in found.affinity_grounds
    reading = predictor.leanings(Work(user="new", type="training", attributes={"domain": "nlp", "seed": "7"}))
    assert {one.value: one.cost for one in reading} != {one.value: one.cost for one in predictor.leanings(seeing)}
    again = Predictor()
    again.restore(json.loads(json.dumps(predictor.checkpoint())))
    assert again.leanings(seeing) == predictor.leanings(seeing)


def test_places_are_bounded_and_those_that_fail_stay() -> None:
    where = Where()
    for turn in range(FADE_RUNS - 10):
        where.ended([KIND], {NODE: f"n{turn}", "model": "m"}, 0.0)
        if turn in (3, 5):
            where.ended([KIND], {NODE: "bad", "model": "m"}, None)
    [kept] = where.checkpoint()
    assert len(kept[5]) == PLACES_MAX
    assert [one.value for one in where.of([KIND])] == ["bad"]


def test_chance_alone_is_seldom_taken_for_a_difference() -> None:
    chance, where, told, asked = Entropy(1).stream("runs"), Where(), 0, 0
    for turn in range(6_000):
        kinds: list[Kind] = [(1, "", f"type-{turn % 5}"), (4, f"user-{turn % 40}", "job")]
        where.ended(kinds, {NODE: f"n{chance.randrange(4)}"}, None if chance.random() < 0.05 else chance.gauss(0.0, 0.6))
        asked += 1
        told += bool(where.of(kinds))
    assert told / asked < 0.03


ends = st.tuples(st.sampled_from("abc"), st.none() | st.floats(-3, 3).map(lambda miss: round(miss, 4)))


@given(st.lists(ends, max_size=150), st.lists(ends, max_size=150))
def test_a_checkpoint_goes_on_alike(before: list[tuple[str, float | None]], after: list[tuple[str, float | None]]) -> None:
    first, second = Where(), Where()
    for name, miss in before:
        first.ended([KIND, (1, "", "x")], {NODE: name}, miss)
    second.restore(json.loads(json.dumps(first.checkpoint())))
    for name, miss in after:
        for one in (first, second):
            one.ended([KIND, (1, "", "x")], {NODE: name}, miss)
    assert first.of([KIND]) == second.of([KIND])
    assert first.checkpoint() == second.checkpoint()
    assert all(0.1 <= one.cost <= 10.0 for one in first.of([KIND]))


def test_a_run_that_failed_teaches_places_and_no_lengths() -> None:
    predictor = Predictor()
    good = [RunFacts(user="ann", type="x", seconds=100.0 + n, labels={NODE: "a"}) for n in range(20)]
    bad = [RunFacts(user="ann", type="x", seconds=5.0, labels={NODE: "b"}, failed=True)] * 3
    predictor.learn(ev.RunsSeen([*good, *bad]))
    found = predictor.predict(Work(user="ann", type="x"), {}, 0.0)
    assert found is not None
    assert found.run_s > 90
    assert found.affinity_grounds == "failed 3 of 3 on node b, 0 of 19 elsewhere"


# -- in the engine -------------------------------------------------------------------------------------------------------------


class Cluster:
    """The scheduler's engine, recorded, on two nodes of 8 cores; work runs as long as its node lets it."""

    def __init__(self, path: Path, recorder: Any) -> None:
        self.path, self.recorder = path, recorder
        self.recorded = Recorded(make_ordered(), recorder, lambda _document: make_ordered())
        self.now, self.number = 0.0, 0
        self.events: list[ev.AnyEvent] = []
        spec = {"factors": [{"name": "age", "source": "AgeSeconds"}], "formula": "age"}
        self.step(
            *(ev.NodeSeen(node(name, cpu="8")) for name in ("a", "b")),
            ev.PolicySeen(policy_facts("p", **spec)),
            ev.QueueSeen(queue_facts("q", policy="p", isDefault=True)),
        )

    def step(self, *events: ev.AnyEvent) -> dict[str, str]:
        """Where pods were placed, by name."""
        made = self.recorded.step(list(events), self.now)
        assert not self.recorded.engine.state.faults
        return {one.name: one.node for decision in made if isinstance(decision, Place) for one in decision.pods}

    def pod(self, cpu: str = "1", **spec: Any) -> PodFacts:
        self.number += 1
        work = Work(user="ann", type="x", name="job", submitted=self.now)
        notes = {Muster.WORK: encode_work(work)}
        return pod(f"p{self.number}", cpu=cpu, annotations=notes, scheduler="muster-scheduler", **spec)

    def run(self, facts: PodFacts, seconds: dict[str, float], fails: str = "") -> str:
        """One run by itself; the node that it ran on."""
        where = self.step(ev.PodSeen(facts))[facts.metadata.name]
        self.end(facts, where, seconds[where], failed=where == fails)
        return where

    def end(self, facts: PodFacts, where: str, after_s: float, *, failed: bool = False) -> None:
        self.now += after_s
        status = msgspec.structs.replace(facts.status, phase="Failed" if failed else "Succeeded")
        spec = msgspec.structs.replace(facts.spec, node_name=where)
        ended = msgspec.structs.replace(facts, spec=spec, status=status)
        self.step(ev.PodSeen(ended))
        self.step(ev.PodGone(facts.metadata.uid))
        self.now += 10.0

    def learn(self, seconds: dict[str, float], fails: str = "", runs: int = 8) -> None:
        """The same work on each of the nodes in turn."""
        for turn in range(2 * runs):
            self.run(self.pod(nodeSelector={"kubernetes.io/hostname": "ab"[turn % 2]}), seconds, fails)

    def place_of(self, facts: PodFacts) -> Standing:
        assert self.recorded.engine.order is not None
        order = self.recorded.engine.order.inner
        assert isinstance(order, PolicyOrder)
        [unit] = [one for one in order.ranked("q") if one.endswith(facts.metadata.name)]
        found = order.place_of(unit, self.now)
        assert found is not None
        return found


@pytest.mark.parametrize(
    ("seconds", "fails", "grounds"),
    [
        pytest.param(
            {"a": 200.0, "b": 100.0}, "", "ran 50% shorter on node b than elsewhere (9 runs, 8 elsewhere)", id="slow on a"
        ),
        pytest.param({"a": 100.0, "b": 100.0}, "a", "failed 9 of 9 on node a, 0 of 8 elsewhere", id="fails on a"),
    ],
)
def test_work_goes_where_it_ran_well_if_there_is_room(
    seconds: dict[str, float], fails: str, grounds: str, tmp_path: Path
) -> None:
    with recording(tmp_path) as recorder:
        cluster = Cluster(tmp_path, recorder)
        assert cluster.run(cluster.pod(), seconds, fails) == "a"  # the first of equals, as long as nothing is known
        cluster.learn(seconds, fails)
        assert cluster.run(cluster.pod(), seconds, fails) == "b"
        # A new segment begins with a checkpoint: what was learned is in it.
        kept = checkpoints.take(cluster.recorded.engine)
        cluster.recorded.engine = checkpoints.restore(kept, make_ordered())
        recorder.rotate(kept)
        filling = [cluster.pod("4") for _ in range(5)]
        placed = cluster.step(*(ev.PodSeen(one) for one in filling))
        assert sorted(placed.values()) == ["a", "a", "b", "b"]
        told = cluster.place_of(filling[4])
        assert grounds in told.affinity_grounds
        assert told.affinity == ({NODE: "b"} if not fails else {})
    outcome = replay(log_at(tmp_path), maker())
    assert outcome.is_equal, outcome.difference and outcome.difference.text()
    assert outcome.segments == 2


def test_what_the_pod_says_is_stronger(tmp_path: Path) -> None:
    seconds = {"a": 400.0, "b": 100.0}
    expression = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["a"]}
    term = {"weight": 1, "preference": {"matchExpressions": [expression]}}
    preferring = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [term]}}
    with recording(tmp_path) as recorder:
        cluster = Cluster(tmp_path, recorder)
        cluster.learn(seconds)
        assert cluster.run(cluster.pod(), seconds) == "b"
        assert cluster.run(cluster.pod(affinity=preferring), seconds) == "a"
        assert cluster.run(cluster.pod(nodeSelector={"kubernetes.io/hostname": "a"}), seconds) == "a"


def test_a_pod_that_was_being_stopped_says_nothing_about_its_node(tmp_path: Path) -> None:
    with recording(tmp_path) as recorder:
        cluster = Cluster(tmp_path, recorder)
        cluster.learn({"a": 100.0, "b": 100.0})
        for _ in range(4):
            facts = cluster.pod(nodeSelector={"kubernetes.io/hostname": "a"})
            cluster.step(ev.PodSeen(facts))
            meta = msgspec.structs.replace(facts.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
            cluster.end(msgspec.structs.replace(facts, metadata=meta), "a", 100.0, failed=True)
        assert cluster.run(cluster.pod(), {"a": 100.0, "b": 100.0}) == "a"
