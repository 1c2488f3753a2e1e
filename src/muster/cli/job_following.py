"""Showing a job while it goes on: a tree that is repainted in place on a terminal, one line per change anywhere else.

One `Screen` belongs to one command and one thread. The terminal is left as it was found: the cursor below the last tree,
nothing hidden, so that an interrupt at any moment needs no repair. Repainting is plain ANSI: up, clear to the end, write.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Protocol

import click

from muster.cli.errors import ExitCode
from muster.cli.job_view import PLAIN, Style, change_lines, head_why, tree_lines
from muster.cli.output import emit, width_of
from muster.client.job_kinds import Outcome
from muster.client.job_tree import JobTree
from muster.client.jobs import Jobs
from muster.objects.time import Clock, format_time, wall_clock

REPAINT_S = 1.0
"""How often durations and bars move while nothing else changes."""


class Screen(Protocol):
    def show(self, tree: JobTree) -> None:
        """A new tree."""

    def tick(self) -> None:
        """Time has passed."""

    def close(self) -> None:
        """No more comes."""


class Lines:
    """For pipes and files: what changed, each line with its time."""

    def __init__(self, clock: Clock = wall_clock) -> None:
        self._clock = clock
        self._last: dict[str, JobTree] = {}

    def show(self, tree: JobTree) -> None:
        stamp = format_time(self._clock())
        lines = [f"{stamp} {line}" for line in change_lines(self._last.get(tree.title), tree)]
        self._last[tree.title] = tree
        if lines:
            emit("\n".join(lines))

    def tick(self) -> None:
        return

    def close(self) -> None:
        return


class Terminal:
    """For people: the trees of all followed jobs, repainted in place."""

    def __init__(self, *, style: Style = PLAIN, clock: Clock = wall_clock) -> None:
        self._style = style
        self._clock = clock
        self._trees: dict[str, JobTree] = {}
        self._painted = 0

    def show(self, tree: JobTree) -> None:
        self._trees[tree.title] = tree
        self._paint()

    def tick(self) -> None:
        self._paint()

    def close(self) -> None:
        """The last picture is whole, however tall: it stays in the scroll-back."""
        self._paint(is_last=True)

    def _paint(self, *, is_last: bool = False) -> None:
        if not self._trees:
            return
        size = shutil.get_terminal_size()
        now = self._clock()
        lines = [line for tree in self._trees.values() for line in tree_lines(tree, now, style=self._style, is_brief=True)]
        if not is_last:
            lines = fitted(lines, size.lines - 1)
        text = "\n".join(cut(line, size.columns) for line in lines)
        back = f"\x1b[{self._painted}A\r\x1b[J" if self._painted else ""
        self._painted = len(lines)
        sys.stdout.write(f"{back}{text}\n")
        sys.stdout.flush()


def fitted(lines: Sequence[str], height: int) -> list[str]:
    """At most `height` lines; when some must go, the last line says how many."""
    if len(lines) <= height or height < 2:
        return list(lines)
    return [*lines[: height - 1], f"… and {len(lines) - height + 1} more lines; see 'muster job tree'"]


def cut(line: str, width: int) -> str:
    """`line` on one row of the terminal. Colour codes take no room and are never cut in half."""
    if "\x1b" not in line:
        if width_of(line) <= width:
            return line
        shown = ""
        for char in line:
            if width_of(shown + char) > width - 1:
                return shown + "…"
            shown += char
    shown, used, at = "", 0, 0
    while at < len(line):
        if line[at] == "\x1b":
            end = line.index("m", at) + 1
            shown, at = shown + line[at:end], end
            continue
        wide = width_of(line[at])
        if used + wide > width:
            return shown + "\x1b[0m"
        shown, used, at = shown + line[at], used + wide, at + 1
    return shown


class _Nothing:
    """For programs that want the result alone."""

    def show(self, tree: JobTree) -> None:
        return

    def tick(self) -> None:
        return

    def close(self) -> None:
        return


def silent() -> Screen:
    return _Nothing()


def screen() -> Screen:
    """What fits standard output."""
    if not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
        return Lines()
    return Terminal(style=Style(is_colored=not os.environ.get("NO_COLOR")))


async def follow(jobs: Jobs, name: str, on: Screen, *, timeout_s: float | None, until: str = "") -> ExitCode:
    """Show the job until it has ended, or is in the phase `until`; the exit code says how.

    Timing out says where it stood, on stderr.
    """
    last: JobTree | None = None
    try:
        async with asyncio.timeout(timeout_s), aclosing(ticking(jobs.watch(name), on)) as trees:
            async for tree in trees:
                last = tree
                on.show(tree)
                if until and tree.phase == until:
                    return ExitCode.OK
    except TimeoutError:
        stands = (last.phase or "Waiting") if last else "unknown"
        why = f" ({text})" if last and (text := head_why(last)) else ""
        click.echo(f"error: job {name}: not ended within {timeout_s:g} s, its phase is {stands}{why}; it goes on", err=True)
        return ExitCode.NOT_ENDED
    return exit_code_of_tree(last)


async def ticking(trees: AsyncGenerator[JobTree, None], on: Screen) -> AsyncGenerator[JobTree, None]:
    """`trees`, with a tick whenever none came for a while."""
    async with aclosing(trees):
        pending: asyncio.Task[JobTree] | None = None
        try:
            while True:
                pending = pending or asyncio.ensure_future(anext(trees))
                done, _ = await asyncio.wait((pending,), timeout=REPAINT_S)
                if not done:
                    on.tick()
                    continue
                try:
                    tree = pending.result()
                except StopAsyncIteration:
                    return
                finally:
                    pending = None
                yield tree
        finally:
            if pending is not None:
                pending.cancel()
                await asyncio.gather(pending, return_exceptions=True)


def exit_code_of_tree(tree: JobTree | None) -> ExitCode:
    if tree is None or not tree.outcome:
        return ExitCode.NOT_ENDED
    return ExitCode(Outcome(tree.outcome).exit_code)


async def follow_all(found: Sequence[tuple[Jobs, str]], on: Screen, *, timeout_s: float | None, until: str = "") -> ExitCode:
    """Several jobs at once. The common code when all ended alike, otherwise 1."""
    codes = await asyncio.gather(*(follow(jobs, name, on, timeout_s=timeout_s, until=until) for jobs, name in found))
    on.close()
    return codes[0] if len(set(codes)) == 1 else ExitCode.FAILURE
