from __future__ import annotations

from pathlib import Path

import pytest

from muster.agent.contracts import AgentError, Mount, Security
from muster.agent.runtimes import process_root as roots

MOUNTINFO = r"""
22 27 0:21 / /proc rw - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
28 27 254:1 / /home rw shared:3 - xfs /dev/vdb rw
29 28 254:2 / /home/with\040blank rw - ext4 /dev/vdc rw
30 27 0:31 / /run rw - tmpfs tmpfs rw
31 27 0:32 / /mnt/shared rw - nfs4 server:/x rw
32 27 254:3 / /data/muster rw - ext4 /dev/vdd rw
33 27 254:4 / /boot rw - ext4 /dev/vde rw
34 27 0:40 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw
broken
"""


def test_file_systems_with_files_of_people_are_shown() -> None:
    assert roots.shown_mounts(MOUNTINFO, ["/data"]) == ["/home", "/home/with blank", "/mnt/shared"]


@pytest.mark.parametrize(
    ("prefix", "is_kept"),
    [
        pytest.param("/root/.pyenv/versions/3.11", True, id="below a hidden directory"),
        pytest.param("/usr", False, id="seen anyway"),
        pytest.param("/data/muster/venv", False, id="among the agent's secrets"),
        pytest.param("/root", False, id="has a secret inside"),
    ],
)
def test_the_agents_python_is_kept_but_never_a_secret(prefix: str, is_kept: bool) -> None:
    hidden = ["/root", "/data/muster", "/root/agent"]

    assert roots.kept_directories([prefix], hidden, ["/data/muster", "/root/agent"]) == ([prefix] if is_kept else [])


@pytest.mark.parametrize(
    ("source", "top"),
    [
        pytest.param("/d/pods/u/volumes/v", "/d/pods/u/volumes/v", id="a volume"),
        pytest.param("/d/pods/u/volumes/v/sub/path", "/d/pods/u/volumes/v", id="a part of a volume"),
        pytest.param("/d/pods/u/etc/hosts", "/d/pods/u", id="a file of the agent's"),
        pytest.param("/srv/data/x", None, id="a directory of the host"),
    ],
)
def test_where_a_source_has_to_stay(source: str, top: str | None) -> None:
    made = roots.bind(Mount(target="/x", source=source), Path("/d/pods"))

    assert made.get("sourceRoot") == top
    assert made.get("noLinks", False) == (top is None)


def test_a_source_with_dots() -> None:
    with pytest.raises(AgentError, match="subPath"):
        roots.bind(Mount(target="/x", source="/d/pods/u/volumes/v/../../../other"), Path("/d/pods"))


@pytest.mark.parametrize(
    "target", ["x", "", "/", "//", "/a/..", "/../etc", "/proc", "/proc/1", "/sys/fs", "/a\0b", "/" + "a" * 5000]
)
def test_targets_that_are_refused(target: str) -> None:
    with pytest.raises(AgentError, match="mountPath"):
        roots.check_target(target)


@pytest.mark.parametrize("target", ["/data", "/data/", "/a/b/c", "/dev/termination-log", "/run/secrets", "/procedure", "/a..b"])
def test_targets_that_are_fine(target: str) -> None:
    roots.check_target(target)


def test_capabilities() -> None:
    assert roots.check_security(Security(), 5) == []
    assert roots.check_security(Security(user=5, group=5, add_capabilities=("CAP_NET_BIND_SERVICE",)), 5) == [
        "NET_BIND_SERVICE"
    ]
    assert roots.check_security(Security(drop_capabilities=("ALL",), add_capabilities=("net_bind_service",)), 5) == [
        "NET_BIND_SERVICE"
    ]
    with pytest.raises(AgentError, match="runtime runc"):
        roots.check_security(Security(add_capabilities=("NET_ADMIN",)), 5)
