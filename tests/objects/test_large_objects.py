"""Objects of a megabyte: what is done for each of their hundred thousand parts is counted, and not done more often than that.

No test asserts a time: each counts the operation that once was repeated, or compares a quick way with the plain one.
"""

from __future__ import annotations

import ipaddress
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.objects import names, structural_check, structural_definition, validation
from muster.objects.catalog import CATALOG
from muster.objects.patch.shape import canonical_element, root_shape
from muster.objects.patch.typed import collapse_atomic, expand_atomic
from muster.objects.rules import pods
from muster.objects.rules.pods import is_ip
from muster.objects.rules.report import CAUSES_KEPT_MAX, Enough, Report
from muster.objects.rules.services import is_network
from muster.objects.status import Raw, shown
from muster.objects.structural import CAUSES_MAX, Structural
from muster.objects.structural_shape import UNKNOWN_MAX
from muster.objects.validation import validate_object

POD = CATALOG.by_kind("", "Pod")
CONFIG_MAP = CATALOG.by_kind("", "ConfigMap")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any, str], Counter[str]]:
    """Count the calls of a function of a module, under its name."""
    counts: Counter[str] = Counter()

    def count(module: Any, name: str) -> Counter[str]:
        plain = getattr(module, name)

        def counted(*args: Any, **options: Any) -> Any:
            counts[name] += 1
            return plain(*args, **options)

        monkeypatch.setattr(module, name, counted)
        return counts

    return count


# -- errors: no more are put into words than are told -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        pytest.param({"type": "array", "items": {"type": "integer"}}, ["x"] * 20_000, id="items"),
        pytest.param(
            {"type": "object", "additionalProperties": {"type": "integer"}},
            {f"k{n}": "x" for n in range(20_000)},
            id="members",
        ),
        pytest.param(
            {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"}, ["x"] * 20_000, id="duplicates"
        ),
    ],
)
def test_a_schema_stops_when_it_has_found_enough(schema: Raw, value: Any, calls: Any) -> None:
    counts = calls(structural_check, "shown")
    found = Structural({"type": "object", "properties": {"f": schema}}).validate({"f": value})
    assert len(found) == CAUSES_MAX
    assert counts["shown"] < 300


def test_rules_stop_when_they_have_found_enough() -> None:
    looked_at = 0

    class Labels(dict[str, str]):
        def __iter__(self) -> Any:
            nonlocal looked_at
            for key in super().__iter__():
                looked_at += 1
                yield key

    labels = Labels({f"-{n}": "x" for n in range(20_000)})
    found = validate_object(CONFIG_MAP, {"metadata": {"name": "m", "labels": labels}})
    assert [cause.message[:20] for cause in found] == [f'Invalid value: "-{n}": '[:20] for n in range(validation.CAUSES_MAX)]
    assert looked_at <= validation.CAUSES_MAX + 1


def test_a_report_that_is_told_in_part_ends_there_and_any_other_keeps_a_bounded_number() -> None:
    report = Report(told_max=2)
    report.required("a")
    with pytest.raises(Enough):
        report.invalid("b", 1, "is wrong")
    assert [cause.field for cause in report.causes] == ["a", "b"]
    other = Report()
    for number in range(2 * CAUSES_KEPT_MAX):
        other.invalid(f"f{number}", number, "is wrong")
    assert len(other.causes) == CAUSES_KEPT_MAX


def test_unknown_fields_go_and_some_of_them_are_named() -> None:
    schema = Structural({"type": "object", "properties": {"l": {"type": "array", "items": {"type": "object"}}}})
    kept, unknown = schema.prune({"l": [{"u": 1} for _ in range(5_000)], **{f"u{n}": 1 for n in range(5_000)}})
    assert kept == {"l": [{}] * 5_000}
    assert unknown == [f"l[{n}].u" for n in range(UNKNOWN_MAX)]


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=100),
        lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(max_size=30), inner, max_size=10),
        max_leaves=30,
    )
)
def test_what_is_shown_is_the_beginning_of_it_all(value: Any) -> None:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    assert shown(value) == (text if len(text) <= 80 else f"{text[:77]}...")


def test_no_more_of_a_value_is_put_into_words_than_is_shown() -> None:
    class Tripwire(list[Any]):
        def __iter__(self) -> Any:
            yield from range(100)
            raise AssertionError("looked at more than is shown")

    assert shown(Tripwire(range(1_000_000))).startswith("[0,1,2")


# -- schemas of definitions ---------------------------------------------------------------------------------------------------


def test_defaults_at_every_level_do_not_make_the_whole_schema_ready_for_each(calls: Any) -> None:
    levels, width = 40, 300
    node: Raw = {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(width)}, "default": {"p0": "x"}}
    for _ in range(levels):
        node = {"type": "object", "properties": {"n": node}, "default": {}}
    counts = calls(structural_check, "_type_checks")
    assert Structural.validate_definition({"type": "object", "properties": {"spec": node}}) == []
    assert counts["_type_checks"] < 3 * levels + width


@pytest.mark.parametrize(
    ("schema", "fields"),
    [
        pytest.param(
            {"type": "object", "default": {"a": 1}, "properties": {"a": {"type": "string"}}}, ["default.a"], id="type"
        ),
        pytest.param({"type": "object", "default": {"b": 1}, "properties": {"a": {"type": "string"}}}, ["default.b"], id="new"),
        pytest.param(
            {"type": "object", "default": {}, "properties": {"a": {"type": "string"}}, "required": ["a"]},
            ["default.a"],
            id="required",
        ),
        pytest.param(
            {
                "type": "array",
                "default": [{"a": "x"}, {"a": 1}],
                "items": {"type": "object", "properties": {"a": {"type": "string"}}},
            },
            ["default[1].a"],
            id="items",
        ),
        pytest.param(
            {"type": "object", "default": {"k": 1}, "additionalProperties": {"type": "string"}}, ["default.k"], id="map"
        ),
    ],
)
def test_defaults_are_still_held_to_their_schema(schema: Raw, fields: list[str]) -> None:
    found = Structural.validate_definition({"type": "object", "properties": {"f": schema}}, "s")
    assert [cause.field for cause in found] == [f"s.properties[f].{field}" for field in fields]


def test_a_bad_definition_is_gone_through_as_far_as_is_told(calls: Any) -> None:
    counts = calls(structural_definition, "shown")
    bad = {"type": "object", "properties": {f"p{n}": {"type": "x"} for n in range(20_000)}}
    assert len(Structural.validate_definition(bad)) == CAUSES_MAX
    assert counts["shown"] <= CAUSES_MAX


# -- quick ways say what the plain ones say -----------------------------------------------------------------------------------

_QUICK = [
    names.validate_label_name,
    names.validate_subdomain,
    names.validate_qualified_name,
    names.validate_label_value,
    names.validate_env_name,
    names.validate_port_name,
]
_name_texts = (
    st.text(alphabet="aZ0-._/ \n\u00e4", max_size=12)
    | st.from_regex(r"[a-z]{1,3}(\.[a-z]{0,2}){0,3}/?[A-Za-z0-9._-]{0,4}\n?", fullmatch=True)
    | st.integers(60, 260).map(lambda count: "a" * count)
    | st.tuples(st.integers(250, 255), st.integers(60, 65)).map(lambda both: "a" * both[0] + "/" + "b" * both[1])
)


@pytest.mark.parametrize("validate", _QUICK, ids=lambda one: one.__name__)
@given(text=_name_texts)
def test_names_are_judged_alike(validate: Any, text: str) -> None:
    assert validate(text) == validate.__wrapped__(text)
    assert validate(text) == validate.__wrapped__(text), "nor does it matter that it was seen before"


_addresses = st.from_regex(r"[0-9]{1,3}(\.[0-9]{1,3}){2,4}\n?(/[0-9]{1,3})?", fullmatch=True) | st.ip_addresses().map(str)


@given(_addresses)
def test_addresses_are_judged_as_the_library_does(text: str) -> None:
    def accepted(read: Callable[[str], object]) -> bool:
        try:
            read(text)
        except ValueError:
            return False
        return True

    assert is_ip(text) == accepted(ipaddress.ip_address)
    assert is_network(text) == ("/" in text and accepted(lambda value: ipaddress.ip_network(value, strict=False)))


@pytest.mark.parametrize(
    ("element", "canonical"),
    [
        ('v:"a"', 'v:"a"'),
        ('v: "a"', 'v:"a"'),
        ('v:"\\u0061"', 'v:"a"'),
        ('v:"\u00e4"', 'v:"\u00e4"'),
        ('k:{"name":"x"}', 'k:{"name":"x"}'),
        ('k:{"name": "x"}', 'k:{"name":"x"}'),
        ('k:{"b":"x","a":1}', 'k:{"a":1,"b":"x"}'),
        ("v:1.0", "v:1"),
    ],
)
def test_elements_have_one_spelling(element: str, canonical: str) -> None:
    assert canonical_element(element) == canonical


# -- pods ---------------------------------------------------------------------------------------------------------------------


def _pod(**spec: Any) -> Raw:
    return {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}], **spec}}


def test_tolerations_are_not_compared_each_with_each(calls: Any) -> None:
    count = 2_000
    before = [{"key": f"k{n}", "operator": "Exists"} for n in range(count)]
    counts = calls(pods, "_canonical")
    assert validate_object(POD, _pod(tolerations=[*before, {"operator": "Exists"}]), _pod(tolerations=before)) == []
    assert 0 < counts["_canonical"] <= 3 * count
    (cause,) = validate_object(POD, _pod(tolerations=[*before[1:], {"operator": "Exists"}]), _pod(tolerations=before))
    assert cause.field == "spec.tolerations"


def test_conditions_of_a_gated_pod_are_not_compared_each_with_each(calls: Any) -> None:
    def gated(count: int) -> Raw:
        conditions = [{"key": f"k{n}", "operator": "Exists"} for n in range(count)]
        required = {"nodeSelectorTerms": [{"matchExpressions": conditions}]}
        affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
        return _pod(affinity=affinity, schedulingGates=[{"name": "a.b/c"}])

    counts = calls(pods, "_canonical")
    assert validate_object(POD, gated(2_001), gated(2_000)) == []
    assert 0 < counts["_canonical"] <= 3 * 2_001
    assert [cause.field for cause in validate_object(POD, gated(1_999), gated(2_000))] == ["spec"]


def test_empty_terms_are_right_and_something_must_be_there() -> None:
    def with_terms(terms: list[Any]) -> list[str]:
        required = {"nodeSelectorTerms": terms}
        affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
        return [cause.field for cause in validate_object(POD, _pod(affinity=affinity))]

    where = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
    assert with_terms([{}, {}]) == []
    assert with_terms([]) == [where]
    bad = {"matchExpressions": [{"key": "-", "operator": "Exists"}]}
    assert with_terms([{}, bad]) == [f"{where}[1].matchExpressions[0].key"]


# -- sets of paths ------------------------------------------------------------------------------------------------------------


def test_sets_written_under_another_schema_are_made_to_fit_whatever_their_size() -> None:
    count = 20_000  # copied for each path, this would not end
    listed = {"type": "array", "x-kubernetes-list-type": "atomic", "items": {"type": "string"}}
    coarse = root_shape({"type": "object", "properties": {"m": {"type": "object", "additionalProperties": listed}}})
    fine_lists = {**listed, "x-kubernetes-list-type": "set"}
    fine = root_shape({"type": "object", "properties": {"m": {"type": "object", "additionalProperties": fine_lists}}})
    keys = sorted(f"f:k{n}" for n in range(count))
    finer: Raw = {"f:m": {key: {".": {}, 'v:"a"': {}} for key in keys}}
    coarser: Raw = {"f:m": {key: {} for key in keys}}
    assert collapse_atomic(finer, coarse) == coarser
    assert expand_atomic(coarser, fine, {"m": {key[2:]: ["a"] for key in keys}}) == finer
    assert len(finer["f:m"]) == len(coarser["f:m"]) == count, "neither was changed"
