"""`muster get`: objects of any kind, as the server's own tables or as data, once or as they change."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from muster.cli.completions import complete_references
from muster.cli.errors import CliError, ExitCode, UsageError, message_of
from muster.cli.framework import State, command, state_of
from muster.cli.options import Target, selector_options, target_options

if TYPE_CHECKING:
    from muster.cli.listing import Query
    from muster.cli.references import Reference

EXAMPLE = "muster get pods; muster get kusciajobs,kusciatasks; muster get pod/web-1"
OF_USERS = frozenset({"jobs", "kusciajobs", "pods"})
"""What has owners, who may list their own."""
FORMATS = click.Choice(["table", "wide", "json", "yaml", "name"])


async def _get(target: Target, state: State, parsed: list[Reference], query: Query, watch: bool) -> ExitCode:
    from muster.cli.listing import Follower, print_data, print_tables, resolve_kinds
    from muster.cli.people import own_selector
    from muster.cli.session import Failures, session
    from muster.objects.status import Forbidden

    failures = Failures()
    async with session(target, state) as s:
        wanted = await resolve_kinds(s, parsed, failures)
        if watch:
            if len(wanted) != 1 or len(wanted[0][1]) > 1:
                raise UsageError("--watch follows one kind, or one object of it: name just one")
            resource, names = wanted[0]
            await Follower(s, resource, names[0] if names else "", query).run()
            return failures.exit_code
        try:
            await (print_tables if query.is_table else print_data)(s, wanted, query, failures)
        except Forbidden as error:
            own = await own_selector(s.client) if any(r.plural in OF_USERS and not names for r, names in wanted) else ""
            if not own or query.label_selector:
                raise
            raise CliError(f"{message_of(error)}; what you may list: -l '{own}'", ExitCode.FORBIDDEN) from error
    return failures.exit_code


@command("get", "List objects of any kind.")
@click.argument("references", metavar="KIND[,KIND...] [NAME]... | KIND/NAME...", nargs=-1, shell_complete=complete_references)
@click.option("-o", "--output", type=FORMATS, default="table", show_default=True, help="Format.")
@click.option("-A", "--all-namespaces", is_flag=True, help="Objects of all namespaces.")
@selector_options
@click.option("-w", "--watch", is_flag=True, help="After listing, print each change until interrupted.")
@click.option("--no-headers", is_flag=True, help="Leave the table's header line out.")
@click.option("--show-labels", is_flag=True, help="Add a column with the labels.")
@click.option("--show-managed-fields", is_flag=True, help="Keep metadata.managedFields in json and yaml.")
@click.option("--ignore-not-found", is_flag=True, help="Say nothing, and exit 0, when a named object does not exist.")
@click.option("--chunk-size", type=click.IntRange(1, 10_000), default=500, show_default=True, help="Objects per request.")
@target_options()
@click.pass_context
def get(
    ctx: click.Context,
    *,
    target: Target,
    references: tuple[str, ...],
    output: str,
    all_namespaces: bool,
    label_selector: str,
    field_selector: str,
    watch: bool,
    no_headers: bool,
    show_labels: bool,
    show_managed_fields: bool,
    ignore_not_found: bool,
    chunk_size: int,
) -> None:
    """List objects of any kind: those of Muster, of Kubernetes, and every kind that a CustomResourceDefinition adds.

    A kind is a plural, singular or short name, with its group if need be: kusciajobs, kj, queues.muster.dev. `all` and other
    categories stand for their kinds. Without names, all objects of the namespace are listed.
    """
    from muster.cli.references import parse_references
    from muster.cli.session import run

    parsed = parse_references(references, example=EXAMPLE)
    has_names = any(r.names for r in parsed)
    if has_names and (label_selector or field_selector):
        raise UsageError("names and selectors exclude each other: give names, or --selector and --field-selector")
    if has_names and all_namespaces:
        raise UsageError("a name is looked up in one namespace: give --namespace instead of --all-namespaces")

    from muster.cli.listing import Query

    query = Query(
        output=output,
        all_namespaces=all_namespaces,
        label_selector=label_selector,
        field_selector=field_selector,
        chunk_size=chunk_size,
        headers=not no_headers,
        show_labels=show_labels,
        show_managed=show_managed_fields,
        ignore_not_found=ignore_not_found,
    )
    ctx.exit(run(_get(target, state_of(ctx), parsed, query, watch)))
