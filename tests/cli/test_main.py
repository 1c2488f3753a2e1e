from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest

from muster.cli import main
from muster.cli.errors import CliError, ExitCode, exit_code_of, message_of, one_line
from muster.client.errors import BadResponse, CredentialError, OutcomeUnknown, Unreachable
from muster.objects import status
from tests.cli.support import environment, muster

HEAVY = (
    "numpy",
    "aiohttp",
    "starlette",
    "uvicorn",
    "uvloop",
    "apsw",
    "cryptography",
    "rich",
    "yaml",
    "structlog",
    "prometheus_client",
)


def all_commands() -> list[tuple[str, ...]]:
    """Every command path, those of nested groups included."""

    def walk(command: click.Command, path: tuple[str, ...]) -> list[tuple[str, ...]]:
        found = [path]
        if isinstance(command, click.Group):
            ctx = click.Context(command)
            for name in command.list_commands(ctx):
                child = command.get_command(ctx, name)
                assert child is not None
                found += walk(child, (*path, name))
        return found

    return walk(main.cli, ())


def test_help_is_cheap() -> None:
    """All of them in one process: if nothing heavy is loaded after the last, none of them loaded it."""
    code = (
        "import sys\n"
        "from muster.cli.main import run\n"
        f"codes = [run([*path, '--help']) for path in {all_commands()!r}]\n"
        f"heavy = [m for m in {HEAVY!r} if m in sys.modules]\n"
        "print(codes, heavy, file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.count("Usage: muster") == len(all_commands())
    assert done.stderr.strip() == f"{[0] * len(all_commands())} []"


def test_summaries_agree_with_the_commands() -> None:
    for name, entry in main.ENTRIES.items():
        command = main.cli.get_command(click.Context(main.cli), name)
        assert command is not None
        if entry.module.startswith("muster.cli."):
            assert command.short_help == entry.summary, name
            assert command.name == name


def test_without_arguments_prints_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run([]) == ExitCode.OK
    assert "Commands:" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "needle"),
    [
        pytest.param(["nonsense"], "No such command 'nonsense'", id="unknown command"),
        pytest.param(["aplly"], "No such command 'aplly'; there is: apply", id="a slip"),
        pytest.param(["job", "explain", "x"], "there is 'muster explain'", id="a command of the program, not of the group"),
        pytest.param(["job", "show", "x"], "there is: submit, list, get,", id="unknown command of a group"),
        pytest.param(["crds", "--nonsense"], "--nonsense", id="unknown option"),
        pytest.param(["crds", "-o", "xml"], "xml", id="bad choice"),
        pytest.param(["completion"], "bash", id="missing argument"),
        pytest.param(
            ["top"], "error: say what: muster top nodes, muster top bandwidth (see 'muster top --help')", id="missing command"
        ),
    ],
)
def test_usage_errors_are_one_line_and_exit_2(argv: list[str], needle: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(argv) == ExitCode.USAGE
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert needle in err
    assert "--help" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "code"),
    [
        pytest.param(CliError("x"), ExitCode.FAILURE, id="own"),
        pytest.param(CliError("x", ExitCode.TIMEOUT), ExitCode.TIMEOUT, id="own with a code"),
        pytest.param(status.NotFound("x"), ExitCode.NOT_FOUND, id="not found"),
        pytest.param(status.Unauthorized("x"), ExitCode.FORBIDDEN, id="unauthorised"),
        pytest.param(status.Forbidden("x"), ExitCode.FORBIDDEN, id="forbidden"),
        pytest.param(CredentialError("x"), ExitCode.FORBIDDEN, id="no credentials"),
        pytest.param(status.Conflict("x"), ExitCode.CONFLICT, id="conflict"),
        pytest.param(status.AlreadyExists("x"), ExitCode.CONFLICT, id="already exists"),
        pytest.param(status.Timeout("x"), ExitCode.TIMEOUT, id="timeout"),
        pytest.param(OutcomeUnknown("x"), ExitCode.TIMEOUT, id="outcome unknown"),
        pytest.param(Unreachable("x"), ExitCode.UNREACHABLE, id="unreachable"),
        pytest.param(BadResponse("x"), ExitCode.UNREACHABLE, id="not an API server"),
        pytest.param(status.Invalid("x"), ExitCode.FAILURE, id="invalid"),
        pytest.param(OSError(28, "No space left on device"), ExitCode.FAILURE, id="system"),
        pytest.param(KeyError("x"), ExitCode.FAILURE, id="bug"),
    ],
)
def test_exit_codes(error: Exception, code: ExitCode) -> None:
    assert exit_code_of(error) is code


@pytest.mark.parametrize(
    ("error", "text"),
    [
        pytest.param(
            status.Invalid("a\nb", causes=[status.Cause("spec.x", "too small")]),
            "a b: spec.x: too small",
            id="causes are added",
        ),
        pytest.param(
            status.Invalid("spec.x: too small", causes=[status.Cause("spec.x", "too small")]),
            "spec.x: too small",
            id="causes not repeated",
        ),
        pytest.param(OSError(2, "No such file or directory", "/x"), "/x: No such file or directory", id="file"),
        pytest.param(KeyError("x"), "internal error: KeyError: 'x' (this is a bug; --debug shows where)", id="bug"),
        pytest.param(CliError("bell\x07 and \x1b[31mred"), "bell  and  [31mred", id="no control characters"),
    ],
)
def test_messages_are_one_line(error: Exception, text: str) -> None:
    assert message_of(error) == text


def test_long_messages_are_cut() -> None:
    assert len(one_line("x" * 100_000)) == 4000


def test_a_bug_shows_no_trace_unless_debug(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def broken() -> None:
        raise RuntimeError("boom")

    command = main.cli.get_command(click.Context(main.cli), "crds")
    assert command is not None
    monkeypatch.setattr(command, "callback", lambda **_: broken())
    assert main.run(["crds"]) == ExitCode.FAILURE
    assert capsys.readouterr().err == "error: internal error: RuntimeError: boom (this is a bug; --debug shows where)\n"
    assert main.run(["--debug", "crds"]) == ExitCode.FAILURE
    assert "Traceback" in capsys.readouterr().err
    assert main.run(["crds", "--debug"]) == ExitCode.FAILURE
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
def test_a_closed_pipe_is_quiet(unbuffered: str, tmp_path: Path) -> None:
    env = environment(tmp_path, PYTHONUNBUFFERED=unbuffered)
    with subprocess.Popen(
        [sys.executable, "-m", "muster.cli.main", "crds"], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.readline()
        child.stdout.close()
        assert child.stderr.read() == ""
        assert child.wait(30) == ExitCode.PIPE_CLOSED


@pytest.mark.parametrize(
    ("argv", "spelled"),
    [
        (["get", "-n=demo", "-o=json"], ["get", "-ndemo", "-ojson"]),
        (["get", "-l=a=b"], ["get", "-la=b"]),
        (["get", "-n", "a=b", "--field-selector=a=b"], ["get", "-n", "a=b", "--field-selector=a=b"]),
        (["get", "--", "-n=demo"], ["get", "--", "-n=demo"]),
        (["get", "-n="], ["get", "-n="]),
    ],
)
def test_short_options_with_an_equals_sign(argv: list[str], spelled: list[str]) -> None:
    assert main._spelled(argv) == spelled


def test_version_option(tmp_path: Path) -> None:
    from muster import __version__

    done = muster("--version", env=environment(tmp_path))
    assert (done.returncode, done.stdout) == (0, f"{__version__}\n")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_name_the_program(shell: str, tmp_path: Path) -> None:
    done = muster("completion", shell, env=environment(tmp_path))
    assert done.returncode == 0
    assert "_MUSTER_COMPLETE" in done.stdout


def test_completion_of_commands_and_kinds(tmp_path: Path) -> None:
    words = {"_MUSTER_COMPLETE": "bash_complete", "COMP_CWORD": "1", "COMP_WORDS": "muster de"}
    done = muster(env=environment(tmp_path, **words))
    assert done.stdout.split() == ["plain,describe", "plain,delete"]
    words = {"_MUSTER_COMPLETE": "bash_complete", "COMP_CWORD": "2", "COMP_WORDS": "muster crds kusciaj"}
    done = muster(env=environment(tmp_path, **words))
    assert "plain,kusciajobs.kuscia.secretflow" in done.stdout.split()
