"""Options that several commands share, each defined once so that it means the same everywhere.

Decorators only; nothing here talks to a server.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from muster.cli.datadir import default_data_dir
from muster.cli.errors import UsageError
from muster.cli.framework import state_of

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Target:
    """Which server and namespace a command means, as the user said it; `muster.cli.session` works out the rest."""

    kubeconfig: str | None
    context: str | None
    namespace: str | None
    request_timeout_s: float


def _data_dir(ctx: click.Context, param: click.Parameter, value: str | None) -> Path:
    return Path(value).expanduser().absolute() if value else default_data_dir(os.environ).absolute()


def data_dir_option(function: F) -> F:
    return click.option(
        "--data-dir",
        metavar="DIR",
        callback=_data_dir,
        type=click.Path(),
        help="Where Muster keeps everything on this machine.  [default: $MUSTER_DATA_DIR, or ~/.local/share/muster]",
    )(function)


def machine_output(function: F) -> F:
    """`-o json|yaml` for a command whose ordinary output is for people."""
    return click.option(
        "-o", "--output", type=click.Choice(["json", "yaml"]), help="Print for programs instead of for people."
    )(function)


def target_options(*, namespace: bool = True) -> Callable[[F], F]:
    """`--kubeconfig`, `--context`, `--request-timeout` and `-n`, handed over as one `target`; `-n` not for all commands."""
    options = [
        click.option(
            "--kubeconfig",
            metavar="FILE",
            type=click.Path(),
            help="Kubeconfig to use instead of $KUBECONFIG or ~/.kube/config.",
        ),
        click.option(
            "--context", "context_name", metavar="NAME", help="Context to use instead of the kubeconfig's current one."
        ),
        click.option(
            "--request-timeout",
            "request_timeout_s",
            metavar="SECONDS",
            type=click.FloatRange(min=0.1, max=3600),
            default=30.0,
            show_default=True,
            help="How long to wait for one answer of the server.",
        ),
    ]
    if namespace:
        options.append(
            click.option(
                "-n", "--namespace", "target_namespace", metavar="NS", help="Namespace to use instead of the context's own."
            )
        )

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            state = state_of(click.get_current_context().find_root())
            if state.namespace and not namespace:
                raise UsageError("-n, --namespace before the command: this command does not work in a namespace of your choice")
            target = Target(
                kubeconfig=kwargs.pop("kubeconfig") or state.kubeconfig,
                context=kwargs.pop("context_name") or state.context,
                namespace=kwargs.pop("target_namespace", None) or state.namespace,
                request_timeout_s=kwargs.pop("request_timeout_s"),
            )
            return function(*args, target=target, **kwargs)

        # The options belong to the wrapper; functools.wraps has carried over those that the function had already.
        decorated: Any = wrapper
        for option in reversed(options):
            decorated = option(decorated)
        return cast(F, decorated)

    return decorate


def selector_options(function: F) -> F:
    """`-l/--selector` and `--field-selector`."""
    by_field = click.option(
        "--field-selector", metavar="QUERY", default="", help="Only objects whose fields match, as in status.phase=Running."
    )
    by_label = click.option(
        "-l",
        "--selector",
        "label_selector",
        metavar="QUERY",
        default="",
        help="Only objects whose labels match, as in 'app=web,tier!=db,zone in (a,b)'.",
    )
    return by_label(by_field(function))


def file_options(what: str, *, required: bool = False) -> Callable[[F], F]:
    """`-f/--filename` and `-R/--recursive`."""

    def decorate(function: F) -> F:
        files = click.option(
            "-f",
            "--filename",
            "filenames",
            metavar="FILE|DIR|-",
            multiple=True,
            required=required,
            type=click.Path(allow_dash=True),
            help=f"{what}: a file, a directory, or - for standard input. May be given several times.",
        )
        recursive = click.option("-R", "--recursive", is_flag=True, help="Read the directories below as well.")
        return files(recursive(function))

    return decorate


def log_level_option(function: F) -> F:
    return click.option(
        "--log-level",
        type=click.Choice(["debug", "info", "warning", "error"]),
        default="warning",
        show_default=True,
        help="How much to log on stderr, as JSON lines.",
    )(function)


def scheduler_config_option(function: F) -> F:
    return click.option(
        "--scheduler-config",
        metavar="FILE",
        type=click.Path(path_type=Path),
        help="The scheduler's profiles, while there is no ConfigMap muster-scheduler in kube-system.",
    )(function)


def workload_approval_option(function: F) -> F:
    return click.option(
        "--workload-approval",
        is_flag=True,
        help="Each party of a job but its initiator is asked before it begins: muster job approve, muster job reject.",
    )(function)
