"""The real helm: install, upgrade, rollback, uninstall, with hooks, definitions, and its releases kept in Secrets."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.server.running import RunningServer

pytestmark = pytest.mark.slow

BUNDLE = Path(__file__).parent / "bundle"
VALUES = """
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ .Release.Name }}-values
  labels: {release: {{ .Release.Name }}, kubernetes: "{{ .Capabilities.KubeVersion.Major }}"}
data:
  color: {{ .Values.color | quote }}
  has-muster: {{ .Capabilities.APIVersions.Has "muster.dev/v1alpha1/Job" | quote }}
  looked-up: {{ (lookup "v1" "Namespace" "" .Release.Namespace).metadata.name | quote }}
"""
HOOK = """
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ .Release.Name }}-hook
  annotations: {helm.sh/hook: "pre-install,pre-upgrade", helm.sh/hook-delete-policy: before-hook-creation}
data: {revision: "{{ .Release.Revision }}"}
"""

Helm = Callable[..., str]


@pytest.fixture
def chart(tmp_path: Path) -> Path:
    """The bundle as a chart. Its Job is no hook here: helm waits for those, and nothing runs it on an API server alone."""
    root = tmp_path / "chart"
    (root / "templates").mkdir(parents=True)
    (root / "crds").mkdir()
    described = {"apiVersion": "v2", "name": "bundle", "version": "1.0.0", "kubeVersion": ">=1.20.0-0"}
    (root / "Chart.yaml").write_text(yaml.safe_dump(described))
    (root / "values.yaml").write_text("color: red\n")
    (root / "crds" / "crds.yaml").write_text((BUNDLE / "crds.yaml").read_text())
    bundle = (BUNDLE / "bundle.yaml").read_text().replace("helm.sh/hook", "example.org/was-hook")
    (root / "templates" / "bundle.yaml").write_text(bundle)
    (root / "templates" / "values.yaml").write_text(VALUES)
    (root / "templates" / "hook.yaml").write_text(HOOK)
    return root


@pytest.fixture
def helm(server: RunningServer, programs: Path, kubeconfig: Path, namespace: str, tmp_path: Path) -> Iterator[Helm]:
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "KUBECONFIG": str(kubeconfig),
        "HELM_NAMESPACE": namespace,
    }

    def run(*args: str, code: int = 0) -> str:
        done = subprocess.run(
            [programs / "helm", *args], capture_output=True, text=True, timeout=180, env=environment, check=False
        )
        assert done.returncode == code, f"helm {' '.join(args)} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        return done.stdout + (done.stderr if code else "")

    yield run
    server.kubectl("delete", "--ignore-not-found", "-f", str(BUNDLE / "crds.yaml"))


def _get(server: RunningServer, namespace: str, kind: str, name: str) -> Any:
    return json.loads(server.kubectl("-n", namespace, "get", kind, name, "-o", "json"))


def test_install_upgrade_rollback_uninstall(server: RunningServer, namespace: str, helm: Helm, chart: Path) -> None:
    assert "STATUS: deployed" in helm("install", "demo", str(chart))
    values = _get(server, namespace, "cm", "demo-values")
    assert values["data"] == {"color": "red", "has-muster": "true", "looked-up": namespace}
    assert values["metadata"]["labels"] == {
        "release": "demo",
        "kubernetes": "1",
        "app.kubernetes.io/managed-by": "Helm",
    }
    assert _get(server, namespace, "cm", "demo-hook")["data"] == {"revision": "1"}
    deployment = _get(server, namespace, "deploy", "bundle-controller")
    assert deployment["metadata"]["annotations"]["meta.helm.sh/release-name"] == "demo"
    releases = server.kubectl("-n", namespace, "get", "secrets", "-l", "owner=helm", "-o", "jsonpath={.items[*].type}")
    assert releases == "helm.sh/release.v1"

    helm("upgrade", "demo", str(chart), "--set", "color=green")
    assert _get(server, namespace, "cm", "demo-values")["data"]["color"] == "green"
    assert _get(server, namespace, "cm", "demo-hook")["data"] == {"revision": "2"}
    same = _get(server, namespace, "deploy", "bundle-controller")["metadata"]
    assert same["generation"] == deployment["metadata"]["generation"]

    server.kubectl("-n", namespace, "delete", "service", "bundle-controller")  # somebody was here; an upgrade puts it back
    helm("upgrade", "demo", str(chart), "--reuse-values")
    assert _get(server, namespace, "service", "bundle-controller")["spec"]["type"] == "LoadBalancer"

    helm("rollback", "demo", "1")
    assert _get(server, namespace, "cm", "demo-values")["data"]["color"] == "red"
    history = json.loads(helm("history", "demo", "-o", "json"))
    assert [entry["status"] for entry in history] == ["superseded", "superseded", "superseded", "deployed"]
    assert json.loads(helm("list", "-o", "json"))[0]["revision"] == "4"
    assert "color: red" in helm("get", "values", "demo", "--all")

    assert 'release "demo" uninstalled' in helm("uninstall", "demo", "--wait")
    left = server.kubectl("-n", namespace, "get", "deploy,sts,ds,svc,ingress,hpa,pdb,secrets", "-o", "name")
    assert left == ""
    kept = server.kubectl("-n", namespace, "get", "pvc", "-o", "name")  # its resource policy says: keep
    assert kept == "persistentvolumeclaim/bundle-data\n"


def test_what_is_refused_leaves_a_failed_release(server: RunningServer, namespace: str, helm: Helm, chart: Path) -> None:
    template = chart / "templates" / "bundle.yaml"
    good = template.read_text()
    template.write_text(good.replace("serviceName: bundle-store", "serviceName: bundle-store\n  minReadySeconds: -1"))
    refused = helm("install", "demo", str(chart), code=1)
    assert "spec.minReadySeconds: Invalid value: -1" in refused
    assert json.loads(helm("list", "--all", "-o", "json"))[0]["status"] == "failed"
    template.write_text(good)
    assert "STATUS: deployed" in helm("upgrade", "--install", "demo", str(chart))
    helm("uninstall", "demo", "--wait")


def test_template_then_kubectl_apply(server: RunningServer, namespace: str, helm: Helm, chart: Path) -> None:
    rendered = helm(
        "template", "demo", str(chart), "--include-crds", "--dry-run=server", "--api-versions", "muster.dev/v1alpha1/Job"
    )
    # kubectl looks every kind up before it makes the first: what needs a definition of the same stream comes the second time.
    first = server.kubectl("-n", namespace, "apply", "-f", "-", stdin=rendered, code=1, env={"HOME": str(chart)})
    assert first.count("ensure CRDs are installed first") == 2
    again = server.kubectl("-n", namespace, "apply", "-f", "-", stdin=rendered)
    assert again.count(" created\n") == 2
    assert server.kubectl("-n", namespace, "diff", "-f", "-", stdin=rendered) == ""
    # The definitions are deleted first, and take their objects with them.
    server.kubectl("-n", namespace, "delete", "--wait", "--ignore-not-found", "-f", "-", stdin=rendered)
