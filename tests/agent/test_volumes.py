"""What volumes hold, what is refused, and what lies on disk."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.agent import volumes_disk
from muster.agent.contracts import AgentError, Mount
from muster.agent.environment import PodFields
from muster.agent.layout import Layout
from muster.agent.volumes import File, files_of, inner_path, is_below, mounts_of, refusals
from muster.agent.volumes_disk import host_path, make_sub_path, make_tmpfs, remove_tree, write_files
from muster.objects.kinds.pods import PodSpec
from muster.objects.kinds.volume_sources import HostPathVolumeSource
from muster.objects.kinds.volumes import Volume
from muster.objects.status import Raw

CM: Raw = {"data": {"a": "1", "b": "2"}}
EVIL: Raw = {"data": {"../../etc/passwd": "x"}}
SOURCES = {("ConfigMap", "cm"): CM, ("ConfigMap", "evil"): EVIL, ("ConfigMap", "gone"): None}


def spec(**more: Any) -> PodSpec:
    return msgspec.convert({"containers": [{"name": "main"}], **more}, PodSpec)


def volume(**source: Any) -> Volume:
    return msgspec.convert({"name": "v", **source}, Volume)


def files(**source: Any) -> dict[str, File]:
    fields = PodFields(pod={"metadata": {"name": "p", "labels": {"a": "b"}}}, spec=spec())
    return files_of(volume(**source), fields, SOURCES)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ({"configMap": {"name": "cm"}}, {"a": File(b"1", 0o644), "b": File(b"2", 0o644)}),
        ({"configMap": {"name": "cm", "defaultMode": 0o600}}, {"a": File(b"1", 0o600), "b": File(b"2", 0o600)}),
        (
            {"configMap": {"name": "cm", "items": [{"key": "a", "path": "x/y", "mode": 0o400}]}},
            {"x/y": File(b"1", 0o400)},
        ),
        ({"configMap": {"name": "gone", "optional": True}}, {}),
        ({"configMap": {"name": "cm", "optional": True, "items": [{"key": "no", "path": "x"}]}}, {}),
        ({"downwardAPI": {"items": [{"path": "n", "fieldRef": {"fieldPath": "metadata.name"}}]}}, {"n": File(b"p", 0o644)}),
        (
            {"projected": {"sources": [{"configMap": {"name": "cm", "items": [{"key": "a", "path": "z"}]}}]}},
            {"z": File(b"1", 0o644)},
        ),
    ],
)
def test_contents(source: Raw, expected: dict[str, File]) -> None:
    assert files(**source) == expected


@pytest.mark.parametrize(
    ("source", "word"),
    [
        ({"configMap": {"name": "gone"}}, "'gone'"),
        ({"configMap": {"name": "cm", "items": [{"key": "no", "path": "x"}]}}, "'no'"),
        ({"configMap": {"name": "cm", "items": [{"key": "a", "path": "../x"}]}}, "../x"),
        ({"configMap": {"name": "cm", "items": [{"key": "a", "path": "/etc/x"}]}}, "/etc/x"),
        ({"configMap": {"name": "evil"}}, "passwd"),
        ({"projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}, "serviceAccountToken"),
    ],
)
def test_contents_that_can_not_be(source: Raw, word: str) -> None:
    with pytest.raises(AgentError) as caught:
        files(**source)
    assert caught.value.reason == "FailedMount"
    assert word in caught.value.message


def test_what_a_cluster_adds_for_its_api_is_left_out_where_it_can_not_be_had() -> None:
    sources = [{"serviceAccountToken": {"path": "token"}}, {"configMap": {"name": "gone"}}, {"configMap": {"name": "cm"}}]
    one = msgspec.convert({"name": "kube-api-access-x1", "projected": {"sources": sources}}, Volume)
    assert set(files_of(one, PodFields(pod={}, spec=spec()), SOURCES)) == {"a", "b"}


@given(st.text(alphabet="ab./\x00", max_size=12))
def test_an_inner_path_stays_inside(text: str) -> None:
    try:
        path = inner_path(text)
    except ValueError:
        return
    top = "/top/dir"
    assert os.path.normpath(f"{top}/{path}").startswith(top + "/")


@pytest.mark.parametrize(
    ("path", "root", "expected"),
    [
        ("/a/b", "/a", True),
        ("/a", "/a", True),
        ("/a/", "/a", True),
        ("/ab", "/a", False),
        ("/a/../b", "/a", False),
        ("/x", "/", True),
    ],
)
def test_is_below(path: str, root: str, expected: bool) -> None:
    assert is_below(path, root) is expected


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}, "persistentVolumeClaim"),
        ({"volumes": [{"name": "v", "nfs": {"server": "s", "path": "/"}}]}, "nfs"),
        ({"volumes": [{"name": "v", "emptyDir": {"medium": "HugePages"}}]}, "HugePages"),
        ({"volumes": [{"name": "v", "hostPath": {"path": "/etc"}}]}, "allowedHostPaths"),
        ({"volumes": [{"name": "v", "hostPath": {"path": "/data/../etc"}}]}, "no .."),
        ({"containers": [{"name": "c", "volumeMounts": [{"name": "x", "mountPath": "/v"}]}]}, "no volume 'x'"),
        ({"containers": [{"name": "c", "volumeMounts": [{"name": "v", "mountPath": "/a/../b"}]}]}, "mount path"),
        ({"containers": [{"name": "c", "volumeMounts": [{"name": "v", "mountPath": "/proc/x"}]}]}, "/proc"),
        ({"containers": [{"name": "c", "volumeMounts": [{"name": "v", "mountPath": "/"}]}]}, "mount path"),
        ({"containers": [{"name": "c", "volumeMounts": [{"name": "v", "mountPath": "/v", "subPath": "../x"}]}]}, "../x"),
        ({"containers": [{"name": "c", "volumeDevices": [{"name": "v", "devicePath": "/dev/x"}]}]}, "volumeDevices"),
    ],
)
def test_refusals(more: Raw, word: str) -> None:
    wanted = spec(**{"volumes": [{"name": "v", "emptyDir": {}}], **more})
    assert any(word in message for message in refusals(wanted, ["/data"]))


def test_what_is_not_refused() -> None:
    volumes = [
        {"name": "v", "emptyDir": {"medium": "Memory"}},
        {"name": "h", "hostPath": {"path": "/data/x"}},
        {"name": "c", "configMap": {"name": "cm"}},
    ]
    mounts = [{"name": "v", "mountPath": "/v", "subPath": "a/b"}]
    assert list(refusals(spec(volumes=volumes, containers=[{"name": "c", "volumeMounts": mounts}]), ["/data"])) == []


def test_mounts(tmp_path: Path) -> None:
    volumes = [
        {"name": "e", "emptyDir": {}},
        {"name": "c", "configMap": {"name": "cm"}},
        {"name": "h", "hostPath": {"path": "/d"}},
    ]
    mounts = [
        {"name": "e", "mountPath": "/e/in", "subPathExpr": "$(X)/y"},
        {"name": "c", "mountPath": "/e"},
        {"name": "h", "mountPath": "/h/", "readOnly": True},
    ]
    wanted = spec(volumes=volumes, containers=[{"name": "main", "volumeMounts": mounts}])
    layout = Layout(tmp_path)
    found = mounts_of(wanted, wanted.containers[0], "u", layout, variables={"X": "x"}, host_paths={"h": "/real"})
    assert found == [
        (Mount(target="/e", source=str(layout.volume("u", "c")), read_only=True), ""),
        (Mount(target="/e/in", source=str(layout.volume("u", "e") / "x/y")), "x/y"),
        (Mount(target="/h", source="/real", read_only=True), ""),
    ]
    with pytest.raises(AgentError, match=r"\.\."):
        mounts_of(wanted, wanted.containers[0], "u", layout, variables={"X": ".."}, host_paths={"h": "/real"})


# -- on disk ------------------------------------------------------------------------------------------------------------------


def test_an_update_is_all_or_nothing_and_leaves_nothing_behind(tmp_path: Path) -> None:
    top = tmp_path / "v"
    assert write_files(top, {"a": File(b"1", 0o640), "d/e": File(b"2", 0o400)}, os.getuid())
    assert stat.S_IMODE((top / "a").stat().st_mode) == 0o640
    assert (top / "d" / "e").read_bytes() == b"2"
    assert not write_files(top, {"a": File(b"1", 0o640), "d/e": File(b"2", 0o400)}, os.getuid())
    before = os.readlink(top / "..data")
    assert write_files(top, {"a": File(b"new", 0o640), "z": File(b"3", 0o644)}, os.getuid())
    assert os.readlink(top / "..data") != before
    assert {name for name in os.listdir(top) if not name.startswith("..")} == {"a", "z"}
    assert (top / "a").read_bytes() == b"new"
    assert len([name for name in os.listdir(top) if name.startswith("..")]) == 2  # the version, and the link to it


def test_setuid_bits_are_not_written(tmp_path: Path) -> None:
    write_files(tmp_path / "v", {"a": File(b"1", 0o4755)}, os.getuid())
    assert stat.S_IMODE((tmp_path / "v" / "a").stat().st_mode) == 0o755


@pytest.mark.parametrize(
    ("kind", "path", "is_fine"),
    [
        ("", "dir", True),
        ("Directory", "dir", True),
        ("File", "dir", False),
        ("File", "file", True),
        ("Directory", "nobody", False),
        ("DirectoryOrCreate", "new/deep", True),
        ("FileOrCreate", "newfile", True),
        ("Socket", "file", False),
        ("", "out", False),
        ("DirectoryOrCreate", "out/new", False),
    ],
)
def test_host_paths(tmp_path: Path, kind: str, path: str, is_fine: bool) -> None:
    allowed, outside = tmp_path / "allowed", tmp_path / "outside"
    (allowed / "dir").mkdir(parents=True)
    outside.mkdir()
    (allowed / "file").write_text("x")
    (allowed / "out").symlink_to(outside)
    source = HostPathVolumeSource(path=str(allowed / path), type=kind)
    if is_fine:
        assert host_path("v", source, [str(allowed)]) == str(allowed / path)
    else:
        with pytest.raises(AgentError, match="hostPath"):
            host_path("v", source, [str(allowed)])
        assert list(outside.iterdir()) == []


def test_sub_paths_follow_no_links(tmp_path: Path) -> None:
    top, outside = tmp_path / "v", tmp_path / "outside"
    top.mkdir()
    outside.mkdir()
    make_sub_path(top, "a/b", os.getuid())
    assert (top / "a" / "b").is_dir()
    (top / "link").symlink_to(outside)
    for inner in ("link", "link/x"):
        with pytest.raises(AgentError, match="link"):
            make_sub_path(top, inner, os.getuid())
    assert list(outside.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_tree_goes_with_its_mounts_and_whatever_is_in_it(tmp_path: Path) -> None:
    top = tmp_path / "pod"
    (top / "sealed" / "in").mkdir(parents=True)
    (top / "sealed").chmod(0)
    assert make_tmpfs(top / "memory", 65534, 1 << 20)
    assert make_tmpfs(top / "memory", 65534, 1 << 20)
    assert Path("/proc/self/mounts").read_text().count(str(top)) == 1
    (top / "memory" / "f").write_text("x")
    remove_tree(top)
    assert not top.exists()
    assert str(top) not in Path("/proc/self/mounts").read_text()
    remove_tree(top)


@pytest.mark.skipif(os.geteuid() != 0, reason="a task's files belong to another user")
def test_a_lease_on_a_file_holds_nobody_up(tmp_path: Path) -> None:
    """Whoever owns a file may have others wait who open it: 45 seconds for each, and no other pod has its turn."""
    user = 54321
    tmp_path.chmod(0o755)
    top = tmp_path / "v"
    write_files(top, {"k": File(b"old", 0o644)}, user)
    inode = (top / "k").stat().st_ino
    script = (
        "import fcntl, os, signal, sys\n"
        "signal.signal(signal.SIGIO, signal.SIG_IGN)\n"
        "fd = os.open(sys.argv[1], os.O_RDONLY)\n"
        f"os.setresuid({user}, {user}, {user})\n"
        "fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK); print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-I", "-S", "-c", script, str(top / "k")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as task:
        assert task.stdout is not None
        assert task.stdout.readline() == b"held\n"
        assert write_files(top, {"k": File(b"new", 0o644)}, user)
        held = [line for line in Path("/proc/locks").read_text().splitlines() if f":{inode} " in line and "LEASE" in line]
        assert held, "the lease has not run out meanwhile"
        assert (top / "k").read_bytes() == b"new"
        assert task.stdin is not None
        task.stdin.close()


@pytest.mark.parametrize("is_file", [True, False], ids=["file", "directory"])
def test_nothing_is_made_where_a_link_leads(tmp_path: Path, is_file: bool) -> None:
    """A pod that writes to an allowed directory puts a link there after the look and before the making."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "allowed").mkdir()
    (tmp_path / "allowed" / "x").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match=r"[Dd]irectory|links"):
        volumes_disk._make_host_path(str(tmp_path / "allowed" / "x" / "new"), is_file=is_file)
    assert not list((tmp_path / "elsewhere").iterdir())
    volumes_disk._make_host_path(str(tmp_path / "allowed" / "y" / "new"), is_file=is_file)
    assert (tmp_path / "allowed" / "y" / "new").is_file() == is_file


def test_a_sub_path_below_a_host_path_that_became_a_link(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "allowed").mkdir()
    top = Path(os.path.realpath(tmp_path)) / "allowed" / "x"
    top.mkdir()
    make_sub_path(top, "a/b", os.getuid(), is_of_host=True)
    assert (top / "a" / "b").is_dir()
    top.rename(tmp_path / "allowed" / "y")
    top.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(AgentError, match="no plain path"):
        make_sub_path(top, "a/b", os.getuid(), is_of_host=True)
    assert not list((tmp_path / "elsewhere").iterdir())
