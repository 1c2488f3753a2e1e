"""What a node offers of what its machine has."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.agent.config import AgentConfig, Capacity, ConfigError, Reserved, parse
from muster.agent.measuring import Found, Gpu, Pressure
from muster.agent.offering import offer, pressures
from muster.objects.quantity import Quantity

GIB = 2**30
GPUS = tuple(Gpu(resource="nvidia.com/gpu", model="A100", devices=(f"/dev/nvidia{n}", "/dev/nvidiactl")) for n in range(4))


def found(**more: Any) -> Found:
    plain: dict[str, Any] = {
        "cpu_milli": 8000,
        "memory_bytes": 16 * GIB,
        "disk_bytes": 100 * GIB,
        "uplink": "eth0",
        "link_mbps": 1000,
        "is_link_guessed": False,
    }
    return Found(**plain | more)


def test_measured_less_the_reserves() -> None:
    made = offer(found(), AgentConfig())
    assert made.capacity == {
        "cpu": "8",
        "memory": "16Gi",
        "ephemeral-storage": "100Gi",
        "pods": "110",
        "kuscia.io/bandwidth": "1000",
    }
    assert made.allocatable == {
        "cpu": "7500m",
        "memory": "15884Mi",
        "ephemeral-storage": "99Gi",
        "pods": "110",
        "kuscia.io/bandwidth": "990",
    }
    assert made.notes == ()


def test_the_file_wins_over_the_machine_and_has_no_share_taken() -> None:
    capacity = Capacity(
        cpu="2", memory="4Gi", ephemeral_storage="10Gi", pods=7, bandwidth="100Mbps", extended={"example.com/x": "3"}, share=0.5
    )
    made = offer(found(), AgentConfig(capacity=capacity))
    assert made.capacity["cpu"] == "2"
    assert made.capacity["memory"] == "4Gi"
    assert made.capacity["ephemeral-storage"] == "10Gi"
    assert made.capacity["pods"] == "7"
    assert made.capacity["kuscia.io/bandwidth"] == "100"
    assert made.capacity["example.com/x"] == made.allocatable["example.com/x"] == "3"


def test_a_share_of_the_machine_and_of_its_reserves() -> None:
    made = offer(found(), AgentConfig(capacity=Capacity(share=0.25)))
    assert (made.capacity["cpu"], made.allocatable["cpu"]) == ("2", "1875m")
    assert (made.capacity["memory"], made.allocatable["memory"]) == ("4Gi", "3971Mi")
    assert (made.bandwidth_mbps, made.bandwidth_reserved_mbps) == (250, 3)


def test_a_small_machine_still_offers_half() -> None:
    made = offer(found(cpu_milli=500, memory_bytes=512 * 2**20), AgentConfig())
    assert (made.allocatable["cpu"], made.allocatable["memory"]) == ("250m", "256Mi")
    assert len(made.notes) == 2


def test_no_reserves() -> None:
    reserved = Reserved(cpu="", memory="", ephemeral_storage="", bandwidth="")
    made = offer(found(), AgentConfig(reserved=reserved))
    assert made.allocatable == made.capacity


def test_a_guessed_speed_is_said() -> None:
    assert "eth0" in offer(found(is_link_guessed=True), AgentConfig()).notes[0]
    assert "default route" in offer(found(is_link_guessed=True, uplink=""), AgentConfig()).notes[0]
    said = AgentConfig(capacity=Capacity(bandwidth="2Gbps"))
    assert offer(found(is_link_guessed=True), said).notes == ()


def test_gpus_are_units_with_their_devices() -> None:
    made = offer(found(gpus=GPUS), AgentConfig(devices=["fpga=/dev/fpga0", "fpga=/dev/fpga1", "example.com/q=/dev/q"]))
    assert made.capacity["nvidia.com/gpu"] == "4"
    assert made.units["nvidia.com/gpu"] == tuple(gpu.devices for gpu in GPUS)
    assert made.units["muster.dev/fpga"] == (("/dev/fpga0",), ("/dev/fpga1",))
    assert made.units["example.com/q"] == (("/dev/q",),)
    assert made.gpu_model == "A100"


def test_gpus_that_the_file_denies() -> None:
    made = offer(found(gpus=GPUS), AgentConfig(capacity=Capacity(extended={"nvidia.com/gpu": "0"})))
    assert made.capacity["nvidia.com/gpu"] == "0"
    assert "nvidia.com/gpu" not in made.units


@given(st.integers(1, 12), st.integers(0, 9))
def test_several_agents_never_have_more_than_the_machine(agents: int, gpus: int) -> None:
    """Shares as `muster up` computes them: nothing is offered twice, and no GPU is nobody's if all are shared out evenly."""
    machine = found(gpus=tuple(Gpu(resource="g/pu", model="m", devices=(f"/dev/{n}",)) for n in range(gpus)))
    share = int(10_000 / agents) / 10_000
    made = [
        offer(machine, AgentConfig(capacity=Capacity(share=share, share_offset=int(10_000 * n / agents) / 10_000)))
        for n in range(agents)
    ]
    for name, total in (("cpu", "8"), ("memory", "16Gi"), ("ephemeral-storage", "100Gi"), ("kuscia.io/bandwidth", "1000")):
        assert sum((Quantity.parse(one.capacity[name]) for one in made), Quantity.of(0)) <= Quantity.parse(total)
    units = [unit for one in made for unit in one.units.get("g/pu", ())]
    assert len(units) == len(set(units)) <= gpus


@given(
    st.integers(1, 10**6),
    st.integers(0, 2**50),
    st.integers(0, 2**55),
    st.integers(1, 10**6),
    st.integers(1, 10_000),
    st.sampled_from(["0", "500m", "100", "1Ti"]),
)
def test_allocatable_is_never_more_than_capacity_nor_negative(
    cpu: int, memory: int, disk: int, link: int, share: int, reserve: str
) -> None:
    reserved = Reserved(cpu=reserve, memory=reserve, ephemeral_storage=reserve)
    config = AgentConfig(capacity=Capacity(share=share / 10_000), reserved=reserved)
    made = offer(found(cpu_milli=cpu, memory_bytes=memory, disk_bytes=disk, link_mbps=link), config)
    for name, amount in made.allocatable.items():
        assert Quantity.of(0) <= Quantity.parse(amount) <= Quantity.parse(made.capacity[name])


@pytest.mark.parametrize(
    ("pressure", "pressed"),
    [
        pytest.param(Pressure(), [], id="nothing"),
        pytest.param(Pressure(memory_used_ratio=0.9), ["MemoryPressure"], id="memory at its limit"),
        pytest.param(Pressure(memory_used_ratio=0.899), [], id="memory below it"),
        pytest.param(Pressure(inodes_used_ratio=0.95), ["DiskPressure"], id="inodes"),
        pytest.param(Pressure(disk_used_ratio=0.95, disk_free_bytes=3 * GIB), ["DiskPressure"], id="disk"),
        pytest.param(Pressure(disk_used_ratio=0.99, disk_free_bytes=3 * GIB + 1), [], id="a large disk has room"),
        pytest.param(Pressure(disk_used_ratio=0.94, disk_free_bytes=1), [], id="a small disk that is not full"),
        pytest.param(Pressure(pids_used_ratio=0.9), ["PIDPressure"], id="process ids"),
    ],
)
def test_pressures(pressure: Pressure, pressed: list[str]) -> None:
    assert [name for name, problem in pressures(pressure).items() if problem] == pressed


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("capacity: {share: 0}", "capacity.share"),
        ("capacity: {shareOffset: 1}", "capacity.shareOffset"),
        ("devices: [fpga]", "devices[0]"),
        ("devices: ['x=/etc/passwd']", "devices[0]"),
        ("devices: ['x=/dev/../etc/passwd']", "devices[0]"),
        ("labels: {'a b': c}", "labels[a b]"),
        ("labels: {a: 'b c'}", "labels[a]"),
        ("taints: [{key: a}]", "taints[0].effect"),
        ("taints: [{key: '', effect: NoSchedule}]", "taints[0].key"),
        ("taints: [{key: a, effect: NoSchedule, when: now}]", "taints[0]"),
        ("network: {podCIDR: nonsense}", "network.podCIDR"),
        ("network: {podCIDR: 10.0.0.1/24}", "network.podCIDR"),
        ("serving: {listen: nowhere}", "serving.listen"),
        ("serving: {listen: 'http://x:1'}", "serving.listen"),
    ],
)
def test_mistakes_in_the_file_are_named(text: str, field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text.encode())
    assert caught.value.problems[0].startswith(f"{field}: ")
