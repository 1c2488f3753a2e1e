"""`muster uninstall`: what `muster install` made, and nothing else."""

from __future__ import annotations

import click

from muster.cli.errors import CliError
from muster.cli.framework import State, command, state_of
from muster.cli.options import Target, target_options


async def _uninstall(target: Target, state: State, *, keep_crds: bool, yes: bool, dry_run: bool, timeout_s: float) -> None:
    from muster.cli.installing import Uninstaller
    from muster.cli.session import session

    async with session(target, state, show_warnings=False) as s:
        uninstaller = Uninstaller(s, click.echo, dry_run=dry_run)
        losses = {} if keep_crds else await uninstaller.custom_objects()
        if losses:
            text = ", ".join(f"{count} {kind}" for kind, count in sorted(losses.items()))
            if not yes and not dry_run:
                raise CliError(
                    f"this would also delete {text}; add --yes if that is meant, or keep kinds and objects with --keep-crds"
                )
            click.echo(f"warning: with their kinds these objects go: {text}", err=True)
        count = await uninstaller.run(keep_crds=keep_crds, timeout_s=timeout_s)
        if not count:
            click.echo(f"nothing of 'muster install' is on {s.client.config.server}")


@command("uninstall", "Remove Muster from a Kubernetes cluster.")
@click.option("--keep-crds", is_flag=True, help="Leave the kinds, and with them all objects of these kinds.")
@click.option("--yes", is_flag=True, help="Delete the objects of Muster's kinds as well, without asking.")
@click.option("--dry-run", is_flag=True, help="Show what would go, and delete nothing.")
@click.option(
    "--timeout",
    "timeout_s",
    metavar="SECONDS",
    type=click.FloatRange(1, 3600),
    default=120.0,
    show_default=True,
    help="How long to wait until everything is gone.",
)
@target_options(namespace=False)
@click.pass_context
def uninstall(ctx: click.Context, *, target: Target, keep_crds: bool, yes: bool, dry_run: bool, timeout_s: float) -> None:
    """Remove from a cluster what `muster install` made, found by its label, and wait until it is gone.

    Deleting a kind deletes all objects of it. If there are any, nothing is removed unless --yes or --keep-crds says what to
    do with them. Kinds and namespaces that were there before stay.
    """
    from muster.cli.session import run

    run(_uninstall(target, state_of(ctx), keep_crds=keep_crds, yes=yes, dry_run=dry_run, timeout_s=timeout_s))
