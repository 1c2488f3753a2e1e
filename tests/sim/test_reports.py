"""Reports: what is in them, and what can't get out of them."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.sim.plots import COLORS, POINTS_MAX, WIDTH, Axis, Line, bar_plot, line_plot, thinned
from muster.sim.report_plots import Named, drawn, used_share
from muster.sim.reports import figure_plots, html_report, table
from muster.sim.trace_run import JobOutcome, Outcome

EVIL = '<script src="http://x.test/a.js">alert(1)</script>&"\''


def outcome(shift: float = 0.0, *, group: str = "") -> Outcome:
    jobs = tuple(
        JobOutcome(
            id=f"{EVIL}{n}",
            submitted=100.0 * n,
            started=100.0 * n + 50 + shift,
            ended=100.0 * n + 250 + shift,
            held_s=200,
            gpus=2.0 ** (n % 5),
            group=group or f"g{n % 3}",
        )
        for n in range(20)
    )
    use = tuple((100.0 * n, float(n % 5)) for n in range(30))
    return Outcome(jobs, 64, use, 1, {})


def runs() -> list[Named]:
    return [Named("fifo", outcome(), 1.0), Named(EVIL, outcome(30.0), 2.0)]


def test_the_table_shows_the_change() -> None:
    headers, rows = table(runs())
    assert headers == ["", "fifo", EVIL]
    waits = next(row for row in rows if row[0].startswith("mean wait, "))
    assert waits == ["mean wait, min", "0.8333", "1.333 (+60 %)"]


@pytest.mark.parametrize(
    ("run_s", "unit", "told"), [(7200.0, "h", "2"), (5400.0, "min", "90"), (90.0, "s", "90"), (6.0, "s", "6"), (0.0, "s", "0")]
)
def test_times_are_told_in_what_suits_the_longest(run_s: float, unit: str, told: str) -> None:
    job = JobOutcome(id="a", submitted=0, started=0, ended=run_s, held_s=run_s, gpus=1)
    _, rows = table([Named("a", Outcome((job,), 8, ((0.0, 1.0), (run_s, 0.0)), 0, {}), 0)])
    assert [f"mean completion time, {unit}", told] in rows
    html_report("t", [Named("a", Outcome((job,), 8, ((0.0, 1.0), (run_s, 0.0)), 0, {}), 0)])


class _Elements(HTMLParser):
    """Names of the elements, and of all their attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}


def test_the_page_stands_alone_and_runs_nothing() -> None:
    page = html_report(EVIL, runs(), [EVIL])
    found = _Elements()
    found.feed(page)
    assert not found.tags & {"script", "link", "img", "iframe", "object", "embed", "image", "use", "a", "foreignobject"}
    assert not {name for name in found.attributes if name.startswith("on") or name in ("src", "href", "xlink:href", "data")}
    assert not re.search(r"url\(|@import", page)
    assert "default-src 'none'" in page
    assert page.count("<svg") == len(figure_plots(runs()))


def test_every_plot_is_an_image_of_its_own() -> None:
    drawn = figure_plots(runs())
    assert set(drawn) == {"waits", "completion-by-size", "use", "stretch-by-size", "completion-by-group", "gains"}
    for svg in drawn.values():
        ET.fromstring(svg)
        assert len(svg) < 40_000


def test_every_plot_has_its_figures_in_a_table_and_says_what_to_look_for() -> None:
    for one in drawn(runs()):
        assert one.reading
        assert one.rows, one.name
        assert {len(row) for row in one.rows} == {len(one.headers)}, one.name


def test_a_run_has_the_same_colour_in_every_plot_and_lines_differ_without_colour() -> None:
    three = [Named(name, outcome(shift), 1.0) for name, shift in (("a", 0.0), ("b", 30.0), ("c", 60.0))]
    for name, svg in figure_plots(three).items():
        named = {mark.text: mark for mark in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")}
        assert ("a" in named) == (name != "gains")
        strokes = dict(re.findall(r'<path [^>]*stroke="(#\w+)"[^>]*?(?:stroke-dasharray="([^"]*)")?><title>', svg))
        if strokes:
            assert list(strokes) == list(COLORS[:3] if name != "gains" else COLORS[1:3])
            assert len(set(strokes.values())) == len(strokes)
        else:
            assert f'fill="{COLORS[2]}"><title>' in svg


def test_what_is_better_or_worse_is_said_without_colour() -> None:
    page = html_report("t", runs())
    assert '<span role="img" aria-label="worse" title="worse">✗</span>' in page
    assert '<span role="img" aria-label="better" title="better">✓</span>' in html_report("t", list(reversed(runs())))


def test_a_long_legend_goes_on_in_the_next_row() -> None:
    many = [Named(f"a policy with a long name {n}", outcome(n), 1.0) for n in range(8)]
    root = ET.fromstring(figure_plots(many)["waits"])
    ends = [float(mark.get("x", 0)) + 7 * len(mark.text or "") for mark in root.iter() if mark.get("class") == "ink"]
    assert max(ends) <= WIDTH


def test_one_run_has_nothing_to_gain() -> None:
    assert "gains" not in figure_plots(runs()[:1])
    assert "Who would" not in html_report("t", runs()[:1])


def test_runs_in_which_nothing_ended_are_drawn_too() -> None:
    never = [
        JobOutcome(id="a", submitted=0, started=math.nan, ended=math.nan, held_s=0, gpus=1),
    ]
    page = html_report("t", [Named("a", Outcome(tuple(never), 8, (), 0, {}), 0), Named("b", Outcome((), 8, (), 0, {}), 0)])
    assert "jobs that never started" in page


def test_use_is_the_mean_of_each_time() -> None:
    used = Outcome((), 10, ((0.0, 10.0), (43_200.0, 0.0), (86_400.0, 5.0), (172_800.0, 0.0)), 0, {})
    assert used_share(used, 2) == [(0.0, 0.5), (1.0, 0.5)]
    assert used_share(used, 4) == [(0.0, 1.0), (0.5, 0.0), (1.0, 0.5), (1.5, 0.5)]


_NUMBERS = st.floats(allow_nan=True, allow_infinity=True)


@settings(max_examples=150)
@given(
    points=st.lists(st.tuples(_NUMBERS, _NUMBERS), max_size=30),
    low=st.floats(1e-9, 1e9),
    size=st.floats(1e-9, 1e9),
    is_log=st.booleans(),
    name=st.text(st.characters(exclude_categories=["Cc", "Cs"]), max_size=40),
)
def test_a_plot_is_well_formed_whatever_is_drawn(
    points: list[tuple[float, float]], low: float, size: float, is_log: bool, name: str
) -> None:
    x = Axis(name, low, low + size, is_log=is_log)
    ET.fromstring(line_plot(name, [Line(name, points)], x, Axis(name, -size, size), has_zero=True))
    ET.fromstring(bar_plot(name, [name], [[abs(points[0][0]) if points else 0.0]], [name], name))


def test_many_points_are_thinned_evenly() -> None:
    kept = thinned([(float(n), 0.0) for n in range(10_000)])
    assert (len(kept), kept[0][0], kept[-1][0]) == (POINTS_MAX, 0, 9999)
