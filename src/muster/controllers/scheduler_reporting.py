"""What the scheduler writes for people to read: why a pod waits (conditions), and that it was placed (events).

| decision | condition PodScheduled | condition muster.dev/Waiting | event |
|---|---|---|---|
| Park | False, reason Unschedulable, message `Code: text` | True, reason is the code | FailedScheduling, when it is new |
| no profile serves it, and there is no other scheduler | as above | True, NoProfile | the same |
| Park, for victims to end | as above, unless it is placed within a second | the same | the same |
| Evict | | | Preempted, for each victim that goes |
| Hold | | True, Reserved | Reserved |
| Release | | True, its reason | Released |
| placed | True (written by the binding itself) | False, if it was True | Scheduled, one per pod |
| placed in shadow | | | ShadowScheduled |

A pod that waits for victims with a grace period is reported at once, in one write with its `status.nominatedNodeName`.

Reports never hold up a decision. There is one per pod at most, the newest, so that pods whose reasons change all the time
need no more memory than the others; and while bindings are under way reports take a tenth of the time only.

Concurrency: plain calls note; a few workers on the same event loop write. What can't be written is tried a few times, then
dropped and counted: the next decision about the pod reports again.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
from prometheus_client import Counter, Gauge

from muster.engine.decisions import PlacedPod, Victim
from muster.engine.facts import ConditionFacts, PodFacts
from muster.objects.conditions import ConditionStatus
from muster.objects.labels import Muster
from muster.objects.reasons import Reason, Verdict
from muster.objects.resources import Resource
from muster.objects.status import AlreadyExists, ApiError, Conflict, Forbidden, Invalid, NotFound, Raw
from muster.objects.time import Clock, format_time
from muster.store.backoff import Backoff, is_cancelled
from muster.store.cache import ObjectKey
from muster.store.contract import PatchType, Store
from muster.store.events import NORMAL, WARNING, EventKind, EventRecorder

log = logging.getLogger(__name__)

PENDING = Gauge("muster_scheduler_reports_pending", "Conditions and events that wait to be written.", ["what"])
DROPPED = Counter("muster_scheduler_reports_dropped", "Conditions and events that were given up.", ["what"])
WAITING = Gauge("muster_scheduler_waiting_units", "Units that wait, by the reason of their last verdict.", ["reason"])

SCHEDULED_CONDITION = "PodScheduled"
COMPONENT = "muster-scheduler"

_WORKERS = 16
_SHARE = 9.0
"""While bindings are under way, a worker rests for so many times as long as it wrote."""
_ANNOUNCED_MAX = 100_000
_TOLD_PER_UNIT_MAX = 8
"""Members of a unit that get an event; all get the condition."""
_MESSAGE_LEN_MAX = 1_500
_PASSING_S = 1.0
"""Whoever waits for victims to end is reported if it still does so much later: most of them are gone by then."""
_PASSING_MAX_S = 10.0
"""So long after, it is reported even if the victims could not be asked to go yet."""
_ATTEMPTS_MAX = 4
_BACKOFF = Backoff(base_s=0.5, max_s=10.0)
_GONE = (NotFound, Conflict, Forbidden, Invalid)
"""The pod is gone or replaced, or its namespace is ending: nobody is left to tell."""


class Report(msgspec.Struct, eq=False):
    """What is to be said on one pod."""

    key: ObjectKey
    uid: str
    waiting: ConditionStatus | None = None
    """None: nothing is said of it."""
    reason: str = ""
    message: str = ""
    is_unschedulable: bool = False
    is_told: bool = False
    """Whether an event says it too."""
    is_first: bool = False
    """Nothing was said on the pod before."""
    node: str = ""
    """For which the pod is nominated."""
    is_forced: bool = False
    """Written even if the pod, as last seen, has it: an earlier report may not be seen yet."""
    attempts: int = 0


class _PutOff(msgspec.Struct, eq=False):
    """A report for later, with times of the loop."""

    report: Report
    since_s: float
    due_s: float


class _Announcement(msgspec.Struct, eq=False):
    namespace: str
    name: str
    uid: str
    reason: str
    message: str
    attempts: int = 0


class Board:
    """See the module. `find` gives a pod as it was last seen; `is_busy` whether there is something more urgent."""

    def __init__(
        self,
        store: Store,
        *,
        recorder: EventRecorder | None,
        clock: Clock,
        instance: str,
        find: Callable[[ObjectKey], PodFacts | None],
        is_busy: Callable[[], bool],
        is_evicting: Callable[[str], bool] = lambda uid: False,
    ) -> None:
        """`is_evicting`: whether victims of this waiting pod (its uid) are still being asked to go."""
        self._store = store
        self._recorder = recorder
        self._clock = clock
        self._instance = instance
        self._find = find
        self._is_busy = is_busy
        self._is_evicting = is_evicting
        self._reports: OrderedDict[str, Report] = OrderedDict()
        self._under_way: dict[str, Report | None] = {}
        """By uid of the pods that are being written to: what is to be said next."""
        self._later: OrderedDict[str, _PutOff] = OrderedDict()
        """By uid: what may settle by itself before it is due. The first is due first."""
        self._timer: asyncio.TimerHandle | None = None
        self._announcements: deque[_Announcement] = deque()
        self._told: dict[str, str] = {}
        """The message last noted for each waiting pod, by uid."""
        self._units: dict[str, Reason] = {}
        self._has_some = asyncio.Event()
        self._resources: dict[str, Resource] = {}

    def __len__(self) -> int:
        return len(self._reports) + len(self._announcements) + sum(next_ is not None for next_ in self._under_way.values())

    # -- what is said --------------------------------------------------------------------------------------------------

    def parked(self, unit: str, verdict: Verdict, pods: Iterable[tuple[str, ObjectKey]]) -> None:
        """`unit` waits; `pods` are its waiting members, with their uids."""
        self._count(unit, verdict.reason)
        self._waits(verdict, pods)

    def unserved(self, verdict: Verdict, pods: Iterable[tuple[str, ObjectKey]]) -> None:
        """No profile is for these, and there is no other scheduler: said once, and again only in other words."""
        self._waits(verdict, pods)

    def _waits(self, verdict: Verdict, pods: Iterable[tuple[str, ObjectKey]]) -> None:
        message = str(verdict)[:_MESSAGE_LEN_MAX]
        for told, (uid, key) in enumerate(pods):
            said = self._told.get(uid)
            if said == message:
                continue
            self._told[uid] = message
            report = Report(key, uid, "True", verdict.reason.value, message, is_unschedulable=True)
            report.is_told, report.is_first = told < _TOLD_PER_UNIT_MAX, said is None
            if verdict.reason is Reason.WAITING_FOR_VICTIMS:
                self._put_off(report)
            else:
                self._report(report)

    def nominated(self, key: ObjectKey, uid: str, node: str) -> None:
        """The pod is meant for the node, and will wait for it: said together with why it waits, if that is still to be said."""
        put_off = self._later.get(uid)
        report = put_off.report if put_off is not None else self._reports.get(uid) or Report(key, uid)
        report.node = node
        self._report(report)

    def preempted(self, victim: Victim, unit: str) -> None:
        """The victim goes, so that the unit finds room."""
        message = f"ended to make room for {unit} on node {victim.node}"
        self._announce(victim.namespace, victim.name, victim.uid, "Preempted", message)

    def held(self, unit: str, pods: Sequence[PlacedPod], until: float, waiting_for: Sequence[str]) -> None:
        self._count(unit, Reason.RESERVED)
        for_ = f" for {', '.join(waiting_for[:5])}" if waiting_for else " for a permit"
        for told, pod in enumerate(pods):
            key = ObjectKey(pod.namespace, pod.name)
            message = f"{Reason.RESERVED.value}: reserved on node {pod.node}, waits{for_} until {format_time(until)}"
            self._told[pod.uid] = message
            self._report(Report(key, pod.uid, "True", Reason.RESERVED.value, message))
            if told < _TOLD_PER_UNIT_MAX:
                self._event(key, pod.uid, NORMAL, "Reserved", message)

    def released(self, reason: Reason, why: str, pods: Iterable[tuple[str, ObjectKey]]) -> None:
        message = f"{reason.value}: {why or reason.meaning}"[:_MESSAGE_LEN_MAX]
        for told, (uid, key) in enumerate(pods):
            self._told[uid] = message
            self._report(Report(key, uid, "True", reason.value, message))
            if told < _TOLD_PER_UNIT_MAX:
                self._event(key, uid, WARNING, "Released", message)

    def keep_units(self, waiting: Mapping[str, object], held: Mapping[str, object]) -> None:
        """Do not count units any more that neither wait nor hold."""
        if len(self._units) != len(waiting) + len(held):
            for unit in [unit for unit in self._units if unit not in waiting and unit not in held]:
                self._uncount(unit)

    def placed(self, pods: Iterable[PlacedPod]) -> None:
        """These wait no more, as far as can be told: what was not said yet of their waiting need not be."""
        for pod in pods:
            put_off = self._later.pop(pod.uid, None)
            if put_off is not None and put_off.report.is_first:
                self._told.pop(pod.uid, None)

    def bound(self, pod: PlacedPod) -> None:
        pending = self._reports.pop(pod.uid, None)
        was_told = self._told.pop(pod.uid, None) is not None
        key = ObjectKey(pod.namespace, pod.name)
        facts = self._find(key)
        # A report that is neither pending nor seen may be on its way.
        is_on_its_way = was_told and pending is None
        if is_on_its_way or (facts is not None and _is_waiting(facts)):
            self._report(Report(key, pod.uid, "False", Reason.SCHEDULED.value))
        message = f"{pod.namespace}/{pod.name} was bound to node {pod.node}"
        self._announce(pod.namespace, pod.name, pod.uid, "Scheduled", message)

    def shadowed(self, pods: Sequence[PlacedPod]) -> None:
        """A profile in shadow mode would have bound these."""
        for pod in pods:
            message = f"would be bound to node {pod.node}; the profile is in shadow mode"
            self._announce(pod.namespace, pod.name, pod.uid, "ShadowScheduled", message)

    def forget(self, uid: str) -> None:
        """The pod is gone, or somebody bound it."""
        self._told.pop(uid, None)
        self._later.pop(uid, None)

    def tell(self, key: ObjectKey, uid: str, reason: str, message: str) -> None:
        """A warning about a pod, as an event."""
        self._event(key, uid, WARNING, reason, message)

    def close(self) -> None:
        """What this run has counted is void."""
        for unit in list(self._units):
            self._uncount(unit)
        if self._timer is not None:
            self._timer.cancel()

    # -- noting --------------------------------------------------------------------------------------------------------

    def _count(self, unit: str, reason: Reason) -> None:
        self._uncount(unit)
        self._units[unit] = reason
        WAITING.labels(reason.value).inc()

    def _uncount(self, unit: str) -> None:
        reason = self._units.pop(unit, None)
        if reason is not None:
            WAITING.labels(reason.value).dec()

    def _report(self, report: Report) -> None:
        old = self._reports.pop(report.uid, None)
        if old is not None and not report.node:
            report.node = old.node
        self._later.pop(report.uid, None)
        self._reports[report.uid] = report
        self._has_some.set()
        if report.is_told:
            report.is_told = False
            self._event(report.key, report.uid, WARNING, "FailedScheduling", report.message)

    def _put_off(self, report: Report) -> None:
        """Say it in a moment, if nothing else is said on the pod before. One that was put off already is said when it was due,
        in the new words."""
        put_off = self._later.get(report.uid)
        if put_off is not None:
            report.is_first = put_off.report.is_first
            put_off.report = report
            return
        now_s = asyncio.get_running_loop().time()
        self._later[report.uid] = _PutOff(report, now_s, now_s + _PASSING_S)
        if self._timer is None:
            self._say_due()

    def _say_due(self) -> None:
        """Report what is due, and come back when the next is."""
        loop = asyncio.get_running_loop()
        self._timer = None
        now_s = loop.time()
        while self._later:
            uid, put_off = next(iter(self._later.items()))
            if put_off.due_s > now_s:
                self._timer = loop.call_at(put_off.due_s, self._say_due)
                return
            if now_s - put_off.since_s < _PASSING_MAX_S and self._is_evicting(uid):
                put_off.due_s = now_s + _PASSING_S
                self._later.move_to_end(uid)
            else:
                self._report(put_off.report)

    def _announce(self, namespace: str, name: str, uid: str, reason: str, message: str) -> None:
        if len(self._announcements) >= _ANNOUNCED_MAX:
            self._announcements.popleft()
            DROPPED.labels("events").inc()
        self._announcements.append(_Announcement(namespace, name, uid, reason, message))
        self._has_some.set()

    def _event(self, key: ObjectKey, uid: str, type_: EventKind, reason: str, message: str) -> None:
        if self._recorder is not None:
            self._recorder.event(_reference(key.namespace, key.name, uid), type_, reason, message)

    # -- writing -------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until cancelled."""
        workers = [asyncio.create_task(self._work(), name=f"scheduler's reports {n}") for n in range(_WORKERS)]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._has_some.wait()
            started_s = loop.time()
            if self._reports:
                await self._say(self._reports.popitem(last=False)[1])
            elif self._announcements:
                await self._attempt(self._announcements.popleft(), "events")
            else:
                self._has_some.clear()
            PENDING.labels("conditions").set(len(self._reports))
            PENDING.labels("events").set(len(self._announcements))
            if self._is_busy():
                await asyncio.sleep((loop.time() - started_s) * _SHARE)

    async def _say(self, report: Report) -> None:
        """One write per pod at a time: of two at once the older one might arrive last, and would stand for good."""
        uid = report.uid
        if uid in self._under_way:
            waiting = self._under_way[uid]
            report.node = report.node or (waiting.node if waiting is not None else "")
            self._under_way[uid] = report
            return
        self._under_way[uid] = None
        try:
            await self._attempt(report, "conditions")
        finally:
            newer = self._under_way.pop(uid)
            if newer is not None:
                queued = self._reports.get(uid)  # `report` itself, to be tried again, or something newer still
                if queued is None or queued is report:
                    newer.node = newer.node or (report.node if queued is report else "")
                    self._reports[uid] = queued = newer
                queued.node = queued.node or newer.node
                queued.is_forced = True
                self._has_some.set()

    async def _attempt(self, item: Report | _Announcement, what: str) -> None:
        try:
            await (self._write(item) if isinstance(item, Report) else self._create(item))
        except _GONE as error:
            log.debug("a report about %s was not written: %s", item.uid, error)
        except ApiError as error:
            item.attempts += 1
            if item.attempts >= _ATTEMPTS_MAX:
                log.info("a report about %s was given up: %s", item.uid, error)
                DROPPED.labels(what).inc()
                return
            await asyncio.sleep(_BACKOFF.delay_s(item.attempts - 1, item.uid))
            if isinstance(item, Report):
                # Something newer may have been said meanwhile.
                self._reports.setdefault(item.uid, item)
            else:
                self._announcements.append(item)
            self._has_some.set()
        except Exception:
            if is_cancelled():
                raise
            log.exception("a report about %s could not be made", item.uid)
            DROPPED.labels(what).inc()

    async def _write(self, report: Report) -> None:
        facts = self._find(report.key)
        if facts is None or facts.metadata.uid != report.uid:
            return
        said, now, is_forced = report.message, self._clock(), report.is_forced
        wanted: list[Raw | None] = []
        if report.waiting is not None:
            new = _wanted(facts, Muster.WAITING, report.waiting, report.reason, said, now=now, is_forced=is_forced)
            wanted.append(new)
        if report.is_unschedulable and not facts.spec.node_name:
            new = _wanted(facts, SCHEDULED_CONDITION, "False", "Unschedulable", said, now=now, is_forced=is_forced)
            wanted.append(new)
        conditions = [condition for condition in wanted if condition is not None]
        status: Raw = {"conditions": conditions} if conditions else {}
        if report.node and not facts.spec.node_name and facts.status.nominated_node_name != report.node:
            status["nominatedNodeName"] = report.node
        if status:
            body = {"metadata": {"uid": report.uid}, "status": status}
            await self._store.patch(
                await self._resource("Pod"),
                report.key.name,
                body,
                report.key.namespace,
                patch_type=PatchType.STRATEGIC,
                subresource="status",
            )

    async def _create(self, said: _Announcement) -> None:
        unique = hashlib.blake2b(f"{said.uid} {said.reason} {said.message}".encode(), digest_size=8).hexdigest()
        now = format_time(self._clock())
        body: Raw = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{said.name[:200]}.{unique}", "namespace": said.namespace},
            "involvedObject": _reference(said.namespace, said.name, said.uid),
            "reason": said.reason,
            "message": said.message,
            "type": NORMAL,
            "count": 1,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "source": {"component": COMPONENT, "host": self._instance},
            "reportingComponent": COMPONENT,
            "reportingInstance": self._instance,
        }
        try:
            await self._store.create(await self._resource("Event"), body, said.namespace)
        except AlreadyExists:
            return

    async def _resource(self, kind: str) -> Resource:
        resource = self._resources.get(kind)
        if resource is None:
            resource = self._resources[kind] = await self._store.resource("", kind)
        return resource


def _reference(namespace: str, name: str, uid: str) -> Raw:
    return {"apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": name, "uid": uid}


def _is_waiting(facts: PodFacts) -> bool:
    condition = _condition(facts, Muster.WAITING)
    return condition is not None and condition.status == "True"


def _condition(facts: PodFacts, type_: str) -> ConditionFacts | None:
    return next((c for c in facts.status.conditions if c.type == type_), None)


def _wanted(
    facts: PodFacts, type_: str, status: ConditionStatus, reason: str, message: str, *, now: float, is_forced: bool
) -> Raw | None:
    """The condition to write; None when the pod has it."""
    old = _condition(facts, type_)
    if not is_forced and old is not None and (old.status, old.reason, old.message) == (status, reason, message):
        return None
    since = old.last_transition_time if old is not None and old.status == status else ""
    return {
        "type": type_,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": since or format_time(now),
    }
