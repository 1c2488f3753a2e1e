"""Commands that stay in the foreground until they are told to stop: `up` and `controller`.

The first SIGINT or SIGTERM asks for a clean stop; the second ends the process at once. Both signals are taken from the moment
the loop starts, so that one that comes while things are still starting is not lost.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import click

from muster.cli.errors import CliError, ExitCode, UsageError

T = TypeVar("T")
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stop:
    """Becomes set at the first signal. One per process."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._received, number)

    def _received(self, number: signal.Signals) -> None:
        if self._event.is_set():
            click.echo("stopped at once, as asked twice", err=True)
            os._exit(ExitCode.INTERRUPTED)
        click.echo(f"stopping ({number.name}); once more to stop at once", err=True)
        self._event.set()

    @property
    def is_set(self) -> bool:
        return self._event.is_set()

    async def wait(self) -> None:
        await self._event.wait()

    async def unless(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Do `work`, or give it up (None) when a signal comes first."""
        task = asyncio.create_task(work)
        waiting = asyncio.create_task(self.wait())
        try:
            await asyncio.wait((task, waiting), return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            return None
        finally:
            waiting.cancel()
            if not task.done():
                task.cancel()
            await asyncio.gather(task, waiting, return_exceptions=True)


def run_foreground(work: Callable[[Stop], Awaitable[T]]) -> T:
    """Run `work` on a loop of its own, uvloop where there is one."""

    async def main() -> T:
        return await work(Stop())

    try:
        import uvloop
    except ImportError:
        return asyncio.run(main())
    return uvloop.run(main())


def parse_listen(value: str, option: str = "--listen") -> tuple[str, int]:
    """`HOST:PORT`, `[IPv6]:PORT` or `:PORT`; UsageError otherwise."""
    host, colon, port = value.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or not 0 <= int(port) <= 65535:
        raise UsageError(f"{option} '{value}': expected HOST:PORT with a port from 0 (any free one) to 65535")
    if host.startswith("[") != host.endswith("]") or (":" in host and not host.startswith("[")):
        raise UsageError(f"{option} '{value}': an IPv6 address stands in brackets, as in [::1]:6443")
    return host.strip("[]"), int(port)


def is_loopback(host: str) -> bool:
    import ipaddress

    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def parse_without(values: tuple[str, ...], known: dict[str, str], option: str = "--without") -> list[str]:
    """The names in `--without a,b --without c`, each of which must be a key of `known`."""
    names = [name.strip() for value in values for name in value.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise UsageError(f"{option} '{name}': there is no such part; there are: {', '.join(known)}")
    return list(dict.fromkeys(names))


def read_scheduler_config(path: Path | None) -> str | None:
    """The text of the scheduler's configuration, once it is known to be right: nothing is started with a wrong one."""
    if path is None:
        return None
    from muster.engine.configuration import ConfigurationInvalid, load
    from muster.engine.registry import discover

    try:
        text = path.read_text()
        registry = discover()
        load(text, registry).build(registry)
    except OSError as e:
        raise CliError(f"--scheduler-config {path}: {e.strerror or e}; name a file that can be read") from e
    except UnicodeDecodeError as e:
        raise CliError(f"--scheduler-config {path}: not text in UTF-8 ({e.reason} at byte {e.start})") from e
    except ConfigurationInvalid as e:
        raise CliError(f"--scheduler-config {path}: {'; '.join(e.errors)}") from e
    return text
