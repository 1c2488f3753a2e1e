"""The fairness benchmark: what one user's requests take alone, and beside each kind of flood from another user.

The server, the flood and the quiet user are processes of their own, with TLS, authentication and RBAC on. On a machine with few
cores the flood's own work slows the others down as well; that is part of the figures.
"""

from __future__ import annotations

import contextlib
import json
import ssl
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from muster.bench.fairness_load import Quiet, Side
from muster.bench.load import Plan
from muster.bench.targets import Target, muster_server

Say = Callable[[str], None]
FLOODS = (
    ("alone", "", 0),
    ("{:,} connections that get in a loop", "gets", 200),
    ("{:,} watchers of all pods", "watchers", 1000),
    ("{:,} watchers that read nothing", "deaf", 200),
    ("{:,} loops of lists of all pods", "lists", 16),
)
"""What is beside the quiet user: in words, its kind, and its connections at scale 1."""
STOCK = 2000
QUIET = 300
_ACCOUNTS = "/api/v1/namespaces/default/serviceaccounts"


class FairnessLine(msgspec.Struct, kw_only=True):
    beside: str
    get_p50_ms: float
    get_p99_ms: float
    create_p50_ms: float
    create_p99_ms: float
    get_ratio: float
    """p99 beside the flood to p99 alone."""
    create_ratio: float
    resident_mb: float
    """Of the server, after it."""


def run(*, scale: float, say: Say) -> Iterator[FairnessLine]:
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as directory, muster_server(Path(directory)) as target:
        api = _Api(target)
        quiet, flood = api.account("quiet"), api.account("flood")
        _stock(target, max(1, int(STOCK * scale)))
        alone: Quiet | None = None
        for number, (words, kind, count) in enumerate(FLOODS):
            connections = max(1, int(count * scale))
            beside = words.format(connections)
            with _flood(target, flood, kind, connections):
                found = _quiet(target, quiet, f"quiet-{number}", max(20, int(QUIET * scale)))
            alone = alone or found
            line = FairnessLine(
                beside=beside,
                get_p50_ms=found.get_p50_ms,
                get_p99_ms=found.get_p99_ms,
                create_p50_ms=found.create_p50_ms,
                create_p99_ms=found.create_p99_ms,
                get_ratio=found.get_p99_ms / alone.get_p99_ms,
                create_ratio=found.create_p99_ms / alone.create_p99_ms,
                resident_mb=target.resident_mb(),
            )
            say(f"{beside}: get p99 {line.get_p99_ms:.1f} ms, create p99 {line.create_p99_ms:.1f} ms")
            yield line


class _Api:
    """A few requests as the administrator."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._tls = ssl.create_default_context(cafile=str(target.ca_path))

    def call(self, method: str, path: str, body: Any) -> Any:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {self._target.admin_token}", "Content-Type": "application/json"}
        request = urllib.request.Request(self._target.url + path, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=60, context=self._tls) as answer:
            return json.load(answer)

    def account(self, name: str) -> str:
        """A service account that may do everything, and its token."""
        self.call("POST", _ACCOUNTS, {"metadata": {"name": name}})
        binding = {
            "metadata": {"name": f"bench-{name}"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"kind": "ServiceAccount", "namespace": "default", "name": name}],
        }
        self.call("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding)
        found = self.call("POST", f"{_ACCOUNTS}/{name}/token", {"spec": {"expirationSeconds": 7200}})
        return str(found["status"]["token"])


def _stock(target: Target, count: int) -> None:
    """Pods `stock-0` and on, for lists to have something to list."""
    plan = Plan(
        url=target.url,
        ca_path=str(target.ca_path),
        cert_path=str(target.cert_path),
        key_path=str(target.key_path),
        line="create",
        prefix="stock",
        count=count,
        clients=8,
    )
    command = [sys.executable, "-m", "muster.bench.load", msgspec.json.encode(plan).decode()]
    subprocess.run(command, capture_output=True, check=True, timeout=600)


def _command(target: Target, token: str, kind: str, count: int, prefix: str = "") -> list[str]:
    side = Side(url=target.url, ca_path=str(target.ca_path), token=token, kind=kind, count=count, prefix=prefix)
    return [sys.executable, "-m", "muster.bench.fairness_load", msgspec.json.encode(side).decode()]


def _quiet(target: Target, token: str, prefix: str, count: int) -> Quiet:
    done = subprocess.run(
        _command(target, token, "quiet", count, prefix), capture_output=True, text=True, check=False, timeout=600
    )
    if done.returncode:
        raise RuntimeError(f"the quiet side failed: {done.stderr[-1000:]}")
    return msgspec.json.decode(done.stdout, type=Quiet)


@contextlib.contextmanager
def _flood(target: Target, token: str, kind: str, count: int) -> Iterator[None]:
    if not kind:
        yield
        return
    child = subprocess.Popen(_command(target, token, kind, count), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        if child.stdout.readline().strip() != "ready":
            raise RuntimeError(f"the flood of {kind} did not begin; it ended with {child.wait(60)}")
        yield
        if child.poll() is not None:
            raise RuntimeError(f"the flood of {kind} ended by itself with {child.returncode}")
    finally:
        child.stdin.close()
        try:
            child.wait(30)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait(30)
