"""Who gets in and what they may do, over HTTP: certificates, tokens, RBAC, impersonation, reviews, escalation."""

from __future__ import annotations

import os
import ssl
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from muster.objects.status import Raw
from muster.server.tokens import new_token, token_hash, token_secret
from tests.server.running import RunningServer

_RBAC = "/apis/rbac.authorization.k8s.io/v1"
_MERGE = {"content-type": "application/merge-patch+json"}


def _rule(resources: str, verbs: str, group: str = "", **more: Any) -> Raw:
    return {"apiGroups": [group], "resources": resources.split(), "verbs": verbs.split(), **more}


def _role(name: str, *rules: Raw) -> Raw:
    return {"metadata": {"name": name}, "rules": list(rules)}


def _binding(name: str, role: str, user: str, kind: str = "Role") -> Raw:
    ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role}
    return {"metadata": {"name": name}, "roleRef": ref, "subjects": [{"kind": "User", "name": user}]}


def _allow(server: RunningServer, namespace: str, user: str, *rules: Raw, name: str = "") -> str:
    """Give `user` rules in `namespace`; a token for them."""
    name = name or f"{user}-role"
    server.create(f"{_RBAC}/namespaces/{namespace}/roles", _role(name, *rules))
    server.create(f"{_RBAC}/namespaces/{namespace}/rolebindings", _binding(name, name, user))
    return server.user(user)


# --- certificates


def _client_tls(server: RunningServer, directory: Path, user: str, *groups: str) -> ssl.SSLContext:
    cert, key = server.server.pki.issue_client(user, groups, timedelta(hours=1))
    (directory / "c.crt").write_bytes(cert)
    (directory / "c.key").write_bytes(key)
    tls = ssl.create_default_context(cafile=str(server.server.ca_path))
    tls.load_cert_chain(directory / "c.crt", directory / "c.key")
    return tls


def _whoami(server: RunningServer, **more: Any) -> Any:
    reply = server.request("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", {}, **more)
    assert reply.code == 201, reply.body
    return reply.json["status"]["userInfo"]


def test_client_certificates(server: RunningServer, tmp_path: Path) -> None:
    tls = _client_tls(server, tmp_path, "alice", "devs", "ops")
    info = _whoami(server, token="", tls=tls)
    assert (info["username"], info["groups"]) == ("alice", ["devs", "ops", "system:authenticated"])
    assert server.request("GET", "/api/v1/pods", token="", tls=tls).code == 403
    admin = ssl.create_default_context(cafile=str(server.server.ca_path))
    admin.load_cert_chain(server.server.pki.admin_cert_path, server.server.pki.admin_key_path)
    assert server.request("GET", "/api/v1/pods", token="", tls=admin).code == 200


def test_the_server_certificate_is_no_client_certificate(server: RunningServer) -> None:
    pki = server.server.config.pki_dir
    tls = ssl.create_default_context(cafile=str(server.server.ca_path))
    tls.load_cert_chain(pki / "server.crt", pki / "server.key")
    with pytest.raises(OSError):  # noqa: PT011 - a reset or a TLS alert, depending on who is faster
        server.request("GET", "/healthz", token="", tls=tls)


def test_certificates_of_another_authority(server: RunningServer, tmp_path: Path) -> None:
    from muster.server.pki import Pki

    other = Pki.ensure(tmp_path / "other", server.server.config.clock)
    tls = ssl.create_default_context(cafile=str(server.server.ca_path))
    tls.load_cert_chain(other.admin_cert_path, other.admin_key_path)
    with pytest.raises(OSError):  # noqa: PT011 - a reset or a TLS alert, depending on who is faster
        server.request("GET", "/healthz", token="", tls=tls)


# --- tokens


def test_tokens_are_revoked_with_their_secret(server: RunningServer) -> None:
    token = server.user("carol", ("devs",))
    assert _whoami(server, token=token)["groups"] == ["devs", "system:authenticated"]
    secrets = server.request("GET", "/api/v1/namespaces/kube-system/secrets").json["items"]
    assert token not in str(secrets)
    for secret in secrets:
        if secret.get("type") == "muster.dev/token-hash" and secret["metadata"]["name"] != "admin-token":
            server.request("DELETE", f"/api/v1/namespaces/kube-system/secrets/{secret['metadata']['name']}")
    assert server.request("GET", "/api", token=token).code == 401


def test_token_secrets_count_in_kube_system_only(server: RunningServer, namespace: str) -> None:
    token = new_token(os.urandom(32))
    secret = token_secret("mine", token_hash(token), "admin", ["system:masters"], "")
    secret["metadata"].pop("namespace")
    server.create(f"/api/v1/namespaces/{namespace}/secrets", secret)
    assert server.request("GET", "/api", token=token).code == 401


def test_to_make_a_token_is_to_impersonate(server: RunningServer, namespace: str) -> None:
    role = _role(f"minter-{namespace}", _rule("secrets", "create get"), _rule("users", "impersonate", resourceNames=["guest"]))
    server.create(f"{_RBAC}/clusterroles", role)
    server.create(
        f"{_RBAC}/clusterrolebindings", _binding(f"minter-{namespace}", f"minter-{namespace}", "minter", "ClusterRole")
    )
    token, secrets = server.user("minter"), "/api/v1/namespaces/kube-system/secrets?dryRun=All"

    def mint(user: str, *groups: str) -> Any:
        return server.request("POST", secrets, token_secret("t", token_hash("x"), user, groups, ""), token=token)

    assert mint("guest").code == 201
    assert mint("admin").code == 403
    refused = mint("guest", "system:masters")
    assert 'cannot impersonate resource "groups"' in refused.message
    plain = {"metadata": {"name": "plain"}, "type": "Opaque"}
    assert server.request("POST", secrets, plain, token=token).code == 201


def test_service_account_tokens(server: RunningServer, namespace: str) -> None:
    accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    uid = server.create(accounts, {"metadata": {"name": "bot"}})["metadata"]["uid"]
    made = server.request("POST", f"{accounts}/bot/token", {"spec": {"expirationSeconds": 700}}).json
    token = made["status"]["token"]
    info = _whoami(server, token=token)
    assert info["username"] == f"system:serviceaccount:{namespace}:bot"
    assert info["uid"] == uid
    assert "system:serviceaccounts" in info["groups"]
    other = server.request("POST", f"{accounts}/bot/token", {"spec": {"audiences": ["vault"]}}).json["status"]["token"]
    assert server.request("GET", "/api", token=other).code == 401, "a token for another audience"
    assert server.request("POST", f"{accounts}/bot/token", {"spec": {"expirationSeconds": 5}}).code == 422
    left_open = {"spec": {"audiences": None, "expirationSeconds": None, "boundObjectRef": None}}  # as clients in Go say it
    assert server.request("POST", f"{accounts}/bot/token", left_open).json["spec"]["expirationSeconds"] == 3600
    assert server.request("POST", f"{accounts}/nobody/token", {}).code == 404
    server.request("DELETE", f"{accounts}/bot")
    assert server.request("GET", "/api", token=token).code == 401, "it dies with its account"
    server.create(accounts, {"metadata": {"name": "bot"}})
    assert server.request("GET", "/api", token=token).code == 401, "a new account of that name has another uid"


def test_bound_tokens(server: RunningServer, namespace: str) -> None:
    accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    secrets = f"/api/v1/namespaces/{namespace}/secrets"
    server.create(accounts, {"metadata": {"name": "bot"}})
    server.create(secrets, {"metadata": {"name": "anchor"}})
    body = {"spec": {"boundObjectRef": {"kind": "Secret", "apiVersion": "v1", "name": "anchor"}}}
    token = server.request("POST", f"{accounts}/bot/token", body).json["status"]["token"]
    assert server.request("GET", "/api", token=token).code == 200
    server.request("DELETE", f"{secrets}/anchor")
    assert server.request("GET", "/api", token=token).code == 401


def test_anonymous_sees_health_and_version_only(server: RunningServer) -> None:
    for path in ("/healthz", "/livez", "/readyz", "/version"):
        assert server.request("GET", path, token="").code == 200
    for path in ("/", "/api", "/metrics", "/openapi/v3", "/healthz/store", "/api/v1/namespaces"):
        assert server.request("GET", path, token="").code == 401
    assert server.request("POST", "/healthz", b"", token="").code == 401


def test_everyone_authenticated_may_look_around(server: RunningServer) -> None:
    token = server.user("visitor")
    for path in ("/api", "/apis", "/api/v1", "/apis/apps/v1", "/openapi/v3", "/version"):
        assert server.request("GET", path, token=token).code == 200
    for path in ("/metrics", "/api/v1/pods", "/nowhere"):
        assert server.request("GET", path, token=token).code == 403


# --- RBAC


def test_rules_take_effect_with_the_next_request(server: RunningServer, namespace: str) -> None:
    pods, maps = (f"/api/v1/namespaces/{namespace}/{kind}" for kind in ("pods", "configmaps"))
    token = _allow(server, namespace, "dave", _rule("configmaps", "get list create"))
    assert server.request("GET", maps, token=token).code == 200
    assert server.request("POST", maps, {"metadata": {"name": "c"}}, token=token).code == 201
    assert server.request("DELETE", f"{maps}/c", token=token).code == 403
    refused = server.request("GET", pods, token=token)
    assert (
        refused.message
        == f'pods is forbidden: User "dave" cannot list resource "pods" in API group "" in the namespace "{namespace}"'
    )
    server.request("DELETE", f"{_RBAC}/namespaces/{namespace}/rolebindings/dave-role")
    assert server.request("GET", maps, token=token).code == 403


def test_default_roles(server: RunningServer, namespace: str) -> None:
    for role in ("view", "edit", "admin"):
        server.create(f"{_RBAC}/namespaces/{namespace}/rolebindings", _binding(role, role, f"{role}er", "ClusterRole"))
    tokens = {role: server.user(f"{role}er") for role in ("view", "edit", "admin")}
    base = f"/api/v1/namespaces/{namespace}"

    def codes(method: str, path: str, body: Any = None) -> list[int]:
        return [server.request(method, path, body, token=tokens[role]).code for role in ("view", "edit", "admin")]

    assert codes("GET", f"{base}/pods") == [200, 200, 200]
    assert codes("GET", f"{base}/secrets") == [403, 200, 200]
    assert codes("POST", f"{base}/configmaps?dryRun=All", {"metadata": {"name": "x"}}) == [403, 201, 201]
    assert codes("GET", f"{_RBAC}/namespaces/{namespace}/roles") == [403, 403, 200]
    assert codes("GET", "/api/v1/nodes") == [403, 403, 403]


def test_aggregated_roles_show_and_grant_what_labels_add(server: RunningServer, namespace: str) -> None:
    token = _allow(server, namespace, "erin", _rule("configmaps", "get"))
    server.create(f"{_RBAC}/namespaces/{namespace}/rolebindings", _binding("v", "view", "erin", "ClusterRole"))
    path = f"/api/v1/namespaces/{namespace}/rockets"
    assert server.request("GET", path, token=token).code == 403
    extra = _role(f"rockets-{namespace}", _rule("rockets", "list"))
    extra["metadata"]["labels"] = {"rbac.authorization.k8s.io/aggregate-to-view": "true"}
    server.create(f"{_RBAC}/clusterroles", extra)
    assert server.request("GET", path, token=token).code == 404, "allowed now, though there is no such kind"
    with server.watch(f"{_RBAC}/clusterroles?fieldSelector=metadata.name%3Dview") as watch:
        while not any("rockets" in rule.get("resources", []) for rule in watch.next()["object"]["rules"]):
            pass


def test_impersonation(server: RunningServer, namespace: str) -> None:
    assert _whoami(server, headers={"Impersonate-User": "bob", "Impersonate-Group": "devs"})["groups"] == [
        "devs",
        "system:authenticated",
    ]
    assert server.request("GET", "/api/v1/pods", headers={"Impersonate-User": "bob"}).code == 403
    account = _whoami(server, headers={"Impersonate-User": "system:serviceaccount:a:b"})
    assert "system:serviceaccounts:a" in account["groups"]
    token = _allow(server, namespace, "fay", _rule("serviceaccounts", "impersonate", resourceNames=["bot"]))
    allowed = {"Impersonate-User": f"system:serviceaccount:{namespace}:bot"}
    assert _whoami(server, token=token, headers=allowed)["username"].endswith(":bot")
    refused = server.request(
        "GET", "/api", token=token, headers={"Impersonate-User": "admin", "Impersonate-Group": "system:masters"}
    )
    assert (
        refused.message
        == 'users "admin" is forbidden: User "fay" cannot impersonate resource "users" in API group "" at the cluster scope'
    )
    assert server.request("GET", "/api", headers={"Impersonate-Group": "devs"}).code == 400


# --- escalation


def test_a_label_on_an_aggregated_role_is_no_way_up(server: RunningServer, namespace: str) -> None:
    """Its own rules may be empty: what counts is what it takes in, which another one would take in from it."""
    token = server.user(f"labels-{namespace}")
    own = _rule("clusterroles", "get update patch create", "rbac.authorization.k8s.io")
    server.create(f"{_RBAC}/clusterroles", _role(f"labels-{namespace}", own))
    for role in (f"labels-{namespace}", "view"):
        binding = _binding(f"{role}-{namespace}", role, f"labels-{namespace}", "ClusterRole")
        server.create(f"{_RBAC}/clusterrolebindings", binding)
    label = {"rbac.authorization.k8s.io/aggregate-to-view": "true"}
    merge = {"content-type": "application/merge-patch+json"}
    for patch in ({"metadata": {"labels": label}}, {"metadata": {"labels": label}, "rules": []}, {"aggregationRule": None}):
        refused = server.request("PATCH", f"{_RBAC}/clusterroles/edit", patch, token=token, headers=merge)
        assert refused.code == 403, patch
        assert "not currently held" in refused.message
    assert server.request("GET", f"/api/v1/namespaces/{namespace}/secrets", token=token).code == 403
    note = {"metadata": {"annotations": {f"example.com/{namespace}": "seen"}}}
    assert server.request("PATCH", f"{_RBAC}/clusterroles/edit", note, token=token, headers=merge).code == 200


def test_nobody_grants_what_they_do_not_have(server: RunningServer, namespace: str) -> None:
    roles, bindings = f"{_RBAC}/namespaces/{namespace}/roles", f"{_RBAC}/namespaces/{namespace}/rolebindings"
    own = _rule("roles rolebindings", "*", "rbac.authorization.k8s.io")
    token = _allow(server, namespace, "gus", {**own, "verbs": ["get", "create", "update", "patch"]}, _rule("pods", "get list"))
    server.create(roles, _role("strong", _rule("secrets", "*")))
    before = server.server.store.resource_version
    refused = server.request("POST", roles, _role("mine", _rule("secrets", "get")), token=token)
    assert refused.code == 403
    assert "is attempting to grant RBAC permissions not currently held" in refused.message
    assert '{APIGroups:[""], Resources:["secrets"], Verbs:["get"]}' in refused.message
    assert server.request("POST", bindings, _binding("b", "strong", "gus"), token=token).code == 403
    assert server.request("POST", bindings, _binding("b", "cluster-admin", "gus", "ClusterRole"), token=token).code == 403
    patch = {"rules": [_rule("*", "*", "*")]}
    assert server.request("PATCH", f"{roles}/gus-role", patch, token=token, headers=_MERGE).code == 403
    assert server.server.store.resource_version == before
    assert server.request("POST", roles, _role("mine", _rule("pods", "get")), token=token).code == 201
    assert server.request("POST", bindings, _binding("b", "mine", "friend"), token=token).code == 201
    relabel = {"metadata": {"labels": {"a": "b"}}}
    assert server.request("PATCH", f"{roles}/strong", relabel, token=token, headers=_MERGE).code == 200, "content is unchanged"


def test_the_verbs_escalate_and_bind(server: RunningServer, namespace: str) -> None:
    roles, bindings = f"{_RBAC}/namespaces/{namespace}/roles", f"{_RBAC}/namespaces/{namespace}/rolebindings"
    group = "rbac.authorization.k8s.io"
    token = _allow(
        server,
        namespace,
        "hal",
        _rule("roles", "create escalate", group),
        _rule("rolebindings", "create", group),
        _rule("clusterroles", "bind", group, resourceNames=["view"]),
    )
    assert server.request("POST", roles, _role("strong", _rule("secrets", "*")), token=token).code == 201
    view = _binding("v", "view", "hal", "ClusterRole")
    # bind is asked at the scope of the binding, where a Role in this namespace grants it
    assert server.request("POST", bindings, view, token=token).code == 201
    assert server.request("POST", bindings, _binding("e", "edit", "hal", "ClusterRole"), token=token).code == 403


def test_bindings_must_make_sense(server: RunningServer, namespace: str) -> None:
    bindings = f"{_RBAC}/namespaces/{namespace}/rolebindings"
    server.create(bindings, _binding("b", "view", "ida", "ClusterRole"))
    changed = server.request("PATCH", f"{bindings}/b", {"roleRef": {"name": "edit"}}, headers=_MERGE)
    assert (changed.code, changed.reason) == (422, "Invalid")
    assert "roleRef" in changed.message
    assert server.request("POST", bindings, _binding("c", "x", "ida", "Rocket")).code == 422
    cluster = server.request("POST", f"{_RBAC}/clusterrolebindings", _binding("c", "x", "ida", "Role"))
    assert cluster.code == 422


# --- reviews


def _review(
    server: RunningServer, kind: str, spec: Raw, *, group: str = "authorization.k8s.io", path: str = "", **more: Any
) -> Any:
    where = path or f"/apis/{group}/v1/{kind.lower()}s"
    return server.request("POST", where, {"kind": kind, "apiVersion": f"{group}/v1", "spec": spec}, **more)


def test_access_reviews(server: RunningServer, namespace: str) -> None:
    token = _allow(server, namespace, "jan", _rule("pods", "get"))
    asked = {"verb": "get", "resource": "pods", "namespace": namespace}
    mine = _review(server, "SelfSubjectAccessReview", {"resourceAttributes": asked}, token=token)
    assert mine.code == 201
    assert mine.json["status"]["allowed"] is True
    assert "RoleBinding" in mine.json["status"]["reason"]
    other = {**asked, "verb": "list"}
    assert _review(server, "SelfSubjectAccessReview", {"resourceAttributes": other}, token=token).json["status"] == {
        "allowed": False
    }
    path = {"nonResourceAttributes": {"path": "/metrics", "verb": "get"}}
    assert _review(server, "SelfSubjectAccessReview", path, token=token).json["status"] == {"allowed": False}
    about = _review(server, "SubjectAccessReview", {"user": "jan", "resourceAttributes": asked})
    assert about.json["status"]["allowed"] is True
    assert _review(server, "SubjectAccessReview", {"user": "jan", "resourceAttributes": asked}, token=token).code == 403
    local = f"/apis/authorization.k8s.io/v1/namespaces/{namespace}/localsubjectaccessreviews"
    assert _review(server, "LocalSubjectAccessReview", {"user": "jan", "resourceAttributes": asked}, path=local).json["status"][
        "allowed"
    ]
    elsewhere = {**asked, "namespace": "default"}
    assert _review(server, "LocalSubjectAccessReview", {"user": "jan", "resourceAttributes": elsewhere}, path=local).code == 422
    rules = _review(server, "SelfSubjectRulesReview", {"namespace": namespace}, token=token).json["status"]
    assert {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]} in rules["resourceRules"]
    assert any("/api" in rule["nonResourceURLs"] for rule in rules["nonResourceRules"])


@pytest.mark.parametrize(
    ("kind", "spec", "code"),
    [
        ("SelfSubjectAccessReview", {}, 422),
        ("SelfSubjectAccessReview", {"resourceAttributes": {}, "nonResourceAttributes": {}}, 422),
        ("SelfSubjectAccessReview", {"resourceAttributes": {"verb": 5}}, 400),
        ("SelfSubjectAccessReview", {"resourceAttributes": []}, 400),
        ("SubjectAccessReview", {"resourceAttributes": {"verb": "get"}}, 422),
        ("SelfSubjectRulesReview", {}, 400),
    ],
)
def test_malformed_reviews(server: RunningServer, kind: str, spec: Raw, code: int) -> None:
    assert _review(server, kind, spec).code == code


def test_token_reviews(server: RunningServer) -> None:
    token = server.user("kim", ("devs",))
    good = _review(server, "TokenReview", {"token": token}, group="authentication.k8s.io")
    assert good.json["status"]["authenticated"] is True
    assert good.json["status"]["user"] == {"username": "kim", "groups": ["devs", "system:authenticated"]}
    assert token not in good.body.decode()
    bad = _review(server, "TokenReview", {"token": "wrong"}, group="authentication.k8s.io")
    assert bad.json["status"]["authenticated"] is False
    assert _review(server, "TokenReview", {}, group="authentication.k8s.io").code == 422
    assert _review(server, "TokenReview", {"token": token}, group="authentication.k8s.io", token=token).code == 403
