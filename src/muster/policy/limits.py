"""The limits of queues, users and groups: their objects as nodes of the quota tree, and what runs as it counts against them.

`Limits` is the book's part that knows them: fed with nodes (`queue_node` and the others make them of the engine's facts), told
by the book what starts and stops, asked by the gate. Pure, single-threaded.
"""

from __future__ import annotations

import msgspec

from muster.engine.columns import Array
from muster.engine.facts import LimitsFacts, QueueFacts, StandingFacts, UserFacts, UserGroupFacts
from muster.engine.state import State
from muster.objects.reasons import Reason
from muster.policy.table import Table
from muster.quota.limits import UNLIMITED, Ceilings, ceilings, with_spent_budget
from muster.quota.reading import exhausted_of
from muster.quota.tree import Breach, NodeKey, NodeKind, NodeSpec, QuotaTree


class Limits:
    def __init__(self, state: State, table: Table) -> None:
        self._resources, self._table = state.table, table
        self.quota = QuotaTree()
        self.fell: dict[NodeKey, None] = {}
        """Nodes whose use fell, or whose limits changed, since somebody looked: who sleeps at one may be asked about again."""
        self._limited: set[NodeKey] = set()

    @property
    def is_any(self) -> bool:
        """Whether any limit could stop anybody."""
        return bool(self._limited)

    def put(self, spec: NodeSpec) -> None:
        """The object of a node was seen."""
        self._note(self.quota.put(spec))
        if spec.limits != UNLIMITED or spec.stopped:
            self._limited.add(spec.key)
        else:
            self._limited.discard(spec.key)

    def drop(self, kind: NodeKind, name: str) -> None:
        self._note(self.quota.drop(kind, name))
        self._limited.discard((kind, name))

    def check(self, row: int, jobs: int) -> Breach | None:
        """The limit that starting the unit, and so many more jobs with it, would break."""
        table = self._table
        user, queue, group = table.works[row].user, table.queue_name(row), table.group_name(row)
        return self.quota.check_start(user, queue, self._amounts(table.request[:, row]), jobs, group=group)

    def charge(self, row: int, jobs: int) -> None:
        """The unit runs, and so many jobs with it: it counts with what it holds, instead of what it counted before."""
        table = self._table
        user, queue, group = table.works[row].user, table.queue_name(row), table.group_name(row)
        self._note(self.quota.start(table.ids[row], user, queue, self._amounts(table.used[:, row]), jobs, group=group))

    def stop(self, unit_id: str) -> None:
        """Nothing of the unit runs any more."""
        self._note(self.quota.stop(unit_id))

    def _amounts(self, column: Array) -> dict[str, int]:
        names = self._resources.names
        return {names[at]: amount for at, amount in enumerate(column.tolist()) if amount}

    def _note(self, nodes: tuple[NodeKey, ...]) -> None:
        self.fell.update(dict.fromkeys(nodes))


def queue_node(queue: QueueFacts) -> NodeSpec:
    """A queue that is Stopped has no mark here: the gate asks the tree of queues, and says so in its own words."""
    limits = _in_force(queue.spec.limits, queue.status.standing)
    return NodeSpec(kind="Queue", name=queue.metadata.name, parent=queue.spec.parent, limits=limits)


def user_node(user: UserFacts) -> NodeSpec:
    name, standing = user.metadata.name, user.status.standing
    why = f"spec.suspended of User {name} is true; whoever looks after the users sets it to false"
    stopped = f"{Reason.SUSPENDED.value}: {why}" if user.spec.suspended else _stopped(standing)
    return NodeSpec(
        kind="User", name=name, parent=user.spec.group, limits=_in_force(user.spec.limits, standing), stopped=stopped
    )


def group_node(group: UserGroupFacts) -> NodeSpec:
    return NodeSpec(
        kind="UserGroup",
        name=group.metadata.name,
        parent=group.spec.parent,
        limits=_in_force(group.spec.limits, group.status.standing),
        stopped=_stopped(group.status.standing),
    )


def _stopped(standing: StandingFacts | None) -> str:
    return standing.stopped if standing is not None else ""


def _in_force(limits: LimitsFacts, standing: StandingFacts | None) -> Ceilings:
    """When a budget is spent, further limits may hold; and what is used up for this period may not be used on."""
    found = _ceilings(limits)
    if standing is None:
        return found
    if standing.limits is not None:
        found = with_spent_budget(found, _ceilings(standing.limits))
    if not standing.exhausted:
        return found
    return msgspec.structs.replace(found, exhausted=exhausted_of((one.resource, one.message) for one in standing.exhausted))


def _ceilings(limits: LimitsFacts) -> Ceilings:
    return ceilings(concurrent=limits.concurrent, jobs_running=limits.jobs_running)
