"""A real Kubernetes with Muster installed, and real agents that are its nodes: all of it processes, on a `cluster_machine`.

Agents have the rights that an administrator gives them by the roles of `muster install`, and no others: each is a service
account of its party. Everything is done with `muster` and `kubectl`, as users do.

Blocking. `close` ends everything and sees that nothing is left, whatever state it is in.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from muster.agent.agent import run_dir_of
from muster.agent.layout import Layout
from muster.bench.kubernetes import end, spawn
from muster.objects.status import Raw
from muster.sim.workloads import domain
from tests.e2e.agent_world import KUBECTL, leftovers
from tests.e2e.cluster_machine import FAR_END, READY, UPLINK

WAIT_S = 300.0
POLL_S = 0.1
PARTIES = ("alice", "bob")
USERS = 1_910_000_000
_ROOT = Path(__file__).parents[2]
_WEBHOOKS = "127.0.0.1:9443"
_FORWARDING = f"/proc/sys/net/ipv4/conf/{UPLINK}/forwarding"


class ClusterWorld:
    """See the module. `start`, then `close`."""

    def __init__(self, root: Path, assets: Path) -> None:
        self.root = root
        self._assets = assets
        self._machine: subprocess.Popen[str] | None = None
        self._controller: subprocess.Popen[bytes] | None = None
        self._agents: dict[str, subprocess.Popen[bytes]] = {}
        self._followers: list[subprocess.Popen[str]] = []
        self.admin = root / "plane" / "kubeconfig"

    # -- life ------------------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        with (self.root / "machine.log").open("w") as log:
            self._machine = subprocess.Popen(
                [sys.executable, "-m", "tests.e2e.cluster_machine", str(self.root), str(self._assets)],
                cwd=_ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self._machine.stdout is not None
        assert self._machine.stdout.readline().strip() == READY, (self.root / "machine.log").read_text()
        self.muster("install", "--timeout=240", "--webhook-url", f"https://{_WEBHOOKS}")
        self._start_controller()
        self._insist(lambda: self.apply(*(domain(party) for party in PARTIES)), "webhooks that answer")
        self.until(lambda: all(self._has_namespace(party) for party in PARTIES), "namespaces of the parties")
        for party in PARTIES:
            self._admit(party)
            self.start_agent(party)
        self.until(lambda: all(self.is_ready(party) for party in PARTIES), "nodes ready")

    def _has_namespace(self, party: str) -> bool:
        return self.run(str(KUBECTL), "get", "serviceaccount", "default", "-n", party)[0] == 0

    def _start_controller(self) -> None:
        """As the account that `muster install` made for it."""
        command = self._muster("controller", f"--kubeconfig={self._controllers_kubeconfig()}", f"--webhook-listen={_WEBHOOKS}")
        self._controller = spawn([*self._inside(), *command], self.root / "controller.log")

    def _admit(self, party: str) -> None:
        """The account of an agent, its rights and its kubeconfig, by the very commands of docs/nodes.md."""
        directory = self.kubeconfig_of(party).parent
        directory.mkdir(parents=True)
        section = (_ROOT / "docs" / "nodes.md").read_text().partition("### On a Kubernetes cluster")[2]
        commands = section.partition("```text\n")[2].partition("```")[0].partition("muster agent")[0]
        server = yaml.safe_load(self.admin.read_text())["clusters"][0]["cluster"]["server"]
        script = commands.replace("alice", party).replace("https://head:6443", server).replace("kubectl", str(KUBECTL))
        code, out, err = self.run("bash", "-euo", "pipefail", "-c", f"cd {directory}\n{script}")
        assert code == 0, f"{script}\n{out}{err}"

    def kubeconfig_of(self, party: str) -> Path:
        return self.root / "accounts" / party / f"{party}.kubeconfig"

    def token_of(self, party: str) -> str:
        return (self.kubeconfig_of(party).parent / "token").read_text().strip()

    def _controllers_kubeconfig(self) -> Path:
        path = self.root / "controller.kubeconfig"
        config = yaml.safe_load(self.admin.read_text())
        token = self.kubectl("create", "token", "muster-controller", "-n", "muster-system", "--duration=24h").strip()
        config["users"][0]["user"] = {"token": token}
        path.touch(mode=0o600)
        path.write_text(json.dumps(config))
        return path

    def start_agent(self, party: str, directory: str = "") -> Path:
        """Its log."""
        name = directory or party
        config = {
            "name": f"{party}-node",
            "domain": party,
            "capacity": {"cpu": "4", "memory": "4Gi", "bandwidth": "1Gbps"},
            "reserved": {"cpu": "0", "memory": "0", "ephemeralStorage": "0"},
            "process": {"userRange": [USERS + PARTIES.index(party) * 1000, USERS + PARTIES.index(party) * 1000 + 999]},
            "timing": {"metricSeconds": 1, "reportSeconds": 1},
        }
        (self.root / f"{name}.yaml").write_text(yaml.safe_dump(config))
        command = self._muster(
            "agent",
            f"--data-dir={self.layout(name).data}",
            f"--kubeconfig={self.kubeconfig_of(party)}",
            f"--config={self.root / f'{name}.yaml'}",
        )
        log = self.root / f"{name}-agent.log"
        self._agents[name] = spawn([*self._inside(), *command], log)
        return log

    def kill_agent(self, name: str) -> None:
        agent = self._agents.pop(name)
        agent.kill()
        agent.wait()

    def stop_agent(self, name: str) -> None:
        """One that carries nothing; with what it keeps for its next start."""
        end(self._agents.pop(name))
        layout = self.layout(name)
        assert list(layout.pods.iterdir()) == []
        shutil.rmtree(layout.run)

    def leave(self, party: str) -> None:
        """For good, ending what runs there."""
        self.muster("agent", f"--data-dir={self.layout(party).data}", "--leave", "--drain")
        assert self._agents.pop(party).wait(WAIT_S) == 0, (self.root / f"{party}-agent.log").read_text()[-3000:]

    def close(self) -> None:
        for follower in self._followers:
            follower.kill()
            follower.communicate()
        try:
            for party in [name for name in PARTIES if name in self._agents]:
                self.leave(party)
            assert self.left() == []
        finally:
            for agent in self._agents.values():
                end(agent)
            self._end_what_is_left()
            if self._controller is not None:
                end(self._controller)
            if self._machine is not None:
                self._machine.communicate("")

    def _end_what_is_left(self) -> None:
        """After a failure: runs outlive their agents."""
        for layout in map(self.layout, (*PARTIES, "other")):
            if layout.data.exists() and leftovers(layout):
                program = (
                    "import asyncio; from pathlib import Path; from muster.agent.ending import end_everything; "
                    "from muster.agent.layout import Layout; from muster.agent.agent import run_dir_of; "
                    f"data = Path({str(layout.data)!r}); asyncio.run(end_everything(Layout(data, run_dir_of(data))))"
                )
                self.run(sys.executable, "-c", program)

    # -- what there is ---------------------------------------------------------------------------------------------------------

    def layout(self, name: str) -> Layout:
        data = self.root / "agents" / name
        return Layout(data, run_dir_of(data))

    def left(self) -> list[str]:
        """What agents have left on the machine, when all have gone."""
        found = [line for name in (*PARTIES, "other") for line in leftovers(self.layout(name))]
        links = self.run("ip", "-o", "link")[1].splitlines()
        found += [line for line in links if line.split(": ")[1].partition("@")[0] not in ("lo", UPLINK, FAR_END)]
        mounts = self.run("cat", "/proc/self/mountinfo")[1].splitlines()
        found += [line for line in mounts if f"{self.root}/agents" in line or "/run/muster" in line]
        found += [line for line in self.run("ip", "route")[1].splitlines() if "proto" in line and "kernel" not in line]
        found += [f"forwarding is {value}" for value in self.run("cat", _FORWARDING)[1].split() if value != "0"]
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if USERS <= process.stat().st_uid < USERS + 1000 * len(PARTIES):
                    found.append(f"process {process.name}: {(process / 'cmdline').read_bytes()[:200]!r}")
        return found

    # -- programs --------------------------------------------------------------------------------------------------------------

    def _inside(self) -> list[str]:
        assert self._machine is not None
        return ["nsenter", "-t", str(self._machine.pid), "-n", "-m", "--"]

    @staticmethod
    def _muster(*args: str) -> list[str]:
        return [sys.executable, "-m", "muster.cli.main", *args]

    @property
    def _environ(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("KUBE", "MUSTER", "XDG_"))}
        return kept | {"HOME": str(self.root), "KUBECONFIG": str(self.admin), "NO_COLOR": "1"}

    def run(self, *command: str, stdin: str = "") -> tuple[int, str, str]:
        done = subprocess.run(
            [*self._inside(), *command],
            env=self._environ,
            cwd=_ROOT,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    def muster(self, *args: str) -> str:
        code, out, err = self.run(*self._muster(*args))
        assert code == 0, f"muster {' '.join(args)}: {out}{err}"
        return out

    def kubectl(self, *args: str, stdin: str = "") -> str:
        code, out, err = self.run(str(KUBECTL), *args, stdin=stdin)
        assert code == 0, f"kubectl {' '.join(args)}: {err}"
        return out

    def follow(self, *args: str) -> subprocess.Popen[str]:
        """A kubectl whose output is read while it runs."""
        made = subprocess.Popen(
            [*self._inside(), str(KUBECTL), *args], env=self._environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._followers.append(made)
        return made

    def apply(self, *objects: Raw) -> None:
        self.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}))

    def get(self, *args: str) -> Any:
        return json.loads(self.kubectl("get", *args, "-o", "json"))

    # -- waiting ---------------------------------------------------------------------------------------------------------------

    def until(self, check: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + WAIT_S
        while not check():
            if time.monotonic() > deadline:
                raise AssertionError(f"{what}: not within {WAIT_S:g} s; {self._troubles()}")
            time.sleep(POLL_S)

    def _insist(self, operation: Callable[[], None], what: str) -> None:
        def is_done() -> bool:
            with contextlib.suppress(AssertionError):
                operation()
                return True
            return False

        self.until(is_done, what)

    def _troubles(self) -> str:
        shown = self.run(str(KUBECTL), "get", "nodes,pods,kusciatasks", "-A", "-o", "wide")[1]
        logs = [
            f"{path.name}:\n{path.read_text()[-2000:]}" for path in sorted(self.root.glob("*.log")) if "audit" not in path.name
        ]
        return "\n".join([shown, *logs])

    def is_ready(self, party: str) -> bool:
        """Ready, and nothing keeps pods away from it but that it is its party's."""
        code, out, _ = self.run(str(KUBECTL), "get", "node", f"{party}-node", "-o", "json")
        if code != 0:
            return False
        node = json.loads(out)
        ready = any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"].get("conditions", ()))
        return ready and [taint["key"] for taint in node["spec"].get("taints", ())] == ["kuscia.secretflow/agent"]

    def until_phase(self, name: str, party: str, *phases: str) -> Raw:
        def is_so() -> bool:
            return self.get("pod", name, "-n", party)["status"].get("phase") in phases

        self.until(is_so, f"pod {party}/{name} {' or '.join(phases)}")
        found: Raw = self.get("pod", name, "-n", party)
        return found

    def until_job(self, name: str) -> Raw:
        def is_over() -> bool:
            return self.get("kusciajob", name, "-n", "cross-domain").get("status", {}).get("phase") in ("Succeeded", "Failed")

        self.until(is_over, f"job {name} over")
        found: Raw = self.get("kusciajob", name, "-n", "cross-domain")
        return found
