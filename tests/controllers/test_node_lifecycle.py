"""What is decided about a node from its lease and its conditions: tables, and properties of the plan."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.controllers.actions import Emit, Patch, PatchStatus, Target
from muster.controllers.node_lifecycle import MARGIN_S, BoundPod, Situation, lost_status, plan
from muster.objects.status import Raw

NOW = 1_700_000_000.0
PARTY = {"key": "kuscia.secretflow/agent", "value": "v1", "effect": "NoSchedule"}
POD = BoundPod(Target("", "Pod", "p", "default", "uid", "7"))


def node(conditions: dict[str, str], taints: list[Raw] | None = None, fence: str = "", **metadata: Any) -> Raw:
    annotations = {"annotations": {"muster.dev/fence-seconds": fence}} if fence else {}
    made = {"name": "n1", "uid": "u", "resourceVersion": "5", **annotations, **metadata}
    found = [{"type": type_, "status": status, "reason": "x"} for type_, status in conditions.items()]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": made,
        "spec": {"taints": taints or []},
        "status": {"conditions": found},
    }


def at(raw: Raw, silent_s: float = 0.0, **more: Any) -> Situation:
    return Situation(node=raw, lease_s=40, silent_s=silent_s, renewed="2024-01-01T00:00:00Z", **more)


def taint(name: str) -> Raw:
    return {"key": f"node.kubernetes.io/{name}", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("conditions", "before", "after"),
    [
        pytest.param({"Ready": "True"}, [], None, id="well"),
        pytest.param({}, [], None, id="says nothing"),
        pytest.param({"Ready": "False"}, [], [taint("not-ready")], id="not ready"),
        pytest.param({"Ready": "Unknown"}, [PARTY], [PARTY, taint("unreachable")], id="unknown, beside others"),
        pytest.param({"Ready": "False"}, [taint("unreachable")], [taint("not-ready")], id="from unknown to not ready"),
        pytest.param({"Ready": "True"}, [taint("unreachable"), PARTY], [PARTY], id="back"),
        pytest.param(
            {"Ready": "True", "MemoryPressure": "True", "DiskPressure": "True", "PIDPressure": "False"},
            [taint("pid-pressure")],
            [taint("memory-pressure"), taint("disk-pressure")],
            id="pressures",
        ),
        pytest.param({"Ready": "True", "NetworkUnavailable": "True"}, [], [taint("network-unavailable")], id="no network"),
        pytest.param(
            {"Ready": "True"}, [{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}], None, id="another effect"
        ),
        pytest.param(
            {"Ready": "True"}, [{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}], None, id="cordon"
        ),
    ],
)
def test_taints(conditions: dict[str, str], before: list[Raw], after: list[Raw] | None) -> None:
    decided = plan(at(node(conditions, before), 10.0), NOW)
    patches = [action for action in decided.actions if isinstance(action, Patch)]
    assert [patch.patch for patch in patches] == ([] if after is None else [{"spec": {"taints": after}}])
    assert all(patch.target.resource_version == "5" for patch in patches), "a list that others write too"
    assert decided.requeue_after_s == 30.0


@pytest.mark.parametrize(
    ("silent_s", "is_silent"),
    [pytest.param(39.9, False, id="not yet"), pytest.param(40.0, True, id="now"), pytest.param(1e9, True, id="for ages")],
)
def test_silence(silent_s: float, is_silent: bool) -> None:
    decided = plan(at(node({"Ready": "True", "DiskPressure": "False", "Own": "True"}), silent_s), NOW)
    if not is_silent:
        assert not decided.actions
        return
    status, event = decided.actions
    assert isinstance(status, PatchStatus)
    assert isinstance(event, Emit)
    said = {c["type"]: (c["status"], c["reason"]) for c in status.status["conditions"]}
    unknown = ("Unknown", "NodeStatusUnknown")
    assert said == {"Ready": unknown, "DiskPressure": unknown, "Own": ("True", "x")}
    assert status.target.resource_version == "5"


def test_a_silence_is_said_once() -> None:
    raw = node({"Ready": "Unknown"}, [taint("unreachable")])
    raw["status"]["conditions"][0]["reason"] = "NodeStatusUnknown"
    assert plan(at(raw, 100.0), NOW).actions == []


@pytest.mark.parametrize(
    ("fence", "silent_s", "lost", "again_s"),
    [
        pytest.param("", 1e9, False, None, id="no fence: never"),
        pytest.param("0", 1e9, False, None, id="a fence of nothing is none"),
        pytest.param("soon", 1e9, False, None, id="a fence that can't be read is none"),
        pytest.param("-5", 1e9, False, None, id="a negative one neither"),
        pytest.param("60", 50.0, False, 40 + 60 + MARGIN_S - 50.0, id="silent, fence not passed"),
        pytest.param("60", 40 + 60 + MARGIN_S - 0.1, False, pytest.approx(0.1), id="within the margin"),
        pytest.param("60", 40 + 60 + MARGIN_S, True, None, id="passed"),
        pytest.param("6000", 40 + 6000 + MARGIN_S, False, pytest.approx(300 - MARGIN_S), id="clocks that differ"),
        pytest.param("6000", 40 + 6000 + 300, True, None, id="clocks that differ, passed"),
    ],
)
def test_fences(fence: str, silent_s: float, lost: bool, again_s: float | None) -> None:
    raw = node({"Ready": "Unknown"}, [taint("unreachable")], fence)
    raw["status"]["conditions"][0]["reason"] = "NodeStatusUnknown"
    situation = at(raw, silent_s, pods=[POD])
    assert situation.is_lost is lost
    decided = plan(situation, NOW)
    assert (decided.actions, decided.requeue_after_s) == ([], again_s)
    if lost:
        assert lost_status(situation)["reason"] == "NodeLost"
        assert f"fence of {fence} s has passed" in lost_status(situation)["message"]


def test_a_node_that_goes_is_left_alone() -> None:
    raw = node({"Ready": "False"}, deletionTimestamp="2024-01-01T00:00:00Z", finalizers=["a.b/c"])
    assert not plan(at(raw, 1e6), NOW).actions


STATUSES = st.sampled_from(["True", "False", "Unknown", "nonsense"])
TYPES = ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable", "Other")
KEYS = ("unreachable", "not-ready", "memory-pressure", "disk-pressure", "pid-pressure", "network-unavailable", "other")


@given(
    conditions=st.dictionaries(st.sampled_from(TYPES), STATUSES),
    taints=st.lists(st.sampled_from(KEYS), unique=True),
    silent_s=st.floats(0, 1000),
    fence=st.sampled_from(["", "60", "x"]),
)
def test_the_plan_comes_to_rest(conditions: dict[str, str], taints: list[str], silent_s: float, fence: str) -> None:
    """Whatever the node was: after two looks there is nothing left to do, and others' taints and conditions are untouched."""
    raw = node(conditions, [PARTY, *map(taint, taints)], fence)
    for _ in range(2):
        for action in plan(at(raw, silent_s), NOW).actions:
            if isinstance(action, PatchStatus):
                raw["status"].update(action.status)
            elif isinstance(action, Patch):
                raw["spec"].update(action.patch["spec"])
    decided = plan(at(raw, silent_s), NOW)
    assert decided.actions == []
    assert PARTY in raw["spec"]["taints"]
    assert (taint("other") in raw["spec"]["taints"]) is ("other" in taints)
    found = {c["type"]: c["status"] for c in raw["status"]["conditions"]}
    assert found.get("Other") == conditions.get("Other")
    assert (found.get("Ready") == "Unknown") or silent_s < 40
    assert (taint("unreachable") in raw["spec"]["taints"]) is (found.get("Ready") == "Unknown")
