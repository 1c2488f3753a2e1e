"""PartyQuota: what counts against a party's quota, that it is never exceeded, and that whole units wait with the figures."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.engine.blocks import PodBlock, one_shape
from muster.engine.decisions import Park, Place
from muster.engine.events import NodeSeen, PodGone, PodGroupSeen, PodSeen, QuotaGone, QuotaSeen
from muster.engine.facts import PodFacts, PodGroupFacts, QuotaFacts
from muster.engine.machine import Engine
from muster.engine.plugin import Wake
from muster.engine.plugins.fit import Fit
from muster.engine.plugins.party_quota import PartyQuota, caps_of
from muster.engine.pods import Phase, PodRecord
from muster.engine.profile import Profile
from muster.engine.state import State
from muster.engine.testing import ask
from muster.engine.units import Group, Unit
from muster.objects.reasons import Reason
from tests.engine.building import PROFILE, node, pod, state_of

MBPS = 10**6


def quota(party: str, pods: int | None = None, **hard: Any) -> QuotaFacts:
    limits: dict[str, Any] = {"hard": {name.replace("_", "-"): value for name, value in hard.items()}}
    if pods is not None:
        limits["podMaxCount"] = pods
    return msgspec.convert({"metadata": {"name": party}, "spec": {"resourceQuota": limits}}, QuotaFacts)


def no_quota(party: str) -> QuotaFacts:
    return msgspec.convert({"metadata": {"name": party}, "spec": {}}, QuotaFacts)


def member(name: str, cpu: str = "1", party: str = "alice", on: str = "", **more: Any) -> PodFacts:
    return pod(name, cpu=cpu, namespace=party, node=on, **more)


def cluster(*quotas: QuotaFacts, pods: tuple[PodFacts, ...] = ()) -> tuple[State, PartyQuota]:
    state = state_of([node("n1", cpu="64"), node("n2", cpu="64")], pods)
    state.quotas.update({one.metadata.name: one for one in quotas})
    plugin = PartyQuota()
    Profile("test", [plugin]).attach(state)
    return state, plugin


def block(record: PodRecord) -> PodBlock:
    pods = one_shape(record.shape)
    pods.pod = record.facts
    return pods


@pytest.mark.parametrize(
    ("facts", "caps"),
    [
        pytest.param(no_quota("a"), None, id="none"),
        pytest.param(quota("a"), None, id="empty"),
        pytest.param(quota("a", 5), {"pods": 5}, id="pods"),
        pytest.param(quota("a", 0), {"pods": 0}, id="none at all"),
        pytest.param(quota("a", cpu="1500m", memory="1Ki"), {"cpu": 1500, "memory": 1024}, id="amounts"),
        pytest.param(
            quota("a", bandwidth="10Mbps"),
            {"bandwidth-egress": 10 * MBPS, "bandwidth-ingress": 10 * MBPS},
            id="bandwidth counts in both directions",
        ),
        pytest.param(quota("a", bandwidth_egress="1G"), {"bandwidth-egress": 1000 * MBPS}, id="one direction"),
        pytest.param(
            quota("a", bandwidth="2Mbps", bandwidth_egress="1Mbps"),
            {"bandwidth-egress": MBPS, "bandwidth-ingress": 2 * MBPS},
            id="the lower of two holds",
        ),
        pytest.param(quota("a", cpu="many"), {"cpu": 0}, id="unreadable is none"),
        pytest.param(quota("a", bandwidth="fast"), {"bandwidth-egress": 0, "bandwidth-ingress": 0}, id="unreadable bandwidth"),
    ],
)
def test_caps(facts: QuotaFacts, caps: dict[str, int] | None) -> None:
    found = caps_of(facts)
    assert (None if found is None else dict(found.amounts)) == caps


def test_kuscia_names_whole_megabits() -> None:
    facts = msgspec.convert(
        {"metadata": {"name": "a"}, "spec": {"resourceQuota": {"hard": {"kuscia.io/bandwidth": 3}}}}, QuotaFacts
    )
    found = caps_of(facts)
    assert found is not None
    assert found.amounts == {"bandwidth-egress": 3 * MBPS, "bandwidth-ingress": 3 * MBPS}


@pytest.mark.parametrize(
    ("limits", "facts", "fits"),
    [
        pytest.param(quota("alice", cpu="3"), member("p", "1"), True, id="exact fit counts"),
        pytest.param(quota("alice", cpu="3"), member("p", "1001m"), False, id="a thousandth too much"),
        pytest.param(quota("alice", 3), member("p"), True, id="pods"),
        pytest.param(quota("alice", 2), member("p"), False, id="too many pods"),
        pytest.param(quota("alice", cpu="1"), member("p", "0"), True, id="overdrawn, but asks for none"),
        pytest.param(quota("alice", memory="1Gi"), member("p"), True, id="another resource"),
        pytest.param(quota("bob", cpu="0"), member("p"), True, id="another party"),
        pytest.param(
            quota("alice", bandwidth="10Mbps"),
            member("p", annotations={"muster.dev/bandwidth-egress": "11Mbps"}),
            False,
            id="bandwidth",
        ),
        pytest.param(
            msgspec.convert(
                {"metadata": {"name": "alice"}, "spec": {"resourceQuota": {"hard": {"nvidia.com/gpu": 1}}}}, QuotaFacts
            ),
            member("p", resources={"nvidia.com/gpu": 2}),
            False,
            id="devices",
        ),
    ],
)
def test_filter(limits: QuotaFacts, facts: PodFacts, fits: bool) -> None:
    """Two pods with one CPU each run already."""
    state, plugin = cluster(limits, pods=(member("one", on="n1"), member("two", on="n2")))
    answer = ask(plugin, facts, state)
    assert set(answer.feasible.values()) == {fits}
    assert answer.reason is (None if fits else Reason.QUOTA_EXCEEDED)


def test_says_what_is_missing_and_who_holds_it() -> None:
    state, plugin = cluster(quota("alice", cpu="4"), pods=(member("big", "3", on="n1"),))
    (short,) = ask(plugin, member("new", "2"), state).shortfalls
    assert (short.want, short.best, short.resource, short.unit) == (2000, 1000, "cpu", "milli")
    assert short.where == "quota of Domain alice (4)"
    assert [(holder.name, holder.amount) for holder in short.holders] == [("alice/big", 3000)]


def test_counts_assumed_pods_and_forgets_them() -> None:
    state, plugin = cluster(quota("alice", cpu="4"))
    record = state.see_pod(member("p", "3"))
    state.assume(record, "n1")
    assert plugin.used("alice") == {"cpu": 3000, "pods": 1}
    state.woken.clear()
    state.forget(record)
    assert plugin.used("alice") == {}
    assert Wake.QUOTA in state.woken


def test_a_quota_that_comes_later_counts_what_is_there() -> None:
    state, plugin = cluster(pods=(member("one", "2", on="n1"), member("done", "5", on="n1", phase="Succeeded")))
    assert plugin.used("alice") == {}
    plugin.event(QuotaSeen(quota("alice", cpu="4")))
    assert plugin.used("alice") == {"cpu": 2000, "pods": 1}
    plugin.event(QuotaSeen(quota("alice", cpu="1")))
    assert plugin.used("alice") == {"cpu": 2000, "pods": 1}
    plugin.event(QuotaGone("alice"))
    assert plugin.used("alice") == {}
    assert not plugin.concerns(block(state.see_pod(member("q"))))
    plugin.event(QuotaSeen(quota("alice", cpu="4")))
    assert plugin.used("alice") == {"cpu": 2000, "pods": 1}
    plugin.event(QuotaSeen(no_quota("alice")))
    assert not plugin.concerns(block(state.see_pod(member("q"))))


def test_an_unreadable_figure_is_a_fault_and_lets_nothing_in() -> None:
    state, plugin = cluster(quota("alice", cpu="many"))
    assert set(ask(plugin, member("p"), state).feasible.values()) == {False}
    assert "spec.resourceQuota.hard[cpu]" in state.faults["Domain alice"]


def unit_of(state: State, *groups: tuple[list[PodFacts], int], min_groups: int | None = None) -> Unit:
    made = []
    for index, (members, least) in enumerate(groups):
        records = [state.see_pod(facts) for facts in members]
        made.append(Group(records[0].namespace, f"role{index}", least, tuple(record.uid for record in records)))
    return Unit("u", (0, "", "u"), tuple(made), len(made) if min_groups is None else min_groups, PROFILE)


def workers(count: int, cpu: str = "1", party: str = "alice", prefix: str = "w") -> list[PodFacts]:
    return [member(f"{prefix}{n}", cpu, party) for n in range(count)]


@pytest.mark.parametrize(
    ("groups", "min_groups", "refused"),
    [
        pytest.param([(workers(3), 3)], None, "", id="fits"),
        pytest.param([(workers(4), 4)], None, "cpu", id="one too many"),
        pytest.param([(workers(4), 3)], None, "", id="the minimum fits"),
        pytest.param([([*workers(2), member("big", "2")], 2)], None, "", id="the smallest fit"),
        pytest.param([(workers(2), 2), (workers(2, prefix="x"), 2)], None, "cpu", id="two roles of one party count together"),
        pytest.param([(workers(2), 2), (workers(2, prefix="x"), 2)], 1, "", id="one of them is enough"),
        pytest.param([(workers(9), 9), (workers(9, prefix="x"), 9)], 1, "cpu", id="neither can"),
        pytest.param([(workers(3), 3), (workers(9, party="bob"), 9)], None, "", id="others have no quota"),
        pytest.param([(workers(4), 4), (workers(9, party="bob"), 9)], None, "cpu", id="one party is short"),
        pytest.param([(workers(4), 4), (workers(9, party="bob"), 9)], 1, "", id="the other alone would do"),
    ],
)
def test_whole_units(groups: list[tuple[list[PodFacts], int]], min_groups: int | None, refused: str) -> None:
    """Four CPUs, of which one is in use."""
    state, plugin = cluster(quota("alice", cpu="4"), pods=(member("old", on="n1"),))
    unit = unit_of(state, *groups, min_groups=min_groups)
    verdict = plugin.prefilter(unit, block(state.pods[unit.pods[0]]), 0.0)
    if not refused:
        assert verdict is None
        return
    assert verdict is not None
    assert verdict.reason is Reason.QUOTA_EXCEEDED
    assert "limit 4, in use 1, requested" in verdict.message
    assert verdict.subject == "Domain alice"


def test_what_is_only_held_does_not_refuse_early() -> None:
    """An older unit may take it from whoever holds it, so it must get as far as trying."""
    state, plugin = cluster(quota("alice", cpu="2"))
    held = state.see_pod(member("held", "2"))
    state.assume(held, "n1")
    unit = unit_of(state, (workers(1), 1))
    assert plugin.prefilter(unit, block(state.pods[unit.pods[0]]), 0.0) is None
    assert set(ask(plugin, member("w0"), state).feasible.values()) == {False}
    held.phase = Phase.BOUND
    assert plugin.prefilter(unit, block(state.pods[unit.pods[0]]), 0.0) is not None


# -- in the engine ----------------------------------------------------------------------------------------------------------


def engine(*quotas: QuotaFacts) -> Engine:
    made = Engine([Profile(PROFILE, [Fit(), PartyQuota()])])
    made.step([NodeSeen(node("n1", cpu="64")), NodeSeen(node("n2", cpu="64")), *map(QuotaSeen, quotas)], 0.0)
    return made


def gang(name: str, least: int) -> PodGroupFacts:
    return msgspec.convert({"metadata": {"name": name, "namespace": "alice"}, "spec": {"minMember": least}}, PodGroupFacts)


def parks(decisions: list[Any]) -> list[tuple[str, Reason]]:
    return [(one.unit, one.verdict.reason) for one in decisions if isinstance(one, Park)]


def places(decisions: list[Any]) -> list[str]:
    return sorted(p.name for one in decisions if isinstance(one, Place) for p in one.pods)


def test_a_gang_waits_whole_and_starts_when_enough_has_ended() -> None:
    machine = engine(quota("alice", cpu="4"))
    first = machine.step([PodSeen(member("old", "2"))], 1.0)
    assert places(first) == ["old"]
    labels = {"pod-group.scheduling.sigs.k8s.io": "g"}
    gang_pods = [PodSeen(member(f"g{n}", "1", labels=labels)) for n in range(3)]
    waits = machine.step([PodSeen(member("old", "2", on="n1")), PodGroupSeen(gang("g", 3)), *gang_pods], 2.0)
    assert places(waits) == []
    assert parks(waits) == [("PodGroup/alice/g", Reason.QUOTA_EXCEEDED)]
    done = machine.step([PodGone("uid-alice-old")], 3.0)
    assert places(done) == ["g0", "g1", "g2"]


def test_a_raised_quota_wakes_and_another_party_is_not_held_up() -> None:
    machine = engine(quota("alice", 0))
    out = machine.step([PodSeen(member("a")), PodSeen(member("b", party="bob"))], 1.0)
    assert places(out) == ["b"]
    assert parks(out) == [("Pod/alice/a", Reason.QUOTA_EXCEEDED)]
    assert places(machine.step([QuotaSeen(quota("alice", 1))], 2.0)) == ["a"]


def test_a_lowered_quota_ends_nothing() -> None:
    machine = engine(quota("alice", 2))
    machine.step([PodSeen(member("a")), PodSeen(member("b"))], 1.0)
    out = machine.step([QuotaSeen(quota("alice", 1)), PodSeen(member("c"))], 2.0)
    assert [type(one).__name__ for one in out] == ["Park"]


PARTIES = st.sampled_from(["alice", "bob"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("pod"), st.integers(0, 20), st.integers(1, 4), PARTIES),
        st.tuples(st.just("gang"), st.integers(0, 5), st.integers(2, 4), PARTIES),
        st.tuples(st.just("gone"), st.integers(0, 20), st.just(0), PARTIES),
        st.tuples(st.just("quota"), st.integers(0, 8), st.integers(0, 4), PARTIES),
    ),
    max_size=40,
)


@settings(max_examples=60)
@given(STEPS)
def test_never_exceeded_by_a_decision(steps: list[tuple[str, int, int, str]]) -> None:
    """Whoever is placed leaves the party within its quota; and a gang is placed whole."""
    machine = engine(quota("alice", cpu="6"), quota("bob", 3))
    caps: dict[str, tuple[int | None, int | None]] = {"alice": (6, None), "bob": (None, 3)}
    cpu_of: dict[str, int] = {}
    gangs: dict[str, set[str]] = {}
    placed: dict[str, str] = {}
    for now, (what, first, second, party) in enumerate(steps):
        events: list[Any] = []
        if what == "quota":
            caps[party] = first, second
            events = [QuotaSeen(quota(party, second, cpu=first))]
        elif what == "gone":
            placed.pop(f"uid-{party}-p{first}", None)
            events = [PodGone(f"uid-{party}-p{first}")]
        elif what == "pod" and f"uid-{party}-p{first}" not in cpu_of:
            cpu_of[f"uid-{party}-p{first}"] = second
            events = [PodSeen(member(f"p{first}", str(second), party))]
        elif what == "gang" and f"{party}-g{first}" not in gangs:
            labels = {"pod-group.scheduling.sigs.k8s.io": f"g{first}"}
            members = [member(f"g{first}-{n}", "1", party, labels=labels) for n in range(second)]
            gangs[f"{party}-g{first}"] = {facts.metadata.uid for facts in members}
            cpu_of.update({facts.metadata.uid: 1 for facts in members})
            group = {"metadata": {"name": f"g{first}", "namespace": party}, "spec": {"minMember": second}}
            events = [PodGroupSeen(msgspec.convert(group, PodGroupFacts)), *map(PodSeen, members)]
        decisions = machine.step(events, float(now))
        new = {p.uid: p.namespace for one in decisions if isinstance(one, Place) for p in one.pods}
        placed.update(new)
        for where in set(new.values()):
            mine = [uid for uid, at in placed.items() if at == where]
            cpu, pods = caps[where]
            assert cpu is None or sum(cpu_of[uid] for uid in mine) <= cpu
            assert pods is None or len(mine) <= pods
        for uids in gangs.values():
            assert uids <= placed.keys() or not uids & placed.keys()


def test_many_that_wait_cost_little_each() -> None:
    """What is said about holders is worked out once, not for each that waits."""
    machine = engine(quota("alice", 2))
    machine.step([PodSeen(member("a", on="n1")), PodSeen(member("b", on="n2"))], 1.0)
    out = machine.step([PodSeen(member(f"w{n}")) for n in range(50)], 2.0)
    assert {reason for _, reason in parks(out)} == {Reason.QUOTA_EXCEEDED}
    verdicts = [one.verdict for one in out if isinstance(one, Park)]
    assert len({id(verdict.shortfalls[0].holders) for verdict in verdicts}) == 1
