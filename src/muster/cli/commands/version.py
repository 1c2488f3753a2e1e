"""`muster version`: of this program, and of the server that it would talk to."""

from __future__ import annotations

import platform
from typing import Any

import click

from muster import __version__
from muster.cli.framework import State, command, state_of
from muster.cli.options import Target, machine_output, target_options


async def server_version(target: Target, state: State) -> dict[str, Any]:
    """What the server says of itself, or why it could not be asked: never a failure."""
    from muster.cli.errors import CliError, message_of
    from muster.cli.session import session
    from muster.objects.status import ApiError

    try:
        async with session(target, state) as s:
            said = await s.client.version()
            return {"url": s.client.config.server, "version": str(said.get("gitVersion", ""))}
    except (ApiError, CliError) as e:
        return {"error": message_of(e)}


@command("version", "Print the versions of Muster and of the server.")
@click.option("--client", "client_only", is_flag=True, help="Do not ask the server.")
@machine_output
@target_options(namespace=False)
@click.pass_context
def version(ctx: click.Context, *, target: Target, client_only: bool, output: str | None) -> None:
    """Print the versions of this program and of the server that it would talk to.

    A server that cannot be reached is said to be so and is no failure.
    """
    from muster.cli import output as out
    from muster.cli.session import run

    value: dict[str, Any] = {
        "client": {
            "version": __version__,
            "python": platform.python_version(),
            "platform": f"{platform.system()} {platform.machine()}",
        }
    }
    if not client_only:
        value["server"] = run(server_version(target, state_of(ctx)))
    if output:
        out.emit(out.render_value(value, output))
        return
    click.echo(f"muster {__version__} (Python {value['client']['python']}, {value['client']['platform']})")
    server = value.get("server")
    if server and "version" in server:
        click.echo(f"server {server['version']} at {server['url']}")
    elif server:
        click.echo(f"server not reached: {server['error']}")
