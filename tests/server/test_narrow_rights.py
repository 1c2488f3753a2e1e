"""What somebody with few rights, or none, might try in order to reach others: each of these once worked."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from muster.objects.json_numbers import EXTREME_MAX, has_many_extremes
from muster.objects.status import Raw
from muster.server import jws
from muster.server.authentication import ANONYMOUS
from muster.server.config import ServerLimits
from tests.server.running import RunningServer, read_all, running

_BINDINGS = "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings"
_EXTREMES = [1e308] * (10 * EXTREME_MAX)


def _bind(server: RunningServer, namespace: str, user: str, role: str) -> None:
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}
    subjects = [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}]
    server.create(_BINDINGS.format(namespace), {"metadata": {"name": user}, "roleRef": reference, "subjects": subjects})


def test_rights_in_a_namespace_are_none_on_another(server: RunningServer, namespace: str) -> None:
    server.create("/api/v1/namespaces", {"metadata": {"name": f"{namespace}-other"}})
    token = server.user("narrow")
    _bind(server, namespace, "narrow", "cluster-admin")
    inside = f"/api/v1/namespaces/{namespace}/namespaces"
    for path in (inside, f"{inside}/{namespace}-other", f"{inside}/{namespace}-other/status", f"{inside}?watch=true"):
        assert server.request("GET", path, token=token).code == 404, path
    assert server.request("DELETE", f"{inside}/{namespace}-other", token=token).code in (403, 404)
    assert server.request("DELETE", f"{inside}/{namespace}-other").code == 404
    assert server.request("GET", f"/api/v1/namespaces/{namespace}", token=token).code == 200, "it is in itself"
    assert server.request("GET", f"/api/v1/namespaces/{namespace}-other").code == 200


@pytest.mark.parametrize(
    ("text", "is_many"),
    [
        (json.dumps(_EXTREMES), True),
        (json.dumps({"a": [1e99] * 5000}), False),
        (json.dumps({"a": "3e123" * 5000}), False),
        (json.dumps([1e308] * EXTREME_MAX + [1] * 5000), False),
    ],
)
def test_which_numbers_are_too_many(text: str, is_many: bool) -> None:
    assert has_many_extremes(text.encode()) == is_many


@pytest.mark.parametrize("media", ["application/json", "application/yaml"])
def test_numbers_that_are_slow_to_read_are_refused_and_never_stored(server: RunningServer, namespace: str, media: str) -> None:
    group = f"{media.rpartition('/')[2]}.{namespace}.example.com"
    server.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", _anything(group))
    slow = {"apiVersion": f"{group}/v1", "kind": "Thing", "metadata": {"name": "slow"}, "spec": _EXTREMES}
    text = ("" if media.endswith("json") else "# YAML\n") + json.dumps(slow)
    path = f"/apis/{group}/v1/namespaces/{namespace}/things"
    refused = server.request("POST", path, text.encode(), headers={"content-type": media})
    assert refused.code == 400
    assert "exponent of three digits" in refused.json["message"]


def _anything(group: str) -> Raw:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"kind": "Thing", "plural": "things"}
    return {
        "metadata": {"name": f"things.{group}"},
        "spec": {"group": group, "scope": "Namespaced", "names": names, "versions": [version]},
    }


def test_a_token_full_of_them_is_not_read() -> None:
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in ({"alg": "RS256"}, {})]
    assert jws.parse(f"{parts[0]}.{parts[1]}.AAAA") is not None
    slow = base64.urlsafe_b64encode(json.dumps({"a": _EXTREMES}).encode()).rstrip(b"=").decode()
    assert jws.parse(f"{parts[0]}.{slow}.AAAA") is None


def test_what_a_review_names_is_not_kept_when_it_is_long(server: RunningServer) -> None:
    review = {"spec": {"resourceAttributes": {"namespace": "n" * 100_000, "verb": "get", "resource": "pods"}}}
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    assert server.request("POST", path, review, token=server.user("long")).code == 201
    assert all(len(namespace) < 100_000 for _, _, namespace in server.server.memory.rbac._grants)


def test_who_sends_no_body_keeps_no_machine_from_joining(tmp_path: Path) -> None:
    with running(tmp_path, limits=ServerLimits(join_at_once_max=1)) as server:
        path = "/muster/v1/nodes/join"
        with server.raw_socket() as silent:
            head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n"
            silent.sendall(head.encode())
            # Whatever it says about what was sent: there was a place for it.
            assert server.request("POST", path, {}, token="").code != 429


def test_a_trailer_does_not_say_who_asks(server: RunningServer) -> None:
    with server.raw_socket() as connection:
        connection.sendall(
            b"POST /apis/authentication.k8s.io/v1/selfsubjectreviews HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
            b"content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
            b"authorization: Bearer " + server.token.encode() + b"\r\n\r\n"
        )
        answer = read_all(connection)
    status = int(answer.split(b" ", 2)[1])
    assert status in (401, 403) or ANONYMOUS.user.encode() in answer


def test_what_looks_like_an_account_has_no_groups_of_one(server: RunningServer) -> None:
    path, reviews = "/apis/rbac.authorization.k8s.io/v1", "/apis/authentication.k8s.io/v1/selfsubjectreviews"
    rule = {"apiGroups": [""], "resources": ["users"], "verbs": ["impersonate"]}
    server.create(f"{path}/clusterroles", {"metadata": {"name": "become"}, "rules": [rule]})
    group = "rbac.authorization.k8s.io"
    server.create(
        f"{path}/clusterrolebindings",
        {
            "metadata": {"name": "become"},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "become"},
            "subjects": [{"apiGroup": group, "kind": "User", "name": "changer"}],
        },
    )
    asked = {"impersonate-user": "system:serviceaccount:kube-system:a:b"}
    answer = server.request("POST", reviews, {}, token=server.user("changer"), headers=asked)
    assert answer.code == 201
    assert answer.json["status"]["userInfo"]["groups"] == ["system:authenticated"]


@pytest.mark.parametrize(("group", "plural"), [("apis/batch/v1", "jobs"), ("api/v1", "replicationcontrollers")])
def test_pods_of_jobs_stay_unless_somebody_says_otherwise(
    server: RunningServer, namespace: str, group: str, plural: str
) -> None:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    if plural == "jobs":
        template["spec"]["restartPolicy"] = "Never"  # type: ignore[index]
    spec: Raw = {"template": template} | ({"selector": {"a": "b"}} if plural != "jobs" else {})
    owners = f"/{group}/namespaces/{namespace}/{plural}"
    made = server.create(owners, {"metadata": {"name": "o"}, "spec": spec})
    gone = server.request("DELETE", f"{owners}/o")
    assert gone.json["metadata"]["finalizers"] == ["orphan"]
    assert made["metadata"]["uid"] == gone.json["metadata"]["uid"]
    server.create(owners, {"metadata": {"name": "p"}, "spec": spec})
    assert server.request("DELETE", f"{owners}/p?propagationPolicy=Background").json["kind"] == "Status"
