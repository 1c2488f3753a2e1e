"""An operator on `kopf`, run as its own process: handlers, finalizers, status, a restart in the middle, lost history."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.conftest import GROUP
from tests.server.running import RunningServer
from tests.waiting import WAIT_S, blocked_until

pytestmark = pytest.mark.slow

OPERATOR = Path(__file__).parent / "operator_for_kopf.py"
PEERINGS = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: kopfpeerings.kopf.dev}
spec:
  scope: Namespaced
  group: kopf.dev
  names: {kind: KopfPeering, plural: kopfpeerings, singular: kopfpeering}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          status: {type: object, x-kubernetes-preserve-unknown-fields: true}
"""


class Operator:
    """`kopf run` as a child, on one namespace."""

    def __init__(self, kubeconfig: Path, namespace: str, directory: Path, *options: str) -> None:
        self.log = directory / "handled"
        self.output = directory / "output"
        command = [sys.executable, "-m", "kopf", "run", "--namespace", namespace, *options, str(OPERATOR)]
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(directory),
            "KUBECONFIG": str(kubeconfig),
            "KOPF_TEST_LOG": str(self.log),
            "KOPF_TEST_GROUP": GROUP,
        }
        with self.output.open("a") as out:
            self.child = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out)

    def handled(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []

    def wait_for(self, what: str, count: int = 1) -> None:
        def is_there() -> bool:
            assert self.child.poll() is None, self.output.read_text()[-3000:]
            return self.handled().count(what) >= count

        blocked_until(is_there)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.child.send_signal(number)
        self.child.wait(WAIT_S)


@pytest.fixture
def run(kubeconfig: Path, namespace: str, tmp_path: Path, widgets: str) -> Iterator[Callable[..., Operator]]:
    started: list[Operator] = []

    def start(*options: str) -> Operator:
        started.append(Operator(kubeconfig, namespace, tmp_path, *(options or ("--standalone",))))
        return started[-1]

    yield start
    for operator in started:
        if operator.child.poll() is None:
            operator.stop(signal.SIGKILL)


@pytest.fixture
def path(namespace: str, widgets: str) -> str:
    return f"/apis/{GROUP}/v1/namespaces/{namespace}/widgets"


def _make(server: RunningServer, path: str, name: str) -> None:
    server.create(path, {"apiVersion": f"{GROUP}/v1", "kind": "Widget", "metadata": {"name": name}, "spec": {"size": 1}})


def _get(server: RunningServer, path: str, name: str) -> Any:
    return server.request("GET", f"{path}/{name}").json


def _resize(server: RunningServer, path: str, name: str, size: int) -> None:
    reply = server.request(
        "PATCH", f"{path}/{name}", {"spec": {"size": size}}, headers={"content-type": "application/merge-patch+json"}
    )
    assert reply.code == 200, reply.body


def test_an_objects_life(server: RunningServer, run: Callable[..., Operator], path: str, namespace: str) -> None:
    operator = run()
    _make(server, path, "w")
    operator.wait_for("created w")
    blocked_until(lambda: _get(server, path, "w").get("status", {}).get("phase") == "Ready")
    live = _get(server, path, "w")
    assert live["metadata"]["finalizers"] == ["widgets.example.org/held"]
    child = server.request("GET", f"/api/v1/namespaces/{namespace}/configmaps/of-w").json
    assert child["metadata"]["ownerReferences"][0]["uid"] == live["metadata"]["uid"]

    _resize(server, path, "w", 5)
    operator.wait_for("resized w")
    blocked_until(lambda: _get(server, path, "w")["status"]["phase"] == "Resized-1-5")
    blocked_until(lambda: _get(server, path, "w")["status"].get("replicas", 0) >= 2)  # its timer

    hold = Path(f"{operator.log}.hold")
    hold.touch()
    assert server.request("DELETE", f"{path}/w").code == 200
    blocked_until(lambda: "somebody holds it" in operator.output.read_text())
    assert _get(server, path, "w")["metadata"]["deletionTimestamp"]
    hold.unlink()
    operator.wait_for("deleted w")
    blocked_until(lambda: server.request("GET", f"{path}/w").code == 404)
    blocked_until(lambda: server.request("GET", f"/api/v1/namespaces/{namespace}/configmaps/of-w").code == 404)
    operator.stop()


def test_a_restart_in_the_middle(server: RunningServer, run: Callable[..., Operator], path: str) -> None:
    first = run()
    _make(server, path, "a")
    _make(server, path, "b")
    first.wait_for("created a")
    first.wait_for("created b")
    blocked_until(lambda: _get(server, path, "b").get("status", {}).get("phase") == "Ready")
    blocked_until(lambda: _get(server, path, "a").get("status", {}).get("phase") == "Ready")
    first.stop(signal.SIGKILL)
    _resize(server, path, "a", 2)
    assert server.request("DELETE", f"{path}/b").code == 200
    _make(server, path, "c")

    second = run()
    second.wait_for("resized a")
    second.wait_for("deleted b")
    second.wait_for("created c")
    blocked_until(lambda: server.request("GET", f"{path}/b").code == 404)
    assert second.handled().count("created a") == 1
    second.stop()
    for name in ("a", "c"):
        server.request(
            "PATCH",
            f"{path}/{name}",
            {"metadata": {"finalizers": None}},
            headers={"content-type": "application/merge-patch+json"},
        )


def test_with_peering_and_compaction(
    server: RunningServer, run: Callable[..., Operator], path: str, namespace: str, compact: Callable[[], None]
) -> None:
    """With peering on, the operator keeps its own entry alive in an object, by patches of its status."""
    server.kubectl("apply", "-f", "-", stdin=PEERINGS)
    server.kubectl("wait", "--for=condition=Established", "crd/kopfpeerings.kopf.dev", "--timeout=60s")
    peerings = f"/apis/kopf.dev/v1/namespaces/{namespace}/kopfpeerings"
    server.create(peerings, {"apiVersion": "kopf.dev/v1", "kind": "KopfPeering", "metadata": {"name": "tests"}})
    operator = run("--peering", "tests", "--priority", "10")
    blocked_until(lambda: _get(server, peerings, "tests").get("status"))
    _make(server, path, "w")
    operator.wait_for("created w")
    compact()
    _make(server, path, "x")
    operator.wait_for("created x")
    [entry] = _get(server, peerings, "tests")["status"].values()
    assert entry["priority"] == 10
    for name in ("w", "x"):
        assert server.request("DELETE", f"{path}/{name}").code == 200
        operator.wait_for(f"deleted {name}")
    operator.stop()
    blocked_until(lambda: not _get(server, peerings, "tests").get("status"))
