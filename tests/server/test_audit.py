"""The audit log: events by policy and level, rotation, and what never appears in it."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
import threading
from pathlib import Path
from typing import Any

import pytest

from muster.objects.status import Raw
from muster.server import audit, audit_policy
from muster.server.audit import AuditLog
from muster.server.audit_policy import Level
from muster.server.config import ServerLimits
from muster.server.paths import RequestInfo, request_info
from muster.server.run import Server
from muster.server.settings_files import SettingsError
from muster.server.tokens import token_hash, token_secret
from tests.server.running import running


def _lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_who_did_what_and_how_it_ended(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        secret = {"metadata": {"name": "s"}, "stringData": {"password": "hunter2hunter2"}}
        server.create("/api/v1/namespaces/default/secrets", secret)
        server.request("GET", "/api/v1/namespaces/default/pods/nobody", headers={"user-agent": "probe/1"})
        server.request("GET", "/api/v1/nodes", headers={"Impersonate-User": "bob"})
        server.request("GET", "/api", token="wrong-token-value")
        server.request("GET", "/api/v1/namespaces?watch=true&timeoutSeconds=1")
        token = server.token
    text = (tmp_path / "audit" / "audit.jsonl").read_text()
    for hidden in ("hunter2hunter2", token, "wrong-token-value"):
        assert hidden not in text
    lines = _lines(tmp_path / "audit" / "audit.jsonl")
    assert {(line["kind"], line["apiVersion"], line["level"]) for line in lines} == {("Event", "audit.k8s.io/v1", "Metadata")}
    created, missing, refused, unknown, started, ended = lines
    assert (created["user"]["username"], created["verb"], created["stage"]) == ("admin", "create", "ResponseComplete")
    assert created["objectRef"] == {"resource": "secrets", "namespace": "default", "name": "s", "apiVersion": "v1"}
    assert created["responseStatus"] == {"metadata": {}, "code": 201}
    assert created["sourceIPs"] == ["127.0.0.1"]
    assert created["requestReceivedTimestamp"] <= created["stageTimestamp"]
    assert created["annotations"]["authorization.k8s.io/decision"] == "allow"
    assert missing["responseStatus"] == {"metadata": {}, "code": 404, "status": "Failure", "reason": "NotFound"}
    assert missing["userAgent"] == "probe/1"
    assert (refused["user"]["username"], refused["impersonatedUser"]["username"]) == ("admin", "bob")
    assert (refused["responseStatus"]["code"], refused["annotations"]["authorization.k8s.io/decision"]) == (403, "forbid")
    assert (unknown["user"], unknown["responseStatus"]["code"]) == ({}, 401)
    assert (started["stage"], ended["stage"]) == ("ResponseStarted", "ResponseComplete")
    assert started["auditID"] == ended["auditID"]
    assert len({line["auditID"] for line in lines}) == 5


def test_the_log_says_why_credentials_were_refused(tmp_path: Path) -> None:
    accounts = "/api/v1/namespaces/default/serviceaccounts"

    def token(body: Raw) -> str:
        return str(server.request("POST", f"{accounts}/bot/token", body).json["status"]["token"])

    with running(tmp_path) as server:
        server.create(accounts, {"metadata": {"name": "bot"}})
        server.create("/api/v1/namespaces/default/secrets", {"metadata": {"name": "anchor"}})
        bound = token({"spec": {"boundObjectRef": {"kind": "Secret", "apiVersion": "v1", "name": "anchor"}}})
        server.request("DELETE", "/api/v1/namespaces/default/secrets/anchor")
        for wrong in (token({"spec": {"audiences": ["vault"]}}), bound):
            assert server.request("GET", "/api", token=wrong).message == "Unauthorized", "the client learns nothing more"
        good = token({})
        server.request("DELETE", f"{accounts}/bot")
        head, claims, _ = good.split(".")
        unsigned = f"{head}.{claims}.{'A' * 86}"
        secret = token_secret("old", token_hash("old-token"), "kim", (), "login", expires_s=1.0)
        server.create("/api/v1/namespaces/kube-system/secrets", secret)
        for wrong in (good, unsigned, "old-token", "nobody's"):
            assert server.request("GET", "/api", token=wrong).code == 401
    told = [line["annotations"].get("muster.dev/refused", "") for line in _lines(tmp_path / "audit" / "audit.jsonl")]
    account = "it is of system:serviceaccount:default:bot"
    assert [re.sub(r"\d+ s ago", "N s ago", why.removeprefix("bearer token: ")) for why in told if why] == [
        f"{account} for vault, not for https://kubernetes.default.svc",
        f"{account}, bound to the Secret anchor, which is gone",
        f"{account}, and that ServiceAccount was deleted since",
        "no key of this server signed it: the key was withdrawn, or is of another server",
        "it is of 'kim' and expired N s ago",
        "it is not known here: it was revoked, or is of another server",
    ]


def test_what_was_changed_about_queues_and_jobs(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        jobs = "/apis/muster.dev/v1alpha1/namespaces/default/jobs"
        server.create("/apis/muster.dev/v1alpha1/queues", {"metadata": {"name": "q"}, "spec": {"weight": 2}})
        server.create(jobs, {"metadata": {"name": "j"}, "spec": {"queue": "q", "roles": [{"name": "w", "command": ["x"]}]}})
        merge = {"content-type": "application/merge-patch+json"}
        server.request("PATCH", "/apis/muster.dev/v1alpha1/queues/q", {"spec": {"weight": 3}}, headers=merge)
        hold = {"metadata": {"annotations": {"muster.dev/hold": "repair"}}}
        server.request("PATCH", f"{jobs}/j", hold, headers=merge)
        server.request("PATCH", f"{jobs}/j?dryRun=All", {"spec": {"state": "Suspended"}}, headers=merge)
    did = [line["annotations"].get("muster.dev/did") for line in _lines(tmp_path / "audit" / "audit.jsonl")]
    assert did == [None, None, "spec.weight: 2 -> 3", "Held: repair", "spec.state: Running -> Suspended"]


def test_the_id_of_a_request_is_its_clients_where_it_gives_one(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        assert server.request("GET", "/version", headers={"Audit-ID": "0f-1"}).headers["audit-id"] == "0f-1"
        for bad in ("x" * 65, "a b", '"'):
            assert server.request("GET", "/version", headers={"Audit-ID": bad}).headers["audit-id"] != bad
    assert _lines(tmp_path / "audit" / "audit.jsonl")[0]["auditID"] == "0f-1"


# --- policies

HEAD = "apiVersion: audit.k8s.io/v1\nkind: Policy\n"


def _info(text: str) -> RequestInfo:
    """`GET /path`."""
    method, _, path = text.partition(" ")
    return request_info(method, path.encode())


@pytest.mark.parametrize(
    ("rule", "request_", "user", "groups", "fits"),
    [
        ("level: Request", "GET /api/v1/pods", "a", (), True),
        ("level: Request", "GET /healthz", "", (), True),
        ("level: Request, users: [a]", "GET /healthz", "a", (), True),
        ("level: Request, users: [b]", "GET /healthz", "a", (), False),
        ("level: Request, users: [a]", "GET /healthz", "", (), False),
        ("level: Request, userGroups: [g, h]", "GET /healthz", "a", ("h",), True),
        ("level: Request, userGroups: [g]", "GET /healthz", "a", ("h",), False),
        ("level: Request, verbs: [list]", "GET /api/v1/pods", "a", (), True),
        ("level: Request, verbs: [get]", "GET /api/v1/pods", "a", (), False),
        ("level: Request, namespaces: [ns]", "GET /api/v1/namespaces/ns/pods", "a", (), True),
        ("level: Request, namespaces: [ns]", "GET /api/v1/pods", "a", (), False),
        ("level: Request, namespaces: ['']", "GET /api/v1/pods", "a", (), True),
        ("level: Request, namespaces: ['']", "GET /healthz", "a", (), False),
        ("level: Request, resources: [{group: ''}]", "GET /api/v1/pods", "a", (), True),
        ("level: Request, resources: [{group: apps}]", "GET /api/v1/pods", "a", (), False),
        ("level: Request, resources: [{group: apps}]", "GET /apis/apps/v1/deployments", "a", (), True),
        ("level: Request, resources: [{resources: [pods]}]", "GET /api/v1/namespaces/n/pods/p", "a", (), True),
        ("level: Request, resources: [{resources: [pods]}]", "GET /api/v1/namespaces/n/pods/p/log", "a", (), False),
        ("level: Request, resources: [{resources: [pods/log]}]", "GET /api/v1/namespaces/n/pods/p/log", "a", (), True),
        ("level: Request, resources: [{resources: [pods/log]}]", "GET /api/v1/namespaces/n/pods/p", "a", (), False),
        ("level: Request, resources: [{resources: ['pods/*']}]", "GET /api/v1/namespaces/n/pods/p/log", "a", (), True),
        ("level: Request, resources: [{resources: ['*/log']}]", "GET /api/v1/namespaces/n/pods/p/log", "a", (), True),
        ("level: Request, resources: [{resources: ['*/log']}]", "GET /api/v1/namespaces/n/pods/p", "a", (), False),
        ("level: Request, resources: [{resources: ['*']}]", "GET /api/v1/namespaces/n/pods/p/log", "a", (), True),
        (
            "level: Request, resources: [{resources: [pods], resourceNames: [p]}]",
            "GET /api/v1/namespaces/n/pods/p",
            "a",
            (),
            True,
        ),
        (
            "level: Request, resources: [{resources: [pods], resourceNames: [q]}]",
            "GET /api/v1/namespaces/n/pods/p",
            "a",
            (),
            False,
        ),
        ("level: Request, nonResourceURLs: [/healthz]", "GET /healthz", "a", (), True),
        ("level: Request, nonResourceURLs: ['/health*']", "GET /healthz", "a", (), True),
        ("level: Request, nonResourceURLs: ['*']", "GET /healthz", "a", (), True),
        ("level: Request, nonResourceURLs: [/version]", "GET /healthz", "a", (), False),
        ("level: Request, nonResourceURLs: ['*']", "GET /api/v1/pods", "a", (), False),
        ("level: Request, users: [a], verbs: [list], resources: [{group: ''}]", "GET /api/v1/pods", "b", (), False),
    ],
)
def test_rules(rule: str, request_: str, user: str, groups: tuple[str, ...], fits: bool) -> None:
    policy = audit_policy.from_text(f"{HEAD}rules:\n- {{{rule}}}\n", "p")
    assert policy.telling(user, groups, _info(request_)).level is (Level.REQUEST if fits else Level.NONE)


def test_the_first_rule_that_fits_decides() -> None:
    policy = audit_policy.from_text(
        HEAD + "omitStages: [RequestReceived]\nomitManagedFields: true\nrules:\n"
        "- {level: None, users: [quiet]}\n"
        "- {level: Metadata, verbs: [get], omitStages: [ResponseStarted], omitManagedFields: false}\n"
        "- {level: RequestResponse}\n",
        "p",
    )
    pods = _info("GET /api/v1/namespaces/n/pods/p")
    assert policy.telling("quiet", (), pods).level is Level.NONE
    got = policy.telling("a", (), pods)
    assert (got.level, got.omit_stages, got.omit_managed_fields) == (
        Level.METADATA,
        frozenset({"RequestReceived", "ResponseStarted"}),
        False,
    )
    other = policy.telling("a", (), _info("POST /api/v1/namespaces/n/pods"))
    assert (other.level, other.omit_stages, other.omit_managed_fields) == (
        Level.REQUEST_RESPONSE,
        frozenset({"RequestReceived"}),
        True,
    )


@pytest.mark.parametrize(
    ("path", "resources"),
    [
        ("POST /api/v1/namespaces/n/secrets", "{resources: [secrets]}"),
        ("POST /api/v1/namespaces/n/serviceaccounts/a/token", "{resources: [serviceaccounts/token]}"),
        ("POST /apis/authentication.k8s.io/v1/tokenreviews", "{group: authentication.k8s.io, resources: [tokenreviews]}"),
    ],
)
def test_bodies_with_credentials_are_told_only_by_rules_that_name_them(path: str, resources: str) -> None:
    def level(rule: str) -> Level:
        return (
            audit_policy.from_text(f"{HEAD}rules:\n- {{level: RequestResponse{rule}}}\n", "p")
            .telling("a", (), _info(path))
            .level
        )

    assert level("") is Level.METADATA
    assert level(", resources: [{group: ''}, {group: authentication.k8s.io, resources: ['*']}]") is Level.METADATA
    assert level(f", resources: [{resources}]") is Level.REQUEST_RESPONSE


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("kind: Policy\n", "apiVersion"),
        (HEAD, "line 1: rules: at least one rule"),
        (HEAD + "rules:\n- {level: Loud}\n", r"line 4: rules\[0\]\.level: 'Loud' is not one of None, Metadata, Request"),
        (HEAD + "rules:\n- users: [a]\n", r"line 4: rules\[0\]\.level: '' is not"),
        (HEAD + "rules:\n- level: None\n  omitStages:\n  - Never\n", r"line 6: rules\[0\]\.omitStages\[0\]: 'Never' is not"),
        (HEAD + "rules:\n- level: None\n- level: None\n  verb: [get]\n", r"line 6: rules\[1\]\.verb: there is no such field"),
        (HEAD + "rules:\n- {level: None, nonResourceURLs: [/x], namespaces: [ns]}\n", "not both"),
        (HEAD + "rules:\n- {level: None, nonResourceURLs: [x]}\n", r"nonResourceURLs\[0\]: 'x'"),
        (HEAD + "rules:\n- {level: None, nonResourceURLs: ['/a*b']}\n", "at its end only"),
        (HEAD + "rules:\n- {level: None, resources: [{group: apps/v1}]}\n", "without a version"),
        (HEAD + "rules:\n- {level: None, resources: [{resourceNames: [a]}]}\n", "names need the resources"),
        (HEAD + "rules:\n- {level: None, users: a}\n", r"line 4: rules\[0\]\.users: Expected `array`"),
        (HEAD + "rules: [\n", "not valid YAML"),
        ("[]", "no Policy"),
    ],
)
def test_a_policy_is_refused_with_the_place(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(text)
    with pytest.raises(SettingsError, match=words) as caught:
        audit_policy.load(tmp_path / "policy.yaml")
    assert "policy.yaml" in str(caught.value)


def test_a_server_does_not_start_with_a_bad_policy(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="No such file"), running(tmp_path / "data", audit_policy_path=tmp_path / "gone"):
        pass


def test_levels_end_to_end(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        HEAD + "rules:\n"
        "- {level: None, nonResourceURLs: ['*']}\n"
        "- {level: None, resources: [{resources: [events]}]}\n"
        "- {level: Request, resources: [{resources: [configmaps]}], verbs: [create, patch], omitStages: [RequestReceived]}\n"
        "- {level: RequestResponse, resources: [{resources: [pods]}], omitManagedFields: true, omitStages: [RequestReceived]}\n"
        "- {level: RequestResponse}\n"
    )
    heard: list[Any] = []

    def listen(server: Server) -> None:
        server.audit_listener = heard.append

    with running(tmp_path / "data", prepare=listen, audit_policy_path=policy) as server:
        base = "/api/v1/namespaces/default"
        server.request("GET", "/healthz")
        server.request("GET", f"{base}/events")
        server.create(f"{base}/configmaps", {"metadata": {"name": "c"}, "data": {"k": "v"}})
        yaml_patch = b"data:\n  k: w\n"
        apply = {"content-type": "application/apply-patch+yaml"}
        path = f"{base}/configmaps/c?fieldManager=me&force=true"
        body = b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\n" + yaml_patch
        assert server.request("PATCH", path, body, headers=apply).code == 200
        assert server.request("POST", f"{base}/configmaps", b"{rubbish").code == 400
        big = {"metadata": {"name": "big"}, "data": {"k": "x" * 200_000}}
        server.create(f"{base}/configmaps", big)
        pod = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
        server.create(f"{base}/pods", pod)
        server.request("GET", f"{base}/pods")
        server.create(f"{base}/secrets", {"metadata": {"name": "s"}, "stringData": {"password": "hunter2hunter2"}})
        server.request("POST", f"{base}/serviceaccounts/default/token", {})
        server.kubectl("create", "configmap", "from-kubectl", "--from-literal=a=b")
        half = b'{"metadata":{"name":"half"},"data":{"k":"\\ud800"}}'
        server.request("POST", f"{base}/configmaps", half)
        token = server.token
    text = (tmp_path / "data" / "audit" / "audit.jsonl").read_text()
    for hidden in ("hunter2hunter2", token, "Bearer", "eyJ"):
        assert hidden not in text
    lines = [line for line in _lines(tmp_path / "data" / "audit" / "audit.jsonl") if "objectRef" in line]
    assert not [line for line in lines if line["objectRef"]["resource"] == "events"]
    maps = [line for line in lines if line["objectRef"]["resource"] == "configmaps" and line["verb"] in ("create", "patch")]
    created, patched, broken, large, by_kubectl, _ = maps
    assert (created["level"], created["requestObject"]["data"]) == ("Request", {"k": "v"})
    assert "responseObject" not in created
    assert patched["requestObject"]["data"] == {"k": "w"}, "YAML is told as JSON"
    assert (broken["responseStatus"]["code"], "requestObject" in broken) == (400, False)
    assert (large["annotations"]["audit.k8s.io/truncated"], "requestObject" in large) == ("true", False)
    assert by_kubectl["requestObject"]["data"] == {"a": "b"}, "protobuf, too"
    made, listed = (line for line in lines if line["objectRef"]["resource"] == "pods")
    assert made["requestObject"]["metadata"] == {"name": "p"}, "as it was sent, before defaults"
    assert made["responseObject"]["spec"]["serviceAccountName"] == "default"
    assert "managedFields" not in made["responseObject"]["metadata"]
    assert [item["metadata"]["name"] for item in listed["responseObject"]["items"]] == ["p"]
    assert "managedFields" not in listed["responseObject"]["items"][0]["metadata"]
    secret = [line for line in lines if line["objectRef"]["resource"] in ("secrets", "serviceaccounts")]
    assert [(line["stage"], line["level"]) for line in secret[:2]] == [
        ("RequestReceived", "Metadata"),
        ("ResponseComplete", "Metadata"),
    ]
    assert "responseStatus" not in secret[0]
    # Listeners inside the process hear of everything, and never bodies.
    assert [entry["uri"] for entry in heard][:2] == ["/healthz", f"{base}/events"]
    assert "hunter2hunter2" not in str(heard)


async def test_rotation(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "a.jsonl", ServerLimits(audit_file_bytes_max=1000, audit_files_max=3))
    log.open()
    for n in range(40):
        log._flush([json.dumps({"n": n, "pad": "x" * 80}).encode()])
    await log.close()
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == ["a.jsonl", "a.jsonl.1", "a.jsonl.2"]
    numbers = [line["n"] for name in reversed(files) for line in _lines(tmp_path / name)]
    assert numbers == list(range(numbers[0], 40)), "the newest lines, in order, none twice"
    assert all((tmp_path / name).stat().st_size <= 1000 for name in files)


async def test_a_file_that_could_not_be_opened_costs_no_older_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process without room for another descriptor rotates once, and not at each attempt."""
    log = AuditLog(tmp_path / "a.jsonl", ServerLimits(audit_file_bytes_max=1000, audit_files_max=3))
    log.open()
    for n in range(25):
        log._flush([json.dumps({"n": n, "pad": "x" * 80}).encode()])
    open_, refused = log.open, 0

    def no_room() -> None:
        nonlocal refused
        refused += 1
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(log, "open", no_room)
    while refused < 5:
        log._flush([b'{"pad": "%b"}' % (b"x" * 300)])
    monkeypatch.setattr(log, "open", open_)
    log._flush([b'{"n": "last"}'])
    await log.close()
    kept = [line.get("n") for name in ("a.jsonl.2", "a.jsonl.1", "a.jsonl") for line in _lines(tmp_path / name)]
    assert kept[-1] == "last"
    assert 24 in kept, "what was written before is there"


async def test_nothing_is_lost_at_close_and_the_buffer_is_bounded(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "a.jsonl", ServerLimits(audit_buffer_lines_max=10))
    log.open()
    for n in range(15):
        log.write({"n": n})
    await log.close()
    assert [line["n"] for line in _lines(tmp_path / "a.jsonl")] == list(range(10))
    assert log.dropped == 5


async def test_what_comes_while_lines_are_written_waits_for_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under load there is always another line: written at once, each would cost a thread's turn."""
    started, go_on = threading.Event(), threading.Event()

    class Slow(AuditLog):
        writes = 0

        def _flush(self, lines: Any) -> None:
            self.writes += 1
            started.set()
            go_on.wait(60)
            super()._flush(lines)

    log = Slow(tmp_path / "audit.jsonl", ServerLimits())
    log.open()
    monkeypatch.setattr(audit, "_FLUSH_DELAY_S", 0.0)
    log.write({"auditID": "first"})
    await asyncio.to_thread(started.wait, 60)
    monkeypatch.setattr(audit, "_FLUSH_DELAY_S", 3600.0)
    log.write({"auditID": "second"})
    go_on.set()
    while b"first" not in (tmp_path / "audit.jsonl").read_bytes():
        await asyncio.sleep(0)
    for number in range(100):
        log.write({"auditID": str(number)})
        await asyncio.sleep(0)
    assert log.writes == 1
    await log.close()
    assert log.writes == 2
    assert len((tmp_path / "audit.jsonl").read_bytes().splitlines()) == 102


async def test_a_file_that_can_not_be_written_fails_nobody(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "a.jsonl", ServerLimits())
    log.open()
    os.close(log._fd)
    log._fd = os.open("/dev/full", os.O_WRONLY)  # every write says that the disk is full
    log.write({"n": 1})
    await log.close()
    assert log.dropped == 1
