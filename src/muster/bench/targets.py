"""The servers that API benchmarks measure, each started fresh in its own directory and stopped afterwards.

Blocking, one at a time: two servers alive at once would take each other's cores.
"""

from __future__ import annotations

import contextlib
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import yaml

from muster.bench import processes
from muster.bench.kubernetes import ControlPlane

READY_TIMEOUT_S = 60.0


class Target(msgspec.Struct, kw_only=True):
    """A server that is up."""

    name: str
    url: str
    ca_path: Path
    token: str
    pids: Sequence[int]
    ready_s: float
    """From starting the first process to the first positive answer of /readyz."""

    def resident_mb(self) -> float:
        return processes.resident_mb(self.pids)

    def cpu_s(self) -> float:
        return processes.cpu_s(self.pids)


@contextlib.contextmanager
def muster_server(work_dir: Path) -> Iterator[Target]:
    data_dir = work_dir / "data"
    command = [sys.executable, "-m", "muster.cli.main", "up", "--data-dir", str(data_dir), "--listen", "127.0.0.1:0"]
    command += ["--without", "dashboard,agent"]
    started = time.perf_counter()
    work_dir.mkdir(parents=True, exist_ok=True)
    with (work_dir / "muster.log").open("ab") as log:
        child = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        target = _await_muster(child, data_dir, started, work_dir / "muster.log")
        yield target
    finally:
        child.terminate()
        child.wait(30)


def _await_muster(child: subprocess.Popen[bytes], data_dir: Path, started: float, log: Path) -> Target:
    while time.perf_counter() - started < READY_TIMEOUT_S and child.poll() is None:
        with contextlib.suppress(OSError, KeyError, TypeError, ValueError, yaml.YAMLError):
            config = yaml.safe_load((data_dir / "kubeconfig").read_text())
            url, ca_path = config["clusters"][0]["cluster"]["server"], data_dir / "pki" / "ca.crt"
            context = ssl.create_default_context(cafile=str(ca_path))
            with urllib.request.urlopen(f"{url}/readyz", timeout=5, context=context) as answer:
                if answer.status == 200:
                    return Target(
                        name="muster",
                        url=url,
                        ca_path=ca_path,
                        token=config["users"][0]["user"]["token"],
                        pids=[child.pid],
                        ready_s=time.perf_counter() - started,
                    )
        time.sleep(0.005)
    raise RuntimeError(f"muster up did not become ready; its output: {log.read_text(errors='replace')[-2000:]}")


@contextlib.contextmanager
def kubernetes_server(work_dir: Path, assets: Path) -> Iterator[Target]:
    started = time.perf_counter()
    with ControlPlane(assets, work_dir, controllers=False) as plane:
        yield Target(
            name="kube-apiserver + etcd",
            url=plane.url,
            ca_path=plane.ca_path,
            token=plane.admin_token,
            pids=[plane.apiserver_pid, plane.etcd_pid],
            ready_s=time.perf_counter() - started,
        )
