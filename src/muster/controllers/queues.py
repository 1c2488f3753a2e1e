"""Queue.status: how much waits and runs in a queue, the queues below it included; who is next; whether it can work at all.

The numbers come from the engine that decides (`policy.places`), so they are those that the order goes by. A status is written
when it differs from what is there, and for one queue at most every PERIOD_S: a queue that drains is not written once for each
job. `status_of` is pure.

Condition `Ready` is False when its parents form a circle or are missing, or when its policy or one of its pools does not exist.

Concurrency: a few workers on the loop; the engine is read between two of its steps. Only this controller writes the status.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from muster.controllers.actions import PatchStatus, target_of
from muster.controllers.runtime import ByName, Caches, Controller, Plan, Watch
from muster.engine.machine import Engine
from muster.objects.amounts import amount_text
from muster.objects.conditions import set_condition
from muster.objects.kinds.muster_queues import Queue
from muster.objects.meta import generation_of
from muster.objects.reason_codes import Reason
from muster.objects.status import Raw
from muster.objects.view import View
from muster.policy.places import Line, places_of
from muster.store.cache import Cached, ObjectKey

PERIOD_S: Final = 5.0
NOT_YET_S: Final = 2.0
DEPTH_MAX: Final = 64
LiveEngine = Callable[[], Engine | None]
SHOWN_RESOURCES_MAX: Final = 64


class Tree(msgspec.Struct, frozen=True):
    """The queues by name with their parents, and what else there is by name."""

    parents: Mapping[str, str]
    policies: Container[str] = frozenset()
    pools: Container[str] = frozenset()

    def above(self, name: str) -> list[str]:
        """The queues over it, the nearest first; ends where the tree does, or goes in a circle."""
        found: list[str] = []
        while (name := self.parents.get(name, "")) and name not in found and len(found) < DEPTH_MAX:
            found.append(name)
        return found


def gathered(lines: Mapping[str, Line], tree: Tree) -> dict[str, list[Line]]:
    """For each queue the lines of itself and of all queues under it; in one pass, since there may be a thousand of them."""
    found: dict[str, list[Line]] = {}
    for name, line in lines.items():
        for one in dict.fromkeys((name, *tree.above(name))):
            found.setdefault(one, []).append(line)
    return found


def problem_of(queue: Queue, tree: Tree) -> str:
    """Why it can't work as it is written, all of it; empty when it can."""
    name, spec = queue.metadata.name, queue.spec
    above = tree.above(name)
    found: list[str] = []
    if name in above:
        found.append(f"spec.parent: {name} is below itself ({' < '.join([name, *above])}); give one of them another parent")
    elif missing := [one for one in above if one not in tree.parents]:
        found.append(f"spec.parent: there is no Queue {missing[0]}; create it, or leave parent out")
    if spec.policy not in tree.policies:
        found.append(f"spec.policy: there is no SchedulingPolicy {spec.policy}; create it, or name another")
    if gone := [pool for pool in spec.pools if pool not in tree.pools]:
        found.append(f"spec.pools: there is no NodePool {gone[0]}; create it, or name another")
    return "; ".join(found)


def status_of(lines: Iterable[Line]) -> Raw:
    """The numbers. `lines` are those of the queue itself and of all below it."""
    running: dict[str, int] = {}
    submitted: dict[str, int] = {}
    counts = {"jobsRunning": 0, "jobsWaiting": 0}
    held = 0
    for line in lines:
        counts["jobsRunning"] += line.running
        counts["jobsWaiting"] += line.waiting
        held += line.held
        for resource, amount in line.running_request.items():
            running[resource] = running.get(resource, 0) + amount
        for amounts in (line.running_request, line.waiting_request):
            for resource, amount in amounts.items():
                submitted[resource] = submitted.get(resource, 0) + amount
    usage: Raw = {**counts, "concurrent": _texts(running), "submitted": _texts(submitted)}
    return {"usage": usage, "held": held}


def _texts(amounts: Mapping[str, int]) -> dict[str, str]:
    some = sorted((resource, amount) for resource, amount in amounts.items() if amount)[:SHOWN_RESOURCES_MAX]
    return {resource: amount_text(resource, amount) for resource, amount in some}


def plan(raw: Raw, queue: Queue, tree: Tree, lines: Mapping[str, Sequence[Line]] | None, now: float) -> list[PatchStatus]:
    """What to write. `lines` are `gathered`, None while no scheduler runs here: then the numbers stay as they are."""
    known: Raw = raw.get("status") or {}
    problem = problem_of(queue, tree)
    new: Raw = {"observedGeneration": generation_of(raw)}
    if lines is not None:
        some = lines.get(queue.metadata.name, ())
        found = status_of(some)
        old = known.get("usage") or {}
        # What a ledger adds to the same table stays.
        gone = {
            word: dict.fromkeys(set(old.get(word) or {}) - set(found["usage"][word])) for word in ("concurrent", "submitted")
        }
        new["held"] = found["held"]
        if any(old.get(word) != value for word, value in found["usage"].items()):
            new["usage"] = {**found["usage"], **{word: {**gone[word], **found["usage"][word]} for word in gone}}
    new["conditions"] = set_condition(
        known.get("conditions"),
        type_="Ready",
        status="False" if problem else "True",
        now=now,
        reason=Reason.MANIFEST_INVALID.value if problem else "Ready",
        message=problem or "takes and starts work",
        observed_generation=generation_of(raw),
    )
    # Whose work is next is not for everybody who may read the queue; earlier releases wrote it.
    new["head"] = None
    change = {key: value for key, value in new.items() if (known.get(key) or None) != (value or None)}
    return [PatchStatus(target_of(raw), change)] if change else []


# -- the controller -----------------------------------------------------------------------------------------------------------


class _Named(View):
    pass


def _all_queues(_obj: Cached, caches: Caches) -> Iterable[ObjectKey]:
    return [queue.key for queue in caches[QUEUES]]


QUEUES = Watch(group="muster.dev", kind="Queue", view=Queue)
POLICIES = Watch(group="muster.dev", kind="SchedulingPolicy", view=_Named, keep="nothing", keys=_all_queues)
POOLS = Watch(group="muster.dev", kind="NodePool", view=_Named, keep="nothing", keys=_all_queues)


class QueueKeeper(Controller):
    """Keys are Queues. `engine` is the scheduler's, None while it does not run here."""

    name = "queues"
    watches = (QUEUES, POLICIES, POOLS)

    def __init__(self, engine: LiveEngine) -> None:
        self._engine = engine
        self._lines: Mapping[str, Sequence[Line]] | None = None
        self._read_at = -PERIOD_S

    def reconcile(self, key: ObjectKey, caches: Caches, now: float) -> Plan:
        cached = caches[QUEUES].get(key)
        if cached is None or cached.deleting:
            return Plan()
        parents = ByName(caches[QUEUES], lambda one: one.view(Queue).spec.parent)
        tree = Tree(parents, ByName(caches[POLICIES], _name), ByName(caches[POOLS], _name))
        engine, lines = self._engine(), self._current(tree, now)
        # An engine that goes by its own order has nothing to tell, now or later.
        again_s = NOT_YET_S if engine is None else PERIOD_S if lines is not None else None
        return Plan(plan(cached.raw, cached.view(Queue), tree, lines, now), again_s)

    def _current(self, tree: Tree, now: float) -> Mapping[str, Sequence[Line]] | None:
        """The lines of all queues, read once for all keys that are looked at together."""
        if self._lines is None or not 0 <= now - self._read_at < PERIOD_S / 2:
            engine = self._engine()
            places = places_of(engine) if engine is not None else None
            self._lines, self._read_at = gathered(places.lines(), tree) if places is not None else None, now
        return self._lines


def _name(one: Cached) -> str:
    return one.key.name
