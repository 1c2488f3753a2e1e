from __future__ import annotations

import subprocess
import sys

import pytest

import muster.client
from muster.client.stats import METRICS, TransportStats, collector


def modules_after(statement: str) -> set[str]:
    code = f"import sys\n{statement}\nprint(' '.join(sys.modules))"
    return set(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split())


@pytest.mark.parametrize(
    "statement", ["import muster.client", "import muster.client.kubeconfig", "from muster.client import load, write_kubeconfig"]
)
def test_kubeconfig_imports_no_http_library(statement: str) -> None:
    loaded = modules_after(statement)
    assert not loaded & {"aiohttp", "asyncio", "numpy", "yaml", "ssl", "prometheus_client"}


def test_every_export_is_there() -> None:
    for name in muster.client.__all__:
        assert getattr(muster.client, name).__module__.startswith(("muster.client.", "muster.objects."))
    with pytest.raises(AttributeError, match="nonsense"):
        _ = muster.client.nonsense


def test_metrics_of_several_clients() -> None:
    from prometheus_client import CollectorRegistry, generate_latest

    one, two = TransportStats(in_flight=3, in_flight_max=256, requests=10), TransportStats(retries=2)
    registry = CollectorRegistry()
    registry.register(collector(lambda: [("api", one), ("party-b", two)]))
    text = generate_latest(registry).decode()
    assert 'muster_client_in_flight{client="api"} 3.0' in text
    assert 'muster_client_in_flight_max{client="api"} 256.0' in text
    assert 'muster_client_requests_total{client="api"} 10.0' in text
    assert 'muster_client_retries_total{client="party-b"} 2.0' in text
    assert all(name in text for name in METRICS)
