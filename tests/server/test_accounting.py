"""The ledger's finalizer is on a pod from the very write that makes it, whoever says whose it is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from muster.objects.labels import Muster
from muster.objects.status import Raw
from muster.server.accounting import AccountedPods
from muster.server.rbac import Attributes
from muster.server.run import Server
from muster.store.embedded import Actor
from tests.server.running import RunningServer, running

PODS = "/api/v1/namespaces/default/pods"
ACCOUNTS = "/apis/muster.dev/v1alpha1"
EDIT = {"kind": "ClusterRole", "apiGroup": "rbac.authorization.k8s.io", "name": "edit"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    def prepare(made: Server) -> None:
        async def allows(actor: Actor, asked: Attributes) -> bool:
            return actor.user == "agent" and (asked.verb, asked.resource_path) == ("patch", "pods/status")

        made.extra_hooks.append(AccountedPods(allows=allows))

    with running(tmp_path_factory.mktemp("accounting"), prepare=prepare) as made:
        with made.watch("/api/v1/namespaces/default/serviceaccounts") as watch:
            assert watch.next()["type"] == "ADDED"
        made.create(f"{ACCOUNTS}/usergroups", {"metadata": {"name": "lab"}, "spec": {}})
        made.create(f"{ACCOUNTS}/users", {"metadata": {"name": "ann"}, "spec": {"group": "lab"}})
        subjects = [{"kind": "User", "name": name} for name in ("ann", "agent")]
        binding = {"metadata": {"name": "people"}, "roleRef": EDIT, "subjects": subjects}
        made.create("/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings", binding)
        rule = {"apiGroups": [""], "resources": ["pods/status"], "verbs": ["patch"]}
        rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/default"
        made.create(f"{rbac}/roles", {"metadata": {"name": "reporter"}, "rules": [rule]})
        role = {"kind": "Role", "apiGroup": "rbac.authorization.k8s.io", "name": "reporter"}
        binding = {"metadata": {"name": "reporter"}, "roleRef": role, "subjects": [{"kind": "User", "name": "agent"}]}
        made.create(f"{rbac}/rolebindings", binding)
        yield made


@pytest.mark.parametrize(
    ("login", "meta", "is_accounted"),
    [
        pytest.param("", {"labels": {Muster.USER: "ann"}}, True, id="of a user"),
        pytest.param("", {"labels": {Muster.QUEUE: "q"}}, True, id="in a queue"),
        pytest.param("", {"annotations": {Muster.WORK: '{"user": "ann"}'}}, True, id="of a job"),
        pytest.param("ann", {}, True, id="made by a user who does not say so"),
        pytest.param("", {}, False, id="of nobody"),
    ],
)
def test_pods_are_made_with_the_finalizer(server: RunningServer, login: str, meta: Raw, is_accounted: bool) -> None:
    pod = {"metadata": {"name": "p", **meta}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    headers = {"Impersonate-User": login} if login else {}
    made = server.request("POST", f"{PODS}?dryRun=All", pod, headers=headers)
    assert made.code == 201, made.body
    assert (made.json["metadata"].get("finalizers") == [Muster.LEDGER_FINALIZER]) == is_accounted


def test_what_the_ledger_goes_by_is_not_for_users_to_write(server: RunningServer) -> None:
    pod = {"metadata": {"name": "hers", "labels": {Muster.USER: "ann"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    server.create(PODS, pod)

    def patched(login: str, meta: Raw, subresource: str = "") -> int:
        headers = {"Impersonate-User": login, "content-type": "application/merge-patch+json"}
        return server.request("PATCH", f"{PODS}/hers{subresource}", {"metadata": meta}, headers=headers).code

    traffic = {"annotations": {Muster.TRAFFIC: '{"sentBytes": 1}'}}
    assert patched("ann", traffic) == 403
    assert patched("agent", traffic) == 200, "who reports the status of pods has measured it"
    guarded: list[Raw] = [{"annotations": {Muster.ACCOUNTED: "true"}}, {"finalizers": []}]
    for meta in guarded:
        assert patched("ann", meta) == 403
        assert patched("agent", meta) == 403
        assert patched("agent", meta, "/status") == 403
    assert patched("agent", {"annotations": {"other": "with the status"}}, "/status") == 200
    assert patched("ann", {"annotations": {"other": "x"}}) == 200
