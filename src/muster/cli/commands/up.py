"""`muster up`: everything on this machine, in the foreground, until a signal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from muster.cli import parts
from muster.cli.access_options import AccessOptions, access_options
from muster.cli.errors import CliError, UsageError
from muster.cli.framework import command, state_of
from muster.cli.history_options import HistoryOptions, history_options
from muster.cli.options import data_dir_option, log_level_option, scheduler_config_option, workload_approval_option
from muster.objects.words import counted

if TYPE_CHECKING:
    from muster.cli.foreground import Stop
    from muster.cli.local import Local
    from muster.cli.simulated import SimulatedNodes

DEFAULT_LISTEN = "127.0.0.1:6443"


async def _serve(local: Local, stop: Stop) -> None:
    try:
        if not await stop.unless(_started(local)):
            return
        _announce(local)
        await stop.unless(local.wait_failed())
    finally:
        await local.stop()
        if local.tasks_left:
            click.echo(
                f"the tasks of {counted(local.tasks_left, 'pod')} go on without it and are taken back by the next start; "
                "'muster down --tasks' ends them",
                err=True,
            )


async def _started(local: Local) -> bool:
    await local.start()
    return True


def _announce(local: Local) -> None:
    import shlex

    from muster import __version__
    from muster.cli.foreground import is_loopback

    host = local.server.config.host
    if not is_loopback(host):
        click.echo(
            f"warning: listening on {host or 'all addresses'}, which other machines can reach; "
            f"whoever has {local.server.kubeconfig_path} rules this server",
            err=True,
        )
    if local.simulated is not None:
        click.echo(
            f"warning: {local.simulated.said()} only pretend to run pods: no command of a pod is executed; "
            "pods end after some seconds, as their annotations say",
            err=True,
        )
    click.echo(f"muster {__version__} is ready at {local.server.url}; {parts.said(local.parts, local.left_out)}", err=True)
    click.echo(f"export KUBECONFIG={shlex.quote(str(local.server.kubeconfig_path))}")


@command("up", "Run Muster on this machine, in the foreground.")
@data_dir_option
@click.option(
    "--listen",
    metavar="HOST:PORT",
    default=DEFAULT_LISTEN,
    show_default=True,
    help="Where to serve the API; port 0 takes any free one. Only loopback unless another host is given here.",
)
@click.option(
    "--without",
    metavar="PART,...",
    multiple=True,
    help=f"Parts to leave out: {', '.join(parts.OPTIONAL)}.",
)
@click.option(
    "--simulated-nodes",
    metavar="PARTY=N,...",
    multiple=True,
    help="Nodes of each party that only pretend to run pods, for trying things out; 'default' for nodes of no party.",
)
@click.option(
    "--simulated-capacity",
    metavar="RESOURCE=AMOUNT,...",
    multiple=True,
    help="What each simulated node has.  [default: cpu=8,memory=32Gi,ephemeral-storage=100Gi,pods=110,bandwidth=10Gbps]",
)
@click.option(
    "--agents",
    metavar="PARTY,...",
    multiple=True,
    help="Run agents for exactly these parties, 'default' for one of no party.  [default: auto, which is every local party "
    "and default; none beside simulated nodes]",
)
@scheduler_config_option
@workload_approval_option
@history_options("none for no history.  [default: history in the data directory]")
@access_options
@log_level_option
@click.pass_context
def up(
    ctx: click.Context,
    *,
    data_dir: Path,
    listen: str,
    without: tuple[str, ...],
    simulated_nodes: tuple[str, ...],
    simulated_capacity: tuple[str, ...],
    agents: tuple[str, ...],
    scheduler_config: Path | None,
    workload_approval: bool,
    history: HistoryOptions,
    access: AccessOptions,
    log_level: str,
) -> None:
    """Run Muster on this machine, in the foreground: the Kubernetes-style API on its own store, the controllers, and agents
    that run tasks here.

    When it is ready, it prints one line to copy into another terminal: export KUBECONFIG=..., after which `muster` and
    `kubectl` talk to it. Ctrl-C or `muster down` stops it; a second Ctrl-C stops it at once. Everything is kept in the data
    directory and is there again on the next start.
    """
    from muster.cli.foreground import parse_listen, parse_without, read_scheduler_config, run_foreground

    host, port = parse_listen(listen)
    left_out = parse_without(without, parts.OPTIONAL)
    _check_length(data_dir)
    simulated = _simulated(simulated_nodes, simulated_capacity)
    wanted_agents = _agents(agents, left_out)
    configuration = read_scheduler_config(scheduler_config)

    from muster.cli.datadir import prepare

    prepare(data_dir)  # before everything that takes longer: most mistakes are about the directory

    from muster.cli.local import Local
    from muster.server import logs

    logs.setup("DEBUG" if state_of(ctx).debug else log_level)

    async def work(stop: Stop) -> None:
        local = Local(
            data_dir,
            host,
            port,
            left_out,
            scheduler_config=configuration,
            workload_approval=workload_approval,
            simulated=simulated,
            agents=wanted_agents,
            log_level=log_level,
            access=access,
            history=history.at_or(data_dir / "history"),
        )
        await _serve(local, stop)

    run_foreground(work)


def _agents(values: tuple[str, ...], left_out: list[str]) -> tuple[str, ...] | None:
    if not values:
        return None
    if "agent" in left_out:
        raise UsageError("--agents names agents to run, and --without agent leaves them out; give one of the two")
    from muster.cli.local_agents import parse_agents

    return parse_agents(values)


def _simulated(nodes: tuple[str, ...], capacity: tuple[str, ...]) -> SimulatedNodes | None:
    if not nodes and not capacity:
        return None
    from muster.cli.simulated import parse_simulated

    return parse_simulated(nodes, capacity)


def _check_length(path: Path) -> None:
    """The system would refuse it too, but only after half of it was made."""
    if len(str(path).encode()) > 3000:
        raise CliError(f"data directory {str(path)[:60]}…: the path is too long; choose another with --data-dir")
