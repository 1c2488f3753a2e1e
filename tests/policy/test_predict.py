"""Predictions from runs of work like it: closer kinds count as far as they are known, few runs are not taken for certain."""

from __future__ import annotations

import json
import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import muster.policy.predict as predict_module
from muster.engine import events as ev
from muster.engine.facts import NodeMetricFacts, PodStatusFacts, RunFacts
from muster.engine.work import Work
from muster.policy.predict import WINDOW, Prediction, Predictor
from muster.sim.habits import Settings, generate
from tests.policy.building import World, pod_of

ANN = Work(user="ann", group="g", name="resnet", type="training")


def run(seconds: float, user: str = "ann", name: str = "resnet", **more: object) -> RunFacts:
    return RunFacts(**{"user": user, "group": "g", "name": name, "type": "training", "seconds": seconds, **more})  # type: ignore[arg-type]


def predicted(predictor: Predictor, work: Work = ANN, request: dict[str, int] | None = None) -> Prediction:
    found = predictor.predict(work, request or {}, 0.0)
    assert found is not None
    return found


def test_nothing_is_said_from_nothing() -> None:
    predictor = Predictor()
    assert predictor.predict(ANN, {}, 0.0) is None
    predictor.ended(run(10.0))
    assert predictor.predict(ANN, {}, 0.0) is None


def test_work_of_its_own_name_decides_once_it_is_known() -> None:
    predictor = Predictor()
    for _ in range(40):
        predictor.ended(run(10_000.0, name="bert"))
        predictor.ended(run(100.0))
    found = predicted(predictor)
    assert 90 <= found.run_s <= 120
    assert found.grounds == "40 runs of user ann, name resnet"
    assert predicted(predictor, Work(user="ann", name="bert", type="training")).run_s > 9_000


def test_work_nobody_knows_is_as_its_type() -> None:
    predictor = Predictor()
    for n in range(20):
        predictor.ended(run(1_000.0 + n, user="bob", name=f"x{n}"))
    found = predicted(predictor, Work(user="eve", group="g", name="new", type="training"))
    assert found.run_s == pytest.approx(1_010, rel=0.02)
    assert found.grounds == "20 runs of group g, type training"


def test_one_run_is_not_taken_for_certain() -> None:
    predictor = Predictor()
    for n in range(60):
        predictor.ended(run(600.0 * (1.0 + n % 5), user=f"u{n % 3}", name=f"x{n}"))
    predictor.ended(run(600.0))
    found = predicted(predictor)
    assert found.high_s > 1.3 * found.run_s
    assert found.grounds.startswith("1 run of user ann, name resnet; ")


def test_owners_who_always_say_twice_as_much_are_read_so() -> None:
    predictor = Predictor()
    for n in range(40):
        said = 200.0 * (1 + n % 10)
        predictor.ended(run(said / 2, name=f"x{n}"), estimate_s=said)
    found = predicted(predictor, Work(user="ann", name="y", type="training", estimate_s=5_000.0))
    assert found.run_s == pytest.approx(2_500, rel=0.25)
    assert "estimate" in found.grounds


def test_nine_in_ten_end_below_the_high_quantile() -> None:
    """On habits that it has never seen, one job after the other."""
    predictor, below, wrong = Predictor(), [], []
    for job in generate(Settings(seed=7, jobs=3_000)):
        work = Work(user=job.user, group=job.group, name=job.name, type=job.type, estimate_s=job.estimate_s)
        found = predictor.predict(work, {}, 0.0)
        if found is not None and predictor.runs > 300:
            below.append(job.run_s <= found.high_s)
            wrong.append(abs(math.log(job.run_s / found.run_s)))
        facts = run(job.run_s, user=job.user, name=job.name, group=job.group, type=job.type)
        predictor.ended(facts, job.estimate_s)
    assert 0.86 <= sum(below) / len(below) <= 0.94
    # The runs of one name differ by a factor of e to the 0.6; half of them by less than 1.5.
    assert sorted(wrong)[len(wrong) // 2] < 0.55


def test_use_and_places() -> None:
    predictor = Predictor()
    for n in range(30):
        model = "fast" if n % 2 else "slow"
        seconds = (100.0 if n % 2 else 200.0) * (1 + 0.01 * (n % 7))
        predictor.ended(run(seconds, requests={"cpu": 4000}, used={"cpu": 1000}, labels={"model": model}))
    found = predicted(predictor, request={"cpu": 8000, "memory": 5})
    assert found.use == {"cpu": pytest.approx(2000)}
    assert found.affinity == {"model": "fast"}


def test_an_affinity_that_is_not_clear_is_not_told() -> None:
    predictor = Predictor()
    for n in range(30):
        predictor.ended(run(100.0 * (1 + n % 7), labels={"model": "a" if n % 2 else "b"}))
    assert predicted(predictor).affinity == {}


runs = st.lists(
    st.builds(
        RunFacts,
        user=st.sampled_from(["", "ann", "bob"]),
        group=st.sampled_from(["", "g"]),
        name=st.sampled_from(["", "x", "y"]),
        type=st.sampled_from(["", "t"]),
        seconds=st.floats(allow_nan=True, allow_infinity=True),
        requests=st.just({"cpu": 5}),
        used=st.dictionaries(st.sampled_from(["cpu", "gpu"]), st.integers(-5, 10**9)),
        labels=st.dictionaries(st.sampled_from(["a", "b"]), st.sampled_from(["1", "2"])),
    ),
    max_size=60,
)


@given(runs, st.none() | st.floats(allow_nan=True))
def test_any_run_is_survived_and_a_checkpoint_goes_on_alike(seen: list[RunFacts], estimate: float | None) -> None:
    first = Predictor()
    first.learn(ev.RunsSeen(seen))
    second = Predictor()
    second.restore(json.loads(json.dumps(first.checkpoint())))
    for one in seen:
        first.ended(one, estimate)
        second.ended(one, estimate)
    work = Work(user="ann", group="g", name="x", type="t", estimate_s=estimate)
    found = first.predict(work, {"cpu": 5}, 0.0)
    assert found == second.predict(work, {"cpu": 5}, 0.0)
    assert first.checkpoint() == second.checkpoint()
    if found is not None:
        assert 0 < found.run_s <= found.high_s < math.inf


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predict_module, "KINDS_MAX", 50)
    predictor = Predictor()
    for n in range(500):
        predictor.ended(run(10.0 + n, user=f"u{n}", name=f"x{n}"))
    kept = predictor.checkpoint()["kinds"]
    assert len(kept) <= 50
    assert all(len(values) <= WINDOW for *_, values, _use in kept)


# -- in the order --------------------------------------------------------------------------------------------------------------


def succeeded(world: World, name: str) -> None:
    work, gpus, _ = world.works[name]
    facts = pod_of(name, work, gpus)
    world.step(ev.PodSeen(msgspec.structs.replace(facts, status=PodStatusFacts(phase="Succeeded"))))
    world.end(name)


def test_the_order_learns_from_runs_that_end_well_and_from_no_others() -> None:
    world = World(gpus=8)
    for n in range(4):
        world.submit(f"a{n}", 1, at=1_000.0 * n, user="ann", type="x")
        world.now += 100.0
        succeeded(world, f"a{n}")
    world.submit("stopped", 1, at=9_000.0, user="ann", type="x")
    world.end("stopped", at=9_001.0)
    predictor = world.order.learning.predictor
    assert predictor is not None
    assert predictor.runs == 4
    world.submit("b", 1, at=10_000.0, user="ann", type="x")
    [row] = world.order.book.table.row_of.values()
    assert world.order.book.table.predicted_s[row] == pytest.approx(100.0, rel=0.01)
    assert world.order.book.table.predicted_high_s[row] >= 100.0


def metric(*pods: tuple[str, str]) -> ev.NodeMetricSeen:
    """Of the first node: pods, and the processors that each uses."""
    used = [
        {"namespace": "default", "name": name, "podUsage": {"resources": {"cpu": cpu, "memory": "1Gi"}}} for name, cpu in pods
    ]
    raw = {"metadata": {"name": "n000"}, "status": {"podsMetric": used}}
    return ev.NodeMetricSeen(msgspec.convert(raw, NodeMetricFacts))


def test_the_order_learns_what_work_really_uses() -> None:
    """The most that was reported while it ran, of what was asked for: 100m of a processor each; of memory nothing was."""
    world = World(gpus=8)
    for n in range(4):
        world.submit(f"a{n}", 1, at=1_000.0 * n, user="ann", type="x")
        for cpu in ("20m", "40m", "oops", "10m"):
            world.step(metric((f"a{n}", cpu), ("stranger", "9")))
        world.now += 100.0
        succeeded(world, f"a{n}")
        world.step(metric((f"a{n}", "90m")))
    world.submit("b", 1, at=10_000.0, user="ann", type="x")
    [(unit_id, row)] = world.order.book.table.row_of.items()
    found = world.order.learning.of(row)
    assert found is not None
    assert found.use == pytest.approx({"cpu": 40.0}, rel=0.01)
    place = world.order.place_of(unit_id, 10_000.0)
    assert place is None or place.predicted_use == found.use


def test_what_was_measured_of_running_work_outlives_a_checkpoint() -> None:
    world = World(gpus=8)
    world.submit("a", 1, user="ann", type="x")
    world.step(metric(("a", "40m")))
    kept = json.loads(json.dumps(world.order.learning.checkpoint()))
    other = World(gpus=8)
    other.order.learning.restore(kept)
    assert other.order.learning.checkpoint()["measured"] == kept["measured"]
    assert [list(most.values()) for most in kept["measured"].values()] == [[{"cpu": [40, 100]}]]
