"""`muster node set-bandwidth` against a real server: what it writes, what it says, what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.cli.errors import ExitCode
from muster.objects.labels import Kuscia, Muster
from muster.objects.quantity import Quantity
from tests.cli.conftest import Run
from tests.cli.support import Up

KUBECTL = str(Path(sys.executable).parent / "kubectl")
NODE = "apiVersion: v1\nkind: Node\nmetadata: {name: NAME, annotations: {keep: me}}\n"
POD = """
apiVersion: v1
kind: Pod
metadata: {name: NAME, namespace: SPACE, annotations: {muster.dev/bandwidth-egress: 3Gbps}}
spec:
  nodeName: NODE
  containers:
  - name: c
    image: i
    resources: {requests: {kuscia.io/bandwidth: "500"}, limits: {kuscia.io/bandwidth: "500"}}
"""


@pytest.fixture
def node(muster: Run, request: pytest.FixtureRequest) -> Iterator[str]:
    name = "".join(c if c.isalnum() else "-" for c in request.node.name.lower())[:50].strip("-")
    made = muster("apply", "-f", "-", stdin=NODE.replace("NAME", name))
    assert made.code == ExitCode.OK, made.err
    yield name
    assert muster("delete", "node", name).code == ExitCode.OK


def read(muster: Run, name: str) -> tuple[dict[str, str], int | None, int | None]:
    """Muster's annotations without their prefix, and the resource in capacity and allocatable, in Mbps."""
    raw: Any = json.loads(muster("get", "node", name, "-o", "json").out)
    assert raw["metadata"]["annotations"]["keep"] == "me"
    notes = {k.removeprefix("muster.dev/"): v for k, v in raw["metadata"]["annotations"].items() if k.startswith("muster.dev/")}
    status = raw.get("status", {})
    found = [status.get(word, {}).get(Kuscia.RESOURCE_BANDWIDTH) for word in ("capacity", "allocatable")]
    amounts = [None if text is None else Quantity.parse(text).value() for text in found]
    return notes, amounts[0], amounts[1]


def test_one_figure_sets_both(muster: Run, node: str) -> None:
    done = muster("node", "set-bandwidth", node, "10Gi", "--reserve", "100M")
    assert done.code == ExitCode.OK, done.err
    assert done.out == (f"node/{node} bandwidth: egress none -> 10Gbps, ingress none -> 10Gbps, held back 0bps -> 100Mbps\n")
    assert read(muster, node) == ({"bandwidth": "10Gbps", "bandwidth-reserved": "100Mbps"}, 10000, 9900)


def test_a_direction_by_itself_and_back(muster: Run, node: str) -> None:
    assert muster("node", "set-bandwidth", node, "10Gbps", "--ingress", "1500.5Mbps").code == ExitCode.OK
    assert read(muster, node) == ({"bandwidth": "10Gbps", "bandwidth-ingress": "1500.5Mbps"}, 1500, 1500)
    done = muster("node", "set-bandwidth", node, "--egress", "2G")
    assert "egress 10Gbps -> 2Gbps, ingress 1500.5Mbps -> 1500.5Mbps" in done.out
    assert muster("node", "set-bandwidth", node, "1G").code == ExitCode.OK
    assert read(muster, node) == ({"bandwidth": "1Gbps"}, 1000, 1000), "one figure for both again"
    assert muster("node", "set-bandwidth", node, "--reserve", "0").code == ExitCode.OK


def test_unset_leaves_what_the_agent_found(muster: Run, node: str) -> None:
    assert muster("node", "set-bandwidth", node, "10Gbps").code == ExitCode.OK
    done = muster("node", "set-bandwidth", node, "--unset")
    assert "egress 10Gbps -> none" in done.out
    assert read(muster, node) == ({}, None, None)
    agent = f"apiVersion: v1\nkind: Node\nmetadata: {{name: {node}, annotations: {{{Muster.AGENT_BANDWIDTH}: 2Gbps}}}}\n"
    assert muster("apply", "--field-manager", "agent", "-f", "-", stdin=agent).code == ExitCode.OK
    assert muster("node", "set-bandwidth", node, "10Gbps").code == ExitCode.OK
    assert "egress 10Gbps -> 2Gbps" in muster("node", "set-bandwidth", node, "--unset").out
    assert read(muster, node)[1:] == (2000, 2000)


def test_a_dry_run_writes_nothing(muster: Run, node: str) -> None:
    done = muster("node", "set-bandwidth", node, "10Gbps", "--dry-run")
    assert done.out.endswith("(dry run: nothing was written)\n")
    assert read(muster, node) == ({}, None, None)


def test_less_than_what_runs_there_holds(muster: Run, node: str, namespace: str) -> None:
    assert muster("node", "set-bandwidth", node, "10Gbps").code == ExitCode.OK
    for name in ("a", "b"):
        pod = POD.replace("NAME", name).replace("SPACE", namespace).replace("NODE", node)
        made = muster("apply", "-f", "-", stdin=pod)
        assert made.code == ExitCode.OK, made.err
    assert muster("node", "set-bandwidth", node, "6Gbps").err == ""
    done = muster("node", "set-bandwidth", node, "5Gbps", "--ingress", "1Gbps")
    assert done.code == ExitCode.OK
    assert done.err == (
        f"warning: what runs on {node} holds 6Gbps egress, 1Gbps more than the node now offers; nothing is stopped, and "
        "nothing more that asks for bandwidth fits until enough has ended\n"
    )


@pytest.mark.parametrize(
    ("args", "said"),
    [
        pytest.param(["fast"], "AMOUNT: 'fast' is not a bandwidth", id="no bandwidth"),
        pytest.param(["10Gbps", "--reserve", "500m"], "--reserve: '500m' is not a bandwidth", id="milli"),
        pytest.param(["10Gbps", "--reserve", "20G"], "the reserve 20Gbps", id="all held back"),
        pytest.param(["--reserve", "1G"], "has no capacity", id="a reserve of nothing"),
        pytest.param(["--egress", "1G"], "give --ingress too", id="half a capacity"),
        pytest.param([], "say how much", id="nothing"),
        pytest.param(["1G", "--unset"], "--unset removes everything", id="both"),
    ],
)
def test_refuses(muster: Run, node: str, args: list[str], said: str) -> None:
    done = muster("node", "set-bandwidth", node, *args)
    assert done.code == ExitCode.USAGE
    assert said in done.err
    assert read(muster, node) == ({}, None, None)


def test_a_node_that_is_not_there(muster: Run) -> None:
    done = muster("node", "set-bandwidth", "nobody", "10Gbps")
    assert done.code == ExitCode.NOT_FOUND
    assert "nobody" in done.err


def test_a_reserve_on_what_another_agent_published(muster: Run, node: str, local: Up) -> None:
    status = {"capacity": {Kuscia.RESOURCE_BANDWIDTH: "1000"}, "allocatable": {Kuscia.RESOURCE_BANDWIDTH: "990"}}
    patch = ["patch", "node", node, "--subresource=status", "--type=merge", "-p", json.dumps({"status": status})]
    subprocess.run([KUBECTL, f"--kubeconfig={local.kubeconfig}", *patch], check=True, capture_output=True)
    done = muster("node", "set-bandwidth", node, "--reserve", "100M")
    assert done.code == ExitCode.OK, done.err
    assert "egress 1Gbps -> 1Gbps, ingress 1Gbps -> 1Gbps, held back 0bps -> 100Mbps" in done.out
    assert read(muster, node) == ({"bandwidth-reserved": "100Mbps"}, 1000, 990), "its publisher's figures stay"
