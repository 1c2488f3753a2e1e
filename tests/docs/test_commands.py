"""What the documentation tells people to type is typed here.

On every page, the ```sh blocks run in order in one scratch directory, with a Muster of the page's own running and
KUBECONFIG set; ```python blocks run the same way. A ```shell block is not run from here: it must be in `COVERED_ELSEWHERE`,
which names what does run it; a line `muster up OPTIONS` in it starts the page's Muster anew, with these options. Other fences
(text, yaml, json) are output and files.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.server_process import ServerProcess

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("README*.md"), *ROOT.glob("docs/**/*.md")])
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
RUN = {"sh", "python", "shell"}
BLOCK_TIMEOUT_S = 120

COVERED_ELSEWHERE = {
    "make demo": "tests/e2e/test_demo.py runs tools/demo.py",
    "make demo KEEP=1": "tests/e2e/test_demo.py runs tools/demo.py --keep",
    "make test": "continuous integration runs it",
    "make test-fast": "a part of make test",
    "make lint": "continuous integration runs it",
    "muster simulate --trace trace2.csv --format philly --cluster 48x8 --placement counts --estimates oracle --policy balanced "
    "--json": "tests/sim/test_trace_simulation.py runs the trace where it is",
    "make bench": "tests/bench/test_api.py runs it at a small scale",
    "make soak": "the same tests as make test, at full count",
    "make setup": "a part of make test",
    "source .venv/bin/activate": "this file puts the same directory on PATH",
}


def _blocks(page: Path, languages: set[str]) -> list[tuple[str, str]]:
    return [(language, body) for language, body in FENCE.findall(page.read_text()) if language in languages]


def _pages_with_commands() -> list[Path]:
    """Of pages that say the same commands in several languages, the first."""
    found = {str(_blocks(page, RUN)): page for page in reversed(PAGES) if _blocks(page, {"sh", "python"})}
    return sorted(found.values())


@pytest.mark.slow
@pytest.mark.parametrize("page", _pages_with_commands(), ids=lambda page: str(page.relative_to(ROOT)))
async def test_commands_of_the_page_work(page: Path, tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "data")
    is_up = False
    try:
        scratch = tmp_path / "scratch"
        scratch.mkdir()
        (scratch / "examples").symlink_to(ROOT / "examples")
        environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "KUBECONFIG": str(server.data_dir / "kubeconfig"),
            "HOME": str(scratch),
        }
        for language, body in _blocks(page, RUN):
            plainly: list[list[str]] = [] if is_up else [[]]
            for options in _options(body) if language == "shell" else plainly:
                if is_up:
                    await server.stop()
                is_up = True
                await server.start(*options)
            if language == "shell":
                continue
            command = ["bash", "-euo", "pipefail", "-c", body] if language == "sh" else [sys.executable, "-c", body]
            done = await asyncio.to_thread(
                subprocess.run,
                command,
                cwd=scratch,
                env=environment,
                capture_output=True,
                text=True,
                timeout=BLOCK_TIMEOUT_S,
                check=False,
            )
            assert done.returncode == 0, f"{page.name}:\n{body}\nanswered {done.returncode}:\n{done.stdout}{done.stderr}"
    finally:
        if is_up:
            await server.stop()
            await server.end_tasks()


def _options(body: str) -> list[list[str]]:
    """Of each `muster up` in the block."""
    return [shlex.split(line, comments=True)[2:] for line in body.splitlines() if line.startswith("muster up")]


def test_every_command_has_something_that_runs_it() -> None:
    orphans = [
        f"{page.relative_to(ROOT)}: {line}"
        for page in PAGES
        for _, body in _blocks(page, {"shell", "bash", "console"})
        for line in body.strip().splitlines()
        if line.split("#")[0].strip() not in COVERED_ELSEWHERE and not line.startswith(("git clone ", "cd ", "muster up"))
    ]
    assert not orphans, orphans


def test_links_between_pages_lead_somewhere() -> None:
    broken = [
        f"{page.relative_to(ROOT)} -> {target}"
        for page in PAGES
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text())
        if not (page.parent / target).exists()
    ]
    assert not broken, broken
