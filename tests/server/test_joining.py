"""Joining over HTTP: what a token gives, what it does not, and how it is taken back."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import dsa, ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from muster.server.certificates import new_key
from muster.server.config import ServerLimits
from muster.server.join_limits import ADDRESSES_MAX, JoinRates
from muster.server.join_requests import names_for
from tests.server.joining_nodes import DOMAINS, JOIN, MANY, MERGE, RENEW, Machine, csr_pem, party, token_for
from tests.server.running import RunningServer, running


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running(tmp_path_factory.mktemp("joining"), limits=MANY) as made:
        yield made


def _subject(cert: x509.Certificate, oid: x509.ObjectIdentifier) -> list[str]:
    return [str(attribute.value) for attribute in cert.subject.get_attributes_for_oid(oid)]


def test_the_ca_is_for_everybody(server: RunningServer) -> None:
    reply = server.request("GET", "/muster/v1/ca", token="")
    assert (reply.code, reply.body) == (200, server.server.pki.ca_pem)
    assert server.request("POST", "/muster/v1/ca", {}, token="").code == 401
    assert server.request("GET", JOIN, token="").code == 401


def test_a_token_makes_a_node_of_its_party(server: RunningServer) -> None:
    alice = party(server, "join-alice")
    machine = Machine(server, "join-n1", alice)
    asked = csr_pem(machine.key, ["192.0.2.7", "join-n1", "kubernetes.default", "127.0.0.1"], "system:masters")
    reply = machine.try_join(token_for(server, alice), csr=asked)
    assert reply.code == 200, reply.body
    assert reply.json["node"] == "join-n1"
    assert reply.json["ca"].encode() == server.server.pki.ca_pem
    cert = machine.x509
    assert _subject(cert, NameOID.COMMON_NAME) == ["system:node:join-n1"]
    assert _subject(cert, NameOID.ORGANIZATION_NAME) == ["system:nodes", "muster:party:join-alice"]
    usage = cert.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert set(usage) == {ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH}
    names = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["join-n1"]
    assert [str(ip) for ip in names.get_values_for_type(x509.IPAddress)] == ["192.0.2.7"]
    assert not cert.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert (cert.not_valid_after_utc - cert.not_valid_before_utc).days == 90
    node = machine.request("GET", "/api/v1/nodes/join-n1").json
    assert node["metadata"]["labels"] == {"domain": "join-alice", "kuscia.secretflow/namespace": "join-alice"}
    assert [taint["key"] for taint in node["spec"]["taints"]] == ["kuscia.secretflow/agent"]
    assert [c["status"] for c in node["status"]["conditions"]] == ["Unknown"], "nothing is placed before the agent reports"


def test_a_node_of_no_party(server: RunningServer) -> None:
    machine = Machine(server, "join-nobody").join()
    assert _subject(machine.x509, NameOID.ORGANIZATION_NAME) == ["system:nodes"]
    node = machine.request("GET", "/api/v1/nodes/join-nobody").json
    assert node["metadata"].get("labels", {}) == {}
    assert "taints" not in node["spec"]


def test_who_has_no_token_learns_nothing(server: RunningServer) -> None:
    alice, bob = party(server, "deaf-alice"), party(server, "deaf-bob")
    Machine(server, "deaf-taken", alice).join()
    wrong = [
        Machine(server, "deaf-x", alice).try_join("guess"),
        Machine(server, "deaf-x", alice).try_join(""),
        Machine(server, "deaf-x", "deaf-nobody").try_join("guess"),
        Machine(server, "deaf-x", alice).try_join(token_for(server, bob)),
        Machine(server, "deaf-x", alice).try_join(token_for(server, "")),
        Machine(server, "deaf-taken", alice).try_join("guess"),
        Machine(server, "deaf-x", "deaf-nobody").try_join(token_for(server, alice)),
    ]
    assert {(reply.code, reply.body) for reply in wrong} == {(403, wrong[0].body)}
    assert Machine(server, "deaf-x").try_join(token_for(server, alice)).code == 403, "a party's token is for its nodes"
    assert server.request("GET", "/api/v1/nodes/deaf-x").code == 404


def test_a_token_is_spent_once(server: RunningServer) -> None:
    alice = party(server, "once-alice")
    token = token_for(server, alice)
    replies: list[Any] = []

    def go(name: str) -> None:
        replies.append(Machine(server, name, alice).try_join(token))

    threads = [threading.Thread(target=go, args=(f"once-{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(reply.code for reply in replies) == [200, 403, 403, 403]
    assert all("as often as it may" in reply.message for reply in replies if reply.code == 403)
    nodes = [n["metadata"]["name"] for n in server.request("GET", "/api/v1/nodes").json["items"]]
    assert len([name for name in nodes if name.startswith("once-")]) == 1


def test_a_name_belongs_to_a_machine(server: RunningServer) -> None:
    alice, bob = party(server, "name-alice"), party(server, "name-bob")
    first = Machine(server, "name-n", alice).join()
    token = token_for(server, alice)
    other = Machine(server, "name-n", alice, "another").try_join(token)
    assert (other.code, other.reason) == (409, "Conflict")
    assert "belongs to another machine" in other.message
    moved = Machine(server, "name-n", bob).try_join(token_for(server, bob))
    assert moved.code == 409
    assert 'of party "name-alice"' in moved.message
    server.create("/api/v1/nodes", {"metadata": {"name": "name-by-hand"}})
    assert "did not join with a token" in Machine(server, "name-by-hand").try_join(token_for(server)).message
    # The token of a join that was refused is not spent; the same machine may come back, and its old certificate ends.
    again = Machine(server, "name-n", alice)
    assert again.try_join(token).code == 200
    assert again.request("GET", "/api/v1/nodes/name-n").code == 200
    ended = first.request("GET", "/api/v1/nodes/name-n")
    assert ended.code == 401
    assert ended.json["details"]["causes"][0]["reason"] == "NodeForgotten"
    # An administrator gives the name to somebody else.
    server.request("DELETE", "/api/v1/nodes/name-n")
    assert Machine(server, "name-n", bob).join()


def test_renewing(server: RunningServer) -> None:
    machine = Machine(server, "renew-n", party(server, "renew-alice")).join()
    first = Machine(server, "renew-n", "renew-alice")
    first.key, first.certificate = machine.key, machine.certificate
    assert machine.renew().code == 200
    assert machine.request("GET", "/api/v1/nodes/renew-n").code == 200
    assert first.request("GET", "/api/v1/nodes/renew-n").code == 200, "an agent may lose an answer: the one before is good too"
    assert _subject(machine.x509, NameOID.ORGANIZATION_NAME) == ["system:nodes", "muster:party:renew-alice"]
    assert machine.renew().code == 200
    assert first.request("GET", "/api/v1/nodes/renew-n").code == 401
    assert first.renew().code == 401
    assert server.request("POST", RENEW, {"csr": csr_pem(new_key())}, token="").code == 401
    nobody = server.user("renew-eve")
    assert server.request("POST", RENEW, {"csr": csr_pem(new_key())}, token=nobody).code == 403
    as_node = server.user("system:node:renew-n", ("system:nodes",))
    assert "with a certificate of its own" in server.request("POST", RENEW, {"csr": "x"}, token=as_node).message


@pytest.mark.parametrize("how", ["node", "domain", "domain made anew"])
def test_revoking(server: RunningServer, how: str) -> None:
    stem = "revoke-" + how.replace(" ", "-")
    alice = party(server, f"{stem}-alice")
    machine = Machine(server, f"{stem}-n", alice).join()
    with server_watch(machine, f"/api/v1/pods?fieldSelector=spec.nodeName={machine.name}") as answer:
        if how == "node":
            warned = server.request("DELETE", f"/api/v1/nodes/{machine.name}")
            assert "can only come back with a new token" in (warned.headers["warning"] or "")
        else:
            server.request("PATCH", f"{DOMAINS}/{alice}", {"metadata": {"finalizers": None}}, headers=MERGE)
            assert server.request("DELETE", f"{DOMAINS}/{alice}").code == 200
        if how == "domain made anew":
            party(server, alice)
        assert answer.read() == b"", "what was open ends too"
    reply = machine.request("GET", "/api/v1/nodes")
    assert reply.code == 401
    assert "join again with a new token" in reply.message
    assert machine.renew().code == 401


@contextlib.contextmanager
def server_watch(machine: Machine, path: str) -> Iterator[http.client.HTTPResponse]:
    with contextlib.closing(machine.server.connect(machine.tls)) as connection:
        connection.request("GET", f"{path}&watch=true")
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        yield answer


def _forged_csr() -> str:
    pem = csr_pem(new_key())
    lines = pem.splitlines()
    lines[-2] = lines[-2][:-6] + ("AAAA" if not lines[-2].endswith("AAAA==") else "BBBB") + lines[-2][-2:]
    return "\n".join(lines)


def _weak() -> str:
    return csr_pem(rsa.generate_private_key(65537, 1024))


@pytest.mark.parametrize(
    ("changes", "code", "field"),
    [
        pytest.param({"name": "../etc"}, 422, "name", id="name"),
        pytest.param({"name": "n" * 53}, 422, "name", id="name that no certificate takes"),
        pytest.param({"name": "localhost"}, 422, "name", id="a name of the server"),
        pytest.param({"name": "10.0.0.7"}, 422, "name", id="an address as a name"),
        pytest.param({"name": "system:masters"}, 422, "name", id="name with colons"),
        pytest.param({"name": 7}, 422, "name", id="name of another type"),
        pytest.param({"domain": "A_B"}, 422, "domain", id="domain"),
        pytest.param({"domain": "d" * 52}, 422, "domain", id="domain that no certificate takes"),
        pytest.param({"name": "hook.default.svc"}, 422, "name", id="a name of a service"),
        pytest.param({"name": "hook.default.svc.cluster.local"}, 422, "name", id="a full name of a service"),
        pytest.param({"machineID": ""}, 422, "machineID", id="no machine id"),
        pytest.param({"machineID": "x\n"}, 422, "machineID", id="machine id with a line end"),
        pytest.param({"csr": "hello"}, 422, "csr", id="no csr"),
        pytest.param({"csr": "\N{SNOWMAN}"}, 422, "csr", id="csr not in ascii"),
        pytest.param({"csr": _weak}, 422, "csr", id="weak key"),
        pytest.param({"csr": lambda: csr_pem(ec.generate_private_key(ec.SECP256K1()))}, 422, "csr", id="odd curve"),
        pytest.param({"csr": lambda: csr_pem(dsa.generate_private_key(2048))}, 422, "csr", id="odd kind of key"),
        pytest.param({"csr": _forged_csr}, 422, "csr", id="signed by another key"),
    ],
)
def test_bad_requests(server: RunningServer, changes: dict[str, Any], code: int, field: str) -> None:
    made = {key: value() if callable(value) else value for key, value in changes.items()}
    token = token_for(server)
    machine = Machine(server, "bad-n")
    reply = machine.try_join(token, **made)
    assert (reply.code, reply.json["details"]["causes"][0]["field"]) == (code, field)
    assert token not in reply.body.decode()
    assert machine.try_join(token).code == 200, "a bad request spends no token"
    server.request("DELETE", "/api/v1/nodes/bad-n")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        pytest.param(b"", 400, id="empty"),
        pytest.param(b"[]", 422, id="a list"),
        pytest.param(b"{" * 100_00, 400, id="deep"),
        pytest.param(b"\xff", 400, id="not utf-8"),
        pytest.param(b" " * 70_000, 413, id="too large"),
    ],
)
def test_bad_bodies(server: RunningServer, body: bytes, code: int) -> None:
    assert server.request("POST", JOIN, body, token="").code == code


def test_the_audit_says_who_joined_and_never_the_token(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        token = token_for(server)
        Machine(server, "heard").try_join("muster-join-" + "x" * 40)
        assert Machine(server, "heard").try_join(token).code == 200
    text = (tmp_path / "audit" / "audit.jsonl").read_text()
    assert token not in text
    assert "x" * 40 not in text
    lines = [json.loads(line) for line in text.splitlines() if JOIN in line]
    assert [line["responseStatus"]["code"] for line in lines] == [403, 200]
    told = {"node": "heard", "domain": "", "token": token.removeprefix("muster-join-")[:8]}
    assert lines[1]["annotations"] == {f"muster.dev/{key}": value for key, value in told.items()}


def test_rates(tmp_path: Path) -> None:
    limits = ServerLimits(join_per_address_minute_max=3)
    with running(tmp_path, limits=limits) as server:
        replies = [Machine(server, "n").try_join("guess") for _ in range(4)]
        assert [reply.code for reply in replies] == [403, 403, 403, 429]
        assert int(replies[-1].headers["retry-after"]) >= 1
        assert server.request("GET", "/muster/v1/ca", token="").code == 200


def test_rates_by_address_and_in_all() -> None:
    rates = JoinRates(ServerLimits(join_per_address_minute_max=2, join_per_minute_max=5))
    assert [rates.take("192.0.2.1", 0.0) for _ in range(2)] == [0, 0]
    assert rates.take("192.0.2.1", 0.0) == pytest.approx(30.0)
    assert rates.take("192.0.2.1", 30.0) == 0
    assert [rates.take(f"2001:db8::{n}", 30.0) for n in (1, 2)] == [0, 0], "one network"
    assert rates.take("2001:db8::3", 30.0) > 0
    assert [rates.take(f"198.51.100.{n}", 30.0) for n in (1, 2, 3)] == [0, 0, pytest.approx(12.0)]
    for number in range(ADDRESSES_MAX + 10):
        rates.take(f"host-{number}", 30.0)
    assert len(rates._by_address) == ADDRESSES_MAX


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        pytest.param([], ["n1"], id="its own name always"),
        pytest.param(["10.0.0.7", "2001:db8::7"], ["n1", "10.0.0.7", "2001:db8::7"], id="addresses"),
        pytest.param(
            ["127.0.0.1", "127.9.9.9", "::1", "0.0.0.0", "224.0.0.1", "::ffff:127.0.0.1"], ["n1"], id="nobody's addresses"
        ),
        pytest.param(["10.0.0.1", "::ffff:10.0.0.1"], ["n1"], id="the server's address"),
        pytest.param(["kubernetes", "localhost", "kubernetes.default.svc"], ["n1"], id="the server's names"),
        pytest.param(["n2", "n1.example.org", "*.example.org", "*"], ["n1"], id="other names"),
    ],
)
def test_names_in_a_certificate(asked: list[str], given: list[str]) -> None:
    own = frozenset({"localhost", "127.0.0.1", "kubernetes", "kubernetes.default.svc", "10.0.0.1"})
    csr = x509.load_pem_x509_csr(csr_pem(new_key(), asked).encode())
    assert names_for(csr, "n1", own) == given
