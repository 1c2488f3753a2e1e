from __future__ import annotations

import msgspec
import pytest

from muster.client.decode import decode_events, decode_object, decode_page, decode_view_events, decode_view_page
from muster.client.errors import BadResponse
from muster.objects.requests import EventType
from muster.objects.resources import Resource
from muster.objects.status import Expired, Raw
from muster.objects.view import View

PODS = Resource(group="", version="v1", kind="Pod", plural="pods")


class LeanMeta(View):
    name: str = ""
    labels: dict[str, str] = msgspec.field(default_factory=dict)


class LeanPod(View):
    metadata: LeanMeta = msgspec.field(default_factory=LeanMeta)
    phase: str = ""


def listed(*items: Raw, **metadata: object) -> bytes:
    return msgspec.json.encode({"kind": "PodList", "metadata": {"resourceVersion": "7", **metadata}, "items": list(items)})


def test_items_get_the_type_that_servers_leave_out() -> None:
    page = decode_page(listed({"metadata": {"name": "a"}}, {"kind": "Kept", "apiVersion": "x"}), PODS, "GET")
    assert page.items == [{"metadata": {"name": "a"}, "apiVersion": "v1", "kind": "Pod"}, {"kind": "Kept", "apiVersion": "x"}]
    assert (page.resource_version, page.continue_token, page.remaining) == ("7", "", None)


def test_page_details_and_null_items() -> None:
    body = b'{"metadata":{"resourceVersion":"7","continue":"t","remainingItemCount":3},"items":null}'
    page = decode_page(body, PODS, "GET")
    assert (page.items, page.continue_token, page.remaining) == ([], "t", 3)
    assert decode_view_page(body, LeanPod, "GET").items == []


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"metadata":{}', b'{"items":[]}', b'{"metadata":{},"items":[1]}'])
def test_what_is_no_list(body: bytes) -> None:
    with pytest.raises(BadResponse, match="GET /x: the answer cannot be read"):
        decode_page(body, PODS, "GET /x")
    with pytest.raises(BadResponse):
        decode_view_page(body, LeanPod, "GET /x")


def test_views_straight_from_the_bytes() -> None:
    page = decode_view_page(listed({"metadata": {"name": "a", "uid": "u"}, "phase": "Running"}), LeanPod, "GET")
    assert page.items == [LeanPod(metadata=LeanMeta(name="a"), phase="Running")]


def test_views_with_nulls_where_go_had_nothing() -> None:
    page = decode_view_page(listed({"metadata": {"name": "a", "labels": None}}, {"metadata": {"name": "b"}}), LeanPod, "GET")
    assert [pod.metadata.name for pod in page.items] == ["a", "b"]


def test_an_item_that_does_not_fit_the_view_is_named() -> None:
    with pytest.raises(BadResponse, match=r"Expected `str`.*metadata\.name"):
        decode_view_page(listed({"metadata": {"name": 7}}), LeanPod, "GET")


def test_view_events() -> None:
    lines = [
        b'{"type":"ADDED","object":{"metadata":{"name":"a","resourceVersion":"1"},"phase":"Running"}}',
        b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"9"}}}',
        b'{"type":"DELETED","object":{"metadata":{"name":"a","resourceVersion":"10","labels":null}}}',
    ]
    added, bookmark, deleted = decode_view_events(lines, LeanPod, "GET")
    assert (added.type, added.resource_version, added.view) == (
        EventType.ADDED,
        "1",
        LeanPod(metadata=LeanMeta(name="a"), phase="Running"),
    )
    assert (bookmark.type, bookmark.resource_version, bookmark.view) == (EventType.BOOKMARK, "9", None)
    assert deleted.view is not None
    assert deleted.view.metadata.name == "a"
    error = b'{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Gone"}}'
    with pytest.raises(Expired):
        list(decode_view_events([error], LeanPod, "GET"))
    with pytest.raises(BadResponse):
        list(decode_view_events([b'{"type":"NEW","object":{"metadata":{}}}'], LeanPod, "GET"))


def test_events_before_a_broken_line_are_kept() -> None:
    good = b'{"type":"ADDED","object":{"metadata":{"resourceVersion":"1"}}}'
    events = decode_events([good, b"{"], "GET")
    assert next(events).resource_version == "1"
    with pytest.raises(BadResponse):
        next(events)


def test_objects() -> None:
    assert decode_object(b'{"a":1}', "GET") == {"a": 1}
    with pytest.raises(BadResponse, match="it begins: nope"):
        decode_object(b"nope", "GET")
