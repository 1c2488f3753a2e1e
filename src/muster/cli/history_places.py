"""Logs and times as people name them on the command line."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from muster.cli.datadir import default_data_dir
from muster.cli.errors import CliError, ExitCode, UsageError
from muster.objects.time import parse_time

if TYPE_CHECKING:
    from muster.history.reader import Log

_AGO = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)([smhdw])")
_UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def instant(text: str | None, option: str, now: float) -> float | None:
    """A time as it was given: RFC 3339, a date, seconds since 1970, or how long ago (`90m`, `2d`)."""
    if text is None:
        return None
    ago = _AGO.fullmatch(text)
    if ago is not None:
        return now - float(ago[1]) * _UNIT_S[ago[2]]
    try:
        if re.fullmatch(r"\d{4}-\d\d-\d\d", text):
            return parse_time(f"{text}T00:00:00Z")
        if re.fullmatch(r"\d{1,12}(\.\d{1,9})?", text):
            return float(text)
        return parse_time(text)
    except ValueError:
        raise UsageError(
            f"{option} {text!r} is no time; write 2026-11-16T09:00:00Z, 2026-11-16, or how long ago: 90m, 2d"
        ) from None


def local_log() -> str:
    """Where `muster up` records on this machine."""
    return str(default_data_dir(os.environ).absolute() / "history")


def open_log(place: str) -> Log:
    from muster.history.reader import Log
    from muster.history.stores import StoreUnusable

    try:
        log = Log.at(place)
        names = log.names
    except FileNotFoundError as error:
        raise CliError(str(error), ExitCode.NOT_FOUND) from error
    except StoreUnusable as error:
        raise UsageError(str(error)) from error
    if not names:
        raise CliError(f"{place}: there is no decision log in it (no *.mlog)", ExitCode.NOT_FOUND)
    return log
