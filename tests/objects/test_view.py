from __future__ import annotations

from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.counts import examples

from muster.objects.status import Raw
from muster.objects.view import View, copy_json, keyed, merge_patch, to_raw, view_of, without_nulls, write_back


class Port(View):
    number: int
    name: str = ""


class Part(View):
    name: str
    image: str = ""
    ports: list[Port] = msgspec.field(default_factory=list)
    env: dict[str, str] = msgspec.field(default_factory=dict)


class Inner(View):
    parts: Annotated[list[Part], keyed("name")] = msgspec.field(default_factory=list)
    words: list[str] = msgspec.field(default_factory=list)
    by_name: dict[str, Port] = msgspec.field(default_factory=dict)
    anything: Any = None
    count: int | None = None
    is_on: bool = False


class Whole(View):
    spec: Inner = msgspec.field(default_factory=Inner)
    status: Inner | None = None
    note: str = ""


names = st.sampled_from(["a", "b", "c", "d"])
small_json: st.SearchStrategy[Any] = st.recursive(
    st.booleans() | st.integers(-3, 3) | st.text(alphabet="xy", max_size=2),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(names, inner, max_size=2),
    max_leaves=4,
)
ports = st.builds(Port, number=st.integers(1, 3), name=names)
parts = st.builds(
    Part,
    name=names,
    image=names,
    ports=st.lists(ports, max_size=3),
    env=st.dictionaries(names, st.text(alphabet="xy", max_size=1)),
)
inners = st.builds(
    Inner,
    parts=st.lists(parts, max_size=4, unique_by=lambda p: p.name),
    words=st.lists(names, max_size=3),
    by_name=st.dictionaries(names, ports, max_size=3),
    anything=st.none() | small_json,
    count=st.none() | st.integers(0, 3),
    is_on=st.booleans(),
)
wholes = st.builds(Whole, spec=inners, status=st.none() | inners, note=names | st.just(""))


def with_unknown(value: Any, draw: st.DrawFn, counter: list[int]) -> Any:
    """`value` (JSON of a view) with a distinct unknown member put into some of its objects, at any depth."""
    if isinstance(value, list):
        return [with_unknown(v, draw, counter) for v in value]
    if not isinstance(value, dict):
        return value
    result = {k: v if k in {"anything", "env", "words"} else with_unknown(v, draw, counter) for k, v in value.items()}
    if draw(st.booleans()) and "byName" not in value.get("_", ()):
        counter[0] += 1
        result["unknown"] = {"id": counter[0]}
    return result


@st.composite
def raw_objects(draw: st.DrawFn) -> Raw:
    plain = to_raw(draw(wholes))
    counter = [0]
    spec_maps = [part.pop("byName", None) for part in (plain.get("spec", {}), plain.get("status", {}))]
    raw = with_unknown(plain, draw, counter)
    for part, by_name in zip(("spec", "status"), spec_maps, strict=True):
        if by_name is not None:  # keys of a map are data, so the unknown members go into its values only
            raw[part]["byName"] = {k: with_unknown(v, draw, counter) for k, v in by_name.items()}
    assert isinstance(raw, dict)
    return raw


def apply_merge(target: Any, patch: Any) -> Any:
    """RFC 7396, as the standard has it."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = apply_merge(result.get(key), value)
    return result


@given(raw=raw_objects(), after=wholes)
@settings(max_examples=examples(100))
def test_writing_back_shows_the_new_view(raw: Raw, after: Whole) -> None:
    kept = copy_json(raw)
    result = write_back(raw, view_of(Whole, raw), after)
    assert view_of(Whole, result) == after
    assert raw == kept


@given(raw=raw_objects(), after=wholes)
@settings(max_examples=examples(100))
def test_merge_patch_leads_to_the_same_object(raw: Raw, after: Whole) -> None:
    before = view_of(Whole, raw)
    assert apply_merge(raw, merge_patch(raw, before, after)) == write_back(raw, before, after)


@given(raw=raw_objects())
def test_nothing_changed_is_nothing_written(raw: Raw) -> None:
    view = view_of(Whole, raw)
    assert merge_patch(raw, view, view_of(Whole, raw)) == {}
    assert write_back(raw, view, view_of(Whole, raw)) == raw


def unknown_by_part(inner: Raw) -> dict[str, Any]:
    return {part["name"]: part.get("unknown") for part in inner.get("parts", [])}


@given(raw=raw_objects(), after=inners)
@settings(max_examples=examples(100))
def test_unknown_members_stay_with_their_keyed_element(raw: Raw, after: Inner) -> None:
    before = view_of(Whole, raw)
    result = write_back(raw, before, msgspec.structs.replace(before, spec=after))
    old = unknown_by_part(raw.get("spec", {}))
    new = unknown_by_part(result["spec"])
    assert new == {name: old.get(name) for name in new}
    assert result.get("unknown") == raw.get("unknown")
    assert result["spec"].get("unknown") == raw.get("spec", {}).get("unknown")


@given(
    marks=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    data=st.data(),
)
def test_editing_one_element_in_place_keeps_all_unknown_members(marks: list[int], data: st.DataObject) -> None:
    raw = {"spec": {"parts": [{"name": "a", "ports": [{"number": n, "unknown": i} for i, n in enumerate(marks)]}]}}
    before = view_of(Whole, raw)
    at = data.draw(st.integers(0, len(marks) - 1))
    edited = [msgspec.structs.replace(p, number=77) if i == at else p for i, p in enumerate(before.spec.parts[0].ports)]
    part = msgspec.structs.replace(before.spec.parts[0], ports=edited)
    result = write_back(raw, before, Whole(spec=Inner(parts=[part])))
    ports_now = result["spec"]["parts"][0]["ports"]
    assert {p["unknown"] for p in ports_now} == set(range(len(marks)))
    assert [p["number"] for p in ports_now] == [77 if i == at else n for i, n in enumerate(marks)]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        pytest.param([1, 2], [3, 1, 2], [None, "u1", "u2"], id="inserted at the front"),
        pytest.param([1, 2, 3], [2, 3], ["u2", "u3"], id="first removed"),
        pytest.param([1, 2, 3], [2, 9], ["u2", "u3"], id="first removed, last edited"),
        pytest.param([1, 2], [2, 1], ["u2", "u1"], id="reordered"),
        pytest.param([1, 2, 3], [1, 9, 3], ["u1", "u2", "u3"], id="edited in the middle"),
        pytest.param([1], [8, 9], ["u1", None], id="all changed, one more"),
        pytest.param([1, 1], [1, 1, 1], ["u1", "u1", None], id="equal elements"),
    ],
)
def test_elements_without_keys_are_found_again(before: list[int], after: list[int], expected: list[str | None]) -> None:
    raw = {"spec": {"parts": [{"name": "a", "ports": [{"number": n, "u": f"u{n}"} for n in before]}]}}
    view = view_of(Whole, raw)
    changed = Whole(spec=Inner(parts=[Part(name="a", ports=[Port(number=n) for n in after])]))
    ports_now = write_back(raw, view, changed)["spec"]["parts"][0]["ports"]
    assert [p.get("u") for p in ports_now] == expected


def test_nulls_in_lists_do_not_shift_elements() -> None:
    raw = {"spec": {"parts": [None, {"name": "a", "u": 1}], "count": None}, "note": None}
    before = view_of(Whole, raw)
    after = msgspec.structs.replace(before, spec=msgspec.structs.replace(before.spec, parts=[Part(name="a", image="i")]))
    assert write_back(raw, before, after)["spec"]["parts"] == [{"name": "a", "u": 1, "image": "i"}]


def test_a_default_is_written_as_absence() -> None:
    raw = {"note": "x", "spec": {"isOn": True, "count": 2, "u": 1}}
    assert merge_patch(raw, view_of(Whole, raw), Whole()) == {"note": None, "spec": {"isOn": None, "count": None}}


def test_removing_an_optional_part_removes_it_whole() -> None:
    raw = {"spec": {}, "status": {"isOn": True, "u": 1}}
    before = view_of(Whole, raw)
    assert write_back(raw, before, msgspec.structs.replace(before, status=None)) == {"spec": {}}


def test_view_of_names_the_path_that_does_not_fit() -> None:
    with pytest.raises(msgspec.ValidationError, match=r"\$\.spec\.parts\[0\]\.name"):
        view_of(Whole, b'{"spec":{"parts":[{"name":3}]}}')


def test_without_nulls() -> None:
    assert without_nulls({"a": None, "b": [None, {"c": None, "d": 0}]}) == {"b": [{"d": 0}]}
