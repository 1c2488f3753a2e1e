"""`muster pool`: pools of nodes, what they have, and who uses it: now, or at a past moment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from muster.cli.errors import CliError, ExitCode, UsageError
from muster.cli.framework import State, command, state_of
from muster.cli.options import Target, machine_output, target_options

if TYPE_CHECKING:
    from muster.cli.pool_view import By
    from muster.engine.state import State as EngineState
    from muster.objects.status import Raw

WORDS = ("user", "job", "queue", "node", "pod")


async def _now(target: Target, state: State) -> EngineState | list[Raw]:
    """The cluster as it is, from objects alone: so on any server. Who may see pools and no nodes gets the pools."""
    from muster.cli.bandwidth_use import BandwidthUse, Objects
    from muster.cli.commands.top import _all
    from muster.cli.session import session, warn
    from muster.objects.status import Forbidden

    async with session(target, state) as s:
        pools = await _all(s, "muster.dev", "NodePool", is_optional=True)
        try:
            nodes, pods = await _all(s, "", "Node"), await _all(s, "", "Pod")
        except Forbidden:
            if not pools:
                raise
            return pools
        metrics = await _all(s, "slo.koordinator.sh", "NodeMetric", is_optional=True)
    objects = Objects(nodes=nodes, pods=pods, pools=pools, metrics=metrics)
    use = BandwidthUse(objects)
    for problem in use.problems:
        warn(problem)
    use.state.metrics.update(use.metrics)
    return use.state


def _then(place: str, at: str) -> EngineState:
    """The cluster as it was, from the log of decisions; that of the local server unless another is named."""
    from muster.cli.history_places import instant, local_log, open_log
    from muster.history.past import engine_at
    from muster.history.replaying import NotReplayable, engines, known_orders
    from muster.history.segments import SegmentDamaged
    from muster.history.stores import StoreUnusable
    from muster.objects.time import format_time, wall_clock

    moment = instant(at, "--at", wall_clock())
    assert moment is not None
    place = place or local_log()
    try:
        engine = engine_at(open_log(place), engines(orders=known_orders()), moment)
    except (StoreUnusable, SegmentDamaged, NotReplayable, OSError) as error:
        raise CliError(f"--history {place}: {error}") from error
    if engine is None:
        raise CliError(f"{place}: nothing is recorded from before {format_time(moment)}", ExitCode.NOT_FOUND)
    return engine.state


def _show(found: EngineState, name: str, by: By, output: str | None) -> None:
    import msgspec

    from muster.cli import pool_view as view
    from muster.cli.output import emit, render_value, simple_table

    if not name:
        rows = view.pool_rows(found)
        if output:
            emit(render_value({"items": msgspec.to_builtins(rows)}, output))
        elif rows:
            emit(simple_table(*view.pools_table(rows)))
        else:
            click.echo("there are no nodes", err=True)
        return
    pool = found.pools.get(name)
    if pool is None:
        known = ", ".join(sorted(found.pools)) or "none"
        raise CliError(f"NodePool {name}: there is no pool of that name; there is: {known}", ExitCode.NOT_FOUND)
    nodes = view.node_rows(found, pool)
    held = view.holdings(view.found_uses(found, [row.node for row in nodes]), by)
    if output:
        body: dict[str, Any] = {"pool": name, "nodes": msgspec.to_builtins(nodes), "uses": msgspec.to_builtins(held)}
        emit(render_value(body, output))
        return
    parts = [simple_table(*view.nodes_table(nodes)) if nodes else f"no node is in NodePool {name}"]
    if held:
        parts.append(simple_table(*view.holdings_table(held, by)))
    emit("\n\n".join(parts))


def _show_written(pools: list[Raw], name: str, output: str | None) -> None:
    """What the pools say themselves."""
    import msgspec

    from muster.cli import pool_view as view
    from muster.cli.output import emit, render_value, simple_table

    rows = [row for row in view.written_rows(pools) if name in ("", row.pool)]
    if not rows:
        known = ", ".join(row.pool for row in view.written_rows(pools))
        raise CliError(f"NodePool {name}: there is no pool of that name; there is: {known}", ExitCode.NOT_FOUND)
    if output:
        emit(render_value({"items": msgspec.to_builtins(rows)}, output))
        return
    emit(simple_table(*view.pools_table(rows)))
    click.echo("shown is what pools say themselves: nodes, and who uses what on them, are not yours to list", err=True)


@command("pool", "Show pools of nodes, what they have, and who uses it.")
@click.argument("name", metavar="[POOL]", default="")
@click.option(
    "--by",
    type=click.Choice(WORDS),
    default="user",
    show_default=True,
    help="Who uses what: by user, job, queue or pod, with the nodes of each; or by node, with its users.",
)
@click.option("--at", metavar="TIME", default="", help="As it was then: 2026-05-01T12:00:00Z, a date, or 90m, 2d ago.")
@click.option("--history", metavar="DIR|URL", default="", help="The log of decisions, for --at.  [default: that of muster up]")
@machine_output
@target_options(namespace=False)
@click.pass_context
def pool(ctx: click.Context, *, target: Target, name: str, by: By, at: str, history: str, output: str | None) -> None:
    """Show all pools with what they have, hold and use; or one pool node by node, and who uses what in it.

    With --at, as it was at a past moment: the log of decisions is replayed up to then.
    """
    from muster.cli.session import run

    if history and not at:
        raise UsageError("--history is where the past is read: give --at TIME as well")
    found = _then(history, at) if at else run(_now(target, state_of(ctx)))
    if isinstance(found, list):
        _show_written(found, name, output)
    else:
        _show(found, name, by, output)
