"""What a tenant with some rights may try: to see more than those give, or to keep the server from serving others."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from muster.objects.catalog import CATALOG
from muster.objects.status import Raw, TooManyRequests
from muster.objects.time import wall_clock
from muster.server.config import ServerLimits
from muster.server.flow import Flow
from muster.server.metrics import Metrics
from muster.server.negotiation import Form
from muster.server.pki import Pki, PkiError
from muster.server.roles import default_roles
from muster.server.token_keys import TokenKeys
from muster.server.tokens import TokenTable, identity_of_secret, token_hash, token_secret
from tests.server.running import RunningServer, read_all, running

_RBAC = "/apis/rbac.authorization.k8s.io/v1"
_APPLY = {"content-type": "application/apply-patch+yaml"}


def _allow(server: RunningServer, namespace: str, user: str, rule: Raw) -> str:
    role = {"metadata": {"name": user}, "rules": [{"apiGroups": [""], **rule}]}
    ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": user}
    binding = {"metadata": {"name": user}, "roleRef": ref, "subjects": [{"kind": "User", "name": user}]}
    server.create(f"{_RBAC}/namespaces/{namespace}/roles", role)
    server.create(f"{_RBAC}/namespaces/{namespace}/rolebindings", binding)
    return server.user(user)


# --- to see or do more


@pytest.mark.parametrize(
    ("path", "seen"),
    [
        pytest.param("secrets/own?watch=true", ["own"], id="its own path"),
        pytest.param("secrets/own?watch=true&fieldSelector=metadata.name%3Down-er", [], id="a longer name in the selector"),
        pytest.param("secrets/own?watch=true&fieldSelector=metadata.name!%3Down", [], id="all others"),
        pytest.param("secrets?watch=true&fieldSelector=metadata.name%3Down", ["own"], id="by selector"),
        pytest.param("secrets?watch=true&fieldSelector=metadata.name%3Down,metadata.name%3Down-er", [], id="two names"),
    ],
)
def test_a_watch_shows_only_what_was_authorized(server: RunningServer, namespace: str, path: str, seen: list[str]) -> None:
    user = f"w-{namespace}"
    token = _allow(server, namespace, user, {"resources": ["secrets"], "resourceNames": ["own"], "verbs": ["watch"]})
    for name in ("own", "own-er"):
        server.create(f"/api/v1/namespaces/{namespace}/secrets", {"metadata": {"name": name}, "stringData": {"k": name}})
    reply = server.request("GET", f"/api/v1/namespaces/{namespace}/{path}&timeoutSeconds=1", token=token)
    assert reply.code == 200, reply.body
    names = [json.loads(line)["object"]["metadata"]["name"] for line in reply.body.splitlines()]
    assert names == seen


def test_the_old_watch_path_shows_only_what_was_authorized(server: RunningServer, namespace: str) -> None:
    rule = {"resources": ["secrets"], "resourceNames": ["own"], "verbs": ["watch"]}
    token = _allow(server, namespace, f"o-{namespace}", rule)
    server.create(f"/api/v1/namespaces/{namespace}/secrets", {"metadata": {"name": "own-er"}})
    selector = quote("metadata.name=own-er")
    path = f"/api/v1/watch/namespaces/{namespace}/secrets/own?fieldSelector={selector}&timeoutSeconds=1"
    reply = server.request("GET", path, token=token)
    assert (reply.code, reply.body) == (200, b"")


def test_apply_that_creates_needs_create(server: RunningServer, namespace: str) -> None:
    def apply(token: str, name: str) -> int:
        path = f"/api/v1/namespaces/{namespace}/configmaps/{name}?fieldManager=t"
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}
        return server.request("PATCH", path, body, token=token, headers=_APPLY).code

    maps = f"/api/v1/namespaces/{namespace}/configmaps"
    patches = _allow(server, namespace, f"p-{namespace}", {"resources": ["configmaps"], "verbs": ["patch"]})
    both = _allow(server, namespace, f"b-{namespace}", {"resources": ["configmaps"], "verbs": ["patch", "create"]})
    assert apply(patches, "new") == 403
    assert server.request("GET", f"{maps}/new").code == 404
    assert apply(both, "new") == 201
    assert apply(patches, "new") == 200


def test_token_reviews_name_only_the_audiences_of_the_token(server: RunningServer, namespace: str) -> None:
    server.create(f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": "sa"}})
    wanted = {"spec": {"audiences": ["vault"]}}
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/sa/token"
    token = server.request("POST", path, wanted).json["status"]["token"]

    def review(*audiences: str) -> Raw:
        spec = {"token": token, "audiences": list(audiences)}
        status: Raw = server.request("POST", "/apis/authentication.k8s.io/v1/tokenreviews", {"spec": spec}).json["status"]
        return status

    assert review("vault", "bank")["audiences"] == ["vault"]
    assert review("bank")["authenticated"] is False


def test_a_tenant_cannot_raise_its_own_quota() -> None:
    edit = next(role for role in default_roles(CATALOG) if role["metadata"]["name"] == "system:aggregate-to-edit")
    for rule in edit["rules"]:
        if set(rule["verbs"]) & {"create", "update", "patch", "delete"}:
            assert not {"resourcequotas", "elasticquotas", "elasticquotaprofiles"} & set(rule["resources"])


def test_a_hash_that_is_not_hexadecimal_is_no_token() -> None:
    """It shares the first characters of another's hash; comparing it must not fail the other's requests."""
    token = "muster-someone"
    table = TokenTable()
    forged = identity_of_secret(token_secret("forged", token_hash(token)[:8] + "é" * 56, "mallory", [], ""))
    assert forged is None
    found = identity_of_secret(token_secret("true", token_hash(token), "someone", [], ""))
    assert found is not None
    table.put("true", *found)
    identity = table.find(token, 0.0)
    assert identity is not None
    assert identity.user == "someone"


# --- to keep others waiting


def test_printing_much_keeps_nobody_waiting(server: RunningServer) -> None:
    """What is being printed waits here for a request that comes in later: on the loop, that one would never be served."""
    begun, served = threading.Event(), threading.Event()

    def slow() -> bytes:
        begun.set()
        return b"done" if served.wait(timeout=20) else b"nobody was served meanwhile"

    async def render() -> bytes:
        return await server.server.handlers._render(Form("yaml"), 10_000_000, slow)

    with ThreadPoolExecutor(1) as pool:
        printed = pool.submit(lambda: server.call(render()))
        assert begun.wait(timeout=20)
        assert server.request("GET", "/healthz", token="").code == 200
        served.set()
        assert printed.result() == b"done"


@pytest.mark.parametrize("accept", ["application/yaml", "application/json;as=Table;v=v1;g=meta.k8s.io"])
def test_large_objects_are_printed_whole(server: RunningServer, namespace: str, accept: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    server.create(path, {"metadata": {"name": "m"}, "data": {"k": "v" * 400_000}})
    reply = server.request("GET", f"{path}/m?includeObject=Object", headers={"accept": accept})
    assert reply.code == 200
    assert b"v" * 400_000 in reply.body


async def test_unread_answers_are_bounded() -> None:
    limits = ServerLimits(sending_bytes_max=100, sending_per_user_bytes_max=50)
    flow = Flow(limits, Metrics(limits))
    with flow.sending("ann", 1000, may_refuse=True):  # alone, anything passes
        for user in ("ann", "ben"):
            with pytest.raises(TooManyRequests), flow.sending(user, 1, may_refuse=True):
                pass
        with flow.sending("ann", 1, may_refuse=False):
            pass
    with flow.sending("ann", 40, may_refuse=True):
        with pytest.raises(TooManyRequests), flow.sending("ann", 20, may_refuse=True):
            pass
        with flow.sending("ben", 60, may_refuse=True):
            pass
    assert flow.answers.total == 0


def test_lists_that_nobody_reads_are_refused(tmp_path: Path) -> None:
    with running(tmp_path, limits=ServerLimits(sending_bytes_max=16_000_000)) as server:
        maps = "/api/v1/namespaces/default/configmaps"
        for number in range(12):  # more than the kernel keeps for a socket
            server.create(maps, {"metadata": {"name": f"m{number}"}, "data": {"k": "v" * 1_000_000}})
        ask = f"GET {maps} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {server.token}\r\nconnection: close\r\n\r\n".encode()
        with server.raw_socket() as unread:
            unread.sendall(ask)
            assert unread.recv(12) == b"HTTP/1.1 200"  # on its way, and left there
            refused = server.request("GET", maps)
            assert (refused.code, refused.reason) == (429, "TooManyRequests")
            assert "limit" in refused.message
            big = {"metadata": {"name": "late"}, "data": {"k": "v" * 1_000_000}}
            assert server.request("POST", maps, big).code == 201  # it has happened, so its client hears so
            read_all(unread)
        assert server.request("GET", maps).code == 200


# --- to confuse


def test_a_token_key_on_another_curve_is_refused(tmp_path: Path) -> None:
    Pki.ensure(tmp_path, wall_clock)
    key = ec.generate_private_key(ec.SECP384R1())
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    (tmp_path / "sa.key").write_bytes(key.private_bytes(encoding, form, serialization.NoEncryption()))
    with pytest.raises(PkiError, match=r"sa\.key: its curve is secp384r1"):
        TokenKeys(Pki.ensure(tmp_path, wall_clock).directory, wall_clock, 3600)


@pytest.mark.parametrize("text", ["foo: !!bool zz", "foo: !!map a", "foo: !!int zz"])
def test_yaml_tags_that_do_not_fit(server: RunningServer, namespace: str, text: str) -> None:
    body = f"metadata: {{name: m}}\n{text}".encode()
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    assert server.request("POST", path, body, headers={"content-type": "application/yaml"}).code == 400


def test_a_target_without_a_path_is_refused_in_words(server: RunningServer) -> None:
    answer = server.exchange_raw(b"GET https://elsewhere HTTP/1.1\r\nhost: x\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"NoneType" not in answer
    assert b"can't be read" in answer
