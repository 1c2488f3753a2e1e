"""What a KusciaDeployment leads to, step by step: ports, services, files, pods, status; and what is left of it in the end."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from tests.controllers.deployments import app_image, deployment, party

from muster.controllers.actions import Action, Create, Delete, Emit, Patch, PatchStatus, Together
from muster.controllers.kuscia_deployment_plan import DeploymentState, plan, refuse
from muster.controllers.kuscia_task_pods import TaskPod
from muster.controllers.parties import Party
from muster.objects.labels import KusciaAnnotation, KusciaLabel, Muster
from muster.objects.status import Raw
from muster.objects.time import format_time
from muster.objects.view import view_of

NOW = 1_800_000_000.0


def stored(raw: Raw, **metadata: Any) -> Raw:
    meta = {"uid": "kd1", "resourceVersion": "5", "finalizers": [Muster.DEPLOYMENT_FINALIZER], **raw["metadata"], **metadata}
    return {**raw, "metadata": meta}


def state_of(raw: Raw, *, images: tuple[Raw, ...] = (app_image(),), **more: Any) -> DeploymentState:
    found = {image["metadata"]["name"]: image for image in images}
    known = {"alice": Party(), "bob": Party(), "carol": Party(is_partner=True)}
    given: dict[str, Any] = {"find_image": found.get, "find_party": known.get, "now": NOW, **more}
    return DeploymentState(deployment=raw, **given)


def flat(actions: Any) -> list[Any]:
    return [one for action in actions for one in (action.actions if isinstance(action, Together) else (action,))]


def created(actions: Any, kind: str) -> list[Raw]:
    return [one.object for one in flat(actions) if isinstance(one, Create) and one.object["kind"] == kind]


def names(objects: list[Raw]) -> list[str]:
    return [f"{one['metadata']['namespace']}/{one['metadata']['name']}" for one in objects]


def status_of(actions: Any) -> Raw:
    return next((one.status for one in flat(actions) if isinstance(one, PatchStatus)), {})


class Settled(msgspec.Struct):
    """A deployment whose ports are given and whose services and files are there."""

    raw: Raw
    services: list[Raw]
    files: list[Raw]
    pods: list[Raw]

    def state(self, pods: list[TaskPod], **more: Any) -> DeploymentState:
        return state_of(self.raw, pods=pods, services=self.services, files=self.files, **more)


def settle(raw: Raw, **more: Any) -> Settled:
    raw = stored(raw)
    first = plan(state_of(raw, **more))
    [write] = first.actions
    assert isinstance(write, Patch)
    raw["metadata"]["annotations"] = {**raw["metadata"]["annotations"], **write.patch["metadata"]["annotations"]}
    second = plan(state_of(raw, **more)).actions
    made = Settled(raw, created(second, "Service"), created(second, "ConfigMap"), created(second, "Pod"))
    for index, one in enumerate((*made.services, *made.files)):
        one["metadata"]["uid"] = f"o{index}"
    return made


def seen(raw: Raw, *, phase: str = "Running", ready: bool | None = None, ago_s: float = 0.0, **metadata: Any) -> TaskPod:
    """A pod as an agent reports it."""
    is_ready = phase == "Running" if ready is None else ready
    since = format_time(NOW - ago_s)
    status: Raw = {
        "phase": phase,
        "startTime": since,
        "conditions": [{"type": "Ready", "status": "True" if is_ready else "False", "lastTransitionTime": since}],
    }
    if phase == "Failed":
        status["containerStatuses"] = [{"name": "main", "state": {"terminated": {"exitCode": 3}}}]
    meta = {**raw["metadata"], "uid": f"p-{raw['metadata']['name']}", "creationTimestamp": since, **metadata}
    return view_of(TaskPod, {"metadata": meta, "spec": {"nodeName": "n1"}, "status": status})


def test_the_finalizer_comes_first() -> None:
    raw = stored(deployment(party("alice")), finalizers=[])
    [action] = plan(state_of(raw)).actions
    assert isinstance(action, Patch)
    assert action.patch["metadata"]["finalizers"] == [Muster.DEPLOYMENT_FINALIZER]


def test_ports_are_written_down_before_anything_is_made() -> None:
    result = plan(state_of(stored(deployment(party("alice"), party("bob")))))
    [action] = result.actions
    assert isinstance(action, Patch)
    assert action.target.resource_version == "5"
    assert result.allocated is not None
    assert [one.domain_id for one in result.allocated] == ["alice", "bob"]
    noted = json.loads(action.patch["metadata"]["annotations"][KusciaAnnotation.ALLOCATED_PORTS])
    assert set(noted[0]["namedPort"]) == {"credit/api", "credit/admin", "credit/debug"}


def test_a_new_port_moves_no_other_one() -> None:
    made = settle(deployment(party("alice")))
    before = json.loads(made.raw["metadata"]["annotations"][KusciaAnnotation.ALLOCATED_PORTS])[0]["namedPort"]
    image = app_image()
    image["spec"]["deployTemplates"][0]["spec"]["containers"][0]["ports"].append({"name": "more"})
    result = plan(state_of(made.raw, images=(image,)))
    assert result.allocated is not None
    after = result.allocated[0].named_port
    assert {key: after[key] for key in before} == before
    assert len(after) == 4


def test_pods_services_and_files_of_each_party() -> None:
    made = settle(deployment(party("alice", 3, role="server"), party("bob", serviceNamePrefix="bobs")))
    pods = names(made.pods)
    assert len(pods) == 5, "bob has what the AppImage says"
    assert all(name.startswith(("alice/credit-server-", "bob/credit-")) for name in pods)
    assert sorted(names(made.services)) == [
        "alice/credit-server-admin",
        "alice/credit-server-api",
        "bob/bobs-admin",
        "bob/bobs-api",
    ]
    assert len(made.files) == 2
    pod = made.pods[0]
    labels, spec = pod["metadata"]["labels"], pod["spec"]
    assert labels[KusciaLabel.DEPLOYMENT_UID] == "kd1"
    assert spec["restartPolicy"] == "Always"
    assert spec["nodeSelector"] == {KusciaLabel.NODE_NAMESPACE: "alice"}
    assert spec["volumes"][0]["configMap"]["name"] == made.files[0]["metadata"]["name"]
    selector = made.services[0]["spec"]["selector"]
    assert selector.items() <= labels.items()
    assert made.services[0]["spec"]["publishNotReadyAddresses"] is False
    rendered = json.loads(made.files[0]["data"]["serve.conf"])
    assert rendered["id"] == "credit"
    define = rendered["cluster"] if isinstance(rendered["cluster"], dict) else json.loads(rendered["cluster"])
    assert [one["name"] for one in define["parties"]] == ["alice", "bob"]
    assert define["parties"][1]["services"][0]["endpoints"] == ["bobs-api.bob.svc"]


@pytest.mark.parametrize(
    ("annotation", "word"),
    [("", "podAntiAffinity"), ("anti-affinity", "podAntiAffinity"), ("affinity", "podAffinity"), ("none", "")],
)
def test_affinity_modes(annotation: str, word: str) -> None:
    notes = {KusciaAnnotation.AFFINITY_MODE: annotation} if annotation else {}
    affinity = settle(deployment(party("alice"), annotations=notes)).pods[0]["spec"].get("affinity", {})
    assert list(affinity) == ([word] if word else [])


def test_the_templates_own_affinity_wins() -> None:
    own: Raw = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}
    made = settle(deployment(party("alice", spec={"affinity": own, "containers": []})))
    assert made.pods[0]["spec"]["affinity"] == own


# -- status -------------------------------------------------------------------------------------------------------------------


def test_available_when_all_are_ready() -> None:
    made = settle(deployment(party("alice"), party("bob", 1)))
    result = plan(made.state([seen(pod) for pod in made.pods]))
    status = status_of(result.actions)
    assert (status["phase"], status["totalParties"], status["availableParties"]) == ("Available", 2, 2)
    entry = status["partyDeploymentStatuses"]["alice"]["credit"]
    assert {
        key: entry[key] for key in ("phase", "replicas", "updatedReplicas", "availableReplicas", "unavailableReplicas")
    } == {
        "phase": "Available",
        "replicas": 2,
        "updatedReplicas": 2,
        "availableReplicas": 2,
        "unavailableReplicas": 0,
    }
    made.raw["status"] = status
    assert not plan(made.state([seen(pod) for pod in made.pods])).actions, "and then there is nothing to do"


@pytest.mark.parametrize(
    ("first", "second", "phase", "message"),
    [
        pytest.param({}, {"phase": "Pending"}, "PartialAvailable", "party alice has 1 of 2 pods ready", id="one is up"),
        pytest.param({"phase": "Pending"}, {"phase": "Pending"}, "Progressing", "0 of 2", id="none is up"),
        pytest.param({"ready": False}, {"ready": False}, "Progressing", "0 of 2", id="none is ready"),
        pytest.param({"phase": "Failed"}, {"phase": "Pending"}, "Failed", "exit code 3", id="one has failed"),
        pytest.param({"phase": "Failed"}, {}, "PartialAvailable", "exit code 3", id="one has failed, one serves"),
    ],
)
def test_phases(first: Raw, second: Raw, phase: str, message: str) -> None:
    made = settle(deployment(party("alice", 2)))
    pods = [seen(made.pods[0], **first), seen(made.pods[1], **second)]
    status = status_of(plan(made.state(pods)).actions)
    assert status["phase"] == phase
    assert message in status["message"]


def test_a_partner_that_says_nothing_is_waited_for() -> None:
    made = settle(deployment(party("alice"), party("carol")))
    assert {name.partition("/")[0] for name in names(made.pods)} == {"alice"}
    pods = [seen(pod) for pod in made.pods]
    status = status_of(plan(made.state(pods)).actions)
    assert status["phase"] == "PartialAvailable"
    assert "carol" in status["message"]
    said = {"carol": {"credit": {"phase": "Available", "availableReplicas": 2}}}
    assert status_of(plan(made.state(pods, partners=said)).actions)["phase"] == "Available"


@pytest.mark.parametrize(
    ("raw", "more", "phase", "reason", "words"),
    [
        pytest.param(
            deployment(party("alice", image="gone")), {}, "Progressing", "AppImageNotFound", "'gone'", id="no AppImage"
        ),
        pytest.param(deployment(party("dave")), {}, "Progressing", "PartyUnknown", "'dave'", id="no Domain"),
        pytest.param(
            deployment(party("alice", strategy={"rollingUpdate": {"maxSurge": "x"}})),
            {},
            "Failed",
            "ManifestInvalid",
            "maxSurge",
            id="strategy",
        ),
        pytest.param(
            deployment(party("alice"), annotations={KusciaAnnotation.AFFINITY_MODE: "far"}),
            {},
            "Failed",
            "ManifestInvalid",
            "anti-affinity",
            id="affinity mode",
        ),
    ],
)
def test_wrong_manifests(raw: Raw, more: Raw, phase: str, reason: str, words: str) -> None:
    result = plan(state_of(stored(raw), **more))
    if result.allocated is not None:  # wrong only in what comes after the ports
        result = plan(state_of(settle_ports(stored(raw), result.actions)))
    status = status_of(result.actions)
    assert (status["phase"], status["reason"]) == (phase, reason)
    assert words in status["message"]
    assert result.requeue_after_s is not None


def settle_ports(raw: Raw, actions: Any) -> Raw:
    [write] = actions
    raw["metadata"]["annotations"] = {**raw["metadata"]["annotations"], **write.patch["metadata"]["annotations"]}
    return raw


def test_trouble_leaves_what_runs_alone() -> None:
    made = settle(deployment(party("alice")))
    result = plan(made.state([seen(pod) for pod in made.pods], find_image=lambda _name: None))
    assert [type(one) for one in flat(result.actions)] == [PatchStatus, Emit]
    assert "2 pods that there are stay" in status_of(result.actions)["message"]


def test_a_service_of_somebody_else_is_not_used() -> None:
    made = settle(deployment(party("alice")))
    taken = frozenset({("alice", "credit-api")})
    result = plan(state_of(made.raw, foreign=taken))
    assert not created(result.actions, "Pod")
    status = status_of(result.actions)
    assert status["reason"] == "DuplicateName"
    assert "Service alice/credit-api" in status["message"]


# -- change -------------------------------------------------------------------------------------------------------------------


def test_a_changed_image_rolls_and_old_files_go_last() -> None:
    made = settle(deployment(party("alice", 2)))
    old = [seen(pod) for pod in made.pods]
    images = (app_image(tag="2"),)
    first = plan(made.state(old, images=images))
    [new] = created(first.actions, "Pod")
    assert new["spec"]["containers"][0]["image"] == "serving:2"
    assert not deletions(first.actions), "the file of the old template is still in use"
    assert len(created(first.actions, "ConfigMap")) == 1
    assert status_of(first.actions)["partyDeploymentStatuses"]["alice"]["credit"]["updatedReplicas"] == 0
    files = [*made.files, *created(first.actions, "ConfigMap")]
    last = plan(state_of(made.raw, pods=[seen(new)], services=made.services, files=files, images=images))
    assert ("ConfigMap", made.files[0]["metadata"]["name"]) in deletions(last.actions)


def deletions(actions: Any) -> list[tuple[str, str]]:
    return [(one.target.kind, one.target.name) for one in flat(actions) if isinstance(one, Delete)]


@pytest.mark.parametrize(("replicas", "more", "less"), [(4, 2, 0), (1, 0, 1), (0, 0, 2)])
def test_scaling_makes_no_new_template(replicas: int, more: int, less: int) -> None:
    made = settle(deployment(party("alice", 2)))
    made.raw["spec"]["parties"][0]["template"]["replicas"] = replicas
    actions: list[Action] = list(plan(made.state([seen(pod) for pod in made.pods])).actions)
    pods = created(actions, "Pod")
    assert len(pods) == more
    assert len([one for one in deletions(actions) if one[0] == "Pod"]) == less
    hashes = {pod["metadata"]["labels"][Muster.TEMPLATE_HASH] for pod in (*made.pods, *pods)}
    assert len(hashes) == 1


def test_a_crashed_pod_is_replaced_after_its_pause() -> None:
    made = settle(deployment(party("alice", 1)))
    early = plan(made.state([seen(made.pods[0], phase="Failed", ago_s=4)]))
    assert early.requeue_after_s == 6.0
    assert not created(early.actions, "Pod")
    late = flat(plan(made.state([seen(made.pods[0], phase="Failed", ago_s=20)])).actions)
    [new] = created(late, "Pod")
    assert new["metadata"]["annotations"][Muster.ATTEMPT] == "2"
    order = [one for one in late if isinstance(one, Create | Delete)]
    assert isinstance(order[0], Create), "its successor has the count before it goes"


def test_a_party_that_left_loses_its_pods_and_services() -> None:
    made = settle(deployment(party("alice", 1), party("bob", 1)))
    made.raw["spec"]["parties"] = made.raw["spec"]["parties"][:1]
    note = json.loads(made.raw["metadata"]["annotations"][KusciaAnnotation.ALLOCATED_PORTS])[:1]
    made.raw["metadata"]["annotations"][KusciaAnnotation.ALLOCATED_PORTS] = json.dumps(note)
    gone = deletions(plan(made.state([seen(pod) for pod in made.pods])).actions)
    assert ("Service", "credit-api") in gone
    assert any(kind == "Pod" for kind, _ in gone)


def test_changed_services_are_put_right() -> None:
    made = settle(deployment(party("alice", 1)))
    made.services[0]["spec"]["selector"] = {"app": "other"}
    del made.services[0]["spec"]["publishNotReadyAddresses"]
    patches = [one for one in plan(made.state([seen(pod) for pod in made.pods])).actions if isinstance(one, Patch)]
    assert [list(one.patch["spec"]) for one in patches] == [["selector"]]


# -- the end ------------------------------------------------------------------------------------------------------------------


def test_the_end_takes_everything_and_then_lets_go() -> None:
    made = settle(deployment(party("alice", 1)))
    made.raw["metadata"]["deletionTimestamp"] = format_time(NOW)
    first = plan(made.state([seen(pod) for pod in made.pods]))
    assert sorted(kind for kind, _ in deletions(first.actions)) == ["ConfigMap", "Pod", "Service", "Service"]
    going = seen(made.pods[0], deletionTimestamp=format_time(NOW))
    assert not plan(state_of(made.raw, pods=[going])).actions, "it waits until the pod is gone"
    last = plan(state_of(made.raw))
    assert last.is_last
    [release] = last.actions
    assert isinstance(release, Patch)
    assert release.patch == {"metadata": {"finalizers": []}}
    made.raw["metadata"]["finalizers"] = ["other/one"]
    assert not plan(state_of(made.raw)).actions


@pytest.mark.parametrize(
    ("is_final", "phase", "reason"),
    [
        pytest.param(True, "Failed", "ManifestInvalid", id="wrong"),
        pytest.param(False, "Progressing", "CreationRefused", id="a quota, for now"),
    ],
)
def test_what_the_server_refuses_is_in_the_status(is_final: bool, phase: str, reason: str) -> None:
    refused = refuse(state_of(stored(deployment(party("alice", 1)))), "no room for Pod x", is_final=is_final)
    status = status_of(refused.actions)
    assert (status["phase"], status["reason"]) == (phase, reason)
    assert "no room for Pod x" in status["message"]
    assert refused.requeue_after_s
    again = stored({**deployment(party("alice", 1)), "status": {k: v for k, v in status.items() if v is not None}})
    assert not refuse(state_of(again), "no room for Pod x", is_final=is_final).actions, "said once"
