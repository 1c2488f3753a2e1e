"""`muster explain` and `muster top` against a real server with a real scheduler."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.cli.errors import ExitCode
from muster.cli.explaining import explanation_text
from tests.cli.conftest import Run
from tests.cli.support import Up
from tests.waiting import blocked_until

NODE = """
apiVersion: v1
kind: Node
metadata: {name: NAME, labels: {explained: "yes"}, annotations: {muster.dev/bandwidth: 1Gbps}}
"""
AMOUNTS = {"cpu": "4", "memory": "8Gi", "pods": "10"}
KUBECTL = str(Path(sys.executable).parent / "kubectl")
POD = """
apiVersion: v1
kind: Pod
metadata: {name: NAME, namespace: SPACE, annotations: {muster.dev/bandwidth: RATE}}
spec:
  schedulerName: muster-scheduler
  nodeSelector: {explained: "yes"}
  containers:
  - {name: c, image: i, resources: {requests: {cpu: "1"}}}
"""
LINK = """
apiVersion: muster.dev/v1alpha1
kind: Link
metadata: {name: NAME}
spec: {from: {domain: SPACE}, to: {domain: bob}, capacity: 2Gbps, reverse: 1Gbps}
"""


def filled(text: str, **words: str) -> str:
    for word, value in words.items():
        text = text.replace(word, value)
    return text


@pytest.fixture
def cluster(muster: Run, namespace: str, local: Up) -> Iterator[str]:
    """One node of 1 Gbps, a pod that holds 700 Mbps of it, and one that waits for 500."""
    name = f"node-{namespace}"[:60]
    objects = [filled(NODE, NAME=name), filled(LINK, NAME=f"link-{namespace}"[:60], SPACE=namespace)]
    objects += [filled(POD, NAME="runs", SPACE=namespace, RATE="700Mbps")]
    made = muster("apply", "-f", "-", stdin="---".join(objects))
    assert made.code == ExitCode.OK, made.err
    patch = json.dumps({"status": {"capacity": AMOUNTS, "allocatable": AMOUNTS}})
    command = [KUBECTL, "patch", "node", name, "--subresource=status", "--type=merge", "-p", patch]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "KUBECONFIG": str(local.kubeconfig)})
    blocked_until(lambda: bool(read(muster, "runs", namespace)["spec"].get("nodeName")))
    assert muster("apply", "-f", "-", stdin=filled(POD, NAME="waits", SPACE=namespace, RATE="500Mbps")).code == ExitCode.OK
    blocked_until(lambda: "BandwidthInsufficient" in json.dumps(read(muster, "waits", namespace).get("status", {})))
    yield name
    assert muster("delete", "pod", "runs", "waits", "-n", namespace, "--grace-period", "0").code == ExitCode.OK
    assert muster("delete", "node", name).code == ExitCode.OK
    assert muster("delete", "link", f"link-{namespace}"[:60]).code == ExitCode.OK


def read(muster: Run, pod: str, namespace: str) -> Any:
    return json.loads(muster("get", "pod", pod, "-n", namespace, "-o", "json").out)


def test_a_waiting_pod(muster: Run, namespace: str, cluster: str) -> None:
    message = next(
        c["message"] for c in read(muster, "waits", namespace)["status"]["conditions"] if c["type"] == "PodScheduled"
    )
    assert message.startswith("BandwidthInsufficient: ")
    assert f"{namespace}/runs" not in message, "whoever reads this object may not be allowed to read others"
    found = muster("explain", "pod/waits", "-n", namespace)
    assert found.code == ExitCode.OK, found.err
    lines = found.out.splitlines()
    assert lines[0] == f"Pod/{namespace}/waits: waiting, profile muster-scheduler"
    assert "  Reason: BandwidthInsufficient (Bandwidth)" in lines
    assert f"  Short: bandwidth-egress: wants 500Mbps, {cluster} has 300Mbps, 200Mbps short" in lines
    assert f"    held by Pod {namespace}/runs: 700Mbps on {cluster}" in lines
    assert f"  Helps: {cluster} has room when these end: Pod/{namespace}/runs" in lines
    wide = muster("explain", "pod", "waits", "-n", namespace, "-o", "wide")
    assert f"Bandwidth BandwidthInsufficient (bandwidth-egress: wants 500Mbps, {cluster} has 300Mbps" in wide.out


def test_a_placed_pod_with_scores(muster: Run, namespace: str, cluster: str) -> None:
    found = muster("explain", "pod/runs", "-n", namespace, "-o", "json")
    assert found.code == ExitCode.OK, found.err
    (item,) = json.loads(found.out)["items"]
    assert (item["state"], item["schedulable"], item["pods"]) == (
        "placed",
        True,
        [{"pod": f"{namespace}/runs", "node": cluster}],
    )
    best = item["evaluations"][0]["nodes"][0]
    assert best["node"] == cluster
    assert sum(s["score"] * s.get("weight", 1) for s in best["scores"]) == best["score"]


def test_a_manifest_is_tried_and_not_created(muster: Run, namespace: str, cluster: str) -> None:
    manifest = filled(POD, NAME="maybe", SPACE=namespace, RATE="300Mbps")
    fits = muster("explain", "-f", "-", stdin=manifest)
    assert fits.code == ExitCode.OK, fits.err
    assert f"  {namespace}/maybe would go to {cluster}" in fits.out.splitlines()
    never = muster("explain", "-f", "-", "-o", "yaml", stdin=manifest.replace("300Mbps", "3Gbps"))
    assert "reason: Impossible" in never.out
    assert muster("get", "pod", "maybe", "-n", namespace).code == ExitCode.NOT_FOUND


def test_what_can_not_be_asked(muster: Run, namespace: str) -> None:
    unknown = muster("explain", "pod/nobody", "-n", namespace)
    assert unknown.code == ExitCode.NOT_FOUND
    assert f"Pod {namespace}/nobody: the scheduler knows no pod of it" in unknown.err
    assert muster("explain").code == ExitCode.USAGE
    assert muster("explain", "pods").code == ExitCode.USAGE
    assert muster("explain", "node/x").code == ExitCode.USAGE
    assert muster("explain", "pod/x", "-f", "-", stdin="").code == ExitCode.USAGE
    wrong = muster("explain", "-f", "-", stdin="apiVersion: v1\nkind: Service\nmetadata: {name: s}\n")
    assert wrong.code != ExitCode.OK
    assert "kind 'Service': no pods can be derived from it" in wrong.err


def test_top_bandwidth(muster: Run, namespace: str, cluster: str) -> None:
    metric = f"""
apiVersion: slo.koordinator.sh/v1alpha1
kind: NodeMetric
metadata: {{name: {cluster}}}
status:
  updateTime: "2026-01-01T00:00:00Z"
  nodeMetric: {{nodeUsage: {{resources: {{bandwidth-egress: "250000000"}}}}}}
"""
    assert muster("apply", "-f", "-", stdin=metric).code == ExitCode.OK
    by_node = muster("top", "bandwidth")
    assert by_node.code == ExitCode.OK, by_node.err
    rows = [line.split() for line in by_node.out.splitlines() if line.startswith(f"{cluster} ")]
    assert [row[1] for row in rows] == ["egress", "ingress"]
    assert all(row[2:5] == ["1Gbps", "700Mbps", "300Mbps"] for row in rows)
    by_pod = muster("top", "bandwidth", "--by", "pod", "-n", namespace, "-o", "json")
    assert [(r["pod"], r["direction"], r["reservedBps"]) for r in json.loads(by_pod.out)["items"]] == [
        ("runs", "egress", 700_000_000),
        ("runs", "ingress", 700_000_000),
    ]
    by_link = [line.split() for line in muster("top", "bandwidth", "--by", "link").out.splitlines()]
    assert [f"link-{namespace}"[:60], namespace, "bob", "2Gbps", "0bps", "2Gbps"] in by_link
    assert [f"link-{namespace}"[:60], "bob", namespace, "1Gbps", "0bps", "1Gbps"] in by_link
    assert muster("delete", "nodemetric", cluster).code == ExitCode.OK


def test_top_nodes(muster: Run, cluster: str) -> None:
    shown = muster("top", "nodes", cluster, "-o", "json")
    rows = {row["resource"]: row for row in json.loads(shown.out)["items"]}
    assert list(rows) == ["cpu", "memory", "bandwidth-egress", "bandwidth-ingress"]
    egress = rows["bandwidth-egress"]
    assert (egress["capacity"], egress["requested"], egress["free"], egress["used"]) == (10**9, 7 * 10**8, 3 * 10**8, None)
    lines = [line.split() for line in muster("top", "nodes", "--all").out.splitlines()]
    assert lines[0] == ["NODE", "RESOURCE", "CAPACITY", "REQUESTED", "FREE", "USED", "USED%"]
    assert [cluster, "bandwidth-egress", "1Gbps", "700Mbps", "300Mbps", "<none>", "<none>"] in lines
    assert {line[1] for line in lines if line[0] == cluster} >= {"pods", "ephemeral-storage"}
    unknown = muster("top", "nodes", "nobody")
    assert (unknown.code, "Node nobody" in unknown.err) == (ExitCode.NOT_FOUND, True)


def test_the_status_of_an_explanation_in_words() -> None:
    status = {
        "detailedExplanation": [
            {
                "topologyDomain": "Pod/default/w",
                "scheduleExplanation": {
                    "failedMessage": "CPUInsufficient: 0 of 7 nodes will do",
                    "nodeFailedDetails": [
                        {"failedPlugin": "F", "reason": "CPUInsufficient", "failedNodes": [f"n{i}" for i in range(7)]}
                    ],
                },
                "nodePossibleVictims": [{"nodeName": "n1", "possibleVictims": [{"namespace": "default", "name": "v"}]}],
            }
        ]
    }
    assert explanation_text("x", status).splitlines() == [
        "Pod/default/w: not schedulable",
        "  CPUInsufficient: 0 of 7 nodes will do",
        "  F CPUInsufficient: n0, n1, n2, n3, n4 and 2 more",
        "  Preemption: on n1 it would end default/v",
    ]
    assert explanation_text("x", {"failedMessage": "no pod"}) == "x: no pod"
