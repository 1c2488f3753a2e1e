"""`muster doctor`: run every probe, print the findings, say whether Muster can run here."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from muster.cli.errors import ExitCode
from muster.cli.framework import command
from muster.cli.options import data_dir_option, machine_output

if TYPE_CHECKING:
    from muster.cli.doctor.model import Finding


def examine(data_dir: Path) -> list[Finding]:
    """All findings, those about the program first, then the disk, the kernel, the network and other programs."""
    from muster.cli import datadir
    from muster.cli.doctor import kernel, network, storage, tools
    from muster.cli.errors import CliError

    try:
        owner = datadir.holder_of(data_dir)
    except CliError:
        owner = None
    cgroups = kernel.probe_cgroups()
    return [
        *storage.probe_software(),
        *storage.probe_disk(data_dir),
        *storage.probe_limits(),
        kernel.probe_privileges(),
        cgroups,
        kernel.probe_namespaces(),
        *network.probe_network(owner, is_root=os.geteuid() == 0),
        *tools.probe_tools(str(cgroups.facts.get("mode", ""))),
    ]


def report(findings: Sequence[Finding]) -> None:
    """For people: one line per finding, and under it what a problem costs and how to get rid of it."""
    from muster.cli.doctor.model import Level, can_run

    width = max(len(f.check) for f in findings)
    colours = {Level.OK: "green", Level.WARNING: "yellow", Level.ERROR: "red"}
    for finding in findings:
        mark = click.style(f"{finding.level:<7}", fg=colours[finding.level])
        click.echo(f"{mark}  {finding.check:<{width}}  {finding.found}")
        if finding.level is not Level.OK:
            for label, text in (("costs", finding.costs), ("to get it", finding.remedy)):
                _say_under(width + 11, f"{label}: {text}")
    warnings = sum(f.level is Level.WARNING for f in findings)
    verdict = "Muster can run here" if can_run(findings) else "Muster cannot run here"
    click.echo(f"\n{verdict}; {warnings} warning{'s' * (warnings != 1)}.")


def _say_under(indent: int, text: str) -> None:
    """On a terminal, wrapped to its width; into a file or pipe, one line that can be searched."""
    import shutil
    import sys
    import textwrap

    blanks = " " * indent
    if sys.stdout.isatty():
        columns = max(shutil.get_terminal_size().columns, indent + 40)
        text = textwrap.fill(text, columns, initial_indent=blanks, subsequent_indent=blanks + "  ").lstrip()
    click.echo(f"{blanks}{click.style(text, dim=True)}")


@command("doctor", "Check what this machine allows and what each missing thing costs.")
@data_dir_option
@machine_output
@click.pass_context
def doctor(ctx: click.Context, data_dir: Path, output: str | None) -> None:
    """Check what this machine allows and what each missing thing costs.

    Every check is tried for real: namespaces are entered, cgroups are made, traffic is shaped, the disk is written, all in a
    child process or a temporary file that leaves nothing behind. Exit code 0 means that Muster can run here, with or without
    warnings; 1 means that it cannot.
    """
    import msgspec

    from muster.cli import output as out
    from muster.cli.doctor.model import can_run

    findings = examine(data_dir)
    if output:
        value = {"canRun": can_run(findings), "findings": [msgspec.to_builtins(f) for f in findings]}
        out.emit(out.render_value(value, output))
    else:
        report(findings)
    if not can_run(findings):
        ctx.exit(ExitCode.FAILURE)
