from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.objects.config_templates import (
    HOLES_MAX,
    STEPS_MAX,
    TEMPLATE_BYTES_MAX,
    Part,
    Query,
    TemplateSyntaxError,
    Variable,
    parse_template,
)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        pytest.param("", [], id="empty"),
        pytest.param("plain } }} { text", ["plain } }} { text"], id="no holes"),
        pytest.param("{{.TASK_ID}}", [Variable("TASK_ID")], id="a variable"),
        pytest.param("a{{ .task_id }}b", ["a", Variable("TASK_ID"), "b"], id="spaces, lower case"),
        pytest.param('{"a":{"b":"{{.X}}"}}', ['{"a":{"b":"', Variable("X"), '"}}'], id="closing braces of JSON"),
        pytest.param("{{{.X}}}", [Query("X")], id="a query for the whole"),
        pytest.param("{{{.X.a.b}}}", [Query("X", ("a", "b"))], id="members"),
        pytest.param("{{{.X[0].a[-1]}}}", [Query("X", (0, "a", -1))], id="indexes"),
        pytest.param("{{{.X.p[name=bob].role}}}", [Query("X", ("p", ("name", "bob"), "role"))], id="key and value"),
        pytest.param("{{{.X[a.b]}}}", [Query("X", ("a.b",))], id="a member with a dot"),
        pytest.param("{{{.X[u=http://h:1/a.b]}}}", [Query("X", (("u", "http://h:1/a.b"),))], id="a value with dots"),
        pytest.param('{{"{{"}}x{{"}}"}}', ["{{", "x", "}}"], id="braces themselves"),
        pytest.param("{{.A}}{{.B}}", [Variable("A"), Variable("B")], id="side by side"),
    ],
)
def test_parts(text: str, parts: list[Part]) -> None:
    assert parse_template(text) == parts


@pytest.mark.parametrize(
    ("text", "line", "column", "words"),
    [
        pytest.param("{{.X", 1, 1, "not closed by }}", id="not closed"),
        pytest.param("ab\n c {{{.X}} ", 2, 4, "not closed by }}}", id="three braces not closed"),
        pytest.param("{{if .X}}", 1, 1, "is not understood", id="a branch of Go's"),
        pytest.param("{{.X | upper}}", 1, 1, "is not understood", id="a pipeline"),
        pytest.param("{{ }}", 1, 1, "is not understood", id="nothing"),
        pytest.param("{{.X.y}}", 1, 1, "with three braces", id="a query with two braces"),
        pytest.param("{{.X[0]}}", 1, 1, "with three braces", id="an index with two braces"),
        pytest.param("{{{X}}}", 1, 1, "is not understood", id="a query without a dot"),
        pytest.param("{{{.X..y}}}", 1, 1, "is no step", id="an empty step"),
        pytest.param("{{{.X[a}}}", 1, 1, "is no step", id="a bracket not closed"),
        pytest.param('{{"\\q"}}', 1, 1, "is no text in quotes", id="a bad escape"),
        pytest.param("{{{.X" + ".a" * (STEPS_MAX + 1) + "}}}", 1, 1, "too long", id="too many steps"),
        pytest.param("{{." + "X" * 2_000 + "}}", 1, 1, "not closed by }}", id="a name without end"),
        pytest.param("{{.X}}" * (HOLES_MAX + 1), 1, 6 * HOLES_MAX + 1, "more than", id="too many holes"),
        pytest.param("x" * (TEMPLATE_BYTES_MAX + 1), 1, 1, "too many", id="too large"),
    ],
)
def test_errors_have_a_position(text: str, line: int, column: int, words: str) -> None:
    with pytest.raises(TemplateSyntaxError, match=words) as caught:
        parse_template(text)
    assert (caught.value.line, caught.value.column) == (line, column)


PIECES = st.sampled_from(
    ["{", "}", "{{", "}}", "{{{", "}}}", ".", "[", "]", "=", "X", "name", '"', "\\", " ", "\n", "0", "-", "é", "\x00"]
)


@given(st.lists(st.one_of(PIECES, st.text(max_size=3)), max_size=60).map("".join))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    found: list[Part] = []
    where = (1, 1)
    try:
        found = parse_template(text)
    except TemplateSyntaxError as error:
        where = (error.line, error.column)
    else:
        if all(isinstance(part, str) for part in found) and '{{"' not in text:
            assert "".join(str(part) for part in found) == text
    lines = text.split("\n")
    assert 1 <= where[0] <= len(lines)
    assert 1 <= where[1] <= len(lines[where[0] - 1]) + 1
