"""`muster up` with an issuer and an audit policy, and `muster rotate-token-key`, as an administrator types them."""

from __future__ import annotations

import base64
import json
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.cli.support import Up, environment, muster
from tests.server.oidc_issuer import oidc_issuer
from tests.server.running import KUBECTL

POLICY = "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n- {level: None, verbs: [get]}\n- {level: Request}\n"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        pytest.param(["--oidc-issuer-url", "http://id", "--oidc-client-id", "x"], "must be an https:// URL", id="no TLS"),
        pytest.param(["--oidc-client-id", "x"], "go together", id="half"),
        pytest.param(["--oidc-groups-claim", "groups"], "go together", id="an option alone"),
        pytest.param(["--authentication-config", "gone.yaml"], "--authentication-config gone.yaml: No such file", id="no file"),
        pytest.param(["--audit-policy-file", "bad.yaml"], r"bad.yaml, line 4: rules[0].level: 'Loud' is not", id="bad policy"),
        pytest.param(
            ["--authentication-config", "bad.yaml", "--oidc-issuer-url", "https://id"], "exclude each other", id="both ways"
        ),
    ],
)
def test_mistakes_stop_the_start(tmp_path: Path, options: list[str], words: str) -> None:
    (tmp_path / "bad.yaml").write_text("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n- level: Loud\n")
    started = ("up", "--data-dir", "data", "--listen", "127.0.0.1:0", "--without", "agent")
    done = muster(*started, *options, env=environment(tmp_path), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert words in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr


@pytest.mark.slow
def test_users_of_an_issuer_and_a_policy(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(POLICY)
    with oidc_issuer(tmp_path) as issuer:
        env = environment(tmp_path)
        options: tuple[str, ...] = ("--oidc-issuer-url", issuer.url, "--oidc-client-id", "muster", "--oidc-client-id", "other")
        options += ("--oidc-ca-file", str(issuer.ca_path), "--oidc-username-prefix", "-", "--oidc-signing-algs", "RS256,ES256")
        options += ("--oidc-required-claim", "hd=lab", "--audit-policy-file", str(tmp_path / "policy.yaml"))
        with Up(tmp_path / "data", *options, env=env) as up:
            config = yaml.safe_load(up.kubeconfig.read_text())
            config["users"][0]["user"] = {"tokenFile": str(tmp_path / "token")}
            (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config))
            (tmp_path / "token").write_text(issuer.token(aud="other", hd="lab"))
            whoami = ("user", "whoami", "--kubeconfig", str(tmp_path / "kubeconfig"))
            done = muster(*whoami, env=env)
            assert (done.returncode, "ann" in done.stdout) == (0, True), done.stderr
            (tmp_path / "token").write_text(issuer.token(aud="other"))
            assert muster(*whoami, env=env).returncode == 5
            rotated = muster("rotate-token-key", "--data-dir", str(up.data_dir), env=env)
            assert rotated.returncode == 0, rotated.stderr
            key = rotated.stdout.split("key ")[1].split()[0]
            kubectl = [KUBECTL, "--kubeconfig", str(up.kubeconfig)]
            while key not in subprocess.check_output([*kubectl, "get", "--raw", "/openid/v1/jwks"], text=True, env=env):
                pass  # until the server has taken it up
            token = subprocess.check_output([*kubectl, "create", "token", "default"], text=True, env=env)
            header = token.split(".", maxsplit=1)[0]
            assert json.loads(base64.urlsafe_b64decode(header + "=" * (-len(header) % 4)))["kid"] == key
        events = [json.loads(line) for line in (tmp_path / "data" / "audit" / "audit.jsonl").read_text().splitlines()]
        assert {event["verb"] for event in events}.isdisjoint({"get"})


def test_there_is_nothing_to_rotate(tmp_path: Path) -> None:
    env = environment(tmp_path)
    done = muster("rotate-token-key", "--data-dir", str(tmp_path / "none"), env=env)
    assert (done.returncode, "does not exist" in done.stderr) == (4, True)
    (tmp_path / "empty").mkdir()
    done = muster("rotate-token-key", "--data-dir", str(tmp_path / "empty"), env=env)
    assert (done.returncode, "a server makes it on its first start" in done.stderr) == (1, True)
