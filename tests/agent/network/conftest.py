"""A machine of its own for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.agent.network.machine import Machine, a_machine


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[Machine]:
    async with a_machine(tmp_path) as made:
        yield made
