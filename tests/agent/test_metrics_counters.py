"""Counting by cgroup: software events, which every kernel has, in place of the processor's."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.agent import metrics_counters as module
from muster.agent.cgroups import PodCgroups, open_cgroups
from muster.agent.contracts import Limits
from muster.agent.metrics_counters import SOFTWARE, Counted, CpuCounters, cache_figures, cache_missing
from tests.waiting import blocked_until

CPUS = sorted(os.sched_getaffinity(0))


@pytest.fixture
def cgroups() -> Iterator[PodCgroups]:
    opened = open_cgroups(uuid.uuid4().hex[:8])
    if opened.counting_tree is None:
        pytest.skip("performance events by cgroup: there is no cgroup v2 tree that can be written")
    missing = CpuCounters(opened.counting_tree, CPUS, SOFTWARE).missing()
    if missing:
        pytest.skip(str(missing[0]))
    yield opened
    blocked_until(lambda: opened.teardown() == [])
    assert opened.list() == set()


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def busy(cgroups: PodCgroups) -> Iterator[subprocess.Popen[bytes]]:
    for uid in ("busy", "idle"):
        cgroups.create_pod(uid, Limits(cpu_request_milli=1000))
        cgroups.create_container(uid, "c", Limits(cpu_request_milli=1000))
    enter = "".join(f"echo 0 > {file}; " for file in cgroups.procs_files("busy", "c"))
    process = subprocess.Popen(["/bin/sh", "-c", f"{enter} exec {sys.executable} -I -S -c 'while True: pass'"])
    yield process
    process.kill()
    process.wait()


@pytest.mark.usefixtures("busy")
def test_what_runs_is_counted_and_what_does_not_is_not(cgroups: PodCgroups) -> None:
    before = open_files()
    counters = CpuCounters(cgroups.counting_tree, CPUS, SOFTWARE)
    paths = [cgroups.pod_path(uid) for uid in ("busy", "idle")]

    def counted() -> bool:
        counters.step(paths)
        found = counters.figures.get(paths[0])
        return found is not None and found.values[0] > 0

    blocked_until(counted)
    assert paths[1] not in counters.figures
    counters.step([])
    assert counters.figures == {}
    counters.close()
    assert open_files() == before


@pytest.mark.usefixtures("busy")
def test_pods_take_turns_within_the_bound_of_open_files(cgroups: PodCgroups, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FILES_MAX", len(CPUS) * len(SOFTWARE))
    before = open_files()
    counters = CpuCounters(cgroups.counting_tree, CPUS, SOFTWARE)
    paths = [cgroups.pod_path(uid) for uid in ("busy", "idle")]
    seen: set[str] = set()
    for _ in range(4):
        counters.step(paths)
        seen.update(counters._open)
        assert open_files() - before == len(CPUS) * len(SOFTWARE)
    assert seen == set(paths)
    counters.step(["muster-absent/podx"])
    assert open_files() == before, "a group that is gone leaves nothing open"
    counters.close()


@pytest.mark.parametrize(
    ("values", "cpi", "ratio"),
    [
        pytest.param((300.0, 200.0, 50.0, 5.0), 1.5, 0.1, id="all four"),
        pytest.param((300.0, 0.0, 0.0, 0.0), None, None, id="nothing ran"),
        pytest.param((5.0,), None, None, id="other events"),
    ],
)
def test_figures(values: tuple[float, ...], cpi: float | None, ratio: float | None) -> None:
    assert (Counted(values).cpi, Counted(values).cache_miss_ratio) == (cpi, ratio)


def test_a_machine_without_counters_says_why(tmp_path: Path) -> None:
    none = CpuCounters(None, CPUS)
    assert "no cgroup tree" in none.missing()[0].why
    none.step(["a"])
    none.close()
    assert none.figures == {}
    plain = CpuCounters(tmp_path, CPUS)
    assert plain.missing(), "a plain directory is no cgroup"


def test_cache(tmp_path: Path) -> None:
    assert "resctrl is not mounted" in cache_missing(tmp_path / "absent")[0].why
    assert "does not count" in cache_missing(tmp_path)[0].why
    for domain, amount in (("mon_L3_00", 5), ("mon_L3_01", 7)):
        (tmp_path / "mon_data" / domain).mkdir(parents=True)
        (tmp_path / "mon_data" / domain / "llc_occupancy").write_text(f"{amount}\n")
        (tmp_path / "mon_data" / domain / "mbm_total_bytes").write_text("Unavailable\n")
    assert cache_figures(tmp_path) == {"llc_occupancy": 12}
    assert cache_missing(tmp_path) == []
