"""Cgroup trees in a temporary directory: plain files that say what the kernel's would say in a new group."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from muster.agent.executor import Executor

V2_FILES: Mapping[str, str] = {
    "cgroup.procs": "",
    "cgroup.controllers": "cpuset cpu io memory pids",
    "cgroup.subtree_control": "",
    "cgroup.kill": "",
    "cgroup.freeze": "0",
    "cpu.weight": "100",
    "cpu.max": "max 100000",
    "cpu.stat": "usage_usec 0\nuser_usec 0\nsystem_usec 0\nnr_throttled 0\nthrottled_usec 0\n",
    "memory.max": "max",
    "memory.swap.max": "max",
    "memory.oom.group": "0",
    "memory.current": "0",
    "memory.stat": "anon 0\ninactive_file 0\n",
    "memory.events": "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\n",
    "pids.max": "max",
    "pids.current": "0",
    "cpu.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
}
V1_UNLIMITED = "9223372036854771712"
V1_FILES: Mapping[str, Mapping[str, str]] = {
    "cpu,cpuacct": {
        "cpu.shares": "1024",
        "cpu.cfs_period_us": "100000",
        "cpu.cfs_quota_us": "-1",
        "cpu.stat": "nr_periods 0\nnr_throttled 0\nthrottled_time 0\n",
        "cpuacct.usage": "0",
    },
    "memory": {
        "memory.limit_in_bytes": V1_UNLIMITED,
        "memory.usage_in_bytes": "0",
        "memory.stat": "cache 0\ntotal_inactive_file 0\n",
        "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n",
    },
    "pids": {"pids.max": "max", "pids.current": "0"},
    "devices": {"devices.list": "a *:* rwm", "devices.allow": "", "devices.deny": ""},
    "freezer": {"freezer.state": "THAWED"},
}


class FakeExecutor(Executor):
    """Makes and removes groups as the kernel does. `log` has every write, in order."""

    def __init__(self, root: Path, journal: Path | None = None) -> None:
        super().__init__(root, journal)
        self.log: list[tuple[str, str]] = []

    def make(self, directory: Path | str) -> bool:
        directory = Path(directory)
        if not super().make(directory):
            return False
        tree = directory.relative_to(self.root).parts[0]
        fill(directory, {"cgroup.procs": "", **V1_FILES[tree]} if tree in V1_FILES else V2_FILES)
        return True

    def unmake(self, directory: Path | str) -> bool:
        directory = Path(directory)
        if not directory.exists():
            return True
        if any(child.is_dir() for child in directory.glob("*")) or (directory / "cgroup.procs").read_text().strip():
            return False
        shutil.rmtree(directory)
        self.drop(directory)
        return True

    def command(self, path: Path | str, value: str, owner: str) -> None:
        path = Path(path)
        before = path.read_text() if path.name == "cgroup.subtree_control" else ""
        super().command(path, value, owner)
        self.log.append((str(path.relative_to(self.root)), value))
        if path.name == "cgroup.subtree_control":
            path.write_text(words_after(before, value))


def words_after(before: str, written: str) -> str:
    words = dict.fromkeys(before.split())
    for word in written.split():
        if word.startswith("+"):
            words[word[1:]] = None
        else:
            words.pop(word.removeprefix("-"), None)
    return " ".join(words)


def fill(directory: Path, files: Mapping[str, str]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (directory / name).write_text(text)


def v2_root(directory: Path, controllers: str = "cpuset cpu io memory pids") -> Path:
    fill(directory, {"cgroup.controllers": controllers, "cgroup.procs": "1", "cgroup.subtree_control": "", "cpu.stat": ""})
    return directory


def v1_root(directory: Path) -> Path:
    for tree in V1_FILES:
        fill(directory / tree, {"cgroup.procs": "1"})
    for link in ("cpu", "cpuacct"):
        (directory / link).symlink_to("cpu,cpuacct")
    return directory
