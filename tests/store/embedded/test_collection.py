"""Lists in order, snapshots of the past, and what pending writes are checked against."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from muster.store.contract import EventType
from muster.store.embedded.collection import Collection
from muster.store.embedded.records import Event, Key, Record
from tests.store.embedded.support import change, record

NAMES = st.sampled_from("abcdefgh")
SPACES = st.sampled_from(["one", "two", "two-b"])


def put(
    collection: Collection, name: str, rv: int, *, namespace: str = "default", labels: dict[str, str] | None = None
) -> None:
    previous = collection.records.get((namespace, name))
    new = record(name, rv, namespace=namespace, labels=labels or {})
    collection.apply(change("MODIFIED" if previous else "ADDED", new, previous))


def remove(collection: Collection, name: str, rv: int, *, namespace: str = "default") -> None:
    previous = collection.records[(namespace, name)]
    collection.apply(change("DELETED", record(name, rv, namespace=namespace), previous))


def names(records: list[Record]) -> list[str]:
    return [r.name for r in records]


def test_in_order_of_name_by_namespace() -> None:
    collection = Collection("things")
    for rv, (namespace, name) in enumerate([("b", "x"), ("a", "z"), ("a", "y"), ("b", "a")], start=2):
        put(collection, name, rv, namespace=namespace)
    assert [r.key for r in collection.slice(None, None, None, 0).records] == [("a", "y"), ("a", "z"), ("b", "a"), ("b", "x")]
    assert names(collection.slice("a", None, None, 0).records) == ["y", "z"]
    assert names(collection.slice("nowhere", None, None, 0).records) == []


def test_pages_and_what_remains() -> None:
    collection = Collection("things")
    for rv, name in enumerate("abcde", start=2):
        put(collection, name, rv)
    page = collection.slice("default", None, None, 2)
    assert (names(page.records), page.next_key, page.remaining) == (["a", "b"], ("default", "c"), 3)
    page = collection.slice("default", None, page.next_key, 3)
    assert (names(page.records), page.next_key, page.remaining) == (["c", "d", "e"], None, None)
    page = collection.slice("default", lambda r: r.name != "b", None, 2)
    assert (names(page.records), page.next_key, page.remaining) == (["a", "c"], ("default", "d"), None)


def test_latest_is_pending_over_committed() -> None:
    collection = Collection("things")
    put(collection, "a", 2)
    key = ("default", "a")
    collection.pending[key] = (3, None)
    assert collection.latest(key) is None
    assert collection.records[key].rv == 2
    assert not collection.has_any("default")
    collection.pending[("default", "b")] = (4, record("b", 4))
    assert collection.has_any("default")
    remove(collection, "a", 3)
    assert key not in collection.pending
    assert ("default", "b") in collection.pending


def test_all_that_is_latest_in_a_namespace() -> None:
    collection = Collection("things")
    for rv, (namespace, name) in enumerate([("one", "a"), ("one", "b"), ("two", "c")], start=2):
        put(collection, name, rv, namespace=namespace)
    collection.pending = {
        ("one", "a"): (5, None),
        ("one", "b"): (6, record("b", 6, namespace="one")),
        ("one", "d"): (7, record("d", 7, namespace="one")),
        ("two", "d"): (8, None),
    }
    assert sorted((r.name, r.rv) for r in collection.latest_in("one")) == [("b", 6), ("d", 7)]
    assert sorted((r.name, r.rv) for r in collection.latest_in(None)) == [("b", 6), ("c", 4), ("d", 7)]


def test_a_later_pending_change_stays_when_an_earlier_one_is_committed() -> None:
    collection = Collection("things")
    key = ("default", "a")
    collection.pending[key] = (3, record("a", 3))
    put(collection, "a", 2)
    latest = collection.latest(key)
    assert latest is not None
    assert latest.rv == 3


@given(
    writes=st.lists(st.tuples(st.booleans(), SPACES, NAMES), max_size=40),
    at=st.integers(0, 40),
    namespace=st.one_of(st.none(), SPACES),
    limit=st.integers(1, 5),
)
def test_a_snapshot_read_in_pages_is_the_state_at_its_version(
    writes: list[tuple[bool, str, str]], at: int, namespace: str | None, limit: int
) -> None:
    collection = Collection("things")
    model: dict[Key, int] = {}
    snapshot: dict[Key, int] = {}
    for rv, (deletes, where, name) in enumerate(writes, start=1):
        key = (where, name)
        if not deletes:
            put(collection, name, rv, namespace=where)
            model[key] = rv
        elif key in model:
            remove(collection, name, rv, namespace=where)
            del model[key]
        if rv == at:
            snapshot = dict(model)
    if at > len(writes):
        snapshot, at = dict(model), len(writes)
    wanted = sorted((key, rv) for key, rv in snapshot.items() if namespace in (None, key[0]))
    found: list[tuple[Key, int]] = []
    start: Key | None = None
    while True:
        page = collection.slice_at(at, namespace, None, start, limit)
        found += [(r.key, r.rv) for r in page.records]
        if page.next_key is None:
            break
        assert page.remaining == len(wanted) - len(found)
        start = page.next_key
    assert found == wanted


def test_served_fields_are_read_again_when_they_change() -> None:
    collection = Collection("things")
    previous = record("a", 2)
    collection.apply(Event(EventType.ADDED, previous, None))
    value = collection.records[("default", "a")].value
    collection.serve(["v1"], "v1", ["metadata.uid"])
    assert collection.records[("default", "a")].field("metadata.uid") == "uid-a"
    assert collection.records[("default", "a")].value is value
    assert not collection.is_mixed
    collection.serve(["v1", "v2"], "v2", [])
    assert collection.is_mixed
