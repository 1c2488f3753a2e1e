"""`muster simulate` and `muster what-if`, as a user runs them: a trace, its log, the same jobs under another policy."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from muster.cli import simulating
from muster.cli.main import run
from tests.cli.support import environment, muster
from tests.sim.trace_building import CLUSTER, small_trace, write_trace

FIGURES = {
    *("jobs", "jct_mean_h", "jct_p99_h", "jct_max_h", "wait_mean_h", "wait_wide_mean_h"),
    *("preemptions_per_job", "gpu_use", "makespan_d", "wall_s"),
}


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write_trace(tmp_path / "trace.csv", small_trace(15))


def test_a_trace_its_log_and_what_if(trace: Path, tmp_path: Path) -> None:
    env = environment(tmp_path)
    log, report, plots = tmp_path / "log", tmp_path / "r.html", tmp_path / "plots"
    common = ("--trace", str(trace), "--cluster", CLUSTER, "--estimates", "oracle", "--json")
    first = muster("simulate", *common, "--policy", "fifo", "--record", str(log), env=env)
    assert first.returncode == 0, first.stderr
    line = json.loads(first.stdout)
    assert set(line) >= FIGURES
    assert (line["policy"], line["jobs"], line["unstarted"]) == ("fifo", 15, 0)

    both = muster(
        "simulate", *common, "--policy", "fifo", "--policy", "sjf", "--report", str(report), "--plots", str(plots), env=env
    )
    assert both.returncode == 0, both.stderr
    direct = [json.loads(text) for text in both.stdout.splitlines()]
    again = muster("what-if", str(log), "--policy", "sjf", "--json", env=env)
    assert again.returncode == 0, again.stderr
    replayed = [json.loads(text) for text in again.stdout.splitlines()]
    assert [one["policy"] for one in replayed] == ["as it was", "sjf"]
    for mine, theirs in zip(replayed, direct, strict=True):
        assert {name: mine[name] for name in FIGURES - {"wall_s"}} == {name: theirs[name] for name in FIGURES - {"wall_s"}}
    assert report.read_text().startswith("<!doctype html>")
    assert {path.name for path in plots.iterdir()} >= {"waits.svg", "use.svg", "gains.svg", "completion-by-size.svg"}


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        pytest.param(["simulate", "--trace", "T"], 2, "either --cluster NODESxGPUS or --nodes FILE", id="no cluster"),
        pytest.param(
            ["simulate", "--trace", "T", "--cluster", "4by8"], 1, "cluster '4by8': write NODESxGPUS", id="wrong cluster"
        ),
        pytest.param(["simulate", "--trace", "missing", "--cluster", "1x8"], 4, "missing: no such file", id="no trace"),
        pytest.param(
            ["simulate", "--trace", "T", "--cluster", "1x8", "--policy", "best"], 1, "policy 'best': there are", id="policy"
        ),
        pytest.param(
            ["simulate", "--trace", "T", "--cluster", "1x8", "--format", "philly"],
            1,
            "line 1: lacks the column job_id",
            id="format",
        ),
        pytest.param(
            ["simulate", "--trace", "T", "--cluster", "1x8", "--policy", "sjf", "--policy", "easy", "--record", "x"],
            2,
            "--record: one log is of one policy",
            id="a log of two policies",
        ),
        pytest.param(["what-if", "nowhere", "--policy", "sjf"], 4, "nowhere: there is no such file or directory", id="no log"),
        pytest.param(["what-if", "nowhere"], 2, "say what is to be otherwise", id="nothing changed"),
        pytest.param(["what-if", "nope://x/y", "--policy", "sjf"], 2, "history at nope://x/y", id="no such store"),
        pytest.param(["what-if", "T", "--policy", "sjf"], 4, "is no segment of a decision log", id="a trace is no log"),
        pytest.param(
            ["simulate", "--trace", "T", "--cluster", "1x8", "--restart-cost", "nan"], 2, "nan is not a number", id="no number"
        ),
        pytest.param(
            ["simulate", "--trace", "T", "--cluster", "1x8", "--report", "no/such/r.html"],
            2,
            "--report no/such/r.html: there is no directory no/such",
            id="nowhere to write the report",
        ),
        pytest.param(
            ["simulate", "--trace", "T", "--cluster", "1x8", "--config", "T"],
            1,
            "trace.csv: ",
            id="a trace is no configuration",
        ),
        pytest.param(
            ["simulate", "--trace", "T", "--cluster", "1x8", "--config", "no.yaml"], 4, "no.yaml: no such file", id="no file"
        ),
    ],
)
def test_what_is_wrong_is_one_line(
    trace: Path, capfd: pytest.CaptureFixture[str], arguments: list[str], code: int, says: str
) -> None:
    assert run([str(trace) if word == "T" else word for word in arguments]) == code
    said = capfd.readouterr()
    assert said.out == ""
    assert says in said.err
    assert len(said.err.splitlines()) == 1


def test_a_long_run_says_how_far_it_is(trace: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulating, "LINE_EVERY_S", 0.0)
    assert run(["simulate", "--trace", str(trace), "--cluster", CLUSTER, "--policy", "fifo", "--json"]) == 0
    assert all(
        re.fullmatch(r"fifo: [\d,]+ of 15 jobs ended, after \d+ s", line) for line in capfd.readouterr().err.splitlines()
    )


@pytest.mark.slow
def test_ctrl_c_ends_a_run_without_a_word_of_python(trace: Path, tmp_path: Path) -> None:
    """Twenty thousand jobs take longer than anybody waits; the log that was begun stays readable."""
    jobs = "".join(f"j{n},{n},{100 + n % 7},{1 + n % 8}\n" for n in range(20_000))
    trace.write_text("id,submit_s,run_s,gpus\n" + jobs)
    command = [
        sys.executable,
        "-m",
        "muster.cli.main",
        "simulate",
        "--trace",
        str(trace),
        "--cluster",
        CLUSTER,
        "--policy",
        "fifo",
    ]
    with subprocess.Popen([*command, "--record", str(tmp_path / "log")], stderr=subprocess.PIPE) as process:
        while not any((tmp_path / "log").glob("*.mlog")):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"Traceback" not in said
    assert run(["history", "segments", "--log", str(tmp_path / "log")]) == 0


def test_what_stands_behind_damage_is_left_out_and_said(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    trace = write_trace(tmp_path / "trace.csv", small_trace(40))
    log = tmp_path / "log"
    assert run(["simulate", "--trace", str(trace), "--cluster", CLUSTER, "--policy", "fifo", "--record", str(log)]) == 0
    (segment,) = log.glob("*.mlog")
    data = bytearray(segment.read_bytes())
    data[len(data) * 9 // 10] ^= 0xFF
    segment.write_bytes(data)
    capfd.readouterr()
    assert run(["what-if", str(log), "--policy", "sjf", "--json"]) in (0, 1)
    said = capfd.readouterr()
    assert "is damaged" in said.err
    if said.out:
        assert "the rest of this segment is left out" in said.err


def test_a_job_that_never_fits_is_said_and_counted(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text("id,submit_s,run_s,gpus\nhuge,0,10,64\nsmall,1,10,1\n")
    assert run(["simulate", "--trace", str(trace), "--cluster", "1x8", "--json"]) == 0
    said = capfd.readouterr()
    assert said.err == "warning: job huge asks for 64 GPUs and the cluster has 8; it never starts\n"
    assert json.loads(said.out)["unstarted"] == 1
