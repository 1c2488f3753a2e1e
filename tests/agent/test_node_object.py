"""What a Node says, and what an agent changes on one that is there."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.agent.config import AgentConfig, Capacity, Network, Timing
from muster.agent.contracts import Missing
from muster.agent.measuring import Pressure
from muster.agent.node_object import (
    MISSING,
    OWNED,
    conditions,
    differs,
    metadata_patch,
    new_node,
    node_name,
    short,
    status,
    stopped,
)
from muster.objects.conditions import find_condition
from muster.objects.patch import apply_merge_patch
from tests.agent.node_facts import facts
from tests.store.embedded.support import NODES, open_store

NOW = 1_800_000_000.0


def test_a_node_of_a_party() -> None:
    node = new_node(facts(AgentConfig(domain="alice", labels={"zone": "east"}, taints=[{"key": "gpu", "effect": "NoExecute"}])))
    assert node["metadata"]["labels"] == {
        "kubernetes.io/hostname": "box",
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/role": "agent",
        "kuscia.secretflow/runtime": "runp",
        "kuscia.secretflow/namespace": "alice",
        "domain": "alice",
        "muster.dev/agent": node["metadata"]["labels"]["muster.dev/agent"],
        "zone": "east",
    }
    assert node["spec"]["taints"] == [
        {"key": "gpu", "effect": "NoExecute"},
        {"key": "kuscia.secretflow/agent", "value": "v1", "effect": "NoSchedule"},
    ]
    assert node["metadata"]["annotations"]["muster.dev/agent-bandwidth"] == "1000Mbps"
    assert node["metadata"]["annotations"]["muster.dev/agent-bandwidth-reserved"] == "10Mbps"


def test_a_node_of_no_party_takes_everybodys_work() -> None:
    node = new_node(facts())
    assert node["spec"] == {}
    assert "domain" not in node["metadata"]["labels"]


def test_labels_of_the_file_do_not_change_whose_node_it_is() -> None:
    config = AgentConfig(domain="alice", labels={"domain": "bob", "kuscia.secretflow/namespace": "bob"})
    assert new_node(facts(config))["metadata"]["labels"]["domain"] == "alice"


@pytest.mark.parametrize(
    ("config", "hostname", "name"),
    [
        pytest.param(AgentConfig(name="mine"), "box", "mine", id="given"),
        pytest.param(AgentConfig(), "Box_1.Example", "box-1.example", id="the host's"),
        pytest.param(AgentConfig(domain="alice"), "box", "alice-box", id="with the party's"),
        pytest.param(AgentConfig(), "_", "node", id="nothing usable"),
        pytest.param(AgentConfig(), "x" * 80, "x" * 52, id="too long for a certificate"),
    ],
)
def test_names(config: AgentConfig, hostname: str, name: str) -> None:
    assert node_name(config, hostname) == name


def test_a_node_that_is_right_needs_no_change() -> None:
    for config in (AgentConfig(), AgentConfig(domain="alice", labels={"a": "b"}, timing=Timing(fence_seconds=300))):
        assert metadata_patch(new_node(facts(config)), facts(config)) is None


def test_the_configured_pod_addresses_reach_a_node_that_has_none() -> None:
    wanted = facts(AgentConfig(domain="alice", network=Network(pod_cidr="10.7.0.0/24")))
    assert new_node(wanted)["spec"]["podCIDR"] == "10.7.0.0/24"
    joined = new_node(facts(AgentConfig(domain="alice")))  # as the control plane makes it when a node joins
    patch = metadata_patch(joined, wanted)
    assert patch == {"spec": {"podCIDR": "10.7.0.0/24", "podCIDRs": ["10.7.0.0/24"]}}
    given = new_node(facts(AgentConfig(domain="alice", network=Network(pod_cidr="10.9.0.0/24"))))
    assert metadata_patch(given, wanted) is None, "what a node has never changes"


def test_what_an_admin_added_stays_and_what_the_file_no_longer_has_goes() -> None:
    live = new_node(facts(AgentConfig(labels={"old": "x", "kept": "1"})))
    live["metadata"]["labels"]["admin"] = "yes"
    live["metadata"]["annotations"]["admin"] = "yes"
    wanted = facts(AgentConfig(labels={"kept": "2"}))
    patch = metadata_patch(live, wanted)
    assert patch is not None
    made = apply_merge_patch(live, patch)
    assert made["metadata"]["labels"]["admin"] == "yes"
    assert made["metadata"]["labels"]["kept"] == "2"
    assert "old" not in made["metadata"]["labels"]
    assert made["metadata"]["annotations"]["admin"] == "yes"
    assert metadata_patch(made, wanted) is None


def test_taints_are_added_and_never_taken_away() -> None:
    others = [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]
    live = new_node(facts()) | {"spec": {"taints": others}}
    live["metadata"]["resourceVersion"] = "7"
    patch = metadata_patch(live, facts(AgentConfig(domain="alice")))
    assert patch is not None
    assert patch["metadata"]["resourceVersion"] == "7", "a list is replaced whole: nobody may have changed it meanwhile"
    assert [taint["key"] for taint in patch["spec"]["taints"]] == ["node.kubernetes.io/not-ready", "kuscia.secretflow/agent"]
    assert "spec" not in (metadata_patch(apply_merge_patch(live, patch), facts()) or {})


def test_annotations_that_come_and_go() -> None:
    lacking = facts(AgentConfig(timing=Timing(fence_seconds=300)), missing=(Missing("cgroups", "not root", "no limits"),))
    live = new_node(lacking)
    assert live["metadata"]["annotations"]["muster.dev/fence-seconds"] == "300"
    assert live["metadata"]["annotations"][MISSING] == "cgroups (not root)"
    patch = metadata_patch(live, facts())
    assert patch is not None
    assert patch["metadata"]["annotations"] == {MISSING: None, "muster.dev/fence-seconds": None}


def test_a_long_list_of_what_is_missing_is_cut() -> None:
    assert len(short([Missing(f"feature {n}", "no", "so") for n in range(500)])) == 1024


def test_status() -> None:
    made = status({}, facts(), NOW)
    assert made["capacity"]["cpu"] == "4"
    assert made["addresses"][0] == {"type": "InternalIP", "address": "10.0.0.5"}
    assert made["daemonEndpoints"]["kubeletEndpoint"]["Port"] == 10250
    assert (made["nodeInfo"]["machineID"], made["nodeInfo"]["bootID"]) == ("m-1", "b-1")
    assert {one["type"]: one["status"] for one in made["conditions"]} == {
        "MemoryPressure": "False",
        "DiskPressure": "False",
        "PIDPressure": "False",
        "NetworkUnavailable": "False",
        "Ready": "True",
    }


def test_resources_that_are_gone_are_taken_away_but_not_those_of_others() -> None:
    live = {"status": {"capacity": {"cpu": "4", "nvidia.com/gpu": "2", "kubernetes.io/batch-cpu": "1000"}}}
    made = status(live, facts(), NOW)
    assert made["capacity"]["nvidia.com/gpu"] is None
    assert "kubernetes.io/batch-cpu" not in made["capacity"]


def test_an_admins_bandwidth_wins_over_the_measured_one() -> None:
    live = {"metadata": {"annotations": {"muster.dev/bandwidth": "400Mbps", "muster.dev/bandwidth-reserved": "100Mbps"}}}
    made = status(live, facts(), NOW)
    assert (made["capacity"]["kuscia.io/bandwidth"], made["allocatable"]["kuscia.io/bandwidth"]) == ("400", "300")


def test_conditions_say_what_is_wrong() -> None:
    bad = facts(pressure=Pressure(memory_used_ratio=0.95), not_ready="pods failed", network_problem="no addresses")
    found = conditions(None, bad, NOW)
    assert "95%" in (find_condition(found, "MemoryPressure") or {})["message"]
    assert (find_condition(found, "Ready") or {})["reason"] == "AgentNotReady"
    assert (find_condition(found, "NetworkUnavailable") or {})["status"] == "True"
    after = conditions(found, facts(), NOW + 5)
    assert {one["status"] for one in after if one["type"] != "Ready"} == {"False"}
    assert (find_condition(stopped(after, 3, NOW + 9), "Ready") or {})["message"].startswith("the agent was stopped; 3 pods")


@pytest.mark.parametrize(
    ("change", "is_news"),
    [
        pytest.param({}, False, id="a later heartbeat alone"),
        pytest.param({"not_ready": "x"}, True, id="not ready"),
        pytest.param({"port": 1}, True, id="another port"),
        pytest.param({"pressure": Pressure(pids_used_ratio=1.0)}, True, id="pressure"),
        pytest.param({"pressure": Pressure(memory_used_ratio=0.5)}, False, id="how much exactly"),
    ],
)
def test_what_is_worth_a_report(change: dict[str, Any], is_news: bool) -> None:
    live = {"status": status({}, facts(), NOW)}
    assert differs(live["status"], status(live, facts(**change), NOW + 30)) is is_news


def test_another_share_is_worth_a_report() -> None:
    live = {"status": status({}, facts(), NOW)}
    config = AgentConfig(capacity=Capacity(share=0.5))
    assert differs(live["status"], status(live, facts(config), NOW))


async def test_what_the_server_keeps_is_not_reported_again() -> None:
    """It spells amounts its own way, and an agent that took that for a change would write its node at every heartbeat."""
    config = AgentConfig(
        capacity=Capacity(cpu="2500m", memory="4096Mi", pods=1000, bandwidth="2Gbps", extended={"a.b/c": "1e3"})
    )
    store = await open_store()
    live = await store.create(NODES, new_node(facts(config)))
    for seconds in (0, 30):
        live = await store.patch(
            NODES, live["metadata"]["name"], {"status": status(live, facts(config), NOW)}, subresource="status"
        )
        assert not differs(live["status"], status(live, facts(config), NOW + seconds))
    assert live["status"]["capacity"]["kuscia.io/bandwidth"] == "2k"
    await store.close()


@given(
    st.dictionaries(st.sampled_from(["a", "b", "c", "domain"]), st.sampled_from(["1", "2"])),
    st.dictionaries(st.sampled_from(["a", "b", "x"]), st.sampled_from(["1", "2"])),
    st.sampled_from(["", "alice"]),
)
def test_one_patch_is_enough_and_touches_only_the_agents_own(old: dict[str, str], new: dict[str, str], domain: str) -> None:
    live = new_node(facts(AgentConfig(labels=old)))
    live["metadata"]["labels"]["admin"] = "kept"
    live["metadata"]["resourceVersion"] = "1"
    wanted = facts(AgentConfig(labels=new, domain=domain))
    patch = metadata_patch(live, wanted)
    after = live if patch is None else apply_merge_patch(live, patch)
    assert metadata_patch(after, wanted) is None
    assert after["metadata"]["labels"]["admin"] == "kept"
    assert set(after["metadata"]["labels"]) - {"admin"} == set(after["metadata"]["annotations"][OWNED].split(","))


@given(st.recursive(st.none() | st.integers() | st.text(max_size=3), lambda inner: st.dictionaries(st.text(max_size=3), inner)))
def test_whatever_stands_in_the_status_is_no_crash(old: Any) -> None:
    made = status({"status": {"capacity": old, "conditions": old}}, facts(), NOW)
    msgspec.json.encode(made)
    differs({"capacity": old, "conditions": old}, made)
