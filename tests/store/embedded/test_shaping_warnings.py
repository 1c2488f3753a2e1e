"""Foreign kinds keep what they do not know, and whoever mistyped a field hears of it."""

from __future__ import annotations

from typing import Any

import pytest

from muster.objects.catalog import CATALOG
from muster.objects.time import wall_clock
from muster.store.contract import WriteOptions
from muster.store.embedded import EmbeddedStore


@pytest.mark.parametrize(("mode", "is_told"), [("Ignore", False), ("Warn", True), ("Strict", True)])
async def test_a_mistyped_field_of_a_foreign_kind(mode: Any, is_told: bool) -> None:
    domains = CATALOG.by_kind("kuscia.secretflow", "Domain")
    assert domains is not None
    store = await EmbeddedStore.open(None, clock=wall_clock)
    warnings: list[str] = []
    options = WriteOptions(field_validation=mode)
    made = await store.create(
        domains, {"metadata": {"name": "alice"}, "spec": {"rol": "partner"}}, None, options, warnings=warnings
    )
    assert made["spec"]["rol"] == "partner"
    assert [w for w in warnings if 'did you mean "role"' in w] == (warnings if is_told else [])
    assert bool(warnings) is is_told
    await store.close()
