"""`muster image`, as an operator types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.agent.images_building import LayerTar, docker_files, write_archive
from tests.cli.support import environment, muster


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return write_archive(docker_files([LayerTar().file("hello", b"x").bytes()], tag="example/app:1"), tmp_path / "app.tar")


def test_load_list_and_remove(tmp_path: Path, archive: Path) -> None:
    env = environment(tmp_path, MUSTER_DATA_DIR=str(tmp_path / "data"))
    for party in ("alice", "bob"):
        (tmp_path / "data/agents" / party).mkdir(parents=True)
    loaded = muster("image", "load", str(archive), env=env)
    assert loaded.returncode == 0, loaded.stderr
    assert loaded.stdout.count("example/app:1 sha256:") == 2
    muster("image", "load", str(archive), "--name", "other", "--data-dir", str(tmp_path / "data/agents/bob"), env=env)
    listed = json.loads(muster("image", "list", "-o", "json", env=env).stdout)["images"]
    assert [(Path(i["agent"]).name, i["names"]) for i in listed] == [
        ("alice", ["example/app:1"]),
        ("bob", ["example/app:1", "other:latest"]),
    ]
    table = muster("image", "list", env=env).stdout
    assert table.splitlines()[0].split() == ["NAME", "ID", "SIZE", "ORIGIN", "USED", "AGENT"]
    removed = muster("image", "rm", "other", env=env)
    assert (removed.returncode, removed.stdout.count("removed")) == (0, 1)
    assert muster("image", "rm", listed[0]["id"], env=env).stdout.count("removed") == 2
    assert muster("image", "list", env=env).stdout == "no images\n"


def test_loading_for_an_agent_that_is_not_there_is_said(tmp_path: Path, archive: Path) -> None:
    env = environment(tmp_path, MUSTER_DATA_DIR=str(tmp_path / "data"))
    first, second = (muster("image", "load", str(archive), env=env) for _ in range(2))
    assert (first.returncode, second.returncode) == (0, 0)
    assert f"no agent has used {tmp_path / 'data/agent'} yet" in first.stderr
    assert second.stderr == ""


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        pytest.param(["load", "none.tar"], 1, "none.tar", id="no such file"),
        pytest.param(["load", "text", "--name", "x"], 1, "tar header", id="not an image"),
        pytest.param(["load", "dir:."], 2, "give it one", id="no name"),
        pytest.param(["load", "app.tar", "--name", "UPPER"], 2, "UPPER", id="a name that can't be"),
        pytest.param(["rm", "nothing:1"], 4, "nothing:1", id="nothing to remove"),
    ],
)
def test_mistakes(tmp_path: Path, archive: Path, words: list[str], code: int, says: str) -> None:
    (tmp_path / "text").write_text("hello " * 100)
    env = environment(tmp_path, MUSTER_DATA_DIR=str(tmp_path / "data"))
    result = muster("image", *words, env=env, cwd=tmp_path)
    assert result.returncode == code, result.stderr
    assert says in result.stderr
    assert result.stderr.count("\n") == 1
