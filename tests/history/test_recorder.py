"""The recorder: nothing is lost silently, nobody waits for it, and what it keeps is bounded."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from muster.engine import checkpoint as checkpoints
from muster.engine import events as ev
from muster.history.queries import recent_runs, runs, segments_table
from muster.history.reader import Finding
from muster.history.recorder import HistoryLimits, Recorder
from muster.history.recording import Recorded
from muster.history.records import Action, SegmentName
from muster.history.replaying import replay
from muster.history.retention import superfluous
from muster.history.segments import MAGIC, SegmentDamaged, Sink
from muster.history.stores import DirectoryStore, Stored
from tests.engine.building import node, pod
from tests.history.recording import NEVER, Ticking, log_at, make_engine, maker, recording


def _pods(first: int, count: int) -> list[ev.AnyEvent]:
    return [ev.PodSeen(pod(f"p{n}", cpu="10m")) for n in range(first, first + count)]


def test_a_segment_ends_by_size(tmp_path: Path) -> None:
    limits = HistoryLimits(segment_bytes_max=1_500, block_bytes=500, flush_s=60.0)
    with recording(tmp_path, limits) as recorder:
        recorded = Recorded(make_engine(), recorder, make_engine)
        recorded.step([ev.NodeSeen(node("n1", cpu="64"))], 0.0)
        engines = {id(recorded.engine)}
        for n in range(30):
            recorded.step(_pods(5 * n, 5), float(n))
            recorder.flush()
            recorded.renew_if_due()
            engines.add(id(recorded.engine))
    assert len(log_at(tmp_path).names) > 2
    assert len(engines) == len(log_at(tmp_path).names), "the engine goes on from each checkpoint"
    outcome = replay(log_at(tmp_path), maker())
    assert outcome.is_equal
    assert outcome.steps == 31
    assert not outcome.findings


def test_a_segment_ends_by_age(tmp_path: Path) -> None:
    clock = Ticking()
    with recording(tmp_path, HistoryLimits(segment_s_max=100.0), clock) as recorder:
        recorded = Recorded(make_engine(), recorder, make_engine)
        assert not recorded.renew_if_due()
        clock.now += 100.0
        assert recorded.renew_if_due()
        assert not recorded.renew_if_due()
    assert len(log_at(tmp_path).names) == 2


class Stuck(DirectoryStore):
    """A store that stands still until it is let go on, or fails as long as it is told to."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.gate = threading.Event()
        self.gate.set()
        self.error: OSError | None = None
        self.is_full = False
        """Names can be made, and nothing else."""

    def create(self, name: SegmentName) -> Sink:
        if self.error is not None:
            raise self.error
        store, sink = self, super().create(name)

        class Gated:
            def write(self, data: bytes) -> None:
                store.gate.wait()
                if store.error is not None:
                    raise store.error
                if store.is_full:
                    raise OSError(28, "No space left on device")
                sink.write(data)

            def sync(self) -> None:
                sink.sync()

            def close(self) -> None:
                sink.close()

        return Gated()


def test_more_than_can_be_written_ends_the_segment_honestly(tmp_path: Path) -> None:
    store, clock = Stuck(tmp_path), Ticking()
    recorder = Recorder(store, clock=clock, limits=HistoryLimits(buffer_bytes_max=20_000, block_bytes=1_000))
    recorded = Recorded(make_engine(), recorder, make_engine)
    recorded.step([ev.NodeSeen(node("n1", cpu="64"))], 0.0)
    recorder.flush()
    store.gate.clear()
    for n in range(100):
        recorded.step(_pods(5 * n, 5), float(n))
        assert not recorded.renew_if_due(), "as long as the store stands still, no new segment can begin"
    assert recorder.trouble == "overrun"
    assert recorder._buffered <= 20_000
    store.gate.set()
    assert recorder.flush()
    assert recorded.renew_if_due()
    assert recorder.trouble == ""
    recorded.step(_pods(1_000, 5), 1_000.0)
    recorder.close()

    log = log_at(tmp_path)
    outcome = replay(log, maker())
    assert outcome.is_equal
    assert outcome.segments == 2
    with log.open(log.names[1]) as second:
        lost = second.header.steps_lost
    assert lost > 0
    assert outcome.steps == 102 - lost, "every step is in the log, or counted as lost"
    assert ["ended early: overrun" in f.text or f"{lost} steps before" in f.text for f in outcome.findings] == [True, True]


def test_a_store_that_fails_is_tried_again_later(tmp_path: Path) -> None:
    store, clock = Stuck(tmp_path), Ticking()
    recorder = Recorder(store, clock=clock, limits=HistoryLimits(block_bytes=1, retry_s=10.0))
    recorded = Recorded(make_engine(), recorder, make_engine)
    recorded.step([ev.NodeSeen(node("n1", cpu="64"))], 0.0)
    recorder.flush()
    store.error = OSError(28, "No space left on device")
    recorded.step(_pods(0, 5), 1.0)
    recorder.flush()
    made = recorded.step(_pods(5, 5), 2.0)
    assert len(made) == 5, "the scheduler goes on"
    assert "No space left" in recorder.trouble
    assert not recorded.renew_if_due(), "not before its time"
    clock.now += 11.0
    recorder.flush()
    assert recorded.renew_if_due()
    recorder.flush()
    recorded.step(_pods(10, 5), 3.0)
    assert "No space left" in recorder.trouble
    store.error = None
    clock.now += 11.0
    assert not recorded.renew_if_due(), "the second wait is longer"
    clock.now += 10.0
    recorder.flush()
    assert recorded.renew_if_due()
    recorded.step(_pods(15, 5), 4.0)
    recorder.close()
    log = log_at(tmp_path)
    outcome = replay(log, maker())
    assert outcome.is_equal
    with log.open(log.names[-1]) as last:
        assert last.header.steps_lost == 3
        assert "No space left" in last.header.why_lost
    assert outcome.steps == 2
    assert len(outcome.findings) >= 2


def test_a_segment_that_can_not_be_begun_leaves_nothing_behind(tmp_path: Path) -> None:
    """The disk is full when the file is there already: neither it nor its descriptor stays."""
    store, clock = Stuck(tmp_path), Ticking()
    recorder = Recorder(store, clock=clock, limits=HistoryLimits(block_bytes=1, retry_s=1.0, retry_s_max=1.0))
    recorded = Recorded(make_engine(), recorder, make_engine)
    recorded.step([ev.NodeSeen(node("n1", cpu="64"))], 0.0)
    recorder.flush()
    opened = len(list(Path("/proc/self/fd").iterdir()))
    store.is_full = True
    for n in range(5):
        recorded.step(_pods(n, 1), float(n))
        recorder.flush()
        clock.now += 2.0
        recorded.renew_if_due()
        recorder.flush()
    assert [name.sequence for name in log_at(tmp_path).names] == [1]
    assert len(list(Path("/proc/self/fd").iterdir())) < opened
    store.is_full = False
    recorded.step(_pods(5, 1), 6.0)
    recorder.flush()
    clock.now += 2.0
    assert recorded.renew_if_due()
    recorder.close()
    outcome = replay(log_at(tmp_path), maker())
    assert outcome.is_equal
    assert [name.sequence for name in log_at(tmp_path).names] == [1, 2]
    assert not any("are missing" in finding.text for finding in outcome.findings), "steps are, and no segment is"


def test_a_segment_without_a_beginning_stops_no_reader(tmp_path: Path) -> None:
    """As a kill between the name and the header leaves it, or a power cut: what else is there can be read."""
    with recording(tmp_path) as recorder:
        recorded = Recorded(make_engine(), recorder, make_engine)
        recorded.step([ev.NodeSeen(node("n1", cpu="64")), *_pods(0, 3)], 0.0)
    for n, data in enumerate((b"", MAGIC[:7], MAGIC, MAGIC + b"H")):
        (tmp_path / str(SegmentName("20200101T000000Z", 1, "0123456789abcdef", n + 1))).write_bytes(data)
    outcome = replay(log_at(tmp_path), maker())
    assert (outcome.is_equal, outcome.steps, outcome.decisions) == (True, 1, 3)
    assert ["no whole header" in finding.text for finding in outcome.findings] == [True] * 4
    assert not any(finding.is_loss for finding in outcome.findings)
    told: list[Finding] = []
    assert len(list(runs(log_at(tmp_path), note=told.append))) == 3
    assert len(told) == 4
    assert [row[-1][:24] for row in segments_table(log_at(tmp_path)).rows[:4]] == ["there is no whole header"] * 4  # type: ignore[index]


def test_a_damaged_segment_is_left_out_of_answers_and_said(tmp_path: Path) -> None:
    """Answers go on behind it; who asks without a way to be told gets the error."""
    with recording(tmp_path) as recorder:
        recorded = Recorded(make_engine(), recorder, make_engine)
        for n in range(3):
            recorded.step([ev.NodeSeen(node("n1", cpu="64")), *_pods(n, 1)], float(n))
            recorder.flush()
            kept = checkpoints.take(recorded.engine)
            recorded.engine = checkpoints.restore(kept, make_engine())
            recorder.rotate(kept)
    log = log_at(tmp_path)
    path = tmp_path / str(log.names[1])
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)
    told: list[Finding] = []
    assert {run.pod for run in runs(log, note=told.append)} == {"p0", "p1", "p2"}
    assert [(one.segment, "is damaged: the checksum" in one.text) for one in told] == [(path.name, True)]
    assert {run.name for run in recent_runs(log, 9.0)} == set(), "none has ended, and nothing was raised"
    with pytest.raises(SegmentDamaged, match=path.name):
        list(runs(log))
    with pytest.raises(SegmentDamaged, match=rf"{path.name}: frame \d+ at byte"):
        replay(log, maker())


def test_a_clock_that_is_set_back(tmp_path: Path) -> None:
    """Neither the order of segments nor the next try waits for the time that was."""
    store, clock = Stuck(tmp_path), Ticking()
    recorder = Recorder(store, clock=clock, limits=HistoryLimits(block_bytes=1, retry_s=10.0))
    recorded = Recorded(make_engine(), recorder, make_engine)
    recorded.step([ev.NodeSeen(node("n1", cpu="64"))], 0.0)
    recorder.flush()
    for _ in range(2):
        clock.now -= 86_400.0
        kept = checkpoints.take(recorded.engine)
        recorded.engine = checkpoints.restore(kept, make_engine())
        recorder.rotate(kept)
    recorder.flush()
    assert [name.sequence for name in log_at(tmp_path).names] == [1, 2, 3]
    assert log_at(tmp_path).gaps() == []
    store.error = OSError(28, "No space left on device")
    recorded.step(_pods(0, 1), 1.0)
    recorder.flush()
    recorded.step(_pods(1, 1), 2.0)
    store.error = None
    was_due = recorder.is_due  # which hears of the failure, and gives up
    recorder.flush()
    clock.now -= 86_400.0
    assert (was_due, recorder.is_due) == (False, True)
    recorder.close()


def test_a_checkpoint_larger_than_everything_does_no_harm(tmp_path: Path) -> None:
    """Neither the buffer nor the size of a segment is about it: the log goes on, and does not begin anew at every step."""
    limits = HistoryLimits(segment_bytes_max=200, buffer_bytes_max=10_000, block_bytes=1, flush_s=60.0)
    with recording(tmp_path, limits) as recorder:
        recorded = Recorded(make_engine(), recorder, make_engine)
        renewed = 0
        for n in range(100):
            recorded.step(_pods(n, 5) if n < 50 else [ev.Tick()], float(n))
            recorder.flush()
            renewed += recorded.renew_if_due()
        assert len(checkpoints.encode(checkpoints.take(recorded.engine))) > 10_000
        assert recorder.trouble == ""
    assert 0 < renewed < 30
    outcome = replay(log_at(tmp_path), maker())
    assert outcome.is_equal
    assert outcome.steps == 100
    assert not outcome.findings


def test_actions_wait_for_a_segment(tmp_path: Path) -> None:
    with recording(tmp_path) as recorder:
        recorder.action(Action(1.0, "ann", "create", "jobs.muster.dev", "default", "early"))
        Recorded(make_engine(), recorder, make_engine)
        recorder.action(Action(2.0, "ann", "delete", "jobs.muster.dev", "default", "late"))
    log = log_at(tmp_path)
    with log.open(log.names[0]) as segment:
        assert [action.name for action in segment.actions()] == ["early", "late"]


def did(name: str) -> Action:
    return Action(1.0, "ann", "create", "jobs.muster.dev", "default", name)


def acts_in(path: Path) -> list[list[str]]:
    """By segment: on what somebody acted."""
    log = log_at(path)
    found = []
    for name in log.names:
        with log.open(name) as segment:
            found.append([action.name for action in segment.actions()])
    return found


def test_who_stands_by_keeps_actions_too(tmp_path: Path) -> None:
    """A leader's log and what another process saw meanwhile: the one is not disturbed by the other."""
    clock = Ticking()
    with recording(tmp_path, NEVER, clock) as leader, recording(tmp_path, HistoryLimits(segment_s_max=100.0), clock) as other:
        other.stand_by("second")
        recorded = Recorded(make_engine(), leader, make_engine)
        recorded.step([ev.NodeSeen(node("n1", cpu="64")), *_pods(0, 2)], clock.now)
        clock.now += 1
        other.action(did("a"))
        other.action(did("b"))
        assert other.flush()
        assert acts_in(tmp_path)[1] == ["a", "b"], "without a term of its own"
        clock.now += 100
        other.action(did("c"))
        clock.now += 1
        recorded.step(_pods(2, 1), clock.now)
        leader.finish()
        clock.now += 1
        succeeding = Recorded(make_engine(), other, make_engine, epoch=1)
        other.action(did("d"))
        succeeding.step([ev.NodeSeen(node("n1", cpu="64")), *_pods(0, 3)], clock.now)
        other.finish()
        clock.now += 1
        other.action(did("e"))
    assert acts_in(tmp_path) == [[], ["a", "b"], ["c"], ["d"], ["e"]]
    log = log_at(tmp_path)
    assert not log.gaps()
    outcome = replay(log, maker())
    assert outcome.is_equal
    assert (outcome.steps, outcome.findings) == (3, ())
    assert [run.pod for run in runs(log)] == ["p0", "p1", "p2"], "still there, for whoever reads all segments in turn"
    assert {run.ended for run in runs(log)} == {None}


def test_who_stands_by_goes_on_after_its_store_failed(tmp_path: Path) -> None:
    clock, store = Ticking(), Stuck(tmp_path)
    recorder = Recorder(store, clock=clock, limits=HistoryLimits(flush_s=60.0, retry_s=10.0))
    recorder.stand_by("second")
    store.error = OSError(5, "Input/output error")
    recorder.action(did("lost"))
    recorder.flush()
    store.error = None
    recorder.action(did("waits"))
    clock.now += 10
    recorder.action(did("b"))
    recorder.close()
    assert acts_in(tmp_path) == [["waits", "b"]]


def test_a_step_that_can_not_be_encoded_is_counted(tmp_path: Path) -> None:
    clock = Ticking()
    with recording(tmp_path, NEVER, clock) as recorder:
        recorded = Recorded(make_engine(), recorder, make_engine)
        recorder.step(1.0, None, [ev.Configured({"profiles": object()})], [])
        assert "could not be encoded" in recorder.trouble
        recorder.flush()
        clock.now += 10.0
        assert recorded.renew_if_due()
    log = log_at(tmp_path)
    with log.open(log.names[1]) as segment:
        assert segment.header.steps_lost == 1


def test_a_checkpoint_that_can_not_be_encoded_stops_nobody(tmp_path: Path) -> None:
    with recording(tmp_path) as recorder:
        recorded = Recorded(make_engine(), recorder, make_engine)
        recorded.step([ev.NodeSeen(node("n1"))], 1.0)
        recorder.rotate(checkpoints.Checkpoint(1.0, {"odd": object()}))
        assert "could not be encoded" in recorder.trouble
        assert len(recorded.step(_pods(0, 1), 2.0)) == 1
    assert replay(log_at(tmp_path), maker()).steps == 1


def test_nothing_is_recorded_between_terms(tmp_path: Path) -> None:
    with recording(tmp_path) as recorder:
        recorder.step(1.0, None, [], [])
        assert not recorder.is_due
        recorder.rotate(checkpoints.take(make_engine()))
    assert not log_at(tmp_path).names


def _stored(ages_s: list[float], size: int = 10) -> list[Stored]:
    from datetime import UTC, datetime

    began = [datetime.fromtimestamp(1e9 - age, UTC).strftime("%Y%m%dT%H%M%SZ") for age in ages_s]
    return [Stored(SegmentName(text, 0, "0" * 16, n + 1), size) for n, text in enumerate(began)]


@pytest.mark.parametrize(
    ("limits", "gone"),
    [
        pytest.param(HistoryLimits(), 0, id="all may stay"),
        pytest.param(HistoryLimits(keep_s_max=150.0), 2, id="by age: what the next one's beginning is older than"),
        pytest.param(HistoryLimits(keep_s_max=1.0), 3, id="the last one is never too old"),
        pytest.param(HistoryLimits(keep_segments_max=3), 2, id="by number, with one to come"),
        pytest.param(HistoryLimits(keep_bytes_max=30, segment_bytes_max=10), 2, id="by size, with one to come"),
        pytest.param(HistoryLimits(keep_bytes_max=1, segment_bytes_max=10), 4, id="nothing fits"),
        pytest.param(HistoryLimits(keep_s_max=250.0, segment_s_max=100.0), 1, id="one ends where the next begins"),
    ],
)
def test_retention(limits: HistoryLimits, gone: int) -> None:
    segments = _stored([400.0, 300.0, 200.0, 100.0])
    assert superfluous(segments, limits, 1e9) == [one.name for one in segments[:gone]]


def test_a_clock_that_jumps_ahead_takes_nothing_with_it() -> None:
    segments = _stored([400.0, 300.0, 200.0, 100.0])
    assert superfluous(segments, HistoryLimits(keep_s_max=10_000.0, segment_s_max=1_000.0), 2e9) == []


def test_old_segments_go(tmp_path: Path) -> None:
    limits = HistoryLimits(keep_segments_max=3, flush_s=60.0)
    (tmp_path / "notes.txt").write_text("not ours")
    with recording(tmp_path, limits) as recorder:
        recorded = Recorded(make_engine(), recorder, make_engine)
        for n in range(10):
            recorded.step(_pods(n, 1), float(n))
            recorder.rotate(checkpoints.take(recorded.engine))
            recorded.engine = checkpoints.restore(checkpoints.take(recorded.engine), make_engine())
            recorder.flush()
    names = log_at(tmp_path).names
    assert [name.sequence for name in names] == [9, 10, 11]
    assert (tmp_path / "notes.txt").exists()
    assert replay(log_at(tmp_path), maker()).is_equal


def test_a_missing_segment_is_noticed(tmp_path: Path) -> None:
    with recording(tmp_path, NEVER) as recorder:
        recorded = Recorded(make_engine(), recorder, make_engine)
        for n in range(3):
            recorded.step(_pods(n, 1), float(n))
            kept = checkpoints.take(recorded.engine)
            recorded.engine = checkpoints.restore(kept, make_engine())
            recorder.rotate(kept)
    log = log_at(tmp_path)
    log.store.remove(log.names[1])
    assert ["segments 2 to 2 of its term are missing" in finding.text for finding in log.gaps()] == [True]


def test_segments_are_for_their_owner_only(tmp_path: Path) -> None:
    with recording(tmp_path / "log") as recorder:
        Recorded(make_engine(), recorder, make_engine)
    assert [one.stat().st_mode & 0o777 for one in (tmp_path / "log").iterdir()] == [0o600]
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o700
