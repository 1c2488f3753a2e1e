"""The engine as it was at a past moment, and `muster pool --at` on it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from muster.cli import main
from muster.engine import checkpoint as checkpoints
from muster.engine import events as ev
from muster.engine.facts import PodFacts, PoolFacts
from muster.engine.pool_use import uses
from muster.engine.work import Work, encode_work
from muster.history.past import engine_at
from muster.history.recording import Recorded
from muster.objects.labels import Muster
from muster.objects.time import format_time
from tests.engine.building import node, pod
from tests.history.recording import log_at, make_ordered, maker, recording

T = 1_700_000_000.0


def worker(name: str, user: str) -> PodFacts:
    work = Work(job=f"Job/default/{name}", user=user, submitted=T)
    return pod(name, cpu="2", annotations={Muster.WORK: encode_work(work)})


def with_node(one: PodFacts, phase: str = "") -> PodFacts:
    spec = msgspec.structs.replace(one.spec, node_name="n1")
    return msgspec.structs.replace(one, spec=spec, status=msgspec.structs.replace(one.status, phase=phase))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Ann's pod has the node from 5 to 105; then Ben's, in the second segment."""
    pool = msgspec.convert({"metadata": {"name": "east"}, "spec": {"nodes": ["n1"]}}, PoolFacts)
    with recording(tmp_path) as recorder:
        recorded = Recorded(make_ordered(), recorder, make_ordered)
        ann, ben = worker("a", "ann"), worker("b", "ben")
        recorded.step([ev.NodeSeen(node("n1", cpu="3")), ev.PoolSeen(pool)], T)
        recorded.step([ev.PodSeen(ann)], T + 5)
        recorded.step([ev.PodSeen(with_node(ann))], T + 6)
        recorded.step([ev.PodSeen(ben)], T + 20)
        kept = checkpoints.take(recorded.engine)
        recorded.engine = checkpoints.restore(kept, make_ordered())
        recorder.rotate(kept)
        recorded.step([ev.PodSeen(with_node(ann, "Succeeded"))], T + 105)
    return tmp_path


@pytest.mark.parametrize(
    ("at", "users"),
    [
        pytest.param(T - 1, None, id="before all"),
        pytest.param(T, [], id="an empty cluster"),
        pytest.param(T + 5, ["ann"], id="just decided"),
        pytest.param(T + 50, ["ann"], id="between two segments"),
        pytest.param(T + 105, ["ben"], id="the next one's turn"),
        pytest.param(T + 9e6, ["ben"], id="long after"),
    ],
)
def test_who_used_what(place: Path, at: float, users: list[str] | None) -> None:
    engine = engine_at(log_at(place), maker(), at)
    assert (None if engine is None else [use.work.user for use in uses(engine.state, ["n1"])]) == users


def test_the_command(place: Path) -> None:
    arguments = ["pool", "east", "--by", "user", "--history", str(place), "--at"]
    then = CliRunner().invoke(main.cli, [*arguments, format_time(T + 50)])
    assert then.exit_code == 0, then.output
    assert ["ann", "1", "2"] in [line.split()[:3] for line in then.output.splitlines()]
    assert "ben" not in then.output
    early = CliRunner().invoke(main.cli, [*arguments, format_time(T - 50)])
    assert early.exit_code != 0
