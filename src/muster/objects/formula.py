"""The language of SchedulingPolicy formulas: a text becomes a short list of operations over named numbers, or a FormulaError.

| | |
|---|---|
| numbers | `3`, `0.5`, `1e9`, `1_000_000` |
| names | factors of the policy, and `weighted_sum`: the sum of weight times value over all factors |
| operators | `+ - * / // % **`, `< <= > >= == !=` (1 or 0, and chains as `0 < a < b`), `and or not` (1 or 0), `a if c else b` |
| functions | those of `FUNCTIONS` |

Precedence is Python's. Everything is a float64: division by zero and overflow give infinity or NaN, never a fault. There is
nothing else: no attributes, no subscripts, no strings, no other calls, no assignment.

The outcome is flat: `Parsed.steps` in the order in which to do them, each naming earlier ones. Equal parts are there once. So
nothing that reads it needs recursion, and its size bounds its cost: at most STEPS_MAX steps and COST_MAX in all. The parser is
the one recursive part; it stops at DEPTH_MAX.

Pure, and safe for any text: admission calls this on what users write.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from typing import Final

import msgspec

from muster.objects.formula_tokens import TEXT_LEN_MAX, WORDS, FormulaError, Token, shown, tokens_of

__all__ = ["COST_MAX", "DEPTH_MAX", "FUNCTIONS", "RESERVED", "STEPS_MAX", "TEXT_LEN_MAX", "WEIGHTED_SUM"]
__all__ += ["FormulaError", "Parsed", "Step", "parse_formula"]

DEPTH_MAX: Final = 100
STEPS_MAX: Final = 500
COST_MAX: Final = 1_000
ARGUMENTS_MAX: Final = 32
WEIGHTED_SUM: Final = "weighted_sum"

FUNCTIONS: Final[Mapping[str, tuple[int, int]]] = {
    "abs": (1, 1),
    "ceil": (1, 1),
    "clip": (3, 3),
    "exp": (1, 1),
    "floor": (1, 1),
    "isnan": (1, 1),
    "log": (1, 1),
    "log10": (1, 1),
    "log1p": (1, 1),
    "log2": (1, 1),
    "max": (2, ARGUMENTS_MAX),
    "min": (2, ARGUMENTS_MAX),
    "round": (1, 1),
    "sign": (1, 1),
    "sqrt": (1, 1),
    "step": (1, 1),
    "tanh": (1, 1),
    "where": (3, 3),
}
"""Each with the fewest and the most arguments it takes."""
RESERVED: Final = frozenset(FUNCTIONS) | WORDS | {WEIGHTED_SUM}
"""What no factor may be called."""

_COSTS: Final = {"**": 10, "exp": 5, "log": 5, "log10": 5, "log1p": 5, "log2": 5, "tanh": 5, "//": 5, "%": 5}
"""Of an operation over a column, relative to an addition."""

_OR, _AND, _NOT, _COMPARE, _ADD, _MULTIPLY, _SIGN, _POWER = range(1, 9)
_BINARY: Final[Mapping[str, int]] = {
    "or": _OR,
    "and": _AND,
    **dict.fromkeys(("<", "<=", ">", ">=", "==", "!="), _COMPARE),
    **dict.fromkeys(("+", "-"), _ADD),
    **dict.fromkeys(("*", "/", "//", "%"), _MULTIPLY),
    "**": _POWER,
}
_MEANT: Final[Mapping[str, str]] = {
    "pow": "use ** for powers",
    "power": "use ** for powers",
    "ln": "write log(...), which is the natural logarithm",
    "sum": "write a + b, or weighted_sum",
    "iff": "write `a if condition else b`",
    "true": "write 1",
    "false": "write 0",
    "none": "a formula knows numbers only; a factor's `default` stands for what is missing",
    "nan": "a formula knows numbers only; a factor's `default` stands for what is missing",
    "inf": "write a large number, such as 1e300",
    "infinity": "write a large number, such as 1e300",
    "random": "a formula gives the same result each time",
    "now": "the time comes in through factors such as WaitingSeconds and SecondsToDeadline",
    "time": "the time comes in through factors such as WaitingSeconds and SecondsToDeadline",
    "lambda": "a formula has no functions of its own",
    "import": "a formula has nothing but numbers, factors, operators and functions",
}


class Step(msgspec.Struct, frozen=True):
    """One operation. `op` is `number` (of `value`), `name` (the factor `name`), an operator, `neg`, or a function.

    `a if c else b` is `where(c, a, b)`; a chain of comparisons is joined by `and`. `args` are indices of earlier steps.
    """

    op: str
    args: tuple[int, ...] = ()
    value: float = 0.0
    name: str = ""


class Parsed(msgspec.Struct, frozen=True):
    """A formula that is right. `names` are those that it uses, in order; `result` is the index of the last step to do."""

    text: str
    steps: tuple[Step, ...]
    result: int
    names: tuple[str, ...]
    cost: int


def parse_formula(text: str, names: Collection[str]) -> Parsed:
    """`text` over the factors `names`; FormulaError, with a position and a hint, when it is wrong."""
    parser = _Parser(text, names)
    return parser.formula()


class _Parser:
    """Pratt's way: each operator has a strength, and takes what stands to its right as long as that binds more strongly."""

    def __init__(self, text: str, names: Collection[str]) -> None:
        self._text = text
        self._known = frozenset(names)
        self._tokens = tokens_of(text)
        self._at = 0
        self._depth = 0
        self._steps: list[Step] = []
        self._index: dict[Step, int] = {}
        self._cost = 0

    def formula(self) -> Parsed:
        if self._tokens[0].kind == "end":
            raise FormulaError(self._text, 1, "the formula is empty", "leave it out to get weighted_sum")
        result = self._choice()
        token = self._peek()
        if token.kind != "end":
            raise self._unexpected_after(token)
        used = tuple(step.name for step in self._steps if step.op == "name")
        return Parsed(self._text, tuple(self._steps), result, used, self._cost)

    # What the grammar says, from the weakest to the strongest.

    def _choice(self) -> int:
        """`a if c else b`, or what binds more strongly."""
        self._descend()
        chosen = self._binary(_OR)
        if self._is_next("if"):
            begin = self._next()
            condition = self._binary(_OR)
            if not self._is_next("else"):
                hint = "write `a if condition else b`"
                raise FormulaError(self._text, begin.position, "this `if` has no `else`", hint)
            self._next()
            chosen = self._add(begin, "where", condition, chosen, self._choice())
        self._depth -= 1
        return chosen

    def _binary(self, strength: int) -> int:
        left = self._prefix(strength)
        while True:
            token = self._peek()
            power = _BINARY.get(token.text, 0) if token.kind in ("operator", "word") else 0
            if power == 0 or power < strength:
                return left
            if power == _COMPARE:
                left = self._comparisons(left)
                continue
            self._next()
            # ** takes from the right, and its right side may have a sign: 2 ** -1.
            right = self._deeper(_SIGN if power == _POWER else power + 1)
            left = self._add(token, token.text, left, right)

    def _deeper(self, strength: int) -> int:
        self._descend()
        result = self._binary(strength)
        self._depth -= 1
        return result

    def _descend(self) -> None:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            hint = "write it flatter, or move a part into a factor"
            raise FormulaError(self._text, self._peek().position, f"nested more than {DEPTH_MAX} deep", hint)

    def _comparisons(self, left: int) -> int:
        """`a < b <= c` is `a < b and b <= c`."""
        joined: int | None = None
        while _BINARY.get(self._peek().text, 0) == _COMPARE:
            token = self._next()
            right = self._deeper(_COMPARE + 1)
            one = self._add(token, token.text, left, right)
            joined = one if joined is None else self._add(token, "and", joined, one)
            left = right
        return left if joined is None else joined

    def _prefix(self, strength: int) -> int:
        token = self._next()
        if token.kind == "number":
            return self._add(token, "number", value=token.value)
        if token.kind == "name":
            return self._call(token) if self._is_next("(") else self._name(token)
        if token.text == "(":
            inner = self._choice()
            self._close(token)
            return inner
        if token.text in ("-", "+") and strength <= _SIGN:
            inner = self._deeper(_SIGN)
            return self._add(token, "neg", inner) if token.text == "-" else inner
        if token.text == "not" and strength <= _NOT:
            return self._add(token, "not", self._deeper(_NOT))
        raise self._unexpected(token)

    def _call(self, token: Token) -> int:
        if token.text not in FUNCTIONS:
            raise self._no_function(token)
        opened = self._next()
        args: list[int] = []
        if not self._is_next(")"):
            args.append(self._choice())
            while self._is_next(","):
                comma = self._next()
                if len(args) >= ARGUMENTS_MAX:
                    raise FormulaError(
                        self._text, comma.position, f"more than {ARGUMENTS_MAX} arguments", f"nest two calls of {token.text}"
                    )
                args.append(self._choice())
        self._close(opened)
        fewest, most = FUNCTIONS[token.text]
        if not fewest <= len(args) <= most:
            wanted = str(fewest) if fewest == most else f"{fewest} or more"
            message = f"{token.text} takes {wanted} argument{'' if wanted == '1' else 's'}, not {len(args)}"
            raise FormulaError(self._text, token.position, message, _USES.get(token.text, f"write {token.text}(x)"))
        return self._add(token, token.text, *args)

    def _name(self, token: Token) -> int:
        if token.text in self._known or token.text == WEIGHTED_SUM:
            return self._add(token, "name", name=token.text)
        if token.text in FUNCTIONS:
            hint = _USES.get(token.text, f"write {token.text}(x)")
            raise FormulaError(self._text, token.position, f"{token.text} is a function and needs arguments", hint)
        raise FormulaError(self._text, token.position, f"no factor is called {shown(token.text)}", self._nearest(token.text))

    # Steps.

    def _add(self, token: Token, op: str, *args: int, value: float = 0.0, name: str = "") -> int:
        """The index of the step, which may be there already."""
        step = Step(op, args, value, name)
        index = self._index.get(step)
        if index is None:
            index = self._index[step] = len(self._steps)
            self._steps.append(step)
            self._cost += _COSTS.get(op, 1) * max(len(args) - 1, 1) if args else 0
            if len(self._steps) > STEPS_MAX:
                hint = "move a part into a factor"
                raise FormulaError(self._text, token.position, f"more than {STEPS_MAX} operations up to here", hint)
            if self._cost > COST_MAX:
                hint = "use fewer powers, exponentials and logarithms, which cost most"
                raise FormulaError(self._text, token.position, f"the formula costs more than {COST_MAX} up to here", hint)
        return index

    # Tokens and messages.

    def _peek(self) -> Token:
        return self._tokens[self._at]

    def _next(self) -> Token:
        token = self._tokens[self._at]
        if token.kind != "end":
            self._at += 1
        return token

    def _is_next(self, text: str) -> bool:
        token = self._peek()
        return token.text == text and token.kind in ("operator", "word")

    def _close(self, opened: Token) -> None:
        token = self._peek()
        if self._is_next(")"):
            self._next()
            return
        if token.kind == "end":
            raise FormulaError(self._text, opened.position, "this parenthesis is not closed", "add `)`")
        raise self._unexpected_after(token)

    def _unexpected(self, token: Token) -> FormulaError:
        """`token` stands where a value should begin."""
        if token.kind == "end":
            return FormulaError(self._text, token.position, "the formula ends where a value should follow", "add a value")
        before = self._tokens[self._at - 2].text if self._at >= 2 else ""
        hint = "put a number, a factor or a parenthesis here"
        if token.text == "*" and before == "*":
            hint = "use ** for powers, without a space"
        elif token.text == "not":
            hint = "put `not ...` into parentheses"
        elif token.text == ")" and before == "(":
            hint = "put a value between the parentheses"
        elif token.text == "if":
            hint = "write `a if condition else b`"
        return FormulaError(self._text, token.position, f"{shown(token.text)} stands where a value should be", hint)

    def _unexpected_after(self, token: Token) -> FormulaError:
        """`token` stands where an operator should be."""
        if token.text == ")":
            return FormulaError(self._text, token.position, "this parenthesis was never opened", "remove it, or add `(` before")
        if token.text == ",":
            hint = "commas separate the arguments of functions; a decimal point is `.`"
            return FormulaError(self._text, token.position, "a comma can't stand here", hint)
        if token.text == "else":
            return FormulaError(self._text, token.position, "this `else` has no `if`", "write `a if condition else b`")
        if token.text == "not":
            hint = "write `and not`, `or not`, or `!=`"
        elif token.text == "if":
            hint = "put `a if condition else b` into parentheses"
        else:
            hint = "put an operator, such as *, between them"
        return FormulaError(self._text, token.position, f"{shown(token.text)} follows right after a value", hint)

    def _no_function(self, token: Token) -> FormulaError:
        word = token.text
        if word in self._known or word == WEIGHTED_SUM:
            return FormulaError(
                self._text, token.position, f"{shown(word)} is a number, not a function", f"write {word} * (...)"
            )
        hint = _MEANT.get(word.lower(), "")
        near = difflib.get_close_matches(word.lower(), FUNCTIONS, 1)
        if not hint and near:
            hint = f"did you mean {near[0]}?"
        return FormulaError(
            self._text, token.position, f"there is no function {shown(word)}", hint or f"there are {', '.join(FUNCTIONS)}"
        )

    def _nearest(self, word: str) -> str:
        hint = _MEANT.get(word.lower())
        if hint:
            return hint
        known = sorted(self._known)
        near = difflib.get_close_matches(word.lower(), [*known, *FUNCTIONS, WEIGHTED_SUM], 1)
        if near:
            return f"did you mean {near[0]}?"
        if not known:
            return "the policy has no factors; add one under spec.factors"
        more = f" and {len(known) - 12} more" if len(known) > 12 else ""
        return f"the policy has {', '.join(known[:12])}{more}"


_USES: Final[Mapping[str, str]] = {
    "clip": "write clip(x, lowest, highest)",
    "max": "write max(a, b)",
    "min": "write min(a, b)",
    "where": "write where(condition, then, otherwise)",
}
