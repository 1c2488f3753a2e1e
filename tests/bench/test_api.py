"""The API benchmark runs and reports what it says it measures. Figures are not judged here: machines differ."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import msgspec
import pytest

from muster.bench.api import Measured


def _bench(*options: str) -> list[Measured]:
    command = [
        sys.executable,
        "-m",
        "muster.cli.main",
        "bench",
        "run",
        "api",
        "--rounds",
        "1",
        "--scale",
        "0.02",
        "--json",
        *options,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    assert "round 1 of 1" in done.stderr
    return [msgspec.json.decode(line, type=Measured) for line in done.stdout.splitlines()]


def _check(results: list[Measured], *, with_peer: bool) -> None:
    assert [result.line for result in results] == [
        "create, 1 client",
        "create, 64 clients",
        "list of 100 pods",
        "get, 1 client",
        "get, 64 clients",
        "update, 1 client",
        "update, 64 clients",
        "watch fan-out, 100 watchers",
        "binding, 64 in flight",
        "apply of new pods, 1 client",
        "apply of new pods, 64 clients",
        "apply again, changed, 1 client",
        "apply again, changed, 64 clients",
        "time to ready, first start",
        "time to ready, with those pods",
        "memory, idle",
        "memory, with those pods",
        "memory, after all lines",
    ]
    for result in results:
        assert result.value > 0, result
        assert (result.ratio is not None) == with_peer, result
        if result.unit in ("1/s", "events/s"):
            assert result.bound_by, result
            assert (result.load_cpu_ms or 0) > 0, result


@pytest.mark.slow
def test_alone(monkeypatch: Any) -> None:
    monkeypatch.setenv("KUBEBUILDER_ASSETS", "/nowhere")
    _check(_bench(), with_peer=False)


@pytest.mark.slow
@pytest.mark.kubernetes
@pytest.mark.usefixtures("kubernetes")
def test_beside_kubernetes() -> None:
    """The fixture makes sure that the binaries are here; the benchmark then starts a control plane of its own."""
    _check(_bench(), with_peer=True)
