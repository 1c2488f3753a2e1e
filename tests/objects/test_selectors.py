from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.objects.selectors import (
    EVERYTHING,
    NOTHING,
    FieldQuery,
    FieldTerm,
    LabelQuery,
    LabelSelector,
    Operator,
    Requirement,
    from_label_selector,
    from_labels,
    label_query,
    parse_field_selector,
    parse_label_selector,
)
from muster.objects.view import view_of

LABELS = {"a": "1", "b": "x", "example.com/c": "", "in": "in"}


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("", True), ("   ", True), ("a=1", True), ("a==1", True), ("a = 1", True), ("a=2", False), ("z=1", False),
        ("a!=1", False), ("a!=2", True), ("z!=1", True), ("a", True), ("z", False), ("!z", True), ("!a", False), ("! a", False),
        ("a in (1,2)", True), ("a in (2, 3)", False), ("z in (1)", False), ("a notin (1)", False), ("a notin (2)", True),
        ("z notin (1)", True), ("a in(1)", True), ("example.com/c=", True), ("example.com/c in ()", True),
        ("example.com/c in (,x)", True), ("a in (,)", False), ("a=", False), ("a=1,b=x", True), ("a=1,b=y", False),
        ("a=1, b in (x, y), !z", True), ("a>0", True), ("a>1", False),
        ("a<2", True), ("a<1", False), ("b>0", False), ("z<5", False),
        ("in in (in)", True), ("in", True), ("in=notin", False), ("notin", False), ("a=1,a!=2,a", True),
    ],
)  # fmt: skip
def test_label_selectors(text: str, matches: bool) -> None:
    query = parse_label_selector(text)
    assert query.matches(LABELS) is matches
    assert parse_label_selector(str(query)) == query


@pytest.mark.parametrize(
    ("text", "position"),
    [
        (",", 0), ("a,", 2), (",a", 0), ("a,,b", 2), ("a=b=c", 3),
        ("a b", 2), ("=a", 0), ("a in", 4), ("a in x", 5), ("a in (x", 7),
        ("a in (x y)", 8), ("a notin", 7), ("!", 1), ("!!a", 1), ("!a=b", 2),
        ("a!", 1), ("(a)", 0), ("a>", 0), ("a>x", 0), ("a<1.5", 0),
        ("-a", 0), ("a=-", 0), ("a=b,c/d/e=f", 4), ("a in (-)", 0),
        ("a=(", 2), ("ä=b", 0), ("a===b", 3), ("a>99999999999999999999", 0), ("a>-1", 0),
    ],
)  # fmt: skip
def test_bad_label_selectors_name_the_position(text: str, position: int) -> None:
    with pytest.raises(ValueError, match=f"position {position}:"):
        parse_label_selector(text)


def test_selectors_have_a_limit() -> None:
    with pytest.raises(ValueError, match="65536 characters"):
        parse_label_selector("a," * 40_000)
    with pytest.raises(ValueError, match="65536 characters"):
        parse_field_selector("a=b," * 40_000)


def test_text_is_normal() -> None:
    assert str(parse_label_selector("b in (y,x) , a==1,!c")) == "a=1,b in (x,y),!c"
    assert parse_label_selector("a=1,b=2") == parse_label_selector("b=2,a=1")
    assert parse_label_selector("a=1,b in (2),c!=3").exact() == {"a": "1", "b": "2"}
    assert EVERYTHING.is_everything
    assert str(EVERYTHING) == ""
    assert not parse_label_selector(str(NOTHING)).matches({"none": "x"})
    assert not NOTHING.matches({})


@pytest.mark.parametrize(
    ("selector", "matches"),
    [
        ({}, True),
        ({"matchLabels": {"a": "1"}}, True),
        ({"matchLabels": {"a": "2"}}, False),
        ({"matchExpressions": [{"key": "a", "operator": "In", "values": ["1", "2"]}]}, True),
        ({"matchExpressions": [{"key": "z", "operator": "NotIn", "values": ["1"]}]}, True),
        ({"matchExpressions": [{"key": "a", "operator": "Exists"}]}, True),
        ({"matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]}, False),
        ({"matchLabels": {"a": "1"}, "matchExpressions": [{"key": "b", "operator": "NotIn", "values": ["x"]}]}, False),
    ],
)
def test_selectors_in_objects(selector: dict[str, object], matches: bool) -> None:
    query = from_label_selector(view_of(LabelSelector, selector))
    assert query.matches(LABELS) is matches
    assert parse_label_selector(str(query)) == query


@pytest.mark.parametrize(
    ("selector", "where"),
    [
        ({"matchLabels": {"-": "1"}}, "matchLabels"),
        ({"matchLabels": {"a": "-"}}, "matchLabels"),
        ({"matchExpressions": [{"key": "a", "operator": "Exists"}, {"key": "a", "operator": "In"}]}, r"matchExpressions\[1\]"),
        ({"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["x"]}]}, r"matchExpressions\[0\]"),
    ],
)
def test_bad_selectors_in_objects_name_the_part(selector: dict[str, object], where: str) -> None:
    with pytest.raises(ValueError, match=where):
        from_label_selector(view_of(LabelSelector, selector))


def test_no_selector_selects_nothing_and_an_unknown_operator_is_refused() -> None:
    assert from_label_selector(None) == NOTHING
    with pytest.raises(msgspec.ValidationError):
        view_of(LabelSelector, {"matchExpressions": [{"key": "a", "operator": "Like"}]})


def test_from_labels() -> None:
    assert from_labels({"b": "x", "a": "1"}) == parse_label_selector("a=1,b=x")
    with pytest.raises(ValueError, match="label selector: key"):
        from_labels({"": "x"})


keys = st.sampled_from(["a", "b", "in", "notin", "example.com/c"])
values = st.sampled_from(["", "1", "-5", "x", "in", "A_b.c"]).filter(lambda v: v != "-5")
requirements = st.one_of(
    st.builds(Requirement, keys, st.sampled_from([Operator.EXISTS, Operator.ABSENT])),
    st.builds(
        Requirement,
        keys,
        st.sampled_from([Operator.EQUALS, Operator.NOT_EQUALS]),
        st.frozensets(values, min_size=1, max_size=1),
    ),
    st.builds(
        Requirement, keys, st.sampled_from([Operator.IN, Operator.NOT_IN]), st.frozensets(values, min_size=1, max_size=3)
    ),
    st.builds(
        Requirement,
        keys,
        st.sampled_from([Operator.GREATER, Operator.LESS]),
        st.integers(0, 9).map(lambda n: frozenset([str(n)])),
    ),
)
label_maps = st.dictionaries(keys, values | st.integers(0, 9).map(str), max_size=4)


@given(st.lists(requirements, max_size=4), label_maps)
def test_queries_round_trip_through_text(parts: list[Requirement], labels: Mapping[str, str]) -> None:
    query: LabelQuery = label_query(parts)
    again = parse_label_selector(str(query))
    assert again == query
    assert again.matches(labels) == all(part.matches(labels) for part in parts)
    assert not query.matches(labels) or query.exact().items() <= labels.items()


@given(st.lists(requirements, min_size=9, max_size=24), label_maps)
def test_many_conditions_mean_the_same_as_one_by_one(parts: list[Requirement], labels: Mapping[str, str]) -> None:
    assert label_query(parts).matches(labels) == all(part.matches(labels) for part in parts)


class _Counting(dict[str, str]):
    """Labels that count how often they are looked at."""

    def __init__(self, **labels: str) -> None:
        super().__init__(labels)
        self.looks = 0

    def get(self, key: str, default: Any = None) -> Any:
        self.looks += 1
        return super().get(key, default)

    def __getitem__(self, key: str) -> str:
        self.looks += 1
        return super().__getitem__(key)


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        pytest.param(",".join(f"!k{n}" for n in range(5000)), True, id="labels that must not be there"),
        pytest.param(",".join(f"k{n}" for n in range(5000)), False, id="labels that must be there"),
        pytest.param(",".join(f"a!=x{n}" for n in range(5000)), True, id="values of one label"),
        pytest.param(",".join(f"a>{n}" for n in range(5000)), False, id="bounds of one label"),
        pytest.param(",".join(f"a<{n + 8}" for n in range(5000)), True, id="upper bounds of one label"),
    ],
)
def test_an_object_is_not_asked_every_condition(text: str, matches: bool) -> None:
    labels = _Counting(a="7", b="x")
    assert parse_label_selector(text).matches(labels) is matches
    assert labels.looks <= 2


@given(st.text(alphabet="ab in(),!=<>/.-1\t", max_size=20) | st.text(max_size=10))
def test_any_text_parses_or_is_a_value_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert parse_label_selector(str(parse_label_selector(text))) == parse_label_selector(text)
    with contextlib.suppress(ValueError):
        assert parse_field_selector(str(parse_field_selector(text))) == parse_field_selector(text)


FIELDS = {"metadata.name": "web", "status.phase": "Running", "spec.x": "a,b=c\\d"}


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("", True), ("metadata.name=web", True),
        ("metadata.name==web", True), ("metadata.name!=web", False), ("status.phase!=Failed", True),
        ("metadata.name=web,status.phase=Running", True),
        ("metadata.name=web,status.phase=Failed", False), ("spec.nodeName=", True),
        ("spec.nodeName!=", False), (r"spec.x=a\,b\=c\\d", True), (",metadata.name=web,", True), ("spec.x!=a", True),
    ],
)  # fmt: skip
def test_field_selectors(text: str, matches: bool) -> None:
    query = parse_field_selector(text)
    assert query.matches(lambda field: FIELDS.get(field, "")) is matches
    assert parse_field_selector(str(query)) == query


@pytest.mark.parametrize(
    ("text", "position"),
    [("metadata.name", 0), ("a=b,c", 4), ("=b", 0), (r"a=b\c", 0), ("a=b=c", 0), ("a=b\\", 0), ("a=1,b!", 4), ("a>1", 0)],
)
def test_bad_field_selectors_name_the_position(text: str, position: int) -> None:
    with pytest.raises(ValueError, match=f"position {position}:"):
        parse_field_selector(text)


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        pytest.param("metadata.name!=a,", True, id="not that"),
        pytest.param("metadata.name!=web,", False, id="but that"),
        pytest.param("metadata.name=web,", True, id="the same again"),
        pytest.param("metadata.name=web,metadata.name=a,", False, id="two at once"),
        pytest.param("metadata.name=web,metadata.name!=a,status.phase=Running,", True, id="several fields"),
        pytest.param("metadata.name=web,metadata.name!=web,", False, id="contradiction"),
    ],
)
def test_many_terms_ask_each_field_once(text: str, matches: bool) -> None:
    asked: list[str] = []

    def field(name: str) -> str:
        asked.append(name)
        return FIELDS.get(name, "")

    assert parse_field_selector(text * 500).matches(field) is matches
    assert len(asked) == len(set(asked))


def test_field_queries_tell_what_they_need() -> None:
    query = parse_field_selector("metadata.name=a,status.phase!=b")
    assert query.fields == ("metadata.name", "status.phase")
    assert query.exact("metadata.name") == "a"
    assert query.exact("status.phase") is None
    assert not query.is_everything
    assert parse_field_selector("").is_everything


@given(st.lists(st.builds(FieldTerm, st.sampled_from(["a", "b.c"]), st.text(max_size=8), st.booleans()), max_size=3))
def test_field_queries_round_trip_through_text(terms: list[FieldTerm]) -> None:
    assert parse_field_selector(str(FieldQuery(tuple(terms)))) == FieldQuery(tuple(terms))
