"""Every metric that a running Muster shows is on the metrics page, and the page names no other."""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path

from prometheus_client import REGISTRY, generate_latest

from muster import agent
from tests.e2e.server_process import ServerProcess

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"
ELSEWHERE = {"muster_webhook_reviews_total"}
"""Shown by `muster controller` only."""
PREFIXES = ("muster_", "apiserver_", "authentication_")
AGENT = "muster_agent_"
"""Shown by agents only."""


async def test_page_and_server_agree(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "data")
    await server.start()
    try:
        async with server.session() as session, session.get(f"{server.url}/metrics") as answer:
            assert answer.status == 200
            shown = await answer.text()
    finally:
        await server.stop()
    families = {name for name in re.findall(r"^# TYPE (\S+)", shown, re.MULTILINE) if name.startswith(PREFIXES)}
    families = {name for name in families if not name.endswith("_created")}
    assert {name for name in documented() - ELSEWHERE if not name.startswith(AGENT)} == families


def test_page_and_agent_agree() -> None:
    for module in pkgutil.walk_packages(agent.__path__, agent.__name__ + "."):
        if ".shim." not in module.name or module.name.endswith(".client"):
            importlib.import_module(module.name)
    shown = generate_latest(REGISTRY).decode()
    families = {name for name in re.findall(r"^# TYPE (\S+)", shown, re.MULTILINE) if name.startswith(AGENT)}
    families = {name for name in families if not name.endswith("_created")}
    assert {name for name in documented() if name.startswith(AGENT)} == families


def documented() -> set[str]:
    return set(re.findall(r"^\| `(\w+)`", PAGE.read_text(), re.MULTILINE))
