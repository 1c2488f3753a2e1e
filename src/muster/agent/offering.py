"""What a node offers of what its machine has: shares, overrides, reserves; and what presses on it. Pure.

Overrides are taken as they stand; the share applies to what was measured; reserves come off what may be allocated, and never
leave less than half, so that a small machine still offers something.

Pods: 110 unless the file says otherwise, as Kubernetes recommends for one node (Kuscia has 500). A process is cheap, but each
pod has a cgroup, a network namespace and a share of the agent's attention.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Final

import msgspec

from muster.agent.config import AgentConfig
from muster.agent.measuring import Found, Gpu, Pressure
from muster.objects.bandwidth import MBPS, parse_bandwidth
from muster.objects.labels import Kuscia
from muster.objects.quantity import Quantity

PODS_DEFAULT: Final = 110

MEMORY_RATIO_MAX: Final = 0.90
DISK_RATIO_MAX: Final = 0.95
DISK_FREE_MIN_BYTES: Final = 3 * 2**30
INODES_RATIO_MAX: Final = 0.95
PIDS_RATIO_MAX: Final = 0.90


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """What the node says it has: `status.capacity`, `status.allocatable`, and the two annotations about bandwidth."""

    capacity: dict[str, str]
    allocatable: dict[str, str]
    bandwidth_mbps: int
    bandwidth_reserved_mbps: int
    units: dict[str, tuple[tuple[str, ...], ...]]
    """Of each device resource: for every unit the device nodes that it consists of."""
    gpu_model: str = ""
    notes: tuple[str, ...] = ()
    """What was guessed, and what was cut down, for the log."""


def offer(found: Found, config: AgentConfig) -> Offer:
    """What the node offers. Pure. Overrides are taken as they stand; the share applies to what was measured; reserves come off
    what may be allocated, and never leave less than nothing."""
    given, share = config.capacity, Fraction(str(config.capacity.share))
    notes: list[str] = []
    totals = {
        "cpu": Quantity.parse(given.cpu) if given.cpu else Quantity.of_milli(max(1, math.floor(found.cpu_milli * share))),
        "memory": _bytes(given.memory, found.memory_bytes, share),
        "ephemeral-storage": _bytes(given.ephemeral_storage, found.disk_bytes, share),
    }
    held = {
        "cpu": config.reserved.cpu,
        "memory": config.reserved.memory,
        "ephemeral-storage": config.reserved.ephemeral_storage,
    }
    capacity, allocatable = {}, {}
    for name, total in totals.items():
        less = _held_back(Quantity.parse(held[name]) if held[name] else Quantity.of(0), total, name, share, notes)
        capacity[name], allocatable[name] = str(total), str(total - less)
    pods = given.pods if given.pods is not None else PODS_DEFAULT
    capacity["pods"] = allocatable["pods"] = str(pods)
    total_mbps, reserved_mbps = _bandwidth(found, config, share, notes)
    capacity[Kuscia.RESOURCE_BANDWIDTH] = str(total_mbps)
    allocatable[Kuscia.RESOURCE_BANDWIDTH] = str(total_mbps - reserved_mbps)
    units, gpus = _units(found, config)
    for name, ones in units.items():
        capacity[name] = allocatable[name] = str(len(ones))
    for name, text in given.extended.items():
        capacity[name] = allocatable[name] = str(Quantity.parse(text))
    return Offer(
        capacity=capacity,
        allocatable=allocatable,
        bandwidth_mbps=total_mbps,
        bandwidth_reserved_mbps=reserved_mbps,
        units=units,
        gpu_model=gpus[0].model if gpus else "",
        notes=tuple(notes),
    )


def _bytes(given: str, measured: int, share: Fraction) -> Quantity:
    if given:
        return Quantity.parse(given)
    # Whole KiB, as the kernel counts memory: the figure does not look more exact than it is.
    return Quantity.parse(f"{math.floor(measured * share / 1024)}Ki")


def _whole(name: str, amount: Fraction) -> Quantity:
    """Rounded up to a millicore or a KiB."""
    return Quantity.of_milli(math.ceil(amount * 1000)) if name == "cpu" else Quantity.parse(f"{math.ceil(amount / 1024)}Ki")


def _held_back(wanted: Quantity, total: Quantity, name: str, share: Fraction, notes: list[str]) -> Quantity:
    """The reserve is the machine's, so an agent with a part of the machine holds back that part of it; at most half of what
    there is, so that a small machine still offers something."""
    less = _whole(name, wanted.fraction() * share)
    half = _whole(name, total.fraction() / 2)
    if less <= half:
        return less
    notes.append(f"reserved {name} {less} is more than half of {total}; {half} is held back instead")
    return half


def _bandwidth(found: Found, config: AgentConfig, share: Fraction, notes: list[str]) -> tuple[int, int]:
    if config.capacity.bandwidth:
        total = parse_bandwidth(config.capacity.bandwidth) // MBPS
    else:
        total = max(1, math.floor(found.link_mbps * share))
        if found.is_link_guessed:
            where = f"interface {found.uplink} does not say its speed" if found.uplink else "there is no default route"
            notes.append(f"{where}; {found.link_mbps} Mbps is a guess, set capacity.bandwidth to what it is")
    wanted = parse_bandwidth(config.reserved.bandwidth) if config.reserved.bandwidth else 0
    reserved = math.ceil(wanted * share / MBPS)
    if reserved > total // 2:
        notes.append(
            f"reserved bandwidth {reserved} Mbps is more than half of {total} Mbps; {total // 2} Mbps is held back instead"
        )
    return total, min(reserved, total // 2)


def _units(found: Found, config: AgentConfig) -> tuple[dict[str, tuple[tuple[str, ...], ...]], Sequence[Gpu]]:
    """Devices can't be divided: of several agents on one machine each has those whose place falls into its part."""
    given = config.capacity
    first = math.floor(Fraction(str(given.share_offset)) * len(found.gpus))
    last = math.floor(min(Fraction(1), Fraction(str(given.share_offset)) + Fraction(str(given.share))) * len(found.gpus))
    gpus = found.gpus[first:last]
    units: dict[str, tuple[tuple[str, ...], ...]] = {}
    for gpu in gpus:
        if gpu.resource not in given.extended:
            units[gpu.resource] = (*units.get(gpu.resource, ()), gpu.devices)
    for name, path in named_devices(config.devices):
        units[name] = (*units.get(name, ()), (path,))
    return units, gpus


def named_devices(devices: Sequence[str]) -> list[tuple[str, str]]:
    """`NAME=/dev/PATH` as resource and path; a name without a group is one of ours."""
    found = []
    for text in devices:
        name, _, path = text.partition("=")
        found.append((name if "/" in name else f"muster.dev/{name}", path))
    return found


def pressures(now: Pressure) -> Mapping[str, str]:
    """By condition type: what presses, in words; empty when nothing does. Pure; the limits are Kuscia's."""
    found = {"MemoryPressure": "", "DiskPressure": "", "PIDPressure": ""}
    if now.memory_used_ratio >= MEMORY_RATIO_MAX:
        found["MemoryPressure"] = f"{now.memory_used_ratio:.0%} of the memory is used; the limit is {MEMORY_RATIO_MAX:.0%}"
    if now.inodes_used_ratio >= INODES_RATIO_MAX:
        found["DiskPressure"] = f"{now.inodes_used_ratio:.0%} of the inodes are used; the limit is {INODES_RATIO_MAX:.0%}"
    elif now.disk_used_ratio >= DISK_RATIO_MAX and now.disk_free_bytes <= DISK_FREE_MIN_BYTES:
        found["DiskPressure"] = (
            f"{now.disk_used_ratio:.0%} of the disk is used and {now.disk_free_bytes >> 20} MiB are free; "
            f"the limits are {DISK_RATIO_MAX:.0%} and {DISK_FREE_MIN_BYTES >> 20} MiB"
        )
    if now.pids_used_ratio >= PIDS_RATIO_MAX:
        found["PIDPressure"] = f"{now.pids_used_ratio:.0%} of the process ids are used; the limit is {PIDS_RATIO_MAX:.0%}"
    return found
