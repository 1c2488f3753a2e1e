"""Worlds of parties and machines, on both kinds of store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from muster.bench.kubernetes import ControlPlane
from tests.e2e.job_world import World, open_world


@pytest.fixture(params=["embedded", pytest.param("kubernetes", marks=pytest.mark.kubernetes)])
async def world(request: pytest.FixtureRequest, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> AsyncIterator[World]:
    """With its controllers running. That one of them lacks a permission fails the test, whatever came of it."""
    plane: ControlPlane | None = request.getfixturevalue("kubernetes") if request.param == "kubernetes" else None
    async with open_world(plane.kubeconfig_path if plane else None, tmp_path) as made:
        yield made
    said = [record.getMessage() for when in ("setup", "call", "teardown") for record in caplog.get_records(when)]
    refused = [line for line in said if 'User "permissions-' in line and "cannot" in line]
    assert not refused, refused[0]
