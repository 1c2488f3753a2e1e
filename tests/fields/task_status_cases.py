"""KusciaTask: what its status says, and when."""

from __future__ import annotations

from tests.fields.cases import CROSS, Case, has, phase
from tests.fields.record import Record, Stage
from tests.fields.task_cases import ended

from muster.objects.labels import KusciaLabel, Muster
from muster.objects.status import Raw
from muster.objects.time import format_time, parse_time

_PODS = (
    "podName", "podPhase", "namespace", "nodeName", "message", "terminationLog", "reason", "createTime", "scheduleTime",
    "startTime", "readyTime",
)  # fmt: skip
LOG = "Traceback: no such column"


def _key(name: str) -> str:
    return f"{CROSS}/{name}"


def _status(record: Record, name: str) -> Raw:
    return record.status("KusciaTask", _key(name))


async def running(stage: Stage, name: str) -> None:
    await stage.until("KusciaTask", _key(name), has(phase="Running"))


def phases(record: Record) -> None:
    assert record.values("KusciaTask", _key("t-phase-good"), "status", "phase") == [None, "Pending", "Running", "Succeeded"]
    assert record.values("KusciaTask", _key("t-phase-bad"), "status", "phase") == [None, "Pending", "Running", "Failed"]


async def report(stage: Stage) -> None:
    await running(stage, "t-progress")
    for index, share in enumerate(("0.2", "0.6")):
        change = {"metadata": {"annotations": {Muster.PROGRESS: share}}}
        await stage.patch("Pod", f"alice/t-progress-{index}", change)


def progress(record: Record) -> None:
    found = record.values("KusciaTask", _key("t-progress"), "status", "progress")
    assert 0.4 in found, "the mean of 0.2 and 0.6"
    assert found[-1] == 1


def party_task_status(record: Record) -> None:
    host, guest = _status(record, "t-party-status")["partyTaskStatus"]
    assert (host["domainID"], host["role"], host["phase"]) == ("alice", "host", "Failed"), "ended with the task"
    assert (guest["domainID"], guest["role"], guest["phase"]) == ("bob", "guest", "Failed")
    assert "exit code 7" in guest["message"]
    assert guest["reason"] == "ContainerFailed"
    assert "pod bob/t-party-status-guest-0" in host["message"], "ended because of another party: that is said"
    ran = [
        one["phase"]
        for found in record.values("KusciaTask", _key("t-party-status"), "status", "partyTaskStatus")
        if found
        for one in found
    ]
    assert {"Pending", "Running"} <= set(ran)


def reason(record: Record) -> None:
    waits = _status(record, "t-reason-waits")
    assert waits["phase"] == "Pending"
    assert waits["reason"] not in ("", "Queued"), "what it lacks"
    assert waits["message"]
    failed = _status(record, "t-reason-failed")
    assert failed["reason"] == "ContainerFailed"
    assert "container main ended with exit code 7" in failed["message"]
    assert "alice/t-reason-failed-0" in failed["message"]


def conditions(record: Record) -> None:
    turned: dict[str, list[tuple[str, str]]] = {}
    for seen in record.all("KusciaTask", _key("t-conditions")):
        for one in (seen.raw.get("status") or {}).get("conditions") or ():
            states = turned.setdefault(one["type"], [])
            if not states or states[-1][0] != one["status"]:
                states.append((one["status"], one["lastTransitionTime"]))
            assert one["reason"]
    assert {type_: [state for state, _ in states] for type_, states in turned.items()} == {
        "PortsAllocated": ["True"],
        "ResourceCreated": ["True", "False"],
        "Running": ["False", "True", "False"],
        "Success": ["True"],
        "StatusSynced": ["True"],
    }
    times = [parse_time(at) for _, at in turned["Running"]]
    assert times == sorted(times)
    messages = {one["type"]: one.get("message", "") for one in _status(record, "t-conditions")["conditions"]}
    assert messages["PortsAllocated"] == "1 ports"


async def play_agent(stage: Stage) -> None:
    """A node whose agent is played here, because simulated machines write no logs."""
    world = stage.world
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": format_time(world.clock())}
    labels = {KusciaLabel.NODE_NAMESPACE: "by-hand"}
    await world.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "by-hand", "labels": labels}, "spec": {}})
    capacity = {"cpu": "4", "memory": "8Gi", "pods": "10"}
    node = {"status": {"capacity": capacity, "allocatable": capacity, "conditions": [ready]}}
    await stage.patch("Node", "by-hand", node, group="", subresource="status")
    key = "by-hand/t-pods-failed-0"
    await stage.until("Pod", key, lambda raw: raw["spec"].get("nodeName"))
    ended_with = {"exitCode": 3, "reason": "Error", "message": LOG}
    containers = [
        {"name": "main", "image": "", "imageID": "", "ready": False, "restartCount": 0, "state": {"terminated": ended_with}}
    ]
    await stage.patch("Pod", key, {"status": {"phase": "Failed", "containerStatuses": containers}}, subresource="status")


def pod_statuses(record: Record) -> None:
    key = "alice/t-pods-0"
    history = record.values("KusciaTask", _key("t-pods"), "status", "podStatuses", key)
    assert [one["podPhase"] for one in history if one][-1] == "Succeeded"
    ran = next(one for one in history if one and one["podPhase"] == "Running")
    assert (ran["podName"], ran["namespace"]) == ("t-pods-0", "alice")
    assert ran["nodeName"].startswith("alice")
    moments = [parse_time(ran[one]) for one in ("createTime", "scheduleTime", "startTime", "readyTime")]
    assert moments == sorted(moments)
    assert "reason" not in ran
    failed = _status(record, "t-pods-failed")["podStatuses"]["by-hand/t-pods-failed-0"]
    assert (failed["podPhase"], failed["reason"]) == ("Failed", "ContainerFailed")
    assert failed["message"] == "container main ended with exit code 3"
    assert failed["terminationLog"] == LOG


def service_statuses(record: Record) -> None:
    found = next(one for one in record.values("KusciaTask", _key("t-services"), "status", "serviceStatuses") if one)
    assert set(found) == {"alice/t-services-0-peer", "alice/t-services-0-inner"}, "a Local port has no service"
    [ports] = _status(record, "t-services")["allocatedPorts"]
    for name, scope in (("peer", "Cluster"), ("inner", "Domain")):
        entry = found[f"alice/t-services-0-{name}"]
        assert (entry["namespace"], entry["serviceName"]) == ("alice", f"t-services-0-{name}")
        assert (entry["portName"], entry["scope"]) == (name, scope)
        assert entry["portNumber"] == ports["namedPort"][f"t-services-0/{name}"]
        made = record.first("Service", f"alice/t-services-0-{name}")
        assert entry["portNumber"] == made["spec"]["ports"][0]["port"]
        assert parse_time(entry["createTime"]) >= parse_time(made["metadata"]["creationTimestamp"])


def allocated_ports(record: Record) -> None:
    given = _status(record, "t-ports-a")["allocatedPorts"]
    assert [(one["domainID"], one["role"]) for one in given] == [("alice", "host"), ("bob", "guest")]
    assert set(given[0]["namedPort"]) == {"t-ports-a-host-0/peer", "t-ports-a-host-1/peer"}
    others = _status(record, "t-ports-b")["allocatedPorts"][0]["namedPort"]
    numbers = [*given[0]["namedPort"].values(), *others.values()]
    assert len(set(numbers)) == 4, "in one party, no number twice"
    assert all(20_000 <= number <= 32_766 for number in numbers)
    container = record.first("Pod", "alice/t-ports-a-host-1")["spec"]["containers"][0]
    assert container["ports"][0]["containerPort"] == given[0]["namedPort"]["t-ports-a-host-1/peer"]


async def evict(stage: Stage) -> None:
    """Delete the pod of the second attempt while it runs."""
    await stage.until("KusciaTask", _key("t-attempts"), has(attempts=2))
    await running(stage, "t-attempts")
    await stage.delete("Pod", "alice/t-attempts-0")


def attempts(record: Record) -> None:
    key = _key("t-attempts")
    assert record.values("KusciaTask", key, "status", "attempts") == [None, 1, 2, 3]
    assert record.values("KusciaTask", key, "status", "preemptions") == [None, 1]
    assert record.values("KusciaTask", key, "status", "attainedSeconds") == [None, 0.0], "it saves nothing on the way"
    assert phase(record, "KusciaTask", "t-attempts") == "Succeeded", "what had to give way uses up no retry"
    for seen in record.all("KusciaTask", key):
        status = seen.raw.get("status") or {}
        if status.get("reason") == "BackingOff" and status.get("retryTime"):
            assert parse_time(status["retryTime"]) >= parse_time(status["lastReconcileTime"]) + 4
            break
    else:
        raise AssertionError("it never said when it is tried again")
    assert "retryTime" not in _status(record, "t-attempts")


def times(record: Record) -> None:
    status = _status(record, "t-times")
    began, over = parse_time(status["startTime"]), parse_time(status["completionTime"])
    assert began + 3 <= over, "the application takes three seconds"
    assert parse_time(status["lastReconcileTime"]) == over
    assert ended(record, "t-times") == record.when("KusciaTask", _key("t-times"), has(phase="Succeeded"))


CASES = (
    Case(file="status.phase", does="`Pending`, `Running`, `Succeeded`, `Failed`", check=phases),
    Case(
        file="status.progress",
        does="mean of what the pods report in the annotation `muster.dev/progress`; 1 when all have succeeded",
        check=progress,
        act=report,
    ),
    Case(
        file="status.partyTaskStatus",
        fields=tuple(f"status.partyTaskStatus.{one}" for one in ("domainID", "role", "phase", "reason", "message")),
        does="how each party stands, and what went wrong (the reason code is beyond Kuscia)",
        check=party_task_status,
    ),
    Case(
        file="status.reason",
        fields=("status.reason", "status.message"),
        does="while it waits what it lacks, in the end how it ended: a [reason code](reference/reasons.md), and in words",
        check=reason,
    ),
    Case(
        file="status.conditions",
        fields=tuple(f"status.conditions.{one}" for one in ("type", "status", "reason", "message", "lastTransitionTime")),
        does="`PortsAllocated`, `ResourceCreated`, `Running`, `Success`, `StatusSynced`, as in Kuscia",
        check=conditions,
    ),
    Case(
        file="status.podStatuses",
        fields=tuple(f"status.podStatuses.{one}" for one in _PODS),
        does="each pod: node, phase, times; of one that failed why, and the last 2 KiB of its log",
        check=pod_statuses,
        act=play_agent,
    ),
    Case(
        file="status.serviceStatuses",
        fields=tuple(
            f"status.serviceStatuses.{one}"
            for one in ("namespace", "serviceName", "portName", "portNumber", "scope", "createTime")
        ),
        does="each service of a port with scope Cluster or Domain",
        check=service_statuses,
    ),
    Case(
        file="status.allocatedPorts",
        fields=tuple(f"status.allocatedPorts.{one}" for one in ("domainID", "role", "namedPort")),
        does="the number of each port of each pod, from 20000 to 32766, in one party never twice",
        check=allocated_ports,
    ),
    Case(
        file="status.attempts",
        fields=("status.attempts", "status.preemptions", "status.attainedSeconds", "status.retryTime"),
        does="how often it was started, how often it gave way, what it kept then, when it is tried again (beyond Kuscia)",
        check=attempts,
        act=evict,
    ),
    Case(
        file="status.startTime",
        fields=("status.startTime", "status.completionTime", "status.lastReconcileTime"),
        does="when it was taken up, when it ended, when its status was last written",
        check=times,
    ),
)
_NO_GATEWAY = "for the gateway that serves the service to fill in; there is no gateway yet"
NOTHING = {
    **{f"status.serviceStatuses.{one}": _NO_GATEWAY for one in ("reason", "message", "readyTime")},
    KusciaLabel.TASK_UNSCHEDULABLE: "holds tasks of the bfia protocol back; bfia is not spoken here",
}
