r"""JSONPath as kubectl and printer columns write it.

`compile(".status.conditions[?(@.type==\"Ready\")].status").find(obj)` gives the list of what is there;
`compile_template("{range .items[*]}{.metadata.name}{'\n'}{end}").render(obj)` gives text.

The dialect: `.field`, `['any.key']`, `.a\.b`, `[0]`, `[-1]`, `[0:2]`, `[0:9:2]`, `[0,2]`, `['a','b']`, `*`, `[*]`, `..`,
`[?(@.x)]`, `[?(@.x==1)]` with `== != < <= > >=`, `@`, `$`; in templates also text outside braces, quoted text inside them and
`{range}...{end}`. A path may stand without its braces and without its first dot.

Pure. Parsed paths are immutable and cached. What is missing gives no result; with `allow_missing=False` it is a ValueError.
Length, nesting and the number of values that one evaluation visits are bounded.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from muster.objects.jsonpath_steps import (
    RENDER_VISITED_MAX,
    Evaluation,
    Field,
    Filter,
    Index,
    Key,
    Literal,
    Recursive,
    Slice,
    Step,
    Union,
    Wildcard,
    text_of,
    walk,
)

__all__ = ["JsonPath", "Template", "compile", "compile_template", "text_of"]

_TEXT_LEN_MAX: Final = 16 * 1024
_NESTING_MAX: Final = 16

_END_OF_FIELD: Final = frozenset(" \t\r\n.,[]$@{}")
_END_OF_FIELD_IN_FILTER: Final = _END_OF_FIELD | frozenset("()=!<>")
_NUMBER: Final = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?", re.ASCII)
_SLICE: Final = re.compile(r"(-?[0-9]{1,9})?(:(-?[0-9]{1,9})?)?(:(-?[0-9]{1,9})?)?", re.ASCII)
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "a": "\a"}


@dataclass(frozen=True, slots=True)
class JsonPath:
    """A parsed path."""

    text: str
    steps: tuple[Step, ...]

    def find(self, obj: Any, *, allow_missing: bool = True) -> list[Any]:
        """All values at the path, in document order; the values are the object's own. ValueError when it visits too many."""
        return walk(self.steps, [obj], Evaluation(allow_missing))

    def first(self, obj: Any) -> Any:
        """The first value at the path, None when there is none: what a printer column shows."""
        return next(iter(self.find(obj)), None)


@dataclass(frozen=True, slots=True)
class _Range:
    steps: tuple[Step, ...]
    body: tuple[_Part, ...]


_Part = str | tuple[Step, ...] | _Range


@dataclass(frozen=True, slots=True)
class Template:
    """A parsed template."""

    text: str
    parts: tuple[_Part, ...]

    def render(self, obj: Any, *, allow_missing: bool = True) -> str:
        return "".join(_render(self.parts, obj, Evaluation(allow_missing, RENDER_VISITED_MAX)))


@functools.lru_cache(maxsize=1024)
def compile(text: str) -> JsonPath:
    """The path in `text`, with or without braces. ValueError names the position of what can't be read."""
    inner = text.strip()
    if inner.startswith("{") and inner.endswith("}"):
        inner = inner[1:-1]
    parser = _Parser(inner)
    return JsonPath(text, parser.whole_path())


@functools.lru_cache(maxsize=256)
def compile_template(text: str) -> Template:
    """The template in `text`; like kubectl, a text without any brace is taken as one path."""
    if text and "{" not in text:
        return Template(text, (compile(text).steps,))
    parser = _Parser(text)
    return Template(text, parser.template())


def _render(parts: tuple[_Part, ...], obj: Any, run: Evaluation) -> Iterator[str]:
    for part in parts:
        if isinstance(part, str):
            yield part
        elif isinstance(part, _Range):
            for value in walk(part.steps, [obj], run):
                yield from _render(part.body, value, run)
        else:
            yield " ".join(text_of(value) for value in walk(part, [obj], run))


class _Parser:
    """Reads one text from left to right. Nesting (filters in filters, ranges in ranges) is bounded, so recursion is too."""

    def __init__(self, text: str) -> None:
        if len(text) > _TEXT_LEN_MAX:
            raise ValueError(f"a JSONPath may have {_TEXT_LEN_MAX} characters; this one has {len(text)}")
        self._text = text
        self._at = 0
        self._nesting = 0

    def whole_path(self) -> tuple[Step, ...]:
        self._spaces()
        # `metadata.name` means `.metadata.name`.
        bare = self._peek() not in ("", ".", "[", "$", "@", "{", "}")
        steps: list[Step] = [self._field(_END_OF_FIELD)] if bare else []
        steps += self._steps(_END_OF_FIELD, "")
        if self._at < len(self._text):
            self._fail("the end of the path")
        return tuple(steps)

    def template(self) -> tuple[_Part, ...]:
        return self._parts(inside_range=False)

    def _parts(self, *, inside_range: bool) -> tuple[_Part, ...]:
        self._enter()
        parts: list[_Part] = []
        while self._at < len(self._text):
            brace = self._text.find("{", self._at)
            if brace != self._at:
                end = len(self._text) if brace < 0 else brace
                parts.append(self._text[self._at : end])
                self._at = end
                continue
            self._at += 1
            self._spaces()
            if self._word("end"):
                self._expect("}")
                if not inside_range:
                    self._fail("no {end}, since no {range} is open")
                self._nesting -= 1
                return tuple(parts)
            if self._word("range"):
                steps = self._steps(_END_OF_FIELD, "}")
                self._expect("}")
                parts.append(_Range(tuple(steps), self._parts(inside_range=True)))
            else:
                parts.append(tuple(self._steps(_END_OF_FIELD, "}")))
                self._expect("}")
        if inside_range:
            self._fail("{end}")
        self._nesting -= 1
        return tuple(parts)

    def _steps(self, end_of_field: frozenset[str], closing: str) -> list[Step]:
        """Steps up to one of the `closing` characters, which is left standing, or the end."""
        steps: list[Step] = []
        while True:
            self._spaces()
            char = self._peek()
            if char == "" or char in closing:
                return steps
            if char in "@$":
                self._at += 1
            elif self._text.startswith("..", self._at):
                if steps and isinstance(steps[-1], Recursive):
                    self._fail("a field after '..'")
                self._at += 2
                steps.append(Recursive())
                if self._peek() not in end_of_field and self._peek() != "":
                    steps.append(self._field(end_of_field))
            elif char == ".":
                self._at += 1
                # A dot before a bracket, or alone, is the current object.
                if self._peek() not in end_of_field and self._peek() != "":
                    steps.append(self._field(end_of_field))
            elif char == "[":
                steps.append(self._bracket())
            elif char in "'\"":
                steps.append(Literal(self._quoted()))
            else:
                steps.append(self._literal())

    def _literal(self) -> Step:
        for word, value in (("true", True), ("false", False)):
            if self._word(word):
                return Literal(value)
        match = _NUMBER.match(self._text, self._at)
        if match is None:
            self._fail("a path, a quoted text, a number, true or false")
        self._at = match.end()
        if match.end() - match.start() > 40:
            self._fail("a shorter number")
        return Literal(float(match[0]) if match[1] else int(match[0]))

    def _field(self, end_of_field: frozenset[str]) -> Step:
        name: list[str] = []
        while self._at < len(self._text):
            char = self._text[self._at]
            if char == "\\" and self._at + 1 < len(self._text):
                name.append(self._text[self._at + 1])
                self._at += 2
                continue
            if char in end_of_field:
                break
            name.append(char)
            self._at += 1
        text = "".join(name)
        return Wildcard() if text == "*" else Field(text)

    def _bracket(self) -> Step:
        self._at += 1
        self._spaces()
        if self._text.startswith("?(", self._at):
            self._at += 2
            return self._filter()
        branches = [self._selector()]
        while self._peek() == ",":
            self._at += 1
            branches.append(self._selector())
        self._expect("]")
        return branches[0] if len(branches) == 1 else Union(tuple((branch,) for branch in branches))

    def _selector(self) -> Step:
        """One of the comma-separated things in brackets."""
        self._spaces()
        if self._peek() in ("'", '"'):
            step: Step = Key(self._quoted())
        elif self._peek() == "*":
            self._at += 1
            step = Wildcard()
        else:
            match = _SLICE.match(self._text, self._at)
            if match is None or not match[0]:
                self._fail("an index, a slice, '*' or a quoted key")
            self._at = match.end()
            if match[2] is None:
                step = Index(int(match[1]))
            else:
                start, end, stride = (int(match[group]) if match[group] else None for group in (1, 3, 5))
                if stride is not None and stride <= 0:
                    self._fail("a step above 0")
                step = Slice(start, end, stride)
        self._spaces()
        return step

    def _filter(self) -> Step:
        self._enter()
        left = tuple(self._steps(_END_OF_FIELD_IN_FILTER, ")=!<>"))
        operator = ""
        for candidate in ("==", "!=", "<=", ">=", "<", ">"):
            if self._text.startswith(candidate, self._at):
                operator = candidate
                break
        self._at += len(operator)
        right = tuple(self._steps(_END_OF_FIELD_IN_FILTER, ")=!<>")) if operator else ()
        if operator and not right:
            self._fail("something to compare with")
        self._expect(")")
        self._spaces()
        self._expect("]")
        self._nesting -= 1
        return Filter(left, operator, right)

    def _quoted(self) -> str:
        quote, start = self._text[self._at], self._at
        self._at += 1
        text: list[str] = []
        while self._at < len(self._text):
            char = self._text[self._at]
            self._at += 1
            if char == quote:
                return "".join(text)
            if char == "\\" and self._at < len(self._text):
                char = self._text[self._at]
                self._at += 1
                char = _ESCAPES.get(char, char)
            text.append(char)
        self._at = start
        self._fail(f"a closing {quote} for the quote")

    def _word(self, word: str) -> bool:
        """Steps over `word` if it stands here on its own."""
        after = self._at + len(word)
        if not self._text.startswith(word, self._at) or (self._text[after : after + 1] or " ").isalnum():
            return False
        self._at = after
        self._spaces()
        return True

    def _enter(self) -> None:
        self._nesting += 1
        if self._nesting > _NESTING_MAX:
            self._fail(f"at most {_NESTING_MAX} filters or ranges inside each other")

    def _spaces(self) -> None:
        while self._peek() in (" ", "\t"):
            self._at += 1

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _expect(self, char: str) -> None:
        self._spaces()
        if self._peek() != char:
            self._fail(f"'{char}'")
        self._at += 1

    def _fail(self, wanted: str) -> NoReturn:
        found = repr(self._text[self._at : self._at + 20]) if self._at < len(self._text) else "the end"
        raise ValueError(f"JSONPath at position {self._at}: expected {wanted}, found {found}")
