"""Quantities: the canonical forms below are what Kubernetes' own parser gives for the same text."""

from __future__ import annotations

import contextlib
import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.objects.quantity import ZERO, Family, Quantity, as_kept, canonical

CANONICAL = [
    ("0", "0"), ("0.0", "0"), ("-0", "0"), ("00", "0"), ("0Ki", "0"), ("0e5", "0"),
    ("1", "1"), ("+1", "1"), ("-1", "-1"), ("1000m", "1"), ("0.5", "500m"), (".5", "500m"), ("5.", "5"), ("1.5", "1500m"),
    ("100m", "100m"), ("0.1", "100m"), ("0.001", "1m"), ("1u", "1u"), ("1000u", "1m"), ("1n", "1n"), ("1000n", "1u"),
    ("0.0000000001", "1n"), ("-0.1n", "-1n"), ("1.0000000001", "1000000001n"), ("12.125n", "13n"),
    ("1000", "1k"), ("1k", "1k"), ("1500", "1500"), ("1500k", "1500k"), ("1000k", "1M"), ("1000M", "1G"), ("1000G", "1T"),
    ("1000T", "1P"), ("1000P", "1E"), ("1.5M", "1500k"), ("-2.5G", "-2500M"), ("1E", "1E"),
    ("1Ki", "1Ki"), ("1024", "1024"), ("1024Ki", "1Mi"), ("1024Mi", "1Gi"), ("1024Gi", "1Ti"), ("1024Ti", "1Pi"),
    ("1024Pi", "1Ei"), ("1.5Gi", "1536Mi"), ("0.5Gi", "512Mi"), ("0.5Ki", "512"), ("1.5Ki", "1536"), ("0.001Ki", "1024m"),
    ("100.001Ki", "102401024m"), ("1000Ki", "1000Ki"), ("-1Mi", "-1Mi"), ("0.1Mi", "104857600m"), ("0.0001Ki", "102400u"),
    ("9Ei", "9223372036854775807"), ("-9Ei", "-9223372036854775807"), ("8Ei", "9223372036854775807"), ("7Ei", "7Ei"),
    ("1e3", "1e3"), ("1E3", "1e3"), ("12e6", "12e6"), ("1e2", "100"), ("1e1", "10"), ("1.5e3", "1500"), ("1e-1", "100e-3"),
    ("1e-9", "1e-9"), ("1e-12", "1e-9"), ("1e+3", "1e3"), ("1000e3", "1e6"), ("1e21", "1e21"), ("123e-3", "123e-3"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "form"), CANONICAL, ids=[text for text, _ in CANONICAL])
def test_canonical_form(text: str, form: str) -> None:
    assert canonical(text) == form


@pytest.mark.parametrize(
    "text",
    ["", " ", " 1", "1 ", "1\n", ".", "-", "+-1", "k", "e3", "Ki", "1i", "1K", "1ki", "1mi", "1.1.1", "1+1", "1e", "1e+",
     "1ee3", "0x10", "1_000", "١", "1e3k", "NaN", "inf", "1,5", "1e99", "1e999999", "9" * 200, "1e9999999999"],
)  # fmt: skip
def test_refused_text_is_named_with_the_way_out(text: str) -> None:
    with pytest.raises(ValueError, match="quantity") as caught:
        Quantity.parse(text)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("value", [True, None, [], {}, math.nan, math.inf, 10**40, b"1"])
def test_refused_values(value: object) -> None:
    with pytest.raises(ValueError, match="quantity"):
        Quantity.parse(value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "form"), [(0.5, "500m"), (1.0, "1"), (2, "2"), (1000, "1k"), (-3, "-3"), (1e-7, "100e-9"), (1e22, "10e21")]
)
def test_numbers_from_json(value: float, form: str) -> None:
    assert canonical(value) == form


@pytest.mark.parametrize(
    ("text", "value", "milli"),
    [("1", 1, 1000), ("1500m", 2, 1500), ("1n", 1, 1), ("0", 0, 0), ("1Ki", 1024, 1024000), ("-999m", -1, -999),
     ("-1n", -1, -1), ("1001u", 1, 2)],
)  # fmt: skip
def test_whole_and_milli_round_away_from_zero(text: str, value: int, milli: int) -> None:
    quantity = Quantity.parse(text)
    assert (quantity.value(), quantity.milli()) == (value, milli)


def test_sums_keep_the_family_of_what_was_there_first() -> None:
    assert str(Quantity.parse("1Gi") + Quantity.parse("512Mi")) == "1536Mi"
    assert str(Quantity.parse("1Gi") + Quantity.parse("1")) == "1073741825"
    assert str(ZERO + Quantity.parse("1Gi")) == "1Gi"
    assert str(sum([Quantity.parse("1Gi"), Quantity.parse("1Gi")], start=ZERO)) == "2Gi"
    assert str(Quantity.parse("1e3") + Quantity.parse("1")) == "1001"


def test_beyond_what_a_binary_suffix_may_say_text_is_decimal_and_still_exact() -> None:
    total = Quantity.parse("7Ei") + Quantity.parse("7Ei")
    assert Quantity.parse(str(total)) == total
    assert total.value() == 14 * 2**60


def test_comparison_and_hash_go_by_amount() -> None:
    assert Quantity.parse("1024Mi") == Quantity.parse("1Gi") == 2**30
    assert len({Quantity.parse("1"), Quantity.parse("1000m"), Quantity.parse("1e0")}) == 1
    assert hash(Quantity.parse("2")) == hash(2)
    assert Quantity.parse("1") < Quantity.parse("1001m") <= Quantity.parse("1.001")
    assert Quantity.parse("1") != "1"
    assert max(Quantity.parse("2"), Quantity.parse("1Ki")) == 1024


def test_other_types_do_not_mix() -> None:
    with pytest.raises(TypeError):
        Quantity.parse("1") + 0.5  # type: ignore[operator]
    with pytest.raises(TypeError):
        Quantity.parse("1") * True
    with pytest.raises(TypeError):
        _ = Quantity.parse("1") < "2"  # type: ignore[operator]


def test_scaled_rounds_away_from_zero() -> None:
    assert Quantity.parse("1").scaled(Fraction(1, 3)) == Quantity.parse("333333334n")
    assert Quantity.parse("-1").scaled(Fraction(1, 3)) == Quantity.parse("-333333334n")
    assert str(Quantity.parse("1Gi").scaled(Fraction(1, 2))) == "512Mi"
    assert str(Quantity.of(1536, Family.BINARY)) == "1536"
    assert str(Quantity.of(Fraction(3, 2))) == "1500m"
    assert str(Quantity.of_milli(250)) == "250m"
    assert str(Quantity.parse("2048").in_family(Family.BINARY)) == "2Ki"


def test_arithmetic_is_bounded() -> None:
    with pytest.raises(ValueError, match="out of range"):
        Quantity.parse("1e36") * 2


def test_is_immutable() -> None:
    with pytest.raises(AttributeError):
        Quantity.parse("1").nanos = 5  # type: ignore[misc]


quantities = st.builds(Quantity, st.integers(min_value=-(10**30), max_value=10**30), st.sampled_from(Family))
texts = st.builds(
    "{}{}{}{}".format,
    st.sampled_from(["", "+", "-"]),
    st.integers(0, 10**20),
    st.one_of(st.just(""), st.integers(0, 10**12).map(".{}".format)),
    st.sampled_from(["", "n", "u", "m", "k", "M", "G", "T", "Ki", "Mi", "Gi", "Ti", "e3", "E-3", "e+6", "e0"]),
)


@given(quantities)
def test_text_reads_back_as_the_same_amount(quantity: Quantity) -> None:
    assert Quantity.parse(str(quantity)) == quantity


@given(texts)
def test_canonical_form_is_a_fixed_point(text: str) -> None:
    form = canonical(text)
    assert canonical(form) == form
    assert "." not in form


@given(quantities, quantities)
def test_addition_is_exact(left: Quantity, right: Quantity) -> None:
    assert (left + right).fraction() == left.fraction() + right.fraction()
    assert (left - right) + right == left
    assert left + (-left) == ZERO


@given(quantities, quantities)
def test_order_is_that_of_the_amounts(left: Quantity, right: Quantity) -> None:
    assert (left < right) == (left.fraction() < right.fraction())
    assert (left == right) == (left.fraction() == right.fraction())


@given(st.text(max_size=20))
def test_any_text_parses_or_is_a_value_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert Quantity.parse(text).family in Family


@pytest.mark.parametrize(
    ("value", "listed", "alone"),
    [
        (0.5, "500m", "500m"),
        (2, "2", "2"),
        (1000, "1k", "1k"),
        (1024, "1024", "1024"),
        (2.0, "2", "2"),
        (0.00001, "1m", "10u"),
        ("0.0001", "1m", "100u"),
        ("-0.0001", "-1m", "-100u"),
        ("1024Mi", "1Gi", "1Gi"),
        ("1.5Gi", "1536Mi", "1536Mi"),
        ("12e5", "1200e3", "1200e3"),
        ("0Gi", "0", "0"),
        ("1000m", "1", "1"),
    ],
)
def test_how_kubernetes_keeps_it(value: object, listed: str, alone: str) -> None:
    assert (as_kept(value, is_listed=True), as_kept(value, is_listed=False)) == (listed, alone)
    assert as_kept(listed, is_listed=True) is listed


@pytest.mark.parametrize("value", ["", "1 Gi", "x", "1" * 200, 10**40, math.inf, math.nan, 1e300, True, None, [], {"a": 1}])
def test_what_is_no_quantity_is_kept_as_it_is(value: object) -> None:
    assert as_kept(value, is_listed=True) is value
