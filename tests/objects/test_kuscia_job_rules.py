"""What is said about a KusciaJob or KusciaTask at submission, and what of it may change later."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.objects.kinds.kuscia_jobs import RESOURCES
from muster.objects.rules.kuscia_jobs import find_cycle, job_problems
from muster.objects.rules.report import CAUSES_KEPT_MAX
from muster.objects.status import Cause, Raw
from muster.objects.validation import validate_object

JOB = next(r for r in RESOURCES if r.kind == "KusciaJob")
TASK = next(r for r in RESOURCES if r.kind == "KusciaTask")


def task(alias: str = "a", *dependencies: str, parties: tuple[str, ...] = ("alice", "bob"), **fields: Any) -> Raw:
    made = {"alias": alias, "appImage": "app", "taskInputConfig": "", "parties": [{"domainID": p} for p in parties]}
    return made | ({"dependencies": list(dependencies)} if dependencies else {}) | fields


def job(*tasks: Raw, status: Raw | None = None, **spec: Any) -> Raw:
    made: Raw = {
        "apiVersion": "kuscia.secretflow/v1alpha1",
        "kind": "KusciaJob",
        "metadata": {"name": "j", "namespace": "cross-domain"},
        "spec": {"initiator": "alice", "tasks": list(tasks), **spec},
    }
    return made | ({"status": status} if status else {})


def kuscia_task(status: Raw | None = None, **spec: Any) -> Raw:
    parties = [{"domainID": "alice", "appImageRef": "app"}, {"domainID": "bob", "appImageRef": "app", "role": "guest"}]
    made: Raw = {
        "apiVersion": "kuscia.secretflow/v1alpha1",
        "kind": "KusciaTask",
        "metadata": {"name": "t", "namespace": "cross-domain"},
        "spec": {"initiator": "alice", "taskInputConfig": "", "parties": parties, **spec},
    }
    return made | ({"status": status} if status else {})


def only(causes: list[Cause]) -> Cause:
    assert len(causes) == 1, causes
    return causes[0]


T0 = "spec.tasks[0]"


@pytest.mark.parametrize(
    ("raw", "field", "code", "words"),
    [
        pytest.param(
            job(task("a", "c"), task("b", "a"), task("c", "b")),
            f"{T0}.dependencies",
            "DependencyCycle",
            "a -> c -> b -> a",
            id="a cycle is named",
        ),
        pytest.param(job(task("a", "a")), f"{T0}.dependencies[0]", "DependencyCycle", "itself", id="depends on itself"),
        pytest.param(job(task("a", "x")), f"{T0}.dependencies[0]", "DependencyUnknown", "it has a", id="unknown alias"),
        pytest.param(
            job(task("a"), task("a")), "spec.tasks[1].alias", "DuplicateName", "spec.tasks[0] has this alias", id="alias twice"
        ),
        pytest.param(
            job(task("a", taskID="x"), task("b", taskID="x")),
            "spec.tasks[1].taskID",
            "DuplicateName",
            '"x"',
            id="task id twice",
        ),
        pytest.param(job(task("")), f"{T0}.alias", "ManifestInvalid", "name by which", id="no alias"),
        pytest.param(job(task("a", appImage="")), f"{T0}.appImage", "ManifestInvalid", "AppImage", id="no image"),
        pytest.param(job(task("a", taskID="A_b")), f"{T0}.taskID", "ManifestInvalid", '"A_b"', id="a task id that is no label"),
        pytest.param(job(task("a", parties=())), f"{T0}.parties", "ManifestInvalid", "one party", id="no parties"),
        pytest.param(
            job(task("a", parties=("alice", "alice"))),
            f"{T0}.parties[1]",
            "DuplicateName",
            "without a role twice",
            id="a party twice",
        ),
        pytest.param(
            job(task("a", parties=("kube-system",))), f"{T0}.parties[0].domainID", "NameReserved", "kube-system", id="reserved"
        ),
        pytest.param(job(task("a", parties=("Bob!",))), f"{T0}.parties[0].domainID", "ManifestInvalid", "Bob!", id="bad id"),
        pytest.param(job(task("a", parties=("",))), f"{T0}.parties[0].domainID", "ManifestInvalid", "a Domain", id="no id"),
        pytest.param(job(task("a"), initiator=""), "spec.initiator", "ManifestInvalid", "schedules", id="no initiator"),
        pytest.param(job(task("a"), initiator="master"), "spec.initiator", "NameReserved", "master", id="reserved initiator"),
        pytest.param(job(), "spec.tasks", "ManifestInvalid", "at least one", id="no tasks"),
        pytest.param(
            job(task("a", scheduleConfig={"minReservedMembers": 3})),
            f"{T0}.scheduleConfig.minReservedMembers",
            "ManifestInvalid",
            "more than the 2 parties",
            id="more members than parties",
        ),
    ],
)
def test_a_job_is_refused(raw: Raw, field: str, code: str, words: str) -> None:
    cause = only(validate_object(JOB, raw))
    assert cause.field == field
    assert f": {code}: " in cause.message
    assert words in cause.message


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(job(task("a"), task("b", "a"), task("c", "a", "b")), id="a graph"),
        pytest.param(job(task("a", tolerable=True), task("b", "a")), id="a tolerable task that others depend on"),
        pytest.param(job(task("a"), task("b", "a", "a")), id="a dependency named twice"),
        pytest.param(job(task("a", parties=("bob",))), id="an initiator that is no party"),
        pytest.param(
            job({**task("a"), "parties": [{"domainID": "alice", "role": r} for r in ("host", "guest")]}),
            id="two roles of a party",
        ),
        pytest.param(job(task("a", scheduleConfig={"minReservedMembers": 2})), id="all members"),
    ],
)
def test_a_job_is_taken(raw: Raw) -> None:
    assert validate_object(JOB, raw) == []


def test_all_that_is_wrong_is_told_at_once() -> None:
    raw = job(task("a", "x"), task("a", parties=()), initiator="default")
    assert [cause.field for cause in validate_object(JOB, raw)] == [
        "spec.initiator",
        "spec.tasks[1].alias",
        "spec.tasks[1].parties",
        "spec.tasks[0].dependencies[0]",
    ]


def test_what_is_said_of_a_very_wrong_job_stays_small() -> None:
    wrong = job(task("x" * 10_000), task("b", *(f"unknown-{index}" for index in range(5_000))))
    causes = job_problems(wrong)
    assert len(causes) == CAUSES_KEPT_MAX
    assert max(len(cause.message) for cause in causes) < 1_000
    round_trip = job(task("x" * 10_000, "y" * 10_000), task("y" * 10_000, "x" * 10_000))
    assert len(only(job_problems(round_trip)).message) < 1_000


@pytest.mark.parametrize(
    ("count", "input_len", "fits"),
    [
        pytest.param(1, 1_550_000, True, id="one task, nearly full"),
        pytest.param(1, 1_572_000, False, id="one task, no room for its status"),
        pytest.param(2_000, 60, True, id="2,000 small tasks"),
        pytest.param(2_000, 400, False, id="2,000 tasks whose status would not fit"),
    ],
)
def test_a_job_leaves_room_for_its_status(count: int, input_len: int, fits: bool) -> None:
    raw = job(*(task(f"t{index}", taskInputConfig="x" * input_len) for index in range(count)))
    causes = validate_object(JOB, raw, None)
    if fits:
        assert causes == []
    else:
        cause = only(causes)
        assert cause.field == "spec.tasks"
        assert "split the job" in cause.message
    assert validate_object(JOB, raw, raw) == [], "one that is there already may be labelled"


def test_rules_about_bandwidth_still_hold() -> None:
    raw = job(task("a"))
    raw["spec"]["tasks"][0]["parties"][0]["resources"] = {"requests": {"bandwidth": "200MB/s"}}
    assert "UnitInvalid" in only(validate_object(JOB, raw)).message
    party = {"domainID": "alice", "appImageRef": "app", "bandwidthLimits": [{"destinationID": "bob", "limitKBps": 0}]}
    assert "limitKBps" in only(validate_object(TASK, kuscia_task(parties=[party]))).field


def test_a_long_cycle_is_cut_and_2000_tasks_are_no_trouble() -> None:
    tasks = [task(f"t{n}", f"t{(n + 1) % 2000}") for n in range(2000)]
    cause = only(validate_object(JOB, job(*tasks)))
    assert "t0 -> t1 -> " in cause.message
    assert " -> ... -> t0 " in cause.message
    assert len(cause.message) < 400


# -- updates ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("phase", "is_fixed"),
    [
        ("", False),
        ("initialized", False),
        ("AwaitingApproval", True),
        ("Pending", True),
        ("Running", True),
        ("Suspended", True),
        ("Failed", True),
        ("Succeeded", True),
    ],
)
@pytest.mark.parametrize(
    ("change", "fields"),
    [
        pytest.param({"tasks": [task("z")]}, ["spec.tasks"], id="tasks"),
        pytest.param({"initiator": "bob"}, ["spec.initiator"], id="initiator"),
        pytest.param({"scheduleMode": "BestEffort"}, ["spec.scheduleMode"], id="mode"),
        pytest.param({"maxParallelism": 7}, [], id="parallelism"),
    ],
)
def test_what_the_parties_agreed_to_does_not_change(phase: str, is_fixed: bool, change: Raw, fields: list[str]) -> None:
    old = job(task("a"), status={"phase": phase})
    new = copy.deepcopy(old)
    new["spec"] |= change
    causes = validate_object(JOB, new, old)
    assert [cause.field for cause in causes] == (fields if is_fixed else [])
    for cause in causes:
        assert cause.message.startswith("Forbidden: ManifestInvalid: ")
        assert phase in cause.message


def test_a_job_that_was_found_invalid_may_be_corrected() -> None:
    status = {"phase": "Failed", "conditions": [{"type": "JobValidated", "status": "False"}]}
    old = job(task("a", "x"), status=status)
    assert validate_object(JOB, job(task("a"), status=status), old) == []


def test_an_update_is_held_only_to_what_it_makes_wrong() -> None:
    old = job(task("a", "x"))
    new = job(task("a", "x"), maxParallelism=3)
    assert validate_object(JOB, new, old) == []
    worse = job(task("a", "x", "y"))
    assert "'y'" in only(validate_object(JOB, worse, old)).message


# -- tasks --------------------------------------------------------------------------------------------------------------------

ALICE = {"domainID": "alice", "appImageRef": "app"}


@pytest.mark.parametrize(
    ("spec", "field", "code"),
    [
        pytest.param({"parties": []}, "spec.parties", "ManifestInvalid", id="no parties"),
        pytest.param({"parties": [ALICE, ALICE]}, "spec.parties[1]", "DuplicateName", id="a party twice"),
        pytest.param(
            {"parties": [{**ALICE, "appImageRef": ""}]}, "spec.parties[0].appImageRef", "ManifestInvalid", id="no image"
        ),
        pytest.param({"initiator": "cross-domain"}, "spec.initiator", "NameReserved", id="reserved"),
        pytest.param(
            {"scheduleConfig": {"minReservedMembers": 3}},
            "spec.scheduleConfig.minReservedMembers",
            "ManifestInvalid",
            id="more members than parties",
        ),
        pytest.param(
            {"parties": [{**ALICE, "minReservedPods": 3, "template": {"replicas": 2}}]},
            "spec.parties[0].minReservedPods",
            "ManifestInvalid",
            id="more pods than replicas",
        ),
    ],
)
def test_a_task_is_refused(spec: Raw, field: str, code: str) -> None:
    cause = only(validate_object(TASK, kuscia_task(**spec)))
    assert cause.field == field
    assert f": {code}: " in cause.message


def test_a_task_that_was_taken_up_does_not_change() -> None:
    assert validate_object(TASK, kuscia_task()) == []
    old = kuscia_task(status={"phase": "Pending"})
    new = kuscia_task(status={"phase": "Pending"}, taskInputConfig="other")
    assert only(validate_object(TASK, new, old)).field == "spec"
    assert validate_object(TASK, new, kuscia_task()) == []


# -- the cycle finder --------------------------------------------------------------------------------------------------------


@given(st.dictionaries(st.sampled_from("abcdefgh"), st.lists(st.sampled_from("abcdefgh"), max_size=3)))
def test_a_cycle_that_is_found_is_one_and_without_one_there_is_an_order(found: dict[str, list[str]]) -> None:
    edges = {name: [d for d in dependencies if d in found and d != name] for name, dependencies in found.items()}
    cycle = find_cycle(edges)
    if cycle:
        assert len(set(cycle)) == len(cycle)
        for name, following in zip(cycle, [*cycle[1:], cycle[0]], strict=True):
            assert following in edges[name]
        return
    done: set[str] = set()
    while len(done) < len(edges):
        free = {name for name, dependencies in edges.items() if name not in done and done.issuperset(dependencies)}
        assert free, "nothing can begin, yet no cycle was found"
        done |= free
