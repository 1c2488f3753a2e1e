"""The process runtime of an agent that is not root: user namespaces give it most of what root has, and it says what not."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.agent.process_node import a_directory, needs_root

pytestmark = needs_root  # to become somebody else
SOMEBODY = 2_000_099_999
SCRIPT = Path(__file__).with_name("rootless_agent.py")


def interpreter() -> str:
    """A Python of this version that others may execute."""
    wanted = f"{sys.version_info.major}.{sys.version_info.minor}"
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    for path in (sys.executable, shutil.which(f"python{wanted}", path="/usr/local/bin:/usr/bin"), "/usr/bin/python3"):
        if path and os.path.exists(path):
            try:
                found = subprocess.run(
                    [path, "-c", code], check=False, user=SOMEBODY, group=SOMEBODY, capture_output=True, text=True, cwd="/"
                )
            except PermissionError:
                continue
            if found.returncode == 0 and found.stdout.strip() == wanted:
                return path
    pytest.skip("no Python of this version that another user may execute")


def test_a_task_of_an_ordinary_user() -> None:
    python = interpreter()
    source = Path(__file__).resolve().parents[3] / "src"
    data = a_directory()
    os.chown(data, SOMEBODY, SOMEBODY)
    env = {
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": f"{source}:{sysconfig.get_paths()['purelib']}",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    try:
        done = subprocess.run(
            [python, str(SCRIPT), str(data)], check=False, user=SOMEBODY, group=SOMEBODY, extra_groups=[], env=env, cwd="/",
            text=True, capture_output=True, timeout=120,
        )  # fmt: skip
        if "ModuleNotFoundError" in done.stderr:
            pytest.skip(f"the project's packages are not there for {python}: {done.stderr.splitlines()[-1]}")
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
    finally:
        shutil.rmtree(data)
    assert found["missing"][0] == "process runtime: user"
    if len(found["missing"]) > 1:
        pytest.skip(f"user namespaces are not allowed here: {found['missing']}")
    assert found["lines"] == [
        "in the volume", "refused", str(SOMEBODY), "inside", "2", "refused", "CapEff:\t0000000000000000", "ready",
    ]  # fmt: skip
    assert found["beside"] == "in the volume\n2\n"
    assert found["opened"]["False"] == [6, ["typed", "inside", "not", "a", "tty", "2"]]
    code, words = found["opened"]["True"]
    assert (code, words[:3], words[-1]) == (6, ["typed", "typed", "inside"], "2")
    assert words[3].startswith("/dev/pts/")
    assert found["code"] == 137
