"""The pictures of the guides are what the commands beside them draw today."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def shown() -> set[Path]:
    """Every picture that a page shows, as a path."""
    found: set[Path] = set()
    for page in sorted(DOCS.rglob("*.md")):
        found |= {(page.parent / name).resolve() for name in re.findall(r"!\[[^\]]+\]\(([^)]+\.svg)\)", page.read_text())}
    return found


def test_pictures_are_there_and_each_is_shown() -> None:
    there = {path.resolve() for path in (DOCS / "images").rglob("*.svg")}
    assert there
    assert shown() == there


@pytest.mark.slow
def test_pictures_are_those_of_today(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("pictures", ROOT / "tools" / "pictures.py")
    assert spec is not None
    assert spec.loader is not None
    pictures = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pictures)
    pictures.draw(tmp_path)
    old = [path for path in sorted(shown()) if path.read_bytes() != (tmp_path / path.relative_to(DOCS / "images")).read_bytes()]
    assert not old, "drawn otherwise today; run: python tools/pictures.py"
