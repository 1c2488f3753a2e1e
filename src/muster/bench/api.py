"""The API benchmark: what a durable write, a list and a watch cost, here and on kube-apiserver + etcd, in one run.

TLS, authentication and RBAC are on at both. The servers run in turn, never together, for several rounds; each line reports
the best round of each, because on a shared machine the best is the least disturbed. `bound_by` is read from where the CPU
time went during the line.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from muster.bench.kubernetes import NotAvailable, find_assets
from muster.bench.load import Outcome, Plan
from muster.bench.targets import Target, kubernetes_server, muster_server

Say = Callable[[str], None]


class Line(msgspec.Struct, frozen=True):
    """One measured line: its name, what it does, how often, and by how many at once."""

    name: str
    kind: str
    count: int
    clients: int = 1
    watchers: int = 0
    unit: str = "1/s"


UPDATED = 500
"""Pods made by one client, which the update lines then change; the rest of the 5,000 is made by 64 clients."""


def lines(scale: float) -> list[Line]:
    """At scale 1 the list holds 5,000 pods and every line takes a few seconds on two cores."""

    def scaled(count: int) -> int:
        return max(1, int(count * scale))

    one, many = scaled(UPDATED), scaled(4500)
    return [
        Line("create, 1 client", "create", one),
        Line("create, 64 clients", "create", many, clients=64),
        Line("update, 1 client", "update", one),
        Line("update, 64 clients", "update", scaled(4000), clients=64),
        Line(f"list of {one + many:,} pods", "list", scaled(10)),
        Line("watch fan-out, 100 watchers", "fanout", scaled(500), clients=16, watchers=100, unit="events/s"),
    ]


class Measured(msgspec.Struct, kw_only=True):
    """One line of the report, as `--json` prints it."""

    scenario: str
    line: str
    on: str
    unit: str
    value: float
    p50_ms: float | None = None
    p99_ms: float | None = None
    peer: str | None = None
    peer_value: float | None = None
    ratio: float | None = None
    """How many times better than the peer: above 1 is better, for times and memory too."""
    bound_by: str = ""


class _Sample(msgspec.Struct, kw_only=True):
    value: float
    p50_ms: float | None = None
    p99_ms: float | None = None
    bound_by: str = ""


def run(*, scale: float, rounds: int, say: Say) -> list[Measured]:
    """Measure every line on Muster and, where its binaries are here, on Kubernetes."""
    servers: dict[str, Callable[[Path], contextlib.AbstractContextManager[Target]]] = {"embedded": muster_server}
    try:
        assets = find_assets(build=False)
        servers["kubernetes"] = lambda work_dir: kubernetes_server(work_dir, assets)
    except NotAvailable as missing:
        say(f"no peer in this run: {missing}")
    samples: dict[tuple[str, str], list[_Sample]] = {}
    for number in range(rounds):
        for name, server in servers.items():
            with tempfile.TemporaryDirectory(prefix="muster-bench-") as directory, server(Path(directory)) as target:
                say(f"round {number + 1} of {rounds}: {target.name}, ready after {target.ready_s:.2f} s")
                for line, sample in _measure(target, scale, say):
                    samples.setdefault((line, name), []).append(sample)
    return list(_report(samples, lines(scale)))


def _measure(target: Target, scale: float, say: Say) -> Iterator[tuple[str, _Sample]]:
    yield "time to ready", _Sample(value=target.ready_s)
    yield "memory, idle", _Sample(value=target.resident_mb())
    for line in lines(scale):
        plan = Plan(
            url=target.url,
            ca_path=str(target.ca_path),
            token=target.token,
            line=line.kind,
            prefix=f"create-{line.clients}" if line.kind == "create" else "create-1",
            count=line.count,
            clients=line.clients,
            watchers=line.watchers,
            existing=max(1, int(UPDATED * scale)),
        )
        server_cpu = target.cpu_s()
        outcome = _load(plan)
        server_cpu = target.cpu_s() - server_cpu
        value = outcome.operations / outcome.seconds
        say(f"  {line.name}: {value:,.0f} {line.unit}, p50 {outcome.p50_ms:.2f} ms, p99 {outcome.p99_ms:.2f} ms")
        yield (
            line.name,
            _Sample(value=value, p50_ms=outcome.p50_ms, p99_ms=outcome.p99_ms, bound_by=_bound(outcome, server_cpu)),
        )
    yield "memory, after load", _Sample(value=target.resident_mb())


def _load(plan: Plan) -> Outcome:
    command = [sys.executable, "-m", "muster.bench.load", msgspec.json.encode(plan).decode()]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"load {plan.line} on {plan.url} failed: {done.stderr.decode(errors='replace')[-2000:]}")
    return msgspec.json.decode(done.stdout, type=Outcome)


def _bound(outcome: Outcome, server_cpu_s: float) -> str:
    server, load = server_cpu_s / outcome.seconds, outcome.load_cpu_s / outcome.seconds
    if max(server, load) < 0.7:
        what = "waiting (disk flush and round trips)"
    elif server >= load:
        what = "the server's CPU"
    else:
        what = "the load generator's CPU"
    return f"{what}; cores busy: server {server:.2f}, load {load:.2f}"


def _report(samples: dict[tuple[str, str], list[_Sample]], measured_lines: Sequence[Line]) -> Iterator[Measured]:
    smaller_is_better = {"time to ready": "s", "memory, idle": "MB", "memory, after load": "MB"}
    units = {line.name: line.unit for line in measured_lines} | smaller_is_better
    for name in [*units]:
        pick = min if name in smaller_is_better else max
        ours = samples.get((name, "embedded"))
        if not ours:
            continue
        best = pick(ours, key=lambda s: s.value)
        measured = Measured(
            scenario="api",
            line=name,
            on="embedded",
            unit=units[name],
            value=best.value,
            p50_ms=best.p50_ms,
            p99_ms=best.p99_ms,
            bound_by=best.bound_by,
        )
        if theirs := samples.get((name, "kubernetes")):
            peer = pick(theirs, key=lambda s: s.value)
            measured.peer = "kube-apiserver + etcd"
            measured.peer_value = peer.value
            measured.ratio = peer.value / best.value if name in smaller_is_better else best.value / peer.value
        yield measured
