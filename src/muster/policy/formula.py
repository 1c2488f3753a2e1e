"""Formulas at work: what `muster.objects.formula` has parsed, done on columns with NumPy.

Pure. A Formula never changes after it was made and may be shared. `evaluate` never raises for any float: division by zero,
overflow and roots of negative numbers give infinity or NaN, as IEEE 754 has it. A comparison with NaN is 0 (`!=`: 1); NaN
counts as true for `and`, `or`, `not` and `if`, as in Python.

Rows are worked on in blocks, so the memory in use depends on the formula's size alone, not on how much work waits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

import numpy as np

from muster.engine.columns import Array
from muster.objects.formula import FormulaError, Parsed, parse_formula

__all__ = ["BLOCK_ROWS", "Formula", "FormulaError", "compile_formula"]

_Value = Array | np.float64
BLOCK_ROWS: Final = 8_192
"""So large that NumPy's own overhead is small, so small that a block of every step stays in the cache."""


def _as_float(test: Callable[..., Any]) -> Callable[..., Any]:
    """Of a test: 1 or 0."""
    return lambda *args: test(*args).astype(np.float64)


def _power(base: _Value, exponent: _Value) -> Any:
    if exponent.ndim == 0:
        if exponent == 2:
            return np.square(base)
        if exponent == 0.5:
            # NumPy takes the root of it where there is one exponent, and the power where there is a column of them: of minus
            # infinity, and of -0, these differ.
            return np.sqrt(np.where(np.isneginf(base), np.inf, base) + 0.0)
    return np.power(base, exponent)


def _highest(*args: _Value) -> Any:
    """Of 0 and -0 processors take the one or the other, and what is divided by it differs in all: here it is 0."""
    return functools.reduce(np.maximum, args) + 0.0


def _lowest(*args: _Value) -> Any:
    return functools.reduce(np.minimum, args) + 0.0


_OPERATIONS: Final[Mapping[str, Callable[..., Any]]] = {
    "neg": np.negative,
    "not": _as_float(np.logical_not),
    "and": _as_float(np.logical_and),
    "or": _as_float(np.logical_or),
    "<": _as_float(np.less),
    "<=": _as_float(np.less_equal),
    ">": _as_float(np.greater),
    ">=": _as_float(np.greater_equal),
    "==": _as_float(np.equal),
    "!=": _as_float(np.not_equal),
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
    "//": np.floor_divide,
    "%": np.mod,
    "**": _power,
    "abs": np.abs,
    "ceil": np.ceil,
    "clip": lambda x, low, high: _lowest(np.maximum(x, low), high),
    "exp": np.exp,
    "floor": np.floor,
    "isnan": _as_float(np.isnan),
    "log": np.log,
    "log10": np.log10,
    "log1p": np.log1p,
    "log2": np.log2,
    "max": _highest,
    "min": _lowest,
    "round": np.rint,
    "sign": lambda x: np.sign(x) + 0.0,
    "sqrt": np.sqrt,
    "step": _as_float(lambda x: np.greater_equal(x, 0)),
    "tanh": np.tanh,
    "where": lambda condition, then, otherwise: np.where(np.not_equal(condition, 0), then, otherwise),
}


class Formula:
    """A compiled formula; equal to another of the same text. `names`: the factors that it reads."""

    __slots__ = ("_constants", "_makes_column", "_program", "_result", "_size", "names", "text")

    def __init__(self, parsed: Parsed) -> None:
        self.text = parsed.text
        self.names = parsed.names
        self._size = len(parsed.steps)
        self._result = parsed.result
        self._constants: dict[int, _Value] = {}
        """Steps that need no column, worked out once."""
        self._program: list[tuple[Callable[..., Any] | None, int, tuple[int, ...], str, tuple[int, ...]]] = []
        """What to do, where to keep the outcome, of what, the name of a column, and what is needed no more afterwards."""
        self._compile(parsed)
        self._makes_column = self._result not in self._constants and parsed.steps[self._result].op != "name"
        """Whether what comes out is a column that nobody else has."""

    def evaluate(self, columns: Mapping[str, Array], length: int | None = None) -> Array:
        """The result for each row. All columns have the same length; `length` is needed only where there is no column."""
        if length is None:
            length = min((len(column) for column in columns.values()), default=1)
        with np.errstate(all="ignore"):
            return self.evaluate_quietly(columns, length)

    def evaluate_quietly(self, columns: Mapping[str, Array], length: int) -> Array:
        """`evaluate`, where the caller has told NumPy to say nothing about what is no number."""
        if length <= BLOCK_ROWS and self._makes_column:
            return np.asarray(self._block(columns), np.float64)
        result: Array = np.empty(length, np.float64)
        for begin in range(0, length, BLOCK_ROWS):
            rows = slice(begin, min(begin + BLOCK_ROWS, length))
            result[rows] = self._block({name: column[rows] for name, column in columns.items()})
        return result

    def _block(self, columns: Mapping[str, Array]) -> _Value:
        values: list[Any] = [None] * self._size
        for index, constant in self._constants.items():
            values[index] = constant
        for operation, place, args, name, spent in self._program:
            if operation is None:
                values[place] = columns[name]
            elif len(args) == 2:
                values[place] = operation(values[args[0]], values[args[1]])
            else:
                values[place] = operation(*[values[arg] for arg in args])
            for index in spent:
                values[index] = None
        outcome: _Value = values[self._result]
        return outcome

    def _compile(self, parsed: Parsed) -> None:
        with np.errstate(all="ignore"):
            for index, step in enumerate(parsed.steps):
                if step.op == "number":
                    self._constants[index] = np.float64(step.value)
                elif step.args and all(arg in self._constants for arg in step.args):
                    self._constants[index] = np.float64(_OPERATIONS[step.op](*[self._constants[arg] for arg in step.args]))
        last = {self._result: self._size}
        for index, step in enumerate(parsed.steps):
            if index not in self._constants:
                last.update((arg, max(index, last.get(arg, 0))) for arg in step.args)
        spent: dict[int, list[int]] = {}
        for arg, index in last.items():
            if arg not in self._constants:
                spent.setdefault(index, []).append(arg)
        for index, step in enumerate(parsed.steps):
            if index not in self._constants:
                operation = None if step.op == "name" else _OPERATIONS[step.op]
                self._program.append((operation, index, step.args, step.name, tuple(spent.get(index, ()))))
        needed = {arg for _, _, args, _, _ in self._program for arg in args} | {self._result}
        self._constants = {index: value for index, value in self._constants.items() if index in needed}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Formula) and (self.text, self.names) == (other.text, other.names)

    def __hash__(self) -> int:
        return hash((self.text, self.names))

    def __repr__(self) -> str:
        return f"Formula({self.text!r})"


def compile_formula(text: str, names: Collection[str]) -> Formula:
    """`text` over the factors `names`. FormulaError, with position and hint, when it is wrong or too large."""
    return Formula(parse_formula(text, names))
