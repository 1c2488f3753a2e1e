"""What the plugins of one profile say about each shape on each node, kept and mended instead of worked out again.

For every shape in use there is a row over all nodes: -1 where a NODE or LOCAL filter refuses, else the weighted sum of the NODE
and LOCAL scores. A new shape costs one pass over all nodes; after that only touched nodes are looked at, for all shapes at once
(or for one shape at a time, when more nodes were touched than there are shapes). What depends on more than one node (scope
WIDE, normalised scores) is asked when a pod is decided, and only if it concerns the pod.

Pure, single-threaded. Invariant: after `sync` every row equals what a fresh evaluation would give (`check_invariants`).
Bounded: at most `rows_max` rows; the one that was not used for longest goes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from muster.engine.asking import NO, Asker, Busy, PluginFault, guarded
from muster.engine.blocks import NodeBlock, PodBlock, one_shape
from muster.engine.columns import Array, Mask
from muster.engine.plugin import Plugin, overrides
from muster.engine.pods import PodRecord
from muster.engine.profile import Profile
from muster.engine.shapes import Shape, need_of
from muster.engine.state import State
from muster.engine.touches import Touches
from muster.engine.vectors import Vector, widened
from muster.objects.sight import Sees, nothing

_CACHE_BYTES_MAX = 64 * 1024 * 1024
_ROWS_MAX = 1024
_ROWS_MIN = 16
_AT_ONCE_MAX = 3
"""More touched nodes than this are mended row by row, as rows are used: work of many pods at once comes in few shapes."""


class Choice(msgspec.Struct, frozen=True):
    slot: int
    score: int


class _Late:
    """A normalised score of scope NODE: raw figures kept per row, brought to scale when all feasible nodes are known."""

    __slots__ = ("plugin", "raw", "weight")

    def __init__(self, plugin: Plugin, weight: int, raw: Array) -> None:
        self.plugin, self.weight, self.raw = plugin, weight, raw


class _Asked(msgspec.Struct, frozen=True):
    """Plugins that are asked at every decision about pods of one shape."""

    filters: tuple[Plugin, ...]
    scores: tuple[Plugin, ...]
    prefilters: tuple[Plugin, ...]


class Evaluator:
    def __init__(self, profile: Profile, state: State, *, rows_max: int = _ROWS_MAX) -> None:
        self.profile = profile
        self.state = state
        self.ask = Asker(profile)
        self.sees: Sees = nothing
        """Which other work explanations name: none in those that are written on objects."""
        self._rows_max = rows_max
        self._rows: dict[int, int] = {}
        self._shapes: list[Shape] = []
        self._used_at: list[int] = []
        self._uses = 0
        self._late: list[list[_Late]] = []
        self._asked: list[_Asked] = []
        """By row: the plugins that may concern pods of the shape."""
        self._faults: dict[int, PluginFault] = {}
        """By shape number: what broke for it. Its units fail with that, and nothing else does; at the next `begin` it may be
        asked again."""
        self._touches = Touches()
        self._mended: list[int] = []
        """By row: up to which batch of `_touches` it is right."""
        self._dirty: dict[int, None] = {}
        self._described: dict[int, None] = {}
        """Dirty slots whose description changed too."""
        self._many: PodBlock | None = None
        self._busy: Busy | None = None
        """The LOCAL plugins that have anything to say at the moment."""
        self._features: dict[str, Array] = {}
        self._blocks: list[PodBlock] = []
        self._wide = list(profile.wide_filters)
        self._late_nodes = [p for p in profile.late_scores if p.scope == 0]
        self._late_wide = [p for p in profile.late_scores if p.scope != 0]
        self._prefilters = list(profile.at["prefilter"])
        self._transforms = any(profile.at[point] for point in ("before_filter", "before_score", "restore"))
        self._version = state.nodes.version
        self._allocate()
        state.nodes.movers.append(self._move)

    @property
    def nominations(self) -> dict[str, tuple[str, PodRecord]]:
        return self.state.nominations

    # -- keeping up --------------------------------------------------------------------------------------------------------

    def touch(self, slot: int, *, is_described: bool = False) -> None:
        """What is on the node changed; with `is_described`, the node's own description did."""
        if self._shapes:
            self._dirty[slot] = None
            if is_described:
                self._described[slot] = None

    def touch_all(self, slots: dict[int, None], version: int) -> None:
        """`touch` each; when nodes were described since the last time, all of these count as described."""
        if self._shapes:
            self._dirty.update(slots)
            if version != self._version:
                self._described.update(slots)
        self._version = version

    def begin(self) -> None:
        """Things changed: plugins may have something to say, and what failed may work again."""
        self._busy = None
        for number in self._faults:
            if number in self._rows:
                self._drop(self._rows[number])
        self._faults.clear()

    def close(self) -> None:
        self.state.nodes.movers.remove(self._move)

    def reset(self) -> None:
        """Forget every row."""
        self._rows.clear()
        self._shapes.clear()
        self._used_at.clear()
        self._late.clear()
        self._asked.clear()
        self._mended.clear()
        self._blocks.clear()
        self._faults.clear()
        self._dirty.clear()
        self._described.clear()
        self._many = None
        self._allocate()

    def sync(self) -> None:
        """Mend the rows where nodes were touched: a few nodes in all rows at once; many nodes row by row, as rows are used."""
        if len(self.state.nodes.free) != len(self._need):
            self._widen()
        dirty = self._dirty
        if not dirty:
            return
        if self._described:
            slots = np.fromiter(self._described, np.intp, len(self._described))
            for row in range(len(self._shapes)):
                self._describe(row, slots)
            self._described.clear()
        if len(dirty) > _AT_ONCE_MAX:
            self._touches.add(np.fromiter(dirty, np.intp, len(dirty)))
        else:
            for slot in dirty:
                self._refresh_slot(slot)
        dirty.clear()

    def row(self, shape: Shape) -> int:
        """The row of the shape, worked out if it is new. PluginFault if a plugin breaks on it."""
        number = shape.number
        if number in self._faults:
            raise self._faults[number]
        self._uses += 1
        row = self._rows.get(number)
        if row is None:
            row = self._add(shape)
        elif self._mended[row] != self._touches.end:
            self._mend(row)
        self._used_at[row] = self._uses
        return row

    # -- answers -----------------------------------------------------------------------------------------------------------

    def scores(self, pod: PodRecord) -> Array:
        """int column over all nodes for this very pod, NO where it can't be. For reading: it may be the row itself."""
        self.sync()
        row = self.row(pod.shape)
        total: Array = self._total[row]
        block = self._blocks[row]
        block.pod = pod.facts
        if self._transforms:
            changed = self._transformed(block)
            if changed is not None:
                return changed
        late, asked = self._late[row], self._asked[row]
        wide = self.ask.concerned(asked.filters, block) if asked.filters else []
        scores = self.ask.concerned(asked.scores, block) if asked.scores else []
        if late or wide or scores:
            total = self._with_late(total, block, NodeBlock(self.state.nodes), (wide, scores, late))
        if self.nominations:
            total = self._without_nominated(total, pod)
        return total

    def choose(self, pod: PodRecord) -> Choice | None:
        """The best node for the pod; the first by name of equals."""
        total = self.scores(pod)
        if not len(total):
            return None
        slot = int(total.argmax())
        score = int(total[slot])
        return None if score < 0 else Choice(slot, score)

    def fits_at(self, shape: Shape, slot: int) -> bool:
        """Whether NODE and LOCAL filters let the shape onto the node. Rules between pods are not asked."""
        row = self._rows.get(shape.number)
        if row is not None and slot in self._dirty and len(self._dirty) <= _AT_ONCE_MAX:
            # Others will be asked about it too; plugins may have got something to say since rows were mended last.
            self._busy = None
            self.sync()
        if row is not None and slot not in self._dirty and self._mended[row] == self._touches.end:
            return bool(self._total[row, slot] >= 0)
        try:
            block = one_shape(shape, self.ask.features_of(shape))
            shape.widen(len(self.state.nodes.free))
            return bool(self.ask.mask(block, NodeBlock(self.state.nodes, np.array([slot])))[0])
        except PluginFault:
            return False

    def is_plain(self, pod: PodRecord) -> bool:
        """Whether nothing but the pod's shape decides: no rule between pods, no transformer, no late filter concerns it."""
        if self._transforms:
            return False
        asked = self._asked[self.row(pod.shape)]
        block = self.block(pod)
        return not self.ask.concerned(asked.filters, block) and not self.ask.concerned(asked.scores, block)

    def prefilters(self, pod: PodRecord) -> Sequence[Plugin]:
        """The plugins whose `prefilter` may have something to say about pods of this shape."""
        return self._asked[self.row(pod.shape)].prefilters

    def has_late(self, shape: Shape) -> bool:
        return bool(self._late[self.row(shape)])

    def block(self, pod: PodRecord) -> PodBlock:
        """The pod as plugins see it."""
        row = self._rows.get(pod.shape.number)
        if row is None:
            pod.shape.widen(len(self.state.nodes.free))
            block = one_shape(pod.shape, self.ask.features_of(pod.shape))
        else:
            block = self._blocks[row]
        block.pod = pod.facts
        return block

    def base_row(self, shape: Shape) -> Array:
        """The row itself, up to date, for reading: NODE and LOCAL only."""
        self.sync()
        found: Array = self._total[self.row(shape)]
        return found

    def static_part(self, shape: Shape, slots: Array) -> Any:
        """The NODE scores of the shape on these nodes."""
        return 0 if self._base is None else self._base[self.row(shape), slots]

    def static_mask(self, pods: PodBlock) -> Mask:
        """True where the NODE filters agree: where making room could help."""
        return self.ask.static_mask(pods, NodeBlock(self.state.nodes))

    def refusals(self, pod: PodRecord) -> list[tuple[Plugin, Mask]]:
        """Each filter that refuses nodes, with those that it was the first to refuse. For explanations."""
        block, nodes = self.block(pod), NodeBlock(self.state.nodes)
        left: Mask = np.ones(len(nodes), np.bool_)
        found: list[tuple[Plugin, Mask]] = []
        for plugin in (*self.profile.node_filters, *self.profile.local_filters, *self.profile.wide_filters):
            if not left.any():
                break
            if plugin in self._wide and not guarded(plugin, "concerns", block):
                continue
            refused = left & ~self.ask.filtered(plugin, block, nodes)
            if refused.any():
                found.append((plugin, refused))
                left &= ~refused
        return found

    def feasible_without(self, pods: PodBlock, slot: int, victims: Sequence[PodRecord]) -> bool:
        """Whether the pod would pass every filter on the node if `victims` were gone."""
        with self.state.without(victims):
            nodes = NodeBlock(self.state.nodes, np.array([slot]))
            mask = self.ask.mask(pods, nodes)
            for plugin in self._wide:
                if mask[0] and guarded(plugin, "concerns", pods):
                    mask = mask & self.ask.filtered(plugin, pods, nodes)
            return bool(mask[0])

    def allows_at(self, shape: Shape, slot: int) -> bool:
        """Whether the NODE filters let the shape onto the node: whether making room there could help."""
        try:
            block = one_shape(shape, self.ask.features_of(shape))
            return bool(self.ask.static_mask(block, NodeBlock(self.state.nodes, np.array([slot])))[0])
        except PluginFault:
            return False

    # -- rows --------------------------------------------------------------------------------------------------------------

    def _capacity_for(self, nodes: int) -> int:
        return max(_ROWS_MIN, min(self._rows_max, _CACHE_BYTES_MAX // (9 * max(nodes, 1))))

    def _allocate(self) -> None:
        nodes = len(self.state.nodes)
        self._capacity = self._capacity_for(nodes)
        # Pages that nobody has written to cost nothing, so the arrays can be as large as they may get.
        self._total: Array = np.empty((self._capacity, nodes), np.int32)
        self._static: Array = np.empty((self._capacity, nodes), np.bool_)
        self._base: Array | None = None
        resources = len(self.state.table)
        self._request: Array = np.zeros((resources, self._capacity), np.int64)
        self._need: Array = need_of(self._request)
        self._scoring: Array = np.zeros((2, self._capacity), np.int64)
        self._priority: Array = np.zeros(self._capacity, np.int64)
        self._features = {
            p.name: np.zeros((p.features_len, self._capacity), np.int64) for p in self.profile.plugins if p.features_len
        }

    def _add(self, shape: Shape) -> int:
        if len(self.state.nodes.free) != len(self.state.table):
            self.state.nodes.grow()
        if len(self._need) != len(self.state.table):
            self._widen()
        shape.widen(len(self._need))
        if len(self._shapes) >= self._capacity:
            self._drop(min(range(len(self._used_at)), key=self._used_at.__getitem__))
        row = len(self._shapes)
        block = one_shape(shape, self.ask.features_of(shape))
        try:
            self._fill(row, shape, block)
        except PluginFault as fault:
            self._faults[shape.number] = fault
            raise
        self._rows[shape.number] = row
        self._shapes.append(shape)
        self._blocks.append(block)
        self._mended.append(self._touches.end)
        self._asked.append(_Asked(*(self.ask.may_concern(p, block) for p in (self._wide, self._late_wide, self._prefilters))))
        self._used_at.append(self._uses)
        self._many = None
        return row

    def _fill(self, row: int, shape: Shape, block: PodBlock) -> None:
        nodes = NodeBlock(self.state.nodes)
        self._request[:, row] = shape.request
        self._need[:, row] = shape.need
        self._scoring[:, row] = shape.scoring
        self._priority[row] = shape.priority
        for name, figures in block.features.items():
            self._features[name][:, row] = figures
        self._static[row] = self.ask.static_mask(block, nodes)
        base = self.ask.node_scores(block, nodes)
        if self._base is not None or base.any():
            if self._base is None:
                self._base = np.zeros((self._capacity, len(nodes)), np.int32)
            self._base[row] = base
        late = []
        for plugin in self._late_nodes:
            raw = self.ask.scored(plugin, block, nodes)
            if len(raw) and raw.min() != raw.max():
                late.append(_Late(plugin, self.ask.weights[plugin.name], raw))
        del self._late[row:]
        self._late.append(late)
        self._total[row] = np.where(self._static[row], self.ask.checked_local(block, nodes, base), NO)

    def _refresh_slot(self, slot: int) -> None:
        count = len(self._shapes)
        pods = self._many
        if pods is None:
            pods = self._many = PodBlock(
                self._request[:, :count],
                self._need[:, :count],
                self._scoring[:, :count],
                self._priority[:count],
                features={name: figures[:, :count] for name, figures in self._features.items()},
            )
            self._busy = None
        nodes = NodeBlock(self.state.nodes, slot)
        try:
            if self._busy is None:
                self._busy = self.ask.busy(pods)
            filters, scores = self._busy
            mask: Any = self._static[:count, slot]
            for accepts in filters:
                mask = mask & accepts(pods, nodes)
            score: Any = 0 if self._base is None else self._base[:count, slot]
            for weight, scored in scores:
                score = score + (scored(pods, nodes) if weight == 1 else weight * scored(pods, nodes))
            self._total[:count, slot] = np.where(mask, score, NO)
        except Exception:  # noqa: BLE001 - found out below which plugin and which shape it was
            for row in range(count):
                self._refresh_row(row, np.array([slot]))

    def _mend(self, row: int) -> None:
        """Mend one row for all the nodes that were touched since it was used."""
        touched = self._touches.since(self._mended[row])
        slots = np.arange(len(self.state.nodes)) if touched is None else touched
        self._mended[row] = self._touches.end
        nodes = NodeBlock(self.state.nodes, slots)
        try:
            local = self.ask.local(self._blocks[row], nodes)
            if self._base is not None:
                local = np.where(local >= 0, local + self._base[row, slots], NO)
            self._total[row, slots] = np.where(self._static[row, slots], local, NO)
        except Exception:  # noqa: BLE001 - asked again, one by one, to find out who it was
            self._refresh_row(row, slots)

    def _refresh_row(self, row: int, slots: Array) -> None:
        nodes = NodeBlock(self.state.nodes, slots)
        base = 0 if self._base is None else self._base[row, slots]
        try:
            self._total[row, slots] = np.where(
                self._static[row, slots], self.ask.checked_local(self._blocks[row], nodes, base), NO
            )
        except PluginFault as fault:
            self._total[row] = NO
            self._faults[self._shapes[row].number] = fault

    def _describe(self, row: int, slots: Array) -> None:
        """Ask the NODE plugins again about nodes whose description changed."""
        nodes, block = NodeBlock(self.state.nodes, slots), self._blocks[row]
        try:
            mask: Mask = np.ones(len(slots), np.bool_)
            for plugin in self.profile.node_filters:
                mask &= self.ask.filtered(plugin, block, nodes)
            self._static[row, slots] = mask
            base = self.ask.node_scores(block, nodes)
            if self._base is None and base.any():
                self._base = np.zeros((self._capacity, len(self.state.nodes)), np.int32)
            if self._base is not None:
                self._base[row, slots] = base
            late = []
            for plugin in self._late_nodes:
                raw = self.ask.scored(plugin, block, NodeBlock(self.state.nodes))
                if raw.min() != raw.max():
                    late.append(_Late(plugin, self.ask.weights[plugin.name], raw))
            self._late[row] = late
        except PluginFault as fault:
            self._static[row] = False
            self._faults[self._shapes[row].number] = fault

    def _drop(self, row: int) -> None:
        """Forget a row; the last one moves into its place."""
        last = len(self._shapes) - 1
        del self._rows[self._shapes[row].number]
        if row != last:
            for array in (self._total, self._static, self._base):
                if array is not None:
                    array[row] = array[last]
            for columns in (self._request, self._need, self._scoring, *self._features.values()):
                columns[:, row] = columns[:, last]
            self._priority[row] = self._priority[last]
            per_row: tuple[list[Any], ...] = (self._shapes, self._used_at, self._late, self._blocks, self._asked, self._mended)
            for items in per_row:
                items[row] = items[last]
            self._rows[self._shapes[row].number] = row
        self._shapes.pop()
        self._used_at.pop()
        self._late.pop()
        self._blocks.pop()
        self._asked.pop()
        self._mended.pop()
        self._many = None

    def _move(self, target: Array, source: Array, count: int) -> None:
        """Slots moved: move the rows along. New nodes are described by a `touch` that follows."""
        if not self._shapes or self._capacity > 2 * self._capacity_for(count):
            # Nothing to move, or more than may be kept for so many nodes.
            self.reset()
            return
        names = {int(s): int(t) for t, s in zip(target.tolist(), source.tolist(), strict=True)} if self._dirty else {}
        self._touches.forget()
        self._dirty = {names[slot]: None for slot in self._dirty if slot in names}
        self._described = {names[slot]: None for slot in self._described if slot in names}
        used = len(self._shapes)

        def moved(array: Array, fill: Any) -> Array:
            result: Array = np.empty((self._capacity, count), array.dtype)
            result[:used] = fill
            result[:used, target] = array[:used, source]
            return result

        self._total, self._static = moved(self._total, NO), moved(self._static, False)
        if self._base is not None:
            self._base = moved(self._base, 0)
        if any(self._late):
            for row in range(used):
                for late in self._late[row]:
                    raw: Array = np.zeros(count, late.raw.dtype)
                    raw[target] = late.raw[source]
                    late.raw = raw
                # As in a new row: what is the same on all nodes is not kept.
                self._late[row] = [late for late in self._late[row] if count and late.raw.min() != late.raw.max()]

    def _widen(self) -> None:
        """Resources appeared: longer vectors."""
        missing = len(self.state.nodes.free) - len(self._need)
        if missing <= 0:
            return
        self._request = np.concatenate([self._request, np.zeros((missing, self._capacity), np.int64)])
        self._need = need_of(self._request)
        for row, shape in enumerate(self._shapes):
            shape.widen(len(self._need))
            self._blocks[row] = one_shape(shape, self._blocks[row].features)
        self._many = None

    # -- asking plugins ----------------------------------------------------------------------------------------------------

    def _with_late(
        self, total: Array, pods: PodBlock, nodes: NodeBlock, late: tuple[list[Plugin], list[Plugin], list[_Late]]
    ) -> Array:
        """`total` after the filters and scores that could not be kept."""
        filters, scores, kept = late
        feasible: Mask = total >= 0
        for plugin in filters:
            if not feasible.any():
                break
            feasible = feasible & self.ask.filtered(plugin, pods, nodes)
        result: Array = total.astype(np.int64)
        if feasible.any():
            for one in kept:
                result += one.weight * self.ask.normalised(one.plugin, one.raw, feasible)
            for plugin in scores:
                raw = self.ask.scored(plugin, pods, nodes, is_final=not overrides(plugin, "normalise"))
                result += self.ask.weights[plugin.name] * self.ask.normalised(plugin, raw, feasible)
        result[~feasible] = NO
        return result

    def _transformed(self, pods: PodBlock) -> Array | None:
        """The whole evaluation on other blocks, if a transformer wants that for this pod; None if none does."""
        original = NodeBlock(self.state.nodes)
        nodes, block = original, pods
        for plugin in self.ask.concerned(self.profile.at["restore"], block):
            free = guarded(plugin, "restore", block, nodes)
            if free is not None:
                nodes = nodes.changed(free)
        for plugin in self.profile.at["before_filter"]:
            if guarded(plugin, "concerns", block):
                block, nodes = guarded(plugin, "before_filter", block, nodes) or (block, nodes)
        changed = nodes is not original or block is not pods
        mask = self.ask.mask(block, nodes) if changed else None
        scored = (block, nodes)
        for plugin in self.ask.concerned(self.profile.at["before_score"], block):
            scored = guarded(plugin, "before_score", *scored) or scored
        if not changed and scored == (block, nodes):
            return None
        if mask is None:
            mask = self.ask.mask(block, nodes)
        base = self.ask.node_scores(*scored)
        total: Array = np.where(mask, self.ask.checked_local(*scored, base), NO)
        total = np.where(mask & (total < 0), 0, total)
        kept = [_Late(p, self.ask.weights[p.name], self.ask.scored(p, *scored)) for p in self._late_nodes]
        wide, scores = self.ask.concerned(self._wide, block), self.ask.concerned(self._late_wide, block)
        return self._with_late(total, block, nodes, (wide, scores, kept))

    def _without_nominated(self, total: Array, pod: PodRecord) -> Array:
        """Nodes where room was made for others at least as important are looked at as if those were there already."""
        names = self.state.nodes.names
        feasible = {names[slot]: slot for slot in np.flatnonzero(total >= 0).tolist()}
        if not feasible:
            return total
        # Pods of one shape share what they request: few requests stand for many pods.
        alike: dict[int, tuple[Vector, list[int]]] = {}
        for uid, (node, other) in self.nominations.items():
            slot = feasible.get(node)
            if slot is not None and uid != pod.uid and other.priority >= pod.priority:
                alike.setdefault(id(other.request), (other.request, []))[1].append(slot)
        if not alike:
            return total
        there = np.unique(np.array([slot for _, slots in alike.values() for slot in slots]))
        left: Array = self.state.nodes.free.take(there, axis=1)
        for request, slots in alike.values():
            times = np.bincount(np.searchsorted(there, slots), minlength=len(there))
            left -= widened(request, len(left))[:, None] * times
        blocked = there[(left < pod.shape.need[:, None]).any(axis=0)]
        if len(blocked):
            total = total.copy()
            total[blocked] = NO
        return total

    # -- checking ----------------------------------------------------------------------------------------------------------

    def check_invariants(self) -> None:
        """Every row equals a fresh evaluation."""
        self.sync()
        fresh = Evaluator(self.profile, self.state)
        self.state.nodes.movers.remove(fresh._move)
        for shape in list(self._shapes):
            if shape.number not in self._faults:
                assert np.array_equal(self._total[self.row(shape)], fresh._total[fresh.row(shape)]), f"row of {shape} is off"
