"""`muster domain` against a real server: parties are prepared, tokens are shown once, kept hashed, and can be revoked."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.cli.commands.domain import lifetime_s
from muster.cli.errors import ExitCode, UsageError
from muster.controllers.domain_tokens import TokenProblem, spend
from muster.objects.time import wall_clock
from tests.cli.conftest import Run
from tests.cli.support import Up
from tests.waiting import blocked_until

KUBECTL = str(Path(sys.executable).parent / "kubectl")

DOMAIN = """
apiVersion: kuscia.secretflow/v1alpha1
kind: Domain
metadata: {name: NAME}
spec:
  resourceQuota: {podMaxCount: 3, hard: {cpu: 4}}
"""


@pytest.fixture
def party(muster: Run, request: pytest.FixtureRequest) -> Iterator[str]:
    name = "".join(c if c.isalnum() else "-" for c in request.node.name.lower())[:50].strip("-")
    made = muster("apply", "-f", "-", stdin=DOMAIN.replace("NAME", name))
    assert made.code == ExitCode.OK, made.err
    blocked_until(lambda: "True" in muster("domain", "list").out)
    yield name
    assert muster("delete", "domain", name).code in (ExitCode.OK, ExitCode.NOT_FOUND)


def tokens(muster: Run, name: str) -> list[dict[str, Any]]:
    raw: Any = json.loads(muster("get", "domain", name, "-o", "json").out)
    found: list[dict[str, Any]] = (raw.get("status") or {}).get("deployTokenStatuses") or []
    return found


def test_a_party_is_prepared_and_shown(muster: Run, party: str) -> None:
    blocked_until(lambda: "cpu 0/4, pods 0/3" in muster("domain", "get", party).out)
    shown = muster("domain", "get", party)
    assert shown.code == ExitCode.OK, shown.err
    assert "Role:       own" in shown.out
    assert f"namespace {party} is ready" in shown.out
    listed = muster("domain", "list")
    assert listed.out.splitlines()[0].split() == ["NAME", "ROLE", "READY", "NODES", "QUOTA", "AGE"]
    assert any(line.startswith(f"{party} ") and "0/0" in line for line in listed.out.splitlines())
    assert muster("get", "role", party, "-n", party).code == ExitCode.OK
    for command in (("domain", "list"), ("domain", "get", party)):
        assert json.loads(muster(*command, "-o", "json").out)["apiVersion"]


def test_the_account_of_a_party_may_do_little(muster: Run, party: str, local: Up) -> None:
    def can(verb: str, what: str, namespace: str) -> bool:
        account = f"system:serviceaccount:{party}:{party}"
        asked = [KUBECTL, "--kubeconfig", str(local.kubeconfig), "auth", "can-i", verb, what, "-n", namespace, "--as", account]
        return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip() == "yes"

    assert can("get", "pods", party)
    assert can("patch", "taskresources.kuscia.secretflow", party)
    assert not can("create", "pods", party)
    assert not can("get", "secrets", party)
    assert not can("create", "rolebindings.rbac.authorization.k8s.io", party)
    assert not can("get", "pods", "default")
    assert not can("get", "kusciajobs.kuscia.secretflow", "cross-domain")
    assert not can("list", "nodes", party)
    assert not can("patch", "domains.kuscia.secretflow", party)


def test_a_token_is_shown_once_and_kept_as_a_hash(muster: Run, party: str) -> None:
    made = muster("domain", "token", "create", party, "--expires", "2h")
    assert made.code == ExitCode.OK, made.err
    clear = made.out.strip()
    assert clear.startswith("muster-join-")
    assert "not shown again" in made.err
    stored = tokens(muster, party)
    secret = clear.split("-", 3)[3]  # which may have dashes of its own
    assert secret not in json.dumps(stored)
    listed = muster("domain", "token", "list", party)
    assert clear not in listed.out
    assert "unused" in listed.out
    assert spend(stored, clear, wall_clock()).token_id in listed.out
    described = muster("domain", "get", party)
    assert "unused" in described.out


def test_a_revoked_token_lets_nobody_in(muster: Run, party: str) -> None:
    clear = muster("domain", "token", "create", party, "--uses", "3").out.strip()
    token_id = clear.removeprefix("muster-join-")[:8]
    done = muster("domain", "token", "revoke", party, token_id)
    assert done.code == ExitCode.OK, done.err
    with pytest.raises(TokenProblem, match="was revoked"):
        spend(tokens(muster, party), clear, wall_clock())
    (row,) = json.loads(muster("domain", "token", "list", party, "-o", "json").out)["items"]
    assert (row["state"], row["uses"]) == ("revoked", "0/3")
    again = muster("domain", "token", "revoke", party, "zzzzzzzz")
    assert again.code == ExitCode.FAILURE
    assert f"there are: {token_id}" in again.err


@pytest.mark.parametrize(
    ("args", "code", "why"),
    [
        pytest.param(("domain", "get", "nobody"), ExitCode.NOT_FOUND, "nobody", id="unknown party"),
        pytest.param(("domain", "token", "create", "nobody"), ExitCode.NOT_FOUND, "nobody", id="token of nobody"),
        pytest.param(("domain", "token", "list", "nobody"), ExitCode.NOT_FOUND, "nobody", id="tokens of nobody"),
        pytest.param(("domain", "token", "create", "x", "--expires", "soon"), ExitCode.USAGE, "like 30m, 24h or 7d", id="time"),
    ],
)
def test_refused(muster: Run, args: tuple[str, ...], code: ExitCode, why: str) -> None:
    done = muster(*args)
    assert done.code == code
    assert why in done.err


def test_figures_out_of_bounds(muster: Run, party: str) -> None:
    assert "365 days" in muster("domain", "token", "create", party, "--expires", "1000d").err
    assert "1 to 10,000 nodes" in muster("domain", "token", "create", party, "--uses", "0").err
    assert tokens(muster, party) == []
    assert "has no tokens" in muster("domain", "token", "list", party).err


def test_a_reserved_name_is_refused(muster: Run) -> None:
    done = muster("apply", "-f", "-", stdin=DOMAIN.replace("NAME", "kube-system"))
    assert done.code == ExitCode.FAILURE
    assert "NameReserved" in done.err


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30m", 1800), ("24h", 86_400), ("7d", 604_800), ("5s", 5), ("", None), ("h", None), ("-1h", None), ("1.5h", None)],
)
def test_lifetimes(text: str, seconds: int | None) -> None:
    if seconds is None:
        with pytest.raises(UsageError, match="--expires"):
            lifetime_s(text)
    else:
        assert lifetime_s(text) == seconds
