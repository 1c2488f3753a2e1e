from __future__ import annotations

import os
from pathlib import Path

import pytest

from muster.agent.host_usage import Host, busy_ns, memory_amounts

TICK_NS = 10**9 // os.sysconf("SC_CLK_TCK")
MEMINFO = "MemTotal:       1000 kB\nMemFree:         300 kB\nMemAvailable:    600 kB\nBuffers:          5 kB\n"


@pytest.mark.parametrize(
    ("text", "ticks"),
    [
        pytest.param(
            "cpu  1 2 4 100 200 8 16 500 1000 2000\ncpu0 1 1 1 1\n", 1 + 2 + 4 + 8 + 16, id="no idle, iowait, steal, guest"
        ),
        pytest.param("", None, id="empty"),
        pytest.param("cpu 1 2\n", None, id="short"),
        pytest.param("cpu a b c d e f g h\n", None, id="no numbers"),
    ],
)
def test_busy_time(text: str, ticks: int | None) -> None:
    assert busy_ns(text) == (None if ticks is None else ticks * TICK_NS)


def test_memory() -> None:
    assert memory_amounts(MEMINFO) == (1000 * 1024, 600 * 1024, 300 * 1024)
    assert memory_amounts("") == (None, None, None)
    assert memory_amounts("MemTotal: much kB\nMemFree:") == (None, None, None)


def machine(root: Path) -> Host:
    (root / "proc/pressure").mkdir(parents=True)
    (root / "proc/stat").write_text("cpu  100 0 0 0 0 0 0 0 0 0\n")
    (root / "proc/meminfo").write_text(MEMINFO)
    (root / "proc/pressure/cpu").write_text("some avg10=3.50 avg60=1.00 avg300=0.10 total=5\n")
    counters = root / "sys/class/net/up0/statistics"
    counters.mkdir(parents=True)
    (counters / "tx_bytes").write_text("70\n")
    (counters / "rx_bytes").write_text("80\n")
    return Host("up0", root / "proc", root / "sys")


def test_a_machine_that_tells_everything(tmp_path: Path) -> None:
    host = machine(tmp_path)
    now = host.read()
    assert now.cpu_ns == 100 * TICK_NS
    assert (now.memory_bytes, now.memory_with_cache_bytes) == (400 * 1024, 700 * 1024)
    assert (now.sent_bytes, now.received_bytes) == (70, 80)
    assert now.pressure == {"cpu": 3.5}
    assert host.missing() == []


def test_what_a_machine_does_not_tell_is_named(tmp_path: Path) -> None:
    host = Host("", tmp_path / "proc", tmp_path / "sys")
    assert [m.feature for m in host.missing()] == ["use of the machine", "traffic of the uplink", "pressure (PSI)"]
    now = host.read()
    assert (now.cpu_ns, now.memory_bytes, now.sent_bytes, now.pressure) == (None, None, None, {})
    assert "'up9' has no counters" in Host("up9", tmp_path, tmp_path).missing()[1].why


def test_this_machine() -> None:
    before = Host("lo").read()
    assert sum(i * i for i in range(300_000)) > 0
    after = Host("lo").read()
    assert before.cpu_ns is not None
    assert after.cpu_ns is not None
    assert after.cpu_ns >= before.cpu_ns > 0
    assert after.memory_with_cache_bytes is not None
    assert after.memory_bytes is not None
    assert after.memory_with_cache_bytes > 0 < after.memory_bytes
    assert after.sent_bytes is not None
