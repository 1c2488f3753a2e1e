"""The real kubectl, unmodified, against a real server: what its users do, and what they see."""

from __future__ import annotations

import json
import re
import subprocess
import threading
from collections.abc import Callable

import pytest
import yaml

from tests.server.manifests import DEPLOYMENT, POD, widget, widget_crd
from tests.server.running import KUBECTL, RunningServer

pytestmark = pytest.mark.slow  # each call is a program of its own

Kubectl = Callable[..., str]


@pytest.fixture
def kubectl(server: RunningServer, namespace: str) -> Kubectl:
    """kubectl in the test's own namespace."""

    def run(*args: str, **more: object) -> str:
        return server.kubectl("-n", namespace, *args, **more)  # type: ignore[arg-type]

    return run


def test_get_as_table_and_in_every_format(kubectl: Kubectl, namespace: str) -> None:
    kubectl("apply", "-f", "-", stdin=POD)
    assert re.search(r"NAME +READY +STATUS +RESTARTS +AGE\nweb +0/1 +\S+ +0 +\d+s\n", kubectl("get", "pods"))
    assert re.search(r"IP +NODE +NOMINATED NODE +READINESS GATES\n", kubectl("get", "pods", "-o", "wide"))
    assert kubectl("get", "pods", "-o", "name") == "pod/web\n"
    assert yaml.safe_load(kubectl("get", "pod", "web", "-o", "yaml"))["spec"]["containers"][0]["image"] == "nginx:1"
    assert json.loads(kubectl("get", "pods", "-o", "json"))["items"][0]["metadata"]["name"] == "web"
    assert kubectl("get", "pod", "web", "-o", "jsonpath={.metadata.labels.app}") == "web"
    assert kubectl("get", "pod/web", "-o", "custom-columns=N:.metadata.name", "--no-headers") == "web\n"
    assert "app=web" in kubectl("get", "pods", "--show-labels")
    assert re.search(r"AGE +APP\nweb .* web\n", kubectl("get", "pods", "-L", "app"))
    assert re.search(rf"{namespace} +web ", kubectl("get", "po", "-A"))
    assert "not found" in kubectl("get", "pod", "nobody", code=1)
    assert kubectl("get", "pod", "nobody", "--ignore-not-found") == ""
    assert "No resources found" in kubectl("get", "secrets")


def test_selectors_sorting_and_chunks(kubectl: Kubectl) -> None:
    many = "---".join(
        f"\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: c{n:02}, labels: {{num: '{n}'}}}}\n" for n in range(12)
    )
    kubectl("create", "-f", "-", stdin=many)
    assert kubectl("get", "cm", "-l", "num in (3,4)", "-o", "name") == "configmap/c03\nconfigmap/c04\n"
    assert kubectl("get", "cm", "-l", "num,num!=3,num notin (4)", "-o", "name").count("\n") == 10
    assert kubectl("get", "cm", "--field-selector", "metadata.name=c05", "-o", "name") == "configmap/c05\n"
    assert kubectl("get", "cm", "--chunk-size=5", "-l", "num", "-o", "name").count("\n") == 12
    ordered = kubectl(
        "get", "cm", "-l", "num", "--sort-by=.metadata.labels.num", "-o", "jsonpath={.items[*].metadata.labels.num}"
    )
    assert ordered.split() == [str(n) for n in range(12)]
    assert "unable to parse" in kubectl("get", "cm", "-l", "a=(", code=1)
    assert "field label not supported" in kubectl("get", "cm", "--field-selector", "spec.x=1", code=1)
    assert "deleted" in kubectl("delete", "cm", "-l", "num")
    assert kubectl("get", "cm", "-l", "num", "-o", "name") == ""


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


def test_describe(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", stdin=POD + "---" + DEPLOYMENT)
    text = kubectl("describe", "pod", "web")
    assert re.search(r"Name: +web\n", text)
    assert re.search(r"Service Account: +default\n", text)
    assert "Events:           <none>" in text
    assert re.search(r"Replicas: +2 desired", kubectl("describe", "deployment", "shop"))
    assert re.search(r"TargetPort: |Port: ", kubectl("describe", "service", "shop"))
    assert re.search(r"Status: +Active", kubectl("describe", "ns", "default"))


def test_client_side_apply(kubectl: Kubectl) -> None:
    assert kubectl("apply", "-f", "-", stdin=DEPLOYMENT) == "deployment.apps/shop created\nservice/shop created\n"
    assert kubectl("apply", "-f", "-", stdin=DEPLOYMENT) == "deployment.apps/shop unchanged\nservice/shop unchanged\n"
    changed = DEPLOYMENT.replace("replicas: 2", "replicas: 4").replace("containerPort: 80", "containerPort: 81")
    assert "deployment.apps/shop configured" in kubectl("apply", "-f", "-", stdin=changed)
    live = yaml.safe_load(kubectl("get", "deploy", "shop", "-o", "yaml"))
    assert live["spec"]["replicas"] == 4
    assert [p["containerPort"] for p in live["spec"]["template"]["spec"]["containers"][0]["ports"]] == [81]
    removed = "\n".join(line for line in changed.splitlines() if "ports: [{containerPort" not in line)
    kubectl("apply", "-f", "-", stdin=removed)
    assert (
        "ports"
        not in yaml.safe_load(kubectl("get", "deploy", "shop", "-o", "yaml"))["spec"]["template"]["spec"]["containers"][0]
    )
    assert kubectl("diff", "-f", "-", stdin=removed) == ""
    assert "+  replicas: 9" in kubectl("diff", "-f", "-", stdin=removed.replace("replicas: 4", "replicas: 9"), code=1)


def test_prune(kubectl: Kubectl) -> None:
    def config_map(name: str) -> str:
        return f"---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}, labels: {{app: p}}}}\n"

    kubectl("apply", "-f", "-", stdin=config_map("a") + config_map("b"))
    pruned = kubectl("apply", "--prune", "-l", "app=p", "--prune-allowlist=core/v1/ConfigMap", "-f", "-", stdin=config_map("a"))
    assert "configmap/b pruned" in pruned
    assert kubectl("get", "cm", "-l", "app=p", "-o", "name") == "configmap/a\n"


def test_server_side_apply(kubectl: Kubectl) -> None:
    assert kubectl("apply", "--server-side", "-f", "-", stdin=POD) == "pod/web serverside-applied\n"
    other = POD.replace("app: web", "app: other")
    refused = kubectl("apply", "--server-side", "--field-manager=two", "-f", "-", stdin=other, code=1)
    assert 'conflict with "kubectl": .metadata.labels.app' in refused
    kubectl("apply", "--server-side", "--field-manager=two", "--force-conflicts", "-f", "-", stdin=other)
    live = yaml.safe_load(kubectl("get", "pod", "web", "-o", "yaml", "--show-managed-fields"))
    assert live["metadata"]["labels"] == {"app": "other"}
    assert {entry["manager"] for entry in live["metadata"]["managedFields"]} == {"kubectl", "two"}


@pytest.mark.parametrize(
    ("kind", "patch"),
    [
        ("strategic", '{"spec":{"containers":[{"name":"main","image":"nginx:2"}]}}'),
        ("merge", '{"spec":{"containers":[{"name":"main","image":"nginx:2"}]}}'),
        ("json", '[{"op":"replace","path":"/spec/containers/0/image","value":"nginx:2"}]'),
    ],
)
def test_patch(kubectl: Kubectl, kind: str, patch: str) -> None:
    kubectl("apply", "-f", "-", stdin=POD)
    assert kubectl("patch", "pod", "web", "--type", kind, "-p", patch) == "pod/web patched\n"
    assert kubectl("get", "pod", "web", "-o", "jsonpath={.spec.containers[0].image}") == "nginx:2"
    assert "no change" in kubectl("patch", "pod", "web", "--type", kind, "-p", patch)


def test_label_annotate_edit_replace(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", stdin=POD)
    assert "labeled" in kubectl("label", "pod", "web", "tier=front")
    assert "already has a value" in kubectl("label", "pod", "web", "tier=back", code=1)
    assert "labeled" in kubectl("label", "--overwrite", "pod", "web", "tier=back")
    assert "unlabeled" in kubectl("label", "pod", "web", "tier-")
    assert "annotated" in kubectl("annotate", "pod", "web", "note=hello")
    edited = kubectl("edit", "pod", "web", env={"EDITOR": "sed -i s/nginx:1/nginx:3/"})
    assert edited == "pod/web edited\n"
    assert kubectl("get", "pod", "web", "-o", "jsonpath={.spec.containers[0].image}") == "nginx:3"
    live = kubectl("get", "pod", "web", "-o", "yaml")
    assert kubectl("replace", "-f", "-", stdin=live) == "pod/web replaced\n"
    stale = re.sub(r'resourceVersion: ".*"', 'resourceVersion: "1"', live)
    assert "the object has been modified" in kubectl("replace", "-f", "-", stdin=stale, code=1)
    assert "replaced" in kubectl("replace", "--force", "-f", "-", stdin=POD)


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


def test_delete(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", stdin=POD + "---" + DEPLOYMENT)
    assert "deleted" in kubectl("delete", "pod", "web", "--grace-period=0", "--force")
    owner = json.loads(kubectl("get", "deploy", "shop", "-o", "json"))["metadata"]
    owned = f"""
apiVersion: v1
kind: ConfigMap
metadata:
  name: owned
  ownerReferences: [{{apiVersion: apps/v1, kind: Deployment, name: shop, uid: {owner["uid"]}, blockOwnerDeletion: true}}]
"""
    kubectl("create", "-f", "-", stdin=owned)
    assert "deleted" in kubectl("delete", "deploy", "shop", "--cascade=foreground", "--timeout=20s")
    assert "not found" in kubectl("get", "cm", "owned", code=1)
    assert "deleted" in kubectl("delete", "svc", "shop", "--wait=false")
    assert "not found" in kubectl("delete", "svc", "shop", code=1)
    assert kubectl("delete", "svc", "shop", "--ignore-not-found") == ""


def test_delete_waits_for_finalizers(kubectl: Kubectl) -> None:
    kubectl("create", "-f", "-", stdin="apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c, finalizers: [example.org/hold]}\n")
    assert "deleted" in kubectl("delete", "cm", "c", "--wait=false")
    assert kubectl("get", "cm", "c", "-o", "jsonpath={.metadata.deletionTimestamp}") != ""
    kubectl("patch", "cm", "c", "--type=merge", "-p", '{"metadata":{"finalizers":null}}')
    kubectl("wait", "--for=delete", "cm/c", "--timeout=20s")


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


def test_explain_and_discovery(server: RunningServer, kubectl: Kubectl) -> None:
    text = kubectl("explain", "pod.spec.containers.image")
    assert "KIND:       Pod" in text
    assert "FIELD: image <string>" in text
    assert "GROUP:      apps" in kubectl("explain", "deployments")
    assert "does not exist" in kubectl("explain", "pod.spec.nothing", code=1)
    assert re.search(r"deployments +deploy +apps/v1 +true +Deployment", kubectl("api-resources"))
    assert re.search(r"create.*delete.*list.*patch", kubectl("api-resources", "--api-group=apps", "-o", "wide"))
    assert "rbac.authorization.k8s.io/v1\n" in kubectl("api-versions")
    assert "Server Version: v1.33" in kubectl("version")
    assert kubectl("get", "--raw", "/healthz") == "ok"
    assert "is running at" in kubectl("cluster-info")


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


def test_dry_run(kubectl: Kubectl) -> None:
    assert kubectl("apply", "--dry-run=server", "-f", "-", stdin=POD) == "pod/web created (server dry run)\n"
    assert "not found" in kubectl("get", "pod", "web", code=1)
    kubectl("apply", "-f", "-", stdin=POD)
    assert "(server dry run)" in kubectl("delete", "pod", "web", "--dry-run=server")
    assert "(server dry run)" in kubectl("label", "pod", "web", "a=b", "--dry-run=server")
    assert kubectl("get", "pod", "web", "-o", "jsonpath={.metadata.labels}") == '{"app":"web"}'


def test_events(server: RunningServer, kubectl: Kubectl, namespace: str) -> None:
    kubectl("apply", "-f", "-", stdin=POD)
    uid = kubectl("get", "pod", "web", "-o", "jsonpath={.metadata.uid}")
    event = {
        "metadata": {"name": "web.1"},
        "involvedObject": {"kind": "Pod", "name": "web", "namespace": namespace, "apiVersion": "v1", "uid": uid},
        "type": "Warning",
        "reason": "BandwidthInsufficient",
        "message": "short by 100 Mbit/s",
        "firstTimestamp": "2026-11-15T20:00:00Z",
        "lastTimestamp": "2026-11-15T20:00:00Z",
        "count": 1,
        "source": {"component": "test"},
    }
    server.create(f"/api/v1/namespaces/{namespace}/events", event)
    assert re.search(r"Warning +BandwidthInsufficient +pod/web +short by 100 Mbit/s", kubectl("get", "events"))
    assert re.search(r"Warning +BandwidthInsufficient +Pod/web", kubectl("events"))
    assert "short by 100 Mbit/s" in kubectl("describe", "pod", "web")


def test_what_is_not_there_says_so(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", stdin=POD)
    assert "has no node yet, so it has no logs" in kubectl("logs", "web", code=1)
    assert "exec is not supported by this server" in kubectl("exec", "web", "--", "ls", code=1)
    assert "no matches for kind" in kubectl("apply", "-f", "-", stdin=POD.replace("kind: Pod", "kind: Rocket"), code=1)


def test_scale_rollout_set_cordon_drain(server: RunningServer, kubectl: Kubectl, namespace: str) -> None:
    kubectl("apply", "-f", "-", stdin=DEPLOYMENT)
    assert "scaled" in kubectl("scale", "deploy/shop", "--replicas=7")
    assert "Expected replicas to be 3, was 7" in kubectl("scale", "deploy/shop", "--replicas=1", "--current-replicas=3", code=1)
    assert kubectl("get", "deploy", "shop", "-o", "jsonpath={.spec.replicas}") == "7"
    assert "updated" in kubectl("set", "image", "deploy/shop", "main=nginx:9")
    assert "restarted" in kubectl("rollout", "restart", "deploy/shop")
    assert "paused" in kubectl("rollout", "pause", "deploy/shop")
    node = f"node-{namespace}"
    server.create("/api/v1/nodes", {"metadata": {"name": node}})
    server.create(
        f"/api/v1/namespaces/{namespace}/pods",
        {"metadata": {"name": "p"}, "spec": {"nodeName": node, "containers": [{"name": "c", "image": "i"}]}},
    )
    assert "cordoned" in kubectl("cordon", node)
    assert "SchedulingDisabled" in kubectl("get", "node", node)
    assert "drained" in kubectl("drain", node, "--force", "--grace-period=0")
    assert "not found" in kubectl("get", "pod", "p", code=1)
    assert "uncordoned" in kubectl("uncordon", node)
    assert "tainted" in kubectl("taint", "node", node, "a=b:NoSchedule")


def test_namespaces_empty_themselves(server: RunningServer, kubectl: Kubectl) -> None:
    server.kubectl("create", "ns", "short-lived")
    server.kubectl("-n", "short-lived", "apply", "-f", "-", stdin=POD)
    server.kubectl("delete", "ns", "short-lived", "--timeout=30s")
    assert "not found" in server.kubectl("get", "ns", "short-lived", code=1)
    assert "may not be deleted" in server.kubectl("delete", "ns", "default", code=1)
