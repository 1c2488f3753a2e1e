"""`muster api-resources`: which kinds the server has, and by which words they are called."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from muster.cli.framework import State, command, state_of
from muster.cli.options import Target, target_options

if TYPE_CHECKING:
    from muster.objects.resources import Resource


async def _kinds(target: Target, state: State) -> list[Resource]:
    from muster.cli.listing import preferred
    from muster.cli.session import session

    async with session(target, state) as s:
        return preferred(await s.client.resources())


@command("api-resources", "List the kinds that the server has.")
@click.option("--api-group", metavar="GROUP", help="Only kinds of this group; '' is the core group.")
@click.option("--no-headers", is_flag=True, help="Leave the table's header line out.")
@click.option("-o", "--output", type=click.Choice(["name", "json", "yaml"]), help="Names only, or everything for programs.")
@target_options(namespace=False)
@click.pass_context
def api_resources(ctx: click.Context, *, target: Target, api_group: str | None, no_headers: bool, output: str | None) -> None:
    """List the kinds that the server has, each in its preferred version, with the words that `muster get` takes for it."""
    from muster.cli import output as out
    from muster.cli.session import run

    kinds = [r for r in run(_kinds(target, state_of(ctx))) if api_group is None or r.group == api_group]
    if output == "name":
        out.emit("\n".join(r.qualified for r in kinds))
    elif output:
        value = [
            {
                "name": r.plural,
                "shortNames": list(r.short_names),
                "apiVersion": r.api_version,
                "namespaced": r.namespaced,
                "kind": r.kind,
                "verbs": list(r.verbs),
                "categories": list(r.categories),
            }
            for r in kinds
        ]
        out.emit(out.render_value(value, output))
    else:
        rows = [(r.plural, ",".join(r.short_names), r.api_version, r.namespaced, r.kind) for r in kinds]
        headers = ["NAME", "SHORTNAMES", "APIVERSION", "NAMESPACED", "KIND"]
        out.emit(out.simple_table(headers, rows, with_headers=not no_headers))
