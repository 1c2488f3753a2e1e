"""Groups of the kernel that the tests run on: what was granted is what a process gets."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from muster.agent.cgroups.opening import CGROUP_ROOT, PROC, open_cgroups, open_trees
from muster.agent.cgroups.pods import PodCgroups
from muster.agent.cgroups.trees import detect
from muster.agent.contracts import Limits
from muster.agent.executor import Executor
from tests.waiting import blocked_until

Start = Callable[..., subprocess.Popen[bytes]]

FORK_BOMB = "import os\nwhile True:\n try: os.fork()\n except OSError: pass"
SPIN = "while True: pass"


def leftovers(name: str) -> list[Path]:
    # At the top of each hierarchy: groups of other tests come and go elsewhere, while one looks.
    return [path for top in ("", "*/") for path in CGROUP_ROOT.glob(f"{top}muster-{name}") if path.is_dir()]


@pytest.fixture
def cgroups() -> Iterator[PodCgroups]:
    name = uuid.uuid4().hex[:8]
    opened = open_cgroups(name)
    if any(m.feature == "cgroups" for m in opened.missing()):
        pytest.skip(f"cgroups of this machine: {opened.missing()[0]}")
    yield opened
    blocked_until(lambda: opened.teardown() == [])
    assert leftovers(name) == []


@pytest.fixture
def start(cgroups: PodCgroups) -> Iterator[Start]:
    """Runs Python in the group of a container, entering it before anything else."""
    started: list[subprocess.Popen[bytes]] = []

    def run(code: str, uid: str = "u", container: str = "c", groups: PodCgroups | None = None) -> subprocess.Popen[bytes]:
        enter = "".join(f"echo 0 > {file}; " for file in (groups or cgroups).procs_files(uid, container))
        process = subprocess.Popen(
            ["/bin/sh", "-c", f"{enter} exec {sys.executable} -I -S -c {shlex.quote(code)}"], stdout=subprocess.PIPE
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def make(cgroups: PodCgroups, limits: Limits, uid: str = "u", container: str = "c") -> None:
    cgroups.create_pod(uid, Limits(cpu_request_milli=limits.cpu_request_milli))
    cgroups.create_container(uid, container, limits)


def needs(cgroups: PodCgroups, *controllers: str) -> None:
    for m in cgroups.missing():
        if m.feature in {f"cgroup controller {name}" for name in controllers} or m.feature in controllers:
            pytest.skip(str(m))


@pytest.mark.slow
def test_a_fifth_of_a_core_is_a_fifth_of_a_core(cgroups: PodCgroups, start: Start) -> None:
    needs(cgroups, "cpu", "cpuacct")
    make(cgroups, Limits(cpu_request_milli=2000, cpu_limit_milli=200))
    start(SPIN)
    blocked_until(lambda: (used := cgroups.usage("u", "c")) is not None and used.throttled_ns > 0)
    began, before = time.monotonic(), cgroups.usage("u", "c")  # so a pause in between makes the share smaller, never larger
    time.sleep(4)
    after, ended = cgroups.usage("u", "c"), time.monotonic()
    assert before is not None
    assert after is not None
    share = (after.cpu_ns - before.cpu_ns) / 1e9 / (ended - began)
    # Below, only a machine that is overloaded keeps it; above, nothing may.
    assert 0.02 < share < 0.25
    assert after.throttled_ns > before.throttled_ns
    pod = cgroups.usage("u")
    assert pod is not None
    assert pod.cpu_ns >= after.cpu_ns
    assert pod.throttled_ns >= after.throttled_ns


def test_more_memory_than_granted_is_killed_and_counted(cgroups: PodCgroups, start: Start) -> None:
    needs(cgroups, "memory")
    make(cgroups, Limits(cpu_request_milli=1000, memory_limit_bytes=64 << 20))
    make(cgroups, Limits(cpu_request_milli=1000, memory_limit_bytes=64 << 20), container="other")
    process = start("x = bytearray(200 << 20); print(len(x))")
    assert process.wait() == -signal.SIGKILL
    assert cgroups.oom_kills("u", "c") == 1
    assert cgroups.oom_kills("u", "other") == 0
    assert "oom_kill 1" in Path(cgroups.oom_file("u", "c")).read_text().splitlines()


def test_within_the_limit_it_lives(cgroups: PodCgroups, start: Start) -> None:
    needs(cgroups, "memory")
    make(cgroups, Limits(cpu_request_milli=1000, memory_limit_bytes=256 << 20))
    process = start("x = bytearray(64 << 20); print(len(x), flush=True); input()")
    assert process.stdout is not None
    assert process.stdout.readline() == b"67108864\n"
    process.wait()
    assert cgroups.oom_kills("u", "c") == 0


def test_a_limit_can_be_raised_and_lowered_while_it_runs(cgroups: PodCgroups, start: Start) -> None:
    needs(cgroups, "memory", "cpu", "pids")
    make(cgroups, Limits(cpu_request_milli=1000, memory_limit_bytes=64 << 20, cpu_limit_milli=100, pids_max=5))
    start("import time; time.sleep(600)")
    told: list[str] = []
    real = cgroups.executor.command

    def command(path: Path | str, value: str, owner: str) -> None:
        told.append(str(path))
        real(path, value, owner)

    cgroups.executor.command = command  # type: ignore[method-assign]
    for limits in (
        Limits(memory_limit_bytes=128 << 20, cpu_limit_milli=300, pids_max=7),
        Limits(memory_limit_bytes=32 << 20, cpu_limit_milli=50, pids_max=3),
        Limits(),
    ):
        cgroups.update("u", "c", limits)
        assert len(told) >= 3
        told.clear()
        cgroups.update("u", "c", limits)
        assert told == [], "the kernel reads back what was written, so nothing is written twice"


def test_a_fork_bomb_stops_at_its_limit(cgroups: PodCgroups, start: Start) -> None:
    needs(cgroups, "pids")
    make(cgroups, Limits(pids_max=16, cpu_limit_milli=200))
    process = start(FORK_BOMB)
    blocked_until(lambda: (used := cgroups.usage("u")) is not None and used.pids == 16)
    for _ in range(20):
        used = cgroups.usage("u")
        assert used is not None
        assert used.pids <= 16
        time.sleep(0.01)
    assert cgroups.kill("u") > 0
    assert process.wait() == -signal.SIGKILL
    blocked_until(lambda: (used := cgroups.usage("u")) is not None and used.pids == 0)


@pytest.mark.slow
@pytest.mark.parametrize("means", ["kill file", "freezer", "signals alone"])
def test_kill_ends_a_fork_bomb(cgroups: PodCgroups, start: Start, means: str) -> None:
    found = detect(CGROUP_ROOT)
    name = uuid.uuid4().hex[:8]
    if means != "kill file" and found.is_unified:
        pytest.skip("cgroup v1: this machine has the unified tree only, which always has a kill file")
    if means != "kill file":
        v1 = {key: path for key, path in found.v1.items() if means == "freezer" or key != "freezer"}
        found = msgspec.structs.replace(found, v2=None, v1=v1)
    groups = open_trees(name, found, PROC, Executor(CGROUP_ROOT))
    try:
        needs(groups, "pids")
        groups.create_pod("u", Limits(pids_max=40, cpu_limit_milli=300))
        groups.create_container("u", "c", Limits())
        groups.create_container("u", "d", Limits())
        first = start(FORK_BOMB, groups=groups)
        second = start(FORK_BOMB, container="d", groups=groups)
        blocked_until(lambda: (used := groups.usage("u")) is not None and used.pids == 40)
        assert groups.kill("u", "d") > 0
        assert second.wait() == -signal.SIGKILL
        blocked_until(lambda: (used := groups.usage("u", "d")) is not None and used.pids == 0)
        used = groups.usage("u", "c")
        assert used is not None
        assert used.pids > 0, "the other container goes on"
        assert groups.kill("u") > 0
        assert first.wait() == -signal.SIGKILL
        blocked_until(lambda: (used := groups.usage("u")) is not None and used.pids == 0)
        assert groups.kill("u") == 0
    finally:
        blocked_until(lambda: groups.teardown() == [])
    assert leftovers(name) == []


def test_kill_ends_what_somebody_froze(cgroups: PodCgroups, start: Start) -> None:
    """As a container runtime does that dies while it changes a group."""
    tree = detect(CGROUP_ROOT).v1.get("freezer")
    if tree is None:
        pytest.skip("cgroup v1 freezer: this machine has none")
    make(cgroups, Limits(cpu_request_milli=1000))
    process = start("import time; time.sleep(600)")
    frozen = Path(f"{tree}{cgroups.oci_path('u', 'c')}")
    frozen.mkdir(parents=True, exist_ok=True)
    (frozen / "cgroup.procs").write_text(str(process.pid))
    (frozen / "freezer.state").write_text("FROZEN")
    blocked_until(lambda: (frozen / "freezer.state").read_text() == "FROZEN\n")
    assert cgroups.kill("u") == 1
    assert process.wait() == -signal.SIGKILL


def test_remove_ends_what_is_left(cgroups: PodCgroups, start: Start) -> None:
    make(cgroups, Limits(pids_max=20, cpu_limit_milli=200))
    process = start(FORK_BOMB)
    blocked_until(lambda: (used := cgroups.usage("u")) is not None and used.pids > 5)

    def removed() -> bool:
        # The kernel may take longer than one attempt waits, on a machine with much to do.
        try:
            cgroups.remove("u")
        except Exception:
            return False
        return True

    blocked_until(removed)
    assert cgroups.list() == set()
    assert process.wait() == -signal.SIGKILL


def test_devices_that_were_not_granted_are_refused(cgroups: PodCgroups, start: Start) -> None:
    needs(cgroups, "devices", "device limits")
    device = "/dev/kmsg"
    try:
        os.close(os.open(device, os.O_RDONLY))
    except OSError as e:
        pytest.skip(f"{device}: {e.strerror}")
    make(cgroups, Limits(cpu_request_milli=1000))
    make(cgroups, Limits(devices=(device,)), container="granted")
    code = (
        "import os\n"
        f"for path in ('/dev/null', '/dev/urandom', '{device}'):\n"
        " try: os.close(os.open(path, os.O_RDONLY)); print('yes', end=' ')\n"
        " except PermissionError: print('no', end=' ')"
    )
    assert start(code).communicate()[0] == b"yes yes no "
    assert start(code, container="granted").communicate()[0] == b"yes yes yes "


def test_a_new_agent_finds_the_groups_of_an_earlier_one(cgroups: PodCgroups, start: Start) -> None:
    make(cgroups, Limits(pids_max=20))
    process = start("import time; time.sleep(600)")
    blocked_until(lambda: (used := cgroups.usage("u")) is not None and used.pids == 1)
    name = cgroups.oci_path("u", "c").split("/")[1].removeprefix("muster-")
    later = open_cgroups(name)
    assert later.list() == {"u"}
    make(later, Limits(pids_max=20))
    assert later.kill("u", "c") == 1
    assert process.wait() == -signal.SIGKILL
    later.remove("u", "c")
    assert later.list() == {"u"}
    later.remove("u")
    assert leftovers(name) == []


def test_all_pods_together_have_a_limit(cgroups: PodCgroups, start: Start) -> None:
    needs(cgroups, "memory")
    cgroups.limit_node(Limits(memory_limit_bytes=64 << 20))
    make(cgroups, Limits(cpu_request_milli=1000))
    process = start("x = bytearray(200 << 20)")
    assert process.wait() == -signal.SIGKILL
    assert cgroups.oom_kills("u", "c") == 1


def test_without_rights_nothing_fails_and_all_is_named() -> None:
    """In a child that is nobody."""
    if os.geteuid() != 0:
        pytest.skip("root: only it can become nobody for this")
    name = uuid.uuid4().hex[:8]
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        said = "failed"
        try:
            os.setgid(65534)
            os.setuid(65534)
            groups = open_cgroups(name)
            groups.create_pod("u", Limits(cpu_limit_milli=100))
            groups.create_container("u", "c", Limits(memory_limit_bytes=1 << 20))
            nothing = (groups.usage("u"), groups.kill("u"), groups.list(), list(groups.procs_files("u", "c")))
            groups.remove("u")
            (missing,) = groups.missing()
            said = f"{nothing} {missing.feature} {'Permission denied (EACCES)' in missing.why}"
        finally:
            os.write(write, said.encode())
            os._exit(0)
    os.close(write)
    assert os.waitpid(child, 0)[1] == 0
    said = os.read(read, 4096).decode()
    os.close(read)
    assert said == "(None, 0, set(), []) cgroups True"
    assert leftovers(name) == []


def test_the_unified_tree_by_itself(cgroups: PodCgroups, start: Start) -> None:
    """The v2 driver on the kernel, with whatever controllers the tree has (on a hybrid machine: none that matter)."""
    tree = detect(CGROUP_ROOT).v2
    if tree is None:
        pytest.skip("cgroup v2: this machine has no such tree")
    name = uuid.uuid4().hex[:8]
    groups = open_trees(name, detect(tree), PROC, Executor(tree))
    try:
        groups.create_pod("u", Limits(cpu_request_milli=1000, pids_max=50))
        groups.create_container("u", "c", Limits(cpu_request_milli=1000, pids_max=50, memory_limit_bytes=1 << 30))
        assert groups.procs_files("u", "c") == [f"{tree}/muster-{name}/podu/c/cgroup.procs"]
        process = start(SPIN, groups=groups)
        blocked_until(lambda: (used := groups.usage("u")) is not None and used.cpu_ns > 0)
        assert groups.kill("u") == 1
        assert process.wait() == -signal.SIGKILL
        assert groups.usage("absent") is None
    finally:
        blocked_until(lambda: groups.teardown() == [])
    assert leftovers(name) == []


def test_pressure_of_a_group(cgroups: PodCgroups, start: Start) -> None:
    needs(cgroups, "pressure (PSI) of pods")
    if not Path("/proc/pressure/cpu").exists():
        pytest.skip("pressure (PSI): the kernel has none")
    make(cgroups, Limits(cpu_request_milli=1000))
    used = cgroups.usage("u", "c")
    assert used is not None
    assert set(used.pressure) == {"cpu", "memory", "io"}
