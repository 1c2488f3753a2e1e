"""`muster agent`: makes this machine a node and carries its pods, in the foreground, until a signal."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from muster.cli.errors import CliError, ExitCode, UsageError
from muster.cli.framework import command, state_of
from muster.cli.options import log_level_option

if TYPE_CHECKING:
    from muster.agent.agent import Agent
    from muster.agent.config import AgentConfig
    from muster.agent.joining import JoinRequest
    from muster.agent.layout import Layout
    from muster.cli.foreground import Stop
    from muster.client.config import ClientConfig

TOKEN_VARIABLE = "MUSTER_JOIN_TOKEN"  # noqa: S105 - the name of a variable
LEAVE, DRAIN = signal.SIGUSR1, signal.SIGUSR2
"""What `--leave` tells a running agent by."""


def _agent_dir(ctx: click.Context, param: click.Parameter, value: str | None) -> Path:
    from muster.cli.datadir import default_data_dir

    return Path(value).expanduser().absolute() if value else (default_data_dir(os.environ) / "agent").absolute()


def _read_config(path: Path | None, overrides: dict[str, Any]) -> AgentConfig:
    """The file with what the command line says over it, checked as a whole."""
    import msgspec

    from muster.agent.config import AgentConfig, ConfigError, check, load

    try:
        config = load(path) if path is not None else AgentConfig()
        config = msgspec.structs.replace(config, **{key: value for key, value in overrides.items() if value is not None})
        if problems := check(config):
            raise ConfigError(problems)
    except ConfigError as error:
        where = f"--config {path}: " if path is not None else ""
        raise CliError(f"{where}{'; '.join(error.problems)}", ExitCode.USAGE) from error
    return config


def _remembered(layout: Layout, given: dict[str, Any]) -> dict[str, Any]:
    """Who this data directory has joined as, for what neither the command line nor the file says."""
    from muster.agent.joining import Credentials

    has = Credentials(layout.credentials).joined()
    return given if has is None else {**given, "name": given["name"] or has.name, "domain": given["domain"] or has.domain}


async def _connect(
    config: AgentConfig, layout: Layout, *, server: str, token: str, kubeconfig: str | None, context: str, trust: dict[str, Any]
) -> tuple[ClientConfig, JoinRequest | None]:
    """How to reach the control plane, after joining where that is needed."""
    from muster.agent.agent import join_request
    from muster.agent.joining import Credentials, JoinError, Trust, ensure_joined
    from muster.client.kubeconfig import KubeconfigError, load
    from muster.objects.time import wall_clock

    try:
        if kubeconfig is not None:
            return load(kubeconfig, context=context), None
        credentials = Credentials(layout.credentials)
        if not server:
            has = credentials.joined()
            if has is None:
                raise UsageError("give --join URL with --token, or --kubeconfig FILE")
            server = has.server
        request = join_request(config, server, Trust(**trust))
        await ensure_joined(credentials, request, token, wall_clock())
        return load(credentials.kubeconfig), request
    except JoinError as error:
        raise CliError(str(error), ExitCode.FORBIDDEN if error.is_lasting else ExitCode.UNREACHABLE) from error
    except KubeconfigError as error:
        raise CliError(str(error), ExitCode.UNREACHABLE) from error


async def _serve(agent: Agent, reload: Any, stop: Stop) -> None:
    from muster.agent.agent import Startable
    from muster.agent.claim import Taken
    from muster.agent.node import Forgotten
    from muster.objects.status import ApiError

    leaving = _Leaving()
    _take_signals(leaving, reload)
    try:
        if not await stop.unless(_started(agent)):
            return
        _announce(agent)
        if await stop.unless(_until(agent, leaving)) and await stop.unless(_left(agent, leaving)):
            click.echo(f"node {agent.name} has left", err=True)
    except Taken as error:
        raise CliError(str(error), ExitCode.CONFLICT) from error
    except Forgotten as error:
        raise CliError(str(error), ExitCode.FORBIDDEN) from error
    except Startable as error:
        raise CliError(str(error)) from error
    except ApiError as error:
        raise CliError(f"node {agent.name} could not leave: {error.message}") from error
    finally:
        await agent.stop()


class _Leaving:
    """What `--leave` has asked for. Who waited first may say `--drain` later."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.is_drained = False

    def ask(self, is_drained: bool) -> None:
        self.is_drained = self.is_drained or is_drained
        self.asked.set()


def _take_signals(leaving: _Leaving, reload: Any) -> None:
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(LEAVE, leaving.ask, False)
    loop.add_signal_handler(DRAIN, leaving.ask, True)
    loop.add_signal_handler(signal.SIGHUP, reload)


async def _until(agent: Agent, leaving: _Leaving) -> bool:
    """True when the node is to leave; raises what ends the agent."""
    running, asked = asyncio.ensure_future(agent.run()), asyncio.ensure_future(leaving.asked.wait())
    try:
        await asyncio.wait((running, asked), return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
        return True
    finally:
        running.cancel()
        asked.cancel()
        await asyncio.gather(running, asked, return_exceptions=True)


async def _left(agent: Agent, leaving: _Leaving) -> bool:
    await agent.leave(drain=lambda: leaving.is_drained)
    return True


async def _started(agent: Agent) -> bool:
    await agent.start()
    return True


def _announce(agent: Agent) -> None:
    from muster import __version__

    for one in agent.missing():
        click.echo(f"warning: {one}", err=True)
    facts = agent.facts()
    shown = ", ".join(f"{name} {amount}" for name, amount in facts.offer.allocatable.items())
    party = f"of party {agent.config.domain}" if agent.config.domain else "of no party"
    click.echo(f"muster {__version__} agent: node {agent.name} {party} is ready ({agent.config.runtime}; {shown})")


def _leave(layout: Layout, drain: bool) -> None:
    """Tell the agent that runs here, and wait until it has gone."""
    import select

    from muster.agent.claim import holder_of

    pid = holder_of(layout.lock)
    if not pid:
        raise CliError(
            f"data directory {layout.data}: no agent runs on it; start it, so that it can see its pods to their end, "
            "then give --leave again in another terminal",
            ExitCode.NOT_FOUND,
        )
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if holder_of(layout.lock) != pid:
            return
        signal.pidfd_send_signal(handle, DRAIN if drain else LEAVE)
        ends = "ending its pods" if drain else "waiting until its pods have ended (--leave --drain ends them)"
        click.echo(f"told the agent (process {pid}) to leave; {ends}", err=True)
        select.select([handle], [], [])
    except ProcessLookupError:
        return
    except PermissionError as error:
        raise CliError(f"process {pid} belongs to another user; run this as that user", ExitCode.FORBIDDEN) from error
    finally:
        os.close(handle)


@command("agent", "Make this machine a node and run its tasks, in the foreground.")
@click.option("--join", "server", metavar="URL", default="", help="The control plane to join, as in https://head:6443.")
@click.option(
    "--token",
    metavar="TOKEN",
    default="",
    help=f"What `muster domain token create` printed; needed once.  [default: ${TOKEN_VARIABLE}]",
)
@click.option("--ca-file", metavar="FILE", type=click.Path(path_type=Path), help="The control plane's CA certificate.")
@click.option("--ca-hash", metavar="sha256:HEX", default="", help="Hash by which the control plane's CA is recognised.")
@click.option("--kubeconfig", metavar="FILE", type=click.Path(), help="Work with these credentials instead of joining.")
@click.option("--context", "context_name", metavar="NAME", default="", help="Context of that kubeconfig.")
@click.option("--domain", metavar="PARTY", help="The party that this node works for.")
@click.option("--name", metavar="NAME", help="Of the node.  [default: the host's, with the party's before it]")
@click.option("--runtime", type=click.Choice(["process", "runc", "kubernetes"]), help="How tasks run.  [default: process]")
@click.option("--config", "config_file", metavar="FILE", type=click.Path(path_type=Path), help="The agent's configuration.")
@click.option(
    "--data-dir",
    metavar="DIR",
    callback=_agent_dir,
    type=click.Path(),
    help="Where this agent keeps everything.  [default: agent below $MUSTER_DATA_DIR or ~/.local/share/muster]",
)
@click.option("--leave", is_flag=True, help="Tell the agent that runs here to leave for good once its pods have ended.")
@click.option("--drain", is_flag=True, help="With --leave: end its pods instead of waiting for them.")
@log_level_option
@click.pass_context
def agent(
    ctx: click.Context,
    *,
    server: str,
    token: str,
    ca_file: Path | None,
    ca_hash: str,
    kubeconfig: str | None,
    context_name: str,
    domain: str | None,
    name: str | None,
    runtime: str | None,
    config_file: Path | None,
    data_dir: Path,
    leave: bool,
    drain: bool,
    log_level: str,
) -> None:
    """Make this machine a node, and run the tasks that are placed on it.

    The first time, --join and --token get it a certificate; later starts need neither. Ctrl-C or SIGTERM stops the agent: tasks
    go on and are taken back by the next start. SIGHUP reads the configuration again.
    """
    from muster.agent.agent import run_dir_of
    from muster.agent.layout import Layout

    state = state_of(ctx)
    kubeconfig = kubeconfig or (state.kubeconfig if not server else None)
    if server and kubeconfig:
        raise UsageError("--join and --kubeconfig: give one of them")
    if ca_file is not None and ca_hash:
        raise UsageError("--ca-file and --ca-hash: give one of them")
    if drain and not leave:
        raise UsageError("--drain says how to leave; give it with --leave")
    layout = Layout(data_dir, run_dir_of(data_dir))
    if leave:
        _leave(layout, drain)
        return
    given = {"domain": domain, "name": name, "runtime": runtime}
    config = _read_config(config_file, given)
    if not token and not kubeconfig:
        given = _remembered(layout, {**given, "name": config.name, "domain": config.domain})
        config = _read_config(config_file, given)
    # Taken out of the environment, so that nothing that is started later sees it.
    token = token or os.environ.pop(TOKEN_VARIABLE, "")

    from muster.cli.foreground import run_foreground
    from muster.server import logs

    logs.setup("DEBUG" if state.debug else log_level)

    async def work(stop: Stop) -> None:
        from muster.agent.agent import Agent, Options
        from muster.client.api import ApiClient
        from muster.objects.time import wall_clock
        from muster.store.kubernetes import KubernetesStore

        trust = {"ca_file": ca_file, "ca_hash": ca_hash}
        connecting = _connect(
            config,
            layout,
            server=server,
            token=token,
            kubeconfig=kubeconfig,
            context=context_name or state.context or "",
            trust=trust,
        )
        connected = await stop.unless(connecting)
        if connected is None:
            return
        client_config, request = connected
        store = KubernetesStore(ApiClient(client_config))
        ca = client_config.tls.ca
        options = Options(server=client_config.server, ca=ca.read_bytes() if isinstance(ca, Path) else ca, join=request)
        made = Agent(config, store, layout, options, clock=wall_clock, say=lambda text: click.echo(text, err=True))

        def reload() -> None:
            try:
                later = made.reload(_read_config(config_file, given))
            except CliError as error:
                click.echo(f"the configuration was not read again: {error.message}", err=True)
                return
            needs = f"; these need a restart: {', '.join(later)}" if later else ""
            click.echo(f"the configuration was read again{needs}", err=True)

        try:
            await _serve(made, reload, stop)
        finally:
            await store.close()

    run_foreground(work)
