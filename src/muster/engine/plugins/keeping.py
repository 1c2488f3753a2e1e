"""Own columns and alarms for plugins that keep figures per node.

`Kept` gives a plugin its columns under a name that no other instance uses: two profiles may have the same plugin with other
arguments, and a reload attaches the new one before the old one goes. `Alarms` says which nodes must be looked at again because
time has passed: scope LOCAL stays right without asking at every decision.

Pure, single-threaded: called by the plugin that made them, never by two.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from muster.engine.blocks import NodeBlock
from muster.engine.columns import Array, Columns

if TYPE_CHECKING:
    from muster.engine.plugin import Plugin
    from muster.engine.state import State


class Kept:
    """Columns (`rows`, nodes) that move with their nodes. All zero when made, whatever an earlier instance left there."""

    def __init__(self, plugin: Plugin, state: State, what: str, rows: int, dtype: type[np.generic] = np.int64) -> None:
        taken = {name for p in state.observers if p is not plugin for name in getattr(p, "kept_names", ())}
        number = 0
        while (name := f"{plugin.name}/{what}/{rows}/{number}") in taken:
            number += 1
        self.name = name
        self._rows, self._dtype = rows, dtype
        self._columns: Columns = state.nodes
        self.all[:] = 0

    @property
    def all(self) -> Array:
        """Over all nodes, as slots are now. Never keep it: slots move."""
        return self._columns.own(self.name, self._dtype, self._rows)

    def of(self, nodes: NodeBlock) -> Any:
        """The block's part."""
        return nodes.own(self.name, self._dtype, self._rows)


class Alarms:
    """When each node must be looked at again; cheap to ask while nothing is due."""

    def __init__(self, plugin: Plugin, state: State) -> None:
        self._due = Kept(plugin, state, "due", 1, np.float64)
        self._first = math.inf

    @property
    def name(self) -> str:
        return self._due.name

    @property
    def first(self) -> float | None:
        """The next alarm of all; it may ring for nothing, never too late."""
        return None if math.isinf(self._first) else self._first

    def set(self, slot: int, when: float) -> None:
        """Replaces what was set for the node; `math.inf` for never."""
        self._due.all[0, slot] = when
        self._first = min(self._first, when)

    def sooner(self, slot: int, when: float) -> None:
        """At `when`, unless an earlier time is set."""
        if when < self._due.all[0, slot]:
            self.set(slot, when)

    def ring(self, now: float) -> list[int]:
        """The slots that are due. Each must be set anew."""
        if now < self._first:
            return []
        due = self._due.all[0]
        slots: list[int] = np.flatnonzero(due <= now).tolist()
        later = due[due > now]
        self._first = float(later.min()) if len(later) else math.inf
        return slots
