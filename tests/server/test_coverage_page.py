"""The tables of docs/api-coverage.md and the transcripts that show them belong together, row by row."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.server.console import Scenario, all_scenarios

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


def test_there_are_rows() -> None:
    assert len(ROWS) > 50


@pytest.mark.parametrize("row", ROWS)
def test_every_row_is_shown_by_a_scenario(row: str) -> None:
    assert any(row in scenario.rows for scenario in SCENARIOS)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: one.name)
def test_every_scenario_has_a_row(scenario: Scenario) -> None:
    assert scenario.rows
    assert set(scenario.rows) <= ROWS.keys()


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
