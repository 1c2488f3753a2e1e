"""The language of Kuscia's configuration templates, parsed: text with holes that are filled when a pod is made. Pure.

    {{.TASK_ID}}                                    the variable as the inside of a JSON string
    {{{.TASK_CLUSTER_DEFINE.parties[name=bob].role}}}   a query into a variable that holds JSON
    {{"{{"}}                                        that text itself

That is all: Kuscia hands templates to Go, but gives them nothing more to work with. What else may stand between braces in Go
(`if`, `range`, pipelines) is refused, with its position. Parsing takes time in proportion to the text.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

TEMPLATE_BYTES_MAX: Final = 256 * 1024
HOLES_MAX: Final = 10_000
STEPS_MAX: Final = 32
_HOLE_LEN_MAX: Final = 1_024

_VARIABLE: Final = re.compile(r"\.([A-Za-z_][A-Za-z0-9_]*)", re.ASCII)
_STEP: Final = re.compile(r"\.([^.\[\]{}\s]+)|\[([^\[\]{}]*)\]")
_LITERAL: Final = re.compile(r'"(?:[^"\\]|\\.)*"')


class Variable(msgspec.Struct, frozen=True):
    """Its value, escaped as in a JSON string."""

    name: str


class Query(msgspec.Struct, frozen=True):
    """A part of a variable's JSON. Each step is a member, an index, or (key, value) of the list element that has them."""

    name: str
    steps: tuple[str | int | tuple[str, str], ...] = ()


Part = str | Variable | Query


class TemplateSyntaxError(ValueError):
    """`line` and `column` count from 1."""

    def __init__(self, message: str, line: int, column: int) -> None:
        super().__init__(f"line {line}, column {column}: {message}")
        self.message = message
        self.line = line
        self.column = column


def parse_template(text: str) -> list[Part]:
    """The template as literal text and holes, in order. TemplateSyntaxError says what is wrong, and where."""
    size_bytes = len(text.encode("utf-8", "surrogatepass"))
    if size_bytes > TEMPLATE_BYTES_MAX:
        raise TemplateSyntaxError(f"{size_bytes:,} bytes are too many; a template may have {TEMPLATE_BYTES_MAX:,}", 1, 1)
    parts: list[Part] = []
    at = holes = 0
    while (start := text.find("{{", at)) >= 0:
        if start > at:
            parts.append(text[at:start])
        is_query = text.startswith("{{{", start)
        opening, closing = ("{{{", "}}}") if is_query else ("{{", "}}")
        inside = start + len(opening)
        # A literal may hold braces itself, so its end is looked for first.
        literal = None if is_query else _LITERAL.match(text, inside, inside + _HOLE_LEN_MAX)
        end = literal.end() if literal else text.find(closing, inside, inside + _HOLE_LEN_MAX)
        if end < 0 or not text.startswith(closing, end):
            raise _error(text, start, f"{opening} is not closed by {closing} within {_HOLE_LEN_MAX:,} characters")
        holes += 1
        if holes > HOLES_MAX:
            raise _error(text, start, f"there are more than {HOLES_MAX:,} variables; a template may have so many")
        content = text[inside:end]
        parts.append(_query(text, start, content) if is_query else _variable(text, start, content))
        at = end + len(closing)
    if at < len(text):
        parts.append(text[at:])
    return parts


def _variable(text: str, start: int, content: str) -> Part:
    word = content.strip()
    if match := _VARIABLE.fullmatch(word):
        return Variable(match[1].upper())
    if _LITERAL.fullmatch(word):
        try:
            literal: str = msgspec.json.decode(word.encode("utf-8", "surrogatepass"), type=str)
            return literal
        except msgspec.DecodeError:
            raise _error(text, start, f"{word[:80]} is no text in quotes") from None
    if _VARIABLE.match(word) and (word[-1:].isalnum() or word.endswith(("]", "_"))) and " " not in word:
        raise _error(
            text, start, f"{{{{{word[:80]}}}}} looks into a variable; write {{{{{{{word[:80]}}}}}}}, with three braces"
        )
    message = (
        f"{{{{{word[:80]}}}}} is not understood; write {{{{.NAME}}}} for a variable, or {{{{{{.NAME.path}}}}}} for a part of it"
    )
    raise _error(text, start, message)


def _query(text: str, start: int, content: str) -> Query:
    word = content.strip()
    match = _VARIABLE.match(word)
    if match is None:
        raise _error(text, start, f"{{{{{{{word[:80]}}}}}}} is not understood; write {{{{{{.NAME.member[key=value][0]}}}}}}")
    steps: list[str | int | tuple[str, str]] = []
    at = match.end()
    while at < len(word):
        step = _STEP.match(word, at)
        if step is None:
            raise _error(text, start, f"{word[at : at + 80]!r} is no step of a query; write .member, [0], or [key=value]")
        steps.append(step[1] if step[1] is not None else _bracket(step[2]))
        at = step.end()
    if len(steps) > STEPS_MAX:
        raise _error(text, start, f"a query of {len(steps)} steps is too long; it may have {STEPS_MAX}")
    return Query(match[1].upper(), tuple(steps))


def _bracket(inside: str) -> str | int | tuple[str, str]:
    word = inside.strip()
    key, equals, value = word.partition("=")
    if equals:
        return key.strip(), value.strip()
    if re.fullmatch(r"-?[0-9]{1,9}", word, re.ASCII):
        return int(word)
    return word


def _error(text: str, at: int, message: str) -> TemplateSyntaxError:
    line = text.count("\n", 0, at) + 1
    return TemplateSyntaxError(message, line, at - (text.rfind("\n", 0, at) + 1) + 1)
