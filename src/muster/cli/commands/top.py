"""`muster top`: what is held and used, from objects alone, so on any cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from muster.cli.framework import Entry, LazyGroup, State, command, common_options, state_of
from muster.cli.options import Target, machine_output, target_options

if TYPE_CHECKING:
    from muster.cli.session import Session
    from muster.objects.status import Raw

PAGE_LEN = 1_000
_NOTHING = {
    "node": "there are no nodes",
    "pod": "no pod that has a node holds or uses any bandwidth",
    "link": "there are no links; create objects of kind Link to limit what passes between parties or pools",
}


@click.group(
    "top",
    cls=LazyGroup,
    entries={
        "nodes": Entry(__name__, "nodes", "Nodes: capacity, requested, free and measured use of each resource."),
        "bandwidth": Entry(__name__, "bandwidth", "Network bandwidth: capacity, reserved, free and measured use."),
    },
    short_help="Show what is held and used.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
def top() -> None:
    """Show what is held and used."""


top.params.extend(common_options())


async def _all(s: Session, group: str, kind: str, *, is_optional: bool = False) -> list[Raw]:
    """Every object of the kind. With `is_optional`, nothing where the server does not have it or does not show it."""
    from muster.objects.status import Forbidden, NotFound

    found: list[Raw] = []
    token = ""
    try:
        resource = await s.client.resource(group, kind)
        while True:
            page = await s.client.list(resource, limit=PAGE_LEN, continue_token=token)
            # Items of a list do not name their kind, and messages should.
            found += ({**item, "kind": kind} for item in page.items)
            token = page.continue_token
            if not token:
                return found
    except (NotFound, Forbidden):
        if not is_optional:
            raise
        return []


async def _bandwidth(target: Target, state: State, by: str, namespace: str, output: str | None) -> None:
    import msgspec

    from muster.cli.bandwidth_use import BandwidthUse, Objects
    from muster.cli.output import emit, render_value
    from muster.cli.session import session, warn

    async with session(target, state) as s:
        objects = Objects(
            nodes=await _all(s, "", "Node"),
            pods=await _all(s, "", "Pod"),
            links=await _all(s, "muster.dev", "Link", is_optional=True),
            pools=await _all(s, "muster.dev", "NodePool", is_optional=True),
            metrics=await _all(s, "slo.koordinator.sh", "NodeMetric", is_optional=True),
        )
    use = BandwidthUse(objects)
    for problem in use.problems:
        warn(problem)
    rows: list[Any] = [*(use.by_node() if by == "node" else use.by_pod() if by == "pod" else use.by_link())]
    if namespace and by == "pod":
        rows = [row for row in rows if row.namespace == namespace]
    if output:
        emit(render_value({"items": msgspec.to_builtins(rows)}, output))
    elif not rows:
        click.echo(_NOTHING[by], err=True)
    else:
        emit(_table(by, rows))


async def _nodes(target: Target, state: State, names: tuple[str, ...], is_all: bool, output: str | None) -> None:
    import msgspec

    from muster.cli.bandwidth_use import BandwidthUse, Objects
    from muster.cli.errors import CliError, ExitCode
    from muster.cli.node_use import by_node
    from muster.cli.output import emit, render_value, simple_table
    from muster.cli.session import session, warn
    from muster.objects.amounts import unit_of
    from muster.objects.reasons import format_amount

    async with session(target, state) as s:
        objects = Objects(
            nodes=await _all(s, "", "Node"),
            pods=await _all(s, "", "Pod"),
            metrics=await _all(s, "slo.koordinator.sh", "NodeMetric", is_optional=True),
        )
    use = BandwidthUse(objects)
    for problem in use.problems:
        warn(problem)
    if unknown := [name for name in names if name not in use.state.nodes.slots]:
        raise CliError(f"Node {unknown[0]}: there is no node of that name; 'muster get nodes' lists them", ExitCode.NOT_FOUND)
    rows = by_node(use, names, is_all=is_all)
    if output:
        emit(render_value({"items": msgspec.to_builtins(rows)}, output))
    elif not rows:
        click.echo(_NOTHING["node"], err=True)
    else:
        lines = []
        for row in rows:
            amounts = (row.capacity, row.requested, row.free, row.used)
            shown = (None if amount is None else format_amount(amount, unit_of(row.resource)) for amount in amounts)
            share = None if row.used_share is None else f"{row.used_share:.0%}"
            lines.append((row.node, row.resource, *shown, share))
        emit(simple_table(["NODE", "RESOURCE", "CAPACITY", "REQUESTED", "FREE", "USED", "USED%"], lines))


def _table(by: str, rows: list[Any]) -> str:
    from muster.cli.output import simple_table
    from muster.objects.bandwidth import format_bandwidth as shown

    def measured(bps: int | None) -> str | None:
        return None if bps is None else shown(bps)

    if by == "node":
        return simple_table(
            ["NODE", "DIRECTION", "CAPACITY", "RESERVED", "FREE", "USED"],
            (
                (r.node, r.direction, shown(r.capacity_bps), shown(r.reserved_bps), shown(r.free_bps), measured(r.used_bps))
                for r in rows
            ),
        )
    if by == "pod":
        return simple_table(
            ["NAMESPACE", "POD", "NODE", "DIRECTION", "RESERVED", "USED"],
            ((r.namespace, r.pod, r.node, r.direction, shown(r.reserved_bps), measured(r.used_bps)) for r in rows),
        )
    return simple_table(
        ["LINK", "FROM", "TO", "CAPACITY", "RESERVED", "FREE"],
        ((r.link, r.source, r.target, shown(r.capacity_bps), shown(r.reserved_bps), shown(r.free_bps)) for r in rows),
    )


@command("bandwidth", "Network bandwidth: capacity, reserved, free and measured use.")
@click.option(
    "--by", type=click.Choice(["node", "pod", "link"]), default="node", show_default=True, help="What the rows are about."
)
@machine_output
@target_options()
@click.pass_context
def bandwidth(ctx: click.Context, *, target: Target, by: str, output: str | None) -> None:
    """Show the bandwidth of nodes, pods or links in each direction: capacity, reserved, free, and measured use.

    Reserved is counted as the scheduler counts it. Used comes from NodeMetric objects; it is <none> where no agent reports
    it. With --by pod, -n shows the pods of one namespace.
    """
    from muster.cli.session import run

    run(_bandwidth(target, state_of(ctx), by, target.namespace or "", output))


@command("nodes", "Nodes: capacity, requested, free and measured use of each resource.")
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--all", "is_all", is_flag=True, help="Also ephemeral storage and places for pods.")
@machine_output
@target_options(namespace=False)
@click.pass_context
def nodes(ctx: click.Context, *, target: Target, names: tuple[str, ...], is_all: bool, output: str | None) -> None:
    """Show what each node offers to pods, what they have requested of it, what is free, and what is measured to be used.

    Requested is counted as the scheduler counts it. Used comes from NodeMetric objects, and is that of the whole node; it is
    <none> where no agent reports it. Devices are shown where a node has some.
    """
    from muster.cli.session import run

    run(_nodes(target, state_of(ctx), names, is_all, output))
