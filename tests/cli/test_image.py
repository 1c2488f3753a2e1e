"""`muster image`, as an operator types it."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest

from tests.agent.images_building import LayerTar, docker_files, write_archive
from tests.cli.conftest import Run


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return write_archive(docker_files([LayerTar().file("hello", b"x").bytes()], tag="example/app:1"), tmp_path / "app.tar")


@pytest.fixture
def image(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """`muster image` in a directory of the test's own."""
    monkeypatch.setenv("MUSTER_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    return functools.partial(run, "image")


def test_load_list_and_remove(image: Run, tmp_path: Path, archive: Path) -> None:
    for party in ("alice", "bob"):
        (tmp_path / "data/agents" / party).mkdir(parents=True)
    loaded = image("load", str(archive))
    assert loaded.code == 0, loaded.err
    assert loaded.out.count("example/app:1 sha256:") == 2
    image("load", str(archive), "--name", "other", "--data-dir", str(tmp_path / "data/agents/bob"))
    listed = json.loads(image("list", "-o", "json").out)["images"]
    assert [(Path(i["agent"]).name, i["names"]) for i in listed] == [
        ("alice", ["example/app:1"]),
        ("bob", ["example/app:1", "other:latest"]),
    ]
    table = image("list").out
    assert table.splitlines()[0].split() == ["NAME", "ID", "SIZE", "ORIGIN", "USED", "AGENT"]
    removed = image("rm", "other")
    assert (removed.code, removed.out.count("removed")) == (0, 1)
    assert image("rm", listed[0]["id"]).out.count("removed") == 2
    assert image("list").out == "no images\n"


def test_loading_for_an_agent_that_is_not_there_is_said(image: Run, tmp_path: Path, archive: Path) -> None:
    first, second = (image("load", str(archive)) for _ in range(2))
    assert (first.code, second.code) == (0, 0)
    assert f"no agent has used {tmp_path / 'data/agent'} yet" in first.err
    assert second.err == ""


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
def test_mistakes(image: Run, tmp_path: Path, archive: Path, words: list[str], code: int, says: str) -> None:
    (tmp_path / "text").write_text("hello " * 100)
    result = image(*words)
    assert result.code == code, result.err
    assert says in result.err
    assert result.err.count("\n") == 1
