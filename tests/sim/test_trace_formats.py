"""Readers of traces: what they take, what they refuse and how they say it, and that nothing else ever comes out of them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.counts import examples

from muster.sim import trace_formats
from muster.sim.trace_formats import FORMATS, TraceError, TraceJob, read_trace

PHILLY = "job_id,num_gpu,submit_time,iterations,model_name,duration\n"
OPENB = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
    "pod-0,12000,16384,1,460,T4|P100|T4,LS,Running,10,100,40\n"
    "pod-1,6000,12288,2,1000,,BE,Failed,5,65,\n"
)


def written(folder: Path, text: str | bytes, name: str = "trace.csv") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_philly_reads_only_what_a_policy_may_know_and_the_length(tmp_path: Path) -> None:
    path = written(tmp_path, PHILLY + "7,16,2000,999,vgg16,1500000\n8,1,1000,1,a2c,500\n")
    assert read_trace(path, "philly") == [
        TraceJob(id="8", submit_s=1.0, run_s=0.5, gpu_milli=1000, type="a2c", line=3),
        TraceJob(id="7", submit_s=2.0, run_s=1500.0, gpu_milli=16_000, type="vgg16", line=2),
    ]


def test_openb_runs_from_when_it_was_scheduled(tmp_path: Path) -> None:
    second, first = read_trace(written(tmp_path, OPENB), "openb")
    assert (first.id, first.submit_s, first.run_s, first.gpu_milli, first.gpu_models) == ("pod-0", 10, 60, 460, ("P100", "T4"))
    assert (second.id, second.submit_s, second.run_s, second.gpu_milli, second.cpu_milli) == ("pod-1", 5, 60, 2000, 6000)


def test_files_may_be_packed_and_have_a_mark_and_windows_line_ends(tmp_path: Path) -> None:
    plain = PHILLY + "7,16,2000,999,vgg16,1500000\n\n8,1,1000,1,a2c,500\n"
    expected = read_trace(written(tmp_path, plain), "philly")
    windows = b"\xef\xbb\xbf" + plain.replace("\n", "\r\n").encode()
    for data in (windows, gzip.compress(windows)):
        assert read_trace(written(tmp_path, data), "philly") == expected
    line = gzip.compress(b'{"id": "a", "submit_s": 0, "run_s": 1}\n')
    assert [job.id for job in read_trace(written(tmp_path, line, "t.jsonl.gz"), "muster")] == ["a"]


def test_a_file_that_unpacks_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_formats, "FILE_BYTES_MAX", 10_000)
    packed = gzip.compress((PHILLY + "1,1,0,0,m,1\n" * 10_000).encode())
    assert len(packed) < 10_000
    with pytest.raises(TraceError, match="unpacked, it is larger"):
        list(trace_formats.csv_rows(written(tmp_path, packed), ("job_id",)))


def test_muster_is_the_same_as_csv_and_as_json_lines(tmp_path: Path) -> None:
    table = "id,submit_s,run_s,gpus,user,level,preemptible,estimate_s\na,0,60,0.5,ann,2,false,90\nb,1.5,30,4,,,,\n"
    rows = [
        {"id": "a", "submit_s": 0, "run_s": 60, "gpus": 0.5, "user": "ann", "level": 2, "preemptible": False, "estimate_s": 90},
        {"id": "b", "submit_s": 1.5, "run_s": 30.0, "gpus": 4, "user": None},
    ]
    lines = "\n".join(json.dumps(row) for row in rows)
    from_csv = read_trace(written(tmp_path, table), "muster")
    from_json = read_trace(written(tmp_path, lines, "trace.jsonl"), "muster")
    assert [(job.id, job.gpu_milli, job.user, job.preemptible, job.estimate_s) for job in from_csv] == [
        ("a", 500, "ann", False, 90.0),
        ("b", 4000, "", True, None),
    ]
    unnumbered = [[(name, getattr(job, name)) for name in job.__struct_fields__ if name != "line"] for job in from_json]
    assert unnumbered == [[(name, getattr(job, name)) for name in job.__struct_fields__ if name != "line"] for job in from_csv]


@pytest.mark.parametrize(
    ("format_name", "text", "says"),
    [
        pytest.param("philly", "", "lacks the column job_id", id="empty"),
        pytest.param("philly", PHILLY, "holds no job", id="no job"),
        pytest.param("philly", "job_id,num_gpu\n", "lacks the column submit_time, model_name, duration", id="columns missing"),
        pytest.param("philly", PHILLY + "1,2\n", "line 2: 2 values for 6 columns", id="short line"),
        pytest.param("philly", PHILLY.replace(",", ";"), "columns are separated by commas", id="semicolons"),
        pytest.param("philly", PHILLY.replace(",", "\t"), "it has job_id num_gpu", id="tabs"),
        pytest.param("philly", PHILLY.replace("\n", "\r") + "1,1,0,0,m,1\r", "save the file with the line ends", id="only CR"),
        pytest.param("philly", PHILLY.encode("utf-16"), "line 1, byte 1: not UTF-8; save it as UTF-8", id="UTF-16"),
        pytest.param("philly", gzip.compress(PHILLY.encode() * 50)[:40], "damaged or cut off", id="half a gzip"),
        pytest.param("philly", b"\x1f\x8bxx", "damaged or cut off", id="no gzip after all"),
        pytest.param("muster", "id,submit_s,run_s,gpus\na,0,1,0.0004\n", "less than a thousandth", id="next to no GPU"),
        pytest.param("muster", "id,submit_s,run_s\na,0,1000000000000000000\n", "from 0 to 1e+10", id="longer than the world"),
        pytest.param("philly", PHILLY + "1,x,0,0,m,1\n", "line 2, column num_gpu: 'x' must be a whole number", id="no number"),
        pytest.param("philly", PHILLY + "1,1_0,0,0,m,1\n", "column num_gpu: '1_0'", id="underscore"),
        pytest.param("philly", PHILLY + "1,-1,0,0,m,1\n", "column num_gpu: '-1'", id="negative"),
        pytest.param("philly", PHILLY + "1,1,nan,0,m,1\n", "column submit_time: 'nan' must be a number", id="not a number"),
        pytest.param("philly", PHILLY + "1,1,0,0,m,inf\n", "column duration: 'inf'", id="infinite"),
        pytest.param("philly", PHILLY + ",1,0,0,m,1\n", "column job_id: '' must not be empty", id="no id"),
        pytest.param(
            "philly", PHILLY + "1,1,0,0,m,1\n1,1,0,0,m,1\n", "line 3, column job_id: '1' is the job of line 2", id="twice"
        ),
        pytest.param("philly", PHILLY + '1,1,0,0,"m,1\n', "not CSV", id="open quote"),
        pytest.param("philly", PHILLY.encode() + b"\xff,1,0,0,m,1\n", "line 2, byte 1: not UTF-8", id="not text"),
        pytest.param("philly", PHILLY + "1,1,0,0,m\x07,1\n", "column model_name: 'm\\x07'", id="unprintable"),
        pytest.param("philly", PHILLY + "1,1,0,0," + "m" * 70_000 + ",1\n", "line 2: longer than 65536 bytes", id="long line"),
        pytest.param("openb", OPENB.replace(",100,40", ",30,40"), "column deletion_time: '30'", id="ends before it begins"),
        pytest.param("muster", "id,submit_s,run_s,gpu\n", "column 'gpu' is unknown; there are id", id="typing error"),
        pytest.param("muster", "id,submit_s,run_s,id\n", "has the column 'id' twice", id="column twice"),
        pytest.param(
            "muster", "id,submit_s,run_s,preemptible\na,0,1,yes\n", "column preemptible: 'yes' must be true", id="yes"
        ),
        pytest.param("swf", "", "format 'swf': there are philly, openb, muster", id="no such format"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, format_name: str, text: str | bytes, says: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(TraceError) as caught:
        read_trace(path, format_name)
    assert says in str(caught.value)
    assert format_name == "swf" or str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        pytest.param("[1]", "must be an object, not list", id="list"),
        pytest.param("{", "line 1: not JSON", id="half"),
        pytest.param('{"id": "a", "submit_s": 0, "run_s": 1, "runs": 2}', "field 'runs' is unknown", id="unknown field"),
        pytest.param('{"id": "a", "submit_s": 0, "run_s": [1]}', "field run_s: must be a text or a number", id="nested"),
        pytest.param('{"id": "a", "submit_s": 0}', "column run_s: '' must be a number", id="missing"),
        pytest.param("[" * 60_000, "line 1: not JSON", id="deep"),
    ],
)
def test_what_is_wrong_with_a_json_line_is_named(tmp_path: Path, line: str, says: str) -> None:
    with pytest.raises(TraceError, match=r"trace\.jsonl, line 1") as caught:
        read_trace(written(tmp_path, line, "trace.jsonl"), "muster")
    assert says in str(caught.value)


def test_there_is_a_limit_on_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_formats, "JOBS_MAX", 2)
    text = "id,submit_s,run_s\n" + "".join(f"j{n},0,1\n" for n in range(3))
    with pytest.raises(TraceError, match="line 4: more than 2 jobs"):
        read_trace(written(tmp_path, text), "muster")


_HEADERS = [PHILLY, OPENB, "id,submit_s,run_s,gpus,pods,level,estimate_s,gpu_models\n", ""]
_CELLS = st.one_of(
    st.integers().map(str), st.floats().map(str), st.text(max_size=12), st.sampled_from(["", '"', "1e9", "0x1", "٣"])
)
_ROWS = st.lists(st.lists(_CELLS, max_size=12).map(",".join), max_size=6).map("\n".join)


@settings(max_examples=examples(100), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    format_name=st.sampled_from(FORMATS),
    header=st.sampled_from(_HEADERS),
    rows=_ROWS,
    tail=st.binary(max_size=20),
    is_json=st.booleans(),
)
def test_a_reader_gives_jobs_that_hold_or_a_trace_error(
    tmp_path: Path, format_name: str, header: str, rows: str, tail: bytes, is_json: bool
) -> None:
    data = (header + rows).encode("utf-8", "surrogatepass") + tail
    path = written(tmp_path, data, "t.jsonl" if is_json else "t.csv")
    try:
        jobs = read_trace(path, format_name)
    except TraceError:
        return
    assert [job.submit_s for job in jobs] == sorted(job.submit_s for job in jobs)
    for job in jobs:
        assert 0 <= job.run_s <= trace_formats.SECONDS_MAX
        assert 0 <= job.submit_s <= trace_formats.SECONDS_MAX
        assert 0 <= job.gpu_milli <= 1000 * trace_formats.GPUS_MAX
