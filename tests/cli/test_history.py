"""`muster replay` and `muster history`, as they are typed."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path

import pytest

from muster.cli.main import run
from muster.engine import events as ev
from muster.history.recording import Recorded
from tests.engine.building import node, pod
from tests.engine.histories import with_node
from tests.history.recording import make_engine, recording

T = 1_700_000_000.0


@pytest.fixture
def log(tmp_path: Path) -> Path:
    with recording(tmp_path / "log") as recorder:
        recorded = Recorded(make_engine(), recorder, make_engine)
        recorded.step([ev.NodeSeen(node("n1", cpu="2"))], T)
        recorded.step([ev.PodSeen(pod("a", cpu="1")), ev.PodSeen(pod("=b", cpu="8"))], T + 1)
        recorded.step([ev.PodSeen(with_node(pod("a", cpu="1"), "n1", "Succeeded"))], T + 50)
    return tmp_path / "log"


def test_an_equal_log(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", str(log)]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("equal: 2 decisions of 3 steps")
    assert "1 of 1 segments" in err
    (segment,) = log.glob("*.mlog")
    assert run(["replay", "--quiet", str(segment)]) == 0
    assert capsys.readouterr().err == ""


def test_a_log_of_another_engine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The recorded decisions come from a larger node than the recorded event."""
    with recording(tmp_path) as recorder:
        engine = make_engine()
        recorder.begin(configuration=engine.configuration)
        recorder.step(T, None, [ev.NodeSeen(node("n1", cpu="1"))], engine.step([ev.NodeSeen(node("n1", cpu="8"))], T))
        events = [ev.PodSeen(pod("a", cpu="4"))]
        recorder.step(T + 1, None, events, engine.step(events, T + 1))
    assert run(["replay", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "step 2" in out
    assert "-decision 1: Place Pod/default/a" in out
    assert "+decision 1: Park Pod/default/a" in out


def test_a_damaged_log(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (segment,) = log.glob("*.mlog")
    data = bytearray(segment.read_bytes())
    data[-40] ^= 4
    segment.write_bytes(data)
    assert run(["replay", str(log)]) == 1
    err = capsys.readouterr().err
    assert segment.name in err
    assert "damaged" in err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        pytest.param(["replay", "{nowhere}"], 4, "there is no such file or directory", id="no such place"),
        pytest.param(["replay", "{empty}"], 4, "there is no decision log in it", id="an empty directory"),
        pytest.param(["replay", "{log}", "--from", "yesterday"], 2, "'yesterday' is no time", id="no time"),
        pytest.param(["replay", "{log}", "--from", "1h", "--to", "2h"], 2, "is later than", id="backwards"),
        pytest.param(["history", "jobs", "--log", "{empty}"], 4, "there is no decision log in it", id="nothing to ask"),
        pytest.param(["history", "jobs", "--log", "nowhere://y"], 2, "nowhere://y", id="an unknown URL"),
    ],
)
def test_mistakes(
    words: list[str], code: int, said: str, log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    places = {"nowhere": tmp_path / "nowhere", "empty": tmp_path / "empty", "log": log}
    assert run([word.format(**places) for word in words]) == code
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("what", ["jobs", "runs", "decisions", "waits", "use", "actions", "segments"])
def test_every_table_in_every_form(what: str, log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shapes = []
    for output in ("table", "csv", "json"):
        assert run(["history", what, "--log", str(log), "-o", output]) == 0
        out = capsys.readouterr().out
        match output:
            case "table":
                shapes.append(len(out.splitlines()) - 1)
            case "csv":
                shapes.append(len(list(csv.reader(io.StringIO(out)))) - 1)
            case _:
                shapes.append(len(json.loads(out)))
    assert len(set(shapes)) == 1
    assert shapes[0] > 0 or what == "actions"


def test_jobs_and_runs_at_a_moment(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["history", "jobs", "--log", str(log), "-o", "json"]) == 0
    jobs = {row["job"]: row for row in json.loads(capsys.readouterr().out)}
    assert (jobs["Pod/default/a"]["nodes"], jobs["Pod/default/a"]["outcome"]) == ("n1", "Succeeded")
    assert run(["history", "runs", "--log", str(log), "-o", "json", "--at", str(T + 20)]) == 0
    assert [row["pod"] for row in json.loads(capsys.readouterr().out)] == ["a"]


def test_csv_is_safe_for_spreadsheets(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["history", "runs", "--log", str(log), "-o", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert "'=b" in {row["pod"] for row in rows}


def test_limits_say_so(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["history", "runs", "--log", str(log), "--limit", "1"]) == 0
    assert "the last 1 of 2 rows" in capsys.readouterr().err


def test_sql(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("duckdb", reason="SQL needs duckdb, which is not installed here")
    query = "select pod, outcome, ended - placed as ran from runs where node != '' order by pod"
    assert run(["history", "sql", query, "--log", str(log), "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"pod": "a", "outcome": "Succeeded", "ran": 49.0}]
    assert run(["history", "sql", "select count(*) from decisions", "--log", str(log), "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"count_star()": 2}]


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("select * from nothing", "the tables are runs"),
        ("selekt", "the tables are runs"),
        ("select * from read_text('/etc/hostname')", "the tables are runs"),
        ("", "is not one SELECT"),
        ("select 1; select 2", "is not one SELECT"),
        ("drop table runs", "is not one SELECT"),
        ("select * from range(1000001)", "more than 1,000,000 rows"),
    ],
)
def test_sql_that_is_refused(query: str, says: str, log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("duckdb", reason="SQL needs duckdb, which is not installed here")
    assert run(["history", "sql", query, "--log", str(log)]) == 1
    assert says in capsys.readouterr().err


def test_without_duckdb_only_sql_is_missing(
    log: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    assert run(["history", "sql", "select 1", "--log", str(log)]) == 1
    assert "install muster[history]; the other tables work without it" in capsys.readouterr().err
    assert run(["history", "jobs", "--log", str(log)]) == 0
