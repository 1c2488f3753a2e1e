"""Regular expressions for schemas that users write: RE2's syntax, matched in time linear in the text.

Python's own `re` backtracks, so that a pattern such as `^(a+)+$` in somebody's CRD could hold up a server for hours on thirty
characters. Here a pattern becomes a small program (`Pattern`) that is run over the text with all its alternatives at once;
sets of alternatives that have been seen are remembered per next character, so a warm pattern costs one look-up a character.

`Pattern.search` says whether the pattern occurs anywhere, which is what JSON Schema's `pattern` means. Go's rules hold: the
letters d, w, s and b after a backslash are ASCII, `$` is the very end, look-around and back-references do not exist. Unicode
scripts (Greek, Han) as character classes are the one part of RE2 that is missing.

Pure but for the memory inside a `Pattern`, which is bounded. Not for several threads at once.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from muster.objects.regex_syntax import Assertion, Chars, Node, Repeat, parse

PROGRAM_LEN_MAX = 5000
"""Instructions; `{n,m}` repeats its body, so this is where `(a{500}){500}` ends."""
TEXT_LEN_MAX = 16_384
"""Longer text is not matched: the caller has to refuse it."""
_STATES_MAX = 2000
_STEPS_MAX = 50_000
_MATCHED = -1
_BEGIN, _END = "begin", "end"


class _Split:
    __slots__ = ("targets",)

    def __init__(self, targets: list[int]) -> None:
        self.targets = targets


_Instruction = Chars | Assertion | _Split | None
"""None is the end: here the pattern has matched."""


class Pattern:
    """A compiled pattern. ValueError when `text` is no pattern of RE2's syntax, naming what and where."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._program: list[_Instruction] = []
        self._emit(parse(text))
        self._add(None)
        self._forget()

    def search(self, text: str) -> bool:
        """Whether the pattern occurs in `text`. ValueError when `text` is longer than `TEXT_LEN_MAX`."""
        if len(text) > TEXT_LEN_MAX:
            raise ValueError(f"text of {len(text)} characters; patterns are checked against {TEXT_LEN_MAX} at most")
        if len(self._states) > _STATES_MAX or self._steps > _STEPS_MAX:
            self._forget()
        rows = self._rows
        state = 0
        for character in text:
            following = rows[state].get(character)
            if following is None:
                following = rows[state][character] = self._step(state, character)
            if following == _MATCHED:
                return True
            state = following
        end = rows[state].get("")
        if end is None:
            end = rows[state][""] = self._step(state, "")
        return end == _MATCHED

    def _forget(self) -> None:
        start = (frozenset({0}), _BEGIN)
        self._states: list[tuple[frozenset[int], str]] = [start]
        self._numbers: dict[tuple[frozenset[int], str], int] = {start: 0}
        self._rows: list[dict[str, int]] = [{}]
        self._steps = 0

    def _step(self, number: int, character: str) -> int:
        """The number of the state after `character` ("" is the end of the text), or _MATCHED."""
        self._steps += 1
        places, before = self._states[number]
        reached: set[int] = set()
        if self._close(places, before, character or _END, reached):
            return _MATCHED
        if not character:
            return 0
        following = {0}  # a match may also begin at the next character
        for place in reached:
            instruction = self._program[place]
            if isinstance(instruction, Chars) and instruction.accepts(character):
                following.add(place + 1)
        state = (frozenset(following), character if character == "\n" else "w" if _is_word(character) else "-")
        known = self._numbers.get(state)
        if known is None:
            known = self._numbers[state] = len(self._states)
            self._states.append(state)
            self._rows.append({})
        return known

    def _close(self, places: frozenset[int], before: str, after: str, reached: set[int]) -> bool:
        """Follow everything that takes no character, into `reached`. True when the end of the program is among it."""
        waiting = list(places)
        seen: set[int] = set()
        while waiting:
            place = waiting.pop()
            if place in seen:
                continue
            seen.add(place)
            instruction = self._program[place]
            if instruction is None:
                return True
            if isinstance(instruction, _Split):
                waiting.extend(instruction.targets)
            elif isinstance(instruction, Assertion):
                if _holds(instruction.kind, before, after):
                    waiting.append(place + 1)
            else:
                reached.add(place)
        return False

    def _add(self, instruction: _Instruction) -> int:
        if len(self._program) >= PROGRAM_LEN_MAX:
            raise ValueError(f"the pattern is too large: with its repetitions written out it has over {PROGRAM_LEN_MAX} steps")
        self._program.append(instruction)
        return len(self._program) - 1

    def _emit(self, node: Node) -> None:
        if isinstance(node, Chars | Assertion):
            self._add(node)
        elif isinstance(node, Repeat):
            self._emit_repeat(node)
        elif len(node.options) == 1:
            for item in node.options[0]:
                self._emit(item)
        else:
            self._emit_options(node.options)

    def _emit_options(self, options: Sequence[Sequence[Node]]) -> None:
        split = _Split([])
        self._add(split)
        leaving = []
        for option in options:
            split.targets.append(len(self._program))
            for item in option:
                self._emit(item)
            leave = _Split([])
            self._add(leave)
            leaving.append(leave)
        for leave in leaving:
            leave.targets.append(len(self._program))

    def _emit_repeat(self, node: Repeat) -> None:
        for _ in range(node.least):
            self._emit(node.body)
        if node.most is None:
            loop = _Split([])
            start = self._add(loop)
            self._emit(node.body)
            self._add(_Split([start]))
            loop.targets += [start + 1, len(self._program)]
            return
        leaving = []
        for _ in range(node.most - node.least):
            leave = _Split([])
            leave.targets.append(self._add(leave) + 1)
            leaving.append(leave)
            self._emit(node.body)
        for leave in leaving:
            leave.targets.append(len(self._program))


def _is_word(character: str) -> bool:
    return character.isascii() and (character.isalnum() or character == "_")


def _holds(kind: str, before: str, after: str) -> bool:
    """`before` is `begin`, a newline, `w` for a word character or `-`; `after` is the next character or `end`."""
    if kind == "begin":
        return before == _BEGIN
    if kind == "end":
        return after == _END
    if kind == "line begin":
        return before in {_BEGIN, "\n"}
    if kind == "line end":
        return after in {_END, "\n"}
    at_edge = (before == "w") != (after != _END and _is_word(after))
    return at_edge if kind == "word edge" else not at_edge


@functools.lru_cache(maxsize=4096)
def compile_pattern(text: str) -> Pattern:
    """The compiled form of `text`, remembered. ValueError when it is no pattern."""
    return Pattern(text)
