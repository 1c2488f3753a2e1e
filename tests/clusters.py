"""A real Kubernetes for tests: skipped by name where there is none, an error in continuous integration."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from muster.bench.kubernetes import ControlPlane, NotAvailable, control_plane


def new_cluster(tmp_path_factory: pytest.TempPathFactory, **options: Any) -> Iterator[ControlPlane]:
    """A kube-apiserver with etcd and kube-controller-manager that nobody has used, for the body of a fixture.

    `options` are those of `ControlPlane`.
    """
    try:
        with control_plane(tmp_path_factory.mktemp("kubernetes"), build=True, **options) as plane:
            yield plane
    except NotAvailable as missing:
        if os.environ.get("CI"):
            pytest.fail(f"CI must run the Kubernetes tests: {missing}")
        pytest.skip(f"no real Kubernetes here: {missing}")
