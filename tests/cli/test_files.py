from __future__ import annotations

import io
from pathlib import Path

import pytest

from muster.cli.errors import CliError, ExitCode
from muster.cli.files import read_manifests

POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n"
JOB = '{"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "b"}}'


def test_a_file_with_several_documents(tmp_path: Path) -> None:
    path = tmp_path / "all.yaml"
    path.write_text(f"{POD}---\n\n---\n{JOB}\n")
    found = read_manifests([str(path)])
    assert not found.problems
    assert [(d.object["kind"], d.number) for d in found.documents] == [("Pod", 1), ("Job", 2)]
    assert found.documents[1].where == f"{path}, document 2 (line 7)"


def test_lists_are_taken_apart(tmp_path: Path) -> None:
    path = tmp_path / "list.json"
    path.write_text(f'{{"apiVersion": "v1", "kind": "List", "items": [{JOB}, {JOB}]}}')
    assert [d.object["kind"] for d in read_manifests([str(path)]).documents] == ["Job", "Job"]


def test_directories(tmp_path: Path) -> None:
    (tmp_path / "b.yaml").write_text(POD)
    (tmp_path / "a.json").write_text(JOB)
    (tmp_path / "notes.txt").write_text("not: read")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "c.yml").write_text(POD)
    assert [d.object["kind"] for d in read_manifests([str(tmp_path)]).documents] == ["Job", "Pod"]
    assert len(read_manifests([str(tmp_path)], recursive=True).documents) == 3


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(POD.encode())))
    assert read_manifests(["-"]).documents[0].where == "<stdin>, document 1 (line 1)"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("", "holds no object", id="empty"),
        pytest.param("a: [", "document 1, line 2: did not find expected", id="broken YAML"),
        pytest.param(f"{POD}---\na: 1\na: 2\n", "document 2, line 6: key 'a' is given twice", id="second document broken"),
        pytest.param("- a\n", "document 1 (line 1): expected an object with apiVersion and kind, found list", id="list"),
        pytest.param("kind: Pod\n", "apiVersion: must be a non-empty string, found None", id="no apiVersion"),
        pytest.param("apiVersion: v1\nkind: 7\n", "kind: must be a non-empty string, found 7", id="kind is a number"),
        pytest.param(
            "apiVersion: v1\nkind: Pod\nmetadata: []\n", "metadata: must be an object, found []", id="metadata is a list"
        ),
        pytest.param(
            "apiVersion: v1\nkind: Pod\nmetadata: {name: 5}\n",
            "metadata.name: must be a string, found 5",
            id="name is a number",
        ),
    ],
)
def test_a_broken_file_gives_nothing_and_does_not_stop_others(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text(text)
    (tmp_path / "good.yaml").write_text(POD)
    found = read_manifests([str(tmp_path)])
    assert [d.source for d in found.documents] == [str(tmp_path / "good.yaml")]
    [problem] = found.problems
    assert problem.startswith(str(tmp_path / "bad.yaml"))
    assert message in problem


@pytest.mark.parametrize(
    ("names", "code"),
    [
        pytest.param(["missing.yaml"], ExitCode.NOT_FOUND, id="no such file"),
        pytest.param(["empty"], ExitCode.NOT_FOUND, id="directory without manifests"),
        pytest.param(["-", "-"], ExitCode.USAGE, id="standard input twice"),
    ],
)
def test_names_that_lead_nowhere(names: list[str], code: ExitCode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    with pytest.raises(CliError) as caught:
        read_manifests(names)
    assert caught.value.code is code


def test_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muster.cli.files.FILE_BYTES_MAX", 10)
    (tmp_path / "a.yaml").write_text(POD)
    assert "larger than" in read_manifests([str(tmp_path)]).problems[0]
