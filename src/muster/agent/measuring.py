"""What this machine has. What of it the node offers is `offering`'s.

Everything is read from files below `Places` (and by `statvfs`, the affinity and the address of an interface, which are handed
in too), so that tests measure machines that they make up. What can't be read is a guess that says so, never a crash.

    cpu                 the agent's CPU affinity, and the quota of its cgroup or one above it, whichever is less
    memory              the machine's, or the limit of the agent's cgroup or one above it
    ephemeral-storage   the file system of the data directory
    GPUs                NVIDIA by the driver's list, AMD by the kernel's compute nodes; one unit for each
    bandwidth           the speed of the uplink; where the driver does not say, 1000 Mbps, as a guess

Concurrency: plain functions without state; `measure` blocks for some milliseconds.
"""

from __future__ import annotations

import fcntl
import os
import platform
import re
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from muster.agent.cgroup_limits import limits_of, pids_limit
from muster.agent.config import AgentConfig
from muster.objects.labels import Koordinator

LINK_MBPS_GUESS: Final = 1000
LINK_MBPS_MAX: Final = 10_000_000
_SIOCGIFADDR: Final = 0x8915
_TEXT_BYTES_MAX: Final = 1 << 20


class Places(msgspec.Struct, frozen=True, kw_only=True):
    """Where the kernel tells things; another root in tests."""

    proc: Path = Path("/proc")
    sys: Path = Path("/sys")
    dev: Path = Path("/dev")
    etc: Path = Path("/etc")


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    resource: str
    model: str
    devices: tuple[str, ...]
    """Device nodes that its user needs, those shared by all GPUs of the machine included."""


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What the machine has, before shares, overrides and reserves."""

    cpu_milli: int
    memory_bytes: int
    disk_bytes: int
    gpus: tuple[Gpu, ...] = ()
    uplink: str = ""
    address: str = ""
    """Of the uplink; empty when there is none."""
    link_mbps: int = LINK_MBPS_GUESS
    is_link_guessed: bool = True


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """Which machine this is, and which of its boots."""

    machine_id: str
    boot_id: str
    hostname: str
    os_image: str
    kernel: str
    arch: str


class Pressure(msgspec.Struct, frozen=True, kw_only=True):
    """How full the machine is now."""

    memory_used_ratio: float = 0.0
    disk_used_ratio: float = 0.0
    disk_free_bytes: int = 1 << 62
    inodes_used_ratio: float = 0.0
    pids_used_ratio: float = 0.0


# -- reading -------------------------------------------------------------------------------------------------------------------

AddressOf = Callable[[str], str]
StatVfs = Callable[[Path], os.statvfs_result]


def interface_address(interface: str) -> str:
    """The first IPv4 address of an interface; empty when it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            answer = fcntl.ioctl(asking.fileno(), _SIOCGIFADDR, struct.pack("256s", interface[:15].encode()))
        except OSError:
            return ""
    return socket.inet_ntoa(answer[20:24])


def measure(
    config: AgentConfig,
    data_dir: Path,
    places: Places | None = None,
    *,
    affinity: Callable[[], int] = lambda: len(os.sched_getaffinity(0)),
    statvfs: StatVfs = os.statvfs,
    address_of: AddressOf = interface_address,
) -> Found:
    places = places or Places()
    limits = limits_of(places.proc, places.sys)
    cpu_milli = affinity() * 1000
    if limits.cpu_milli is not None:
        cpu_milli = min(cpu_milli, limits.cpu_milli)
    memory_bytes = _meminfo(places).get("MemTotal", 0)
    if limits.memory_bytes is not None:
        memory_bytes = min(memory_bytes, limits.memory_bytes) if memory_bytes else limits.memory_bytes
    disk = statvfs(data_dir)
    uplink = config.network.uplink or default_interface(places)
    speed = _link_mbps(places, uplink)
    return Found(
        cpu_milli=max(1, cpu_milli),
        memory_bytes=memory_bytes,
        disk_bytes=disk.f_blocks * disk.f_frsize,
        gpus=(*_nvidia(places), *_amd(places)),
        uplink=uplink,
        address=address_of(uplink) if uplink else "",
        link_mbps=speed or LINK_MBPS_GUESS,
        is_link_guessed=speed is None,
    )


def identify(places: Places | None = None) -> Identity:
    places = places or Places()
    release = {
        key: value.strip().strip("\"'")
        for key, _, value in (line.partition("=") for line in _text(places.etc / "os-release").splitlines())
    }
    hostname = _text(places.proc / "sys/kernel/hostname").strip() or socket.gethostname()
    machine_id = _text(places.etc / "machine-id").strip() or _text(places.sys / "class/dmi/id/product_uuid").strip()
    return Identity(
        machine_id=machine_id or f"host-{hostname}",
        boot_id=_text(places.proc / "sys/kernel/random/boot_id").strip(),
        hostname=hostname,
        os_image=release.get("PRETTY_NAME", "Linux"),
        kernel=_text(places.proc / "sys/kernel/osrelease").strip() or platform.release(),
        arch=goarch(platform.machine()),
    )


def goarch(machine: str) -> str:
    """As `kubernetes.io/arch` spells it."""
    return {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i686": "386"}.get(machine, machine)


def read_pressure(data_dir: Path, places: Places | None = None, *, statvfs: StatVfs = os.statvfs) -> Pressure:
    places = places or Places()
    limits = limits_of(places.proc, places.sys)
    meminfo = _meminfo(places)
    total = meminfo.get("MemTotal", 0)
    used_ratio = 1 - meminfo.get("MemAvailable", total) / total if total else 0.0
    if limits.memory_bytes and limits.memory_used_bytes is not None and (not total or limits.memory_bytes < total):
        used_ratio = max(used_ratio, limits.memory_used_bytes / limits.memory_bytes)
    try:
        disk = statvfs(data_dir)
    except OSError:
        return Pressure(memory_used_ratio=used_ratio, pids_used_ratio=_pids_used(places))
    usable = disk.f_blocks - (disk.f_bfree - disk.f_bavail)
    return Pressure(
        memory_used_ratio=used_ratio,
        disk_used_ratio=1 - disk.f_bavail / usable if usable > 0 else 0.0,
        disk_free_bytes=disk.f_bavail * disk.f_frsize,
        inodes_used_ratio=1 - disk.f_favail / disk.f_files if disk.f_files > 0 else 0.0,
        pids_used_ratio=_pids_used(places),
    )


def default_interface(places: Places) -> str:
    """The interface of the default route with the lowest metric; empty when there is none."""
    found: list[tuple[int, str]] = []
    for line in _text(places.proc / "net/route").splitlines()[1:]:
        fields = line.split()
        if len(fields) >= 8 and fields[1] == "00000000" and fields[7] == "00000000" and fields[6].isdigit():
            found.append((int(fields[6]), fields[0]))
    return min(found)[1] if found else ""


def _pids_used(places: Places) -> float:
    """Threads that there are, by how many there may be."""
    most = [
        int(text) for name in ("pid_max", "threads-max") if (text := _text(places.proc / "sys/kernel" / name).strip()).isdigit()
    ]
    match = re.match(r"\S+ \S+ \S+ \d+/(\d+) ", _text(places.proc / "loadavg"))
    ratio = int(match[1]) / min(most) if match and most else 0.0
    own = pids_limit(places.proc, places.sys)
    return max(ratio, own[0] / own[1]) if own is not None else ratio


def _link_mbps(places: Places, interface: str) -> int | None:
    """Mbps as the driver says; None when it does not say (virtual machines answer -1)."""
    if not interface or "/" in interface:
        return None
    text = _text(places.sys / "class/net" / interface / "speed").strip()
    return int(text) if text.isascii() and text.isdigit() and 0 < int(text) <= LINK_MBPS_MAX else None


def _nvidia(places: Places) -> list[Gpu]:
    shared = [
        name for name in ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset") if (places.dev / name).exists()
    ]
    gpus = []
    for directory in sorted(_children(places.proc / "driver/nvidia/gpus")):
        facts = dict(_facts(_text(directory / "information")))
        minor = facts.get("Device Minor", "")
        if not minor.isdigit() or not (places.dev / f"nvidia{minor}").exists():
            continue  # the driver knows it, but nobody can open it
        gpus.append((int(minor), facts.get("Model", "NVIDIA GPU")))
    if not gpus:
        # Inside a container the list may be hidden while the devices are there.
        minors = sorted(int(m[1]) for path in _children(places.dev) if (m := re.fullmatch(r"nvidia(\d+)", path.name)))
        gpus = [(minor, "NVIDIA GPU") for minor in minors]
    return [
        Gpu(
            resource=Koordinator.RESOURCE_NVIDIA_GPU,
            model=model,
            devices=(f"/dev/nvidia{minor}", *(f"/dev/{name}" for name in shared)),
        )
        for minor, model in sorted(gpus)
    ]


def _amd(places: Places) -> list[Gpu]:
    """The kernel's compute nodes that have a render device; CPUs are in the same list, without one."""
    gpus = []
    for directory in sorted(_children(places.sys / "class/kfd/kfd/topology/nodes"), key=lambda path: path.name.zfill(6)):
        properties = dict(line.split(None, 1) for line in _text(directory / "properties").splitlines() if " " in line)
        minor = properties.get("drm_render_minor", "0").strip()
        if not minor.isdigit() or int(minor) == 0 or not (places.dev / "dri" / f"renderD{minor}").exists():
            continue
        model = _text(directory / "name").strip() or "AMD GPU"
        gpus.append(Gpu(resource=Koordinator.RESOURCE_AMD_GPU, model=model, devices=(f"/dev/dri/renderD{minor}", "/dev/kfd")))
    return gpus


def _facts(text: str) -> list[tuple[str, str]]:
    return [(key.strip(), value.strip()) for key, colon, value in (line.partition(":") for line in text.splitlines()) if colon]


def _meminfo(places: Places) -> dict[str, int]:
    found = {}
    for key, value in _facts(_text(places.proc / "meminfo")):
        number = value.split()[0] if value else ""
        if number.isdigit():
            found[key] = int(number) * 1024
    return found


def _children(directory: Path) -> list[Path]:
    try:
        return list(directory.iterdir())
    except OSError:
        return []


def _text(path: Path) -> str:
    """Empty when it can't be read: what a kernel lacks is no fault."""
    try:
        with path.open("rb") as file:
            return file.read(_TEXT_BYTES_MAX).decode("utf-8", "replace")
    except OSError:
        return ""
