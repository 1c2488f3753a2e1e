"""RE2's syntax, parsed into a tree. Used by `muster.objects.regex` alone. Pure."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

import msgspec

PATTERN_LEN_MAX = 4096
_DEPTH_MAX = 100
_REPEAT_MAX = 1000
_LAST = 0x10FFFF

_Ranges = tuple[tuple[int, int], ...]
_DIGIT: _Ranges = ((48, 57),)
_WORD: _Ranges = ((48, 57), (65, 90), (95, 95), (97, 122))
_SPACE: _Ranges = ((9, 10), (12, 13), (32, 32))
_PERL = {"d": _DIGIT, "w": _WORD, "s": _SPACE}
_POSIX: dict[str, _Ranges] = {
    "alnum": ((48, 57), (65, 90), (97, 122)),
    "alpha": ((65, 90), (97, 122)),
    "ascii": ((0, 127),),
    "blank": ((9, 9), (32, 32)),
    "cntrl": ((0, 31), (127, 127)),
    "digit": _DIGIT,
    "graph": ((33, 126),),
    "lower": ((97, 122),),
    "print": ((32, 126),),
    "punct": ((33, 47), (58, 64), (91, 96), (123, 126)),
    "space": ((9, 13), (32, 32)),
    "upper": ((65, 90),),
    "word": _WORD,
    "xdigit": ((48, 57), (65, 70), (97, 102)),
}
_ESCAPES = {"a": "\a", "f": "\f", "t": "\t", "n": "\n", "r": "\r", "v": "\v"}
_ASSERTIONS = {"A": "begin", "z": "end", "b": "word edge", "B": "no word edge"}


class Chars(msgspec.Struct, frozen=True):
    """One character out of a set: ranges of code points and Unicode categories (`L`, `Nd`; `!L` for all but those)."""

    ranges: _Ranges
    categories: tuple[str, ...] = ()
    is_negated: bool = False
    folds_case: bool = False

    def accepts(self, character: str) -> bool:
        candidates = {character, character.lower(), character.upper()} if self.folds_case else {character}
        return any(self._has(c) for c in candidates if len(c) == 1) != self.is_negated

    def _has(self, character: str) -> bool:
        code = ord(character)
        if any(low <= code <= high for low, high in self.ranges):
            return True
        category = unicodedata.category(character) if self.categories else ""
        return any(
            not category.startswith(name[1:]) if name.startswith("!") else category.startswith(name) for name in self.categories
        )


class Assertion(msgspec.Struct, frozen=True):
    kind: str


class Repeat(msgspec.Struct, frozen=True):
    body: Node
    least: int
    most: int | None


class Group(msgspec.Struct, frozen=True):
    """Options, each a sequence."""

    options: Sequence[Sequence[Node]]


Node = Chars | Assertion | Repeat | Group


def parse(text: str) -> Node:
    """The tree of `text`. ValueError naming the place where it is no pattern."""
    if len(text) > PATTERN_LEN_MAX:
        raise ValueError(f"a pattern of {len(text)} characters; at most {PATTERN_LEN_MAX} are allowed")
    parser = _Parser(text)
    node = parser.alternatives(0)
    if parser.at < len(text):
        raise parser.error("a closing parenthesis without an opening one")
    return node


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.flags: frozenset[str] = frozenset()

    def error(self, what: str, at: int | None = None) -> ValueError:
        return ValueError(f"{self.text!r} is no regular expression (RE2): {what} at {self.at if at is None else at}")

    def peek(self, length: int = 1) -> str:
        return self.text[self.at : self.at + length]

    def take(self) -> str:
        if self.at >= len(self.text):
            raise self.error("it ends too early")
        self.at += 1
        return self.text[self.at - 1]

    def alternatives(self, depth: int) -> Group:
        if depth > _DEPTH_MAX:
            raise self.error(f"parentheses are nested over {_DEPTH_MAX} deep")
        flags = self.flags
        options: list[list[Node]] = [[]]
        while self.at < len(self.text) and self.peek() != ")":
            if self.peek() == "|":
                self.at += 1
                options.append([])
                continue
            node = self.atom(depth)
            if node is not None:
                options[-1].append(self.repeated(node))
        self.flags = flags
        return Group(options)

    def atom(self, depth: int) -> Node | None:
        character = self.take()
        if character == "(":
            return self.group(depth)
        if character == "[":
            return self.char_class()
        if character == "\\":
            return self.escape()
        if character == ".":
            return Chars(((0, _LAST),) if "s" in self.flags else ((0, 9), (11, _LAST)))
        if character == "^":
            return Assertion("line begin" if "m" in self.flags else "begin")
        if character == "$":
            return Assertion("line end" if "m" in self.flags else "end")
        if character in "*+?":
            raise self.error(f"{character!r} has nothing to repeat", self.at - 1)
        return self.literal(character)

    def literal(self, character: str) -> Chars:
        return Chars(((ord(character), ord(character)),), folds_case="i" in self.flags)

    def group(self, depth: int) -> Node | None:
        start = self.at - 1
        flags = self.flags
        if self.peek() == "?":
            self.at += 1
            if self.peek(2) == "P<" or (self.peek() == "<" and self.peek(2) not in {"<=", "<!"}):
                name_end = self.text.find(">", self.at)
                name = self.text[self.at + self.peek(2).index("<") + 1 : name_end]
                if name_end < 0 or not name.replace("_", "a").isalnum():
                    raise self.error("the group's name is missing or malformed")
                self.at = name_end + 1
            elif self.set_flags():
                return None
        node = self.alternatives(depth + 1)
        if self.peek() != ")":
            raise self.error("this parenthesis is never closed", start)
        self.at += 1
        self.flags = flags
        return node

    def set_flags(self) -> bool:
        """Read `i-s:` or `i-s)`. True when it was the latter: the flags hold for the rest of the group around."""
        is_on = True
        flags = set(self.flags)
        while True:
            character = self.take()
            if character in "imsU":
                (flags.add if is_on else flags.discard)(character)
            elif character == "-" and is_on:
                is_on = False
            elif character in ":)":
                self.flags = frozenset(flags)
                return character == ")"
            else:
                raise self.error(f"look-around and '(?{character}' are not part of RE2", self.at - 1)

    def repeated(self, node: Node) -> Node:
        while self.at < len(self.text):
            start = self.at
            bounds = self.bounds()
            if bounds is None:
                return node
            least, most = bounds
            if least > _REPEAT_MAX or (most or 0) > _REPEAT_MAX or (most is not None and most < least):
                raise self.error(f"the repetition {self.text[start : self.at]!r} is out of range (0 to {_REPEAT_MAX})", start)
            if self.peek() == "?":  # lazy: the same texts match
                self.at += 1
            node = Repeat(node, least, most)
        return node

    def bounds(self) -> tuple[int, int | None] | None:
        simple: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
        character = self.peek()
        if character in simple:
            self.at += 1
            return simple[character]
        if character != "{":
            return None
        end = self.text.find("}", self.at)
        least, comma, most = self.text[self.at + 1 : max(end, self.at + 1)].partition(",")
        if end < 0 or not _is_count(least) or not (most == "" or _is_count(most)):
            return None  # a brace like any other character; `atom` takes it
        self.at = end + 1
        return int(least), int(least) if not comma else int(most) if most else None

    def escape(self) -> Node:
        character = self.take()
        if character in _ASSERTIONS:
            return Assertion(_ASSERTIONS[character])
        if character == "Q":
            end = self.text.find("\\E", self.at)
            quoted = self.text[self.at :] if end < 0 else self.text[self.at : end]
            self.at = len(self.text) if end < 0 else end + 2
            return Group([[self.literal(c) for c in quoted]])
        if character.lower() in _PERL:
            return Chars(_PERL[character.lower()], is_negated=character.isupper())
        if character in "pP":
            return Chars((), (self.category(negate=character == "P"),))
        return self.literal(self.escaped(character))

    def escaped(self, character: str) -> str:
        """The character that `\\character...` stands for."""
        if character in _ESCAPES:
            return _ESCAPES[character]
        if character == "x":
            return self.hexadecimal()
        if character in "01234567" and (character == "0" or (self.peek() or " ") in "01234567"):
            digits = character
            while len(digits) < 3 and self.peek() and self.peek() in "01234567":
                digits += self.take()
            return chr(int(digits, 8))
        if character.isascii() and character.isalnum():
            raise self.error(f"the escape '\\{character}' is not part of RE2", self.at - 2)
        return character

    def hexadecimal(self) -> str:
        if self.peek() == "{":
            end = self.text.find("}", self.at)
            digits = self.text[self.at + 1 : max(end, self.at)]
            self.at = end + 1
        else:
            digits = self.peek(2)
            self.at += 2
        if not digits or any(d not in "0123456789abcdefABCDEF" for d in digits) or int(digits, 16) > _LAST:
            raise self.error("'\\x' needs two hexadecimal digits, or some in braces")
        return chr(int(digits, 16))

    def category(self, *, negate: bool) -> str:
        name = self.take()
        if name == "{":
            end = self.text.find("}", self.at)
            name = self.text[self.at : max(end, self.at)]
            self.at = end + 1
        if name.startswith("^"):
            negate, name = not negate, name[1:]
        if name not in _CATEGORIES:
            raise self.error(f"the character class '\\p{{{name}}}' is not known here; general categories such as L or Nd are")
        return f"!{name}" if negate else name

    def char_class(self) -> Chars:
        start = self.at - 1
        is_negated = self.peek() == "^"
        self.at += is_negated
        ranges: list[tuple[int, int]] = []
        categories: list[str] = []
        is_first = True
        while self.peek() != "]" or is_first:
            if self.at >= len(self.text):
                raise self.error("this bracket is never closed", start)
            is_first = False
            self.class_item(ranges, categories)
        self.at += 1
        return Chars(tuple(ranges), tuple(categories), is_negated, "i" in self.flags)

    def class_item(self, ranges: list[tuple[int, int]], categories: list[str]) -> None:
        if self.peek(2) == "[:":
            end = self.text.find(":]", self.at)
            name = self.text[self.at + 2 : max(end, self.at)]
            known = _POSIX.get(name.removeprefix("^"))
            if known is None:
                raise self.error(f"the character class '[:{name}:]' does not exist")
            self.at = end + 2
            ranges.extend(_inverted(known) if name.startswith("^") else known)
            return
        low = self.take()
        if low == "\\":
            character = self.take()
            if character.lower() in _PERL:
                known = _PERL[character.lower()]
                ranges.extend(_inverted(known) if character.isupper() else known)
                return
            if character in "pP":
                categories.append(self.category(negate=character == "P"))
                return
            low = self.escaped(character)
        high = low
        if self.peek() == "-" and self.peek(2) not in {"-]", "-"}:
            self.at += 1
            high = self.take()
            if high == "\\":
                high = self.escaped(self.take())
            if high < low:
                raise self.error(f"the range {low}-{high} runs backwards")
        ranges.append((ord(low), ord(high)))


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 6


def _inverted(ranges: _Ranges) -> _Ranges:
    result = []
    next_free = 0
    for low, high in sorted(ranges):
        if low > next_free:
            result.append((next_free, low - 1))
        next_free = high + 1
    return (*result, (next_free, _LAST))


_CATEGORIES = frozenset(
    major + minor
    for major, minors in {"L": "ultmo", "M": "nce", "N": "dlo", "P": "cdseifo", "S": "mcko", "Z": "slp", "C": "cfos"}.items()
    for minor in ("", *minors)
)
