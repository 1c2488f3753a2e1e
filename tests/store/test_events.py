"""Recording Events: aggregation, rate limit, bounds, and a recorder that never holds anyone up."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.objects.reasons import Reason
from muster.objects.status import Forbidden, Raw, ServiceUnavailable, Timeout
from muster.sim.clock import current_loop, run, virtual
from muster.store.backoff import Backoff
from muster.store.contract import Store
from muster.store.events import DROPPED, NORMAL, RECORDED, WARNING, Correlator, EventLimits, EventRecorder, reference_to
from tests.store.stores import BreakableStore, config_map, memory_store, pod

POD: Raw = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web-0", "namespace": "default", "uid": "u1"}}


def other_pod(n: int) -> Raw:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"web-{n}", "namespace": "default", "uid": f"u{n}"}}


def recorder(store: Store, **limits: Any) -> EventRecorder:
    made = EventRecorder(store, component="test", clock=current_loop().clock, instance="host-1", limits=EventLimits(**limits))
    made.start()
    return made


async def events_of(store: Store, namespace: str = "default") -> list[Raw]:
    return (await store.list(await store.resource("", "Event"), namespace)).items


@pytest.mark.parametrize(
    ("regarding", "expected"),
    [
        pytest.param(
            POD, {"apiVersion": "v1", "kind": "Pod", "namespace": "default", "name": "web-0", "uid": "u1"}, id="object"
        ),
        pytest.param({"kind": "Node", "name": "n1"}, {"kind": "Node", "name": "n1"}, id="a reference stays one"),
        pytest.param({"kind": "Node", "name": 5, "stray": "x"}, {"kind": "Node"}, id="nonsense is left out"),
    ],
)
def test_reference(regarding: Raw, expected: Raw) -> None:
    assert reference_to(regarding) == expected


@virtual
async def test_an_event_has_the_shape_that_kubectl_shows() -> None:
    async with memory_store() as store:
        live = await store.create(await store.resource("", "Pod"), pod("web-0"), "default")
        events = recorder(store)
        events.event(live, WARNING, "FailedStart", "no such image", field_path="spec.containers{main}")
        await events.flush()
        (event,) = await events_of(store)
        assert event["involvedObject"] == {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": "default",
            "name": "web-0",
            "uid": live["metadata"]["uid"],
            "resourceVersion": live["metadata"]["resourceVersion"],
            "fieldPath": "spec.containers{main}",
        }
        assert (event["type"], event["reason"], event["message"], event["count"]) == (
            "Warning",
            "FailedStart",
            "no such image",
            1,
        )
        assert event["source"] == {"component": "test", "host": "host-1"}
        assert event["firstTimestamp"] == event["lastTimestamp"] == "2026-01-05T08:00:00Z"
        assert event["metadata"]["name"].startswith("web-0.")
        await events.stop()


@virtual
async def test_a_reason_code_is_a_reason() -> None:
    async with memory_store() as store:
        events = recorder(store)
        events.event(POD, WARNING, Reason.CONFIGURATION_INVALID, "no such plugin")
        await events.flush()
        assert [event["reason"] for event in await events_of(store)] == ["ConfigurationInvalid"]
        await events.stop()


@virtual
async def test_the_same_thing_again_raises_the_count() -> None:
    async with memory_store() as store:
        events = recorder(store)
        for _ in range(3):
            events.event(POD, NORMAL, "Started", "it runs")
            await events.flush()
            await asyncio.sleep(10)
        events.event(POD, NORMAL, "Stopped", "it stopped")
        events.event(other_pod(7), NORMAL, "Started", "it runs")
        await events.flush()
        found = {(e["involvedObject"]["name"], e["reason"]): e for e in await events_of(store)}
        assert {key: e["count"] for key, e in found.items()} == {
            ("web-0", "Started"): 3,
            ("web-0", "Stopped"): 1,
            ("web-7", "Started"): 1,
        }
        started = found["web-0", "Started"]
        assert (started["firstTimestamp"], started["lastTimestamp"]) == ("2026-01-05T08:00:00Z", "2026-01-05T08:00:20Z")
        await events.stop()


@virtual
async def test_similar_messages_are_combined() -> None:
    async with memory_store() as store:
        events = recorder(store)
        for n in range(14):
            events.event(POD, NORMAL, "Pulled", f"took {n} s")
        await events.flush()
        found = await events_of(store)
        assert len(found) == 11
        (combined,) = [e for e in found if e["message"].startswith("(combined from similar events)")]
        assert combined["message"].endswith("took 13 s")
        assert combined["count"] == 4
        assert sum(e["count"] for e in found) == 14
        await asyncio.sleep(700)
        events.event(POD, NORMAL, "Pulled", "took 99 s")
        await events.flush()
        assert "took 99 s" in [e["message"] for e in await events_of(store)], "after ten minutes it starts anew"
        await events.stop()


@virtual
async def test_one_noisy_object_is_silenced_and_others_are_not() -> None:
    async with memory_store() as store:
        events = recorder(store)
        before = DROPPED.labels("test", "too many")._value.get()
        for _ in range(100):
            events.event(POD, NORMAL, "Noise", "again")
        events.event(other_pod(1), NORMAL, "News", "something")
        await events.flush()
        assert {e["reason"]: e["count"] for e in await events_of(store)} == {"Noise": 25, "News": 1}
        assert DROPPED.labels("test", "too many")._value.get() - before == 75
        await asyncio.sleep(300)
        events.event(POD, NORMAL, "Noise", "again")
        await events.flush()
        assert {e["reason"]: e["count"] for e in await events_of(store)}["Noise"] == 26, "one more after five minutes"
        await events.stop()


@virtual
async def test_cluster_wide_objects_have_their_events_in_default() -> None:
    async with memory_store() as store:
        events = recorder(store)
        events.event({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "uid": "u9"}}, NORMAL, "Ready", "up")
        await events.flush()
        (event,) = await events_of(store)
        assert event["involvedObject"]["name"] == "n1"
        await events.stop()


@virtual
async def test_an_expired_event_is_said_anew() -> None:
    async with memory_store() as store:
        events = recorder(store)
        events.event(POD, NORMAL, "Started", "it runs")
        await events.flush()
        (first,) = await events_of(store)
        await store.delete(await store.resource("", "Event"), first["metadata"]["name"], "default")
        events.event(POD, NORMAL, "Started", "it runs")
        await events.flush()
        (second,) = await events_of(store)
        assert second["metadata"]["name"] != first["metadata"]["name"]
        assert second["count"] == 2
        await events.stop()


@virtual
async def test_while_the_store_is_away_nothing_is_lost_and_nobody_waits() -> None:
    async with memory_store() as inner:
        store = BreakableStore(inner)
        outages = 0
        real = store.create

        async def away(*args: Any, **options: Any) -> Raw:
            nonlocal outages
            outages += 1
            if outages == 1:
                await real(*args, **options)
                raise Timeout("the answer was lost")
            if outages < 4:
                raise ServiceUnavailable("away")
            return await real(*args, **options)

        store.create = away  # type: ignore[method-assign]
        events = recorder(store)
        started_s = current_loop().time()
        for n in range(5):
            events.event(other_pod(n), NORMAL, "Started", "it runs")
            events.event(other_pod(n), NORMAL, "Started", "it runs")
        assert current_loop().time() == started_s
        await events.flush()
        found = await events_of(inner)
        assert sorted((e["involvedObject"]["name"], e["count"]) for e in found) == [(f"web-{n}", 2) for n in range(5)]
        await events.stop()


@virtual
async def test_what_the_store_will_never_take_is_dropped_and_does_not_block() -> None:
    async with memory_store() as inner:
        store = BreakableStore(inner)
        real = store.create

        async def picky(kind: Any, obj: Any, *args: Any, **options: Any) -> Raw:
            if obj["involvedObject"]["name"] == "web-1":
                raise Forbidden("the namespace is being terminated")
            return await real(kind, obj, *args, **options)

        store.create = picky  # type: ignore[method-assign, assignment]
        events = recorder(store)
        for n in range(3):
            events.event(other_pod(n), NORMAL, "Started", "it runs")
        events.event({}, NORMAL, "Nothing", "about nothing")
        await events.flush()
        assert sorted(e["involvedObject"]["name"] for e in await events_of(inner)) == ["web-0", "web-2"]
        await events.stop()


@virtual
async def test_a_store_that_never_answers_ends_in_drops_not_in_growth() -> None:
    async with memory_store() as inner:
        store = BreakableStore(inner)

        async def never(*_args: Any, **_options: Any) -> Raw:
            raise ServiceUnavailable("away")

        store.create = never  # type: ignore[method-assign]
        events = recorder(store, remembered_max=10, attempts_max=2, backoff=Backoff(base_s=1, max_s=1))
        for n in range(1000):
            events.event(other_pod(n), NORMAL, "Started", "it runs")
        assert len(events._pending) == 10
        assert len(events._correlator._entries) == len(events._correlator._buckets) == 10
        await events.flush()
        started_s = current_loop().time()
        events.event(POD, NORMAL, "Started", "it runs")
        await events.stop(flush_s=0.5)
        assert current_loop().time() - started_s == 0.5


@virtual
async def test_stop_before_start_is_fine() -> None:
    async with memory_store() as store:
        events = EventRecorder(store, component="test", clock=current_loop().clock)
        events.event(config_map("x"), NORMAL, "A", "b")
        await events.stop()


@given(
    occurrences=st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from("AB"), st.integers(0, 20), st.floats(0, 400)), max_size=80
    )
)
@settings(max_examples=60)
def test_counts_add_up(occurrences: list[tuple[int, str, int, float]]) -> None:
    """Every occurrence is in exactly one entry or was dropped; an object never exceeds its allowance."""
    limits = EventLimits(similar_max=3, burst=5, refill_s=100)
    correlator, now_s = Correlator(limits), 0.0
    entries: dict[int, Any] = {}
    dropped = 0
    taken: dict[int, list[float]] = {}
    for who, reason, message, pause_s in occurrences:
        now_s += pause_s
        entry = correlator.observe(reference_to(other_pod(who)), NORMAL, reason, f"m{message}", now_s)
        if entry is None:
            dropped += 1
        else:
            entries[id(entry)] = entry
            taken.setdefault(who, []).append(now_s)
    assert sum(entry.count for entry in entries.values()) + dropped == len(occurrences)
    for times in taken.values():
        for index, since_s in enumerate(times):
            for upto in range(index, len(times)):
                allowed = limits.burst + (times[upto] - since_s) / limits.refill_s
                assert upto - index + 1 <= allowed + 1e-6


def test_everything_recorded_is_counted() -> None:
    async def main() -> None:
        async with memory_store() as store:
            before = RECORDED.labels("test")._value.get()
            events = recorder(store)
            for n in range(7):
                events.event(other_pod(n), NORMAL, "Started", "it runs")
            await events.stop()
            assert RECORDED.labels("test")._value.get() - before == 7

    run(main())
