"""Where `muster up` and `muster controller` record decisions, and how much of it they keep.

Imports nothing of the history itself until a recorder is made, so that `--help` stays quick.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click
import msgspec

from muster.cli.errors import UsageError
from muster.objects.amounts import amount_of
from muster.objects.time import Clock

if TYPE_CHECKING:
    from muster.history.recorder import Recorder

F = TypeVar("F", bound=Callable[..., Any])
NOWHERE = "none"
_KEEP_BYTES_MIN = 1024 * 1024


class HistoryOptions(msgspec.Struct, frozen=True):
    place: str | None = None
    """As it was given."""
    keep_days: float = 90.0
    keep_bytes: int = 2 * 1024**3

    def at_or(self, default: Path | None) -> HistoryOptions | None:
        """With `default` where no place was given; None for nowhere."""
        place = self.place if self.place is not None else (str(default) if default is not None else NOWHERE)
        return None if place == NOWHERE else msgspec.structs.replace(self, place=place)

    def recorder(self, clock: Clock) -> Recorder:
        """UsageError for a place that can't be used."""
        from muster.history.recorder import HistoryLimits, Recorder
        from muster.history.stores import StoreUnusable, open_store

        assert self.place is not None
        # Several segments fit into what is kept, so that the oldest can go.
        segment = min(HistoryLimits().segment_bytes_max, self.keep_bytes // 4)
        limits = HistoryLimits(keep_s_max=self.keep_days * 86_400, keep_bytes_max=self.keep_bytes, segment_bytes_max=segment)
        try:
            return Recorder(open_store(self.place), clock=clock, limits=limits)
        except StoreUnusable as error:
            raise UsageError(str(error)) from error


def history_options(note: str) -> Callable[[F], F]:
    """`--history`, `--history-days` and `--history-size`, together as the argument `history`."""

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            size = kwargs.pop("history_size")
            options = HistoryOptions(kwargs.pop("history"), kwargs.pop("history_days"), _bytes(size))
            return function(*args, history=options, **kwargs)

        decorated: Any = wrapper
        for option in (
            click.option(
                "--history-size",
                metavar="BYTES",
                default="2Gi",
                show_default=True,
                help="The oldest of the history goes beyond this size.",
            ),
            click.option(
                "--history-days",
                metavar="DAYS",
                type=click.FloatRange(min=0.01, max=36_500),
                default=90.0,
                show_default=True,
                help="The oldest of the history goes beyond this age.",
            ),
            click.option("--history", metavar="DIR|URL", help=f"Where decisions are recorded: {note}"),
        ):
            decorated = option(decorated)
        return cast(F, decorated)

    return decorate


def _bytes(text: str) -> int:
    try:
        found = amount_of("memory", text)
    except ValueError as error:
        raise UsageError(f"--history-size {text!r}: {error}; give an amount such as 500Mi or 2Gi") from error
    if found < _KEEP_BYTES_MIN:
        raise UsageError(f"--history-size {text!r}: give 1Mi or more")
    return found
