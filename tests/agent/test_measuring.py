"""What is read of a machine, on machines made of files, and once on this one."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.agent.cgroup_limits import CgroupLimits, limits_of, pids_limit
from muster.agent.config import AgentConfig, Network
from muster.agent.measuring import Found, Gpu, identify, interface_address, measure, read_pressure
from tests.agent.made_machine import MadeMachine, disk

MIB = 2**20


@pytest.fixture
def machine(tmp_path: Path) -> MadeMachine:
    return MadeMachine(tmp_path)


def measured(machine: MadeMachine, config: AgentConfig | None = None, *, cpus: int = 4) -> Found:
    return measure(
        config or AgentConfig(),
        machine.root,
        machine.places,
        affinity=lambda: cpus,
        statvfs=lambda _: disk(),
        address_of=lambda interface: {"eth0": "10.0.0.5", "wlan0": "10.0.0.6"}.get(interface, ""),
    )


def test_a_plain_machine(machine: MadeMachine) -> None:
    found = measured(machine)
    assert (found.cpu_milli, found.memory_bytes, found.disk_bytes) == (4000, 16_384_000 * 1024, 1000 * MIB)
    assert (found.uplink, found.address) == ("eth0", "10.0.0.5"), "the default route with the lowest metric"
    assert (found.link_mbps, found.is_link_guessed) == (10_000, False)
    assert found.gpus == ()


@pytest.mark.parametrize(
    "speed",
    [
        pytest.param("-1\n", id="a virtual machine"),
        pytest.param("", id="nothing"),
        pytest.param("fast\n", id="no number"),
        pytest.param("0\n", id="zero"),
        pytest.param("99999999999\n", id="beyond all links"),
    ],
)
def test_a_speed_that_is_not_told_is_a_guess(machine: MadeMachine, speed: str) -> None:
    machine.write("sys/class/net/eth0/speed", speed)
    found = measured(machine)
    assert (found.link_mbps, found.is_link_guessed) == (1000, True)


def test_another_uplink_by_configuration(machine: MadeMachine) -> None:
    machine.write("sys/class/net/wlan0/speed", "300\n")
    found = measured(machine, AgentConfig(network=Network(uplink="wlan0")))
    assert (found.uplink, found.address, found.link_mbps) == ("wlan0", "10.0.0.6", 300)


def test_an_uplink_is_no_path(machine: MadeMachine) -> None:
    machine.write("speed", "300\n")
    assert measured(machine, AgentConfig(network=Network(uplink="../../.."))).is_link_guessed


def test_without_a_default_route(machine: MadeMachine) -> None:
    machine.write("proc/net/route", "Iface\tDestination\n")
    found = measured(machine)
    assert (found.uplink, found.address, found.is_link_guessed) == ("", "", True)


def test_nothing_readable_is_no_crash(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    machine = MadeMachine(tmp_path / "m")
    for path in sorted((tmp_path / "m").rglob("*"), reverse=True):
        if path.is_file():
            path.unlink()
    found = measured(machine)
    assert (found.cpu_milli, found.memory_bytes) == (4000, 0)
    assert identify(machine.places).machine_id.startswith("host-")
    assert read_pressure(machine.root, machine.places, statvfs=lambda _: disk()).pids_used_ratio == 0


@pytest.mark.parametrize("version", ["v1", "v2"])
class TestCgroups:
    def test_the_least_on_the_way_counts(self, machine: MadeMachine, version: str) -> None:
        if version == "v1":
            machine.cgroup_v1()
            machine.write("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "9223372036854771712\n")
            machine.write("sys/fs/cgroup/memory/a/memory.limit_in_bytes", f"{512 * MIB}\n")
            machine.write("sys/fs/cgroup/memory/a/memory.usage_in_bytes", f"{300 * MIB}\n")
            machine.write("sys/fs/cgroup/memory/a/memory.stat", f"cache 1\ntotal_inactive_file {100 * MIB}\n")
            machine.write("sys/fs/cgroup/cpu/a/b/cpu.cfs_quota_us", "150000\n")
            machine.write("sys/fs/cgroup/cpu/a/b/cpu.cfs_period_us", "100000\n")
            machine.write("sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "-1\n")
            machine.write("sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000\n")
        else:
            machine.cgroup_v2()
            machine.write("sys/fs/cgroup/a/b/memory.max", "max\n")
            machine.write("sys/fs/cgroup/a/memory.max", f"{512 * MIB}\n")
            machine.write("sys/fs/cgroup/a/memory.current", f"{300 * MIB}\n")
            machine.write("sys/fs/cgroup/a/memory.stat", f"anon 1\ninactive_file {100 * MIB}\n")
            machine.write("sys/fs/cgroup/a/b/cpu.max", "150000 100000\n")
            machine.write("sys/fs/cgroup/a/cpu.max", "max 100000\n")
        expected = CgroupLimits(cpu_milli=1500, memory_bytes=512 * MIB, memory_used_bytes=200 * MIB)
        assert limits_of(machine.places.proc, machine.places.sys) == expected
        found = measured(machine)
        assert (found.cpu_milli, found.memory_bytes) == (1500, 512 * MIB)

    def test_no_limits(self, machine: MadeMachine, version: str) -> None:
        machine.cgroup_v1() if version == "v1" else machine.cgroup_v2()
        assert limits_of(machine.places.proc, machine.places.sys) == CgroupLimits()
        assert measured(machine).cpu_milli == 4000

    def test_pids(self, machine: MadeMachine, version: str) -> None:
        machine.cgroup_v1() if version == "v1" else machine.cgroup_v2()
        where = "sys/fs/cgroup/pids/a/b" if version == "v1" else "sys/fs/cgroup/a/b"
        machine.write(f"{where}/pids.max", "100\n")
        machine.write(f"{where}/pids.current", "95\n")
        assert pids_limit(machine.places.proc, machine.places.sys) == (95, 100)
        pressure = read_pressure(machine.root, machine.places, statvfs=lambda _: disk())
        assert pressure.pids_used_ratio == pytest.approx(0.95)

    def test_a_part_of_the_hierarchy_is_mounted(self, machine: MadeMachine, version: str) -> None:
        """As in a container without a cgroup namespace: the mount shows only what is below the container's group."""
        if version == "v1":
            machine.cgroup_v1("/docker/x/sub")
            machine.write("proc/self/mountinfo", "1 1 0:1 /docker/x /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n")
            machine.write("sys/fs/cgroup/memory/sub/memory.limit_in_bytes", f"{MIB}\n")
        else:
            machine.cgroup_v2("/docker/x/sub")
            machine.write("proc/self/mountinfo", "1 1 0:1 /docker/x /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
            machine.write("sys/fs/cgroup/sub/memory.max", f"{MIB}\n")
        assert limits_of(machine.places.proc, machine.places.sys).memory_bytes == MIB


def test_nvidia_gpus_by_the_drivers_list(machine: MadeMachine) -> None:
    for minor, slot in ((1, "0000:af:00.0"), (0, "0000:3b:00.0"), (7, "0000:d8:00.0")):
        machine.write(f"proc/driver/nvidia/gpus/{slot}/information", f"Model: \t\t NVIDIA A100\nDevice Minor: \t {minor}\n")
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        machine.write(f"dev/{name}")
    gpus = measured(machine).gpus
    shared = ("/dev/nvidiactl", "/dev/nvidia-uvm")
    assert gpus == tuple(
        Gpu(resource="nvidia.com/gpu", model="NVIDIA A100", devices=(f"/dev/nvidia{minor}", *shared)) for minor in (0, 1)
    ), "one whose device nobody can open is none"


def test_nvidia_gpus_by_their_devices(machine: MadeMachine) -> None:
    for name in ("nvidia0", "nvidia10", "nvidia2", "nvidiactl"):
        machine.write(f"dev/{name}")
    assert [gpu.devices[0] for gpu in measured(machine).gpus] == ["/dev/nvidia0", "/dev/nvidia2", "/dev/nvidia10"]


def test_amd_gpus_by_compute_nodes(machine: MadeMachine) -> None:
    nodes = "sys/class/kfd/kfd/topology/nodes"
    machine.write(f"{nodes}/0/properties", "cpu_cores_count 64\ndrm_render_minor 0\n")
    for number, minor in ((1, 128), (2, 129), (10, 130)):
        machine.write(f"{nodes}/{number}/properties", f"simd_count 440\ndrm_render_minor {minor}\n")
        machine.write(f"{nodes}/{number}/name", "gfx90a\n")
    for minor in (128, 130):
        machine.write(f"dev/dri/renderD{minor}")
    gpus = measured(machine).gpus
    assert [(gpu.resource, gpu.model, gpu.devices[0]) for gpu in gpus] == [
        ("amd.com/gpu", "gfx90a", "/dev/dri/renderD128"),
        ("amd.com/gpu", "gfx90a", "/dev/dri/renderD130"),
    ]


def test_who_the_machine_is(machine: MadeMachine) -> None:
    identity = identify(machine.places)
    assert (identity.machine_id, identity.boot_id, identity.hostname) == ("m-1", "b-1", "box")
    assert (identity.os_image, identity.kernel) == ("Some Linux 12", "6.1.0")


def test_how_full_it_is(machine: MadeMachine) -> None:
    now = read_pressure(machine.root, machine.places, statvfs=lambda _: disk(free=60, available=10, files_free=4))
    assert now.memory_used_ratio == pytest.approx(0.25)
    assert now.disk_used_ratio == pytest.approx(1 - 10 / 950), "what is kept for root counts neither as free nor as used"
    assert now.disk_free_bytes == 10 * MIB
    assert now.inodes_used_ratio == pytest.approx(0.96)
    assert now.pids_used_ratio == pytest.approx(400 / 4096)


def test_this_machine(tmp_path: Path) -> None:
    found, identity = measure(AgentConfig(), tmp_path), identify()
    assert found.cpu_milli >= 1
    assert found.memory_bytes > 0
    assert found.disk_bytes > 0
    assert identity.machine_id
    assert identity.boot_id
    assert interface_address("lo") == "127.0.0.1"
    assert interface_address("there-is-none") == ""
    assert 0 < read_pressure(tmp_path).memory_used_ratio < 1
