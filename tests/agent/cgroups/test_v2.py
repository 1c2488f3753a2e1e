"""The v2 driver on a temporary root: which files say what."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.agent.cgroups.opening import open_cgroups
from muster.agent.cgroups.pods import PodCgroups, node_limits
from muster.agent.contracts import AgentError, Limits
from tests.agent.cgroups.fake import FakeExecutor, v2_root
from tests.waiting import blocked_until

CPU_MEMORY = Limits(cpu_request_milli=500, cpu_limit_milli=1500, memory_limit_bytes=64 << 20, pids_max=100)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return v2_root(tmp_path / "cgroup")


@pytest.fixture
def executor(root: Path, tmp_path: Path) -> FakeExecutor:
    return FakeExecutor(root, tmp_path / "journal")


@pytest.fixture
def cgroups(root: Path, executor: FakeExecutor) -> PodCgroups:
    return open_cgroups("id", root, executor=executor)


def says(group: Path, **wanted: str) -> bool:
    found = {name: (group / name.replace("_", ".").replace("subtree.", "subtree_")).read_text() for name in wanted}
    assert found == wanted
    return True


def test_limits_become_files(cgroups: PodCgroups, root: Path) -> None:
    cgroups.create_pod("u", CPU_MEMORY)
    cgroups.create_container("u", "c", CPU_MEMORY)
    for group in (root / "muster-id/podu", root / "muster-id/podu/c"):
        assert says(group, cpu_weight="20", cpu_max="150000 100000", memory_max="67108864", pids_max="100")
        assert says(group, memory_swap_max="0")
    assert says(root / "muster-id/podu", memory_oom_group="0", cgroup_subtree_control="cpu memory pids")
    assert says(root / "muster-id/podu/c", memory_oom_group="1", cgroup_subtree_control="")
    assert says(root, cgroup_subtree_control="cpu memory pids")
    assert cgroups.procs_files("u", "c") == [f"{root}/muster-id/podu/c/cgroup.procs"]
    assert cgroups.oci_path("u", "c") == "/muster-id/podu/c"


def test_no_limits_write_nothing_but_the_weight(cgroups: PodCgroups, executor: FakeExecutor) -> None:
    executor.log.clear()
    cgroups.create_pod("u", Limits())
    assert executor.log == [
        ("muster-id/cgroup.subtree_control", "+cpu +memory +pids"),
        ("muster-id/podu/cpu.weight", "1"),
        ("muster-id/podu/cgroup.subtree_control", "+cpu +memory +pids"),
    ]


def test_a_second_time_nothing_is_written(cgroups: PodCgroups, executor: FakeExecutor) -> None:
    for _ in range(2):
        executor.log.clear()
        cgroups.create_pod("u", CPU_MEMORY)
        cgroups.create_container("u", "c", CPU_MEMORY)
    assert executor.log == []


def test_an_update_writes_what_differs(cgroups: PodCgroups, executor: FakeExecutor, root: Path) -> None:
    cgroups.create_pod("u", CPU_MEMORY)
    executor.log.clear()
    cgroups.update("u", None, Limits(cpu_request_milli=500, cpu_limit_milli=1500, pids_max=7))
    assert executor.log == [
        ("muster-id/podu/memory.max", "max"),
        ("muster-id/podu/memory.swap.max", "max"),
        ("muster-id/podu/pids.max", "7"),
    ]
    with pytest.raises(AgentError, match="muster-id/podu/c does not exist; create it"):
        cgroups.update("u", "c", Limits())


def test_the_node_has_a_limit_of_its_own(cgroups: PodCgroups, root: Path) -> None:
    cgroups.limit_node(Limits(memory_limit_bytes=1 << 30, cpu_request_milli=2000))
    cgroups.create_pod("u", Limits())
    assert says(root / "muster-id", memory_max=str(1 << 30), cpu_weight="79")
    cgroups.limit_node(None)
    assert says(root / "muster-id", memory_max="max", cpu_weight="39")
    cgroups.limit_node(node_limits({"cpu": "1500m", "memory": "1Gi", "pods": "110"}))
    assert says(root / "muster-id", memory_max=str(1 << 30), cpu_weight="59", cpu_max="max 100000")
    assert node_limits({}) == Limits()


def test_usage(cgroups: PodCgroups, root: Path) -> None:
    cgroups.create_pod("u", Limits())
    cgroups.create_container("u", "c", Limits())
    pod = root / "muster-id/podu"
    (pod / "cpu.stat").write_text("usage_usec 1500\nuser_usec 1000\nthrottled_usec 20\n")
    (pod / "c/cpu.stat").write_text("usage_usec 1400\nthrottled_usec 30\n")
    (pod / "memory.current").write_text("1000\n")
    (pod / "memory.stat").write_text("anon 300\ninactive_file 400\n")
    (pod / "pids.current").write_text("3\n")
    (pod / "cpu.pressure").write_text("some avg10=1.25 avg60=0.00 avg300=0.00 total=9\nfull avg10=0.00\n")
    used = cgroups.usage("u")
    assert used is not None
    assert (used.cpu_ns, used.memory_bytes, used.memory_with_cache_bytes, used.pids) == (1_500_000, 600, 1000, 3)
    assert used.throttled_ns == 50_000
    assert used.pressure == {"cpu": 1.25}
    (pod / "c/memory.events").write_text("oom 1\noom_kill 2\noom_group_kill 1\n")
    assert cgroups.oom_kills("u", "c") == 2
    assert cgroups.usage("other") is None


def test_a_controller_that_is_not_offered_is_named(tmp_path: Path) -> None:
    root = v2_root(tmp_path / "cgroup", "cpu pids")
    cgroups = open_cgroups("id", root, executor=FakeExecutor(root))
    assert {m.feature for m in cgroups.missing()} == {"device limits", "cgroup controller memory"}
    cgroups.create_pod("u", CPU_MEMORY)
    cgroups.create_container("u", "c", CPU_MEMORY)
    assert says(root / "muster-id/podu/c", memory_max="max", pids_max="100")
    assert cgroups.oom_file("u", "c") == ""


def test_everything_is_taken_away_and_put_back(cgroups: PodCgroups, root: Path, tmp_path: Path) -> None:
    for uid in ("u1", "u2"):
        cgroups.create_pod(uid, CPU_MEMORY)
        cgroups.create_container(uid, "c", CPU_MEMORY)
    later = open_cgroups("id", root, executor=FakeExecutor(root, tmp_path / "journal"))
    assert later.list() == {"u1", "u2"}
    later.remove("u1")
    later.remove("u1")
    assert later.list() == {"u2"}
    assert later.teardown() == []
    assert not (root / "muster-id").exists()
    assert says(root, cgroup_subtree_control="")


def test_a_group_that_can_not_have_its_limits_is_not_left(cgroups: PodCgroups, root: Path, executor: FakeExecutor) -> None:
    cgroups.create_pod("u", Limits())
    (real, refused) = (executor.command, root / "muster-id/podu/c/memory.max")

    def command(path: Path | str, value: str, owner: str) -> None:
        if Path(path) == refused:
            raise AgentError("CgroupError", "no")
        real(path, value, owner)

    executor.command = command  # type: ignore[method-assign]
    with pytest.raises(AgentError, match="no"):
        cgroups.create_container("u", "c", CPU_MEMORY)
    assert not (root / "muster-id/podu/c").exists()


@pytest.mark.parametrize("name", ["../x", "a/b", "", "..", "x\n"], ids=["up", "two parts", "empty", "dots", "newline"])
def test_a_name_can_not_leave_its_place(cgroups: PodCgroups, name: str) -> None:
    with pytest.raises(ValueError, match="can't be the name"):
        cgroups.create_pod(name, Limits())
    with pytest.raises(ValueError, match="can't be the name"):
        cgroups.create_container("u", name, Limits())


def test_a_container_needs_its_pod(cgroups: PodCgroups) -> None:
    with pytest.raises(AgentError, match="pod u has no group yet"):
        cgroups.create_container("u", "c", Limits())


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


def test_where_the_kernel_has_no_kill_file_signals_do(
    cgroups: PodCgroups, root: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    cgroups.create_pod("u", Limits())
    cgroups.create_container("u", "c", Limits())
    group = root / "muster-id/podu/c"
    (group / "cgroup.procs").write_text(f"{sleeper.pid}\n")
    (root / "muster-id/podu/cgroup.kill").unlink()
    assert cgroups.kill("u") == 1
    assert sleeper.wait() == -9
    assert says(root / "muster-id/podu", cgroup_freeze="0")
    blocked_until(lambda: sleeper.poll() is not None)
    with pytest.raises(AgentError, match="can't be removed yet") as caught:
        cgroups.remove("u")
    assert caught.value.reason == "CgroupBusy"
    (group / "cgroup.procs").write_text("")
    cgroups.remove("u")
    assert cgroups.list() == set()
