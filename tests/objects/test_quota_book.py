"""A namespace's quotas: what is judged, and that what is kept change by change equals what counting anew finds."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from muster.objects.quantity import ZERO
from muster.objects.quota_book import Book, Entry
from muster.objects.resource_quotas import PODS, Quota, counted, kind_of
from muster.objects.status import Raw


def quota(name: str, hard: Raw, *scopes: str) -> Quota:
    return Quota.of({"metadata": {"name": name}, "spec": {"hard": hard, "scopes": list(scopes)}})


def pod(cpu: int, phase: str = "Running", deadline_s: int | None = None) -> Raw:
    resources = {"requests": {"cpu": cpu}} if cpu else {}
    spec: Raw = {"containers": [{"name": "c", "resources": resources}]}
    return {"spec": {**spec, "activeDeadlineSeconds": deadline_s} if deadline_s else spec, "status": {"phase": phase}}


def claim(size: int) -> Raw:
    return {"spec": {"storageClassName": "gold", "resources": {"requests": {"storage": size}}}}


def a_book(*quotas: Quota) -> Book:
    book = Book()
    for kind in book.set_quotas(quotas):
        book.load(kind, {})
    return book


def new(name: str, raw: Raw, kind: str = PODS) -> Entry:
    return Entry(kind, name, counted(kind, raw), is_new=True)


def used(book: Book, name: str = "q") -> dict[str, str]:
    return {resource: str(amount) for resource, amount in book.used[name].items()}


def put(book: Book, entry: Entry) -> None:
    book.put(entry.kind, entry.name, entry.after)


@pytest.mark.parametrize(
    ("entries", "refusal"),
    [
        pytest.param([new("b", pod(1))], "", id="the last place"),
        pytest.param(
            [new("b", pod(2))], "exceeded quota: q, requested: cpu=2, used: cpu=2, limited: cpu=3", id="more than is left"
        ),
        pytest.param(
            [new("b", pod(1)), new("c", pod(1))],
            "exceeded quota: q, requested: cpu=2,pods=2, used: cpu=2,pods=1, limited: cpu=3,pods=2",
            id="together too many",
        ),
        pytest.param([Entry(PODS, "a", None), new("b", pod(3))], "", id="one goes for another"),
        pytest.param([new("b", pod(0))], "failed quota: q: must specify cpu", id="what is bounded must be stated"),
        pytest.param([Entry(PODS, "a", counted(PODS, pod(9)))], "", id="updates of pods are not judged"),
        pytest.param(
            [Entry("persistentvolumeclaims", "d", counted("persistentvolumeclaims", claim(9)))],
            "exceeded quota: q, requested: requests.storage=8, used: requests.storage=1, limited: requests.storage=4",
            id="claims that grow are",
        ),
        pytest.param([Entry("persistentvolumeclaims", "d", counted("persistentvolumeclaims", claim(1)))], "", id="no change"),
    ],
)
def test_judging(entries: list[Entry], refusal: str) -> None:
    book = a_book(quota("q", {"pods": 2, "cpu": 3, "requests.storage": 4}))
    put(book, new("a", pod(2)))
    put(book, new("d", claim(1), "persistentvolumeclaims"))
    before = used(book)
    verdict = book.judge(entries)
    assert verdict.refusal == refusal
    assert used(book) == before, "judging changes nothing"
    if not refusal:
        for entry in entries:
            put(book, entry)
        assert all(used(book)[name] == str(amount) for name, amount in verdict.used.get("q", {}).items())


def test_what_is_over_its_limit_hinders_only_what_asks_for_more_of_it() -> None:
    book = a_book(quota("q", {"pods": 5, "cpu": 5}))
    put(book, new("a", pod(5)))
    book.set_quotas([quota("q", {"pods": 5, "cpu": 1, "configmaps": 5})])
    book.load("configmaps", {})
    assert book.judge([new("b", {}, "configmaps")]).refusal == ""
    assert "requested: cpu=1, used: cpu=5, limited: cpu=1" in book.judge([new("b", pod(1))]).refusal


def test_quotas_that_change_are_counted_from_what_is_known() -> None:
    book = a_book(quota("q", {"pods": 5}))
    put(book, new("a", pod(2)))
    assert book.set_quotas([quota("q", {"cpu": 9}), quota("r", {"count/pods": 9, "secrets": 1})]) == ["secrets"]
    book.load("secrets", {"s": counted("secrets", {})})
    assert (used(book), used(book, "r")) == ({"cpu": "2"}, {"count/pods": "1", "secrets": "1"})
    assert book.set_quotas([quota("r", {"secrets": 1})]) == []
    assert not book.counts(PODS)


KINDS = {
    PODS: st.builds(
        pod, st.integers(0, 3), st.sampled_from(["Pending", "Running", "Succeeded", "Failed"]), st.sampled_from([None, 60])
    ),
    "persistentvolumeclaims": st.builds(claim, st.integers(0, 4)),
    "configmaps": st.just({}),
}
HARD = st.dictionaries(
    st.sampled_from(["pods", "count/pods", "requests.cpu", "configmaps", "requests.storage", "persistentvolumeclaims"]),
    st.integers(0, 6),
    max_size=4,
)


class Namespace(RuleBasedStateMachine):
    """Creates, updates, endings and deletions as admission lets them pass, quotas that come and change; any order."""

    def __init__(self) -> None:
        super().__init__()
        self.objects: dict[tuple[str, str], Raw] = {}
        self.quotas: dict[str, Quota] = {}
        self.book = Book()

    @rule(name=st.sampled_from("qrs"), hard=HARD, scope=st.sampled_from(["", "Terminating", "NotBestEffort"]))
    def set_quota(self, name: str, hard: Raw, scope: str) -> None:
        self.quotas[name] = quota(
            name, {key: value for key, value in hard.items() if not scope or kind_of(key) == PODS}, *([scope] if scope else [])
        )
        self._read()

    @rule(name=st.sampled_from("qrs"))
    def delete_quota(self, name: str) -> None:
        self.quotas.pop(name, None)
        self._read()

    def _read(self) -> None:
        for kind in self.book.set_quotas(list(self.quotas.values())):
            self.book.load(kind, {n: counted(k, raw) for (k, n), raw in self.objects.items() if k == kind})

    @rule(data=st.data(), changes=st.lists(st.tuples(st.sampled_from(sorted(KINDS)), st.sampled_from("abcd")), max_size=3))
    def write(self, data: st.DataObject, changes: list[tuple[str, str]]) -> None:
        """One transaction: each object of it is made, or changed, or goes."""
        entries, after = [], dict(self.objects)
        for kind, name in changes:
            is_new = (kind, name) not in after
            if not is_new and data.draw(st.booleans()):
                del after[kind, name]
                entries.append(Entry(kind, name, None))
                continue
            after[kind, name] = data.draw(KINDS[kind])
            entries.append(Entry(kind, name, counted(kind, after[kind, name]), is_new=is_new))
        before = {name: dict(amounts) for name, amounts in self.book.used.items()}
        if self.book.judge(entries).refusal:
            return
        for entry in [*entries, *entries[-1:]]:  # what is said twice counts once
            put(self.book, entry)
        self.objects = after
        if any(entry.kind == PODS and not entry.is_new for entry in entries):
            return
        for name, one in self.quotas.items():
            for resource, amount in self.book.used[name].items():
                assert amount <= one.hard[resource] or amount <= before[name][resource], "admission lets nothing go beyond"

    @invariant()
    def used_is_the_sum_of_what_is_there(self) -> None:
        for name, one in self.quotas.items():
            sums = dict.fromkeys(one.hard, ZERO)
            for (kind, _), raw in self.objects.items():
                each = counted(kind, raw)
                for resource in one.bounds(kind, each):
                    sums[resource] += each.amounts.get(resource, ZERO)
            assert self.book.used[name] == sums


TestNamespace = Namespace.TestCase
