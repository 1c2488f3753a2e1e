"""`muster down`: stop the server of a data directory, and no other process."""

from __future__ import annotations

import os
import select
import signal
import time
from pathlib import Path

import click

from muster.cli.errors import CliError, ExitCode
from muster.cli.framework import command
from muster.cli.options import data_dir_option
from muster.objects.words import counted


def stop(data_dir: Path, timeout_s: float, *, force: bool) -> str:
    """Stop what runs on `data_dir` and say what was done. Raises CliError when that could not be done."""
    from muster.cli.datadir import holder_of

    if not data_dir.is_dir():
        raise CliError(f"data directory {data_dir}: does not exist; name the right one with --data-dir", ExitCode.NOT_FOUND)
    pid = holder_of(data_dir)
    if pid is None:
        return f"no server runs on {data_dir}; nothing to stop"
    if pid == 0:
        raise CliError(f"the server on {data_dir} runs in another pid namespace; stop it there")
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return f"the server on {data_dir} (process {pid}) has just stopped by itself"
    try:
        # The number might have passed to another process between the two calls above. Now that the handle is fixed to one
        # process, ask again: if the lock is still held by that number, the handle is the server.
        if holder_of(data_dir) != pid:
            return f"the server on {data_dir} (process {pid}) has just stopped by itself"
        _send(handle, pid, signal.SIGTERM)
        if _wait(handle, timeout_s):
            return f"stopped the server on {data_dir} (process {pid})"
        if not force:
            raise CliError(
                f"the server on {data_dir} (process {pid}) has not stopped after {timeout_s:g} s; "
                "wait longer with --timeout, or kill it with --force (nothing acknowledged is lost)",
                ExitCode.TIMEOUT,
            )
        _send(handle, pid, signal.SIGKILL)
        _wait(handle, timeout_s)
        return f"killed the server on {data_dir} (process {pid}) after {timeout_s:g} s"
    finally:
        os.close(handle)


def _send(handle: int, pid: int, number: signal.Signals) -> None:
    try:
        signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return
    except PermissionError as e:
        raise CliError(f"process {pid} belongs to another user; run 'muster down' as that user", ExitCode.FORBIDDEN) from e


def _wait(handle: int, timeout_s: float) -> bool:
    """Whether the process ended in time. A process handle becomes readable when its process ends."""
    poller = select.poll()
    poller.register(handle, select.POLLIN)
    deadline = time.monotonic() + timeout_s
    while (left_s := deadline - time.monotonic()) > 0:
        if poller.poll(left_s * 1000):
            return True
    return bool(poller.poll(0))


@command("down", "Stop the Muster that runs from a data directory.")
@data_dir_option
@click.option(
    "--timeout",
    "timeout_s",
    metavar="SECONDS",
    type=click.FloatRange(0, 3600),
    default=30.0,
    show_default=True,
    help="How long to wait for it to stop.",
)
@click.option("--force", is_flag=True, help="Kill it when it has not stopped in time.")
@click.option("--tasks", is_flag=True, help="Also end the tasks of its agents, which otherwise go on.")
def down(data_dir: Path, timeout_s: float, force: bool, tasks: bool) -> None:
    """Stop the Muster that runs from a data directory, and wait until it has stopped.

    The process is the one that holds the directory's lock, never one that merely has a remembered number. When nothing runs
    there, nothing is done and the exit code is 0.
    """
    from muster.cli.datadir import holder_of

    was_up = data_dir.is_dir() and holder_of(data_dir) is not None
    click.echo(stop(data_dir, timeout_s, force=force))
    if tasks:
        click.echo(end_tasks(data_dir, timeout_s))
    elif was_up and (running := still_running(data_dir)):
        left = f"the tasks of {counted(running, 'pod')} go on"
        click.echo(f"{left}, and the next 'muster up' takes them back; 'muster down --tasks' ends them")


def still_running(data_dir: Path) -> int:
    """How many pods of this directory's agents have something running."""
    from muster.agent.fencing import count_running
    from muster.agent.layout import Layout
    from muster.cli.local_agents import agent_directories

    return sum(count_running(Layout(directory).pods) for directory in agent_directories(data_dir))


def end_tasks(data_dir: Path, timeout_s: float) -> str:
    """Kill what the agents of this directory have left running, and take away what they made for it; the next start reports
    it as ended."""
    import asyncio

    from muster.agent.agent import run_dir_of
    from muster.agent.ending import end_everything
    from muster.agent.layout import Layout
    from muster.cli.local_agents import agent_directories, end_agent

    ended = 0
    for directory in agent_directories(data_dir):
        layout = Layout(directory, run_dir_of(directory))
        if not end_agent(layout, timeout_s):
            raise CliError(f"an agent on {directory} does not end; kill it, then give the command again", ExitCode.TIMEOUT)
        ended += asyncio.run(end_everything(layout))
    return f"ended the tasks of {ended} pod{'' if ended == 1 else 's'}" if ended else "no tasks were running"
