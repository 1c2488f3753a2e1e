"""Who pays: groups that users are in or say that they are in, queues that jobs name or do not, and how past use fades."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from tests.controllers.test_ledger import T0, account, loaded, pod, write

from muster.controllers.ledger_books import DEFAULT_HALF_LIFE_S, Account, Books
from muster.controllers.ledger_runs import RunPod
from muster.controllers.ledger_status import look
from muster.engine.work import Work, encode_work
from muster.objects.kinds.muster import User, UserGroup
from muster.objects.kinds.muster_queues import Queue
from muster.objects.labels import Muster
from muster.objects.view import view_of
from muster.quota.ledger import Totals
from muster.quota.periods import DAY_MS
from muster.quota.units import HOUR_MS


def queue(name: str, status: Any = None, **spec: Any) -> Account:
    view = view_of(Queue, {"metadata": {"name": name, "generation": 1}, "spec": spec})
    if status is not None:
        view = msgspec.structs.replace(view, status=status)
    return Account(view, name, f"uid-{name}", 1)


def used(books: Books, kind: Any, name: str, seconds: int = 3600) -> int:
    found: Totals = books.ledger.used(kind, [name], 0, T0 + 10 * DAY_MS, T0 + seconds * 1000)
    return found.get("cpu", 0) // 1_000_000


def of(name: str, labels: dict[str, str], *, start: int, end: int | None = None, work: Work | None = None) -> RunPod:
    notes = {} if work is None else {Muster.WORK: encode_work(work)}
    return pod(name, start=start, end=end, labels=labels, annotations=notes)


def test_naming_another_group_charges_ones_own() -> None:
    books = loaded(account(UserGroup, "g"), account(UserGroup, "other"), account(User, "ann", group="g"))
    books.put_pod(of("p", {"muster.dev/user": "ann", "muster.dev/group": "other"}, start=0, end=60), "1", T0)
    write(books, {})
    assert (used(books, "UserGroup", "g"), used(books, "UserGroup", "other")) == (60, 0)
    books.put_pod(of("q", {"muster.dev/group": "other"}, start=0, end=30), "1", T0)
    write(books, {})
    assert used(books, "UserGroup", "other") == 30, "work of no user is the group's that it names"


@pytest.mark.parametrize("is_restarted", [False, True])
def test_what_runs_goes_with_its_user(is_restarted: bool) -> None:
    """Seen as it happened, or by somebody who starts afterwards: the same sums."""
    accounts = [account(UserGroup, "g"), account(UserGroup, "h")]
    books = loaded(*accounts, account(User, "ann", group="g"))
    books.put_pod(pod("p", start=0), "1", T0)
    if is_restarted:
        books = loaded(*accounts, account(User, "ann", group="h"))
        books.put_pod(pod("p", start=0), "1", T0)
    else:
        books.put_account(account(User, "ann", group="h"))
    assert (used(books, "UserGroup", "g", 60), used(books, "UserGroup", "h", 60)) == (0, 60)
    assert {("UserGroup", "g"), ("UserGroup", "h")} <= books.touched or is_restarted


def test_what_runs_stays_with_the_group_of_a_user_who_is_gone() -> None:
    books = loaded(account(UserGroup, "g"), account(User, "ann", group="g"))
    books.put_pod(pod("p", start=0), "1", T0)
    books.drop_account(("User", "ann"))
    books.put_pod(pod("p", start=0, end=90), "2", T0 + 90_000)
    write(books, {})
    assert (used(books, "UserGroup", "g"), used(books, "User", "ann")) == (90, 90)


@pytest.mark.parametrize(
    ("labels", "work", "limits", "counts"),
    [
        pytest.param({"muster.dev/user": "ann"}, None, {}, True, id="of a user"),
        pytest.param({"muster.dev/user": "ann", "muster.dev/queue": "q"}, None, {}, False, id="names another"),
        pytest.param({}, Work(job="Job/d/x"), {}, False, id="of nobody, and nothing is limited"),
        pytest.param(
            {},
            Work(job="Job/d/x"),
            {"consumption": [{"resource": "cpu", "amount": 1}]},
            True,
            id="of nobody, where consumption is limited",
        ),
        pytest.param({}, None, {"consumption": [{"resource": "cpu", "amount": 1}]}, False, id="no job of ours"),
    ],
)
def test_the_default_queue_has_what_names_none(
    labels: dict[str, str], work: Work | None, limits: dict[str, Any], counts: bool
) -> None:
    books = loaded(queue("top", limits=limits), queue("default", parent="top", isDefault=True), queue("q"))
    books.put_pod(of("p", labels, start=0, end=60, work=work), "1", T0)
    if books.ended:
        write(books, {})
    assert used(books, "Queue", "default") == (60 if counts else 0)


def test_the_consumption_limit_of_a_queue_is_reached_and_begins_anew() -> None:
    limits = {"consumption": [{"resource": "cpu", "amount": 1, "period": "Day"}]}
    books = loaded(queue("top", limits=limits), queue("q", parent="top"))
    books.put_pod(pod("p", start=0, cpu=2), "1", T0)
    before = look(books, ("Queue", "top"), T0 + 1000, None)
    assert before.again_ms == T0 + HOUR_MS // 2, "when it will be reached, by itself"
    reached = look(books, ("Queue", "top"), T0 + HOUR_MS // 2, T0 + HOUR_MS // 2 - 1).status
    assert isinstance(reached, type(queue("top").view.status))
    assert reached.standing is not None
    (spent,) = reached.standing.exhausted
    assert spent.message == (
        "spec.limits.consumption[0] of Queue top: limit 1 core-hours of cpu per Day, used 1; "
        "the next period begins at 2026-11-17T00:00:00Z"
    )
    books.put_account(queue("top", reached, limits=limits))
    books.put_pod(pod("p", start=0, end=1800, cpu=2), "2", T0)
    write(books, {})
    tomorrow = look(books, ("Queue", "top"), T0 + DAY_MS, T0 + DAY_MS - 1).status
    assert tomorrow is not None
    assert tomorrow.standing is not None
    assert tomorrow.standing.exhausted == []
    assert look(books, ("Queue", "q"), T0 + HOUR_MS, None).status.standing is None  # type: ignore[union-attr]


def test_use_fades_as_the_policies_say() -> None:
    books = loaded(account(UserGroup, "g"), account(User, "ann", group="g"))
    assert books.half_lives == (DEFAULT_HALF_LIFE_S,)
    books.put_pod(pod("p", start=0, end=60), "1", T0)
    write(books, {})
    books.set_half_lives({3600, 86_400})
    at_s = 7200
    for half_life_s, sums in books.faded(("UserGroup", "g"), T0 + at_s * 1000).items():
        want = 60_000 * math.exp2(-(at_s - 30) / half_life_s)
        assert sums["cpu"] == pytest.approx(want, rel=1e-3), half_life_s
    shown = look(books, ("User", "ann"), T0 + at_s * 1000, None).status
    assert [one.half_life_seconds for one in shown.standing.faded] == [3600, 86_400]  # type: ignore[union-attr]
    books.set_half_lives(set())
    assert books.half_lives == (DEFAULT_HALF_LIFE_S,)
