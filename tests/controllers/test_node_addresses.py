"""Ranges of addresses for nodes: none twice, none changed."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.controllers.actions import Emit, Patch, Target
from muster.controllers.node_addresses import NodeAddresses, NodeSpec, networks_of, next_free, plan
from muster.objects.labels import Muster
from muster.objects.status import Raw
from muster.sim.world import World, simulate

WHOLE = ipaddress.IPv4Network("10.244.0.0/16")
NODE = Target("", "Node", "n1", "", "u1", "7")


@pytest.mark.parametrize(
    ("taken", "expected"),
    [
        pytest.param([], "10.244.0.0/24", id="the first"),
        pytest.param(["10.244.0.0/24"], "10.244.1.0/24", id="the next"),
        pytest.param(["10.244.1.0/24"], "10.244.0.0/24", id="a gap at the beginning"),
        pytest.param(["10.244.0.0/24", "10.244.2.0/24"], "10.244.1.0/24", id="a gap"),
        pytest.param(["10.244.0.128/25"], "10.244.1.0/24", id="half taken is taken"),
        pytest.param(["10.244.0.0/20"], "10.244.16.0/24", id="a larger one"),
        pytest.param(["10.244.0.0/24", "10.244.0.0/20"], "10.244.16.0/24", id="one inside the other"),
        pytest.param(["10.0.0.0/8"], None, id="around all of it"),
        pytest.param(["192.168.0.0/16", "fd00::/64"], "10.244.0.0/24", id="elsewhere"),
        pytest.param([f"10.244.{n}.0/24" for n in range(256)], None, id="all taken"),
    ],
)
def test_next_free(taken: list[str], expected: str | None) -> None:
    found = next_free(WHOLE, 24, [ipaddress.ip_network(one) for one in taken])
    assert (str(found) if found else None) == expected


@given(st.lists(st.tuples(st.integers(0, 2**16 - 1), st.integers(18, 30)), max_size=40), st.integers(18, 28))
def test_what_is_given_overlaps_nothing_and_nothing_is_overlooked(taken: list[tuple[int, int]], prefix: int) -> None:
    networks = [ipaddress.IPv4Network((int(WHOLE.network_address) + offset, size), strict=False) for offset, size in taken]
    found = next_free(WHOLE, prefix, networks)
    free = [one for one in WHOLE.subnets(new_prefix=prefix) if not any(one.overlaps(other) for other in networks)]
    assert found == (free[0] if free else None)


def test_plan_gives_or_explains() -> None:
    actions, chosen = plan(NODE, WHOLE, 24, [ipaddress.ip_network("10.244.0.0/24")])
    assert actions == [Patch(NODE, {"spec": {"podCIDR": "10.244.1.0/24", "podCIDRs": ["10.244.1.0/24"]}})]
    assert str(chosen) == "10.244.1.0/24"
    actions, chosen = plan(NODE, WHOLE, 24, [WHOLE])
    assert chosen is None
    assert isinstance(actions[0], Emit)
    assert "node n1" in actions[0].message
    assert "all 256 parts (/24) of 10.244.0.0/16 are taken" in actions[0].message


def test_what_is_no_range_is_skipped() -> None:
    spec = NodeSpec(pod_cidr="nonsense", pod_cidrs=["10.1.0.0/24", "", "fd00::/64"])
    assert sorted(str(one) for one in networks_of(spec)) == ["10.1.0.0/24", "fd00::/64"]


@pytest.mark.parametrize("prefix", [8, 31])
def test_a_wrong_size_is_refused(prefix: int) -> None:
    with pytest.raises(ValueError, match=rf"10\.244\.0\.0/16 can't be divided into parts of /{prefix}"):
        NodeAddresses(prefix=prefix)


def node(name: str, cidr: str = "", *, is_agents: bool = True) -> Raw:
    made: Raw = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {}}
    if is_agents:
        made["metadata"]["labels"] = {Muster.AGENT: "1"}
    if cidr:
        made["spec"] = {"podCIDR": cidr, "podCIDRs": [cidr]}
    return made


async def ranges(world: World) -> dict[str, str]:
    return {one["metadata"]["name"]: one["spec"].get("podCIDR", "") for one in await world.objects("", "Node")}


def test_nodes_that_come_at_once_get_different_ranges() -> None:
    async def scenario(world: World) -> None:
        world.add_manager("controllers", lambda: [NodeAddresses("10.244.0.0/22")])
        await world.create(node("other", is_agents=False))
        await world.create(node("has", "10.244.1.0/24", is_agents=False))
        for n in range(4):
            await world.create(node(f"n{n}"))
        await world.run_for(5)
        found = await ranges(world)
        assert found.pop("other") == ""
        assert found.pop("has") == "10.244.1.0/24"
        assert sorted(found.values()) == ["", "10.244.0.0/24", "10.244.2.0/24", "10.244.3.0/24"]
        late = next(name for name, cidr in found.items() if not cidr)
        events = [one for one in await world.objects("", "Event", "default") if one.get("reason") == "PodRangeExhausted"]
        assert [one["involvedObject"]["name"] for one in events] == [late]
        gone = next(name for name, cidr in found.items() if cidr == "10.244.2.0/24")
        await world.store.delete(await world.store.resource("", "Node"), gone)
        await world.run_for(90)
        assert (await ranges(world))[late] == "10.244.2.0/24"

    simulate(scenario)
