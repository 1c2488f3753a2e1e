"""`muster status`: does the server answer, what does it store, what runs, and how well."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from muster.cli.datadir import KUBECONFIG_FILE
from muster.cli.errors import CliError, ExitCode, message_of
from muster.cli.framework import State, command, state_of
from muster.cli.options import Target, data_dir_option, machine_output, target_options

if TYPE_CHECKING:
    from muster.cli.session import Session
    from muster.objects.resources import Resource

STATUS_PATH = "/muster/status"
COUNTS_AT_ONCE = 16


async def gather_status(target: Target, state: State, data_dir: Path) -> dict[str, Any]:
    """Everything that can be found out. `server.reachable` and `server.ready` are always there."""
    from muster.cli.session import session
    from muster.objects.status import ApiError

    result: dict[str, Any] = {"server": {"reachable": False, "ready": False}, "local": local_status(data_dir)}
    server = result["server"]
    try:
        async with session(target, state, show_warnings=False) as s:
            server["url"] = s.client.config.server
            server["version"] = str((await s.client.version()).get("gitVersion", ""))
            server["reachable"] = True
            server["ready"], server["problems"] = await _readiness(s)
            own = await _own_status(s)
            result |= own if own is not None else {"objects": await _counts(s)}
    except (ApiError, CliError) as e:
        server["error"] = message_of(e)
        server["exitCode"] = int(_code(e))
    return result


def _code(error: Exception) -> ExitCode:
    from muster.cli.errors import exit_code_of

    return exit_code_of(error)


def local_status(data_dir: Path) -> dict[str, Any]:
    """What runs from the data directory on this machine, whether or not the kubeconfig points there."""
    from muster.cli.datadir import holder_of, read_record

    try:
        pid = holder_of(data_dir)
    except CliError as e:
        return {"dataDir": str(data_dir), "running": False, "error": e.message}
    record = read_record(data_dir) if pid else None
    found: dict[str, Any] = {"dataDir": str(data_dir), "running": pid is not None}
    if pid:
        found["pid"] = pid
    if record is not None:
        found |= {"url": record.url, "version": record.version, "startedAt": record.started_at, "parts": record.parts}
    return found


async def _readiness(s: Session) -> tuple[bool, list[str]]:
    from muster.objects.status import ApiError

    try:
        await s.client.request("GET", "/readyz", params=[("verbose", "true")], accept="*/*")
    except ApiError as e:
        failed = [line.strip() for line in e.message.splitlines() if "[-]" in line]
        return False, failed or [message_of(e)]
    return True, []


async def _own_status(s: Session) -> dict[str, Any] | None:
    """What a Muster server says of itself; None from any other Kubernetes."""
    import msgspec

    from muster.objects.status import Forbidden, NotFound

    try:
        answer = await s.client.request("GET", STATUS_PATH)
        said = msgspec.json.decode(answer.body)
    except (NotFound, Forbidden, msgspec.DecodeError):
        return None
    return said if isinstance(said, dict) else None


async def _counts(s: Session) -> dict[str, int]:
    """Objects by kind, one short question per kind. Kinds that may not be listed are left out."""
    from muster.cli.listing import preferred
    from muster.objects.status import ApiError

    room = asyncio.Semaphore(COUNTS_AT_ONCE)
    counts: dict[str, int] = {}

    async def count(resource: Resource) -> None:
        async with room:
            try:
                page = await s.client.list(resource, limit=1)
            except ApiError:
                return
        counts[resource.qualified] = len(page.items) + (page.remaining or 0)

    listed = [resource for resource in await s.client.resources() if "list" in resource.verbs]
    await asyncio.gather(*(count(resource) for resource in preferred(listed)))
    return {kind: counts[kind] for kind in sorted(counts) if counts[kind]}


def _print(value: dict[str, Any]) -> None:
    from muster.cli import output as out

    server, local = value["server"], value["local"]
    if server["reachable"]:
        ready = "ready" if server["ready"] else "NOT READY"
        click.echo(f"server:       {server['url']}, {server['version']}, {ready}")
        for problem in server["problems"]:
            click.echo(f"              {problem}")
    else:
        click.echo(f"server:       {server.get('url', 'none')}, not reachable: {server['error']}")
    if local["running"]:
        click.echo(f"local:        process {local.get('pid')} on {local['dataDir']}, since {local.get('startedAt', 'unknown')}")
    elif local.get("error"):
        click.echo(f"local:        {local['error']}")
    elif not server["reachable"]:
        click.echo(f"local:        nothing runs on {local['dataDir']}")
    if "parts" in value:
        click.echo(f"parts:        {', '.join(value['parts'])}{_left_out(value)}")
    if "store" in value:
        store = value["store"]
        size = f"{store['bytes'] / (1 << 20):.1f} MiB"
        click.echo(f"store:        {size}, version {store['resourceVersion']}, {store['watchers']} watches")
    if "controllers" in value:
        _print_controllers(value["controllers"])
    if value.get("objects"):
        click.echo("\n" + out.simple_table(["KIND", "OBJECTS"], sorted(value["objects"].items())))


def _left_out(value: dict[str, Any]) -> str:
    return f" (left out: {', '.join(value['leftOut'])})" if value.get("leftOut") else ""


def _print_controllers(health: dict[str, Any]) -> None:
    from muster.cli import output as out

    word = "healthy" if health["healthy"] else "NOT HEALTHY"
    leads = "leading" if health["leading"] else f"led by {health['leader'] or 'nobody'}"
    click.echo(f"controllers:  {word}, {leads}")
    for informer, why in health["informers"].items():
        click.echo(f"              {informer}: {why}")
    rows = [(c["name"], c["state"], c["queued"], c["failingCount"]) for c in health["controllers"]]
    if rows:
        click.echo("\n" + out.simple_table(["CONTROLLER", "STATE", "QUEUED", "FAILING"], rows))
    for controller in health["controllers"]:
        for key, why in controller["failing"].items():
            click.echo(f"{controller['name']} fails on {key}: {why}")


@command("status", "Show whether the server answers, what it stores and what runs.")
@data_dir_option
@machine_output
@target_options(namespace=False)
@click.pass_context
def status(ctx: click.Context, *, target: Target, data_dir: Path, output: str | None) -> None:
    """Show whether the server answers, what it stores, which parts of Muster run there, and how their controllers are.

    Works on any Kubernetes; a Muster server tells more. Exit code 0 means that the server is ready, 1 that it answers and is
    not ready, 3 that it cannot be reached.
    """
    from muster.cli import output as out
    from muster.cli.session import run

    if ctx.get_parameter_source("data_dir") is click.core.ParameterSource.COMMANDLINE and target.kubeconfig is None:
        # Whoever names a data directory means the server that runs there.
        target = replace(target, kubeconfig=str(data_dir / KUBECONFIG_FILE))
    value = run(gather_status(target, state_of(ctx), data_dir))
    if output:
        out.emit(out.render_value(value, output))
    else:
        _print(value)
    server = value["server"]
    if "exitCode" in server:
        ctx.exit(server["exitCode"])
    if not server["ready"]:
        ctx.exit(ExitCode.FAILURE)
