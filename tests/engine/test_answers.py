"""Questions to the engine: right about placed, waiting and hypothetical work, and without a trace."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.engine import events as ev
from muster.engine.answer_values import Question, to_raw
from muster.engine.answers import UnknownWork, answers
from muster.engine.configuration import default_configuration
from muster.engine.decisions import Place, encode
from muster.engine.hypothetical import ManifestError
from muster.engine.machine import Engine
from muster.engine.plugin import Plugin
from muster.engine.plugins.fit import Fit
from muster.engine.pods import PodRecord
from muster.engine.profile import Profile
from muster.engine.registry import discover
from muster.objects.reasons import Reason, Verdict
from tests.engine import tasks_building
from tests.engine.building import PROFILE, node, pod
from tests.engine.test_machine import gang

REGISTRY = discover()


def default_engine(nodes: int = 3, cpu: str = "4", **about: Any) -> Engine:
    """The profile that is in force when nobody configures another."""
    made = Engine(default_configuration(REGISTRY).build(REGISTRY))
    assert PROFILE in made.profiles
    made.step([ev.NodeSeen(node(f"n{i}", cpu=cpu, **about)) for i in range(nodes)], 0.0)
    return made


def manifest(cpu: str = "1", **spec: Any) -> dict[str, Any]:
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}
    return {"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "h"}, "spec": {"containers": [container], **spec}}


def picture(made: Engine) -> dict[str, Any]:
    """Everything in the engine that a decision could depend on."""
    state = made.state
    return {
        "free": state.nodes.free.tolist(),
        "capacity": state.nodes.capacity.tolist(),
        "scoring": state.nodes.scoring_used.tolist(),
        "own": {name: np.asarray(array).tolist() for name, array in state.nodes._own.items()},
        "pods": {uid: (p.node, p.phase, p.shape.number, p.request.tolist(), p.index) for uid, p in state.pods.items()},
        "on": {name: sorted(pods) for name, pods in state.on_node.items()},
        "marks": (dict(state.touched), dict(state.freed), set(state.woken)),
        "table": list(state.table.names),
        "shapes": (len(state.shapes), state.shapes._number),
        "waiting": (list(made.waiting.units), list(made.waiting.parked), sorted(made.holds)),
        "movers": len(state.nodes.movers),
        "verdicts": dict(made.verdicts),
    }


def test_hypothetical_work_goes_where_real_work_would() -> None:
    made = default_engine()
    made.step([ev.PodSeen(pod("r", cpu="2", node="n0"))], 1.0)
    (found,) = answers(made, Question(manifest=manifest()))
    assert found.schedulable
    assert found.state == "hypothetical"
    (place,) = made.step([ev.PodSeen(pod("h", cpu="1"))], 2.0)
    assert isinstance(place, Place)
    assert found.pods[0].node == place.pods[0].node
    assert found.pods[0].score == place.score
    nodes = found.evaluations[0].nodes
    assert [n.node for n in nodes] == ["n1", "n2", "n0"]
    for one in nodes:
        assert sum(part.weight * part.score for part in one.scores) == one.score, one


class _Devices(Plugin):
    name = "Devices"

    def dry_allocate(self, pod: PodRecord, node: str) -> dict[str, object] | Verdict:
        return Verdict(reason=Reason.DEVICE_INSUFFICIENT, message="none free") if node == "n0" else {"gpu": [1]}


def test_what_plugins_would_give_is_shown_and_not_given() -> None:
    made = Engine([Profile(PROFILE, [Fit(), _Devices()])])
    made.step([ev.NodeSeen(node(f"n{i}")) for i in range(2)], 0.0)
    (answer,) = answers(made, Question(manifest=manifest()))
    shown = {one.node: one for one in answer.evaluations[0].nodes}
    assert shown["n1"].allocations == {"Devices": {"gpu": [1]}}
    assert [v.reason for v in shown["n0"].refusals] == [Reason.DEVICE_INSUFFICIENT]


def test_waiting_work_has_each_node_with_what_it_lacks() -> None:
    made = default_engine(2)
    made.step([ev.PodSeen(pod("r", cpu="3", node="n0")), ev.PodSeen(pod("w", cpu="4", nodeSelector={"a": "b"}))], 1.0)
    (found,) = answers(made, Question(key="default/w"))
    assert (found.state, found.schedulable, found.subject) == ("waiting", False, "Pod/default/w")
    assert found.verdict is not None
    assert found.verdict.reason is Reason.NODE_SELECTOR_MISMATCH
    assert found.said is not None
    lacking = {n.node: [v.plugin for v in n.refusals] for n in found.evaluations[0].nodes}
    assert lacking == {"n0": ["NodeAffinity", "NodeResourcesFit"], "n1": ["NodeAffinity"]}
    assert [(r.plugin, r.count, r.nodes) for r in found.evaluations[0].refused] == [("NodeAffinity", 2, ("n0", "n1"))]
    raw = to_raw(found)
    assert raw["verdict"]["remedy"] == Reason.NODE_SELECTOR_MISMATCH.remedy
    assert raw["schedulable"] is False


def test_placed_work_is_asked_about_as_if_it_were_looking_now() -> None:
    made = default_engine(2, cpu="1")
    made.step([ev.PodSeen(pod("p", cpu="1"))], 1.0)
    (found,) = answers(made, Question(key="Pod/default/p"))
    assert (found.state, found.schedulable, found.pods[0].node) == ("placed", True, "n0")
    assert found.evaluations[0].nodes_feasible == 2
    assert found.evaluations[0].nodes[0].node == "n0"


def test_a_gang_says_what_fits_and_leaves_nothing_behind() -> None:
    made = default_engine(2, cpu="2")
    made.step(gang("g", 5), 1.0)
    before = picture(made)
    (found,) = answers(made, Question(key="PodGroup/default/g"))
    assert found.verdict is not None
    assert found.verdict.reason is Reason.GANG_INSUFFICIENT
    assert picture(made) == before
    made.step([ev.NodeSeen(node("n2", cpu="1"))], 2.0)
    (found,) = answers(made, Question(key="default/g"))
    assert found.state == "placed"
    assert sorted(p.node for p in found.pods) == ["n0", "n0", "n1", "n1", "n2"]


def test_preemption_is_shown_and_not_done() -> None:
    made = default_engine(1, cpu="1")
    made.step([ev.PodSeen(pod("low", cpu="1", node="n0"))], 1.0)
    before = picture(made)
    (found,) = answers(made, Question(manifest=manifest(priority=10)))
    assert not found.schedulable
    assert [(v.node, [p.pod for p in v.pods]) for v in found.victims] == [("n0", ["default/low"])]
    assert picture(made) == before
    assert "uid-default-low" in made.state.pods


def test_a_resource_that_nobody_has_is_impossible_and_takes_no_row() -> None:
    made = default_engine()
    before = picture(made)
    asked = manifest()
    asked["spec"]["containers"][0]["resources"]["requests"]["example.com/x"] = 1
    (found,) = answers(made, Question(manifest=asked))
    assert found.verdict is not None
    assert (found.verdict.reason, found.verdict.shortfalls[0].resource) == (Reason.IMPOSSIBLE, "example.com/x")
    assert sum(found.verdict.nodes_by_reason.values()) == 3
    assert picture(made) == before


def test_work_of_others_and_work_that_is_gated() -> None:
    made = default_engine()
    made.step([ev.PodSeen(pod("o", scheduler="other")), ev.PodSeen(pod("g", schedulingGates=[{"name": "x"}]))], 1.0)
    assert [a.state for a in answers(made, Question(key="default/o"))] == ["foreign"]
    (gated,) = answers(made, Question(key="default/g"))
    assert gated.state == "not tried"
    assert gated.verdict is not None
    assert "scheduling gates: x" in gated.verdict.message


@pytest.mark.parametrize("key", ["", "x", "default/nobody", "Job/default/nobody", "a/b/c/d"])
def test_unknown_work(key: str) -> None:
    with pytest.raises(UnknownWork):
        answers(default_engine(), Question(key=key))


JOB = {
    "apiVersion": "muster.dev/v1alpha1",
    "kind": "Job",
    "metadata": {"name": "train"},
    "spec": {
        "roles": [
            {
                "name": "ps",
                "image": "i",
                "resources": {"requests": {"cpu": "1", "bandwidth": "500Mbps"}},
            },
            {"name": "worker", "replicas": 3, "minReplicas": 2, "image": "i", "resources": {"requests": {"cpu": "2"}}},
        ]
    },
}
PARTY = {"domainID": "alice", "role": "host", "resources": {"requests": {"cpu": "2", "bandwidth": "300Mbps"}}}
KUSCIA_JOB = {
    "apiVersion": "kuscia.secretflow/v1alpha1",
    "kind": "KusciaJob",
    "metadata": {"name": "j"},
    "spec": {
        "initiator": "alice",
        "tasks": [{"alias": "a", "appImage": "app", "parties": [PARTY, {**PARTY, "domainID": "bob"}]}],
    },
}
KUSCIA_TASK = {
    "apiVersion": "kuscia.secretflow/v1alpha1",
    "kind": "KusciaTask",
    "metadata": {"name": "t"},
    "spec": {
        "parties": [
            {
                "domainID": "alice",
                "appImageRef": "app",
                "minReservedPods": 1,
                "template": {
                    "replicas": 2,
                    "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "3", "bandwidth": "100Mbps"}}}]},
                },
            }
        ]
    },
}
DEPLOYMENT = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "d"},
    "spec": {"replicas": 2, "template": {"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}}},
}


@pytest.mark.parametrize(
    ("raw", "pods", "feasible"),
    [
        pytest.param(JOB, ["default/train-ps", *(f"default/train-worker-{i}" for i in range(3))], True, id="Job"),
        pytest.param(KUSCIA_JOB, ["alice/j-alice-host", "bob/j-bob-host"], True, id="KusciaJob"),
        pytest.param(KUSCIA_TASK, ["alice/t-alice-0", "alice/t-alice-1"], True, id="KusciaTask"),
        pytest.param(DEPLOYMENT, ["default/d-0", "default/d-1"], True, id="Deployment"),
        pytest.param({"template": DEPLOYMENT["spec"]["template"]}, ["default/hypothetical"], True, id="template"),  # type: ignore[index]
        pytest.param(manifest("5"), [], False, id="too large"),
    ],
)
def test_manifests(raw: dict[str, Any], pods: list[str], feasible: bool) -> None:
    made = default_engine(annotations={"muster.dev/bandwidth": "1Gbps"})
    before = picture(made)
    (found,) = answers(made, Question(manifest=raw))
    assert found.schedulable is feasible, found.verdict
    assert [p.pod for p in found.pods] == pods
    assert picture(made) == before


def test_a_search_that_gives_up_is_not_found_and_not_impossible() -> None:
    """Spread first, the two small pods leave no node for the large one, although there is a way."""
    roles = [
        {"name": name, "replicas": count, "image": "i", "resources": {"requests": {"cpu": cpu}}}
        for name, count, cpu in (("x", 2, "2"), ("y", 1, "4"))
    ]
    made = default_engine(2)
    (found,) = answers(made, Question(manifest={**JOB, "spec": {"roles": roles}}))
    assert found.verdict is not None
    assert found.verdict.reason is Reason.SEARCH_GAVE_UP
    assert found.verdict.reason.value == "NotFound"
    assert sum(found.verdict.nodes_by_reason.values()) == 2
    roles[1]["resources"] = {"requests": {"cpu": "5"}}
    (never,) = answers(made, Question(manifest={**JOB, "spec": {"roles": roles}}))
    assert never.verdict is not None
    assert never.verdict.reason is Reason.IMPOSSIBLE


def test_nodes_that_are_kept_for_others_are_counted_too() -> None:
    made = default_engine(1, cpu="2")
    made.step([ev.PodSeen(pod("low", cpu="2", node="n0")), ev.PodSeen(pod("high", cpu="2", priority=9))], 1.0)
    made.step([ev.PodGone("uid-default-low")], 2.0, units_max=0)
    (found,) = answers(made, Question(manifest=manifest()))
    assert found.verdict is not None
    assert found.verdict.reason is Reason.QUEUE_BLOCKED
    assert found.verdict.nodes_by_reason == {Reason.QUEUE_BLOCKED: 1}
    assert "default/high" in found.verdict.helps[0]
    assert found.evaluations[0].nodes[0].refusals[0].reason is Reason.QUEUE_BLOCKED


def test_a_party_stays_on_its_own_nodes() -> None:
    made = default_engine(annotations={"muster.dev/bandwidth": "1Gbps"})
    taint = {"key": "kuscia.secretflow/agent", "value": "v1", "effect": "NoSchedule"}
    labels, bandwidth = {"kuscia.secretflow/namespace": "alice"}, {"muster.dev/bandwidth": "1Gbps"}
    own = node("alice-1", labels=labels, annotations=bandwidth, taints=[taint])
    made.step([ev.NodeSeen(own)], 1.0)
    (found,) = answers(made, Question(manifest=KUSCIA_JOB))
    assert found.pods[0].node == "alice-1"


def test_an_app_image_says_how_many_pods_share_a_partys_total() -> None:
    made = default_engine(annotations={"muster.dev/bandwidth": "1Gbps"})
    container = {"name": "c", "resources": {"requests": {"memory": "1Gi"}}}
    image = {"spec": {"deployTemplates": [{"role": "host", "replicas": 2, "spec": {"containers": [container]}}]}}
    (found,) = answers(made, Question(manifest=KUSCIA_JOB), {"app": image}.get)
    assert [p.pod for p in found.pods] == [f"{party}/j-{party}-host-{i}" for party in ("alice", "bob") for i in range(2)]
    assert not any("AppImage" in note for note in found.notes)


@pytest.mark.parametrize(
    ("raw", "field"),
    [
        pytest.param({"kind": "Service"}, "kind 'Service'", id="no pods"),
        pytest.param({"kind": "Pod", "spec": {}}, "Pod.spec.containers", id="no containers"),
        pytest.param(
            {"kind": "Pod", "spec": {"containers": [{"resources": 3}]}}, "spec.containers[0].resources", id="wrong type"
        ),
        pytest.param({"apiVersion": "muster.dev/v1alpha1", "kind": "Job", "spec": {}}, "spec.roles", id="no roles"),
        pytest.param({"kind": "Deployment", "spec": {"replicas": 10**6, "template": manifest()}}, "10000", id="too many"),
        pytest.param(
            {**KUSCIA_JOB, "spec": {"tasks": [{"parties": [{"resources": {"requests": {"cpu": "x"}}}]}]}},
            "spec.tasks[0].parties[0].resources.requests.cpu",
            id="no quantity",
        ),
    ],
)
def test_manifests_that_can_not_be_read(raw: dict[str, Any], field: str) -> None:
    with pytest.raises(ManifestError) as caught:
        answers(default_engine(), Question(manifest=raw))
    assert field in str(caught.value)


small = st.integers(min_value=0, max_value=4)


@settings(max_examples=40, deadline=None)
@given(
    running=st.lists(st.tuples(st.integers(0, 2), small, st.booleans()), max_size=5),
    waiting=st.lists(st.tuples(small, st.integers(0, 2)), max_size=4),
    size=st.integers(1, 6),
    cpu=small,
    later=st.integers(1, 4),
)
def test_asking_changes_nothing(
    running: list[tuple[int, int, bool]], waiting: list[tuple[int, int]], size: int, cpu: int, later: int
) -> None:
    def made() -> Engine:
        engine = default_engine(3, cpu="4", annotations={"muster.dev/bandwidth": "1Gbps"})
        there = [
            pod(f"r{i}", cpu=str(c), node=f"n{at}", labels={"app": "x"} if has_label else {})
            for i, (at, c, has_label) in enumerate(running)
        ]
        engine.step([ev.PodSeen(p) for p in there], 1.0)
        new = [pod(f"w{i}", cpu=str(c), priority=level) for i, (c, level) in enumerate(waiting)]
        engine.step([*(ev.PodSeen(p) for p in new), *gang("g", size, cpu=str(cpu + 1))], 2.0)
        return engine

    asked, silent = made(), made()
    before = picture(asked)
    assert before == picture(silent)
    work = {**JOB, "spec": {"roles": [{**JOB["spec"]["roles"][1], "replicas": size}]}}  # type: ignore[index]
    for question in (
        Question(manifest=work),
        Question(manifest=manifest(str(cpu), priority=5)),
        *(Question(key=f"default/{p.name}") for p in list(asked.state.pods.values())),
        Question(key="default/g"),
    ):
        assert answers(asked, question)
        assert picture(asked) == before, question
    end = [ev.PodGone(f"uid-default-r{i}") for i in range(len(running))]
    new = ev.PodSeen(pod("later", cpu=str(later)))
    after = [[encode(d) for d in engine.step([*end, new], 3.0)] for engine in (asked, silent)]
    assert after[0] == after[1]


def test_a_gang_is_not_told_to_wait_for_itself() -> None:
    made = default_engine(2, cpu="2")
    made.step(gang("g", 5), 1.0)
    (found,) = answers(made, Question(key="PodGroup/default/g"))
    assert found.verdict is not None
    assert "a minimum of 4 would start now" in found.verdict.helps
    assert not [text for text in found.verdict.helps if "when these end" in text]


@pytest.mark.parametrize(
    "about",
    [
        pytest.param({"annotations": {"gang.scheduling.koordinator.sh/name": "g"}}, id="annotation"),
        pytest.param({"labels": {"pod-group.scheduling.sigs.k8s.io": "g"}}, id="label"),
    ],
)
def test_a_member_of_a_gang_is_said_to_be_tried_alone(about: dict[str, Any]) -> None:
    raw = manifest(schedulerName=PROFILE)
    raw["metadata"] |= about
    (found,) = answers(default_engine(), Question(manifest=raw))
    assert [note for note in found.notes if note.startswith("tried alone")]


def test_what_a_shadow_decided_is_said_not_to_be_bound() -> None:
    made = Engine([Profile(PROFILE, [Fit()], is_shadow=True)])
    made.step([ev.NodeSeen(node("n0")), ev.PodSeen(pod("p"))], 0.0)
    (found,) = answers(made, Question(key="Pod/default/p"))
    assert found.notes == (f"profile {PROFILE} is in shadow mode: it decides, and binds nothing",)


@pytest.mark.parametrize("kind", ["KusciaTask", "TaskResourceGroup"])
def test_a_task_is_found_whatever_the_namespaces_of_its_pods(kind: str) -> None:
    made = tasks_building.engine(cpu="1")
    group = tasks_building.task_group("t", tasks_building.party("alice", "a"), tasks_building.party("bob", "b"))
    pods = [tasks_building.task_pod("a", "alice"), tasks_building.task_pod("b", "bob")]
    made.step([group, *tasks_building.seen(*pods)], 1.0)
    (found,) = answers(made, Question(key=f"{kind}/cross-domain/t"))
    assert found.subject == "Task/t"
    assert found.state == "waiting"


def test_a_service_is_found_whatever_the_namespaces_of_its_pods() -> None:
    made = tasks_building.engine(cpu="1")
    pods = [pod("s-0", namespace=party, cpu="2", labels={"kuscia.secretflow/kd-name": "s"}) for party in ("alice", "bob")]
    made.step([ev.PodSeen(one) for one in pods], 1.0)
    found = answers(made, Question(key="KusciaDeployment/cross-domain/s"))
    assert [one.subject for one in found] == ["Pod/alice/s-0", "Pod/bob/s-0"]


def test_what_waits_comes_before_what_is_placed() -> None:
    made = tasks_building.engine(cpu="1")
    pods = [pod(f"s-{i}", cpu=cpu, labels={"kuscia.secretflow/kd-name": "s"}) for i, cpu in enumerate(("1", "2"))]
    made.step([ev.PodSeen(one) for one in pods], 1.0)
    found = answers(made, Question(key="KusciaDeployment/cross-domain/s"))
    assert [(one.subject, one.state) for one in found] == [("Pod/default/s-1", "waiting"), ("Pod/default/s-0", "placed")]


def test_a_gang_is_found_although_it_is_joined_with_another() -> None:
    made = tasks_building.engine(cpu="1")
    settings = {"groups": '["default/a", "default/b"]'}
    pods = [tasks_building.member(gang, f"{gang}{i}", 2, settings=settings) for gang in "ab" for i in range(2)]
    made.step(tasks_building.seen(*pods), 1.0)
    (found,) = answers(made, Question(key="PodGroup/default/b"))
    assert found.subject == "PodGroup/default/a,default/b"
