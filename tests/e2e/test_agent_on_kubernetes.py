"""Agents as nodes of a real Kubernetes: jobs, names, logs, and exactly the rights that they need. See `cluster_world`.

The tests share one cluster and run in the order of the file: the last ones look back at what the others have done.
"""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from muster.bench.kubernetes import KUBELET_CLIENT, NotAvailable, find_assets
from muster.cli.permissions import AGENT_ROLES
from muster.objects.labels import Muster
from muster.objects.status import Raw
from muster.sim.workloads import app_image, job_task, kuscia_job
from tests.e2e.agent_world import KUBECTL
from tests.e2e.cluster_machine import ACCOUNT, audit_log
from tests.e2e.cluster_world import PARTIES, ClusterWorld
from tests.examples.psi_support import FOLDER, load

pytestmark = [
    pytest.mark.kubernetes,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: namespaces, cgroups, other users"),
]
COUNT = "echo begin $$; i=0; while [ $i -lt 30 ]; do echo line $i; i=$((i+1)); sleep 0.1; done; echo end $$"
FLAKY = "if [ -e /keep/ran ]; then echo second; sleep 1000; else touch /keep/ran; echo first; exit 1; fi"

ASK = """
import ssl, sys, urllib.error, urllib.request
headers = {"Authorization": f"Bearer {sys.argv[2]}"} if sys.argv[2] else {}
request = urllib.request.Request(sys.argv[1], headers=headers)
try:
    print(urllib.request.urlopen(request, context=ssl._create_unverified_context()).status)
except urllib.error.HTTPError as error:
    print(error.code)
"""


@pytest.fixture(scope="module")
def world() -> Iterator[ClusterWorld]:
    try:
        assets = find_assets(build=True)
    except NotAvailable as missing:
        if os.environ.get("CI"):
            pytest.fail(f"CI must run the Kubernetes tests: {missing}")
        pytest.skip(f"no real Kubernetes here: {missing}")
    # Not below the directory of the tests: tasks, which are other users, must reach the example's files.
    root = Path(tempfile.mkdtemp(prefix="muster-cluster-", dir="/var/tmp"))
    root.chmod(0o711)
    made = ClusterWorld(root, assets)
    try:
        made.start()
        yield made
    finally:
        try:
            made.close()
        finally:
            shutil.rmtree(root, ignore_errors=True)


def pod(name: str, party: str, script: str, **spec: Any) -> Raw:
    container = {
        "name": "main",
        "image": "muster.dev/process",
        "command": ["sh", "-c", script],
        "volumeMounts": [{"name": "keep", "mountPath": "/keep"}, {"name": "own", "mountPath": "/own"}],
    }
    plain: Raw = {
        "restartPolicy": "Never",
        "schedulerName": "muster-scheduler",
        "terminationGracePeriodSeconds": 1,
        "nodeSelector": {"kuscia.secretflow/namespace": party},
        "tolerations": [{"key": "kuscia.secretflow/agent", "operator": "Exists"}],
        "volumes": [{"name": "keep", "emptyDir": {}}, {"name": "own", "secret": {"secretName": "own"}}],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": party},
        "spec": {**plain, **spec, "containers": [container]},
    }


def secret(party: str) -> Raw:
    meta = {"name": "own", "namespace": party}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "stringData": {"word": f"of {party}"}}


def test_a_job_of_two_parties(world: ClusterWorld) -> None:
    image = app_image()
    container = image["spec"]["deployTemplates"][0]["spec"]["containers"][0]
    container["command"] = ["sh", "-c", "echo I am $(hostname); cat /etc/app.conf; echo; id -u"]
    world.apply(image, kuscia_job("two", [job_task("one", PARTIES, cpu="100m")]))
    job = world.until_job("two")
    assert job["status"]["phase"] == "Succeeded", job["status"]
    for party in PARTIES:
        [one] = world.get("pods", "-n", party)["items"]
        assert one["spec"]["nodeName"] == f"{party}-node"
        assert one["status"]["podIP"].startswith("10.244."), "addresses are given by the cluster's controllers"
        assert one["status"]["containerStatuses"][0]["restartCount"] == 0
    nodes = world.get("nodes")["items"]
    assert len({node["spec"]["podCIDR"] for node in nodes}) == len(PARTIES)


def test_logs_need_the_right_to_read_them_from_nodes(world: ClusterWorld) -> None:
    [one] = world.get("pods", "-n", "alice")["items"]
    name = one["metadata"]["name"]
    code, _, err = world.run(str(KUBECTL), "logs", name, "-n", "alice")
    assert code != 0
    assert f"user {KUBELET_CLIENT!r} may not get nodes/proxy of node 'alice-node'" in err

    bind = ("create", "clusterrolebinding", "logs", "--clusterrole=system:kubelet-api-admin", f"--user={KUBELET_CLIENT}")
    world.kubectl(*bind)
    world.until(lambda: world.run(str(KUBECTL), "logs", name, "-n", "alice")[0] == 0, "the right to read logs")
    said = world.kubectl("logs", name, "-n", "alice").splitlines()
    assert said[0] == f"I am {name}"
    assert {party["name"] for party in json.loads(json.loads(said[1])["cluster"])["parties"]} == set(PARTIES)


@pytest.mark.parametrize(
    ("whose", "path", "code"),
    [
        pytest.param("", "/metrics", 401, id="nobody"),
        pytest.param("nonsense", "/metrics", 401, id="a token that nobody gave"),
        pytest.param("bob", "/metrics", 403, id="the agent of another party"),
        pytest.param("admin", "/metrics", 200, id="an administrator"),
        pytest.param("admin", "/attach/alice/x/main", 501, id="attach"),
        pytest.param("admin", "/exec/alice/x/main", 400, id="exec, without a WebSocket"),
        pytest.param("", "/healthz", 200, id="health is for everybody"),
    ],
)
def test_the_endpoint_asks_the_cluster_who_it_is(world: ClusterWorld, whose: str, path: str, code: int) -> None:
    """By TokenReview and SubjectAccessReview, which the agent's own account must be allowed to ask for."""
    port = world.get("node", "alice-node")["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"]
    tokens = {"": "", "nonsense": "nonsense", "admin": token_of(world.admin), "bob": world.token_of("bob")}
    asked = world.run(sys.executable, "-c", ASK, f"https://127.0.0.1:{port}{path}", tokens[whose])
    assert asked == (0, f"{code}\n", "")


def token_of(kubeconfig: Path) -> str:
    token: str = yaml.safe_load(kubeconfig.read_text())["users"][0]["user"]["token"]
    return token


def test_a_private_set_intersection(world: ClusterWorld) -> None:
    """The example: two tasks that find each other by name and talk through their own networks."""
    public = world.root / "psi"
    shutil.copytree(FOLDER / "data", public / "data")
    shutil.copy(FOLDER / "psi.py", public)
    for path in (public, *public.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    made = load("prepare").manifests(public / "data", parts=("app", "job"))
    for one in made:
        for template in one["spec"].get("deployTemplates", ()):
            template["spec"]["containers"][0]["command"][1] = str(public / "psi.py")
        for task in one["spec"].get("tasks", ()):
            task["taskInputConfig"] = task["taskInputConfig"].replace('"show": 3', '"show": 1000')
    world.apply(*made)
    job = world.until_job("psi")
    assert job["status"]["phase"] == "Succeeded", job["status"]

    items = {}
    for party in PARTIES:
        with (public / "data" / f"{party}.csv").open(newline="") as file:
            items[party] = {row["id"] for row in csv.DictReader(file)}
    common = items["alice"] & items["bob"]
    for party in PARTIES:
        [one] = [p for p in world.get("pods", "-n", party)["items"] if p["metadata"]["name"].startswith("psi-")]
        said = world.kubectl("logs", one["metadata"]["name"], "-n", party).splitlines()
        assert any(f"done: {len(common)} items are common" in line for line in said), said
        assert {found[1] for line in said if (found := re.search(r"  (\S+)$", line))} == common
        notes = one["metadata"]["annotations"]
        assert float(notes[Muster.PROGRESS]) == 1.0
        assert json.loads(notes[Muster.RECORDS])["common"] == len(common)
        assert Muster.TRAFFIC in notes


def test_logs_as_kubectl_asks_for_them(world: ClusterWorld) -> None:
    world.apply(secret("alice"), pod("count", "alice", COUNT))
    world.until_phase("count", "alice", "Running", "Succeeded")
    logs = ("logs", "count", "-n", "alice")
    followed = world.follow(*logs, "-f").communicate(timeout=120)[0].splitlines()
    assert followed[0].replace("begin", "end") == followed[-1]
    assert followed[1:-1] == [f"line {n}" for n in range(30)]
    world.until_phase("count", "alice", "Succeeded")
    assert world.kubectl(*logs).splitlines() == followed
    assert world.kubectl(*logs, "--tail", "2") == f"line 29\n{followed[-1]}\n"
    assert world.kubectl(*logs, "--limit-bytes", "5") == "begin"
    stamped = world.kubectl(*logs, "--timestamps").splitlines()
    assert [line.partition(" ")[2] for line in stamped] == followed
    second = stamped[15][:19]  # kubectl sends whole seconds
    since = [line.partition(" ")[2] for line in stamped if line[:19] >= second]
    assert 0 < len(since) < len(followed)
    assert world.kubectl(*logs, f"--since-time={second}Z").splitlines() == since
    assert world.kubectl(*logs, "--since=24h").splitlines() == followed
    code, _, err = world.run(str(KUBECTL), *logs, "--previous")
    assert code != 0
    assert "previous" in err, err


def test_logs_of_the_run_before(world: ClusterWorld) -> None:
    world.apply(secret("bob"), pod("twice", "bob", FLAKY, restartPolicy="Always"))

    def is_second() -> bool:
        [status] = world.get("pod", "twice", "-n", "bob")["status"].get("containerStatuses") or [{}]
        return status.get("restartCount") == 1 and "running" in status["state"]

    world.until(is_second, "the second run")
    assert world.kubectl("logs", "twice", "-n", "bob") == "second\n"
    assert world.kubectl("logs", "twice", "-n", "bob", "--previous") == "first\n"
    # This API server passes a WebSocket through; those from 1.30 on speak SPDY with nodes (docs/nodes.md).
    assert world.run(str(KUBECTL), "exec", "twice", "-n", "bob", "--", "echo", "beside") == (0, "beside\n", "")


def test_a_task_outlives_its_agent(world: ClusterWorld) -> None:
    """kill -9 in the middle of a task: it goes on, once, and the next agent tells how it ended."""
    world.apply(pod("long", "alice", COUNT))
    world.until_phase("long", "alice", "Running")
    [status] = world.get("pod", "long", "-n", "alice")["status"]["containerStatuses"]
    world.kill_agent("alice")
    world.start_agent("alice")
    over = world.until_phase("long", "alice", "Succeeded", "Failed")
    [ended] = over["status"]["containerStatuses"]
    assert (over["status"]["phase"], ended["restartCount"]) == ("Succeeded", 0)
    assert ended["containerID"] == status["containerID"]
    assert ended["state"]["terminated"]["startedAt"] == status["state"]["running"]["startedAt"]
    world.until(lambda: world.run(str(KUBECTL), "logs", "long", "-n", "alice")[0] == 0, "its log")
    lines = world.kubectl("logs", "long", "-n", "alice").splitlines()
    assert lines[0].replace("begin", "end") == lines[-1], "the same process from beginning to end"
    assert lines[1:-1] == [f"line {n}" for n in range(30)]


def test_a_pod_that_keeps_failing_is_told_about_and_goes_when_it_is_deleted(world: ClusterWorld) -> None:
    world.apply(pod("failing", "alice", "cat /own/word; exit 3", restartPolicy="Always"))

    def is_repeated() -> bool:
        found = world.get("events", "-n", "alice", "--field-selector=involvedObject.name=failing")["items"]
        return any((event.get("count") or 0) > 1 for event in found)

    world.until(is_repeated, "an event that happened again")
    assert world.kubectl("logs", "failing", "-n", "alice") == "of alice"
    world.kubectl("delete", "pod", "failing", "-n", "alice", "--timeout=60s")


def test_use_is_reported(world: ClusterWorld) -> None:
    def is_reported() -> bool:
        code, out, _ = world.run(str(KUBECTL), "get", "nodemetric", "bob-node", "-o", "json")
        return code == 0 and "updateTime" in json.loads(out).get("status", {})

    world.until(is_reported, "the NodeMetric of a node")


def test_another_agent_does_not_take_a_name_from_one_that_lives(world: ClusterWorld) -> None:
    log = world.start_agent("alice", "other")
    try:
        world.until(lambda: "another data directory of this machine, which is alive" in log.read_text(), "the refusal")
    finally:
        world.stop_agent("other")
    world.until(lambda: world.is_ready("alice"), "the node of the agent that was there first is ready")


@pytest.mark.parametrize(
    "question",
    [
        "get secrets -n bob",
        "get configmaps -n bob",
        "patch pods -n bob",
        "delete pods -n bob",
        "patch pods --subresource=status -n bob",
        "list secrets -n alice",
        "watch secrets -n alice",
        "list configmaps -n alice",
        "get secrets -n muster-system",
        "create pods -n alice",
        "create pods --subresource=exec -n alice",
        "create pods --subresource=binding -n alice",
        "create pods --subresource=eviction -n alice",
        "update pods -n alice",
        "get leases -n muster-system",
        "patch leases -n muster-system",
        "list leases -n kube-node-lease",
        "update nodes",
        "get nodes --subresource=proxy",
        "patch nodemetrics",
        "delete nodemetrics",
        "create serviceaccounts --subresource=token -n alice",
        "impersonate users",
        "bind clusterroles",
        "create clusterrolebindings",
        "create rolebindings -n alice",
        "get domains",
        "patch domains",
        "create kusciajobs -n alice",
        "get kusciajobs -n cross-domain",
        "create certificatesigningrequests",
        "delete namespaces",
    ],
)
def test_what_an_agent_may_not_do(world: ClusterWorld, question: str) -> None:
    code, out, err = world.run(str(KUBECTL), f"--kubeconfig={world.kubeconfig_of('alice')}", "auth", "can-i", *question.split())
    assert (code, out.strip()) == (1, "no"), (out, err)


def test_a_node_leaves(world: ClusterWorld) -> None:
    """It ends what runs there, takes its Node and its Lease with it, and leaves nothing on the machine."""
    world.leave("bob")
    assert [node["metadata"]["name"] for node in world.get("nodes")["items"]] == ["alice-node"]
    assert [lease["metadata"]["name"] for lease in world.get("leases", "-n", "kube-node-lease")["items"]] == ["alice-node"]
    left = [p["metadata"]["name"] for p in world.get("pods", "-n", "bob")["items"] if p["status"]["phase"] == "Running"]
    assert left == []
    assert not world.layout("bob").credentials.exists()
    assert not any("bob" in line for line in world.left())


def test_agents_needed_all_that_they_were_granted_and_nothing_else(world: ClusterWorld) -> None:
    """By the API server's own account of what their accounts have asked for. Alice's leaves as well, to have it all."""
    world.leave("alice")
    granted = {
        (rule.group, resource, verb)
        for rules in AGENT_ROLES.values()
        for rule in rules
        for resource in rule.resources
        for verb in rule.verbs
    }
    used, refused = set(), []
    for line in audit_log(world.root).read_text().splitlines():
        entry = json.loads(line)
        about = entry.get("objectRef")
        if not entry["user"]["username"].endswith(f":{ACCOUNT}") or about is None:
            continue
        if about.get("apiGroup") == "authorization.k8s.io" and about["resource"].startswith("self"):
            continue  # `kubectl auth can-i`, which everybody may ask
        if entry["responseStatus"]["code"] == 403:
            refused.append(entry)
        subresource = f"/{about['subresource']}" if about.get("subresource") else ""
        used.add((about.get("apiGroup", ""), about["resource"] + subresource, entry["verb"]))
    assert refused == []
    assert used == granted
    assert world.left() == []
