"""Why a unit waits, in one verdict: the dominant code, the shortfall in numbers, nodes counted by reason, the nearest nodes and
what each lacks, who holds it, what would help.

Pure: asks the filters which nodes they refuse, and why; nothing in the state changes. Invariants: a verdict about nodes counts
each node exactly once; `Impossible` means that no node could take the pod even if it were empty, `NotFound` that a bounded
search gave up; messages are one line of at most MESSAGE_LEN_MAX characters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from muster.engine import hints
from muster.engine.asking import PluginFault, guarded
from muster.engine.blocks import NodeBlock, PodBlock
from muster.engine.columns import Mask
from muster.engine.evaluate import Evaluator
from muster.engine.node_selectors import HARD_EFFECTS, intolerable
from muster.engine.placing import Shortage
from muster.engine.plugin import Plugin, Scope
from muster.engine.pods import PodRecord
from muster.engine.state import State
from muster.engine.units import Unit
from muster.objects.reasons import Reason, Shortfall, Verdict, format_amount, shortfall
from muster.objects.sight import Sees

MESSAGE_LEN_MAX = 1_000
_CODES_SHOWN_MAX = 4
_CLEARED_MAX = 2
"""On so many of the nearest nodes it is worked out who would have to end."""
_PASSING = frozenset({Reason.NODE_UNSCHEDULABLE, Reason.NODE_NOT_READY})
"""What a node is for a while: it will do again by itself, or with one command."""
_PASSING_TAINTS = "node.kubernetes.io/"
_WHOLE = frozenset({Reason.IMPOSSIBLE, Reason.PLUGIN_ERROR, Reason.NO_NODES})
"""Verdicts on one pod that say all there is to say about its unit."""

Refusals = Sequence[tuple[Plugin, Mask]]


class Asked(msgspec.Struct, frozen=True):
    """What the filters say about one pod: the pod and the nodes as they see them, and who refuses what first."""

    block: PodBlock
    nodes: NodeBlock
    refusals: Refusals
    plugins: tuple[Plugin, ...]
    """All filters that concern the pod, in order."""
    allowed: Mask
    """Nodes that every filter on what a node is lets through."""


def ask_filters(pod: PodRecord, evaluator: Evaluator, state: State) -> Asked:
    """Ask every filter that concerns the pod. PluginFault when one of them breaks."""
    block, nodes = _transformed(evaluator.block(pod), NodeBlock(state.nodes), evaluator)
    profile = evaluator.profile
    wide = [p for p in profile.wide_filters if guarded(p, "concerns", block)]
    plugins = (*profile.node_filters, *profile.local_filters, *wide)
    left: Mask = np.ones(len(nodes), np.bool_)
    refusals: list[tuple[Plugin, Mask]] = []
    allowed: Mask = left
    for plugin in plugins:
        if not left.any():
            break
        refused = left & ~evaluator.ask.filtered(plugin, block, nodes)
        if refused.any():
            refusals.append((plugin, refused))
            left = left & ~refused
            if plugin.scope is Scope.NODE:
                allowed = left
    return Asked(block, nodes, refusals, plugins, allowed)


def explain_pod(pod: PodRecord, evaluator: Evaluator, state: State) -> Verdict:
    """Why no node takes the pod now."""
    if not len(state.nodes):
        return Verdict(reason=Reason.NO_NODES, message="there are no nodes", helps=(Reason.NO_NODES.remedy,))
    try:
        return explain_asked(ask_filters(pod, evaluator, state), evaluator, state)
    except PluginFault as fault:
        return fault.verdict()


def explain_asked(asked: Asked, evaluator: Evaluator, state: State) -> Verdict:
    counts = nodes_by_reason(asked)
    kept = len(asked.nodes) - sum(counts.values())
    if kept:
        # No filter refuses these: they are kept for work that room was made for.
        counts[Reason.QUEUE_BLOCKED] = counts.get(Reason.QUEUE_BLOCKED, 0) + kept
    impossible = explain_impossible(asked, evaluator, state)
    if impossible is not None:
        return msgspec.structs.replace(impossible, nodes_by_reason=counts)
    if kept:
        return _explain_kept(kept, counts, evaluator)
    plugin, mask = dominant(asked.refusals)
    reason, found = guarded(plugin, "explain", asked.block, hints.picked(asked.nodes, np.flatnonzero(mask)))
    shortfalls = hints.with_holders(found, state)
    allowed = asked.allowed
    among = allowed if allowed.any() else mask
    slots = hints.nearest_slots(asked.block, asked.nodes, among)
    nearest = hints.verdicts_at(slots, asked.plugins, asked.block, asked.nodes, evaluator)
    helps = _helps(reason, mask, asked, nearest, evaluator)
    message = _message(len(asked.nodes), counts, shortfalls, helps, evaluator.sees)
    return Verdict(
        reason=reason,
        message=message,
        plugin=plugin.name,
        shortfalls=shortfalls,
        nodes_by_reason=counts,
        nearest=nearest,
        helps=helps,
    )


def _explain_kept(kept: int, counts: dict[Reason, int], evaluator: Evaluator) -> Verdict:
    """No filter refuses these nodes: room was made on them for somebody else, who goes first."""
    waiting = sorted({pod.key for node, pod in evaluator.nominations.values() if node in evaluator.state.nodes.slots})
    named = [key for key in waiting if evaluator.sees(f"Pod/{key}")]
    who = hints.listed(named, len(waiting)) if named else "work that goes first"
    first = (f"wait until {who} has started",) if waiting else ()
    return Verdict(
        reason=Reason.QUEUE_BLOCKED,
        message=f"{kept} of {sum(counts.values())} nodes would do, but are kept for work that room was made for",
        nodes_by_reason=counts,
        helps=(*first, Reason.QUEUE_BLOCKED.remedy),
    )


def explain_shortage(shortage: Shortage) -> Verdict:
    """Why a unit of several pods can't start: the verdict of the first pod that found no node, with how many did."""
    inner = shortage.verdict
    if inner.reason in _WHOLE:
        return inner
    group = shortage.group
    if inner.reason is Reason.GANG_INCOMPLETE:
        return inner
    if not group.missing and not shortage.placed:
        return inner  # it runs already; what is left of it is placed as there is room
    who = f"{group.party}/{group.role}".strip("/") or "the group"
    counted = f"{shortage.placed} of the {shortage.wanted} pods of {who} that must start together fit now"
    if shortage.is_search_bounded:
        message = f"{counted}, but no way to fit all groups was found; the next one: {inner.message or inner.reason.meaning}"
        helps = (*inner.helps[: hints.HELPS_MAX - 1], Reason.SEARCH_GAVE_UP.remedy)
        return msgspec.structs.replace(inner, reason=Reason.SEARCH_GAVE_UP, message=message[:MESSAGE_LEN_MAX], helps=helps)
    message = f"{counted}; the next one: {inner.message or inner.reason.meaning}"[:MESSAGE_LEN_MAX]
    if not shortage.placed:
        return msgspec.structs.replace(inner, message=message)
    helps = (f"a minimum of {shortage.placed} would start now", *inner.helps[: hints.HELPS_MAX - 1])
    return msgspec.structs.replace(inner, reason=Reason.GANG_INSUFFICIENT, message=message, helps=helps)


def explain_kept(shortage: Shortage, unit: Unit) -> Verdict:
    """Why a unit waits whose members keep the places that they found."""
    inner = shortage.verdict
    if inner.reason in _WHOLE:
        return inner
    kept = sum(group.bound for group in unit.groups)
    least = sum(group.min for group in unit.groups)
    message = f"{kept} of the {least} pods that must start together have a place, and keep it for a time; the next one: "
    text = f"{message}{inner.message or inner.reason.meaning}"[:MESSAGE_LEN_MAX]
    return msgspec.structs.replace(inner, reason=Reason.GANG_INSUFFICIENT, message=text)


def explain_sum(wanted: Mapping[str, int], own: Sequence[PodRecord], state: State) -> Verdict | None:
    """A verdict if less than `wanted` is free in all, with what `own` pods hold given back; None when it is enough."""
    found: list[Shortfall] = []
    for name, want in wanted.items():
        row = state.table.rows.get(name)
        free = 0
        if row is not None and row < len(state.nodes.free):
            free = int(np.maximum(state.nodes.free[row], 0).sum())
            free += sum(int(pod.request[row]) for pod in own if row < len(pod.request))
        if free < want:
            reason = Reason.EXTENDED_RESOURCE_INSUFFICIENT if row is None else state.table.reason(row)
            unit = "count" if row is None else state.table.unit(row)
            found.append(shortfall(reason, want=want, best=free, unit=unit, resource=name, where="the cluster"))
    if not found:
        return None
    what = "; ".join(map(str, found))
    return Verdict(
        reason=Reason.GANG_INSUFFICIENT,
        message=f"less is free in all than spec.minResources of the PodGroup asks for: {what}"[:MESSAGE_LEN_MAX],
        shortfalls=tuple(found),
        helps=("lower spec.minResources", Reason.GANG_INSUFFICIENT.remedy),
    )


def said_anew(old: Verdict | None, new: Verdict) -> bool:
    """Whether `new` says something else to whoever waits: another reason, another thing that is short, another place to wait
    for. Other figures and other nodes alone are not: objects are not written again for them."""
    return old is None or (old is not new and _gist(old) != _gist(new))


def _gist(verdict: Verdict) -> object:
    short = {
        # How uneven a spread is changes with every pod; what a pod asks for changes with the pod only.
        (one.reason, one.resource, 0 if one.reason is Reason.TOPOLOGY_SPREAD_UNSATISFIED else one.want)
        for one in verdict.shortfalls
        if one.missing > 0
    }
    is_figures = bool(verdict.nodes_by_reason) or verdict.reason is Reason.GANG_INCOMPLETE
    return verdict.reason, verdict.subject, verdict.plugin, short, "" if is_figures else verdict.message


def nodes_by_reason(asked: Asked) -> dict[Reason, int]:
    """Each refused node once, under the first filter that refused it."""
    counts: dict[Reason, int] = {}
    for plugin, mask in asked.refusals:
        left = int(np.count_nonzero(mask))
        for reason, part in guarded(plugin, "reasons", asked.block, hints.picked(asked.nodes, np.flatnonzero(mask))):
            number = min(int(np.count_nonzero(part)), left)
            if number:
                counts[reason] = counts.get(reason, 0) + number
                left -= number
        if left:
            counts[plugin.reason] = counts.get(plugin.reason, 0) + left
    return counts


def dominant(refusals: Refusals) -> tuple[Plugin, Mask]:
    """The filter that stands between the pod and the nodes that come closest: those that passed all filters on what a node
    is. Of several, the one that refuses most."""
    late = [pair for pair in refusals if pair[0].scope is not Scope.NODE]
    return max(late or refusals, key=lambda pair: int(np.count_nonzero(pair[1])))


# -- never -------------------------------------------------------------------------------------------------------------------


def explain_impossible(asked: Asked, evaluator: Evaluator, state: State) -> Verdict | None:
    """A verdict if no node that the pod may ever be on could hold it even when empty."""
    allowed = asked.allowed
    if not allowed.any():
        return None
    block, nodes = asked.block, asked.nodes
    rows, needs = block.needs(())
    large: Mask = np.ones(len(nodes), np.bool_)
    for row, need in zip(rows.tolist(), needs, strict=True):
        large &= nodes.capacity[row] >= need
    if (large & allowed).any() or _is_passing(asked, large, evaluator):
        return None
    empty = nodes.changed(nodes.capacity)
    agrees = allowed
    for plugin in evaluator.profile.local_filters:
        agrees = agrees & evaluator.ask.filtered(plugin, block, empty)
    if agrees.any():
        return None  # nobody looks at what is too little
    found: list[Shortfall] = []
    for row, need in zip(rows.tolist(), needs.tolist(), strict=True):
        capacity = np.where(allowed, nodes.capacity[row], -1)
        largest = int(capacity.argmax())
        if capacity[largest] < need:
            found.append(
                shortfall(
                    state.table.reason(row),
                    want=need,
                    best=capacity[largest],
                    unit=state.table.unit(row),
                    resource=state.table.names[row],
                    where=state.nodes.names[largest],
                )
            )
    what = "; ".join(map(str, found)) if found else "each resource alone fits into some node, but no node has all of them"
    helps = tuple(f"ask for at most {format_amount(one.best, one.unit)} of {one.resource}" for one in found if one.best > 0)
    return Verdict(
        reason=Reason.IMPOSSIBLE,
        message=f"no node could ever hold this: {what}"[:MESSAGE_LEN_MAX],
        shortfalls=tuple(found),
        helps=(*helps[: hints.HELPS_MAX - 1], Reason.IMPOSSIBLE.remedy),
    )


def _is_passing(asked: Asked, large: Mask, evaluator: Evaluator) -> bool:
    """Whether a node that is large enough is refused only for what it is for a while: cordoned, not ready, under pressure."""
    slots = np.flatnonzero(large)
    if not len(slots):
        return False
    some = hints.picked(asked.nodes, slots)
    left: Mask = np.ones(len(slots), np.bool_)
    for plugin in evaluator.profile.node_filters:
        if plugin.reason in _PASSING:
            continue
        accepted = evaluator.ask.filtered(plugin, asked.block, some)
        if plugin.reason is Reason.TAINT_NOT_TOLERATED:
            accepted = accepted | _passing_taints(asked.block, some)
        left &= accepted
    return bool(left.any())


def _passing_taints(block: PodBlock, nodes: NodeBlock) -> Mask:
    columns = nodes.columns
    passing = np.zeros(len(columns.taint_sets), np.bool_)
    sets = nodes.take(columns.taint_set)
    for number in set(sets.tolist()):
        missing = intolerable(block.shape.spec.tolerations, columns.taint_sets[number], HARD_EFFECTS)
        passing[number] = all(taint.key.startswith(_PASSING_TAINTS) for taint in missing)
    mask: Mask = passing[sets]
    return mask


# -- in words ----------------------------------------------------------------------------------------------------------------


def _helps(reason: Reason, mask: Mask, asked: Asked, nearest: Sequence[Verdict], evaluator: Evaluator) -> tuple[str, ...]:
    """Most promising first; the general remedy of the reason comes last."""
    block, nodes, state = asked.block, asked.nodes, evaluator.state
    allowed = asked.allowed
    found: list[str] = []
    if allowed.any():
        late = [p for p in asked.plugins if p.scope is not Scope.NODE]
        requests = hints.largest_requests(block, nodes, allowed, late, evaluator)
        found += (hints.request_text(*one, state) for one in requests)
        close = [one.subject for one in nearest if _is_amounts(one, state)][:_CLEARED_MAX]
        ways = [(hints.which_must_end(block, nodes, node, state), node) for node in close]
        best = min((way for way in ways if way[0]), key=lambda way: len(way[0]), default=None)
        if best is not None:
            found.append(hints.ending_text(*best, evaluator.sees))
    found += hints.node_hints(reason, block, nodes, mask)
    if not allowed.any():
        for plugin, part in asked.refusals:
            if part is not mask:
                found += hints.node_hints(plugin.reason, block, nodes, part)
    return (*found[: hints.HELPS_MAX - 1], reason.remedy)


def _is_amounts(verdict: Verdict, state: State) -> bool:
    """Whether nothing but amounts is missing on the node."""
    return bool(verdict.shortfalls) and all(one.resource in state.table.rows for one in verdict.shortfalls)


def _message(total: int, counts: dict[Reason, int], shortfalls: Sequence[Shortfall], helps: Sequence[str], sees: Sees) -> str:
    ordered = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    shown = ", ".join(f"{count} {code.value}" for code, count in ordered[:_CODES_SHOWN_MAX])
    if len(ordered) > _CODES_SHOWN_MAX:
        shown += f", {sum(count for _, count in ordered[_CODES_SHOWN_MAX:])} for other reasons"
    parts = [f"0 of {total} nodes will do: {shown}"]
    if shortfalls:
        parts.append(str(shortfalls[0]))
        if holders := hints.holder_text(shortfalls[0], sees):
            parts.append(f"held by {holders}")
    if len(helps) > 1:
        parts.append(helps[0])
    return "; ".join(parts)[:MESSAGE_LEN_MAX]


def _transformed(block: PodBlock, nodes: NodeBlock, evaluator: Evaluator) -> tuple[PodBlock, NodeBlock]:
    """The pod and the nodes as the transformers of the profile want them filtered."""
    for plugin in evaluator.profile.at["restore"]:
        if guarded(plugin, "concerns", block):
            free = guarded(plugin, "restore", block, nodes)
            if free is not None:
                nodes = nodes.changed(free)
    for plugin in evaluator.profile.at["before_filter"]:
        if guarded(plugin, "concerns", block):
            block, nodes = guarded(plugin, "before_filter", block, nodes) or (block, nodes)
    return block, nodes
