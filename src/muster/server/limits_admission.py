"""Judges what is submitted, and what is said about users, groups and queues, before it is stored.

Work (a Job, a KusciaJob, a pod that somebody made with a queue or user) is refused when

- its user is not known, suspended, or somebody for whom the submitter does not act (`whose_work`, which also says who may
  change and delete whose work);
- its queue does not exist, takes nothing new, or does not take work like this;
- it alone is larger than a limit of its user, of a group above, or of its queue;
- with it, more would wait and run than may be submitted;
- it is a pod that names its node, and so would run past the scheduler, which keeps what may run at once; unless whoever makes
  it may bind pods.

What runs is not limited here: more than may run at once is accepted, and waits. A User, UserGroup or Queue is refused when it
would stand above itself, or when those below a limit would be given more than the limit in all; an administrator of a group may
change what is divided (`quota.dividing.ADMIN_FIELDS`) of those below the group, and nothing else.

A pod that a job's controller made counts with its job. Every other pod with a user or queue is a submission of its own, whoever
made it: a person, or a controller of somebody else's.

On the embedded store submissions can't slip past a limit together: what was accepted counts from that moment (`People.promise`)
and the loop judges one after the other. As a webhook this holds within one replica; two replicas may each accept one while
neither has seen the other's. What runs at once is decided by the one scheduler that leads, on both.

Concurrency: on the event loop. Everything from the check of the limits to the promise happens without waiting.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from muster.controllers.work_sizes import Work
from muster.objects.amounts import read_limits, unit_of
from muster.objects.kinds.muster import User, UserGroup
from muster.objects.kinds.muster_queues import Queue, QueueAdmission
from muster.objects.labels import Muster
from muster.objects.meta import controller_of, metadata_of
from muster.objects.reasons import Reason, format_amount
from muster.objects.selectors import from_label_selector
from muster.objects.status import Raw
from muster.objects.view import view_of
from muster.quota.dividing import beyond_division, problems_of
from muster.quota.limits import NodeKey, NodeKind
from muster.quota.reading import node_of
from muster.server.access_review import Allows
from muster.server.admission import Hook, is_new_pod, refused, writes_metadata
from muster.server.people import People, login_refusal
from muster.server.rbac import Attributes
from muster.server.whose_work import KINDS as WHOSE_KINDS
from muster.server.whose_work import WhoseWork, is_work
from muster.store.embedded.admission import AdmissionRequest

ACCOUNTS: Final[Mapping[tuple[str, str], type[User] | type[UserGroup] | type[Queue]]] = {
    ("muster.dev", "User"): User,
    ("muster.dev", "UserGroup"): UserGroup,
    ("muster.dev", "Queue"): Queue,
}
ACCOUNT_KINDS: Final[Mapping[str, NodeKind]] = {"User": "User", "UserGroup": "UserGroup", "Queue": "Queue"}
_NAMED_MAX: Final = 8


class SubmissionLimits(Hook):
    """See the module."""

    def __init__(
        self,
        people: People,
        allows: Allows,
        *,
        trusted: frozenset[str] = frozenset(),
        judges_logins: bool = True,
    ) -> None:
        """`allows` goes by RBAC alone: what an administrator of a group may do beside it does not count. `trusted`: logins that
        act for everybody, such as Muster's own controllers on a real cluster. `judges_logins`: not where the store does, which
        also knows of writes in flight (`unique_rules`)."""
        self._people = people
        self._allows = allows
        self._judges_logins = judges_logins
        self._whose = WhoseWork(people, allows, trusted=trusted)

    # -- judging -------------------------------------------------------------------------------------------------------------

    async def validate(self, request: AdmissionRequest) -> None:
        if request.subresource:
            if request.actor is None or not is_work(request) or not writes_metadata(request):
                return
            request = _as_if_going_on(request)
        if (request.resource.group, request.resource.kind) in ACCOUNTS:
            await self._judge_account(request)
            return
        if (request.resource.group, request.resource.kind) in WHOSE_KINDS:
            await self._whose.judge(request)
        if is_work(request) and request.object is not None and request.operation in ("CREATE", "UPDATE"):
            await self._check_placed(request, request.object)
            self._judge_work(request, request.object)

    async def _check_placed(self, request: AdmissionRequest, raw: Raw) -> None:
        actor = request.actor
        if actor is None or not is_new_pod(request) or not _spec(raw).get("nodeName") or self._whose.is_trusted(actor):
            return
        work = self._people.read("Pod", raw)
        binding = Attributes(verb="create", resource="pods", subresource="binding", namespace=request.namespace)
        if work is not None and work.is_accounted and not await self._allows(actor, binding):
            raise refused(
                request,
                f"spec.nodeName: {actor.user!r} may not choose the node of a pod that is a user's or in a queue: it would run "
                "past their limits; leave it out, and name the node in spec.nodeSelector or spec.affinity",
            )

    def _judge_work(self, request: AdmissionRequest, raw: Raw) -> None:
        if controller_of(raw) is not None and self._whose.is_trusted(request.actor):
            return
        kind, people = request.resource.kind, self._people
        work = people.read(kind, raw)
        before = people.read(kind, request.old) if request.old is not None else None
        if work is None or work.is_over or not work.is_accounted:
            return
        is_new = before is None or before.is_over
        if not is_new and before is not None and _is_no_more(before, work):
            if before.estimate_s != work.estimate_s:
                self._check_queue(request, work, is_new=False)
            return
        self._check_queue(request, work, is_new=is_new or before is None or before.queue != work.queue)
        # Nothing waits here: what is found free is taken at once.
        people.expire()
        breach = people.tree.check_submit(
            work.user, work.queue, work.request, group=work.group, replaces=people.counted_as(work.key)
        )
        if breach is not None:
            raise refused(request, str(breach))
        if not request.dry_run:
            people.promise(work)

    def _check_queue(self, request: AdmissionRequest, work: Work, *, is_new: bool) -> None:
        people = self._people
        if not work.queue:
            return
        field = "spec.queue" if request.resource.kind == "Job" else f"label {Muster.QUEUE}"
        if work.queue not in people.queues:
            if not people.queues or request.actor is None:
                return  # queues are not managed here, or the work came from elsewhere
            known = ", ".join(sorted(people.queues)[:_NAMED_MAX])
            raise refused(
                request,
                f"{Reason.QUEUE_NOT_FOUND.value}: {field}: there is no Queue {work.queue!r}; there are {known}",
            )
        for name, queue in people.queues_above(work.queue):
            if is_new and queue.spec.state != "Open":
                raise refused(
                    request,
                    f"{Reason.QUEUE_CLOSED.value}: {field}: Queue {name} takes no new job: its spec.state is "
                    f"{queue.spec.state}; name another queue, or have it opened",
                )
            why = not_taken(queue.spec.admission, work, people.groups_of(work.user))
            if why:
                raise refused(
                    request, f"{Reason.QUEUE_ADMISSION_DENIED.value}: {field}: Queue {name} does not take this work: {why}"
                )

    # -- users, groups, queues -----------------------------------------------------------------------------------------------

    async def _judge_account(self, request: AdmissionRequest) -> None:
        raw, kind, people = request.object, request.resource.kind, self._people
        await self._check_administrator(request)
        if raw is None:
            self._check_deletion(request)
            return
        try:
            view = view_of(ACCOUNTS[request.resource.group, kind], raw)
        except msgspec.ValidationError:
            return  # the schema says so
        if request.old is not None and request.old.get("spec") == raw.get("spec"):
            return
        will_be_refused = isinstance(view, User) and self._check_names(request, view)
        parent = "" if isinstance(view, User) else view.spec.parent
        if parent and parent not in (people.queues if kind == "Queue" else people.groups):
            request.warn(f"spec.parent: there is no {kind} {parent!r} yet; until there is, it stands by itself")
        node = node_of(view, request.name)
        if node.own.problems:
            raise refused(request, "; ".join(f"spec.{problem}" for problem in node.own.problems))
        people.expire()
        problems = problems_of(people.tree, node)
        if problems:
            is_place = problems[0].startswith(("spec.parent", "spec.group"))
            code = Reason.PARENT_CYCLE if is_place else Reason.DIVISION_EXCEEDED
            raise refused(request, f"{code.value}: {'; '.join(problems[:_NAMED_MAX])}")
        if not request.dry_run and not will_be_refused:
            people.promise_account(node)

    def _check_deletion(self, request: AdmissionRequest) -> None:
        """Those below would be free of its limits, and what runs would count for nobody above it any more."""
        key: NodeKey = (ACCOUNT_KINDS[request.resource.kind], request.name)
        below = self._people.tree.children(*key)
        if below:
            names = _some([f"{one.kind} {one.name}" for one in below])
            raise refused(request, f"{len(below)} stand under it and would be free of its limits ({names}); move them first")
        self._people.expire()
        jobs = self._people.tree.submitted(*key).jobs
        if jobs:
            first = {
                "User": "; set spec.suspended so that no more come",
                "Queue": "; set spec.state to Closed so that no more come",
            }
            raise refused(
                request,
                f"{jobs} of its jobs wait or run, and would be free of the limits above it: stop or delete them first"
                + first.get(request.resource.kind, ""),
            )

    def _check_names(self, request: AdmissionRequest, user: User) -> bool:
        """Whether the store will have something against a login, as things are now."""
        if len(request.name) > 63:
            raise refused(request, "metadata.name: a user's name is a label of its work, and has at most 63 characters")
        taken = self._people.login_conflict(request.name, user)
        if taken and self._judges_logins:
            raise refused(request, login_refusal(taken, self._people.user_of(taken)))
        if user.spec.group not in self._people.groups:
            request.warn(f"spec.group: there is no UserGroup {user.spec.group!r} yet; until there is, only its own limits hold")
        return bool(taken)

    async def _check_administrator(self, request: AdmissionRequest) -> None:
        """Who manages all users may do everything; others what their groups' administration allows."""
        actor, kind = request.actor, request.resource.kind
        if actor is None or kind == "Queue" or await self._whose.manages_users(actor):
            return
        me = self._people.user_of(actor.user)
        below = self._people.administered(me) if me else frozenset()
        key: NodeKey = ("User" if kind == "User" else "UserGroup", request.name)
        if request.operation != "UPDATE" or key not in below:
            groups = ", ".join(sorted(name for one, name in below if one == "UserGroup")[:_NAMED_MAX])
            raise refused(
                request,
                f"{actor.user!r} does not administer it: an administrator of a group changes the limits of users and groups "
                "below that group" + (f" ({groups})" if groups else "") + ", and makes or deletes none",
            )
        field = "group" if kind == "User" else "parent"
        old, new = _spec(request.old), _spec(request.object)
        others = beyond_division(old, new, field)
        before, after = metadata_of(request.old or {}), metadata_of(request.object or {})
        # By these something is deleted, or can't be: an administrator of the group makes and deletes none.
        others += [f"metadata.{name}" for name in ("finalizers", "ownerReferences") if before.get(name) != after.get(name)]
        if others:
            raise refused(request, f"{', '.join(others)}: an administrator of the group above may not change this")
        target = str(new.get(field) or "")
        if old.get(field) != new.get(field) and not self._holds(me, below, target):
            raise refused(request, f"spec.{field}: {actor.user!r} does not administer UserGroup {target!r}, where it would go")

    def _holds(self, me: str, below: frozenset[NodeKey], group: str) -> bool:
        there = self._people.groups.get(group)
        return ("UserGroup", group) in below or (there is not None and me in there.spec.admins)


def not_taken(rules: QueueAdmission, work: Work, groups: list[str]) -> str:
    """Which rule of a queue the work breaks, and what would be taken; "" when it is taken."""
    if rules.users and work.user not in rules.users:
        return f"spec.admission.users has no {work.user or 'work of nobody'}: {_some(rules.users)}"
    if rules.groups and not set(rules.groups) & set(groups):
        return f"spec.admission.groups: {work.user or 'nobody'} is in none of {_some(rules.groups)}"
    if rules.types and work.type not in rules.types:
        return f"spec.admission.types: the type is {work.type or 'not given'}, and it takes {_some(rules.types)}"
    if rules.selector is not None:
        try:
            matches = from_label_selector(rules.selector).matches(work.labels)
        except ValueError as error:
            return f"spec.admission.selector: {error}"
        if not matches:
            return "spec.admission.selector does not match the labels of the work"
    if rules.require_estimate and work.estimate_s is None:
        return "spec.admission.requireEstimate: give spec.estimate.runSeconds"
    if rules.run_seconds_max is not None and (work.estimate_s or 0) > rules.run_seconds_max:
        return f"spec.admission.runSecondsMax is {rules.run_seconds_max}, and the estimate is {work.estimate_s:g} seconds"
    largest, _ = read_limits(rules.per_job_max, "spec.admission.perJobMax")
    for name, most in sorted(largest.items()):
        asked = work.request.get(name, 0)
        if asked > most:
            limit, size = (format_amount(amount, unit_of(name)) for amount in (most, asked))
            return f"spec.admission.perJobMax[{name}] is {limit}, and it asks for {size}"
    return ""


def _as_if_going_on(request: AdmissionRequest) -> AdmissionRequest:
    """A write to the status that changes metadata as well, as the change of metadata alone. What has ended is nobody's concern
    any more, so it does not matter here what the status says: whoever may write it could have work end, or begin again, in the
    same write that makes it somebody else's."""
    old, new = ({key: value for key, value in (raw or {}).items() if key != "status"} for raw in (request.old, request.object))
    return msgspec.structs.replace(request, old=old, object=new)


def _some(names: list[str]) -> str:
    return ", ".join(names[:_NAMED_MAX]) + (", ..." if len(names) > _NAMED_MAX else "")


def _is_no_more(before: Work, work: Work) -> bool:
    """Whether an update asks for nothing that was not accepted already."""
    is_same = (before.user, before.group, before.queue, before.type) == (work.user, work.group, work.queue, work.type)
    return is_same and all(amount <= before.request.get(name, 0) for name, amount in work.request.items())


def _spec(raw: Mapping[str, Any] | None) -> dict[str, Any]:
    spec = raw.get("spec") if raw is not None else None
    return spec if isinstance(spec, dict) else {}
