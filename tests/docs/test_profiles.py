"""The page about profiles names every plugin with its weight, every gate, key and extension point."""

from __future__ import annotations

import re
from pathlib import Path

from muster.engine.configuration import DEFAULT_PLUGINS, WITHOUT_EFFECT, default_configuration, load
from muster.engine.gates import GATES
from muster.engine.plugin import Plugin
from muster.engine.plugin_lists import KEYS, STRATEGIES
from muster.engine.profile import POINTS
from muster.engine.registry import ENGINE_OWN, Registry

DOCS = Path(__file__).parents[2] / "docs"
PROFILES = (DOCS / "profiles.md").read_text()
WRITING = (DOCS / "writing-a-plugin.md").read_text()


def rows(page: str, columns: int) -> list[list[str]]:
    lines = [line for line in page.splitlines() if line.startswith("| `")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in cells if len(row) == columns]


def test_plugins_stand_in_their_order_with_their_weights() -> None:
    registry = Registry()
    [profile] = default_configuration(registry).build(registry)
    scoring = {plugin.name for plugin in profile.at["score"]}
    expected = [(choice.name, str(choice.weight) if choice.name in scoring else "") for choice in DEFAULT_PLUGINS]
    table = PROFILES[PROFILES.index("## Plugins and default weights") : PROFILES.index("## Feature gates")]
    assert [(row[0].strip("`"), row[1]) for row in rows(table, 3)] == expected


def test_gates() -> None:
    table = PROFILES[PROFILES.index("## Feature gates") : PROFILES.index("## Deprecated names")]
    found = [[cell.replace("`", "") for cell in row] for row in rows(table, 4)]
    assert found == [[gate.name, str(gate.default).lower(), gate.stage.value, gate.purpose] for gate in GATES]


def test_keys_and_names() -> None:
    for name in (*WITHOUT_EFFECT, *STRATEGIES, *ENGINE_OWN):
        assert f"`{name}`" in PROFILES, name
    for key, points in KEYS.items():
        [row] = [row for row in rows(PROFILES, 2) if row[0] == f"`{key}`"]
        assert re.findall(r"`(\w+)`", row[1]) == list(points)


def test_the_example_is_accepted_without_warnings() -> None:
    [text] = re.findall(r"```yaml\n(.*?)```", PROFILES, re.DOTALL)
    found = load(text, Registry())
    assert found.warnings == ()
    assert [profile.is_shadow for profile in found.profiles] == [False, False, True]


def test_every_method_of_a_plugin_is_in_the_table() -> None:
    table = WRITING[WRITING.index("## Extension points") : WRITING.index("## What wakes a unit")]
    named = {name for row in rows(table, 5) for name in re.findall(r"`(\w+)`", row[0])}
    methods = {name for name, member in vars(Plugin).items() if callable(member) and not name.startswith("_")}
    assert named == methods - {"Args"}
    assert set(POINTS) <= named
