"""Which nodes a selector means, as masks: node selectors, required node affinity, label selectors, tolerations.

Each condition is worked out once per distinct value of its label (or once per distinct set of taints) and then looked up for
all nodes of the block at once. For a block of one node the result is a single truth value, which broadcasts.

Pure as seen from outside: reads columns, returns masks. Same meaning as kube-scheduler's: alternatives (terms) are joined by
OR, what is inside one by AND, an empty term matches no node. A condition that Kubernetes would refuse (no values for In, two
for Gt, a word where a number must stand, ...) makes its term match no node, and leaves the other terms as they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from muster.engine.blocks import NodeBlock
from muster.engine.columns import ABSENT, Column, Mask
from muster.engine.shapes import Shape
from muster.objects.kinds.affinity import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Toleration
from muster.objects.kinds.nodes import Taint
from muster.objects.names import validate_label_key, validate_label_value
from muster.objects.selectors import LabelSelector

NAME_FIELD: Final = "metadata.name"
HARD_EFFECTS: Final = ("NoSchedule", "NoExecute")
"""Effects that keep pods off a node; PreferNoSchedule only makes it less liked."""

_NEED_LABEL: Final = frozenset({"In", "Exists", "Gt", "Lt"})
"""Operators that no node without the label satisfies."""
_INT64: Final = 2**63
_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,63}", re.ASCII)
_CANONICAL: Final = re.compile(r"0|-?[1-9][0-9]{0,62}", re.ASCII)


class _Plan(msgspec.Struct, frozen=True):
    """The terms of a selector that make sense, those of one condition put together: there may be thousands of them, and each
    that is looked up by itself goes through all nodes once more."""

    values: Mapping[str, frozenset[str]]
    """By label: its value is one of these."""
    present: Sequence[str]
    """Labels of which one being there is enough."""
    names: frozenset[str]
    others: Sequence[NodeSelectorTerm]


_PLANNED_FROM: Final = 8
"""Terms: fewer are looked up one by one, which is quicker than to find their plan."""
_PLANS_MAX: Final = 8
_plans: Final[dict[int, tuple[NodeSelector, _Plan]]] = {}
"""Of large selectors, by `id` of the selector, which is kept with its plan, so that no other can get the same id. Selectors are
never changed. Few are kept: each may be megabytes."""


# -- selectors ----------------------------------------------------------------------------------------------------------------


def required_node_mask(shape: Shape, nodes: NodeBlock) -> Mask:
    """Nodes that the pod's `nodeSelector` and its required node affinity both allow."""
    mask = node_labels_mask(shape.spec.node_selector, nodes)
    required = required_affinity(shape)
    return mask if required is None else mask & matches_node_selector(required, nodes)


def required_affinity(shape: Shape) -> NodeSelector | None:
    """The required node affinity of the pod, None when it has none."""
    affinity = shape.spec.affinity
    if affinity is None or affinity.node_affinity is None:
        return None
    return affinity.node_affinity.required_during_scheduling_ignored_during_execution


def node_labels_mask(labels: Mapping[str, str], nodes: NodeBlock) -> Mask:
    """Nodes that have all of `labels`; all nodes when there are none."""
    mask = every_node(nodes)
    for key, value in labels.items():
        if not nodes.columns.label_values(key):
            return no_node(nodes)
        mask = mask & _lookup(key, [value], nodes)
    return mask


def matches_node_selector(selector: NodeSelector, nodes: NodeBlock) -> Mask:
    """Nodes that any of the terms matches; no node when there are no terms."""
    mask = no_node(nodes)
    if len(selector.node_selector_terms) < _PLANNED_FROM:
        for term in selector.node_selector_terms:
            mask = mask | matches_node_selector_term(term, nodes)
        return mask
    plan = _plan_of(selector)
    for key, values in plan.values.items():
        if nodes.columns.label_values(key):
            mask = mask | _lookup(key, values, nodes)
    for key in plan.present:
        if nodes.columns.label_values(key):
            mask = mask | _matches_label(key, "Exists", (), nodes)
    if plan.names:
        mask = mask | named_nodes_mask(plan.names, nodes)
    for term in plan.others:
        found = _all_of(term, nodes)
        if found is not None:
            mask = mask | found
    return mask


def matches_node_selector_term(term: NodeSelectorTerm, nodes: NodeBlock) -> Mask:
    """Nodes for which all conditions of the term hold; no node when the term is empty or a condition makes no sense."""
    found = preferred_nodes(term, nodes)
    return no_node(nodes) if found is None else found


def preferred_nodes(term: NodeSelectorTerm, nodes: NodeBlock) -> Mask | None:
    """The same, for those who add up many terms: None when it is plain that no node matches, and nothing need be added."""
    return _all_of(term, nodes) if is_sound_term(term) else None


def _all_of(term: NodeSelectorTerm, nodes: NodeBlock) -> Mask | None:
    for expression in term.match_expressions:
        if expression.operator in _NEED_LABEL and not nodes.columns.label_values(expression.key):
            return None
    mask = every_node(nodes)
    for expression in term.match_expressions:
        mask = mask & _matches_label(expression.key, expression.operator, expression.values, nodes)
    for field in term.match_fields:
        mask = mask & _matches_field(field, nodes)
    return mask


def is_sound_term(term: NodeSelectorTerm) -> bool:
    """Whether the term has conditions, and each is one that Kubernetes takes. Any other term matches no node."""
    if not term.match_expressions and not term.match_fields:
        return False
    return all(map(_is_sound, term.match_expressions)) and all(map(_is_sound_field, term.match_fields))


def matches_label_selector(selector: LabelSelector | None, nodes: NodeBlock) -> Mask:
    """Nodes that a selector on labels picks: all for an empty one, none for one that makes no sense, none without one."""
    if selector is None:
        return no_node(nodes)
    mask = node_labels_mask(selector.match_labels, nodes)
    for expression in selector.match_expressions:
        if bool(expression.values) is not (expression.operator in ("In", "NotIn")):
            return no_node(nodes)
        mask = mask & _matches_label(expression.key, expression.operator, expression.values, nodes)
    return mask


def named_nodes_mask(names: Collection[str], nodes: NodeBlock) -> Mask:
    """Nodes with one of these names."""
    if nodes.is_one:
        return _constant(nodes, nodes.columns.names[nodes.slots] in names)
    slots = nodes.columns.slots
    mask: Mask = np.zeros(len(nodes.columns), np.bool_)
    mask[[slots[name] for name in names if name in slots]] = True
    taken: Mask = nodes.take(mask)
    return taken


def every_node(nodes: NodeBlock) -> Mask:
    return _constant(nodes, True)


def no_node(nodes: NodeBlock) -> Mask:
    return _constant(nodes, False)


def whole_number(text: str) -> int | None:
    """The 64-bit number that a label's value spells, if it does."""
    return _int64(text) if _WHOLE.fullmatch(text) else None


# -- taints -------------------------------------------------------------------------------------------------------------------


def tolerated_mask(tolerations: Sequence[Toleration], nodes: NodeBlock, effects: Sequence[str] = HARD_EFFECTS) -> Mask:
    """Nodes all of whose taints with one of these effects are tolerated."""
    mask: Mask = intolerable_count(tolerations, nodes, effects) == 0
    return mask


def intolerable_count(tolerations: Sequence[Toleration], nodes: NodeBlock, effects: Sequence[str]) -> Column:
    """How many taints with one of these effects are not tolerated, by node."""
    sets = nodes.columns.taint_sets
    ids = nodes.take(nodes.columns.taint_set)
    counts = np.zeros(len(sets), np.int64)
    if len(sets) > 1:
        present = np.flatnonzero(np.bincount(np.atleast_1d(ids), minlength=len(sets)))
        for number in present.tolist():
            counts[number] = len(intolerable(tolerations, sets[number], effects))
    found: Column = counts[ids]
    return found


def intolerable(tolerations: Sequence[Toleration], taints: Iterable[Taint], effects: Sequence[str]) -> list[Taint]:
    """Those of `taints` that have one of these effects and are not tolerated."""
    return [taint for taint in taints if taint.effect in effects and not any(tolerates(t, taint) for t in tolerations)]


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    """Whether the toleration covers the taint. An empty key or effect covers all; `Gt` wants a taint's number above its own.

    `Gt` and `Lt` came with Kubernetes 1.35; both values are whole numbers without leading zeros, otherwise nothing is covered.
    """
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    match toleration.operator:
        case "" | "Equal":
            return toleration.value == taint.value
        case "Exists":
            return True
        case "Gt" | "Lt":
            bound, number = _canonical(toleration.value), _canonical(taint.value)
            if bound is None or number is None:
                return False
            return number > bound if toleration.operator == "Gt" else number < bound
    return False


# -- inside -------------------------------------------------------------------------------------------------------------------


def _constant(nodes: NodeBlock, value: bool) -> Mask:
    if nodes.is_one:
        return np.bool_(value)  # type: ignore[return-value]
    return np.full(len(nodes), value, np.bool_)


def _matches_label(key: str, operator: str, values: Sequence[str], nodes: NodeBlock) -> Mask:
    ids = nodes.take(nodes.columns.label_ids(key))
    mask: Mask
    match operator:
        case "In":
            return _lookup(key, values, nodes)
        case "NotIn":
            return ~_lookup(key, values, nodes)
        case "Exists":
            mask = ids != ABSENT
            return mask
        case "DoesNotExist":
            mask = ids == ABSENT
            return mask
        case "Gt":
            bound = int(values[0])
            return _lookup_where(key, lambda number: number > bound, nodes)
        case "Lt":
            bound = int(values[0])
            return _lookup_where(key, lambda number: number < bound, nodes)
    return no_node(nodes)


def _matches_field(field: NodeSelectorRequirement, nodes: NodeBlock) -> Mask:
    """Nodes have one field to select by, their name; any other is empty, for all nodes alike."""
    mask = named_nodes_mask(field.values, nodes) if field.key == NAME_FIELD else _constant(nodes, field.values[0] == "")
    return mask if field.operator == "In" else ~mask


def _lookup(key: str, values: Collection[str], nodes: NodeBlock) -> Mask:
    """Nodes whose label has one of `values`."""
    columns = nodes.columns
    ids, known = nodes.take(columns.label_ids(key)), columns.label_values(key)
    if isinstance(values, frozenset) and len(values) > len(known):
        wanted = [number for value, number in known.items() if value in values]
    else:
        wanted = [known[value] for value in values if value in known]
    mask: Mask
    if not wanted:
        return no_node(nodes)
    if len(wanted) == 1:
        mask = ids == wanted[0]
        return mask
    table = np.zeros(len(known) + 1, np.bool_)
    table[wanted] = True
    mask = table[ids]
    return mask


def _lookup_where(key: str, holds: Callable[[int], bool], nodes: NodeBlock) -> Mask:
    """Nodes whose label is a whole number for which the condition holds; the condition is tried once per distinct value."""
    columns = nodes.columns
    ids, known = nodes.take(columns.label_ids(key)), columns.label_values(key)
    table = np.zeros(len(known) + 1, np.bool_)
    for value, number in known.items():
        spelled = whole_number(value)
        table[number] = spelled is not None and holds(spelled)
    mask: Mask = table[ids]
    return mask


def _plan_of(selector: NodeSelector) -> _Plan:
    known = _plans.get(id(selector))
    if known is not None:
        return known[1]
    values: dict[str, set[str]] = {}
    present: dict[str, None] = {}
    names: set[str] = set()
    others: list[NodeSelectorTerm] = []
    for term in selector.node_selector_terms:
        if not is_sound_term(term):
            continue
        expressions, fields = term.match_expressions, term.match_fields
        one = (*expressions, *fields)[0]
        if len(expressions) + len(fields) > 1:
            others.append(term)
        elif expressions and one.operator == "In":
            values.setdefault(one.key, set()).update(one.values)
        elif expressions and one.operator == "Exists":
            present[one.key] = None
        elif fields and one.operator == "In" and one.key == NAME_FIELD:
            names.update(one.values)
        else:
            others.append(term)
    by_key = {key: frozenset(found) for key, found in values.items()}
    plan = _Plan(by_key, tuple(present), frozenset(names), tuple(others))
    if len(_plans) >= _PLANS_MAX:
        _plans.clear()
    _plans[id(selector)] = (selector, plan)
    return plan


def _is_sound(expression: NodeSelectorRequirement) -> bool:
    values = expression.values
    match expression.operator:
        case "In" | "NotIn":
            counts = bool(values)
        case "Exists" | "DoesNotExist":
            counts = not values
        case "Gt" | "Lt":
            counts = len(values) == 1 and whole_number(values[0]) is not None
        case _:
            counts = False
    return counts and not validate_label_key(expression.key) and not any(map(validate_label_value, values))


def _is_sound_field(field: NodeSelectorRequirement) -> bool:
    return field.operator in ("In", "NotIn") and len(field.values) == 1


def _canonical(text: str) -> int | None:
    return _int64(text) if _CANONICAL.fullmatch(text) else None


def _int64(text: str) -> int | None:
    number = int(text)
    return number if -_INT64 <= number < _INT64 else None
