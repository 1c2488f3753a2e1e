"""Formulas on columns: the same as Python's own arithmetic, and never a fault."""

from __future__ import annotations

import math
import os
import re
import tracemalloc
from collections.abc import Callable, Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.engine.columns import Array
from muster.objects.formula import FUNCTIONS
from muster.policy.formula import BLOCK_ROWS, FormulaError, compile_formula

NAMES = ("a", "b", "c")
SOAK = bool(os.environ.get("MUSTER_SOAK"))
pytestmark = pytest.mark.timeout(3_600 if SOAK else 300)


def one(text: str, **values: float) -> float:
    columns = {name: np.array([float(value)]) for name, value in values.items()}
    return float(compile_formula(text, columns).evaluate(columns)[0])


@pytest.mark.parametrize(
    ("text", "result"),
    [
        pytest.param("1 + 2 * 3", 7, id="product first"),
        pytest.param("(1 + 2) * 3", 9, id="parentheses"),
        pytest.param("-2 ** 2", -4, id="power before sign"),
        pytest.param("2 ** -1", 0.5, id="sign in an exponent"),
        pytest.param("2 ** 3 ** 2", 512, id="power from the right"),
        pytest.param("10 - 4 - 3", 3, id="minus from the left"),
        pytest.param("7 // 2 + 7 % 4", 6, id="whole division and rest"),
        pytest.param("-7 // 2", -4, id="down, not towards zero"),
        pytest.param("-7 % 3", 2, id="rest has the divisor's sign"),
        pytest.param("1 < 2 < 3", 1, id="chain"),
        pytest.param("1 < 3 < 2", 0, id="broken chain"),
        pytest.param("3 > 2 == 2", 1, id="chain of two kinds"),
        pytest.param("not 0 and 2", 1, id="and gives 1"),
        pytest.param("0 or 3", 1, id="or gives 1"),
        pytest.param("not 1 == 2", 1, id="not after comparison"),
        pytest.param("1 or 0 and 0", 1, id="and before or"),
        pytest.param("5 if 1 else 6", 5, id="then"),
        pytest.param("5 if 0 else 6 if 0 else 7", 7, id="otherwise, from the right"),
        pytest.param("where(1 > 2, 3, 4)", 4, id="where"),
        pytest.param("min(3, 1, 2) + max(3, 1, 2)", 4, id="min and max"),
        pytest.param("clip(5, 0, 1) + clip(-5, 0, 1)", 1, id="clip"),
        pytest.param("abs(-3) + sign(-3) + sign(0)", 2, id="abs and sign"),
        pytest.param("floor(1.5) + ceil(1.5) + round(2.5)", 5, id="rounding"),
        pytest.param("step(0) + step(1) + step(-1)", 2, id="step"),
        pytest.param("sqrt(9) + log(exp(2)) + log2(8) + log10(100) + log1p(0)", 10, id="roots and logarithms"),
        pytest.param("tanh(0)", 0, id="tanh"),
        pytest.param("isnan(0 / 0) + isnan(1)", 1, id="isnan"),
        pytest.param("1_000 + .5 + 1. + 1e3", 2001.5, id="numbers"),
        pytest.param("1\n+\t2", 3, id="lines"),
        pytest.param("+3", 3, id="plus sign"),
        pytest.param("1 / 0", math.inf, id="by zero"),
        pytest.param("-1 / 0", -math.inf, id="minus by zero"),
        pytest.param("1e308 * 10", math.inf, id="overflow"),
        pytest.param("10 ** 400", math.inf, id="power overflow"),
        pytest.param("9 ** 9 ** 9 ** 9", math.inf, id="tower"),
        pytest.param("exp(1000)", math.inf, id="exp overflow"),
        pytest.param("log(0)", -math.inf, id="log of zero"),
        pytest.param("0 / 0", math.nan, id="nothing by nothing"),
        pytest.param("(-8) ** 0.5", math.nan, id="root of a negative power"),
        pytest.param("sqrt(-1)", math.nan, id="root of a negative"),
        pytest.param("5 % 0", math.nan, id="rest of zero"),
        pytest.param("max(0 / 0, 1)", math.nan, id="NaN is kept by max"),
        pytest.param("(0 / 0) == (0 / 0)", 0, id="NaN equals nothing"),
        pytest.param("3 if 0 / 0 > 1 else 4", 4, id="NaN is not larger"),
        pytest.param("1 / max(0, -0)", math.inf, id="the larger of both zeros is 0"),
        pytest.param("1 / max(-0, 0)", math.inf, id="in any order"),
        pytest.param("1 / min(-0, 0)", math.inf, id="the smaller too"),
        pytest.param("1 / min(0, -0)", math.inf, id="the smaller too, in any order"),
        pytest.param("1 / clip(-0, 0, 1)", math.inf, id="a bound of 0 is 0"),
        pytest.param("1 / sign(-0)", math.inf, id="the sign of both zeros is 0"),
        pytest.param("log(0) ** 0.5", math.inf, id="a power of minus infinity"),
        pytest.param("1 / (-0) ** 0.5", math.inf, id="a power of -0"),
    ],
)
def test_values(text: str, result: float) -> None:
    """Folded at once, and the same from a column."""
    assert one(text) == pytest.approx(result, nan_ok=True)
    assert one(f"{text} if zero == 0 else 0" if "if" not in text else text, zero=0) == pytest.approx(result, nan_ok=True)


def test_every_function_is_there() -> None:
    for name, (fewest, _) in FUNCTIONS.items():
        assert np.isfinite(one(f"{name}({', '.join(['a'] * fewest)})", a=0.5)), name


def test_columns_longer_than_a_block() -> None:
    a = np.arange(BLOCK_ROWS * 2 + 3, dtype=np.float64)
    assert np.array_equal(compile_formula("a * 2 + 1", ("a",)).evaluate({"a": a}), a * 2 + 1)


def test_no_rows_and_no_columns() -> None:
    assert compile_formula("a + 1", ("a",)).evaluate({"a": np.zeros(0)}).shape == (0,)
    assert compile_formula("7", ()).evaluate({}, 3).tolist() == [7, 7, 7]


def test_inputs_are_left_alone() -> None:
    a = np.array([1.0, 2.0])
    result = compile_formula("a", ("a",)).evaluate({"a": a})
    result += 1
    assert a.tolist() == [1, 2]


def test_formulas_of_one_text_are_equal() -> None:
    assert compile_formula("a + 1", NAMES) == compile_formula("a + 1", ("a",))
    assert len({compile_formula("a", NAMES), compile_formula("a", NAMES), compile_formula("b", NAMES)}) == 2


def test_memory_does_not_grow_with_the_rows() -> None:
    """The largest formula, on many rows: beside the result there is a block of each live step, no more."""
    text = "+".join(f"a*{n}" for n in range(120))
    formula, a = compile_formula(text, ("a",)), np.ones(100 * BLOCK_ROWS)
    tracemalloc.start()
    try:
        formula.evaluate({"a": a})
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < a.nbytes + 8 * BLOCK_ROWS * 8


# -- the same as Python -----------------------------------------------------------------------------------------------------


class Number(float):
    """Python's own arithmetic, which stops where IEEE 754 goes on, made to go on. Comparisons give 1 or 0."""

    def __add__(self, other: float) -> Number:
        return Number(float(self) + float(other))

    def __sub__(self, other: float) -> Number:
        return Number(float(self) - float(other))

    def __mul__(self, other: float) -> Number:
        return Number(float(self) * float(other))

    def __neg__(self) -> Number:
        return Number(-float(self))

    def __truediv__(self, other: float) -> Number:
        return Number(float(self) / float(other) if other else _by_zero(self, other))

    def __floordiv__(self, other: float) -> Number:
        return Number(float(self) // float(other) if other else _by_zero(self, other))

    def __mod__(self, other: float) -> Number:
        return Number(float(self) % float(other) if other else math.nan)

    def __pow__(self, other: float, modulus: None = None) -> Number:
        try:
            result = float(self) ** float(other)
        except ZeroDivisionError:
            return Number(math.copysign(math.inf, self) if other % 2 == 1 else math.inf)
        except OverflowError:  # also of what would be a complex number
            rest = float(other) % 2 if float(self) < 0 else 0.0
            return Number({0.0: math.inf, 1.0: -math.inf}.get(rest, math.nan))
        return Number(math.nan if isinstance(result, complex) else result)

    def __lt__(self, other: float) -> Number:  # type: ignore[override, misc]
        return Number(float(self) < float(other))

    def __le__(self, other: float) -> Number:  # type: ignore[override, misc]
        return Number(float(self) <= float(other))

    def __eq__(self, other: object) -> Number:  # type: ignore[override]
        return Number(float(self) == other)

    def __hash__(self) -> int:
        return hash(float(self))


def _by_zero(value: float, zero: float) -> float:
    return math.nan if value == 0 or math.isnan(value) else math.copysign(math.inf, value) * math.copysign(1, zero)


def _guarded(function: Callable[..., float]) -> Callable[..., Number]:
    """Infinity where it overflows, NaN where it is not defined, and of NaN."""

    def guarded(*args: float) -> Number:
        if any(math.isnan(float(arg)) for arg in args):
            return Number(math.nan)
        try:
            result = function(*map(float, args))
            # Python rounds to an int, which has no negative zero.
            return Number(result or math.copysign(0.0, args[0]) if isinstance(result, int) else result)
        except OverflowError:
            return Number(args[0] if math.isinf(args[0]) else math.inf)
        except ValueError:
            return Number(-math.inf if function is math.log1p and args[0] == -1 else math.nan)

    return guarded


EXACT: Mapping[str, Callable[..., float]] = {
    "abs": _guarded(abs),
    "floor": _guarded(math.floor),
    "ceil": _guarded(math.ceil),
    "round": _guarded(round),
    "sqrt": _guarded(math.sqrt),
    "sign": _guarded(lambda x: float((x > 0) - (x < 0))),
    "step": lambda x: Number(float(x) >= 0),
    # Of 0 and -0, always 0.
    "min": _guarded(lambda *args: min(args) + 0.0),
    "max": _guarded(lambda *args: max(args) + 0.0),
    "clip": _guarded(lambda x, low, high: min(max(x, low), high) + 0.0),
    "where": lambda c, x, y: x if c else y,
}
ROUNDED: Mapping[str, Callable[..., float]] = {
    "exp": _guarded(math.exp),
    "log1p": _guarded(math.log1p),
    "tanh": _guarded(math.tanh),
    "abs": _guarded(abs),
    "sqrt": _guarded(math.sqrt),
}
"""The last digit of these is the processor's affair, so nothing that jumps or cancels may be made of them."""


@st.composite
def expressions(draw: st.DrawFn, depth: int = 3, is_exact: bool = True) -> str:
    """Text that means the same in Python and here, parentheses left out at random."""
    if depth == 0 or draw(st.integers(0, 5)) == 0:
        return draw(st.sampled_from([*NAMES, "0.0", "1.0", "2.0", "0.5", "3.0", "1e6", "1e308"]))
    below = expressions(depth - 1, is_exact)
    kinds = ["binary", "binary", "sign", "call", "parentheses", *(["compare", "chain", "choice"] if is_exact else [])]
    match draw(st.sampled_from(kinds)):
        case "binary":
            operators = ["+", "-", "*", "/", "//", "%"] if is_exact else ["*", "/", "**"]
            return f"{draw(below)} {draw(st.sampled_from(operators))} {draw(below)}"
        case "compare":
            return f"({draw(below)} {draw(st.sampled_from(['<', '<=', '==']))} {draw(below)})"
        case "chain":
            return f"({draw(below)} < {draw(below)} <= {draw(below)})"
        case "choice":
            return f"({draw(below)} if {draw(below)} else {draw(below)})"
        case "sign":
            return f"-{draw(below)}"
        case "parentheses":
            return f"({draw(below)})"
    name = draw(st.sampled_from(sorted(EXACT if is_exact else ROUNDED)))
    return f"{name}({', '.join(draw(below) for _ in range(FUNCTIONS[name][0]))})"


def by_python(text: str, functions: Mapping[str, Callable[..., float]], values: Mapping[str, float]) -> float:
    wrapped = re.sub(r"(?<![a-z0-9.])[0-9][0-9.e]*", r"Number(\g<0>)", text)
    names = {name: Number(value) for name, value in values.items()}
    return float(eval(wrapped, {"__builtins__": {}, "Number": Number, **functions}, names))


numbers = st.lists(st.one_of(st.sampled_from([0.0, 1.0, -1.0, 2.5]), st.floats(-1e6, 1e6)), min_size=3, max_size=3)


@settings(max_examples=20_000 if SOAK else 200, deadline=None)
@given(expressions(), numbers)
def test_the_same_as_python(text: str, drawn: list[float]) -> None:
    values = dict(zip(NAMES, drawn, strict=True))
    expected, ours = by_python(text, EXACT, values), one(text, **values)
    assert ours == expected or (math.isnan(ours) and math.isnan(expected))


@settings(max_examples=20_000 if SOAK else 100, deadline=None)
@given(expressions(is_exact=False), numbers)
def test_the_same_as_python_but_for_the_last_digits(text: str, drawn: list[float]) -> None:
    values = dict(zip(NAMES, drawn, strict=True))
    expected, ours = by_python(text, ROUNDED, values), one(text, **values)
    if abs(expected) > 1e300 or abs(ours) > 1e300:
        assert abs(ours) > 1e299 and abs(expected) > 1e299  # noqa: PT018 - they overflow together
    else:
        assert ours == pytest.approx(expected, rel=1e-6, abs=1e-290, nan_ok=True)


# -- never a fault ----------------------------------------------------------------------------------------------------------

SOUP = [*NAMES, *FUNCTIONS, "if", "else", "and", "or", "not", "(", "(", "(", ")", ")", ")", ",", ",", "1", "0", "0.5", "1e308"]
SOUP += ["+", "-", "*", "/", "//", "%", "**", "**", "<", "<=", "==", "!=", "1e-308"]
ODD = [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 1e308, -1e308, 5e-324, 0.5]


def survives(text: str, columns: Mapping[str, Array]) -> None:
    try:
        formula = compile_formula(text, columns)
    except FormulaError:
        return
    result = formula.evaluate(columns, len(ODD))
    assert result.dtype == np.float64
    assert result.shape == (len(ODD),)


@settings(max_examples=20_000 if SOAK else 200, deadline=None)
@given(st.lists(st.sampled_from(SOUP), max_size=12))
def test_no_soup_of_words_ends_in_a_fault(words: list[str]) -> None:
    survives(" ".join(words), {name: np.roll(np.array(ODD), index) for index, name in enumerate(NAMES)})


@settings(max_examples=20_000 if SOAK else 100, deadline=None)
@given(st.one_of(expressions(4), expressions(4, is_exact=False)), st.integers(0, 10), st.integers(0, 10))
def test_no_number_ends_in_a_fault(text: str, shift: int, other: int) -> None:
    survives(text, {name: np.roll(np.array(ODD), by) for name, by in zip(NAMES, (0, shift, other), strict=True)})
