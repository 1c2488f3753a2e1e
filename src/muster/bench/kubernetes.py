"""A real Kubernetes control plane on loopback: etcd, kube-apiserver and kube-controller-manager as child processes.

Tests compare behaviour with it and benchmarks compare speed. The binaries come from `tools/kubernetes-assets` (which see).
Blocking and single-threaded; nothing of Muster's own runs in here, it only makes the certificates and the kubeconfig. Every
child dies with this process, even when it is killed, because `setpriv --pdeathsig` asks the kernel for it.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import secrets
import shutil
import socket
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import ExtendedKeyUsageOID

from muster.client.files import replace_file
from muster.client.kubeconfig_file import write_kubeconfig
from muster.objects.time import wall_clock
from muster.server.certificates import Authority, cert_pem, new_key, self_signed

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 20.0
KUBELET_CLIENT = "kube-apiserver-kubelet-client"
"""As whom the API server asks nodes for logs. It may do so when somebody binds `system:kubelet-api-admin` to it."""

# What Muster's contract needs from the controller manager: collection by owner, emptying of namespaces, budgets, and the
# usual controllers whose objects appear in tests. Without podgc, which would delete pods bound to nodes that do not exist.
CONTROLLERS = (
    "namespace,garbagecollector,disruption,serviceaccount,root-ca-cert-publisher,"
    "resourcequota,endpoint,replicaset,deployment,job"
)


class NotAvailable(Exception):
    """There is no Kubernetes to be had here; the message says why and what would help."""


class NotStarted(Exception):
    """The binaries are here, but one of them did not come up: a fault to look at, never a reason to skip."""


def find_assets(*, build: bool) -> Path:
    """The directory of binaries, through `tools/kubernetes-assets`; with `build` it may take minutes to make them."""
    override = os.environ.get("KUBEBUILDER_ASSETS")
    script = Path(__file__).parents[3] / "tools" / "kubernetes-assets"
    if not script.exists():
        if override:
            return Path(override)
        raise NotAvailable("no tools/kubernetes-assets beside this package and KUBEBUILDER_ASSETS is not set")
    command = [str(script)] if build else [str(script), "--cached"]
    found = subprocess.run(command, stdout=subprocess.PIPE, stderr=None if build else subprocess.PIPE, text=True, check=False)
    if found.returncode != 0:
        why = (found.stderr or "").strip().splitlines()
        raise NotAvailable(why[-1] if why else "tools/kubernetes-assets failed; its output says why")
    return Path(found.stdout.strip())


def free_ports(count: int) -> list[int]:
    """Ports that are free now. All are held open together, so that none is given twice."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def spawn(command: list[str], log_path: Path) -> subprocess.Popen[bytes]:
    """Start a child that writes to `log_path` and dies with this process."""
    if setpriv := shutil.which("setpriv"):
        command = [setpriv, "--pdeathsig", "KILL", "--", *command]
    with log_path.open("ab") as log:
        # A session of its own keeps the terminal's Ctrl-C from reaching it before we stop it in order.
        return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)


def end(child: subprocess.Popen[bytes]) -> None:
    """Ask it to stop, and make it when it does not."""
    child.terminate()
    try:
        child.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


class ControlPlane:
    """`start()` returns when the API server is ready and can be written to; `stop()` ends every process that it started."""

    def __init__(
        self,
        assets: Path,
        work_dir: Path,
        *,
        controllers: bool = True,
        bare_nodes: bool = False,
        etcd_dir: Path | None = None,
        more_controllers: Sequence[str] = (),
        only_controllers: str = CONTROLLERS,
        apiserver_options: Sequence[str] = (),
    ) -> None:
        """With `bare_nodes` a new node gets no taint for not being ready: where no controller would ever take it away.

        `etcd_dir` is where etcd keeps its data, beside everything else unless said otherwise. `more_controllers` run beside
        `only_controllers`, and `apiserver_options` are added to the API server's command line.
        """
        self.assets = assets
        self.work_dir = work_dir
        self.controllers = controllers
        self.bare_nodes = bare_nodes
        self.etcd_dir = etcd_dir or work_dir / "etcd"
        self._controllers = ",".join((only_controllers, *more_controllers))
        self._apiserver_options = apiserver_options
        self.admin_token = secrets.token_hex(16)
        self.etcd_port, self.etcd_peer_port, self.port = free_ports(3)
        self.url = f"https://127.0.0.1:{self.port}"
        self.ca_path = work_dir / "ca.crt"
        self.kubeconfig_path = work_dir / "kubeconfig"
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def etcd_pid(self) -> int:
        return self._children["etcd"].pid

    @property
    def apiserver_pid(self) -> int:
        return self._children["kube-apiserver"].pid

    @property
    def has_controller_manager(self) -> bool:
        return (self.assets / "kube-controller-manager").exists()

    def start(self) -> None:
        self.work_dir.mkdir(parents=True, exist_ok=True)
        _write_certificates(self.work_dir)
        (self.work_dir / "tokens.csv").write_text(f'{self.admin_token},admin,admin,"system:masters"\n')
        self.write_kubeconfig(self.kubeconfig_path)
        try:
            self._start_etcd()
            self._start_apiserver()
            if self.controllers and self.has_controller_manager:
                self._start_controller_manager()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        for name in reversed(list(self._children)):
            end(self._children.pop(name))

    def __enter__(self) -> ControlPlane:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def write_kubeconfig(self, path: Path) -> None:
        write_kubeconfig(path, server=self.url, ca=self.ca_path, token=self.admin_token, name="kubernetes")

    def _start_etcd(self) -> None:
        client, peer = f"http://127.0.0.1:{self.etcd_port}", f"http://127.0.0.1:{self.etcd_peer_port}"
        self._spawn(
            "etcd",
            f"--data-dir={self.etcd_dir}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
        )
        self._wait_for("etcd", lambda: b'"true"' in _fetch(f"{client}/health"))

    def _start_apiserver(self) -> None:
        work = self.work_dir
        self._spawn(
            "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{self.etcd_port}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--secure-port={self.port}",
            f"--cert-dir={work / 'certs'}",
            f"--tls-cert-file={work / 'server.crt'}",
            f"--tls-private-key-file={work / 'server.key'}",
            f"--client-ca-file={work / 'ca.crt'}",
            f"--token-auth-file={work / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            f"--disable-admission-plugins=ServiceAccount{',TaintNodesByCondition' if self.bare_nodes else ''}",
            "--delete-collection-workers=16",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={work / 'server.key'}",
            f"--service-account-signing-key-file={work / 'server.key'}",
            "--endpoint-reconciler-type=none",
            f"--kubelet-client-certificate={work / 'kubelet-client.crt'}",
            f"--kubelet-client-key={work / 'kubelet-client.key'}",
            "--kubelet-preferred-address-types=InternalIP,Hostname",
            *self._apiserver_options,
        )
        self._wait_for("kube-apiserver", lambda: self.fetch("/readyz") == b"ok")
        # Ready is said before the default namespace is there, and without it nothing can be written.
        self._wait_for("kube-apiserver", lambda: bool(self.fetch("/api/v1/namespaces/default")))

    def _start_controller_manager(self) -> None:
        self._spawn(
            "kube-controller-manager",
            f"--kubeconfig={self.kubeconfig_path}",
            "--leader-elect=false",
            f"--controllers={self._controllers}",
            f"--service-account-private-key-file={self.work_dir / 'server.key'}",
            f"--root-ca-file={self.ca_path}",
            f"--cert-dir={self.work_dir / 'certs'}",
            "--secure-port=0",
            "--kube-api-qps=500",
            "--kube-api-burst=1000",
            # Up to 1.23 there is an insecure port as well, the same for everyone unless it is switched off.
            *(["--port=0"] if self.minor_version < 24 else []),
        )

    @property
    def minor_version(self) -> int:
        version = msgspec.json.decode(self.fetch("/version"))
        return int("".join(c for c in version["minor"] if c.isdigit()) or 20)

    def restart_apiserver(self) -> None:
        """Wait for the end of a killed API server and start another on the same data and port."""
        self._children["kube-apiserver"].wait(STOP_TIMEOUT_S)
        self._start_apiserver()

    def fetch(self, path: str) -> bytes:
        context = ssl.create_default_context(cafile=str(self.ca_path))
        return _fetch(self.url + path, headers={"Authorization": f"Bearer {self.admin_token}"}, context=context)

    def _spawn(self, program: str, *arguments: str) -> None:
        self._children[program] = spawn([str(self.assets / program), *arguments], self.work_dir / f"{program}.log")

    def _wait_for(self, program: str, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if self._children[program].poll() is not None:
                break
            with contextlib.suppress(OSError):
                if ready():
                    return
            time.sleep(0.05)
        log = (self.work_dir / f"{program}.log").read_text(errors="replace").splitlines()[-15:]
        raise NotStarted(f"{program} did not become ready; its log ends:\n" + "\n".join(log))


@contextlib.contextmanager
def control_plane(work_dir: Path, *, build: bool, **options: Any) -> Iterator[ControlPlane]:
    plane = ControlPlane(find_assets(build=build), work_dir, **options)
    with plane:
        yield plane


def _fetch(url: str, *, headers: dict[str, str] | None = None, context: ssl.SSLContext | None = None) -> bytes:
    """The body of a good answer. Any other is an `OSError`: what says that something is not there names it too."""
    request = urllib.request.Request(url, headers=headers or {})
    with urllib.request.urlopen(request, timeout=5, context=context) as answer:
        body: bytes = answer.read()
        return body


def _write_certificates(work_dir: Path) -> None:
    """A CA, a server certificate for loopback and the one that logs are fetched from nodes with, good for a day: this control
    plane does not live longer."""
    now, day = wall_clock(), datetime.timedelta(days=1)
    ca_key, server_key, client_key = new_key(), new_key(), new_key()
    authority = Authority(self_signed("muster-test-ca", ca_key, now, day), ca_key)
    server = authority.issue(
        server_key,
        common_name="kube-apiserver",
        usage=ExtendedKeyUsageOID.SERVER_AUTH,
        names=("localhost", "127.0.0.1"),
        now=now,
        lifetime=day,
    )
    client = authority.issue(
        client_key, common_name=KUBELET_CLIENT, usage=ExtendedKeyUsageOID.CLIENT_AUTH, now=now, lifetime=day
    )
    made = (("ca", authority.certificate, ca_key), ("server", server, server_key), ("kubelet-client", client, client_key))
    for name, certificate, key in made:
        replace_file(work_dir / f"{name}.crt", cert_pem(certificate), 0o644)
        # The server's key signs service-account tokens too, and old API servers read such keys in this form only.
        form = serialization.PrivateFormat.TraditionalOpenSSL
        private = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
        replace_file(work_dir / f"{name}.key", private)
