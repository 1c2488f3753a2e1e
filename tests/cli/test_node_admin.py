"""`muster node list`, `forget` and `token` against a real server, with machines that join as the printed command says."""

from __future__ import annotations

import json
import re
import shlex
import ssl
import urllib.request
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes

from muster.cli.commands.node_admin import heard, node_row
from muster.cli.errors import ExitCode
from muster.objects.time import format_micro_time, wall_clock
from muster.server.certificates import new_key
from tests.cli.conftest import Run
from tests.cli.support import Up
from tests.server.joining_nodes import csr_pem

LEASE = """
apiVersion: coordination.k8s.io/v1
kind: Lease
metadata: {name: NAME, namespace: kube-node-lease}
spec: {holderIdentity: NAME, leaseDurationSeconds: 40, renewTime: "RENEWED"}
"""
POD = """
apiVersion: v1
kind: Pod
metadata: {name: NAME, namespace: default}
spec: {nodeName: NODE, containers: [{name: c, image: i}]}
"""


def _join(words: list[str], name: str) -> Any:
    """What `muster agent` does with the command line that was printed."""
    given = dict(zip(words[2::2], words[3::2], strict=True))
    blind = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    blind.check_hostname, blind.verify_mode = False, ssl.CERT_NONE
    pem = urllib.request.urlopen(f"{given['--join']}/muster/v1/ca", context=blind).read()
    found = x509.load_pem_x509_certificate(pem).fingerprint(hashes.SHA256()).hex()
    assert given["--ca-hash"] == f"sha256:{found}"
    trusted = ssl.create_default_context(cadata=pem.decode())
    asked = {"name": name, "token": given["--token"], "domain": given.get("--domain", ""), "machineID": name}
    body = json.dumps({**asked, "csr": csr_pem(new_key())}).encode()
    request = urllib.request.Request(f"{given['--join']}/muster/v1/nodes/join", body, {"content-type": "application/json"})
    return json.loads(urllib.request.urlopen(request, context=trusted).read())


def _printed(err: str) -> list[str]:
    found = re.search(r"^\s+(muster agent .*)$", err, re.MULTILINE)
    assert found, err
    return shlex.split(found[1])


def test_the_printed_command_lets_a_node_join(muster: Run, local: Up) -> None:
    made = muster("node", "token", "create", "--expires", "1h")
    assert made.code == ExitCode.OK, made.err
    words = _printed(made.err)
    assert words[words.index("--token") + 1] == made.out.strip()
    assert "--domain" not in words
    assert _join(words, "admin-n1")["node"] == "admin-n1"
    listed = muster("node", "token", "list")
    assert made.out.strip() not in listed.out
    assert "used" in listed.out
    domain = "apiVersion: kuscia.secretflow/v1alpha1\nkind: Domain\nmetadata: {name: admin-alice}\nspec: {}\n"
    assert muster("apply", "-f", "-", stdin=domain).code == ExitCode.OK
    words = _printed(muster("domain", "token", "create", "admin-alice").err)
    assert words[-2:] == ["--domain", "admin-alice"]
    _join(words, "admin-n2")
    shown = {row["name"]: row for row in json.loads(muster("node", "list", "-o", "json").out)["items"]}
    assert shown["admin-n1"]["party"] == "-"
    assert shown["admin-n2"]["party"] == "admin-alice"
    assert shown["admin-n2"]["ready"] == "Unknown: NodeStatusNeverUpdated"
    assert "admin-n2" in muster("node", "list").out
    for name in ("admin-n1", "admin-n2"):
        assert muster("node", "forget", name).code == ExitCode.OK


def test_tokens_of_no_party_are_revoked(muster: Run) -> None:
    clear = muster("node", "token", "create").out.strip()
    token_id = clear.removeprefix("muster-join-")[:8]
    assert muster("node", "token", "revoke", token_id).code == ExitCode.OK
    rows = json.loads(muster("node", "token", "list", "-o", "json").out)["items"]
    assert [row["state"] for row in rows if token_id in row["token"]] == ["revoked"]
    wrong = muster("node", "token", "revoke", "zzzzzzzz")
    assert wrong.code == ExitCode.FAILURE
    assert "there is no token" in wrong.err
    assert muster("node", "token", "create", "--uses", "0").code == ExitCode.FAILURE


def test_forgetting_says_what_it_means(muster: Run) -> None:
    for manifest in (
        "apiVersion: v1\nkind: Node\nmetadata: {name: forget-n}\n",
        LEASE.replace("NAME", "forget-n").replace("RENEWED", format_micro_time(wall_clock() + 3600)),
        POD.replace("NAME", "forget-p").replace("NODE", "forget-n"),
    ):
        made = muster("apply", "-f", "-", stdin=manifest)
        assert made.code == ExitCode.OK, made.err
    alive = muster("node", "forget", "forget-n")
    assert alive.code == ExitCode.FAILURE
    assert "is alive" in alive.err
    assert "1 unfinished pods" in alive.err
    assert muster("get", "node", "forget-n").code == ExitCode.OK
    done = muster("node", "forget", "forget-n", "--force")
    assert done.code == ExitCode.OK, done.err
    assert "certificates are not good any more" in done.out
    assert "may start elsewhere" in done.err
    assert muster("get", "node", "forget-n").code == ExitCode.NOT_FOUND
    assert muster("get", "lease", "forget-n", "-n", "kube-node-lease").code == ExitCode.NOT_FOUND
    assert muster("node", "forget", "forget-n").code == ExitCode.NOT_FOUND
    muster("delete", "pod", "forget-p", "--grace-period", "0")


@pytest.mark.parametrize(
    ("spec", "alive"),
    [
        ({"renewTime": "2023-11-14T22:13:19.000000Z", "leaseDurationSeconds": 40}, True),
        ({"renewTime": "2023-11-14T22:12:00.000000Z", "leaseDurationSeconds": 40}, False),
        ({"renewTime": "nonsense"}, False),
        ({}, False),
    ],
)
def test_heard(spec: dict[str, Any], alive: bool) -> None:
    assert heard({"spec": spec}, 1_700_000_000.0).is_alive is alive
    assert heard(None, 1.0) == (None, False)
    assert node_row({"metadata": {"name": "n"}}, None, 0, 1.0) == ["n", "-", "Unknown: not reported", "never", "0", "none", "-"]
