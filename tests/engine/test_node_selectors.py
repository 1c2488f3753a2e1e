"""Selectors as masks: against a plain reading of the rules, node by node, and the cases that people trip over."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.engine import columns, node_selectors
from muster.engine.blocks import NodeBlock
from muster.engine.events import NodeSeen
from muster.engine.facts import NodeFacts
from muster.engine.node_selectors import (
    intolerable_count,
    matches_label_selector,
    matches_node_selector,
    named_nodes_mask,
    required_node_mask,
    tolerated_mask,
    tolerates,
)
from muster.objects.kinds.affinity import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Toleration
from muster.objects.kinds.nodes import Taint
from muster.objects.selectors import LabelSelector, from_label_selector
from tests.engine.building import node, pod, state_of

KEYS = ("zone", "size", "gpu")
VALUES = ("a", "b", "7", "-3", "+12", "007", "9223372036854775808", "")

# -- a plain reading of the rules, one node at a time -------------------------------------------------------------------------


def plain_number(text: str) -> int | None:
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not digits or not digits.isdecimal() or not digits.isascii():
        return None
    return int(text) if -(2**63) <= int(text) < 2**63 else None


def plain_requirement(one: NodeSelectorRequirement, labels: dict[str, str]) -> bool | None:
    """None when it makes no sense."""
    value, values = labels.get(one.key), one.values
    if any(text and not text[0].isalnum() for text in values):
        return None  # no label can have such a value
    match one.operator:
        case "In":
            return value in values if values else None
        case "NotIn":
            return value not in values if values else None
        case "Exists":
            return value is not None if not values else None
        case "DoesNotExist":
            return value is None if not values else None
        case "Gt" | "Lt":
            bound = plain_number(values[0]) if len(values) == 1 else None
            if bound is None:
                return None
            number = None if value is None else plain_number(value)
            return number is not None and (number > bound if one.operator == "Gt" else number < bound)
    return None


def plain_term(term: NodeSelectorTerm, facts: NodeFacts) -> bool:
    answers = [plain_requirement(one, facts.metadata.labels) for one in term.match_expressions]
    for one in term.match_fields:
        sound = one.operator in ("In", "NotIn") and len(one.values) == 1
        answers.append(plain_requirement(one, {"metadata.name": facts.metadata.name}) if sound else None)
    return bool(answers) and all(answers)


def plain_tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect not in ("", taint.effect) or toleration.key not in ("", taint.key):
        return False
    if toleration.operator in ("Gt", "Lt"):
        try:
            numbers = int(toleration.value), int(taint.value)
        except ValueError:
            return False
        if tuple(map(str, numbers)) != (toleration.value, taint.value) or max(map(abs, numbers)) >= 2**63:
            return False
        return numbers[1] > numbers[0] if toleration.operator == "Gt" else numbers[1] < numbers[0]
    return toleration.operator == "Exists" or (toleration.operator in ("", "Equal") and toleration.value == taint.value)


# -- properties ---------------------------------------------------------------------------------------------------------------

labels = st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES), max_size=3)
requirements = st.builds(
    NodeSelectorRequirement,
    key=st.sampled_from(KEYS),
    operator=st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Near"]),
    values=st.lists(st.sampled_from(VALUES), max_size=2),
)
fields = st.builds(
    NodeSelectorRequirement,
    key=st.just("metadata.name"),
    operator=st.sampled_from(["In", "NotIn", "Exists"]),
    values=st.lists(st.sampled_from(["n0", "n1", "elsewhere"]), max_size=2),
)
terms = st.builds(
    NodeSelectorTerm, match_expressions=st.lists(requirements, max_size=3), match_fields=st.lists(fields, max_size=1)
)
clusters = st.lists(labels, min_size=1, max_size=6)
taints = st.builds(
    Taint,
    key=st.sampled_from(["k", "l"]),
    effect=st.sampled_from(["NoSchedule", "NoExecute", "PreferNoSchedule"]),
    value=st.sampled_from(["", "v", "5", "07", "-2"]),
)
tolerations = st.builds(
    Toleration,
    key=st.sampled_from(["", "k", "l"]),
    operator=st.sampled_from(["", "Equal", "Exists", "Lt", "Gt"]),
    value=st.sampled_from(["", "v", "4", "6", "07"]),
    effect=st.sampled_from(["", "NoSchedule", "NoExecute", "PreferNoSchedule"]),
)


def same_for_every_block(ask: Any, nodes: Any, expected: list[Any]) -> None:
    assert np.asarray(ask(NodeBlock(nodes))).tolist() == expected
    for slot in range(len(nodes)):
        assert np.asarray(ask(NodeBlock(nodes, slot))).item() == expected[slot]
    odd = np.arange(1, len(nodes), 2)
    assert np.asarray(ask(NodeBlock(nodes, odd))).tolist() == expected[1::2]


@given(clusters, st.lists(terms, max_size=3))
def test_node_selector_is_what_a_plain_reading_says(cluster: list[dict[str, str]], some: list[NodeSelectorTerm]) -> None:
    facts = [node(f"n{number}", labels=each) for number, each in enumerate(cluster)]
    selector = NodeSelector(node_selector_terms=some)
    expected = [any(plain_term(term, each) for term in some) for each in facts]
    same_for_every_block(lambda nodes: matches_node_selector(selector, nodes), state_of(facts).nodes, expected)


@given(clusters, labels, st.none() | st.lists(terms, max_size=2))
def test_required_is_selector_and_affinity(
    cluster: list[dict[str, str]], wanted: dict[str, str], some: list[NodeSelectorTerm] | None
) -> None:
    facts = [node(f"n{number}", labels=each) for number, each in enumerate(cluster)]
    required = {} if some is None else {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": some}}
    state = state_of(facts)
    shape = state.shapes.shape_of(
        pod("p", nodeSelector=wanted, affinity={"nodeAffinity": msgspec.to_builtins(required, order="deterministic")})
    )
    expected = [
        all(each.metadata.labels.get(key) == value for key, value in wanted.items())
        and (some is None or any(plain_term(term, each) for term in some))
        for each in facts
    ]
    same_for_every_block(lambda nodes: required_node_mask(shape, nodes), state.nodes, expected)


@given(st.lists(st.lists(taints, max_size=3), min_size=1, max_size=5), st.lists(tolerations, max_size=3))
def test_tolerated_is_what_a_plain_reading_says(cluster: list[list[Taint]], some: list[Toleration]) -> None:
    facts = [node(f"n{number}", taints=msgspec.to_builtins(each)) for number, each in enumerate(cluster)]
    nodes = state_of(facts).nodes

    def count(each: list[Taint], *effects: str) -> int:
        return sum(taint.effect in effects and not any(plain_tolerates(t, taint) for t in some) for taint in each)

    hard = [count(each, "NoSchedule", "NoExecute") == 0 for each in cluster]
    same_for_every_block(lambda block: tolerated_mask(some, block), nodes, hard)
    soft = [count(each, "PreferNoSchedule") for each in cluster]
    same_for_every_block(lambda block: intolerable_count(some, block, ("PreferNoSchedule",)), nodes, soft)


@given(clusters, st.lists(st.tuples(st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist"]), labels), max_size=2), labels)
def test_label_selector_is_what_matching_each_node_says(
    cluster: list[dict[str, str]], parts: list[tuple[str, dict[str, str]]], wanted: dict[str, str]
) -> None:
    short = {key: value for key, value in wanted.items() if value.isalnum()}
    expressions = [
        {"key": key, "operator": operator, "values": [value] if operator in ("In", "NotIn") else []}
        for operator, some in parts
        for key, value in some.items()
        if value.isalnum()
    ]
    selector = msgspec.convert({"matchLabels": short, "matchExpressions": expressions}, LabelSelector)
    facts = [node(f"n{number}", labels=each) for number, each in enumerate(cluster)]
    query = from_label_selector(selector)
    expected = [query.matches(each.metadata.labels) for each in facts]
    same_for_every_block(lambda nodes: matches_label_selector(selector, nodes), state_of(facts).nodes, expected)


# -- the cases that people trip over ------------------------------------------------------------------------------------------


def selecting(*parts: dict[str, Any]) -> NodeSelector:
    return msgspec.convert({"nodeSelectorTerms": list(parts)}, NodeSelector)


def label(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        pytest.param(selecting(), [], id="no terms match nothing"),
        pytest.param(selecting({}), [], id="an empty term matches nothing"),
        pytest.param(selecting({}, label("zone", "In", "a")), ["n0"], id="beside an empty term the others count"),
        pytest.param(selecting(label("zone", "NotIn", "a")), ["n1", "n2"], id="NotIn holds where the label is missing"),
        pytest.param(selecting(label("size", "Gt", "7")), ["n1"], id="Gt is not equal or more"),
        pytest.param(selecting(label("size", "Lt", "8")), ["n0"], id="Lt needs the label"),
        pytest.param(selecting(label("zone", "Gt", "1")), [], id="a word is not above a number"),
        pytest.param(
            selecting(label("size", "Gt", "many"), label("zone", "In", "b")), ["n1"], id="a broken term spoils itself"
        ),
        pytest.param(selecting(label("size", "Gt", "9" * 40)), [], id="a number past 64 bits is none"),
        pytest.param(selecting(label("zone", "NotIn", "not a value!")), [], id="a value that no label can have is refused"),
        pytest.param(selecting(label("bad key!", "DoesNotExist")), [], id="so is a key"),
        pytest.param(
            selecting({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]}), ["n2"], id="by name"
        ),
        pytest.param(
            selecting({"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["n2"]}]}),
            ["n0", "n1"],
            id="by name, the others",
        ),
        pytest.param(
            selecting({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1", "n2"]}]}),
            [],
            id="fields take one value",
        ),
        pytest.param(
            selecting(
                {**label("zone", "Exists"), "matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]}
            ),
            [],
            id="labels and fields of a term must both hold",
        ),
        pytest.param(
            selecting({"matchFields": [{"key": "spec.other", "operator": "NotIn", "values": ["x"]}]}),
            ["n0", "n1", "n2"],
            id="any other field is empty",
        ),
    ],
)
def test_node_selector(selector: NodeSelector, expected: list[str]) -> None:
    state = state_of([node("n0", labels={"zone": "a", "size": "7"}), node("n1", labels={"zone": "b", "size": "8"}), node("n2")])
    mask = matches_node_selector(selector, NodeBlock(state.nodes))
    assert [name for name, fits in zip(state.nodes.names, mask.tolist(), strict=True) if fits] == expected


def test_masks_follow_labels_that_change_and_nodes_that_come() -> None:
    state = state_of([node("n0", labels={"zone": "a"})])
    selector = selecting(label("zone", "In", "b", "c"))
    assert matches_node_selector(selector, NodeBlock(state.nodes)).tolist() == [False]
    for facts in (node("n0", labels={"zone": "b"}), node("m", labels={"zone": "a"}), node("o", labels={"zone": "c"})):
        state.apply_node(NodeSeen(facts))
    state.flush_nodes()
    assert state.nodes.names == ["m", "n0", "o"]
    assert matches_node_selector(selector, NodeBlock(state.nodes)).tolist() == [False, True, True]


def test_no_selector_picks_nothing_and_an_empty_one_everything() -> None:
    nodes = NodeBlock(state_of([node("n0"), node("n1")]).nodes)
    assert matches_label_selector(None, nodes).tolist() == [False, False]
    assert matches_label_selector(LabelSelector(), nodes).tolist() == [True, True]
    broken = msgspec.convert({"matchExpressions": [{"key": "zone", "operator": "NotIn"}]}, LabelSelector)
    assert matches_label_selector(broken, nodes).tolist() == [False, False]


def test_named_nodes_leave_out_those_that_are_not_there() -> None:
    assert named_nodes_mask(["n1", "gone"], NodeBlock(state_of([node("n0"), node("n1")]).nodes)).tolist() == [False, True]


@pytest.mark.parametrize(
    ("toleration", "expected"),
    [
        pytest.param({"key": "sla", "value": "950"}, True, id="equal is the default"),
        pytest.param({"key": "sla", "value": "95"}, False, id="another value"),
        pytest.param({"key": "sla", "operator": "Exists"}, True, id="exists"),
        pytest.param({"operator": "Exists"}, True, id="every key"),
        pytest.param({"key": "sla", "operator": "Exists", "effect": "NoExecute"}, False, id="another effect"),
        pytest.param({"key": "sla", "operator": "Gt", "value": "900"}, True, id="the taint is above"),
        pytest.param({"key": "sla", "operator": "Gt", "value": "950"}, False, id="not above itself"),
        pytest.param({"key": "sla", "operator": "Lt", "value": "951"}, True, id="the taint is below"),
        pytest.param({"key": "sla", "operator": "Lt", "value": "0951"}, False, id="no leading zeros"),
        pytest.param({"key": "sla", "operator": "Lt", "value": "much"}, False, id="no words"),
        pytest.param({"key": "sla", "operator": "Like", "value": "950"}, False, id="an unknown operator"),
    ],
)
def test_tolerates(toleration: dict[str, str], expected: bool) -> None:
    taint = Taint(key="sla", value="950", effect="NoSchedule")
    assert tolerates(msgspec.convert(toleration, Toleration), taint) is expected


# -- pods with thousands of terms ---------------------------------------------------------------------------------------------


def _one(key: str, operator: str, *values: str) -> NodeSelectorTerm:
    return NodeSelectorTerm(match_expressions=[NodeSelectorRequirement(key=key, operator=operator, values=list(values))])


def test_terms_on_one_label_are_looked_up_together(monkeypatch: pytest.MonkeyPatch) -> None:
    state = state_of([node(f"n{n}", labels={"zone": f"z{n}"}) for n in range(4)])
    nodes = NodeBlock(state.nodes)
    looked_up: list[str] = []
    plain = node_selectors._lookup

    def counted(key: str, *rest: Any) -> Any:
        looked_up.append(key)
        return plain(key, *rest)

    monkeypatch.setattr(node_selectors, "_lookup", counted)
    monkeypatch.setattr(node_selectors, "is_sound_term", sound := Counted(node_selectors.is_sound_term))
    terms = [_one("zone", "In", f"z{2 * n}", "none") for n in range(1_000)]
    selector = NodeSelector(node_selector_terms=[*terms, *(_one(f"unknown{n}", "In", "x") for n in range(1_000))])
    for _ in range(3):
        assert matches_node_selector(selector, nodes).tolist() == [True, False, True, False]
    assert looked_up == ["zone"] * 3
    assert sound.calls == 2_000, "whether terms make sense is asked once"


def test_no_node_is_looked_at_for_labels_that_none_has(monkeypatch: pytest.MonkeyPatch) -> None:
    state = state_of([node("a", labels={"disk": "ssd"}), node("b")])
    monkeypatch.setattr(columns._LabelColumn, "fill", filled := Counted(columns._LabelColumn.fill))
    terms = [_one(f"k{n}", operator, *values) for n in range(500) for operator, values in (("In", ("x",)), ("Exists", ()))]
    both = NodeSelectorTerm(
        match_expressions=[*_one("k1", "Exists").match_expressions, *_one("k2", "Gt", "1").match_expressions]
    )
    selector = NodeSelector(node_selector_terms=[*terms, both, _one("disk", "Exists")])
    for _ in range(3):
        assert matches_node_selector(selector, NodeBlock(state.nodes)).tolist() == [True, False]
    assert filled.calls == 1
    state.apply_node(NodeSeen(node("b", labels={"k7": "x"})))
    state.flush_nodes()
    assert matches_node_selector(selector, NodeBlock(state.nodes)).tolist() == [True, True]
    assert filled.calls == 2


def test_labels_that_nodes_had_are_forgotten() -> None:
    state = state_of([node("a"), node("b")])
    for number in range(5_000):
        state.apply_node(NodeSeen(node("b", labels={f"at-{number}": "x"})))
        state.flush_nodes()
    assert len(state.nodes._keys) < 2_500
    assert state.nodes.label_ids("at-4999").tolist() == [0, 1]
    assert not state.nodes.label_ids("at-1").any()


def test_what_is_kept_of_selectors_is_bounded() -> None:
    state = state_of([node("a", labels={"zone": "z"})])
    for number in range(200):
        selector = NodeSelector(node_selector_terms=[_one("zone", "In", f"z{number}-{n}") for n in range(1_000)])
        assert not matches_node_selector(selector, NodeBlock(state.nodes)).any()
        assert len(node_selectors._plans) <= 8


class Counted:
    """A function that counts its calls; a method when it stands in a class."""

    def __init__(self, plain: Any) -> None:
        self._plain = plain
        self.calls = 0

    def __call__(self, *args: Any) -> Any:
        self.calls += 1
        return self._plain(*args)

    def __get__(self, owner: Any, kind: Any = None) -> Any:
        return self if owner is None else lambda *args: self(owner, *args)
