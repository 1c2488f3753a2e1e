"""What a bundle says, without running it."""

from __future__ import annotations

import itertools
import stat
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.agent.contracts import AgentError, ContainerSpec, Image, Limits, Mount, Sandbox, Security
from muster.agent.runtimes import runc_seccomp
from muster.agent.runtimes.runc import plain_message
from muster.agent.runtimes.runc_bundle import CAPABILITIES, MAY_BE_ADDED, Device, Setting, allowed_capabilities, config
from muster.agent.runtimes.runc_users import IDS, RANGES_FIRST, IdRange, User, mappings, outside, resolve
from tests.agent.images_building import GROUP, PASSWD

SANDBOX = Sandbox(uid="u", namespace="n", name="p", hostname="box", user=2_000_000_007, netns="/run/x/netns/u")


def bundle(spec: ContainerSpec | None = None, image: Image | None = None, **more: Any) -> dict[str, Any]:
    setting = Setting(root="/r", sys="/s", cgroups_path="/muster/u/c", user=User(uid=0, gid=0), **more)
    return config(SANDBOX, spec or ContainerSpec(name="c", attempt=0, command=("/x",)), image or Image(), setting)


def test_namespaces_and_limits() -> None:
    limits = Limits(cpu_request_milli=500, cpu_limit_milli=1500, memory_limit_bytes=2**20, pids_max=9)
    device = Device(path="/dev/nvidia0", mode=stat.S_IFCHR | 0o600, major=195, minor=0)
    made = bundle(
        ContainerSpec(name="c", attempt=0, command=("/x",), limits=limits), ids=mappings(SANDBOX, ()), devices=(device,)
    )
    linux = made["linux"]
    assert {"type": "network", "path": "/run/x/netns/u"} in linux["namespaces"]
    assert {n["type"] for n in linux["namespaces"]} == {"pid", "mount", "ipc", "uts", "user", "network"}
    assert linux["resources"]["cpu"] == {"shares": 512, "quota": 150_000, "period": 100_000}
    assert linux["resources"]["memory"] == {"limit": 2**20}
    assert linux["resources"]["pids"] == {"limit": 9}
    assert linux["resources"]["devices"][0] == {"allow": False, "access": "rwm"}
    assert linux["resources"]["devices"][1] == {"allow": True, "type": "c", "major": 195, "minor": 0, "access": "rw"}
    assert linux["cgroupsPath"] == "/muster/u/c"
    assert linux["uidMappings"][0] == {"containerID": 0, "hostID": SANDBOX.user, "size": 1}


def test_without_limits_nothing_is_limited() -> None:
    resources = bundle()["linux"]["resources"]
    assert set(resources) == {"cpu", "devices"}
    assert set(resources["cpu"]) == {"shares"}


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        pytest.param(ContainerSpec(name="c", attempt=0), "no entry point", id="nothing to run"),
        pytest.param(ContainerSpec(name="c", attempt=0, command=("a\0b",)), "NUL", id="NUL in the command"),
        pytest.param(ContainerSpec(name="c", attempt=0, command=("a",), env=(("A=B", "c"),)), "'='", id="a name with ="),
        pytest.param(ContainerSpec(name="c", attempt=0, command=("a",), cwd="x"), "absolute", id="relative directory"),
    ],
)
def test_refused(spec: ContainerSpec, says: str) -> None:
    with pytest.raises(AgentError, match=says) as e:
        bundle(spec)
    assert e.value.reason == "CreateContainerConfigError"


targets = st.lists(st.sampled_from(["a", "..", ".", "", "proc", "sys", "dev", "etc"]), max_size=5).map(
    lambda p: "/" + "/".join(p)
)


@given(targets)
def test_mounts_are_never_over_the_containers_own(target: str) -> None:
    spec = ContainerSpec(name="c", attempt=0, command=("a",), mounts=(Mount(target=target, source="/x"),))
    try:
        made = bundle(spec)["mounts"][-1]["destination"]
    except AgentError:
        return
    assert made.startswith("/")
    assert ".." not in made
    assert made not in ("/", "//", "/dev", "/proc", "/sys")
    assert not made.startswith(("/proc/", "/sys/"))


names = st.sampled_from(
    [*(c.removeprefix("CAP_") for c in CAPABILITIES | MAY_BE_ADDED), "ALL", "SYS_ADMIN", "net_raw", "CAP_KILL"]
)


@given(st.lists(names, max_size=6), st.lists(names, max_size=6))
def test_capabilities_are_never_more_than_allowed(added: list[str], dropped: list[str]) -> None:
    try:
        found = allowed_capabilities(Security(add_capabilities=tuple(added), drop_capabilities=tuple(dropped)))
    except AgentError:
        assert {"ALL", "SYS_ADMIN"} & set(added)
        return
    assert found <= CAPABILITIES | MAY_BE_ADDED
    if "ALL" in dropped:
        assert len(found) <= len(added)


@pytest.mark.parametrize(
    ("user", "security", "found"),
    [
        ("", Security(), User(uid=0, gid=0, groups=(0,))),
        ("app", Security(), User(uid=1000, gid=1001, groups=(1001, 50))),
        ("app:10", Security(), User(uid=1000, gid=10, groups=(10, 50))),
        ("12:34", Security(), User(uid=12, gid=34, groups=(34,))),
        ("app", Security(user=0), User(uid=0, gid=0, groups=(0,))),
        ("app", Security(group=5, groups=(7, 50)), User(uid=1000, gid=5, groups=(5, 7, 50))),
    ],
)
def test_users(user: str, security: Security, found: User) -> None:
    assert resolve(user, security, PASSWD, GROUP) == found


@given(st.binary(max_size=200), st.binary(max_size=200), st.text(max_size=12))
def test_any_passwd_is_answered(passwd: bytes, group: bytes, user: str) -> None:
    try:
        found = resolve(user, Security(), passwd, group)
    except AgentError:
        return
    assert 0 <= found.uid < 2**32
    assert 0 <= found.gid < 2**32


@given(st.integers(1000, 2**32 - 3), st.integers(0, 2**32 - 3))
def test_ids_outside_are_the_pods_own(user: int, inside: int) -> None:
    sandbox = Sandbox(uid="u", namespace="", name="", hostname="", user=user)
    ranges = mappings(sandbox, (inside,))
    found = outside(ranges, inside)
    assert found == user or RANGES_FIRST <= found < 2**32 - 1
    assert outside(ranges, 0) == user
    ends = sorted((r.outside, r.outside + r.count) for r in ranges)
    if user < RANGES_FIRST:
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(ends)), "no host id twice"


def test_two_large_ids_are_too_many() -> None:
    with pytest.raises(AgentError, match="at most one"):
        mappings(SANDBOX, (IDS, IDS + 1))
    assert mappings(SANDBOX, (IDS, IDS))[-1] == IdRange(
        inside=IDS, outside=RANGES_FIRST + 2_000_000_007 % 30_000 * IDS, count=1
    )


@pytest.mark.parametrize(
    "call", ["mount", "umount2", "unshare", "setns", "bpf", "init_module", "keyctl", "ptrace", "reboot", "io_uring_setup"]
)
def test_calls_that_are_never_allowed(call: str) -> None:
    profile = runc_seccomp.profile("x86_64", frozenset())
    assert profile is not None
    assert profile["defaultAction"] == "SCMP_ACT_ERRNO"
    assert call not in {name for rule in profile["syscalls"] if rule["action"] == "SCMP_ACT_ALLOW" for name in rule["names"]}


def test_tracing_comes_with_its_capability() -> None:
    profile = runc_seccomp.profile("aarch64", frozenset({"CAP_SYS_PTRACE"}))
    assert profile is not None
    assert "ptrace" in profile["syscalls"][0]["names"]
    assert runc_seccomp.profile("s390x", frozenset()) is None


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ('time="x" level=error msg="exec: \\"/a\\": not found"', 'exec: "/a": not found'),
        ('level=warning msg="one"\nlevel=error msg="two"', "two"),
        ("no space left", "no space left"),
    ],
)
def test_messages_of_runc(text: str, plain: str) -> None:
    assert plain_message(text) == plain
