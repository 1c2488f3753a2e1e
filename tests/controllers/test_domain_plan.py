"""What a Domain leads to: the namespace and who may act in it, node and quota status, and an end that loses nothing."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from muster.controllers import domain_objects as objects
from muster.controllers.actions import Action, Create, Delete, Emit, Patch, PatchStatus
from muster.controllers.domain_plan import Situation, plan
from muster.controllers.domain_status import NODES_MAX, NodeView, node_entries, node_entry, quota_status, used_of
from muster.engine.facts import PodFacts, QuotaFacts
from muster.objects.kinds.kuscia_base import GROUP
from muster.objects.labels import KusciaLabel, Muster
from muster.objects.status import Raw
from muster.objects.time import format_time
from muster.objects.view import view_of

NOW = 1_800_000_000.0
NAME_LABEL, DELETED_LABEL = KusciaLabel.DOMAIN_NAME, KusciaLabel.DOMAIN_DELETED


def domain(name: str = "alice", *, finalizers: tuple[str, ...] = (Muster.DOMAIN_FINALIZER,), **more: Any) -> Raw:
    metadata: Raw = {"name": name, "uid": "d1", "resourceVersion": "7", "finalizers": list(finalizers)}
    if more.pop("deleting", False):
        metadata["deletionTimestamp"] = format_time(NOW)
    raw: Raw = {
        "apiVersion": "kuscia.secretflow/v1alpha1",
        "kind": "Domain",
        "metadata": metadata,
        "spec": more.pop("spec", {}),
    }
    return {**raw, **more}


def namespace(labels: dict[str, str] | None = None, *, deleting: bool = False) -> Raw:
    raw = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "alice", "uid": "n1", "labels": labels or {}}}
    if deleting:
        raw["metadata"]["deletionTimestamp"] = format_time(NOW)  # type: ignore[index]
    return raw


OURS = {NAME_LABEL: "alice"}


def settled(raw: Raw | None = None, **changes: Any) -> Situation:
    """Everything is in place."""
    raw = raw or domain()
    account, role, binding = objects.access(raw, "alice", raw["spec"].get("role", ""))
    for number, one in enumerate((account, role, binding)):
        one["metadata"]["uid"] = f"a{number}"
    whole: dict[str, Any] = {
        "namespace": namespace(OURS),
        "configuration": objects.configuration("alice"),
        "account": account,
        "role": role,
        "binding": binding,
        "strangers": None,
    }
    return Situation(domain=raw, **{**whole, **changes})


def ready(message: str = "namespace alice is ready") -> Raw:
    return {"conditions": [{"type": "Ready", "status": "True", "reason": "Prepared", "message": message}]}


def kinds(actions: list[Action]) -> list[str]:
    return [f"{type(a).__name__} {a.object['kind'] if isinstance(a, Create) else a.target.kind}" for a in _writes(actions)]


def _writes(actions: list[Action]) -> list[Any]:
    return [action for action in actions if not isinstance(action, Emit)]


def events(actions: list[Action]) -> list[str]:
    return [action.reason for action in actions if isinstance(action, Emit)]


def condition(actions: list[Action], type_: str = "Ready") -> Raw:
    for action in actions:
        if isinstance(action, PatchStatus):
            for one in action.status.get("conditions", ()):
                if one["type"] == type_:
                    return dict(one)
    return {}


def test_the_finalizer_comes_first_and_alone() -> None:
    result = plan(Situation(domain=domain(finalizers=("other/one",)), has_cross_domain=False), NOW)
    [action] = result.actions
    assert isinstance(action, Patch)
    assert action.patch == {"metadata": {"finalizers": ["other/one", Muster.DOMAIN_FINALIZER]}}
    assert action.target.resource_version == "7"


def test_a_new_party_gets_everything() -> None:
    result = plan(Situation(domain=domain(), has_cross_domain=False), NOW)
    actions = list(result.actions)
    made = ["Namespace", "Namespace", "ConfigMap", "ServiceAccount", "Role", "RoleBinding"]
    assert kinds(actions) == [*(f"Create {kind}" for kind in made), "PatchStatus Domain"]
    names = [action.object["metadata"]["name"] for action in actions if isinstance(action, Create)]
    assert names == ["cross-domain", "alice", "domain-config", "alice", "alice", "alice"]
    assert condition(actions)["status"] == "True"


def test_nothing_to_do_when_all_is_there() -> None:
    assert plan(settled(domain(status=ready())), NOW).actions == []


@pytest.mark.parametrize(
    ("spec", "labels", "changes"),
    [
        pytest.param({}, OURS, None, id="own"),
        pytest.param({"role": "partner"}, OURS, {KusciaLabel.DOMAIN_ROLE: "partner"}, id="became a partner"),
        pytest.param(
            {"interConnProtocols": ["kuscia", "bfia"]}, OURS, {KusciaLabel.INTERCONN_PROTOCOLS: "kuscia_bfia"}, id="protocols"
        ),
        pytest.param({}, {**OURS, KusciaLabel.DOMAIN_ROLE: "partner"}, {KusciaLabel.DOMAIN_ROLE: None}, id="own again"),
        pytest.param({}, {**OURS, DELETED_LABEL: "true"}, {DELETED_LABEL: None}, id="made again"),
        pytest.param({}, {**OURS, "team": "x"}, None, id="other labels stay"),
    ],
)
def test_labels_of_the_namespace(spec: Raw, labels: dict[str, str], changes: Raw | None) -> None:
    at = settled(domain(spec=spec, status=ready()), namespace=namespace(labels))
    patches = [a.patch for a in plan(at, NOW).actions if isinstance(a, Patch) and a.target.kind == "Namespace"]
    assert patches == ([{"metadata": {"labels": changes}}] if changes else [])
    if DELETED_LABEL in labels:
        assert events(list(plan(at, NOW).actions)) == ["NamespaceTakenOver"]


def test_an_empty_namespace_is_taken_over_and_a_used_one_is_not_touched() -> None:
    bare = Situation(domain=domain(), namespace=namespace(), strangers=())
    actions = list(plan(bare, NOW).actions)
    assert "NamespaceAdopted" in events(actions)
    assert "Create RoleBinding" in kinds(actions)

    used = msgspec.structs.replace(bare, strangers=[f"ConfigMap c{n}" for n in range(7)])
    result = plan(used, NOW)
    actions = list(result.actions)
    assert kinds(actions) == ["PatchStatus Domain"]
    assert result.requeue_after_s is not None
    why = condition(actions)
    assert (why["status"], why["reason"]) == ("False", "NamespaceTaken")
    assert "c4 and 2 more" in why["message"]
    assert f"kubectl label namespace alice {NAME_LABEL}=alice" in why["message"]
    assert events(actions) == ["NamespaceTaken"]

    unseen = msgspec.structs.replace(bare, strangers=None)
    assert kinds(list(plan(unseen, NOW).actions)) == ["PatchStatus Domain"]


def test_a_namespace_that_is_going_is_waited_for() -> None:
    at = Situation(domain=domain(), namespace=namespace(OURS, deleting=True))
    actions = list(plan(at, NOW).actions)
    assert condition(actions)["reason"] == "NamespaceTerminating"
    assert kinds(actions) == ["PatchStatus Domain"]


def test_a_reserved_name_is_never_handed_out() -> None:
    actions = list(plan(Situation(domain=domain("kube-system")), NOW).actions)
    assert kinds(actions) == ["PatchStatus Domain"]
    assert condition(actions)["reason"] == "NameReserved"


def test_a_name_that_makes_no_namespace_is_said() -> None:
    actions = list(plan(Situation(domain=domain("a.b")), NOW).actions)
    assert kinds(actions) == ["PatchStatus Domain"]
    assert condition(actions)["reason"] == "ManifestInvalid"


# -- access -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["", "partner"])
def test_least_privilege(role: str) -> None:
    granted = {
        (permission.group, resource, verb)
        for permission in objects.permissions_of(role)
        for resource in permission.resources
        for verb in permission.verbs
    }
    assert not any("*" in (group, resource, verb) for group, resource, verb in granted)
    assert not any(resource in ("secrets", "nodes", "roles", "rolebindings", "domains") for _, resource, _ in granted)
    assert ("", "pods", "create") not in granted
    assert (GROUP, "kusciajobs", "create") not in granted
    if role == "partner":
        assert {group for group, _, _ in granted} == {GROUP}, "a partner sees nothing of pods and configuration"


def test_a_partner_may_do_less_than_an_own_party() -> None:
    def granted(role: str) -> set[tuple[str, str, str]]:
        found = objects.permissions_of(role)
        return {(p.group, resource, verb) for p in found for resource in p.resources for verb in p.verbs}

    assert granted("partner") < granted("")


def test_changed_access_is_put_right() -> None:
    at = settled(domain(status=ready()))
    assert at.role is not None
    assert at.binding is not None
    wide = {**at.role, "rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]}
    more = {**at.binding, "subjects": [*at.binding["subjects"], {"kind": "User", "name": "eve"}]}
    actions = plan(msgspec.structs.replace(at, role=wide, binding=more), NOW).actions
    assert [(a.target.kind, a.patch) for a in actions if isinstance(a, Patch)] == [
        ("Role", {"rules": at.role["rules"]}),
        ("RoleBinding", {"subjects": at.binding["subjects"]}),
    ]


def test_what_an_earlier_domain_left_goes_and_a_binding_to_another_role_too() -> None:
    at = settled(domain(status=ready()))
    assert at.account is not None
    assert at.binding is not None
    old = objects.access({**domain(), "metadata": {"name": "alice", "uid": "d0"}}, "alice", "")[0]
    admin = {**at.binding, "roleRef": {**at.binding["roleRef"], "kind": "ClusterRole", "name": "cluster-admin"}}
    actions = list(plan(msgspec.structs.replace(at, account=old, binding=admin), NOW).actions)
    assert kinds(actions) == ["Delete ServiceAccount", "Delete RoleBinding"]


def test_an_account_without_an_owner_becomes_the_domains() -> None:
    at = settled(domain(status=ready()))
    assert at.account is not None
    bare = {**at.account, "metadata": {**at.account["metadata"], "ownerReferences": []}}
    [action] = plan(msgspec.structs.replace(at, account=bare), NOW).actions
    assert isinstance(action, Patch)
    assert action.patch["metadata"]["ownerReferences"][0]["uid"] == "d1"


# -- the end ------------------------------------------------------------------------------------------------------------------


def test_deletion_waits_for_work_and_says_for_which() -> None:
    work = [f"KusciaTask cross-domain/t{n}" for n in range(7)]
    at = settled(domain(deleting=True, status=ready()), holders=work)
    actions = list(plan(at, NOW).actions)
    assert kinds(actions) == ["PatchStatus Domain"]
    why = condition(actions, "Terminating")
    assert why["reason"] == "WorkRunning"
    assert "7 pieces of work of alice" in why["message"]
    assert "t4 and 2 more" in why["message"]
    assert events(actions) == ["WorkRunning"]
    [first] = [a for a in actions if isinstance(a, PatchStatus)]
    said = settled(domain(deleting=True, status={"conditions": first.status["conditions"]}), holders=work)
    assert not plan(said, NOW + 5).actions, "once is enough"


def test_the_end_keeps_the_namespace_and_takes_the_access() -> None:
    at = settled(domain(deleting=True, finalizers=("x/y", Muster.DOMAIN_FINALIZER), status=ready()))
    actions = list(plan(at, NOW).actions)
    assert kinds(actions) == [
        "Delete RoleBinding",
        "Delete Role",
        "Delete ServiceAccount",
        "Patch Namespace",
        "Patch Domain",
    ]
    *_, label, last = [a for a in actions if isinstance(a, Patch)]
    assert label.patch == {"metadata": {"labels": {DELETED_LABEL: "true"}}}
    assert last.patch == {"metadata": {"finalizers": ["x/y"]}}
    assert events(actions) == ["NamespaceKept"]


def test_a_namespace_that_was_never_the_partys_is_left_alone_in_the_end() -> None:
    at = settled(domain(deleting=True), namespace=namespace())
    assert kinds(list(plan(at, NOW).actions)) == ["Patch Domain"]


def test_whoever_has_let_go_does_nothing_more() -> None:
    assert not plan(settled(domain(deleting=True, finalizers=("x/y",))), NOW).actions


# -- status -------------------------------------------------------------------------------------------------------------------


def entry(name: str, beat_s: float = 0.0, status: str = "Ready") -> Raw:
    return {"name": name, "status": status, "lastHeartbeatTime": format_time(NOW + beat_s)}


@pytest.mark.parametrize(
    ("old", "new", "is_written"),
    [
        pytest.param(None, [], False, id="no nodes"),
        pytest.param(None, [entry("a")], True, id="first node"),
        pytest.param([entry("a")], [entry("a", 30)], False, id="a heartbeat alone"),
        pytest.param([entry("a")], [entry("a", 60)], True, id="a minute later"),
        pytest.param([entry("a")], [entry("a", 1, "NotReady")], True, id="not ready any more"),
        pytest.param([entry("a"), entry("b")], [entry("a")], True, id="one went"),
        pytest.param([entry("a"), entry("b")], [entry("b"), entry("a")], False, id="order does not matter"),
        pytest.param("nonsense", [entry("a")], True, id="unreadable before"),
    ],
)
def test_node_entries(old: Any, new: list[Raw], is_written: bool) -> None:
    found = node_entries(old, new)
    assert (found is not None) is is_written
    if found is not None:
        assert [e["name"] for e in found] == sorted(e["name"] for e in new)


def test_nodes_are_bounded() -> None:
    found = node_entries(None, [entry(f"n{n:05}") for n in range(NODES_MAX + 5)])
    assert found is not None
    assert len(found) == NODES_MAX


@pytest.mark.parametrize(
    ("conditions", "status"),
    [
        pytest.param([{"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T00:00:00Z"}], "Ready", id="ready"),
        pytest.param([{"type": "Ready", "status": "Unknown"}], "NotReady", id="unknown"),
        pytest.param([], "NotReady", id="silent"),
    ],
)
def test_node_entry(conditions: list[Raw], status: str) -> None:
    node = view_of(NodeView, {"status": {"conditions": conditions, "nodeInfo": {"kubeletVersion": "v1"}}})
    found = node_entry("n", node)
    assert (found["name"], found["version"], found["status"]) == ("n", "v1", status)
    assert "lastTransitionTime" not in found


def pod(cpu: str, node: str = "n1", phase: str = "Running", **annotations: str) -> PodFacts:
    raw = {
        "metadata": {"name": "p", "annotations": {k.replace("_", "/"): v for k, v in annotations.items()}},
        "spec": {"nodeName": node, "containers": [{"resources": {"requests": {"cpu": cpu, "memory": "1Gi"}}}]},
        "status": {"phase": phase},
    }
    return msgspec.convert(raw, PodFacts)


def quota(**limits: Any) -> QuotaFacts:
    return msgspec.convert({"metadata": {"name": "alice"}, "spec": {"resourceQuota": limits}}, QuotaFacts)


def test_counts_what_has_a_node_and_has_not_ended() -> None:
    pods = [pod("1"), pod("1500m"), pod("9", node=""), pod("9", phase="Succeeded"), pod("9", phase="Failed")]
    assert used_of({"pods": 5, "cpu": 4000}, pods) == {"pods": 2, "cpu": 2500}


def test_quota_status_is_written_now_and_then() -> None:
    limits = quota(hard={"cpu": 4, "bandwidth-egress": "1Gbps"})
    asked: list[float] = []

    def after(patch: Raw | None, cpu: str, seconds: float, now_quota: QuotaFacts | None = limits) -> Any:
        def pods() -> list[PodFacts]:
            asked.append(seconds)
            return [pod(cpu)]

        return quota_status(patch, now_quota, pods, NOW + seconds)

    is_due, patch, _ = after(None, "2500m", 0)
    assert is_due
    assert patch["hard"] == {"cpu": "4", "bandwidth-egress": "1Gbps"}
    assert patch["used"] == {"cpu": "2500m", "bandwidth-egress": "0bps"}
    assert after(patch, "3", 4) == (False, None, 6.0), "too early"
    assert asked == [0], "and nothing was counted for it"
    assert after(patch, "2500m", 11) == (False, None, None), "the same again"
    assert after(patch, "3", 11)[0]
    is_due, changed, _ = after(patch, "2500m", 1, quota(hard={"cpu": 8}))
    assert is_due, "another limit is shown at once"
    assert changed["hard"] == {"cpu": "8", "bandwidth-egress": None}
    assert after(patch, "1", 1, quota()) == (True, None, None)
    assert after(None, "1", 1, None) == (False, None, None)


def test_deletes_only_what_it_planned_from() -> None:
    deletions = [a for a in plan(settled(domain(deleting=True)), NOW).actions if isinstance(a, Delete)]
    assert all(action.target.uid for action in deletions)
