"""The status as a kubelet would show it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from muster.agent.contracts import Exited, Image, RunState, Started
from muster.agent.lifecycle_facts import Deletion, Facts, Fate, Problem, Run, Situation
from muster.agent.pod_status import Place, container_id, exit_reason, patch_of, status_of
from muster.objects.kinds.pods import PodSpec
from muster.objects.status import Raw
from muster.objects.time import format_time

NOW = 1_800_000_000.0
PLACE = Place(uid="u", name="p", namespace="n", runtime="process", pod_ip="10.0.0.2", host_ip="192.0.2.1")


def spec(**more: Any) -> PodSpec:
    return msgspec.convert({"restartPolicy": "Never", "containers": [{"name": "main", "image": "x"}], **more}, PodSpec)


def run(state: str = "running", code: int = 0, attempt: int = 0, **more: Any) -> Run:
    started = Started(pid=1, start_ticks=1, boot_id="b", at=NOW - 60, shim_pid=1, shim_start_ticks=1)
    end = Exited(code=code, at=NOW - 5, **more) if state == "exited" else None
    return Run(attempt, msgspec.convert({"state": state, "started": started, "exited": end}, RunState))


def status(wanted: PodSpec | None = None, old: Raw | None = None, **more: Any) -> Raw:
    containers = more.pop("containers", {})
    at = Situation(spec=wanted or spec(), containers=containers, started_at=NOW - 100, has_sandbox=True, **more)
    return status_of(at, PLACE, old or {}, NOW)


def state(found: Raw, name: str = "main") -> Raw:
    every = [*found["containerStatuses"], *found.get("initContainerStatuses", ())]
    return next(dict(one["state"]) for one in every if one["name"] == name)


def conditions(found: Raw) -> dict[str, str]:
    return {c["type"]: f"{c['status']} {c.get('reason', '')}".strip() for c in found["conditions"]}


def test_a_running_pod() -> None:
    found = status(containers={"main": Facts(run=run(), image=Image(id="sha256:1"))})
    assert found["phase"] == "Running"
    assert found["startTime"] == format_time(NOW - 100)
    assert (found["podIP"], found["podIPs"]) == ("10.0.0.2", [{"ip": "10.0.0.2"}])
    assert (found["hostIP"], found["qosClass"]) == ("192.0.2.1", "BestEffort")
    assert conditions(found) == {"PodScheduled": "True", "Initialized": "True", "ContainersReady": "True", "Ready": "True"}
    assert found["containerStatuses"] == [
        {
            "name": "main",
            "image": "x",
            "imageID": "sha256:1",
            "restartCount": 0,
            "ready": True,
            "started": True,
            "state": {"running": {"startedAt": format_time(NOW - 60)}},
            "lastState": {},
            "containerID": container_id(PLACE, "main", 0),
        }
    ]


@pytest.mark.parametrize(
    ("facts", "policy", "phase", "expected"),
    [
        (Facts(), "Never", "Pending", "waiting ContainerCreating"),
        (Facts(problem=Problem("ErrImagePull", "no", NOW)), "Never", "Pending", "waiting ErrImagePull"),
        (Facts(problem=Problem("ErrImagePull", "no", NOW, 2)), "Never", "Pending", "waiting ImagePullBackOff"),
        (Facts(run=run("starting")), "Never", "Pending", "waiting ContainerCreating"),
        (Facts(run=run("exited")), "Never", "Succeeded", "terminated Completed"),
        (Facts(run=run("exited", 3)), "Never", "Failed", "terminated Error"),
        (Facts(run=run("exited", 137, oom_killed=True)), "Never", "Failed", "terminated OOMKilled"),
        (Facts(run=run("exited", 128, reason="StartError")), "Never", "Failed", "terminated StartError"),
        (Facts(run=run("exited", 1), short_runs=1), "Always", "Running", "terminated Error"),
        (Facts(run=run("exited", 1), short_runs=2), "Always", "Running", "waiting CrashLoopBackOff"),
        (Facts(run=run("exited", 0), short_runs=5), "OnFailure", "Succeeded", "terminated Completed"),
        (
            Facts(run=run("exited", 1), short_runs=5, problem=Problem("FailedMount", "x", NOW)),
            "Always",
            "Running",
            "waiting FailedMount",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_states(facts: Facts, policy: str, phase: str, expected: str) -> None:
    found = status(spec(restartPolicy=policy), containers={"main": facts})
    ((word, details),) = state(found).items()
    assert (found["phase"], f"{word} {details.get('reason', '')}") == (phase, expected)


def test_an_ended_run_that_waits_for_its_next_one_is_the_last_state() -> None:
    found = status(spec(restartPolicy="Always"), containers={"main": Facts(run=run("exited", 4, attempt=2), short_runs=3)})
    (one,) = found["containerStatuses"]
    assert (one["restartCount"], one["lastState"]["terminated"]["exitCode"]) == (2, 4)
    assert "back-off 20s" in one["state"]["waiting"]["message"]


def test_init_containers() -> None:
    wanted = spec(initContainers=[{"name": "i"}])
    found = status(wanted, containers={"i": Facts(run=run())})
    assert found["phase"] == "Pending"
    assert state(found) == {"waiting": {"reason": "PodInitializing"}}
    assert conditions(found)["Initialized"] == "False ContainersNotInitialized"
    found = status(wanted, containers={"i": Facts(run=run("exited")), "main": Facts(run=run())})
    assert (found["phase"], conditions(found)["Initialized"]) == ("Running", "True")
    assert found["initContainerStatuses"][0]["ready"] is True


def test_readiness_and_gates() -> None:
    wanted = spec(
        containers=[{"name": "main", "readinessProbe": {"exec": {"command": ["x"]}}}],
        readinessGates=[{"conditionType": "example.com/go"}],
    )
    found = status(wanted, containers={"main": Facts(run=run())})
    assert conditions(found)["ContainersReady"] == "False ContainersNotReady"
    found = status(wanted, containers={"main": Facts(run=run(), is_ready=True)})
    assert conditions(found)["ContainersReady"] == "True"
    assert conditions(found)["Ready"] == "False ReadinessGatesNotReady"
    old = {"conditions": [{"type": "example.com/go", "status": "True"}]}
    found = status(wanted, old, containers={"main": Facts(run=run(), is_ready=True)})
    assert conditions(found)["Ready"] == "True"


@pytest.mark.parametrize(
    ("more", "phase", "reason"),
    [
        ({"fate": Fate("Evicted", "too much"), "containers": {"main": Facts(run=run())}}, "Running", None),
        ({"fate": Fate("Evicted", "too much"), "containers": {"main": Facts(run=run("exited", 137))}}, "Failed", "Evicted"),
        ({"fate": Fate("PodNotSupported", "no")}, "Failed", "PodNotSupported"),
        ({"containers": {"main": Facts(run=run("exited", 137, reason="NodeRestarted"))}}, "Failed", "NodeRestarted"),
        ({"deletion": Deletion(NOW, 0), "containers": {"main": Facts(run=run())}}, "Running", None),
        ({"deletion": Deletion(NOW, 0), "containers": {"main": Facts(run=run("exited", 0))}}, "Succeeded", None),
        ({"deletion": Deletion(NOW, 0)}, "Pending", None),
        ({"deletion": Deletion(NOW, 0), "is_clean": True}, "Failed", None),
    ],
)
def test_ends(more: dict[str, Any], phase: str, reason: str | None) -> None:
    found = status(spec(restartPolicy="Always" if "deletion" in more else "Never"), **more)
    assert (found["phase"], found["reason"]) == (phase, reason)


def test_a_pod_that_was_turned_away_says_why_and_nothing_of_its_containers() -> None:
    wanted = spec(initContainers=[{"name": "first", "image": "x"}])
    found = status(wanted, fate=Fate("PodNotSupported", "no"), is_clean=True)
    assert (found["phase"], found["reason"], found["message"]) == ("Failed", "PodNotSupported", "no")
    assert (found["containerStatuses"], found["initContainerStatuses"]) == ([], [])
    ran = status(wanted, fate=Fate("Evicted", "no"), containers={"first": Facts(run=run("exited"))}, is_clean=True)
    assert "terminated" in state(ran, "first")


def test_a_container_that_left_no_trace() -> None:
    old = {"containerStatuses": [{"name": "main", "state": {"running": {}}}]}
    found = status(old=old, fate=Fate("NodeLost", "x"), is_clean=True)
    assert state(found)["terminated"]["reason"] == "ContainerStatusUnknown"
    kept = {"exitCode": 5, "reason": "Error"}
    old = {"containerStatuses": [{"name": "main", "state": {"terminated": kept}}]}
    assert state(status(old=old, fate=Fate("NodeLost", "x"))) == {"terminated": kept}


def test_only_what_changed_is_written_and_empty_is_absent() -> None:
    new = status(containers={"main": Facts(run=run())})
    as_stored = {key: value for key, value in new.items() if value is not None}
    as_stored["conditions"] = [{k: v for k, v in c.items() if v != ""} | {"lastProbeTime": None} for c in new["conditions"]]
    as_stored["containerStatuses"] = [{k: v for k, v in c.items() if v not in ("", {})} for c in new["containerStatuses"]]
    assert patch_of(new, as_stored) == {}
    assert patch_of(new, {**as_stored, "phase": "Pending"}) == {"phase": "Running"}
    assert patch_of(new, {**as_stored, "reason": "Old"}) == {"reason": None}


def test_conditions_keep_their_time_and_those_of_others_stay() -> None:
    facts = {"main": Facts(run=run())}
    old = status(containers=facts)
    old["conditions"].append({"type": "example.com/mine", "status": "True"})
    later = status_of(Situation(spec=spec(), containers=facts, started_at=NOW - 100), PLACE, old, NOW + 60)
    assert later["conditions"] == old["conditions"]


def test_conditions_of_others_are_not_written() -> None:
    old = {"conditions": [{"type": "example.com/mine", "status": "True"}, {"type": "PodScheduled", "status": "True"}]}
    patch = patch_of(status(old=old, containers={"main": Facts(run=run())}), old)
    assert [c["type"] for c in patch["conditions"]] == ["Initialized", "ContainersReady", "Ready"]
    patch = patch_of(status(containers={"main": Facts(run=run())}), {})
    assert [c["type"] for c in patch["conditions"]] == ["PodScheduled", "Initialized", "ContainersReady", "Ready"]


@pytest.mark.parametrize(
    ("code", "reason", "oom", "expected"),
    [(0, "", False, "Completed"), (1, "", False, "Error"), (137, "", True, "OOMKilled"), (137, "Lost", False, "Lost")],
)
def test_exit_reason(code: int, reason: str, oom: bool, expected: str) -> None:
    assert exit_reason(code, reason, oom_killed=oom) == expected
