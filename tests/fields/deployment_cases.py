"""KusciaDeployment: what its fields do. Those of a party's template are in `template_cases`."""

from __future__ import annotations

import asyncio

from tests.fields.cases import CROSS, Case, container, container_of, env, has, phase, pods, service
from tests.fields.record import Record, Seen, Stage

from muster.objects.labels import KusciaAnnotation
from muster.objects.meta import annotations_of
from muster.objects.status import Raw
from muster.objects.time import parse_time

_ROLLING = "spec.parties.template.strategy.rollingUpdate"
_PART = "status.partyDeploymentStatuses"


def _key(name: str) -> str:
    return f"{CROSS}/{name}"


def _status(record: Record, name: str) -> Raw:
    return record.status("KusciaDeployment", _key(name))


def initiator(record: Record) -> None:
    assert annotations_of(pods(record, "d-initiator")[0])[KusciaAnnotation.INITIATOR] == "bob"
    assert annotations_of(service(record, "alice/d-initiator-api"))[KusciaAnnotation.INITIATOR] == "bob"


async def change_input(stage: Stage) -> None:
    await stage.until("KusciaDeployment", _key("d-input"), has(phase="Available"))
    await stage.patch("KusciaDeployment", _key("d-input"), {"spec": {"inputConfig": "model-8"}})


def input_config(record: Record) -> None:
    told = [env(container_of(one))["INPUT_CONFIG"] for one in pods(record, "d-input")]
    assert sorted(told) == ["model-7", "model-8"], "a new pod for the new input"
    files = [record.first("ConfigMap", key)["data"]["input.txt"] for key in record.keys("ConfigMap", "alice/d-input-")]
    assert sorted(files) == ["model-7 of d-input", "model-8 of d-input"]
    assert phase(record, "KusciaDeployment", "d-input") == "Available"


def domain_id(record: Record) -> None:
    made = pods(record, "d-parties")
    assert [one["metadata"]["namespace"] for one in made] == ["alice", "bob"]
    assert [one["spec"]["nodeSelector"] for one in made] == [{"kuscia.secretflow/namespace": one} for one in ("alice", "bob")]
    assert (_status(record, "d-stranger")["phase"], _status(record, "d-stranger")["reason"]) == ("Progressing", "PartyUnknown")


def app_image_ref(record: Record) -> None:
    assert container(record, "d-images")["image"] == "example/serving:1"
    waits = _status(record, "d-no-image")
    assert (waits["phase"], waits["reason"]) == ("Progressing", "AppImageNotFound")


def role(record: Record) -> None:
    found = {one["metadata"]["name"].rsplit("-", 2)[0]: container_of(one)["command"] for one in pods(record, "d-roles")}
    assert found == {"d-roles-host": ["as-host"], "d-roles-guest": ["as-guest"]}
    assert set(record.keys("Service", "alice/d-roles-")) == {"alice/d-roles-host-api", "alice/d-roles-guest-api"}


def service_name_prefix(record: Record) -> None:
    assert service(record, "alice/credit-api")["spec"]["selector"]
    assert not record.keys("Service", "alice/d-prefix")
    assert "credit-api.alice.svc" in env(container(record, "d-prefix"))["CLUSTER_DEFINE"]
    assert "spec.parties[0].serviceNamePrefix" in record.refused["KusciaDeployment/d-prefix-wrong"]


async def scale(stage: Stage) -> None:
    await stage.until("KusciaDeployment", _key("d-replicas"), has(phase="Available"))
    spec = stage.record.last("KusciaDeployment", _key("d-replicas"))["spec"]
    spec = {**spec, "parties": [{**spec["parties"][0], "template": {"replicas": 1}}]}
    await stage.patch("KusciaDeployment", _key("d-replicas"), {"spec": spec})


def replicas(record: Record) -> None:
    assert len(pods(record, "d-replicas")) == 3
    alive = [key for key in record.keys("Pod", "alice/d-replicas-") if not record.all("Pod", key)[-1].is_gone]
    assert len(alive) == 1


# -- updates -------------------------------------------------------------------------------------------------------------------


async def update(stage: Stage, *names: str) -> None:
    for name in names:
        await stage.until("KusciaDeployment", _key(name), has(phase="Available"))
        await stage.patch("KusciaDeployment", _key(name), {"spec": {"inputConfig": "two"}})


def _moments(record: Record, name: str) -> list[tuple[float, int, int]]:
    """After each change of a pod, from the first that is ready on: when, how many there were, how many were ready."""
    changes: list[tuple[str, Seen]] = []
    for key in record.keys("Pod", f"alice/{name}-"):
        changes += [(key, seen) for seen in record.all("Pod", key)]
    now: dict[str, Raw] = {}
    found = []
    for key, seen in sorted(changes, key=lambda one: one[1].at):
        now[key] = seen.raw
        if seen.is_gone:
            del now[key]
        there = [raw for raw in now.values() if not raw["metadata"].get("deletionTimestamp")]
        ready = sum(1 for raw in there if _is_ready(raw))
        found.append((seen.at, len(there), ready))
    return found


def _is_ready(raw: Raw) -> bool:
    conditions = (raw.get("status") or {}).get("conditions") or ()
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def _once_up(record: Record, name: str, wanted: int) -> list[tuple[float, int, int]]:
    moments = _moments(record, name)
    first = next(index for index, (_, _, ready) in enumerate(moments) if ready == wanted)
    return moments[first:]


def strategy_type(record: Record) -> None:
    for name in ("d-recreate", "d-rolling"):
        assert len(pods(record, name)) == 4, "two old ones and two new ones"
        assert phase(record, "KusciaDeployment", name) == "Available"
    assert min(ready for _, _, ready in _once_up(record, "d-recreate", 2)) == 0
    assert min(ready for _, _, ready in _once_up(record, "d-rolling", 2)) >= 1
    made = record.keys("Pod", "alice/d-recreate-")
    first_new = min(record.all("Pod", key)[0].at for key in made[2:])
    last_old = max(record.when("Pod", key, has(phase="Failed")) for key in made[:2])
    assert last_old <= first_new, "all old ones have ended before"


def max_surge(record: Record) -> None:
    moments = _once_up(record, "d-surge", 4)
    assert max(there for _, there, _ in moments) == 6
    assert min(ready for _, _, ready in moments) >= 4, "maxUnavailable is 0"
    assert len(pods(record, "d-surge")) == 8


def max_unavailable(record: Record) -> None:
    moments = _once_up(record, "d-unavailable", 4)
    assert min(ready for _, _, ready in moments) == 2
    assert max(there for _, there, _ in moments) == 4, "maxSurge is 0"
    assert "maxUnavailable" in record.refused["KusciaDeployment/d-unavailable-nothing"]


# -- status --------------------------------------------------------------------------------------------------------------------


def phases(record: Record) -> None:
    assert record.values("KusciaDeployment", _key("d-phase"), "status", "phase") == [None, "Progressing", "Available"]
    assert phase(record, "KusciaDeployment", "d-phase-partial") == "PartialAvailable"
    assert phase(record, "KusciaDeployment", "d-phase-progressing") == "Progressing"
    assert "Failed" in record.values("KusciaDeployment", _key("d-phase-failed"), "status", "phase")


def reason(record: Record) -> None:
    status = _status(record, "d-reason")
    waiting = _status(record, "d-phase-progressing")
    assert status["reason"] == waiting["reason"]
    assert status["reason"]
    assert "party empty has 0 of 1 pods ready" in status["message"]
    assert "reason" not in _status(record, "d-phase")


def total_parties(record: Record) -> None:
    status = _status(record, "d-total")
    assert (status["totalParties"], status["availableParties"]) == (2, 1)


async def lose_pod(stage: Stage) -> None:
    """Update to what no node has room for: one old pod stays, since one of two must."""
    await stage.until("KusciaDeployment", _key("d-parts"), has(phase="Available"))
    main = {"name": "main", "resources": {"requests": {"cpu": "900"}}}
    template = {
        "replicas": 2,
        "spec": {"containers": [main]},
        "strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
    }
    spec = stage.record.last("KusciaDeployment", _key("d-parts"))["spec"]
    spec = {**spec, "parties": [{**spec["parties"][0], "template": template}]}
    await stage.patch("KusciaDeployment", _key("d-parts"), {"spec": spec})


def party_deployment_statuses(record: Record) -> None:
    seen = record.values("KusciaDeployment", _key("d-parts"), "status", "partyDeploymentStatuses", "alice", "d-parts-host")
    up = next(one for one in seen if one and one["phase"] == "Available")
    assert up["role"] == "host"
    assert [up[one] for one in ("replicas", "updatedReplicas", "availableReplicas", "unavailableReplicas")] == [2, 2, 2, 0]
    good = {one["type"]: one for one in up["conditions"]}
    assert (good["Available"]["status"], good["Available"]["reason"]) == ("True", "MinimumReplicasAvailable")
    assert parse_time(up["creationTimestamp"]) <= parse_time(good["Available"]["lastUpdateTime"])
    last = seen[-1]
    assert last["phase"] == "PartialAvailable"
    assert [last[one] for one in ("replicas", "updatedReplicas", "availableReplicas", "unavailableReplicas")] == [2, 1, 1, 1]
    bad = {one["type"]: one for one in last["conditions"]}
    assert (bad["Available"]["status"], bad["Available"]["message"]) == ("False", "1 of 2 pods are ready")
    assert parse_time(bad["Available"]["lastTransitionTime"]) > parse_time(good["Available"]["lastTransitionTime"])
    assert last["creationTimestamp"] == up["creationTimestamp"]


async def touch(stage: Stage) -> None:
    await stage.until("KusciaDeployment", _key("d-times"), has(phase="Available"))
    await asyncio.sleep(5)
    await stage.patch("KusciaDeployment", _key("d-times"), {"spec": {"inputConfig": "two"}})


def last_reconcile_time(record: Record) -> None:
    times = [
        parse_time(one) for one in record.values("KusciaDeployment", _key("d-times"), "status", "lastReconcileTime") if one
    ]
    assert times == sorted(times)
    assert times[-1] >= times[0] + 5, "the update changed the status"


def affinity_mode(record: Record) -> None:
    found = {mode: pods(record, f"d-mode-{mode}")[0]["spec"].get("affinity") for mode in ("none", "together", "apart")}
    assert found["none"] is None
    assert list(found["together"]) == ["podAffinity"]
    assert list(found["apart"]) == ["podAntiAffinity"]
    nodes = {
        mode: {record.last("Pod", key)["spec"]["nodeName"] for key in record.keys("Pod", f"alice/d-mode-{mode}-")}
        for mode in ("together", "apart")
    }
    assert (len(nodes["together"]), len(nodes["apart"])) == (1, 2), "alice has two nodes"
    assert KusciaAnnotation.AFFINITY_MODE in record.refused["KusciaDeployment/d-mode-wrong"]


CASES = (
    Case(file="spec.initiator", does="the party whose service it is; on pods and services", check=initiator),
    Case(
        file="spec.inputConfig",
        does="handed to the application unchanged: variable `INPUT_CONFIG`, and to configuration templates; a "
        "change is rolled out",
        check=input_config,
        act=change_input,
    ),
    Case(file="spec.parties.domainID", does="the party: namespace and nodes of its pods; waited for", check=domain_id),
    Case(file="spec.parties.appImageRef", does="what the party runs; waited for", check=app_image_ref),
    Case(file="spec.parties.role", does="which deploy template it runs; in the names of pods and services", check=role),
    Case(
        file="spec.parties.serviceNamePrefix",
        does="services are called `<prefix>-<port>`; `<deployment>[-<role>]` when left out",
        check=service_name_prefix,
        refused=("KusciaDeployment/d-prefix-wrong",),
    ),
    Case(
        file="spec.parties.template.replicas",
        does="number of pods, instead of the AppImage's; also 0; a change touches no pod that stays",
        check=replicas,
        act=scale,
    ),
    Case(
        file="spec.parties.template.strategy.type",
        does="`RollingUpdate` (default) or `Recreate`, as in Kubernetes",
        check=strategy_type,
        act=lambda stage: update(stage, "d-recreate", "d-rolling"),
    ),
    Case(
        file=f"{_ROLLING}.maxSurge",
        does="pods above the wanted number during an update; number or percentage, 25% when left out",
        check=max_surge,
        act=lambda stage: update(stage, "d-surge"),
    ),
    Case(
        file=f"{_ROLLING}.maxUnavailable",
        does="pods that may be missing during an update; number or percentage, 25% when left out",
        check=max_unavailable,
        act=lambda stage: update(stage, "d-unavailable"),
        refused=("KusciaDeployment/d-unavailable-nothing",),
    ),
    Case(file="status.phase", does="Kuscia's phases; one that recovers shows it", check=phases),
    Case(
        file="status.reason",
        fields=("status.reason", "status.message"),
        does="why the first pod that is not ready is not; empty when all are up",
        check=reason,
    ),
    Case(
        file="status.totalParties",
        fields=("status.totalParties", "status.availableParties"),
        does="number of parties, and of those that are all up",
        check=total_parties,
    ),
    Case(
        file="status.partyDeploymentStatuses",
        fields=(
            *(
                f"{_PART}.{one}"
                for one in ("phase", "role", "replicas", "updatedReplicas", "availableReplicas", "unavailableReplicas")
            ),
            *(
                f"{_PART}.conditions.{one}"
                for one in ("type", "status", "lastUpdateTime", "lastTransitionTime", "reason", "message")
            ),
            f"{_PART}.creationTimestamp",
        ),
        does="by party and part: phase, numbers of pods, conditions `Available` and `Progressing`",
        check=party_deployment_statuses,
        act=lose_pod,
    ),
    Case(file="status.lastReconcileTime", does="when its status was last written", check=last_reconcile_time, act=touch),
    Case(
        file="annotation.affinity-mode",
        fields=(KusciaAnnotation.AFFINITY_MODE,),
        does="pods of a part keep apart (`anti-affinity`, default), together (`affinity`), or neither (`none`); "
        "preferred, not required",
        check=affinity_mode,
        refused=("KusciaDeployment/d-mode-wrong",),
    ),
)
