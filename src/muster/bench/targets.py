"""The servers that API benchmarks measure, each started fresh in its own directory and stopped afterwards.

Blocking, one at a time: two servers alive at once would take each other's cores. Both are API servers alone, without
controllers, agents or dashboard; both ask for TLS, and the load comes as a user with a client certificate who may do with pods
what RBAC says, and nothing else.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import ExtendedKeyUsageOID

from muster.bench import processes
from muster.bench.kubernetes import ControlPlane
from muster.client.files import replace_file
from muster.objects.time import wall_clock
from muster.server.certificates import Authority, Key, cert_pem, key_pem, new_key

READY_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 60.0
_RBAC = "rbac.authorization.k8s.io"
_USER, _GROUP = "bench", "bench-clients"
_MEMORY_FILE_SYSTEMS = frozenset({"tmpfs", "ramfs"})


class Target(msgspec.Struct, kw_only=True):
    """A server that is up."""

    name: str
    url: str
    ca_path: Path
    admin_token: str
    cert_path: Path
    """The certificate of the user that makes the load, and its key."""
    key_path: Path
    pids: Sequence[int]
    ready_s: float
    """From starting the first process to the first positive answer of /readyz."""
    restart: Callable[[], float]
    """Stop it and start it again on its data: how long that took until it was ready. The other fields do not hold after it."""

    def resident_mb(self) -> float:
        return processes.resident_mb(self.pids)


@contextlib.contextmanager
def work_directory() -> Iterator[Path]:
    """Where servers keep their data: on a disk, because a flush to memory costs nothing and says nothing."""
    candidates = [place for place in (tempfile.gettempdir(), "/var/tmp", str(Path.cwd())) if os.access(place, os.W_OK)]
    place = next((place for place in candidates if not _is_in_memory(Path(place))), None)
    if place is None:
        raise RuntimeError(f"none of {', '.join(candidates)} is on a disk: set TMPDIR to a directory that is")
    with tempfile.TemporaryDirectory(prefix="muster-bench-", dir=place) as directory:
        yield Path(directory)


def _is_in_memory(path: Path) -> bool:
    kinds = dict(line.split()[1:3] for line in Path("/proc/self/mounts").read_text().splitlines())
    nearest = next(parent for parent in (path.resolve(), *path.resolve().parents) if str(parent) in kinds)
    return kinds[str(nearest)] in _MEMORY_FILE_SYSTEMS


@contextlib.contextmanager
def muster_server(work_dir: Path) -> Iterator[Target]:
    data_dir = work_dir / "data"
    command = [sys.executable, "-m", "muster.cli.main", "up", "--data-dir", str(data_dir), "--listen", "127.0.0.1:0"]
    command += ["--without", "controllers,dashboard,agent"]
    work_dir.mkdir(parents=True, exist_ok=True)
    log_path = work_dir / "muster.log"
    # Modules are compiled once and kept, as where Muster is installed, whatever this environment says.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    children: list[subprocess.Popen[bytes]] = []

    def start() -> tuple[str, str, float]:
        # A new start listens elsewhere and says so; until then nobody is asked, since that would take the server's time.
        before = (data_dir / "kubeconfig").stat().st_mtime_ns if (data_dir / "kubeconfig").exists() else 0
        started = time.perf_counter()
        with log_path.open("ab") as log:
            # In a session of its own, as the peer's processes are: where the kernel shares out time by sessions, alike.
            children.append(subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True))
        url, token = _await_muster(children[-1], data_dir, before, log_path)
        return url, token, time.perf_counter() - started

    def stop() -> None:
        children[-1].terminate()
        children[-1].wait(STOP_TIMEOUT_S)

    def restart() -> float:
        stop()
        return start()[2]

    try:
        url, token, ready_s = start()
        target = Target(
            name="muster",
            url=url,
            ca_path=data_dir / "pki" / "ca.crt",
            admin_token=token,
            cert_path=work_dir / "bench.crt",
            key_path=work_dir / "bench.key",
            pids=[children[-1].pid],
            ready_s=ready_s,
            restart=restart,
        )
        _prepare(target, data_dir / "pki")
        yield target
    finally:
        stop()


def _await_muster(child: subprocess.Popen[bytes], data_dir: Path, written_after: int, log: Path) -> tuple[str, str]:
    """URL and token of the administrator, once it is ready."""
    deadline = time.perf_counter() + READY_TIMEOUT_S
    while time.perf_counter() < deadline and child.poll() is None:
        with contextlib.suppress(OSError, KeyError, TypeError, ValueError, yaml.YAMLError):
            if (data_dir / "kubeconfig").stat().st_mtime_ns == written_after:
                raise ValueError("it is the last start's")
            config = yaml.safe_load((data_dir / "kubeconfig").read_text())
            url: str = config["clusters"][0]["cluster"]["server"]
            token: str = config["users"][0]["user"]["token"]
            context = ssl.create_default_context(cafile=str(data_dir / "pki" / "ca.crt"))
            with urllib.request.urlopen(f"{url}/readyz", timeout=5, context=context) as answer:
                if answer.status == 200:
                    return url, token
        time.sleep(0.005)
    raise RuntimeError(f"muster up did not become ready; its output: {log.read_text(errors='replace')[-2000:]}")


@contextlib.contextmanager
def kubernetes_server(work_dir: Path, assets: Path) -> Iterator[Target]:
    plane = ControlPlane(assets, work_dir, controllers=False)

    def start() -> float:
        started = time.perf_counter()
        plane.start()
        return time.perf_counter() - started

    def restart() -> float:
        plane.stop()
        return start()

    try:
        target = Target(
            name="kube-apiserver + etcd",
            ready_s=start(),
            url=plane.url,
            ca_path=plane.ca_path,
            admin_token=plane.admin_token,
            cert_path=work_dir / "bench.crt",
            key_path=work_dir / "bench.key",
            pids=[plane.apiserver_pid, plane.etcd_pid],
            restart=restart,
        )
        _prepare(target, work_dir)
        yield target
    finally:
        plane.stop()


def _prepare(target: Target, ca_dir: Path) -> None:
    """A certificate for the user of the load, and what it may do."""
    certificate = x509.load_pem_x509_certificate((ca_dir / "ca.crt").read_bytes())
    ca_key = serialization.load_pem_private_key((ca_dir / "ca.key").read_bytes(), None)
    assert isinstance(ca_key, Key)
    key = new_key()
    issued = Authority(certificate, ca_key).issue(
        key,
        common_name=_USER,
        groups=(_GROUP,),
        usage=ExtendedKeyUsageOID.CLIENT_AUTH,
        now=wall_clock(),
        lifetime=datetime.timedelta(days=1),
    )
    replace_file(target.cert_path, cert_pem(issued))
    replace_file(target.key_path, key_pem(key))
    pods = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch", "create", "update", "patch"]}
    bindings = {"apiGroups": [""], "resources": ["pods/binding"], "verbs": ["create"]}
    version = f"{_RBAC}/v1"
    role = {"apiVersion": version, "kind": "ClusterRole", "metadata": {"name": _USER}, "rules": [pods, bindings]}
    subjects = [{"apiGroup": _RBAC, "kind": "Group", "name": _GROUP}]
    reference = {"apiGroup": _RBAC, "kind": "ClusterRole", "name": _USER}
    granted = {"apiVersion": version, "kind": "ClusterRoleBinding", "metadata": {"name": _USER}, "subjects": subjects}
    _post(target, f"/apis/{version}/clusterroles", role)
    _post(target, f"/apis/{version}/clusterrolebindings", {**granted, "roleRef": reference})


def _post(target: Target, path: str, obj: object) -> None:
    headers = {"Authorization": f"Bearer {target.admin_token}", "Content-Type": "application/json"}
    request = urllib.request.Request(target.url + path, data=msgspec.json.encode(obj), headers=headers, method="POST")
    context = ssl.create_default_context(cafile=str(target.ca_path))
    with urllib.request.urlopen(request, timeout=30, context=context):
        pass
