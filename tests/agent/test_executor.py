from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.agent import executor as module
from muster.agent.contracts import AgentError
from muster.agent.executor import Executor, FileOwnedError, KernelFileError, Note
from tests.agent.cgroups.fake import FakeExecutor


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "sys"
    root.mkdir()
    (root / "knob").write_text("old\n")
    (root / "other").write_text("7")
    return root


@pytest.fixture(scope="module")
def quick_disk() -> Iterator[None]:
    """Nothing crashes the machine here, so the disk need not be waited for a thousand times."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda fd: None)
        yield


def test_a_change_is_remembered_and_put_back(root: Path) -> None:
    executor = Executor(root)
    assert executor.change(root / "knob", "new", "part")
    assert (root / "knob").read_text() == "new"
    assert executor.changed() == [root / "knob"]
    assert executor.changed("somebody") == []
    assert executor.restore() == []
    assert (root / "knob").read_text() == "old"
    assert executor.changed() == []


def test_a_new_process_puts_back_what_an_earlier_one_changed(root: Path, tmp_path: Path) -> None:
    journal = tmp_path / "data" / "journal"
    Executor(root, journal).change(root / "knob", "new", "part")
    later = Executor(root, journal)
    assert later.change(root / "knob", "newer", "part")
    latest = Executor(root, journal)
    assert latest.changed("part") == [root / "knob"]
    latest.restore("part")
    assert (root / "knob").read_text() == "old"
    assert Executor(root, journal).changed() == []


def test_a_half_written_line_is_no_change(root: Path, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    Executor(root, journal).change(root / "knob", "new", "part")
    with journal.open("ab") as f:
        f.write(b'{"file": "other", "own')
    later = Executor(root, journal)
    assert later.changed() == [root / "knob"]
    later.restore()
    assert (root / "other").read_text() == "7"
    assert Executor(root, journal).changed() == []


def test_the_note_is_on_disk_before_the_value(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = tmp_path / "journal"

    def crash(path: Path, value: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "_write", crash)
    with pytest.raises(KeyboardInterrupt):
        Executor(root, journal).change(root / "knob", "new", "part")
    monkeypatch.undo()
    later = Executor(root, journal)
    assert later.changed() == [root / "knob"]
    assert later.restore() == []
    assert (root / "knob").read_text() == "old\n"


def test_nothing_is_written_when_the_value_is_there(root: Path) -> None:
    executor = FakeExecutor(root)
    assert not executor.put(root / "knob", "old", "part")
    assert not executor.change(root / "knob", "old", "part")
    assert not executor.put(root / "other", "max", "part", reads_as="7")
    assert executor.log == []
    assert executor.changed() == []


def test_a_file_has_one_owner(root: Path) -> None:
    executor = Executor(root)
    executor.change(root / "knob", "1", "first")
    with pytest.raises(FileOwnedError, match="knob belongs to 'first'; 'second' must not"):
        executor.change(root / "knob", "2", "second")
    with pytest.raises(FileOwnedError):
        executor.put(root / "knob", "2", "second")
    executor.restore("first")
    assert executor.change(root / "knob", "2", "second")


def test_an_owner_is_known_again_after_a_restart(root: Path, tmp_path: Path) -> None:
    Executor(root, tmp_path / "journal").change(root / "knob", "1", "first")
    with pytest.raises(FileOwnedError):
        Executor(root, tmp_path / "journal").change(root / "knob", "2", "second")


def test_words_are_added_and_only_those_taken_out_again(root: Path, tmp_path: Path) -> None:
    (root / "sub").mkdir()
    control = root / "sub" / "cgroup.subtree_control"
    control.write_text("cpu")
    executor = FakeExecutor(root, tmp_path / "journal")
    assert executor.add_words(control, ["cpu", "memory"], "limits")
    assert executor.log == [("sub/cgroup.subtree_control", "+memory")]
    assert not executor.add_words(control, ["memory"], "limits")
    later = FakeExecutor(root, tmp_path / "journal")
    assert later.restore() == []
    assert later.log == [("sub/cgroup.subtree_control", "-memory")]
    assert control.read_text() == "cpu"


def test_an_error_names_file_value_and_what_it_means(root: Path) -> None:
    with pytest.raises(KernelFileError) as caught:
        Executor(root).put(root / "absent", "12", "part")
    assert caught.value.errno == errno.ENOENT
    assert caught.value.reason == "CgroupError"
    assert f"can't write '12' to {root}/absent: No such file or directory (ENOENT): " in caught.value.message


@pytest.mark.parametrize("name", ["../outside", "sub/../../outside"], ids=["up", "down and up"])
def test_nothing_outside_the_root_is_written(root: Path, name: str) -> None:
    (root.parent / "outside").write_text("mine")
    with pytest.raises(AgentError, match="is not under"):
        Executor(root).command(root / name, "x", "part")
    with pytest.raises(AgentError, match="is not under"):
        Executor(root).make(root.parent / "group")
    assert (root.parent / "outside").read_text() == "mine"


def test_what_can_not_be_put_back_is_told_and_stays_noted(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executor = Executor(root)
    executor.change(root / "knob", "new", "part")
    executor.change(root / "other", "8", "part")

    def refuse(path: str, value: str) -> None:
        if Path(path).name == "knob":
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        Path(path).write_text(value)

    monkeypatch.setattr(module, "_write", refuse)
    problems = executor.restore()
    assert ["knob" in p.message and "EBUSY" in p.message for p in problems] == [True]
    assert executor.changed() == [root / "knob"]
    assert (root / "other").read_text() == "7"


def test_a_file_that_is_gone_needs_no_restoring(root: Path, tmp_path: Path) -> None:
    executor = Executor(root, tmp_path / "journal")
    executor.change(root / "knob", "new", "part")
    (root / "knob").unlink()
    assert executor.restore() == []
    assert executor.changed() == []


def test_a_removed_group_is_forgotten(root: Path) -> None:
    executor = FakeExecutor(root)
    group = root / "group"
    assert executor.make(group)
    assert not executor.make(group)
    executor.put(group / "pids.max", "5", "one")
    executor.change(group / "cpu.weight", "5", "one")
    assert executor.unmake(group)
    assert executor.changed() == []
    assert executor.make(group)
    assert executor.put(group / "pids.max", "5", "another")


def test_an_unreadable_journal_directory_is_an_error_and_nothing_is_changed(root: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    executor = Executor(root, tmp_path / "data" / "journal")
    (tmp_path / "data").write_text("")
    with pytest.raises(KernelFileError, match="note the old value"):
        executor.change(root / "knob", "new", "part")
    assert (root / "knob").read_text() == "old\n"
    with pytest.raises(KernelFileError, match=r"can't read .*journal: Not a directory"):
        Executor(root, tmp_path / "file" / "journal")


@pytest.mark.usefixtures("quick_disk")
def test_the_journal_is_bounded(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "JOURNAL_LINES_SLACK", 16)
    executor = Executor(root, tmp_path / "journal")
    for i in range(40):
        executor.change(root / "knob", f"new{i}", "part")
        executor.restore()
    assert len((tmp_path / "journal").read_bytes().splitlines()) <= module.JOURNAL_LINES_SLACK + 3


def test_what_another_agent_changed_first_is_remembered_as_it_was_before_that(root: Path) -> None:
    """And the last one to leave puts it back: the other forgets it and leaves it as it is."""
    one, two = Executor(root), Executor(root)
    one.change(root / "knob", "new", "part")
    assert not two.change(root / "knob", "new", "part", before="old")
    assert one.restore(leave=[root / "knob"]) == []
    assert ((root / "knob").read_text(), one.changed()) == ("new", [])
    assert two.restore() == []
    assert (root / "knob").read_text() == "old"


def test_notes_may_be_kept_elsewhere(root: Path) -> None:
    class Elsewhere:
        def __init__(self, *notes: Note) -> None:
            self.notes = list(notes)
            self.seen: list[str] = []

        def load(self) -> list[Note]:
            return self.notes

        def append(self, note: Note) -> None:
            self.seen.append(f"{note.file} was {note.old}{', done' if note.is_done else ''}")
            assert (root / "knob").read_text() in ("old\n", "old"), "kept before anything is written"

    journal = Elsewhere(Note("other", "part", "6"))
    executor = Executor(root, journal)
    executor.change(root / "knob", "new", "part")
    (root / "knob").write_text("old")
    assert executor.restore() == []
    assert journal.seen == ["knob was old", "knob was old, done", "other was 6, done"]
    assert (root / "other").read_text() == "6"


FILES = ("a", "b", "c")
STEP = st.one_of(
    st.tuples(st.just("change"), st.sampled_from(FILES), st.sampled_from(("0", "1", "2"))),
    st.tuples(st.just("restart"), st.none(), st.none()),
    st.tuples(st.just("restore one"), st.sampled_from(FILES), st.none()),
    st.tuples(st.just("torn"), st.none(), st.none()),
)


@pytest.mark.usefixtures("quick_disk")
@settings(max_examples=60, deadline=None)
@given(st.lists(STEP, max_size=25))
def test_after_any_changes_and_crashes_everything_is_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str | None, str | None]]
) -> None:
    base = tmp_path_factory.mktemp("executor")
    root, journal = base / "root", base / "journal"
    root.mkdir()
    for name in FILES:
        (root / name).write_text("0")
    executor = Executor(root, journal)
    for what, file, value in steps:
        if what == "change" and file and value:
            executor.change(root / file, value, file)
        elif what == "restore one":
            executor.restore(file)
            assert (root / str(file)).read_text() == "0"
        else:
            if what == "torn":
                with journal.open("ab") as f:
                    f.write(b'{"file":"a","owner')
            executor = Executor(root, journal)
    assert Executor(root, journal).restore() == []
    assert [(root / name).read_text() for name in FILES] == ["0"] * 3
