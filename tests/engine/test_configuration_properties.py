"""Whatever goes into the configuration, it is read or refused; what is in force can be written out and read again."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from muster.engine.configuration import (
    API_VERSIONS,
    Configuration,
    ConfigurationInvalid,
    load,
    read,
)
from muster.engine.plugin_lists import KEYS
from muster.engine.profile import POINTS
from tests.engine.configuring import HEAD, OURS, REGISTRY, of

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=12,
)
names = st.sampled_from(
    [*OURS, "NodeResourcesFit", "NodeResourcesMostAllocated", "Coscheduling", "EBSLimits", "Nobody", "*", ""]
)
entries = st.lists(st.fixed_dictionaries({"name": names}, optional={"weight": st.integers(-1, 50) | json_values}), max_size=4)
sets = st.fixed_dictionaries({}, optional={"enabled": entries | json_values, "disabled": entries | json_values})
point_sets = st.dictionaries(st.sampled_from(["multiPoint", *KEYS]), sets, max_size=4)
arguments = st.fixed_dictionaries({"name": names, "args": st.dictionaries(st.sampled_from(["howMany", "kind"]), json_values)})
profiles = st.fixed_dictionaries(
    {},
    optional={
        "schedulerName": st.sampled_from(["a", "b", "muster-scheduler"]) | json_values,
        "aliases": json_values,
        "plugins": point_sets | json_values,
        "pluginConfig": st.lists(arguments, max_size=2) | json_values,
        "shadow": json_values,
    },
)
documents = st.fixed_dictionaries(
    {"apiVersion": st.sampled_from(API_VERSIONS), "kind": st.just(HEAD["kind"])},
    optional={
        "profiles": st.lists(profiles, max_size=3) | json_values,
        "featureGates": json_values,
        "limits": json_values,
        "extenders": json_values,
        "parallelism": json_values,
    },
)


def read_or_refused(value: Any) -> Configuration | None:
    found: Configuration | None = None
    errors: tuple[str, ...] = ()
    try:
        found = read(value, REGISTRY)
    except ConfigurationInvalid as error:
        errors = error.errors
    assert found is not None or (errors and all(errors))
    return found


@given(json_values)
def test_any_json_is_read_or_refused(value: Any) -> None:
    read_or_refused(value)


@given(documents)
def test_any_document_is_read_or_refused_and_left_alone(value: Any) -> None:
    before = copy.deepcopy(value)
    found = read_or_refused(value)
    assert value == before
    if found is not None:
        assert read(found.raw, REGISTRY) == found


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    errors: tuple[str, ...] = ("none",)
    try:
        load(text, REGISTRY)
    except ConfigurationInvalid as error:
        errors = error.errors
    assert errors


good_names = st.sampled_from(["NodeName", "TaintToleration", "Bandwidth", "Mine", "NodeResourcesFit"])
good_sets = st.builds(
    lambda on, off, star: {
        "enabled": [{"name": n, "weight": w} for n, w in on.items()],
        "disabled": [{"name": n} for n in sorted(off)] + ([{"name": "*"}] if star else []),
    },
    st.dictionaries(good_names, st.integers(0, 100), max_size=4),
    st.sets(good_names, max_size=3),
    st.booleans(),
)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(["multiPoint", *KEYS]), good_sets, max_size=5), st.booleans())
def test_what_is_in_force_can_be_written_out_in_full_and_read_again(points: Any, is_shadow: bool) -> None:
    found = of({"schedulerName": "x", "plugins": points, "shadow": is_shadow})
    again = read(found.effective(), REGISTRY)
    assert again.profiles == found.profiles
    assert (again.gates, again.limits) == (found.gates, found.limits)
    [profile] = found.build(REGISTRY)
    assert set(profile.at) == set(POINTS)
    for key, ours in KEYS.items():
        said = points.get(key, {})
        for point in ours:
            names_there = found.profiles[0].points[point]
            assert len(set(names_there)) == len(names_there)
            assert {e["name"] for e in said.get("enabled", ())} <= set(names_there)
