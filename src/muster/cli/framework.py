"""Commands that load when they are called, and the options that each of them has.

`LazyGroup` knows its commands by name, module and one-line help, so `muster --help` imports none of them. `command` is
`click.command` plus `--verbose` and `--debug`, which therefore work before and after the command's name alike.

Single-threaded; runs before any event loop exists.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import click


@dataclass
class State:
    """What the options common to all commands said. One per run, shared through click's `ctx.obj`."""

    verbose: bool = False
    debug: bool = False
    kubeconfig: str | None = None
    context: str | None = None
    namespace: str | None = None

    def note(self, text: str) -> None:
        """Say something on stderr that only `--verbose` shows."""
        if self.verbose or self.debug:
            click.echo(f"note: {text}", err=True)


def state_of(ctx: click.Context) -> State:
    return ctx.ensure_object(State)


class Entry(NamedTuple):
    """Where a command lives: `module` and the attribute in it, and the line that `--help` of its group shows."""

    module: str
    attribute: str
    summary: str


class LazyGroup(click.Group):
    """A group whose commands are imported when they run, or when their own help is asked for."""

    def __init__(self, *args: Any, entries: Mapping[str, Entry], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.entries = dict(entries)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = self.entries.get(cmd_name)
        if entry is None:
            return None
        loaded = getattr(importlib.import_module(entry.module), entry.attribute)
        assert isinstance(loaded, click.Command), f"{entry.module}:{entry.attribute} is not a command"
        return loaded

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does; for a name that there is not, with those that there are."""
        if args and not args[0].startswith("-") and args[0] not in self.entries:
            ctx.fail(f"No such command {args[0]!r}{self._instead(ctx, args[0])}")
        return super().resolve_command(ctx, args)

    def _instead(self, ctx: click.Context, name: str) -> str:
        root = ctx.find_root().command
        if root is not self and isinstance(root, LazyGroup) and name in root.entries:
            return f"; there is '{ctx.find_root().info_name} {name}'"
        near = difflib.get_close_matches(name, self.entries, n=3) or (self.entries if root is not self else ())
        return f"; there is: {', '.join(near)}" if near else ""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in self.entries.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        if incomplete.startswith("-"):
            return click.Command.shell_complete(self, ctx, incomplete)
        return [CompletionItem(n, help=e.summary) for n, e in self.entries.items() if n.startswith(incomplete)]


def _set_flag(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        assert param.name is not None
        setattr(state_of(ctx.find_root()), param.name, True)


def _remember(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value is not None:
        assert param.name is not None
        setattr(state_of(ctx.find_root()), param.name, value)


def connection_options() -> list[click.Parameter]:
    """For the program itself: what stands before the command holds unless the command says otherwise."""
    settings = (
        (["--kubeconfig"], "FILE", "Kubeconfig for the command."),
        (["--context"], "NAME", "Context for the command."),
        (["-n", "--namespace"], "NS", "Namespace for the command."),
    )
    return [
        click.Option(names, metavar=metavar, expose_value=False, callback=_remember, help=text)
        for names, metavar, text in settings
    ]


def common_options() -> list[click.Parameter]:
    return [
        click.Option(
            ["-v", "--verbose"],
            is_flag=True,
            expose_value=False,
            callback=_set_flag,
            help="Say more on stderr about what is done.",
        ),
        click.Option(
            ["--debug"],
            is_flag=True,
            expose_value=False,
            callback=_set_flag,
            help="Show the full trace of an unexpected error.",
        ),
    ]


class Command(click.Command):
    """A command that also takes the common options."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.extend(common_options())


def command(name: str, summary: str) -> Callable[[Callable[..., Any]], Command]:
    """Declare a command. `summary` is the line its group shows; the function's docstring is the full help."""

    def decorate(function: Callable[..., Any]) -> Command:
        return click.command(name, cls=Command, short_help=summary, context_settings={"help_option_names": ["-h", "--help"]})(
            function
        )

    return decorate
