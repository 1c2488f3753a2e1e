"""`muster controller`: Muster's controllers and webhooks for a real cluster, in the foreground, until a signal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from muster.cli.framework import State, command, state_of
from muster.cli.history_options import HistoryOptions, history_options
from muster.cli.options import (
    Target,
    log_level_option,
    scheduler_config_option,
    target_options,
    workload_approval_option,
)

if TYPE_CHECKING:
    from muster.cli.cluster import Cluster, ClusterOptions
    from muster.cli.foreground import Stop

DEFAULT_NAMESPACE = "muster-system"


async def _serve(target: Target, state: State, options: ClusterOptions, stop: Stop) -> None:
    from muster.cli.cluster import Cluster
    from muster.cli.session import resolve
    from muster.client.api import ApiClient
    from muster.client.transport import TransportLimits

    config = resolve(target, state)
    limits = TransportLimits(timeout_s=target.request_timeout_s)
    cluster = Cluster(ApiClient(config, limits=limits), options, election=ApiClient(config, limits=limits))
    try:
        if not await stop.unless(_started(cluster)):
            return
        _announce(cluster, config.server)
        await stop.unless(cluster.wait_failed())
    finally:
        await cluster.stop()


async def _started(cluster: Cluster) -> bool:
    await cluster.start()
    return True


def _announce(cluster: Cluster, server: str) -> None:
    from muster import __version__

    assert cluster.health is not None
    if cluster.webhooks is not None:
        click.echo(f"webhooks at https://{_shown(cluster.webhooks.host)}:{cluster.webhooks.port}", err=True)
    click.echo(f"health at http://{_shown(cluster.health.host)}:{cluster.health.port}", err=True)
    click.echo(f"muster {__version__} controller {cluster.identity} works on {server}")


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host


@command("controller", "Run Muster's controllers against a Kubernetes cluster.")
@click.option(
    "--lease-namespace",
    metavar="NS",
    default=DEFAULT_NAMESPACE,
    show_default=True,
    help="Where the lease and the webhooks' CA are kept: the namespace that `muster install` made.",
)
@click.option(
    "--webhook-listen", metavar="HOST:PORT", default="127.0.0.1:9443", show_default=True, help="Where to serve the webhooks."
)
@click.option(
    "--webhook-host",
    "webhook_hosts",
    metavar="NAME",
    multiple=True,
    help="A further name or address by which API servers reach the webhooks; goes into their certificate.",
)
@click.option(
    "--health-listen",
    metavar="HOST:PORT",
    default="127.0.0.1:8081",
    show_default=True,
    help="Where to serve /healthz, /readyz and /metrics.",
)
@click.option("--without", metavar="PART,...", multiple=True, help="Parts to leave out: webhooks, or a controller by name.")
@scheduler_config_option
@workload_approval_option
@history_options("a directory that outlives the process, or the URL of an object store.  [default: none]")
@log_level_option
@target_options(namespace=False)
@click.pass_context
def controller(
    ctx: click.Context,
    *,
    target: Target,
    lease_namespace: str,
    webhook_listen: str,
    webhook_hosts: tuple[str, ...],
    health_listen: str,
    without: tuple[str, ...],
    scheduler_config: Path | None,
    workload_approval: bool,
    history: HistoryOptions,
    log_level: str,
) -> None:
    """Run Muster's controllers against a Kubernetes cluster, with leader election and admission webhooks.

    Several may run: one leads, the others stand by with warm caches and serve webhooks. `muster install` runs this in the
    cluster; from outside it needs a kubeconfig. Ctrl-C or SIGTERM gives the lease up and stops.
    """
    from muster.cli.foreground import parse_listen, parse_without, run_foreground
    from muster.controllers import cluster_controllers

    known = {"webhooks": ""} | {c.name: "" for c in cluster_controllers()}
    left_out = parse_without(without, known)
    webhook_address = parse_listen(webhook_listen, "--webhook-listen")
    health_address = parse_listen(health_listen, "--health-listen")

    from muster.cli.cluster import ClusterOptions
    from muster.cli.foreground import read_scheduler_config
    from muster.server import logs

    state = state_of(ctx)
    logs.setup("DEBUG" if state.debug else log_level)
    options = ClusterOptions(
        lease_namespace=lease_namespace,
        webhook_listen=webhook_address,
        webhook_hosts=webhook_hosts,
        health_listen=health_address,
        left_out=tuple(left_out),
        scheduler_config=read_scheduler_config(scheduler_config),
        workload_approval=workload_approval,
        history=history.at_or(None),
    )
    run_foreground(lambda stop: _serve(target, state, options, stop))
