"""The ledger's books: what is noted when, folding, judgement of budgets, and how rarely status is written."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from muster.controllers.ledger_books import Account, Books
from muster.controllers.ledger_pages import FOLD_PAGES_MIN, Pages, runs_page
from muster.controllers.ledger_runs import RunPod, pod_run, record_of, run_of
from muster.controllers.ledger_status import CONSUMED_EVERY_MS, USE_EVERY_MS, look
from muster.controllers.work_sizes import Work, submitted_work
from muster.objects.kinds.muster import User, UserGroup, UserStatus
from muster.objects.kinds.muster_usage import RUNS_MAX, UsageRecord
from muster.objects.meta import name_of
from muster.objects.status import Raw
from muster.objects.time import format_time
from muster.objects.view import view_of
from muster.quota.ledger import Ledger, Run
from muster.quota.periods import DAY_MS
from muster.quota.units import HOUR_MS

T0 = 1_794_787_200_000
"""2026-11-16, midnight."""


def pod(name: str, user: str = "ann", *, start: int | None = None, end: int | None = None, cpu: int = 1, **meta: Any) -> RunPod:
    """A pod on a node, as its agent reports it; times in seconds after T0."""
    status: Raw = {"phase": "Pending"}
    if start is not None:
        status = {"phase": "Running", "startTime": format_time(T0 / 1000 + start)}
    if end is not None:
        done = {"state": {"terminated": {"finishedAt": format_time(T0 / 1000 + end)}}}
        status |= {"phase": "Succeeded", "containerStatuses": [done]}
    finalizers = meta.pop("finalizers", ["muster.dev/ledger"])
    labels = {"muster.dev/user": user, "muster.dev/queue": "q"} if user else {}
    return view_of(
        RunPod,
        {
            "metadata": {"name": name, "namespace": "d", "uid": name, "labels": labels, "finalizers": finalizers, **meta},
            "spec": {"nodeName": "n", "containers": [{"resources": {"requests": {"cpu": cpu}}}]},
            "status": status,
        },
    )


def account(kind: type[User] | type[UserGroup], name: str, status: Any = None, **spec: Any) -> Account:
    view = view_of(kind, {"metadata": {"name": name, "generation": 1}, "spec": spec})
    if status is not None:
        view = msgspec.structs.replace(view, status=status)
    return Account(view, name, f"uid-{name}", 1)


def loaded(*accounts: Account) -> Books:
    books = Books()
    for one in accounts:
        books.put_account(one)
    books.loaded(T0)
    books.touched = set()
    return books


def write(books: Books, store: dict[str, Raw]) -> None:
    """What the controller does: a page of what is over, in the store and then in the books."""
    page = runs_page([record_of(run, seen.key) for seen, run in list(books.ended.values())[:RUNS_MAX]])
    store[name_of(page)] = page
    books.put_page(name_of(page), view_of(UsageRecord, page))


@pytest.mark.parametrize(
    ("made", "start", "end", "is_over"),
    [
        pytest.param(pod("p"), None, None, False, id="not started"),
        pytest.param(pod("p", start=5), 5, None, False, id="running"),
        pytest.param(pod("p", start=5, end=9), 5, 9, True, id="ended"),
        pytest.param(
            pod("p", start=5, deletionTimestamp="2026-11-16T00:00:07Z", deletionGracePeriodSeconds=0),
            5,
            None,
            True,
            id="by force",
        ),
        pytest.param(
            pod("p", start=5, deletionTimestamp="2026-11-16T00:00:37Z", deletionGracePeriodSeconds=30),
            5,
            None,
            False,
            id="ending",
        ),
    ],
)
def test_a_pod_as_a_run(made: RunPod, start: int | None, end: int | None, is_over: bool) -> None:
    seen = pod_run(made)
    assert seen is not None
    assert (seen.start_ms, seen.end_ms, seen.is_over) == (
        None if start is None else T0 + start * 1000,
        None if end is None else T0 + end * 1000,
        is_over,
    )
    assert pod_run(pod("p", user="")) is None


def test_what_the_agent_measured_counts() -> None:
    made = pod("p", start=0, end=1, annotations={"muster.dev/traffic": json.dumps({"sentBytes": 7, "receivedBytes": 0})})
    seen = pod_run(made)
    assert seen is not None
    assert seen.moved == {"bandwidth-egress": 7, "bandwidth-ingress": 0}
    for wrong in ("{", "[]", '{"sentBytes": "x"}', '{"sentBytes": -1}'):
        found = pod_run(pod("p", annotations={"muster.dev/traffic": wrong}))
        assert found is not None
        assert found.moved == {}


def test_from_start_to_let_go() -> None:
    books, store = loaded(account(UserGroup, "g"), account(User, "ann", group="g")), dict[str, Raw]()
    books.put_pod(pod("a", finalizers=[]), "1", T0)
    assert set(books.unprotected) == {"a"}
    books.put_pod(pod("a", start=0, cpu=2), "2", T0)
    assert not books.unprotected
    assert books.tree.running("UserGroup", "g").amounts["cpu"] == 2000
    assert books.ledger.used("UserGroup", ["g"], T0, T0 + DAY_MS, T0 + 3000)["cpu"] == 6_000_000
    books.put_pod(pod("a", start=0, end=5, cpu=2), "3", T0 + 9000)
    assert set(books.ended) == {"a"}
    assert books.tree.running("User", "ann").jobs == 0
    assert books.ledger.used("User", ["ann"], T0, T0 + DAY_MS, T0 + 60_000)["cpu"] == 10_000_000, "up to its end"
    write(books, store)
    assert not books.ended
    assert set(books.settled) == {"a"}
    books.put_pod(pod("a", start=0, end=5, cpu=2, finalizers=[], annotations={"muster.dev/accounted": "true"}), "4", T0)
    assert not books.settled
    books.drop_pod("a", T0 + 99_000)
    assert not books.ended
    assert books.ledger.used("Queue", ["q"], T0, T0 + DAY_MS, T0 + 99_000)["cpu"] == 10_000_000


def test_a_pod_that_vanishes_counts_until_that_is_seen_and_one_that_never_ran_for_nothing() -> None:
    books, store = loaded(account(User, "ann", group="g")), dict[str, Raw]()
    books.put_pod(pod("a", start=0, finalizers=[]), "1", T0)
    books.put_pod(pod("b", finalizers=[]), "1", T0)
    books.drop_pod("a", T0 + 4000)
    books.drop_pod("b", T0 + 4000)
    assert set(books.ended) == {"a"}
    write(books, store)
    assert books.ledger.used("User", ["ann"], 0, T0 + DAY_MS, T0 + DAY_MS)["cpu"] == 4_000_000


def test_who_takes_a_label_away_does_not_get_away() -> None:
    books = loaded(account(User, "ann", group="g"))
    books.put_pod(pod("a", start=0), "1", T0)
    books.put_pod(pod("a", user="", start=0), "2", T0)
    books.put_pod(pod("a", user="bob", start=0, end=3), "3", T0)
    assert books.ended["a"][1].user == "ann"


# -- pages ---------------------------------------------------------------------------------------------------------------------


def ran(key: int, day: int, user: str = "ann", seconds: int = 60) -> Run:
    start = T0 + day * DAY_MS
    return Run(
        key=f"k{key}", user=user, group="g", queue="q", amounts={"cpu": 1000}, start_ms=start, end_ms=start + seconds * 1000
    )


def pages_of(runs: list[Run], size: int) -> Pages:
    pages = Pages()
    for first in range(0, len(runs), size):
        raw = runs_page([record_of(run, "d/p") for run in runs[first : first + size]])
        pages.put(name_of(raw), view_of(UsageRecord, raw))
    return pages


@settings(max_examples=25)
@given(
    st.lists(
        st.tuples(st.integers(-900, 0), st.sampled_from(["ann", "bob"]), st.integers(1, 100_000)), min_size=1, max_size=80
    ),
    st.integers(1, 3),
    st.integers(0, 3),
)
def test_folding_changes_nothing_about_the_sums(days: list[tuple[int, str, int]], size: int, left: int) -> None:
    """After each single write (the new page, each delete) the sums are the same: days as far as they are kept."""
    runs = [ran(n, day, user, seconds) for n, (day, user, seconds) in enumerate(days)]
    pages = pages_of(runs, size)
    now_ms = T0 + 3 * DAY_MS
    want = Ledger(runs)

    def same() -> None:
        got = pages.ledger()
        for user in ("ann", "bob"):
            assert got.used("User", [user], 0, now_ms, now_ms) == want.used("User", [user], 0, now_ms, now_ms)
            recent = T0 - 300 * DAY_MS
            assert got.used("User", [user], recent, now_ms, now_ms) == want.used("User", [user], recent, now_ms, now_ms)

    unsettled = {f"k{n}" for n in range(left)}
    for _ in range(5):
        page = pages.fold(now_ms, unsettled)
        if page is None:
            break
        assert not unsettled & {one.uid for name in page["spec"]["replaces"] for one in pages.specs[name].runs}
        pages.put(name_of(page), view_of(UsageRecord, page))
        same()
        for name in sorted(pages.disposable):
            pages.drop(name)
            same()
    assert len(pages.specs) < FOLD_PAGES_MIN + left + 1
    same()


def test_a_run_on_two_pages_counts_once_also_when_they_are_folded() -> None:
    runs = [ran(n, -5) for n in range(40)]
    pages = pages_of(runs, 1)
    twice = runs_page([record_of(ran(99, -5), "d/p"), record_of(runs[0], "d/p")])
    pages.put(name_of(twice), view_of(UsageRecord, twice))
    before = pages.ledger()
    page = pages.fold(T0, unsettled={"k99"})
    assert page is not None
    assert "runs-k0" not in page["spec"]["replaces"]
    pages.put(name_of(page), view_of(UsageRecord, page))
    assert pages.ledger() == before


def test_books_follow_a_fold_and_mend_what_others_break() -> None:
    books, store = loaded(account(User, "ann", group="g")), dict[str, Raw]()
    for n in range(FOLD_PAGES_MIN):
        books.put_pod(pod(f"p{n}", start=0, end=10), "1", T0)
        write(books, store)
    total = books.ledger.used("User", ["ann"], 0, T0 + DAY_MS, T0 + DAY_MS)
    page = books.pages.fold(T0 + 2 * DAY_MS, set())
    assert page is not None
    books.put_page(name_of(page), view_of(UsageRecord, page))
    for name in sorted(books.pages.disposable):
        books.drop_page(name)
    assert books.ledger.used("User", ["ann"], 0, T0 + DAY_MS, T0 + DAY_MS) == total
    books.drop_page(name_of(page))  # somebody deletes what is left
    assert books.ledger.used("User", ["ann"], 0, T0 + DAY_MS, T0 + DAY_MS) == {}


def test_a_page_that_replaces_what_nobody_knows_is_put_up_with() -> None:
    books = loaded(account(User, "ann", group="g"))
    books.put_page("odd", view_of(UsageRecord, {"spec": {"replaces": ["nothing"]}}))
    books.drop_page("odd")
    assert books.ledger.used("User", ["ann"], 0, T0 + DAY_MS, T0 + DAY_MS) == {}


def test_a_page_is_deleted_after_those_that_it_replaces() -> None:
    pages = Pages()
    for name, replaces in {"a": [], "b": [], "first": ["a", "b"], "second": ["first", "c"], "third": ["second"]}.items():
        pages.put(name, view_of(UsageRecord, {"spec": {"replaces": replaces}}))
    gone = []
    while pages.disposable:
        gone.append(pages.disposable)
        for name in gone[-1]:
            pages.drop(name)
    assert gone == [{"a", "b"}, {"first"}, {"second"}]


# -- any interleaving ----------------------------------------------------------------------------------------------------------


class Interleavings(RuleBasedStateMachine):
    """Pods start, end and vanish, the controller writes or crashes before or after any write: the pages and the pods that are
    left always come to what ran."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.number = 0
        self.pods: dict[str, tuple[int, int | None, bool]] = {}
        """In the store: start, end, whether it is marked as accounted. The finalizer keeps those that are not."""
        self.truth: dict[str, tuple[int, int | None]] = {}
        self.pages: dict[str, Raw] = {}
        self.books = loaded()

    def show(self, name: str) -> None:
        start, end, is_noted = self.pods[name]
        meta: dict[str, Any] = {"annotations": {"muster.dev/accounted": "true"}, "finalizers": []} if is_noted else {}
        self.books.put_pod(pod(name, start=start, end=end, **meta), "1", T0 + self.now * 1000)

    @rule(seconds=st.integers(1, 100_000))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds

    @rule()
    def starts(self) -> None:
        name = f"p{self.number}"
        self.number += 1
        self.pods[name] = (self.now, None, False)
        self.truth[name] = (self.now, None)
        self.show(name)

    @rule(seconds=st.integers(1, 200_000), lets_go=st.booleans())
    def a_whole_run(self, seconds: int, lets_go: bool) -> None:
        """From start to page, so that there are pages to fold; it may be left as a crash would leave it."""
        name = f"p{self.number}"
        self.starts()
        self.now += seconds
        self.pods[name] = (self.pods[name][0], self.now, False)
        self.truth[name] = (self.pods[name][0], self.now)
        self.show(name)
        self.notes(is_answered=True)
        if lets_go:
            self.pods[name] = (self.pods[name][0], self.now, True)
            self.show(name)
        self.now += 100_000

    @precondition(lambda self: any(end is None for _, end, _ in self.pods.values()))
    @rule(data=st.data(), is_seen=st.booleans())
    def ends(self, data: st.DataObject, is_seen: bool) -> None:
        name = data.draw(st.sampled_from(sorted(one for one, (_, end, _) in self.pods.items() if end is None)))
        start, _, is_noted = self.pods[name]
        self.pods[name] = (start, self.now, is_noted)
        self.truth[name] = (start, self.now)
        if is_seen:
            self.show(name)

    @precondition(lambda self: self.books.ended)
    @rule(is_answered=st.booleans())
    def notes(self, is_answered: bool) -> None:
        """The page is written; the controller may die before it learns that."""
        page = runs_page([record_of(run, seen.key) for seen, run in self.books.ended.values()])
        if name_of(page) in self.pages:  # already there: it is read instead
            page = self.pages[name_of(page)]
        self.pages[name_of(page)] = page
        if is_answered:
            self.books.put_page(name_of(page), view_of(UsageRecord, page))
        else:
            self.crash()

    @precondition(lambda self: self.books.settled)
    @rule(is_answered=st.booleans())
    def lets_go(self, is_answered: bool) -> None:
        name = min(self.books.settled)
        start, end, _ = self.pods[name]
        assert end is not None, "only what is over may go"
        self.pods[name] = (start, end, True)
        if is_answered:
            self.show(name)
        else:
            self.crash()

    @precondition(lambda self: any(is_noted for _, _, is_noted in self.pods.values()))
    @rule()
    def goes(self) -> None:
        name = min(one for one, (_, _, is_noted) in self.pods.items() if is_noted)
        del self.pods[name]
        self.books.drop_pod(name, T0 + self.now * 1000)

    @rule()
    def folds(self) -> None:
        unsettled = {uid for uid, seen in self.books.pods.items() if not seen.is_noted}
        page = self.books.pages.fold(T0 + self.now * 1000, unsettled, pages_min=2)
        if page is not None:
            self.pages[name_of(page)] = page
            self.books.put_page(name_of(page), view_of(UsageRecord, page))

    @precondition(lambda self: self.books.pages.disposable)
    @rule()
    def deletes_a_replaced_page(self) -> None:
        name = min(self.books.pages.disposable)
        del self.pages[name]
        self.books.drop_page(name)

    @rule()
    def crash(self) -> None:
        """Everything but the store is gone."""
        self.books = Books()
        for name, page in self.pages.items():
            self.books.put_page(name, view_of(UsageRecord, page))
        for name in self.pods:
            self.show(name)
        self.books.loaded(T0 + self.now * 1000)

    @invariant()
    def nothing_is_lost_or_counted_twice(self) -> None:
        """What a fresh start would know, from pages and pods alone: to the second what ran."""
        fresh = Books()
        for name, page in self.pages.items():
            fresh.put_page(name, view_of(UsageRecord, page))
        for name, (start, end, is_noted) in self.pods.items():
            meta: dict[str, Any] = {"annotations": {"muster.dev/accounted": "true"}, "finalizers": []} if is_noted else {}
            fresh.put_pod(pod(name, start=start, end=end, **meta), "1", T0 + self.now * 1000)
        now_ms = T0 + self.now * 1000
        fresh.loaded(now_ms)
        want = sum(((self.now if end is None else end) - start) * 1_000_000 for start, end in self.truth.values())
        got = fresh.ledger.used("User", ["ann"], 0, now_ms + DAY_MS, now_ms)
        assert got.get("cpu", 0) == want


Interleavings.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
test_interleavings = Interleavings.TestCase


# -- what is shown -------------------------------------------------------------------------------------------------------------


def shown(books: Books, at_ms: int, written_ms: int | None = None) -> Any:
    return look(books, ("User", "ann"), at_ms, written_ms)


def test_numbers_are_written_rarely_and_what_stops_somebody_at_once() -> None:
    limits = {"consumption": [{"resource": "cpu", "amount": 1, "period": "Day"}]}
    books = loaded(account(User, "ann", group="g", limits=limits))
    first = shown(books, T0)
    books.put_account(account(User, "ann", first.status, group="g", limits=limits))
    assert shown(books, T0 + 1, T0).status is None, "nothing changed"
    books.put_pod(pod("a", start=0, cpu=1), "1", T0)
    begun = shown(books, T0 + 1, T0)
    assert begun.status.usage.jobs_running == 1, "who had nothing has something: that is told at once"
    books.put_account(account(User, "ann", begun.status, group="g", limits=limits))
    books.put_pod(pod("b", start=0, cpu=1), "1", T0)
    soon = shown(books, T0 + 100, T0)
    assert (soon.status, soon.again_ms) == (None, T0 + USE_EVERY_MS)
    later = shown(books, T0 + USE_EVERY_MS, T0)
    assert later.status.usage.jobs_running == 2
    assert later.status.usage.concurrent == {"cpu": "2"}
    assert later.again_ms == T0 + HOUR_MS // 2, "when the limit will be reached, by itself"
    books.put_account(account(User, "ann", later.status, group="g", limits=limits))
    assert shown(books, T0 + USE_EVERY_MS + 500, T0 + USE_EVERY_MS).again_ms == T0 + USE_EVERY_MS + CONSUMED_EVERY_MS
    stopped = shown(books, T0 + HOUR_MS // 2, T0 + HOUR_MS // 2 - 1)
    (spent,) = stopped.status.standing.exhausted
    assert spent.resource == "cpu"
    assert "limit 1 core-hours of cpu per Day, used 1" in spent.message
    assert stopped.status.standing.stopped == ""
    books.put_account(account(User, "ann", stopped.status, group="g", limits=limits))
    for name in ("a", "b"):
        books.put_pod(pod(name, start=0, end=1800, cpu=1), "2", T0)
    write(books, {})
    tomorrow = shown(books, T0 + DAY_MS, T0 + DAY_MS - 1)
    assert tomorrow.status.standing.exhausted == []


def test_budgets_warn_once_in_each_period_and_limit_when_spent() -> None:
    group = account(UserGroup, "g", prices=[{"resource": "cpu", "amount": 1}])
    spec = {
        "group": "g",
        "budget": {"amount": 2, "period": "Day", "warnAtPercent": [50], "whenSpent": "Limit", "limits": {"jobsRunning": 0}},
    }
    books = loaded(group, account(User, "ann", **spec))
    books.put_pod(pod("a", start=0, cpu=1), "1", T0)
    at = T0 + HOUR_MS
    warned = shown(books, at, at - 1)
    assert [one.percent for one in warned.warnings] == [50]
    assert warned.status.usage.spent == 1.0
    books.put_account(account(User, "ann", warned.status, **spec))
    assert shown(books, at + 2 * CONSUMED_EVERY_MS, at).warnings == ()
    spent = shown(books, T0 + 2 * HOUR_MS, at)
    assert spent.status.standing.limits.jobs_running == 0
    assert spent.status.standing.stopped == ""
    books.put_account(account(User, "ann", spent.status, **spec))
    again = shown(books, T0 + DAY_MS + HOUR_MS, T0 + DAY_MS)
    assert [one.percent for one in again.warnings] == [50]


def test_what_fades_by_itself_is_not_written() -> None:
    books = loaded(account(User, "ann", group="g"))
    books.put_pod(pod("a", start=0, end=3600), "1", T0)
    write(books, {})
    first = shown(books, T0 + 2 * HOUR_MS)
    books.put_account(account(User, "ann", first.status, group="g"))
    assert first.status.standing.faded[0].used["cpu"] == pytest.approx(3_600_000, rel=0.02)
    assert shown(books, T0 + 20 * HOUR_MS, T0).status is None
    assert isinstance(first.status, UserStatus)


@pytest.mark.parametrize(
    ("kind", "raw", "want"),
    [
        pytest.param(
            "Job",
            {
                "spec": {
                    "user": "ann",
                    "queue": "q",
                    "roles": [
                        {
                            "name": "w",
                            "replicas": 3,
                            "command": ["x"],
                            "resources": {"requests": {"cpu": 2, "bandwidth": "1Gbps"}},
                        }
                    ],
                }
            },
            {"cpu": 6000, "pods": 3, "bandwidth-egress": 3 * 10**9, "bandwidth-ingress": 3 * 10**9},
            id="Job",
        ),
        pytest.param(
            "KusciaJob",
            {
                "metadata": {"labels": {"muster.dev/user": "ann", "muster.dev/queue": "q"}},
                "spec": {
                    "tasks": [
                        {"appImage": "a", "parties": [{"domainID": "x", "resources": {"requests": {"cpu": 1}}}]},
                        {"appImage": "a", "parties": [{"domainID": "x"}, {"domainID": "partner"}]},
                    ]
                },
            },
            {"cpu": 4000, "pods": 2},
            id="KusciaJob: the largest task, partners aside",
        ),
    ],
)
def test_what_work_asks_for(kind: str, raw: Raw, want: dict[str, int]) -> None:
    image = {"spec": {"deployTemplates": [{"replicas": 2, "spec": {"containers": [{"resources": {"requests": {"cpu": 2}}}]}}]}}
    raw = {**raw, "metadata": {"name": "j", "namespace": "d", **raw.get("metadata", {})}}
    work = submitted_work(kind, raw, lambda name: image, lambda domain: domain == "partner")
    assert isinstance(work, Work)
    assert (work.key, work.user, work.queue, dict(work.request)) == (f"{kind}/d/j", "ann", "q", want)


@pytest.mark.parametrize(
    ("labels", "status", "is_over"),
    [
        pytest.param({}, {"phase": "Failed"}, True, id="failed"),
        pytest.param({"job-stage": "Restart"}, {"phase": "Failed", "stage": "Start"}, False, id="told to run again"),
        pytest.param(
            {"job-stage": "Restart", "job-stage-version": "2"},
            {"phase": "Failed", "stage": "Restart", "stageVersion": 2},
            True,
            id="was answered, and failed again",
        ),
        pytest.param({"job-stage": "Restart"}, {"phase": "Cancelled", "stage": "Start"}, True, id="can't be followed"),
        pytest.param({"job-stage": "Stop"}, {"phase": "Failed", "stage": "Start"}, True, id="another command"),
    ],
)
def test_a_job_that_is_told_to_run_again_is_submitted_anew(labels: dict[str, str], status: Raw, is_over: bool) -> None:
    """Otherwise a failed job would come back beside as many others as may be submitted."""
    named = {f"kuscia.secretflow/{key}": value for key, value in labels.items()}
    raw = {"metadata": {"name": "j", "namespace": "d", "labels": {"muster.dev/user": "ann", **named}}, "status": status}
    work = submitted_work("KusciaJob", raw)
    assert isinstance(work, Work)
    assert work.is_over is is_over


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda x: (
            st.lists(x)
            | st.dictionaries(st.sampled_from(["spec", "roles", "tasks", "parties", "resources", "requests", "metadata"]), x)
        ),
    )
)
def test_whatever_an_object_holds_nothing_is_raised(raw: Any) -> None:
    for kind in ("Job", "KusciaJob", "Pod"):
        submitted_work(kind, raw if isinstance(raw, dict) else {"spec": raw})


def test_records_and_runs_are_the_same() -> None:
    run = ran(1, 0)
    assert msgspec.structs.replace(run_of(record_of(run, "d/p")), work="") == run
