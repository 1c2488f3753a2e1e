from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from muster.cli.errors import CliError, ExitCode, UsageError
from muster.cli.foreground import is_loopback, parse_listen, parse_without, read_scheduler_config
from muster.cli.parts import said

HANGS = """
import asyncio
from muster.cli.foreground import run_foreground

async def work(stop):
    print("ready", flush=True)
    await stop.wait()
    await asyncio.get_running_loop().create_future()

run_foreground(work)
"""
STOPS = """
import asyncio
from muster.cli.foreground import run_foreground

async def work(stop):
    async def forever():
        print("ready", flush=True)
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            print("cleaned up", flush=True)
    assert await stop.unless(forever()) is None
    assert stop.is_set

run_foreground(work)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda n: n.name)
def test_the_first_signal_stops_cleanly(number: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", STOPS], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        child.send_signal(number)
        assert child.stdout.readline() == "cleaned up\n"
        assert child.wait(30) == 0


def test_the_second_signal_stops_at_once() -> None:
    with subprocess.Popen([sys.executable, "-c", HANGS], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        assert child.stdout.readline() == "ready\n"
        child.send_signal(signal.SIGTERM)
        assert "once more" in child.stderr.readline()
        child.send_signal(signal.SIGTERM)
        assert child.wait(30) == ExitCode.INTERRUPTED


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("127.0.0.1:6443", ("127.0.0.1", 6443)),
        ("localhost:0", ("localhost", 0)),
        (":8080", ("", 8080)),
        ("[::1]:6443", ("::1", 6443)),
        ("0.0.0.0:65535", ("0.0.0.0", 65535)),
    ],
)
def test_parse_listen(text: str, parsed: tuple[str, int]) -> None:
    assert parse_listen(text) == parsed


@pytest.mark.parametrize(
    "text", ["", "6443", "host", "host:", "host:x", "host:-1", "host:65536", "::1:6443", "[::1:6443", "host:٣"]
)
def test_parse_listen_refuses(text: str) -> None:
    with pytest.raises(UsageError, match="--listen"):
        parse_listen(text)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("", False),
        ("x.y", False),
    ],
)
def test_is_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


def test_parse_without() -> None:
    known = {"agent": "", "dashboard": ""}
    assert parse_without((), known) == []
    assert parse_without(("agent,dashboard", "agent"), known) == ["agent", "dashboard"]
    with pytest.raises(UsageError, match=r"'server'.*there are: agent, dashboard"):
        parse_without(("server",), known)


def test_parts_are_said_plainly() -> None:
    assert said(["server", "controllers"], []) == "running: server, controllers; not in this release yet: dashboard"
    assert said(["server"], ["controllers", "agent", "dashboard"]) == "running: server; left out: controllers, agent, dashboard"


def test_the_schedulers_file_is_taken_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("apiVersion: muster.dev/v1alpha1\nkind: KubeSchedulerConfiguration\n")
    assert read_scheduler_config(file) == file.read_text()
    assert read_scheduler_config(None) is None


@pytest.mark.parametrize(
    ("content", "needles"),
    [
        pytest.param(None, ["No such file", "name a file that can be read"], id="not there"),
        pytest.param(b"\xff\xfe", ["not text in UTF-8"], id="no text"),
        pytest.param(b"kind: Pod\nprofile: 1\n", ["apiVersion", "kind: ", "profile: "], id="every error is named"),
    ],
)
def test_a_wrong_file_of_the_scheduler_stops_the_start(content: bytes | None, needles: list[str], tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(CliError) as refused:
        read_scheduler_config(file)
    assert all(needle in str(refused.value) for needle in [f"--scheduler-config {file}: ", *needles])
