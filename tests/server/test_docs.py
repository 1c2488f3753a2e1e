"""The page on API coverage names every limit with its default, and every metric."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from muster.objects.catalog import CATALOG
from muster.server.config import ServerLimits
from muster.server.metrics import Metrics
from muster.server.roles import default_roles

_PAGE = (Path(__file__).parents[2] / "docs" / "api-coverage.md").read_text()


@pytest.mark.parametrize("name", ServerLimits.__struct_fields__)
def test_limits(name: str) -> None:
    assert f"`{name}`" in _PAGE


def test_no_limit_is_invented() -> None:
    section = _PAGE.partition("## Limits")[2].partition("## Metrics")[0]
    named = set(re.findall(r"`([a-z_]+_(?:max|min|s|reserved))`", section))
    assert named == set(ServerLimits.__struct_fields__)


def test_metrics() -> None:
    for family in Metrics(ServerLimits()).registry.collect():
        if family.name.startswith(("apiserver", "muster", "authentication")):
            assert f"`{family.name}" in _PAGE, family.name


def test_roles() -> None:
    for role in default_roles(CATALOG):
        name = role["metadata"]["name"]
        assert f"`{name}`" in _PAGE or name.startswith("system:aggregate-to-"), name
