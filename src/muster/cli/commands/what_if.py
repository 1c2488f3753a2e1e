"""`muster what-if`: the jobs of a decision log again, with something changed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from muster.cli.errors import CliError, UsageError
from muster.cli.framework import command
from muster.cli.simulating import report_options, restart_cost_option

if TYPE_CHECKING:
    from muster.sim.trace_run import Outcome

_FILE = click.Path(path_type=Path, dir_okay=False)


@command("what-if", "Run the jobs of a decision log again, under another policy, on other nodes or with other plugins.")
@click.argument("log", metavar="[LOG]", required=False)
@click.option(
    "--policy",
    "policies",
    metavar="NAME|FILE",
    multiple=True,
    help="A policy by name, or a file with policies and queues; may be given several times.",
)
@click.option("--cluster", metavar="NxG", help="Instead of the recorded nodes: N of G GPUs each, as in 48x8.")
@click.option("--nodes", type=_FILE, metavar="FILE", help="Instead of the recorded nodes: these, as CSV.")
@click.option("--config", type=_FILE, metavar="FILE", help="Another configuration of the scheduler: profiles and plugins.")
@restart_cost_option
@report_options
def what_if(
    *,
    log: str | None,
    policies: tuple[str, ...],
    cluster: str | None,
    nodes: Path | None,
    config: Path | None,
    restart_cost_s: float,
    as_json: bool,
    report: Path | None,
    plots: Path | None,
) -> None:
    """Run the jobs of a decision log again, with another policy, other nodes or other plugins, and show the difference.

    LOG is the directory of a decision log, one of its segments, or a URL; by default that of muster up here. Jobs come when
    they came and run as long as they ran; the first column is the same simulation with everything as it was.
    """
    from muster.cli import simulating as sim
    from muster.cli.history_places import local_log, open_log
    from muster.history.segments import SegmentDamaged
    from muster.sim.recorded import read_log
    from muster.sim.what_if import AS_IT_WAS, Change
    from muster.sim.what_if import what_if as again

    if not (policies or cluster or nodes or config):
        raise UsageError("say what is to be otherwise: --policy, --cluster, --nodes or --config")
    sim.check_outputs(report, plots)
    machines = sim.read_cluster(cluster, nodes, "nodes") if cluster or nodes else None
    configuration = sim.read_configuration(config)
    sets = sim.read_policies(policies)
    log = log or local_log()
    found = open_log(log)
    try:
        recorded = read_log(found, restart_cost_s)
    except SegmentDamaged as error:
        raise CliError(str(error)) from error
    if not recorded.jobs:
        raise CliError(f"{log}: holds no job that was placed or waited; nothing to run again")
    changes = {AS_IT_WAS: Change()}
    for policy in sets or (None,):
        name = policy.name if policy is not None else "other nodes" if machines is not None else "other plugins"
        changes[name] = Change(policy, machines, configuration)
    runs = sim.run_all(
        [
            (name, lambda say, change=change: again(recorded, change, restart_cost_s=restart_cost_s, progress=say))  # type: ignore[misc]
            for name, change in changes.items()
        ]
    )
    sim.show(runs, as_json=as_json, labels=[{"log": log, "policy": name} for name in changes])
    notes = [_as_recorded(recorded.outcome), *recorded.notes]
    for note in notes:
        click.echo(f"note: {note}", err=True)
    notes = [f"{len(recorded.jobs):,} jobs of {log}.", *notes]
    sim.write(report, plots, f"What if: {', '.join(list(changes)[1:])}", runs, notes)


def _as_recorded(outcome: Outcome) -> str:
    """What really happened, to judge by how true the simulation of it is."""
    from muster.sim.report_plots import Named, scale_of

    run = Named("recorded", outcome, 0.0)
    was, scale = run.figures, scale_of([run])
    took, waited = (f"{hours * scale.per_h:.4g} {scale.short}" for hours in (was.jct_mean_h, was.wait_mean_h))
    return (
        f"as recorded, {was.jobs - was.unstarted:,} jobs that ended took {took} in the mean, waited {waited} and were stopped "
        f"{was.preemptions_per_job:.3g} times each; the first column is the simulation of this"
    )
