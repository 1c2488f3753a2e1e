"""Arguments and options that the `muster job` commands share, and the way from a command line to `Jobs`."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from muster.cli.framework import State
from muster.cli.options import Target

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from muster.client.jobs import Jobs

F = TypeVar("F", bound=Callable[..., Any])

_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
SECONDS_MAX = 10 * 365 * 86400.0
PHASES = (
    *("initialized", "AwaitingApproval", "Pending", "Queued", "Starting", "Running", "Suspended"),
    *("Succeeded", "Failed", "Stopped", "Cancelled", "Rejected", "ApprovalReject"),
)


class Duration(click.ParamType[float]):
    """`90`, `90s`, `5m`, `1h30m`, `7d`, in seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, int | float):
            return float(value)
        text = str(value).strip()
        if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text):
            seconds = float(text)
        elif re.fullmatch(r"([0-9]{1,9}(\.[0-9]{1,9})?[smhdw]){1,5}", text):
            seconds = sum(float(number) * _UNITS_S[unit] for number, unit in re.findall(r"([0-9.]+)([smhdw])", text))
        else:
            self.fail(f"{value!r} is no duration; write seconds, or as in 90s, 5m, 1h30m, 7d", param, ctx)
        if seconds > SECONDS_MAX:
            self.fail(f"{value!r} is longer than 10 years", param, ctx)
        return seconds


DURATION = Duration()


def complete_job(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """The kinds of job; names are not asked for, so that TAB is never slow."""
    from click.shell_completion import CompletionItem

    words = (("kusciajob/", "a job of several parties"), ("job/", "a job with one owner"))
    return [CompletionItem(word, help=text) for word, text in words if word.startswith(incomplete)]


def complete_phase(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    from click.shell_completion import CompletionItem

    return [CompletionItem(word) for word in PHASES if word.lower().startswith(incomplete.lower())]


def job_argument(function: F) -> F:
    return click.argument("name", metavar="[KIND/]NAME", shell_complete=complete_job)(function)


def jobs_argument(function: F) -> F:
    return click.argument("names", metavar="[KIND/]NAME...", nargs=-1, required=True, shell_complete=complete_job)(function)


def party_option(function: F) -> F:
    return click.option(
        "--party", metavar="PARTY", default="", help="The party that gives the command.  [default: the job's initiator]"
    )(function)


def wait_options(function: F) -> F:
    """`--wait` and `--timeout`."""
    wait = click.option("--wait", is_flag=True, help="Show the job until it has ended; the exit code says how it did.")
    timeout = click.option(
        "--timeout",
        "timeout_s",
        metavar="DURATION",
        type=DURATION,
        help="How long to wait; exit code 124 when it has not ended by then.  [default: no limit]",
    )
    return wait(timeout(function))


@asynccontextmanager
async def jobs_of(target: Target, state: State) -> AsyncIterator[Jobs]:
    """Open for the body."""
    from muster.cli.session import session
    from muster.client.jobs import Jobs

    async with session(target, state, warn_once=True) as s:
        yield Jobs(s.client, namespace=s.namespace)
