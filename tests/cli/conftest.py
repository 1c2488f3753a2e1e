"""One real `muster up` for the whole package, and the command line run in this process against it."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from muster.cli import main
from tests.cli.support import Up, environment


class Result(NamedTuple):
    code: int
    out: str
    err: str


Run = Callable[..., Result]


@pytest.fixture(scope="package")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    home = tmp_path_factory.mktemp("home")
    with Up(home / "data", env=environment(home)) as up:
        yield up


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """`run("get", "pods", stdin="...")` in this process: the same code as the program, without its start."""
    for name in [n for n in os.environ if n.startswith(("KUBE", "MUSTER", "XDG_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))

    def invoke(*args: str, stdin: str = "") -> Result:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        capsys.readouterr()
        code = main.run(args)
        out, err = capsys.readouterr()
        return Result(int(code), out, err)

    return invoke


@pytest.fixture
def muster(run: Run, local: Up, monkeypatch: pytest.MonkeyPatch) -> Run:
    """`run` with KUBECONFIG set to the package's server."""
    monkeypatch.setenv("KUBECONFIG", str(local.kubeconfig))
    return run


@pytest.fixture
def namespace(muster: Run, request: pytest.FixtureRequest) -> str:
    """A fresh namespace named after the test."""
    name = "".join(c if c.isalnum() else "-" for c in request.node.name.lower())[:50].strip("-")
    made = muster("apply", "-f", "-", stdin=f"apiVersion: v1\nkind: Namespace\nmetadata: {{name: {name}}}\n")
    assert made.code == 0, made.err
    return name
