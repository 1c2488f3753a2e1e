"""What `muster simulate` and `muster what-if` share: their options' values, progress, and what they print and write.

Single-threaded; blocks for as long as simulations take. Several of them are run side by side (`side_by_side`).
"""

from __future__ import annotations

import gc
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from muster.cli.errors import CliError, ExitCode, UsageError

if TYPE_CHECKING:
    from muster.history.recorder import Recorder
    from muster.sim.report_plots import Named
    from muster.sim.trace_cluster import Placement, TraceCluster
    from muster.sim.trace_policy import PolicySet
    from muster.sim.trace_run import Outcome, Progress

SAYS_EVERY_S = 1.0
LINE_EVERY_S = 15.0
"""Where progress is no terminal's line that is written over, but one more line each time."""
RESTART_COST_S_MAX = 86_400.0 * 365
T = TypeVar("T")
Run = Callable[["Progress"], "Outcome"]


def read_or_fail(read: Callable[[], T]) -> T:
    """What `read` gives; whatever is wrong with a file or a value becomes one line that says so."""
    from muster.engine.configuration import ConfigurationInvalid
    from muster.sim.clock import SimulationError
    from muster.sim.trace_formats import TraceError
    from muster.sim.trace_policy import PolicyError

    try:
        return read()
    except FileNotFoundError as error:
        raise CliError(f"{error.filename}: no such file", ExitCode.NOT_FOUND) from error
    except (TraceError, PolicyError, SimulationError) as error:
        raise CliError(str(error)) from error
    except ConfigurationInvalid as error:
        raise CliError("; ".join(error.errors)) from error


def read_cluster(cluster: str | None, nodes: Path | None, placement: Placement) -> TraceCluster:
    from muster.sim.trace_cluster import parse_cluster, read_nodes

    if (cluster is None) == (nodes is None):
        raise UsageError("give the cluster: either --cluster NODESxGPUS or --nodes FILE")
    if nodes is not None:
        return read_or_fail(lambda: read_nodes(nodes, placement))
    assert cluster is not None
    return read_or_fail(lambda: parse_cluster(cluster, placement))


def read_policies(names: Sequence[str]) -> list[PolicySet]:
    """Each once by its name, so that the columns of a table can be told apart."""
    import msgspec

    from muster.sim.trace_policy import load_policy

    found: list[PolicySet] = []
    for name in names:
        policy = read_or_fail(lambda name=name: load_policy(name))  # type: ignore[misc]
        taken = {one.name for one in found}
        if policy.name in taken:
            policy = msgspec.structs.replace(policy, name=f"{policy.name} ({name})")
        found.append(policy)
    return found


def read_configuration(path: Path | None) -> Mapping[str, Any] | None:
    """A scheduler's configuration, checked; None when there is none."""
    if path is None:
        return None
    from muster.engine.configuration import ConfigurationInvalid, load
    from muster.engine.registry import discover

    try:
        text = read_or_fail(lambda: path.read_text(encoding="utf-8"))
        return load(text, discover()).raw
    except UnicodeDecodeError as error:
        raise CliError(f"{path}, byte {error.start + 1}: not UTF-8; save it as UTF-8 text") from error
    except ConfigurationInvalid as error:
        raise CliError(f"{path}: {'; '.join(error.errors)}") from error


@contextmanager
def recorder_at(place: Path | None) -> Iterator[Recorder | None]:
    """A recorder that writes a decision log into a new or empty directory; None for None."""
    if place is None:
        yield None
        return
    from muster.history.recorder import Recorder
    from muster.history.stores import DirectoryStore
    from muster.sim.clock import START_S

    if place.exists() and any(place.iterdir()):
        raise CliError(f"{place}: is not empty; a log of a simulation has a directory of its own")
    place.mkdir(parents=True, exist_ok=True)
    recorder = Recorder(DirectoryStore(place), clock=lambda: START_S)
    try:
        yield recorder
    finally:
        recorder.close()
    if recorder.trouble:
        raise CliError(f"{place}: the log is not whole: {recorder.trouble}")


def run_all(runs: Sequence[tuple[str, Run]]) -> list[Named]:
    """Run simulations and time each, side by side where there are cores for it; long ones say how far they are, on stderr."""
    from muster.cli.side_by_side import at_once, side_by_side

    told = _Telling()
    count = at_once(len(runs))
    try:
        if count < 2:
            return [_timed(name, run, lambda done, total, name=name: told.say(name, done, total)) for name, run in runs]  # type: ignore[misc]
        return side_by_side([(name, partial(_timed, name, run)) for name, run in runs], count, told.say)
    finally:
        told.wipe()


def _timed(name: str, run: Run, say: Callable[[int, int], None]) -> Named:
    from muster.sim.report_plots import Named

    began = time.perf_counter()
    with _long_run():
        outcome = read_or_fail(lambda: run(lambda done, total, _now: say(done, total)))
    return Named(name, outcome, time.perf_counter() - began)


@contextmanager
def _long_run() -> Iterator[None]:
    """What was read stays until the end, and a simulation leaves next to no cycles: it need not look for them all the time."""
    from muster.controllers.long_runs import tune_for_long_runs

    before = gc.get_threshold()
    tune_for_long_runs()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)


class _Telling:
    """How far simulations are, on stderr: a terminal's line that is written over, or one more line each time."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._every_s = SAYS_EVERY_S if self._is_terminal else LINE_EVERY_S
        self._began = self._last = time.perf_counter()
        self._far: dict[str, tuple[int, int]] = {}
        self._has_said = False

    def say(self, name: str, done: int, total: int) -> None:
        self._far[name] = (done, total)
        now = time.perf_counter()
        if now - self._last < self._every_s:
            return
        self._last = now
        far = "; ".join(f"{name}: {done:,} of {total:,} jobs ended" for name, (done, total) in self._far.items())
        text = f"{far}, after {now - self._began:.0f} s"
        self._has_said = self._is_terminal
        click.echo(f"\r{text} \x1b[K" if self._is_terminal else text, err=True, nl=not self._is_terminal)

    def wipe(self) -> None:
        if self._has_said:
            click.echo("\r\x1b[K", err=True, nl=False)


def show(runs: Sequence[Named], *, as_json: bool, labels: Sequence[Mapping[str, Any]]) -> None:
    """The figures: a table, or a JSON line for each run that begins with its `labels`."""
    import msgspec

    from muster.cli import output as out
    from muster.sim.reports import table

    if as_json:
        lines = [dict(label) | msgspec.to_builtins(run.figures) for label, run in zip(labels, runs, strict=True)]
        out.emit("\n".join(out.to_compact(line) for line in lines))
        return
    headers, rows = table(runs)
    out.emit(out.simple_table(headers, rows))


def check_outputs(report: Path | None, plots: Path | None) -> None:
    """Before a long run: that its report can be written at all."""
    if report is not None and not report.parent.is_dir():
        raise UsageError(f"--report {report}: there is no directory {report.parent}; make it, or name another")
    if report is not None and not os.access(report if report.exists() else report.parent, os.W_OK):
        raise UsageError(f"--report {report}: can't be written; name another file")
    if plots is not None:
        try:
            plots.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"--plots {plots}: can't be made: {error.strerror}; name another directory") from error
        if not os.access(plots, os.W_OK):
            raise UsageError(f"--plots {plots}: can't be written to; name another directory")


def write(report: Path | None, plots: Path | None, title: str, runs: Sequence[Named], notes: Sequence[str]) -> None:
    """The report as one HTML file, and its plots as SVG files."""
    from muster.sim.reports import figure_plots, html_report

    if report is not None:
        report.write_text(html_report(title, runs, notes), encoding="utf-8")
        click.echo(f"wrote {report}", err=True)
    if plots is not None:
        for name, svg in figure_plots(runs).items():
            (plots / f"{name}.svg").write_text(svg, encoding="utf-8")
        click.echo(f"wrote {plots}/*.svg", err=True)


class _Seconds(click.FloatRange):
    """A range that not-a-number is not in."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds = float(super().convert(value, param, ctx))
        if math.isnan(seconds):
            self.fail(f"{value} is not a number of seconds.", param, ctx)
        return seconds


def restart_cost_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """`--restart-cost`, as `restart_cost_s`."""
    option = click.option(
        "--restart-cost", "restart_cost_s", type=_Seconds(0, RESTART_COST_S_MAX), default=300.0, show_default=True,
        metavar="SECONDS", help="Added to the run of a job each time that it is stopped.",
    )  # fmt: skip
    found: Callable[..., Any] = option(function)
    return found


def report_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """`--json`, `--report`, `--plots`."""
    for option in (
        click.option(
            "--plots", type=click.Path(path_type=Path, file_okay=False), metavar="DIR", help="Write the plots as SVG."
        ),
        click.option(
            "--report", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Write a report in one HTML file."
        ),
        click.option("--json", "as_json", is_flag=True, help="One JSON object per line on standard output."),
    ):
        function = option(function)
    return function
