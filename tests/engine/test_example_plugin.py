"""The example of a third-party plugin: its own tests pass, and installed as a package it is found and placed pods with."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "plugin"

USE = """
from pathlib import Path
from muster.engine import events as ev
from muster.engine.configuration import load
from muster.engine.decisions import Place
from muster.engine.machine import Engine
from muster.engine.registry import discover
from muster.engine.testing import node, pod

registry = discover()
assert not registry.problems, registry.problems
assert "RackBalance" in registry and not registry.is_builtin("RackBalance")
configuration = load(Path("profile.yaml").read_text(), registry)
assert configuration.warnings == (), configuration.warnings
engine = Engine(configuration.build(registry))
gpus = {"nvidia.com/gpu": 4}
nodes = [node(name, labels={"example.com/rack": name[0]}, resources=gpus) for name in ("a1", "a2", "b1")]
running = pod("running", resources={"nvidia.com/gpu": 3}, node="a1")
waiting = pod("waiting", resources={"nvidia.com/gpu": 2}, schedulerName="gpu-scheduler")
large = pod("large", resources={"nvidia.com/gpu": 4}, schedulerName="gpu-scheduler")
seen = [*map(ev.NodeSeen, nodes), *map(ev.PodSeen, (running, waiting, large))]
for events, now in ((seen, 1.0), ([ev.PodGone(running.metadata.uid)], 2.0)):
    for decision in engine.step(events, now):
        if isinstance(decision, Place):
            print(*(f"{one.uid}={one.node}" for one in decision.pods))
"""


def run(*command: str, cwd: Path, path: Path | None = None) -> str:
    environment = {**os.environ, **({"PYTHONPATH": str(path)} if path else {})}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    return Path(shutil.copytree(EXAMPLE, tmp_path / "plugin", ignore=shutil.ignore_patterns("__pycache__", ".*")))


@pytest.mark.slow
def test_its_own_tests_pass(copied: Path) -> None:
    assert "passed" in run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=copied)


@pytest.mark.slow
def test_installed_it_is_found_by_its_entry_point_and_decides(copied: Path, tmp_path: Path) -> None:
    target = tmp_path / "installed"
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index")
    run(*pip, "--disable-pip-version-check", "--target", str(target), str(copied), cwd=tmp_path)
    shutil.rmtree(copied / "muster_rack_balance")
    placed = run(sys.executable, "-c", USE, cwd=copied, path=target).split()
    # Rack b is all free, so it is preferred and keeps 2 of 4. The large one would leave rack a 1 of 8: it waits, until there is
    # more free on a1, and goes to a2 or a1, which are alike then.
    assert placed[0] == "pod-default-waiting=b1"
    assert placed[1:] in (["pod-default-large=a1"], ["pod-default-large=a2"])


def test_the_page_shows_the_example_as_it_is() -> None:
    page = (ROOT / "docs" / "writing-a-plugin.md").read_text()
    blocks = dict(re.findall(r"`examples/plugin/([^`]+)`:\n\n```\w+\n(.*?)```", page, re.DOTALL))
    assert set(blocks) == {
        "muster_rack_balance/__init__.py",
        "tests/test_rack_balance.py",
        "pyproject.toml",
        "profile.yaml",
    }
    for name, text in blocks.items():
        assert text == (EXAMPLE / name).read_text(), f"{name} differs between the page and the example"
