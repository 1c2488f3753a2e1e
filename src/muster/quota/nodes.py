"""The nodes of the quota tree, and what is charged to them. Plain values that `quota.tree` keeps consistent. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from muster.quota.limits import UNLIMITED, Ceilings, NodeKey, NodeKind


class NodeSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What an object says about its node."""

    kind: NodeKind
    name: str
    parent: str = ""
    """The group of a User, the parent of a UserGroup or Queue; "" at the top."""
    limits: Ceilings = UNLIMITED
    """In force now."""
    written: Ceilings | None = None
    """As the object says, where more is in force because a budget is spent."""
    stopped: str = ""
    """Why nothing new may start, as `<reason code>: <why>`; "" when it may."""

    @property
    def key(self) -> NodeKey:
        return self.kind, self.name

    @property
    def own(self) -> Ceilings:
        """Its limits as they were written, which is what can be divided."""
        return self.limits if self.written is None else self.written

    @property
    def parent_key(self) -> NodeKey | None:
        if not self.parent:
            return None
        return "Queue" if self.kind == "Queue" else "UserGroup", self.parent


class Use(msgspec.Struct):
    """What a subtree has: amounts by resource, and jobs. Zero amounts are left out."""

    amounts: dict[str, int] = msgspec.field(default_factory=dict)
    jobs: int = 0

    def add(self, amounts: Mapping[str, int], jobs: int, sign: int) -> None:
        for name, amount in amounts.items():
            total = self.amounts.get(name, 0) + sign * amount
            if total:
                self.amounts[name] = total
            else:
                self.amounts.pop(name, None)
        self.jobs += sign * jobs

    def __bool__(self) -> bool:
        return bool(self.amounts or self.jobs)


class Charge(msgspec.Struct, frozen=True):
    """One piece of work, and where it counts."""

    leaves: tuple[NodeKey, ...]
    amounts: Mapping[str, int]
    jobs: int


class Node:
    __slots__ = ("children", "key", "parent", "running", "spec", "submitted")

    def __init__(self, key: NodeKey) -> None:
        self.key = key
        self.spec: NodeSpec | None = None
        self.parent: Node | None = None
        """As it stands: None on a circle, whatever the object says."""
        self.children: set[NodeKey] = set()
        self.running = Use()
        self.submitted = Use()


def chain(node: Node | None) -> Iterator[Node]:
    """The node and all above it. Attached links never form a circle."""
    while node is not None:
        yield node
        node = node.parent
