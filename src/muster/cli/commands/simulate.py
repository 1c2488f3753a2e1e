"""`muster simulate`: a trace of jobs through the engine and a policy, in virtual time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from muster.cli.errors import CliError, UsageError
from muster.cli.framework import command
from muster.cli.simulating import report_options, restart_cost_option

if TYPE_CHECKING:
    from muster.sim.trace_cluster import Placement
    from muster.sim.trace_simulation import Estimates

_FILE = click.Path(path_type=Path, dir_okay=False)


@command("simulate", "Run a trace of jobs through the scheduler in virtual time, under one or more policies.")
@click.option("--trace", type=_FILE, metavar="FILE", required=True, help="The jobs.")
@click.option(
    "--format", "format_name", type=click.Choice(["philly", "openb", "muster"]), default="muster", show_default=True,
    help="How the trace is written.",
)  # fmt: skip
@click.option("--cluster", metavar="NxG", help="N nodes of G GPUs each, as in 48x8.")
@click.option("--nodes", type=_FILE, metavar="FILE", help="The nodes, as CSV.")
@click.option(
    "--policy", "policies", metavar="NAME|FILE", multiple=True,
    help="A policy by name, or a file; may be given several times. Default: balanced.",
)  # fmt: skip
@click.option(
    "--estimates", type=click.Choice(["none", "history", "oracle"]), default="history", show_default=True,
    help="What is known of run times.",
)  # fmt: skip
@click.option(
    "--placement", type=click.Choice(["counts", "nodes"]), default="nodes", show_default=True,
    help="Whether GPUs are on nodes, or only counted.",
)  # fmt: skip
@restart_cost_option
@click.option("--config", type=_FILE, metavar="FILE", help="The scheduler's configuration: profiles and plugins.")
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True,
    help="Gives the order of jobs that came in the same instant; 0: as in the file.",
)  # fmt: skip
@click.option(
    "--record",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Write the decision log of the simulation, for replay and what-if; with one policy.",
)
@report_options
def simulate(
    *,
    trace: Path,
    format_name: str,
    cluster: str | None,
    nodes: Path | None,
    policies: tuple[str, ...],
    estimates: Estimates,
    placement: Placement,
    restart_cost_s: float,
    config: Path | None,
    seed: int,
    record: Path | None,
    as_json: bool,
    report: Path | None,
    plots: Path | None,
) -> None:
    """Run a trace of jobs through the scheduler's own engine and policies, in virtual time, and say what became of them.

    With several policies the first is what the others are compared with. Policies by name: the built-in ones, and for
    comparisons skip-ahead, easy and sjf. A FILE holds SchedulingPolicies, and Queues and Users if the trace names them.
    """
    from muster.cli import simulating as sim
    from muster.sim import trace_simulation
    from muster.sim.trace_cluster import too_large
    from muster.sim.trace_formats import read_trace
    from muster.sim.trace_simulation import Setup

    if record is not None and len(policies) > 1:
        raise UsageError("--record: one log is of one policy; give one --policy")
    sim.check_outputs(report, plots)
    machines = sim.read_cluster(cluster, nodes, placement)
    sets = sim.read_policies(policies or ("balanced",))
    configuration = sim.read_configuration(config)
    jobs = sim.read_or_fail(lambda: read_trace(trace, format_name))
    impossible = too_large(jobs, machines)
    if len(impossible) == len(jobs):
        name, why = next(iter(impossible.items()))
        raise CliError(f"{trace}: no job fits: job {name} {why}")
    for name, why in list(impossible.items())[:3]:
        click.echo(f"warning: job {name} {why}; it never starts", err=True)
    if len(impossible) > 3:
        click.echo(f"warning: nor do {len(impossible) - 3:,} others", err=True)
    with sim.recorder_at(record) as recorder:
        setups = [
            Setup(
                cluster=machines,
                policy=policy,
                estimates=estimates,
                restart_cost_s=restart_cost_s,
                seed=seed,
                configuration=configuration,
            )
            for policy in sets
        ]
        runs = sim.run_all(
            [
                (
                    setup.policy.name,
                    lambda say, setup=setup: trace_simulation.simulate(jobs, setup, progress=say, recorder=recorder),  # type: ignore[misc]
                )
                for setup in setups
            ]
        )
    labels = [{"trace": trace.name, "policy": policy.name, "estimates": estimates, "placement": placement} for policy in sets]
    sim.show(runs, as_json=as_json, labels=labels)
    notes = [
        f"{len(jobs):,} jobs of {trace.name} on {machines.gpus:,} GPUs ({len(machines.nodes):,} nodes), placement {placement}, "
        f"estimates {estimates}, {restart_cost_s:g} s for each stop, seed {seed}."
    ]
    sim.write(report, plots, f"{trace.name}: {', '.join(run.name for run in runs)}", runs, notes)
