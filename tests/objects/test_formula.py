"""The language of formulas: what it takes, and what it says about everything else."""

from __future__ import annotations

import os

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from muster.objects.formula import (
    COST_MAX,
    DEPTH_MAX,
    FUNCTIONS,
    RESERVED,
    STEPS_MAX,
    TEXT_LEN_MAX,
    FormulaError,
    Parsed,
    parse_formula,
)

SOAK = bool(os.environ.get("MUSTER_SOAK"))
NAMES = ("waited", "remaining", "level", "gpus")


def refused(text: str, names: tuple[str, ...] = NAMES) -> FormulaError:
    with pytest.raises(FormulaError) as caught:
        parse_formula(text, names)
    return caught.value


@pytest.mark.parametrize(
    ("text", "position", "message", "hint"),
    [
        pytest.param("", 1, "empty", "weighted_sum", id="empty"),
        pytest.param("  \n ", 1, "empty", "weighted_sum", id="blank"),
        pytest.param("waitd + 1", 1, "no factor is called `waitd`", "did you mean waited?", id="misspelled factor"),
        pytest.param("2 * Waited", 5, "no factor is called `Waited`", "did you mean waited?", id="upper case"),
        pytest.param("zzzz", 1, "no factor is called", "the policy has gpus, level, remaining, waited", id="nothing near"),
        pytest.param("squrt(level)", 1, "no function `squrt`", "did you mean sqrt?", id="misspelled function"),
        pytest.param("pow(level, 2)", 1, "no function `pow`", "use ** for powers", id="pow"),
        pytest.param("print(level)", 1, "no function `print`", "there are abs, ceil", id="some function"),
        pytest.param("waited(3)", 1, "is a number, not a function", "waited * (...)", id="factor called"),
        pytest.param("1 + min", 5, "min is a function", "write min(a, b)", id="function not called"),
        pytest.param("min(1)", 1, "min takes 2 or more arguments, not 1", "write min(a, b)", id="too few arguments"),
        pytest.param("sqrt()", 1, "sqrt takes 1 argument, not 0", "write sqrt(x)", id="no argument"),
        pytest.param("sqrt(1, 2)", 1, "sqrt takes 1 argument, not 2", "write sqrt(x)", id="too many arguments"),
        pytest.param("clip(level, 0)", 1, "clip takes 3 arguments, not 2", "lowest, highest", id="clip"),
        pytest.param("level ^ 2", 7, "`^`", "use ** for powers", id="caret"),
        pytest.param("2 * * 3", 5, "`*` stands where a value should be", "without a space", id="spaced power"),
        pytest.param("(1 + 2", 1, "not closed", "add `)`", id="unclosed"),
        pytest.param("1 + (2 * (3", 10, "not closed", "add `)`", id="innermost unclosed"),
        pytest.param("min(1, 2", 4, "not closed", "add `)`", id="unclosed call"),
        pytest.param("1 + 2)", 6, "never opened", "remove it", id="unopened"),
        pytest.param("()", 2, "stands where a value", "between the parentheses", id="empty parentheses"),
        pytest.param("1 +", 4, "ends where a value should follow", "add a value", id="cut off"),
        pytest.param("2 waited", 3, "follows right after a value", "such as *", id="no operator"),
        pytest.param("2waited", 2, "follows right after a number", "no units", id="unit"),
        pytest.param("1.2.3", 4, "follows right after a number", "one decimal point", id="two points"),
        pytest.param("0x10", 2, "follows right after a number", "", id="hexadecimal"),
        pytest.param("1e", 2, "follows right after a number", "1e9", id="bare exponent"),
        pytest.param("1e400", 1, "too large", "1.7e308", id="too large"),
        pytest.param("9" * 400, 1, "too large", "1.7e308", id="too many digits"),
        pytest.param("waited = 1", 8, "`=`", "==", id="assignment"),
        pytest.param("a := 1", 3, "`:=`", "no assignments", id="walrus"),
        pytest.param("level && 1", 7, "`&&`", "write `and`", id="C's and"),
        pytest.param("level || 1", 7, "`||`", "write `or`", id="C's or"),
        pytest.param("!level", 1, "`!`", "write `not`", id="C's not"),
        pytest.param("level <> 1", 7, "`<>`", "!=", id="Pascal's unequal"),
        pytest.param("level => 1", 7, "`=>`", ">=", id="arrow"),
        pytest.param("level ? 1 : 2", 7, "`?`", "a if condition else b", id="C's choice"),
        pytest.param("1 if level", 3, "has no `else`", "a if condition else b", id="no else"),
        pytest.param("1 else 2", 3, "has no `if`", "a if condition else b", id="no if"),
        pytest.param("waited.real", 7, "`.`", "plain names", id="attribute"),
        pytest.param("waited[0]", 7, "`[`", "round brackets", id="subscript"),
        pytest.param("'x'", 1, "`'`", "numbers only", id="text"),
        pytest.param("level # x", 7, "`#`", "description", id="comment"),
        pytest.param("1, 2", 2, "comma", "decimal point", id="comma"),
        pytest.param("1 == not level", 6, "`not` stands where", "parentheses", id="not after =="),
        pytest.param("level not 1", 7, "`not` follows", "!=", id="not in between"),
        pytest.param("true", 1, "no factor", "write 1", id="true"),
        pytest.param("inf", 1, "no factor", "1e300", id="infinity"),
        pytest.param("（level）", 1, "`（`", "plain brackets", id="full width"),
        pytest.param("level − 1", 7, "`−`", "plain - sign", id="typographic minus"),
        pytest.param("等级", 1, "`等`", "a to z", id="letters of elsewhere"),
        pytest.param("level\x00", 6, "can't be seen, U+0000", "delete it", id="zero byte"),
        pytest.param("level\u00a0+ 1", 6, "can't be seen, U+00A0", "plain space", id="a space that is none"),
        pytest.param("\u0661 + level", 1, "can't stand", "digits are 0 to 9", id="digits of another script"),
        pytest.param("lambda: 0", 7, "`:`", "", id="lambda"),
    ],
)
def test_what_is_wrong_is_said_with_position_and_hint(text: str, position: int, message: str, hint: str) -> None:
    error = refused(text)
    assert (error.position, message in error.message, hint in error.hint) == (position, True, True), str(error)
    assert str(error).startswith(f"at character {position}: ")
    line, mark = error.pointed().split("\n")
    if text.isprintable() and len(text) < 30:
        assert (line, mark.index("^")) == (text, position - 1)


def test_without_factors_the_hint_says_so() -> None:
    assert "spec.factors" in refused("zzzz", ()).hint


def test_a_long_formula_is_shown_around_the_mistake() -> None:
    text = " + ".join(["waited"] * 30) + " + oops + " + " + ".join(["level"] * 30)
    line, mark = refused(text).pointed().split("\n")
    assert len(line) <= 70
    assert line[mark.index("^") :].startswith("oops")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        pytest.param("1" + " + 1" * 1000, "characters", id="too long"),
        pytest.param("(" * 900 + "1" + ")" * 900, "deep", id="parentheses"),
        pytest.param("-" * 1900 + "1", "deep", id="signs"),
        pytest.param("not " * 400 + "1", "deep", id="nots"),
        pytest.param("2" + "**2" * 500, "deep", id="powers"),
        pytest.param("1 if 1 else " * 150 + "1", "deep", id="choices"),
        pytest.param("abs(" * 300 + "1" + ")" * 300, "deep", id="calls"),
        pytest.param("+".join(f"{n}" for n in range(501)), "operations", id="terms"),
        pytest.param("+".join(f"level**{n}" for n in range(150)), "costs", id="costly terms"),
        pytest.param("max(" + ",".join(["level"] * 40) + ")", "arguments", id="arguments"),
    ],
)
def test_size_is_bounded(text: str, what: str) -> None:
    assert what in refused(text).message


def test_bounds_are_wide_enough_for_people() -> None:
    parse_formula("(" * (DEPTH_MAX - 2) + "level" + ")" * (DEPTH_MAX - 2), NAMES)
    parse_formula("+".join(["level*waited", *(f"{n}*level" for n in range(150))]), NAMES)


def test_equal_parts_are_there_once() -> None:
    parsed = parse_formula("(waited + 1) / (waited + 1) + (waited + 1)", NAMES)
    assert [step.op for step in parsed.steps] == ["name", "number", "+", "/", "+"]
    assert parsed.names == ("waited",)


def test_names_are_those_in_use() -> None:
    assert parse_formula("level + 0 * gpus", NAMES).names == ("level", "gpus")
    assert parse_formula("weighted_sum + level", NAMES).names == ("weighted_sum", "level")


def test_words_of_the_language_are_reserved() -> None:
    assert {"min", "where", "and", "if", "weighted_sum"} <= RESERVED


def holds(parsed: Parsed, text: str) -> None:
    """What everything that reads `Parsed` relies on."""
    assert parsed.text == text
    assert len(parsed.steps) <= STEPS_MAX
    assert parsed.cost <= COST_MAX
    assert 0 <= parsed.result < len(parsed.steps)
    for index, step in enumerate(parsed.steps):
        assert all(0 <= arg < index for arg in step.args)
        if step.op in FUNCTIONS:
            fewest, most = FUNCTIONS[step.op]
            assert fewest <= len(step.args) <= most
    assert set(parsed.names) <= {*NAMES, "weighted_sum"}


def survives(text: str) -> None:
    error: FormulaError | None = None
    try:
        parsed = parse_formula(text, NAMES)
    except FormulaError as found:
        error = found
    if error is None:
        holds(parsed, text)
        return
    assert 1 <= error.position <= min(len(text), TEXT_LEN_MAX) + 1
    assert error.message
    assert len(str(error)) < 500
    assert len(error.pointed()) < 200


@settings(max_examples=100_000 if SOAK else 200, deadline=None)
@given(st.text(max_size=300))
@example("\ud800")
@example("9" * 2000)
@example("." * 2000)
@example("((((" * 500)
def test_any_text_is_parsed_or_refused(text: str) -> None:
    survives(text)


WORDS = [*NAMES, *FUNCTIONS, "if", "else", "and", "or", "not", "weighted_sum", "x", "__class__", "import", "(", ")", ",", "1"]
WORDS += ["0.5", "1e308", "1e999", "1_0", "+", "-", "*", "/", "//", "%", "**", "<", "<=", ">", ">=", "==", "!=", "=", ".", "["]


@settings(max_examples=100_000 if SOAK else 200, deadline=None)
@given(st.lists(st.sampled_from(WORDS), max_size=400), st.sampled_from(["", " ", "\n"]))
def test_any_soup_of_words_is_parsed_or_refused(words: list[str], space: str) -> None:
    survives(space.join(words))


@settings(deadline=None)
@given(
    st.integers(1, 2000),
    st.sampled_from(["(", "-", "not ", "abs(", "1 if ", "2**", "1<", "1,", "a+", "min(1,"]),
    st.text(max_size=5),
)
def test_any_nesting_is_parsed_or_refused(count: int, piece: str, end: str) -> None:
    survives((piece * count)[: TEXT_LEN_MAX + 50] + end)
