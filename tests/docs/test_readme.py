"""The two READMEs say the same: commands, links, sections, rows and points are one to one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ENGLISH, CHINESE = ((ROOT / name).read_text() for name in ("README.md", "README.zh.md"))
FENCE = re.compile(r"^```\w*\n.*?^```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(
    "pattern",
    [
        pytest.param(FENCE, id="commands"),
        pytest.param(re.compile(r"\]\(((?:docs|examples)/[^)]+|LICENSE)\)"), id="links"),
    ],
)
def test_the_same_in_the_same_order(pattern: re.Pattern[str]) -> None:
    found = pattern.findall(ENGLISH)
    assert found
    assert pattern.findall(CHINESE) == found


@pytest.mark.parametrize("start", ["#", "- ", "| "])
def test_as_many_sections_points_and_rows(start: str) -> None:
    english, chinese = (
        [line for line in FENCE.sub("", text).splitlines() if line.startswith(start)] for text in (ENGLISH, CHINESE)
    )
    assert len(english) == len(chinese)


def test_every_guide_is_linked() -> None:
    linked = set(re.findall(r"\]\((docs/[^)#]+)", ENGLISH))
    guides = {f"docs/{page.relative_to(ROOT / 'docs')}" for page in (ROOT / "docs").glob("*.md")}
    assert guides - linked == set()
