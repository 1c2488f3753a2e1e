"""When the control plane was last reached, across restarts and reboots."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.agent.contact import FILE, Contact, since_boot_s


def test_it_counts_from_what_an_earlier_agent_has_noted(tmp_path: Path) -> None:
    first = Contact(tmp_path, "b-1", lambda: 100.0)
    assert first.silent_s == 0
    first.note(90.0)
    assert Contact(tmp_path, "b-1", lambda: 150.0).silent_s == 50, "the later of start and note"
    first.note(140.0)
    assert Contact(tmp_path, "b-1", lambda: 150.0).silent_s == 10


def test_after_a_reboot_there_is_nothing_to_fence(tmp_path: Path) -> None:
    Contact(tmp_path, "b-1", lambda: 1000.0).note(1000.0)
    assert Contact(tmp_path, "b-2", lambda: 5.0).silent_s == 0


@pytest.mark.parametrize("text", ["", "{", '{"boot_id": "b-1"}', '{"boot_id": "b-1", "at_s": 1e9}'])
def test_a_file_that_makes_no_sense_counts_as_now(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    assert Contact(tmp_path, "b-1", lambda: 100.0).silent_s == 0


def test_an_older_note_does_not_turn_back_time(tmp_path: Path) -> None:
    contact = Contact(tmp_path, "b-1", lambda: 100.0)
    contact.note(99.0)
    contact.note(50.0)
    assert contact.last_s == 100.0


def test_a_directory_that_is_gone_stops_nothing(tmp_path: Path) -> None:
    contact = Contact(tmp_path / "gone", "b-1", lambda: 100.0)
    contact.note(101.0)
    assert contact.last_s == 101.0


def test_the_clock_runs_from_boot() -> None:
    assert since_boot_s() > 0
