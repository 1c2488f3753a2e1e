"""Plots as SVG text: lines, steps, and bars in groups. Each stands alone, needs no network, and follows light and dark.

Pure. Every text that comes from outside is escaped; numbers that are not finite, or beyond VALUE_MAX, are left out. At most
POINTS_MAX points a line, so that a plot of a million jobs is as small as one of a hundred.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

import msgspec

POINTS_MAX = 400
VALUE_MAX = 1e15
WIDTH, HEIGHT = 720, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 28, 44, 46
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#b8a900")
"""Told apart by people who see few colours, too (Okabe and Ito)."""
DASHES = ("", "7 3", "2 2", "9 3 2 3")
"""And by those who see none: lines with the same dashes are as far apart as can be."""
_ROW = 18
_NAME_LEN_MAX = 24
_STYLE = (
    "<style>.ink{fill:#222}.soft{fill:#666}.axis{stroke:#999}.grid{stroke:#ddd}"
    "text{font:12px system-ui,sans-serif}.title{font-weight:600;font-size:14px}"
    "@media (prefers-color-scheme:dark){.ink{fill:#eee}.soft{fill:#aaa}.axis{stroke:#777}.grid{stroke:#444}}</style>"
)


class Line(msgspec.Struct, frozen=True):
    name: str
    points: Sequence[tuple[float, float]]


class Axis(msgspec.Struct, frozen=True):
    """`is_log`: equal factors are equal lengths; values below `low` are drawn at it."""

    label: str
    low: float = 0.0
    high: float = 1.0
    is_log: bool = False
    is_percent: bool = False
    marks: tuple[tuple[float, str], ...] = ()
    """Where its ticks are and what they say; none: at round numbers."""

    def place(self, value: float) -> float:
        """From 0 to 1."""
        low, high = self.low, self.high
        if self.is_log:
            low, high, value = math.log10(low), math.log10(high), math.log10(max(value, low))
        return min(max((value - low) / (high - low), 0.0), 1.0) if high > low else 0.0

    def ticks(self) -> list[float]:
        if self.marks:
            return [value for value, _ in self.marks if self.low <= value <= self.high]
        if self.is_log:
            first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
            every = max(math.ceil((last - first + 1) / 8), 1)
            return [10.0**power for power in range(first, last + 1, every)]
        step = _round_step((self.high - self.low) / 5)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [count * step for count in range(first, last + 1)]

    def text(self, value: float) -> str:
        if self.marks:
            return next(text for mark, text in self.marks if mark == value)
        return f"{value * 100:.0f} %" if self.is_percent else short(value)


def short(value: float) -> str:
    """A number for an axis: 0.01, 0.5, 12, 1,200, 2.5M."""
    size = abs(value)
    if size >= 1e6:
        return f"{value / 1e6:.3g}M"
    if size >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _round_step(size: float) -> float:
    """The next larger of 1, 2, 5, 10, 20, ..."""
    if not size > 0 or not math.isfinite(size):
        return 1.0
    base = 10.0 ** math.floor(math.log10(size))
    return next(base * factor for factor in (1, 2, 5, 10) if base * factor >= size * (1 - 1e-9))


def _x(part: float) -> float:
    return _LEFT + part * (WIDTH - _LEFT - _RIGHT)


def _y(part: float) -> float:
    return HEIGHT - _BOTTOM - part * (HEIGHT - _TOP - _BOTTOM)


def line_plot(
    title: str, lines: Sequence[Line], x: Axis, y: Axis, *, is_step: bool = False, has_zero: bool = False, first: int = 0
) -> str:
    """`is_step`: a value holds until the next point. `has_zero`: a line at 0 across. `first`: the number of the first line
    among all that are compared, so that each has the same colour in every plot."""
    parts = [*_frame(x, y)]
    if has_zero and y.low < 0 < y.high:
        parts.append(
            f'<line class="axis" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{_y(y.place(0)):.1f}" y2="{_y(y.place(0)):.1f}"/>'
        )
    for number, line in enumerate(lines, first):
        shown = thinned([(a, b) for a, b in line.points if abs(a) <= VALUE_MAX and abs(b) <= VALUE_MAX])
        if not shown:
            continue
        path = f"M{_x(x.place(shown[0][0])):.1f},{_y(y.place(shown[0][1])):.1f}"
        for a, b in shown[1:]:
            across, up = f"{_x(x.place(a)):.1f}", f"{_y(y.place(b)):.1f}"
            path += f"H{across}V{up}" if is_step else f"L{across},{up}"
        parts.append(f'<path d="{path}" fill="none" {_stroke(number)}><title>{html.escape(line.name)}</title></path>')
    return _svg(title, [line.name for line in lines], parts, first=first, are_lines=True)


def _stroke(number: int) -> str:
    dashes = DASHES[number % len(DASHES)]
    return f'stroke="{COLORS[number % len(COLORS)]}" stroke-width="2"' + (f' stroke-dasharray="{dashes}"' if dashes else "")


def bar_plot(  # noqa: PLR0917 - what is drawn, and what it is called
    title: str, groups: Sequence[str], lines: Sequence[Sequence[float]], names: Sequence[str], label: str, across: str = ""
) -> str:
    """A bar for each of `names` in each of `groups`; `lines[i]` has the values of `names[i]`, by group. `label`: what bars are
    measured in, `across` what the groups are."""
    top = max((value for values in lines for value in values if 0 <= value <= VALUE_MAX), default=1.0) or 1.0
    y = Axis(label, 0.0, top * 1.08)
    parts = [*_frame(None, y)]
    room = (WIDTH - _LEFT - _RIGHT) / max(len(groups), 1)
    wide = room * 0.8 / max(len(lines), 1)
    for place, group in enumerate(groups):
        begin = _LEFT + room * place + room * 0.1
        for number, values in enumerate(lines):
            value = values[place]
            if not 0 <= value <= VALUE_MAX:
                continue
            high = _y(0) - _y(y.place(value))
            at = f'x="{begin + wide * number:.1f}" y="{_y(0) - high:.1f}" width="{max(wide - 1, 0.5):.1f}" height="{high:.1f}"'
            note = html.escape(f"{group}, {names[number]}: {short(value)}")
            parts.append(f'<rect {at} fill="{COLORS[number % len(COLORS)]}"><title>{note}</title></rect>')
        text = html.escape(group if len(group) <= 14 else group[:13] + "…")
        parts.append(
            f'<text class="soft" x="{begin + room * 0.4:.1f}" y="{HEIGHT - _BOTTOM + 16}" text-anchor="middle">{text}</text>'
        )
    return _svg(title, names, [*parts, _below(across)])


def thinned(points: Sequence[tuple[float, float]], most: int = POINTS_MAX) -> list[tuple[float, float]]:
    """At most `most` of them, evenly, the first and the last among them."""
    if len(points) <= most:
        return list(points)
    return [points[round(number * (len(points) - 1) / (most - 1))] for number in range(most)]


def _frame(x: Axis | None, y: Axis) -> list[str]:
    parts = []
    for tick in y.ticks():
        at = f"{_y(y.place(tick)):.1f}"
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{at}" y2="{at}"/>')
        parts.append(f'<text class="soft" x="{_LEFT - 6}" y="{at}" dy="4" text-anchor="end">{y.text(tick)}</text>')
    bottom = HEIGHT - _BOTTOM
    parts.append(f'<line class="axis" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{bottom}" y2="{bottom}"/>')
    parts.append(
        f'<text class="soft" transform="translate(14,{(_TOP + bottom) / 2}) rotate(-90)" text-anchor="middle">'
        f"{html.escape(y.label)}</text>"
    )
    if x is None:
        return parts
    for tick in x.ticks():
        at = f"{_x(x.place(tick)):.1f}"
        parts.append(f'<line class="axis" x1="{at}" x2="{at}" y1="{bottom}" y2="{bottom + 4}"/>')
        parts.append(f'<text class="soft" x="{at}" y="{bottom + 16}" text-anchor="middle">{x.text(tick)}</text>')
    return [*parts, _below(x.label)]


def _below(label: str) -> str:
    middle = (_LEFT + WIDTH - _RIGHT) / 2
    return f'<text class="soft" x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">{html.escape(label)}</text>'


def _svg(title: str, names: Sequence[str], parts: Sequence[str], *, first: int = 0, are_lines: bool = False) -> str:
    """The whole image: what is drawn goes down by a row for each row of the legend but the first."""
    legend: list[str] = []
    across, down = float(_LEFT), 0
    for number, name in enumerate(names, first):
        text = name if len(name) <= _NAME_LEN_MAX else name[: _NAME_LEN_MAX - 1] + "…"
        width = 38 + 7 * len(text)
        if across > _LEFT and across + width > WIDTH:
            across, down = float(_LEFT), down + _ROW
        at = f'x1="{across:.0f}" x2="{across + 18:.0f}" y1="{31 + down}" y2="{31 + down}"'
        box = f'x="{across + 4:.0f}" y="{26 + down}" width="10" height="10"'
        legend.append(
            f"<line {at} {_stroke(number)}/>" if are_lines else f'<rect {box} fill="{COLORS[number % len(COLORS)]}"/>'
        )
        legend.append(f'<text class="ink" x="{across + 22:.0f}" y="{35 + down}">{html.escape(text)}</text>')
        across += width
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT + down}" role="img" '
        f'aria-label="{html.escape(title)}">{_STYLE}<text class="ink title" x="{_LEFT}" y="16">{html.escape(title)}</text>'
    )
    drawn = "".join(parts)
    return head + "".join(legend) + (f'<g transform="translate(0,{down})">{drawn}</g>' if down else drawn) + "</svg>\n"
