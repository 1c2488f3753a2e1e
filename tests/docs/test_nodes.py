"""docs/nodes.md names every field of the agent's configuration file, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from muster.agent.config import AgentConfig

PAGE = Path(__file__).parents[2] / "docs" / "nodes.md"


def fields_of(struct: type[msgspec.Struct], before: str = "") -> set[str]:
    found = set()
    for field in msgspec.structs.fields(struct):
        name = f"{before}{field.encode_name}"
        is_section = isinstance(field.type, type) and issubclass(field.type, msgspec.Struct)
        found |= fields_of(field.type, f"{name}.") if is_section else {name}
    return found


def test_every_field_has_its_line() -> None:
    part = PAGE.read_text().partition("## The configuration file")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `([a-zA-Z.]+)` \|", part, re.MULTILINE)) == fields_of(AgentConfig)
