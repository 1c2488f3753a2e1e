"""The place where roots are put together: found where others can pass, and gone with the last container."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from muster.agent.runtimes import runc_probe


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands for /run/muster, with nobody but root allowed through to the test's directory."""
    monkeypatch.setattr(runc_probe, "RUN", tmp_path / "run-muster")
    return tmp_path / "run-muster"


def test_what_was_made_is_removed(tmp_path: Path, elsewhere: Path) -> None:
    agent = uuid.uuid4().hex[:8]
    point = elsewhere / agent / "runc" / "root"
    (point / "merged").mkdir(parents=True)
    runc_probe.remove_mount_point(str(point))
    assert not (elsewhere / agent).exists()
    assert elsewhere.exists()


def test_what_others_keep_there_stays(tmp_path: Path) -> None:
    point = tmp_path / "run" / "runc" / "root"
    (point / "merged").mkdir(parents=True)
    (tmp_path / "run" / "runc" / "state").mkdir()
    runc_probe.remove_mount_point(str(point))
    assert not point.exists()
    assert (tmp_path / "run" / "runc" / "state").is_dir()
    runc_probe.remove_mount_point(str(point))
