"""What pools of nodes have and who uses it, in tables: for `muster pool`. Pure: an engine's state goes in, rows come out.

The state is that of an engine which was filled from objects, or replayed from a log up to a past moment: the same figures,
counted in the same way as the scheduler counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from muster.engine.facts import PoolFacts
from muster.engine.pool_use import (
    GPUS,
    Devices,
    Totals,
    Use,
    is_ready,
    plain_devices,
    pool_slots,
    pool_use,
    totals_of,
    uses,
)
from muster.engine.state import State
from muster.objects.amounts import limit_amounts, resources_named, unit_of
from muster.objects.meta import name_of
from muster.objects.reasons import format_amount
from muster.objects.status import Raw

By = Literal["user", "job", "queue", "node", "pod"]
SHOWN: Final = ("cpu", "memory", "bandwidth-egress", "bandwidth-ingress")
"""Resources that every pool is shown with; devices where there are some."""
NAMED_MAX: Final = 4
NO_POOL: Final = "(in no pool)"


class Holding(msgspec.Struct, frozen=True, rename="camel"):
    """What somebody holds in a pool: a user, a job, a queue, a pod; or what is held on a node, and by whom."""

    who: str
    pods: int
    others: tuple[str, ...]
    """The nodes that it is on; for a node, the users."""
    request: dict[str, int]


class PoolRow(msgspec.Struct, frozen=True, rename="camel"):
    pool: str
    nodes: tuple[str, ...]
    ready: int
    totals: Totals
    devices: tuple[Devices, ...]


class NodeRow(msgspec.Struct, frozen=True, rename="camel"):
    node: str
    is_ready: bool
    totals: Totals
    devices: tuple[Devices, ...]


def pool_rows(state: State) -> list[PoolRow]:
    """Every pool, then the nodes that are in none."""
    slots_of = {name: pool_slots(state, pool) for name, pool in sorted(state.pools.items())}
    within = {slot for slots in slots_of.values() for slot in slots}
    outside = [slot for slot in range(len(state.nodes.names)) if slot not in within]
    if outside:
        slots_of[NO_POOL] = outside
    return [_pool_row(state, name, slots) for name, slots in slots_of.items()]


def _pool_row(state: State, name: str, slots: Sequence[int]) -> PoolRow:
    use = pool_use(state, slots)
    return PoolRow(name, use.nodes, use.ready, use.totals, tuple(plain_devices(state, slots)))


def node_rows(state: State, pool: PoolFacts) -> list[NodeRow]:
    nodes = state.nodes
    return [
        NodeRow(nodes.names[s], is_ready(nodes.facts[s]), totals_of(state, [s]), tuple(plain_devices(state, [s])))
        for s in pool_slots(state, pool)
    ]


def written_rows(pools: Iterable[Raw]) -> list[PoolRow]:
    """Every pool as its status has it: for those who may see pools and not the nodes and pods of others."""
    found = []
    for raw in sorted(pools, key=name_of):
        status = raw.get("status") or {}
        totals = Totals(**{word: _read(status.get(word) or {}) for word in ("capacity", "allocatable", "requested", "used")})
        devices = tuple(
            Devices(
                type=str(one.get("type")),
                model=str(one.get("model") or ""),
                memory=str(one.get("memory") or ""),
                total=int(one.get("total") or 0),
                used=int(one.get("used") or 0),
            )
            for one in status.get("devices") or ()
        )
        nodes = tuple(status.get("nodes") or ())
        found.append(PoolRow(name_of(raw), nodes, int(status.get("ready") or 0), totals, devices))
    return found


def _read(amounts: Mapping[str, str]) -> dict[str, int]:
    return {name: limit_amounts(name, text)[name] for name, text in amounts.items() if resources_named(name) == (name,)}


def holdings(found: Iterable[Use], by: By) -> list[Holding]:
    """Who uses what, or what is used by whom."""
    keys: dict[By, Callable[[Use], str]] = {
        "user": lambda use: use.work.user or f"(namespace {use.namespace})",
        "job": lambda use: use.work.job.removeprefix("Job/") or use.unit,
        "queue": lambda use: use.work.queue or "(default)",
        "node": lambda use: use.node,
        "pod": lambda use: f"{use.namespace}/{use.pod}",
    }
    sums: dict[str, list[Use]] = {}
    for use in found:
        sums.setdefault(keys[by](use), []).append(use)
    other = keys["user"] if by == "node" else keys["node"]
    return [
        Holding(who, len(some), tuple(sorted({other(use) for use in some})), _sum(use.request for use in some))
        for who, some in sorted(sums.items())
    ]


def _sum(requests: Iterable[Mapping[str, int]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for request in requests:
        for name, amount in request.items():
            found[name] = found.get(name, 0) + amount
    return found


# -- as text ------------------------------------------------------------------------------------------------------------------


def pools_table(rows: Sequence[PoolRow]) -> tuple[list[str], list[list[Any]]]:
    """Headers and rows: `held/all` of each resource."""
    headers = ["POOL", "NODES", "READY", "CPU", "MEMORY", "EGRESS", "INGRESS", "GPUS", "CPU USED", "MEMORY USED"]
    return headers, [
        [
            row.pool,
            len(row.nodes),
            row.ready,
            *(_of(row.totals, name) for name in SHOWN),
            _devices(row.devices),
            *(_amount(name, row.totals.used.get(name)) for name in ("cpu", "memory")),
        ]
        for row in rows
    ]


def nodes_table(rows: Sequence[NodeRow]) -> tuple[list[str], list[list[Any]]]:
    headers = ["NODE", "READY", "CPU", "MEMORY", "EGRESS", "INGRESS", "GPUS", "CPU USED", "MEMORY USED"]
    return headers, [
        [
            row.node,
            "yes" if row.is_ready else "no",
            *(_of(row.totals, name) for name in SHOWN),
            _devices(row.devices),
            *(_amount(name, row.totals.used.get(name)) for name in ("cpu", "memory")),
        ]
        for row in rows
    ]


def holdings_table(rows: Sequence[Holding], by: By) -> tuple[list[str], list[list[Any]]]:
    headers = [by.upper(), "PODS", "CPU", "MEMORY", "EGRESS", "INGRESS", "GPUS", "USERS" if by == "node" else "NODES"]
    return headers, [
        [
            row.who,
            row.pods,
            *(_amount(name, row.request.get(name)) for name in SHOWN),
            sum(row.request.get(name, 0) for name in GPUS) or "",
            _named(row.others),
        ]
        for row in rows
    ]


def _devices(devices: Sequence[Devices]) -> str:
    """`3/8`; with models and memory where they are known: `2/4 A100 40Gi, 1/4 V100`."""
    return ", ".join(" ".join(filter(None, (f"{one.used}/{one.total}", one.model, one.memory))) for one in devices)


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return ", ".join(names[:NAMED_MAX]) + more


def _of(totals: Totals, name: str) -> str:
    total = totals.allocatable.get(name, 0)
    return f"{_amount(name, totals.requested.get(name, 0))}/{_amount(name, total)}" if total else ""


def _amount(name: str, amount: int | None) -> str:
    return "" if amount is None else format_amount(amount, unit_of(name))


def found_uses(state: State, nodes: Iterable[str]) -> list[Use]:
    return list(uses(state, nodes))
