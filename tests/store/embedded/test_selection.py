"""How a change looks to a watcher that asks for some objects only."""

from __future__ import annotations

import msgspec
import pytest

from muster.objects.status import BadRequest
from muster.store.contract import EventType
from muster.store.embedded.records import Record
from muster.store.embedded.selection import Selection, in_version
from tests.store.embedded.support import CONFIG_MAPS, NODES, PODS, change, record


def labelled(rv: int, *, on: bool, namespace: str = "default") -> Record:
    return record("a", rv, namespace=namespace, labels={"on": "yes"} if on else {})


@pytest.mark.parametrize(
    ("type_", "before", "after", "seen"),
    [
        pytest.param("ADDED", None, True, "ADDED", id="appears, selected"),
        pytest.param("ADDED", None, False, None, id="appears, not selected"),
        pytest.param("MODIFIED", True, True, "MODIFIED", id="stays selected"),
        pytest.param("MODIFIED", False, False, None, id="stays out"),
        pytest.param("MODIFIED", False, True, "ADDED", id="comes in"),
        pytest.param("MODIFIED", True, False, "DELETED", id="goes out"),
        pytest.param("DELETED", True, True, "DELETED", id="deleted while selected"),
        pytest.param("DELETED", False, False, None, id="deleted while out"),
        pytest.param("DELETED", False, True, None, id="deleted by a write that would have selected it"),
    ],
)
def test_labels(type_: str, before: bool | None, after: bool, seen: str | None) -> None:
    previous = None if before is None else labelled(5, on=before)
    event = Selection(CONFIG_MAPS, None, "on=yes", "").select(change(type_, labelled(6, on=after), previous))
    assert (event.type if event else None) == (EventType(seen) if seen else None)
    if event is not None:
        assert event.record.raw()["metadata"]["resourceVersion"] == "6"


def test_what_goes_out_is_shown_as_it_last_was_under_the_new_version() -> None:
    event = Selection(CONFIG_MAPS, None, "on=yes", "").select(change("MODIFIED", labelled(6, on=False), labelled(5, on=True)))
    assert event is not None
    assert event.record.raw()["metadata"]["labels"] == {"on": "yes"}
    assert (event.rv, event.record.rv) == (6, 6)


def test_namespace() -> None:
    selection = Selection(CONFIG_MAPS, "default", "", "")
    event = change("ADDED", labelled(6, on=True))
    assert selection.select(event) is event
    assert selection.select(change("ADDED", labelled(6, on=True, namespace="other"))) is None
    assert Selection(NODES, "default", "", "").namespace is None


def test_fields() -> None:
    selection = Selection(PODS, None, "", "metadata.name=a,spec.nodeName=")
    assert selection.name == "a"
    assert selection.matches(record("a", 3))
    assert not selection.matches(record("b", 3))


@pytest.mark.parametrize(
    ("labels", "fields", "message"),
    [
        pytest.param("a in (", "", "unable to parse the label selector", id="labels"),
        pytest.param("", "metadata.name", "unable to parse the field selector", id="fields"),
        pytest.param(
            "", "spec.no=1", "field label not supported: spec.no; pods can be selected by metadata.name", id="unknown"
        ),
    ],
)
def test_bad_selectors(labels: str, fields: str, message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        Selection(PODS, None, labels, fields)


def test_another_version_differs_in_its_name_only() -> None:
    old = record("a", 4)
    assert in_version(old, PODS) is old
    new = in_version(old, msgspec.structs.replace(PODS, group="example.com", version="v2"))
    assert new.raw() == {**old.raw(), "apiVersion": "example.com/v2"}
    assert (new.rv, new.api_version) == (4, "example.com/v2")
