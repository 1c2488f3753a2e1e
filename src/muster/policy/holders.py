"""Who uses what a limit has none left of: for work that waits because a queue or a user has reached its limit. Pure.

Asked when somebody wants to know, not when the limit is found reached: it looks at every pod that has a node.
"""

from __future__ import annotations

from typing import Final

import msgspec

from muster.engine.events import QueueSeen
from muster.engine.pool_use import uses
from muster.engine.state import State
from muster.engine.work import Work
from muster.objects.reasons import Holder, Verdict

HOLDERS_MAX: Final = 5
_DEPTH_MAX: Final = 64


def with_holders(state: State, verdict: Verdict) -> Verdict:
    """The same verdict, with those who use most of what is limited. Unchanged where it is about no limit, or names them."""
    kind, _, name = verdict.subject.partition(" ")
    if len(verdict.shortfalls) != 1 or verdict.shortfalls[0].holders or kind not in ("Queue", "User"):
        return verdict
    short = verdict.shortfalls[0]
    queues = _Queues(state)
    sums: dict[str, int] = {}
    for use in uses(state, state.nodes.names):
        key = use.work.job or use.unit
        if not (use.work.user == name if kind == "User" else name in queues.of(use.work)) or "/" not in key:
            continue
        if short.resource == "jobs":
            sums[key] = 1
        elif amount := use.request.get(short.resource, 0):
            sums[key] = sums.get(key, 0) + amount
    most = sorted(sums.items(), key=lambda item: (-item[1], item[0]))[:HOLDERS_MAX]
    holders = tuple(Holder(kind=key.partition("/")[0], name=key.partition("/")[2], amount=amount) for key, amount in most)
    return msgspec.structs.replace(verdict, shortfalls=(msgspec.structs.replace(short, holders=holders),))


class _Queues:
    """The tree, as far as it takes to say in which queues work is."""

    def __init__(self, state: State) -> None:
        seen = [event.queue for event in state.order_objects.values() if isinstance(event, QueueSeen)]
        self._parents = {queue.metadata.name: queue.spec.parent for queue in seen}
        self._default = min((queue.metadata.name for queue in seen if queue.spec.is_default), default="")

    def of(self, work: Work) -> list[str]:
        """Its own queue, and those above it."""
        found: list[str] = []
        name = work.queue or self._default
        while name and name not in found and len(found) < _DEPTH_MAX:
            found.append(name)
            name = self._parents.get(name, "")
        return found
