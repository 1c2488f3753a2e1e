"""ScheduleExplanations on the embedded store: asked with an object, answered in its status, deleted in time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.controllers.scheduling import PROFILE, create, engine_of, node, places, pod
from tests.engine.building import node as node_facts
from tests.engine.building import pod as pod_facts
from tests.policy.building import FIFO, policy_facts, queue_facts
from tests.store.stores import memory_store

from muster.controllers.explanations import Explanations, ExplanationSpec, status_of, ttl_s
from muster.controllers.manager import Manager
from muster.controllers.scheduler import Scheduler
from muster.engine import events as ev
from muster.engine.machine import Engine
from muster.engine.plugins.fit import Fit
from muster.engine.profile import Profile
from muster.engine.work import Work, encode_work
from muster.objects.kinds.koordinator_scheduling import ScheduleExplanationStatus
from muster.objects.status import NotFound, Raw
from muster.objects.view import view_of
from muster.policy.order import PolicyOrder
from muster.sim.clock import current_loop, virtual
from muster.store.contract import Store


@asynccontextmanager
async def answering(store: Store, scheduler: Scheduler | None = None) -> AsyncIterator[Manager]:
    scheduler = scheduler or Scheduler(engine=engine_of)
    manager = Manager(store, [scheduler, Explanations(scheduler.live_engine)], clock=current_loop().clock)
    manager.start()
    try:
        yield manager
    finally:
        await manager.stop()


def explanation(name: str, namespace: str = "default", **spec: Any) -> Raw:
    return {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "ScheduleExplanation",
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    }


async def status(store: Store, name: str, namespace: str = "default") -> Raw:
    resource = await store.resource("scheduling.koordinator.sh", "ScheduleExplanation")
    found: Raw = (await store.get(resource, name, namespace)).get("status") or {}
    return found


def template(cpu: str, **spec: Any) -> Raw:
    found = pod("h", cpu, **spec)
    return {"metadata": {"labels": {"a": "b"}}, "spec": found["spec"]}


@virtual
async def test_a_waiting_pod() -> None:
    async with memory_store() as store, answering(store):
        await create(store, node("n1", "2"), node("n2", "1"), pod("runs", "2"), pod("waits", "2"))
        await asyncio.sleep(5)
        await create(store, explanation("why", questionObjectKey="default/waits"))
        await asyncio.sleep(5)
        found = await status(store, "why")
        view_of(ScheduleExplanationStatus, found)
        assert (found["schedulable"], found["schedulableAfterPreemption"]) == (False, False)
        assert found["failedMessage"].startswith("CPUInsufficient: ")
        assert found["lastUpdateTime"]
        (detail,) = found["detailedExplanation"]
        assert detail["topologyDomain"] == "Pod/default/waits"
        assert detail["scheduleExplanation"]["nodeFailedDetails"] == [
            {
                "failedPlugin": "NodeResourcesFit",
                "reason": "CPUInsufficient",
                "preemptMightHelp": True,
                "failedNodes": ["n1", "n2"],
            }
        ]
        assert "n1 has room when these end: Pod/default/runs" in detail["preemptExplanation"]["failedMessage"]


@virtual
async def test_hypothetical_work_and_whom_it_would_end() -> None:
    async with memory_store() as store, answering(store):
        await create(store, node("n1", "2"), pod("runs", "1"))
        await asyncio.sleep(5)
        await create(
            store,
            explanation("fits", questionObjectTemplate=template("1")),
            explanation("preempts", questionObjectTemplate=template("2", priority=5)),
        )
        await asyncio.sleep(5)
        fits, preempts = await status(store, "fits"), await status(store, "preempts")
        assert fits["schedulable"]
        assert "failedMessage" not in fits
        result = fits["detailedExplanation"][0]["scheduleExplanation"]["feasibleSchedulingResult"]
        assert [one["nodeName"] for one in result] == ["n1"]
        assert (preempts["schedulable"], preempts["schedulableAfterPreemption"]) == (False, True)
        (victims,) = preempts["detailedExplanation"][0]["nodePossibleVictims"]
        assert victims["nodeName"] == "n1"
        assert [(v["namespace"], v["name"]) for v in victims["possibleVictims"]] == [("default", "runs")]
        assert await places(store) == {"runs": "n1"}


@virtual
async def test_an_answer_is_written_once_for_each_state_of_the_question() -> None:
    async with memory_store() as store, answering(store):
        await create(store, node("n1", "2"), explanation("q", questionObjectTemplate=template("3")))
        await asyncio.sleep(5)
        resource = await store.resource("scheduling.koordinator.sh", "ScheduleExplanation")
        before = await store.get(resource, "q", "default")
        assert not before["status"]["schedulable"]
        await asyncio.sleep(600)
        assert await store.get(resource, "q", "default") == before
        await store.update(resource, before | {"spec": {"questionObjectTemplate": template("1")}})
        await asyncio.sleep(5)
        assert (await status(store, "q"))["schedulable"]


@virtual
async def test_answers_are_deleted_when_their_time_is_over() -> None:
    async with memory_store() as store, answering(store):
        await create(
            store,
            node("n1", "2"),
            explanation("short", questionObjectTemplate=template("1"), ttl="10m"),
            explanation("ever", questionObjectTemplate=template("1"), ttl="0"),
            explanation("usual", questionObjectTemplate=template("1")),
        )
        await asyncio.sleep(590)
        assert (await status(store, "short"))["schedulable"]
        await asyncio.sleep(30)
        with pytest.raises(NotFound):
            await status(store, "short")
        await asyncio.sleep(24 * 3600)
        with pytest.raises(NotFound):
            await status(store, "usual")
        assert await status(store, "ever")


@virtual
async def test_while_no_scheduler_runs_the_question_waits() -> None:
    started: list[bool] = []

    class Late(Scheduler):
        def live_engine(self) -> Any:
            return super().live_engine() if started else None

    async with memory_store() as store, answering(store, Late(engine=engine_of)):
        await create(store, node("n1", "2"), explanation("q", questionObjectTemplate=template("1")))
        await asyncio.sleep(60)
        assert await status(store, "q") == {}
        started.append(True)
        await asyncio.sleep(10)
        assert (await status(store, "q"))["schedulable"]


@virtual
@pytest.mark.parametrize(
    ("spec", "words"),
    [
        pytest.param({}, "exactly one of questionObjectKey and questionObjectTemplate", id="no question"),
        pytest.param({"questionObjectKey": "default/nobody"}, "Pod or PodGroup default/nobody", id="unknown"),
        pytest.param({"questionObjectKey": "other/p"}, "can't be asked about from namespace 'default'", id="elsewhere"),
        pytest.param({"questionObjectKey": "a/b/c/d"}, "spec.questionObjectKey: 'a/b/c/d'", id="no key"),
        pytest.param({"questionObjectTemplate": {"spec": {"containers": []}}}, "spec.containers", id="no containers"),
    ],
)
async def test_questions_that_can_not_be_answered(spec: Raw, words: str) -> None:
    async with memory_store() as store, answering(store):
        await create(store, node("n1", "2"), explanation("q", **spec))
        await asyncio.sleep(5)
        found = await status(store, "q")
        assert words in found["failedMessage"]
        assert not found["schedulable"]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        pytest.param("24h", 86_400.0, id="hours"),
        pytest.param("1h30m", 5_400.0, id="two parts"),
        pytest.param("0", None, id="for ever"),
        pytest.param("0s", None, id="no seconds"),
        pytest.param("500ms", 0.5, id="a fraction"),
        pytest.param("soon", 86_400.0, id="no duration"),
        pytest.param("1h x", 86_400.0, id="rest"),
    ],
)
def test_ttl(text: str, seconds: float | None) -> None:
    assert ttl_s(text) == seconds


def test_work_that_waits_in_a_queue_is_told_its_place_and_others_have_no_name() -> None:
    order_engine = Engine([Profile(PROFILE, [Fit()])], order=PolicyOrder())

    def waits(name: str, namespace: str, submitted: float) -> ev.PodSeen:
        work = encode_work(Work(job=f"Job/{namespace}/{name}", queue="q", submitted=submitted))
        return ev.PodSeen(pod_facts(name, namespace=namespace, cpu="2", annotations={"muster.dev/work": work}))

    order_engine.step(
        [
            ev.NodeSeen(node_facts("n1", cpu="1")),
            ev.PolicySeen(policy_facts("p", **FIFO)),
            ev.QueueSeen(queue_facts("q", policy="p")),
            waits("first", "other", 1.0),
            waits("second", "mine", 2.0),
        ],
        10.0,
    )
    spec = ExplanationSpec(question_object_key="mine/second")
    [detail] = status_of(order_engine, spec, "mine", 10.0)["detailedExplanation"]
    assert (detail["place"]["queue"], detail["place"]["position"], detail["place"]["of"]) == ("q", 2, 2)
    assert detail["ahead"] == {"queue": "q", "position": 1, "of": 2, "score": detail["ahead"]["score"], "hidden": True}
    [seen] = status_of(order_engine, spec, "kube-system", 10.0)["detailedExplanation"]
    assert seen["ahead"]["job"] == "Job/other/first"
