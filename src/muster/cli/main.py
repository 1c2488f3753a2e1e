"""`muster`: finds the command, runs it, and turns whatever goes wrong into one line and an exit code.

Nothing is imported here beyond click and the error vocabulary, so `muster --help` answers at once. A command either
returns (exit 0), calls `ctx.exit(code)`, or raises; no traceback reaches the user unless `--debug` is given.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from muster.cli.errors import CliError, ExitCode, exit_code_of, message_of, one_line
from muster.cli.framework import Entry, LazyGroup, State, common_options, connection_options
from muster.objects.status import ApiError


def _entry(word: str, summary: str, *, module: str = "", attribute: str = "") -> tuple[str, Entry]:
    return word, Entry(module or f"muster.cli.commands.{word}", attribute or word, summary)


ENTRIES = dict(
    (
        _entry("up", "Run Muster on this machine, in the foreground."),
        _entry("down", "Stop the Muster that runs from a data directory."),
        _entry(
            "rotate-token-key",
            "Sign service-account tokens with a new key from now on.",
            module="muster.cli.commands.rotate_token_key",
            attribute="rotate_token_key",
        ),
        _entry("status", "Show whether the server answers, what it stores and what runs."),
        _entry("doctor", "Check what this machine allows and what each missing thing costs."),
        _entry("run", "Run a command as a job, and follow it to its end."),
        _entry("job", "Submit, follow and command jobs."),
        _entry("get", "List objects of any kind."),
        _entry("describe", "Show objects in full, with their conditions and events."),
        _entry("apply", "Create or change objects from files."),
        _entry("delete", "Delete objects."),
        _entry("explain", "Say why work waits, where it is, or where it would go."),
        _entry("why", "Say why a job waits, where it stands in its queue, and what would help."),
        _entry("eta", "Say when a job will start, or would if it were sent now or were smaller."),
        _entry("queue", "Queues: who waits in them, in which order; hold, pin and move jobs."),
        _entry("pool", "Show pools of nodes, what they have, and who uses it."),
        _entry("user", "Users and groups: who there is, who you are, tokens to log in with."),
        _entry("usage", "Show what users, groups and queues have used, and what it cost."),
        _entry("top", "Show what is held and used."),
        _entry("domain", "Parties, and the tokens with which their nodes join."),
        _entry("node", "Nodes: list them, let them join, set what they have, forget them."),
        _entry(
            "api-resources",
            "List the kinds that the server has.",
            module="muster.cli.commands.api_resources",
            attribute="api_resources",
        ),
        _entry("crds", "Print the CustomResourceDefinitions of Muster's kinds."),
        _entry("install", "Put Muster into a Kubernetes cluster."),
        _entry("uninstall", "Remove Muster from a Kubernetes cluster."),
        _entry("image", "Load, list and remove the images of this machine's agents."),
        _entry("agent", "Make this machine a node and run its tasks, in the foreground."),
        _entry("controller", "Run Muster's controllers against a Kubernetes cluster."),
        _entry("simulate", "Run a trace of jobs through the scheduler in virtual time, under one or more policies."),
        _entry(
            "what-if",
            "Run the jobs of a decision log again, under another policy, on other nodes or with other plugins.",
            module="muster.cli.commands.what_if",
            attribute="what_if",
        ),
        _entry("backup", "Save everything that the server holds into one file."),
        _entry("restore", "Bring a data directory back from a backup."),
        _entry("history", "Ask what ran where when, what waited, what was used, and who did what."),
        _entry("replay", "Run a recorded log through the engine again, and compare every decision."),
        _entry("bench", "Measure Muster beside its peers on this machine.", module="muster.bench.command"),
        _entry("version", "Print the versions of Muster and of the server."),
        _entry("completion", "Print the completion script of a shell."),
    )
)


class _PipeClosed(Exception):
    """Our own stdout is gone. A class of its own because click answers EPIPE with exit code 1 by itself."""


class _Root(LazyGroup):
    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as e:
            raise _PipeClosed from e


@click.group(
    cls=_Root,
    entries=ENTRIES,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(
    None, "--version", package_name="muster", message="%(version)s", help="Print the version of this program."
)
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Muster schedules work that must start together on machines that people share.

    Start it on this machine with `muster up`, then use `muster` or `kubectl` alike.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


cli.params.extend([*connection_options(), *common_options()])


def run(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code. Prints; never raises, except what kills the process anyway."""
    state = State(debug=bool(os.environ.get("MUSTER_DEBUG")))
    try:
        arguments = _spelled(sys.argv[1:] if argv is None else argv)
        color = False if os.environ.get("NO_COLOR") else None
        result = cli.main(args=arguments, prog_name="muster", standalone_mode=False, obj=state, color=color)
        sys.stdout.flush()
    except (_PipeClosed, BrokenPipeError):
        _silence_stdout()
        return ExitCode.PIPE_CLOSED
    except (click.Abort, KeyboardInterrupt):
        return ExitCode.INTERRUPTED
    except click.ClickException as e:
        return _fail(_usage_message(e), ExitCode.USAGE if isinstance(e, click.UsageError) else ExitCode.FAILURE, state, e)
    except (CliError, ApiError, OSError) as e:
        return _fail(message_of(e), exit_code_of(e), state, e)
    except Exception as e:  # noqa: BLE001 - the root of the process: a bug must still give one line and a code
        return _fail(message_of(e), ExitCode.FAILURE, state, e)
    return result if isinstance(result, int) else ExitCode.OK


def _spelled(argv: Sequence[str]) -> list[str]:
    """`-n=demo`, which kubectl takes and click does not, as `-ndemo`. Nothing after `--` is touched."""
    end = list(argv).index("--") if "--" in argv else len(argv)
    short = re.compile(r"(-[A-Za-z])=(.+)", re.DOTALL)
    return [short.sub(r"\1\2", word) if i < end and short.fullmatch(word) else word for i, word in enumerate(argv)]


def _usage_message(error: click.ClickException) -> str:
    if isinstance(error, click.exceptions.NoArgsIsHelpError) and isinstance(error.ctx.command, click.Group):
        group, path = error.ctx.command, error.ctx.command_path
        return f"say what: {', '.join(f'{path} {name}' for name in group.list_commands(error.ctx))} (see '{path} --help')"
    text = one_line(error.format_message())
    if isinstance(error, click.UsageError) and error.ctx is not None:
        return f"{text} (see '{error.ctx.command_path} --help')"
    return text


def _fail(message: str, code: ExitCode, state: State, error: BaseException) -> int:
    try:
        sys.stdout.flush()
        if state.debug:
            import traceback

            traceback.print_exception(error)
        click.echo(f"error: {message}", err=True)
    except BrokenPipeError:
        _silence_stdout()
    return code


def _silence_stdout() -> None:
    """Point stdout at nothing, so that the interpreter's last flush cannot fail too."""
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
    except (OSError, ValueError):
        return


def main() -> NoReturn:
    sys.exit(run())


if __name__ == "__main__":
    main()
