"""LinkBandwidth: which pods count on which links, in which direction, and that no link is ever promised beyond its capacity."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.engine.blocks import NodeBlock, PodBlock, one_shape
from muster.engine.events import LinkGone, LinkSeen, NodeGone, NodeSeen, PoolGone, PoolSeen
from muster.engine.facts import LinkFacts, PodFacts, PoolFacts
from muster.engine.plugin import Wake
from muster.engine.plugins.link_bandwidth import LinkBandwidth
from muster.engine.pods import PodRecord
from muster.engine.profile import Profile
from muster.engine.state import State
from muster.engine.units import single_unit
from muster.objects.reasons import Reason
from tests.engine.building import node, pod, state_of

MBPS = 10**6


def link(name: str, start: str, end: str, capacity: str = "1G", **more: Any) -> LinkFacts:
    def one(text: str) -> dict[str, str]:
        kind, slash, word = text.partition("/")
        return {kind: word} if slash else {"domain": text}

    spec = {"from": one(start), "to": one(end), "capacity": capacity, **more}
    return msgspec.convert({"metadata": {"name": name}, "spec": spec}, LinkFacts)


def pool(name: str, *nodes: str, **labels: str) -> PoolFacts:
    spec: dict[str, Any] = {"nodes": list(nodes)}
    if labels:
        spec["selector"] = {"matchLabels": labels}
    return msgspec.convert({"metadata": {"name": name}, "spec": spec}, PoolFacts)


def party(name: str, to: str = "", domain: str = "alice", on: str = "") -> PodFacts:
    return pod(name, namespace=domain, annotations={"muster.dev/bandwidth-to": to} if to else {}, node=on)


def cluster(
    *links: LinkFacts, pools: tuple[PoolFacts, ...] = (), pods: tuple[PodFacts, ...] = ()
) -> tuple[State, LinkBandwidth]:
    nodes = [node("n1", labels={"zone": "east"}), node("n2", labels={"zone": "west"}), node("n3")]
    state = state_of(nodes, pods)
    state.links.update({one.metadata.name: one for one in links})
    state.pools.update({one.metadata.name: one for one in pools})
    plugin = LinkBandwidth()
    Profile("test", [plugin]).attach(state)
    return state, plugin


def block(record: PodRecord) -> PodBlock:
    pods = one_shape(record.shape)
    pods.pod = record.facts
    return pods


def mask(state: State, plugin: LinkBandwidth, facts: PodFacts) -> list[bool]:
    return plugin.filter(block(state.see_pod(facts)), NodeBlock(state.nodes)).tolist()


ALL, NONE = [True] * 3, [False] * 3


@pytest.mark.parametrize(
    ("links", "facts", "fits"),
    [
        pytest.param([link("ab", "alice", "bob")], party("p", "bob=1G"), ALL, id="exact fit counts"),
        pytest.param([link("ab", "alice", "bob")], party("p", "bob=1000000001"), NONE, id="one bit too much"),
        pytest.param([link("ab", "alice", "bob")], party("p", "carol=5G"), ALL, id="another peer has no link"),
        pytest.param([link("ab", "alice", "bob")], party("p", "bob=5G", domain="dave"), ALL, id="another sender"),
        pytest.param([link("ab", "alice", "bob", reserved="600M")], party("p", "bob=500M"), NONE, id="a part is held back"),
        pytest.param([link("ba", "bob", "alice")], party("p", "bob=1G"), ALL, id="backward has as much as forward"),
        pytest.param([link("ba", "bob", "alice", reverse="1M")], party("p", "bob=2M"), NONE, id="unless it says otherwise"),
        pytest.param([link("ba", "bob", "alice", "1M", reverse="1G")], party("p", "bob=1G"), ALL, id="each way has its own"),
        pytest.param([link("one", "alice", "bob"), link("two", "bob", "alice", "1M")], party("p", "bob=2M"), NONE, id="all"),
        pytest.param([link("p", "pool/east", "bob", "1M")], party("p", "bob=2M"), [False, True, True], id="from a pool"),
        pytest.param([link("p", "pool/east", "pool/west", "1M")], party("p", "pool/west=2M"), [False, True, True], id="of two"),
        pytest.param([link("p", "pool/east", "pool/west", "1M")], party("p", "pool/east=2M"), [True, False, True], id="back"),
        pytest.param([link("p", "pool/nowhere", "bob", "1M")], party("p", "bob=2M"), ALL, id="a pool that is not there"),
        pytest.param([link("ab", "alice", "bob", "quick")], party("p", "bob=1M"), NONE, id="an unreadable capacity is none"),
        pytest.param([link("ab", "alice", "bob", "0")], party("p", "bob=0"), ALL, id="nothing to send"),
        pytest.param([link("aa", "alice", "alice", "0")], party("p", "alice=1M"), ALL, id="a link to itself is none"),
    ],
)
def test_filter(links: list[LinkFacts], facts: PodFacts, fits: list[bool]) -> None:
    state, plugin = cluster(*links, pools=(pool("east", zone="east"), pool("west", "n2")))
    assert mask(state, plugin, facts) == fits


def test_placed_pods_count_assumed_ones_too() -> None:
    state, plugin = cluster(link("ab", "alice", "bob"), pods=(party("one", "bob=400M", on="n1"),))
    assert plugin.used_bps("ab") == 400 * MBPS
    two = state.see_pod(party("two", "bob=400M"))
    state.assume(two, "n3")
    assert plugin.used_bps("ab") == 800 * MBPS
    assert plugin.used_bps("ab", reverse=True) == 0
    three = party("three", "bob=400M")
    assert mask(state, plugin, three) == NONE
    state.woken.clear()
    state.forget(two)
    assert Wake.LINK in state.woken
    assert mask(state, plugin, three) == ALL


def test_a_pod_that_sends_nothing_is_not_concerned() -> None:
    state, plugin = cluster(link("ab", "alice", "bob"))
    assert not plugin.concerns(block(state.see_pod(party("p"))))
    assert plugin.concerns(block(state.see_pod(party("q", "bob=1M"))))


def test_a_lower_capacity_ends_nothing_and_lets_nothing_in() -> None:
    state, plugin = cluster(link("ab", "alice", "bob"), pods=(party("one", "bob=800M", on="n1"),))
    state.woken.clear()
    plugin.event(LinkSeen(link("ab", "alice", "bob", "500M")))
    assert state.pods["uid-alice-one"].node == "n1"
    assert plugin.used_bps("ab") == 800 * MBPS
    assert mask(state, plugin, party("p", "bob=1")) == NONE
    assert Wake.LINK in state.woken
    plugin.event(LinkGone("ab"))
    assert plugin.used_bps("ab") == 0
    assert mask(state, plugin, party("p", "bob=1")) == ALL


def test_a_new_link_counts_what_runs_already() -> None:
    _, plugin = cluster(pods=(party("one", "bob=800M", on="n1"),))
    plugin.event(LinkSeen(link("ab", "alice", "bob")))
    assert plugin.used_bps("ab") == 800 * MBPS


def test_pools_change_with_labels_and_objects() -> None:
    state, plugin = cluster(
        link("ew", "pool/east", "bob"), pools=(pool("east", zone="east"),), pods=(party("one", "bob=800M", on="n2"),)
    )
    assert plugin.used_bps("ew") == 0
    state.apply_node(NodeSeen(node("n2", labels={"zone": "east"})))
    state.flush_nodes()
    assert plugin.used_bps("ew") == 800 * MBPS
    assert mask(state, plugin, party("p", "bob=300M")) == [False, False, True]
    plugin.event(PoolSeen(pool("east", "n3")))
    assert plugin.used_bps("ew") == 0
    plugin.event(PoolGone("east"))
    assert mask(state, plugin, party("p", "bob=3G")) == ALL


def test_a_node_that_goes_takes_its_pods_off_the_link() -> None:
    state, plugin = cluster(link("ab", "alice", "bob"), pods=(party("one", "bob=800M", on="n2"),))
    state.apply_node(NodeGone("n2"))
    state.flush_nodes()
    assert plugin.used_bps("ab") == 0
    state.apply_node(NodeSeen(node("n2")))
    state.flush_nodes()
    assert plugin.used_bps("ab") == 800 * MBPS


def test_an_annotation_that_changes_is_counted_anew() -> None:
    state, plugin = cluster(link("ab", "alice", "bob"), pods=(party("one", "bob=800M", on="n2"),))
    state.see_pod(party("one", "bob=300M", on="n2"))
    assert plugin.used_bps("ab") == 300 * MBPS
    state.see_pod(party("one", on="n2"))
    assert plugin.used_bps("ab") == 0


def test_explain_names_the_link_and_who_holds_it() -> None:
    running = (party("one", "bob=600M", on="n1"), party("two", "bob=300M", on="n2"))
    state, plugin = cluster(link("ab", "alice", "bob"), pods=running)
    reason, shortfalls = plugin.explain(block(state.see_pod(party("p", "bob=500M"))), NodeBlock(state.nodes))
    assert reason is Reason.LINK_BANDWIDTH_INSUFFICIENT
    (short,) = shortfalls
    assert (short.where, short.want, short.best, short.unit) == ("Link ab from alice to bob", 500 * MBPS, 100 * MBPS, "bps")
    assert [(h.name, h.amount, h.node) for h in short.holders] == [
        ("alice/one", 600 * MBPS, "n1"),
        ("alice/two", 300 * MBPS, "n2"),
    ]


def test_explain_says_when_a_capacity_cannot_be_read() -> None:
    state, plugin = cluster(link("ab", "alice", "bob", "quick"))
    _, (short,) = plugin.explain(block(state.see_pod(party("p", "bob=1M"))), NodeBlock(state.nodes))
    assert "spec.capacity: 'quick' is not a bandwidth" in short.where


def test_a_bad_annotation_is_refused_by_name() -> None:
    state, plugin = cluster(link("ab", "alice", "bob"))
    record = state.see_pod(party("p", "bob=fast"))
    verdict = plugin.prefilter(single_unit(record), block(record), 0.0)
    assert verdict is not None
    assert verdict.reason is Reason.UNIT_INVALID
    assert "metadata.annotations[muster.dev/bandwidth-to]: peer 'bob': 'fast' is not a bandwidth" in verdict.message
    good = state.see_pod(party("q", "bob=1M"))
    assert plugin.prefilter(single_unit(good), block(good), 0.0) is None


steps = st.lists(
    st.one_of(
        st.tuples(st.just("pod"), st.integers(0, 9), st.sampled_from(["bob", "carol", "pool/west"]), st.integers(1, 700)),
        st.tuples(st.just("gone"), st.integers(0, 9), st.just(""), st.just(0)),
        st.tuples(st.just("link"), st.integers(0, 1), st.just(""), st.integers(0, 1500)),
        st.tuples(st.just("node"), st.integers(1, 3), st.sampled_from(["east", "west"]), st.just(0)),
    ),
    max_size=30,
)


@settings(max_examples=60, deadline=None)
@given(steps)
def test_no_link_is_ever_promised_beyond_its_capacity(steps: list[tuple[str, int, str, int]]) -> None:
    """Taking what the filter allows, one after the other. What a lower capacity or a label overdrew only falls."""
    links = (link("ab", "alice", "bob", "1000"), link("ew", "pool/east", "pool/west", "1000", reverse="600"))
    state, plugin = cluster(*links, pools=(pool("east", zone="east"), pool("west", zone="west")))
    for what, number, word, amount in steps:
        ways = (("ab", False), ("ew", False), ("ew", True))
        before = {way: plugin.used_bps(way[0], reverse=way[1]) for way in ways}
        if what == "pod" and f"uid-alice-p{number}" not in state.pods:
            record = state.see_pod(party(f"p{number}", f"{word}={amount}"))
            fits = plugin.filter(block(record), NodeBlock(state.nodes))
            if fits.any():
                state.assume(record, state.nodes.names[int(fits.argmax())])
            else:
                state.remove_pod(record.uid)
            limits = {(lane.way.link, lane.way.is_reverse): lane.capacity_bps for ls in plugin._lanes.values() for lane in ls}
            for way in ways:
                used = plugin.used_bps(way[0], reverse=way[1])
                assert used <= limits[way] or used == before[way]
        elif what == "gone":
            state.remove_pod(f"uid-alice-p{number}")
        elif what == "link":
            state.links["ab"] = link("ab", "alice", "bob", str(amount))
            plugin.event(LinkSeen(state.links["ab"]))
        elif what == "node":
            state.apply_node(NodeSeen(node(f"n{number}", labels={"zone": word})))
            state.flush_nodes()
    fresh = LinkBandwidth()
    Profile("fresh", [fresh]).attach(state)
    assert fresh._used == plugin._used
    assert fresh._charged == plugin._charged
