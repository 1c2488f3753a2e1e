"""docs/cli.md and the program agree: no command and no option is missing from either."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from muster.cli import main
from muster.cli.errors import ExitCode

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"
HEADING = re.compile(r"^(#{2,3}) (.+)$", re.MULTILINE)
ROW = re.compile(r"^\| (`-[^|]*`) \|", re.MULTILINE)
OPTION = re.compile(r"(?<![\w-])(--?[a-zA-Z][\w-]*)")
SHARED = ("Options of every command", "Connection options")
OF_LOGS = "Options of logs"
"""Shared by the commands of `muster history`."""


def sections() -> dict[str, str]:
    """The text under each heading, down to the next one."""
    text = PAGE.read_text()
    found = list(HEADING.finditer(text))
    ends = [m.start() for m in found[1:]] + [len(text)]
    return {m.group(2): text[m.end() : end] for m, end in zip(found, ends, strict=True)}


SECTIONS = sections()


def documented(title: str) -> set[str]:
    """The options in the first column of the section's table."""
    return {option for row in ROW.findall(SECTIONS[title]) for option in OPTION.findall(row)}


def commands() -> dict[str, click.Command]:
    def walk(command: click.Command, path: str) -> dict[str, click.Command]:
        found = {path: command}
        if isinstance(command, click.Group):
            ctx = click.Context(command)
            for name in command.list_commands(ctx):
                child = command.get_command(ctx, name)
                assert child is not None
                found |= walk(child, f"{path} {name}")
        return found

    return walk(main.cli, "muster")


def options_of(command: click.Command) -> set[str]:
    return {
        name
        for param in command.params
        if isinstance(param, click.Option) and not param.hidden
        for name in (*param.opts, *param.secondary_opts)
    }


COMMANDS = {path: command for path, command in commands().items() if path != "muster"}


@pytest.mark.parametrize("path", COMMANDS)
def test_every_option_is_documented_and_every_documented_option_exists(path: str) -> None:
    assert path in SECTIONS, f"{PAGE.name} has no section '{path}'"
    has, told = options_of(COMMANDS[path]), documented(path)
    titles = (*SHARED, OF_LOGS) if path.startswith("muster history ") else SHARED
    shared = set().union(*(documented(title) for title in titles))
    assert not told - has, "documented, but the command does not have it"
    assert not has - told - shared, "not documented"
    if documented("Connection options") & (has - told):
        assert "connection options" in " ".join(SECTIONS[path].split()), (
            "the section must say that it takes the connection options"
        )


def test_every_section_about_a_command_has_its_command() -> None:
    told = {title for title in SECTIONS if title.startswith("muster ")}
    assert told == set(COMMANDS)


def test_shared_options_exist() -> None:
    everywhere = set.intersection(*(options_of(c) for p, c in COMMANDS.items() if not p.startswith("muster bench")))
    assert documented("Options of every command") - {"-h", "--help"} == everywhere
    assert documented("Connection options") <= options_of(COMMANDS["muster get"])


def test_options_before_the_command() -> None:
    told = documented("Options of every command") | documented("Connection options") | {"--version"}
    assert options_of(main.cli) == told - {"-h", "--help", "--request-timeout"}


def test_exit_codes() -> None:
    rows = re.findall(r"^\| (\d+) \| (.+) \|$", SECTIONS["Exit codes"], re.MULTILINE)
    assert {int(code): text.replace("\\|", "|") for code, text in rows} == {int(c): c.meaning for c in ExitCode}
