from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from muster.cli.commands.doctor import examine
from muster.cli.doctor import kernel, network, storage, tools
from muster.cli.doctor.model import Finding, Level, can_run, error, ok, warning
from tests.cli.support import environment, muster

ALL = frozenset(kernel.CAPABILITIES)
DIRECT = dict.fromkeys(kernel.NAMESPACES, "direct")
GIB = 1 << 30


@pytest.mark.parametrize(
    ("finding", "level", "needle"),
    [
        pytest.param(kernel.judge_privileges(0, ALL), Level.OK, "root", id="root"),
        pytest.param(
            kernel.judge_privileges(0, ALL - {"CAP_NET_ADMIN"}),
            Level.WARNING,
            "without CAP_NET_ADMIN",
            id="root in a container",
        ),
        pytest.param(kernel.judge_privileges(1000, frozenset()), Level.WARNING, "user 1000", id="ordinary user"),
        pytest.param(kernel.judge_namespaces(DIRECT), Level.OK, "work", id="namespaces"),
        pytest.param(
            kernel.judge_namespaces(DIRECT | {"net": "inside a user namespace"}), Level.OK, "net inside a user", id="nested"
        ),
        pytest.param(
            kernel.judge_namespaces(DIRECT | {"net": "no"}), Level.WARNING, "not allowed: net", id="no network namespace"
        ),
        pytest.param(kernel.judge_cgroups(kernel.Cgroups("none")), Level.WARNING, "no cgroup", id="no cgroups"),
        pytest.param(
            kernel.judge_cgroups(kernel.Cgroups("v2", ("cpu", "memory"))), Level.WARNING, "not: pids, cpuset", id="some cgroups"
        ),
        pytest.param(
            kernel.judge_cgroups(kernel.Cgroups("v2", tuple(kernel.CGROUP_NEEDS))), Level.OK, "v2; writable", id="all cgroups"
        ),
        pytest.param(network.judge_port("h", 1, "", None), Level.OK, "is free", id="free port"),
        pytest.param(network.judge_port("h", 1, "in use", None), Level.WARNING, "in use", id="port in use"),
        pytest.param(network.judge_port("h", 1, "in use", 7), Level.OK, "process 7", id="our own port"),
        pytest.param(network.judge_iproute({"ip": "/ip", "tc": ""}), Level.WARNING, "missing: tc", id="no tc"),
        pytest.param(network.judge_iproute({"ip": "/ip", "tc": "/tc"}), Level.OK, "found", id="iproute2"),
        pytest.param(network.judge_shaping(None, nested=False), Level.WARNING, "no network namespace", id="no shaping"),
        pytest.param(network.judge_shaping({"htb": True}, nested=False), Level.OK, "htb work", id="shaping"),
        pytest.param(network.judge_shaping({"htb": False, "veth": True}, nested=False), Level.WARNING, "not: htb", id="no htb"),
        pytest.param(
            network.judge_shaping({"htb": True}, nested=True), Level.WARNING, "user namespace only", id="shaping nested"
        ),
        pytest.param(storage.judge_disk(Path("/d"), "ext4", 10 * GIB, True), Level.OK, "10.0 GiB free", id="disk"),
        pytest.param(storage.judge_disk(Path("/d"), "ext4", 10 * GIB, False), Level.ERROR, "cannot be written", id="read-only"),
        pytest.param(storage.judge_disk(Path("/d"), "ext4", 1 << 20, True), Level.ERROR, "0.0 GiB", id="full disk"),
        pytest.param(storage.judge_disk(Path("/d"), "ext4", GIB // 2, True), Level.WARNING, "0.5 GiB", id="nearly full"),
        pytest.param(storage.judge_disk(Path("/d"), "tmpfs", 10 * GIB, True), Level.WARNING, "tmpfs", id="memory"),
        pytest.param(storage.judge_disk(Path("/d"), "nfs4", 10 * GIB, True), Level.WARNING, "nfs4", id="network disk"),
        pytest.param(storage.judge_sync(0.2), Level.OK, "0.20 ms", id="fast disk"),
        pytest.param(storage.judge_sync(25.0), Level.WARNING, "25.00 ms", id="slow disk"),
        pytest.param(storage.judge_open_files(1024, 65536), Level.OK, "up to 65536", id="open files"),
        pytest.param(storage.judge_open_files(1024, resource.RLIM_INFINITY), Level.OK, "up to any", id="open files unlimited"),
        pytest.param(storage.judge_open_files(1024, 1024), Level.WARNING, "1024", id="few open files"),
        pytest.param(storage.judge_open_files(64, 64), Level.ERROR, "64", id="too few open files"),
        pytest.param(storage.judge_clock(True), Level.OK, "synchronised", id="clock"),
        pytest.param(storage.judge_clock(None), Level.OK, "cannot be told", id="clock unknown"),
        pytest.param(storage.judge_clock(False), Level.WARNING, "nothing synchronises", id="clock alone"),
        pytest.param(storage.judge_python((3, 10, 2), "CPython"), Level.ERROR, "3.10.2", id="old Python"),
        pytest.param(storage.judge_python((3, 13, 0), "CPython"), Level.OK, "3.13.0", id="Python"),
        pytest.param(storage.judge_sqlite(""), Level.ERROR, "cannot be loaded", id="no SQLite"),
        pytest.param(storage.judge_sqlite("3.40.1"), Level.ERROR, "3.40.1", id="old SQLite"),
        pytest.param(storage.judge_sqlite("3.54.1"), Level.OK, "3.54.1", id="SQLite"),
        pytest.param(tools.judge_runtime(None, None, "v2"), Level.WARNING, "neither", id="no runtime"),
        pytest.param(tools.judge_runtime("1.1.5", None, "hybrid"), Level.OK, "runc 1.1.5", id="runc"),
        pytest.param(tools.judge_runtime(None, "1.8.1", "v2"), Level.OK, "crun 1.8.1", id="crun"),
        pytest.param(tools.judge_runtime(None, "1.8.1", "hybrid"), Level.WARNING, "refuses the hybrid", id="crun on hybrid"),
        pytest.param(tools.judge_images("1", None), Level.WARNING, "missing: umoci", id="no umoci"),
        pytest.param(tools.judge_images("1", "2"), Level.OK, "skopeo 1", id="image tools"),
        pytest.param(tools.judge_kubectl(None), Level.WARNING, "not on PATH", id="no kubectl"),
        pytest.param(tools.judge_kubectl("1.37.1"), Level.OK, "1.37.1", id="kubectl"),
    ],
)
def test_judges(finding: Finding, level: Level, needle: str) -> None:
    assert finding.level is level
    assert needle in finding.found
    assert bool(finding.costs) == bool(finding.remedy) == (level is not Level.OK)


def test_only_errors_keep_muster_from_running() -> None:
    assert can_run([ok("a", "b"), warning("a", "b", "c", "d")])
    assert not can_run([ok("a", "b"), error("a", "b", "c", "d")])
    with pytest.raises(AssertionError):
        Finding("a", Level.WARNING, "no cost and no remedy")


def test_capabilities_are_read_from_the_mask() -> None:
    assert kernel.capabilities("Name:\tx\nCapEff:\t0000000000200020\n") == {"CAP_KILL", "CAP_SYS_ADMIN"}
    assert kernel.capabilities("") == frozenset()


def _cgroup_tree(root: Path, *, v2: str = "") -> None:
    (root / "cpu").mkdir()
    (root / "memory" / "own").mkdir(parents=True)
    (root / "unified" / "own").mkdir(parents=True)
    (root / "unified" / "own" / "cgroup.controllers").write_text(v2)


@pytest.mark.parametrize(
    ("kinds", "own", "v2", "mode", "writable"),
    [
        pytest.param({"cpu", "memory"}, "2:memory:/own\n1:cpu:/\n", "", "v1", ("cpu", "memory"), id="v1"),
        pytest.param({"cpu", "memory"}, "2:memory:/gone\n1:cpu:/\n", "", "v1", ("cpu",), id="v1, own group not visible"),
        pytest.param({"unified"}, "0::/own\n", "cpu memory pids io", "v2", ("cpu", "freezer", "memory", "pids"), id="v2"),
        pytest.param({"unified", "cpu"}, "1:cpu:/\n0::/own\n", "", "hybrid", ("cpu", "freezer"), id="hybrid"),
        pytest.param(set(), "", "", "none", (), id="none"),
    ],
)
def test_read_cgroups(kinds: set[str], own: str, v2: str, mode: str, writable: tuple[str, ...], tmp_path: Path) -> None:
    _cgroup_tree(tmp_path, v2=v2)
    mounts = "proc /proc proc rw 0 0\n"
    for kind in sorted(kinds):
        fs, options = ("cgroup2", "rw") if kind == "unified" else ("cgroup", f"rw,relatime,{kind}")
        mounts += f"{fs} {tmp_path / kind} {fs} {options} 0 0\n"
    found = kernel.read_cgroups(mounts, own)
    assert (found.mode, found.writable) == (mode, writable)
    assert not list(tmp_path.rglob("muster-doctor-*")), "probes leave nothing behind"


def test_filesystem_of(tmp_path: Path) -> None:
    mounts = f"a / ext4 rw\nb {tmp_path} xfs rw\nc {tmp_path}/deep tmpfs rw\nd {tmp_path}-other nfs rw\n"
    assert storage.filesystem_of(tmp_path, mounts) == "xfs"
    assert storage.filesystem_of(tmp_path / "deep" / "er", mounts) == "tmpfs"
    assert storage.filesystem_of(Path("/"), mounts) == "ext4"
    assert storage.filesystem_of(Path("/"), "") == "unknown"


def test_existing_parent(tmp_path: Path) -> None:
    assert storage.existing_parent(tmp_path / "a" / "b") == tmp_path
    assert storage.existing_parent(tmp_path) == tmp_path


def test_examining_this_machine_changes_nothing(tmp_path: Path) -> None:
    before = Path("/proc/self/ns/net").readlink()
    findings = examine(tmp_path / "not" / "there")
    assert Path("/proc/self/ns/net").readlink() == before
    assert list(tmp_path.iterdir()) == []
    checks = [f.check for f in findings]
    assert len(checks) == len(set(checks))
    assert {
        "python",
        "sqlite",
        "data-dir",
        "fsync",
        "privileges",
        "cgroups",
        "namespaces",
        "port",
        "runtime",
        "kubectl",
    } <= set(checks)


def test_namespaces_agree_with_the_kernel() -> None:
    """unshare(1) is another program's opinion of the same question."""
    allowed = subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False).returncode == 0
    assert (kernel.try_namespaces()["net"] == "direct") == allowed


def test_the_command(tmp_path: Path) -> None:
    done = muster("doctor", "-o", "json", "--data-dir", str(tmp_path / "d"), env=environment(tmp_path))
    said = json.loads(done.stdout)
    assert done.returncode == (0 if said["canRun"] else 1)
    assert all(f["costs"] and f["remedy"] for f in said["findings"] if f["level"] != "ok")
    done = muster("doctor", "--data-dir", str(tmp_path / "d"), env=environment(tmp_path))
    assert "Muster can run here" in done.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_the_command_as_an_ordinary_user(tmp_path: Path) -> None:
    # Run once as root first: the interpreter's own files may not be readable to the other user.
    code = """
import os, sys
from muster.cli.main import run
run(["doctor", "-o", "json"])
print("----", flush=True)
os.setgroups([]); os.setgid(65534); os.setuid(65534)
sys.exit(run(["doctor", "-o", "json", "--data-dir", "/proc/nowhere"]))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60, env=environment(tmp_path)
    )
    said = {f["check"]: f for f in json.loads(done.stdout.partition("----")[2])["findings"]}
    assert done.returncode == 1
    assert said["data-dir"]["level"] == "error"
    assert said["privileges"]["level"] == "warning"
    assert said["cgroups"]["level"] == "warning"
