"""Whose work it is, and who may say so: for whom somebody submits, and whose work somebody changes, stops or deletes.

| who | may |
|---|---|
| Muster itself, `system:masters`, the accounts of its controllers | everything |
| who may create UserGroups (manages all users) | everything |
| who may impersonate the user's login (an operator that makes pods for others, say) | submit for that user |
| a User | submit, change and delete what is its own, or of users below a group that it administers |
| who may update the Queue that the work is in | change and delete it |

Work of nobody, and who logs in as no User, are left to RBAC alone. A pod counts with its job when a controller of Muster made
it for that; so nobody else may name a job as its controller. Whose a pod is can't be taken off it again.

Concurrency: on the event loop. Only `allows` may wait, and is asked only where the picture in memory does not settle it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from muster.controllers.work_sizes import is_part_of_job
from muster.objects.labels import Muster
from muster.objects.meta import annotations_of, controller_of, labels_of, metadata_of
from muster.objects.names import validate_label_value
from muster.objects.reasons import Reason
from muster.objects.status import Raw
from muster.server.access_review import Allows
from muster.server.admission import Hook, refused, writes_metadata
from muster.server.authorization import MASTERS
from muster.server.people import People
from muster.server.queue_acts import CONTROLLERS, queue_attributes
from muster.server.rbac import Attributes
from muster.store.embedded.admission import Actor, AdmissionRequest

WORK_KINDS: Final = frozenset({("muster.dev", "Job"), ("kuscia.secretflow", "KusciaJob"), ("", "Pod")})
KINDS: Final = WORK_KINDS | {("kuscia.secretflow", "KusciaTask")}
MANAGING: Final = Attributes(verb="create", group="muster.dev", resource="usergroups")
"""What whoever manages all users may do."""


class Said(msgspec.Struct, frozen=True):
    """What an object says about whose it is."""

    user: str = ""
    group: str = ""
    queue: str = ""
    is_over: bool = False


class WhoseWork:
    """See the module."""

    def __init__(self, people: People, allows: Allows, *, trusted: frozenset[str] = frozenset()) -> None:
        """`trusted`: logins that act for everybody, such as Muster's own controllers on a real cluster."""
        self._people = people
        self._allows = allows
        self._trusted = trusted

    def is_trusted(self, actor: Actor | None) -> bool:
        return actor is None or MASTERS in actor.groups or CONTROLLERS in actor.groups or actor.user in self._trusted

    async def manages_users(self, actor: Actor | None) -> bool:
        return actor is None or self.is_trusted(actor) or await self._allows(actor, MANAGING)

    async def judge(self, request: AdmissionRequest) -> None:
        """Refuses a write of one of `KINDS`. Forbidden."""
        raw, old = request.object, request.old
        before = self._said(request, old)
        if old is not None and before is not None:
            await self._check_change(request, before)
        if raw is None:
            return
        if is_part_of_job(raw):
            await self._check_part(request, raw, old)
            return
        now = self._said(request, raw)
        if now is None or now.is_over:
            return
        is_new = before is None or before.is_over
        if is_new or before is None or before.user != now.user:
            await self._check_user(request, now, before)
        if now.group and (is_new or before is None or before.group != now.group):
            await self._check_group(request, now)

    def _said(self, request: AdmissionRequest, raw: Raw | None) -> Said | None:
        if raw is None:
            return None
        work = self._people.read(request.resource.kind, raw)
        if work is not None:
            return Said(work.user, work.group, work.queue, work.is_over)
        return Said(_noted(raw, Muster.USER), _noted(raw, Muster.GROUP), _noted(raw, Muster.QUEUE))

    # -- whose is it -----------------------------------------------------------------------------------------------------------

    async def _check_user(self, request: AdmissionRequest, now: Said, before: Said | None) -> None:
        people = self._people
        if not people.users:
            return  # users are not managed here
        field = user_field(request)
        if not now.user:
            if before is not None and before.user and not await self.manages_users(request.actor):
                raise refused(
                    request, f"{Reason.USER_NOT_YOURS.value}: {field}: it is of User {before.user} and stays so; put it back"
                )
            return
        user = people.users.get(now.user)
        if user is None:
            if request.actor is None:
                return  # made by Muster itself, for work that came from elsewhere
            raise refused(
                request,
                f"{Reason.USER_NOT_FOUND.value}: {field}: there is no User {now.user!r}; correct the name, or create the User",
            )
        if user.spec.suspended:
            raise refused(
                request,
                f"{Reason.USER_SUSPENDED.value}: User {now.user} may submit nothing: spec.suspended is true; an administrator "
                f"of group {user.spec.group} can change that",
            )
        for whose in {now.user, before.user if before is not None and before.user else now.user}:
            if not await self._may_act_for(request.actor, whose):
                login = request.actor.user if request.actor is not None else ""
                raise refused(
                    request,
                    f"{Reason.USER_NOT_YOURS.value}: {field}: {login!r} does not act for User {whose}; leave the user out, or "
                    f"let an administrator of group {user.spec.group} submit it",
                )

    async def _may_act_for(self, actor: Actor | None, user: str) -> bool:
        if actor is None or self.is_trusted(actor) or self._people.acts_for(self._people.user_of(actor.user), user):
            return True
        if await self._allows(actor, MANAGING):
            return True
        logins = self._people.logins_of(user) if user in self._people.users else [user]
        for login in logins:
            if await self._allows(actor, Attributes(verb="impersonate", resource="users", name=login)):
                return True
        return False

    async def _check_group(self, request: AdmissionRequest, now: Said) -> None:
        people, group = self._people, now.group
        if not people.groups or group in people.groups_of(now.user) or await self.manages_users(request.actor):
            return
        field, login = f"label {Muster.GROUP}", request.actor.user if request.actor is not None else ""
        there = people.groups.get(group)
        if there is None:
            known = "correct the name, or leave it out: the group of a User is known"
            raise refused(request, f"{Reason.USER_NOT_FOUND.value}: {field}: there is no UserGroup {group!r}; {known}")
        me = people.user_of(login)
        if not now.user and me and (me in there.spec.admins or ("UserGroup", group) in people.administered(me)):
            return
        who = f"User {now.user} is not in UserGroup {group}" if now.user else f"{login!r} does not act for UserGroup {group}"
        raise refused(request, f"{Reason.USER_NOT_YOURS.value}: {field}: {who}; leave the group out")

    # -- whose may it become, and who may touch it -----------------------------------------------------------------------------

    async def _check_part(self, request: AdmissionRequest, raw: Raw, old: Raw | None) -> None:
        """A pod or task that says that a job of Muster's made it."""
        owner, before = controller_of(raw) or {}, controller_of(old or {}) or {}
        is_kept = is_part_of_job(old or {}) and owner.get("uid") == before.get("uid")
        if is_kept or await self.manages_users(request.actor):
            return
        login = request.actor.user if request.actor is not None else ""
        raise refused(
            request,
            f"metadata.ownerReferences: {login!r} may not name {owner.get('kind')} {owner.get('name')} as its controller: it "
            "would count with that and not by itself; leave the reference out, or let it be one that is not the controller",
        )

    async def _check_change(self, request: AdmissionRequest, before: Said) -> None:
        """Whoever is a User changes what is its own, whatever roles it has in the namespace beside."""
        actor, people = request.actor, self._people
        if actor is None or before.user not in people.users or self.is_trusted(actor):
            return
        me = people.user_of(actor.user)
        if not me or people.acts_for(me, before.user):
            return
        if await self._allows(actor, MANAGING) or await self._allows(actor, queue_attributes(before.queue)):
            return
        where = f"queue {before.queue!r}" if before.queue else "the default queue"
        raise refused(
            request,
            f"{Reason.USER_NOT_YOURS.value}: it is of User {before.user}, for whom {actor.user!r} does not act; ask "
            f"{before.user}, an administrator of group {people.users[before.user].spec.group}, or one of {where}",
        )


class FillsInUser(Hook):
    """Whose work it is, when it does not say so: of who submits it. As a label too, by which lists can be narrowed."""

    def __init__(self, people: People) -> None:
        self._people = people

    async def mutate(self, request: AdmissionRequest) -> Raw | None:
        raw, kind = request.object, request.resource.kind
        resource = request.resource
        if raw is None or (resource.group, resource.kind) not in KINDS or not writes_metadata(request) or is_part_of_job(raw):
            return None
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


def is_work(request: AdmissionRequest) -> bool:
    """Whether it is about something that is submitted, and counted."""
    return (request.resource.group, request.resource.kind) in WORK_KINDS


def _user_said(kind: str, raw: Mapping[str, Any]) -> str:
    if kind != "Job":
        return _noted(raw, Muster.USER)
    spec = raw.get("spec")
    return str(spec.get("user") or "") if isinstance(spec, dict) else ""


def user_field(request: AdmissionRequest) -> str:
    return "spec.user" if request.resource.kind == "Job" else f"label {Muster.USER}"


def _noted(raw: Mapping[str, Any], key: str) -> str:
    return labels_of(raw).get(key) or annotations_of(raw).get(key) or ""
