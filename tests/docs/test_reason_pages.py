"""Every reason code that a controller names is on the page of what it controls: no state without a word about it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from muster.objects.reason_codes import Reason

ROOT = Path(__file__).parents[2]
CONTROLLERS = ROOT / "src" / "muster" / "controllers"
PAGES = {
    "tasks": ("kuscia_task*", "task_kit*", "task_ports", "pod_views"),
    "jobs": ("kuscia_job*", "job_cleanup"),
    "running": ("job", "job_plan", "job_status", "job_pod_facts", "pod_views"),
    "services": ("kuscia_deployment*",),
    "parties": ("domain*",),
}


@pytest.mark.parametrize("page", list(PAGES))
def test_every_reason_is_on_its_page(page: str) -> None:
    files = [path for pattern in PAGES[page] for path in CONTROLLERS.glob(f"{pattern}.py")]
    assert len(files) >= len(PAGES[page]), "a file was renamed: correct PAGES"
    named = {name for path in files for name in re.findall(r"\bReason\.([A-Z_]+)", path.read_text())}
    assert named, "none found: is it still written like this?"
    text = (ROOT / "docs" / f"{page}.md").read_text()
    missing = sorted(Reason[name].value for name in named if f"`{Reason[name].value}`" not in text)
    assert not missing, f"docs/{page}.md does not mention {', '.join(missing)}"
