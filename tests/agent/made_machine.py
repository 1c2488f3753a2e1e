"""A machine made of files: what /proc, /sys, /dev and /etc would say on it."""

from __future__ import annotations

import os
from pathlib import Path

from muster.agent.measuring import Places


class MadeMachine:
    """Directories below `root` that look like those of a small Linux machine."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.places = Places(proc=root / "proc", sys=root / "sys", dev=root / "dev", etc=root / "etc")
        self.write("proc/meminfo", "MemTotal:       16384000 kB\nMemFree: 1 kB\nMemAvailable:   12288000 kB\n")
        self.write("proc/loadavg", "0.10 0.20 0.30 2/400 4711\n")
        self.write("proc/sys/kernel/pid_max", "4096\n")
        self.write("proc/sys/kernel/threads-max", "120000\n")
        self.write("proc/sys/kernel/hostname", "box\n")
        self.write("proc/sys/kernel/osrelease", "6.1.0\n")
        self.write("proc/sys/kernel/random/boot_id", "b-1\n")
        self.write("etc/os-release", 'PRETTY_NAME="Some Linux 12"\nID=some\n')
        self.write("etc/machine-id", "m-1\n")
        self.write(
            "proc/net/route",
            "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\n"
            "eth1\t00000000\t0100000A\t0003\t0\t0\t200\t00000000\n"
            "eth0\t00000000\t0100000A\t0003\t0\t0\t100\t00000000\n"
            "eth0\t0000000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\n",
        )
        self.write("sys/class/net/eth0/speed", "10000\n")

    def write(self, path: str, text: str = "") -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def cgroup_v1(self, path: str = "/a/b") -> None:
        self.write("proc/self/cgroup", f"4:memory:{path}\n3:cpu,cpuacct:{path}\n2:pids:{path}\n1:name=systemd:/\n0::/\n")
        lines = [
            f"{n} 1 0:{n} / /sys/fs/cgroup/{name} rw - cgroup cgroup rw,{options}"
            for n, (name, options) in enumerate((("memory", "memory"), ("cpu", "cpu,cpuacct"), ("pids", "pids")))
        ]
        self.write("proc/self/mountinfo", "\n".join(lines) + "\n")
        for name in ("memory", "cpu", "pids"):
            (self.root / f"sys/fs/cgroup/{name}{path}").mkdir(parents=True, exist_ok=True)

    def cgroup_v2(self, path: str = "/a/b") -> None:
        self.write("proc/self/cgroup", f"0::{path}\n")
        self.write("proc/self/mountinfo", "9 1 0:9 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
        (self.root / f"sys/fs/cgroup{path}").mkdir(parents=True, exist_ok=True)


def disk(
    *,
    blocks: int = 1000,
    free: int = 500,
    available: int = 450,
    files: int = 100,
    files_free: int = 90,
    block_bytes: int = 1 << 20,
) -> os.statvfs_result:
    return os.statvfs_result((block_bytes, block_bytes, blocks, free, available, files, files_free, files_free, 0, 255))
