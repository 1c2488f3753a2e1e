"""The volume with token, CA and namespace: which pods get it, and what nodes may have of tokens."""

from __future__ import annotations

from typing import Any

import pytest

from muster.objects.status import Raw
from muster.server.api_access import MOUNT_PATH, with_access
from tests.server.joining_nodes import MANY, Machine
from tests.server.running import RunningServer, running


@pytest.mark.parametrize(
    ("account", "pod", "has"),
    [
        pytest.param(None, None, False, id="nobody says anything"),
        pytest.param(None, True, True, id="the pod wants it"),
        pytest.param(True, None, True, id="its account wants it"),
        pytest.param(True, False, False, id="the pod has the last word"),
        pytest.param(False, True, True, id="also for it"),
        pytest.param(False, None, False, id="its account does not"),
    ],
)
def test_who_gets_it(server: RunningServer, namespace: str, account: bool | None, pod: bool | None, has: bool) -> None:
    base = f"/api/v1/namespaces/{namespace}"
    body: Raw = {"metadata": {"name": "bot"}}
    server.create(f"{base}/serviceaccounts", body if account is None else {**body, "automountServiceAccountToken": account})
    spec: Raw = {"serviceAccountName": "bot", "containers": [{"name": "c", "image": "i"}]}
    spec |= {} if pod is None else {"automountServiceAccountToken": pod}
    made = server.create(f"{base}/pods", {"metadata": {"generateName": "p-"}, "spec": spec})["spec"]
    volumes, mounts = made.get("volumes", []), made["containers"][0].get("volumeMounts", [])
    assert len(volumes) == len(mounts) == int(has)
    if has:
        assert mounts[0] == {"name": volumes[0]["name"], "mountPath": MOUNT_PATH, "readOnly": True}
        token, ca, name = volumes[0]["projected"]["sources"]
        assert token["serviceAccountToken"] == {"path": "token", "expirationSeconds": 3607}
        assert ca["configMap"]["name"] == "kube-root-ca.crt"
        assert name["downwardAPI"]["items"][0]["fieldRef"]["fieldPath"] == "metadata.namespace"


def test_what_is_mounted_there_already_stays() -> None:
    own = {"name": "mine", "mountPath": MOUNT_PATH + "/"}
    spec: Raw = {"containers": [{"name": "a", "volumeMounts": [own]}], "volumes": [{"name": "mine", "emptyDir": {}}]}
    assert with_access(spec, "x") is spec
    mixed = with_access({**spec, "initContainers": [{"name": "b"}]}, "x")
    assert mixed["containers"] == spec["containers"]
    assert mixed["initContainers"][0]["volumeMounts"][0]["name"] == "api-access-x"
    assert [volume["name"] for volume in mixed["volumes"]] == ["mine", "api-access-x"]


@pytest.mark.parametrize("spec", [{}, {"containers": None}, {"containers": [3]}, {"containers": [{"volumeMounts": 7}]}])
def test_other_shapes_are_for_validation(spec: Raw) -> None:
    assert with_access(spec, "x") is spec


def test_nodes_get_tokens_for_their_own_pods_only(tmp_path_factory: pytest.TempPathFactory) -> None:
    with running(tmp_path_factory.mktemp("nodes"), limits=MANY) as server:
        mine, _ = Machine(server, "mine").join(), Machine(server, "other").join()
        server.create("/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "bot"}})
        vault = {"serviceAccountToken": {"path": "v", "audience": "vault"}}
        for name, node in (("own", "mine"), ("foreign", "other")):
            spec = {
                "nodeName": node,
                "serviceAccountName": "bot",
                "containers": [{"name": "c", "image": "i"}],
                "volumes": [{"name": "v", "projected": {"sources": [vault]}}],
            }
            server.create("/api/v1/namespaces/default/pods", {"metadata": {"name": name}, "spec": spec})
        server.create("/api/v1/namespaces/default/secrets", {"metadata": {"name": "s"}})

        def ask(account: str, pod: str = "", audiences: tuple[str, ...] = (), **ref: str) -> Any:
            bound = ref or ({"kind": "Pod", "apiVersion": "v1", "name": pod} if pod else {})
            spec = {"audiences": list(audiences), **({"boundObjectRef": bound} if bound else {})}
            return mine.request("POST", f"/api/v1/namespaces/default/serviceaccounts/{account}/token", {"spec": spec})

        made = ask("bot", "own")
        assert made.code == 201, made.body
        token = made.json["status"]["token"]
        assert server.request("GET", "/api", token=token).code == 200
        assert ask("bot", "own", ("vault",)).code == 201
        assert "audiences that the pod names" in ask("bot", "own", ("bank",)).message
        assert "bound to it only" in ask("bot", "foreign").message
        assert "bound to a Pod only" in ask("bot").message
        assert "bound to a Pod only" in ask("bot", kind="Secret", apiVersion="v1", name="s").message
        assert ask("default", "own").code == 403, "no pod here runs as that account"
        assert mine.request("GET", "/api/v1/namespaces/default/serviceaccounts/bot").code == 403
        done = {"status": {"phase": "Succeeded"}}
        path = "/api/v1/namespaces/default/pods/own/status"
        merge = {"content-type": "application/merge-patch+json"}
        assert server.request("PATCH", path, done, headers=merge).code == 200
        assert ask("bot", "own").code == 403, "it has ended"
