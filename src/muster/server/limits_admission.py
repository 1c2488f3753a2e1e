"""Judges what is submitted, and what is said about users, groups and queues, before it is stored.

Work (a Job, a KusciaJob, a pod that somebody made with a queue or user) is refused when

- its user is not known, suspended, or somebody for whom the submitter does not act;
- its queue does not exist, takes nothing new, or does not take work like this;
- it alone is larger than a limit of its user, of a group above, or of its queue;
- with it, more would wait and run than may be submitted.

What runs is not limited here: more than may run at once is accepted, and waits. A User, UserGroup or Queue is refused when it
would stand above itself, or when those below a limit would be given more than the limit in all; an administrator of a group may
change what is divided (`quota.dividing.ADMIN_FIELDS`) of those below the group, and nothing else.

On the embedded store submissions can't slip past a limit together: what was accepted counts from that moment (`People.promise`)
and the loop judges one after the other. As a webhook this holds within one replica; two replicas may each accept one while
neither has seen the other's. What runs at once is decided by the one scheduler that leads, on both.

Concurrency: on the event loop. Everything from the check of the limits to the promise happens without waiting.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec

from muster.controllers.work_sizes import Work
from muster.objects.amounts import read_limits, unit_of
from muster.objects.kinds.muster import User, UserGroup
from muster.objects.kinds.muster_queues import Queue, QueueAdmission
from muster.objects.labels import Muster
from muster.objects.meta import annotations_of, controller_of, labels_of, metadata_of
from muster.objects.names import validate_label_value
from muster.objects.reasons import Reason, format_amount
from muster.objects.selectors import from_label_selector
from muster.objects.status import Raw
from muster.objects.view import view_of
from muster.quota.dividing import beyond_division, problems_of
from muster.quota.limits import NodeKey
from muster.quota.reading import node_of
from muster.server.access_review import allowed_by_review
from muster.server.admission import Hook, refused
from muster.server.authorization import MASTERS, Authorizer
from muster.server.people import People
from muster.server.rbac import Attributes
from muster.store.contract import Store
from muster.store.embedded.admission import Actor, AdmissionRequest

WORK_KINDS: Final = frozenset({("muster.dev", "Job"), ("kuscia.secretflow", "KusciaJob"), ("", "Pod")})
ACCOUNTS: Final[Mapping[tuple[str, str], type[User] | type[UserGroup] | type[Queue]]] = {
    ("muster.dev", "User"): User,
    ("muster.dev", "UserGroup"): UserGroup,
    ("muster.dev", "Queue"): Queue,
}
_NAMED_MAX: Final = 8

IsAdmin = Callable[[Actor], Awaitable[bool]]
"""Whether somebody manages all users, by the cluster's own roles: may create UserGroups."""


_MANAGING: Final = Attributes(verb="create", group="muster.dev", resource="usergroups")


def manages_users(authorizer: Authorizer) -> IsAdmin:
    """By RBAC alone: what an administrator of a group may do beside it does not count."""

    async def is_admin(actor: Actor) -> bool:
        return authorizer.decide(actor.user, actor.groups, _MANAGING).allowed

    return is_admin


def manages_users_by_review(store: Store) -> IsAdmin:
    """On a cluster: its API server is asked."""

    async def is_admin(actor: Actor) -> bool:
        return await allowed_by_review(store, actor, _MANAGING)

    return is_admin


class SubmissionLimits(Hook):
    """See the module."""

    def __init__(self, people: People, is_admin: IsAdmin, *, trusted: frozenset[str] = frozenset()) -> None:
        """`trusted`: logins that act for everybody, such as Muster's own controllers on a real cluster."""
        self._people = people
        self._is_admin = is_admin
        self._trusted = trusted

    # -- filling in ----------------------------------------------------------------------------------------------------------

    async def mutate(self, request: AdmissionRequest) -> Raw | None:
        """Whose work it is, when it does not say so: of who submits it. As a label too, by which lists can be narrowed."""
        raw = request.object
        if raw is None or request.subresource or not _is_work(request) or controller_of(raw) is not None:
            return None
        kind = request.resource.kind
        said = _user_said(kind, raw)
        me = self._people.user_of(request.actor.user) if request.actor is not None else ""
        user = said or (me if request.operation == "CREATE" else "")
        if not user or (said and labels_of(raw).get(Muster.USER) == said):
            return None
        changed: Raw = dict(raw)
        if not validate_label_value(user):
            changed["metadata"] = {**metadata_of(raw), "labels": {**labels_of(raw), Muster.USER: user}}
        if kind == "Job" and isinstance(raw.get("spec"), dict):
            changed["spec"] = {**raw["spec"], "user": user}
        return changed

    # -- judging -------------------------------------------------------------------------------------------------------------

    async def validate(self, request: AdmissionRequest) -> None:
        if request.subresource:
            return
        if (request.resource.group, request.resource.kind) in ACCOUNTS:
            await self._judge_account(request)
        elif _is_work(request) and request.object is not None and request.operation in ("CREATE", "UPDATE"):
            await self._judge_work(request, request.object)

    async def _judge_work(self, request: AdmissionRequest, raw: Raw) -> None:
        if controller_of(raw) is not None:
            return
        kind, people = request.resource.kind, self._people
        work = people.read(kind, raw)
        before = people.read(kind, request.old) if request.old is not None else None
        if work is None or work.is_over or not work.is_accounted:
            return
        is_new = before is None or before.is_over
        if not is_new and before is not None and _is_no_more(before, work):
            return
        if is_new or before is None or before.user != work.user:
            await self._check_user(request, work, before)
        self._check_queue(request, work, is_new=is_new or before is None or before.queue != work.queue)
        # From here on nothing waits: what is found free is taken at once.
        people.expire()
        breach = people.tree.check_submit(
            work.user, work.queue, work.request, group=work.group, replaces=people.counted_as(work.key)
        )
        if breach is not None:
            raise refused(request, str(breach))
        if not request.dry_run:
            people.promise(work)

    async def _check_user(self, request: AdmissionRequest, work: Work, before: Work | None) -> None:
        people = self._people
        if not work.user or not people.users:
            return  # nobody's, or users are not managed here
        user = people.users.get(work.user)
        field = "spec.user" if request.resource.kind == "Job" else f"label {Muster.USER}"
        if user is None:
            if request.actor is None:
                return  # made by Muster itself, for work that came from elsewhere
            raise refused(
                request,
                f"{Reason.USER_NOT_FOUND.value}: {field}: there is no User {work.user!r}; correct the name, or create the User",
            )
        if user.spec.suspended:
            raise refused(
                request,
                f"{Reason.USER_SUSPENDED.value}: User {work.user} may submit nothing: spec.suspended is true; an administrator "
                f"of group {user.spec.group} can change that",
            )
        for whose in {work.user, before.user if before is not None and before.user else work.user}:
            if not await self._may_act_for(request.actor, whose):
                login = request.actor.user if request.actor is not None else ""
                raise refused(
                    request,
                    f"{Reason.USER_NOT_YOURS.value}: {field}: {login!r} does not act for User {whose}; leave the user out, or "
                    f"let an administrator of group {user.spec.group} submit it",
                )

    async def _may_act_for(self, actor: Actor | None, user: str) -> bool:
        if actor is None or MASTERS in actor.groups or actor.user in self._trusted:
            return True
        return self._people.acts_for(self._people.user_of(actor.user), user) or await self._is_admin(actor)

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
        if isinstance(view, User):
            self._check_names(request, view)
        if isinstance(view, Queue) and view.spec.limits.consumption:
            raise refused(request, "spec.limits.consumption: a Queue has none; set it on a User or UserGroup")
        node = node_of(view, request.name, standing=False)
        if node.limits.problems:
            raise refused(request, "; ".join(f"spec.{problem}" for problem in node.limits.problems))
        people.expire()
        problems = problems_of(people.tree, node)
        if problems:
            is_place = problems[0].startswith(("spec.parent", "spec.group"))
            code = Reason.PARENT_CYCLE if is_place else Reason.DIVISION_EXCEEDED
            raise refused(request, f"{code.value}: {'; '.join(problems[:_NAMED_MAX])}")
        if not request.dry_run:
            people.promise_account(node)

    def _check_deletion(self, request: AdmissionRequest) -> None:
        """Those below would be free of its limits."""
        kind = request.resource.kind
        if kind == "User":
            return
        below = self._people.tree.children("Queue" if kind == "Queue" else "UserGroup", request.name)
        if below:
            names = _some([f"{one.kind} {one.name}" for one in below])
            raise refused(request, f"{len(below)} stand under it and would be free of its limits ({names}); move them first")

    def _check_names(self, request: AdmissionRequest, user: User) -> None:
        if len(request.name) > 63:
            raise refused(request, "metadata.name: a user's name is a label of its work, and has at most 63 characters")
        taken = self._people.login_conflict(request.name, user)
        if taken:
            other = self._people.user_of(taken)
            raise refused(request, f"spec.usernames: {taken!r} is User {other} already; a login stands for one user")
        if user.spec.group not in self._people.groups:
            request.warn(f"spec.group: there is no UserGroup {user.spec.group!r} yet; until there is, only its own limits hold")

    async def _check_administrator(self, request: AdmissionRequest) -> None:
        """Who manages all users may do everything; others what their groups' administration allows."""
        actor, kind = request.actor, request.resource.kind
        if actor is None or MASTERS in actor.groups or actor.user in self._trusted or kind == "Queue":
            return
        if await self._is_admin(actor):
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


def _some(names: list[str]) -> str:
    return ", ".join(names[:_NAMED_MAX]) + (", ..." if len(names) > _NAMED_MAX else "")


def _is_work(request: AdmissionRequest) -> bool:
    return (request.resource.group, request.resource.kind) in WORK_KINDS


def _is_no_more(before: Work, work: Work) -> bool:
    """Whether an update asks for nothing that was not accepted already."""
    is_same = (before.user, before.group, before.queue, before.type) == (work.user, work.group, work.queue, work.type)
    return is_same and all(amount <= before.request.get(name, 0) for name, amount in work.request.items())


def _user_said(kind: str, raw: Mapping[str, Any]) -> str:
    if kind == "Job":
        return str(_spec(raw).get("user") or "")
    return labels_of(raw).get(Muster.USER) or annotations_of(raw).get(Muster.USER) or ""


def _spec(raw: Mapping[str, Any] | None) -> dict[str, Any]:
    spec = raw.get("spec") if raw is not None else None
    return spec if isinstance(spec, dict) else {}
