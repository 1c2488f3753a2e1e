"""Who has what a limit has none left of, from an engine that has placed work."""

from __future__ import annotations

import pytest

from muster.engine import events as ev
from muster.engine.machine import Engine
from muster.engine.plugins.fit import Fit
from muster.engine.profile import Profile
from muster.engine.work import Work, encode_work
from muster.objects.reasons import Reason, Shortfall, Verdict
from muster.policy.holders import with_holders
from muster.policy.order import PolicyOrder
from tests.engine.building import PROFILE, node, pod
from tests.policy.building import group_facts, queue_facts, user_facts


def work(name: str, user: str, cpu: str, queue: str) -> ev.PodSeen:
    said = Work(job=f"Job/default/{name}", queue=queue, user=user)
    return ev.PodSeen(pod(f"{name}-w-0", cpu=cpu, annotations={"muster.dev/work": encode_work(said)}))


@pytest.fixture(scope="module")
def engine() -> Engine:
    made = Engine([Profile(PROFILE, [Fit()])], order=PolicyOrder())
    made.step(
        [
            ev.NodeSeen(node("n1", cpu="16")),
            ev.UserGroupSeen(group_facts("lab")),
            ev.UserGroupSeen(group_facts("team", parent="lab")),
            ev.UserSeen(user_facts("ann", group="team")),
            ev.UserSeen(user_facts("gil", group="lab")),
            ev.UserSeen(user_facts("eve", group="other")),
            ev.QueueSeen(queue_facts("top", isDefault=True)),
            ev.QueueSeen(queue_facts("q", parent="top")),
            work("a", "ann", "1", "q"),
            work("b", "gil", "3", ""),
            work("c", "eve", "2", "q"),
        ],
        10.0,
    )
    return made


@pytest.mark.parametrize(
    ("subject", "resource", "held"),
    [
        pytest.param("User ann", "cpu", [("default/a", 1000)], id="a user"),
        pytest.param("UserGroup team", "cpu", [("default/a", 1000)], id="a group"),
        pytest.param("UserGroup lab", "cpu", [("default/b", 3000), ("default/a", 1000)], id="a group and those below"),
        pytest.param("UserGroup lab", "jobs", [("default/a", 1), ("default/b", 1)], id="jobs"),
        pytest.param("Queue q", "cpu", [("default/c", 2000), ("default/a", 1000)], id="a queue"),
        pytest.param("Queue top", "cpu", [("default/b", 3000), ("default/c", 2000), ("default/a", 1000)], id="below it"),
        pytest.param("UserGroup nobody", "cpu", [], id="a group of nobody"),
        pytest.param("Node n1", "cpu", [], id="no limit"),
    ],
)
def test_who_holds_it(engine: Engine, subject: str, resource: str, held: list[tuple[str, int]]) -> None:
    short = Shortfall(reason=Reason.GROUP_LIMIT_REACHED, resource=resource, want=1)
    verdict = Verdict(reason=Reason.GROUP_LIMIT_REACHED, subject=subject, shortfalls=(short,))
    [found] = with_holders(engine.state, verdict).shortfalls
    assert [(holder.name, holder.amount) for holder in found.holders] == held
