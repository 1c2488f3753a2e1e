"""`muster backup` and `muster restore` on the command line: what they refuse, and how they say so."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from muster.cli.backing_up import Draft, keep_newest, remove_left_over
from muster.cli.errors import ExitCode
from muster.store.embedded.restoring import READY
from tests.cli.support import Up, environment, muster
from tests.store.embedded.support import CONFIG_MAPS, config_map, open_store


@pytest.fixture
async def stopped(tmp_path: Path) -> Path:
    """A data directory on which no server runs."""
    store = await open_store(tmp_path / "data" / "store")
    await store.create(CONFIG_MAPS, config_map("kept"), "default")
    await store.close()
    return tmp_path / "data"


def test_a_stopped_server_there_and_back(tmp_path: Path, stopped: Path) -> None:
    env = environment(tmp_path)
    done = muster("backup", "--to", "out", "--data-dir", str(stopped), "-o", "json", env=env, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    file = json.loads(done.stdout)["file"]
    again = muster("backup", file, "--data-dir", str(stopped), env=env, cwd=tmp_path)
    assert again.returncode == ExitCode.CONFLICT
    assert "exists already, and a backup replaces no file" in again.stderr
    checked = muster("restore", file, "--check", env=env, cwd=tmp_path)
    assert (checked.returncode, checked.stderr) == (0, "")
    assert "2 objects at resource version 3" in checked.stdout
    refused = muster("restore", file, "--data-dir", str(stopped), env=env, cwd=tmp_path)
    assert refused.returncode == ExitCode.FAILURE
    assert "is not empty: it has store; name an empty one" in refused.stderr
    restored = muster("restore", file, "--data-dir", "new", env=env, cwd=tmp_path)
    assert restored.returncode == 0, restored.stderr
    assert "the backup has no keys" in restored.stderr


def test_a_running_server_is_not_restored_over(tmp_path: Path, stopped: Path) -> None:
    env = environment(tmp_path)
    saved = tmp_path / "saved.tar"
    with Up(stopped, env=env) as up:
        done = muster("backup", str(saved), "--kubeconfig", str(up.kubeconfig), env=env)
        assert done.returncode == 0, done.stderr
        refused = muster("restore", str(saved), "--data-dir", str(stopped), "--force", env=env)
        assert refused.returncode == ExitCode.FAILURE
        assert "runs a server on it; stop that with 'muster down" in refused.stderr
        assert not list(stopped.glob("restore.*"))


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        pytest.param(("backup",), ExitCode.USAGE, "either a FILE or a directory", id="neither"),
        pytest.param(("backup", "f", "--to", "d"), ExitCode.USAGE, "either a FILE or a directory", id="both"),
        pytest.param(("backup", "f", "--keep", "2"), ExitCode.USAGE, "--keep goes with --to", id="keep alone"),
        pytest.param(("backup", "f", "--data-dir", "no"), ExitCode.NOT_FOUND, "there is no store in it", id="no store"),
        pytest.param(
            ("backup", "f", "--with-keys"),
            ExitCode.NOT_FOUND,
            "--with-keys saves a data directory, not the server",
            id="keys of",
        ),
        pytest.param(
            ("backup", "no/f", "--data-dir", "data"), ExitCode.NOT_FOUND, "no such directory", id="no directory to write to"
        ),
        pytest.param(
            ("backup", "f", "--data-dir", "data", "--with-keys"), ExitCode.NOT_FOUND, "there is no pki/ca.key", id="no keys"
        ),
        pytest.param(
            ("restore", "no.tar", "--data-dir", "d"), ExitCode.NOT_FOUND, "no.tar: there is no such file", id="no file"
        ),
        pytest.param(("restore", "noise", "--data-dir", "d"), ExitCode.FAILURE, "noise: it is no backup of Muster", id="noise"),
    ],
)
def test_refused(tmp_path: Path, stopped: Path, args: tuple[str, ...], code: ExitCode, message: str) -> None:
    (tmp_path / "noise").write_bytes(b"noise" * 1000)
    done = muster(*args, env=environment(tmp_path), cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "noise"], "something was left behind"


def test_only_own_files_are_removed(tmp_path: Path) -> None:
    names = [f"muster-2026111{n}T000000Z-{n}.tar" for n in range(4)]
    others = ["muster-notes.tar", "other.tar", "muster-20261110T000000Z-1.tar.gz"]
    others += [".muster-notes.partial", ".muster-backup.0123.partial"]
    for name in (*names, *others, ".muster-backup.0123456789ab.partial"):
        (tmp_path / name).write_bytes(b"")
    directory, pipe = "muster-20261109T000000Z-1.tar", ".muster-backup.00112233aabb.partial"
    (tmp_path / directory).mkdir()
    os.mkfifo(tmp_path / pipe)
    assert keep_newest(tmp_path, 2) == names[:2]
    remove_left_over(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*names[2:], *others, directory, pipe])


def test_the_backup_just_made_stays_though_another_says_it_is_newer(tmp_path: Path, stopped: Path) -> None:
    """A clock that was wrong once has named a backup of the future, and it is the one whose time will not come."""
    future, past = "muster-20990101T000000Z-5.tar", "muster-20010101T000000Z-5.tar"
    out = tmp_path / "out"
    out.mkdir()
    for name in (future, past):
        (out / name).write_bytes(b"")
    args = ("--to", "out", "--keep", "1", "--data-dir", str(stopped), "-o", "json")
    done = muster("backup", *args, env=environment(tmp_path), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["removed"] == [past, future]
    assert [path.name for path in out.iterdir()] == [Path(said["file"]).name]


def test_a_directory_in_the_middle_of_a_restore_is_no_backup(tmp_path: Path, stopped: Path) -> None:
    (stopped / READY).mkdir()
    done = muster("backup", "f", "--data-dir", str(stopped), env=environment(tmp_path), cwd=tmp_path)
    assert done.returncode == ExitCode.FAILURE
    assert "a restore was interrupted there" in done.stderr
    assert not (tmp_path / "f").exists()


def test_a_server_carries_on_with_a_restore_before_it_reads_what_that_replaces(tmp_path: Path, stopped: Path) -> None:
    """Were the range of pods read first, there would be one of the server's own choice, which the restore would move aside."""
    ready = stopped / READY
    (ready / "new").mkdir(parents=True)
    (ready / "old").mkdir()
    (ready / "new" / "pod-range").write_text("10.90.0.0/18\n")
    with Up(stopped, env=environment(tmp_path)):
        assert (stopped / "pod-range").read_text() == "10.90.0.0/18\n"
    assert not list(stopped.glob("replaced-*"))


def test_keys_of_another_server_than_the_kubeconfig_names(tmp_path: Path, stopped: Path) -> None:
    env = environment(tmp_path, MUSTER_DATA_DIR=str(stopped))
    other = tmp_path / "other"
    with Up(stopped, env=env), Up(other, env=env) as up:
        theirs = {**env, "KUBECONFIG": str(up.kubeconfig)}
        refused = muster("backup", "f", "--with-keys", env=theirs, cwd=tmp_path)
        assert refused.returncode == ExitCode.CONFLICT, refused.stderr
        assert f"and data directory {stopped} is that of another" in refused.stderr
        assert not (tmp_path / "f").exists()
        for name, args, of in (
            ("named", ("--data-dir", str(stopped)), theirs),
            ("own", ("--kubeconfig", str(stopped / "kubeconfig")), theirs),
            ("none", (), env),
        ):
            done = muster("backup", name, "--with-keys", *args, env=of, cwd=tmp_path)
            assert done.returncode == 0, done.stderr


def test_a_pipe_is_no_backup_file(tmp_path: Path) -> None:
    done = muster("restore", "/dev/stdin", "--data-dir", "d", env=environment(tmp_path), cwd=tmp_path, stdin="x")
    assert done.returncode == ExitCode.FAILURE
    assert "/dev/stdin is no file that can be read twice; put the backup into one first" in done.stderr


def test_a_name_that_is_taken_gets_a_number_and_the_last_is_the_newest(tmp_path: Path) -> None:
    stem = "muster-20261118T000000Z-9"
    made = []
    for _ in range(3):
        draft = Draft(tmp_path)
        draft.begin()
        made.append(draft.publish_as(stem).name)
        draft.close()
    assert made == [f"{stem}.tar", f"{stem}.2.tar", f"{stem}.3.tar"]
    (tmp_path / "muster-20261118T000000Z-10.tar").write_bytes(b"")
    assert keep_newest(tmp_path, 2) == made[:2]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["muster-20261118T000000Z-10.tar", made[2]]
