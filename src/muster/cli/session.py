"""A command's connection to its server: which one, as whom, in which namespace.

The rules are kubectl's: `--kubeconfig`, else `$KUBECONFIG` (several files merge), else `~/.kube/config`, else the pod's own
service account. Only when none of these is there at all is the kubeconfig of a local `muster up` taken, so that nothing has
to be configured on a fresh machine.

`run` starts the event loop of a command; everything under it runs on that one loop.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from muster.cli.datadir import KUBECONFIG_FILE, default_data_dir
from muster.cli.errors import CliError, ExitCode, exit_code_of, message_of
from muster.cli.framework import State
from muster.cli.options import Target
from muster.objects.resources import Resource
from muster.objects.status import ApiError

if TYPE_CHECKING:
    from muster.client.api import ApiClient
    from muster.client.config import ClientConfig

T = TypeVar("T")


class Session:
    """An open client and the namespace that applies when an object names none."""

    def __init__(self, client: ApiClient, *, namespace: str, is_namespace_given: bool) -> None:
        self.client = client
        self.namespace = namespace
        self.is_namespace_given = is_namespace_given

    def namespace_for(self, resource: Resource, all_namespaces: bool = False) -> str | None:
        return self.namespace if resource.namespaced and not all_namespaces else None


def resolve(
    target: Target, state: State, *, environ: Mapping[str, str] | None = None, home: Path | None = None
) -> ClientConfig:
    """The connection that `target` means. CliError when there is none."""
    from muster.client.kubeconfig import find_files, load
    from muster.client.kubeconfig_file import KubeconfigError

    environ = os.environ if environ is None else environ
    home = home or Path(environ.get("HOME") or "~").expanduser()
    path: str | Path | None = target.kubeconfig
    try:
        # A KUBECONFIG that is set but leads nowhere is a mistake to report, not a reason to go somewhere else.
        is_unset = not environ.get("KUBECONFIG") and not environ.get("KUBERNETES_SERVICE_HOST")
        if path is None and is_unset and not find_files(environ=environ, home=home):
            path = default_data_dir(environ) / KUBECONFIG_FILE
            if not path.exists():
                raise CliError(
                    f"no kubeconfig: $KUBECONFIG is not set, and neither {home / '.kube' / 'config'} nor {path} exists; "
                    "start a server here with 'muster up', or name a kubeconfig with --kubeconfig",
                    ExitCode.UNREACHABLE,
                )
            state.note(f"no kubeconfig is configured; using that of the local server, {path}")
        config = load(path, context=target.context or "", namespace=target.namespace or "", environ=environ, home=home)
    except KubeconfigError as e:
        raise CliError(str(e), ExitCode.UNREACHABLE) from e
    state.note(f"server {config.server}, namespace {config.namespace}, from {config.source}")
    return config


@asynccontextmanager
async def session(
    target: Target, state: State, *, show_warnings: bool = True, warn_once: bool = False
) -> AsyncIterator[Session]:
    """Open for the body. Warnings that the server sends along go to stderr.

    `warn_once` is for commands that try a write before they make it: what was said of the one is not said of the other.
    """
    from muster.client.api import ApiClient
    from muster.client.transport import TransportLimits

    config = resolve(target, state)
    limits = TransportLimits(timeout_s=target.request_timeout_s, connect_timeout_s=min(10.0, target.request_timeout_s))
    say = each_once(warn) if warn_once else warn
    async with ApiClient(config, limits=limits, on_warning=say if show_warnings else None) as client:
        yield Session(client, namespace=config.namespace, is_namespace_given=bool(target.namespace))


def warn(text: str) -> None:
    click.echo(f"warning: {text}", err=True)


def each_once(say: Callable[[str], None]) -> Callable[[str], None]:
    """`say`, but nothing that was said before."""
    said: set[str] = set()

    def new_only(text: str) -> None:
        if text not in said:
            said.add(text)
            say(text)

    return new_only


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run one command's coroutine to its end. Ctrl-C cancels it and comes out as KeyboardInterrupt."""
    return asyncio.run(work)


class Failures:
    """What went wrong with some of several objects, while the others are still worked on."""

    def __init__(self) -> None:
        self._codes: list[ExitCode] = []
        self._done = 0

    def succeeded(self) -> None:
        self._done += 1

    def add(self, error: BaseException, where: str = "") -> None:
        """Say it now, on one line, and remember it for the exit code."""
        text = message_of(error)
        click.echo(f"error: {where}: {text}" if where else f"error: {text}", err=True)
        self._codes.append(exit_code_of(error))

    @property
    def exit_code(self) -> ExitCode:
        """The common code when everything failed in the same way, otherwise that of a partial failure."""
        if not self._codes:
            return ExitCode.OK
        is_uniform = len(set(self._codes)) == 1 and not self._done
        return self._codes[0] if is_uniform else ExitCode.FAILURE


async def each(items: Sequence[T], work: Callable[[T], Awaitable[None]], failures: Failures, where: Callable[[T], str]) -> None:
    """Do `work` on every item, in order. A failure of one is reported and does not stop the rest; a lost server does."""
    from muster.client.errors import Unreachable

    for item in items:
        try:
            await work(item)
            failures.succeeded()
        except Unreachable:
            raise
        except (ApiError, CliError) as e:
            failures.add(e, where(item))
