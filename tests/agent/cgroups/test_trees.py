from __future__ import annotations

from pathlib import Path

from muster.agent.cgroups.opening import open_cgroups
from muster.agent.cgroups.trees import detect
from muster.agent.contracts import Limits
from tests.agent.cgroups.fake import fill, v1_root, v2_root


def test_a_unified_machine(tmp_path: Path) -> None:
    found = detect(v2_root(tmp_path))
    assert found.is_unified
    assert "memory" in found.v2_controllers
    assert found.every == (tmp_path,)


def test_controllers_that_are_mounted_together_are_one_hierarchy(tmp_path: Path) -> None:
    found = detect(v1_root(tmp_path))
    assert not found.is_unified
    assert found.v2 is None
    assert found.v1["cpu"] == found.v1["cpuacct"] == tmp_path / "cpu,cpuacct"
    assert len(found.every) == 5


def test_a_hybrid_machine(tmp_path: Path) -> None:
    v2_root(v1_root(tmp_path) / "unified", "hugetlb")
    fill(tmp_path / "something-else", {"cgroup.procs": ""})
    found = detect(tmp_path)
    assert not found.is_unified
    assert found.v2 == tmp_path / "unified"
    assert found.v2_controllers == {"hugetlb"}
    assert tmp_path / "something-else" not in found.every


def test_a_machine_without_cgroups_limits_nothing_and_fails_nothing(tmp_path: Path) -> None:
    cgroups = open_cgroups("x", tmp_path / "absent")
    assert [m.feature for m in cgroups.missing()] == ["cgroups"]
    cgroups.limit_node(Limits(memory_limit_bytes=1 << 30))
    cgroups.create_pod("u", Limits(cpu_limit_milli=100))
    cgroups.create_container("u", "c", Limits(pids_max=5, devices=("/dev/absent",)))
    cgroups.update("u", "c", Limits())
    assert cgroups.procs_files("u", "c") == []
    assert cgroups.oom_file("u", "c") == ""
    assert cgroups.oom_kills("u", "c") == 0
    assert cgroups.usage("u") is None
    assert cgroups.kill("u") == 0
    cgroups.remove("u")
    assert cgroups.list() == set()
    assert cgroups.teardown() == []
