"""What users and administrators of groups may do beside what RBAC gives them: see and stop work, and divide limits.

| what | which | verbs |
|---|---|---|
| jobs, kusciajobs | one's own | get, patch, update, delete; list, watch, deletecollection with `-l muster.dev/user=NAME` |
| pods, pods/log | of one's own work | get, delete (pods); list, watch with that selector |
| kusciatasks | of one's own work | get; list, watch with that selector |
| users | oneself | get |
| usergroups | one's own, and those above | get |
| queues, schedulingpolicies, nodepools | all | get, list, watch |
| all of the above | of users below a group that one administers | the same |
| users, usergroups | below a group that one administers | get, patch, update (which fields: `limits_admission`) |

Whoever logs in under a name of a User object is that user. A list shows what its selector says, which must say whose:
`muster.dev/user=ann`, or `muster.dev/user in (ann, bob)`, all of them one's own or administered. So what is listed or watched
never has to be filtered. A list or watch of one name is narrowed to who has it now: earlier and later, others may have had one
of that name. Submitting needs a role that allows `create`, such as `muster:submitter`.

For what is not in the table RBAC is asked. Pure but for the picture in memory; on the event loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from muster.objects.labels import Muster
from muster.objects.selectors import Operator, parse_label_selector
from muster.server.authorization import Decision
from muster.server.people import People
from muster.server.rbac import Attributes

_REASON: Final = "it is the user's own, or of a user whose group it administers"
_ALLOWED: Final = Decision(True, _REASON)
_WORK: Final = {
    ("muster.dev", "jobs"): "Job",
    ("kuscia.secretflow", "kusciajobs"): "KusciaJob",
    ("kuscia.secretflow", "kusciatasks"): "KusciaTask",
    ("", "pods"): "Pod",
}
_SHARED: Final = frozenset({"queues", "schedulingpolicies", "nodepools"})
"""By what work is ordered, and what there is for it: everybody who submits may look before."""
_READ: Final = frozenset({"get", "list", "watch"})
_MANY: Final = frozenset({"list", "watch", "deletecollection"})
_ONE: Final = frozenset({"get", "patch", "update", "delete", "list", "watch"})
"""Lists and watches of one name are asked about under that name."""
_POD: Final = frozenset({"get", "delete", "list", "watch"})


class UserAccess:
    """See the module."""

    def __init__(self, people: People) -> None:
        self._people = people

    def __call__(self, user: str, groups: Sequence[str], asked: Attributes) -> Decision | None:
        me = self._people.user_of(user)
        if not me or not asked.is_resource:
            return None
        if not self._may(me, asked):
            return None
        if asked.name and asked.verb in ("list", "watch") and (kind := _WORK.get((asked.group, asked.resource))):
            owner = self._people.owner(kind, asked.namespace, asked.name)
            return Decision(True, _REASON, only=f"{Muster.USER}={owner}")
        return _ALLOWED

    def _may(self, me: str, asked: Attributes) -> bool:
        what = (asked.group, asked.resource)
        if what in _WORK:
            return self._may_work(me, _WORK[what], asked)
        if asked.group != "muster.dev" or asked.subresource:
            return False
        if asked.resource in _SHARED:
            return asked.verb in _READ
        if asked.resource in ("users", "usergroups") and asked.name:
            return self._may_account(me, asked)
        return False

    def _may_work(self, me: str, kind: str, asked: Attributes) -> bool:
        people = self._people
        if asked.name:
            owner = people.owner(kind, asked.namespace, asked.name)
            if not owner or not people.acts_for(me, owner):
                return False
            if kind == "Pod":
                return (asked.subresource == "log" and asked.verb == "get") or (not asked.subresource and asked.verb in _POD)
            return not asked.subresource and asked.verb in (_READ if kind == "KusciaTask" else _ONE)
        is_made = kind in ("Pod", "KusciaTask")
        if asked.subresource or asked.verb not in _MANY or (is_made and asked.verb == "deletecollection"):
            return False
        whose = users_selected(asked.label_selector)
        return bool(whose) and all(people.acts_for(me, user) for user in whose)

    def _may_account(self, me: str, asked: Attributes) -> bool:
        people = self._people
        is_user = asked.resource == "users"
        if asked.verb in ("get", "patch", "update"):
            kind = "User" if is_user else "UserGroup"
            if any(one == (kind, asked.name) for one in people.administered(me)):
                return True
        if asked.verb not in _READ:
            return False
        return asked.name == me if is_user else asked.name in people.groups_of(me)


def users_selected(selector: str) -> frozenset[str]:
    """The users to whom a label selector narrows a list; empty when it does not."""
    try:
        query = parse_label_selector(selector)
    except ValueError:
        return frozenset()
    for term in query.requirements:
        if term.key == Muster.USER and term.operator in (Operator.EQUALS, Operator.IN) and term.values:
            return frozenset(term.values)
    return frozenset()
