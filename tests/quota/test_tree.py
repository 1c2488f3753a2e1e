"""The quota tree: what is charged where, whatever the order of events, and what a broken limit says."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.objects.reasons import Reason
from muster.quota.dividing import shares_of
from muster.quota.limits import with_spent_budget
from muster.quota.tree import Breach, Ceilings, NodeKey, NodeSpec, QuotaTree, Use, ceilings

CPU = {"cpu": 1000}


def user(name: str, group: str = "", **limits: Any) -> NodeSpec:
    return NodeSpec(kind="User", name=name, parent=group, limits=ceilings(**limits))


def group(name: str, parent: str = "", **limits: Any) -> NodeSpec:
    return NodeSpec(kind="UserGroup", name=name, parent=parent, limits=ceilings(**limits))


def queue(name: str, parent: str = "", **limits: Any) -> NodeSpec:
    return NodeSpec(kind="Queue", name=name, parent=parent, limits=ceilings(**limits))


def tree_of(*specs: NodeSpec) -> QuotaTree:
    tree = QuotaTree()
    for spec in specs:
        tree.put(spec)
    return tree


@pytest.mark.parametrize(
    ("specs", "running", "request_", "expected"),
    [
        pytest.param([user("ann", concurrent={"cpu": 2})], [CPU], CPU, None, id="exactly the limit is within it"),
        pytest.param(
            [user("ann", concurrent={"cpu": 2})],
            [CPU, CPU],
            CPU,
            ("User", "ann", "concurrent", "cpu", 2000, 2000, 1000, Reason.USER_LIMIT_REACHED),
            id="one more than the user's",
        ),
        pytest.param(
            [user("ann", "g"), group("g", "top"), group("top", concurrent={"cpu": 1})],
            [CPU],
            CPU,
            ("UserGroup", "top", "concurrent", "cpu", 1000, 1000, 1000, Reason.GROUP_LIMIT_REACHED),
            id="a group two above",
        ),
        pytest.param(
            [queue("q", "all"), queue("all", jobs_running=1)],
            [CPU],
            CPU,
            ("Queue", "all", "jobsRunning", "", 1, 1, 1, Reason.QUEUE_LIMIT_REACHED),
            id="jobs in the queue above",
        ),
        pytest.param(
            [user("ann", concurrent={"bandwidth": "1Gbps"})],
            [],
            {"bandwidth-ingress": 2 * 10**9},
            ("User", "ann", "concurrent", "bandwidth-ingress", 10**9, 0, 2 * 10**9, Reason.USER_LIMIT_REACHED),
            id="bandwidth is both directions",
        ),
        pytest.param(
            [user("ann", concurrent={"nvidia.com/gpu": 0})], [CPU], CPU, None, id="what is not asked for is no matter"
        ),
        pytest.param(
            [user("ann", concurrent={"cpu": "oops"})],
            [],
            CPU,
            ("User", "ann", "concurrent", "cpu", 0, 0, 1000, Reason.USER_LIMIT_REACHED),
            id="a limit that can't be read is a limit of nothing",
        ),
    ],
)
def test_check_start(
    specs: list[NodeSpec], running: list[dict[str, int]], request_: dict[str, int], expected: tuple[Any, ...] | None
) -> None:
    tree = tree_of(*specs)
    for number, request in enumerate(running):
        tree.start(f"job-{number}", "ann", "q", request)
    breach = tree.check_start("ann", "q", request_)
    found = breach and (
        breach.kind,
        breach.name,
        breach.field,
        breach.resource,
        breach.limit,
        breach.used,
        breach.asked,
        breach.reason,
    )
    assert found == expected


@pytest.mark.parametrize(
    ("specs", "request_", "reason", "field"),
    [
        pytest.param([user("ann", per_job={"cpu": 2})], {"cpu": 3000}, Reason.JOB_EXCEEDS_LIMIT, "perJob", id="perJob"),
        pytest.param(
            [user("ann", "g"), group("g", concurrent={"cpu": 2})],
            {"cpu": 3000},
            Reason.JOB_EXCEEDS_LIMIT,
            "concurrent",
            id="could never run",
        ),
        pytest.param(
            [user("ann", submitted={"cpu": 2})], {"cpu": 3000}, Reason.JOB_EXCEEDS_LIMIT, "submitted", id="never submitted"
        ),
        pytest.param(
            [user("ann", submitted={"cpu": 4})], {"cpu": 3000}, Reason.SUBMIT_LIMIT_REACHED, "submitted", id="with what waits"
        ),
        pytest.param([queue("q", jobs_submitted=1)], CPU, Reason.SUBMIT_LIMIT_REACHED, "jobsSubmitted", id="jobs of a queue"),
        pytest.param([queue("q", jobs_running=0)], CPU, Reason.JOB_EXCEEDS_LIMIT, "jobsRunning", id="a queue that runs none"),
        pytest.param([user("ann", submitted={"cpu": 5})], {"cpu": 3000}, None, "", id="fits"),
    ],
)
def test_check_submit(specs: list[NodeSpec], request_: dict[str, int], reason: Reason | None, field: str) -> None:
    tree = tree_of(*specs)
    tree.submit("waiting", "ann", "q", {"cpu": 2000})
    breach = tree.check_submit("ann", "q", request_)
    assert (breach and breach.reason, breach.field if breach else "") == (reason, field)


def test_what_could_never_run_is_refused_with_what_waits_and_runs_already() -> None:
    tree = tree_of(user("ann", concurrent={"cpu": 4}))
    tree.submit("waiting", "ann", "q", {"cpu": 3000})
    assert str(tree.check_submit("ann", "q", {"cpu": 5000})) == (
        "JobExceedsLimit: spec.limits.concurrent[cpu] of User ann: limit 4, waiting and running 3, requested 5 (cpu); "
        "ask for at most 4, or have spec.limits.concurrent[cpu] of User ann raised"
    )


def test_a_spent_budget_takes_and_gives_nothing() -> None:
    own = ceilings(concurrent={"cpu": 8, "memory": "4Gi"}, jobs_submitted=9)
    spent = ceilings(concurrent={"cpu": 1, "memory": "8Gi"}, per_job={"cpu": 4}, jobs_submitted=2)
    both = with_spent_budget(own, spent)
    tree = tree_of(NodeSpec(kind="User", name="ann", limits=both, written=own))
    tree.submit("Job/default/a", "ann", "", {"cpu": 1000})
    tree.start("Job/default/a", "ann", "", {"cpu": 1000})
    breach = tree.check_start("ann", "", {"cpu": 1000})
    assert breach is not None
    assert breach.message == (
        "spec.budget.limits.concurrent[cpu] of User ann: limit 1, as the budget is spent, in use 1, requested 1 (cpu)"
    )
    assert breach.help.startswith("wait until work of User ann ends or the next period begins, or have spec.budget.limits")
    more = tree.check_start("ann", "", {"memory": 5 << 30})
    assert more is not None
    assert more.path == "spec.limits.concurrent[memory]"
    # More than may run while it is spent waits for the next period; what may be sent is another matter.
    assert tree.check_submit("ann", "", {"cpu": 3000}) is None
    too_large = tree.check_submit("ann", "", {"cpu": 5000})
    assert too_large is not None
    assert too_large.path == "spec.budget.limits.perJob[cpu]"
    tree.submit("Job/default/b", "ann", "", {"cpu": 1000})
    too_many = tree.check_submit("ann", "", {"cpu": 1000})
    assert too_many is not None
    assert too_many.path == "spec.budget.limits.jobsSubmitted"
    assert shares_of(NodeSpec(kind="User", name="ann", limits=both, written=own).own) == shares_of(own)


def test_work_that_is_replaced_does_not_count() -> None:
    tree = tree_of(user("ann", "g", submitted={"cpu": 4}), group("g", jobs_submitted=1))
    tree.submit("job", "ann", "q", {"cpu": 3000})
    assert tree.check_submit("ann", "q", {"cpu": 4000}) is not None
    assert tree.check_submit("ann", "q", {"cpu": 4000}, replaces=["job"]) is None
    assert tree.check_submit("ann", "q", {"cpu": 5000}, replaces=["job"]) is not None


def test_a_breach_names_limit_use_and_request() -> None:
    tree = tree_of(user("ann", concurrent={"memory": "4Gi"}))
    tree.start("Job/default/a", "ann", "", {"memory": 3 << 30})
    breach = tree.check_start("ann", "", {"memory": 2 << 30})
    assert breach is not None
    verdict = breach.verdict(tree.holders(*breach.node, breach.resource))
    assert verdict.message == "spec.limits.concurrent[memory] of User ann: limit 4Gi, in use 3Gi, requested 2Gi (memory)"
    assert verdict.shortfalls[0].missing == 1 << 30
    assert [holder.name for holder in verdict.shortfalls[0].holders] == ["Job/default/a"]
    assert str(breach).startswith("UserLimitReached: spec.limits.concurrent[memory]")


@pytest.mark.parametrize("code", [Reason.CONSUMPTION_LIMIT_REACHED, Reason.BUDGET_SPENT, Reason.SUSPENDED])
def test_stopped(code: Reason) -> None:
    tree = QuotaTree()
    tree.put(NodeSpec(kind="UserGroup", name="g", stopped=f"{code.value}: 100 of 100 spent"))
    tree.put(user("ann", "g"))
    breach = tree.check_start("ann", "", {})
    assert breach is not None
    assert (breach.reason, breach.message, breach.node) == (code, "100 of 100 spent", ("UserGroup", "g"))


@pytest.mark.parametrize(
    ("exhausted", "asked", "message"),
    [
        pytest.param("cpu", {"cpu": 1500}, "limit 5, used 5; requested 1500m (cpu)", id="asked for"),
        pytest.param("cpu", {"nvidia.com/gpu": 1}, None, id="what is not asked for does not stand against it"),
        pytest.param(
            "bandwidth-egress", {"cpu": 1000}, "limit 5, used 5; all work may move bytes, so none starts", id="bytes moved"
        ),
    ],
)
def test_what_is_used_up_for_the_period(exhausted: str, asked: dict[str, int], message: str | None) -> None:
    spent = NodeSpec(kind="Queue", name="top", limits=Ceilings(exhausted={exhausted: "limit 5, used 5"}))
    tree = tree_of(spent, queue("q", "top"))
    breach = tree.check_start("ann", "q", asked)
    found = None if breach is None else breach.verdict()
    assert (found.message if found is not None else None) == message
    if found is not None:
        assert (found.reason, found.subject) == (Reason.CONSUMPTION_LIMIT_REACHED, "Queue top")
    assert tree.check_submit("ann", "q", asked) is None, "it may wait for the next period"


def test_changes_return_whom_they_help() -> None:
    tree = tree_of(user("ann", "g"), group("g", "top"), group("top"), queue("q"))
    assert tree.start("a", "ann", "q", CPU) == ()
    assert set(tree.stop("a")) == {("User", "ann"), ("UserGroup", "g"), ("UserGroup", "top"), ("Queue", "q")}
    assert tree.stop("a") == ()
    assert tree.put(group("g", "top")) == ()
    assert tree.put(group("g", "top", concurrent={"cpu": 1})) == (("UserGroup", "g"),)
    tree.start("a", "ann", "q", CPU)
    assert ("UserGroup", "top") in tree.put(group("g"))
    assert tree.running("UserGroup", "top") == Use()


def test_an_unknown_parent_is_told_and_charged_already() -> None:
    tree = tree_of(user("ann", "g"))
    assert tree.problems("User", "ann") == ["spec.group: UserGroup 'g' does not exist: create it, or name another"]
    tree.start("a", "ann", "", CPU)
    tree.put(group("g", concurrent={"cpu": 1}))
    assert tree.problems("User", "ann") == []
    assert tree.check_start("ann", "", CPU) is not None


def test_a_circle_is_told_and_broken() -> None:
    tree = tree_of(group("a", "b"), group("b", "c"), user("ann", "b"))
    tree.start("w", "ann", "", CPU)
    assert tree.would_cycle(group("c", "a")) == [("UserGroup", "c"), ("UserGroup", "a"), ("UserGroup", "b")]
    tree.put(group("c", "a"))
    for name in ("a", "b", "c"):
        assert "stands above itself" in tree.problems("UserGroup", name)[0]
    assert tree.running("UserGroup", "b").jobs == 1  # what hangs on the circle still counts for the group it is in
    assert tree.running("UserGroup", "c").jobs == 0
    tree.put(group("c"))
    assert tree.problems("UserGroup", "a") == []
    assert tree.running("UserGroup", "c").jobs == 1


def test_limits_that_were_lowered_under_what_runs() -> None:
    tree = tree_of(user("ann", concurrent={"cpu": 4}, jobs_running=2))
    tree.start("a", "ann", "", {"cpu": 3000})
    assert tree.over() == []
    tree.put(user("ann", concurrent={"cpu": 2}, jobs_running=0))
    assert [(one.field, one.limit, one.used) for one in tree.over()] == [("concurrent", 2000, 3000), ("jobsRunning", 0, 1)]


# -- whatever the order --------------------------------------------------------------------------------------------------------

NAMES = st.sampled_from(["a", "b", "c", "d"])
PARENTS = st.sampled_from(["", "a", "b", "c", "d"])
AMOUNTS = st.dictionaries(st.sampled_from(["cpu", "memory"]), st.integers(0, 5), max_size=2)
KINDS = st.sampled_from(["User", "UserGroup", "Queue"])
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), KINDS, NAMES, PARENTS),
        st.tuples(st.just("drop"), KINDS, NAMES, st.just("")),
        st.tuples(st.sampled_from(["start", "submit"]), NAMES, st.tuples(PARENTS, PARENTS, PARENTS), AMOUNTS),
        st.tuples(st.sampled_from(["stop", "withdraw"]), NAMES, st.just(""), st.just("")),
    ),
    max_size=40,
)


def chain_of(links: dict[NodeKey, NodeKey | None], leaf: NodeKey) -> list[NodeKey]:
    """The model: follow the objects' links; a node on a circle has no parent."""

    def on_circle(key: NodeKey) -> bool:
        at, seen = links.get(key), set()
        while at is not None and at not in seen:
            if at == key:
                return True
            seen.add(at)
            at = links.get(at)
        return False

    found, at = [], leaf
    while True:
        found.append(at)
        above = links.get(at)
        if above is None or on_circle(at):
            return found
        at = above


@given(ACTIONS)
def test_use_is_the_sum_of_the_charges_below(actions: list[tuple[Any, ...]]) -> None:
    tree = QuotaTree()
    links: dict[NodeKey, NodeKey | None] = {}
    books: dict[str, dict[str, tuple[list[NodeKey], dict[str, int]]]] = {"start": {}, "submit": {}}
    for action, first, second, third in actions:
        if action == "put":
            spec = NodeSpec(kind=first, name=second, parent=third)
            tree.put(spec)
            links[spec.key] = spec.parent_key
        elif action == "drop":
            tree.drop(first, second)
            links.pop((first, second), None)
        elif action in books:
            user_, group_, queue_ = second
            getattr(tree, action)(first, user_, queue_, third, group=group_)
            leaves: list[NodeKey] = [("User", user_)] if user_ else [("UserGroup", group_)] if group_ else []
            books[action][first] = ([*leaves, *([("Queue", queue_)] if queue_ else [])], third)  # type: ignore[list-item]
        else:
            getattr(tree, action)(first)
            books["start" if action == "stop" else "submit"].pop(first, None)
        for kind in ("User", "UserGroup", "Queue"):
            for name in "abcd":
                for word, of in (("start", tree.running), ("submit", tree.submitted)):
                    want = Use()
                    for at, amounts in books[word].values():
                        if any((kind, name) in chain_of(links, leaf) for leaf in at):
                            want.add(amounts, 1, 1)
                    assert of(kind, name) == want, (kind, name, word)
    for key in list(books["start"]):
        tree.stop(key)
    for key in list(books["submit"]):
        tree.withdraw(key)
    for kind, name in list(links):
        tree.drop(kind, name)
    assert tree._nodes == {}, "nothing is remembered of what is gone"


@given(st.permutations([group("a", "b"), group("b", "c"), group("c", "a"), group("d", "a"), user("ann", "d")]))
def test_a_circle_is_the_same_in_any_order(specs: list[NodeSpec]) -> None:
    tree = tree_of(*specs)
    tree.start("w", "ann", "", CPU)
    uses = {name: tree.running("UserGroup", name).jobs for name in "abcd"}
    assert uses == {"a": 1, "b": 0, "c": 0, "d": 1}


@given(st.lists(st.tuples(NAMES, AMOUNTS), max_size=30), st.integers(0, 12))
def test_what_check_start_lets_pass_never_breaks_a_limit(asked: list[tuple[str, dict[str, int]]], limit: int) -> None:
    amounts = Ceilings(concurrent={"cpu": limit}, jobs_running=3)
    tree = QuotaTree()
    tree.put(NodeSpec(kind="UserGroup", name="g", limits=amounts))
    for name in "abcd":
        tree.put(NodeSpec(kind="User", name=name, parent="g"))
    for number, (name, request) in enumerate(asked):
        breach: Breach | None = tree.check_start(name, "", request)
        if breach is None:
            tree.start(str(number), name, "", request)
        assert tree.over() == []
