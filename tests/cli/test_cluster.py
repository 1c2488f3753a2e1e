"""install, controller and uninstall against a real kube-apiserver: nothing of Kubernetes is imitated here.

The controllers run as the service account that `install` makes, so these tests also show that its permissions are enough.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.bench.kubernetes import ControlPlane
from muster.cli.errors import ExitCode
from muster.client import ApiClient
from muster.objects.catalog import CATALOG
from muster.objects.labels import Muster
from muster.store.contract import WriteOptions
from muster.store.kubernetes import KubernetesStore
from tests.cli.conftest import Result, Run
from tests.cli.real_cluster import Controller, People, eventually, free_port, service_account_kubeconfig
from tests.cli.support import environment, muster
from tests.clusters import new_cluster

pytestmark = [pytest.mark.kubernetes, pytest.mark.slow]

LABEL = "app.kubernetes.io/managed-by=muster-install"
QUEUE = "apiVersion: muster.dev/v1alpha1\nkind: Queue\nmetadata: {name: NAME}\nspec: {}\n"
FOREIGN = "podgroups.scheduling.sigs.k8s.io"
"""A kind of ours that is on the cluster before we come, from somebody else, and with a schema that takes everything."""


@pytest.fixture(scope="module")
def kubernetes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A cluster of these tests' own: the shared one may have our kinds already, from a file that ran before."""
    yield from new_cluster(tmp_path_factory)


@pytest.fixture(scope="module")
def shared(kubernetes: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Making and removing kinds takes a kube-apiserver long, so they are made once."""
    env = environment(tmp_path_factory.mktemp("home"), KUBECONFIG=str(kubernetes.kubeconfig_path))
    theirs = json.loads(muster("crds", "podgroup", "-o", "json", env=env).stdout)
    for version in theirs["spec"]["versions"]:
        version["schema"]["openAPIV3Schema"] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    made = muster("apply", "--field-manager", "helm", "-f", "-", env=env, stdin=json.dumps(theirs))
    assert made.returncode == ExitCode.OK, made.stderr
    yield kubernetes
    assert muster("uninstall", "--yes", env=env).returncode == ExitCode.OK
    assert muster("delete", "crd", FOREIGN, env=env).returncode == ExitCode.OK


@pytest.fixture
def cluster(run: Run, shared: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command line on the real cluster. Tests install for themselves, which is quick when it is done already."""
    monkeypatch.setenv("KUBECONFIG", str(shared.kubeconfig_path))
    return run


def everything_ours(cluster: Run) -> list[str]:
    kinds = "crd,ns,sa,clusterrole,clusterrolebinding,role,rolebinding,svc,deploy,pdb,lease,secret"
    hooks = "validatingwebhookconfigurations,mutatingwebhookconfigurations"
    return cluster("get", f"{kinds},{hooks}", "-A", "-l", LABEL, "-o", "name").out.split()


def test_install_is_safe_to_repeat(cluster: Run) -> None:
    before = everything_ours(cluster)
    dry = cluster("install", "--dry-run")
    assert dry.code == ExitCode.OK, dry.err
    assert everything_ours(cluster) == before

    first = cluster("install")
    assert first.code == ExitCode.OK, first.err
    assert f"all {len(CATALOG.custom)} kinds are established" in first.out
    second = cluster("install")
    assert second.code == ExitCode.OK
    assert "created" not in second.out
    assert "configured" not in second.out
    assert cluster("get", "queues").code == ExitCode.OK
    changed = cluster("install", "--replicas", "1")
    assert [s for s in changed.out.splitlines() if "configured" in s] == ["deployment.apps/muster-controller configured"]


def test_kinds_and_namespaces_of_others_are_used_as_they_are(cluster: Run) -> None:
    space = "apiVersion: v1\nkind: Namespace\nmetadata: {name: shared}\n"
    assert cluster("apply", "--field-manager", "helm", "-f", "-", stdin=space).code == ExitCode.OK
    made = cluster("install", "--namespace", "shared", "--dry-run")
    assert made.code == ExitCode.OK, made.err
    assert f"customresourcedefinition.apiextensions.k8s.io/{FOREIGN} kept as it is" in made.out
    assert "namespace/shared kept as it is" in made.out
    assert cluster("delete", "ns", "shared", "--no-wait").code == ExitCode.OK


def bundles(cluster: Run) -> list[str]:
    kinds = "validatingwebhookconfigurations,mutatingwebhookconfigurations"
    items = json.loads(cluster("get", kinds, "muster", "-o", "json").out)["items"]
    return [hook["clientConfig"].get("caBundle", "") for item in items for hook in item["webhooks"]]


@pytest.fixture
def replicas(cluster: Run, kubernetes: ControlPlane, tmp_path: Path) -> Iterator[Callable[..., Controller]]:
    running: list[Controller] = []

    def start(*args: str, webhook_port: int = 0) -> Controller:
        config = service_account_kubeconfig(kubernetes, tmp_path / f"sa-{len(running)}")
        listen = f"--webhook-listen=127.0.0.1:{webhook_port}"
        running.append(Controller(config, tmp_path, listen, "--health-listen=127.0.0.1:0", *args))
        return running[-1]

    yield start
    for controller in running:
        if controller.child.poll() is None:
            controller.stop()


def test_webhooks_of_a_running_controller(cluster: Run, replicas: Callable[..., Controller]) -> None:
    port = free_port()
    assert cluster("install", "--webhook-url", f"https://127.0.0.1:{port}").code == ExitCode.OK
    controller = replicas(webhook_port=port)
    eventually(lambda: controller.is_leading, "the only candidate leads")
    eventually(lambda: all(bundles(cluster)), "the leader writes the CA")
    assert controller.get("/healthz") == (200, "ok")
    eventually(lambda: controller.get("/readyz")[0] == 200, "ready")
    assert controller.get("/nowhere")[0] == 404

    good: Result = eventually(lambda: _applied(cluster, QUEUE.replace("NAME", "good")), "the API server reaches the webhook")
    assert good.out in ("queue.muster.dev/good created\n", "queue.muster.dev/good unchanged\n")
    metrics = controller.get("/metrics")[1]
    for path in ("/mutate", "/validate"):
        assert (
            f'muster_webhook_reviews_total{{operation="CREATE",path="{path}",resource="queues.muster.dev",result="allowed"}}'
            in metrics
        )

    # The other party's schema of this kind takes everything; the webhook does not.
    group = "apiVersion: scheduling.sigs.k8s.io/v1alpha1\nkind: PodGroup\nmetadata: {name: g}\nspec: {minMember: COUNT}\n"
    bad = cluster("apply", "-n", "default", "-f", "-", stdin=group.replace("COUNT", "three"))
    assert bad.code == ExitCode.FAILURE
    assert 'admission webhook "validate.muster.dev" denied the request' in bad.err
    assert "spec.minMember" in bad.err
    assert "three" in bad.err
    assert cluster("get", "podgroup", "g", "-n", "default").code == ExitCode.NOT_FOUND
    assert cluster("apply", "-n", "default", "-f", "-", stdin=group.replace("COUNT", "3")).code == ExitCode.OK
    assert cluster("delete", "podgroup", "g", "-n", "default").code == ExitCode.OK

    # Whoever applies the configurations again, or takes the CA out, does not break them for long.
    assert cluster("install", "--webhook-url", f"https://127.0.0.1:{port}").code == ExitCode.OK
    assert all(bundles(cluster)), "a second install leaves the CA alone"
    cluster("delete", "validatingwebhookconfiguration", "muster")
    assert cluster("install", "--webhook-url", f"https://127.0.0.1:{port}").code == ExitCode.OK
    eventually(lambda: all(bundles(cluster)), "the leader writes the CA again")

    assert cluster("delete", "queue", "good").code == ExitCode.OK
    assert controller.stop() == ExitCode.OK
    down = cluster("apply", "-f", "-", stdin=QUEUE.replace("NAME", "late"))
    assert down.code == ExitCode.FAILURE
    assert "muster.dev" in down.err
    lease = json.loads(cluster("get", "lease", "muster-controller", "-n", "muster-system", "-o", "json").out)
    assert not lease["spec"].get("holderIdentity"), "the lease was given up"


BANDWIDTH_JOB = """
apiVersion: kuscia.secretflow/v1alpha1
kind: KusciaJob
metadata: {name: wide, namespace: default}
spec:
  initiator: alice
  tasks:
  - alias: t
    appImage: app
    taskInputConfig: "{}"
    parties:
    - {domainID: alice, resources: {requests: {bandwidth: AMOUNT}, limits: {bandwidth: 20Gbps}}}
"""


def test_bandwidth_that_no_node_has_is_refused(cluster: Run, replicas: Callable[..., Controller]) -> None:
    port = free_port()
    assert cluster("install", "--webhook-url", f"https://127.0.0.1:{port}").code == ExitCode.OK
    controller = replicas(webhook_port=port)
    eventually(lambda: all(bundles(cluster)), "the leader writes the CA")
    eventually(lambda: controller.get("/readyz")[0] == 200, "ready: nodes, parties and images are read")
    node = "apiVersion: v1\nkind: Node\nmetadata: {name: wide-node, labels: {domain: alice}}\n"
    assert cluster("apply", "-f", "-", stdin=node).code == ExitCode.OK
    try:
        assert cluster("node", "set-bandwidth", "wide-node", "5Gbps").code == ExitCode.OK
        status = json.loads(cluster("get", "node", "wide-node", "-o", "json").out)["status"]
        assert status["allocatable"]["kuscia.io/bandwidth"] in ("5k", "5000"), "stock tools see it"

        def refusal() -> str:
            done = cluster("apply", "--dry-run", "-f", "-", stdin=BANDWIDTH_JOB.replace("AMOUNT", "6Gbps"))
            return done.err if done.code == ExitCode.FORBIDDEN else ""

        said = eventually(refusal, "the webhook has heard of the node")
        assert 'admission webhook "validate.muster.dev" denied the request' in said
        assert "Impossible" in said
        assert "the largest node of party alice is wide-node with 5Gbps" in said
        above = cluster("apply", "--dry-run", "-f", "-", stdin=BANDWIDTH_JOB.replace("AMOUNT", "30Gi"))
        assert "RequestExceedsLimit" in above.err
        good = cluster("apply", "--dry-run", "-f", "-", stdin=BANDWIDTH_JOB.replace("AMOUNT", "5Gi"))
        assert good.code == ExitCode.OK, good.err
    finally:
        assert cluster("delete", "node", "wide-node").code == ExitCode.OK


def _applied(cluster: Run, manifest: str) -> Result | None:
    done = cluster("apply", "-f", "-", stdin=manifest)
    return done if done.code == ExitCode.OK else None


def test_a_standby_takes_over(cluster: Run, replicas: Callable[..., Controller]) -> None:
    assert cluster("install").code == ExitCode.OK
    first = replicas("--without", "webhooks")
    eventually(lambda: first.is_leading, "the first candidate leads")
    second = replicas("--without", "webhooks")
    eventually(lambda: second.get("/readyz")[0] == 200, "a standby is ready too")
    assert not second.is_leading
    assert first.stop() == ExitCode.OK
    eventually(lambda: second.is_leading, "the standby takes over")


def test_replicas_share_one_ca(cluster: Run, replicas: Callable[..., Controller]) -> None:
    assert cluster("install").code == ExitCode.OK
    replicas()
    eventually(lambda: all(bundles(cluster)), "the leader writes the CA")
    secret = cluster("get", "secret", "muster-webhook-ca", "-n", "muster-system", "-o", "json").out
    replicas()
    assert cluster("get", "secret", "muster-webhook-ca", "-n", "muster-system", "-o", "json").out == secret
    assert set(bundles(cluster)) == {json.loads(secret)["data"]["ca.crt"]}


def test_a_controller_without_an_installation_says_so(cluster: Run) -> None:
    done = cluster("controller", "--lease-namespace=elsewhere", "--health-listen=127.0.0.1:0", "--webhook-listen=127.0.0.1:0")
    assert done.code == ExitCode.NOT_FOUND
    assert "muster install" in done.err
    assert cluster("controller", "--without", "nothing").code == ExitCode.USAGE
    assert cluster("controller", "--webhook-listen", "nowhere").code == ExitCode.USAGE


def test_status_and_version_of_a_real_kubernetes(cluster: Run) -> None:
    value = json.loads(cluster("status", "-o", "json").out)
    assert value["server"]["ready"] is True
    assert value["objects"]["namespaces"] >= 4
    assert "parts" not in value
    assert "server v1." in cluster("version").out


EXPLAINED_POD = """
apiVersion: v1
kind: Pod
metadata: {name: maybe, namespace: default}
spec:
  schedulerName: muster-scheduler
  nodeSelector: {explained-here: "yes"}
  tolerations: [{operator: Exists}]
  containers:
  - {name: c, image: i, resources: {requests: {cpu: "3"}}}
"""


def test_explain_asks_with_an_object_that_is_gone_afterwards(cluster: Run, replicas: Callable[..., Controller]) -> None:
    port = free_port()
    assert cluster("install", "--webhook-url", f"https://127.0.0.1:{port}").code == ExitCode.OK
    controller = replicas(webhook_port=port)
    eventually(lambda: controller.is_leading, "the only candidate leads")
    eventually(lambda: controller.get("/readyz")[0] == 200, "ready: before that its webhooks do not answer")
    node = 'apiVersion: v1\nkind: Node\nmetadata: {name: explained-node, labels: {explained-here: "yes"}}\n'
    assert cluster("apply", "-f", "-", stdin=node).code == ExitCode.OK

    def asked() -> str:
        found = cluster("explain", "-f", "-", stdin=EXPLAINED_POD)
        assert found.code == ExitCode.OK, found.err
        return found.out if "explained-node has 0" in found.out else ""

    said: str = eventually(asked, "the node is known, and too small")
    assert said.splitlines()[0] == "default/maybe: not schedulable"
    assert "Impossible: no node could ever hold this: cpu: wants 3, explained-node has 0, 3 short" in said
    assert cluster("get", "scheduleexplanations", "-A", "-o", "name").out == ""
    assert cluster("get", "pod", "maybe", "-n", "default").code == ExitCode.NOT_FOUND
    assert cluster("delete", "node", "explained-node").code == ExitCode.OK


@pytest.fixture(scope="class")
def people(shared: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[People]:
    made = People(shared, tmp_path_factory.mktemp("people"))
    yield made
    made.stop()
    asyncio.run(_without_people(shared))


async def _without_people(kubernetes: ControlPlane) -> None:
    """Nobody answers webhooks any more, and nobody would take finalizers away."""
    store = KubernetesStore(await ApiClient.from_kubeconfig(kubernetes.kubeconfig_path))
    try:
        for word in ("Mutating", "Validating"):
            hooks = await store.resource("admissionregistration.k8s.io", f"{word}WebhookConfiguration")
            await store.delete(hooks, "muster")
        pods = await store.resource("", "Pod")
        for pod in (await store.list(pods, "lab")).items:
            name = pod["metadata"]["name"]
            await store.patch(pods, name, {"metadata": {"finalizers": None}}, "lab")
            await store.delete(pods, name, "lab", grace_period_s=0)
        for group, kind, name in (("", "Node", "lab-1"), ("", "Namespace", "lab")):
            await store.delete(await store.resource(group, kind), name)
        for kind, names in (("User", ("ann", "bob")), ("UserGroup", ("research",)), ("Queue", ("line", "default"))):
            for name in names:
                await store.delete(await store.resource("muster.dev", kind), name)
    finally:
        await store.close()


def lab_job(name: str, cpu: int, **spec: Any) -> str:
    role = {"name": "w", "command": ["x"], "image": "i", "resources": {"requests": {"cpu": cpu}}}
    meta = {"name": name, "namespace": "lab"}
    return json.dumps(
        {
            "apiVersion": "muster.dev/v1alpha1",
            "kind": "Job",
            "metadata": meta,
            "spec": {"queue": "line", "roles": [role], **spec},
        }
    )


def lab_pod(name: str, cpu: int, labels: dict[str, str] | None = None, scheduler: str = "muster-scheduler", **meta: Any) -> str:
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": str(cpu)}}}
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "lab", "labels": labels or {}, **meta},
            "spec": {"schedulerName": scheduler, "containers": [container]},
        }
    )


def controlled_by(version: str, kind: str) -> list[dict[str, Any]]:
    return [{"apiVersion": version, "kind": kind, "name": "first", "uid": "u", "controller": True}]


OVER = "SubmitLimitReached: spec.limits.submitted[cpu] of User ann: limit 8, waiting and running 6, requested 3"


class TestPeople:
    """One controller for all of them; they follow each other."""

    def test_limits_hold_for_jobs(self, people: People, cluster: Run) -> None:
        ann = f"--kubeconfig={people.logins['ann']}"
        for name in ("first", "second"):
            made = cluster("apply", ann, "-f", "-", stdin=lab_job(name, 3))
            assert made.code == ExitCode.OK, made.err
        eventually(lambda: len(self._pods(cluster)) == 2, "both have their pods, which do not count beside them")
        over = cluster("apply", ann, "-f", "-", stdin=lab_job("third", 3))
        assert over.code == ExitCode.FORBIDDEN
        assert OVER in over.err
        large = cluster("apply", ann, "-f", "-", stdin=lab_job("large", 5))
        assert "JobExceedsLimit: spec.limits.concurrent[cpu] of User ann" in large.err
        assert "limit 4, waiting and running 6, requested 5" in large.err

    def _pods(self, cluster: Run) -> list[str]:
        return cluster("get", "pods", "-n", "lab", "-o", "name").out.split()

    @pytest.mark.parametrize(
        ("login", "pod", "said"),
        [
            pytest.param("ann", lab_pod("p", 3), OVER, id="says nothing"),
            pytest.param("ann", lab_pod("p", 3, {Muster.USER: "ann"}), OVER, id="of ann"),
            pytest.param(
                "bob", lab_pod("p", 1, {Muster.USER: "ann"}), "UserNotYours: label muster.dev/user: 'bob'", id="for ann"
            ),
            pytest.param("bob", lab_pod("p", 1, {Muster.QUEUE: "no"}), "QueueNotFound: label muster.dev/queue", id="queue"),
            pytest.param(
                "ann",
                lab_pod("p", 3, ownerReferences=controlled_by("v1", "ConfigMap")),
                OVER,
                id="of somebody else's controller",
            ),
            pytest.param(
                "ann",
                lab_pod("p", 3, ownerReferences=controlled_by("muster.dev/v1alpha1", "Job")),
                "metadata.ownerReferences: 'ann' may not name Job first as its controller",
                id="as if its job had made it",
            ),
            pytest.param(
                "bob",
                lab_pod("p", 1, annotations={Muster.WORK: '{"user": "ann"}'}),
                "metadata.annotations[muster.dev/work]: 'bob' may not write it",
                id="as if a controller said so",
            ),
        ],
    )
    def test_limits_hold_for_bare_pods(self, people: People, cluster: Run, login: str, pod: str, said: str) -> None:
        done = cluster("apply", f"--kubeconfig={people.logins[login]}", "-f", "-", stdin=pod)
        assert done.code == ExitCode.FORBIDDEN, done.out
        assert said in done.err

    async def test_pods_are_made_with_what_the_ledger_needs(self, people: People) -> None:
        store = KubernetesStore(await ApiClient.from_kubeconfig(people.logins["ann"]))
        try:
            pods = await store.resource("", "Pod")
            tried = WriteOptions(dry_run=True)
            made = await store.create(pods, json.loads(lab_pod("small", 1)), "lab", tried)
            assert made["metadata"]["labels"] == {Muster.USER: "ann"}
            assert made["metadata"]["finalizers"] == [Muster.LEDGER_FINALIZER]
            other = await store.create(pods, json.loads(lab_pod("other", 1, scheduler="default-scheduler")), "lab", tried)
            assert not {"labels", "finalizers"} & other["metadata"].keys(), "of another scheduler: left alone"
        finally:
            await store.close()

    def test_whose_work_somebody_may_stop_and_hold(self, people: People, cluster: Run) -> None:
        bob = f"--kubeconfig={people.logins['bob']}"
        for act in (("delete", "job.muster.dev", "first"), ("job", "stop", "first"), ("queue", "hold", "first")):
            done = cluster(*act, bob, "-n", "lab")
            assert done.code == ExitCode.FORBIDDEN, (act, done.out)
            assert "UserNotYours" in done.err or "takes update on queues.muster.dev" in done.err
        assert "2 stand under it" in cluster("delete", "usergroup", "research").err

        assert cluster("queue", "hold", "second", "-n", "lab", "--reason", "a check").code == ExitCode.OK
        job = json.loads(cluster("get", "job.muster.dev", "second", "-n", "lab", "-o", "json").out)
        assert json.loads(job["metadata"]["annotations"][Muster.ACTS])[-1]["by"] == "admin"
        eventually(lambda: "HeldByAdmin" in cluster("why", "second", "-n", "lab").out, "it is held")
        assert cluster("queue", "release", "second", "-n", "lab").code == ExitCode.OK

    def test_why_asks_the_controller(self, people: People, cluster: Run) -> None:
        ann = f"--kubeconfig={people.logins['ann']}"
        waits: str = eventually(
            lambda: next(iter(out for out in [cluster("why", "second", ann, "-n", "lab").out] if "Reason: User" in out), ""),
            "it waits for the limit, and no more for its release",
        )
        assert "spec.limits.concurrent[cpu] of User ann: limit 4, in use 3, requested 3" in waits
        assert "Queue: line, place 1 of 1" in waits
        assert "held by Job lab/first: 3" in waits, "only the one who decides knows that"
        placed = json.loads(cluster("why", "first", ann, "-n", "lab", "-o", "json").out)
        assert placed["items"][0]["answer"]["schedulable"], "answered, also where there is nothing to say"
        assert cluster("get", "scheduleexplanations", "-A", "-o", "name").out == ""
        eta = cluster("eta", "second", ann, "-n", "lab")
        assert eta.out.startswith("Job lab/second: waits, place 1 of 1 in queue line\n"), eta.err
        tried = cluster("eta", ann, "-f", "-", stdin=lab_job("more", 1))
        assert "if it were sent now" in tried.out, tried.err
        line: str = eventually(
            lambda: next(iter(out for out in [cluster("queue", "line", ann, "-n", "lab").out] if "lab/second" in out), ""),
            "its place is in its status",
        )
        assert "Shown are jobs of namespace lab" in line, "no more is hers to list"

    def test_what_people_did_is_in_the_decision_log(self, people: People, cluster: Run) -> None:
        people.stop()
        rows = json.loads(cluster("history", "actions", "--log", str(people.log), "-o", "json").out)
        acts = [(row["user"], row["verb"], row["resource"], row["name"], row["code"]) for row in rows]
        assert ("admin", "create", "users.muster.dev", "ann", 0) in acts
        assert ("ann", "create", "jobs.muster.dev", "first", 0) in acts
        assert ("ann", "create", "jobs.muster.dev", "third", 403) in acts
        assert ("ann", "create", "pods", "p", 403) in acts
        assert acts.count(("bob", "delete", "jobs.muster.dev", "first", 403)) == 1
        assert ("admin", "update", "jobs.muster.dev", "second", 0) in acts, "the hold"
        assert {user for user, *_ in acts} == {"admin", "ann", "bob"}, "and not what Muster does itself"
        assert cluster("replay", str(people.log)).out.startswith("equal: ")


def test_uninstall_takes_what_is_ours_and_loses_nothing_unasked(cluster: Run) -> None:
    assert cluster("install", "--replicas", "0").code == ExitCode.OK
    cluster("delete", "validatingwebhookconfigurations,mutatingwebhookconfigurations", "muster")
    held = json.loads(lab_pod("held", 1, {Muster.USER: "ann"}, finalizers=[Muster.LEDGER_FINALIZER, "example.com/theirs"]))
    held["metadata"]["namespace"] = "default"
    assert cluster("apply", "-f", "-", stdin=json.dumps(held)).code == ExitCode.OK
    guest = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: guest, namespace: muster-system}\n"
    made = cluster("apply", "-f", "-", stdin=f"{guest}---\n{QUEUE.replace('NAME', 'precious')}")
    assert made.code == ExitCode.OK, made.err

    refused = cluster("uninstall")
    assert refused.code == ExitCode.FAILURE
    assert "queues.muster.dev" in refused.err
    assert "deployment.apps/muster-controller" in everything_ours(cluster)

    kept = cluster("uninstall", "--keep-crds")
    assert kept.code == ExitCode.OK, kept.err
    assert "namespace/muster-system kept: it also holds configmap/guest" in kept.out
    assert cluster("get", "queue", "precious", "-o", "name").out == "queue.muster.dev/precious\n"
    left = {name.split("/")[0] for name in everything_ours(cluster)}
    assert left == {"customresourcedefinition.apiextensions.k8s.io", "namespace"}

    assert "1 pods keep the finalizer muster.dev/ledger" in kept.out
    assert cluster("delete", "cm", "guest", "-n", "muster-system").code == ExitCode.OK
    gone = cluster("uninstall", "--yes")
    assert gone.code == ExitCode.OK, gone.err
    assert everything_ours(cluster) == []
    assert cluster("get", "queues").code == ExitCode.NOT_FOUND
    assert cluster("get", "ns", "muster-system").code == ExitCode.NOT_FOUND
    assert cluster("get", "crd", FOREIGN).code == ExitCode.OK, "it is not ours to take"
    let_go = json.loads(cluster("get", "pod", "held", "-n", "default", "-o", "json").out)
    assert let_go["metadata"]["finalizers"] == ["example.com/theirs"], "nobody is left to take ours off"
    assert "nothing of 'muster install'" in cluster("uninstall").out
