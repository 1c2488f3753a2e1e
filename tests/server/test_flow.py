"""Turns on a real loop, without a server: who is let on before whom, and that nothing is lost when tasks are cancelled."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.objects.status import TooManyRequests
from muster.server.authentication import ANONYMOUS
from muster.server.config import ServerLimits
from muster.server.flow import Flow
from muster.server.metrics import Metrics
from muster.server.paths import request_info
from muster.server.priority import PIECE_COST, TURN_COST_MAX, Whose, stranger, whose
from muster.store.embedded.admission import Actor

ANN, BEN = Whose("users", "ann"), Whose("users", "ben")
ADMIN = Whose("exempt", "admin")


def _flow(**limits: float) -> tuple[Flow, Metrics]:
    chosen = ServerLimits(**limits)  # type: ignore[arg-type]
    metrics = Metrics(chosen)
    return Flow(chosen, metrics), metrics


def _value(metrics: Metrics, name: str, **labels: str) -> float:
    return metrics.registry.get_sample_value(name, labels) or 0.0


async def _request(flow: Flow, who: Whose, done: list[str], *, is_write: bool = False, body_bytes: int = 0) -> None:
    ticket = await flow.start(who, is_write=is_write, body_bytes=body_bytes)
    try:
        done.append(who.flow)
    finally:
        flow.give_back(ticket)


async def test_a_flood_is_let_on_a_few_at_a_time_and_others_come_in_between() -> None:
    flow, _ = _flow()
    done: list[str] = []
    flood = [asyncio.create_task(_request(flow, ANN, done)) for _ in range(300)]
    await asyncio.sleep(0)
    assert len(done) <= TURN_COST_MAX, "no more than the loop serves before it looks at its sockets again"
    assert flow.waiting >= 300 - 2 * TURN_COST_MAX
    before = len(done)
    await _request(flow, BEN, done)
    assert done.index("ben") - before <= 2 * TURN_COST_MAX
    await asyncio.gather(*flood)
    assert done.count("ann") == 300
    assert (flow.in_flight, flow.waiting) == (0, 0)


async def test_large_bodies_count_for_what_they_take() -> None:
    """Who sends a megabyte at a time has one turn where another has a hundred."""
    flow, _ = _flow()
    done: list[str] = []
    large = [asyncio.create_task(_request(flow, ANN, done, is_write=True, body_bytes=1 << 20)) for _ in range(50)]
    small = [asyncio.create_task(_request(flow, BEN, done, is_write=True, body_bytes=500)) for _ in range(300)]
    await asyncio.gather(*small)
    assert done.count("ann") <= 5
    await asyncio.gather(*large)
    assert (flow.in_flight, flow.waiting) == (0, 0)


async def test_pieces_of_a_long_answer_leave_room_for_others() -> None:
    """Somebody lists everything in a hundred loops; each request of another waits for a few pieces, not for a list."""
    flow, _ = _flow()
    done: list[str] = []

    async def lists() -> None:
        for _ in range(50):
            await flow.turn(ANN, PIECE_COST)
            done.append("piece")

    tasks = [asyncio.create_task(lists()) for _ in range(100)]
    await asyncio.sleep(0)
    for _ in range(20):
        before = len(done)
        await _request(flow, BEN, done)
        assert done.index("ben", before) - before <= 2 * TURN_COST_MAX / PIECE_COST
    await asyncio.gather(*tasks)
    assert done.count("piece") == 5000


async def test_administrators_go_first_but_their_long_answers_do_not() -> None:
    flow, _ = _flow()
    done: list[str] = []

    async def lists() -> None:
        for _ in range(100):
            await flow.turn(ADMIN, PIECE_COST)
            done.append("piece")

    long = asyncio.create_task(lists())
    flood = [asyncio.create_task(_request(flow, ANN, done)) for _ in range(50)]
    await asyncio.sleep(0)
    before = len(done)
    await _request(flow, ADMIN, done)
    assert done.index("admin") == before, "at once"
    await asyncio.gather(*flood)
    assert not long.done(), "the flood was served beside the list"
    await long


async def test_a_queue_that_is_full_refuses_only_whose_it_is() -> None:
    flow, metrics = _flow(queue_per_user_len_max=5, queue_len_max=8, in_flight_write_max=1)
    done: list[str] = []
    held = await flow.start(ANN, is_write=True)
    waiting = [asyncio.create_task(_request(flow, ANN, done, is_write=True)) for _ in range(5)]
    await asyncio.sleep(0)
    with pytest.raises(TooManyRequests, match='5 requests of "ann" wait') as refused:
        await flow.start(ANN, is_write=True)
    assert refused.value.retry_after_s == 1
    waiting += [asyncio.create_task(_request(flow, Whose("users", f"u{n}"), done, is_write=True)) for n in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(TooManyRequests, match="8 requests of priority level users wait"):
        await flow.start(BEN, is_write=True)
    other = asyncio.create_task(_request(flow, Whose("system", "scheduler"), done, is_write=True))
    await asyncio.sleep(0)
    assert _value(metrics, "apiserver_flowcontrol_current_inqueue_requests", priority_level="users") == 8
    assert _value(metrics, "apiserver_flowcontrol_current_executing_requests", priority_level="users") == 1
    rejected = "apiserver_flowcontrol_rejected_requests_total"
    assert _value(metrics, rejected, priority_level="users", reason="queue-full") == 2
    flow.give_back(held)
    await asyncio.gather(*waiting, other)
    assert sorted(done) == ["ann"] * 5 + ["scheduler", "u0", "u1", "u2"]
    assert _value(metrics, "apiserver_flowcontrol_request_wait_duration_seconds_count", priority_level="users") == 8


async def test_who_waits_too_long_is_told_so() -> None:
    flow, metrics = _flow(queue_wait_max_s=0.01, in_flight_write_max=1)
    held = await flow.start(ANN, is_write=True)
    with pytest.raises(TooManyRequests, match=r"waited for 0\.01 s"):
        await flow.start(BEN, is_write=True)
    assert flow.waiting == 0
    assert _value(metrics, "muster_server_refused_total", limit="queue_wait_max_s") == 1
    flow.give_back(held)
    flow.give_back(await flow.start(BEN, is_write=True))
    assert flow.in_flight == 0


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 2**32))
def test_seats_come_back_whenever_tasks_are_cancelled(seed: int) -> None:
    """Before it waits, while it waits, after it was chosen and before it runs, while it is served."""

    async def run() -> None:
        chance = random.Random(seed)
        flow, _ = _flow(in_flight_read_max=3, in_flight_write_max=2, in_flight_per_user_max=2)
        running = [0]

        async def one(number: int) -> None:
            ticket = await flow.start(Whose("users", f"u{number % 3}"), is_write=number % 2 == 0)
            try:
                running[0] += 1
                assert flow.in_flight <= 5
                for _ in range(number % 4):
                    await asyncio.sleep(0)
            finally:
                running[0] -= 1
                flow.give_back(ticket)

        tasks = []
        for number in range(60):
            tasks.append(asyncio.create_task(one(number)))
            for _ in range(chance.randrange(3)):
                await asyncio.sleep(0)
            if chance.random() < 0.5:
                chance.choice(tasks).cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert running == [0]
        assert (flow.in_flight, flow.waiting) == (0, 0)
        assert not flow._by_age
        last = await flow.start(ANN, is_write=True)  # nothing is stuck
        flow.give_back(last)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("user", "groups", "path", "level"),
    [
        pytest.param("admin", ("system:masters",), "/api/v1/pods", "exempt", id="administrator"),
        pytest.param("ann", (), "/api/v1/pods", "users", id="somebody"),
        pytest.param("ann", (), "/healthz", "system", id="health"),
        pytest.param("ann", (), "/apis/coordination.k8s.io/v1/namespaces/a/leases/x", "users", id="somebody's lease"),
        pytest.param("c", ("muster:controllers",), "/api/v1/pods", "system", id="Muster's controllers"),
        pytest.param("system:kube-scheduler", (), "/api/v1/pods", "controllers", id="scheduler"),
        pytest.param("system:node:n1", (), "/api/v1/pods", "controllers", id="node"),
        pytest.param("system:node:n1", (), "/api/v1/nodes/n1/status", "system", id="heartbeat"),
        pytest.param("system:node:n1", (), "/apis/coordination.k8s.io/v1/namespaces/a/leases/n1", "system", id="node's lease"),
        pytest.param("system:serviceaccount:kube-system:c", (), "/api/v1/pods", "controllers", id="account of kube-system"),
        pytest.param("system:serviceaccount:a:c", (), "/api/v1/pods", "users", id="other account"),
        pytest.param(
            "system:serviceaccount:a:c", (), "/apis/coordination.k8s.io/v1/namespaces/a/leases/x", "system", id="lease"
        ),
    ],
)
def test_levels(user: str, groups: tuple[str, ...], path: str, level: str) -> None:
    found = whose(Actor(user=user, groups=groups), request_info("GET", path.encode()), "10.0.0.1")
    assert found.level == level
    assert found.flow == ("health 10.0.0.1" if path == "/healthz" else user)


def test_strangers_are_told_apart_by_address() -> None:
    info = request_info("POST", b"/muster/v1/nodes/join")
    assert whose(ANONYMOUS, info, "10.0.0.1") == stranger("10.0.0.1") != stranger("10.0.0.2")
