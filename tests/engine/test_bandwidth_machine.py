"""Bandwidth, links and load through the engine's door: waiting, waking, gangs, and rows that are kept equal rows made anew."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.engine import events as ev
from muster.engine.decisions import AnyDecision, Park, Place
from muster.engine.facts import LinkFacts, NodeMetricFacts
from muster.engine.machine import Engine
from muster.engine.plugins.bandwidth import Bandwidth, BandwidthArgs
from muster.engine.plugins.bandwidth_reclaim import ReclaimArgs
from muster.engine.plugins.fit import Fit
from muster.engine.plugins.link_bandwidth import LinkBandwidth
from muster.engine.plugins.load_args import LoadAwareArgs
from muster.engine.plugins.load_aware import LoadAware
from muster.engine.profile import Profile
from muster.engine.resources import EGRESS
from muster.objects.reasons import Reason
from muster.objects.time import format_time
from tests.engine.building import PROFILE, node, pod

START = 1_000_000.0


def engine(*, reclaim: bool = False, load: dict[str, Any] | None = None, nodes: int = 2, bandwidth: str = "1000") -> Engine:
    lending = ReclaimArgs(enabled=reclaim, after_seconds=60)
    plugins = [
        Fit(),
        Bandwidth(BandwidthArgs(reclaim=lending)),
        LinkBandwidth(),
        LoadAware(msgspec.convert(load or {}, LoadAwareArgs)),
    ]
    made = Engine([Profile(PROFILE, plugins)])
    made.step([ev.NodeSeen(node(f"n{i}", annotations={"muster.dev/bandwidth": bandwidth})) for i in range(nodes)], START)
    return made


def send(
    name: str, bps: int = 0, *, to: str = "", gang: str = "", size: int = 0, cpu: str = "100m", on: str = ""
) -> ev.PodSeen:
    notes = {"muster.dev/bandwidth-egress": str(bps)} if bps else {}
    if to:
        notes["muster.dev/bandwidth-to"] = to
    if gang:
        notes |= {"gang.scheduling.koordinator.sh/name": gang, "gang.scheduling.koordinator.sh/min-available": str(size)}
    return ev.PodSeen(pod(name, namespace="alice", cpu=cpu, annotations=notes, node=on))


def link(capacity: str) -> ev.LinkSeen:
    spec = {"from": {"domain": "alice"}, "to": {"domain": "bob"}, "capacity": capacity}
    return ev.LinkSeen(msgspec.convert({"metadata": {"name": "ab"}, "spec": spec}, LinkFacts))


def report(name: str, at: float, *, cpu: str = "0", egress: int = 0, **pods: int) -> ev.NodeMetricSeen:
    def usage(bps: int, cores: str = "0") -> dict[str, Any]:
        return {"resources": {"cpu": cores, "memory": "0", "bandwidth-egress": bps, "bandwidth-ingress": 0}}

    status = {
        "updateTime": format_time(at),
        "nodeMetric": {"nodeUsage": usage(egress, cpu)},
        "podsMetric": [{"namespace": "alice", "name": p, "podUsage": usage(bps)} for p, bps in pods.items()],
    }
    return ev.NodeMetricSeen(msgspec.convert({"metadata": {"name": name}, "status": status}, NodeMetricFacts))


def placed(decisions: Sequence[AnyDecision]) -> dict[str, str]:
    return {p.name: p.node for d in decisions if isinstance(d, Place) for p in d.pods}


def parked(decisions: Sequence[AnyDecision]) -> dict[str, Reason]:
    return {d.unit: d.verdict.reason for d in decisions if isinstance(d, Park)}


def test_work_waits_for_bandwidth_and_starts_when_it_is_freed() -> None:
    made = engine(nodes=1)
    assert placed(made.step([send("one", 700)], START)) == {"one": "n0"}
    waits = made.step([send("two", 400)], START)
    assert parked(waits) == {"Pod/alice/two": Reason.BANDWIDTH_INSUFFICIENT}
    assert placed(made.step([ev.PodGone("uid-alice-one")], START)) == {"two": "n0"}


def test_a_gang_takes_a_link_whole_or_not_at_all() -> None:
    made = engine()
    made.step([link("1000")], START)
    first = [send(f"a{i}", to="bob=300", gang="a", size=3) for i in range(3)]
    assert len(placed(made.step(first, START))) == 3
    second = [send(f"b{i}", to="bob=100", gang="b", size=2) for i in range(2)]
    waits = made.step(second, START)
    assert placed(waits) == {}
    (park,) = waits
    assert isinstance(park, Park)
    assert [(s.reason, s.where) for s in park.verdict.shortfalls] == [
        (Reason.LINK_BANDWIDTH_INSUFFICIENT, "Link ab from alice to bob")
    ]
    assert len(placed(made.step([ev.PodGone("uid-alice-a0")], START))) == 2


def test_more_capacity_on_a_link_wakes_who_waits_for_it() -> None:
    made = engine()
    made.step([link("100")], START)
    assert parked(made.step([send("one", to="bob=200")], START)) == {"Pod/alice/one": Reason.LINK_BANDWIDTH_INSUFFICIENT}
    assert placed(made.step([link("200")], START)) == {"one": "n0"}


def test_an_unreadable_peer_list_parks_the_pod_by_name() -> None:
    made = engine()
    (park,) = made.step([send("one", to="bob=quick")], START)
    assert isinstance(park, Park)
    assert park.verdict.reason is Reason.UNIT_INVALID
    assert "muster.dev/bandwidth-to" in park.verdict.message


def test_a_report_that_lets_bandwidth_be_lent_wakes_who_waits() -> None:
    made = engine(reclaim=True, nodes=1)
    made.step([send("one", 1000)], START)
    assert parked(made.step([send("two", 500)], START)) == {"Pod/alice/two": Reason.BANDWIDTH_INSUFFICIENT}
    assert made.step([report("n0", START, one=0)], START) == []
    assert placed(made.step([report("n0", START + 60, one=0)], START + 60)) == {"two": "n0"}
    assert made.state.nodes.free[EGRESS, 0] == -500


def test_a_pod_that_goes_wakes_who_fits_into_what_is_lent() -> None:
    """What is free alone would not be enough for it."""
    made = engine(reclaim=True, nodes=1)
    made.step([send("quiet", 800)], START)
    for seconds in (0, 60):
        made.step([report("n0", START + seconds, quiet=0)], START + seconds)
    assert placed(made.step([send("second", 700)], START + 61)) == {"second": "n0"}
    assert parked(made.step([send("third", 500)], START + 62)) == {"Pod/alice/third": Reason.BANDWIDTH_INSUFFICIENT}
    assert placed(made.step([ev.PodGone("uid-alice-second")], START + 63)) == {"third": "n0"}


def test_load_steers_and_refuses() -> None:
    made = engine(load={"usageThresholds": {"cpu": 50}})
    made.step([report("n0", START, cpu="2"), report("n1", START, cpu="1")], START)
    assert placed(made.step([send("one", cpu="1")], START)) == {"one": "n1"}
    hot = [report("n0", START + 60, cpu="8"), report("n1", START + 60, cpu="8")]
    assert parked(made.step([*hot, send("two", cpu="1")], START + 60)) == {"Pod/alice/two": Reason.NODE_OVERLOADED}
    assert placed(made.step([report("n0", START + 90, cpu="1")], START + 90)) == {"two": "n0"}


def test_an_expired_report_refuses_though_nothing_else_happens() -> None:
    made = engine(load={}, nodes=1)
    made.step([report("n0", START, cpu="1")], START)
    assert placed(made.step([send("one")], START)) == {"one": "n0"}
    assert parked(made.step([send("two")], START + 180)) == {"Pod/alice/two": Reason.NODE_METRIC_EXPIRED}
    assert placed(made.step([report("n0", START + 200)], START + 200)) == {"two": "n0"}


@pytest.mark.parametrize("size", [1, 7])
def test_equal_pods_placed_at_once_stay_below_the_threshold(size: int) -> None:
    """8 cores, 2 in use, 50 percent: at most 4.04 cores, so two pods of one core (0.85 expected) and not three."""
    made = engine(load={"usageThresholds": {"cpu": 50}}, nodes=1)
    made.step([report("n0", START, cpu="2")], START)
    count = 0
    for start in range(0, 7, size):
        count += len(placed(made.step([send(f"p{i}", cpu="1") for i in range(start, start + size)], START)))
    assert count == 2


steps = st.lists(
    st.one_of(
        st.tuples(st.just("pod"), st.integers(0, 9), st.integers(0, 600), st.sampled_from(["", "bob=300", "bob=500"])),
        st.tuples(st.just("gone"), st.integers(0, 9)),
        st.tuples(st.just("report"), st.integers(0, 2), st.integers(0, 7), st.integers(0, 900)),
        st.tuples(st.just("link"), st.integers(0, 1200)),
        st.tuples(st.just("node"), st.integers(0, 3), st.integers(0, 1500)),
        st.tuples(st.just("wait"), st.integers(1, 100)),
    ),
    max_size=20,
)


@settings(max_examples=40, deadline=None)
@given(steps)
def test_rows_that_are_kept_equal_rows_made_anew(steps: list[tuple[Any, ...]]) -> None:
    made = engine(reclaim=True, load={"estimatedSecondsAfterPodScheduled": 90})
    now = START
    for what in steps:
        event: ev.AnyEvent = ev.Tick()
        match what:
            case ("pod", number, bps, to):
                event = send(f"p{number}", bps, to=to, cpu=f"{number % 3 + 1}00m")
            case ("gone", number):
                event = ev.PodGone(f"uid-alice-p{number}")
            case ("report", number, cores, egress):
                running = [p.name for p in made.state.on_node.get(f"n{number}", {}).values()]
                event = report(f"n{number}", now, cpu=str(cores), egress=egress, **dict.fromkeys(running, 0))
            case ("link", capacity):
                event = link(str(capacity))
            case ("node", number, bps):
                event = ev.NodeSeen(node(f"n{number}", annotations={"muster.dev/bandwidth": str(bps)}))
            case ("wait", seconds):
                now += seconds
                continue
        made.step([event], now)
        made.evaluator(PROFILE).check_invariants()
