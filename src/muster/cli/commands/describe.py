"""`muster describe`: objects in words, with conditions and events."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from muster.cli.completions import complete_references
from muster.cli.errors import ExitCode, UsageError
from muster.cli.framework import State, command, state_of
from muster.cli.options import Target, selector_options, target_options

if TYPE_CHECKING:
    from muster.cli.listing import Query
    from muster.cli.references import Reference
    from muster.cli.session import Session
    from muster.objects.status import Raw

EXAMPLE = "muster describe kusciajob train-1; muster describe pod/web-1; muster describe nodes"
EVENTS_READ_MAX = 500


async def events_of(s: Session, obj: Raw) -> list[Raw]:
    """The events about this very object. None, rather than a failure, where they may not be read."""
    from muster.objects.meta import namespace_of, uid_of
    from muster.objects.status import ApiError

    try:
        events = await s.client.resource("", "Event")
        # Events about objects without a namespace are kept in `default`.
        page = await s.client.list(
            events,
            namespace_of(obj) or "default",
            field_selector=f"involvedObject.uid={uid_of(obj)}",
            limit=EVENTS_READ_MAX,
        )
    except ApiError:
        return []
    return page.items


async def _describe(target: Target, state: State, parsed: list[Reference], query: Query) -> ExitCode:
    from muster.cli.describing import describe as text_of
    from muster.cli.listing import read_objects, resolve_kinds
    from muster.cli.output import emit
    from muster.cli.session import Failures, session
    from muster.objects.status import NotFound
    from muster.objects.time import wall_clock

    failures = Failures()
    is_first = True
    async with session(target, state) as s:
        for resource, names in await resolve_kinds(s, parsed, failures):
            found: list[Raw] = [] if names else (await read_objects(s, resource, query))[0]
            for name in names:
                try:
                    found.append(await s.client.get(resource, name, s.namespace_for(resource)))
                    failures.succeeded()
                except NotFound as e:
                    failures.add(e)
            for obj in found:
                emit(("" if is_first else "\n\n") + text_of(obj, resource, await events_of(s, obj), wall_clock()))
                is_first = False
    if is_first and failures.exit_code is ExitCode.OK:
        click.echo("nothing found", err=True)
    return failures.exit_code


@command("describe", "Show objects in full, with their conditions and events.")
@click.argument("references", metavar="KIND[,KIND...] [NAME]... | KIND/NAME...", nargs=-1, shell_complete=complete_references)
@click.option("-A", "--all-namespaces", is_flag=True, help="Objects of all namespaces.")
@selector_options
@target_options()
@click.pass_context
def describe(
    ctx: click.Context,
    *,
    target: Target,
    references: tuple[str, ...],
    all_namespaces: bool,
    label_selector: str,
    field_selector: str,
) -> None:
    """Show objects in full: what they are, what was asked, how they stand, their conditions and their events.

    Fields have the names they have in manifests. Values of Secrets are not shown.
    """
    from muster.cli.listing import Query
    from muster.cli.references import parse_references
    from muster.cli.session import run

    parsed = parse_references(references, example=EXAMPLE)
    if any(r.names for r in parsed) and (label_selector or field_selector or all_namespaces):
        raise UsageError("names exclude --selector, --field-selector and --all-namespaces")
    query = Query(all_namespaces=all_namespaces, label_selector=label_selector, field_selector=field_selector)
    ctx.exit(run(_describe(target, state_of(ctx), parsed, query)))
