"""Watches over HTTP."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.server.config import ServerLimits
from muster.server.metrics import Metrics
from muster.server.negotiation import PLAIN
from muster.server.watching import GATHER_LEAST_S, GATHER_MOST_S, watch_stream
from tests.server.running import RunningServer, running
from tests.store.embedded.support import CONFIG_MAPS, ManualClock, open_store

_MERGE = {"content-type": "application/merge-patch+json"}


@pytest.fixture
def maps(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/configmaps"


def _what(event: Any) -> tuple[str, str]:
    return event["type"], event["object"]["metadata"]["name"]


def test_from_a_version(server: RunningServer, maps: str) -> None:
    version = server.request("GET", maps).json["metadata"]["resourceVersion"]
    server.create(maps, {"metadata": {"name": "a"}})
    with server.watch(f"{maps}?resourceVersion={version}") as watch:
        assert _what(watch.next()) == ("ADDED", "a")
        server.request("PATCH", f"{maps}/a", {"data": {"x": "1"}}, headers=_MERGE)
        event = watch.next()
        assert _what(event) == ("MODIFIED", "a")
        assert event["object"]["data"] == {"x": "1"}
        server.request("DELETE", f"{maps}/a")
        last = watch.next()
        assert _what(last) == ("DELETED", "a")
        assert int(last["object"]["metadata"]["resourceVersion"]) > int(event["object"]["metadata"]["resourceVersion"])


def test_from_nothing_starts_with_what_exists(server: RunningServer, maps: str) -> None:
    server.create(maps, {"metadata": {"name": "a"}})
    for version in ("", "?resourceVersion=0"):
        with server.watch(f"{maps}{version}") as watch:
            assert [_what(watch.next()) for _ in range(2)] == [("ADDED", "a"), ("ADDED", "kube-root-ca.crt")]


def test_streaming_lists_end_with_a_bookmark(server: RunningServer, maps: str) -> None:
    server.create(maps, {"metadata": {"name": "a"}})
    query = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    with server.watch(f"{maps}?{query}") as watch:
        names = [_what(watch.next())[1] for _ in range(2)]
        assert names == ["a", "kube-root-ca.crt"]
        bookmark = watch.next()
        assert bookmark["type"] == "BOOKMARK"
        assert bookmark["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
        server.create(maps, {"metadata": {"name": "b"}})
        assert _what(watch.next()) == ("ADDED", "b")


def test_selectors_turn_changes_into_comings_and_goings(server: RunningServer, maps: str) -> None:
    with server.watch(f"{maps}?labelSelector=on") as watch:
        server.create(maps, {"metadata": {"name": "a"}})
        server.request("PATCH", f"{maps}/a", {"metadata": {"labels": {"on": ""}}}, headers=_MERGE)
        assert _what(watch.next()) == ("ADDED", "a")
        server.request("PATCH", f"{maps}/a", {"metadata": {"labels": {"on": None}}}, headers=_MERGE)
        assert _what(watch.next()) == ("DELETED", "a")


def test_one_object_and_its_permission(server: RunningServer, namespace: str, maps: str) -> None:
    token = server.user("watcher-of-one")
    rule = {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["a"], "verbs": ["watch", "list"]}
    rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
    server.create(f"{rbac}/roles", {"metadata": {"name": "r"}, "rules": [rule]})
    ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"}
    server.create(
        f"{rbac}/rolebindings",
        {"metadata": {"name": "r"}, "roleRef": ref, "subjects": [{"kind": "User", "name": "watcher-of-one"}]},
    )
    assert server.request("GET", f"{maps}?watch=true", token=token).code == 403
    with server.watch(f"{maps}?fieldSelector=metadata.name%3Da", token=token) as watch:
        server.create(maps, {"metadata": {"name": "b"}})
        server.create(maps, {"metadata": {"name": "a"}})
        assert _what(watch.next()) == ("ADDED", "a")


def test_as_table(server: RunningServer, maps: str) -> None:
    server.create(maps, {"metadata": {"name": "a"}, "data": {"x": "1"}})
    with server.watch(maps, headers={"accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}) as watch:
        first, second = watch.next(), watch.next()
    assert first["object"]["kind"] == "Table"
    assert first["object"]["rows"][0]["cells"][:2] == ["a", 1]
    assert [column["name"] for column in first["object"]["columnDefinitions"]] == ["Name", "Data", "Age"]
    assert second["object"]["columnDefinitions"] == [], "the columns are sent once"


def test_partial_metadata(server: RunningServer, maps: str) -> None:
    with server.watch(maps, headers={"accept": "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"}) as watch:
        event = watch.next()
        assert event["object"]["kind"] == "PartialObjectMetadata"
        assert "data" not in event["object"]


def test_timeout_ends_the_stream(server: RunningServer, maps: str) -> None:
    reply = server.request("GET", f"{maps}?watch=true&timeoutSeconds=1")
    assert reply.code == 200
    assert len(reply.body.splitlines()) == 1  # the CA, which every namespace has


def test_refused_before_it_begins(server: RunningServer, maps: str) -> None:
    assert server.request("GET", f"{maps}?watch=true", headers={"accept": "application/yaml"}).code == 406
    initial = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    future = server.request("GET", f"{maps}?watch=true&resourceVersion=99999999&{initial}")
    assert (future.code, future.reason) == (504, "Timeout")


def test_a_watch_that_is_refused_leaves_none_open(server: RunningServer, maps: str) -> None:
    """There is a bound for all watches together, so that one user's leavings would end everybody's."""
    watchers = server.server.store._core.watchers
    before = set(watchers)
    assert server.request("GET", f"{maps}?watch=true&includeObject=x").code == 400
    assert not [one for one in watchers if one not in before and one.collection.id == "configmaps"]


def test_a_version_still_to_come_is_waited_for(server: RunningServer, maps: str) -> None:
    reply = server.request("GET", f"{maps}?watch=true&resourceVersion=99999999&timeoutSeconds=1&allowWatchBookmarks=true")
    assert (reply.code, reply.body) == (200, b"")


@pytest.fixture
def own(tmp_path: Path) -> Iterator[RunningServer]:
    with running(tmp_path, limits=ServerLimits()) as made:
        yield made


def test_compacted_versions(own: RunningServer) -> None:
    maps = "/api/v1/namespaces/default/configmaps"
    version = own.request("GET", maps).json["metadata"]["resourceVersion"]
    own.create(maps, {"metadata": {"name": "a"}})

    async def compact() -> None:
        own.server.store.compact()

    own.call(compact())
    # As an event, not as the answer's own code: several public clients look for it there only.
    with own.watch(f"{maps}?resourceVersion={version}") as watch:
        event = watch.next()
        assert (event["type"], event["object"]["code"], event["object"]["reason"]) == ("ERROR", 410, "Expired")
        assert watch.next() is None


def test_stop_ends_watches_and_lets_requests_finish(own: RunningServer) -> None:
    with own.watch("/api/v1/namespaces/default/configmaps?resourceVersion=1") as watch:
        rest: list[Any] = []
        reader = threading.Thread(target=lambda: rest.extend(watch.rest()))
        reader.start()
        own.stop()
        reader.join(timeout=30)
        assert not reader.is_alive()


async def test_the_busier_the_loop_the_longer_a_stream_gathers(monkeypatch: pytest.MonkeyPatch) -> None:
    async def at_once() -> None:
        pass

    store = await open_store()
    watcher = store.watch_records(CONFIG_MAPS, resource_version=store.resource_version)
    limits = ServerLimits()
    watch_stream(
        watcher, CONFIG_MAPS, PLAIN, include="", clock=ManualClock(), metrics=Metrics(limits), pace=at_once, load=store.load
    )
    for busy, gather_s in ((0.0, GATHER_LEAST_S), (1.0, GATHER_MOST_S)):
        monkeypatch.setattr(store.load, "busy", lambda busy=busy: busy)
        assert watcher.gather_s() == pytest.approx(gather_s)
    watcher.close()
    await store.close()


def test_a_client_that_goes_frees_its_watch(server: RunningServer, maps: str) -> None:
    def open_watches() -> int:
        text = server.request("GET", "/metrics").body.decode()
        return int(
            float(next(line for line in text.splitlines() if line.startswith("apiserver_longrunning_requests")).split()[1])
        )

    before = open_watches()
    with server.watch(maps) as watch:
        watch.next()
        assert open_watches() == before + 1
    for _ in range(500):
        if open_watches() == before:
            return
    pytest.fail("the watch was not freed")
