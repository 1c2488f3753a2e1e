"""`muster bench`: list the scenarios, run one or all, print a table or JSON lines."""

from __future__ import annotations

import sys

import click
import msgspec

SCENARIOS = {"api": "durable creates and updates, list, watch fan-out, readiness and memory, beside kube-apiserver + etcd"}


@click.group()
def bench() -> None:
    """Measure Muster beside its peers on this machine."""


@bench.command("list")
def list_scenarios() -> None:
    """Show the scenarios that `run` takes."""
    for name, meaning in SCENARIOS.items():
        click.echo(f"{name}\t{meaning}")


@bench.command()
@click.argument("scenario", type=click.Choice([*SCENARIOS, "all"]))
@click.option(
    "--rounds", type=click.IntRange(1, 20), default=2, show_default=True, help="Rounds in turn; the best of each counts."
)
@click.option(
    "--scale", type=click.FloatRange(0.01, 100), default=1.0, show_default=True, help="Factor on the operations per line."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line on standard output.")
def run(scenario: str, rounds: int, scale: float, as_json: bool) -> None:
    """Run SCENARIO (or all). Progress goes to standard error."""
    from muster.bench import api

    del scenario  # one scenario so far, and `all` is that one
    results = api.run(scale=scale, rounds=rounds, say=lambda text: click.echo(text, err=True))
    if as_json:
        for result in results:
            sys.stdout.write(msgspec.json.encode(result).decode() + "\n")
        return
    click.echo(f"{'':30}{'muster':>14}{'kube-apiserver':>16}{'ratio':>8}  bound by")
    for result in results:
        peer = f"{result.peer_value:,.2f}" if result.peer_value is not None else "-"
        ratio = f"{result.ratio:.2f}" if result.ratio is not None else "-"
        label = f"{result.line} ({result.unit})"
        click.echo(f"{label:38}{result.value:>12,.2f}{peer:>14}{ratio:>8}  {result.bound_by}")
