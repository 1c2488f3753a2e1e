"""What PodCgroups asks of a driver, and what the drivers of both versions share. Reading only, but for `apply`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

import msgspec

from muster.agent.contracts import CgroupUsage, Limits, Missing
from muster.agent.executor import read_text

OWNER: Final = "limits"
PRESSURES: Final = ("cpu", "memory", "io")


class Setting(msgspec.Struct, frozen=True):
    """One file of one controller. `default`: what a new group says, so that it need not be written there."""

    controller: str
    file: str
    value: str
    reads_as: str | None = None
    default: str | None = None


class Driver(Protocol):
    @property
    def trees(self) -> Sequence[Path]:
        """Where a group has to be made."""
        ...

    def missing(self) -> Sequence[Missing]: ...

    def prepare(self, group: str) -> None:
        """`group` is to have groups inside."""
        ...

    def apply(self, group: str, limits: Limits, *, is_fresh: bool, is_container: bool) -> None: ...

    def usage(self, group: str) -> CgroupUsage | None: ...

    def throttled_ns(self, group: str) -> int: ...

    def oom_file(self, group: str) -> str:
        """Has a line `oom_kill N`; empty where the kernel does not tell."""
        ...


def keyed_number(text: str, key: str) -> int:
    """The number after `key` in lines of `key number`; 0 when there is none."""
    for line in text.splitlines():
        name, _, number = line.partition(" ")
        if name == key:
            return int(number) if number.isdigit() else 0
    return 0


def number_of(path: str) -> int:
    """The one number that a file says; 0 when it says none, or is gone."""
    try:
        text = read_text(path)
    except OSError:
        return 0
    return int(text) if text.isdigit() else 0


def text_of(path: str) -> str:
    try:
        return read_text(path)
    except OSError:
        return ""


def pressure(directory: str) -> Mapping[str, float]:
    """`some avg10` of each pressure file in a v2 group."""
    found: dict[str, float] = {}
    for name in PRESSURES:
        value = some_avg10(text_of(f"{directory}/{name}.pressure"))
        if value is not None:
            found[name] = value
    return found


def some_avg10(text: str) -> float | None:
    """`some avg10=1.25 avg60=...` is 1.25."""
    if not text.startswith("some avg10="):
        return None
    try:
        return float(text[11:].split(None, 1)[0])
    except (ValueError, IndexError):
        return None
