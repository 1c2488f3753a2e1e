"""The v1 driver: formulas, and files on a temporary root. What the kernel makes of them is in test_real."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.agent.cgroups import devices, v1
from muster.agent.cgroups.opening import open_cgroups
from muster.agent.cgroups.pods import PodCgroups
from muster.agent.contracts import AgentError, Limits
from tests.agent.cgroups.fake import FakeExecutor, v1_root, v2_root

MEMORY = st.one_of(st.none(), st.integers(1, 2**45))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return v1_root(tmp_path / "cgroup")


@pytest.fixture
def executor(root: Path) -> FakeExecutor:
    return FakeExecutor(root)


@pytest.fixture
def cgroups(root: Path, executor: FakeExecutor) -> PodCgroups:
    return open_cgroups("id", root, executor=executor)


def test_limits_become_files(cgroups: PodCgroups, root: Path) -> None:
    cgroups.create_pod("u", Limits(cpu_request_milli=250))
    cgroups.create_container(
        "u", "c", Limits(cpu_request_milli=250, cpu_limit_milli=500, memory_limit_bytes=(1 << 20) + 1, pids_max=9)
    )
    at = {tree: root / tree / "muster-id/podu/c" for tree in ("cpu,cpuacct", "memory", "pids", "devices")}
    assert (at["cpu,cpuacct"] / "cpu.shares").read_text() == "256"
    assert (at["cpu,cpuacct"] / "cpu.cfs_quota_us").read_text() == "50000"
    assert (at["memory"] / "memory.limit_in_bytes").read_text() == str(1 << 20)
    assert (at["pids"] / "pids.max").read_text() == "9"
    assert (at["devices"] / "devices.deny").read_text() == "a"
    assert len(cgroups.procs_files("u", "c")) == 5, "one for each hierarchy, and the freezer for killing"


def test_pods_may_use_every_device_and_containers_only_the_usual(cgroups: PodCgroups, executor: FakeExecutor) -> None:
    cgroups.create_pod("u", Limits())
    assert not [write for write in executor.log if "devices" in write[0]]
    cgroups.create_container("u", "c", Limits(devices=("/dev/null", "/dev/kmsg")))
    written = [value for file, value in executor.log if file.endswith("devices.allow")]
    assert written == [*devices.USUAL, devices.rule("/dev/kmsg")]


def test_a_device_list_is_changed_by_what_differs(executor: FakeExecutor, root: Path) -> None:
    group = root / "devices" / "g"
    executor.make(group)
    (group / "devices.list").write_text("\n".join([*devices.USUAL[1:], "c 9:9 rwm"]))
    devices.apply(executor, group, ())
    assert executor.log == [("devices/g/devices.deny", "c 9:9 rwm"), ("devices/g/devices.allow", devices.USUAL[0])]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        pytest.param("/dev/muster-absent", "No such file", id="absent"),
        pytest.param("/etc/passwd", "no device node", id="a file"),
    ],
)
def test_a_bad_device_is_named_and_leaves_no_group(cgroups: PodCgroups, root: Path, path: str, message: str) -> None:
    cgroups.create_pod("u", Limits())
    with pytest.raises(AgentError, match=message) as caught:
        cgroups.create_container("u", "c", Limits(devices=(path,)))
    assert caught.value.reason == "DeviceNotFound"
    assert path in caught.value.message
    assert not list(root.glob("*/muster-id/podu/c"))


def test_too_many_devices() -> None:
    with pytest.raises(AgentError, match="257 devices"):
        devices.rules(["/dev/null"] * 257)


@given(old=MEMORY, new=MEMORY)
def test_memory_with_swap_is_never_below_memory_on_the_way(old: int | None, new: int | None) -> None:
    """The kernel refuses any write that would make it so."""

    def number(text: str) -> int:
        return int(v1.UNLIMITED) if text == "-1" else int(text)

    files = {v1.MEMORY: int(v1.UNLIMITED), v1.MEMSW: int(v1.UNLIMITED)}
    for limit in (old, new):
        for one in v1.memory_settings(Limits(memory_limit_bytes=limit), files[v1.MEMSW]):
            files[one.file] = number(one.value)
            assert files[v1.MEMORY] <= files[v1.MEMSW]
        assert files[v1.MEMORY] == files[v1.MEMSW]
    assert [one.file for one in v1.memory_settings(Limits(memory_limit_bytes=new), None)] == [v1.MEMORY]


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    for name in ("cpu", "pids"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cgroup.procs").write_text("")
    cgroups = open_cgroups("id", tmp_path)
    assert {m.feature for m in cgroups.missing()} == {
        "cgroup controller cpuacct",
        "cgroup controller memory",
        "cgroup controller devices",
        "pressure (PSI) of pods",
    }
    assert all(m.why and m.so for m in cgroups.missing())


def test_usage(cgroups: PodCgroups, root: Path) -> None:
    cgroups.create_pod("u", Limits())
    cgroups.create_container("u", "c", Limits())
    cpu, memory = root / "cpu,cpuacct/muster-id/podu", root / "memory/muster-id/podu"
    (cpu / "cpuacct.usage").write_text("77\n")
    (cpu / "c/cpu.stat").write_text("nr_periods 9\nnr_throttled 1\nthrottled_time 5\n")
    (memory / "memory.usage_in_bytes").write_text("100\n")
    (memory / "memory.stat").write_text("inactive_file 1\ntotal_inactive_file 30\n")
    (root / "pids/muster-id/podu/pids.current").write_text("4\n")
    used = cgroups.usage("u")
    assert used is not None
    assert (used.cpu_ns, used.memory_bytes, used.memory_with_cache_bytes, used.pids) == (77, 70, 100, 4)
    assert used.throttled_ns == 5
    assert used.pressure == {}
    (memory / "c/memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
    assert cgroups.oom_kills("u", "c") == 3


def test_groups_that_a_runtime_made_elsewhere_are_listed_and_removed(tmp_path: Path) -> None:
    v2_root(v1_root(tmp_path) / "unified", "hugetlb")
    executor = FakeExecutor(tmp_path)
    cgroups = open_cgroups("id", tmp_path, executor=executor)
    assert f"{tmp_path}/unified/muster-id/podu/c/cgroup.procs" in cgroups.procs_files("u", "c")
    assert f"{tmp_path}/freezer/muster-id/podu/c/cgroup.procs" not in cgroups.procs_files("u", "c")
    for part in ("muster-id", "muster-id/podu", "muster-id/podu/c", "muster-id/podu/c/inner"):
        executor.make(tmp_path / "freezer" / part)
    assert cgroups.list() == {"u"}
    cgroups.remove("u")
    assert cgroups.list() == set()
    assert not list(tmp_path.glob("*/muster-id"))
