"""What is told by one look must be what the long way says: names, addresses, path elements, conditions that were kept."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.store.embedded.support import pod

from muster.objects import names
from muster.objects.catalog import CATALOG
from muster.objects.patch import shape
from muster.objects.patch.common import ABSENT, identity
from muster.objects.patch.shape import canonical_element, root_shape
from muster.objects.patch.typed import _compare, _compare_each
from muster.objects.rules.pods import is_ip
from muster.objects.rules.services import is_network
from muster.objects.status import Raw
from muster.objects.validation import validate_object

PODS = CATALOG.by_kind("", "Pod")

_letters = st.sampled_from("aZz09-_./ \n\r\0\x85é١ſ\u212a\u0130\u2028%")
"""Those that names have, and those that are alike in some way: ends of lines, digits elsewhere, letters that fold to ASCII."""
_runs = st.builds(
    lambda part, times, end: part * times + end,
    st.text(_letters, max_size=2),
    st.sampled_from([1, 7, 8, 15, 16, 31, 32, 63, 64, 126, 127, 253, 254]),
    st.text(_letters, max_size=2),
)
_names = st.text(_letters, max_size=20) | _runs | st.builds("{}/{}".format, _runs, _runs)


@pytest.mark.parametrize(
    "quick",
    [
        names.validate_label_name,
        names.validate_subdomain,
        names.validate_qualified_name,
        names.validate_label_value,
        names.validate_env_name,
        names.validate_port_name,
    ],
)
def test_names_are_judged_as_the_long_way_judges_them(quick: Callable[[str], list[str]]) -> None:
    slow: Callable[[str], list[str]] = quick.__wrapped__  # type: ignore[attr-defined]

    @given(_names)
    def check(name: str) -> None:
        expected = slow(name)
        assert quick(name) == expected
        assert quick(name) == expected, "the second time, too"

    check()


_octets = st.integers(0, 300).map(str) | st.sampled_from(["", "00", "01", "+1", "-1", " 1", "1 ", "1\n", "0x1", "1e1", "١"])
_addresses = st.lists(_octets, min_size=1, max_size=5).map(".".join) | st.text("0123456789abf:./%", max_size=12)
_lengths = _octets | st.integers(0, 130).map(str) | st.sampled_from(["08", "032", "255.0.0.0", "0.0.0.255", "8/", "/8"])


@given(_addresses, _lengths)
@example("1.2.3.4.", "32")
@example("1.2.3.4\n", "32\n")
def test_addresses_are_judged_as_the_library_judges_them(address: str, length: str) -> None:
    def is_fine(read: Callable[..., object], text: str, **options: bool) -> bool:
        try:
            read(text, **options)
        except ValueError:
            return False
        return True

    assert is_ip(address) is is_fine(ipaddress.ip_address, address)
    network = f"{address}/{length}"
    assert is_network(network) is is_fine(ipaddress.ip_network, network, strict=False)


_values = st.text(max_size=4) | st.text('ab<&>\x7f\\"{}: ', max_size=6)


@given(
    st.builds(lambda value: "v:" + identity(value), _values | st.integers() | st.booleans())
    | st.builds(lambda value: "k:" + identity(value), st.dictionaries(_values, _values, max_size=2))
    | st.builds(lambda prefix, rest: prefix + rest, st.sampled_from(["v:", "k:", "i:", ""]), _values)
    | st.builds('k:{{"{}":"{}"}}'.format, _values, _values)
    | st.builds('v:"{}"'.format, _values)
)
def test_path_elements_are_written_as_the_long_way_writes_them(element: str) -> None:
    def canonical() -> str:
        try:
            return canonical_element(element)
        except ValueError:
            return "refused"

    quick = canonical()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shape, "_PLAIN_ELEMENT", re.compile("(?!)"))
        assert canonical() == quick


_leaves = st.none() | st.booleans() | st.integers(-2, 2) | st.floats(-2, 2) | st.sampled_from(["", "a"])


@given(st.dictionaries(st.sampled_from("abc"), _leaves), st.dictionaries(st.sampled_from("abc"), _leaves))
def test_what_came_is_what_a_comparison_with_nothing_finds(old: Raw, new: Raw) -> None:
    below = root_shape(None)
    written, removed = _compare_each(old, new, below.members.__getitem__)
    came: Raw = {}
    went: Raw = {}
    for key in {**old, **new}:
        element, inner = below.members[key]
        one, other = _compare(old.get(key, ABSENT), new.get(key, ABSENT), inner)
        came |= {} if one is None else {element: one}
        went |= {} if other is None else {element: other}
    assert (written or {}, removed or {}) == (came, went)


# --- what an update of a pod may change, against lists gone through one by one -----------------------------------------------

_tolerations = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "key": st.sampled_from(["", "a", "b"]),
            "operator": st.sampled_from(["Exists", "Equal"]),
            "effect": st.just("NoExecute"),
            "tolerationSeconds": st.integers(0, 2),
        },
    ),
    max_size=3,
)


def _kept(toleration: Raw) -> Raw:
    return {key: value for key, value in toleration.items() if key != "tolerationSeconds" and value != ""}


@given(_tolerations, _tolerations)
def test_tolerations_may_only_be_added(before: list[Raw], after: list[Raw]) -> None:
    old, new = pod("p"), pod("p")
    old["spec"]["tolerations"], new["spec"]["tolerations"] = before, after
    causes = validate_object(PODS, new, old)
    is_missing = any(_kept(one) not in [_kept(other) for other in after] for one in before)
    assert any("may not be changed or removed" in cause.message for cause in causes) is is_missing


_conditions = st.lists(
    st.fixed_dictionaries({"key": st.sampled_from("ab"), "operator": st.just("In"), "values": st.lists(st.sampled_from("xy"))}),
    max_size=2,
)
_terms = st.lists(st.fixed_dictionaries({}, optional={"matchExpressions": _conditions, "matchFields": _conditions}), max_size=2)


def _gated(terms: Any) -> Raw:
    raw = pod("p")
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    raw["spec"] |= {"schedulingGates": [{"name": "a.b/c"}], "affinity": {"nodeAffinity": required}}
    return raw


@given(_terms, _terms)
def test_a_gated_pod_may_only_be_narrowed(before: list[Raw], after: list[Raw]) -> None:
    causes = validate_object(PODS, _gated(after), _gated(before))
    words = ("matchExpressions", "matchFields")
    is_narrower = not before or (
        len(before) == len(after)
        and all(
            one in new.get(word, [])
            for new, old in zip(after, before, strict=True)
            for word in words
            for one in old.get(word, [])
        )
    )
    is_refused = any(cause.field == "spec" and cause.reason == "FieldValueForbidden" for cause in causes)
    assert is_refused is (before != after and not is_narrower), causes


@pytest.mark.parametrize("wrong", [5, True, "text", {"a": "b"}, [5], [["a"]], [None]])
def test_terms_that_are_no_terms_are_left_to_the_schema(wrong: Any) -> None:
    """It says what is wrong; until then nobody stumbles over it."""
    good = [{"key": "a", "operator": "In", "values": ["x"]}]
    for before, after in ((good, wrong), (wrong, good), (wrong, wrong)):
        validate_object(PODS, _gated([{"matchExpressions": after}]), _gated([{"matchExpressions": before}]))
        validate_object(PODS, _gated(after), _gated([{"matchExpressions": before}]))
