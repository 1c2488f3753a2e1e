"""`muster backup` and `muster restore` on the command line: what they refuse, and how they say so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from muster.cli.backing_up import Draft, keep_newest, remove_left_over
from muster.cli.errors import ExitCode
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
    for name in (*names, *others, ".muster-backup.0123.partial"):
        (tmp_path / name).write_bytes(b"")
    assert keep_newest(tmp_path, 2) == names[:2]
    remove_left_over(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*names[2:], *others])


def test_a_name_that_is_taken_gets_a_number_and_the_last_is_the_newest(tmp_path: Path) -> None:
    stem = "muster-20261118T000000Z-9"
    made = []
    for _ in range(3):
        draft = Draft(tmp_path, "muster-backup")
        draft.begin()
        made.append(draft.publish_as(stem).name)
        draft.close()
    assert made == [f"{stem}.tar", f"{stem}.2.tar", f"{stem}.3.tar"]
    (tmp_path / "muster-20261118T000000Z-10.tar").write_bytes(b"")
    assert keep_newest(tmp_path, 2) == made[:2]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["muster-20261118T000000Z-10.tar", made[2]]
