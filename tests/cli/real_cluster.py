"""A `muster controller` on a real cluster, and people who use it: for tests of what holds behind a kube-apiserver."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from muster.bench.kubernetes import ControlPlane, free_ports
from muster.client import ApiClient
from muster.objects import yaml_text
from muster.store.kubernetes import KubernetesStore
from tests.cli.support import environment, muster
from tests.controllers.scheduling import create, node

KUBECTL = str(Path(sys.executable).parent / "kubectl")
TIMEOUT_S = 60


def free_port() -> int:
    return free_ports(1)[0]


class Controller:
    """A `muster controller` as a child process."""

    def __init__(self, kubeconfig: Path, home: Path, *args: str) -> None:
        self.child = subprocess.Popen(
            [sys.executable, "-m", "muster.cli.main", "controller", f"--kubeconfig={kubeconfig}", *args],
            env=environment(home),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.child.stdout is not None
        assert self.child.stderr is not None
        self.said: list[str] = []
        if not self.child.stdout.readline():
            raise AssertionError(f"controller ended with {self.child.wait()}: {self.child.stderr.read()}")
        while not self.said or "health at" not in self.said[-1]:
            self.said.append(self.child.stderr.readline().strip())
        self.health = self.said[-1].removeprefix("health at ")

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(self.health + path, timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    @property
    def is_leading(self) -> bool:
        return 'muster_leader{lease="muster-system/muster-controller"} 1.0' in self.get("/metrics")[1]

    def stop(self) -> int:
        self.child.send_signal(signal.SIGTERM)
        code = self.child.wait(TIMEOUT_S)
        for stream in (self.child.stdout, self.child.stderr):
            assert stream is not None
            stream.close()
        return code


def service_account_kubeconfig(kubernetes: ControlPlane, path: Path) -> Path:
    """A kubeconfig for the account that the deployment runs as, as a pod would have it."""
    command = [
        KUBECTL,
        f"--kubeconfig={kubernetes.kubeconfig_path}",
        "create",
        "token",
        "muster-controller",
        "-n",
        "muster-system",
    ]
    token = subprocess.run(command, capture_output=True, text=True, check=True, timeout=TIMEOUT_S).stdout.strip()
    config = yaml_text.load(kubernetes.kubeconfig_path.read_text())
    config["users"][0]["user"] = {"token": token}
    path.write_text(json.dumps(config))
    path.chmod(0o600)
    return path


def eventually(check: Callable[[], Any], what: str) -> Any:
    """The first true result. Patient: each question is a round trip, and nothing here is about time."""
    for _ in range(600):
        result = check()
        if result:
            return result
        signal.sigtimedwait([], 0.1)
    raise AssertionError(f"never happened: {what}")


def kubeconfig_as(kubernetes: ControlPlane, login: str, path: Path) -> Path:
    """A kubeconfig of the administrator's, who acts as somebody else."""
    config = yaml_text.load(kubernetes.kubeconfig_path.read_text())
    config["users"][0]["user"]["as"] = login
    path.write_text(json.dumps(config))
    path.chmod(0o600)
    return path


PEOPLE = """
apiVersion: v1
kind: Namespace
metadata: {name: lab}
---
apiVersion: muster.dev/v1alpha1
kind: UserGroup
metadata: {name: research}
spec: {admins: [gil]}
---
apiVersion: muster.dev/v1alpha1
kind: User
metadata: {name: ann}
spec: {group: research, limits: {concurrent: {cpu: "4"}, submitted: {cpu: "8"}}}
---
apiVersion: muster.dev/v1alpha1
kind: User
metadata: {name: bob}
spec: {group: research}
---
apiVersion: muster.dev/v1alpha1
kind: Queue
metadata: {name: line}
spec: {}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: pods-of-people}
rules:
- {apiGroups: [""], resources: [pods], verbs: ["*"]}
"""
BINDING = """
---
apiVersion: rbac.authorization.k8s.io/v1
kind: KIND
metadata: {name: people-ROLE, namespace: lab}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: ROLE}
subjects: [{kind: User, name: ann}, {kind: User, name: bob}]
"""


class People:
    """A controller with webhooks and a decision log, two users of one group, a queue, and a node of 6 cores."""

    def __init__(self, kubernetes: ControlPlane, home: Path) -> None:
        self.kubernetes, self.home = kubernetes, home
        self.log = home / "log"
        self.env = environment(home, KUBECONFIG=str(kubernetes.kubeconfig_path))
        self.logins = {login: kubeconfig_as(kubernetes, login, home / f"{login}.kubeconfig") for login in ("ann", "bob")}
        port = free_port()
        installed = muster("install", "--webhook-url", f"https://127.0.0.1:{port}", env=self.env)
        assert installed.returncode == 0, installed.stderr
        account = service_account_kubeconfig(kubernetes, home / "account")
        listen = (f"--webhook-listen=127.0.0.1:{port}", "--health-listen=127.0.0.1:0")
        self.controller = Controller(account, home, *listen, "--history", str(self.log))
        eventually(lambda: self.controller.is_leading, "the only candidate leads")
        roles = [("RoleBinding", role) for role in ("muster-view", "muster-edit", "pods-of-people")]
        roles.append(("ClusterRoleBinding", "muster-submitter"))
        given = PEOPLE + "".join(BINDING.replace("KIND", kind).replace("ROLE", role) for kind, role in roles)
        eventually(lambda: muster("apply", "-f", "-", env=self.env, stdin=given).returncode == 0, "the webhooks answer")
        asyncio.run(self._add_node())

    async def _add_node(self) -> None:
        store = KubernetesStore(await ApiClient.from_kubeconfig(self.kubernetes.kubeconfig_path))
        try:
            wanted = node("lab-1", "6")
            [made] = await create(store, wanted)
            nodes = await store.resource("", "Node")
            await store.patch(nodes, "lab-1", {"status": wanted["status"]}, subresource="status")
            if made["spec"].get("taints"):  # nobody would ever take it away
                await store.patch(nodes, "lab-1", {"spec": {"taints": None}})
        finally:
            await store.close()

    def stop(self) -> None:
        if self.controller.child.poll() is None:
            assert self.controller.stop() == 0
