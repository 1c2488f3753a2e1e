"""Reports: what is in them, and what can't get out of them."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

from hypothesis import given, settings
from hypothesis import strategies as st

from muster.sim.plots import POINTS_MAX, Axis, Line, bar_plot, line_plot, thinned
from muster.sim.reports import Named, figure_plots, html_report, table, used_share
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
    waits = next(row for row in rows if row[0] == "mean wait, h")
    assert waits == ["mean wait, h", "0.0139", "0.0222 (+60 %)"]


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
