"""Builders for tests of tasks and gangs: groups, their members, and what an engine decided, in a few words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from muster.engine import events as ev
from muster.engine.decisions import AnyDecision, Hold, Park, Place, Release
from muster.engine.facts import PodFacts, PodGroupFacts, TaskGroupFacts
from muster.engine.machine import Engine
from muster.engine.plugin import Plugin
from muster.engine.plugins.fit import Fit
from muster.engine.profile import Profile
from muster.objects.labels import KoordinatorPod, KusciaAnnotation, Muster
from muster.objects.reasons import Reason, Verdict
from tests.engine.building import PROFILE, node, pod

PREFIX = "gang.scheduling.koordinator.sh/"


def engine(*plugins: Plugin, nodes: int = 1, cpu: str = "4") -> Engine:
    made = Engine([Profile(PROFILE, [Fit(), *plugins])])
    made.step([ev.NodeSeen(node(f"n{i}", cpu=cpu)) for i in range(nodes)], 0.0)
    return made


# -- tasks ---------------------------------------------------------------------------------------------------------------------


def party(domain: str, *pods: str, role: str = "", least: int = 0) -> dict[str, Any]:
    listed = [{"name": name} for name in pods]
    return {"domainID": domain, "role": role, "minReservedPods": least, "pods": listed}


def task_group(
    name: str = "t",
    *parties: dict[str, Any],
    others: Sequence[str] = (),
    phase: str = "Reserving",
    least: int = 0,
    seconds: int = 0,
    retries: int = 0,
    created: str = "2026-01-01T00:00:00Z",
    origin: tuple[str, str] | None = None,
) -> ev.TaskGroupSeen:
    notes = {} if origin is None else {Muster.ORIGIN_CREATED: origin[0], Muster.ORIGIN_UID: origin[1]}
    raw = {
        "metadata": {"name": name, "uid": f"trg-{name}", "creationTimestamp": created, "annotations": notes},
        "spec": {
            "minReservedMembers": least,
            "resourceReservedSeconds": seconds,
            "parties": list(parties),
            "outOfControlledParties": [party(other) for other in others],
        },
        "status": {"phase": phase, "retryCount": retries},
    }
    return ev.TaskGroupSeen(msgspec.convert(raw, TaskGroupFacts))


def task_pod(name: str, domain: str = "alice", task: str = "t", *, cpu: str = "1", **more: Any) -> PodFacts:
    return pod(name, namespace=domain, cpu=cpu, annotations={KusciaAnnotation.TASK_RESOURCE_GROUP: task}, **more)


def seen(*pods: PodFacts) -> list[ev.AnyEvent]:
    return [ev.PodSeen(one) for one in pods]


# -- gangs ---------------------------------------------------------------------------------------------------------------------


def member(gang: str, name: str, minimum: int | str | None = None, *, cpu: str = "1", **more: Any) -> PodFacts:
    """`settings` are further annotations, without their prefix."""
    notes = {KoordinatorPod.GANG_NAME: gang}
    if minimum is not None:
        notes[KoordinatorPod.GANG_MIN_AVAILABLE] = str(minimum)
    settings: Mapping[str, str] = more.pop("settings", {})
    notes |= {PREFIX + key: value for key, value in settings.items()}
    return pod(name, cpu=cpu, annotations=notes, **more)


def pod_group(
    name: str, least: int, *, namespace: str = "default", settings: Mapping[str, str] | None = None, **spec: Any
) -> ev.PodGroupSeen:
    raw = {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"pg-{name}",
            "creationTimestamp": spec.pop("created", "2026-01-01T00:00:00Z"),
            "annotations": {PREFIX + key: value for key, value in (settings or {}).items()},
        },
        "spec": {"minMember": least, **spec},
    }
    return ev.PodGroupSeen(msgspec.convert(raw, PodGroupFacts))


def gone(name: str, namespace: str = "default") -> ev.PodGone:
    return ev.PodGone(f"uid-{namespace}-{name}")


# -- decisions -----------------------------------------------------------------------------------------------------------------


def placed(decisions: Sequence[AnyDecision]) -> dict[str, str]:
    return {p.name: p.node for d in decisions if isinstance(d, Place) for p in d.pods}


def held(decisions: Sequence[AnyDecision]) -> dict[str, list[str]]:
    return {d.unit: [p.name for p in d.pods] for d in decisions if isinstance(d, Hold)}


def parked(decisions: Sequence[AnyDecision]) -> dict[str, Reason]:
    return {d.unit: d.verdict.reason for d in decisions if isinstance(d, Park)}


def verdict(decisions: Sequence[AnyDecision]) -> Verdict:
    (only,) = [d.verdict for d in decisions if isinstance(d, Park)]
    return only


def released(decisions: Sequence[AnyDecision], *, asked: bool = False) -> list[tuple[str, Reason]]:
    return [(d.unit, d.reason) for d in decisions if isinstance(d, Release) and d.is_asked is asked]


def is_free(made: Engine) -> bool:
    return bool((made.state.nodes.free == made.state.nodes.capacity).all())
