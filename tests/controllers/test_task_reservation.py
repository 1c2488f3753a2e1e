"""Reservation of tasks: each step of a group, what is decided when, and the whole way on a store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.controllers.scheduling import create, objects
from tests.controllers.tasks import group, party, pods_of

from muster.controllers.actions import Action, Create, Emit, Patch, PatchStatus
from muster.controllers.manager import Manager
from muster.controllers.runtime import Plan
from muster.controllers.task_reservation import TaskReservation, plan, task_resource_name
from muster.controllers.task_reservation_parts import ReservationPod, advance, spread_s
from muster.objects.conditions import find_condition
from muster.objects.labels import Muster
from muster.objects.patch.merge import apply_merge_patch
from muster.objects.status import Raw
from muster.objects.time import format_time, parse_time
from muster.objects.view import copy_json, view_of
from muster.sim.clock import current_loop, virtual
from muster.store.embedded import EmbeddedStore

NOW = parse_time("2026-01-01T00:10:00Z")
RANK = {"": 0, "Pending": 0, "Reserving": 1, "Reserved": 2, "Schedulable": 3, "Failed": 4}


class Table:
    """A group and its TaskResources, with the plans' actions carried out by hand."""

    def __init__(self, raw: Raw, *, age_s: float = 10) -> None:
        self.group = copy_json(raw)
        self.group["metadata"] |= {"uid": "g1", "resourceVersion": "1", "creationTimestamp": format_time(NOW - age_s)}
        self.resources: dict[tuple[str, str], Raw] = {}
        self.pods: list[ReservationPod] = []
        self.now = NOW
        self.version = 1
        self.history: list[str] = []

    @property
    def phase(self) -> str:
        return str((self.group.get("status") or {}).get("phase", ""))

    def phases(self) -> dict[str, str]:
        return {ns: raw["status"]["phase"] for (ns, _), raw in self.resources.items()}

    def plan(self) -> Plan:
        return plan(self.group, list(self.resources.values()), self.pods, self.now)

    def step(self) -> Plan:
        made = self.plan()
        for action in made.actions:
            self.carry_out(action)
        return made

    def settle(self, steps_max: int = 20) -> Plan:
        """Until nothing is left to do at this moment."""
        for _ in range(steps_max):
            made = self.step()
            if not made.actions:
                return made
        raise AssertionError(f"it does not settle: {self.history}")

    def carry_out(self, action: Action) -> None:
        self.version += 1
        match action:
            case Create(object=obj):
                key = obj["metadata"]["namespace"], obj["metadata"]["name"]
                assert key not in self.resources
                made = copy_json(obj)
                made["metadata"] |= {"uid": f"u{self.version}", "resourceVersion": str(self.version)}
                self.resources[key] = made
            case PatchStatus(target=target, status=status):
                assert target.resource_version == self.group["metadata"]["resourceVersion"], "decided without the version"
                before = self.phase
                self.group = apply_merge_patch(
                    self.group, {"status": status, "metadata": {"resourceVersion": str(self.version)}}
                )
                if self.phase != before:
                    self.history.append(self.phase)
            case Patch(target=target, patch=patch) if target.kind == "TaskResourceGroup":
                self.group = apply_merge_patch(self.group, {**patch, "metadata": {"resourceVersion": str(self.version)}})
            case Patch(target=target, patch=patch):
                key = target.namespace, target.name
                before_raw = self.resources[key]
                assert target.resource_version == before_raw["metadata"]["resourceVersion"]
                after = apply_merge_patch(before_raw, patch)
                after["metadata"]["resourceVersion"] = str(self.version)
                assert standing(after) >= standing(before_raw), "it went back"
                self.resources[key] = after
            case Emit():
                pass
            case _:
                raise AssertionError(f"unexpected: {action}")

    def vote(self, *domains: str, phase: str = "Reserved") -> None:
        for (namespace, _), raw in list(self.resources.items()):
            if namespace in domains:
                tried = raw["status"].get("retryCount", 0)
                patch = advance(raw, phase, tried, now=self.now, reason="Test")  # type: ignore[arg-type]
                assert patch is not None
                self.carry_out(patch)

    def withdraw(self, domain: str, why: str = "an older task needs it") -> None:
        for (namespace, _), raw in self.resources.items():
            if namespace == domain:
                raw["metadata"]["annotations"][Muster.WITHDRAW] = why

    def place(self, *domains: str) -> None:
        self.pods = []
        for raw in pods_of(self.group):
            node = "n" if raw["metadata"]["namespace"] in domains else ""
            self.pods.append(view_of(ReservationPod, {**raw, "spec": {**raw["spec"], "nodeName": node}}))

    def condition(self, type_: str) -> Raw:
        return find_condition(self.group["status"]["conditions"], type_) or {}


def standing(raw: Raw) -> tuple[int, int]:
    status = raw.get("status") or {}
    return status.get("retryCount", 0), RANK[status.get("phase", "")]


def local(**spec: Any) -> Table:
    return Table(group("t", [party("alice", "t"), party("bob", "t")], **spec))


def initiator(**spec: Any) -> Table:
    return Table(group("t", [party("alice", "t")], [party("bob", "t")], **spec))


def member() -> Table:
    return Table(group("t", [party("bob", "t")], [party("alice", "t")], is_member=True))


# -- one control plane ---------------------------------------------------------------------------------------------------------


def test_on_one_control_plane_every_phase_shows() -> None:
    table = local()
    table.settle()
    assert table.history == ["Pending", "Creating", "Reserving"]
    assert table.phases() == {"alice": "Reserving", "bob": "Reserving"}
    table.place("alice")
    table.settle()
    assert (table.phase, table.phases()) == ("Reserving", {"alice": "Reserved", "bob": "Reserving"})
    table.place("alice", "bob")
    table.settle()
    assert table.history == ["Pending", "Creating", "Reserving", "Reserved"]
    assert table.phases() == {"alice": "Schedulable", "bob": "Schedulable"}
    for type_ in (
        "TaskResourceGroupValidated",
        "TaskResourceNameGenerated",
        "TaskResourcesCreated",
        "TaskResourcesListed",
        "TaskResourcesReserved",
        "TaskResourcesScheduled",
        "PodAnnotationUpdated",
    ):
        assert table.condition(type_)["status"] == "True", type_
    for raw in table.resources.values():
        known = raw["status"]["conditions"]
        assert [one["type"] for one in known] == ["Pending", "Reserving", "Reserved", "Schedulable"]
        assert raw["status"]["completionTime"]
        assert raw["spec"]["pods"] == [{"name": "t-0", "resources": {"requests": {"cpu": "1"}}}]


def test_on_one_control_plane_waiting_has_no_limit_of_its_own() -> None:
    table = local()
    table.settle()
    table.place("alice")
    table.settle()
    table.now += 100_000
    assert table.settle().requeue_after_s is None
    assert table.phase == "Reserving"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        pytest.param({"minReservedMembers": 3}, "minReservedMembers is 3, and there are 2 parties", id="more than there are"),
        pytest.param({"minReservedMembers": 0}, "set it to 1..2", id="none"),
        pytest.param({"initiator": ""}, "initiator is empty", id="nobody schedules it"),
        pytest.param({"parties": []}, "parties is empty", id="no parties"),
        pytest.param({"parties": [party("a", "t"), party("a", "t")]}, "is there twice", id="twice the same"),
        pytest.param(
            {"parties": [party("a", "t", least=2), party("b", "t")]}, "minReservedPods 2 and 1 pods", id="too few pods"
        ),
        pytest.param({"parties": [party("", "t"), party("b", "t")]}, "no domainID", id="without a name"),
    ],
)
def test_a_group_that_makes_no_sense_fails_and_says_why(change: Raw, says: str) -> None:
    table = local()
    table.group["spec"] |= change
    table.settle()
    assert table.history == ["Pending", "Failed"]
    assert table.condition("TaskResourceGroupValidated")["status"] == "False"
    assert says in table.condition("TaskResourceGroupFailed")["message"]
    assert not table.resources


def test_names_are_generated_where_they_are_missing() -> None:
    table = initiator()
    for field in ("parties", "outOfControlledParties"):
        del table.group["spec"][field][0]["taskResourceName"]
    table.settle()
    assert {name for _, name in table.resources} == {task_resource_name("uid-of-t", d, "") for d in ("alice", "bob")}
    assert table.group["spec"]["parties"][0]["pods"] == [{"name": "t-0"}]


# -- the initiator decides -----------------------------------------------------------------------------------------------------


def test_all_have_voted_so_all_begin() -> None:
    table = initiator()
    table.settle()
    assert table.phases() == {"alice": "Reserving", "bob": "Reserving"}
    table.vote("alice")
    assert table.settle().requeue_after_s == 30
    assert table.phase == "Reserving"
    table.vote("bob")
    first = table.step()
    assert [type(action) for action in first.actions] == [PatchStatus, Emit], "the decision is one write"
    assert (table.phase, table.phases()) == ("Reserved", {"alice": "Reserved", "bob": "Reserved"})
    table.settle()
    assert table.phases() == {"alice": "Schedulable", "bob": "Schedulable"}


def test_when_not_all_must_the_others_may_join_later() -> None:
    table = initiator(least=1)
    table.settle()
    table.vote("bob")
    table.settle()
    assert (table.phase, table.phases()) == ("Reserved", {"alice": "Schedulable", "bob": "Schedulable"})


def test_who_waits_too_long_gives_back_and_all_try_again() -> None:
    table = initiator()
    table.settle()
    table.vote("alice")
    table.now += 29
    assert table.settle().requeue_after_s == 1
    table.now += 1
    waits = table.settle()
    assert (table.phase, table.phases()) == ("ReserveFailed", {"alice": "Failed", "bob": "Failed"})
    assert "bob had not reserved" in table.condition("TaskResourcesReserved")["message"]
    assert waits.requeue_after_s is not None
    assert 30 <= waits.requeue_after_s < 60
    table.now += waits.requeue_after_s + 1
    table.settle()
    assert (table.phase, table.phases()) == ("Reserving", {"alice": "Reserving", "bob": "Reserving"})
    assert table.group["status"]["retryCount"] == 1
    assert {standing(raw) for raw in table.resources.values()} == {(1, 1)}
    table.vote("alice", "bob")
    table.settle()
    assert table.phase == "Reserved"


def test_a_vote_of_an_earlier_try_does_not_count() -> None:
    """The cache of TaskResources may be behind that of groups."""
    table = initiator()
    table.settle()
    table.vote("alice", "bob")
    stale = copy_json(table.resources)
    table.group["status"] |= {"phase": "Reserving", "retryCount": 1}
    table.resources = stale
    made = table.plan()
    assert not any(isinstance(action, PatchStatus) for action in made.actions)


@pytest.mark.parametrize(
    ("least", "voted", "phase"),
    [
        pytest.param(2, ["alice"], "ReserveFailed", id="before all have voted"),
        pytest.param(2, ["alice", "bob"], "ReserveFailed", id="at the last moment"),
        pytest.param(1, ["alice", "bob"], "Reserved", id="the others are enough, so it is too late"),
        pytest.param(1, ["alice"], "Reserving", id="another may still do"),
    ],
)
def test_what_is_asked_back_is_given_back_before_the_decision(least: int, voted: list[str], phase: str) -> None:
    table = initiator(least=least)
    table.settle()
    table.vote(*voted)
    table.withdraw("alice")
    table.step()
    assert table.phase == phase
    if phase == "ReserveFailed":
        assert "an older task needs it" in table.condition("TaskResourcesReserved")["message"]
        waits = table.settle()
        table.now += (waits.requeue_after_s or 0) + 1
        table.settle()
        assert all(Muster.WITHDRAW not in raw["metadata"]["annotations"] for raw in table.resources.values())


def test_after_the_decision_nothing_is_given_back() -> None:
    table = initiator()
    table.settle()
    table.vote("alice", "bob")
    table.step()
    table.withdraw("alice")
    table.now += 1_000
    table.settle()
    assert (table.phase, table.phases()) == ("Reserved", {"alice": "Schedulable", "bob": "Schedulable"})


@pytest.mark.parametrize("seconds", [0, 300])
def test_only_who_says_so_waits_for_a_limited_time(seconds: int) -> None:
    table = initiator(lifecycleSeconds=seconds)
    table.settle()
    table.now += 289
    table.settle()
    assert table.phase == "Reserving"
    table.now += 2
    table.settle()
    assert table.phase == ("Failed" if seconds else "Reserving")
    if seconds:
        assert table.condition("TaskResourceGroupExpired")["status"] == "True"
        assert "lifecycleSeconds" in table.condition("TaskResourceGroupFailed")["message"]
        assert table.phases() == {"alice": "Failed", "bob": "Failed"}


@pytest.mark.parametrize("make", [local, initiator], ids=["one control plane", "with a partner"])
def test_a_group_whose_task_has_ended_is_given_up(make: Callable[[], Table]) -> None:
    """Otherwise the parties would go on reserving for it, try after try."""
    table = make()
    table.settle()
    table.group["metadata"]["annotations"][Muster.STOP] = "KusciaJobStopped"
    table.settle()
    assert table.phase == "Failed"
    assert set(table.phases().values()) == {"Failed"}
    assert "KusciaJobStopped" in table.condition("TaskResourceGroupFailed")["message"]
    assert table.plan().requeue_after_s is None


def test_a_group_that_was_reserved_stays_so_when_its_task_ends() -> None:
    table = initiator()
    table.settle()
    table.vote("alice", "bob")
    table.settle()
    table.group["metadata"]["annotations"][Muster.STOP] = "KusciaJobStopped"
    assert table.plan().actions == []
    assert table.phase == "Reserved"


def test_a_member_gives_nothing_up_by_itself() -> None:
    table = member()
    table.settle()
    before = table.phase
    table.group["metadata"]["annotations"][Muster.STOP] = "Stopped"
    table.settle()
    assert table.phase == before


def test_a_deleted_group_is_left_alone() -> None:
    table = initiator()
    table.group["metadata"]["deletionTimestamp"] = format_time(NOW)
    assert table.plan() == Plan()


# -- a member decides nothing --------------------------------------------------------------------------------------------------


def test_a_member_follows_its_task_resource() -> None:
    table = member()
    table.settle()
    assert (table.phase, table.phases()) == ("Creating", {"bob": "Pending"})
    table.vote("bob", phase="Reserving")
    table.settle()
    assert table.phase == "Reserving"
    table.vote("bob")
    table.now += 10_000
    table.settle()
    assert (table.phase, table.phases()) == ("Reserving", {"bob": "Reserved"})
    table.vote("bob", phase="Failed")
    table.settle()
    assert table.phase == "ReserveFailed"
    table.now += 10_000
    table.settle()
    assert table.phase == "ReserveFailed"
    [(_, raw)] = table.resources.items()
    patch = advance(raw, "Reserving", 1, now=table.now, reason="Host")
    assert patch is not None
    table.carry_out(patch)
    table.settle()
    assert (table.phase, table.group["status"]["retryCount"]) == ("Reserving", 1)
    table.vote("bob", phase="Schedulable")
    table.settle()
    assert table.phase == "Reserved"


def test_a_member_with_all_the_parties_votes_when_its_pods_have_nodes() -> None:
    table = Table(group("t", [party("bob", "t")], is_member=True))
    table.settle()
    table.vote("bob", phase="Reserving")
    table.settle()
    table.place("bob")
    table.settle()
    assert (table.phase, table.phases()) == ("Reserving", {"bob": "Reserved"})


# -- properties ----------------------------------------------------------------------------------------------------------------

MOVES = st.sampled_from(["alice votes", "bob votes", "alice withdraws", "bob withdraws", "time", "step", "one action"])


@given(st.lists(MOVES, max_size=40), st.integers(1, 2))
def test_whatever_happens_the_decision_stands_on_votes(moves: Sequence[str], least: int) -> None:
    """Votes come and are asked back at any moment, plans are carried out in part: what is Schedulable was voted for."""
    table = initiator(least=least)
    table.settle()
    for move in moves:
        who, _, what = move.partition(" ")
        if what == "votes":
            if table.phases()[who] == "Reserving":
                table.vote(who)
        elif what == "withdraws":
            if table.phases()[who] == "Reserved":
                table.withdraw(who)
        elif move == "time":
            table.now += 31
        elif move == "one action":
            for action in table.plan().actions[:1]:
                table.carry_out(action)
        elif move == "step":
            before = {raw["metadata"]["namespace"]: standing(raw) for raw in table.resources.values()}
            tried = table.group["status"].get("retryCount", 0)
            was = table.phase
            table.step()
            if (was, table.phase) == ("Reserving", "Reserved"):
                assert sum(one == (tried, RANK["Reserved"]) for one in before.values()) >= least
        if "Schedulable" in table.phases().values():
            assert table.phase == "Reserved"
    for _ in range(6):
        table.now += 61
        table.settle()
        if table.phase == "Reserving":
            for who, phase in table.phases().items():
                if phase == "Reserving":
                    table.vote(who)
    assert table.phase == "Reserved"
    assert set(table.phases().values()) == {"Schedulable"}


@given(st.text(max_size=40), st.text(max_size=40), st.text(max_size=40), st.integers(0, 1000))
def test_names_and_spreads_follow_from_their_source(uid: str, domain: str, role: str, tried: int) -> None:
    name = task_resource_name(uid, domain, role)
    assert name == task_resource_name(uid, domain, role)
    assert len(name) == 19
    assert 0 <= spread_s(uid, tried, 30) < 30


# -- on a store ----------------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def reserving(*domains: str) -> AsyncIterator[EmbeddedStore]:
    store = await EmbeddedStore.open(None, clock=current_loop().clock, writer="inline")
    namespaces = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in domains]
    await create(store, *namespaces)
    manager = Manager(store, [TaskReservation()], clock=current_loop().clock)
    manager.start()
    try:
        yield store
    finally:
        await manager.stop()
        await store.close()


async def phase_of(store: EmbeddedStore) -> str:
    [found] = await objects(store, "TaskResourceGroup", "kuscia.secretflow")
    return str(found["status"]["phase"])


async def set_phase(store: EmbeddedStore, namespace: str, phase: str) -> None:
    resource = await store.resource("kuscia.secretflow", "TaskResource")
    for raw in (await store.list(resource, namespace)).items:
        patch = advance(raw, phase, raw["status"].get("retryCount", 0), now=current_loop().clock(), reason="Test")  # type: ignore[arg-type]
        assert patch is not None
        await store.patch(resource, raw["metadata"]["name"], patch.patch, namespace)


@virtual
async def test_on_a_store_with_one_control_plane() -> None:
    async with reserving("alice", "bob") as store:
        [made] = await create(store, group("t", [party("alice", "t"), party("bob", "t", pods=2)]))
        await asyncio.sleep(5)
        assert await phase_of(store) == "Reserving"
        await create(store, *pods_of(made))
        await asyncio.sleep(5)
        resources = await objects(store, "TaskResource", "kuscia.secretflow")
        assert {one["status"]["phase"] for one in resources} == {"Reserving"}
        assert all("resources" in pod for one in resources for pod in one["spec"]["pods"])
        await create(store, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}})
        for raw in pods_of(made):
            await store.bind(raw["metadata"]["name"], raw["metadata"]["namespace"], "n")
        await asyncio.sleep(5)
        assert await phase_of(store) == "Reserved"
        resources = await objects(store, "TaskResource", "kuscia.secretflow")
        assert [one["status"]["phase"] for one in resources] == ["Schedulable", "Schedulable"]
        await store.delete(await store.resource("kuscia.secretflow", "TaskResourceGroup"), "t")
        await asyncio.sleep(5)
        assert not await objects(store, "TaskResource", "kuscia.secretflow")


@virtual
async def test_on_a_store_with_a_partner() -> None:
    async with reserving("alice", "bob") as store:
        await create(store, group("t", [party("alice", "t")], [party("bob", "t")]))
        await asyncio.sleep(5)
        await set_phase(store, "alice", "Reserved")
        await asyncio.sleep(20)
        assert await phase_of(store) == "Reserving"
        await asyncio.sleep(20)
        assert await phase_of(store) == "ReserveFailed"
        await asyncio.sleep(61)
        assert await phase_of(store) == "Reserving"
        await set_phase(store, "alice", "Reserved")
        await set_phase(store, "bob", "Reserved")
        await asyncio.sleep(5)
        assert await phase_of(store) == "Reserved"
        resources = await objects(store, "TaskResource", "kuscia.secretflow")
        assert [one["status"]["phase"] for one in resources] == ["Schedulable", "Schedulable"]
