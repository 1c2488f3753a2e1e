"""Bandwidth in figures: bits per second inside, exact, whatever unit it was written in. Pure.

Network units are decimal: in a bandwidth field `500Mi` is 500 Mbps, as `500M` and `500Mbps` are. Two figures of Kuscia have
units of their own: the resource `kuscia.io/bandwidth` counts whole Mbps, and `limitKBps` counts KiB per second.

Arithmetic is on whole numbers, never on floats. Invariants: `parse_bandwidth(format_bandwidth(x)) == x`; the parts of
`divide` add up to the total. Whatever is handed in, the only exception is ValueError, which names the value and what to write.
"""

from __future__ import annotations

import functools
import math
import re
from typing import Final

import msgspec

from muster.objects.quantity import Quantity

BANDWIDTH_MAX_BPS: Final = 100 * 10**12
"""100 Tbps: far above any link, and 90,000 of them still add up within 64 bits."""
LIMIT_MIN_BPS: Final = 1000
LIMIT_MAX_BPS: Final = 10**15
"""Kubernetes' own bounds for its bandwidth annotations; a limit is never added up, so it may be as large."""
MBPS: Final = 10**6
_KIB_BITS: Final = 1024 * 8
_TEXT_LEN_MAX: Final = 64
_PARTS_MAX: Final = 1_000_000

ACCEPTED: Final = (
    "write bits per second such as 500Mbps, 1.5Gbps or 64Kbps, or with a suffix alone: 500M, 10G; "
    "Mi and Gi mean the same as M and G here"
)
_POWERS: Final = {"": 0, "k": 3, "m": 6, "g": 9, "t": 12}
_UNITS: Final = (("Tbps", 10**12), ("Gbps", 10**9), ("Mbps", 10**6), ("Kbps", 10**3), ("bps", 1))
_TEXT: Final = re.compile(
    r"([+-]?)(\d*)(?:\.(\d*))?(?:([kKmMgGtT]?)(bps)|([kMGTPE])|([KMGTPE])i|[eE]([+-]?\d{1,4}))?",
    re.ASCII,
)
_LARGE_POWERS: Final = {**_POWERS, "p": 15, "e": 18}
_BYTES: Final = re.compile(r".*?(Bps|B/s|[kKMGT]i?B)", re.ASCII)
_MILLI: Final = re.compile(r"[+-]?[\d.]+[mun]", re.ASCII)


class Directions(msgspec.Struct, frozen=True):
    """An amount for each direction, as the node or pod sees it: egress is what it sends, ingress what it receives."""

    egress_bps: int = 0
    ingress_bps: int = 0

    def __bool__(self) -> bool:
        return bool(self.egress_bps or self.ingress_bps)

    def __add__(self, other: Directions) -> Directions:
        return Directions(self.egress_bps + other.egress_bps, self.ingress_bps + other.ingress_bps)

    def minus(self, held_bps: int) -> Directions:
        """What is left of each direction when `held_bps` is held back; never below nothing."""
        return Directions(max(self.egress_bps - held_bps, 0), max(self.ingress_bps - held_bps, 0))

    def holds(self, wanted: Directions) -> bool:
        return wanted.egress_bps <= self.egress_bps and wanted.ingress_bps <= self.ingress_bps

    def smaller_bps(self) -> int:
        return min(self.egress_bps, self.ingress_bps)

    def __str__(self) -> str:
        """`10Gbps` when both are the same, otherwise `egress 10Gbps, ingress 2Gbps`."""
        if self.egress_bps == self.ingress_bps:
            return format_bandwidth(self.egress_bps)
        return f"egress {format_bandwidth(self.egress_bps)}, ingress {format_bandwidth(self.ingress_bps)}"


NOTHING: Final = Directions()


def both(bps: int) -> Directions:
    """One figure for both directions."""
    return Directions(bps, bps)


def parse_bandwidth(value: object, *, bare_unit_bps: int = 1, min_bps: int = 0, max_bps: int = BANDWIDTH_MAX_BPS) -> int:
    """Bits per second. A bare number counts `bare_unit_bps` each. ValueError names the value and what to write instead.

    Zero is a bandwidth: a request for nothing, a node that takes no such requests.
    """
    if isinstance(value, str):
        return _within(_parse_text(value, bare_unit_bps), value, max_bps, min_bps)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{_shown(value)} is {type(value).__name__}, not a bandwidth; {ACCEPTED}")
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{value} is not a bandwidth; {ACCEPTED}")
        return _within(_parse_text(repr(value), bare_unit_bps), value, max_bps, min_bps)
    return _within(value * bare_unit_bps, value, max_bps, min_bps)


def mbps_to_bps(value: object) -> int:
    """The resource `kuscia.io/bandwidth`: a Kubernetes quantity that counts whole Mbps (so `1k` is 1 Gbps)."""
    try:
        amount = Quantity.parse(value).fraction()  # type: ignore[arg-type]
    except ValueError:
        raise ValueError(f"{_shown(value)} is not a whole number of Mbps; write 200 for 200 Mbps") from None
    if amount.denominator != 1:
        raise ValueError(f"{_shown(value)} is not a whole number of Mbps; write 200 for 200 Mbps")
    return _within(amount.numerator * MBPS, value, BANDWIDTH_MAX_BPS)


def kbps_to_bps(value: object) -> int:
    """Kuscia's `limitKBps`: a whole number of KiB per second."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{_shown(value)} is not a whole number of KiB per second; write 1024 for 1 MiB per second")
    return _within(value * _KIB_BITS, value, LIMIT_MAX_BPS)


def bps_to_mbps(bps: int) -> int:
    """Whole Mbps for the resource `kuscia.io/bandwidth`; what is left over is not offered."""
    return bps // MBPS


def format_bandwidth(bps: int) -> str:
    """`1.5Gbps`: the largest unit that needs no more than three decimals; exact, so that `parse_bandwidth` gives `bps` back."""
    if bps < 0:
        raise ValueError(f"{_shown(bps)} is negative; a bandwidth is 0 or more")
    if bps == 0:
        return "0bps"
    for name, unit in _UNITS:
        if bps >= unit and bps * 1000 % unit == 0:
            whole, rest = divmod(bps * 1000 // unit, 1000)
            decimals = f".{rest:03d}".rstrip("0") if rest else ""
            return f"{whole}{decimals}{name}"
    raise AssertionError("a whole number of bits per second always has a unit")


def divide(total_bps: int, parts: int) -> list[int]:
    """`total_bps` over `parts` pods: nothing is lost, no two differ by more than 1, and the first ones get the larger share."""
    if not 1 <= parts <= _PARTS_MAX:
        raise ValueError(f"{_shown(parts)} parts: a bandwidth is divided over 1 to {_PARTS_MAX:,} pods")
    if total_bps < 0:
        raise ValueError(f"{_shown(total_bps)} is negative; a bandwidth is 0 or more")
    share, rest = divmod(total_bps, parts)
    return [share + 1] * rest + [share] * (parts - rest)


def largest_share_bps(total_bps: int, parts: int) -> int:
    """The first and largest of `divide`, without making the list."""
    return -(-total_bps // max(parts, 1))


@functools.lru_cache(maxsize=4096)
def _parse_text(text: str, bare_unit_bps: int) -> int:
    match = _TEXT.fullmatch(text) if len(text) <= _TEXT_LEN_MAX else None
    if match is None or not (match[2] or match[3]):
        raise ValueError(f"{_shown(text)} is not a bandwidth; {_hint(text)}")
    sign, whole, decimals, prefix, bps, letter, binary, exponent = match.groups(default="")
    digits = int(whole + decimals)
    is_bare = not (bps or letter or binary)
    # At most four digits of exponent and 64 of number: the powers stay small.
    power = int(exponent) if exponent else _LARGE_POWERS[(prefix or letter or binary).lower()]
    power = max(min(power, 100), -200) - len(decimals)
    numerator: int = digits * (bare_unit_bps if is_bare else 1) * 10 ** max(power, 0)
    divisor: int = 10 ** max(-power, 0)
    amount, rest = divmod(numerator, divisor)
    if rest:
        raise ValueError(f"{_shown(text)} is not a whole number of bits per second; {ACCEPTED}")
    return -amount if sign == "-" else amount


def _hint(text: str) -> str:
    if _BYTES.fullmatch(text[:_TEXT_LEN_MAX]):
        return f"bytes are not taken: a byte is 8 bits, so 100MB/s is 800Mbps; {ACCEPTED}"
    if _MILLI.fullmatch(text[:_TEXT_LEN_MAX]):
        return f"a bandwidth has no thousandths: M is mega, m would be milli; {ACCEPTED}"
    return ACCEPTED


def _within(bps: int, value: object, max_bps: int, min_bps: int = 0) -> int:
    if bps < 0:
        raise ValueError(f"{_shown(value)} is negative; a bandwidth is 0 or more")
    if bps < min_bps:
        raise ValueError(f"{_shown(value)} is less than {format_bandwidth(min_bps)}, the smallest bandwidth that is taken here")
    if bps > max_bps:
        raise ValueError(f"{_shown(value)} is more than {format_bandwidth(max_bps)}, the largest bandwidth there is here")
    return bps


def _shown(value: object) -> str:
    """The value for a message, cut short: what arrives from the network may be long."""
    if isinstance(value, int) and abs(value) > 10**36:
        return f"a number of {value.bit_length()} bits"
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a list or so that is too deep, or holds a number too long, to be printed
        text = f"a {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."
