"""The real kubectl, unmodified, where no transcript (`test_kubectl_scenarios.py`) can show it: several programs at once."""

from __future__ import annotations

import json
import re
import subprocess
import threading
from collections.abc import Callable

import pytest

from tests.server.manifests import POD, widget, widget_crd
from tests.server.running import KUBECTL, RunningServer

pytestmark = pytest.mark.slow  # each call is a program of its own

Kubectl = Callable[..., str]


@pytest.fixture
def kubectl(server: RunningServer, namespace: str) -> Kubectl:
    """kubectl in the test's own namespace."""

    def run(*args: str, **more: object) -> str:
        return server.kubectl("-n", namespace, *args, **more)  # type: ignore[arg-type]

    return run


def test_watch(server: RunningServer, kubectl: Kubectl, namespace: str) -> None:
    environment = {"HOME": "/nonexistent", "KUBECONFIG": str(server.server.kubeconfig_path)}
    command = [KUBECTL, "-n", namespace, "get", "cm", "-l", "w", "-w", "--no-headers", "-o", "name"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as watching:
        assert watching.stdout is not None
        try:
            # A watch says nothing until something happens, so go on creating until it has seen one.
            lines: list[str] = []
            reader = threading.Thread(target=lambda out: lines.append(out.readline()), args=(watching.stdout,), daemon=True)
            reader.start()
            for n in range(200):
                kubectl(
                    "create", "-f", "-", stdin=f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: w{n}, labels: {{w: x}}}}\n"
                )
                if lines:
                    break
            assert re.fullmatch(r"configmap/w\d+\n", lines[0])
        finally:
            watching.kill()


def test_create_with_generators_that_speak_protobuf(kubectl: Kubectl, namespace: str) -> None:
    """`kubectl create X` uses typed clients, which send protobuf."""
    kubectl("create", "configmap", "c", "--from-literal=a=b")
    assert kubectl("get", "cm", "c", "-o", "jsonpath={.data}") == '{"a":"b"}'
    kubectl("create", "secret", "generic", "s", "--from-literal=p=q")
    assert kubectl("get", "secret", "s", "-o", "jsonpath={.data.p}") == "cQ=="
    kubectl("create", "deployment", "d", "--image=nginx", "--replicas=0", "--port=80")
    assert kubectl("get", "deploy", "d", "-o", "jsonpath={.spec.replicas}") == "0"
    kubectl("create", "service", "clusterip", "s", "--tcp=80:8080")
    assert kubectl("get", "svc", "s", "-o", "jsonpath={.spec.ports[0].targetPort}") == "8080"
    kubectl("create", "job", "j", "--image=busybox", "--", "sleep", "1")
    assert kubectl("get", "job", "j", "-o", "jsonpath={.spec.template.spec.containers[0].command}") == '["sleep","1"]'
    kubectl("create", "cronjob", "j", "--image=busybox", "--schedule=1 * * * *")
    assert kubectl("get", "cronjob", "j", "-o", "jsonpath={.spec.schedule}") == "1 * * * *"
    kubectl("create", "quota", "q", "--hard=cpu=1500m,pods=3")
    assert kubectl("get", "quota", "q", "-o", "jsonpath={.spec.hard}") == '{"cpu":"1500m","pods":"3"}'
    kubectl("create", "pdb", "p", "--selector=a=b", "--min-available=50%")
    assert kubectl("get", "pdb", "p", "-o", "jsonpath={.spec.minAvailable}") == "50%"
    kubectl("create", "ingress", "i", "--rule=a.example/b=s:80")
    assert kubectl("get", "ing", "i", "-o", "jsonpath={.spec.rules[0].http.paths[0].backend.service.port.number}") == "80"
    kubectl("create", "serviceaccount", "bot")
    assert kubectl("create", "token", "bot", "--duration=20m").count(".") == 2
    kubectl("create", "role", "r", "--verb=get,list", "--resource=pods,deployments.apps", "--resource-name=x")
    assert json.loads(kubectl("get", "role", "r", "-o", "jsonpath={.rules}")) == [
        {"apiGroups": [""], "resourceNames": ["x"], "resources": ["pods"], "verbs": ["get", "list"]},
        {"apiGroups": ["apps"], "resourceNames": ["x"], "resources": ["deployments"], "verbs": ["get", "list"]},
    ]
    kubectl("create", "rolebinding", "rb", "--role=r", f"--serviceaccount={namespace}:bot")
    assert re.search(r"rb +Role/r ", kubectl("get", "rolebinding"))


def test_wait(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", stdin=POD)
    kubectl("wait", "--for=jsonpath={.spec.containers[0].image}=nginx:1", "pod/web", "--timeout=20s")
    assert "timed out" in kubectl("wait", "--for=condition=Ready", "pod/web", "--timeout=100ms", code=1)
    ready = '{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}}'
    setter = threading.Thread(
        target=lambda: kubectl("patch", "pod", "web", "--subresource=status", "--type=merge", "-p", ready)
    )
    setter.start()
    assert "condition met" in kubectl("wait", "--for=condition=Ready", "pod/web", "--timeout=20s")
    setter.join()
    remover = threading.Thread(target=lambda: kubectl("delete", "pod", "web"))
    remover.start()
    kubectl("wait", "--for=delete", "pod/web", "--timeout=20s")
    remover.join()


def test_custom_resources(server: RunningServer, kubectl: Kubectl) -> None:
    group = "kubectl.example.org"
    kubectl("apply", "-f", "-", stdin=widget_crd(group))
    kubectl("wait", "--for=condition=Established", f"crd/widgets.{group}", "--timeout=20s")
    assert kubectl("apply", "-f", "-", stdin=widget(group, size=3)) == f"widget.{group}/w created\n"
    assert re.search(r"NAME +SIZE +PHASE +AGE\nw +3 +\d+s", kubectl("get", "wd"))
    assert kubectl("get", "wd", "w", "-o", "jsonpath={.spec.color}") == "red"
    assert "How big." in kubectl("explain", "widgets.spec.size")
    too_big = kubectl("apply", "-f", "-", stdin=widget(group, size=30), code=1)
    assert "spec.size: Invalid value: 30" in too_big
    assert 'unknown field "spec.sise"' in kubectl("apply", "-f", "-", stdin=widget(group, size=3, sise=4), code=1)
    assert 'Warning: unknown field "spec.sise"' in kubectl(
        "apply", "--validate=warn", "-f", "-", stdin=widget(group, size=3, sise=4)
    )
    kubectl("patch", "wd", "w", "--subresource=status", "--type=merge", "-p", '{"status":{"phase":"Up"}}')
    kubectl("scale", "wd", "w", "--replicas=5")
    assert json.loads(kubectl("get", "wd", "w", "-o", "json"))["spec"]["replicas"] == 5
    kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=widget(group, size=4))
    kubectl("delete", "crd", f"widgets.{group}")
    assert "could not find the requested resource" in kubectl("get", f"widgets.v1.{group}", code=1)


def test_auth(server: RunningServer, kubectl: Kubectl, namespace: str) -> None:
    assert re.search(r"Username +admin\n", kubectl("auth", "whoami"))
    assert kubectl("auth", "can-i", "*", "*") == "yes\n"
    kubectl("create", "role", "r", "--verb=get", "--resource=pods")
    kubectl("create", "rolebinding", "rb", "--role=r", "--user=alice")
    assert kubectl("auth", "can-i", "get", "pods", "--as=alice") == "yes\n"
    assert kubectl("auth", "can-i", "list", "pods", "--as=alice", code=1) == "no\n"
    assert kubectl("auth", "can-i", "get", "/metrics", "--as=alice", code=1) == "no\n"
    assert re.search(r"pods +\[\] +\[\] +\[get\]", kubectl("auth", "can-i", "--list", "--as=alice"))
    assert 'User "alice" cannot list resource "pods"' in kubectl("get", "pods", "--as=alice", code=1)
    token = server.user("alice")
    assert "forbidden" in kubectl("get", "pods", f"--token={token}", code=1)
    assert "pods" in kubectl("get", "pod", "nobody", f"--token={token}", code=1)
    assert "must be logged in" in kubectl("get", "pods", "--token=wrong", code=1)
    assert "forbidden" in kubectl("get", "pods", f"--token={token}", "--as=bob", code=1)
