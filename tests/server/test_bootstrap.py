"""What every server starts with, and what it keeps in order."""

from __future__ import annotations

import io
import json
import logging
from pathlib import Path

import structlog

from muster.objects.catalog import CATALOG
from muster.server import logs
from muster.server.rbac import Attributes, rules_of, uncovered
from muster.server.roles import default_bindings, default_roles
from tests.server.running import RunningServer, running

_ROLES = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
_MERGE = {"content-type": "application/merge-patch+json"}


def test_namespaces_roles_and_priorities(server: RunningServer) -> None:
    names = {item["metadata"]["name"] for item in server.request("GET", "/api/v1/namespaces").json["items"]}
    assert {"default", "kube-system", "kube-public", "kube-node-lease"} <= names
    roles = {item["metadata"]["name"] for item in server.request("GET", _ROLES).json["items"]}
    assert {
        "cluster-admin",
        "admin",
        "edit",
        "view",
        "system:basic-user",
        "system:discovery",
        "muster:controller",
        "muster:node",
    } <= roles
    classes = server.request("GET", "/apis/scheduling.k8s.io/v1/priorityclasses").json["items"]
    assert {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}.items() <= {
        item["metadata"]["name"]: item["value"] for item in classes
    }.items()


def test_default_roles_are_upgraded_unless_told_otherwise(tmp_path: Path) -> None:
    own = {"apiGroups": ["example.org"], "resources": ["rockets"], "verbs": ["get"]}
    with running(tmp_path) as first:
        original = first.request("GET", f"{_ROLES}/muster:node").json["rules"]
        first.request("PATCH", f"{_ROLES}/muster:node", {"rules": [own]}, headers=_MERGE)
        kept = {"metadata": {"annotations": {"rbac.authorization.kubernetes.io/autoupdate": "false"}}, "rules": []}
        first.request("PATCH", f"{_ROLES}/muster:controller", kept, headers=_MERGE)
        first.request("DELETE", f"{_ROLES}/system:basic-user")
        first.request("DELETE", "/apis/scheduling.k8s.io/v1/priorityclasses/system-node-critical")
    with running(tmp_path) as second:
        node = second.request("GET", f"{_ROLES}/muster:node").json
        assert node["rules"][0] == own, "what an administrator added stays"
        assert uncovered(rules_of(node), rules_of({"rules": original})) == [], "what was missing came back"
        assert second.request("GET", f"{_ROLES}/muster:controller").json.get("rules", []) == []
        assert second.request("GET", f"{_ROLES}/system:basic-user").code == 200
        assert second.request("GET", "/apis/scheduling.k8s.io/v1/priorityclasses/system-node-critical").code == 200


def test_what_namespaces_must_have_comes_back(server: RunningServer, namespace: str) -> None:
    account = f"/api/v1/namespaces/{namespace}/serviceaccounts/default"
    old = server.request("GET", account).json["metadata"]["uid"]
    server.request("DELETE", account)
    server.call(server.server.settled())
    assert server.request("GET", account).json["metadata"]["uid"] != old


def test_roles_know_every_kind_that_is_shipped() -> None:
    roles = {role["metadata"]["name"]: rules_of(role) for role in default_roles(CATALOG)}
    view = roles["system:aggregate-to-view"]
    for resource in CATALOG.all:
        asked = Attributes(verb="list", group=resource.group, resource=resource.plural, namespace="x")
        is_open = (
            resource.namespaced and "list" in resource.verbs and resource.plural not in ("secrets", "roles", "rolebindings")
        )
        assert any(rule.allows(asked) for rule in view) is (is_open or resource.plural == "namespaces"), resource.qualified
    for name, rules in roles.items():
        assert uncovered(roles["cluster-admin"], rules) == [], name
    bound = {binding["roleRef"]["name"] for binding in default_bindings()}
    assert bound <= roles.keys()


def test_nobody_but_masters_may_do_everything() -> None:
    everything = Attributes(verb="delete", group="rbac.authorization.k8s.io", resource="clusterrolebindings", name="x")
    strong = [
        role["metadata"]["name"] for role in default_roles(CATALOG) if any(rule.allows(everything) for rule in rules_of(role))
    ]
    assert strong == ["cluster-admin"]
    (binding,) = (b for b in default_bindings() if b["roleRef"]["name"] == "cluster-admin")
    assert [subject["name"] for subject in binding["subjects"]] == ["system:masters"]


def test_logs_are_json_lines() -> None:
    root = logging.getLogger()
    handlers, level, config = root.handlers[:], root.level, structlog.get_config()
    stream = io.StringIO()
    try:
        logs.setup("INFO", stream)
        logs.logger("muster.test").info("hello", answer=42, path=Path("/x"))
        logging.getLogger("elsewhere").warning("plain %s", "text")
        logs.logger("muster.test").debug("not shown")
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        structlog.configure(**config)
    ours, foreign = (json.loads(line) for line in stream.getvalue().splitlines())
    assert (ours["message"], ours["answer"], ours["level"], ours["logger"]) == ("hello", 42, "info", "muster.test")
    assert (foreign["message"], foreign["level"]) == ("plain text", "warning")
