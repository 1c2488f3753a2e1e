"""How a child gets into its groups: by itself where it can, else by its parent."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from muster.agent.cgroups import open_cgroups
from muster.agent.contracts import Limits
from muster.agent.shim import namespaces as ns
from muster.agent.shim.grouping import Groups


def a_tree(tmp_path: Path, *files: str) -> list[str]:
    """Groups as files: `v1/tasks` makes one of the first version. Their `cgroup.procs`."""
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    return [f"{tmp_path}/{name}/cgroup.procs" for name in dict.fromkeys(os.path.dirname(name) for name in files)]


def written(tmp_path: Path) -> dict[str, str]:
    return {str(path.relative_to(tmp_path)): text for path in tmp_path.glob("*/*") if (text := path.read_text())}


def test_the_first_version_by_the_child_itself(tmp_path: Path) -> None:
    groups = Groups(a_tree(tmp_path, "cpu/tasks", "cpu/cgroup.procs", "memory/tasks", "memory/cgroup.procs"))
    groups.enter()
    assert written(tmp_path) == {"cpu/tasks": "0", "memory/tasks": "0"}
    groups.move(17)
    assert written(tmp_path) == {"cpu/tasks": "0", "memory/tasks": "0"}


def test_the_second_alone_by_the_parent(tmp_path: Path) -> None:
    groups = Groups(a_tree(tmp_path, "unified/cgroup.procs"))
    groups.enter()
    assert written(tmp_path) == {}
    groups.move(17)
    assert written(tmp_path) == {"unified/cgroup.procs": "17"}


def test_where_a_child_cannot_be_born_in_its_group(tmp_path: Path) -> None:
    """The directory is none of a cgroup tree: the kernel refuses, and the parent moves the child."""
    groups = Groups(a_tree(tmp_path, "cpu/tasks", "cpu/cgroup.procs", "unified/cgroup.procs"))
    pid = groups.fork()
    if pid == 0:
        try:
            groups.enter()
        finally:
            os._exit(0)
    groups.move(pid)
    os.waitpid(pid, 0)
    assert written(tmp_path) == {"cpu/tasks": "0", "unified/cgroup.procs": str(pid)}


def test_a_child_that_nobody_moves(tmp_path: Path) -> None:
    groups = Groups(a_tree(tmp_path, "cpu/tasks", "cpu/cgroup.procs", "unified/cgroup.procs"))
    groups.enter_all()
    assert written(tmp_path) == {"cpu/tasks": "0", "unified/cgroup.procs": "0"}


def test_a_group_that_is_gone(tmp_path: Path) -> None:
    groups = Groups([f"{tmp_path}/gone/cgroup.procs"])
    with pytest.raises(FileNotFoundError, match="gone"):
        groups.move(os.getpid())


PARENT = """
import os, sys
from muster.agent.shim.grouping import Groups

groups = Groups(sys.argv[1:])
heard, ready = os.pipe()
child = groups.fork()
if child == 0:
    groups.enter()
    os.write(ready, b"1")
    os.read(os.pipe()[0], 1)
groups.move(child)
os.read(heard, 1)
for path in sys.argv[1:]:
    print(open(path).read().split() == [str(child)], path)
os.kill(child, 9)
os.waitpid(child, 0)
"""
"""In a process of its own: only one that has a single thread may fork so."""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: real cgroups")
def test_in_the_kernel(tmp_path: Path) -> None:
    """The child is in all of its groups, of both versions, when it says so; its parent in none."""
    cgroups = open_cgroups(f"grouping{os.getpid()}", journal=tmp_path / "journal")
    try:
        cgroups.create_pod("u", Limits())
        cgroups.create_container("u", "c", Limits())
        procs = list(cgroups.procs_files("u", "c"))
        if not procs:
            pytest.skip("this machine has no cgroup that can be written")
        done = subprocess.run([sys.executable, "-c", PARENT, *procs], capture_output=True, text=True, check=True)
        assert done.stdout.splitlines() == [f"True {path}" for path in procs]
    finally:
        assert not cgroups.teardown()


def test_fork_into_what_is_no_cgroup(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)
    try:
        with pytest.raises(OSError, match="fork into a cgroup"):
            ns.fork_into(fd)
    finally:
        os.close(fd)
