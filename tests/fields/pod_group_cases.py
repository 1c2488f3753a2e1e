"""PodGroup and Koordinator's gang annotations: what they do. Each manifest has nodes of its own, which its pods select."""

from __future__ import annotations

import asyncio

from tests.fields.cases import Case
from tests.fields.record import Record, Stage

from muster.objects.labels import KoordinatorPod, Sigs
from muster.objects.status import Raw
from muster.objects.time import parse_time

LATE_S = 5.0


def _key(name: str) -> str:
    return f"default/{name}"


def placed(record: Record, prefix: str) -> list[str]:
    """The pods of this prefix that had a node."""
    return [key for key in record.keys("Pod", _key(prefix)) if record.ever("Pod", key, lambda raw: raw["spec"].get("nodeName"))]


def placed_at(record: Record, name: str) -> float:
    return record.when("Pod", _key(name), lambda raw: raw["spec"].get("nodeName"))


def _waits(record: Record, name: str) -> tuple[str, str]:
    """Why the pod waits: reason and message."""
    conditions = record.status("Pod", _key(name)).get("conditions") or ()
    for type_ in ("muster.dev/Waiting", "PodScheduled"):
        for one in conditions:
            if one["type"] == type_ and one.get("reason"):
                return one["reason"], one.get("message", "")
    return "", ""


async def come_late(stage: Stage, like: str, name: str, *, alone: bool = True) -> None:
    """Another pod like one that is there, after a while: on its own, or one more of the gang."""
    await asyncio.sleep(LATE_S)
    model: Raw = stage.record.first("Pod", _key(like))
    metadata: Raw = {"name": name, "namespace": "default"}
    if not alone:
        metadata |= {word: model["metadata"][word] for word in ("labels", "annotations") if word in model["metadata"]}
    else:
        metadata["annotations"] = {"muster.dev/simulated-seconds": "forever"}
    spec = {word: model["spec"][word] for word in ("schedulerName", "restartPolicy", "nodeSelector", "containers")}
    await stage.world.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})


# -- PodGroup ------------------------------------------------------------------------------------------------------------------


def min_member(record: Record) -> None:
    assert len(placed(record, "mm-a-")) == 2, "two have room, and two are enough"
    assert placed(record, "mm-b-") == [], "two have room, and three must"


def min_resources(record: Record) -> None:
    assert placed(record, "mr-0") == []
    assert "cpu" in _waits(record, "mr-0")[1]
    assert placed(record, "mr-ok-") == [_key("mr-ok-0")]


def schedule_timeout_seconds(record: Record) -> None:
    assert placed(record, "st-0") == placed(record, "st-1") == []
    assert 19 <= placed_at(record, "st-late") <= 28, "kept for 20 seconds, then given back"


def phases(record: Record) -> None:
    def seen(name: str) -> list[str]:
        return [one for one in record.values("PodGroup", _key(name), "status", "phase") if one]

    order = ["Pending", "PreScheduling", "Scheduling", "Scheduled", "Running", "Finished"]
    assert [order.index(one) for one in seen("ph")] == sorted({order.index(one) for one in seen("ph")})
    assert {"Scheduled", "Running"} & set(seen("ph"))
    assert seen("ph")[-1] == "Finished"
    assert seen("ph-empty")[-1] == "Pending"
    assert seen("ph-bad")[-1] == "Failed"


async def take_over(stage: Stage) -> None:
    """Each pod gets an owner, as an operator would have made it with."""
    await asyncio.sleep(LATE_S)
    for index, owner in enumerate(("second", "first", "first")):
        uid = stage.record.first("ConfigMap", _key(owner))["metadata"]["uid"]
        reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": owner, "uid": uid}
        await stage.patch("Pod", _key(f"ob-{index}"), {"metadata": {"ownerReferences": [reference]}})


def occupied_by(record: Record) -> None:
    assert record.status("PodGroup", _key("ob"))["occupiedBy"] == "default/first,default/second"


def counts(record: Record) -> None:
    status = record.status("PodGroup", _key("ct"))
    assert [status[one] for one in ("scheduled", "running", "succeeded", "failed")] == [3, 1, 1, 1]
    most = max(one or 0 for one in record.values("PodGroup", _key("ct"), "status", "running"))
    assert most == 3
    bound = [one for one in record.values("PodGroup", _key("ct"), "status", "scheduleStartTime") if one]
    assert len(bound) == 1, "the first one stays"
    assert parse_time(bound[0]) >= parse_time(record.first("Pod", _key("ct-0"))["metadata"]["creationTimestamp"])


def pod_group_label(record: Record) -> None:
    assert placed(record, "lb-") == [_key("lb-1"), _key("lb-2")]
    reason, message = _waits(record, "lb-0")
    assert reason == "GangIncomplete"
    assert "PodGroup default/lb-none does not exist" in message


def deprecated_labels(record: Record) -> None:
    assert placed(record, "ln-") == [], "one has room, and two must"
    assert _waits(record, "ln-0")[0] not in ("", "GangIncomplete"), "both are there"


# -- gang annotations ----------------------------------------------------------------------------------------------------------


def name(record: Record) -> None:
    assert placed(record, "an-0") + placed(record, "an-1") == [_key("an-0"), _key("an-1")]
    notes = record.last("Pod", _key("an-0"))["metadata"]["annotations"]
    assert notes[KoordinatorPod.BIND_GANG_GROUP_ID] == "default/an"
    assert notes[KoordinatorPod.BIND_GANG_MEMBER_COUNT] == "2"
    assert placed(record, "an-alone") == [], "the only one of its gang, which has a minimum of two"
    assert _waits(record, "an-alone")[0] == "GangIncomplete"


def min_available(record: Record) -> None:
    assert placed(record, "ma-") == []
    reason, message = _waits(record, "ma-bad-0")
    assert reason == "GangIncomplete"
    assert "min-available" in message


def total_number(record: Record) -> None:
    assert len(placed(record, "tn-")) == 2, "the minimum is there; the three others may come later"


async def want_room(stage: Stage) -> None:
    await asyncio.gather(come_late(stage, "mo-s-0", "mo-s-late"), come_late(stage, "mo-n-0", "mo-n-late"))


def mode(record: Record) -> None:
    assert placed(record, "mo-s-") == [_key("mo-s-late")], "a Strict gang holds nothing while it can't start"
    assert placed(record, "mo-n-") == [], "a NonStrict one keeps what it found"


def waiting_time(record: Record) -> None:
    assert 14 <= placed_at(record, "wt-late") <= 23, "kept for 15 seconds, then given back"


def groups(record: Record) -> None:
    assert placed(record, "gr-") == [_key("gr-c-0")]


async def join_late(stage: Stage) -> None:
    await asyncio.gather(
        *(come_late(stage, f"mp-{one}-0", f"mp-{one}-late", alone=False) for one in ("os", "ow", "wr", "alias"))
    )


def match_policy(record: Record) -> None:
    for one in ("os", "ow", "wr", "alias"):
        assert len(placed(record, f"mp-{one}-")) >= 2, "all gangs start"
    assert placed(record, "mp-os-late"), "once-satisfied: the gang has started, so the late one just starts"
    assert placed(record, "mp-wr-late"), "waiting-and-running: with those that run there are three"
    for one in ("ow", "alias"):
        assert not placed(record, f"mp-{one}-late"), "only-waiting: it is the only one that waits"
        assert _waits(record, f"mp-{one}-late")[0] == "GangIncomplete"


CASES = (
    Case(file="spec.minMember", does="so many members get a node together, or none does", check=min_member),
    Case(
        file="spec.minResources",
        does="the gang is not tried while less than this is free in the cluster, summed over all nodes",
        check=min_resources,
    ),
    Case(
        file="spec.scheduleTimeoutSeconds",
        does="how long members of a NonStrict gang keep the places that they found; a Strict gang holds none",
        check=schedule_timeout_seconds,
        act=lambda stage: come_late(stage, "st-0", "st-late"),
    ),
    Case(file="status.phase", does="Koordinator's phases; also after 48 hours, where Koordinator stops to look", check=phases),
    Case(
        file="status.occupiedBy",
        does="owners of its pods, sorted, as `namespace/name` with commas",
        check=occupied_by,
        act=take_over,
    ),
    Case(
        file="status.scheduled",
        fields=tuple(f"status.{one}" for one in ("scheduled", "running", "succeeded", "failed", "scheduleStartTime")),
        does="pods that have a node, run, have succeeded, have failed; when the first of them was seen with a node",
        check=counts,
    ),
    Case(
        file="label.pod-group",
        fields=(Sigs.POD_GROUP,),
        does="on a pod: the PodGroup that it belongs to",
        check=pod_group_label,
    ),
    Case(
        file="label.pod-group-name",
        fields=(Sigs.POD_GROUP_NAME, Sigs.POD_GROUP_MIN_AVAILABLE),
        does="on a pod: the deprecated names of gang and minimum",
        check=deprecated_labels,
    ),
    Case(
        file="annotation.name",
        fields=(KoordinatorPod.GANG_NAME,),
        does="on a pod: its gang, without a PodGroup. Pods that were bound together say so, as Koordinator's do",
        check=name,
    ),
    Case(
        file="annotation.min-available",
        fields=(KoordinatorPod.GANG_MIN_AVAILABLE,),
        does="on a pod: so many members start together; while no pod of the gang gives a number it waits",
        check=min_available,
    ),
    Case(
        file="annotation.total-number",
        fields=(KoordinatorPod.GANG_TOTAL_NUMBER,),
        does="how many are expected; read, and decides nothing, as in Koordinator: a gang starts with its minimum",
        check=total_number,
    ),
    Case(
        file="annotation.mode",
        fields=(KoordinatorPod.GANG_MODE,),
        does="`Strict` (default): nobody holds anything until all can start; `NonStrict`: members keep what they found",
        check=mode,
        act=want_room,
    ),
    Case(
        file="annotation.waiting-time",
        fields=(KoordinatorPod.GANG_WAITING_TIME,),
        does="how long members of a NonStrict gang keep their places; 600 s when left out",
        check=waiting_time,
        act=lambda stage: come_late(stage, "wt-0", "wt-late"),
    ),
    Case(
        file="annotation.groups",
        fields=(KoordinatorPod.GANG_GROUPS,),
        does="gangs that start together, the minimum of each or nothing; each must name the same ones",
        check=groups,
    ),
    Case(
        file="annotation.match-policy",
        fields=(KoordinatorPod.GANG_MATCH_POLICY, Sigs.POD_GROUP_MATCH_POLICY),
        does="who counts towards the minimum: `once-satisfied` (default), `only-waiting`, `waiting-and-running`",
        check=match_policy,
        act=join_late,
    ),
)
_NO_TOPOLOGY = "there is no ClusterNetworkTopology yet: gangs are placed without regard to switches and racks"
NOTHING = {
    KoordinatorPod.GANG_TIMEOUT: "a legacy marker of Koordinator's scheduler; nothing here reads or writes it",
    KoordinatorPod.GANG_NETWORK_TOPOLOGY_SPEC: _NO_TOPOLOGY,
    KoordinatorPod.GANG_NETWORK_TOPOLOGY_INDEX: _NO_TOPOLOGY,
}
