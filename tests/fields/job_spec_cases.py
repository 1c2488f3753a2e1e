"""KusciaJob: what the fields of its spec do."""

from __future__ import annotations

from tests.fields.cases import CROSS, Case, container, container_of, env, has, phase, pods, service
from tests.fields.record import Record, Stage

from muster.objects.labels import KusciaAnnotation, Muster
from muster.objects.meta import annotations_of
from muster.objects.quantity import Quantity
from muster.objects.status import Raw


def _job(record: Record, name: str) -> Raw:
    return record.status("KusciaJob", f"{CROSS}/{name}")


def _task(record: Record, name: str) -> Raw:
    return record.status("KusciaTask", f"{CROSS}/{name}")


def _began(record: Record, task: str) -> float:
    return record.all("KusciaTask", f"{CROSS}/{task}")[0].at


def _ended(record: Record, task: str) -> float:
    return record.when("KusciaTask", f"{CROSS}/{task}", lambda raw: raw.get("status", {}).get("completionTime"))


def _alias(record: Record, job: str, alias: str) -> Raw:
    found: Raw = next(one for one in _job(record, job)["tasks"] if one["alias"] == alias)
    return found


async def accept(stage: Stage, job: str, answer: str = "JobAccepted") -> None:
    """Answer for the party `friend`, as whoever talks to its control plane would."""
    await stage.until("KusciaJob", f"{CROSS}/{job}", has(phase="AwaitingApproval"))
    change = {"status": {"approveStatus": {"friend": answer}}}
    await stage.patch("KusciaJob", f"{CROSS}/{job}", change, subresource="status")


# -- the job -------------------------------------------------------------------------------------------------------------------


def flow_id(record: Record) -> None:
    assert record.last("KusciaJob", f"{CROSS}/flow")["spec"]["flowID"] == "flow-17"
    assert record.last("KusciaJob", "friend/flow")["spec"]["flowID"] == "flow-17", "the partner's copy"
    assert "spec.flowID" in record.refused["change flow"]
    assert "only maxParallelism may change" in record.refused["change flow"]


async def change_flow(stage: Stage) -> None:
    await stage.until("KusciaJob", f"{CROSS}/flow", has(phase="AwaitingApproval"))
    await stage.refused("change flow", stage.patch("KusciaJob", f"{CROSS}/flow", {"spec": {"flowID": "flow-18"}}))


def initiator(record: Record) -> None:
    assert record.first("KusciaTask", f"{CROSS}/initiator-one")["spec"]["initiator"] == "bob"
    assert record.first("TaskResourceGroup", "initiator-one")["spec"]["initiator"] == "bob"
    assert annotations_of(service(record, "alice/initiator-one-0-peer"))[KusciaAnnotation.INITIATOR] == "bob"
    waiting = _job(record, "initiator-unknown")
    assert (waiting["phase"], waiting["reason"]) == ("initialized", "PartyUnknown")
    assert "nobody" in waiting["message"]
    assert "spec.initiator" in record.refused["KusciaJob/initiator-reserved"]


def schedule_mode(record: Record) -> None:
    assert record.first("KusciaJob", f"{CROSS}/strict")["spec"]["scheduleMode"] == "Strict", "the default"
    assert phase(record, "KusciaJob", "strict") == phase(record, "KusciaJob", "best-effort") == "Failed"
    assert _task(record, "strict-long")["reason"] == "KusciaJobStopped"
    assert f"{CROSS}/strict-after" not in record.keys("KusciaTask")
    assert _task(record, "effort-long")["phase"] == _task(record, "effort-after")["phase"] == "Succeeded"
    assert _alias(record, "best-effort", "lost")["phase"] == "Skipped"
    assert f"{CROSS}/effort-lost" not in record.keys("KusciaTask")


def _most_at_once(record: Record, tasks: list[str]) -> int:
    moments = [(_began(record, task), 1) for task in tasks] + [(_ended(record, task), -1) for task in tasks]
    most = now = 0
    for _, step in sorted(moments):
        now += step
        most = max(most, now)
    return most


def max_parallelism(record: Record) -> None:
    assert _most_at_once(record, [f"parallel-{one}" for one in "abcd"]) == 2
    assert _most_at_once(record, ["serial-a", "serial-b"]) == 1
    assert phase(record, "KusciaJob", "parallel") == phase(record, "KusciaJob", "serial") == "Succeeded"


# -- tasks ---------------------------------------------------------------------------------------------------------------------


def alias(record: Record) -> None:
    assert annotations_of(record.first("KusciaTask", f"{CROSS}/alias-psi"))[KusciaAnnotation.TASK_ALIAS] == "psi"
    assert "spec.tasks[1].alias" in record.refused["KusciaJob/alias-twice"]


def task_id(record: Record) -> None:
    ids = {one["alias"]: one["taskID"] for one in _job(record, "task-id")["tasks"]}
    assert ids["named"] == "my-own-id"
    assert ids["unnamed"].startswith("task-id-")
    assert {f"{CROSS}/{one}" for one in ids.values()} <= set(record.keys("KusciaTask"))
    assert "spec.tasks[0].taskID" in record.refused["KusciaJob/task-id-bad"]


def dependencies(record: Record) -> None:
    assert _ended(record, "depends-left") <= _began(record, "depends-right")
    assert _ended(record, "depends-right") <= _began(record, "depends-last")
    assert "DependencyCycle" in record.refused["KusciaJob/depends-circle"]
    assert "DependencyUnknown" in record.refused["KusciaJob/depends-unknown"]


def tolerable(record: Record) -> None:
    assert phase(record, "KusciaJob", "tolerable") == "Succeeded"
    assert _task(record, "tolerable-may")["phase"] == "Failed"
    assert _alias(record, "tolerable", "after")["phase"] == "Skipped"
    assert phase(record, "KusciaJob", "intolerable") == "Failed"


def app_image(record: Record) -> None:
    assert container(record, "app-image-one")["image"] == "example/app:1"
    waits = _alias(record, "app-image", "two")
    assert (waits["phase"], waits["reason"]) == ("Waiting", "AppImageNotFound")
    assert "not-there" in waits["message"]


def task_input_config(record: Record) -> None:
    text = '{"quoted": "\\"é\\"", "n": [1, 2]}'
    assert record.first("KusciaTask", f"{CROSS}/input-one")["spec"]["taskInputConfig"] == text
    assert env(container(record, "input-one"))["TASK_INPUT_CONFIG"] == text


def min_reserved_members(record: Record) -> None:
    assert record.first("TaskResourceGroup", "members-one")["spec"]["minReservedMembers"] == 1
    assert phase(record, "KusciaJob", "members") == "Succeeded"
    assert phase(record, "KusciaTask", "members-all-one") == "Pending"
    assert "spec.tasks[0].scheduleConfig.minReservedMembers" in record.refused["KusciaJob/members-too-many"]


def _reservation(record: Record, group: str) -> list[tuple[float, str, int]]:
    """When the group was in which phase, and in which try."""
    found: list[tuple[float, str, int]] = []
    for seen in record.all("TaskResourceGroup", group):
        status = seen.raw.get("status") or {}
        now = (status.get("phase", ""), status.get("retryCount", 0))
        if not found or found[-1][1:] != now:
            found.append((seen.at, *now))
    return found


def resource_reserved_seconds(record: Record) -> None:
    spec = record.first("TaskResourceGroup", "reserved-one")["spec"]
    assert spec["resourceReservedSeconds"] == 12
    phases = _reservation(record, "reserved-one")
    began = next(at for at, phase_, _ in phases if phase_ == "Reserving")
    gave_up = next(at for at, phase_, _ in phases if phase_ == "ReserveFailed")
    assert 11 <= gave_up - began <= 20, phases
    assert all(not one["spec"].get("nodeName") for one in pods(record, "reserved-one")), "nobody starts alone"
    held = [seen for key in record.keys("Placement") if "reserved-one" in key for seen in record.all("Placement", key)]
    assert held, "the place in alice is held meanwhile"


def retry_interval_seconds(record: Record) -> None:
    assert record.first("TaskResourceGroup", "interval-one")["spec"]["retryIntervalSeconds"] == 20
    phases = _reservation(record, "interval-one")
    gave_up = next(at for at, phase_, tries in phases if phase_ == "ReserveFailed")
    again = next(at for at, phase_, tries in phases if phase_ == "Reserving" and tries == 1)
    assert 19 <= again - gave_up <= 41, phases


def lifecycle_seconds(record: Record) -> None:
    status = _task(record, "lifecycle-one")
    assert (status["phase"], status["reason"]) == ("Failed", "SchedulingTimeout")
    assert 29 <= _ended(record, "lifecycle-one") - _began(record, "lifecycle-one") <= 40
    assert phase(record, "KusciaJob", "lifecycle") == "Failed"
    assert phase(record, "KusciaTask", "lifecycle-none-one") == "Pending"


def priority(record: Record) -> None:
    began = {one: _began(record, f"priority-{one}") for one in ("low", "none", "high")}
    assert sorted(began, key=lambda one: began[one]) == ["high", "none", "low"]


# -- parties -------------------------------------------------------------------------------------------------------------------


def domain_id(record: Record) -> None:
    nodes = {key: record.last("Pod", key)["spec"]["nodeName"] for key in record.keys("Pod") if key.endswith("/parties-one-0")}
    assert set(nodes) == {"alice/parties-one-0", "bob/parties-one-0"}
    assert all(node.startswith(key.partition("/")[0]) for key, node in nodes.items())
    waits = _job(record, "parties-unknown")
    assert (waits["phase"], waits["reason"]) == ("initialized", "PartyUnknown")
    assert "spec.tasks[0].parties[1]" in record.refused["KusciaJob/parties-twice"]


def role(record: Record) -> None:
    assert container_of(record.first("Pod", "alice/roles-one-host-0"))["command"] == ["as-host"]
    assert container_of(record.first("Pod", "bob/roles-one-guest-0"))["command"] == ["as-guest"]


def resources(record: Record) -> None:
    made = pods(record, "totals-one")
    every = [one["resources"] for raw in made for one in raw["spec"]["containers"]]
    assert len(every) == 4
    for word, cpu, memory in (("requests", "1001m", "4Gi"), ("limits", "2", "8Gi")):
        for name, total in (("cpu", cpu), ("memory", memory), ("kuscia.io/bandwidth", "40")):
            shares = [Quantity.parse(one[word][name]).fraction() for one in every]
            assert sum(shares) == Quantity.parse(total).fraction(), (word, name)
    small = pods(record, "totals-small-one")
    assert all("kuscia.io/bandwidth" not in str(one["spec"]) for one in small), "a quarter of a Mbps is refused by Kubernetes"
    assert [annotations_of(one)[Muster.BANDWIDTH] for one in small] == ["500Kbps", "500Kbps"]


def claims(record: Record) -> None:
    status = _task(record, "claims-one")
    assert status["phase"] == "Failed"
    assert "claims" in status["message"]


def bandwidth_limits(record: Record) -> None:
    notes = annotations_of(service(record, "alice/limits-one-0-peer"))
    assert notes[f"{KusciaAnnotation.BANDWIDTH_LIMIT_PREFIX}bob"] == "1000"
    assert f"{KusciaAnnotation.BANDWIDTH_LIMIT_PREFIX}bob" not in annotations_of(service(record, "bob/limits-one-0-peer"))
    [sender] = [one for one in pods(record, "limits-one") if one["metadata"]["namespace"] == "alice"]
    assert annotations_of(sender)[Muster.BANDWIDTH_TO] == "bob=8.192Mbps", "1,000 KiB each second"


def retry(record: Record) -> None:
    status = _task(record, "retry-one")
    assert (status["phase"], status["attempts"]) == ("Succeeded", 3)
    pauses = []
    failed_at = 0.0
    for seen in record.all("KusciaTask", f"{CROSS}/retry-one"):
        now = seen.raw.get("status") or {}
        if now.get("reason") == "BackingOff" and now.get("retryTime") and not failed_at:
            failed_at = seen.at
        elif failed_at and not now.get("retryTime"):
            pauses.append(seen.at - failed_at)
            failed_at = 0.0
    assert len(pauses) == 2
    assert 4 <= pauses[0] < 5.5
    assert 6 <= pauses[1] < 7.5, "8 seconds would be more than backoffSecondsMax"
    assert _task(record, "retry-once-one")["reason"] == "RetriesExhausted"


def active_deadline_seconds(record: Record) -> None:
    status = _task(record, "deadline-one")
    assert (status["phase"], status["reason"]) == ("Failed", "RunTimeExceeded")
    key = f"{CROSS}/deadline-one"
    began = record.when("KusciaTask", key, has(phase="Running"))
    assert 14 <= _ended(record, "deadline-one") - began <= 17


CASES = (
    Case(
        file="spec.flowID",
        does="kept with the job and its copy for partners; can't change once the parties were asked",
        check=flow_id,
        act=change_flow,
        refused=("change flow",),
    ),
    Case(
        file="spec.initiator",
        does="the party that schedules; on the task, its reservation, pods and services. Must be a Domain: until "
        "it is, the job waits",
        check=initiator,
        refused=("KusciaJob/initiator-reserved",),
    ),
    Case(
        file="spec.scheduleMode",
        does="`Strict`: the first failure of a task that is not tolerable ends the job; `BestEffort`: what does "
        "not depend on it goes on",
        check=schedule_mode,
    ),
    Case(file="spec.maxParallelism", does="at most so many tasks of the job at once; 1 when left out", check=max_parallelism),
    Case(
        file="spec.tasks.alias",
        does="the task's name within the job; unique",
        check=alias,
        refused=("KusciaJob/alias-twice",),
    ),
    Case(
        file="spec.tasks.taskID",
        does="name of the KusciaTask; made of the job's name and a hash when left out",
        check=task_id,
        refused=("KusciaJob/task-id-bad",),
    ),
    Case(
        file="spec.tasks.dependencies",
        does="the task is made when these have succeeded; circles and unknown aliases are refused",
        check=dependencies,
        refused=("KusciaJob/depends-circle", "KusciaJob/depends-unknown"),
    ),
    Case(
        file="spec.tasks.tolerable",
        does="its failure does not fail the job; what depends on it is skipped, and the job ends",
        check=tolerable,
    ),
    Case(file="spec.tasks.appImage", does="what the task runs; it waits while there is none of that name", check=app_image),
    Case(
        file="spec.tasks.taskInputConfig",
        does="handed to the application unchanged: variable `TASK_INPUT_CONFIG`, and to configuration templates",
        check=task_input_config,
    ),
    Case(
        file="spec.tasks.scheduleConfig.minReservedMembers",
        does="so many parties must have room before anything starts; all when left out; not more than there are",
        check=min_reserved_members,
        refused=("KusciaJob/members-too-many",),
    ),
    Case(
        file="spec.tasks.scheduleConfig.resourceReservedSeconds",
        does="how long the own parties hold their places for a party of another control plane; 30 when left out. "
        "Under one control plane "
        "nothing is held: all parties are placed in one step",
        check=resource_reserved_seconds,
        act=lambda stage: accept(stage, "reserved"),
    ),
    Case(
        file="spec.tasks.scheduleConfig.retryIntervalSeconds",
        does="least pause before parties of several control planes try again, at most twice that; 30 when left out",
        check=retry_interval_seconds,
        act=lambda stage: accept(stage, "interval"),
    ),
    Case(
        file="spec.tasks.scheduleConfig.lifecycleSeconds",
        does="a task that was not placed so long fails with `SchedulingTimeout`; without it, it waits (Kuscia: 300 s)",
        check=lifecycle_seconds,
    ),
    Case(file="spec.tasks.priority", does="of the tasks that are ready, the largest is made first", check=priority),
    Case(
        file="spec.tasks.parties.domainID",
        does="the party: its pods are in its namespace, on its nodes. The job waits while it is no Domain",
        check=domain_id,
        refused=("KusciaJob/parties-twice",),
    ),
    Case(
        file="spec.tasks.parties.role",
        does="which deploy template the party runs; part of the names of pods and services",
        check=role,
    ),
    Case(
        file="spec.tasks.parties.resources",
        fields=("spec.tasks.parties.resources.requests", "spec.tasks.parties.resources.limits"),
        does="the party's total (cpu, memory, bandwidth, any other), divided exactly over its pods and containers",
        check=resources,
    ),
    Case(
        file="spec.tasks.parties.resources.claims",
        does="handed on to the containers. Deploy templates can't name a claim, so the server refuses the pod, "
        "and the task fails saying so",
        check=claims,
    ),
    Case(
        file="spec.tasks.parties.bandwidthLimits",
        fields=("spec.tasks.parties.bandwidthLimits.destinationID", "spec.tasks.parties.bandwidthLimits.limitKBps"),
        does="ceiling towards a peer in KiB/s: annotation `bandwidth-limit-<peer>` on the party's services for "
        "the gateway; counted on Links as far "
        "as the party has asked to send",
        check=bandwidth_limits,
    ),
    Case(
        file="spec.tasks.retry",
        fields=("spec.tasks.retry.limit", "spec.tasks.retry.backoffSeconds", "spec.tasks.retry.backoffSecondsMax"),
        does="how often a failed task is tried again, the first pause, and the longest (beyond Kuscia)",
        check=retry,
    ),
    Case(
        file="spec.tasks.activeDeadlineSeconds",
        does="a task that runs longer fails with `RunTimeExceeded` (beyond Kuscia)",
        check=active_deadline_seconds,
    ),
)
