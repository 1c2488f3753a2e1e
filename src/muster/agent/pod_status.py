"""A pod's status as a kubelet would show it, from the same `Situation` that `lifecycle` decides on. Pure.

Invariant: a status that says nothing new is no patch (`patch_of`), however often it is worked out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from muster.agent.lifecycle_facts import (
    Facts,
    Outcome,
    Run,
    Situation,
    backoff_s,
    has_started,
    is_initialized,
    is_sidecar,
    is_through,
    may_restart,
    outcome_of,
)
from muster.objects.conditions import find_condition, is_true, set_condition
from muster.objects.kinds.containers import Container
from muster.objects.kinds.defaults import qos_class
from muster.objects.status import Raw
from muster.objects.time import format_time

LOST_REASONS = ("Lost", "NodeRestarted")
_OWN_CONDITIONS = ("Initialized", "ContainersReady", "Ready")
_MESSAGE_LEN_MAX = 4096


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where the pod is."""

    uid: str
    name: str
    namespace: str
    runtime: str
    pod_ip: str = ""
    host_ip: str = ""


def read_status(pod: Raw) -> Raw:
    """The status that the store has; whatever in it is not of its proper kind counts as not there."""
    status = pod.get("status")
    if not isinstance(status, dict):
        return {}
    found: Raw = dict(status)
    for word, name in (("conditions", "type"), ("containerStatuses", "name"), ("initContainerStatuses", "name")):
        every = found.get(word)
        if every is not None:
            items = every if isinstance(every, list) else ()
            found[word] = [one for one in items if isinstance(one, dict) and isinstance(one.get(name), str)]
    return found


def status_of(at: Situation, place: Place, old: Raw, now: float) -> Raw:
    """The whole status; what others keep in it (conditions of theirs) comes from `old`."""
    phase = phase_of(at)
    spec = at.spec
    inits = [_container(at, place, c, old, now, is_init=True) for c in spec.init_containers]
    mains = [_container(at, place, c, old, now, is_init=False) for c in spec.containers]
    # A pod that was turned away has no containers to speak of: with waiting ones, tools show those instead of why it failed.
    is_refused = phase == "Failed" and at.fate is not None and all("waiting" in one["state"] for one in (*inits, *mains))
    status: Raw = {
        "phase": phase,
        "conditions": _conditions(at, phase, mains, old, now),
        "containerStatuses": [] if is_refused else mains,
        "qosClass": old.get("qosClass") or qos_class(msgspec.to_builtins(spec)),
        "reason": None,
        "message": None,
    }
    if inits:
        status["initContainerStatuses"] = [] if is_refused else inits
    if at.started_at is not None:
        status["startTime"] = format_time(at.started_at)
    if place.host_ip:
        status |= {"hostIP": place.host_ip, "hostIPs": [{"ip": place.host_ip}]}
    if place.pod_ip:
        status |= {"podIP": place.pod_ip, "podIPs": [{"ip": place.pod_ip}]}
    if phase == "Failed":
        status["reason"], status["message"] = _why_failed(at)
    return status


def phase_of(at: Situation) -> str:
    is_alive = any(facts.is_alive for facts in at.containers.values())
    if not is_alive and (ended := _ended(at)) is not None:
        return ended
    if not is_initialized(at):
        return "Pending"
    runs = [at.facts(c.name).run for c in at.spec.containers]
    if any(run is None or run.state is None or (run.attempt == 0 and run.state.state == "starting") for run in runs):
        return "Pending" if not any(run is not None and run.attempt > 0 for run in runs) else "Running"
    return "Running"


def _ended(at: Situation) -> Outcome | None:
    """How a pod with no process left has ended; None when it goes on."""
    if at.fate is not None:
        return "Failed"
    outcome = outcome_of(at)
    if outcome is None and at.is_leaving:
        # Nothing will run again, whatever the restart policy says.
        exits = [at.facts(c.name).exited for c in at.spec.containers]
        if any(exits):
            return "Succeeded" if all(e is not None and e.code == 0 for e in exits) else "Failed"
        if at.is_clean:
            return "Failed"  # it never ran, and never will
    return outcome


def _why_failed(at: Situation) -> tuple[str | None, str | None]:
    if at.fate is not None:
        return at.fate.reason, at.fate.message[:_MESSAGE_LEN_MAX]
    for container in (*at.spec.init_containers, *at.spec.containers):
        exited = at.facts(container.name).exited
        if exited is not None and exited.reason in LOST_REASONS:
            return exited.reason, f"container {container.name}: {exited.message or 'nobody knows how it ended'}"
    return None, None


# -- conditions ---------------------------------------------------------------------------------------------------------------


def _conditions(at: Situation, phase: str, mains: Sequence[Raw], old: Raw, now: float) -> list[Raw]:
    conditions: list[Raw] = [c for c in old.get("conditions") or () if isinstance(c, dict)]
    if find_condition(conditions, "PodScheduled") is None:
        conditions = set_condition(conditions, type_="PodScheduled", status="True", now=now)
    missing = [c.name for c in at.spec.init_containers if not is_through(at, c, at.facts(c.name))]
    is_ready_now = phase not in ("Succeeded", "Failed")
    if missing and phase != "Succeeded":
        message = f"containers with incomplete status: [{' '.join(missing)}]"
        conditions = _set(conditions, "Initialized", now, "ContainersNotInitialized", message)
    else:
        reason = "PodCompleted" if phase == "Succeeded" else ""
        conditions = set_condition(conditions, type_="Initialized", status="True", now=now, reason=reason)
    unready = [str(c["name"]) for c in mains if not c["ready"]]
    why = message = ""
    if not is_ready_now:
        why = "PodCompleted" if phase == "Succeeded" else "PodFailed"
    elif unready:
        why, message = "ContainersNotReady", f"containers with unready status: [{' '.join(unready)}]"
    conditions = _set(conditions, "ContainersReady", now, why, message)
    gates = [g.condition_type for g in at.spec.readiness_gates if not is_true(conditions, g.condition_type)]
    if not why and gates:
        why, message = "ReadinessGatesNotReady", f"conditions that are not True: [{' '.join(gates)}]"
    return _set(conditions, "Ready", now, why, message)


def _set(conditions: list[Raw], type_: str, now: float, why: str, message: str) -> list[Raw]:
    """True without a reason, False with one."""
    status: Any = "False" if why else "True"
    return set_condition(conditions, type_=type_, status=status, now=now, reason=why, message=message)


# -- containers ---------------------------------------------------------------------------------------------------------------


def container_id(place: Place, container: str, attempt: int) -> str:
    digest = hashlib.sha256(f"{place.uid}/{container}/{attempt}".encode()).hexdigest()
    return f"{place.runtime}://{digest}"


def _container(at: Situation, place: Place, container: Container, old: Raw, now: float, *, is_init: bool) -> Raw:
    facts = at.facts(container.name)
    state = _state(at, place, container, old, now, is_init=is_init)
    is_up = has_started(container, facts)
    is_well = is_up and (container.readiness_probe is None or facts.is_ready is True) and facts.stopping is None
    if is_init and not is_sidecar(container):
        is_well = facts.exited is not None and facts.exited.code == 0
    last: Raw = {}
    if facts.run is not None and "terminated" not in state and facts.run.exited is not None:
        last = _terminated(place, container, facts.run)
    elif facts.previous is not None and facts.previous.exited is not None:
        last = _terminated(place, container, facts.previous)
    status: Raw = {
        "name": container.name,
        "image": container.image,
        "imageID": facts.image.id if facts.image is not None else "",
        "restartCount": facts.run.attempt if facts.run is not None else 0,
        "ready": is_well,
        "started": is_up,
        "state": state,
        "lastState": last,
    }
    if facts.run is not None and facts.run.state is not None:
        status["containerID"] = container_id(place, container.name, facts.run.attempt)
    return status


def _state(at: Situation, place: Place, container: Container, old: Raw, now: float, *, is_init: bool) -> Raw:
    facts = at.facts(container.name)
    run = facts.run
    if run is not None and run.is_running and run.state is not None and run.state.started is not None:
        return {"running": {"startedAt": format_time(run.state.started.at)}}
    is_ending = at.is_leaving or at.fate is not None
    if run is not None and run.exited is not None:
        will_restart = not is_ending and may_restart(at.spec, container, run.exited.code, is_init=is_init)
        if will_restart and facts.problem is not None:
            return _waiting_for(facts, now)
        if will_restart and outcome_of(at) is None and (wait_s := backoff_s(facts)) > 0:
            message = (
                f"back-off {wait_s:.0f}s restarting failed container={container.name} "
                f"pod={place.name}_{place.namespace}({place.uid})"
            )
            return {"waiting": {"reason": "CrashLoopBackOff", "message": message}}
        return _terminated(place, container, run)
    if is_ending and (known := _as_last_known(container, old)):
        return known
    if facts.problem is not None:
        return _waiting_for(facts, now)
    if at.sandbox_problem is not None and not at.has_sandbox:
        return {"waiting": {"reason": at.sandbox_problem.reason, "message": at.sandbox_problem.message[:_MESSAGE_LEN_MAX]}}
    is_early = at.spec.init_containers and (is_init or not is_initialized(at))
    return {"waiting": {"reason": "PodInitializing" if is_early else "ContainerCreating"}}


def _waiting_for(facts: Facts, now: float) -> Raw:
    problem = facts.problem
    assert problem is not None
    reason = problem.reason
    if reason == "ErrImagePull" and problem.times > 1 and now < problem.retry_at:
        reason = "ImagePullBackOff"
    return {"waiting": {"reason": reason, "message": problem.message[:_MESSAGE_LEN_MAX]}}


def _as_last_known(container: Container, old: Raw) -> Raw:
    """A container that the store saw at work and that left no trace here: how it ended can't be known."""
    for word in ("containerStatuses", "initContainerStatuses"):
        for status in old.get(word) or ():
            state = status.get("state") if isinstance(status, dict) and status.get("name") == container.name else None
            if not isinstance(state, dict):
                continue
            if "terminated" in state:
                return {"terminated": state["terminated"]}
            if "running" in state:
                message = "the node has lost every trace of this container; what it did is not known"
                return {"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown", "message": message}}
    return {}


def _terminated(place: Place, container: Container, run: Run) -> Raw:
    exited, started = run.exited, run.state.started if run.state is not None else None
    assert exited is not None
    state: Raw = {
        "exitCode": exited.code,
        "reason": exit_reason(exited.code, exited.reason, oom_killed=exited.oom_killed),
        "finishedAt": format_time(exited.at),
        "containerID": container_id(place, container.name, run.attempt),
    }
    if started is not None:
        state["startedAt"] = format_time(started.at)
    if message := run.message or exited.message:
        state["message"] = message[:_MESSAGE_LEN_MAX]
    return {"terminated": state}


def exit_reason(code: int, reason: str, *, oom_killed: bool) -> str:
    if oom_killed:
        return "OOMKilled"
    return reason or ("Error" if code else "Completed")


# -- what to write ------------------------------------------------------------------------------------------------------------


def patch_of(new: Mapping[str, Any], old: Mapping[str, Any]) -> Raw:
    """A strategic merge patch of the members of the status that differ; None takes away. Empty: nothing to write.

    Servers leave out what is empty, so that empty and absent are the same.
    """
    patch = {key: value for key, value in new.items() if _bare(old.get(key)) != _bare(value)}
    if "conditions" in patch:
        # A strategic merge: what others say about the pod is not repeated, since they may say otherwise by now.
        known = [c.get("type") for c in old.get("conditions") or () if isinstance(c, dict)]
        patch["conditions"] = [c for c in patch["conditions"] if c["type"] in _OWN_CONDITIONS or c["type"] not in known]
    return patch


def _bare(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: bare for key, item in value.items() if (bare := _bare(item)) is not None} or None
    if isinstance(value, list):
        return [_bare(item) for item in value] or None
    return None if value == "" else value
