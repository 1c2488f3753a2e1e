"""Kinds under several names, through HTTP: rights go by the name that is asked for, tables show the same under each."""

from __future__ import annotations

import pytest

from muster.objects.status import Raw
from tests.server.running import RunningServer

_TABLE = {"accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}


def _paths(namespace: str) -> tuple[str, str]:
    return tuple(f"{root}/namespaces/{namespace}/events" for root in ("/api/v1", "/apis/events.k8s.io/v1"))  # type: ignore[return-value]


@pytest.fixture
def event(server: RunningServer, namespace: str) -> Raw:
    about = {"kind": "Pod", "name": "p", "namespace": namespace}
    seen = {"lastTimestamp": "2026-05-04T10:00:00Z", "count": 2, "source": {"component": "test"}}
    raw = {"metadata": {"name": "e"}, "involvedObject": about, "reason": "R", "message": "text", "type": "Normal", **seen}
    return server.create(_paths(namespace)[0], raw)


def test_rights_go_by_the_group_that_is_asked(server: RunningServer, namespace: str, event: Raw) -> None:
    rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
    rules = [{"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["get", "list"]}]
    server.create(f"{rbac}/roles", {"metadata": {"name": "reader"}, "rules": rules})
    token = server.user("of-the-new-group")
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"}
    subjects = [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "of-the-new-group"}]
    server.create(f"{rbac}/rolebindings", {"metadata": {"name": "reader"}, "roleRef": reference, "subjects": subjects})
    old, new = _paths(namespace)
    assert server.request("GET", f"{new}/e", token=token).json["note"] == "text"
    assert server.request("GET", f"{old}/e", token=token).code == 403
    assert server.request("DELETE", f"{new}/e", token=token).code == 403


def test_tables_and_lists(server: RunningServer, namespace: str, event: Raw) -> None:
    old, new = (server.request("GET", path, headers=_TABLE).json for path in _paths(namespace))
    assert old["columnDefinitions"] == new["columnDefinitions"]
    assert old["rows"][0]["cells"][1:] == new["rows"][0]["cells"][1:]
    assert "text" in new["rows"][0]["cells"]
    whole = server.request("GET", _paths(namespace)[1]).json
    assert (whole["apiVersion"], whole["items"][0]["apiVersion"]) == ("events.k8s.io/v1", "events.k8s.io/v1")
    assert whole["items"][0]["deprecatedSource"] == {"component": "test"}


def test_watches(server: RunningServer, namespace: str, event: Raw) -> None:
    old, new = _paths(namespace)
    with (
        server.watch(f"{new}?watch=true&fieldSelector=regarding.name%3Dp") as whole,
        server.watch(f"{new}?watch=true", headers=_TABLE) as rows,
    ):
        assert whole.next()["object"]["note"] == "text"
        assert "text" in rows.next()["object"]["rows"][0]["cells"]
        server.request("DELETE", f"{old}/e")
        assert [whole.next()["type"], rows.next()["type"]] == ["DELETED", "DELETED"]
