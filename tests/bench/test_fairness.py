"""`muster bench run fairness` at a small scale: every flood begins, the quiet user is served beside it, lines can be read."""

from __future__ import annotations

import json
import re

import pytest
from click.testing import CliRunner

from muster.bench import command
from muster.bench.fairness import FLOODS


@pytest.mark.slow
def test_a_line_for_each_flood() -> None:
    ran = CliRunner().invoke(command.bench, ["run", "fairness", "--scale", "0.01", "--json"])
    assert ran.exit_code == 0, ran.output
    lines = [json.loads(line) for line in ran.stdout.splitlines()]
    assert [re.sub(r"^[\d,]+", "{:,}", line["beside"]) for line in lines] == [words for words, _, _ in FLOODS]
    assert lines[0]["get_ratio"] == lines[0]["create_ratio"] == 1.0
    assert all(0 < line["get_p50_ms"] <= line["get_p99_ms"] for line in lines)
