"""`examples/queues/from_sacct.py`: what sacct prints becomes a trace that `muster simulate` reads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from muster.sim.trace_formats import read_trace

SCRIPT = Path(__file__).parents[2] / "examples" / "queues" / "from_sacct.py"
HEAD = "id,submit_s,run_s,estimate_s,user,group,queue,gpus,cpu_milli,memory_mib,preemptible"
GOOD = "7|2026-10-01T08:00:00|60|10|ann|lab|gpu|cpu=8,gres/gpu=2,mem=1.50G,node=1"


def convert(*lines: str) -> tuple[list[str], str]:
    done = subprocess.run([sys.executable, str(SCRIPT)], input="\n".join(lines), capture_output=True, text=True, check=True)
    head, *rows = done.stdout.splitlines()
    assert head == HEAD
    return rows, done.stderr


@pytest.mark.parametrize(
    ("line", "row"),
    [
        pytest.param(GOOD, "7,0,60,600,ann,lab,gpu,2,8000,1536,false", id="a job"),
        pytest.param(GOOD.replace("|10|", "|UNLIMITED|"), "7,0,60,,ann,lab,gpu,2,8000,1536,false", id="no limit, no estimate"),
        pytest.param(GOOD.replace("gres/gpu=2,", ""), "7,0,60,600,ann,lab,gpu,0,8000,1536,false", id="no GPU"),
        pytest.param(GOOD.replace("mem=1.50G", "mem=512M"), "7,0,60,600,ann,lab,gpu,2,8000,512,false", id="memory in M"),
    ],
)
def test_a_line(line: str, row: str) -> None:
    assert convert(line)[0] == [row]


def test_the_rest_is_counted_and_the_order_is_that_of_submission(tmp_path: Path) -> None:
    later = GOOD.replace("7|2026-10-01T08:00:00", "3|2026-10-01T09:00:00")
    rows, said = convert(later, GOOD, GOOD.replace("|60|", "|0|"), "nonsense", GOOD.replace("mem=1.50G", "mem=lots"))
    assert [row.split(",")[:2] for row in rows] == [["7", "0"], ["3", "3600"]]
    assert said == "2 jobs; left out: 1 that never ran, 2 lines that can't be read\n"
    (tmp_path / "trace.csv").write_text("\n".join([HEAD, *rows, ""]))
    jobs = read_trace(tmp_path / "trace.csv", "muster")
    assert [(job.id, job.submit_s, job.gpus) for job in jobs] == [("7", 0.0, 2.0), ("3", 3600.0, 2.0)]
