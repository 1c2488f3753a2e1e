"""What stands behind a refusal: the nodes that come closest, who holds what is missing there, and what would help.

Pure and for reading: nothing in the state changes. Cheap enough to be asked whenever a unit is parked: a few passes over the
columns, and a closer look at NEAREST_MAX nodes. What is offered as a way out ("would fit with ...") has been tried on the
filters; which work must end is worked out from amounts alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from muster.engine.asking import guarded
from muster.engine.blocks import NodeBlock, PodBlock
from muster.engine.columns import Array, Mask
from muster.engine.counting import largest_fitting
from muster.engine.node_selectors import HARD_EFFECTS, intolerable, node_labels_mask
from muster.engine.plugin import Plugin
from muster.engine.pods import PodRecord
from muster.engine.resources import PODS
from muster.engine.shapes import NOTHING_ASKED
from muster.objects.labels import Muster
from muster.objects.reasons import Holder, Reason, Shortfall, Verdict, format_amount
from muster.objects.sight import Sees

if TYPE_CHECKING:
    from muster.engine.evaluate import Evaluator
    from muster.engine.state import State

NEAREST_MAX = 5
HOLDERS_MAX = 5
HELPS_MAX = 8
ENDING_MAX = 20
"""More pods than this that would have to end are no help to anybody."""
_NAMED_MAX = 3


# -- the nearest nodes -------------------------------------------------------------------------------------------------------


def nearest_slots(block: PodBlock, nodes: NodeBlock, among: Mask, count: int = NEAREST_MAX) -> Array:
    """Of the nodes in `among`, those that lack least: the sum over resources of the part of the request that is missing.
    Of equals, the first by name."""
    rows, needs = block.needs(())
    lack: Array = np.zeros(len(nodes), np.float64)
    for row, need in zip(rows.tolist(), needs.tolist(), strict=True):
        lack += np.maximum(need - nodes.free[row], 0) / need
    lack[~among] = np.inf
    found = int(np.count_nonzero(among))
    if found > count:
        limit = np.partition(lack, count - 1)[count - 1]
        below = np.flatnonzero(lack < limit)
        slots = np.concatenate([below, np.flatnonzero(lack == limit)[: count - len(below)]])
    else:
        slots = np.flatnonzero(among)
    return slots[np.lexsort((slots, lack[slots]))]


def verdicts_at(
    slots: Array, plugins: Sequence[Plugin], block: PodBlock, nodes: NodeBlock, evaluator: Evaluator
) -> tuple[Verdict, ...]:
    """For each of the nodes, everything that it lacks: the code of the first filter that refuses it, the figures of all."""
    some = picked(nodes, slots)
    refused = [(plugin, ~evaluator.ask.filtered(plugin, block, some)) for plugin in plugins]
    found: list[Verdict] = []
    for place, slot in enumerate(slots.tolist()):
        one = picked(nodes, slots[place : place + 1])
        reason: Reason | None = None
        name, shortfalls = "", list[Shortfall]()
        for plugin, mask in refused:
            if not mask[place]:
                continue
            code, figures = guarded(plugin, "explain", block, one)
            if reason is None:
                reason, name = code, plugin.name
            shortfalls += (msgspec.structs.replace(figure, holders=()) if figure.holders else figure for figure in figures)
        if reason is not None:
            subject = nodes.columns.names[slot]
            found.append(Verdict(reason=reason, subject=subject, plugin=name, shortfalls=tuple(shortfalls)))
    return tuple(found)


def picked(nodes: NodeBlock, slots: Array) -> NodeBlock:
    """Some nodes of a block of all nodes, which may have imagined amounts."""
    if len(slots) == len(nodes):
        return nodes
    some = NodeBlock(nodes.columns, slots)
    return some if nodes.free is nodes.columns.free else some.changed(nodes.free[:, slots], nodes.scoring_used[:, slots])


# -- who holds it ------------------------------------------------------------------------------------------------------------


def holders_of(state: State, node: str, row: int, count: int = HOLDERS_MAX) -> tuple[Holder, ...]:
    """The units that hold most of a resource on the node, largest first."""
    amounts: dict[str, int] = {}
    for pod in state.on_node.get(node, {}).values():
        held = int(pod.request[row]) if row < len(pod.request) else 0
        if held > 0:
            unit = unit_of(pod)
            amounts[unit] = amounts.get(unit, 0) + held
    largest = sorted(amounts, key=lambda unit: (-amounts[unit], unit))[:count]
    found = []
    for unit in largest:
        kind, _, name = unit.partition("/")
        found.append(Holder(kind, name, amounts[unit], node))
    return tuple(found)


def unit_of(pod: PodRecord) -> str:
    """`Kind/namespace/name` of the unit that the pod belongs to."""
    return pod.unit or f"Pod/{pod.key}"


def with_holders(shortfalls: Sequence[Shortfall], state: State) -> tuple[Shortfall, ...]:
    """Shortfalls of a node's resource with who holds it there, where the plugin has not said."""
    found: list[Shortfall] = []
    for one in shortfalls:
        row = state.table.rows.get(one.resource)
        if not one.holders and row is not None and one.where in state.on_node and len(found) < _NAMED_MAX:
            holders = holders_of(state, one.where, row)
            found.append(msgspec.structs.replace(one, holders=holders) if holders else one)
        else:
            found.append(one)
    return tuple(found)


# -- what would help ---------------------------------------------------------------------------------------------------------


def largest_requests(
    block: PodBlock, nodes: NodeBlock, among: Mask, plugins: Sequence[Plugin], evaluator: Evaluator
) -> list[tuple[str, int, str]]:
    """For each resource, the largest request of it that would be granted now with the others as they are, and by which node;
    only where that is less than what is asked for, and only what the filters agree to."""
    columns = nodes.columns
    fitting = largest_fitting(block.shape, nodes, among)
    found: list[tuple[str, int, str]] = []
    for name, amount in fitting.items():
        row = columns.table.rows[name]
        if row == PODS or not 0 < amount < int(block.request[row]):
            continue
        smaller = with_request(block, row, amount)
        for slot in np.flatnonzero(among & (nodes.free[row] >= amount))[:NEAREST_MAX].tolist():
            one = picked(nodes, np.array([slot]))
            if all(bool(evaluator.ask.filtered(plugin, smaller, one)[0]) for plugin in plugins):
                found.append((name, amount, columns.names[slot]))
                break
    return found


def with_request(block: PodBlock, row: int, amount: int) -> PodBlock:
    """The same pod, asking for another amount of one resource."""
    request, need = block.request.copy(), block.need.copy()
    request[row], need[row] = amount, amount if amount > 0 else NOTHING_ASKED
    twin = PodBlock(request, need, block.scoring, block.priority, shape=block.shape, features=block.features)
    twin.pod = block.pod
    return twin


def which_must_end(block: PodBlock, nodes: NodeBlock, node: str, state: State) -> list[PodRecord]:
    """Pods on the node whose end would give the pod the amounts it lacks there: few, the largest first, none that is not
    needed. Empty when amounts are not what it lacks, or when too many would have to go."""
    rows, needs = block.needs(())
    lack = needs - nodes.free[rows, nodes.columns.slots[node]]
    if not (lack > 0).any():
        return []
    asking = state.pods.get(block.pod.metadata.uid) if block.pod is not None else None
    own = asking.unit if asking is not None else ""  # a gang is not told to wait for itself
    there = (pod for pod in state.on_node.get(node, {}).values() if not own or pod.unit != own)
    pods = [pod for pod in there if len(pod.request) > int(rows[-1])]
    held: Array = np.array([pod.request[rows] for pod in pods]).reshape(len(pods), len(rows))
    share = (np.clip(np.minimum(held, lack), 0, None) / needs).sum(axis=1)
    gone: list[PodRecord] = []
    for place in sorted(np.flatnonzero(share > 0).tolist(), key=lambda place: (-share[place], pods[place].uid)):
        if len(gone) >= ENDING_MAX or not (lack > 0).any():
            break
        gone.append(pods[place])
        lack = lack - held[place]
    if (lack > 0).any():
        return []
    for pod in list(gone):
        if not (lack + pod.request[rows] > 0).any():
            gone.remove(pod)
            lack = lack + pod.request[rows]
    return gone


def ending_text(gone: Sequence[PodRecord], node: str, sees: Sees) -> str:
    counts: dict[str, int] = {}
    for pod in gone:
        counts[unit_of(pod)] = counts.get(unit_of(pod), 0) + 1
    shown = {unit: n for unit, n in counts.items() if sees(unit)}
    names = [f"{unit} ({n} pods)" if n > 1 else unit for unit, n in shown.items()]
    others = len(gone) - sum(shown.values())
    counted = f"{others} {'pods' if others > 1 else 'pod'} of other work" if others else ""
    return f"{node} has room when these end: {' and '.join(text for text in (listed(names), counted) if text)}"


def request_text(name: str, amount: int, node: str, state: State) -> str:
    return f"would fit now with {name} {format_amount(amount, state.table.unit(state.table.rows[name]))} (on {node})"


def node_hints(reason: Reason, block: PodBlock, nodes: NodeBlock, refused: Mask) -> list[str]:
    """A concrete way out of what a node is or does not let in; `refused` are the nodes that are refused for it."""
    columns, spec = nodes.columns, block.shape.spec
    slots = np.flatnonzero(refused)
    names = listed([columns.names[slot] for slot in slots[:_NAMED_MAX].tolist()], len(slots))
    match reason:
        case Reason.TAINT_NOT_TOLERATED:
            return _taint_hints(block, nodes, slots)
        case Reason.NODE_SELECTOR_MISMATCH | Reason.NODE_AFFINITY_MISMATCH:
            return _label_hints(block, nodes)
        case Reason.NODE_UNSCHEDULABLE:
            return [f"uncordon a node: kubectl uncordon {columns.names[int(slots[0])]} (cordoned: {names})"]
        case Reason.NODE_NOT_READY:
            return [f"bring back a node that is not ready: {names}"]
        case Reason.NODE_NAME_MISMATCH:
            known = "that node exists" if spec.node_name in columns.slots else "no such node exists"
            return [f"spec.nodeName is {spec.node_name!r}, and {known}; leave it out, or correct it"]
        case Reason.NODE_POOL_MISMATCH:
            wanted = block.shape.annotations.get(Muster.POOLS) or block.shape.labels.get(Muster.POOL, "")
            named = f"it names pool {wanted!r}" if wanted else "it names none"
            queue = f", and queue {block.shape.queue or 'default'!r} is bound to pools" if block.shape.queue is not None else ""
            return [f"set the pod's label {Muster.POOL} to a pool that has nodes for it; {named}{queue}"]
        case Reason.PARTY_MISMATCH if block.pod is not None:
            where = block.pod.metadata.namespace
            return [f"work in namespace {where} needs a node of its own party, or of none; these are of others: {names}"]
        case _:
            return []


def _taint_hints(block: PodBlock, nodes: NodeBlock, slots: Array) -> list[str]:
    """The tolerations that would open most nodes by themselves."""
    columns = nodes.columns
    opens: dict[str, int] = {}
    sets = np.bincount(columns.taint_set[slots]).tolist()
    for number, count in enumerate(sets):
        missing = intolerable(block.shape.spec.tolerations, columns.taint_sets[number], HARD_EFFECTS) if count else []
        if missing:
            text = " and ".join(f"{t.key}={t.value}:{t.effect}" if t.value else f"{t.key}:{t.effect}" for t in missing)
            opens[text] = opens.get(text, 0) + count
    best = sorted(opens, key=lambda text: (-opens[text], text))[:_NAMED_MAX]
    return [f"tolerate the taint {text} (on {opens[text]} of the nodes)" for text in best]


def _label_hints(block: PodBlock, nodes: NodeBlock) -> list[str]:
    labels = block.shape.spec.node_selector
    if not labels:
        return []
    counted = {f"{k}={v}": int(np.count_nonzero(node_labels_mask({k: v}, nodes))) for k, v in sorted(labels.items())}
    absent = [text for text, count in counted.items() if not count]
    if absent:
        return [f"no node has the label {text}; set it on one (kubectl label node NODE {text})" for text in absent[:_NAMED_MAX]]
    shown = listed([f"{text} on {count} nodes" for text, count in counted.items()])
    return [f"no node has all labels that the selector names: {shown}; label one of them"]


def listed(texts: Sequence[str], total: int | None = None) -> str:
    """A few of them, and how many more there are."""
    shown = ", ".join(texts[:_NAMED_MAX])
    more = (len(texts) if total is None else total) - min(len(texts), _NAMED_MAX)
    return f"{shown} and {more} more" if more > 0 else shown


def holder_text(shortfall: Shortfall, sees: Sees) -> str:
    """Who holds it, of those that may be named; empty when that is nobody."""
    named = [holder for holder in shortfall.holders if sees(f"{holder.kind}/{holder.name}")]
    return listed([f"{h.kind} {h.name} ({format_amount(h.amount, shortfall.unit)})" for h in named])
