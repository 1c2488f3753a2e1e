"""What a long-lived process does with memory that it no longer needs."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

_PROGRAM = """
import sys
from pathlib import Path
from muster.controllers.long_runs import tune_for_long_runs

def resident_mib():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 >> 20

if sys.argv[1] == "tuned":
    tune_for_long_runs()
first = bytes(8 << 20)  # one large body: from now on the C library would take smaller ones for small
del first
before = resident_mib()
large, small = [], []
for _ in range(200):
    large.append(bytes(b"x" * 500_000))
    small.append(bytes(2_000))
large.clear()
print(resident_mib() - before)
"""


def _kept_mib(how: str) -> int:
    done = subprocess.run([sys.executable, "-c", _PROGRAM, how], capture_output=True, text=True, timeout=60, check=True)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library keeps memory in its own way")
def test_large_pieces_are_given_back_whatever_small_ones_stay() -> None:
    assert _kept_mib("tuned") < 10
    assert _kept_mib("untouched") > 50, "the C library does it by itself now: there is nothing left to tune"
