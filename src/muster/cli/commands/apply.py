"""`muster apply`: create or change objects so that they are as files say."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from muster.cli.errors import CliError, ExitCode
from muster.cli.framework import State, command, state_of
from muster.cli.options import Target, file_options, target_options

if TYPE_CHECKING:
    from muster.cli.files import Document, Manifests
    from muster.objects.requests import WriteOptions


async def _apply(target: Target, state: State, manifests: Manifests, options: WriteOptions, output: str | None) -> ExitCode:
    from muster.cli import output as out
    from muster.cli.applying import Applied, Applier, in_order, where_is
    from muster.cli.session import Failures, each, session

    failures = Failures()
    for problem in manifests.problems:
        failures.add(CliError(problem))
    applied: list[Applied] = []
    async with session(target, state) as s:
        applier = Applier(s, options)

        async def one(document: Document) -> None:
            done = await applier.apply(document.object)
            applied.append(done)
            if output is None:
                click.echo(f"{done.title} {done.outcome}{' (dry run)' if options.dry_run else ''}")
            elif output == "name":
                click.echo(done.title)

        await each(in_order(manifests.documents), one, failures, where_is)
    if output in ("json", "yaml"):
        out.print_objects([a.object for a in applied], output, single=True)
    return failures.exit_code


@command("apply", "Create or change objects from files.")
@file_options("The objects to apply", required=True)
@click.option("-o", "--output", type=click.Choice(["json", "yaml", "name"]), help="Print the objects instead of what was done.")
@click.option("--dry-run", is_flag=True, help="Let the server check and answer as usual, but store nothing.")
@click.option("--force-conflicts", is_flag=True, help="Take over fields that another manager has set.")
@click.option(
    "--field-manager", metavar="NAME", default="muster", show_default=True, help="Under which name to own the fields."
)
@click.option(
    "--validate",
    type=click.Choice(["strict", "warn", "ignore"]),
    default="strict",
    show_default=True,
    help="What to do about fields that the kind does not have.",
)
@click.option("--server-side", is_flag=True, default=True, hidden=True, help="Accepted for kubectl's sake; it is always so.")
@target_options()
@click.pass_context
def apply(
    ctx: click.Context,
    *,
    target: Target,
    filenames: tuple[str, ...],
    recursive: bool,
    output: str | None,
    dry_run: bool,
    force_conflicts: bool,
    field_manager: str,
    validate: str,
    server_side: bool,
) -> None:
    """Create or change objects so that they are as the files say.

    Files hold one or more YAML or JSON documents. The server merges (server-side apply): fields that the files do not mention
    keep their values. Namespaces and CustomResourceDefinitions go first. When one object fails, the others are still tried,
    and the exit code is 1.
    """
    from muster.cli.files import read_manifests
    from muster.cli.session import run
    from muster.objects.requests import WriteOptions

    del server_side
    options = WriteOptions(
        dry_run=dry_run,
        field_manager=field_manager,
        force=force_conflicts,
        field_validation={"strict": "Strict", "warn": "Warn"}.get(validate, "Ignore"),  # type: ignore[arg-type]
    )
    ctx.exit(run(_apply(target, state_of(ctx), read_manifests(filenames, recursive=recursive), options, output)))
