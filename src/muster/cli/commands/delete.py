"""`muster delete`: objects by name, by selector, or by the files they came from; and wait until they are gone."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click
import msgspec

from muster.cli.completions import complete_references
from muster.cli.errors import CliError, ExitCode, UsageError
from muster.cli.framework import State, command, state_of
from muster.cli.options import Target, file_options, selector_options, target_options

if TYPE_CHECKING:
    from muster.cli.files import Manifests
    from muster.cli.references import Reference
    from muster.cli.session import Failures, Session
    from muster.objects.requests import Propagation
    from muster.objects.resources import Resource

EXAMPLE = "muster delete kusciajob train-1; muster delete pod/web-1; muster delete -f job.yaml"
PROPAGATION: dict[str, Propagation] = {"background": "Background", "foreground": "Foreground", "orphan": "Orphan"}


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """How to delete, whatever it is."""

    all_namespaces: bool
    label_selector: str
    field_selector: str
    cascade: str
    grace_period_s: int | None
    wait: bool
    timeout_s: float
    ignore_not_found: bool
    dry_run: bool
    output: str | None


class Victim(msgspec.Struct, frozen=True):
    resource: Resource
    name: str
    namespace: str | None
    where: str = ""


async def _named(s: Session, parsed: list[Reference], request: Request, failures: Failures) -> list[Victim]:
    from muster.cli.listing import Query, read_objects, resolve_kinds
    from muster.objects.meta import name_of, namespace_of

    found: list[Victim] = []
    query = Query(
        all_namespaces=request.all_namespaces,
        label_selector=request.label_selector,
        field_selector=request.field_selector,
    )
    for resource, names in await resolve_kinds(s, parsed, failures):
        if names:
            found += [Victim(resource, name, s.namespace_for(resource)) for name in names]
        else:
            items, _ = await read_objects(s, resource, query)
            found += [Victim(resource, name_of(i), namespace_of(i) or None) for i in items]
    return found


async def _from_files(s: Session, manifests: Manifests, failures: Failures) -> list[Victim]:
    """In the reverse of the order in which apply makes them."""
    from muster.cli.applying import Applier, in_order, target_namespace, where_is
    from muster.objects.meta import name_of
    from muster.objects.requests import WriteOptions
    from muster.objects.status import ApiError

    for problem in manifests.problems:
        failures.add(CliError(problem))
    found: list[Victim] = []
    applier = Applier(s, WriteOptions())
    for document in reversed(in_order(manifests.documents)):
        try:
            resource = await applier.resource_of(document.object)
            namespace = target_namespace(s, resource, document.object)
        except (ApiError, CliError) as e:
            failures.add(e, where_is(document))
            continue
        found.append(Victim(resource, name_of(document.object), namespace, where_is(document)))
    return found


async def _delete(
    target: Target, state: State, parsed: list[Reference], manifests: Manifests | None, request: Request
) -> ExitCode:
    from muster.cli.applying import delete_object
    from muster.cli.output import qualified_name
    from muster.cli.session import Failures, each, session
    from muster.objects.requests import WriteOptions
    from muster.objects.status import NotFound

    failures = Failures()
    leaving: list[tuple[Victim, str]] = []
    async with session(target, state) as s:
        victims = await (_from_files(s, manifests, failures) if manifests else _named(s, parsed, request, failures))
        if not victims and failures.exit_code is ExitCode.OK:
            click.echo("nothing found", err=True)

        async def one(victim: Victim) -> None:
            try:
                uid = await delete_object(
                    s,
                    victim.resource,
                    victim.name,
                    victim.namespace,
                    WriteOptions(dry_run=request.dry_run),
                    propagation=PROPAGATION[request.cascade],
                    grace_period_s=request.grace_period_s,
                )
            except NotFound:
                if request.ignore_not_found:
                    return
                raise
            leaving.append((victim, uid))
            title = qualified_name(victim.resource, victim.name)
            click.echo(title if request.output == "name" else f"{title} deleted{' (dry run)' if request.dry_run else ''}")

        await each(victims, one, failures, lambda v: v.where)
        if request.wait and not request.dry_run:
            await _wait(s, leaving, request.timeout_s)
    return failures.exit_code


async def _wait(s: Session, leaving: list[tuple[Victim, str]], timeout_s: float) -> None:
    """All of them at once; what has not gone in time is named."""
    from muster.cli.applying import wait_gone
    from muster.cli.output import qualified_name

    tasks = {asyncio.create_task(wait_gone(s, v.resource, v.name, v.namespace, uid)): v for v, uid in leaving}
    if not tasks:
        return
    done, late = await asyncio.wait(tasks, timeout=timeout_s or None)
    for task in late:
        task.cancel()
    await asyncio.gather(*late, return_exceptions=True)
    for task in done:
        task.result()
    if late:
        names = ", ".join(sorted(qualified_name(tasks[t].resource, tasks[t].name) for t in late)[:5])
        raise CliError(
            f"{len(late)} of {len(tasks)} deleted objects still exist after {timeout_s:g} s, such as {names}; finalizers or a "
            "grace period keep them, see 'muster describe'; wait longer with --timeout, or not at all with --no-wait",
            ExitCode.TIMEOUT,
        )


def _check(parsed: list[Reference], filenames: tuple[str, ...], request: Request, every: bool) -> None:
    selected = bool(request.label_selector or request.field_selector)
    if filenames and (parsed or selected or every):
        raise UsageError("-f excludes kinds, names, selectors and --all")
    if filenames:
        return
    named = any(r.names for r in parsed)
    if named and (selected or every or request.all_namespaces):
        raise UsageError("names exclude --selector, --field-selector, --all and --all-namespaces")
    if not named and not selected and not every:
        raise UsageError("say which objects: names, --selector, --field-selector, or --all for all of the namespace")


@command("delete", "Delete objects.")
@click.argument("references", metavar="[KIND[,KIND...] [NAME]... | KIND/NAME...]", nargs=-1, shell_complete=complete_references)
@file_options("Files that hold the objects to delete")
@selector_options
@click.option("--all", "every", is_flag=True, help="All objects of the kind in the namespace.")
@click.option("-A", "--all-namespaces", is_flag=True, help="In all namespaces; with --all or a selector.")
@click.option(
    "--cascade",
    type=click.Choice(list(PROPAGATION)),
    default="background",
    show_default=True,
    help="What becomes of the objects that they own: deleted after, deleted before, or left alone.",
)
@click.option(
    "--grace-period", "grace_period_s", metavar="SECONDS", type=click.IntRange(0, 86_400), help="Time for pods to end."
)
@click.option("--wait/--no-wait", default=True, show_default=True, help="Wait until the objects are gone.")
@click.option(
    "--timeout",
    "timeout_s",
    metavar="SECONDS",
    type=click.FloatRange(0, 86_400),
    default=0.0,
    show_default="no limit",
    help="How long to wait.",
)
@click.option("--ignore-not-found", is_flag=True, help="An object that does not exist is no error.")
@click.option("--dry-run", is_flag=True, help="Let the server check and answer as usual, but delete nothing.")
@click.option("-o", "--output", type=click.Choice(["name"]), help="Print names only.")
@target_options()
@click.pass_context
def delete(
    ctx: click.Context,
    *,
    target: Target,
    references: tuple[str, ...],
    filenames: tuple[str, ...],
    recursive: bool,
    label_selector: str,
    field_selector: str,
    every: bool,
    all_namespaces: bool,
    cascade: str,
    grace_period_s: int | None,
    wait: bool,
    timeout_s: float,
    ignore_not_found: bool,
    dry_run: bool,
    output: str | None,
) -> None:
    """Delete objects by name, by selector, or those that files hold, and wait until they are gone.

    Objects with finalizers stay until a controller has let them go; --timeout bounds the wait.
    """
    from muster.cli.files import read_manifests
    from muster.cli.references import parse_references
    from muster.cli.session import run

    request = Request(
        all_namespaces=all_namespaces,
        label_selector=label_selector,
        field_selector=field_selector,
        cascade=cascade,
        grace_period_s=grace_period_s,
        wait=wait,
        timeout_s=timeout_s,
        ignore_not_found=ignore_not_found,
        dry_run=dry_run,
        output=output,
    )
    parsed = [] if filenames and not references else parse_references(references, example=EXAMPLE)
    _check(parsed, filenames, request, every)
    manifests = read_manifests(filenames, recursive=recursive) if filenames else None
    ctx.exit(run(_delete(target, state_of(ctx), parsed, manifests, request)))
