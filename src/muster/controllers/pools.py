"""NodePool.status: which nodes are in the pool, what they have, what of it is promised and measured, and their devices.

Counted by the engine as it counts for placing (`engine.pool_use`); devices come from Device objects, and from plain resources
of nodes that have none. A status is written when the nodes or the promises have changed, at most every PERIOD_S for a pool.
What is measured never stands still: it alone is written only when something moved by more than MEASURED_STEP of the pool.

`status_of` and `plan` are pure. Concurrency: one worker on the loop; the engine is read between two of its steps. Only this
controller writes the status.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from muster.controllers.actions import PatchStatus, target_of
from muster.controllers.runtime import Caches, Controller, Plan, Watch
from muster.engine.facts import PoolFacts
from muster.engine.machine import Engine
from muster.engine.pool_use import Devices, PoolUse, plain_devices, pool_slots, pool_use
from muster.objects.amounts import amount_of, amount_text
from muster.objects.conditions import set_condition
from muster.objects.kinds.koordinator_scheduling import Device
from muster.objects.meta import generation_of
from muster.objects.status import Raw
from muster.objects.view import view_of
from muster.store.cache import ObjectKey

PERIOD_S: Final = 5.0
NOT_YET_S: Final = 2.0
NODES_MAX: Final = 1_000
"""Nodes that are named in the status; all of them count."""
MEASURED_STEP: Final = 0.05
LiveEngine = Callable[[], Engine | None]


def device_totals(devices: Iterable[Device]) -> list[Devices]:
    """Healthy devices by type, model and memory, and how many of each somebody has."""
    totals: dict[tuple[str, str, str], list[int]] = {}
    for device in devices:
        held = {
            (allocation.type, minor)
            for allocation in device.status.allocations
            for entry in allocation.entries
            for minor in entry.minors
        }
        for one in device.spec.devices:
            if not one.health:
                continue
            memory = next((str(v) for k, v in sorted(one.resources.items()) if k.endswith("gpu-memory")), "")
            model = next((v for k, v in sorted(one.labels.items()) if k.endswith("model")), "")
            sums = totals.setdefault((one.type, model, memory), [0, 0])
            sums[0] += 1
            sums[1] += (one.type, one.minor) in held
    return [Devices(type=t, model=m, memory=x, total=n[0], used=n[1]) for (t, m, x), n in sorted(totals.items())]


def status_of(use: PoolUse, devices: Sequence[Devices]) -> Raw:
    """The numbers of the status; amounts as people write them."""
    totals = use.totals
    return {
        "nodes": list(use.nodes[:NODES_MAX]),
        "ready": use.ready,
        "capacity": _texts(totals.capacity),
        "allocatable": _texts(totals.allocatable),
        "requested": _texts(totals.requested),
        "used": _texts(totals.used),
        "devices": [_device(one) for one in devices],
    }


def _device(one: Devices) -> Raw:
    shown: Raw = {"type": one.type, "total": one.total, "used": one.used}
    if one.model:
        shown["model"] = one.model
    if one.memory:
        shown["memory"] = one.memory
    return shown


def _texts(amounts: Mapping[str, int]) -> dict[str, str]:
    return {name: amount_text(name, amount) for name, amount in sorted(amounts.items())}


def plan(raw: Raw, use: PoolUse, devices: Sequence[Devices], now: float) -> list[PatchStatus]:
    known: Raw = raw.get("status") or {}
    new = status_of(use, devices)
    if not _has_moved(known.get("used") or {}, use.totals.used, use.totals.allocatable):
        new.pop("used")
    new["observedGeneration"] = generation_of(raw)
    count = len(use.nodes)
    new["conditions"] = set_condition(
        known.get("conditions"),
        type_="Ready",
        status="True" if use.ready else "False",
        now=now,
        reason="Ready" if use.ready else "NoNode" if not count else "NodesNotReady",
        message=f"{use.ready} of {count} nodes can take work"
        if count
        else "no node is in it; see spec.selector and spec.nodes",
        observed_generation=generation_of(raw),
    )
    change = {key: value for key, value in new.items() if (known.get(key) or None) != (value or None)}
    for word in ("capacity", "allocatable", "requested", "used"):
        if word in change:  # a merge patch keeps what is not named
            change[word] = {**dict.fromkeys(set(known.get(word) or {}) - set(change[word])), **change[word]}
    return [PatchStatus(target_of(raw), change)] if change else []


def _has_moved(written: Mapping[str, object], used: Mapping[str, int], allocatable: Mapping[str, int]) -> bool:
    """Whether measured use is another than what is written, by more than a twentieth of what there is."""
    if set(written) != set(used):
        return True
    for name, amount in used.items():
        try:
            before = amount_of(name, str(written[name]))
        except ValueError:
            return True
        if abs(amount - before) > MEASURED_STEP * max(allocatable.get(name, 0), 1):
            return True
    return False


# -- the controller -----------------------------------------------------------------------------------------------------------

POOLS = Watch(group="muster.dev", kind="NodePool", view=PoolFacts)
DEVICES = Watch(group="scheduling.koordinator.sh", kind="Device", view=Device, keys=lambda _device, _caches: ())


class PoolKeeper(Controller):
    """Keys are NodePools. `engine` is the scheduler's, None while it does not run here."""

    name = "node-pools"
    watches = (POOLS, DEVICES)

    def __init__(self, engine: LiveEngine) -> None:
        self._engine = engine

    def reconcile(self, key: ObjectKey, caches: Caches, now: float) -> Plan:
        cached, engine = caches[POOLS].get(key), self._engine()
        if cached is None or cached.deleting:
            return Plan()
        if engine is None:
            return Plan((), NOT_YET_S)
        state = engine.state
        slots = pool_slots(state, cached.view(PoolFacts))
        known = {slot: device for slot in slots if (device := caches[DEVICES].get(ObjectKey("", state.nodes.names[slot])))}
        devices = device_totals(_readable(one.raw for one in known.values()))
        devices += plain_devices(state, [slot for slot in slots if slot not in known])
        return Plan(plan(cached.raw, pool_use(state, slots), devices, now), PERIOD_S)


def _readable(raws: Iterable[Raw]) -> Iterable[Device]:
    for raw in raws:
        try:
            yield view_of(Device, raw)
        except msgspec.ValidationError:
            continue  # another server let it in; what can't be read can't be counted
