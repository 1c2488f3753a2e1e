"""Who is who, and what they have submitted: the picture by which submissions are judged and access is decided.

Fed with Users, UserGroups, Queues, and what is submitted (Jobs, KusciaJobs, pods of their own): by the embedded server from its
store, change by change before the writer is answered; by `muster controller` from informers, a moment later.

`promise` closes the gap between judging a submission and seeing it stored: what was accepted counts at once, so that two that
come together can't both take the last of a limit. A promise that nothing came of is forgotten after a few seconds; until then
it can only refuse too much.

Concurrency: on the event loop; memory only; every method does its work without waiting.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from muster.controllers.work_sizes import FindImage, IsPartner, Work, WorkReader, submitted_work, work_key
from muster.objects.kinds.muster import User, UserGroup
from muster.objects.kinds.muster_queues import Queue
from muster.objects.labels import Muster
from muster.objects.meta import labels_of, name_of, namespace_of
from muster.objects.status import Raw
from muster.objects.time import Clock
from muster.objects.view import view_of
from muster.quota.dividing import administered
from muster.quota.limits import NodeKey, NodeKind
from muster.quota.nodes import NodeSpec
from muster.quota.reading import node_of
from muster.quota.tree import QuotaTree

FOLLOWED: Final = (
    ("muster.dev", "UserGroup"),
    ("muster.dev", "User"),
    ("muster.dev", "Queue"),
    ("muster.dev", "Job"),
    ("kuscia.secretflow", "KusciaJob"),
    ("", "Pod"),
)
"""The kinds that `People.apply` takes."""
PROMISE_S: Final = 10.0
_VIEWS: Final[Mapping[str, type[User] | type[UserGroup] | type[Queue]]] = {"User": User, "UserGroup": UserGroup, "Queue": Queue}


def login_refusal(login: str, other: str) -> str:
    """What whoever wants that login for a User is told, which another one has."""
    return f"spec.usernames: {login!r} is User {other} already; a login stands for one user"


class People:
    """See the module."""

    def __init__(
        self,
        clock: Clock,
        find_image: FindImage = lambda name: None,
        is_partner: IsPartner = lambda domain: False,
    ) -> None:
        self.tree = QuotaTree()
        self.users: dict[str, User] = {}
        self.groups: dict[str, UserGroup] = {}
        self.queues: dict[str, Queue] = {}
        self._clock = clock
        self._find_image = find_image
        self._is_partner = is_partner
        self._works = WorkReader(find_image, is_partner)
        self._logins: dict[str, str] = {}
        self._owners: dict[tuple[str, str, str], str] = {}
        """Whose an object is: by (kind, namespace, name)."""
        self._promises: dict[str, dict[str, float]] = {}
        """By work: the keys under which writes of it that are under way count, and until when."""
        self._promised = 0
        self._promised_accounts: dict[NodeKey, tuple[float, NodeSpec | None]] = {}
        self._administered: dict[str, frozenset[NodeKey]] = {}
        """By user; forgotten when users or groups change."""

    # -- what is there -------------------------------------------------------------------------------------------------------

    def apply(self, kind: str, raw: Mapping[str, Any], *, deleted: bool = False) -> None:
        """Take in an object of one of the `FOLLOWED` kinds, in any order and as often as one likes."""
        if kind in _VIEWS:
            self._apply_account(kind, raw, deleted=deleted)
        else:
            self._apply_work(kind, raw, deleted=deleted)

    def _apply_account(self, kind: str, raw: Mapping[str, Any], *, deleted: bool) -> None:
        name = name_of(raw)
        self._promised_accounts.pop((kind, name), None)  # type: ignore[arg-type]
        books: dict[str, dict[str, Any]] = {"User": self.users, "UserGroup": self.groups, "Queue": self.queues}
        if deleted:
            books[kind].pop(name, None)
            self.tree.drop(kind, name)  # type: ignore[arg-type]
        else:
            try:
                view = view_of(_VIEWS[kind], dict(raw))
            except msgspec.ValidationError:
                return  # another server let it in; what was known before holds
            before = books[kind].get(name)
            books[kind][name] = view
            self.tree.put(node_of(view, name))
            if before is not None and before.spec == view.spec:
                return  # its status, which says nothing about who is who: most changes are
        if kind != "Queue":
            self._administered.clear()
            if kind == "User":
                self._logins = {login: user for user in sorted(self.users) for login in self.logins_of(user)}

    def logins_of(self, user: str) -> list[str]:
        return self.users[user].spec.usernames or [user]

    def _apply_work(self, kind: str, raw: Mapping[str, Any], *, deleted: bool) -> None:
        namespace, name = namespace_of(raw), name_of(raw)
        key = work_key(kind, namespace, name)
        self._keep_promises(key)
        work = None if deleted else self._works.read(kind, raw)
        owner = work.user if work is not None else "" if deleted else labels_of(raw).get(Muster.USER, "")
        self._own((kind, namespace, name), owner)
        self._count(key, work)
        if deleted:
            self._works.forget(key)

    def own_made(self, kind: str, namespace: str, name: str, user: str) -> None:
        """A pod or KusciaTask that a controller made is whose its label says; "" when it is gone or nobody's."""
        self._own((kind, namespace, name), user)

    def _own(self, what: tuple[str, str, str], owner: str) -> None:
        if owner:
            self._owners[what] = owner
        else:
            self._owners.pop(what, None)

    def read(self, kind: str, raw: Raw) -> Work | None:
        """What the object submits, with the queue that it goes to."""
        work = submitted_work(kind, raw, self._find_image, self._is_partner)
        if work is None or work.queue or not self.default_queue:
            return work
        return msgspec.structs.replace(work, queue=self.default_queue)

    def _count(self, key: str, work: Work | None) -> None:
        if work is not None and not work.queue and self.default_queue:
            work = msgspec.structs.replace(work, queue=self.default_queue)
        if work is None or work.is_over or not work.is_accounted:
            self.tree.withdraw(key)
        else:
            self.tree.submit(key, work.user, work.queue, work.request, group=work.group)

    # -- promises ------------------------------------------------------------------------------------------------------------

    def promise(self, work: Work) -> None:
        """Count what is being submitted, before it is stored. Of one object several writes may be under way, of which one will
        be stored: all of them count until then."""
        self._promised += 1
        key = f"{work.key}#{self._promised}"
        self._promises.setdefault(work.key, {})[key] = self._clock() + PROMISE_S
        self.tree.submit(key, work.user, work.queue, work.request, group=work.group)

    def counted_as(self, key: str) -> list[str]:
        """Under which keys the work and what is promised of it count: what takes its place does not count beside it."""
        return [key, *self._promises.get(key, ())]

    def _keep_promises(self, key: str) -> None:
        """The object was written, or is gone: whatever else was under way is judged again on what is there now."""
        for promised in self._promises.pop(key, ()):
            self.tree.withdraw(promised)

    def promise_account(self, node: NodeSpec) -> None:
        """The same for what is said of a user, group or queue: the next division is judged with this one made."""
        known = self._promised_accounts.get(node.key)
        before = known[1] if known is not None else self.tree.find(*node.key)
        self._promised_accounts[node.key] = self._clock() + PROMISE_S, before
        self.tree.put(node)

    def expire(self) -> None:
        """Forget promises that nothing came of."""
        now = self._clock()
        for node_key in [key for key, (until, _) in self._promised_accounts.items() if until <= now]:
            _, before = self._promised_accounts.pop(node_key)
            if before is None:
                self.tree.drop(*node_key)
            else:
                self.tree.put(before)
        for key, promised in list(self._promises.items()):
            for one in [one for one, until in promised.items() if until <= now]:
                del promised[one]
                self.tree.withdraw(one)
            if not promised:
                del self._promises[key]

    # -- who is who ----------------------------------------------------------------------------------------------------------

    @property
    def default_queue(self) -> str:
        """The queue of jobs that name none; of several, the first by name."""
        return next((name for name in sorted(self.queues) if self.queues[name].spec.is_default), "")

    def user_of(self, login: str) -> str:
        """The User who logs in under that name; "" for others."""
        return self._logins.get(login, "")

    def login_conflict(self, name: str, user: User) -> str:
        """A login of this user that another one has already; "" when there is none."""
        wanted = user.spec.usernames or [name]
        return next((login for login in wanted if self._logins.get(login, name) != name), "")

    def owner(self, kind: str, namespace: str, name: str) -> str:
        return self._owners.get((kind, namespace, name), "")

    def administered(self, user: str) -> frozenset[NodeKey]:
        """The users and groups below the groups that this user administers."""
        found = self._administered.get(user)
        if found is None:
            admins = {name: frozenset(group.spec.admins) for name, group in self.groups.items()}
            found = self._administered[user] = administered(self.tree, admins, user)
        return found

    def acts_for(self, user: str, other: str) -> bool:
        """Whether `user` sees and stops the work of `other`, and may submit for it."""
        return bool(user) and (user == other or ("User", other) in self.administered(user))

    def groups_of(self, user: str) -> list[str]:
        """The user's group and all above it."""
        return [spec.name for spec in self.tree.ancestors("User", user) if spec.kind == "UserGroup"]

    def queues_above(self, queue: str) -> Iterator[tuple[str, Queue]]:
        """The queue and those above it, from the bottom up."""
        for spec in self.tree.ancestors("Queue", queue):
            yield spec.name, self.queues[spec.name]

    def node(self, kind: NodeKind, name: str) -> NodeSpec | None:
        return self.tree.find(kind, name)
