from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.counts import examples

from muster.objects.regex import TEXT_LEN_MAX, Pattern, compile_pattern

pieces: st.SearchStrategy[str] = st.recursive(
    st.sampled_from(["a", "b", ".", r"\d", "[ab1]", "[^a]", "^", r"\b", r"\.", "[a-c]", r"\w", r"\-"]),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.lists(inner, min_size=1, max_size=3).map(lambda options: f"({'|'.join(options)})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{1,2}", "{2}", "{0,1}", "*?"])).map(lambda p: f"(?:{p[0]}){p[1]}"),
    ),
    max_leaves=6,
)


@given(pattern=pieces, text=st.text(alphabet="ab1.-_ é", max_size=8))
@settings(max_examples=examples(100))
def test_agrees_with_python_where_both_mean_the_same(pattern: str, text: str) -> None:
    assert Pattern(pattern).search(text) == bool(re.search(pattern, text, re.ASCII))


@pytest.mark.parametrize(
    ("pattern", "text", "matches"),
    [
        pytest.param("^a$", "a\n", False, id="dollar is the very end"),
        pytest.param(r"^\d+$", "٣", False, id="digits are ASCII"),
        pytest.param("(?i)^KUBE$", "kUbe", True, id="case folded"),
        pytest.param("^(?i:k)ube$", "Kube", True, id="case folded inside a group"),
        pytest.param("^(?i:k)ube$", "KUBE", False, id="flags end with their group"),
        pytest.param("(?m)^b$", "a\nb\nc", True, id="lines"),
        pytest.param("a.b", "a\nb", False, id="dot stops at a newline"),
        pytest.param("(?s)a.b", "a\nb", True, id="dot takes a newline when told"),
        pytest.param("^[[:alpha:]_-]+$", "ab_-", True, id="posix class"),
        pytest.param("^[[:^alpha:]]+$", "12", True, id="negated posix class"),
        pytest.param(r"^\p{Lu}\pL*$", "Ünder", True, id="unicode categories"),
        pytest.param(r"^\PL+$", "12", True, id="negated category"),
        pytest.param(r"^\Qa.b\E$", "a.b", True, id="quoted"),
        pytest.param(r"^\x41\x{42}\101$", "ABA", True, id="escaped code points"),
        pytest.param("^[]a]+$", "]a", True, id="bracket first in a class"),
        pytest.param("^[a-]$", "-", True, id="dash last in a class"),
        pytest.param(r"^[\d\s]+$", "1 2", True, id="perl classes inside brackets"),
        pytest.param("^{a}$", "{a}", True, id="braces that repeat nothing"),
        pytest.param("^(?P<name>a)(?<other>b)$", "ab", True, id="named groups"),
        pytest.param("", "anything", True, id="empty"),
        pytest.param(r"\Bb", "ab", True, id="no word edge"),
    ],
)
def test_re2_semantics(pattern: str, text: str, matches: bool) -> None:
    assert Pattern(pattern).search(text) is matches


@pytest.mark.parametrize(
    ("pattern", "complaint"),
    [
        pytest.param("(a", "never closed", id="open group"),
        pytest.param("a)", "without an opening", id="close without open"),
        pytest.param("[a", "never closed", id="open class"),
        pytest.param("*a", "nothing to repeat", id="star first"),
        pytest.param("(?=a)", "look-around", id="look-ahead"),
        pytest.param("(?<=a)b", "look-around", id="look-behind"),
        pytest.param(r"(a)\1", "not part of RE2", id="back-reference"),
        pytest.param("a{2,1}", "out of range", id="bounds reversed"),
        pytest.param("a{1001}", "out of range", id="bounds too large"),
        pytest.param("(a{1000}){1000}", "too large", id="program too large"),
        pytest.param("[b-a]", "backwards", id="range reversed"),
        pytest.param(r"\p{Greek}", "not known here", id="script"),
        pytest.param("[[:nope:]]", "does not exist", id="posix class unknown"),
        pytest.param("\\", "too early", id="lone backslash"),
        pytest.param("(" * 200 + ")" * 200, "nested", id="nested too deep"),
        pytest.param("a" * 5000, "at most", id="too long"),
        pytest.param(r"\xZZ", "hexadecimal", id="bad hex"),
    ],
)
def test_what_is_no_pattern_is_named(pattern: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Pattern(pattern)


@given(st.text(alphabet="ab(){}[]|*+?^$\\.,:-<>P19dpQEx", max_size=12))
@settings(max_examples=examples(100))
def test_any_text_is_a_pattern_or_a_value_error(text: str) -> None:
    try:
        pattern = Pattern(text)
    except ValueError:
        return
    assert isinstance(pattern.search("ab-1."), bool)


@pytest.mark.parametrize("pattern", ["^(a+)+$", "(a|a)*b", "(a?){60}a{60}b", "(.*)*(.*)*x", "^(([a-z])+.)+[A-Z]([a-z])+$"])
def test_patterns_that_blow_up_a_backtracking_engine_end(pattern: str) -> None:
    assert Pattern(pattern).search("a" * 3000) is (pattern == "^(a+)+$")


def test_text_that_is_too_long_is_refused() -> None:
    with pytest.raises(ValueError, match="16384"):
        compile_pattern("a").search("b" * (TEXT_LEN_MAX + 1))


def test_memory_is_bounded_and_forgetting_changes_no_answer() -> None:
    pattern = Pattern("^[a-zé-￿]+$")
    for start in range(0, 0xD000, 0x1000):
        text = "".join(chr(code) for code in range(0xE9 + start, 0xE9 + start + 0x1000))
        assert pattern.search(text) is (start + 0x1000 + 0xE8 <= 0xFFFF)
    assert pattern.search("abc")
