"""The front that is kept from question to question is the one that would be found from nothing."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.engine import events as ev
from muster.engine.units import Unit
from muster.engine.work import Work
from muster.objects.reasons import Verdict
from muster.policy import front as module
from muster.policy.front import Front
from muster.policy.gate import Gate
from muster.policy.order import PolicyOrder
from muster.policy.ranking import Ranked
from tests.counts import examples
from tests.policy.building import SHORTEST, World, pod_of, policy_facts, queue_facts

MODES = ("EASY", "Conservative", "None", "Strict")
JOB = st.tuples(st.integers(0, 3), st.integers(1, 8), st.integers(1, 500), st.booleans())
ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.lists(JOB, min_size=1, max_size=15)),
        st.tuples(st.just("end"), st.integers(0, 50)),
        st.tuples(st.just("pass"), st.integers(1, 400)),
        st.tuples(st.just("limit"), st.integers(0, 3), st.integers(1, 12)),
    ),
    min_size=2,
    max_size=20,
)


class Checked(Gate):
    """Looks after every unit that was asked about: that is where many marks come between two rankings."""

    order: PolicyOrder

    def refuse(self, unit: Unit, row: int, ranked: Ranked, now: float) -> Verdict | None:
        found = super().refuse(unit, row, ranked, now)
        check(self.order, ranked)
        return found


def check(order: PolicyOrder, ranked: Ranked) -> None:
    kept = order.plans.front.find(ranked)
    fresh = Front(order.book, order.ranker, order.plans.lines)
    fresh.bar = order.gate.bar
    fresh._awaiting = order.plans.front._awaiting
    before = order.book.blocked_version
    assert fresh.find(ranked) == kept
    assert order.book.blocked_version == before, "somebody was put to sleep whom the kept front had not looked at"
    for row in ranked.rows.tolist():
        assert order.plans.front.is_before_all(row, ranked) == fresh.is_before_all(row, ranked)


@pytest.mark.parametrize("lines_max", [2, 8])
@settings(max_examples=examples(40), deadline=None)
@given(acts=ACTS, modes=st.lists(st.sampled_from(MODES), min_size=4, max_size=4))
def test_what_is_kept_is_what_would_be_found(lines_max: int, acts: list[tuple[Any, ...]], modes: list[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "LINES_MAX", lines_max)
        world = World(nodes=2, gpus=8, **SHORTEST, preemption={"enabled": True, "restartCostSeconds": 1})
        world.order.gate.__class__ = Checked
        world.order.gate.order = world.order  # type: ignore[attr-defined]
        for number, mode in enumerate(modes):
            policy = policy_facts(f"p{number}", **SHORTEST, backfill={"mode": mode, "depth": 3}, starvationBoundSeconds=10**9)
            world.step(ev.PolicySeen(policy), ev.QueueSeen(queue_facts(f"q{number}", policy=f"p{number}")))
        for number, act in enumerate(acts):
            match act:
                case ("submit", jobs):
                    seen = []
                    for place, (queue, gpus, seconds, preemptible) in enumerate(jobs):
                        name, at = f"w{number}x{place}", world.now
                        work = Work(queue=f"q{queue}", submitted=at, estimate_s=float(seconds), preemptible=preemptible)
                        world.works[name] = (work, gpus, 1)
                        seen.append(ev.PodSeen(pod_of(name, work, gpus)))
                    world.step(*seen)
                case ("end", which) if world.running:
                    world.end(sorted(world.running)[which % len(world.running)])
                case ("pass", seconds):
                    world.tick(world.now + seconds)
                case ("limit", queue, gpus):
                    limits = {"concurrent": {"nvidia.com/gpu": gpus}}
                    world.step(ev.QueueSeen(queue_facts(f"q{queue}", policy=f"p{queue}", limits=limits)))
            check(world.order, world.order.ranked_now)
