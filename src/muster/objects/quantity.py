"""Kubernetes quantities: `500m`, `1.5Gi`, `12e6`, exact.

A quantity is a whole number of billionths; finer parts are rounded away from zero when text is read, as Kubernetes does, so
that whoever asks for something gets something. It also remembers the family it was written in (decimal suffix, binary suffix,
exponent), and its text is canonical within that family: no fraction, the largest suffix that keeps the number whole.

Pure and immutable. Equal amounts are equal and hash alike whatever their family. Invariants: `parse(str(q)) == q`; addition,
subtraction and multiplication by whole numbers are exact.
"""

from __future__ import annotations

import enum
import functools
import math
import re
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final

_NANO: Final = 10**9
_BINARY_MAX: Final = 2**63 - 1
"""Kubernetes caps what is written with a binary suffix here; other families go on."""
_AMOUNT_MAX: Final = 10**36
_TEXT_LEN_MAX: Final = 128

_ACCEPTED: Final = (
    "a quantity is a number with an optional suffix: n u m k M G T P E (powers of 1000), Ki Mi Gi Ti Pi Ei (powers of 1024), "
    "or an exponent such as e3; for example 500m, 1.5Gi, 12e6"
)
_TEXT: Final = re.compile(
    r"([+-]?)(\d*)(?:\.(\d*))?(?:(n|u|m|k|M|G|T|P|E)|([KMGTPE]i)|[eE]([+-]?\d{1,6}))?",
    re.ASCII,
)
_DECIMAL_EXPONENTS: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_DECIMAL_SUFFIXES: Final = {exponent: suffix for suffix, exponent in _DECIMAL_EXPONENTS.items()}
_BINARY_SUFFIXES: Final = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


class Family(enum.Enum):
    """How a quantity is written."""

    DECIMAL = "DecimalSI"
    BINARY = "BinarySI"
    EXPONENT = "DecimalExponent"


@functools.total_ordering
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Quantity:
    """An exact amount. Make one with `parse`, `of` or `of_milli`."""

    nanos: int = 0
    family: Family = Family.DECIMAL

    def __post_init__(self) -> None:
        if abs(self.nanos) > _AMOUNT_MAX * _NANO:
            raise ValueError(f"a quantity is out of range: its magnitude may be at most 1e{len(str(_AMOUNT_MAX)) - 1}")

    @staticmethod
    def parse(value: str | int | float) -> Quantity:
        """Reads what a manifest may hold. ValueError names the value and the accepted form."""
        if isinstance(value, str):
            return _parse_text(value)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{_shown(value)} is {type(value).__name__}, not a quantity; {_ACCEPTED}")
        if isinstance(value, int):
            if abs(value) > _AMOUNT_MAX:
                raise ValueError(f"{_shown(value)} is out of range for a quantity; the limit is 1e36")
            return Quantity(value * _NANO)
        if not math.isfinite(value):
            raise ValueError(f"{value} is not a quantity; {_ACCEPTED}")
        return _parse_text(repr(value))

    @staticmethod
    def of(amount: int | Fraction, family: Family = Family.DECIMAL) -> Quantity:
        """`amount` units; parts below a billionth are rounded away from zero."""
        return Quantity(_away_from_zero(amount * _NANO), family)

    @staticmethod
    def of_milli(milli: int, family: Family = Family.DECIMAL) -> Quantity:
        return Quantity(milli * 1_000_000, family)

    def value(self) -> int:
        """Whole units, rounded away from zero: what is counted never looks smaller than it is."""
        return _divided(self.nanos, _NANO)

    def milli(self) -> int:
        """Thousandths, rounded away from zero."""
        return _divided(self.nanos, 1_000_000)

    def fraction(self) -> Fraction:
        """The exact amount."""
        return Fraction(self.nanos, _NANO)

    def scaled(self, factor: Fraction | int | float) -> Quantity:
        """This times `factor`, rounded away from zero at the billionth."""
        return Quantity(_away_from_zero(self.nanos * Fraction(factor)), self.family)

    def in_family(self, family: Family) -> Quantity:
        """The same amount, to be written another way."""
        return Quantity(self.nanos, family)

    def __str__(self) -> str:
        if self.nanos == 0:
            return "0"
        if self.family is Family.BINARY and self._is_binary_text():
            return _binary_text(self.nanos // _NANO)
        return _decimal_text(self.nanos, as_exponent=self.family is Family.EXPONENT)

    def __repr__(self) -> str:
        return f"Quantity({str(self)!r})"

    def __float__(self) -> float:
        return self.nanos / _NANO

    def __bool__(self) -> bool:
        return self.nanos != 0

    def __hash__(self) -> int:
        return hash(self.fraction())

    def __eq__(self, other: object) -> bool:
        nanos = _nanos_of(other)
        return NotImplemented if nanos is None else self.nanos == nanos

    def __lt__(self, other: Quantity | int) -> bool:
        nanos = _nanos_of(other)
        return NotImplemented if nanos is None else self.nanos < nanos

    def __add__(self, other: Quantity | int) -> Quantity:
        nanos = _nanos_of(other)
        return NotImplemented if nanos is None else Quantity(self.nanos + nanos, self._family_with(other))

    def __radd__(self, other: int) -> Quantity:
        return self.__add__(other)

    def __sub__(self, other: Quantity | int) -> Quantity:
        nanos = _nanos_of(other)
        return NotImplemented if nanos is None else Quantity(self.nanos - nanos, self._family_with(other))

    def __mul__(self, factor: int) -> Quantity:
        if isinstance(factor, bool) or not isinstance(factor, int):
            return NotImplemented
        return Quantity(self.nanos * factor, self.family)

    def __rmul__(self, factor: int) -> Quantity:
        return self.__mul__(factor)

    def __neg__(self) -> Quantity:
        return Quantity(-self.nanos, self.family)

    def __abs__(self) -> Quantity:
        return Quantity(abs(self.nanos), self.family)

    def _family_with(self, other: Quantity | int) -> Family:
        """A sum is written like its first term that is not zero, so that totals that start from nothing look right."""
        return other.family if self.nanos == 0 and isinstance(other, Quantity) else self.family

    def _is_binary_text(self) -> bool:
        """Small and fractional amounts are written in decimal: that is exact. So is what a binary suffix may not express."""
        whole, rest = divmod(abs(self.nanos), _NANO)
        return rest == 0 and 1024 <= whole <= _BINARY_MAX


ZERO: Final = Quantity()


def canonical(value: str | int | float) -> str:
    """The canonical text of what a manifest holds: `1000m` is `1`. ValueError as in `Quantity.parse`."""
    return str(Quantity.parse(value))


def as_kept(value: Any, *, is_listed: bool) -> Any:
    """`value` as Kubernetes keeps it: canonical text. What is no quantity is returned as it is, for a check to refuse.

    `is_listed`: it stands in a list of resources, where anything finer than a thousandth is rounded away from zero.
    What is canonical already comes back itself.
    """
    try:
        if type(value) is str:
            text = _kept_text(value, is_listed)
            return value if text == value else text
        if type(value) is int:
            return str(Quantity.parse(value))
        if type(value) is float:
            # Written out: the exponent in a float's text is Python's choice, not the family that the sender chose.
            return _kept_text(f"{Decimal(repr(value)):f}", is_listed)
    except ValueError:
        pass
    return value


@functools.lru_cache(maxsize=8192)
def _kept_text(text: str, is_listed: bool) -> str:
    quantity = _parse_text(text)
    if is_listed and quantity.nanos % 1_000_000:
        quantity = Quantity.of_milli(quantity.milli(), quantity.family)
    return str(quantity)


@functools.lru_cache(maxsize=8192)
def _parse_text(text: str) -> Quantity:
    match = _TEXT.fullmatch(text) if len(text) <= _TEXT_LEN_MAX else None
    if match is None or not (match[2] or match[3]):
        raise ValueError(f"{_shown(text)} is not a quantity; {_ACCEPTED}")
    sign, whole, decimals, suffix, binary, exponent = match.groups(default="")
    digits = int(whole + decimals)
    if binary:
        family = Family.BINARY
        numerator, divisor = digits * 1024 ** _BINARY_SUFFIXES.index(binary) * _NANO, 10 ** len(decimals)
    else:
        family = Family.EXPONENT if exponent else Family.DECIMAL
        power = (int(exponent) if exponent else _DECIMAL_EXPONENTS[suffix]) - len(decimals) + 9
        # Bounded before the power is taken: 1e999999 must not cost a million digits.
        if digits and power > 50:
            raise ValueError(f"{_shown(text)} is out of range for a quantity; the limit is 1e36")
        numerator, divisor = digits * 10 ** max(0, min(power, 50)), 10 ** min(max(0, -power), 2 * _TEXT_LEN_MAX)
    nanos = -(-numerator // divisor)
    if family is Family.BINARY:
        nanos = min(nanos, _BINARY_MAX * _NANO)
        if nanos < _NANO:
            family = Family.DECIMAL
    if nanos > _AMOUNT_MAX * _NANO:
        raise ValueError(f"{_shown(text)} is out of range for a quantity; the limit is 1e36")
    return Quantity(-nanos if sign == "-" else nanos, family)


def _decimal_text(nanos: int, *, as_exponent: bool) -> str:
    """`nanos` with the largest power of 1000 that divides it; a suffix knows no power above E, an exponent goes on."""
    exponent = -9
    while nanos % 1000 == 0 and (as_exponent or exponent < 18):
        nanos //= 1000
        exponent += 3
    if not as_exponent:
        return f"{nanos}{_DECIMAL_SUFFIXES[exponent]}"
    return f"{nanos}e{exponent}" if exponent else str(nanos)


def _binary_text(amount: int) -> str:
    power = 0
    while amount % 1024 == 0 and power < len(_BINARY_SUFFIXES) - 1:
        amount //= 1024
        power += 1
    return f"{amount}{_BINARY_SUFFIXES[power]}"


def _nanos_of(other: object) -> int | None:
    if isinstance(other, Quantity):
        return other.nanos
    if isinstance(other, int) and not isinstance(other, bool):
        return other * _NANO
    return None


def _divided(nanos: int, divisor: int) -> int:
    return -(-nanos // divisor) if nanos > 0 else nanos // divisor


def _away_from_zero(amount: int | Fraction) -> int:
    return math.ceil(amount) if amount > 0 else math.floor(amount)


def _shown(value: object) -> str:
    """The value for a message, cut short: what arrives from the network may be long."""
    if isinstance(value, int) and abs(value) > _AMOUNT_MAX:
        return f"a number of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
