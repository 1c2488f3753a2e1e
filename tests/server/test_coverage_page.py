"""The tables of docs/api-coverage.md and the transcripts that show them belong together, row by row."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.console import BIN, Scenario, Step, all_scenarios

_PAGE = (Path(__file__).parents[2] / "docs" / "api-coverage.md").read_text()
SECTIONS = ("kubectl", "Server-side apply", "Verbs and options")
SCENARIOS = all_scenarios()


def _rows() -> dict[str, list[str]]:
    """The cells of each row of the sections that are walked, by the first one."""
    rows: dict[str, list[str]] = {}
    for section in SECTIONS:
        text = _PAGE.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
        lines = [line for line in text.splitlines() if line.startswith("| ")]
        for line in lines[1:]:
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            assert cells[0] not in rows, f"the row {cells[0]!r} stands there twice"
            rows[cells[0]] = cells
    return rows


ROWS = _rows()
_WITH_A_NODE = "tests/e2e/test_agent.py"
_INTO_PODS = "tests/e2e/test_streams.py"
ELSEWHERE = {
    "`logs` (`-f`, `--tail`, `--since`, `--previous`, `--timestamps`)": _WITH_A_NODE,
    "`exec` (`-i`, `-t`, `-c`)": _INTO_PODS,
    "`cp`": _INTO_PODS,
    "`port-forward`": _INTO_PODS,
    "`exec`, `portforward` of pods": _INTO_PODS,
}
"""Rows whose words are shown by another test, since a transcript has no node."""


def test_there_are_rows() -> None:
    assert len(ROWS) > 50


@pytest.mark.parametrize("row", ROWS)
def test_every_row_is_shown_by_a_scenario(row: str) -> None:
    assert any(row in scenario.rows for scenario in SCENARIOS)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: one.name)
def test_every_scenario_has_a_row(scenario: Scenario) -> None:
    assert scenario.rows
    assert set(scenario.rows) <= ROWS.keys()


def _words(row: str) -> list[str]:
    """The commands, subcommands and options that a row names."""
    return [word for quoted in re.findall(r"`([^`]+)`", row) for word in quoted.split()]


def _has_succeeded(step: Step) -> bool:
    return not re.search(r"^(\[\d+\]$|[45]\d\d )", step.output, re.MULTILINE)


@pytest.mark.parametrize("row", [row for row, cells in ROWS.items() if cells[1] == "yes"])
def test_every_word_of_a_row_that_works_is_used_with_success(row: str) -> None:
    """A transcript of nothing but refusals shows nothing, however well both servers agree on it."""
    steps = [step for scenario in SCENARIOS if row in scenario.rows for step in scenario.steps if _has_succeeded(step)]
    shown = "\n".join(f"{step.command}\n{step.output}" for step in steps)
    if row in ELSEWHERE:
        shown = (Path(__file__).parents[2] / ELSEWHERE[row]).read_text().replace('"', " ")
    for word in _words(row):
        assert re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", shown), f"no command with success uses {word}"


def _commands() -> Iterator[tuple[str, ...]]:
    """Every command of kubectl and the subcommands of each, as its own help lists them."""
    for name in (*_helped(), "alpha"):
        yield (name,)
        yield from ((name, below) for below in _helped(name))


def _helped(*path: str) -> list[str]:
    said = subprocess.run([BIN / "kubectl", *path, "--help"], capture_output=True, text=True, timeout=60, check=True).stdout
    listed = re.findall(r"^[A-Z][^\n]*Commands[^\n]*:\n((?:  \S[^\n]*\n)+)", said, re.MULTILINE)
    return [line.split()[0] for part in listed for line in part.splitlines()]


def _is_named(path: tuple[str, ...], row: str) -> bool:
    quoted = re.findall(r"`([^`]+)`", row)
    starts = {text.split()[0] for text in quoted}
    if len(path) == 1:
        return path[0] in starts
    return " ".join(path) in quoted or (path[1] in quoted and bool(quoted) and quoted[0].split()[0] == path[0])


def test_every_command_of_kubectl_has_a_row() -> None:
    commands = list(_commands())
    assert len(commands) > 80
    missing = [" ".join(path) for path in commands if not any(_is_named(path, row) for row in ROWS)]
    assert not missing


@pytest.mark.parametrize("row", [row for row, cells in ROWS.items() if cells[1] != "yes"])
def test_what_does_not_work_has_a_reason_and_an_answer_that_is_clear(row: str) -> None:
    assert ROWS[row][3]
    shown = [scenario for scenario in SCENARIOS if row in scenario.rows]
    refused = [
        step.output for scenario in shown for step in scenario.steps if re.search(r"^(\[\d+\]|4\d\d )", step.output, re.M)
    ]
    assert refused
    for output in refused:
        assert re.search(r"\w{3,} \w{2,}", output), "a refusal says why"


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: one.name)
def test_nothing_fails_inside_the_server(scenario: Scenario) -> None:
    for step in scenario.steps:
        assert "InternalError" not in step.output
        assert not re.search(r"^500 ", step.output, re.M)


@pytest.mark.parametrize("scenario", [one for one in SCENARIOS if one.since], ids=lambda one: one.name)
def test_what_is_newer_says_since_when(scenario: Scenario) -> None:
    version, _, why = scenario.since.partition(": ")
    assert re.fullmatch(r"1\.\d+", version)
    assert why
    assert any(ROWS[row][2] for row in scenario.rows), "the page says so as well"
