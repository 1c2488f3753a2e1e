"""The API benchmark: what requests cost here and on kube-apiserver + etcd, in one run.

Both are API servers alone, with TLS, authentication and RBAC on, and both flush every write to the same disk before they answer
it. They run in turn, never together, for several rounds, and take turns in going first; a line's ratio is the median of the
rounds' ratios, its figures the medians of the rounds. The servers' CPU time per operation is reported beside the rates: on a
shared machine it says more.
"""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from muster.bench.kubernetes import NotAvailable, find_assets
from muster.bench.load import Outcome, Plan
from muster.bench.targets import Target, kubernetes_server, muster_server, work_directory

Say = Callable[[str], None]
OURS, PEER = "embedded", "kubernetes"
PEER_NAME = "kube-apiserver + etcd"


class Line(msgspec.Struct, frozen=True):
    """One measured line: its name, what it does (a method of `Load`), to which pods, how often, and by how many at once."""

    name: str
    kind: str
    prefix: str
    count: int
    clients: int = 1
    watchers: int = 0
    existing: int = 0
    unit: str = "1/s"


ONE, MANY = 500, 4500
"""Pods made by one client, which are updated afterwards, and by 64 clients, which are bound."""

_WARM_UP = Line("", "warm", "warm", 200, clients=16)

READY, READY_AGAIN = "time to ready, first start", "time to ready, with those pods"
IDLE, LOADED, AFTER = "memory, idle", "memory, with those pods", "memory, after all lines"
_SMALLER_IS_BETTER = {READY: "s", READY_AGAIN: "s", IDLE: "MB", LOADED: "MB", AFTER: "MB"}


def lines(scale: float) -> list[Line]:
    """At scale 1 there are 5,000 pods and every line takes a few seconds on two cores."""

    def scaled(count: int) -> int:
        return max(1, int(count * scale))

    one, many = scaled(ONE), scaled(MANY)
    return [
        Line("create, 1 client", "create", "one", one),
        Line("create, 64 clients", "create", "many", many, clients=64),
        Line(f"list of {one + many:,} pods", "list", "", scaled(10)),
        Line("get, 1 client", "get", "many", scaled(2000), existing=many),
        Line("get, 64 clients", "get", "many", scaled(10000), clients=64, existing=many),
        Line("update, 1 client", "update", "one", one, existing=one),
        Line("update, 64 clients", "update", "one", scaled(4000), clients=64, existing=one),
        Line("watch fan-out, 100 watchers", "fanout", "one", one, clients=16, watchers=100, existing=one, unit="events/s"),
        Line("binding, 64 in flight", "bind", "many", scaled(4000), clients=64, existing=many),
        Line("apply of new pods, 1 client", "apply", "applied-one", one),
        Line("apply of new pods, 64 clients", "apply", "applied-many", scaled(3000), clients=64),
        Line("apply again, changed, 1 client", "reapply", "applied-one", one),
        Line("apply again, changed, 64 clients", "reapply", "applied-many", scaled(3000), clients=64),
    ]


def line_names(scale: float) -> list[str]:
    """All lines of the report, in its order."""
    return [line.name for line in lines(scale)] + list(_SMALLER_IS_BETTER)


class Measured(msgspec.Struct, kw_only=True):
    """One line of the report, as `--json` prints it. Medians of the rounds."""

    scenario: str = "api"
    line: str
    on: str = OURS
    unit: str
    value: float
    p50_ms: float | None = None
    p99_ms: float | None = None
    cpu_ms: float | None = None
    """CPU time of the server per operation: for the peer, of both its processes."""
    load_cpu_ms: float | None = None
    """CPU time of the load's process per operation."""
    peer: str | None = None
    peer_value: float | None = None
    peer_p50_ms: float | None = None
    peer_p99_ms: float | None = None
    peer_cpu_ms: float | None = None
    peer_bound_by: str = ""
    ratio: float | None = None
    """How many times better than the peer, median of the rounds: above 1 is better, for times and memory too."""
    ratios: list[float] = []
    cpu_ratio: float | None = None
    """The peer's CPU time per operation to ours."""
    bound_by: str = ""


class _Sample(msgspec.Struct, kw_only=True):
    value: float
    p50_ms: float | None = None
    p99_ms: float | None = None
    cpu_ms: float | None = None
    load_cpu_ms: float | None = None
    bound_by: str = ""


Samples = dict[tuple[str, str], list[_Sample]]
ServerMaker = Callable[[Path], contextlib.AbstractContextManager[Target]]


def run(*, scale: float, rounds: int, say: Say) -> list[Measured]:
    """Measure every line on Muster and, where its binaries are here, on Kubernetes."""
    servers: list[tuple[str, ServerMaker]] = [(OURS, muster_server)]
    try:
        assets = find_assets(build=False)
        servers.append((PEER, lambda work_dir: kubernetes_server(work_dir, assets)))
    except NotAvailable as missing:
        say(f"no peer in this run: {missing}")
    samples: Samples = {}
    for number in range(rounds):
        for name, server in servers[:: 1 if number % 2 == 0 else -1]:
            with work_directory() as directory, server(directory) as target:
                say(f"round {number + 1} of {rounds}: {target.name}, ready after {target.ready_s:.2f} s")
                for line, sample in _measure(target, scale, say):
                    samples.setdefault((line, name), []).append(sample)
    return list(_report(samples, scale))


def _measure(target: Target, scale: float, say: Say) -> Iterator[tuple[str, _Sample]]:
    yield READY, _Sample(value=target.ready_s)
    yield IDLE, _Sample(value=target.resident_mb())
    _load(_plan(target, _WARM_UP))
    for line in lines(scale):
        outcome = _load(_plan(target, line))
        sample = _sample(outcome)
        say(
            f"  {line.name}: {sample.value:,.0f} {line.unit}, p50 {outcome.p50_ms:.2f} ms, p99 {outcome.p99_ms:.2f} ms, "
            f"CPU {sample.cpu_ms:.3f} ms; {sample.bound_by}"
        )
        yield line.name, sample
        if line.kind == "create" and line.clients > 1:
            yield LOADED, _Sample(value=target.resident_mb())
    yield AFTER, _Sample(value=target.resident_mb())
    yield READY_AGAIN, _Sample(value=target.restart())


def _plan(target: Target, line: Line) -> Plan:
    return Plan(
        url=target.url,
        ca_path=str(target.ca_path),
        cert_path=str(target.cert_path),
        key_path=str(target.key_path),
        line=line.kind,
        prefix=line.prefix,
        count=line.count,
        clients=line.clients,
        watchers=line.watchers,
        existing=line.existing,
        pids=list(target.pids),
    )


def _load(plan: Plan) -> Outcome:
    command = [sys.executable, "-m", "muster.bench.load", msgspec.json.encode(plan).decode()]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"load {plan.line} on {plan.url} failed: {done.stderr.decode(errors='replace')[-2000:]}")
    return msgspec.json.decode(done.stdout, type=Outcome)


def _sample(outcome: Outcome) -> _Sample:
    server_s = sum(outcome.server_cpu_s)
    return _Sample(
        value=outcome.operations / outcome.seconds,
        p50_ms=outcome.p50_ms,
        p99_ms=outcome.p99_ms,
        cpu_ms=1000 * server_s / outcome.operations,
        load_cpu_ms=1000 * outcome.load_cpu_s / outcome.operations,
        bound_by=_bound(outcome, server_s),
    )


def _bound(outcome: Outcome, server_s: float) -> str:
    """What took the time. `others` is work on the machine that is not part of the run."""
    server, load = server_s / outcome.seconds, outcome.load_cpu_s / outcome.seconds
    others = max(0.0, outcome.machine_busy_s - server_s - outcome.load_cpu_s) / outcome.seconds
    if max(server, load) < 0.7:
        what = "other work on the machine" if others > 1 else "waiting (disk flush and round trips)"
    elif server >= load:
        what = "the server's CPU"
    else:
        what = "the load generator's CPU"
    return f"{what}; cores busy: server {server:.2f}, load {load:.2f}, others {others:.2f}"


def _report(samples: Samples, scale: float) -> Iterator[Measured]:
    units = {line.name: line.unit for line in lines(scale)} | _SMALLER_IS_BETTER
    for name, unit in units.items():
        ours, theirs = samples.get((name, OURS)), samples.get((name, PEER))
        if not ours:
            continue
        measured = Measured(
            line=name,
            unit=unit,
            value=statistics.median(sample.value for sample in ours),
            p50_ms=_median([sample.p50_ms for sample in ours]),
            p99_ms=_median([sample.p99_ms for sample in ours]),
            cpu_ms=_median([sample.cpu_ms for sample in ours]),
            load_cpu_ms=_median([sample.load_cpu_ms for sample in ours]),
            bound_by=ours[-1].bound_by,
        )
        if theirs:
            pairs = list(zip(ours, theirs, strict=True))
            is_small = name in _SMALLER_IS_BETTER
            measured.peer = PEER_NAME
            measured.peer_value = statistics.median(sample.value for sample in theirs)
            measured.peer_p50_ms = _median([sample.p50_ms for sample in theirs])
            measured.peer_p99_ms = _median([sample.p99_ms for sample in theirs])
            measured.peer_cpu_ms = _median([sample.cpu_ms for sample in theirs])
            measured.peer_bound_by = theirs[-1].bound_by
            measured.ratios = [b.value / a.value if is_small else a.value / b.value for a, b in pairs]
            measured.ratio = statistics.median(measured.ratios)
            measured.cpu_ratio = _median([b.cpu_ms / a.cpu_ms if a.cpu_ms and b.cpu_ms else None for a, b in pairs])
        yield measured


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
