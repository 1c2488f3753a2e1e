"""The table of docs/api-coverage.md, walked with the real kubectl: every scenario on Muster and on a real Kubernetes.

Both are compared with the same transcript, so what passes here prints the same on either. See `console`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.bench.kubernetes import ControlPlane
from tests.clusters import new_cluster
from tests.server.console import BIN, Console, Scenario, all_scenarios
from tests.server.running import RunningServer

ALL = all_scenarios()
BARE = "namespace,garbagecollector,serviceaccount,root-ca-cert-publisher,disruption,resourcequota"
"""The controllers whose work Muster's API server does by itself: others would change objects between two commands."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    yield from new_cluster(tmp_path_factory, only_controllers=BARE, bare_nodes=True)


def _make_namespace(scenario: Scenario, console: Console) -> None:
    made = console.run(f"kubectl create ns {scenario.namespace}")
    assert made == f"namespace/{scenario.namespace} created"
    for what in ("serviceaccount/default", "configmap/kube-root-ca.crt"):
        found = console.run(f"kubectl wait --for=create --timeout=30s {what}")
        assert "condition met" in found


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ALL, ids=lambda one: one.name)
def test_on_muster(scenario: Scenario, server: RunningServer, tmp_path: Path) -> None:
    console = Console(scenario, server.server.kubeconfig_path, tmp_path)
    _make_namespace(scenario, console)
    console.walk(is_kubernetes=False)


@pytest.mark.kubernetes
@pytest.mark.parametrize("scenario", [one for one in ALL if not one.only_here], ids=lambda one: one.name)
def test_on_kubernetes(scenario: Scenario, cluster: ControlPlane, tmp_path: Path) -> None:
    if scenario.since_minor > cluster.minor_version:
        pytest.skip(f"since {scenario.since}")
    console = Console(scenario, cluster.kubeconfig_path, tmp_path)
    _make_namespace(scenario, console)
    console.walk(is_kubernetes=True)


def test_kubectl_is_the_real_one() -> None:
    assert (BIN / "kubectl").is_file()
