from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from muster.cli import datadir
from muster.cli.datadir import Claim, ServerRecord, default_data_dir, holder_of, read_record
from muster.cli.errors import CliError

HOLD = """
import sys, pathlib
from muster.cli.datadir import Claim
claim = Claim(pathlib.Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""
RECORD = ServerRecord(pid=1, url="https://127.0.0.1:1", version="0", started_at="now", parts=["server"])


@pytest.mark.parametrize(
    ("environ", "path"),
    [
        ({"HOME": "/h"}, "/h/.local/share/muster"),
        ({"HOME": "/h", "XDG_DATA_HOME": "/x"}, "/x/muster"),
        ({"HOME": "/h", "XDG_DATA_HOME": "relative"}, "/h/.local/share/muster"),
        ({"HOME": "/h", "MUSTER_DATA_DIR": "/d"}, "/d"),
    ],
)
def test_default_data_dir(environ: dict[str, str], path: str) -> None:
    assert str(default_data_dir(environ)) == path


def test_the_holder_is_known_to_other_processes_and_gone_with_its_death(tmp_path: Path) -> None:
    assert holder_of(tmp_path) is None
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        assert holder_of(tmp_path) == child.pid
        with pytest.raises(CliError, match=f"process {child.pid} runs a server on it; stop that with 'muster down"):
            Claim(tmp_path)
        child.kill()
        child.wait()
    assert (tmp_path / "muster.pid").exists(), "a killed server leaves its file"
    assert holder_of(tmp_path) is None
    with Claim(tmp_path):
        assert (tmp_path / "muster.pid").read_text() == f"{os.getpid()}\n"


def test_release_leaves_no_trace(tmp_path: Path) -> None:
    with Claim(tmp_path) as claim:
        claim.publish(RECORD)
        assert read_record(tmp_path) == RECORD
        assert (tmp_path / "muster.pid").stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == []
    claim.release()


def test_a_file_removed_between_open_and_lock_is_not_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    removed: list[int] = []
    lockf = fcntl.lockf

    def remove_first(fd: int, command: int) -> None:
        if not removed:
            removed.append(fd)
            (tmp_path / "muster.pid").unlink()
        lockf(fd, command)

    monkeypatch.setattr(fcntl, "lockf", remove_first)
    with Claim(tmp_path):
        assert (tmp_path / "muster.pid").exists()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"pid": "x"}'])
def test_a_broken_record_is_no_record(content: str, tmp_path: Path) -> None:
    (tmp_path / "server.json").write_text(content)
    assert read_record(tmp_path) is None


def test_prepare(tmp_path: Path) -> None:
    datadir.prepare(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700
    (tmp_path / "file").write_text("")
    with pytest.raises(CliError, match="a file is where a directory must be"):
        datadir.prepare(tmp_path / "file")
    with pytest.raises(CliError, match="a file is where"):
        datadir.prepare(tmp_path / "file" / "below")


@pytest.mark.parametrize(
    ("number", "needle"), [(28, "disk is full"), (122, "disk is full"), (30, "cannot be written"), (13, "cannot be written")]
)
def test_why_a_directory_cannot_be_written(number: int, needle: str) -> None:
    error = datadir.unwritable(Path("/d"), OSError(number, os.strerror(number)))
    assert needle in error.message
    assert "--data-dir" in error.message
