"""KusciaTask: what the fields of its spec do. Those of a party's template are in `template_cases`."""

from __future__ import annotations

import json

from tests.fields.cases import CROSS, Case, container, container_of, env, has, phase, pods, service
from tests.fields.record import Record

from muster.objects.labels import KusciaAnnotation
from muster.objects.meta import annotations_of
from muster.objects.status import Raw


def _key(name: str) -> str:
    return f"{CROSS}/{name}"


def _status(record: Record, name: str) -> Raw:
    return record.status("KusciaTask", _key(name))


def ended(record: Record, name: str) -> float:
    return record.when("KusciaTask", _key(name), lambda raw: raw.get("status", {}).get("completionTime"))


def initiator(record: Record) -> None:
    assert record.first("TaskResourceGroup", "t-initiator")["spec"]["initiator"] == "bob"
    [resource] = [
        key
        for key in record.keys("TaskResource")
        if record.first("TaskResource", key)["spec"]["pods"] == [{"name": "t-initiator-0"}]
    ]
    assert record.first("TaskResource", resource)["spec"]["initiator"] == "bob"
    for one in (record.first("Pod", "alice/t-initiator-0"), service(record, "alice/t-initiator-0-peer")):
        assert annotations_of(one)[KusciaAnnotation.INITIATOR] == "bob"


def task_input_config(record: Record) -> None:
    assert env(container(record, "t-input"))["TASK_INPUT_CONFIG"] == '{"deep": [1, 2]}'
    rendered = record.first("ConfigMap", "alice/t-input-0-config")["data"]["task.json"]
    assert json.loads(rendered) == {"input": '{"deep": [1, 2]}', "deep": [1, 2]}


def min_reserved_members(record: Record) -> None:
    assert phase(record, "KusciaTask", "t-members") == "Succeeded"
    parties = {one["domainID"]: one["phase"] for one in _status(record, "t-members")["partyTaskStatus"]}
    assert parties["alice"] == "Succeeded"
    assert record.first("TaskResourceGroup", "t-members")["spec"]["minReservedMembers"] == 1


def _phases(record: Record, group: str) -> list[tuple[float, str, int]]:
    found: list[tuple[float, str, int]] = []
    for seen in record.all("TaskResourceGroup", group):
        status = seen.raw.get("status") or {}
        found.append((seen.at, status.get("phase", ""), status.get("retryCount", 0)))
    return found


def resource_reserved_seconds(record: Record) -> None:
    phases = _phases(record, "t-reserved")
    began = next(at for at, name, _ in phases if name == "Reserving")
    gave_up = next(at for at, name, _ in phases if name == "ReserveFailed")
    assert 11 <= gave_up - began <= 20
    assert all(not record.last("Pod", key)["spec"].get("nodeName") for key in record.keys("Pod", "alice/t-reserved-"))


def retry_interval_seconds(record: Record) -> None:
    phases = _phases(record, "t-interval")
    gave_up = next(at for at, name, _ in phases if name == "ReserveFailed")
    again = next(at for at, name, tries in phases if name == "Reserving" and tries == 1)
    assert 19 <= again - gave_up <= 41


def lifecycle_seconds(record: Record) -> None:
    assert (_status(record, "t-lifecycle")["phase"], _status(record, "t-lifecycle")["reason"]) == (
        "Failed",
        "SchedulingTimeout",
    )
    assert 29 <= ended(record, "t-lifecycle") <= 40


def domain_id(record: Record) -> None:
    for party in ("alice", "bob"):
        made = record.last("Pod", f"{party}/t-parties-0")
        assert made["spec"]["nodeSelector"] == {"kuscia.secretflow/namespace": party}
        assert made["spec"]["nodeName"].startswith(party)
    assert (_status(record, "t-stranger")["phase"], _status(record, "t-stranger")["reason"]) == ("Pending", "PartyUnknown")


def app_image_ref(record: Record) -> None:
    images = {one["metadata"]["namespace"]: container_of(one)["image"] for one in pods(record, "t-images")}
    assert images == {"alice": "example/app:1", "bob": "example/slow:1"}
    waits = _status(record, "t-no-image")
    assert (waits["phase"], waits["reason"]) == ("Pending", "AppImageNotFound")
    assert "'not-there'" in waits["message"]


def role(record: Record) -> None:
    assert container_of(record.first("Pod", "alice/t-roles-host-0"))["command"] == ["as-host"]
    guest = container_of(record.first("Pod", "alice/t-roles-guest-0"))
    assert guest["command"] == ["as-guest"]
    define = json.loads(env(guest)["TASK_CLUSTER_DEFINE"])
    assert [one["role"] for one in define["parties"]] == ["host", "guest"]
    assert define["selfPartyIdx"] == 1


def min_reserved_pods(record: Record) -> None:
    assert phase(record, "KusciaTask", "t-least") == "Succeeded"
    nodes = [record.last("Pod", key)["spec"].get("nodeName") for key in record.keys("Pod", "small/t-least-")]
    assert sum(1 for node in nodes if node) >= 2
    began = record.when("KusciaTask", _key("t-least"), has(phase="Running"))
    waiting = [
        key
        for key in record.keys("Pod", "small/t-least-")
        if not any(seen.raw["spec"].get("nodeName") for seen in record.all("Pod", key) if seen.at <= began)
    ]
    assert len(waiting) == 1, "it runs while the third pod waits for room"
    assert "spec.parties[0].minReservedPods" in record.refused["KusciaTask/t-least-too-many"]


def replicas(record: Record) -> None:
    made = pods(record, "t-replicas")
    assert [one["metadata"]["name"] for one in made] == ["t-replicas-0", "t-replicas-1", "t-replicas-2"]
    defines = [json.loads(env(container_of(one))["TASK_CLUSTER_DEFINE"]) for one in made]
    assert [one["selfEndpointIdx"] for one in defines] == [0, 1, 2]
    [endpoints] = [one["endpoints"] for one in defines[0]["parties"][0]["services"]]
    assert endpoints == [f"t-replicas-{n}-peer.alice.svc" for n in range(3)]


def bandwidth_limits(record: Record) -> None:
    name = f"{KusciaAnnotation.BANDWIDTH_LIMIT_PREFIX}bob"
    assert annotations_of(service(record, "alice/t-limits-0-peer"))[name] == "500"
    assert name not in annotations_of(service(record, "bob/t-limits-0-peer"))


def retry(record: Record) -> None:
    status = _status(record, "t-retry")
    assert (status["phase"], status["attempts"]) == ("Succeeded", 3)
    pauses, failed_at = [], 0.0
    for seen in record.all("KusciaTask", _key("t-retry")):
        is_waiting = bool((seen.raw.get("status") or {}).get("retryTime"))
        if is_waiting and not failed_at:
            failed_at = seen.at
        elif failed_at and not is_waiting:
            pauses.append(seen.at - failed_at)
            failed_at = 0.0
    assert len(pauses) == 2
    assert 4 <= pauses[0] < 5.5
    assert 6 <= pauses[1] < 7.5, "8 seconds would be more than backoffSecondsMax"


def active_deadline_seconds(record: Record) -> None:
    assert _status(record, "t-deadline")["reason"] == "RunTimeExceeded"
    began = record.when("KusciaTask", _key("t-deadline"), has(phase="Running"))
    assert 14 <= ended(record, "t-deadline") - began <= 17


CASES = (
    Case(file="spec.initiator", does="the party that schedules; on the reservation, pods and services", check=initiator),
    Case(
        file="spec.taskInputConfig",
        does="handed to the application unchanged: variable `TASK_INPUT_CONFIG`, and to configuration templates",
        check=task_input_config,
    ),
    Case(
        file="spec.scheduleConfig.minReservedMembers",
        does="so many parties must be placed to start, and succeed for the task to succeed; all when left out",
        check=min_reserved_members,
    ),
    Case(
        file="spec.scheduleConfig.resourceReservedSeconds",
        does="how long own parties hold their places for one of another control plane; 30 when left out",
        check=resource_reserved_seconds,
    ),
    Case(
        file="spec.scheduleConfig.retryIntervalSeconds",
        does="least pause before parties of several control planes try again, up to twice that; 30 when left out",
        check=retry_interval_seconds,
    ),
    Case(
        file="spec.scheduleConfig.lifecycleSeconds",
        does="a task that was not placed so long fails with `SchedulingTimeout`; without it, it waits",
        check=lifecycle_seconds,
    ),
    Case(file="spec.parties.domainID", does="the party: namespace and nodes of its pods; waited for", check=domain_id),
    Case(file="spec.parties.appImageRef", does="what the party runs; waited for", check=app_image_ref),
    Case(
        file="spec.parties.role",
        does="which deploy template it runs; in the names of pods and services, and in the cluster definition",
        check=role,
    ),
    Case(
        file="spec.parties.minReservedPods",
        does="so many pods must be placed for the party to start, and succeed for it to succeed; all when left out",
        check=min_reserved_pods,
        refused=("KusciaTask/t-least-too-many",),
    ),
    Case(file="spec.parties.template.replicas", does="number of pods, instead of the AppImage's", check=replicas),
    Case(
        file="spec.parties.bandwidthLimits",
        fields=("spec.parties.bandwidthLimits.destinationID", "spec.parties.bandwidthLimits.limitKBps"),
        does="ceiling towards a peer in KiB/s: annotation `bandwidth-limit-<peer>` on the party's services",
        check=bandwidth_limits,
    ),
    Case(
        file="spec.retry",
        fields=("spec.retry.limit", "spec.retry.backoffSeconds", "spec.retry.backoffSecondsMax"),
        does="how often it is tried again after a failure, the first pause, and the longest (beyond Kuscia)",
        check=retry,
    ),
    Case(
        file="spec.activeDeadlineSeconds",
        does="a task that runs longer fails with `RunTimeExceeded` (beyond Kuscia)",
        check=active_deadline_seconds,
    ),
)
