"""Bandwidth: filter and score by direction, explanations with holders, and lending of what is reserved and unused."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.engine.blocks import NodeBlock, PodBlock, one_shape
from muster.engine.events import NodeMetricGone, NodeMetricSeen, Tick
from muster.engine.facts import NodeFacts, NodeMetricFacts, PodFacts
from muster.engine.plugin import Wake
from muster.engine.plugins.bandwidth import Bandwidth, BandwidthArgs, used_percent
from muster.engine.plugins.bandwidth_reclaim import ReclaimArgs, lent_bps, watch
from muster.engine.profile import Profile
from muster.engine.resources import EGRESS, INGRESS
from muster.engine.state import State
from muster.objects.reasons import Reason
from muster.objects.time import format_time
from tests.engine.building import node, pod, state_of

GBPS = 10**9
START = 1_000_000.0


def net(name: str, egress: str, ingress: str | None = None) -> NodeFacts:
    return node(name, annotations={"muster.dev/bandwidth-egress": egress, "muster.dev/bandwidth-ingress": ingress or egress})


def sender(name: str, egress: str = "0", ingress: str = "0", on: str = "") -> PodFacts:
    notes = {"muster.dev/bandwidth-egress": egress, "muster.dev/bandwidth-ingress": ingress}
    return pod(name, annotations=notes, node=on)


def attached(state: State, args: BandwidthArgs | None = None) -> Bandwidth:
    plugin = Bandwidth(args)
    Profile("test", [plugin]).attach(state)
    return plugin


def block(state: State, facts: PodFacts) -> PodBlock:
    return one_shape(state.see_pod(facts).shape)


@pytest.mark.parametrize(
    ("egress", "ingress", "fits"),
    [
        pytest.param("0", "0", [True, True, True, True], id="nothing asked for fits everywhere, also without capacity"),
        pytest.param("1Gbps", "0", [True, True, True, False], id="egress alone"),
        pytest.param("0", "1Gbps", [True, False, True, False], id="ingress alone"),
        pytest.param("10Gbps", "1Gbps", [True, False, False, False], id="both, exact fit counts"),
        pytest.param("10000000001", "0", [False, False, False, False], id="one bit too much"),
    ],
)
def test_filter(egress: str, ingress: str, fits: list[bool]) -> None:
    state = state_of([net("a", "10G"), net("b", "10G", "500M"), net("c", "2G"), node("d")])
    plugin = attached(state)
    answer = plugin.filter(block(state, sender("p", egress, ingress)), NodeBlock(state.nodes))
    assert np.broadcast_to(answer, 4).tolist() == fits


def test_placed_pods_count_against_the_capacity() -> None:
    state = state_of([net("a", "1G"), net("b", "1G")], [sender("one", "800M", on="a")])
    plugin = attached(state)
    wants = block(state, sender("p", "300M"))
    assert plugin.filter(wants, NodeBlock(state.nodes)).tolist() == [False, True]
    state.remove_pod("uid-default-one")
    assert plugin.filter(wants, NodeBlock(state.nodes)).tolist() == [True, True]


def test_a_pod_without_bandwidth_fits_where_it_is_overdrawn() -> None:
    state = state_of([net("a", "1G")], [sender("one", "800M", on="a"), sender("two", "800M", on="a")])
    plugin = attached(state)
    assert np.broadcast_to(plugin.filter(block(state, pod("p", cpu="1")), NodeBlock(state.nodes)), 1).tolist() == [True]
    assert plugin.filter(block(state, sender("q", "0", "1M")), NodeBlock(state.nodes)).tolist() == [True]
    assert plugin.filter(block(state, sender("r", "1")), NodeBlock(state.nodes)).tolist() == [False]


@pytest.mark.parametrize(
    ("strategy", "egress", "ingress", "scores"),
    [
        # a: 10G both ways, 2G/0 used; b: 10G out, 1G in, empty
        pytest.param("Spread", "2G", "0", [60, 80], id="spread by what is left of egress"),
        pytest.param("Pack", "2G", "0", [40, 20], id="pack by what is used of egress"),
        pytest.param("Spread", "1G", "500M", [70, 50], id="spread looks at the tighter direction"),
        pytest.param("Pack", "1G", "500M", [30, 50], id="pack too"),
        pytest.param("Spread", "0", "0", [0, 0], id="spread does not disturb"),
        pytest.param("Pack", "0", "0", [0, 0], id="pack does not disturb"),
    ],
)
def test_score(strategy: str, egress: str, ingress: str, scores: list[int]) -> None:
    state = state_of([net("a", "10G"), net("b", "10G", "1G")], [sender("one", "2G", on="a")])
    plugin = attached(state, msgspec.convert({"strategy": strategy}, BandwidthArgs))
    answer = plugin.score(block(state, sender("p", egress, ingress)), NodeBlock(state.nodes))
    assert np.broadcast_to(answer, 2).tolist() == scores


def test_many_shapes_on_one_node_get_the_answers_of_one_shape_each() -> None:
    state = state_of([net("a", "10G", "1G")], [sender("one", "2G", on="a")])
    plugin = attached(state)
    shapes = [state.see_pod(f).shape for f in (sender("p", "8G"), sender("q", "9G"), sender("r", "0", "1G"), pod("s", cpu="1"))]
    request, need = (np.stack([getattr(s, word) for s in shapes], axis=1) for word in ("request", "need"))
    many = PodBlock(request, need, np.zeros((2, 4), np.int64), np.zeros(4, np.int64))
    one = NodeBlock(state.nodes, 0)
    assert plugin.filter(many, one).tolist() == [True, False, True, True]
    assert plugin.score(many, one).tolist() == [0, 0, 0, 0]
    packing = attached(state, BandwidthArgs(strategy="Pack"))
    assert packing.score(many, one).tolist() == [100, 100, 100, 0]


@given(
    capacity=st.integers(0, 2**62),
    used=st.integers(0, 2**62),
    request=st.integers(0, 10**14),
)
def test_used_percent_stays_within_bounds(capacity: int, used: int, request: int) -> None:
    cap, free = np.array([capacity]), np.array([capacity - used])
    percent = int(used_percent(cap, free, request)[0])
    assert 0 <= percent <= 100
    if 0 < capacity <= 10**14:
        assert percent == min(used + request, capacity) * 100 // capacity


def test_explain_names_the_nearest_node_the_direction_and_the_holders() -> None:
    holding = [sender("big", "600M", on="a"), sender("small", "100M", on="a"), sender("other", "900M", on="b")]
    state = state_of([net("a", "1G"), net("b", "1G"), node("c")], holding)
    plugin = attached(state)
    reason, shortfalls = plugin.explain(block(state, sender("p", "500M", "10M")), NodeBlock(state.nodes))
    assert reason is Reason.BANDWIDTH_INSUFFICIENT
    (short,) = shortfalls
    assert (short.resource, short.where, short.want, short.best, short.unit) == (
        "bandwidth-egress",
        "a",
        500_000_000,
        300_000_000,
        "bps",
    )
    assert [(h.name, h.amount) for h in short.holders] == [("default/big", 600_000_000), ("default/small", 100_000_000)]
    assert "wants 500Mbps, a has 300Mbps, 200Mbps short" in str(short)


def test_explain_tells_both_directions_when_both_lack() -> None:
    state = state_of([net("a", "1G", "100M")])
    plugin = attached(state)
    _, shortfalls = plugin.explain(block(state, sender("p", "2G", "300M")), NodeBlock(state.nodes, 0))
    assert [(s.resource, s.missing) for s in shortfalls] == [
        ("bandwidth-egress", GBPS),
        ("bandwidth-ingress", 200_000_000),
    ]


# -- lending ------------------------------------------------------------------------------------------------------------------

LEND = ReclaimArgs(enabled=True, idle_ratio=0.5, after_seconds=120, keep_ratio=0.25, release_ratio=0.75, expire_seconds=180)


@pytest.mark.parametrize(
    ("uses", "lent"),
    [
        pytest.param([(0, 10)], 0, id="one report is not steady"),
        pytest.param([(0, 10), (60, 10)], 0, id="not long enough"),
        pytest.param([(0, 10), (60, 10), (120, 10)], 75, id="steady: all but what is kept"),
        pytest.param([(0, 10), (60, 40), (120, 10)], 60, id="the highest use is kept too"),
        pytest.param([(0, 10), (60, 51), (120, 10)], 0, id="one report above idle starts the waiting anew"),
        pytest.param([(0, 10), (60, 10), (120, 10), (180, 70)], 30, id="between the ratios lending goes on"),
        pytest.param([(0, 10), (60, 10), (120, 10), (180, 76)], 0, id="above release it ends at once"),
        pytest.param([(0, 10), (60, 10), (120, 10), (180, 76), (240, 10)], 0, id="and does not come back at once"),
        pytest.param(
            [(0, 10), (60, 10), (120, 10), (180, 76), (240, 10), (300, 10), (360, 10)], 75, id="but after the whole waiting"
        ),
        pytest.param([(0, 10), (181, 10)], 0, id="a hole in the reports proves nothing"),
        pytest.param([(0, 10), (60, 10), (120, 10), (301, 10)], 0, id="nor keeps lending alive"),
        pytest.param([(0, 10), (120, 10), (60, 100)], 75, id="an older report changes nothing"),
    ],
)
def test_hysteresis(uses: list[tuple[int, int]], lent: int) -> None:
    quiet = None
    for at, use in uses:
        quiet = watch(quiet, use, 100, float(at), LEND)
    assert lent_bps(quiet, 100, LEND) == lent


def report(name: str, at: float, total: int, **pods: int) -> NodeMetricFacts:
    def usage(bps: int) -> dict[str, object]:
        return {"resources": {"bandwidth-egress": str(bps), "bandwidth-ingress": "0"}}

    raw = {
        "metadata": {"name": name},
        "status": {
            "updateTime": format_time(at),
            "nodeMetric": {"nodeUsage": usage(total)},
            "podsMetric": [{"namespace": "default", "name": p, "podUsage": usage(bps)} for p, bps in pods.items()],
        },
    }
    return msgspec.convert(raw, NodeMetricFacts)


def lending(*pods: PodFacts, **changes: float) -> tuple[State, Bandwidth]:
    state = state_of([net("a", "1000")], pods)
    state.now = START
    args = BandwidthArgs(reclaim=msgspec.structs.replace(LEND, **changes))
    return state, attached(state, args)


def tell(state: State, plugin: Bandwidth, metric: NodeMetricFacts) -> None:
    state.metrics[metric.metadata.name] = metric
    assert plugin.event(NodeMetricSeen(metric)) == [0]


def offered(state: State, plugin: Bandwidth) -> int:
    return int(plugin._offered(NodeBlock(state.nodes))[0][0])


def test_off_by_default() -> None:
    state = state_of([net("a", "1000")], [sender("one", "1000", on="a")])
    plugin = attached(state)
    for minute in range(60):
        state.now = START + 60 * minute
        assert plugin.event(NodeMetricSeen(report("a", state.now, 0, one=0))) is None
    assert offered(state, plugin) == 0
    assert plugin.wakes_on == {Wake.NODE}


def steady(state: State, plugin: Bandwidth, total: int, **pods: int) -> None:
    for _ in range(3):
        state.now += 60
        tell(state, plugin, report("a", state.now, total, **pods))


def test_lent_bandwidth_takes_new_work_and_stays_lent_when_taken_back() -> None:
    state, plugin = lending(sender("one", "1000", on="a"))
    assert plugin.wakes_on == {Wake.NODE, Wake.METRIC}
    steady(state, plugin, 100, one=100)
    assert offered(state, plugin) == 750
    borrower = state.see_pod(sender("two", "700"))
    assert plugin.filter(one_shape(borrower.shape), NodeBlock(state.nodes)).tolist() == [True]
    state.assume(borrower, "a")
    assert offered(state, plugin) == 50
    state.now += 60
    tell(state, plugin, report("a", state.now, 1000, one=800, two=200))
    assert offered(state, plugin) == -700, "taken back at once; the borrower stays"
    assert borrower.node == "a"


def test_measured_use_bounds_what_is_lent() -> None:
    """The node sends 600 though its one pod sends 10: something else does, and only 400 are really unused."""
    state, plugin = lending(sender("one", "1000", on="a"))
    steady(state, plugin, 600, one=10)
    assert offered(state, plugin) == 400
    state.see_pod(sender("two", "300", on="a"))
    assert offered(state, plugin) == 100, "the newcomer has not been measured: it may use all that it asked for"


def test_pods_that_the_report_does_not_know_count_with_their_whole_request() -> None:
    state, plugin = lending(sender("one", "1000", on="a"))
    steady(state, plugin, 0, one=0)
    assert offered(state, plugin) == 750
    state.see_pod(sender("two", "300", on="a"))
    assert offered(state, plugin) == 450
    state.now += 60
    tell(state, plugin, report("a", state.now, 0, one=0))
    assert offered(state, plugin) == 450
    state.now += 60
    tell(state, plugin, report("a", state.now, 300, one=0, two=300))
    assert offered(state, plugin) == 450


@pytest.mark.parametrize("way", ["expired", "gone", "unreadable"])
def test_without_a_fresh_report_nothing_is_lent(way: str) -> None:
    state, plugin = lending(sender("one", "1000", on="a"))
    steady(state, plugin, 0, one=0)
    if way == "expired":
        state.now += 179
        assert plugin.event(Tick()) == []
        assert offered(state, plugin) == 750
        state.now += 1
        assert plugin.event(Tick()) == [0]
    elif way == "gone":
        assert plugin.event(NodeMetricGone("a")) == [0]
    else:
        bad = msgspec.convert({"metadata": {"name": "a"}, "status": {"updateTime": "soon", "nodeMetric": {}}}, NodeMetricFacts)
        assert plugin.event(NodeMetricSeen(bad)) == [0]
    assert offered(state, plugin) == 0


def test_taking_a_pod_away_and_putting_it_back_changes_nothing() -> None:
    """Preemption tries things out that way."""
    state, plugin = lending(sender("one", "600", on="a"), sender("two", "400", on="a"))
    steady(state, plugin, 0, one=0, two=400)
    assert offered(state, plugin) == 450
    record = state.pods["uid-default-one"]
    phase = record.phase
    state._take_away(record)
    assert offered(state, plugin) == 600
    state._put(record, "a", phase)
    assert offered(state, plugin) == 450


def test_lending_ratios_must_leave_a_gap() -> None:
    with pytest.raises(msgspec.ValidationError, match=r"releaseRatio: 0\.4 is less than idleRatio 0\.5"):
        msgspec.convert({"reclaim": {"enabled": True, "releaseRatio": 0.4}}, BandwidthArgs)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("pod"), st.integers(0, 9), st.integers(1, 800)),
        st.tuples(st.just("gone"), st.integers(0, 9), st.just(0)),
        st.tuples(st.just("report"), st.integers(0, 1200), st.integers(0, 2**10 - 1)),
        st.tuples(st.just("wait"), st.integers(1, 200), st.just(0)),
    ),
    max_size=30,
)


@settings(max_examples=60, deadline=None)
@given(steps)
def test_lending_never_goes_over_the_capacity(steps: list[tuple[str, int, int]]) -> None:
    """Whatever happens: with anything lent, what is offered fits beside the measured use and what is not measured yet."""
    state, plugin = lending(after_seconds=0.0)
    use, known = 0, set[str]()
    uids: dict[str, str] = {}
    born = 0
    for what, number, amount in steps:
        name = f"p{number}"
        if what == "pod" and uids.get(name) not in state.pods:
            facts = sender(name, str(amount))
            born += 1
            uids[name] = f"{name}-{born}"
            meta = msgspec.structs.replace(facts.metadata, uid=uids[name])
            record = state.see_pod(msgspec.structs.replace(facts, metadata=meta))
            if plugin.filter(one_shape(record.shape), NodeBlock(state.nodes))[0]:
                state.assume(record, "a")
            else:
                state.remove_pod(record.uid)
        elif what == "gone":
            if state.remove_pod(uids.get(name, "")):
                known.discard(name)
        elif what == "report":
            use, known = number, {p.name for p in state.pods.values() if amount >> int(p.name[1:]) & 1}
            tell(state, plugin, report("a", state.now, use, **dict.fromkeys(known, 0)))
        else:
            state.now += number
            plugin.event(Tick())
        lent = plugin._offered(NodeBlock(state.nodes))[0][0] - state.nodes.free[EGRESS, 0]
        assert lent >= 0
        if lent:
            unknown = sum(int(p.request[EGRESS]) for p in state.pods.values() if p.name not in known)
            assert offered(state, plugin) + use + unknown <= 1000
        fresh = plugin._offered(NodeBlock(state.nodes))[0][0]
        plugin._lend(0)
        assert plugin._offered(NodeBlock(state.nodes))[0][0] == fresh, "what is kept equals what is worked out anew"
    assert state.nodes.free[INGRESS, 0] == 1000
