"""One process per directory, and the message that says who."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from muster.store.embedded.errors import StoreLocked, StoreNotADirectory
from muster.store.embedded.lock import DirectoryLock

HOLDER = """
import sys
from pathlib import Path
from muster.store.embedded.lock import DirectoryLock
lock = DirectoryLock(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_a_second_lock_is_refused_even_in_the_same_process(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path)
    with pytest.raises(StoreLocked, match=f"process {os.getpid()}") as refused:
        DirectoryLock(tmp_path)
    assert refused.value.pid == os.getpid()
    lock.release()
    DirectoryLock(tmp_path).release()


def test_another_process_is_named_and_its_death_frees_the_directory(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(StoreLocked, match=f"in use by process {holder.pid}; stop that process"):
            DirectoryLock(tmp_path)
        holder.kill()
        holder.wait()
    DirectoryLock(tmp_path).release()


def test_release_twice_is_harmless(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path)
    lock.release()
    lock.release()


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreNotADirectory, match="something else"):
        DirectoryLock(tmp_path / "file")
