"""The evaluation of every node for one pod, laid open: who refuses it and why, what each plugin scores.

Pure and for reading; the figures are worked out anew, and are those that a decision about the pod would use.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from muster.engine import hints
from muster.engine.answer_values import NODES_MAX, Evaluation, NodeAnswer, PluginScore, RefusedNodes
from muster.engine.asking import guarded
from muster.engine.columns import Array, Mask
from muster.engine.evaluate import Evaluator
from muster.engine.explain import Asked, ask_filters
from muster.engine.plugin import Plugin, Scope, overrides
from muster.engine.pods import PodRecord
from muster.objects.reasons import Reason, Verdict

NAMES_MAX = 100
"""Of nodes that are refused for one reason, so many are named."""


def evaluate_nodes(pod: PodRecord, evaluator: Evaluator, nodes_max: int) -> Evaluation:
    """PluginFault when a plugin breaks."""
    state = evaluator.state
    if not len(state.nodes):
        return Evaluation(pod.key, 0, 0)
    total = evaluator.scores(pod)
    asked = ask_filters(pod, evaluator, state)
    count = max(0, min(nodes_max, NODES_MAX))
    feasible: Mask = total >= 0
    by_score = np.flatnonzero(feasible)
    by_score = by_score[np.lexsort((by_score, -total[by_score]))][:count]
    scores = _scores(asked, feasible, evaluator)
    shown = [_allocated(_feasible(slot, total, scores, asked), pod, evaluator) for slot in by_score.tolist()]
    left = count - len(shown)
    if left > 0 and not feasible.all():
        among = asked.allowed & ~feasible
        slots = hints.nearest_slots(asked.block, asked.nodes, among if among.any() else ~feasible, left)
        shown += [_refused(slot, asked, evaluator) for slot in slots.tolist()]
    return Evaluation(pod.key, len(state.nodes), int(np.count_nonzero(feasible)), tuple(shown), _grouped(asked, feasible))


def _scores(asked: Asked, feasible: Mask, evaluator: Evaluator) -> list[tuple[Plugin, int, Array]]:
    """Of each plugin that scores the pod, over all nodes."""
    found: list[tuple[Plugin, int, Array]] = []
    if not feasible.any():
        return found
    for plugin in evaluator.profile.at["score"]:
        if plugin.scope is Scope.WIDE and not guarded(plugin, "concerns", asked.block):
            continue
        raw = evaluator.ask.scored(plugin, asked.block, asked.nodes)
        if overrides(plugin, "normalise"):
            # What a plugin says of all nodes alike decides nothing, and is left out when a node is chosen too.
            is_flat = plugin.scope is Scope.NODE and raw.min() == raw.max()
            raw = np.zeros(len(raw), np.int64) if is_flat else evaluator.ask.normalised(plugin, raw, feasible)
        found.append((plugin, evaluator.ask.weights[plugin.name], raw))
    return found


def _feasible(slot: int, total: Array, scores: list[tuple[Plugin, int, Array]], asked: Asked) -> NodeAnswer:
    parts = tuple(PluginScore(plugin.name, int(raw[slot]), weight) for plugin, weight, raw in scores)
    return NodeAnswer(asked.nodes.columns.names[slot], feasible=True, score=int(total[slot]), scores=parts)


def _allocated(answer: NodeAnswer, pod: PodRecord, evaluator: Evaluator) -> NodeAnswer:
    """With what the plugins would give the pod there, without giving it; a plugin that can't is a refusal after all."""
    found: dict[str, Mapping[str, Any]] = {}
    for plugin in evaluator.profile.plugins:
        if overrides(plugin, "dry_allocate"):
            given = guarded(plugin, "dry_allocate", pod, answer.node)
            if isinstance(given, Verdict):
                return NodeAnswer(answer.node, refusals=(msgspec.structs.replace(given, plugin=plugin.name),))
            if given:
                found[plugin.name] = given
    return msgspec.structs.replace(answer, allocations=found) if found else answer


def _refused(slot: int, asked: Asked, evaluator: Evaluator) -> NodeAnswer:
    """Every filter that refuses the node, not just the first."""
    one = hints.picked(asked.nodes, np.array([slot]))
    name = asked.nodes.columns.names[slot]
    found: list[Verdict] = []
    for plugin in asked.plugins:
        if not evaluator.ask.filtered(plugin, asked.block, one)[0]:
            reason, shortfalls = guarded(plugin, "explain", asked.block, one)
            found.append(Verdict(reason=reason, plugin=plugin.name, shortfalls=tuple(shortfalls)))
    if not found:
        found.append(Verdict(reason=Reason.QUEUE_BLOCKED, message="kept for work that room was made for"))
    return NodeAnswer(name, refusals=tuple(found))


def _grouped(asked: Asked, feasible: Mask) -> tuple[RefusedNodes, ...]:
    names = asked.nodes.columns.names
    found: list[RefusedNodes] = []
    left = ~feasible
    for plugin, mask in asked.refusals:
        slots = np.flatnonzero(mask)
        left = left & ~mask
        for reason, part in guarded(plugin, "reasons", asked.block, hints.picked(asked.nodes, slots)):
            chosen = slots[np.atleast_1d(part)] if np.ndim(part) else slots
            if len(chosen):
                shown = tuple(names[slot] for slot in chosen[:NAMES_MAX].tolist())
                found.append(RefusedNodes(plugin.name, reason, len(chosen), shown, plugin.scope is not Scope.NODE))
    kept = np.flatnonzero(left)
    if len(kept):
        shown = tuple(names[slot] for slot in kept[:NAMES_MAX].tolist())
        found.append(RefusedNodes("", Reason.QUEUE_BLOCKED, len(kept), shown))
    return tuple(found)
