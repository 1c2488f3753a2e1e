"""Text of a formula, cut into tokens. Used by `muster.objects.formula` alone. Pure.

Every token knows where it stands: positions count characters from 1, as people do. What no formula can contain is refused here
with a hint at what was probably meant, because that is known best where the odd character stands.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Final, Literal

import msgspec

TEXT_LEN_MAX: Final = 2_000
_SHOWN_LEN_MAX: Final = 40
_EXCERPT_LEN: Final = 30

TokenKind = Literal["number", "name", "word", "operator", "end"]

WORDS: Final = frozenset({"and", "or", "not", "if", "else"})

_PATTERN: Final = re.compile(
    r"""(?P<space>[ \t\r\n]+)
      | (?P<number>(?:[0-9](?:_?[0-9])*(?:\.(?:[0-9](?:_?[0-9])*)?)?|\.[0-9](?:_?[0-9])*)(?:[eE][+-]?[0-9]+)?)
      | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
      | (?P<operator>\*\*|//|<=|>=|==|!=|[-+*/%<>(),])
    """,
    re.VERBOSE,
)

_ODD_PAIRS: Final[Mapping[str, str]] = {
    "&&": "write `and`",
    "||": "write `or`",
    "<>": "write `!=`",
    ":=": "a formula has no assignments; it is one expression",
    "->": "a formula has no functions of its own",
    "=>": "write `>=`",
    "=<": "write `<=`",
}
_ODD: Final[Mapping[str, str]] = {
    "^": "use ** for powers",
    "=": "write `==` to compare",
    "!": "write `not`, or `!=` to compare",
    "&": "write `and`",
    "|": "write `or`",
    "~": "write `not`",
    "?": "write `a if condition else b`",
    ":": "write `a if condition else b`",
    ";": "a formula is one expression",
    "#": "a formula has no comments; use `description`",
    ".": "nothing has parts here: factors are plain names",
    "[": "nothing has parts here: use round brackets to group",
    "]": "nothing has parts here: use round brackets to group",
    "{": "use round brackets to group",
    "}": "use round brackets to group",
    "'": "a formula knows numbers only; a label or attribute comes in as a factor",
    '"': "a formula knows numbers only; a label or attribute comes in as a factor",
    "`": "a formula knows numbers only; a label or attribute comes in as a factor",
    "@": "use * to multiply",
    "$": "write the factor's name alone",
    "\\": "a formula may go on in the next line as it is",
    "×": "use * to multiply",
    "·": "use * to multiply",
    "÷": "use / to divide",
    "−": "use the plain - sign",
    "–": "use the plain - sign",
    "（": "use plain brackets: ( )",
    "）": "use plain brackets: ( )",
    "，": "use a plain comma",
    "≤": "write `<=`",
    "≥": "write `>=`",
    "≠": "write `!=`",
    "√": "write sqrt(...)",
}


class FormulaError(ValueError):
    """The formula is wrong at `position` (of a character; the first is 1). `hint` says what to write instead; may be empty."""

    def __init__(self, text: str, position: int, message: str, hint: str = "") -> None:
        self.text = text
        self.position = position
        self.message = message
        self.hint = hint
        super().__init__(f"at character {position}: {message}" + (f"; {hint}" if hint else ""))

    def pointed(self) -> str:
        """The part of the formula around the position, and a line below it with a mark under the wrong place."""
        at = max(self.position - 1, 0)
        begin, end = max(at - _EXCERPT_LEN, 0), at + _EXCERPT_LEN
        before, after = ("..." if begin else ""), ("..." if end < len(self.text) else "")
        line = "".join(c if c.isprintable() else " " for c in self.text[begin:end])
        return f"{before}{line}{after}\n{' ' * (len(before) + at - begin)}^"


class Token(msgspec.Struct, frozen=True):
    """`position` of its first character, counted from 1; `value` of a number."""

    kind: TokenKind
    text: str
    position: int
    value: float = 0.0


def shown(text: str) -> str:
    """A piece of a formula as a message shows it."""
    clean = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text[:_SHOWN_LEN_MAX])
    return f"`{clean}...`" if len(text) > _SHOWN_LEN_MAX else f"`{clean}`"


def tokens_of(text: str) -> list[Token]:
    """All tokens, the last of kind `end`. FormulaError for what can't be one."""
    if len(text) > TEXT_LEN_MAX:
        raise FormulaError(
            text,
            TEXT_LEN_MAX + 1,
            f"the formula has {len(text)} characters; at most {TEXT_LEN_MAX} are possible",
            "move what repeats into factors",
        )
    found: list[Token] = []
    at = 0
    while at < len(text):
        match = _PATTERN.match(text, at)
        if match is None:
            raise _odd(text, at)
        kind, piece = match.lastgroup, match.group()
        if kind == "number":
            found.append(Token("number", piece, at + 1, _number(text, at, piece)))
            _check_end(text, match.end())
        elif kind == "name":
            found.append(Token("word" if piece in WORDS else "name", piece, at + 1))
        elif kind == "operator":
            if (hint := _ODD_PAIRS.get(text[at : at + 2])) is not None:
                raise FormulaError(text, at + 1, f"{shown(text[at : at + 2])} is not an operator", hint)
            found.append(Token("operator", piece, at + 1))
        at = match.end()
    found.append(Token("end", "", len(text) + 1))
    return found


def _number(text: str, at: int, piece: str) -> float:
    value = float(piece)
    if not math.isfinite(value):
        raise FormulaError(text, at + 1, f"the number {shown(piece)} is too large", "the largest is 1.7e308")
    return value


def _check_end(text: str, end: int) -> None:
    """A number ends where something else begins: `5m`, `1e`, `0x10` and `1.2.3` are no numbers."""
    following = text[end : end + 1]
    if not following or not (following.isalnum() or following in "._"):
        return
    hint = {
        ".": "a number has one decimal point",
        "_": "underscores may stand between digits only",
        "e": "an exponent needs digits, as in 1e9",
        "E": "an exponent needs digits, as in 1e9",
    }.get(following, "numbers have no units; put an operator, such as *, between a number and a name")
    raise FormulaError(text, end + 1, f"{shown(following)} follows right after a number", hint)


def _odd(text: str, at: int) -> FormulaError:
    pair, character = text[at : at + 2], text[at]
    if pair in _ODD_PAIRS:
        return FormulaError(text, at + 1, f"{shown(pair)} is not an operator", _ODD_PAIRS[pair])
    if not character.isprintable():
        message = f"a character that can't be seen, U+{ord(character):04X}, stands here"
        return FormulaError(text, at + 1, message, "delete it, or put a plain space")
    hint = _ODD.get(character, "")
    if not hint and character.isnumeric():
        hint = "digits are 0 to 9"
    if not hint and character.isalpha():
        hint = "names have the letters a to z, digits and _"
    return FormulaError(text, at + 1, f"{shown(character)} can't stand in a formula", hint)
