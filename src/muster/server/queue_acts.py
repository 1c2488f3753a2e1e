"""Acts of administrators on a job's place in its queue, as the server lets them pass: who may, and the record of who did.

A hold (`muster.dev/hold`) or a pin (`muster.dev/pin`) on a Job or KusciaJob is set, changed or taken away only by who may
`update` the Queue that the job is in: those are its administrators. Whoever may change the job may move it to another queue
before it has started; that is recorded as well.

The record (`muster.dev/acts`, see `objects.acts`) is written here, on the object, in the same write as the act; what a client
writes there itself is put back. So it can't be forged, and it can't be missing.

What a job says reaches the scheduler through a KusciaTask, and through `muster.dev/work` on its pods. Whoever may write those
must not be able to say there what they may not say on the job: a KusciaTask is judged as a KusciaJob is, and the annotation of
a pod is written by Muster's own controllers, and by who may update all queues. So is when and as what a task began elsewhere,
by which tasks of several parties yield to each other: whoever is older goes first.

Concurrency: on the event loop; `may` is asked only when there is an act. Acts on nothing else.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec

from muster.objects.acts import Act, Standing, acts_between, acts_of, acts_text, standing_of
from muster.objects.labels import Muster
from muster.objects.meta import annotations_of
from muster.objects.status import Raw
from muster.objects.time import Clock, format_time
from muster.server.access_review import allowed_by_review
from muster.server.admission import Hook, refused
from muster.server.authorization import MASTERS, Authorizer
from muster.server.rbac import Attributes
from muster.store.contract import Store
from muster.store.embedded.admission import Actor, AdmissionRequest

KINDS: Final = (("muster.dev", "Job"), ("kuscia.secretflow", "KusciaJob"))
TASKS: Final = (("kuscia.secretflow", "KusciaTask"),)
JUDGED: Final = (*KINDS, *TASKS)
CONTROLLERS: Final = "muster:controllers"
"""The group of accounts that the role `muster:controller` is bound to."""
PIN_LEN_MAX: Final = 10

MayUpdateQueue = Callable[[Actor, str], Awaitable[bool]]
"""Whether somebody may `update` the Queue of that name; empty for the default queue, whichever that is."""


def queue_attributes(queue: str) -> Attributes:
    return Attributes(verb="update", group="muster.dev", resource="queues", name=queue)


def by_rbac(authorizer: Authorizer) -> MayUpdateQueue:
    async def may(actor: Actor, queue: str) -> bool:
        return authorizer.decide(actor.user, actor.groups, queue_attributes(queue)).allowed

    return may


def by_review(store: Store) -> MayUpdateQueue:
    """On a cluster: its API server is asked, with a SubjectAccessReview."""

    async def may(actor: Actor, queue: str) -> bool:
        return await allowed_by_review(store, actor, queue_attributes(queue))

    return may


class QueueActs(Hook):
    """`trusted` are the users that Muster's own controllers act as: they carry over what was let pass once."""

    def __init__(self, may: MayUpdateQueue, clock: Clock, *, trusted: frozenset[str] = frozenset()) -> None:
        self._may = may
        self._clock = clock
        self._trusted = trusted

    async def mutate(self, request: AdmissionRequest) -> Raw | None:
        raw = request.object
        if raw is None or not _is_asked(request):
            return None
        notes = annotations_of(raw)
        written = notes.get(Muster.ACTS)
        before = annotations_of(request.old or {})
        acts = _acts(request)
        by = request.actor.user if request.actor is not None else "muster"
        now = format_time(self._clock())
        if acts:
            record = [*acts_of(before), *(msgspec.structs.replace(act, by=by, at=now) for act in acts)]
            wanted: str | None = acts_text(record)
        else:
            wanted = before.get(Muster.ACTS)
        if written == wanted:
            return None
        changed = {key: value for key, value in notes.items() if key != Muster.ACTS}
        if wanted is not None:
            changed[Muster.ACTS] = wanted
        meta = {**raw["metadata"], "annotations": changed}
        if not changed:
            meta.pop("annotations")
        return {**raw, "metadata": meta}

    async def validate(self, request: AdmissionRequest) -> None:
        if _is_pod(request):
            await self._check_pod(request)
        if request.object is not None and _is_asked(request, TASKS):
            await self._check_origin(request)
        if request.object is None or not _is_asked(request, JUDGED):
            return
        acts = [act for act in _acts(request) if act.act != "Moved"]
        if not acts:
            return
        before, after = _standings(request)
        if after.pin is not None and not _is_whole(after.pin):
            where = f"metadata.annotations[{Muster.PIN}]"
            raise refused(request, f"{where}: {after.pin!r:.50} is not a whole number; write one, the smallest goes first")
        actor = request.actor
        if actor is None or self._is_trusted(actor):
            return
        for queue in {before.queue, after.queue}:
            if not await self._may(actor, queue):
                words = " and ".join(sorted({act.act.lower() for act in acts}))
                where = f"queue {queue!r}" if queue else "the default queue"
                raise refused(
                    request,
                    f"{actor.user!r} may not have a job {words} in {where}: that takes update on queues.muster.dev; ask an "
                    "administrator of the queue (to keep your own job from starting, suspend it)",
                )

    async def _check_pod(self, request: AdmissionRequest) -> None:
        actor = request.actor
        before, after = (annotations_of(raw or {}).get(Muster.WORK) for raw in (request.old, request.object))
        if before == after or actor is None or self._is_trusted(actor) or await self._may(actor, ""):
            return
        raise refused(
            request,
            f"metadata.annotations[{Muster.WORK}]: {actor.user!r} may not write it: Muster's controllers say there what a job "
            f"says; leave it as it is, and use the labels {Muster.QUEUE}, {Muster.USER}, {Muster.PREEMPTIBLE} and the "
            f"annotation {Muster.ESTIMATE_SECONDS} on pods of your own",
        )

    async def _check_origin(self, request: AdmissionRequest) -> None:
        actor = request.actor
        before, after = annotations_of(request.old or {}), annotations_of(request.object or {})
        changed = [key for key in (Muster.ORIGIN_CREATED, Muster.ORIGIN_UID) if before.get(key) != after.get(key)]
        if not changed or actor is None or self._is_trusted(actor) or await self._may(actor, ""):
            return
        raise refused(
            request,
            f"metadata.annotations[{changed[0]}]: {actor.user!r} may not write it: Muster's controllers say there when the "
            "initiator made the task, and tasks yield to each other by it; leave it as it is",
        )

    def _is_trusted(self, actor: Actor) -> bool:
        return MASTERS in actor.groups or CONTROLLERS in actor.groups or actor.user in self._trusted


def _is_asked(request: AdmissionRequest, kinds: Sequence[tuple[str, str]] = KINDS) -> bool:
    resource = request.resource
    return request.operation in ("CREATE", "UPDATE") and not request.subresource and (resource.group, resource.kind) in kinds


def _is_pod(request: AdmissionRequest) -> bool:
    """A pod's annotations come with its status and its binding too."""
    resource = request.resource
    return request.object is not None and request.operation != "DELETE" and (resource.group, resource.kind) == ("", "Pod")


def _standings(request: AdmissionRequest) -> tuple[Standing, Standing]:
    assert request.object is not None
    kind = request.resource.kind
    after = standing_of({**request.object, "kind": kind})
    if request.old is None:
        return Standing(queue=after.queue), after  # to name a queue when it is made is no move
    return standing_of({**request.old, "kind": kind}), after


def _acts(request: AdmissionRequest) -> list[Act]:
    return acts_between(*_standings(request))


def _is_whole(text: str) -> bool:
    digits = text.strip().removeprefix("-")
    return digits.isascii() and digits.isdecimal() and len(digits) <= PIN_LEN_MAX
