"""A machine with a Kubernetes control plane on it, in network and mount namespaces of its own. Run in a process of its own.

    python -m tests.e2e.cluster_machine DIRECTORY ASSETS

The machine has loopback and an uplink that leads nowhere, so that nothing of the real machine is touched. When the control
plane is ready it prints a line and waits; when its standard input ends it stops everything. Whatever else is to run on the
machine enters its namespaces by the process's id. The API server writes down what service accounts have asked for.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from muster.agent.shim import namespaces
from muster.bench.kubernetes import ControlPlane

UPLINK, FAR_END = "up0", "far0"
ADDRESS = "192.0.2.10/24"
ACCOUNT = "muster-agent"
READY = "the control plane is ready"
_AUDIT = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata", "userGroups": ["system:serviceaccounts"]}, {"level": "None"}],
}


def audit_log(directory: Path) -> Path:
    return directory / "audit.log"


def plane(directory: Path, assets: Path) -> ControlPlane:
    policy = directory / "audit-policy.json"
    return ControlPlane(
        assets,
        directory / "plane",
        more_controllers=("nodelifecycle",),
        apiserver_options=(f"--audit-policy-file={policy}", f"--audit-log-path={audit_log(directory)}"),
    )


def main(directory: Path, assets: Path) -> None:
    (directory / "audit-policy.json").write_text(json.dumps(_AUDIT))
    namespaces.unshare(namespaces.CLONE_NEWNET | namespaces.CLONE_NEWNS)
    for command in (
        "mount --make-rprivate /",
        "ip link set lo up",
        f"ip link add {UPLINK} type veth peer name {FAR_END}",
        f"ip address add {ADDRESS} dev {UPLINK}",
        f"ip link set {UPLINK} up",
        f"ip link set {FAR_END} up",
        "ip route add default via 192.0.2.1",
    ):
        subprocess.run(command.split(), check=True)
    with plane(directory, assets):
        print(READY, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
