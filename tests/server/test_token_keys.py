"""Keys of service-account tokens: several are good at once, they rotate without a restart, and others can discover them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from muster.objects.time import wall_clock
from muster.server import jws
from muster.server.certificates import key_pem, new_key
from muster.server.oidc_settings import AuthenticationSettings
from muster.server.pki import PkiError
from muster.server.token_keys import RETIRED_MAX, TokenKeys, rotate
from tests.server.running import RunningServer, running

_ACCOUNTS = "/api/v1/namespaces/default/serviceaccounts"
YEAR_S = 365 * 24 * 3600.0


class Clock:
    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "sa.key").write_bytes(key_pem(new_key()))
    return tmp_path


def test_a_retired_key_is_accepted_until_its_last_token_has_expired(directory: Path) -> None:
    clock = Clock()
    keys = TokenKeys(directory, clock, YEAR_S)
    first = keys.public[0].key_id
    assert not keys.reload(), "nothing has changed"
    second, retired = rotate(directory, clock, YEAR_S)
    assert keys.reload()
    assert [key.key_id for key in keys.public] == [second, first]
    assert jws.key_id_of(keys.signing.public_key()) == second
    clock.now += YEAR_S - 1
    assert len(TokenKeys(directory, clock, YEAR_S).public) == 2
    clock.now += 1
    assert keys.reload()
    assert [key.key_id for key in keys.public] == [second]
    assert retired.exists()
    rotate(directory, clock, YEAR_S)
    assert not retired.exists(), "the next rotation cleans up"
    assert (directory / "sa.key").stat().st_mode & 0o777 == 0o600


def test_what_can_not_be_used_changes_nothing(directory: Path) -> None:
    keys = TokenKeys(directory, Clock(), YEAR_S)
    before = keys.public
    (directory / "sa-retired-1799999999.pub").write_text("rubbish")
    with pytest.raises(PkiError, match=r"sa-retired-1799999999\.pub: no public key"):
        keys.reload()
    (directory / "sa-retired-1799999999.pub").rename(directory / "sa-retired-soon.pub")
    with pytest.raises(PkiError, match="says no instant"):
        keys.reload()
    (directory / "sa-retired-soon.pub").unlink()
    (directory / "sa.key").write_bytes(key_pem(ec.generate_private_key(ec.SECP384R1())))
    with pytest.raises(PkiError, match="its curve is secp384r1"):
        keys.reload()
    assert keys.public is before


def test_retired_keys_are_bounded(directory: Path) -> None:
    clock = Clock()
    for _ in range(RETIRED_MAX):
        rotate(directory, clock, YEAR_S)
        clock.now += 1
    with pytest.raises(PkiError, match="retired keys are kept already"):
        rotate(directory, clock, YEAR_S)


def test_a_rotation_that_was_cut_off_leaves_no_second_file_of_a_key(directory: Path) -> None:
    """Who removes the file that is named ends the tokens of the key, and not of every other rotation's leavings."""
    clock = Clock()
    first = TokenKeys(directory, clock, YEAR_S).public[0].key_id
    signing = (directory / "sa.key").read_bytes()
    _, cut_off = rotate(directory, clock, YEAR_S)
    (directory / "sa.key").write_bytes(signing)  # as if it had ended in the middle
    clock.now += 1
    second, retired = rotate(directory, clock, YEAR_S)
    assert not cut_off.exists()
    keys = TokenKeys(directory, clock, YEAR_S)
    assert [key.key_id for key in keys.public] == [second, first]
    clock.now += 1
    rotate(directory, clock, YEAR_S)
    assert retired.exists(), "another key's"
    retired.unlink()
    assert keys.reload()
    assert first not in [key.key_id for key in keys.public]


@pytest.mark.skipif(os.geteuid() != 0, reason="not root: files can't be given to others")
def test_keys_that_root_rotates_stay_their_owners(directory: Path) -> None:
    os.chown(directory / "sa.key", 4321, 4322)
    _, retired = rotate(directory, Clock(), YEAR_S)
    for path in (directory / "sa.key", retired):
        status = path.stat()
        assert (status.st_uid, status.st_gid, status.st_mode & 0o777) == (4321, 4322, 0o600)


def test_keys_of_others_are_not_rotated(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server could not read what was put in their place."""
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    before = {path: path.read_bytes() for path in directory.iterdir()}
    with pytest.raises(PkiError, match=f"belongs to user {owner}; run this as that user"):
        rotate(directory, Clock(), YEAR_S)
    assert {path: path.read_bytes() for path in directory.iterdir()} == before


def _token(server: RunningServer, **spec: Any) -> str:
    reply = server.request("POST", f"{_ACCOUNTS}/default/token", {"spec": spec})
    assert reply.code == 201, reply.body
    return str(reply.json["status"]["token"])


def _kid(token: str) -> str:
    header = json.loads(jws.unb64(token.split(".", maxsplit=1)[0]))
    return str(header["kid"])


def test_tokens_end_a_minute_after_their_pod_should_have(tmp_path: Path) -> None:
    clock = Clock()
    clock.now = wall_clock()  # certificates are checked by the machine's own
    with running(tmp_path, clock=clock) as server:
        pods = "/api/v1/namespaces/default/pods"
        meta = {"name": "p", "finalizers": ["example.org/stays"]}
        server.create(pods, {"metadata": meta, "spec": {"containers": [{"name": "c", "image": "i"}]}})
        token = _token(server, boundObjectRef={"kind": "Pod", "apiVersion": "v1", "name": "p"})
        server.request("DELETE", f"{pods}/p?gracePeriodSeconds=0")
        clock.now += 59
        assert server.request("GET", "/api", token=token).code == 200
        clock.now += 3
        assert server.request("GET", "/api", token=token).code == 401


def test_rotation_while_the_server_runs(tmp_path: Path) -> None:
    with running(tmp_path, settings_check_interval_s=0.02) as server:
        old = _token(server)
        made, retired = rotate(tmp_path / "pki", server.server.config.clock, YEAR_S)
        while _kid(_token(server)) != made:
            pass
        new = _token(server)
        assert server.request("GET", "/api", token=old).code == 200
        assert server.request("GET", "/api", token=new).code == 200
        retired.unlink()  # the old key was stolen
        while server.request("GET", "/api", token=old).code != 401:
            pass
        assert server.request("GET", "/api", token=new).code == 200
    with running(tmp_path) as server:
        assert server.request("GET", "/api", token=new).code == 200, "also after a restart"
        assert server.request("GET", "/api", token=old).code == 401


def test_a_stolen_key_ends_whatever_is_wrong_with_an_issuer(tmp_path: Path) -> None:
    file = tmp_path / "auth.yaml"
    file.write_text("apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\njwt: []\n")
    trusted = AuthenticationSettings(file=file)
    with running(tmp_path / "data", authentication=trusted, settings_check_interval_s=0.02) as server:
        old = _token(server)
        file.write_text("rubbish")
        made, retired = rotate(tmp_path / "data/pki", server.server.config.clock, YEAR_S)
        retired.unlink()
        while _kid(_token(server)) != made:
            pass
        assert server.request("GET", "/api", token=old).code == 401


def test_others_can_verify_our_tokens(server: RunningServer) -> None:
    token = _token(server, audiences=["vault"])
    own = _token(server)
    reply = server.request("GET", "/.well-known/openid-configuration", token=own)
    assert reply.code == 200
    document = reply.json
    assert (document["issuer"], document["id_token_signing_alg_values_supported"]) == (
        "https://kubernetes.default.svc",
        ["ES256"],
    )
    assert document["jwks_uri"] == f"{server.server.url}/openid/v1/jwks"
    assert reply.headers["cache-control"] == "public, max-age=3600"
    found = server.request("GET", "/openid/v1/jwks", token=own)
    assert found.headers["content-type"] == "application/jwk-set+json"
    keys = [jws.key_of_jwk(raw) for raw in found.json["keys"]]
    parsed = jws.parse(token)
    assert parsed is not None
    assert jws.verified_by(parsed, [key for key in keys if key is not None])
    assert parsed.claims["aud"] == ["vault"]
    for path in ("/.well-known/openid-configuration", "/openid/v1/jwks"):
        assert server.request("GET", path, token=server.user("visitor")).code == 403, "as in Kubernetes, a role is needed"
        assert server.request("GET", path, token="").code == 401


def _info(server: RunningServer, token: str) -> Any:
    reply = server.request("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", {}, token=token)
    return reply.json["status"]["userInfo"] if reply.code == 201 else reply.code


def test_tokens_that_are_bound(server: RunningServer, namespace: str) -> None:
    base = f"/api/v1/namespaces/{namespace}"
    server.create(f"{base}/serviceaccounts", {"metadata": {"name": "bot"}})
    node = server.create("/api/v1/nodes", {"metadata": {"name": f"n-{namespace}"}})["metadata"]
    pod = {
        "metadata": {"name": "p"},
        "spec": {"serviceAccountName": "bot", "nodeName": node["name"], "containers": [{"name": "c", "image": "i"}]},
    }
    uid = server.create(f"{base}/pods", pod)["metadata"]["uid"]

    def ask(account: str, **ref: str) -> Any:
        return server.request("POST", f"{base}/serviceaccounts/{account}/token", {"spec": {"boundObjectRef": ref}})

    to_pod = ask("bot", kind="Pod", apiVersion="v1", name="p").json["status"]["token"]
    to_node = ask("bot", kind="Node", apiVersion="v1", name=node["name"]).json["status"]["token"]
    told = {key.partition("/")[2]: values for key, values in _info(server, to_pod)["extra"].items()}
    assert told.pop("credential-id")[0].startswith("JTI=")
    assert told == {"pod-name": ["p"], "pod-uid": [uid], "node-name": [node["name"]], "node-uid": [node["uid"]]}
    assert _info(server, to_node)["username"] == f"system:serviceaccount:{namespace}:bot"
    assert "runs as" in ask("default", kind="Pod", name="p").message, "a pod of another account"
    assert ask("bot", kind="Pod", name="p", uid="another").code == 422
    assert ask("bot", kind="ConfigMap", name="p").code == 422
    assert ask("bot", kind="Pod", name="gone").code == 404
    running_pod = {"status": {"phase": "Running"}}
    merge = {"content-type": "application/merge-patch+json"}
    assert server.request("PATCH", f"{base}/pods/p/status", running_pod, headers=merge).code == 200
    server.request("DELETE", f"{base}/pods/p?gracePeriodSeconds=30")
    assert "deletionTimestamp" in server.request("GET", f"{base}/pods/p").json["metadata"]
    assert _info(server, to_pod) != 401, "it needs its token to end in order"
    server.request("DELETE", f"{base}/pods/p?gracePeriodSeconds=0")
    assert _info(server, to_pod) == 401
    server.request("DELETE", f"/api/v1/nodes/{node['name']}")
    assert _info(server, to_node) == 401
