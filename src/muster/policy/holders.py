"""Who uses what a limit has none left of: for work that waits because a queue, user or group has reached its limit. Pure.

Asked when somebody wants to know, not when the limit is found reached: it looks at every pod that has a node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from muster.engine.events import QueueSeen, UserGroupSeen, UserSeen
from muster.engine.pool_use import uses
from muster.engine.state import State
from muster.engine.work import Work
from muster.objects.reasons import Holder, Verdict

HOLDERS_MAX: Final = 5
_DEPTH_MAX: Final = 64


def with_holders(state: State, verdict: Verdict) -> Verdict:
    """The same verdict, with those who use most of what is limited. Unchanged where it is about no limit, or names them."""
    kind, _, name = verdict.subject.partition(" ")
    if len(verdict.shortfalls) != 1 or verdict.shortfalls[0].holders or kind not in _TREES:
        return verdict
    short = verdict.shortfalls[0]
    above = _TREES[kind](state)
    sums: dict[str, int] = {}
    for use in uses(state, state.nodes.names):
        key = use.work.job or use.unit
        if name not in above.of(use.work) or "/" not in key:
            continue
        if short.resource == "jobs":
            sums[key] = 1
        elif amount := use.request.get(short.resource, 0):
            sums[key] = sums.get(key, 0) + amount
    most = sorted(sums.items(), key=lambda item: (-item[1], item[0]))[:HOLDERS_MAX]
    holders = tuple(Holder(kind=key.partition("/")[0], name=key.partition("/")[2], amount=amount) for key, amount in most)
    return msgspec.structs.replace(verdict, shortfalls=(msgspec.structs.replace(short, holders=holders),))


class _Users:
    def __init__(self, state: State) -> None:
        pass

    def of(self, work: Work) -> list[str]:
        return [work.user]


class _Queues:
    """The tree, as far as it takes to say in which queues work is."""

    def __init__(self, state: State) -> None:
        seen = [event.queue for event in state.order_objects.values() if isinstance(event, QueueSeen)]
        self._parents = {queue.metadata.name: queue.spec.parent for queue in seen}
        self._default = min((queue.metadata.name for queue in seen if queue.spec.is_default), default="")

    def of(self, work: Work) -> list[str]:
        """Its own queue, and those above it."""
        return _upwards(work.queue or self._default, self._parents)


class _Groups:
    """The tree, as far as it takes to say of which groups work is."""

    def __init__(self, state: State) -> None:
        seen = list(state.order_objects.values())
        self._group_of = {event.user.metadata.name: event.user.spec.group for event in seen if isinstance(event, UserSeen)}
        self._parents = {
            event.group.metadata.name: event.group.spec.parent for event in seen if isinstance(event, UserGroupSeen)
        }

    def of(self, work: Work) -> list[str]:
        """The group of its user, and those above it."""
        return _upwards(self._group_of.get(work.user) or work.group, self._parents)


_TREES: Final[Mapping[str, Callable[[State], _Queues | _Users | _Groups]]] = {
    "Queue": _Queues,
    "User": _Users,
    "UserGroup": _Groups,
}


def _upwards(name: str, parents: Mapping[str, str]) -> list[str]:
    found: list[str] = []
    while name and name not in found and len(found) < _DEPTH_MAX:
        found.append(name)
        name = parents.get(name, "")
    return found
