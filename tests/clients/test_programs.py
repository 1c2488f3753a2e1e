"""A kubectl that is older than the server: 1.20 (of 2021) and 1.36; the newest is in tests/server/test_kubectl.py."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.server.manifests import DEPLOYMENT, POD, widget

pytestmark = pytest.mark.slow

Kubectl = Callable[..., str]


@pytest.fixture(params=["1.20", "1.36"])
def kubectl(request: pytest.FixtureRequest, programs: Path, kubeconfig: Path, namespace: str, tmp_path: Path) -> Kubectl:
    """One of the old ones, in the test's own namespace; its output (both streams)."""
    program = programs / f"kubectl-{request.param}"
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "KUBECONFIG": str(kubeconfig)}

    def run(*args: str, stdin: str | None = None, code: int = 0) -> str:
        done = subprocess.run(
            [program, "-n", namespace, *args],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=120,
            env=environment,
            check=False,
        )
        output = done.stdout + done.stderr
        assert done.returncode == code, f"kubectl {' '.join(args)} ended with {done.returncode}:\n{output}"
        return output

    return run


def test_get_apply_diff_patch_delete(kubectl: Kubectl) -> None:
    assert kubectl("apply", "-f", "-", stdin=DEPLOYMENT) == "deployment.apps/shop created\nservice/shop created\n"
    assert kubectl("apply", "-f", "-", stdin=DEPLOYMENT) == "deployment.apps/shop unchanged\nservice/shop unchanged\n"
    assert kubectl("diff", "-f", "-", stdin=DEPLOYMENT) == ""
    changed = DEPLOYMENT.replace("replicas: 2", "replicas: 4")
    assert "+  replicas: 4" in kubectl("diff", "-f", "-", stdin=changed, code=1)
    assert "shop configured" in kubectl("apply", "-f", "-", stdin=changed)
    assert re.search(r"NAME +READY +UP-TO-DATE +AVAILABLE +AGE\nshop +0/4 ", kubectl("get", "deployments"))
    assert yaml.safe_load(kubectl("get", "deploy", "shop", "-o", "yaml"))["spec"]["replicas"] == 4
    image = '{"spec":{"template":{"spec":{"containers":[{"name":"main","image":"nginx:2"}]}}}}'
    assert "patched" in kubectl("patch", "deploy", "shop", "-p", image)
    assert "patched" in kubectl("patch", "deploy", "shop", "--type=merge", "-p", '{"metadata":{"labels":{"a":"b"}}}')
    assert "patched" in kubectl("patch", "deploy", "shop", "--type=json", "-p", '[{"op":"remove","path":"/metadata/labels/a"}]')
    assert "scaled" in kubectl("scale", "deploy", "shop", "--replicas=1")
    assert kubectl("get", "deploy", "shop", "-o", "jsonpath={.spec.template.spec.containers[0].image}") == "nginx:2"
    assert "labeled" in kubectl("label", "deploy", "shop", "tier=front")
    assert re.search(r"Replicas: +1 desired", kubectl("describe", "deploy", "shop"))
    assert '"shop" deleted' in kubectl("delete", "-f", "-", stdin=DEPLOYMENT)
    assert "not found" in kubectl("get", "deploy", "shop", code=1)


def test_server_side_apply(kubectl: Kubectl) -> None:
    assert kubectl("apply", "--server-side", "-f", "-", stdin=POD) == "pod/web serverside-applied\n"
    other = POD.replace("app: web", "app: other")
    refused = kubectl("apply", "--server-side", "--field-manager=two", "-f", "-", stdin=other, code=1)
    assert 'conflict with "kubectl"' in refused
    kubectl("apply", "--server-side", "--field-manager=two", "--force-conflicts", "-f", "-", stdin=other)
    assert kubectl("get", "pod", "web", "-o", "jsonpath={.metadata.labels.app}") == "other"


def test_explain_and_custom_kinds(kubectl: Kubectl, widgets: str) -> None:
    assert "containers" in kubectl("explain", "pod.spec")
    assert re.search(r"^KIND: +Deployment", kubectl("explain", "deployment"), re.MULTILINE)
    assert "What the widget shall be." in kubectl("explain", "widgets.spec")
    assert "created" in kubectl("apply", "-f", "-", stdin=widget(widgets, size=3))
    assert re.search(r"NAME +SIZE +PHASE +AGE\nw +3 ", kubectl("get", "widgets"))
    assert "spec.size" in kubectl("apply", "-f", "-", stdin=widget(widgets, size=30), code=1)
    assert re.search(r"\bkusciajobs\b", kubectl("api-resources"))
    assert "muster.dev/v1alpha1\n" in kubectl("api-versions")


def test_create_wait_and_delete(kubectl: Kubectl, widgets: str) -> None:
    assert "condition met" in kubectl("wait", "--for=condition=Established", f"crd/widgets.{widgets}", "--timeout=30s")
    assert "created" in kubectl("create", "deployment", "web", "--image=nginx", "--replicas=0")
    assert "created" in kubectl("create", "configmap", "c", "--from-literal=a=b")
    assert "created" in kubectl("create", "secret", "generic", "s", "--from-literal=p=q")
    assert "deployment.apps/web" in kubectl("get", "all")
    assert kubectl("auth", "can-i", "create", "pods") == "yes\n"
    assert "deleted" in kubectl("delete", "deploy/web", "cm/c", "secret/s", "--wait", "--timeout=30s")
    assert "Server Version" in kubectl("version")
