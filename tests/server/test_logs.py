"""Logs: JSON lines for machines, plain text for whoever reads along at a terminal."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from muster.server import logs


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level, config = root.handlers[:], root.level, structlog.get_config()
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.configure(**config)


def say() -> None:
    logging.getLogger("elsewhere").warning("node %s is silent", "n1")
    logs.logger("here").info("ready", port=6443)
    try:
        raise ValueError("wrong")
    except ValueError:
        logging.getLogger("elsewhere").exception("it failed")


def test_machines_get_one_object_per_line() -> None:
    stream = io.StringIO()
    logs.setup("INFO", stream)
    say()
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(line["level"], line["message"]) for line in lines] == [
        ("warning", "node n1 is silent"),
        ("info", "ready"),
        ("error", "it failed"),
    ]
    assert lines[1]["port"] == 6443
    assert "ValueError: wrong" in lines[2]["exception"]


def test_people_get_text() -> None:
    stream = Terminal()
    logs.setup("INFO", stream)
    say()
    lines = stream.getvalue().splitlines()
    assert lines[:3] == ["warning: node n1 is silent", "info: ready (port=6443)", "error: it failed"]
    assert lines[3].startswith("Traceback")
    assert lines[-1] == "ValueError: wrong"
