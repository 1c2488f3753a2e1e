"""Stores in real time, for what must be shown on both kinds of store."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from muster.bench.kubernetes import ControlPlane
from muster.client import ApiClient
from muster.objects.status import ApiError
from muster.objects.time import wall_clock
from muster.store.contract import Store
from muster.store.embedded import EmbeddedStore
from muster.store.kubernetes import KubernetesStore


@pytest.fixture(params=["embedded", pytest.param("kubernetes", marks=pytest.mark.kubernetes)])
async def real_store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    opened: Store
    if request.param == "kubernetes":
        plane: ControlPlane = request.getfixturevalue("kubernetes")
        opened = KubernetesStore(await ApiClient.from_kubeconfig(plane.kubeconfig_path))
    else:
        opened = await EmbeddedStore.open(tmp_path / "store", clock=wall_clock)
    yield opened
    await opened.close()


@pytest.fixture
async def namespace(real_store: Store) -> AsyncIterator[str]:
    """A fresh namespace. It is deleted afterwards, but nobody waits for that."""
    name = f"controllers-{uuid.uuid4().hex[:10]}"
    resource = await real_store.resource("", "Namespace")
    await real_store.create(resource, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    yield name
    with contextlib.suppress(ApiError):
        await real_store.delete(resource, name)
