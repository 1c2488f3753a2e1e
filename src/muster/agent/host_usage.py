"""What the machine as a whole uses: CPU, memory, its uplink, pressure. Reads a few files of the kernel, each in one call.

Called on the agent's event loop. A file that is missing or can't be understood leaves its figures out; `missing()` names it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from muster.agent.cgroups.driver import PRESSURES, some_avg10, text_of
from muster.agent.contracts import Missing

_BUSY = (0, 1, 2, 5, 6)
"""user, nice, system, irq, softirq of the first line of /proc/stat. Guests are in user; steal is used by others."""
_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


class HostUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Counters since the machine started; None where the machine does not tell."""

    cpu_ns: int | None = None
    memory_bytes: int | None = None
    """Without what the kernel could drop at once."""
    memory_with_cache_bytes: int | None = None
    sent_bytes: int | None = None
    """By the uplink."""
    received_bytes: int | None = None
    pressure: Mapping[str, float] = msgspec.field(default_factory=dict)


class Host:
    def __init__(self, uplink: str = "", proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> None:
        """`uplink`: the interface towards other machines; empty: its traffic is not counted."""
        self.uplink = uplink
        self.resctrl = sys / "fs/resctrl"
        self._stat = str(proc / "stat")
        self._meminfo = str(proc / "meminfo")
        self._pressure = str(proc / "pressure")
        self._sent = str(sys / "class/net" / uplink / "statistics/tx_bytes") if uplink else ""
        self._received = str(sys / "class/net" / uplink / "statistics/rx_bytes") if uplink else ""

    def read(self) -> HostUsage:
        total, available, free = memory_amounts(text_of(self._meminfo))
        return HostUsage(
            cpu_ns=busy_ns(text_of(self._stat)),
            memory_bytes=max(total - available, 0) if total is not None and available is not None else None,
            memory_with_cache_bytes=max(total - free, 0) if total is not None and free is not None else None,
            sent_bytes=_number(text_of(self._sent)) if self._sent else None,
            received_bytes=_number(text_of(self._received)) if self._received else None,
            pressure={
                name: value for name in PRESSURES if (value := some_avg10(text_of(f"{self._pressure}/{name}"))) is not None
            },
        )

    def missing(self) -> Sequence[Missing]:
        now = self.read()
        found = []
        if now.cpu_ns is None or now.memory_bytes is None:
            found.append(Missing("use of the machine", f"{self._stat} or {self._meminfo} can't be read", "it is not reported"))
        if now.sent_bytes is None:
            why = f"interface {self.uplink!r} has no counters" if self.uplink else "the uplink is not known"
            found.append(Missing("traffic of the uplink", why, "the node's bandwidth is reported as the sum of its pods'"))
        if not now.pressure:
            found.append(Missing("pressure (PSI)", f"the kernel has no {self._pressure}", "it is not reported"))
        return found


def busy_ns(stat: str) -> int | None:
    """CPU time of all cores that was neither idle nor taken by others."""
    first = stat.partition("\n")[0].split()
    if len(first) < 8 or first[0] != "cpu":
        return None
    try:
        return sum(int(first[1 + index]) for index in _BUSY) * _TICK_NS
    except ValueError:
        return None


def memory_amounts(meminfo: str) -> tuple[int | None, int | None, int | None]:
    """Bytes: total, available, free."""
    found: dict[str, int] = {}
    for line in meminfo.split("\n", 8)[:8]:
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdigit():
            found[name] = int(words[0]) * 1024
    return found.get("MemTotal"), found.get("MemAvailable"), found.get("MemFree")


def _number(text: str) -> int | None:
    return int(text) if text.isdigit() else None
