"""The tree of users, groups and queues: who may use how much, and who uses how much now.

Users stand under their group, groups and queues under their parent: one class of node for all of them. What runs is charged to
its user, to its queue and to all that stand above either, so that a limit holds for a whole subtree.

Pure, one caller at a time. Invariants: the use of a node is the sum of the charges in its subtree, exactly, whatever the order
in which objects and charges come and go; a node is remembered while something is charged to it or stands under it, even
before its object is seen and after it is gone; nodes whose parents form a circle stand on their own, all of them, until the
circle is broken (`problems` says so), and so do nodes whose parent is not there, except that they are charged to it already.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from muster.objects.reasons import Holder
from muster.quota.breaches import exhausted, over, too_many_jobs
from muster.quota.limits import Breach, Ceilings, NodeKey, NodeKind, ceilings
from muster.quota.nodes import Charge, Node, NodeSpec, Use, chain

__all__ = ["Breach", "Ceilings", "NodeKey", "NodeKind", "NodeSpec", "QuotaTree", "Use", "ceilings"]

HOLDERS_MAX: Final = 5
PATHS_MAX: Final = 65_536


class QuotaTree:
    """See the module. Methods that change something return the nodes whose use fell or whose limits may have been raised: what
    was refused because of one of them may be asked about again."""

    def __init__(self) -> None:
        self._nodes: dict[NodeKey, Node] = {}
        self._running: dict[str, Charge] = {}
        self._submitted: dict[str, Charge] = {}
        self._cyclic: set[NodeKey] = set()
        self._paths: dict[tuple[str, str, str], tuple[Node, ...]] = {}
        """By (user, group, queue): all nodes that work is charged to, from the bottom up. Dropped when links change."""
        self._largest: dict[tuple[NodeKey, str], tuple[Holder, ...]] = {}

    # -- objects -------------------------------------------------------------------------------------------------------------

    def put(self, spec: NodeSpec) -> tuple[NodeKey, ...]:
        """The object of a node was seen, for the first time or changed."""
        node = self._node(spec.key)
        before, node.spec = node.spec, spec
        touched: set[NodeKey] = set() if before == spec else {spec.key}
        if before is None or before.parent_key != spec.parent_key:
            touched |= self._relink(node, before.parent_key if before is not None else None)
        return tuple(sorted(touched))

    def drop(self, kind: NodeKind, name: str) -> tuple[NodeKey, ...]:
        """The object is gone; what runs stays charged to its name."""
        node = self._nodes.get((kind, name))
        if node is None or node.spec is None:
            return ()
        before, node.spec = node.spec, None
        touched = {node.key} | self._relink(node, before.parent_key)
        self._forget(node)
        return tuple(sorted(touched))

    def find(self, kind: NodeKind, name: str) -> NodeSpec | None:
        node = self._nodes.get((kind, name))
        return node.spec if node is not None else None

    def children(self, kind: NodeKind, name: str) -> list[NodeSpec]:
        """Of nodes that stand under this one and whose object is there; by kind and name."""
        node = self._nodes.get((kind, name))
        found = [self._nodes[key].spec for key in sorted(node.children)] if node is not None else []
        return [spec for spec in found if spec is not None]

    def specs(self) -> Iterator[NodeSpec]:
        for key in sorted(self._nodes):
            spec = self._nodes[key].spec
            if spec is not None:
                yield spec

    def ancestors(self, kind: NodeKind, name: str) -> list[NodeSpec]:
        """The node itself and all above it whose object is there, from the bottom up."""
        node = self._nodes.get((kind, name))
        return [one.spec for one in chain(node) if one.spec is not None]

    def would_cycle(self, spec: NodeSpec) -> list[NodeKey]:
        """The circle of parents that this node would close, beginning with itself; [] when there is none."""
        circle, at = {spec.key: None}, spec.parent_key
        while at is not None and at not in circle:
            circle[at] = None
            above = self._nodes.get(at)
            at = above.spec.parent_key if above is not None and above.spec is not None else None
        # Anything else that was met twice is a circle further up, which this node is not part of.
        return list(circle) if at == spec.key else []

    def problems(self, kind: NodeKind, name: str) -> list[str]:
        """What is wrong with the node's place and limits; each names the field and the way out."""
        node = self._nodes.get((kind, name))
        if node is None or node.spec is None:
            return []
        field = "spec.group" if kind == "User" else "spec.parent"
        found = list(node.spec.limits.problems)
        wanted = node.spec.parent_key
        if node.key in self._cyclic:
            circle = " under ".join(one[1] for one in [*self.would_cycle(node.spec), node.key])
            found.append(f"{field}: {kind} {name} stands above itself ({circle}): nothing above it counts; change one of them")
        elif wanted is not None and self._nodes[wanted].spec is None:
            found.append(f"{field}: {wanted[0]} {wanted[1]!r} does not exist: create it, or name another")
        return found

    # -- links ---------------------------------------------------------------------------------------------------------------

    def _relink(self, node: Node, old_parent: NodeKey | None) -> set[NodeKey]:
        """The node's link has changed: attach what can be attached, on its own what stands on a circle now."""
        self._paths.clear()
        self._largest.clear()
        touched: set[NodeKey] = set()
        freed: list[NodeKey] = []
        if node.key in self._cyclic:  # its change has broken the one circle that it was on
            freed = self._circle_through(node.key, old_parent)
            self._cyclic.difference_update(freed)
        touched |= self._attach(node, None)
        circle = self._circle_from(node)
        self._cyclic.update(circle)
        for key in circle:
            touched |= self._attach(self._nodes[key], None)
        for key in [node.key, *freed]:
            other = self._nodes.get(key)
            if other is not None and key not in self._cyclic:
                touched |= self._attach(other, other.spec.parent_key if other.spec is not None else None)
        return touched

    def _circle_through(self, start: NodeKey, first: NodeKey | None) -> list[NodeKey]:
        """The nodes of the circle that `start` was on when `first` was its parent."""
        found, at = [start], first
        while at is not None and at != start and at in self._cyclic:
            found.append(at)
            spec = self._nodes[at].spec
            at = spec.parent_key if spec is not None else None
        return found

    def _circle_from(self, node: Node) -> list[NodeKey]:
        return self.would_cycle(node.spec) if node.spec is not None else []

    def _attach(self, node: Node, parent: NodeKey | None) -> set[NodeKey]:
        """Move the node with all that is charged to it; returns the nodes whose use fell."""
        old = node.parent
        if (old.key if old is not None else None) == parent:
            return set()
        fell: set[NodeKey] = set()
        for above in chain(old):
            above.running.add(node.running.amounts, node.running.jobs, -1)
            above.submitted.add(node.submitted.amounts, node.submitted.jobs, -1)
            fell.add(above.key)
        if old is not None:
            old.children.discard(node.key)
        node.parent = self._node(parent) if parent is not None else None
        if node.parent is not None:
            node.parent.children.add(node.key)
        for above in chain(node.parent):
            above.running.add(node.running.amounts, node.running.jobs, 1)
            above.submitted.add(node.submitted.amounts, node.submitted.jobs, 1)
        if old is not None:
            self._forget(old)
        return fell

    def _node(self, key: NodeKey) -> Node:
        node = self._nodes.get(key)
        if node is None:
            node = self._nodes[key] = Node(key)
            self._paths.clear()
        return node

    def _forget(self, node: Node) -> None:
        """Drop a node that has no object, nothing under it and nothing charged to it."""
        if node.spec is None and not node.children and not node.running and not node.submitted:
            self._nodes.pop(node.key, None)
            self._paths.clear()

    def _path(self, user: str, group: str, queue: str) -> tuple[Node, ...]:
        path = self._paths.get((user, group, queue))
        if path is None:
            leaves = self._leaves(user, group, queue)
            path = tuple(node for leaf in leaves for node in chain(self._nodes.get(leaf)))
            if len(self._paths) >= PATHS_MAX:
                self._paths.clear()
            self._paths[user, group, queue] = path
        return path

    def _leaves(self, user: str, group: str, queue: str) -> tuple[NodeKey, ...]:
        """A group that the work names itself counts only where no user is named: a user's group is what its object says."""
        leaves: list[NodeKey] = []
        if user:
            leaves.append(("User", user))
        elif group:
            leaves.append(("UserGroup", group))
        if queue:
            leaves.append(("Queue", queue))
        return tuple(leaves)

    # -- use -----------------------------------------------------------------------------------------------------------------

    def start(
        self, key: str, user: str, queue: str, request: Mapping[str, int], jobs: int = 1, *, group: str = ""
    ) -> tuple[NodeKey, ...]:
        """Work runs, or more of it does: `request` is what it has in all now. The same twice changes nothing."""
        return self._charge(self._running, key, self._leaves(user, group, queue), request, jobs, is_running=True)

    def stop(self, key: str) -> tuple[NodeKey, ...]:
        """It runs no more; the nodes whose use fell."""
        return self._discharge(self._running, key, is_running=True)

    def submit(
        self, key: str, user: str, queue: str, request: Mapping[str, int], jobs: int = 1, *, group: str = ""
    ) -> tuple[NodeKey, ...]:
        """Work waits or runs: what it asks for in all counts against `submitted`, until `withdraw`."""
        return self._charge(self._submitted, key, self._leaves(user, group, queue), request, jobs, is_running=False)

    def withdraw(self, key: str) -> tuple[NodeKey, ...]:
        return self._discharge(self._submitted, key, is_running=False)

    def running(self, kind: NodeKind, name: str) -> Use:
        """What the node and all under it use at this moment."""
        node = self._nodes.get((kind, name))
        return Use(dict(node.running.amounts), node.running.jobs) if node is not None else Use()

    def submitted(self, kind: NodeKind, name: str) -> Use:
        node = self._nodes.get((kind, name))
        return Use(dict(node.submitted.amounts), node.submitted.jobs) if node is not None else Use()

    def holders(self, kind: NodeKind, name: str, resource: str) -> tuple[Holder, ...]:
        """The work that has most of a resource (of jobs for ""), largest first."""
        key: NodeKey = (kind, name)
        found = self._largest.get((key, resource))
        if found is None:
            mine = [
                (charge.amounts.get(resource, 0) if resource else charge.jobs, work)
                for work, charge in self._running.items()
                if any(node.key == key for leaf in charge.leaves for node in chain(self._nodes.get(leaf)))
            ]
            largest = sorted((one for one in mine if one[0]), key=lambda one: (-one[0], one[1]))[:HOLDERS_MAX]
            found = self._largest[key, resource] = tuple(Holder("Work", work, amount) for amount, work in largest)
        return found

    def _charge(
        self,
        book: dict[str, Charge],
        key: str,
        leaves: tuple[NodeKey, ...],
        request: Mapping[str, int],
        jobs: int,
        *,
        is_running: bool,
    ) -> tuple[NodeKey, ...]:
        amounts = {name: amount for name, amount in request.items() if amount > 0}
        charge = Charge(leaves, amounts, jobs)
        if book.get(key) == charge:
            return ()
        fell = self._discharge(book, key, is_running=is_running)
        book[key] = charge
        self._largest.clear()
        for leaf in leaves:
            for node in chain(self._node(leaf)):
                (node.running if is_running else node.submitted).add(amounts, jobs, 1)
        return fell

    def _discharge(self, book: dict[str, Charge], key: str, *, is_running: bool) -> tuple[NodeKey, ...]:
        charge = book.pop(key, None)
        if charge is None:
            return ()
        self._largest.clear()
        fell: list[NodeKey] = []
        for leaf in charge.leaves:
            for node in list(chain(self._nodes[leaf])):
                (node.running if is_running else node.submitted).add(charge.amounts, charge.jobs, -1)
                fell.append(node.key)
            self._forget(self._nodes[leaf])
        return tuple(fell)

    # -- limits --------------------------------------------------------------------------------------------------------------

    def check_start(
        self, user: str, queue: str, request: Mapping[str, int], jobs: int = 1, *, group: str = ""
    ) -> Breach | None:
        """The first limit on use that starting this would break, from the bottom up; users before queues. What the work does
        not ask for does not stand against it."""
        for node in self._path(user, group, queue):
            spec = node.spec
            if spec is None:
                continue
            if spec.stopped:
                return Breach(kind=spec.kind, name=spec.name, field="stopped", note=spec.stopped)
            limits, use = spec.limits, node.running
            if limits.exhausted and (spent := exhausted(spec, request)) is not None:
                return spent
            if limits.concurrent:
                found = over(spec, "concurrent", limits.concurrent, use.amounts, request)
                if found is not None:
                    return found
            if limits.jobs_running is not None and jobs > 0 and use.jobs + jobs > limits.jobs_running:
                return too_many_jobs(spec, "jobsRunning", limits.jobs_running, use.jobs, jobs)
        return None

    def check_submit(
        self,
        user: str,
        queue: str,
        request: Mapping[str, int],
        jobs: int = 1,
        *,
        group: str = "",
        replaces: Iterable[str] = (),
    ) -> Breach | None:
        """The first limit that accepting this would break: larger than one job may be, or than it could ever run within; or
        more than may wait and run together. `replaces`: keys of submissions that it takes the place of; they do not count."""
        path = self._path(user, group, queue)
        for node in path:
            spec = node.spec
            if spec is None:
                continue
            # What may run at once while a budget is spent makes work wait for the next period, and refuses none.
            found = (
                over(spec, "perJob", spec.limits.per_job, {}, request, never=True)
                or over(spec, "concurrent", spec.own.concurrent, {}, request, never=True)
                or over(spec, "submitted", spec.limits.submitted, {}, request, never=True)
            )
            if found is not None:
                # Refused for its size alone; what there is of it already is told all the same.
                return msgspec.structs.replace(found, used=node.submitted.amounts.get(found.resource, 0))
            if spec.own.jobs_running == 0 and jobs > 0:
                return too_many_jobs(spec, "jobsRunning", 0, node.submitted.jobs, jobs, never=True)
        olds = [self._submitted[key] for key in replaces if key in self._submitted]
        above = [{node.key for leaf in old.leaves for node in chain(self._nodes[leaf])} for old in olds]
        for node in path:
            spec, use = node.spec, node.submitted
            if spec is None:
                continue
            if olds:
                use = Use(dict(use.amounts), use.jobs)
                for old, keys in zip(olds, above, strict=True):
                    if node.key in keys:
                        use.add(old.amounts, old.jobs, -1)
            found = over(spec, "submitted", spec.limits.submitted, use.amounts, request)
            if found is not None:
                return found
            limit = spec.limits.jobs_submitted
            if limit is not None and jobs > 0 and use.jobs + jobs > limit:
                return too_many_jobs(spec, "jobsSubmitted", limit, use.jobs, jobs, never=limit == 0)
        return None

    def over_work(self, user: str, queue: str, *, group: str = "") -> list[tuple[NodeSpec, Use]]:
        """Whose limits hold for work of this user in this queue, and what each of them uses now; for reading."""
        return [(node.spec, node.running) for node in self._path(user, group, queue) if node.spec is not None]

    def over(self) -> list[Breach]:
        """Limits on what is in use at once that are broken at this moment, because they were lowered under what runs."""
        found = []
        for spec in self.specs():
            node = self._nodes[spec.key]
            for name, limit in sorted(spec.limits.concurrent.items()):
                used = node.running.amounts.get(name, 0)
                if used > limit:
                    found.append(
                        Breach(kind=spec.kind, name=spec.name, field="concurrent", resource=name, limit=limit, used=used)
                    )
            most = spec.limits.jobs_running
            if most is not None and node.running.jobs > most:
                found.append(too_many_jobs(spec, "jobsRunning", most, node.running.jobs, 0))
        return found


def keys_of(touched: Iterable[NodeKey], kind: NodeKind) -> list[str]:
    """The names of one kind among the nodes that a change returned."""
    return [name for one, name in touched if one == kind]
